#!/usr/bin/env bash
# IWSLT14 German-English, ready for fairseq-train: lower-cased, joint BPE of 10,000 merges.
set -euo pipefail
scripts=$(CDPATH='' cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/prepare_common.sh
source "$scripts/prepare_common.sh"

usage() {
  cat <<'END'
usage: bash scripts/prepare_iwslt14.sh [--source DIR | --mirror URL] [--output DIR] [--sample]

Downloads the talks of IWSLT14, tokenises (by sacremoses, Moses' port) and lower-cases them, drops
pairs of more than 175 tokens or of odd lengths, learns one BPE of 10,000 merges over both languages
and runs fairseq-preprocess with a dictionary for each, as fairseq's recipe does. Every 23rd
sentence is valid; test is dev2010, dev2012, tst2010, tst2011 and tst2012, and DIR/text has it as it
was released, too (test.raw). Needs subword-nmt and sacremoses.

  --source DIR   a local copy instead of the download: de-en.tgz, or train.tags.de-en.de, .en
                 and IWSLT14.TED*.de.xml, .en.xml, in DIR or DIR/de-en
END
  shared_options data/iwslt14
}

subfolder=de-en
read_options data/iwslt14 "$@"
require_tools fairseq-preprocess python subword-nmt
python -c "import sacremoses" 2>/dev/null || die "sacremoses is not installed (pip install sacremoses)"

archive=de-en.tgz
# Nobody publishes a checksum: what is checked are the numbers of lines that fairseq's script
# prints, before and after its cleaning.
address=https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz
raw_lines=174443
published=167522
test_lines=6750
tests=(TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011 TED.tst2012)

require_in_source train.tags.de-en.de "$archive"
begin

tokenise() { # LANGUAGE
  python "$scripts/moses_text.py" tokenise --language "$1" --lower
}

write_text() {
  local language name pairs raw
  for language in de en; do
    locate "train.tags.de-en.$language" "$archive" "$address"
    raw=$part/train.tags.de-en.$language
    grep -v -e '<url>' -e '<talkid>' -e '<keywords>' "$located" |
      sed -e 's/<\/\?title>//g' -e 's/<\/\?description>//g' >"$raw"
    check_text "$raw" "$raw_lines"
    echo "tokenising train.$language"
    tokenise "$language" <"$raw" >"$part/all.$language"
    rm "$raw"
    for name in "${tests[@]}"; do
      locate "IWSLT14.$name.de-en.$language.xml" "$archive" "$address"
      segments "$located" >>"$part/test.raw.$language"
    done
    tokenise "$language" <"$part/test.raw.$language" >"$part/test.$language"
    check_text "$part/test.$language" "$test_lines"
  done
  python "$scripts/moses_text.py" clean "$part"/all.{de,en} "$part"/clean.{de,en} --longest 175
  pairs=$(wc -l <"$part/clean.de")
  [ "$pairs" -eq "$published" ] || echo "note: $pairs pairs; fairseq's script keeps $published"
  for language in de en; do
    awk 'NR % 23 == 0' "$part/clean.$language" >"$part/valid.$language"
    awk 'NR % 23 != 0' "$part/clean.$language" >"$part/train.$language"
    rm "$part/all.$language" "$part/clean.$language"
  done
}

write_bpe() {
  local file
  echo "learning 10,000 joint BPE merges"
  cat "$work"/text/train.{de,en} | subword-nmt learn-bpe -s 10000 >"$part/codes"
  for file in "$work"/text/*; do
    [[ $file != *.raw.* ]] || continue
    subword-nmt apply-bpe -c "$part/codes" <"$file" >"$part/$(basename "$file")"
  done
}

write_bin() {
  local split language bpe=$work/bpe
  preprocess --source-lang de --target-lang en \
    --trainpref "$bpe/train" --validpref "$bpe/valid" --testpref "$bpe/test"
  for split in train valid test; do
    for language in de en; do
      check_binarised "$part/$split.de-en.$language" "$work/text/$split.$language"
    done
  done
}

stage text write_text
rm -rf "$release"
stage bpe write_bpe
stage bin write_bin
finish
echo "ready: $output/bin ($(types "$output/bin/dict.de.txt") and $(types "$output/bin/dict.en.txt"))"
