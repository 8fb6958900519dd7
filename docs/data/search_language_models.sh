#!/usr/bin/env bash
# The trainings of search_language_models.csv, in the folder `lm` that news_language_models.sh prepares:
# prints a line of that file for a system, learning rate, warm-up and seed.
#
#     for system in attention static headwise low_rank dynamic; do
#       for rate in 0.0015 0.003 0.006; do
#         bash docs/data/search_language_models.sh $system $rate 400 1
#       done
#     done
set -euo pipefail
architecture=short_conv_lm_tiny
case $1 in
  attention) architecture=attention_lm_tiny options=() ;;
  static) options=(--short-convolution static) ;;
  headwise) options=(--short-convolution headwise --decoder-ffn-embed-dim 224) ;;
  low_rank) options=(--decoder-ffn-embed-dim 136) ;;
  dynamic) architecture=dynamic_conv_lm_tiny options=(--decoder-ffn-embed-dim 288) ;;
esac
output=$(bash "$(dirname "$0")/short_convolution_language_models.sh" $architecture "${options[@]}" \
  --lr "$2" --warmup-updates "$3" --seed "$4" 2>&1) || { echo "$output" >&2; exit 1; }
valid=$(grep -oP '"valid_ppl": "\K[0-9.]+' <<<"$output" | sort -g | head -n 1)
mapfile -t test < <(grep -oP 'Perplexity: \K[0-9.]+' <<<"$output")
echo "$1,$2,$3,$4,$valid,${test[0]},${test[1]}"
