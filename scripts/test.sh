#!/usr/bin/env bash
# ruff and the tests; arguments go to pytest. Without any: everything but the slow tests.
set -euo pipefail
CDPATH='' cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/setup.sh
source scripts/setup.sh
ruff check .
python -m pytest "$@"
