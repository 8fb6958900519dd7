"""Stages of small commands: interrupted, repeated, changed."""

import fcntl
import multiprocessing
import os
import signal
import site
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

import fairseq_convattn
from fairseq_convattn.child_processes import CommandFailed
from fairseq_convattn.folder_lock import locked
from fairseq_convattn.recipes import command, record, runner
from fairseq_convattn.recipes.command import (
    Command,
    RecipeError,
    Stage,
    convattn,
    script,
    user_dir,
)
from fairseq_convattn.recipes.recipe import STAGES
from fairseq_convattn.recipes.runner import Runner
from fairseq_convattn.run_records import read_json


@pytest.fixture
def interruptible():
    """Where the tests run in the background, SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_installed_package_does_not_record_the_repository_around_it(tmp_path, monkeypatch):
    inside = tmp_path / ".venv" / "lib"
    inside.mkdir(parents=True)
    (tmp_path / "file").touch()
    for each in ("init -q", "add file", "-c user.name=x -c user.email=x commit -qm x"):
        subprocess.run(["git", "-C", tmp_path, *each.split()], check=True)
    monkeypatch.setattr(record, "ROOT", inside)
    assert record._git() is None
    monkeypatch.setattr(record, "ROOT", tmp_path)
    assert record._git()["changed"] is False
    (tmp_path / "file").write_text("changed")
    assert record._git()["changed"] is True


def shell(script: str, **kwargs) -> Command:
    return Command(["sh", "-c", script], **kwargs)


def five_stages(folder: Path, trouble: str = "", where: str = "") -> list[Stage]:
    """Each adds its name to a file of its own, after ``trouble`` if it is ``where``."""
    stages = []
    for name in STAGES:
        file, flag = folder / name, folder / f"{name}.again"
        first = f"if [ ! -e {flag} ]; then echo half; touch {flag}; {trouble}; fi"
        script = f"{first if name == where else ':'}; echo {name} >>{file}; echo whole"
        stages.append(Stage(name, [shell(script, stdout=folder / f"{name}.out")]))
    return stages


def run(folder: Path, stages: list[Stage], chosen=STAGES) -> None:
    with locked(folder, "stages"):
        runner = Runner(folder, stages)
        runner.check(chosen)
        runner.run(chosen)


def assert_each_ran_once(folder: Path) -> None:
    for name in STAGES:
        assert (folder / name).read_text() == f"{name}\n"
        assert (folder / f"{name}.out").read_text() == "whole\n"
        assert not (folder / f"{name}.out.partial").exists()


@pytest.mark.parametrize("where", ["prepare", "generate"])
def test_continues_where_a_command_failed(tmp_path, capsys, where):
    stages = five_stages(tmp_path, "echo no more room >&2; exit 1", where)
    with pytest.raises(CommandFailed, match=f"sh failed; its log is .*{where}.log"):
        run(tmp_path, stages)
    assert "no more room" in capsys.readouterr().err
    assert not (tmp_path / f"{where}.out").exists()
    done = set(Runner(tmp_path, stages).records())
    assert done == set(STAGES[: STAGES.index(where)])
    run(tmp_path, stages)
    assert_each_ran_once(tmp_path)
    run(tmp_path, stages)
    assert_each_ran_once(tmp_path)


@pytest.mark.parametrize(
    ("where", "number"), [("prepare", signal.SIGINT), ("train", signal.SIGKILL)]
)
@pytest.mark.usefixtures("interruptible")
def test_continues_where_the_run_was_interrupted(tmp_path, where, number):
    """The command lives in a session of its own: SIGINT ends it with the run, and where the run
    was killed no other begins before it has ended."""
    go = tmp_path / "go"
    wait = f"while [ ! -e {go} ]; do sleep 0.1; done"
    stages = five_stages(tmp_path, f"kill -{int(number)} $PPID; {wait}; exit 1", where)
    process = multiprocessing.get_context("fork").Process(target=run, args=(tmp_path, stages))
    try:
        process.start()
        process.join()
        assert process.exitcode != 0
        assert not (tmp_path / f"{where}.out").exists()
        if number == signal.SIGKILL:
            with pytest.raises(BlockingIOError, match="another run .* .process .*; wait for"):
                run(tmp_path, stages)
            go.touch()
            with open(tmp_path / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
        run(tmp_path, stages)
    finally:
        go.touch()
    assert_each_ran_once(tmp_path)


@pytest.mark.usefixtures("interruptible")
def test_what_an_interrupted_command_started_has_ended_with_the_run(tmp_path):
    """Also a process that needs a moment more than the command."""
    ready = tmp_path / "ready"
    slow = f"trap 'sleep 1; exit' TERM; sleep 60 & touch {ready}; wait"
    wait = f"while [ ! -e {ready} ]; do sleep 0.1; done"
    stages = five_stages(tmp_path, f"({slow}) & {wait}; kill -INT $PPID; wait", "generate")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stages)
    run(tmp_path, stages)
    assert_each_ran_once(tmp_path)


def test_what_an_interrupted_command_left_is_removed(tmp_path):
    made = tmp_path / "made"
    script = f"mkdir {made} && touch {made}/file && [ -e {tmp_path}/again ] || exit 1"
    stages = [Stage("average", [shell(script, writes=[made])])]
    with pytest.raises(CommandFailed):
        run(tmp_path, stages, ["average"])
    (tmp_path / "again").touch()
    run(tmp_path, stages, ["average"])
    assert (made / "file").exists()


@pytest.mark.parametrize("finished", [True, False])
def test_other_options_are_refused(tmp_path, finished):
    """Of a stage that is done as of one that was begun; how many devices train may change."""
    output = tmp_path / "run"

    def train(rate: str, devices: str, *further: str) -> list[Stage]:
        words = ["sh", "-c", f"[ -e {tmp_path}/again ] || exit 1"]
        command = Command(words, {"--lr": rate}, scaling=[devices], further=further)
        return [Stage("train", [command], left=[output])]

    if finished:
        (tmp_path / "again").touch()
        run(output, train("0.1", "1"), ["train"])
    else:
        with pytest.raises(CommandFailed):
            run(output, train("0.1", "1"), ["train"])
    with pytest.raises(RecipeError, match=r"other options \(--lr 0.1, not 0.2\); repeat"):
        run(output, train("0.2", "1"), ["train"])
    with pytest.raises(RecipeError, match=r"other options \(without --dropout 0.5\); repeat"):
        run(output, train("0.1", "1", "--dropout", "0.5"), ["train"])
    (tmp_path / "again").touch()
    run(output, train("0.1", "2"), ["train"])


def test_a_stage_that_has_made_nothing_may_begin_with_other_options(tmp_path):
    for rate in ("0.1", "0.1", "0.2"):
        command = Command(["sh", "-c", "exit 1"], {"--lr": rate})
        with pytest.raises(CommandFailed):
            run(tmp_path, [Stage("train", [command])], ["train"])
    logs = [(tmp_path / "logs" / name).read_text() for name in ("train.before.log", "train.log")]
    assert [log.count("--lr 0.1") for log in logs] == [2, 0]
    assert [log.count("--lr 0.2") for log in logs] == [0, 1]


def test_paths_from_another_folder_are_explained(tmp_path, monkeypatch):
    stages = [Stage("prepare", [Command(["touch", "text"])])]
    monkeypatch.chdir(tmp_path)
    run(tmp_path / "run", stages, ["prepare"])
    monkeypatch.chdir("/")
    with pytest.raises(RecipeError, match=f"other options .from {tmp_path}, not /.;"):
        run(tmp_path / "run", stages, ["prepare"])
    moved = tmp_path.rename(f"{tmp_path}-moved")
    monkeypatch.chdir(moved)
    run(Path("run"), stages, ["prepare"])


def test_another_installation_continues_a_run(tmp_path, monkeypatch):
    def stages() -> list[Stage]:
        words = ["true", script("prepare.sh"), *convattn(), tmp_path / "data"]
        return [Stage("prepare", [Command([*map(str, words)], {"--user-dir": user_dir()})])]

    run(tmp_path, stages(), ["prepare"])
    monkeypatch.setattr(command, "_SCRIPTS", tmp_path / "site-packages" / "convattn")
    monkeypatch.setattr(command, "_PACKAGE", tmp_path / "site-packages" / "fairseq_convattn")
    run(tmp_path, stages(), ["prepare"])
    with pytest.raises(RecipeError, match="other options .command true scripts/prepare.sh"):
        run(tmp_path, [Stage("prepare", [Command(["true", "x/other/prepare.sh"])])], ["prepare"])


def test_a_linked_folder_is_the_folder(tmp_path, monkeypatch):
    stages = [Stage("prepare", [Command(["touch", "text"])])]
    project, disk = tmp_path / "a" / "project", tmp_path / "disk"
    project.mkdir(parents=True)
    disk.mkdir()
    (project / "runs").symlink_to(disk)
    monkeypatch.chdir(project)
    run(Path("runs", "x"), stages, ["prepare"])
    run(disk / "x", stages, ["prepare"])
    record = read_json(disk / "x" / "stages" / "prepare.json")
    assert (project / "runs" / "x" / record["directory"]).resolve() == project


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "release").mkdir()
    (tmp_path / "lock").touch()  # of another command
    with pytest.raises(FileExistsError, match="has files that are not of a run; choose another"):
        run(tmp_path, five_stages(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"release", "lock"}


def test_a_run_that_was_killed_in_its_first_write_can_be_repeated(tmp_path):
    for name in ("lock", "results.json.partial"):
        (tmp_path / name).touch()
    with locked(tmp_path, "results.json"):
        pass


def test_stages_have_an_order(tmp_path):
    stages = five_stages(tmp_path)
    with pytest.raises(RecipeError, match="the stage prepare has to be done first"):
        run(tmp_path, stages, ["train"])
    run(tmp_path, stages, ["prepare", "train"])
    with pytest.raises(RecipeError, match="the stage average has to be done first"):
        run(tmp_path, stages, ["generate"])
    run(tmp_path, stages)
    (tmp_path / "stages" / "train.json").unlink()
    with pytest.raises(RecipeError, match="average is done and train before it is not; remove"):
        run(tmp_path, stages)
    assert_each_ran_once(tmp_path)


def test_an_error_of_a_script_is_the_error_of_the_run(tmp_path):
    stages = [Stage("prepare", [shell("echo 'error: no train.en in DIR' >&2; exit 1")])]
    with pytest.raises(CommandFailed, match=r"^no train.en in DIR \(log: "):
        run(tmp_path, stages, ["prepare"])


def test_its_commands_find_the_package_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    find = "import importlib.util as i; print(i.find_spec('fairseq_convattn').origin)"
    script = f'cd {tmp_path}; python -S -c "{find}"; echo $PYTHONPATH'  # -S: no site-packages
    run(tmp_path, [Stage("prepare", [shell(script, stdout=tmp_path / "found")])], ["prepare"])
    package, path = (tmp_path / "found").read_text().splitlines()
    assert package == fairseq_convattn.__file__
    assert path == os.pathsep.join([str(ROOT), str(tmp_path / "own")])


def test_what_is_installed_does_not_hide_the_standard_library(tmp_path, monkeypatch):
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(ROOT)])
    monkeypatch.setenv("PYTHONPATH", "own")
    run(
        tmp_path,
        [Stage("prepare", [shell("echo $PYTHONPATH", stdout=tmp_path / "path")])],
        ["prepare"],
    )
    assert (tmp_path / "path").read_text() == "own\n"


def test_records_say_what_was_run_and_where(tmp_path):
    run(tmp_path, five_stages(tmp_path))
    record = Runner(tmp_path, five_stages(tmp_path)).records()["train"]
    assert record["commands"][0].endswith(f"> {tmp_path}/train.out")
    assert record["environment"]["versions"]["torch"]
    assert record["seconds"] >= 0 and record["begun"] <= record["finished"]
    assert os.path.isfile(tmp_path / record["log"])


def test_the_memory_of_a_stage_is_that_of_its_largest_command(tmp_path, monkeypatch):
    used = iter([7, 5])
    monkeypatch.setattr(runner, "run_command", lambda *command: next(used))
    run(tmp_path, [Stage("train", [shell("a"), shell("b")])], ["train"])
    assert Runner(tmp_path, [Stage("train", [])]).records()["train"]["memory"] == 7
