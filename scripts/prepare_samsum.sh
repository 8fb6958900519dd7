#!/usr/bin/env bash
# SAMSum, dialogues with summaries, ready for fairseq-train --task summarization.
set -euo pipefail
# shellcheck source=scripts/prepare_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_common.sh"

usage() {
  cat <<'END'
Downloads SAMSum (Gliwa et al. 2019), writes a dialogue a line, "Ann : text <turn> Bob : text",
learns one SentencePiece BPE of 8,000 pieces over dialogues and summaries, in which <turn> is a
piece, and runs fairseq-preprocess. DIR/text has the longest-3 baseline, too: the three longest
turns of each test dialogue, the longest first.

  --source DIR   a local copy instead of the download: samsum.zip, corpus.7z, or train.json,
                 val.json and test.json, in DIR or DIR/samsum
  --pieces N     how many pieces to learn, for a small sample (default: 8000)
END
}

options[--pieces]=pieces shaping=(--pieces)
pieces=8000 subfolder=samsum needs=(sentencepiece) languages=(source target)
read_options data/samsum "$@"

archive=corpus.7z
address=https://arxiv.org/src/1911.12237v2/anc # the authors'; they publish no checksum
declare -A files=([train]=train.json [valid]=val.json [test]=test.json)
declare -A pairs=([train]=14731 [valid]=818 [test]=819) # one of 14,732 dialogues is empty

! in_source samsum.zip >/dev/null || archive=samsum.zip
require_in_source train.json samsum.zip "$archive"
in_source train.json samsum.zip >/dev/null || command -v "${SEVEN_ZIP[@]}" >/dev/null ||
  die "7z or bsdtar is needed to unpack $archive (apt-get install p7zip-full), or --source with train.json or samsum.zip"
begin

write_text() {
  local split
  for split in train valid test; do
    locate "${files[$split]}" "$archive" "$address/$archive"
    python "$scripts/extract_samsum.py" "$located" "$part/$split" || die "$located cannot be read"
    check_text "$part/$split.source" "${pairs[$split]}"
  done
  rm "$part"/{train,valid}.longest3
}

write_bpe() { write_summary_bpe '<turn>'; }

write_pieces() {
  local name
  for name in {train,valid,test}.{source,target}; do encode <"$work/text/$name" >"$part/$name"; done
}

write_bin() { binarise "$work/pieces" --joined-dictionary --srcdict "$work/bpe/dict.txt"; }

stages text bpe pieces bin
