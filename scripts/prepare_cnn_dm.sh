#!/usr/bin/env bash
# CNN/DailyMail, not anonymised, ready for fairseq-train: 30,000 SentencePiece BPE pieces.
set -euo pipefail
# shellcheck source=scripts/prepare_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_common.sh"

usage() {
  cat <<'END'
Downloads the CNN and Daily Mail stories of Hermann et al. (2015) and the split of See et al.
(2017), extracts articles and summaries (scripts/extract_cnn_dm.py says how), learns one
SentencePiece BPE of 30,000 pieces over the training articles and summaries, cuts articles to
their first 400 pieces and runs fairseq-preprocess with one dictionary for both sides.

Besides bin, the output folder has text (whole articles in .source, summaries in .target), bpe
(model and dictionary) and pieces (what was binarised). <q> separates the sentences of a summary:
score against text/test.target with convattn score --metric rouge --rouge-split '<q>'.

  --pieces N     how many pieces to learn, for a small sample (default: 30000)
  --source DIR   a local copy instead of the download: cnn_stories.tgz and
                 dailymail_stories.tgz (also at https://cs.nyu.edu/~kcho/DMQA), or the folders
                 cnn/stories and dailymail/stories; and all_train.txt, all_val.txt and
                 all_test.txt, in DIR or DIR/url_lists
END
}

options[--pieces]=pieces shaping=(--pieces)
pieces=30000 subfolder=url_lists needs=(sentencepiece) languages=(source target)
read_options data/cnn_dm "$@"

# Cut here, the data are small and the same for every task. What --task summarization cuts with
# --max-source-tokens is raw text, then, or a shorter source still.
source_pieces=400
stories=https://huggingface.co/datasets/abisee/cnn_dailymail/resolve/11343c3752184397d56efc19a8a7cceb68089318/data
url_lists=https://raw.githubusercontent.com/abisee/cnn-dailymail/master/url_lists
declare -A sums=( # as in TensorFlow Datasets
  [cnn_stories.tgz]=e8fbc0027e54e0a916abd9c969eb35f708ed1467d7ef4e3b17a56739d65cb200
  [dailymail_stories.tgz]=ad69010002210b7c406718248ee66e65868b9f6820f163aa966369878d14147e
  [all_train.txt]=a5cee49f3a6c862c26ce29308236d2a99625ab6c86a43be22d5206b2790d8029
  [all_val.txt]=81887e982b045083409c6ee838aede8ff4b97291605bcfb21bffc456a16991db
  [all_test.txt]=c4f5efb5ec2126430a5c156efbd13d0e9c4cb490169e552c38b4a51981a009bd
)
declare -A lists=([train]=all_train.txt [valid]=all_val.txt [test]=all_test.txt)
declare -A pairs=([train]=287113 [valid]=13368 [test]=11490) # 114 stories have no article

for publisher in cnn dailymail; do
  require_in_source "$publisher/stories" "${publisher}_stories.tgz"
done
for list in "${lists[@]}"; do require_in_source "$list"; done
begin

write_text() {
  local publisher archive folder folders=() split list
  for publisher in cnn dailymail; do
    archive=${publisher}_stories.tgz
    if ! folder=$(in_source "$publisher/stories"); then
      unpack "$archive" "$stories/$archive" "${sums[$archive]}"
      folder=$unpacked/$publisher/stories
    fi
    folders+=("$folder")
  done
  for split in train valid test; do
    list=${lists[$split]}
    obtain "$list" "$url_lists/$list" "${sums[$list]}"
    python "$scripts/extract_cnn_dm.py" --stories "${folders[@]}" --urls "$obtained" \
      --output "$part/$split" || die "the $split set cannot be extracted"
    check_text "$part/$split.source" "${pairs[$split]}"
  done
}

write_bpe() { write_summary_bpe '<q>'; } # in several pieces, blocked trigrams would end it

write_pieces() {
  local split text=$work/text
  for split in train valid test; do
    echo "splitting $split"
    encode <"$text/$split.source" | cut -d ' ' -f "-$source_pieces" >"$part/$split.source"
    encode <"$text/$split.target" >"$part/$split.target"
  done
}

write_bin() { binarise "$work/pieces" --joined-dictionary --srcdict "$work/bpe/dict.txt"; }

stages text bpe pieces bin
