# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by the prepare_*.sh: their options, downloads, resumption and checks.
#
# Such a script defines usage, sets subfolder (the folder of --source that may hold its files
# too) and needs (commands and Python modules), and calls read_options, then begin, then stages with
# the folders of its output. Whatever is complete appears by rename, first in $work and in the end as
# $output, so a repeated run continues where the last one stopped.

scripts=$(CDPATH='' cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# option name -> variable: options with a value, then flags (empty or yes); a script may add its own
declare -A options=([--source]=source_dir [--mirror]=mirror [--output]=output)
declare -A flags=([--sample]=sample)
source_dir="" mirror="" output="" sample="" download_rest=""
shaping=()                # options and flags that change the data
needs=()
languages=()              # source and target; none for a corpus of one language
splits=(train valid test) # what binarise looks for, in files of these names or of other ones
declare -A names=()
SEVEN_ZIP=(7z 7za bsdtar)  # any of them
note=""                   # what is to be known of the data when they are ready
another="remove it or choose another folder with --output"

# die MESSAGE: without control characters, which a file could have brought
die() { printf 'error: %s\n' "$*" | tr -d '\000-\010\013-\037\177' >&2; exit 1; }

# print_usage DEFAULT_OUTPUT: of the command that was typed, this script or convattn prepare
print_usage() {
  printf 'usage: %s [options]\n\n' "${CONVATTN_COMMAND:-bash scripts/$(basename "$0")}"
  usage
  [ -z "${options[--mirror]:-}" ] || echo "  --mirror URL   download the same files from URL/"
  cat <<END
  --output DIR   a new folder for the data (default: $1); DIR/bin is for fairseq-train
  --sample       accept a part of the corpus, for a trial: checksums and numbers of lines that
                 differ are shown, not refused

To continue an interrupted run, repeat the command: it reuses what is in DIR.preparing.
END
}

# parse_options DEFAULT_OUTPUT ARGUMENTS...: sets the variables of options and flags
parse_options() {
  local default=$1
  shift
  case " $* " in *" --help "* | *" -h "*) print_usage "$default"; exit 0 ;; esac
  while [ $# -gt 0 ]; do
    if [ -n "${flags[${1:--}]:-}" ]; then
      declare -g "${flags[$1]}=yes"
      shift
    elif [ -n "${options[${1:--}]:-}" ]; then
      case ${2:-} in "" | --*) echo "error: $1 needs a value" >&2; exit 2 ;; esac
      declare -g "${options[$1]}=$2"
      shift 2
    else
      print_usage "$default" >&2
      echo "error: unknown option $1" >&2
      exit 2
    fi
  done
}

# choose_output DEFAULT: sets output and work; ends if the output is there
choose_output() {
  output=${output:-$1}
  mirror=${mirror%/} output=${output%/} work=${output%/}.preparing
  [ -z "$source_dir" ] || [ -d "$source_dir" ] || die "--source $source_dir is not a folder"
  [ -z "$source_dir" ] || [ -z "$mirror" ] || die "give --source or --mirror, not both"
  if [ -d "$output/bin" ]; then
    require_same_origin "$output"
    echo "$output is there already; remove it to prepare again"
    exit 0
  fi
  case $output in *[,:]*) die "--output $output: fairseq splits paths at ',' and ':'" ;; esac
  [ ! -e "$output" ] || die "$output is there already; choose another folder with --output"
  [ ! -d "$work" ] || require_same_origin "$work"
}

# read_options DEFAULT_OUTPUT ARGUMENTS...: both
read_options() {
  parse_options "$@"
  choose_output "$1"
}

# origin: what the data are made of; --source relative to them, so that both may move
origin() {
  local source_dir=$source_dir option variable told="the whole release"
  [ -z "$source_dir" ] || source_dir=$(realpath -m --relative-to="$output" "$source_dir")
  [ -z "$sample" ] || told="a sample of ${source_dir:-${mirror:-the release}}"
  for option in "${shaping[@]}"; do
    variable=${options[$option]:-${flags[$option]:-}}
    [ -z "${!variable}" ] || told+=", $option${options[$option]:+ ${!variable}}"
  done
  echo "$told"
}

# require_same_origin FOLDER: data of other options are neither continued nor taken for these
require_same_origin() {
  local found
  [ -f "$1/origin" ] || return 0
  found=$(cat "$1/origin")
  [ "$found" = "$(origin)" ] ||
    die "$1 is $found; $another"
}

