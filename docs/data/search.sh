#!/usr/bin/env bash
# The trainings of search.csv: systems of a recipe, each with three learning rates and two warm-ups,
# for a part of the recipe's updates. Prints system, learning rate, warm-up and validation
# perplexity. static, headwise and low_rank are attention with short convolutions; SYSTEM_pre_norm
# normalises before each layer.
#
#     bash docs/data/search.sh multi30k_short [SYSTEM ...]
#     bash docs/data/search.sh iwslt14_de_en_low_short [SYSTEM ...]
#     RATES=0.008 PRECISION=--fp32 bash docs/data/search.sh multi30k_short dynamic
#
# Prepare the data first: convattn recipe RECIPE prepare [--source DIR]
set -euo pipefail
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
case ${1-} in
  multi30k_short) rates='0.001 0.002 0.004' warmups='200 400' budget='--max-epoch 2 --total-num-update 920' ;;
  iwslt14_de_en_low_short) rates='0.0015 0.003 0.006' warmups='200 400' budget='--max-epoch 3 --total-num-update 1128' ;;
  *) echo "usage: bash docs/data/search.sh multi30k_short|iwslt14_de_en_low_short [SYSTEM ...]" >&2; exit 2 ;;
esac
rates=${RATES:-$rates} precision=${PRECISION:---bf16} recipe=$1
shift
[ $# -gt 0 ] || set -- attention attention_pre_norm lightweight dynamic composite tisa static headwise low_rank

echo "system,learning rate,warm-up,validation perplexity"
for system; do
  mixer=short_conv
  case ${system%_pre_norm} in
    static) options='--short-convolution static' ;;
    headwise) options='--short-convolution headwise --encoder-ffn-embed-dim 224 --decoder-ffn-embed-dim 224' ;;
    low_rank) options='--encoder-ffn-embed-dim 136 --decoder-ffn-embed-dim 136' ;;
    *) mixer=${system%_pre_norm} options= ;;
  esac
  case $system in *_pre_norm) options+=' --encoder-normalize-before --decoder-normalize-before' ;; esac
  for rate in $rates; do
    for warmup in $warmups; do
      command=$(python -m fairseq_convattn.recipes "$recipe" --mixer "$mixer" --output runs/search --dry-run -- \
        --lr $rate --warmup-updates $warmup $budget --num-workers 0 --no-save $precision $options |
        grep '^fairseq-train')
      perplexity=$(eval "$command" 2>&1 | grep -oP '"valid_ppl": "\K[0-9.]+' | tail -n 1)
      echo "$system,$rate,$warmup,$perplexity"
    done
  done
done
