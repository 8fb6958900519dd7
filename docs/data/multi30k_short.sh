#!/usr/bin/env bash
# The runs of multi30k_short.csv, multi30k_short_scores.csv, multi30k_short_ablation.csv and decoding.csv.
#
# They were made in float32 from Xavier's values: today's recipes need `-- --fp32 --initialization xavier`
# for the same.
set -euo pipefail
for mixer in attention tisa composite dynamic lightweight; do
  convattn recipe multi30k_short --mixer $mixer
  convattn recipe multi30k_short_en_fr --mixer $mixer
done
for mixer in attention dynamic; do
  convattn recipe multi30k_short_en_fr --mixer $mixer --seed 2
done

while read -r name mixer options; do
  convattn recipe multi30k_short --mixer $mixer --output runs/short-$name -- $options
done <<END
no-dropconnect dynamic --weight-dropout 0
kernel3 dynamic --encoder-kernel-sizes 3 --decoder-kernel-sizes 3
l2 dynamic --weight-norm l2
abs_l2 dynamic --weight-norm abs_l2
sigmoid dynamic --weight-norm sigmoid
tanh dynamic --weight-norm tanh
none dynamic --weight-norm none
window composite --attention-terms content --attention-span 15 --beyond-span mask
END
python benchmarks/decoding.py data/multi30k/bin runs/multi30k_short-{attention,tisa,composite,dynamic,lightweight}-seed1 \
  runs/short-{window,no-dropconnect,kernel3,l2,abs_l2,sigmoid,tanh,none} --repetitions 2 --threads 1