# plain FILE: its content, unpacked if it is FILE.gz
plain() { case "$1" in *.gz) gzip -dc "$1" ;; *) cat "$1" ;; esac || die "$1 cannot be read, or the disk is full"; }

# in_source NAME...: the path of the first of them that --source has
in_source() {
  local name folder
  [ -n "$source_dir" ] || return 1
  for folder in "$source_dir" "$source_dir/$subfolder"; do
    for name in "$@"; do
      [ -e "$folder/$name" ] || continue
      echo "$folder/$name"
      return
    done
  done
  return 1
}

# require_in_source NAME...: one of them, unless they are downloaded
require_in_source() {
  local names
  [ -n "$source_dir" ] && ! in_source "$@" >/dev/null || return 0
  names=$(printf ', no %s' "$@")
  die "${names#, } in $source_dir"
}

# begin: $work and, for what is unpacked only to be read, $release, which no run leaves behind
begin() {
  local tool
  for tool in fairseq-preprocess python "${needs[@]}"; do
    command -v "$tool" >/dev/null || python -P -c "import $tool" 2>/dev/null ||
      die "$tool is not installed: run 'bash scripts/setup.sh', or pip install $tool"
  done
  [ -n "$source_dir" ] || command -v curl >/dev/null ||
    die "curl is not installed; a local copy works with --source DIR"
  [ ! -L "$work" ] && [ ! -L "$work/lock" ] || die "$work has symbolic links: $another"
  mkdir -p "$work"
  exec {lock}>"$work/lock"
  flock -n "$lock" || die "another run is preparing $output"
  require_no_links
  trap clean_up EXIT
  rm -rf "$work"/*.partial
  release=$work/release.partial
  origin >"$work/origin"
}

# require_no_links: in $work, which somebody else may have left, with links to anywhere
require_no_links() {
  local found
  found=$(find "$work" -type l -print -quit) ||
    die "$work cannot be searched for symbolic links: $another"
  [ -z "$found" ] || die "$work has symbolic links: $another"
}

clean_up() {
  rm -rf "$work"/*.partial
  rmdir "$work/download" 2>/dev/null || true
  local notes=(! -name lock ! -name origin ! -name sha256sums)
  [ -z "$(find "$work" -mindepth 1 "${notes[@]}" -print -quit)" ] || return 0
  rm -rf "$work"
}

# stage NAME COMMAND: $work/NAME, which COMMAND fills under the name $part, unless it is there
stage() {
  local part=$work/$1.partial
  [ ! -e "$work/$1" ] || return 0
  mkdir "$part"
  "$2"
  check_sides
  find "$part" -exec sync {} + # a name that a power cut keeps is of a whole file
  mv -T "$part" "$work/$1"
}

# stages NAME...: write_NAME for each folder, and the end
stages() {
  local name
  for name in "$@"; do
    [ "$name" != bin ] || rm -rf "$release" "$work/download"
    stage "$name" "write_$name"
  done
  finish
}

# finish: the data are ready; types are counted with <s>, <pad>, </s> and <unk>, which fairseq
# does not write
finish() {
  local dictionary told=$note
  rm -rf "$work"/{lock,preprocess.log,download}
  trap - EXIT
  mv -T "$work" "$output"
  for dictionary in "$output"/bin/dict*.txt; do
    [ ! -f "$dictionary" ] ||
      told+="${told:+, }$(($(wc -l <"$dictionary") + 4)) types in $(basename "$dictionary")"
  done
  echo "ready: $output/bin${told:+ ($told)}"
}

# obtain NAME URL [SUM]: sets obtained to the path of a file of the release, which --source or URL
# has; a download is kept for another run if it can be checked. SUM is its SHA-256 or, where its
# publisher has no other, its MD5 or the name of its git blob. With download_rest what --source lacks
# is downloaded.
obtain() {
  local address=$2 sum=${3:-} folder=$work/download
  [ -z "$mirror" ] || address=$mirror/$1
  [ -n "$sum" ] || folder=$release
  if [ -n "$source_dir" ] && { [ -z "$download_rest" ] || in_source "$1" >/dev/null; }; then
    obtained=$(in_source "$1") || die "no $1 in $source_dir"
    has_sum "$obtained" "$sum" || differs "$obtained does not have the release's checksum $sum"
    return
  fi
  obtained=$folder/$1
  [ ! -f "$obtained" ] || return 0
  download "$address" "$obtained.part"
  if ! has_sum "$obtained.part" "$sum"; then
    [ -n "$sample" ] || rm "$obtained.part"
    differs "$address does not have the release's checksum $sum"
  fi
  sync "$obtained.part"
  mv "$obtained.part" "$obtained"
}

# unpack ARCHIVE URL [SUM]: sets unpacked to a folder with what is in it
unpack() {
  unpacked=$release/${1//./_}
  [ ! -d "$unpacked" ] || return 0
  obtain "$@"
  echo "unpacking $1"
  mkdir -p "$unpacked"
  [[ $obtained == /* ]] || obtained=./$obtained # tar takes h:file for a file of the host h
  case "$1" in
    *.zip) python -P -m zipfile -e "$obtained" "$unpacked" ;;
    *.7z) unpack_7z "$(command -v "${SEVEN_ZIP[@]}" | head -n 1)" ;;
    *) tar -xf "$obtained" -C "$unpacked" --no-same-owner ;;
  esac || die "$obtained cannot be unpacked"
  find "$unpacked" -type l -delete
  [ -n "${3:-}" ] || note_sum "$obtained"
}

unpack_7z() {
  case "$1" in
    *bsdtar) "$1" -xf "$obtained" -C "$unpacked" ;;
    *) "$1" x -y "-o$unpacked" "$obtained" >/dev/null ;;
  esac
}

# locate FILE ARCHIVE URL [SUM]: sets located to the path of a file of an archive, which --source
# may have unpacked
locate() {
  if located=$(in_source "$1" "$(basename "$1")"); then return; fi
  unpack "${@:2}"
  located=$(find "$unpacked" -name "$(basename "$1")" -print -quit)
  [ -n "$located" ] || die "$2 has no $(basename "$1")"
}

# segments FILE: of plain, the text of each <seg> of a test set
segments() {
  plain "$1" | sed -n '/<seg id/{s/.*<seg id="[0-9]*">\s*//;s/\s*<\/seg>.*//;p}'
}

