#!/usr/bin/env bash
# The pictures of docs/analysis.md: a short pre-training on Multi30k's English captions, and its curves.
#
#     bash docs/data/curves.sh tisa_bert_tiny
#     bash docs/data/curves.sh composite_attention_bert_tiny
#
# It needs train.txt and valid.txt, one caption a line: raw/train.en and raw/val.en of multi30k/dataset.
set -euo pipefail
convattn sentencepiece train --input train.txt --model-prefix bpe --vocab-size 4000
for part in train valid; do
  convattn sentencepiece encode --model bpe.model < $part.txt > $part.bpe
done
fairseq-preprocess --only-source --trainpref train.bpe --validpref valid.bpe --destdir mlm
fairseq-train mlm --task masked_lm --criterion masked_lm --user-dir fairseq_convattn --arch "$1" \
  --sample-break-mode eos --tokens-per-sample 128 --max-tokens 2048 \
  --optimizer adam --adam-betas '(0.9, 0.999)' --lr 3e-3 --clip-norm 1.0 \
  --lr-scheduler polynomial_decay --warmup-updates 100 --total-num-update 800 --max-epoch 2 \
  --required-batch-size-multiple 1 --update-epoch-batch-itr True --skip-invalid-size-inputs-valid-test \
  --seed 1 --no-epoch-checkpoints --bf16 --num-workers 0 --save-dir "checkpoints/$1"
convattn analyse "checkpoints/$1/checkpoint_last.pt" --output "analysis-$1"
