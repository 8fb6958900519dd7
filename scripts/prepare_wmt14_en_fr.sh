#!/usr/bin/env bash
# WMT14 English-French, ready for fairseq-train: joint BPE of 40,000 merges, one dictionary.
set -euo pipefail
# shellcheck source=scripts/prepare_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_common.sh"

usage() {
  cat <<'END'
Downloads Europarl 7, Common Crawl, the UN corpus, News Commentary 9 and the 10^9 corpus, normalises
and tokenises them (by sacremoses, Moses' port), learns one BPE of 40,000 merges over both languages,
drops pairs of more than 250 pieces or of very unequal lengths and runs fairseq-preprocess with one
dictionary, as fairseq's recipe does. Every 1333rd sentence is valid, test is newstest2014, which
DIR/text has as it was released, too (test.raw). Needs subword-nmt and sacremoses, 100 GB of disk
and hours.

  --source DIR   a local copy instead of the download: the archives of WMT
                 (training-parallel-europarl-v7.tgz, training-parallel-commoncrawl.tgz,
                 training-parallel-un.tgz, training-parallel-nc-v9.tgz, training-giga-fren.tar,
                 dev.tgz) or what is in them
END
}

subfolder=wmt14_en_fr needs=(subword-nmt sacremoses) languages=(en fr) merges=40000
read_options data/wmt14_en_fr "$@"

statmt=https://www.statmt.org
# archive, where it is, SHA-256 as in TensorFlow Datasets, and its file without the language
corpora=(
  "training-parallel-europarl-v7.tgz wmt13 0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7 training/europarl-v7.fr-en"
  "training-parallel-commoncrawl.tgz wmt13 c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5 commoncrawl.fr-en"
  "training-parallel-un.tgz wmt13 29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47 un/undoc.2000.fr-en"
  "training-parallel-nc-v9.tgz wmt14 cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485 training/news-commentary-v9.fr-en"
  "training-giga-fren.tar wmt10 3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a giga-fren.release2.fixed"
)
dev=https://data.statmt.org/wmt19/translation-task/dev.tgz # has newstest2014, and a known SHA-256
dev_sum=7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7
declare -A tests=([en]=newstest2014-fren-src.en.sgm [fr]=newstest2014-fren-ref.fr.sgm)
test_lines=3003

begin

# text_of NAME LANGUAGE: sets located, of a corpus; the 10^9 corpus is compressed in its archive
text_of() {
  local archive year sum file
  read -r archive year sum file <<<"$1"
  file=$file.$2
  [ "$archive" != training-giga-fren.tar ] || in_source "$file" >/dev/null || file+=.gz
  locate "$file" "$archive" "$statmt/$year/$archive" "$sum"
}

write_text() {
  local language corpus
  for language in en fr; do
    for corpus in "${corpora[@]}"; do
      text_of "$corpus" "$language"
      echo "tokenising $(basename "$located")"
      plain "$located" | tokenise "$language" --normalise >>"$part/all.$language"
    done
    locate "dev/${tests[$language]}" dev.tgz "$dev" "$dev_sum"
    segments "$located" >"$part/test.raw.$language"
    apostrophes <"$part/test.raw.$language" | tokenise "$language" >"$part/test.$language"
    check_text "$part/test.$language" "$test_lines"
    awk 'NR % 1333 == 0' "$part/all.$language" >"$part/valid.$language"
    awk 'NR % 1333 != 0' "$part/all.$language" >"$part/train.$language"
    rm "$part/all.$language"
  done
}

write_bpe() {
  local split
  write_joint_bpe
  for split in train valid; do
    mv "$part/$split.en" "$part/whole.en"
    mv "$part/$split.fr" "$part/whole.fr"
    moses clean "$part"/whole.{en,fr} "$part/$split".{en,fr} --longest 250
    rm "$part"/whole.{en,fr}
  done
}

write_bin() { binarise "$work/bpe" --joined-dictionary; }

stages text bpe bin
