#!/usr/bin/env bash
# Multi30k English-German, ready for fairseq-train: joint BPE of 10,000 merges.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: bash scripts/prepare_multi30k.sh [--source DIR] [--output DIR]

Downloads Multi30k task 1 (lower-cased, normalised, tokenised), learns one BPE of 10,000
merges over both languages and runs fairseq-preprocess.

  --source DIR   a local copy instead of the download: train, val, test_2016_flickr and
                 test_2017_flickr, each .en and .de (or .lc.norm.tok.en / .de, the release's
                 names), plain or .gz, in DIR or DIR/tok
  --output DIR   a new folder for the data (default: data/multi30k); DIR/bin is for
                 fairseq-train

Needs fairseq and subword-nmt (pip install subword-nmt).
EOF
}

source_dir="" output=data/multi30k
while [ $# -gt 0 ]; do
  case "$1" in
    --source) source_dir=${2:?--source needs a folder}; shift 2 ;;
    --output) output=${2:?--output needs a folder}; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

die() { echo "error: $*" >&2; exit 1; }
for tool in fairseq-preprocess subword-nmt; do
  command -v "$tool" >/dev/null || die "$tool is not installed (activate the environment; pip install subword-nmt)"
done
if [ -z "$source_dir" ]; then
  command -v curl >/dev/null || die "curl is not installed; a local copy works with --source DIR"
elif [ ! -d "$source_dir" ]; then
  die "--source $source_dir is no folder"
fi
[ ! -d "$output/bin" ] || { echo "$output is there already; remove it to prepare again"; exit 0; }
[ ! -e "$output" ] || die "$output is there already; choose another folder with --output"

release=https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/tok
declare -A lines=([train]=29000 [val]=1014 [test_2016_flickr]=1000 [test_2017_flickr]=1000)
mkdir -p "$(dirname "$output")"
work=$(mktemp -d "$output.preparing.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/text" "$work/bpe"

# fetch SPLIT LANGUAGE: the text on standard output, from the local copy or the release
fetch() {
  local name
  if [ -z "$source_dir" ]; then
    curl -fsSL --retry 3 "$release/$1.lc.norm.tok.$2" || die "cannot download $1.$2; is there a network? A local copy works with --source DIR"
    return
  fi
  for name in "$source_dir"/{,tok/}"$1"{,.lc.norm.tok}."$2"{,.gz}; do
    [ -f "$name" ] || continue
    case "$name" in *.gz) gzip -dc "$name" ;; *) cat "$name" ;; esac
    return
  done
  die "no $1.$2 in $source_dir"
}

for split in train val test_2016_flickr test_2017_flickr; do
  for language in en de; do
    fetch "$split" "$language" >"$work/text/$split.$language"
    found=$(wc -l <"$work/text/$split.$language")
    [ "$found" -eq "${lines[$split]}" ] || die "$split.$language has $found lines, not ${lines[$split]}"
  done
done

echo "learning 10,000 joint BPE merges"
cat "$work"/text/train.{en,de} | subword-nmt learn-bpe -s 10000 >"$work/bpe/codes"
for file in "$work"/text/*; do
  subword-nmt apply-bpe -c "$work/bpe/codes" <"$file" >"$work/bpe/$(basename "$file")"
done

fairseq-preprocess --source-lang en --target-lang de --joined-dictionary \
  --trainpref "$work/bpe/train" --validpref "$work/bpe/val" \
  --testpref "$work/bpe/test_2016_flickr,$work/bpe/test_2017_flickr" \
  --destdir "$work/bin" --workers 2 >"$work/preprocess.log" 2>&1 ||
  { cat "$work/preprocess.log" >&2; die "fairseq-preprocess failed"; }

rm "$work/preprocess.log"
chmod 755 "$work"
mv "$work" "$output"
echo "ready: $output/bin (subset test is test_2016_flickr, test1 is test_2017_flickr)"
