#!/usr/bin/env bash
# Seconds per update of the systems in short_convolution_time.csv: 120 updates of each training in
# turn, two rounds, on one core. The median of updates 21 to 120 counts, of the faster round.
#
#     convattn prepare multi30k --output data/multi30k
#     bash docs/data/short_convolution_time.sh
set -euo pipefail
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

seconds() {
  local name=$1 mixer=$2 command
  shift 2
  command=$(python -m fairseq_convattn.recipes multi30k_short --mixer "$mixer" --dry-run -- "$@" |
    grep '^fairseq-train')
  eval "$command --num-workers 0 --max-update 120 --log-interval 20 --no-save --disable-validation" |
    grep -oP '"ups": "\K[0-9.]+' | tail -n +2 | sort -n |
    awk -v name="$name" '{ups[NR] = $1} END {printf "%s %.3f\n", name, 1 / ups[int((NR + 1) / 2)]}'
}

for _ in 1 2; do
  seconds attention attention
  seconds static short_conv --short-convolution static
  seconds headwise short_conv --short-convolution headwise \
    --encoder-ffn-embed-dim 224 --decoder-ffn-embed-dim 224
  seconds low_rank short_conv --encoder-ffn-embed-dim 136 --decoder-ffn-embed-dim 136
  seconds dynamic dynamic --encoder-ffn-embed-dim 296 --decoder-ffn-embed-dim 296
done
