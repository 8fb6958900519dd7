#!/usr/bin/env bash
# WikiText-2 at word level, ready for fairseq-train --task language_modeling.
# shellcheck disable=SC2034
set -euo pipefail

number=2
sum=542ccefacc6c27f945fb54453812b3cd # torchtext's MD5 for the paper's address
declare -A lines=([train]=36718 [valid]=3760 [test]=4358)
declare -A tokens=([train]=2088628 [valid]=217646 [test]=245569) # table 1 of the paper
# shellcheck source=scripts/wikitext.sh
source "$(dirname "${BASH_SOURCE[0]}")/wikitext.sh"
