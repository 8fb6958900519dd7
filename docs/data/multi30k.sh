#!/usr/bin/env bash
# A training of multi30k.csv and its BLEU on test_2016_flickr.
#
#     bash docs/data/multi30k.sh dynamic_conv_tiny
#
# `--gen-subset test1` and test_2017_flickr.de give the other test set.
# The runs started from Xavier's values, in today's options `--initialization xavier`.
set -euo pipefail
convattn prepare multi30k
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592
fairseq-train data/multi30k/bin --user-dir fairseq_convattn --arch "$1" --share-all-embeddings \
  --dropout 0.2 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
  --optimizer adam --adam-betas '(0.9, 0.98)' --lr 0.003 --lr-scheduler polynomial_decay \
  --warmup-updates 600 --total-num-update 4600 --max-update 4600 --max-tokens 1024 --update-freq 2 \
  --seed 1 --required-batch-size-multiple 1 --keep-last-epochs 5 --num-workers 0 --cpu \
  --save-dir "checkpoints/$1"
convattn average --inputs "checkpoints/$1" --last 5 --output "checkpoints/$1/average.pt"
fairseq-generate data/multi30k/bin --gen-subset test --user-dir fairseq_convattn \
  --path "checkpoints/$1/average.pt" --beam 5 --remove-bpe --required-batch-size-multiple 1 > test.txt
grep '^H-' test.txt | cut -c 3- | sort -n | cut -f 3 > test.de
sacrebleu data/multi30k/text/test_2016_flickr.de -i test.de -m bleu --tokenize none --force -w 2
