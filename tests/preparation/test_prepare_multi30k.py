"""The real corpus, through the preparation script and the command lines."""

import gzip
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, generate, train
from release_scripts import assert_refused, sentences, sha256

pytest.importorskip("subword_nmt")


def prepare(*arguments) -> subprocess.CompletedProcess:
    environment = {**os.environ}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / "prepare_multi30k.sh"), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.ci
def test_prepares_trains_and_translates(shared, tmp_path):
    folder = tmp_path / "multi30k"
    run = prepare("--source", shared / "data" / "multi30k", "--output", folder)
    assert run.returncode == 0, run.stderr
    assert {path.name for path in folder.iterdir()} == {"bin", "bpe", "text", "sha256sums"}
    assert "is there already" in prepare("--output", folder).stdout
    text = (folder / "text" / "test_2016_flickr.en").read_text(encoding="utf-8").splitlines()
    assert len(text) == 1000
    train(
        folder / "bin",
        tmp_path / "checkpoints",
        *("--arch", "dynamic_conv_tiny", "--share-all-embeddings", "--max-update", "2"),
        *("--max-tokens", "1000", "--max-valid-steps", "1"),
    )
    hypotheses = generate(
        folder / "bin",
        tmp_path / "checkpoints" / "checkpoint_last.pt",
        *("--beam", "1", "--max-len-b", "3", "--remove-bpe", "--max-tokens", "4000"),
    )
    assert sorted(hypotheses) == list(range(1000))


def test_says_what_is_missing(tmp_path):
    run = prepare("--source", tmp_path / "nowhere", "--output", tmp_path / "out")
    assert run.returncode == 1 and "is no folder" in run.stderr
    run = prepare("--source", tmp_path, "--output", tmp_path / "out")
    assert run.returncode == 1 and f"no train.en in {tmp_path}" in run.stderr
    with gzip.open(tmp_path / "train.en.gz", "wt") as file:
        file.write("a\nb\n")
    run = prepare("--source", tmp_path, "--output", tmp_path / "out")
    assert run.returncode == 1 and "train.en has 2 lines, not 29000" in run.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"train.en.gz"}
    content = (tmp_path / "train.en.gz").read_bytes()
    (tmp_path / "train.en.gz").write_bytes(content[:-4])
    run = prepare("--source", tmp_path, "--output", tmp_path / "out")
    assert run.returncode == 1 and f"error: {tmp_path}/train.en.gz cannot be read" in run.stderr
    run = prepare("--source", tmp_path, "--output", tmp_path)
    assert run.returncode == 1 and "choose another folder" in run.stderr


def test_text_with_capitals_is_not_the_releases(scripts, tmp_path):
    (tmp_path / "source").mkdir()
    for split in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
        for language in ("en", "de"):
            (tmp_path / "source" / f"{split}.{language}").write_text("A dog .\n")
    scripts.for_release("multi30k", train=1, val=1, test_2016_flickr=1, test_2017_flickr=1)
    arguments = ("multi30k", "--source", tmp_path / "source", "--output", tmp_path / "out")
    assert_refused(scripts.prepare(*arguments), "train.en has capitals: the release's lower-cased")


def test_a_download_of_another_size_is_discarded(scripts, mirror, tmp_path):
    mirror.folder.mkdir()
    (mirror.folder / "train.lc.norm.tok.en").write_text("<html>\nNot found\n")
    address = f"{mirror.address}/"
    run = scripts.prepare("multi30k", "--mirror", address, "--output", tmp_path / "new" / "out")
    assert_refused(run, "train.en has 2 lines, not 29000")
    assert f"downloading {mirror.address}/train.lc.norm.tok.en" in run.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"source", "scripts_under_test"}


def test_downloads_are_whole_and_their_checksums_are_noted(scripts, mirror, tmp_path):
    mirror.folder.mkdir()
    rng, lines = random.Random(1), {"train": 40, "val": 5}
    lines |= {"test_2016_flickr": 4, "test_2017_flickr": 3}
    for split, count in lines.items():
        for language in ("en", "de"):
            text = sentences(rng, count).lower()
            (mirror.folder / f"{split}.lc.norm.tok.{language}").write_text(text, encoding="utf-8")
    scripts.for_release("multi30k", **lines)
    arguments = ("multi30k", "--mirror", mirror.address, "--output", tmp_path / "out")
    last = mirror.folder / "test_2017_flickr.lc.norm.tok.de"
    whole = last.read_bytes()
    last.write_bytes(whole[:-2])
    run = scripts.prepare(*arguments)
    assert_refused(run, "test_2017_flickr.de ends within its last line; get the release's file")
    assert not (tmp_path / "out.preparing").exists()
    last.write_bytes(whole)
    run = scripts.prepare(*arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    noted = dict(
        reversed(line.split("  "))
        for line in (tmp_path / "out" / "sha256sums").read_text().splitlines()
    )
    assert noted == {
        path.name.replace(".lc.norm.tok", ""): sha256(path) for path in mirror.folder.iterdir()
    }
