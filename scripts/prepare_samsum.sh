#!/usr/bin/env bash
# SAMSum, dialogues with summaries, ready for fairseq-train --task summarization.
set -euo pipefail
scripts=$(CDPATH='' cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/prepare_common.sh
source "$scripts/prepare_common.sh"

usage() {
  cat <<'END'
usage: bash scripts/prepare_samsum.sh [--source DIR | --mirror URL] [--pieces N] [--output DIR]
         [--sample]

Downloads SAMSum (Gliwa et al. 2019), writes a dialogue a line, "Ann : text <turn> Bob : text",
learns one SentencePiece BPE of 8,000 pieces over dialogues and summaries, in which <turn> is a
piece, and runs fairseq-preprocess. DIR/text has the longest-3 baseline, too: the three longest
turns of each test dialogue.

  --source DIR   a local copy instead of the download: samsum.zip, corpus.7z, or train.json,
                 val.json and test.json, in DIR or DIR/samsum
  --pieces N     how many pieces to learn, for a small sample (default: 8000)
END
  shared_options data/samsum
}

pieces=8000 others=()
while [ $# -gt 0 ]; do
  case "$1" in
    --pieces) pieces=${2:?--pieces needs a number}; shift 2 ;;
    *) others+=("$1"); shift ;;
  esac
done

subfolder=samsum
read_options data/samsum "${others[@]}"
require_tools fairseq-preprocess python
python -c "import sentencepiece" 2>/dev/null || die "sentencepiece is not installed (pip install sentencepiece)"

archive=corpus.7z
address=https://arxiv.org/src/1911.12237v2/anc # the authors'; they publish no checksum
declare -A files=([train]=train.json [valid]=val.json [test]=test.json)
declare -A pairs=([train]=14731 [valid]=818 [test]=819) # one of 14,732 dialogues is empty

require_in_source train.json samsum.zip "$archive"
begin

# unpack: sets unpacked to a folder with the three files
unpack() {
  local tool
  unpacked=$release
  mkdir -p "$release"
  if obtained=$(in_source samsum.zip); then
    python -m zipfile -e "$obtained" "$release" || die "$obtained cannot be unpacked"
    unpacked=$release/samsum
  else
    tool=$(command -v 7z || command -v 7za || command -v bsdtar) ||
      die "7z or bsdtar is needed to unpack $archive (apt-get install p7zip-full)"
    obtain "$archive" "$address"
    case "$tool" in
      *bsdtar) "$tool" -xf "$obtained" -C "$release" ;;
      *) "$tool" x -y "-o$release" "$obtained" >/dev/null ;;
    esac || die "$obtained cannot be unpacked"
  fi
  note_sum "$obtained"
}

write_text() {
  local split file
  in_source train.json >/dev/null || unpack
  for split in train valid test; do
    file=$(in_source "${files[$split]}") || file=$unpacked/${files[$split]}
    [ -f "$file" ] || die "there is no ${files[$split]}"
    python "$scripts/extract_samsum.py" "$file" "$part/$split" || die "$file cannot be read"
    check_text "$part/$split.source" "${pairs[$split]}"
  done
  rm "$part"/{train,valid}.longest3
}

write_bpe() {
  local text=$work/text
  echo "learning $pieces pieces"
  python "$scripts/sentencepiece_bpe.py" train --input "$text/train.source" "$text/train.target" \
    --model-prefix "$part/bpe" --vocab-size "$pieces" --whole-words '<turn>' ||
    die "cannot learn $pieces pieces from $text; a sample may be too small"
  # fairseq's dictionary has its own <unk>, <s> and </s>; the numbers are counts, which nothing needs
  tail -n +4 "$part/bpe.vocab" | cut -f 1 | sed 's/$/ 1/' >"$part/dict.txt"
}

write_bin() {
  local split side pieces=$work/pieces
  mkdir -p "$pieces"
  for split in train valid test; do
    for side in source target; do
      python "$scripts/sentencepiece_bpe.py" encode --model "$work/bpe/bpe.model" \
        <"$work/text/$split.$side" >"$pieces/$split.$side"
    done
  done
  preprocess --source-lang source --target-lang target \
    --joined-dictionary --srcdict "$work/bpe/dict.txt" \
    --trainpref "$pieces/train" --validpref "$pieces/valid" --testpref "$pieces/test"
  for split in train valid test; do
    for side in source target; do
      check_binarised "$part/$split.source-target.$side" "$work/text/$split.$side"
    done
  done
}

stage text write_text
rm -rf "$release"
stage bpe write_bpe
stage bin write_bin
finish
echo "ready: $output/bin ($(types "$output/bin/dict.source.txt"))"
