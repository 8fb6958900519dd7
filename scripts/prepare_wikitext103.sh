#!/usr/bin/env bash
# WikiText-103 at word level, ready for fairseq-train --task language_modeling.
# shellcheck disable=SC2034
set -euo pipefail

number=103
# nobody publishes a checksum; this is the one that dataset libraries had for the paper's address
sum=242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590
declare -A lines=([train]=1801350 [valid]=3760 [test]=4358)
declare -A tokens=([train]=103227021 [valid]=217646 [test]=245569) # table 1 of the paper
# shellcheck source=scripts/wikitext.sh
source "$(dirname "${BASH_SOURCE[0]}")/wikitext.sh"
