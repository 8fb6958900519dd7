#!/usr/bin/env bash
# Multi30k English-German or -French, ready for fairseq-train: joint BPE of 10,000 merges.
set -euo pipefail
# shellcheck source=scripts/prepare_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_common.sh"

usage() {
  cat <<'END'
Downloads Multi30k task 1 (lower-cased, normalised, tokenised), learns one BPE of 10,000
merges over both languages and runs fairseq-preprocess. Needs subword-nmt (pip install
subword-nmt).

  --target LANG  de or fr (default: de)
  --source DIR   a local copy instead of the download: train, val, test_2016_flickr and
                 test_2017_flickr, each .en and .de or .fr (or .lc.norm.tok.en / .de, the
                 release's names), plain or .gz, in DIR or DIR/tok
END
}

options[--target]=target shaping=(--target)
target=de
parse_options 'data/multi30k, or data/multi30k_en_fr for fr' "$@"
case "$target" in
  de) choose_output data/multi30k ;;
  fr) choose_output data/multi30k_en_fr ;;
  *) die "--target: '$target' is neither de nor fr" ;;
esac
note="subset test is test_2016_flickr, test1 is test_2017_flickr"
subfolder=tok needs=(subword-nmt) languages=(en "$target") merges=10000

address=https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/tok
declare -A lines=([train]=29000 [val]=1014 [test_2016_flickr]=1000 [test_2017_flickr]=1000)
begin

write_text() {
  local split language file
  for split in train val test_{2016,2017}_flickr; do
    for language in "${languages[@]}"; do
      if [ -n "$source_dir" ]; then
        file=$(in_source "$split"{,.lc.norm.tok}."$language"{,.gz}) ||
          die "no $split.$language in $source_dir"
      else
        file=$split.lc.norm.tok.$language
        obtain "$file" "$address/$file"
        file=$obtained
      fi
      plain "$file" >"$part/$split.$language"
      check_text "$part/$split.$language" "${lines[$split]}"
      ! LC_ALL=C grep -q '[A-Z]' "$part/$split.$language" ||
        differs "$split.$language has capitals: the release's lower-cased, tokenised text is needed"
      note_sum "$part/$split.$language" # the download's, of a compressed copy too
    done
  done
}

write_bpe() { write_joint_bpe; }

write_bin() {
  preprocess --source-lang en --target-lang "$target" --joined-dictionary \
    --trainpref "$work/bpe/train" --validpref "$work/bpe/val" \
    --testpref "$work/bpe/test_2016_flickr,$work/bpe/test_2017_flickr"
  local language
  for language in "${languages[@]}"; do
    check_binarised "$part/train.en-$target.$language" "$work/bpe/train.$language"
    check_binarised "$part/valid.en-$target.$language" "$work/bpe/val.$language"
    check_binarised "$part/test.en-$target.$language" "$work/bpe/test_2016_flickr.$language"
    check_binarised "$part/test1.en-$target.$language" "$work/bpe/test_2017_flickr.$language"
  done
}

stages text bpe bin
