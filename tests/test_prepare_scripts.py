"""The preparation of public corpora, on small archives in the shape of the releases.

``Scripts.for_release`` copies the scripts and puts a small corpus's checksums and numbers in the
place of the release's, so that they take it for the whole release.
"""

import fcntl
import hashlib
import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from conftest import ROOT
from fairseq.data import Dictionary, data_utils

SPEC = importlib.util.spec_from_file_location(
    "extract_cnn_dm", ROOT / "scripts" / "extract_cnn_dm.py"
)
assert SPEC is not None and SPEC.loader is not None
extract_cnn_dm = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(extract_cnn_dm)

SPLITS = ("train", "valid", "test")
WIKITEXT = "wikitext-103-v1.zip"
GBW = "1-billion-word-language-modeling-benchmark-r13output"
TRAINING = "training-monolingual.tokenized.shuffled"
HELDOUT = "heldout-monolingual.tokenized.shuffled"


class Scripts:
    """A copy of the preparation scripts and what they leave in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder / "scripts"
        self.bin = folder / "bin"
        self.bin.mkdir()
        shutil.copytree(ROOT / "scripts", self.folder)

    def for_release(self, name: str, **replacements: object) -> None:
        """Replace what ``name=`` or ``[name]=`` is in a script, in the order it appears."""
        script = self.folder / f"prepare_{name}.sh"
        text = script.read_text(encoding="utf-8")
        for key, values in replacements.items():
            for value in values if isinstance(values, list) else [values]:
                pattern = rf"(^|[\[ (]){re.escape(key)}(\]?)=(?!<)\w+"
                text, count = re.subn(
                    pattern, rf"\g<1>{key}\g<2>=<{value}", text, count=1, flags=re.M
                )
                assert count == 1, f"{key} is not in {script.name}"
        script.write_text(text.replace("=<", "="), encoding="utf-8")

    def stand_in(self, command: str, text: str) -> None:
        (self.bin / command).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / command).chmod(0o755)

    def prepare(self, name: str, *arguments: object) -> subprocess.CompletedProcess:
        path = f"{self.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", str(self.folder / f"prepare_{name}.sh"), *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "2"},
            check=False,
        )


@pytest.fixture
def scripts(tmp_path):
    (tmp_path / "scripts_under_test").mkdir()
    return Scripts(tmp_path / "scripts_under_test")


class Mirror(ThreadingHTTPServer):
    """Serves a folder; ``cut`` ends the next answers early, without ranges it cannot resume."""

    def __init__(self, folder: Path, ranges: bool = True):
        super().__init__(("127.0.0.1", 0), MirrorHandler)
        self.folder, self.ranges = folder, ranges
        self.cut: list[int] = []
        self.requests: list[tuple[str, str | None]] = []
        self.address = f"http://127.0.0.1:{self.server_port}"


class MirrorHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, wanted = self.server, self.headers["Range"]
        server.requests.append((self.path[1:], wanted))
        file = server.folder / self.path[1:]
        if not file.is_file():
            return self.send_error(404)
        content = file.read_bytes()
        start = int(wanted[len("bytes=") : -1]) if wanted and server.ranges else 0
        if start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = start + server.cut.pop(0) if server.cut else len(content)
        self.wfile.write(content[start:end])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def mirror(tmp_path):
    server = Mirror(tmp_path / "source")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sentences(rng: random.Random, count: int) -> str:
    words = "the an <unk> = – @-@ bär 日本 U.S. rare".split()
    return "".join(" ".join(rng.choices(words, k=rng.randint(1, 9))) + "\n" for _ in range(count))


def tokens(text: str) -> int:
    return len(text.split()) + text.count("\n")


def binarised(prefix: Path, dictionary: Path) -> list[str]:
    """The sentences that fairseq-train would see, in its order."""
    words = Dictionary.load(str(dictionary))
    data = data_utils.load_indexed_dataset(str(prefix), words, "mmap")
    return [words.string(data[i]) for i in range(len(data))]


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def assert_refused(run: subprocess.CompletedProcess, *parts: str) -> None:
    assert run.returncode == 1, run.stdout + run.stderr
    last_line = run.stderr.splitlines()[-1]
    assert last_line.startswith("error: ")
    for part in parts:
        assert part in last_line


# WikiText-103


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


def test_wikitext103_resumes_and_is_what_fairseq_reads(scripts, wikitext, mirror, tmp_path):
    archive, output = tmp_path / "source" / WIKITEXT, tmp_path / "new" / "wikitext"
    scripts.for_release("wikitext103", **wikitext_numbers(wikitext, archive))
    arguments = ("wikitext103", "--mirror", mirror.address, "--output", f"{output}/")

    mirror.cut = [100]
    assert_refused(scripts.prepare(*arguments), f"cannot download {mirror.address}/{WIKITEXT}")
    work = output.with_name("wikitext.preparing")
    assert tree(work) == {"lock", "download", f"download/{WIKITEXT}.part"}

    scripts.stand_in("fairseq-preprocess", "echo out of memory; exit 1")
    run = scripts.prepare(*arguments)
    assert_refused(run, "fairseq-preprocess failed")
    assert "out of memory" in run.stderr
    assert mirror.requests == [(WIKITEXT, None), (WIKITEXT, "bytes=100-")]
    assert tree(work) == {"lock", "preprocess.log", "text", *(f"text/{x}" for x in SPLITS)}

    (scripts.bin / "fairseq-preprocess").unlink()
    written = (work / "text" / "train").stat().st_mtime_ns
    run = scripts.prepare(*arguments)
    assert run.returncode == 0, run.stderr
    assert len(mirror.requests) == 2
    assert (output / "text" / "train").stat().st_mtime_ns == written
    assert {path.name for path in output.iterdir()} == {"text", "bin"}
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


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("split", SPLITS)
def test_wikitext103_of_another_size_is_refused(scripts, wikitext, tmp_path, split, number):
    source = tmp_path / "source"
    numbers = wikitext_numbers(wikitext, source / WIKITEXT)
    right = numbers[split][number]
    numbers[split][number] += 1
    scripts.for_release("wikitext103", **numbers)
    run = scripts.prepare("wikitext103", "--source", source, "--output", tmp_path / "a" / "b")
    what = ("lines", "tokens")[number]
    assert_refused(run, f"{split} has {right} {what}, not {right + 1}")
    assert not (tmp_path / "a").exists()


def test_another_archive_is_refused(scripts, wikitext, mirror, tmp_path):
    source, output = tmp_path / "source", tmp_path / "out"
    run = scripts.prepare("wikitext103", "--source", source, "--output", output)
    assert_refused(run, f"{source / WIKITEXT} does not have the release's SHA-256")
    run = scripts.prepare("wikitext103", "--mirror", mirror.address, "--output", output)
    assert_refused(run, f"{mirror.address}/{WIKITEXT} does not have the release's SHA-256")
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
    assert_refused(scripts.prepare(*arguments), "there is no wiki.test.tokens")
    (source / "wikitext-103" / "wiki.train.tokens").unlink()
    assert_refused(scripts.prepare(*arguments), f"no wiki.train.tokens, no {WIKITEXT} in {source}")
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
    assert_refused(scripts.prepare(*arguments), f"out.preparing is a sample of {source}; remove it")
    (tmp_path / "other").mkdir()
    run = scripts.prepare("wikitext103", "--source", tmp_path / "other", *arguments[3:], "--sample")
    assert_refused(run, f"out.preparing is a sample of {source}; remove it")
    shutil.move(tmp_path / "out.preparing", output)
    (output / "bin").mkdir()
    assert_refused(scripts.prepare(*arguments), f"out is a sample of {source}; remove it")
    run = scripts.prepare(*arguments, "--sample")
    assert run.returncode == 0 and "is there already" in run.stdout
    (output / "sample").unlink()
    assert_refused(scripts.prepare(*arguments, "--sample"), "out is the whole release; remove it")


def test_corrupted_archive(scripts, wikitext, tmp_path):
    archive = tmp_path / "source" / WIKITEXT
    archive.write_bytes(archive.read_bytes()[:-100])
    arguments = ("--source", archive.parent, "--output", tmp_path / "out", "--sample")
    assert_refused(scripts.prepare("wikitext103", *arguments), f"{archive} cannot be unpacked")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "scripts_under_test"}


def test_two_runs_do_not_share_a_folder(scripts, wikitext, tmp_path):
    (tmp_path / "out.preparing").mkdir()
    with open(tmp_path / "out.preparing" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = scripts.prepare(
            "wikitext103", "--source", tmp_path / "source", "--output", tmp_path / "out"
        )
    assert_refused(run, f"another run is preparing {tmp_path / 'out'}")
    assert (tmp_path / "out.preparing").is_dir()


@pytest.mark.parametrize("name", ["wikitext103", "gbw", "cnn_dm", "multi30k"])
def test_options(scripts, tmp_path, name):
    run = scripts.prepare(name, "--help")
    assert run.returncode == 0
    for option in ("--source DIR", "--mirror URL", "--output DIR", "--sample"):
        assert option in run.stdout
    assert scripts.prepare(name, "--nonsense").returncode == 2
    run = scripts.prepare(name, "--source", tmp_path / "nowhere")
    assert_refused(run, f"--source {tmp_path / 'nowhere'} is no folder")
    run = scripts.prepare(name, "--source", tmp_path, "--mirror", "http://127.0.0.1:1")
    assert_refused(run, "not both")
    run = scripts.prepare(name, "--source", tmp_path, "--output", tmp_path)
    assert_refused(run, "choose another folder")
    run = scripts.prepare(name, "--source", tmp_path, "--output", tmp_path / "new" / "out")
    assert_refused(run, f" in {tmp_path}")
    assert {path.name for path in tmp_path.iterdir()} == {"scripts_under_test"}


# Multi30k, which has no checksums


def test_a_download_of_another_size_is_discarded(scripts, mirror, tmp_path):
    mirror.folder.mkdir()
    (mirror.folder / "train.lc.norm.tok.en").write_text("<html>\nNot found\n")
    address = f"{mirror.address}/"
    run = scripts.prepare("multi30k", "--mirror", address, "--output", tmp_path / "new" / "out")
    assert_refused(run, "train.en has 2 lines, not 29000")
    assert f"downloading {mirror.address}/train.lc.norm.tok.en" in run.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"source", "scripts_under_test"}


# One Billion Word


@pytest.fixture
def gbw(tmp_path) -> dict[str, list[str]]:
    """The release's folders in tmp_path/source; their shards by kind."""
    rng = random.Random(2)
    shards = {
        TRAINING: [f"news.en-{i:05}-of-00100" for i in range(100)],
        HELDOUT: [f"news.en.heldout-{i:05}-of-00050" for i in range(3)],
    }
    for folder, names in shards.items():
        (tmp_path / "source" / GBW / folder).mkdir(parents=True)
        for i, name in enumerate(names):
            rare = " thrice" * (i in (1, 2, 3)) + " twice" * (i in (1, 99))
            text = f"shard {folder[0]}{i}{rare} . \n" + sentences(rng, 2 + i % 3)
            (tmp_path / "source" / GBW / folder / name).write_text(text, encoding="utf-8")
    return shards


