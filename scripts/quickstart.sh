#!/usr/bin/env bash
# From nothing to a scored model on a small generated task, in minutes on a CPU.
set -euo pipefail

usage() {
  cat <<'END'
usage: bash scripts/quickstart.sh [--task TASK] [--output DIR]

Installs what is missing, generates data, trains a tiny dynamic convolution
model and scores it on a test set. Every command is shown; DIR/commands.sh has them all.

  --task TASK    translation (default): English into an invented language, scored by sacreBLEU;
                 summarization: articles into headlines, scored by ROUGE beside the articles'
                 first sentences; or
                 lm: a language model of an invented language, its perplexity beside the best
                 possible one
  --output DIR   a new or empty folder (default: quickstart/TASK, or quickstart/TASK-2 and so on)
END
}

die() { echo "error: $*" >&2; exit 1; }

root=$(CDPATH='' cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
task=translation
output=""
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --task | --output) [ -n "${2:-}" ] || die "$1 needs a value" ;;
    *) usage >&2; echo "error: unknown argument $1" >&2; exit 2 ;;
  esac
  declare "${1#--}=$2"
  shift 2
done
case "$task" in
  translation | summarization | lm) ;;
  *) die "--task needs translation, summarization or lm, not $task" ;;
esac
[ -z "$output" ] || [ "$PWD" = "$root" ] || output=$(realpath -m "$output")

cd "$root"
number=1
while [ -z "$output" ]; do
  folder=quickstart/$task
  [ "$number" -eq 1 ] || folder+=-$number
  [ -e "$folder" ] || output=$folder
  number=$((number + 1))
done
[[ $output != *[,:]* ]] || die "--output $output: fairseq splits paths at ',' and ':'"
[ ! -e "$output" ] || [ -d "$output" ] || die "$output is not a folder"
[ -z "$(ls -A "$output" 2>/dev/null)" ] || die "$output is not empty; choose another with --output DIR"
# shellcheck source=scripts/setup.sh
CONVATTN_MINIMAL=yes source scripts/setup.sh
# shellcheck source=scripts/progress.sh
source scripts/progress.sh
mkdir -p "$output"
trap 'echo "interrupted: $output is incomplete, remove it" >&2; exit 130' INT

out=$(printf %q "$output")

cat >"$output/commands.sh" <<'END'
#!/usr/bin/env bash
# From the repository root, after: source scripts/setup.sh
set -euo pipefail
export OMP_WAIT_POLICY=passive
END

discard() { cat >/dev/null; }

show_validations() {
  local line pattern='epoch 0*([0-9]+) .*valid on .* ppl ([^ ]+) (.*rougeL ([^ ]+))?.* num_updates ([0-9]+)'
  while IFS= read -r line; do
    if [[ $line =~ $pattern ]]; then
      printf '  epoch %2d, %3d updates: validation perplexity %s%s\n' \
        "${BASH_REMATCH[1]}" "${BASH_REMATCH[5]}" "${BASH_REMATCH[2]}" \
        "${BASH_REMATCH[4]:+, ROUGE-L ${BASH_REMATCH[4]}}"
    fi
  done
}

logged() { eval "$2" 2>&1 | tee -a "$1" | $3; } # LOG COMMAND FILTER

# run STEP COMMAND [FILTER]: the output goes to STEP.log, and through FILTER to the screen
run() {
  local log=$output/$1.log
  printf '+ %s\n' "$2"
  printf '%s\n' "$2" >>"$output/commands.sh"
  : >>"$log"
  if ! with_progress "$log" logged "$log" "$2" "${3:-discard}"; then
    tail -n 20 "$log" >&2
    die "the step '$1' failed; its log is $log"
  fi
}

# binarise_pairs: text/{train,valid,test}.{src,tgt}, split by SentencePiece, into bin
binarise_pairs() {
  local file
  run bpe "python scripts/sentencepiece_bpe.py train --input $out/text/train.src $out/text/train.tgt --model-prefix $out/bpe --vocab-size 600"
  run bpe "mkdir $out/pieces"
  for file in {train,valid,test}.{src,tgt}; do
    run bpe "python scripts/sentencepiece_bpe.py encode --model $out/bpe.model < $out/text/$file > $out/pieces/$file"
  done
  run preprocess "fairseq-preprocess -s src -t tgt --joined-dictionary \\
  --trainpref $out/pieces/train --validpref $out/pieces/valid --testpref $out/pieces/test \\
  --destdir $out/bin"
}

# train OPTIONS: fairseq-train, with what all tours share
train() {
  run train "fairseq-train $out/bin --save-dir $out/checkpoints --user-dir fairseq_convattn \\
  $1 \\
  --optimizer adam --adam-betas '(0.9, 0.98)' --max-tokens 2000 --seed 1 \\
  --required-batch-size-multiple 1 --update-epoch-batch-itr True --no-epoch-checkpoints \\
  --num-workers 0 --log-format simple --log-interval 25 --distributed-world-size 1" show_validations
}

