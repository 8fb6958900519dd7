"""``convattn`` from a checkout, and installed from a wheel in an environment of its own."""

import json
import os
import re
import runpy
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch
from conftest import ROOT

SCRIPTS = ROOT / "scripts"


def run(*command: object, **options) -> subprocess.CompletedProcess:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, **options)


def convattn(*arguments: object) -> subprocess.CompletedProcess:
    return run(sys.executable, SCRIPTS / "cli.py", *arguments)


def test_help_names_the_commands_and_imports_none_of_them():
    code = "import sys, cli; cli.main([]); sys.exit('fairseq_convattn' in sys.modules)"
    result = run(sys.executable, "-c", code, env={**os.environ, "PYTHONPATH": str(SCRIPTS)})
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("example:\n  convattn ")
    for name in ("score", "average", "convert", "recipe", "report", "analyse", "prepare"):
        assert f"\n  {name} " in result.stdout


def test_the_installed_command_starts_in_any_folder(tmp_path):
    command = Path(sys.executable).parent / "convattn"
    if not command.exists():
        pytest.skip("fairseq_convattn is not installed in this environment")
    result = run(command, "--help", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("example:\n  convattn ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scroe"], "error: convattn has no command 'scroe'; did you mean 'score'?"),
        (["prepare", "multi30"], "error: no corpus 'multi30'; did you mean 'multi30k'?"),
        (["prepare", "xyz"], "error: no corpus 'xyz'; there are cnn_dm, gbw, "),
    ],
)
def test_what_is_mistyped_is_one_line(arguments, message):
    result = convattn(*arguments)
    assert result.returncode == 1 and result.stderr.startswith(message)
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["--help"], ["prepare"]])
def test_output_that_cannot_be_written_is_one_line(arguments):
    with open("/dev/full", "w") as full:
        command = [sys.executable, SCRIPTS / "cli.py", *arguments]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    message = "error: standard output: No space left on device\n"
    assert (result.returncode, result.stderr) == (1, message)


def test_a_closed_output_is_one_line():
    result = run("sh", "-c", '"$0" "$@" >&-', sys.executable, SCRIPTS / "cli.py", "score")
    assert result.returncode == 1 and result.stderr.startswith("error: standard output is closed")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_messages_stay_out_of_the_output_when_standard_error_is_closed(tmp_path):
    (tmp_path / "text").write_text("a .\n")
    score = [SCRIPTS / "cli.py", "score", "--metric", "bleu", "--format", "json"]
    score += ["--reference", tmp_path / "text", "--hypothesis", tmp_path / "text"]
    result = run("sh", "-c", '"$0" "$@" 2>&-', sys.executable, *score)
    assert json.loads(result.stdout)["metric"] == "bleu"


def test_a_command_is_named_in_its_own_errors(tmp_path):
    result = convattn("sentencepiece", "encode", "--model", tmp_path / "none")
    assert result.returncode == 1 and "none" in result.stderr.splitlines()[-1]
    result = convattn("sentencepiece", "encode")
    assert result.returncode == 2 and "usage: convattn sentencepiece encode " in result.stderr


def test_text_that_is_no_utf8_teaches_no_pieces(tmp_path):
    (tmp_path / "text").write_bytes(b"a b\n" * 9 + "café".encode("latin-1"))
    result = convattn(
        *("sentencepiece", "train", "--input", tmp_path / "text"),
        *("--model-prefix", tmp_path / "bpe", "--vocab-size", "9"),
    )
    assert result.returncode == 1 and "text, line 10: not UTF-8" in result.stderr
    assert not (tmp_path / "bpe.model").exists()


def test_what_keeps_pieces_from_being_learned_is_said(tmp_path):
    (tmp_path / "text").write_text("a b c\n")

    def train(prefix, size):
        prefix = ["--model-prefix", f"{tmp_path}/{prefix}", "--vocab-size", size]
        return convattn("sentencepiece", "train", "--input", tmp_path / "text", *prefix).stderr

    too_many = re.search(
        r"error: --vocab-size 900: at most (\d+) for this text\n", train("bpe", "900")
    )
    for size in ("-1", "0", "1", "6"):
        assert train("bpe", size) == f"error: --vocab-size {size}: at least 7 for this text\n"
    assert train("bpe", too_many[1]) == ""
    assert "bpe.model is there already: delete it or choose another" in train("bpe", too_many[1])
    assert f"{tmp_path}/no: no such folder" in train("no/bpe", "9")
    assert "bpe.model: give it without .model" in train("bpe.model", "9")
    for prefix in (".", "new/"):
        assert f"--model-prefix {tmp_path}/{prefix}: a folder; give" in train(prefix, "9")
    (tmp_path / "folder").mkdir()
    assert train("folder", "9") == ""
    (tmp_path / "text").unlink()
    assert train("none", "9") == f"error: {tmp_path / 'text'}: no such file\n"
    encode = convattn("sentencepiece", "encode", "--model", tmp_path / "none.model")
    assert encode.stderr == f"error: {tmp_path / 'none.model'}: no such file\n"
    encode = convattn("sentencepiece", "encode", "--model", tmp_path)
    assert encode.stderr == f"error: {tmp_path} is a folder; give one of its files\n"
    (tmp_path / "text").write_text("")
    assert train("none", "9") == f"error: {tmp_path / 'text'}: no text\n"


