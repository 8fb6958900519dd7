#!/usr/bin/env bash
# The trainings of initialization.csv: validation perplexity after 460 updates.
#
#     bash docs/data/initialization.sh dynamic_conv_tiny 0.004 --initialization xavier
#     bash docs/data/initialization.sh attention_tiny 0.004 --encoder-normalize-before --decoder-normalize-before
#
# First `convattn prepare multi30k`. For IWSLT14 the data are train.low with fairseq's BPE codes, validated
# on the first 500 sentences of the validation set.
set -euo pipefail
fairseq-train data/multi30k/bin --user-dir fairseq_convattn --arch "$1" --share-all-embeddings --dropout 0.3 \
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' \
  --lr "$2" --lr-scheduler inverse_sqrt --warmup-updates 400 --max-tokens 1024 --max-update 460 --clip-norm 25 \
  --seed 1 --required-batch-size-multiple 1 --update-epoch-batch-itr True --num-workers 0 --cpu --bf16 \
  --no-save --validate-interval-updates 460 "${@:3}"
