"""Commands that a run starts, the lock that they share with it, and how commands end."""

import fcntl
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairseq_convattn import child_processes, folder_lock
from fairseq_convattn.child_processes import exit_on_signals, running
from fairseq_convattn.command_lines import one_line_errors
from fairseq_convattn.folder_lock import locked


class Interrupted(subprocess.Popen):
    """A signal comes when the command runs, and before it is known to have been started."""

    started = None

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        Interrupted.started = self
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def signals():
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("place", ["lock", "settings.json.partial", "seed1/train.log", "logs"])
@pytest.mark.parametrize("what", ["file", "folder", None])
def test_no_run_writes_through_a_link(tmp_path, place, what):
    """As a folder that somebody else has packed may have; the folder may itself be elsewhere."""
    private, folder, link = tmp_path / "private", tmp_path / "run", tmp_path / "link"
    if what == "file":
        private.write_text("kept")
    elif what == "folder":
        private.mkdir()
    (folder / "seed1").mkdir(parents=True)
    link.symlink_to(folder)
    with locked(link, "seed1"):
        pass
    (folder / "lock").unlink()
    (folder / place).symlink_to(private)
    with pytest.raises(FileExistsError, match=f"{place} is a symbolic link"):
        with locked(folder, "seed1"):
            pass
    assert private.exists() == bool(what) and (what != "file" or private.read_text() == "kept")
    assert what != "folder" or not list(private.iterdir())


def test_no_run_writes_where_links_are_not_seen(tmp_path, unlistable):
    (tmp_path / "seed1" / "logs").mkdir(parents=True)
    unlistable(tmp_path / "seed1" / "logs")
    with pytest.raises(FileExistsError, match="logs cannot be listed.+another --output"):
        with locked(tmp_path, "seed1"):
            pass


@pytest.mark.usefixtures("signals")
def test_a_command_is_ended_by_a_signal_that_comes_while_it_is_started(monkeypatch):
    exit_on_signals()
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(SystemExit) as ended, running(["sleep", "300"]):
        pytest.fail("the signal is lost")
    assert ended.value.code == 128 + signal.SIGTERM
    assert Interrupted.started.returncode == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN  # a second one changes nothing


def test_a_command_runs_in_any_thread():
    def status() -> int:
        with running(["sh", "-c", "exit 3"]) as process:
            return process.wait()

    with ThreadPoolExecutor() as pool:
        assert pool.submit(status).result() == 3


def test_a_command_that_ignores_the_signal_is_killed(monkeypatch):
    monkeypatch.setattr(child_processes, "_GRACE", 0.1)
    command = ["bash", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]
    with pytest.raises(KeyboardInterrupt), running(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        raise KeyboardInterrupt
    assert process.returncode == -signal.SIGKILL


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_ends_all_but_what_nohup_started(ignored):
    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    exit_on_signals()
    assert (signal.getsignal(signal.SIGHUP) == signal.SIG_IGN) == ignored


def test_a_signal_after_the_command_has_ended_is_what_ends_the_run():
    with pytest.raises(KeyboardInterrupt), running(["true"]) as process:
        os.waitpid(process.pid, 0)
        raise KeyboardInterrupt


@pytest.fixture
def waits(monkeypatch):
    """How often the lock was asked for in vain."""
    times = []
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: times.append(seconds) or sleep(seconds))
    return times


def test_waits_for_nothing_where_nothing_is_left(tmp_path, waits):
    with locked(tmp_path):
        subprocess.run(["true"], close_fds=False, check=True)
    assert not waits


def test_says_what_it_does_not_wait_for(tmp_path, waits, capsys, monkeypatch):
    monkeypatch.setattr(folder_lock, "_SECONDS_TO_END", 0.2)
    with locked(tmp_path):
        left = subprocess.Popen(["sleep", "300"], close_fds=False)
    try:
        assert waits and f"{tmp_path} is still in use" in capsys.readouterr().err
        with pytest.raises(BlockingIOError, match="another run"), locked(tmp_path):
            pytest.fail("it is held")
    finally:
        left.kill()
        left.wait()
    with locked(tmp_path):
        pass


def test_file_systems_that_lock_only_what_may_be_written(tmp_path, monkeypatch):
    """As NFS does."""
    left = []
    monkeypatch.setattr(time, "sleep", lambda _: [(each.kill(), each.wait()) for each in left])
    flock = fcntl.flock

    def strict(file, operation):
        if not file.writable():
            raise OSError(9, "Bad file descriptor")
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", strict)
    with locked(tmp_path):
        left.append(subprocess.Popen(["sleep", "300"], close_fds=False))
    assert left[0].returncode == -signal.SIGKILL


def test_a_command_that_was_killed_is_said_to_be(tmp_path):
    command = ["bash", "-c", "echo fine; kill -KILL $$"]
    with pytest.raises(child_processes.CommandFailed, match="bash was killed by SIGKILL; its log"):
        child_processes.run(command, tmp_path / "log")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FileExistsError("out is there"), "out is there"),
        (FileNotFoundError(2, "no such file", b"a b"), "a b: no such file"),
        (OSError(18, "other device", "a", None, "b"), "a -> b: other device"),
        (OSError(9, "bad", 99), "99: bad"),
        (PermissionError(13, None, "a"), "[Errno 13] None: 'a'"),
        (ValueError(), "ValueError"),
        (ValueError("two\n\n  lines"), "two lines"),
        (ValueError("a\x1b[2Jb é"), r"a\x1b[2Jb é"),
    ],
)
def test_an_error_is_one_line(error, line, signals):
    with pytest.raises(SystemExit) as ended, one_line_errors(ValueError):
        raise error
    assert str(ended.value) == f"error: {line}"


def test_another_error_keeps_its_traceback(signals):
    with pytest.raises(KeyError), one_line_errors(ValueError):
        raise KeyError
