# shellcheck shell=bash disable=SC2154
# Sourced by prepare_wikitext2.sh and prepare_wikitext103.sh, which set number (the corpus), sum (of
# its archive), lines and tokens (by split).
# shellcheck source=scripts/prepare_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_common.sh"

usage() {
  cat <<END
Downloads WikiText-$number at word level (Merity et al. 2016) and runs fairseq-preprocess on it as it
is, with its <unk> and its blank lines.

  --source DIR   a local copy instead of the download: wikitext-$number-v1.zip, or
                 wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, or train.txt,
                 valid.txt and test.txt, plain or .gz, in DIR or DIR/wikitext-$number
END
}

subfolder=wikitext-$number
read_options "data/wikitext$number" "$@"

archive=$subfolder-v1.zip
address=https://wikitext.smerity.com # Merity's own, for the paper's is gone
require_in_source {wiki.train.tokens,train.txt}{,.gz} "$archive"
begin

write_text() {
  local split
  for split in train valid test; do
    if ! located=$(in_source {"wiki.$split.tokens","$split.txt"}{,.gz}); then
      locate "wiki.$split.tokens" "$archive" "$address/$archive" "$sum"
    fi
    plain "$located" >"$part/$split"
    check_text "$part/$split" "${lines[$split]}" "${tokens[$split]}"
  done
}

write_bin() { binarise "$work/text"; }

stages text bin
