#!/usr/bin/env bash
# A pre-training of masked_lm.csv and its fine-tunings of glue.csv.
#
#     bash docs/data/masked_lm.sh absolute attention_bert_tiny
#     bash docs/data/masked_lm.sh prenorm attention_bert_tiny --encoder-normalize-before
#     bash docs/data/masked_lm.sh none attention_bert_tiny --no-token-positional-embeddings
#     bash docs/data/masked_lm.sh fixed composite_attention_bert_tiny --attention-terms content,fixed
#     bash docs/data/masked_lm.sh query composite_attention_bert_tiny
#     bash docs/data/masked_lm.sh tisa tisa_bert_tiny
#     bash docs/data/masked_lm.sh dynamic dynamic_conv_bert_tiny --optimizer convattn_adam
#     bash docs/data/masked_lm.sh lightweight lightweight_conv_bert_tiny --optimizer convattn_adam
#
# With dialogues, those of masked_lm_dialogues.csv and glue_dialogues.csv, which also read samsum/samsum.zip:
#
#     export TEXT=dialogues UPDATES=30000 EPOCHS=10
#     bash docs/data/masked_lm.sh absolute attention_bert_tiny --save-interval-updates 5000
#     bash docs/data/masked_lm.sh tisa tisa_bert_tiny --save-interval-updates 5000
#     bash docs/data/masked_lm.sh tisa-seed2 tisa_bert_tiny --seed 2 --max-update 10000 --save-interval-updates 5000
#     bash docs/data/masked_lm.sh fixed composite_attention_bert_tiny --attention-terms content,fixed --max-update 10000 --save-interval-updates 5000
#     bash docs/data/masked_lm.sh query composite_attention_bert_tiny --max-update 10000 --save-interval-updates 5000
#
# `data` has bbc/{train,valid,test}.source.gz, one article a line, multi30k/raw/{train,val}.en.gz and
# glue/{CoLA,SST-2,MRPC,RTE,STS-B} as their authors publish them, compressed. `--sample`, for CoLA,
# SST-2 and MRPC are not the full files of GLUE.
set -euo pipefail
cat > corpus.py <<'END'
import csv, gzip, json, os, zipfile
from fairseq_convattn.scoring.rouge import RougeSettings, split_sentences

def lines(name):
    with gzip.open(f"data/{name}.gz", "rt", encoding="utf-8-sig") as file:
        return file.read().splitlines()

def column(name, *columns, header=True):
    rows = list(csv.reader(lines(name), delimiter="\t", quoting=csv.QUOTE_NONE))[header:]
    return [row[c].strip() for row in rows for c in columns]

def sentences(articles):
    for article in articles:
        yield from split_sentences(article, RougeSettings(split="punctuation")).splitlines()
        yield ""

def dialogues():
    archive = zipfile.ZipFile("data/samsum/samsum.zip")
    for example in json.loads(archive.read("samsum/train.json")):
        lines = f"{example['dialogue']}\n{example['summary']}".splitlines()
        yield from filter(None, map(str.strip, lines))
        yield ""

glue = {
    part: column(f"glue/CoLA/{part}.tsv", 3, header=False) + column(f"glue/SST-2/{part}.tsv", 0)
    + column(f"glue/MRPC/msr_paraphrase_{test}.txt", 3, 4)
    + column(f"glue/RTE/{part}.tsv", 1, 2) + column(f"glue/STS-B/{part}.tsv", 7, 8)
    for part, test in (("train", "train"), ("dev", "test"))
}
valid = [*sentences(lines("bbc/valid.source")), *lines("multi30k/raw/val.en")]
held_out = {*valid, *glue["dev"], *sentences(lines("bbc/test.source"))} - {""}
captions = lines("multi30k/raw/train.en")
train = [*sentences(lines("bbc/train.source")), *captions, "", *glue["train"]]
if os.environ.get("TEXT") == "dialogues":
    train += ["", *dialogues()]
train = [sentence for sentence in train if sentence not in held_out]
for name, text in (("train", train), ("valid", valid)):
    with open(f"{name}.txt", "w", encoding="utf-8") as file:
        file.write("\n".join(text) + "\n")
    print(name, sum(map(bool, text)), "sentences")
END
python corpus.py
convattn sentencepiece train --input train.txt --model-prefix bpe --vocab-size 8000
for part in train valid; do
  convattn sentencepiece encode --model bpe.model < $part.txt > $part.bpe
done
fairseq-preprocess --only-source --trainpref train.bpe --validpref valid.bpe --destdir mlm

fairseq-train mlm --user-dir fairseq_convattn --task masked_lm --criterion masked_lm --arch "$2" \
  --sample-break-mode complete --tokens-per-sample 128 --batch-size 32 --required-batch-size-multiple 1 \
  --update-epoch-batch-itr True --skip-invalid-size-inputs-valid-test \
  --optimizer adam --adam-betas '(0.9,0.999)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 1.0 \
  --lr 2e-3 --lr-scheduler polynomial_decay --warmup-updates 1500 --total-num-update "${UPDATES:-15000}" --max-update "${UPDATES:-15000}" \
  --seed 1 --no-epoch-checkpoints --num-workers 0 --bf16 --save-dir "checkpoints/$1" "${@:3}"
pieces=(--sentencepiece bpe.model --dictionary mlm/dict.txt)
convattn prepare glue --tasks RTE,STS-B --source data/glue "${pieces[@]}" --output glue
convattn prepare glue --tasks CoLA,SST-2,MRPC --sample --source data/glue "${pieces[@]}" --output glue_sample
for task in RTE STS-B CoLA SST-2 MRPC; do
  folder=glue; case $task in CoLA | SST-2 | MRPC) folder=glue_sample ;; esac
  convattn glue finetune $task "checkpoints/$1/checkpoint_last.pt" --data $folder/bin --seeds 1,2,3 \
    --lr 5e-4 --batch-size 32 --epochs "${EPOCHS:-3}"
done
