#!/usr/bin/env bash
# Plain text, ready for fairseq-train --task masked_lm: 30,000 SentencePiece BPE pieces.
set -euo pipefail
scripts=$(CDPATH='' cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/prepare_common.sh
source "$scripts/prepare_common.sh"

usage() {
  cat <<'END'
usage: bash scripts/prepare_mlm.sh --source DIR [--pieces N] [--output DIR] [--sample]

Learns one SentencePiece BPE of 30,000 pieces over the training text, splits both texts and runs
fairseq-preprocess. The texts that BERT and its kin were trained on are not published in one form,
so there is no download.

  --source DIR   train.txt and valid.txt: a sentence a line, an empty line between documents
  --pieces N     how many pieces to learn, for a small sample (default: 30000)
END
  shared_options data/mlm
}

pieces=30000 others=()
while [ $# -gt 0 ]; do
  case "$1" in
    --pieces) pieces=${2:?--pieces needs a number}; shift 2 ;;
    *) others+=("$1"); shift ;;
  esac
done

subfolder=mlm
read_options data/mlm "${others[@]}"
[ -n "$source_dir" ] || die "--source DIR is needed, with train.txt and valid.txt: the papers' texts are not published in one form"
require_tools fairseq-preprocess python
python -c "import sentencepiece" 2>/dev/null || die "sentencepiece is not installed (pip install sentencepiece)"

for split in train valid; do require_in_source "$split.txt"; done
begin

write_bpe() {
  echo "learning $pieces pieces"
  python "$scripts/sentencepiece_bpe.py" train --input "$(in_source train.txt)" \
    --model-prefix "$part/bpe" --vocab-size "$pieces" ||
    die "cannot learn $pieces pieces; there is --pieces N for a small text"
}

write_pieces() {
  local split file
  for split in train valid; do
    file=$(in_source "$split.txt")
    note_sum "$file"
    python "$scripts/sentencepiece_bpe.py" encode --model "$work/bpe/bpe.model" <"$file" >"$part/$split"
  done
}

write_bin() {
  local split pieces=$work/pieces
  preprocess --only-source --trainpref "$pieces/train" --validpref "$pieces/valid"
  for split in train valid; do check_binarised "$part/$split" "$pieces/$split"; done
}

stage bpe write_bpe
stage pieces write_pieces
stage bin write_bin
finish
echo "ready: $output/bin ($(types "$output/bin/dict.txt"))"
