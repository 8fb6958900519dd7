#!/usr/bin/env bash
# The trainings of search.csv: each system of multi30k_short with three learning rates and two
# warm-ups, for two epochs instead of six. Prints system, learning rate, warm-up and validation
# perplexity; with systems as arguments of these alone. static, headwise and low_rank are attention
# with short convolutions.
#
#     convattn prepare multi30k --output data/multi30k
#     bash docs/data/search.sh | tee docs/data/search.csv
set -euo pipefail
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
[ $# -gt 0 ] || set -- attention lightweight dynamic composite tisa static headwise low_rank

echo "system,learning rate,warm-up,validation perplexity"
for system; do
  mixer=short_conv
  case $system in
    static) options=(--short-convolution static) ;;
    headwise)
      options=(--short-convolution headwise --encoder-ffn-embed-dim 224 --decoder-ffn-embed-dim 224) ;;
    low_rank) options=(--encoder-ffn-embed-dim 136 --decoder-ffn-embed-dim 136) ;;
    *) mixer=$system options=() ;;
  esac
  for rate in 0.001 0.002 0.004; do
    for warmup in 200 400; do
      command=$(python -m fairseq_convattn.recipes multi30k_short --mixer "$mixer" --dry-run -- \
        --lr $rate --warmup-updates $warmup --max-epoch 2 --total-num-update 920 --num-workers 0 \
        --no-save --bf16 "${options[@]}" | grep '^fairseq-train')
      perplexity=$(eval "$command" 2>&1 | grep -oP '"valid_ppl": "\K[0-9.]+' | tail -n 1)
      echo "$system,$rate,$warmup,$perplexity"
    done
  done
done
