"""WikiText-103, and what all preparation scripts share."""

import fcntl
import functools
import os
import random
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from release_scripts import SCRIPTS, assert_refused, binarised, sentences, sha256, tokens, tree

NAMES = {path.stem.removeprefix("prepare_") for path in SCRIPTS.glob("prepare_*.sh")} - {"common"}
SPLITS = ("train", "valid", "test")
WIKITEXT = "wikitext-103-v1.zip"


@pytest.fixture
def wikitext(tmp_path) -> dict[str, str]:
    """The archive in tmp_path/source; its texts by split."""
    rng = random.Random(1)
    texts = {split: "\n" + sentences(rng, n) for split, n in zip(SPLITS, (99, 9, 7), strict=True)}
    (tmp_path / "source").mkdir()
    with zipfile.ZipFile(tmp_path / "source" / WIKITEXT, "w") as archive:
        for split, text in texts.items():
            archive.writestr(f"wikitext-103/wiki.{split}.tokens", text)
    return texts


def wikitext_numbers(texts: dict[str, str], archive: Path) -> dict[str, object]:
    numbers = {split: [text.count("\n"), tokens(text)] for split, text in texts.items()}
    return {"sum": sha256(archive), **numbers}


@pytest.mark.parametrize("given", [("--source", "--sample"), ("--output",)])
def test_an_option_without_its_value_is_refused(scripts, given):
    run = scripts.prepare("wikitext103", *given)
    assert (run.returncode, run.stderr) == (2, f"error: {given[0]} needs a value\n")


def test_nothing_in_the_working_directory_is_imported(scripts, wikitext, tmp_path, monkeypatch):
    """It may be the corpus's folder, which somebody else has packed."""
    source = tmp_path / "source"
    (source / "zipfile.py").write_text("open('imported', 'w').close()")
    scripts.for_release("wikitext103", **wikitext_numbers(wikitext, source / WIKITEXT))
    scripts.stand_in("fairseq-preprocess", "echo the end is reached; exit 1")
    monkeypatch.chdir(source)
    run = scripts.prepare("wikitext103", "--source", ".", "--output", tmp_path / "new")
    assert "the end is reached" in run.stderr and not (source / "imported").exists()


@pytest.mark.parametrize("link", ["new.preparing", "new.preparing/lock"])
def test_nothing_is_locked_through_links_that_somebody_left(scripts, tmp_path, link):
    private = tmp_path / "private" / "lock"
    private.parent.mkdir()
    private.write_text("kept")
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(private.parent if link == "new.preparing" else private)
    (tmp_path / "source").mkdir()
    for split in SPLITS:
        (tmp_path / "source" / f"wiki.{split}.tokens").write_text("\n a\n")
    arguments = ("--source", tmp_path / "source", "--output", tmp_path / "new", "--sample")
    run = scripts.prepare("wikitext103", *arguments)
    assert_refused(run, f"{tmp_path / 'new.preparing'} has symbolic links")
    assert private.read_text() == "kept"


def test_nothing_is_written_through_links_that_somebody_left(scripts, tmp_path):
    source, work = tmp_path / "source", tmp_path / "new.preparing"
    source.mkdir()
    (work / "text").mkdir(parents=True)
    (work / "text" / "train").symlink_to(tmp_path / "private")
    arguments = ("wikitext103", "--source", source, "--output", tmp_path / "new", "--sample")
    for split in SPLITS:
        (source / f"wiki.{split}.tokens").write_text("\n a\n")
    scripts.stand_in("fairseq-preprocess", "exit 1")
    assert_refused(scripts.prepare(*arguments), f"{work} has symbolic links")
    scripts.stand_in("find", "exit 1")
    assert_refused(scripts.prepare(*arguments), f"{work} cannot be searched for symbolic links")
    assert not (tmp_path / "private").exists()


@pytest.mark.slow
def test_wikitext103_resumes_and_is_what_fairseq_reads(scripts, wikitext, mirror, tmp_path):
    archive, output = tmp_path / "source" / WIKITEXT, tmp_path / "new" / "wikitext"
    scripts.for_release("wikitext103", **wikitext_numbers(wikitext, archive))
    arguments = ("wikitext103", "--mirror", mirror.address, "--output", f"{output}/")

    mirror.cut = [100]
    assert_refused(scripts.prepare(*arguments), f"cannot download {mirror.address}/{WIKITEXT}")
    work = output.with_name("wikitext.preparing")
    assert tree(work) == {"lock", "origin", "download", f"download/{WIKITEXT}.part"}

    scripts.stand_in("fairseq-preprocess", "echo out of memory; exit 1")
    run = scripts.prepare(*arguments)
    assert_refused(run, "fairseq-preprocess failed")
    assert "out of memory" in run.stderr
    assert mirror.requests == [(WIKITEXT, None), (WIKITEXT, "bytes=100-")]
    assert tree(work) == {
        "lock",
        "origin",
        "preprocess.log",
        "text",
        *(f"text/{x}" for x in SPLITS),
    }

    (scripts.bin / "fairseq-preprocess").unlink()
    written = (work / "text" / "train").stat().st_mtime_ns
    run = scripts.prepare(*arguments)
    assert run.returncode == 0, run.stderr
    assert len(mirror.requests) == 2
    assert (output / "text" / "train").stat().st_mtime_ns == written
    assert {path.name for path in output.iterdir()} == {"text", "bin", "origin"}
    assert {path.name for path in output.parent.iterdir()} == {"wikitext"}
    for split, text in wikitext.items():
        assert (output / "text" / split).read_text(encoding="utf-8") == text
        found = binarised(output / "bin" / split, output / "bin" / "dict.txt")
        assert found == text.splitlines()
    assert "16 types" in run.stdout  # 10 words, 2 to make it a multiple of 8
    assert "<unk>" not in (output / "bin" / "dict.txt").read_text(encoding="utf-8")

    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    run = scripts.prepare(*arguments)
    assert run.returncode == 0 and "is there already" in run.stdout
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before
    assert len(mirror.requests) == 2