def gbw_texts(folder: Path) -> dict[str, str]:
    def joined(*names: str) -> str:
        return "".join((folder / name).read_text(encoding="utf-8") for name in names)

    return {
        "train": joined(*(f"{TRAINING}/news.en-{i:05}-of-00100" for i in range(1, 100))),
        "valid": joined(f"{HELDOUT}/news.en.heldout-00001-of-00050"),
        "test": joined(f"{HELDOUT}/news.en.heldout-00000-of-00050"),
    }


def test_gbw(scripts, gbw, tmp_path):
    source, output = tmp_path / "source", tmp_path / "out"
    texts = gbw_texts(source / GBW)
    with tarfile.open(source / f"{GBW}.tar.gz", "w:gz") as archive:
        for folder in (HELDOUT, TRAINING):  # the shards in no order
            for name in reversed(gbw[folder]):
                archive.add(source / GBW / folder / name, f"{GBW}/{folder}/{name}")
    shutil.rmtree(source / GBW)
    numbers = {split: [text.count("\n"), tokens(text)] for split, text in texts.items()}
    numbers["valid"].insert(0, "00001")  # the shard's number comes first in the script
    numbers["test"].insert(0, "00000")
    scripts.for_release("gbw", sum=sha256(source / f"{GBW}.tar.gz"), **numbers)
    run = scripts.prepare("gbw", "--source", source, "--output", output)
    assert run.returncode == 0, run.stdout + run.stderr
    assert {path.name for path in output.iterdir()} == {"text", "bin"}
    assert {path.name for path in source.iterdir()} == {f"{GBW}.tar.gz"}
    dictionary = (output / "bin" / "dict.txt").read_text(encoding="utf-8")
    words = {line.split()[0] for line in dictionary.splitlines()}
    assert "thrice" in words and "twice" not in words
    for split, text in texts.items():
        assert (output / "text" / split).read_text(encoding="utf-8") == text
        expected = [
            " ".join(word if word in words else "<unk>" for word in line.split())
            for line in text.splitlines()
        ]
        assert binarised(output / "bin" / split, output / "bin" / "dict.txt") == expected