# train_on_pairs OPTIONS
train_on_pairs() {
  train "--arch dynamic_conv_tiny --share-all-embeddings --dropout 0.1 \\
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \\
  --lr 0.004 --lr-scheduler inverse_sqrt --warmup-updates 300 $1"
}

# generate FILE OPTIONS: what the model makes of the test set, one line each, in FILE
generate() {
  run generate "fairseq-generate $out/bin --path $out/checkpoints/checkpoint_best.pt \\
  --user-dir fairseq_convattn $2 --remove-bpe sentencepiece \\
  --required-batch-size-multiple 1 > $out/generated.txt"
  run generate "grep '^D-' $out/generated.txt | cut -c 3- | sort -n | cut -f 3 > $out/$1"
}

# require_90 METRIC SCORE
require_90() {
  [ "${2:-0}" -ge 90 ] || die "the model has not learnt the task: $1 is below 90; the logs are in $output"
}

# show_examples SYSTEM_FILE ROWS
show_examples() {
  echo
  paste -d '\n' <(head -n "$2" "$output/text/test.src" | sed 's/^/source     /') \
    <(head -n "$2" "$output/$1" | sed 's/^/system     /') \
    <(head -n "$2" "$output/text/test.tgt" | sed 's/^/reference  /') /dev/null
}

translation() {
  local bleu
  run corpus "python scripts/generate_corpus.py $out/text"
  binarise_pairs
  train_on_pairs "--max-update 400"
  generate translated.txt "--beam 5"
  run score "sacrebleu $out/text/test.tgt -i $out/translated.txt -m bleu --format text" cat
  bleu=$(sed -n 's/^BLEU[^ ]* = \([0-9]*\)\..*/\1/p' "$output/score.log")
  require_90 BLEU "$bleu"
  show_examples translated.txt 5
}

summarization() {
  local rouge
  run corpus "python scripts/generate_articles.py $out/text"
  binarise_pairs
  train_on_pairs "--max-update 450 \\
  --task summarization --eval-rouge --eval-rouge-args '{\"beam\": 1}' \\
  --eval-rouge-remove-bpe sentencepiece"
  generate summaries.txt "--task summarization --beam 4 --scoring rouge"
  run score "cut -d . -f 1 $out/text/test.src > $out/first_sentences.txt"
  run score "python scripts/cli.py score --metric rouge --reference $out/text/test.tgt \\
  --hypothesis $out/summaries.txt --baseline $out/first_sentences.txt" "grep -v ^INFO:"
  rouge=$(sed -n '/^ROUGE-L F1/{s/.* = \([0-9]*\)\..*/\1/p;q}' "$output/score.log")
  require_90 ROUGE-L "$rouge"
  show_examples summaries.txt 3
}

lm() {
  run corpus "python scripts/generate_language.py $out/text"
  run preprocess "fairseq-preprocess --only-source --trainpref $out/text/train.txt \\
  --validpref $out/text/valid.txt --testpref $out/text/test.txt --destdir $out/bin"
  train "--task language_modeling --sample-break-mode eos --arch dynamic_conv_lm_tiny \\
  --share-decoder-input-output-embed --dropout 0 --criterion cross_entropy \\
  --lr 0.004 --lr-scheduler polynomial_decay --warmup-updates 100 \\
  --max-update 800 --total-num-update 800 --validate-interval-updates 200"
  run score "fairseq-eval-lm $out/bin --path $out/checkpoints/checkpoint_best.pt \\
  --user-dir fairseq_convattn --sample-break-mode eos"
  compare_perplexity
}

# compare_perplexity: that of score.log with that of entropy.json
compare_perplexity() {
  echo
  python -P - "$output" <<'END'
import json
import re
import sys
from pathlib import Path

output = Path(sys.argv[1])
log = (output / "score.log").read_text(encoding="utf-8")
best = json.loads((output / "text/entropy.json").read_text(encoding="utf-8"))["test"]
model = float(re.search(r"Perplexity: ([\d.]+)", log)[1])
tokens = int(re.search(r"Evaluated ([\d,]+) tokens", log)[1].replace(",", ""))
if tokens != best["tokens"]:
    sys.exit(f"error: fairseq-eval-lm has scored {tokens} of the {best['tokens']} tokens")
above = 100 * (model / best["perplexity"] - 1)
print(f"perplexity on the {tokens} tokens of the test set")
print(f"  model          {model:6.2f}")
print(f"  best possible  {best['perplexity']:6.2f}, by {output}/text/entropy.json")
print(f"  above it       {above:6.2f} %")
if above > 5:
    sys.exit(
        "error: the model has not learnt the language: its perplexity is more than 5 % above the "
        f"best possible one; the logs are in {output}"
    )
END
}

"$task"
echo "done in $((SECONDS / 60)) min $((SECONDS % 60)) s in all; commands, logs and the model are in $output"