@pytest.mark.parametrize(("split", "number"), [("train", 0), ("test", 1)])
def test_wikitext103_of_another_size_is_refused(scripts, wikitext, tmp_path, split, number):
    source = tmp_path / "source"
    numbers = wikitext_numbers(wikitext, source / WIKITEXT)
    right = numbers[split][number]
    numbers[split][number] += 1
    scripts.for_release("wikitext103", **numbers)
    run = scripts.prepare("wikitext103", "--source", source, "--output", tmp_path / "new" / "a")
    what = ("lines", "tokens")[number]
    assert_refused(run, f"{split} has {right} {what}, not {right + 1}")
    assert not list((tmp_path / "new").iterdir())


def test_another_archive_is_refused(scripts, wikitext, mirror, tmp_path):
    source, output = tmp_path / "source", tmp_path / "out"
    run = scripts.prepare("wikitext103", "--source", source, "--output", output)
    assert_refused(run, f"{source / WIKITEXT} does not have the release's checksum")
    run = scripts.prepare("wikitext103", "--mirror", mirror.address, "--output", output)
    assert_refused(run, f"{mirror.address}/{WIKITEXT} does not have the release's checksum")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "scripts_under_test"}
    assert len(mirror.requests) == 1


def test_unpacked_files_serve_too_and_none_may_be_missing(scripts, wikitext, tmp_path):
    source = tmp_path / "source"
    numbers = wikitext_numbers(wikitext, source / WIKITEXT)
    scripts.for_release("wikitext103", **numbers)
    scripts.stand_in("fairseq-preprocess", "exit 1")
    arguments = ("wikitext103", "--source", source, "--output", tmp_path / "out")
    with zipfile.ZipFile(source / WIKITEXT) as archive:
        archive.extractall(source)
    (source / WIKITEXT).unlink()
    assert_refused(scripts.prepare(*arguments), "fairseq-preprocess failed")
    shutil.rmtree(tmp_path / "out.preparing")
    (source / "wikitext-103" / "wiki.test.tokens").unlink()
    assert_refused(scripts.prepare(*arguments), f"no {WIKITEXT} in {source}")
    (source / "wikitext-103" / "wiki.train.tokens").unlink()
    run = scripts.prepare(*arguments)
    assert_refused(run, "no wiki.train.tokens, ", f", no {WIKITEXT} in {source}")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "scripts_under_test"}


def test_download_where_the_server_cannot_continue(scripts, wikitext, mirror, tmp_path):
    scripts.for_release("wikitext103", **wikitext_numbers(wikitext, mirror.folder / WIKITEXT))
    scripts.stand_in("fairseq-preprocess", "exit 1")
    arguments = ("wikitext103", "--mirror", mirror.address, "--output", tmp_path / "out")
    mirror.ranges = False
    mirror.cut = [100]
    assert_refused(scripts.prepare(*arguments), "cannot download")
    assert_refused(scripts.prepare(*arguments), "fairseq-preprocess failed")
    assert [range_ for _, range_ in mirror.requests] == [None, "bytes=100-", None]


def test_a_whole_download_is_not_fetched_again(scripts, wikitext, mirror, tmp_path):
    """The run was killed after its last byte; what it had begun besides is begun again."""
    scripts.for_release("wikitext103", **wikitext_numbers(wikitext, mirror.folder / WIKITEXT))
    scripts.stand_in("fairseq-preprocess", "exit 1")
    download = tmp_path / "out.preparing" / "download"
    download.mkdir(parents=True)
    (tmp_path / "out.preparing" / "text.partial").mkdir()
    shutil.copy(mirror.folder / WIKITEXT, download / f"{WIKITEXT}.part")
    run = scripts.prepare("wikitext103", "--mirror", mirror.address, "--output", tmp_path / "out")
    assert_refused(run, "fairseq-preprocess failed")
    assert len(mirror.requests) == 1


