#!/usr/bin/env bash
# Fine-tunes a masked language model on a task of GLUE, with several seeds. --help says how.
set -euo pipefail
scripts=$(CDPATH='' cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)

command -v fairseq-train >/dev/null ||
  { echo "error: fairseq-train is not installed (activate the environment)" >&2; exit 1; }
exec python "$scripts/cli.py" glue finetune "$@"
