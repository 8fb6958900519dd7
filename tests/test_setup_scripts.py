"""scripts/setup.sh with stand-ins for Python and the compilers; the package without fairseq."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from release_scripts import assert_refused

BASH = shutil.which("bash")
COMMANDS = (
    *("cat", "cksum", "cp", "cut", "dirname", "grep", "mkdir"),
    *("mktemp", "rm", "sed", "sleep", "tail", "tee"),
)

FAKE_PYTHON = """#!{bash}
case "$*" in
  *version_info*) echo "${{FAKE_VERSION:-3.11}}" ;;
  "-c import ensurepip"*) [ -z "${{FAKE_NO_VENV:-}}" ] ;;
  "-m venv"*) mkdir -p "${{@: -1}}/bin" && cp "$0" "${{@: -1}}/bin/python" ;;
  *'version("torch")'*)
    [ -n "${{FAKE_TORCH:-}}" ] && echo "$FAKE_TORCH" && exit
    [ -e "{calls}" ] && grep -q "install.* torch==" "{calls}" && echo 2.13.0
    ;;
  "-m pip install"*)
    [ -n "${{FAKE_FAILURE:-}}" ] && [[ "$*" == *$FAKE_FAILURE* ]] && echo "$FAKE_OUTPUT" && exit 1
    echo "$*" >> "{calls}"
    ;;
  "-m pip --version") ;;
  *) echo "unexpected: $*" >&2; exit 1 ;;
