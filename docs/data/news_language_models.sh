#!/usr/bin/env bash
# A training of news_language_models.csv in float32, and its test perplexity.
#
#     bash docs/data/news_language_models.sh transformer_lm OPTIONS
#
# It needs text/{train,valid,test}.{source,target}, one text a line. fairseq's transformer_lm and
# lightconv_lm take the shape and dropouts of *_lm_tiny:
#
#     --decoder-embed-dim 128 --decoder-input-dim 128 --decoder-output-dim 128
#     --decoder-ffn-embed-dim 256 --decoder-layers 4 --decoder-attention-heads 4 --attention-dropout 0.1
#
# and lightconv_lm these as well:
#
#     --decoder-kernel-size-list 3,7,15,31 --decoder-glu True --decoder-conv-type dynamic
#     --weight-dropout 0.1 --input-dropout 0
set -euo pipefail
convattn sentencepiece train --input text/train.source text/train.target --model-prefix bpe --vocab-size 4000
mkdir pieces
for file in {train,valid,test}.{source,target}; do
  convattn sentencepiece encode --model bpe.model < text/$file > pieces/$file
done
fairseq-preprocess --only-source --trainpref pieces/train.source --validpref pieces/valid.source \
  --testpref pieces/test.source --destdir lm
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592
fairseq-train lm --task language_modeling --user-dir fairseq_convattn --arch "$1" "${@:2}" \
  --share-decoder-input-output-embed --dropout 0.2 \
  --sample-break-mode none --tokens-per-sample 512 --max-tokens 2048 \
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 --lr 0.003 \
  --lr-scheduler polynomial_decay --warmup-updates 200 --total-num-update 2000 --max-update 2000 \
  --seed 1 --required-batch-size-multiple 1 --update-epoch-batch-itr True --no-epoch-checkpoints \
  --num-workers 0 --cpu --save-dir "checkpoints/$1"
fairseq-eval-lm lm --user-dir fairseq_convattn --path "checkpoints/$1/checkpoint_best.pt" \
  --tokens-per-sample 512 --cpu    # and with --context-window 384
