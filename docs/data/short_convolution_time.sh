#!/usr/bin/env bash
# Seconds per update of the systems in short_convolution_time.csv: 120 updates of each training in
# turn, two rounds, on one core. The median of updates 21 to 120 counts, of the faster round.
#
#     bash docs/data/short_convolution_time.sh multi30k_short
#     bash docs/data/short_convolution_time.sh iwslt14_de_en_low_short
#     bash docs/data/short_convolution_time.sh news    # language models
#
# Prepare the data first: `convattn recipe RECIPE prepare [--source DIR]`, news by news_language_models.sh.
set -euo pipefail
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
recipe=${1-} pre_norm=(--encoder-normalize-before --decoder-normalize-before)
case $recipe in
  multi30k_short) attention=("${pre_norm[@]}") dynamic=(--encoder-ffn-embed-dim 296 --decoder-ffn-embed-dim 296) ;;
  iwslt14_de_en_low_short) attention=("${pre_norm[@]}") dynamic=() ;;
  news) attention=() dynamic=(--decoder-ffn-embed-dim 288) ;;
  *) echo "usage: bash docs/data/short_convolution_time.sh multi30k_short|iwslt14_de_en_low_short|news" >&2; exit 2 ;;
esac

short=(--max-update 120 --log-interval 20 --no-save --disable-validation)

train() {
  local mixer=$1 command
  shift
  if [ "$recipe" = news ]; then
    [ "$mixer" = dynamic ] && mixer=dynamic_conv
    bash "$(dirname "$0")/short_convolution_language_models.sh" "${mixer}_lm_tiny" "$@" "${short[@]}"
    return
  fi
  command=$(python -m fairseq_convattn.recipes "$recipe" train --mixer "$mixer" --output runs/time --dry-run -- \
    "$@" --bf16 --num-workers 0 "${short[@]}" | grep '^fairseq-train')
  eval "$command"
}

seconds() {
  local name=$1
  shift
  train "$@" | grep -oP '"ups": "\K[0-9.]+' | tail -n +2 | sort -n |
    awk -v name="$name" '{ups[NR] = $1} END {printf "%s %.3f\n", name, 1 / ups[int((NR + 1) / 2)]}'
}

width() {
  [ "$recipe" = news ] || echo "--encoder-ffn-embed-dim $1"
  echo "--decoder-ffn-embed-dim $1"
}

for _ in 1 2; do
  seconds attention attention "${attention[@]}"
  seconds static short_conv "${attention[@]}" --short-convolution static
  seconds headwise short_conv "${attention[@]}" --short-convolution headwise $(width 224)
  seconds low_rank short_conv "${attention[@]}" $(width 136)
  seconds "static after every linear map" short_conv "${attention[@]}" --short-convolution static --short-convolution-on qkvo12
  seconds dynamic dynamic "${dynamic[@]}"
done
