#!/usr/bin/env bash
# From nothing to a scored translation model on a small synthetic task, in minutes on a CPU.
set -euo pipefail

usage() {
  cat <<'END'
usage: bash scripts/quickstart.sh [--output DIR]

Installs what is missing (scripts/setup.sh), writes a synthetic corpus, splits it with
SentencePiece, trains a tiny dynamic convolution model, translates the test set and scores
it with sacreBLEU. Every command is shown; DIR/commands.sh has them all.

  --output DIR   a new or empty folder (default: quickstart/<date>_<time>)
END
}

die() { echo "error: $*" >&2; exit 1; }

root=$(CDPATH='' cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=quickstart/$(date +%Y-%m-%d_%H%M%S)
while [ $# -gt 0 ]; do
  case "$1" in
    --output)
      output=${2:-}
      [ -n "$output" ] || die "--output needs a folder"
      case "$output" in /*) ;; *) [ "$PWD" = "$root" ] || output=$PWD/$output ;; esac
      shift 2
      ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

cd "$root"
[ ! -e "$output" ] || [ -d "$output" ] || die "$output is not a folder"
[ -z "$(ls -A "$output" 2>/dev/null)" ] || die "$output is not empty; choose another with --output DIR"
# shellcheck source=scripts/setup.sh
source scripts/setup.sh
SECONDS=0
mkdir -p "$output"

quoted() {
  case "$1" in
    *[!A-Za-z0-9_./-]*) printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")" ;;
    *) printf %s "$1" ;;
  esac
}
out=$(quoted "$output")

cat >"$output/commands.sh" <<'END'
#!/usr/bin/env bash
# From the repository root, after: source scripts/setup.sh
set -euo pipefail
export OMP_WAIT_POLICY=passive
END

discard() { cat >/dev/null; }

show_validations() {
  local line pattern='epoch 0*([0-9]+) .*valid on .* ppl ([^ ]+) .* num_updates ([0-9]+)'
  while IFS= read -r line; do
    if [[ $line =~ $pattern ]]; then
      printf '  epoch %2d, %3d updates: validation perplexity %s\n' \
        "${BASH_REMATCH[1]}" "${BASH_REMATCH[3]}" "${BASH_REMATCH[2]}"
    fi
  done
}

# run STEP COMMAND [FILTER]: the output goes to STEP.log, and through FILTER to the screen
run() {
  local log=$output/$1.log
  printf '+ %s\n' "$2"
  printf '%s\n' "$2" >>"$output/commands.sh"
  if ! eval "$2" 2>&1 | tee -a "$log" | ${3:-discard}; then
    tail -n 20 "$log" >&2
    die "the step '$1' failed; its log is $log"
  fi
}

run corpus "python scripts/generate_corpus.py $out/text"

run bpe "python scripts/sentencepiece_bpe.py train --input $out/text/train.src $out/text/train.tgt --model-prefix $out/bpe --vocab-size 600"
run bpe "mkdir $out/pieces"
for file in {train,valid,test}.{src,tgt}; do
  run bpe "python scripts/sentencepiece_bpe.py encode --model $out/bpe.model < $out/text/$file > $out/pieces/$file"
done

run preprocess "fairseq-preprocess -s src -t tgt --joined-dictionary \\
  --trainpref $out/pieces/train --validpref $out/pieces/valid --testpref $out/pieces/test \\
  --destdir $out/bin"

run train "fairseq-train $out/bin --save-dir $out/checkpoints --user-dir fairseq_convattn \\
  --arch dynamic_conv_tiny --share-all-embeddings --dropout 0.1 \\
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \\
  --optimizer adam --adam-betas '(0.9, 0.98)' \\
  --lr 0.004 --lr-scheduler inverse_sqrt --warmup-updates 300 \\
  --max-tokens 2000 --max-update 400 --seed 1 --required-batch-size-multiple 1 \\
  --no-epoch-checkpoints --num-workers 0 --distributed-world-size 1" show_validations

run generate "fairseq-generate $out/bin --path $out/checkpoints/checkpoint_best.pt \\
  --user-dir fairseq_convattn --beam 5 --remove-bpe sentencepiece \\
  --required-batch-size-multiple 1 > $out/generated.txt"
run generate "grep '^D-' $out/generated.txt | cut -c 3- | sort -n | cut -f 3 > $out/translated.txt"

run score "sacrebleu $out/text/test.tgt -i $out/translated.txt -m bleu --format text" cat
bleu=$(sed -n 's/^BLEU[^ ]* = \([0-9]*\)\..*/\1/p' "$output/score.log")
[ "${bleu:-0}" -ge 90 ] || die "the model has not learnt the task: BLEU is below 90; the logs are in $output"

echo
python - "$output" <<'END'
import itertools
import sys
import textwrap
from pathlib import Path

output = Path(sys.argv[1])
files = [output / "text/test.src", output / "translated.txt", output / "text/test.tgt"]
rows = zip(*(file.read_text(encoding="utf-8").splitlines()[:5] for file in files), strict=True)
for row in [("SOURCE", "SYSTEM", "REFERENCE"), *rows]:
    for line in itertools.zip_longest(*(textwrap.wrap(cell, 31) for cell in row), fillvalue=""):
        print("{:33}{:33}{}".format(*line))
    print()
END
echo "done in $((SECONDS / 60)) min $((SECONDS % 60)) s; commands, logs and the model are in $output"
