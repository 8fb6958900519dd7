#!/usr/bin/env bash
# Plain text, ready for fairseq-train --task masked_lm: 30,000 SentencePiece BPE pieces.
set -euo pipefail
# shellcheck source=scripts/prepare_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_common.sh"

usage() {
  cat <<'END'
Learns one SentencePiece BPE of 30,000 pieces over the training text, splits both texts and runs
fairseq-preprocess. The texts that BERT and its kin were trained on are not published in one form,
so there is no download.

  --source DIR   needed: train.txt and valid.txt: a sentence a line, an empty line between documents
  --pieces N     how many pieces to learn, for a small sample (default: 30000)
END
}

options[--pieces]=pieces shaping=(--source --pieces)
unset 'options[--mirror]'
pieces=30000 subfolder=mlm needs=(sentencepiece) splits=(train valid)
read_options data/mlm "$@"
[ -n "$source_dir" ] || die "--source DIR is needed, with train.txt and valid.txt: the papers' texts are not published in one form"
for split in "${splits[@]}"; do require_in_source "$split.txt"; done
begin

write_bpe() { learn_pieces "$(in_source train.txt)"; }

write_pieces() {
  local split file
  for split in "${splits[@]}"; do
    file=$(in_source "$split.txt")
    note_sum "$file"
    encode <"$file" >"$part/$split"
  done
}

write_bin() { binarise "$work/pieces"; }

stages bpe pieces bin
