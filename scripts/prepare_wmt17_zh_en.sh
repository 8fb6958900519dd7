#!/usr/bin/env bash
# WMT17 Chinese-English, ready for fairseq-train: a BPE for each language.
set -euo pipefail
# shellcheck source=scripts/prepare_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_common.sh"

usage() {
  cat <<'END'
Splits News Commentary 12, the UN corpus and the corpora of CWMT into words (Chinese by jieba,
English by sacremoses, Moses' port), drops pairs that recur, are longer than 250 words or of very
unequal lengths, learns a BPE of 44,000 merges for Chinese and one of 33,000 for English, and runs
fairseq-preprocess with a dictionary for each. Valid is newsdev2017, test is newstest2017;
DIR/text/test.raw.en is the reference as published, for sacreBLEU. The paper follows Hassan et al.
(2018), who publish no recipe: corpora, cleaning and sizes are our choice of them. Needs
subword-nmt, sacremoses and jieba.

  --source DIR   needed: a folder with the archives of CWMT, which nlp.nju.edu.cn/cwmt-wmt hands out
                 (casia2015.zip, casict2011.zip, casict2015.zip, datum2015.zip, datum2017.zip,
                 neu2017.zip), or what is in them; what else it lacks is downloaded
                 (training-parallel-nc-v12.tgz, UNv1.0.en-zh.tar.gz and dev.tgz)
END
}

subfolder=wmt17_zh_en needs=(subword-nmt sacremoses jieba) languages=(zh en)
read_options data/wmt17_zh_en "$@"
[ -n "$source_dir" ] || die "--source DIR is needed: nobody offers the corpora of CWMT for download"
download_rest=yes

declare -A merges=([zh]=44000 [en]=33000)
declare -A urls=(
  [training-parallel-nc-v12.tgz]=https://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz
  [UNv1.0.en-zh.tar.gz]=https://storage.googleapis.com/tfds-data/downloads/uncorpus/UNv1.0.en-zh.tar.gz
  [dev.tgz]=https://data.statmt.org/wmt19/translation-task/dev.tgz
)
declare -A sums=( # as in TensorFlow Datasets
  [training-parallel-nc-v12.tgz]=2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2
  [UNv1.0.en-zh.tar.gz]=6f9c6401d5f0a49b20661324570d99fb86822d82f974748a361e19b9b886dd49
  [dev.tgz]=7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7
  [casia2015.zip]=c939f1528f96c419e9bbffb9caad869616a969e7704ffac896e245a02aff59a9
  [casict2011.zip]=606adc0ccc5d8fc7c47f8589991286616342a1a379a571ce3038918731ae0182
  [casict2015.zip]=eef8e25b297c1aff12ab24719247d3588e756d7a4e2c30d4d34fcb4d05ab1050
  [datum2015.zip]=654afce6731485c40ce856514ab80cd2bfd836126bcaf48cdb911ebc32b021a4
  [datum2017.zip]=737455c139596f4abf3b1da73bc38932b3ef9534549328eff47d867e29950ed2
  [neu2017.zip]=9f63020b6990cde85f5387b745e3ae37f1d6a49848b90a49bae28219fb65395f
)
# archive, its Chinese file and its English one
corpora=(
  "training-parallel-nc-v12.tgz training/news-commentary-v12.zh-en.zh training/news-commentary-v12.zh-en.en"
  "UNv1.0.en-zh.tar.gz en-zh/UNv1.0.en-zh.zh en-zh/UNv1.0.en-zh.en"
  "casia2015.zip casia2015/casia2015_ch.txt casia2015/casia2015_en.txt"
  "casict2011.zip casict2011/casict-A_ch.txt casict2011/casict-A_en.txt"
  "casict2011.zip casict2011/casict-B_ch.txt casict2011/casict-B_en.txt"
  "casict2015.zip casict2015/casict2015_ch.txt casict2015/casict2015_en.txt"
  "datum2015.zip datum2015/datum_ch.txt datum2015/datum_en.txt"
  "neu2017.zip neu2017/NEU_cn.txt neu2017/NEU_en.txt"
)
for book in {1..20}; do
  corpora+=("datum2017.zip datum2017/Book${book}_cn.txt datum2017/Book${book}_en.txt")
done
declare -A dev=([valid]=newsdev2017 [test]=newstest2017)
declare -A sides=([zh]=src [en]=ref)
declare -A lines=([valid]=2002 [test]=2001)

for corpus in "${corpora[@]}"; do
  read -r archive file _ <<<"$corpus"
  [ -n "${urls[$archive]:-}" ] || require_in_source "$file" "$(basename "$file")" "$archive"
done
begin

write_text() {
  local corpus archive zh en language split chinese=() english=()
  for corpus in "${corpora[@]}"; do
    read -r archive zh en <<<"$corpus"
    locate "$zh" "$archive" "${urls[$archive]:-}" "${sums[$archive]}"
    chinese+=("$located")
    locate "$en" "$archive" "${urls[$archive]:-}" "${sums[$archive]}"
    english+=("$located")
    check_pairs "${chinese[-1]}" "${english[-1]}"
  done
  echo "tokenising (hours)"
  cat "${chinese[@]}" | tokenise zh >"$part/all.zh"
  cat "${english[@]}" | tokenise en --normalise >"$part/all.en"
  check_pairs "$part"/all.{zh,en}
  moses clean "$part"/all.{zh,en} "$part"/train.{zh,en} --longest 250 --unique
  rm "$part"/all.{zh,en}
  for split in valid test; do
    for language in zh en; do
      locate "dev/${dev[$split]}-zhen-${sides[$language]}.$language.sgm" dev.tgz "${urls[dev.tgz]}" "${sums[dev.tgz]}"
      segments "$located" >"$part/$split.raw.$language"
      check_text "$part/$split.raw.$language" "${lines[$split]}"
      apostrophes <"$part/$split.raw.$language" |
        tokenise "$language" --normalise >"$part/$split.$language"
    done
  done
}

write_bpe() {
  local split language
  for language in zh en; do
    echo "learning ${merges[$language]} merges for $language"
    subword-nmt learn-bpe -s "${merges[$language]}" <"$work/text/train.$language" >"$part/codes.$language"
    for split in train valid test; do
      subword-nmt apply-bpe -c "$part/codes.$language" <"$work/text/$split.$language" >"$part/$split.$language"
    done
  done
}

write_bin() { binarise "$work/bpe"; }

stages text bpe bin
