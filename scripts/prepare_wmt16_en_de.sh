#!/usr/bin/env bash
# WMT16 English-German as Google released it, ready for fairseq-train: joint BPE of 32,000 merges.
set -euo pipefail
# shellcheck source=scripts/prepare_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_common.sh"

usage() {
  cat <<'END'
Downloads the training data of WMT16 that Google released tokenised and split by a joint BPE of
32,000 merges (Vaswani et al. 2017 and later use them), and runs fairseq-preprocess with one
dictionary of 32,768 types. Valid is newstest2013, test is newstest2014; DIR/text has the test set
whole: tokenised, for convattn score --metric bleu --compound-split, and as it was released.

  --source DIR   a local copy instead of the download: wmt16_en_de.tar.gz, or of its files
                 train.tok.clean.bpe.32000, newstest2013.tok.bpe.32000,
                 newstest2014.tok.bpe.32000, newstest2014.tok and newstest2014, each .en and .de, in
                 DIR or DIR/wmt16_en_de
END
}

subfolder=wmt16_en_de languages=(en de)
read_options data/wmt16_en_de "$@"

archive=wmt16_en_de.tar.gz
address="https://drive.usercontent.google.com/download?id=0B_bZck-ksdkpM25jRUN2X2UxMm8&export=download&confirm=t"
sum=874ab6bbfe9c21ec987ed1b9347f95ec # MD5, and the numbers of lines, as in torchtext
names=(
  [train]=train.tok.clean.bpe.32000 [valid]=newstest2013.tok.bpe.32000
  [test]=newstest2014.tok.bpe.32000 [tok]=newstest2014.tok [raw]=newstest2014
)
declare -A lines=([train]=4500966 [valid]=3000 [test]=3003 [tok]=3003 [raw]=3003)

require_in_source "${names[train]}.en" "$archive"
begin

# write_files SPLIT...: of both languages
write_files() {
  local split language name
  for split in "$@"; do
    for language in en de; do
      name=${names[$split]}.$language
      locate "$name" "$archive" "$address" "$sum"
      cp "$located" "$part/$name"
      check_text "$part/$name" "${lines[$split]}"
    done
  done
}

write_bpe() { write_files train valid test; }

write_text() { write_files tok raw; }

write_bin() { binarise "$work/bpe" --joined-dictionary --nwordssrc 32768 --nwordstgt 32768; }

stages bpe text bin