def test_gbw_needs_every_shard(scripts, gbw, tmp_path):
    source = tmp_path / "source"
    arguments = ("gbw", "--source", source, "--output", tmp_path / "out")
    (source / GBW / TRAINING / "news.en-00042-of-00100").unlink()
    assert_refused(scripts.prepare(*arguments), "no news.en-00042-of-00100 in ")
    scripts.stand_in("fairseq-preprocess", "exit 1")
    run = scripts.prepare(*arguments, "--sample")
    assert_refused(run, "fairseq-preprocess failed")
    text = (tmp_path / "out.preparing" / "text" / "train").read_text(encoding="utf-8")
    numbers = [int(number) for number in re.findall(r"^shard t(\d+)", text, re.MULTILINE)]
    assert numbers == [i for i in range(1, 100) if i != 42]
    shutil.rmtree(tmp_path / "out.preparing")
    (source / GBW / HELDOUT / "news.en.heldout-00001-of-00050").unlink()
    run = scripts.prepare(*arguments, "--sample")
    assert_refused(run, "no news.en.heldout-00001-of-00050 in ")
    shutil.rmtree(source / GBW / HELDOUT)
    assert_refused(scripts.prepare(*arguments), f"no {HELDOUT}, no {GBW}.tar.gz in {source}")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "scripts_under_test"}