esac
"""


KERNELS = [
    str(file.relative_to(ROOT))
    for pattern in ("*.[ch]", "sources.py")
    for file in (ROOT / "fairseq_convattn/ops/native").glob(pattern)
]


class Checkout:
    """A copy of what setup.sh needs, in a path with a space, and a PATH of stand-ins."""

    def __init__(self, directory: Path):
        self.root = directory / "check out"
        self.bin = directory / "bin"
        self.calls = directory / "calls"
        self.bin.mkdir()
        for file in ("setup.py", "scripts/setup.sh", "scripts/progress.sh", *KERNELS):
            (self.root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, self.root / file)
        for command in COMMANDS:
            (self.bin / command).symlink_to(shutil.which(command))
        for compiler in ("cc", "c++"):
            self.add_command(compiler, f"#!{BASH}\n")
        self.add_command("python3.12", f"#!{BASH}\necho not this one >&2\nexit 127\n")
        self.add_command("python3", FAKE_PYTHON.format(bash=BASH, calls=self.calls))

    def add_command(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def bash(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [BASH, *arguments],
            env={"PATH": str(self.bin), **variables},
            cwd=self.root.parent,
            capture_output=True,
            text=True,
        )

    def set_up(self, **variables: str) -> subprocess.CompletedProcess:
        return self.bash(str(self.root / "scripts" / "setup.sh"), **variables)

    def pip_calls(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_installs_torch_first_and_then_nothing_again(checkout):
    assert checkout.set_up().returncode == 0
    torch, tools, project = checkout.pip_calls()
    assert "torch==2.13.0" in torch
    assert "ninja" in tools
    assert "--no-build-isolation" in project and ".[test]" in project

    again = checkout.set_up()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert len(checkout.pip_calls()) == 3


def test_a_gpu_gets_the_torch_that_has_run_on_one(checkout):
    checkout.add_command("nvidia-smi", f"#!{BASH}\n")
    assert checkout.set_up().returncode == 0
    assert "torch==2.11.*" in checkout.pip_calls()[0]


@pytest.mark.parametrize("version", ["2.6.0", "2.10.0+cpu", "2.14.0"])
def test_a_torch_that_does_not_work_is_told_before_anything_is_installed(checkout, version):
    run = checkout.set_up(FAKE_TORCH=version)
    assert run.returncode == 1 and f"has PyTorch {version}, and 2.11 to 2.13" in run.stderr
    assert not checkout.pip_calls()


def test_a_tour_installs_no_more_than_it_needs(checkout):
    assert checkout.set_up(CONVATTN_MINIMAL="yes").returncode == 0
    assert checkout.pip_calls()[-1].endswith("--editable .")
    for minimal, calls in ((True, 3), (False, 5), (True, 5)):
        variables = {"CONVATTN_MINIMAL": "yes"} if minimal else {}
        assert checkout.set_up(**variables).returncode == 0
        assert len(checkout.pip_calls()) == calls
    assert checkout.pip_calls()[-1].endswith("--editable .[test]")


def test_the_newest_python_that_fits_is_taken(checkout):
    """fairseq has a binary wheel for 3.12 alone."""
    for command, version in (("python3.11", "3.11"), ("python3", "3.12")):
        text = FAKE_PYTHON.format(bash=BASH, calls=checkout.calls)
        checkout.add_command(command, text.replace("3.11", version))
    assert "creating .venv with python3..." in checkout.set_up().stdout
    (checkout.bin / "python3").unlink()
    shutil.rmtree(checkout.root / ".venv")
    assert "creating .venv with python3.11..." in checkout.set_up().stdout


@pytest.mark.parametrize("changed", [KERNELS[0], KERNELS[-1]])
def test_what_is_new_installs_again_and_keeps_torch(checkout, changed):
    checkout.set_up()
    with (checkout.root / changed).open("a") as file:
        file.write("# changed\n")
    assert "keeping PyTorch 2.13.0" in checkout.set_up().stdout
    assert len(checkout.pip_calls()) == 5


def test_sourcing_puts_the_environment_on_path(checkout):
    script = checkout.root / "scripts" / "setup.sh"
    result = checkout.bash("-euc", f"source '{script}'; type -p python")
    assert result.stdout.splitlines()[-1] == str(checkout.root / ".venv" / "bin" / "python")


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_uses_the_active_environment(checkout, variable):
    active = checkout.root.parent / "active env"
    (active / "bin").mkdir(parents=True)
    shutil.copy(checkout.bin / "python3", active / "bin" / "python")
    assert checkout.set_up(**{variable: str(active)}).returncode == 0
    assert len(checkout.pip_calls()) == 3
    assert not (checkout.root / ".venv").exists()

    (active / "setup.stamp").unlink()
    result = checkout.set_up(**{variable: str(active)}, FAKE_VERSION="3.13")
    assert_refused(result, str(active), "has Python 3.13", "3.11 or 3.12")


def test_no_python_that_fits(checkout):
    assert_refused(checkout.set_up(FAKE_NO_VENV="1"), "no venv module")
    assert_refused(checkout.set_up(FAKE_VERSION="3.10"), "Python 3.11 or 3.12 is needed")
    (checkout.bin / "python3").unlink()
    assert_refused(checkout.set_up(), "Python 3.11 or 3.12 is needed")


@pytest.mark.parametrize(
    ("command", "others", "variable"), [("cc", "gcc clang", "CC"), ("c++", "g++ clang++", "CXX")]
)
def test_no_compiler(checkout, command, others, variable):
    (checkout.bin / command).rename(checkout.bin / "my-compiler")
    assert_refused(checkout.set_up(), f"no compiler runs of: {command} {others} ")
    assert checkout.set_up(**{variable: "my-compiler -O2"}).returncode == 0
    shutil.rmtree(checkout.root / ".venv")
    (checkout.bin / "my-compiler").rename(checkout.bin / others.split()[0])
    assert checkout.set_up().returncode == 0


@pytest.mark.parametrize(("failure", "what"), [("torch==", "PyTorch"), ("editable", "fairseq")])
def test_pip_failure_shows_the_log_and_the_next_call_continues(checkout, failure, what):
    result = checkout.set_up(FAKE_FAILURE=failure, FAKE_OUTPUT="connection refused")
    assert_refused(result, f"cannot install {what}", "network", ".venv/setup.log")
    assert "connection refused" in result.stderr
    assert "connection refused" in (checkout.root / ".venv" / "setup.log").read_text()
    assert checkout.set_up().returncode == 0
    assert sum(" torch==" in call for call in checkout.pip_calls()) == 1
    assert "editable" in checkout.pip_calls()[-1]
    headers = {"FAKE_FAILURE": "ninja", "FAKE_OUTPUT": "fatal error: Python.h: No such file"}
    (checkout.root / ".venv" / "setup.stamp").unlink()
    assert_refused(checkout.set_up(**headers), "cannot install the build tools", "python3-dev")


def test_without_a_compiler_the_package_is_built_without_kernels(tmp_path):
    folders = ("--build-lib", tmp_path / "lib", "--build-temp", tmp_path / "temp")
    run = subprocess.run(
        [sys.executable, "setup.py", "build_ext", *map(str, folders)],
        cwd=ROOT, env=os.environ | {"CC": shutil.which("false")}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert not list(tmp_path.rglob("_kernels*"))


@pytest.mark.skipif(not shutil.which("aarch64-linux-gnu-gcc"), reason="needs aarch64-linux-gnu-gcc")
@pytest.mark.parametrize("source", [name for name in KERNELS if name.endswith(".c")])
def test_kernels_compile_for_aarch64(source, tmp_path):
    subprocess.run(
        ["aarch64-linux-gnu-gcc", "-DCONVATTN_SOURCES=0", "-O3", "-S", "-Wall", "-Werror", source,
         "-o", str(tmp_path / "kernels.s")],
        cwd=ROOT, check=True,
    )  # fmt: skip


def test_import_without_fairseq():
    """A warning says what to install, and the operations work."""
    snippet = (
        "import sys; sys.modules['fairseq'] = None\n"
        "import torch, fairseq_convattn\n"
        "from fairseq_convattn.ops import lightweight_conv\n"
        "print(*lightweight_conv(torch.ones(4, 1, 2), torch.ones(1, 3), causal=True).shape)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", snippet]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "pip install --no-build-isolation fairseq-fixed==" in result.stderr
    assert result.stdout.split() == ["4", "1", "2"]
