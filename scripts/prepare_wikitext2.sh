#!/usr/bin/env bash
# WikiText-2 at word level, ready for fairseq-train --task language_modeling.
set -euo pipefail
# shellcheck source=scripts/prepare_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_common.sh"

usage() {
  cat <<'END'
usage: bash scripts/prepare_wikitext2.sh [--source DIR | --mirror URL] [--output DIR] [--sample]

Downloads WikiText-2 at word level (Merity et al. 2016) and runs fairseq-preprocess on it as it
is, with its <unk> and its blank lines.

  --source DIR   a local copy instead of the download: wikitext-2-v1.zip, or wiki.train.tokens,
                 wiki.valid.tokens and wiki.test.tokens, or train.txt, valid.txt and test.txt,
                 plain or .gz, in DIR or DIR/wikitext-2
END
  shared_options data/wikitext2
}

subfolder=wikitext-2
read_options data/wikitext2 "$@"
require_tools fairseq-preprocess python

archive=wikitext-2-v1.zip
address=https://wikitext.smerity.com # Merity's own, for the paper's is gone
sum=542ccefacc6c27f945fb54453812b3cd # torchtext's MD5 for the paper's address
declare -A lines=([train]=36718 [valid]=3760 [test]=4358)
declare -A tokens=([train]=2088628 [valid]=217646 [test]=245569) # table 1 of the paper

require_in_source {wiki.train.tokens,train.txt}{,.gz} "$archive"
begin

write_text() {
  local split
  for split in train valid test; do
    if ! located=$(in_source {"wiki.$split.tokens","$split.txt"}{,.gz}); then
      locate "wikitext-2/wiki.$split.tokens" "$archive" "$address/$archive" "$sum"
    fi
    plain "$located" >"$part/$split"
    check_text "$part/$split" "${lines[$split]}" "${tokens[$split]}"
  done
}

prepare_monolingual