def test_gbw_takes_each_folder_where_it_is(scripts, gbw, tmp_path):
    """Training and heldout shards in different places, the latter then in the archive alone."""
    source = tmp_path / "source"
    texts = gbw_texts(source / GBW)
    scripts.stand_in("fairseq-preprocess", "exit 1")
    arguments = ("gbw", "--source", source, "--output", tmp_path / "out", "--sample")

    def prepared() -> dict[str, str]:
        assert_refused(scripts.prepare(*arguments), "fairseq-preprocess failed")
        folder = tmp_path / "out.preparing" / "text"
        found = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
        shutil.rmtree(tmp_path / "out.preparing")
        return found

    with tarfile.open(source / f"{GBW}.tar.gz", "w:gz") as archive:
        archive.add(source / GBW, GBW)
    (source / GBW / TRAINING).rename(source / TRAINING)
    assert prepared() == texts
    shutil.rmtree(source / GBW)
    assert prepared() == texts


# CNN/DailyMail

URL = "http://web.archive.org/web/2015id_/http://www.example.org/{}.html"


def story_name(url: str) -> str:
    return hashlib.sha1(url.encode()).hexdigest() + ".story"


def story(article: str, *highlights: str) -> str:
    return "\n\n".join((article, *(f"@highlight\n\n{line}" for line in highlights))) + "\n"


def test_extracts_article_and_summary():
    text = story(
        "By . Jane Doe\n\n(CNN)  --  First\u00a0line\tof ‘text.’\r\nA caption\n\n He said “no” .  ",
        "Summaries lack stops",
        "Is this one?",
        "two\nlines",
    )
    assert extract_cnn_dm.article_and_summary(text) == (
        "By . Jane Doe. (CNN) -- First line of ‘text.’ A caption. He said “no” .",
        "Summaries lack stops. <q> Is this one? <q> two. <q> lines.",
    )
    assert extract_cnn_dm.article_and_summary(story("", "Only a highlight.")) == (
        "",
        "Only a highlight.",
    )
    assert extract_cnn_dm.article_and_summary("No highlights.\n@highlight\n\n") == (
        "No highlights.",
        "",
    )


