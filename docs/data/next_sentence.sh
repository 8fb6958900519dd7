#!/usr/bin/env bash
# The fine-tunings of glue_next.csv, in the folder in which masked_lm.sh has run with TEXT=dialogues:
#
#     bash docs/data/next_sentence.sh absolute-30000 checkpoints/absolute/checkpoint_last.pt
#     bash docs/data/next_sentence.sh absolute-10000 checkpoints/absolute/checkpoint_8_10000.pt
#     bash docs/data/next_sentence.sh tisa-10000 checkpoints/tisa/checkpoint_8_10000.pt
#     bash docs/data/next_sentence.sh fixed-10000 checkpoints/fixed/checkpoint_last.pt
#     bash docs/data/next_sentence.sh query-10000 checkpoints/query/checkpoint_last.pt
#
# Next sentence prediction first: is the second sentence the one that follows the first, or one from elsewhere? It has two
# classes, as QNLI has, and is therefore written in QNLI's format. Then STS-B and RTE from that model.
set -euo pipefail
cat > next_sentence.py <<'END'
import gzip, json, random, zipfile
from pathlib import Path
from fairseq_convattn.scoring.rouge import RougeSettings, split_sentences

ENOUGH, MOST = 12, 32  # words of a segment

def articles(part):
    with gzip.open(f"data/bbc/{part}.source.gz", "rt", encoding="utf-8-sig") as file:
        return [split_sentences(line, RougeSettings(split="punctuation")).splitlines() for line in file]

def dialogues(part):
    archive = zipfile.ZipFile("data/samsum/samsum.zip")
    for example in json.loads(archive.read(f"samsum/{part}.json")):
        lines = f"{example['dialogue']}\n{example['summary']}".splitlines()
        yield [line.strip() for line in lines if line.strip()]

def segment(sentences):
    words = []
    for sentence in sentences:
        words += sentence.split()
        if len(words) >= ENOUGH:
            break
    return " ".join(words[:MOST])

def pairs(documents, most, random):
    documents = [document for document in documents if len(document) > 2]
    for document in documents:
        for cut in random.sample(range(1, len(document)), min(most, len(document) - 1)):
            alone = len(document[cut - 1].split()) >= ENOUGH
            first = segment(document[cut - 1 if alone else max(0, cut - 3) : cut])
            yield first, segment(document[cut:]), "entailment"
            other = random.choice(documents)
            while other is document:
                other = random.choice(documents)
            yield first, segment(other[random.randrange(1, len(other)) :]), "not_entailment"

random_numbers = random.Random(1)
folder = Path("next/tsv/QNLI")
folder.mkdir(parents=True)
for part, bbc, samsum in (("train", "train", "train"), ("dev", "valid", "val")):
    found = [*pairs(articles(bbc), 12, random_numbers), *pairs(dialogues(samsum), 3, random_numbers)]
    if part == "dev":
        found = random_numbers.sample(found, 2000)
    with open(folder / f"{part}.tsv", "w", encoding="utf-8") as file:
        file.write("index\tquestion\tsentence\tlabel\n")
        for number, row in enumerate(found):
            file.write("\t".join([str(number), *(text.replace("\t", " ") for text in row)]) + "\n")
END
if [ ! -d next ]; then
  python next_sentence.py
  convattn prepare glue --tasks QNLI --sample --source next/tsv --sentencepiece bpe.model --dictionary mlm/dict.txt --output next/data
fi
convattn glue finetune QNLI "$2" --data next/data/bin --seeds 1 --lr 5e-4 --batch-size 64 --epochs 3 \
  --output "next/$1" -- --bf16
for task in STS-B RTE; do
  convattn glue finetune $task "next/$1" --data glue/bin --seeds 1,2,3 --lr 5e-4 --batch-size 32 --epochs 10 \
    --output "next/$1-$task"
done
