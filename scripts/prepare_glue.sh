#!/usr/bin/env bash
# The nine tasks of GLUE, ready for fairseq-train --task sentence_prediction.
set -euo pipefail
# shellcheck source=scripts/prepare_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_common.sh"

usage() {
  cat <<'END'
Downloads the TSV files of GLUE (Wang et al. 2019), splits their sentences with the SentencePiece
model of a pre-trained model and binarises them with its dictionary. DIR/bin has one folder for each
task, for convattn glue finetune. For ALBERT's pieces the text is prepared as ALBERT's: lower case,
no accents, plain quotes, commas after numbers apart. Labels are numbered in a fixed order, the
scores of STS-B are divided by 5. Test sets have no labels; convattn glue predict reads them.

  --sentencepiece MODEL  needed: the .model file that split the text of the pre-training
  --dictionary DICT      needed: dict.txt of the data folder of the pre-training
  --tasks TASK,...       some of CoLA,SST-2,MRPC,STS-B,QQP,MNLI,QNLI,RTE,WNLI (default: all)
  --source DIR   a local copy instead of the download, in DIR or DIR/glue: TASK/train.tsv,
                 TASK/dev.tsv and, if there is one, TASK/test.tsv (MNLI: dev_matched.tsv and
                 dev_mismatched.tsv, test_matched.tsv and test_mismatched.tsv), plain or .gz; or
                 the archives (CoLA.zip, ..., QQP-clean.zip, QNLIv2.zip). MRPC is also read from
                 msr_paraphrase_train.txt and msr_paraphrase_test.txt; mrpc_dev_ids.tsv lists
                 GLUE's dev set. With --sample and without that list, the test file becomes the
                 dev set.
                 DIR/tsv of an earlier output serves for another pre-trained model.
  --download-rest  download the tasks of which --source has nothing
END
}

all=CoLA,SST-2,MRPC,STS-B,QQP,MNLI,QNLI,RTE,WNLI
options+=([--sentencepiece]=pieces [--dictionary]=dictionary [--tasks]=chosen)
flags[--download-rest]=download_rest
chosen=$all pieces="" dictionary=""
parse_options data/glue "$@"

address=https://dl.fbaipublicfiles.com/glue/data
mrpc_address=https://dl.fbaipublicfiles.com/senteval/senteval_data
declare -A archives=(
  [CoLA]=CoLA.zip [SST-2]=SST-2.zip [STS-B]=STS-B.zip [QQP]=QQP-clean.zip [MNLI]=MNLI.zip
  [QNLI]=QNLIv2.zip [RTE]=RTE.zip [WNLI]=WNLI.zip [MRPC]=msr_paraphrase_train.txt
)
declare -A sums=( # as in datasets/glue/dataset_infos.json of Hugging Face's datasets
  [CoLA]=f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff
  [SST-2]=d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa
  [STS-B]=e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85
  [QQP]=40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0
  [MNLI]=e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633
  [QNLI]=e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5
  [RTE]=6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee
  [WNLI]=ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46
  [mrpc_train]=60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89
  [mrpc_dev_ids]=971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7
  [mrpc_test]=e437fdddb92535b820fe8852e2df8a49 # MD5, as in gluonnlp/data/glue.py
)

tasks=()
IFS=, read -ra given <<<"$chosen,"
for task in "${given[@]}"; do
  case ",$all," in *",$task,"*) ;; *) die "--tasks: '$task' is none of $all" ;; esac
  case " ${tasks[*]} " in *" $task "*) ;; *) tasks+=("$task") ;; esac
done

require_model() {
  local file
  [ -n "$pieces" ] && [ -n "$dictionary" ] ||
    die "--sentencepiece and --dictionary are needed: those of the pre-trained model"
  for file in "$pieces" "$dictionary"; do [ -f "$file" ] || die "$file: there is no such file"; done
}

# what an output is made of besides the release
settings() {
  printf '%s\n' "${tasks[@]}" | LC_ALL=C sort -u
  sha256sum <"$pieces"
  sha256sum <"$dictionary"
}

output=${output:-data/glue} subfolder=glue needs=(awk sentencepiece)
for folder in "${output%/}" "${output%/}.preparing"; do
  [ -f "$folder/tsv/settings" ] || continue
  require_model
  settings | cmp -s - "$folder/tsv/settings" ||
    die "$folder has other tasks or is for another model; remove it or choose another folder with --output"
done

note="a folder for each task"
choose_output data/glue
require_model

# files TASK: those of its training and dev sets
files() { case "$1" in MNLI) echo train dev_matched dev_mismatched ;; *) echo train dev ;; esac; }

# test_files TASK: those of its test sets
test_files() { case "$1" in MNLI) echo test_matched test_mismatched ;; *) echo test ;; esac; }