def test_extraction_names_what_is_missing_and_keeps_what_is_there(tmp_path, capsys):
    stories, urls = tmp_path / "stories", tmp_path / "urls.txt"
    stories.mkdir()
    urls.write_text("".join(URL.format(i) + "\n" for i in (2, 1, 3)))
    (stories / story_name(URL.format(1))).write_text(story("One", "1"))
    arguments = ["--stories", str(stories), "--urls", str(urls), "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match=f"2 of the stories .* first {story_name(URL.format(2))}"):
        extract_cnn_dm.main(arguments)
    (stories / story_name(URL.format(2))).write_text(story("Two", "2"))
    (stories / story_name(URL.format(3))).write_bytes(b"\xff" + story("Three", "3").encode())
    with pytest.raises(SystemExit, match="utf-8"):
        extract_cnn_dm.main(arguments)
    assert {path.name for path in tmp_path.iterdir()} == {"stories", "urls.txt"}
    (stories / story_name(URL.format(3))).write_text(story("", "3"))
    extract_cnn_dm.main(arguments)
    assert (tmp_path / "out.source").read_text() == "Two.\nOne.\n"
    assert (tmp_path / "out.target").read_text() == "2.\n1.\n"
    assert "2 pairs of 3 stories; 1 lack" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="out.source is there already"):
        extract_cnn_dm.main(arguments)


@pytest.fixture
def cnn_dm(tmp_path) -> dict[str, list[tuple[str, str]]]:
    """The release's files in tmp_path/source; its pairs by split."""
    rng = random.Random(3)

    def words(count: int) -> str:
        letters = "abcdefghijklmnopqrstuvwxyz"
        return " ".join("".join(rng.choices(letters, k=8)) for _ in range(count))

    source = tmp_path / "source"
    pairs, stories = {}, {}
    for list_name, count in (("train", 30), ("val", 4), ("test", 5)):
        urls = [URL.format(f"{list_name}/{i}") for i in range(count)]
        rng.shuffle(urls)
        split = "valid" if list_name == "val" else list_name
        pairs[split] = []
        for number, url in enumerate(urls):
            article = "" if (split, number) == ("train", 3) else words(500) + "."
            highlights = [f"{words(4)}." for _ in range(3)]
            stories[url] = story(article, *highlights)
            if article:
                pairs[split].append((article, " <q> ".join(highlights)))
        (tmp_path / "source" / "url_lists").mkdir(parents=True, exist_ok=True)
        (source / "url_lists" / f"all_{list_name}.txt").write_text("\n".join(urls) + "\n")
    for i, (url, text) in enumerate(stories.items()):
        folder = source / ("cnn", "dailymail")[i % 2] / "stories"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / story_name(url)).write_text(text)
    for publisher in ("cnn", "dailymail"):
        with tarfile.open(source / f"{publisher}_stories.tgz", "w:gz") as archive:
            archive.add(source / publisher, publisher)
        shutil.rmtree(source / publisher)
    return pairs


def cnn_dm_numbers(source: Path) -> dict[str, object]:
    archives = [source / f"{publisher}_stories.tgz" for publisher in ("cnn", "dailymail")]
    lists = [source / "url_lists" / f"all_{name}.txt" for name in ("train", "val", "test")]
    return {path.name: sha256(path) for path in (*archives, *lists)}


def test_cnn_dm(scripts, cnn_dm, tmp_path):
    source, output = tmp_path / "source", tmp_path / "out"
    numbers = {
        **cnn_dm_numbers(source),
        "train": ["all_train", 30, 29],  # list, stories and pairs
        "valid": ["all_val", 4, 4],
        "test": ["all_test", 5, 5],
    }
    scripts.for_release("cnn_dm", **numbers)
    run = scripts.prepare("cnn_dm", "--source", source, "--output", output)
    assert run.returncode == 0, run.stdout + run.stderr
    assert {path.name for path in output.iterdir()} == {"text", "bpe", "pieces", "bin"}
    dictionaries = [output / "bin" / f"dict.{side}.txt" for side in ("source", "target")]
    assert dictionaries[0].read_bytes() == dictionaries[1].read_bytes()
    assert len(Dictionary.load(str(dictionaries[0]))) == 30_001  # with <pad>
    longest = 0
    for split, pairs in cnn_dm.items():
        for side, texts in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
            lines = (output / "text" / f"{split}.{side}").read_text(encoding="utf-8")
            assert lines.splitlines() == list(texts)
            prefix = output / "bin" / f"{split}.source-target.{side}"
            found = [line.split() for line in binarised(prefix, dictionaries[0])]
            decoded = ["".join(pieces).replace("\u2581", " ")[1:] for pieces in found]
            if side == "target":
                assert decoded == list(texts)
                assert all(pieces.count("\u2581<q>") == 2 for pieces in found)
            else:
                assert all(map(str.startswith, texts, decoded))
                longest = max(longest, *map(len, found))
    assert longest == 400