def test_a_disk_that_is_too_full_for_a_model_of_pieces_leaves_none(tmp_path):
    (tmp_path / "text").write_text("a b c\n")
    words = [sys.executable, SCRIPTS / "cli.py", "sentencepiece", "train", "--vocab-size", "9"]
    words += ["--input", tmp_path / "text", "--model-prefix", tmp_path / "bpe"]
    result = run("bash", "-c", 'ulimit -f 64; "$0" "$@"', *words)
    assert result.returncode == 1 and result.stderr.startswith("error: ")
    assert {file.name for file in tmp_path.iterdir()} == {"text"}


def test_names_that_are_no_utf8_are_printed():
    name = os.fsdecode("caf\xe9".encode("latin-1"))
    result = convattn("sentencepiece", "encode", "--model", name)
    assert result.returncode == 1 and "caf\\udce9" in result.stderr


def test_pieces_of_text_from_a_pipe(tmp_path):
    (tmp_path / "text").write_text("a b\n" * 9 + "café\n", encoding="utf-8")
    model = ["--model-prefix", tmp_path / "bpe", "--vocab-size", "12"]
    words = [sys.executable, SCRIPTS / "cli.py", "sentencepiece", "train", *model, "--input"]
    piped = 'cat "$0" | "$@" /dev/stdin'
    result = run("sh", "-c", piped, tmp_path / "text", *words)
    assert result.returncode == 0 and (tmp_path / "bpe.model").exists(), result.stderr
    (tmp_path / "text").write_bytes(b"a b\ncaf\xe9\n")
    model[1] = tmp_path / "none"
    again = [*words[:4], *model, "--input"]
    result = run("sh", "-c", piped, tmp_path / "text", *again)
    assert result.stderr.startswith("error: /dev/stdin, line 2: not UTF-8; convert it")
    encode = [*words[:3], "encode", "--model", tmp_path / "bpe.model"]
    split = subprocess.run([*map(str, encode)], input=b"a b\n\ncaf\xe9\n", capture_output=True)
    assert split.returncode == 1 and b"standard input, line 3: not UTF-8" in split.stderr


def test_a_model_of_pieces_names_no_file_and_any_name_will_do(tmp_path):
    name = tmp_path / os.fsdecode("caf\xe9".encode("latin-1"))
    name.write_text("a b c\n")
    words = [sys.executable, SCRIPTS / "cli.py", "sentencepiece"]
    train = ["train", "--input", name, "--model-prefix", name, "--vocab-size", "9"]
    assert run(*words, *train).stderr == ""
    model = Path(f"{name}.model")
    assert os.fsencode(tmp_path) not in model.read_bytes()
    encode = [*words, "encode", "--model", model]
    assert run("sh", "-c", 'echo a b | "$0" "$@"', *encode).stdout == "\u2581a \u2581b\n"
    closed = run("sh", "-c", '"$0" "$@" <&-', *encode)
    assert closed.stderr == "error: standard input is closed\n"


@pytest.mark.slow
def test_output_that_nobody_reads(tmp_path):
    """No error is printed, and results are still written."""
    results = sorted((ROOT / "docs" / "data" / "results").glob("*.json"))
    report = [sys.executable, SCRIPTS / "cli.py", "report", "--table", *results]
    assert run("sh", "-c", '"$0" "$@" | true', *report).stderr == ""
    weights = tmp_path / "weights.pt"
    torch.save({"args": None, "cfg": {}, "model": {"x": torch.ones(2)}}, weights)
    average = ["average", "--inputs", weights, "--output", tmp_path / "average.pt"]
    printed = run("sh", "-c", '"$0" "$@" | true', *report[:2], *average).stderr
    assert printed == f"averaging {weights}\n" and (tmp_path / "average.pt").exists()


