#!/usr/bin/env bash
# The trainings of initialization.csv and initialization_parts.csv: validation perplexity after 460
# updates.
#
#     bash docs/data/initialization.sh data/multi30k/bin dynamic_conv_tiny 0.004 --initialization xavier
#     SHARE=--share-decoder-input-output-embed \
#       bash docs/data/initialization.sh data/iwslt14_low/bin attention_tiny 0.004 \
#       --encoder-normalize-before --decoder-normalize-before
#     TRAIN='python docs/data/initialization_parts.py kernel_generator xavier' \
#       bash docs/data/initialization.sh data/multi30k/bin dynamic_conv_tiny 0.004
#     DEVICE= bash docs/data/initialization.sh data/multi30k/bin attention_iwslt_de_en 0.001    # on a GPU
#
# Prepare the data first: `convattn prepare multi30k`, `convattn recipe iwslt14_de_en_low prepare --source DIR`.
set -euo pipefail
${TRAIN:-fairseq-train} "$1" --user-dir fairseq_convattn --arch "$2" ${SHARE:---share-all-embeddings} --dropout 0.3 \
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' \
  --lr "$3" --lr-scheduler inverse_sqrt --warmup-updates 400 --max-tokens 1024 --max-update 460 --clip-norm 25 \
  --seed 1 --required-batch-size-multiple 1 --update-epoch-batch-itr True --num-workers 0 ${DEVICE---cpu} ${PRECISION---bf16} \
  --no-save --validate-interval-updates 460 "${@:4}"
