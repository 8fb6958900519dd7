#!/usr/bin/env bash
# The One Billion Word benchmark, ready for fairseq-train --task language_modeling.
set -euo pipefail
# shellcheck source=scripts/prepare_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_common.sh"

usage() {
  cat <<'END'
Downloads the One Billion Word benchmark (Chelba et al. 2013) and runs fairseq-preprocess: words
that occur fewer than three times become <unk>. Training data are the shards 1 to 99 of 100; test
is heldout shard 0 of 50, as the authors have it, valid is heldout shard 1. The sentences are
shuffled, so train and score them one by one: --sample-break-mode eos.

  --source DIR   a local copy instead of the download:
                 1-billion-word-language-modeling-benchmark-r13output.tar.gz, or the folders
                 training-monolingual.tokenized.shuffled and
                 heldout-monolingual.tokenized.shuffled, in DIR or
                 DIR/1-billion-word-language-modeling-benchmark-r13output
END
}

subfolder=1-billion-word-language-modeling-benchmark-r13output
read_options data/gbw "$@"

archive=$subfolder.tar.gz
address=https://www.statmt.org/lm-benchmark
sum=01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e # as in TensorFlow Datasets
training="training-monolingual.tokenized.shuffled"
heldout="heldout-monolingual.tokenized.shuffled"
declare -A heldout_shard=([valid]=00001 [test]=00000)
# The authors' README has 829,250,940 training tokens, which counts both ends of a sentence, and
# these tokens of the heldout shards. The lines of valid are from Lingvo's recipe.
declare -A lines=([train]=30301028 [valid]=6206 [test]=6075)
declare -A tokens=([train]=798949912 [valid]=165560 [test]=159658)

require_in_source "$training" "$archive"
require_in_source "$heldout" "$archive"
begin

write_text() {
  local training_folder heldout_folder split number shard
  if ! { training_folder=$(in_source "$training") && heldout_folder=$(in_source "$heldout"); }; then
    unpack "$archive" "$address/$archive" "$sum"
    training_folder=$(find "$unpacked" -name "$training" -print -quit)
    heldout_folder=$(find "$unpacked" -name "$heldout" -print -quit)
  fi
  echo "joining the shards"
  for number in {01..99}; do
    shard=$training_folder/news.en-000$number-of-00100
    if [ -f "$shard" ]; then
      cat "$shard"
    elif [ -z "$sample" ]; then
      die "no $(basename "$shard") in $(dirname "$shard")"
    fi
  done >"$part/train"
  for split in valid test; do
    shard=$heldout_folder/news.en.heldout-${heldout_shard[$split]}-of-00050
    [ -f "$shard" ] || die "no $(basename "$shard") in $(dirname "$shard")"
    cp "$shard" "$part/$split"
  done
  for split in train valid test; do
    check_text "$part/$split" "${lines[$split]}" "${tokens[$split]}"
  done
}

write_bin() { binarise "$work/text" --thresholdsrc 3; }

stages text bin
