#!/usr/bin/env bash
# ruff and the tests, a process for each core, at most 8; arguments go to pytest (-n 0: one
# process, for -s and breakpoint()). Without any: everything but the slow tests.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,3s/^# //p' "$0"; exit ;; esac
CDPATH='' cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/setup.sh
source scripts/setup.sh
ruff check .
python -m pytest -n auto --maxprocesses 8 --dist worksteal "$@"