# apostrophes <FILE: ' for its typographic sign, as fairseq's scripts have it before tokenising
apostrophes() { sed "s/’/'/g"; }

# check_pairs FILE FILE: both sides have as many lines
check_pairs() {
  local first second
  first=$(wc -l <"$1") second=$(wc -l <"$2")
  [ "$first" -eq "$second" ] ||
    die "$(basename "$1") has $first lines and $(basename "$2") $second, but both must have as many; one file is incomplete, get it again"
}

# check_sides: check_pairs of all texts in $part; BPE codes of two languages are no pair
check_sides() {
  local file
  for file in "$part"/*."${languages[0]:-none}"; do
    [ ! -e "$file" ] || [[ $file == */codes.* ]] ||
      check_pairs "$file" "${file%.*}.${languages[1]}"
  done
}

# note_sum FILE: $work/sha256sums says what a file was for which nobody publishes a checksum
note_sum() {
  local name sum
  name=$(basename "$1") sum=$(sha256sum <"$1")
  { grep -sv "  $name\$" "$work/sha256sums" || true; echo "${sum%  -}  $name"; } >"$work/sums.partial"
  mv "$work/sums.partial" "$work/sha256sums"
}

# download ADDRESS FILE: continues FILE, or begins again where a server cannot continue (33)
download() {
  local progress=-sS
  [ ! -t 2 ] || progress=--progress-bar
  local command=(curl -fL "$progress" --retry 3 -C - -o "$2" "$1")
  mkdir -p "$(dirname "$2")"
  echo "downloading $1"
  "${command[@]}" || { [ $? -eq 33 ] && rm "$2" && "${command[@]}"; } ||
    die "cannot download $1; is there a network? Then run again; a local copy works with --source DIR"
}

has_sum() { # FILE SUM, which may be empty
  case ${#2} in
    0) ;;
    32) [ "$(md5sum <"$1")" = "$2  -" ] ;;
    40) [ "$({ printf 'blob %s\0' "$(wc -c <"$1")"; cat "$1"; } | sha1sum)" = "$2  -" ] ;;
    *) [ "$(sha256sum <"$1")" = "$2  -" ] ;;
  esac
}

# differs HOW: the data are not the release
differs() {
  [ -z "$sample" ] || { echo "note: $*"; return; }
  die "$* (for a part of the release there is --sample)"
}

