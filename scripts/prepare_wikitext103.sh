#!/usr/bin/env bash
# WikiText-103 at word level, ready for fairseq-train --task language_modeling.
set -euo pipefail
# shellcheck source=scripts/prepare_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_common.sh"

usage() {
  cat <<'END'
usage: bash scripts/prepare_wikitext103.sh [--source DIR | --mirror URL] [--output DIR] [--sample]

Downloads WikiText-103 at word level (Merity et al. 2016) and runs fairseq-preprocess on it as it
is, with its <unk> and its blank lines.

  --source DIR   a local copy instead of the download: wikitext-103-v1.zip, or
                 wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, in DIR or
                 DIR/wikitext-103
END
  shared_options data/wikitext103
}

subfolder=wikitext-103
read_options data/wikitext103 "$@"
require_tools fairseq-preprocess python

archive=wikitext-103-v1.zip
# Merity's own address, for the paper's is gone. Nobody publishes a checksum; this is the one
# that dataset libraries had for the paper's address.
address=https://wikitext.smerity.com
sum=242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590
declare -A lines=([train]=1801350 [valid]=3760 [test]=4358)
declare -A tokens=([train]=103227021 [valid]=217646 [test]=245569) # table 1 of the paper

require_in_source wiki.train.tokens "$archive"
begin

unpack() {
  obtain "$archive" "$address" "$sum"
  echo "unpacking $archive"
  python -m zipfile -e "$obtained" "$release" || die "$obtained cannot be unpacked"
}

write_text() {
  local split file
  in_source wiki.train.tokens >/dev/null || unpack
  for split in train valid test; do
    file=$release/wikitext-103/wiki.$split.tokens
    [ -f "$file" ] || file=$(in_source "wiki.$split.tokens") || die "there is no wiki.$split.tokens"
    cp "$file" "$part/$split"
    check_text "$part/$split" "${lines[$split]}" "${tokens[$split]}"
  done
}

prepare_monolingual
