#!/usr/bin/env bash
# A training of a language model on news and its test perplexities, in the folder `lm` that
# news_language_models.sh prepares. search_language_models.sh calls it.
#
#     bash docs/data/short_convolution_language_models.sh dynamic_conv_lm_tiny --decoder-ffn-embed-dim 288
#
# PRECISION= trains in float32. So were trained the bfloat16 models of news_language_models.csv and, in float32, its
# pre-norm transformer_lm, with the shape in news_language_models.sh and --decoder-normalize-before.
set -euo pipefail
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
folder=$(mktemp -d checkpoints-XXXXXX)
fairseq-train lm --task language_modeling --user-dir fairseq_convattn --arch "$1" \
  --share-decoder-input-output-embed --no-decoder-final-norm false --dropout 0.2 \
  --sample-break-mode none --tokens-per-sample 512 --max-tokens 2048 \
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 --lr 0.003 \
  --lr-scheduler polynomial_decay --warmup-updates 200 --total-num-update 2000 --max-update 2000 \
  --seed 1 --required-batch-size-multiple 1 --update-epoch-batch-itr True --no-epoch-checkpoints \
  --num-workers 0 --cpu ${PRECISION---bf16} --log-format json --save-dir "$folder" "${@:2}"
[ -e "$folder/checkpoint_best.pt" ] || exit 0  # with --no-save
for context in 0 384; do
  fairseq-eval-lm lm --user-dir fairseq_convattn --path "$folder/checkpoint_best.pt" \
    --tokens-per-sample 512 --context-window "$context" --cpu
done
