#!/usr/bin/env bash
# IWSLT14 German-English, ready for fairseq-train: lower-cased, joint BPE of 10,000 merges.
set -euo pipefail
# shellcheck source=scripts/prepare_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_common.sh"

usage() {
  cat <<'END'
Downloads the talks of IWSLT14, tokenises (by sacremoses, Moses' port) and lower-cases them, drops
pairs of more than 175 tokens or of very unequal lengths, learns one BPE of 10,000 merges over both
languages and runs fairseq-preprocess with a dictionary for each, as fairseq's recipe does. Every
23rd sentence is valid; test is dev2010, dev2012, tst2010, tst2011 and tst2012, and DIR/text has it
as it was released, too (test.raw). Needs subword-nmt and sacremoses.

  --low          a low-resource training set of 27,517 pairs, which has no download: --source has
                 tok/train.low.de, .en and tok/valid.de, .en, tokenised and lower-cased, and
                 raw/IWSLT14.TED*.de.xml, .en.xml, plain or .gz
  --source DIR   a local copy instead of the download: de-en.tgz, or train.tags.de-en.de, .en
                 and IWSLT14.TED*.de.xml, .en.xml, in DIR or DIR/de-en
END
}

flags[--low]=low shaping=(--low)
low=""
parse_options 'data/iwslt14, or data/iwslt14_low for --low' "$@"
choose_output "data/iwslt14${low:+_low}"
[ -z "$low" ] || [ -n "$source_dir" ] || die "--source DIR is needed: nobody offers the low-resource set for download"

subfolder=de-en needs=(subword-nmt sacremoses) languages=(de en) merges=10000
archive=de-en.tgz
address=https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz
# git blobs of the archive and of what fairseq's script makes of the training set, as they have
# been committed to public repositories; the numbers of lines are those that the script prints
sum=aa8c3f40f8836f1d43701448f94fe7e230082b4c
declare -A fairseqs=(
  [text/train.de]=30660ed508af1be868cfd3f09a0bd7d71b4517c6
  [text/train.en]=3b48a76e28ede930fd5e177dce14686147a10ee3
  [bpe/train.de]=f0a0c7d52fa302aed605f8e0fabe10217cf7b336
  [bpe/train.en]=6cec12532b28da3d5f9b7251f8011f6d84604738
)
raw_lines=174443
published=167522
test_lines=6750
low_lines=27517
valid_lines=7283
tests=(TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011 TED.tst2012)

if [ -n "$low" ]; then
  for language in de en; do
    for file in tok/{train.low,valid}."$language" raw/IWSLT14.TED.dev2010.de-en."$language".xml; do
      require_in_source "$file" "$file.gz"
    done
  done
else
  require_in_source train.tags.de-en.de "$archive"
fi
begin

# write_test LANGUAGE: the test set, as released and as tokens
write_test() {
  local name
  for name in "${tests[@]}"; do
    name=IWSLT14.$name.de-en.$1.xml
    if [ -n "$low" ]; then
      located=$(in_source "raw/$name"{,.gz}) || die "no raw/$name in $source_dir"
    else
      locate "$name" "$archive" "$address" "$sum"
    fi
    segments "$located" >>"$part/test.raw.$1"
  done
  apostrophes <"$part/test.raw.$1" | moses tokenise --language "$1" --lower >"$part/test.$1"
  check_text "$part/test.$1" "$test_lines"
}

write_low_text() {
  local language
  for language in de en; do
    plain "$(in_source "tok/train.low.$language"{,.gz})" >"$part/train.$language"
    plain "$(in_source "tok/valid.$language"{,.gz})" >"$part/valid.$language"
    check_text "$part/train.$language" "$low_lines"
    check_text "$part/valid.$language" "$valid_lines"
    write_test "$language"
  done
}

write_whole_text() {
  local language pairs raw
  for language in de en; do
    locate "train.tags.de-en.$language" "$archive" "$address" "$sum"
    raw=$part/train.tags.de-en.$language
    grep -v -e '<url>' -e '<talkid>' -e '<keywords>' "$located" |
      sed -e 's/<\/\?title>//g' -e 's/<\/\?description>//g' >"$raw"
    check_text "$raw" "$raw_lines"
    echo "tokenising train.$language"
    moses tokenise --language "$language" --lower <"$raw" >"$part/all.$language"
    rm "$raw"
    write_test "$language"
  done
  moses clean "$part"/all.{de,en} "$part"/clean.{de,en} --longest 175
  pairs=$(wc -l <"$part/clean.de")
  [ "$pairs" -eq "$published" ] || echo "note: $pairs pairs; fairseq's script keeps $published"
  for language in de en; do
    awk 'NR % 23 == 0' "$part/clean.$language" >"$part/valid.$language"
    awk 'NR % 23 != 0' "$part/clean.$language" >"$part/train.$language"
    rm "$part/all.$language" "$part/clean.$language"
  done
}

write_text() {
  if [ -n "$low" ]; then write_low_text; else write_whole_text; fi
  compare text
}

write_bpe() {
  write_joint_bpe
  compare bpe
}

write_bin() { binarise "$work/bpe"; }

# compare FOLDER: say whether the training set in $part is fairseq's own
compare() {
  local language file
  [ -z "$low$sample" ] || return 0
  for language in de en; do
    file=$1/train.$language
    if has_sum "$part/train.$language" "${fairseqs[$file]}"; then
      echo "$file is fairseq's own, byte for byte"
    else
      echo "note: $file differs from fairseq's own"
    fi
  done
}

stages text bpe bin
