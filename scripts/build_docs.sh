#!/usr/bin/env bash
# Builds the documents as a site in docs/_build; a warning is an error.
#
#     bash scripts/build_docs.sh [FOLDER]
#
# Needs the extra docs: pip install --no-build-isolation '.[docs]'
set -euo pipefail
output=$(realpath -m "${1:-docs/_build}")
CDPATH='' cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
[ -n "${VIRTUAL_ENV:-${CONDA_PREFIX:-}}" ] || PATH=$PWD/.venv/bin:$PATH

python -c 'import furo, myst_parser, sphinx' 2>/dev/null || {
  echo "error: Sphinx, MyST or Furo is missing (pip install --no-build-isolation '.[docs]')" >&2
  exit 1
}
python docs/generate.py --check
python -W ignore -m sphinx --fail-on-warning --keep-going --quiet -b html docs "$output"
echo "ready: $output/index.html"