def test_a_sample_is_shown_to_be_one_and_is_not_continued_as_the_release(
    scripts, wikitext, tmp_path
):
    source, output = tmp_path / "source", tmp_path / "out"
    scripts.stand_in("fairseq-preprocess", "exit 1")
    arguments = ("wikitext103", "--source", source, "--output", output)
    run = scripts.prepare(*arguments, "--sample")
    assert_refused(run, "fairseq-preprocess failed")
    assert "note: train has 100 lines, not 1801350" in run.stdout
    assert_refused(scripts.prepare(*arguments), "out.preparing is a sample of ../source; remove it")
    (tmp_path / "other").mkdir()
    run = scripts.prepare("wikitext103", "--source", tmp_path / "other", *arguments[3:], "--sample")
    assert_refused(run, "out.preparing is a sample of ../source; remove it")
    shutil.move(tmp_path / "out.preparing", output)
    (output / "bin").mkdir()
    assert_refused(scripts.prepare(*arguments), "out is a sample of ../source; remove it")
    for spelled in (source, f"{source}/", os.path.relpath(source)):
        run = scripts.prepare("wikitext103", "--source", spelled, *arguments[3:], "--sample")
        assert run.returncode == 0 and "is there already" in run.stdout
    (output / "origin").write_text("the whole release")
    assert_refused(scripts.prepare(*arguments, "--sample"), "out is the whole release; remove it")


@pytest.mark.parametrize(
    ("corpus", "before", "now"),
    [
        ("multi30k", ", --target de", ("--target", "fr")),
        ("iwslt14", "", ("--low",)),
        ("samsum", ", --pieces 8000", ("--pieces", "99")),
    ],
)
def test_data_of_other_options_are_not_taken_for_these(scripts, tmp_path, corpus, before, now):
    output = tmp_path / "out"
    arguments = (corpus, "--output", output)
    (output / "bin").mkdir(parents=True)
    (output / "origin").write_text(f"the whole release{before}\n")
    assert scripts.prepare(*arguments).returncode == 0
    message = f"out is the whole release{before}; remove it"
    assert_refused(scripts.prepare(*arguments, *now), message)
    shutil.move(output, tmp_path / "out.preparing")
    (tmp_path / "out.preparing" / "bin").rmdir()
    assert_refused(scripts.prepare(*arguments, *now), "out.preparing is the whole release")


def test_two_runs_do_not_share_a_folder(scripts, wikitext, tmp_path):
    (tmp_path / "out.preparing").mkdir()
    (tmp_path / "out.preparing" / "link").symlink_to("text")  # the other run may unpack one
    with open(tmp_path / "out.preparing" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = scripts.prepare(
            "wikitext103", "--source", tmp_path / "source", "--output", tmp_path / "out"
        )
    assert_refused(run, f"another run is preparing {tmp_path / 'out'}")
    assert (tmp_path / "out.preparing").is_dir()


@pytest.mark.parametrize("name", sorted(NAMES))
def test_help_depends_on_nothing(tmp_path, name):
    """Neither on an environment nor on what is prepared already."""
    for output in (f"data/{name}", f"data/{name}.preparing"):
        (tmp_path / output / "bin").mkdir(parents=True)
        (tmp_path / output / "tsv").mkdir()
        (tmp_path / output / "tsv" / "settings").write_text("of another model")
    run = subprocess.run(
        ["bash", SCRIPTS / f"prepare_{name}.sh", "--help"],
        cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout.startswith(f"usage: bash scripts/prepare_{name}.sh ")
    for option in ("--source DIR", "--output DIR", "--sample"):
        assert option in run.stdout


def test_options_that_are_unknown_or_contradict_each_other(scripts, tmp_path):
    prepare = functools.partial(scripts.prepare, "wikitext103")
    assert prepare("--nonsense").returncode == 2
    run = prepare("--source", tmp_path / "nowhere")
    assert_refused(run, f"--source {tmp_path / 'nowhere'} is not a folder")
    run = prepare("--source", tmp_path, "--mirror", "http://127.0.0.1:1")
    assert_refused(run, "not both")
    assert_refused(prepare("--source", tmp_path, "--output", tmp_path), "choose another folder")
    for name in ("Smith, J", "10:30"):
        run = prepare("--source", tmp_path, "--output", tmp_path / name)
        assert_refused(run, f"{name}: fairseq splits paths at ',' and ':'")
    run = prepare("--source", tmp_path, "--output", tmp_path / "new" / "out")
    assert_refused(run, f" in {tmp_path}")
    assert {path.name for path in tmp_path.iterdir()} == {"scripts_under_test"}


def test_binarised_data_that_lack_sentences_are_refused(scripts, wikitext, tmp_path):
    index = 18 * "x" + r"\143" + 7 * r"\000"  # 99
    scripts.stand_in("fairseq-preprocess", f"printf '{index}' > \"$9/train.idx\"")
    source, output = tmp_path / "source", tmp_path / "out"
    scripts.for_release("wikitext103", **wikitext_numbers(wikitext, source / WIKITEXT))
    run = scripts.prepare("wikitext103", "--source", source, "--output", output)
    assert_refused(run, "train has 99 sentences for the 100 lines of train")
    assert not output.exists() and not (tmp_path / "out.preparing" / "bin").exists()
