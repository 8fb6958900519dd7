#!/usr/bin/env bash
# Installs what the other scripts need; sourced from bash it also puts it on PATH.
#
#     bash scripts/setup.sh
#     source scripts/setup.sh
#     CONVATTN_MINIMAL=yes bash scripts/setup.sh   # without what tests and some corpora need
#
# Everything goes into the active environment (VIRTUAL_ENV or CONDA_PREFIX) or, without
# one, into .venv at the repository root. A torch that is there already is kept; without one,
# a machine with a GPU gets 2.11, any other 2.13. An interrupted set-up continues with the
# next call, a finished one costs nothing.

if [ "${BASH_SOURCE[0]}" != "$0" ]; then
  "$BASH" "${BASH_SOURCE[0]}" || return 1
  # threads that wait by spinning make training many times slower beside another process
  export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
  PATH=${VIRTUAL_ENV:-${CONDA_PREFIX:-$(CDPATH='' cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv}}/bin:$PATH
  export PATH
  return
fi

set -euo pipefail
case ${1-} in
  '') ;;
  -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit ;;
  *) echo "usage: bash scripts/setup.sh [--help]" >&2; exit 2 ;;
esac
CDPATH='' cd -P "$(dirname "$0")/.."
# shellcheck source=scripts/progress.sh
source scripts/progress.sh

environment=${VIRTUAL_ENV:-${CONDA_PREFIX:-.venv}}
python=$environment/bin/python
stamps=("$environment/setup.stamp") extras='[test]'
if [ -n "${CONVATTN_MINIMAL:-}" ]; then
  # whoever has the whole has this, too
  stamps=("$environment/setup.minimal.stamp" "${stamps[0]}") extras=""
fi
log=$environment/setup.log
constraints=$environment/setup.constraints

die() { echo "error: $*" >&2; exit 1; }

python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# Python 3.12 if there is one, for which fairseq need not be compiled, or 3.11. Each candidate is
# run, for a command can exist and not work.
find_python() {
  local version candidate
  for version in 3.12 3.11; do
    for candidate in "python$version" python3 python; do
      [ "$(python_version "$candidate")" = "$version" ] || continue
      echo "$candidate"
      return
    done
  done
  return 1
}

create_environment() {
  local base
  base=$(find_python) ||
    die "Python 3.11 or 3.12 is needed, and none of python3.12, python3.11, python3 and python is one"
  "$base" -c 'import ensurepip, venv' 2>/dev/null ||
    die "$base has no venv module (on Debian and Ubuntu: apt install python3-venv)"
  echo "creating .venv with $base..."
  "$base" -m venv --clear "$environment" || die "cannot create .venv with $base"
}

# without debugging symbols, fairseq's extensions compile in half the time
export CFLAGS=${CFLAGS--g0}

pip_install() {
  printf '\n+ pip install %s\n' "$*" >>"$log"
  # verbose, so that the log has what a compiler does
  with_progress "$log" logged "$python" -m pip install -v --disable-pip-version-check "$@"
}

logged() { "$@" >>"$log" 2>&1; }

cannot_install() {
  tail -n 15 "$log" >&2
  if grep -q 'Python\.h' "$log"; then
    die "cannot install $1: Python's headers are missing (on Debian and Ubuntu: apt install python3-dev). See $log"
  fi
  die "cannot install $1: is there a network? See $log"
}

torch_version() {
  "$python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null
}

install_torch() {
  if nvidia-smi -L >/dev/null 2>&1; then
    pip_install 'torch==2.11.*'  # newer ones have not run on a GPU
  else
    # a CPU build, where pip is configured to find one, is a tenth of the size
    pip_install torch==2.13.0+cpu || pip_install torch==2.13.0
  fi
}

kernels=fairseq_convattn/ops/native
wanted=$(cksum setup.py scripts/setup.sh "$kernels"/*.[ch] "$kernels/sources.py" && pwd)
for stamp in "${stamps[@]}"; do
  if [ -x "$python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then exit 0; fi
done

# runs COMPILER...: whether one of them does; each may hold options
runs() {
  local compiler
  for compiler in "$@"; do
    # shellcheck disable=SC2086
    ! $compiler --version >/dev/null 2>&1 || return 0
  done
  die "no compiler runs of: $* (on Debian and Ubuntu: apt install build-essential)"
}

runs ${CC:+"$CC"} cc gcc clang
runs ${CXX:+"$CXX"} c++ g++ clang++

version=$(python_version "$python") || version=""
if [ -z "$version" ] && [ "$environment" = .venv ]; then
  create_environment
  version=$(python_version "$python") || version=""
fi
[ -n "$version" ] || die "$python does not run"
[[ $version = 3.1[12] ]] ||
  die "$environment has Python $version, and Python 3.11 or 3.12 is needed"

rm -f "$environment"/setup*.stamp
echo "setting up $environment (log: $log)" | tee "$log"
"$python" -m pip --version >>"$log" 2>&1 || "$python" -m ensurepip >>"$log" 2>&1 ||
  cannot_install pip

if torch=$(torch_version); then
  [[ $torch = 2.1[123].* ]] ||
    die "$environment has PyTorch $torch, and 2.11 to 2.13 is needed: pip install 'torch>=2.11,<2.14' there, or use a new environment"
  echo "keeping PyTorch $torch (1/3)"
else
  echo "installing PyTorch (1/3)..."
  install_torch || cannot_install PyTorch
  torch=$(torch_version) || cannot_install PyTorch
fi
echo "torch==$torch" >"$constraints"

echo "installing build tools (2/3)..."
pip_install --constraint "$constraints" "numpy>=1.26,<3" cython setuptools wheel ninja packaging ||
  cannot_install "the build tools"

echo "installing fairseq and fairseq_convattn (3/3); the first time fairseq compiles for some minutes..."
pip_install --constraint "$constraints" --no-build-isolation --editable ".$extras" ||
  cannot_install fairseq

printf '%s\n' "$wanted" >"${stamps[0]}"
echo "ready: $environment ($(elapsed))"