# check_text FILE LINES [TOKENS]: it is whole and UTF-8; tokens are words and one end of sentence a
# line
check_text() {
  local name lines words counts
  name=$(basename "$1") counts=$(lines_and_words "$1")
  read -r lines words <<<"$counts"
  [ "$lines" -gt 0 ] || die "$name is empty"
  [ "$lines" -eq "$2" ] || differs "$name has $lines lines, not $2"
  [ -z "${3:-}" ] || [ $((lines + words)) -eq "$3" ] ||
    differs "$name has $((lines + words)) tokens, not $3"
  [ -z "$(tail -c 1 "$1")" ] ||
    differs "$name ends within its last line; get the release's file again"
}

# wc -w goes by the locale, and the words of a release are those between ASCII spaces
lines_and_words() { # FILE
  python -P - "$1" <<'END'
import os
import sys

lines = words = 0
with open(sys.argv[1], "rb") as file:
    for line in file:
        lines += 1
        words += len(line.split())
        try:
            line.decode()
        except UnicodeDecodeError:
            if line.endswith(b"\n"):  # else it is cut, which is said otherwise
                sys.exit(f"error: line {lines} of {os.path.basename(sys.argv[1])} is not UTF-8")
print(lines, words)
END
}

moses() { python "$scripts/moses_text.py" "$@"; }

tokenise() { moses tokenise --aggressive --language "$@"; } # LANGUAGE OPTION...

# write_joint_bpe: of all texts but raw ones, with $merges merges that both training texts share
write_joint_bpe() {
  local file
  echo "learning $merges joint BPE merges"
  cat "$work/text/train.${languages[0]}" "$work/text/train.${languages[1]}" |
    subword-nmt learn-bpe -s "$merges" >"$part/codes"
  for file in "$work"/text/*; do
    [[ ${file##*/} != *.raw.* ]] || continue
    subword-nmt apply-bpe -c "$part/codes" <"$file" >"$part/$(basename "$file")"
  done
}

# learn_pieces FILE... [--whole-words WORD]: $pieces pieces of SentencePiece, into $part
learn_pieces() {
  echo "learning $pieces pieces"
  python "$scripts/sentencepiece_bpe.py" train --model-prefix "$part/bpe" --vocab-size "$pieces" \
    --input "$@" || die "cannot learn $pieces pieces; for a small text give --pieces N, with fewer"
}

encode() { python "$scripts/sentencepiece_bpe.py" encode --model "$work/bpe/bpe.model"; }

# write_summary_bpe WORD: one BPE of articles and summaries, in which WORD is a piece, with a
# dictionary; fairseq's own has <unk>, <s> and </s>, and nothing needs the counts
write_summary_bpe() {
  learn_pieces "$work"/text/train.{source,target} --whole-words "$1"
  tail -n +4 "$part/bpe.vocab" | cut -f 1 | sed 's/$/ 1/' >"$part/dict.txt"
}

# binarise FOLDER [ARGUMENTS...]: its splits by fairseq-preprocess, with ARGUMENTS, into $part; as
# many sentences as lines come out
binarise() {
  local folder=$1 split language prefix arguments=("${@:2}")
  if [ ${#languages[@]} -eq 0 ]; then
    arguments+=(--only-source)
  else
    arguments+=(--source-lang "${languages[0]}" --target-lang "${languages[1]}")
  fi
  for split in "${splits[@]}"; do
    arguments+=("--${split}pref" "$folder/${names[$split]:-$split}")
  done
  preprocess "${arguments[@]}"
  for split in "${splits[@]}"; do
    prefix=$folder/${names[$split]:-$split}
    [ ${#languages[@]} -gt 0 ] || check_binarised "$part/$split" "$prefix"
    for language in "${languages[@]}"; do
      check_binarised "$part/$split.${languages[0]}-${languages[1]}.$language" "$prefix.$language"
    done
  done
}

preprocess() { # ARGUMENTS...: fairseq-preprocess into $part
  echo "binarising (progress is in $work/preprocess.log)"
  fairseq-preprocess "$@" --destdir "$part" --workers "$(nproc)" >"$work/preprocess.log" 2>&1 ||
    { tail -n 30 "$work/preprocess.log" >&2; die "fairseq-preprocess failed"; }
}

# check_binarised DATA TEXT: DATA.idx has as many sentences as TEXT lines. Their number follows
# magic, version and type, the first 18 bytes of fairseq's index.
check_binarised() {
  local sentences lines
  sentences=$(od -A n -t u8 -j 18 -N 8 "$1.idx")
  lines=$(LC_ALL=C grep -c '' "$2")
  [ "$sentences" -eq "$lines" ] ||
    die "$(basename "$1") has $((sentences)) sentences for the $lines lines of $(basename "$2")"
}