# in_task TASK NAME...: the path of the first of them that --source has, plain or .gz
in_task() {
  local task=$1 name names=()
  shift
  for name in "$@"; do names+=("$task/$name" "$task/$name.gz"); done
  [ "$task" != MRPC ] || for name in "$@"; do names+=("$name" "$name.gz"); done
  in_source "${names[@]}"
}

# find_task TASK: sets found to what there is of it: tsv, msr (of MRPC), or the release's archive
find_task() {
  local file
  found=archive
  [ -n "$source_dir" ] || return 0
  if in_task "$1" train.tsv >/dev/null; then
    found=tsv
    for file in $(files "$1"); do
      in_task "$1" "$file.tsv" >/dev/null || die "no $1/$file.tsv in $source_dir"
    done
  elif [ "$1" = MRPC ] && in_task MRPC msr_paraphrase_train.txt >/dev/null; then
    found=msr
    in_task MRPC mrpc_dev_ids.tsv dev_ids.tsv >/dev/null ||
      { [ -n "$sample" ] && in_task MRPC msr_paraphrase_test.txt >/dev/null; } ||
      die "no mrpc_dev_ids.tsv in $source_dir, which lists GLUE's dev set of MRPC (with --sample msr_paraphrase_test.txt serves in its place)"
  elif [ -z "$download_rest" ]; then
    require_in_source "$1/train.tsv" "${archives[$1]}"
  fi
}

for task in "${tasks[@]}"; do find_task "$task"; done
begin

# msr_subset DEV IDS: of MSR's training set on standard input those whose two ids are among IDS
# (DEV 1) or not (DEV 0)
msr_subset() {
  awk -F '\t' -v dev="$1" '
    { sub(/\r$/, "") }
    NR == FNR { ids[$1, $2]; next }
    FNR == 1 || (($2, $3) in ids) == dev
  ' "$2" -
}

write_mrpc() { # FOLDER
  local train ids=$work/mrpc_dev_ids.partial
  if [ "$found" = archive ]; then
    obtain msr_paraphrase_train.txt "$mrpc_address/msr_paraphrase_train.txt" "${sums[mrpc_train]}"
    train=$obtained
    obtain mrpc_dev_ids.tsv "$address/mrpc_dev_ids.tsv" "${sums[mrpc_dev_ids]}"
  else
    train=$(in_task MRPC msr_paraphrase_train.txt)
    if ! obtained=$(in_task MRPC mrpc_dev_ids.tsv dev_ids.tsv); then
      echo "note: MRPC's dev set is MSR's test set, not GLUE's"
      plain "$train" >"$1/train.tsv"
      plain "$(in_task MRPC msr_paraphrase_test.txt)" >"$1/dev.tsv"
      return
    fi
  fi
  plain "$obtained" >"$ids"
  plain "$train" | msr_subset 0 "$ids" >"$1/train.tsv"
  plain "$train" | msr_subset 1 "$ids" >"$1/dev.tsv"
  rm "$ids"
  if [ "$found" = archive ]; then
    obtain msr_paraphrase_test.txt "$mrpc_address/msr_paraphrase_test.txt" "${sums[mrpc_test]}"
  else
    obtained=$(in_task MRPC msr_paraphrase_test.txt) || return 0
  fi
  plain "$obtained" >"$1/test.tsv"
}

write_task() { # TASK FOLDER
  local file
  mkdir "$2"
  find_task "$1"
  if [ "$found" = tsv ]; then
    for file in $(files "$1") $(test_files "$1"); do
      ! in_task "$1" "$file.tsv" >/dev/null || plain "$(in_task "$1" "$file.tsv")" >"$2/$file.tsv"
    done
  elif [ "$1" = MRPC ]; then
    write_mrpc "$2"
  else
    unpack "${archives[$1]}" "$address/${archives[$1]}" "${sums[$1]}"
    for file in $(files "$1"); do
      mv "$unpacked/$1/$file.tsv" "$2/" || die "there is no $1/$file.tsv in $obtained"
    done
    for file in $(test_files "$1"); do
      [ ! -e "$unpacked/$1/$file.tsv" ] || mv "$unpacked/$1/$file.tsv" "$2/"
    done
    rm -rf "$release"
  fi
}

write_tsv() {
  local task
  for task in "${tasks[@]}"; do write_task "$task" "$part/$task"; done
  settings >"$part/settings"
}

write_bin() {
  python "$scripts/cli.py" glue binarise --tsv "$work/tsv" --output "$part" \
    --tasks "$(IFS=,; echo "${tasks[*]}")" --sentencepiece "$pieces" \
    --dictionary "$dictionary" ${sample:+--sample} ||
    { rm -rf "$work/tsv"; exit 1; } # which may be at fault
}

stage tsv write_tsv
stage bin write_bin
finish