def test_cnn_dm_refuses_what_is_not_the_release(scripts, cnn_dm, tmp_path):
    source, output = tmp_path / "source", tmp_path / "out"
    numbers = cnn_dm_numbers(source)
    arguments = ("cnn_dm", "--source", source, "--output", output)
    assert_refused(scripts.prepare(*arguments), "cnn_stories.tgz does not have the release's")
    scripts.for_release("cnn_dm", **numbers)
    run = scripts.prepare(*arguments)
    assert_refused(run, "all_train.txt has 30 lines, not 287227")
    scripts.for_release("cnn_dm", train=["all_train", 30])
    assert_refused(scripts.prepare(*arguments), "train.source has 29 lines, not 287113")
    (source / "url_lists" / "all_val.txt").rename(source / "val.txt")
    assert_refused(scripts.prepare(*arguments), f"no all_val.txt in {source}")
    (source / "cnn_stories.tgz").unlink()
    run = scripts.prepare(*arguments)
    assert_refused(run, f"no cnn/stories, no cnn_stories.tgz in {source}")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "scripts_under_test"}


def test_cnn_dm_keeps_the_downloads_that_are_right(scripts, cnn_dm, mirror, tmp_path):
    sums = cnn_dm_numbers(mirror.folder)
    scripts.for_release("cnn_dm", **{"cnn_stories.tgz": sums["cnn_stories.tgz"]})
    arguments = ("cnn_dm", "--mirror", mirror.address, "--output", tmp_path / "out")
    for _ in range(2):
        run = scripts.prepare(*arguments)
        assert_refused(run, f"{mirror.address}/dailymail_stories.tgz does not have the release's")
        assert tree(tmp_path / "out.preparing" / "download") == {"cnn_stories.tgz"}
    names = [name for name, _ in mirror.requests]
    assert names == ["cnn_stories.tgz", "dailymail_stories.tgz", "dailymail_stories.tgz"]


def test_cnn_dm_from_folders(scripts, cnn_dm, tmp_path):
    source, output = tmp_path / "source", tmp_path / "out"
    with tarfile.open(source / "dailymail_stories.tgz") as archive:
        archive.extractall(source, filter="data")
    (source / "dailymail_stories.tgz").unlink()
    scripts.stand_in("fairseq-preprocess", "exit 1")
    arguments = ("cnn_dm", "--source", source, "--output", output, "--sample")
    run = scripts.prepare(*arguments)
    assert_refused(run, "fairseq-preprocess failed")
    work = output.with_name("out.preparing")
    assert {path.name for path in work.iterdir() if path.is_dir()} == {"text", "bpe", "pieces"}
    shutil.rmtree(work)
    next((source / "dailymail" / "stories").iterdir()).unlink()
    run = scripts.prepare(*arguments)
    assert_refused(run, "set cannot be extracted")
    assert "1 of the stories" in run.stderr
    assert not work.exists()


def test_binarised_data_that_lack_sentences_are_refused(scripts, wikitext, tmp_path):
    index = 18 * "x" + r"\143" + 7 * r"\000"  # 99
    scripts.stand_in("fairseq-preprocess", f"printf '{index}' > \"$9/train.idx\"")
    source, output = tmp_path / "source", tmp_path / "out"
    scripts.for_release("wikitext103", **wikitext_numbers(wikitext, source / WIKITEXT))
    run = scripts.prepare("wikitext103", "--source", source, "--output", output)
    assert_refused(run, "train has 99 sentences for the 100 lines of train")
    assert not output.exists() and not (tmp_path / "out.preparing" / "bin").exists()