def test_prepare_explains_each_corpus_by_an_example_in_its_own_name():
    titles = [x.split()[:2] for x in convattn("prepare").stdout.splitlines() if x[:2] == "  "]
    assert ["gbw", "The"] in titles and "set" not in dict(titles).values()
    for name, example in (("multi30k", "multi30k --output"), ("glue", "glue --sentencepiece ")):
        lines = convattn("prepare", name, "--help").stdout.splitlines()
        assert lines[1].startswith(f"  convattn prepare {example}")
        assert f"usage: convattn prepare {name} " in "\n".join(lines)
    result = convattn("prepare", "glue", "--none")
    assert result.returncode == 2 and "usage: convattn prepare glue " in result.stderr


@pytest.mark.parametrize(
    "name", ["architectures", "recipe", "score", "sentencepiece encode", "glue predict"]
)
def test_help_begins_with_an_example_and_names_what_was_typed(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["convattn"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PATH", os.environ["PATH"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPTS / "cli.py"))["main"]([*name.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "example:" and lines[1].startswith(f"  convattn {name} ")
    assert lines[3].startswith(f"usage: convattn {name} ")


def test_prepare_runs_the_script_beside_its_own_python(tmp_path):
    environment = {"PATH": "/usr/bin:/bin"}
    command = (sys.executable, SCRIPTS / "cli.py", "prepare", "wikitext103")
    result = run(*command, "--source", tmp_path, cwd=tmp_path, env=environment)
    files = ("wiki.train.tokens", "wiki.train.tokens.gz", "train.txt", "train.txt.gz")
    missing = ", ".join(f"no {name}" for name in (*files, "wikitext-103-v1.zip"))
    message = f"error: {missing} in {tmp_path}\n"
    assert (result.returncode, result.stderr) == (1, message)


@pytest.mark.parametrize(
    "command",
    [("cli.py", "score", "--metric", "bleu"), ("sentencepiece_bpe.py", "encode", "--model", "x")],
)
def test_scripts_without_an_environment_say_how_to_get_one(command):
    script, *arguments = command
    result = run(sys.executable, "-S", SCRIPTS / script, *arguments, env={})
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ") and "bash scripts/setup.sh" in line


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The commands of an environment with a wheel of the sdist, beside this one's packages."""
    folder = tmp_path_factory.mktemp("package")
    names = run("git", "-C", ROOT, "ls-files", "-z").stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "checkout" / name).write_bytes((ROOT / name).read_bytes())
    pip = (sys.executable, "-m", "pip", "--no-input")
    quickly = {**os.environ, "CFLAGS": "-O0"}
    python = folder / "environment" / "bin" / "python"
    venv.create(folder / "environment")
    for pattern, *command in (
        ("", sys.executable, "setup.py", "-q", "sdist", "-d", folder),
        ("*.tar.gz", *pip, "wheel", "--no-build-isolation", "--no-deps", "-w", folder),
        ("*.whl", *pip, "--python", python, "install", "--no-deps"),
    ):
        command += [*folder.glob(pattern)] if pattern else []
        built = run(*command, cwd=folder / "checkout", env=quickly)
        assert built.returncode == 0, built.stderr
    library = Path("lib", f"python3.{sys.version_info.minor}", "site-packages")
    present = Path(sys.prefix) / library
    (folder / "environment" / library / "present.pth").write_text(f"{present}\n")
    return python.parent


def _modules() -> list[str]:
    files = sorted((ROOT / "fairseq_convattn").rglob("*.py"))
    names = (file.relative_to(ROOT).with_suffix("").parts for file in files)
    return [".".join(parts) for parts in names if parts[-1] != "__init__"]


@pytest.mark.slow
@pytest.mark.ci
def test_an_installed_wheel_is_the_whole_product(installed, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def convattn(*arguments: object) -> str:
        result = run(installed / "convattn", *arguments, cwd=tmp_path, env=environment)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    code = "".join(f"import {module}\n" for module in _modules())
    code += "from fairseq_convattn.ops import native; print(native.is_built(), native.__file__)"
    alone = run(installed / "python", "-c", code, cwd=tmp_path, env=environment)
    assert alone.returncode == 0, alone.stderr
    built, place = alone.stdout.split()
    assert built == "True" and Path(place).is_relative_to(installed.parent)
    lines = convattn("recipe", "multi30k", "--dry-run").splitlines()
    (prepare,) = (line.split() for line in lines if line.startswith("bash "))
    assert Path(prepare[1]).is_relative_to(installed.parent) and Path(prepare[1]).is_file()
    assert convattn("prepare", "multi30k", "--help").count("--source DIR")
