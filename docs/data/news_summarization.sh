#!/usr/bin/env bash
# A training of news_summarization.csv and its ROUGE, then those of the baselines.
#
#     bash docs/data/news_summarization.sh dynamic_conv_tiny
#     bash docs/data/news_summarization.sh attention_tiny --encoder-normalize-before --decoder-normalize-before
#
# It needs the text and pieces of news_language_models.sh, and a folder for each training.
set -euo pipefail
fairseq-preprocess -s source -t target --joined-dictionary --trainpref pieces/train \
  --validpref pieces/valid --testpref pieces/test --destdir summarization
fairseq-train summarization --task summarization --user-dir fairseq_convattn --arch "$1" "${@:2}" \
  --share-all-embeddings --max-source-tokens 400 --max-target-tokens 400 \
  --dropout 0.2 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 --lr 0.003 \
  --lr-scheduler polynomial_decay --warmup-updates 200 --total-num-update 1200 --max-update 1200 \
  --max-tokens 2048 --validate-interval 100 --eval-rouge --eval-rouge-args '{"beam": 4, "max_len_b": 400}' \
  --eval-rouge-remove-bpe sentencepiece --best-checkpoint-metric rougeL \
  --maximize-best-checkpoint-metric --seed 1 --no-epoch-checkpoints --num-workers 0 --cpu --bf16 \
  --update-epoch-batch-itr True --save-dir "checkpoints/$1"
fairseq-generate summarization --task summarization --user-dir fairseq_convattn \
  --max-source-tokens 400 --path "checkpoints/$1/checkpoint_best.pt" --beam 4 --min-len 100 \
  --max-len-b 400 --remove-bpe sentencepiece --max-tokens 4000 --cpu > generated.txt
convattn score --metric rouge --rouge-split punctuation --reference text/test.target \
  --hypothesis generated.txt

cat > lead.py <<'END'
import sys
from fairseq_convattn.scoring.rouge import RougeSettings, split_sentences

for line in sys.stdin:
    sentences = split_sentences(line.strip(), RougeSettings(split="punctuation")).split("\n")
    words = line.split()
    print(*{"lead-3": sentences[:3], "lead": words[:173], "whole": words}[sys.argv[1]])
END
for system in lead-3 lead whole; do
  python lead.py $system < text/test.source > $system.txt
  convattn score --metric rouge --rouge-split punctuation --reference text/test.target \
    --hypothesis $system.txt
done
