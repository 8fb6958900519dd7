"""The real corpus, through the preparation script and the command lines."""

import functools
import gzip
import random

import pytest
from conftest import generate, train
from release_scripts import assert_refused, sentences, sha256

pytest.importorskip("subword_nmt")


@pytest.mark.slow
def test_prepares_trains_and_translates(scripts, shared, tmp_path):
    prepare = functools.partial(scripts.prepare, "multi30k")
    folder = tmp_path / "multi30k"
    run = prepare("--source", shared / "data" / "multi30k", "--output", folder)
    assert run.returncode == 0, run.stderr
    assert {path.name for path in folder.iterdir()} == {
        "bin",
        "bpe",
        "origin",
        "text",
        "sha256sums",
    }
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


def test_a_copy_that_is_not_whole(scripts, tmp_path):
    arguments = ("multi30k", "--source", tmp_path / "source", "--output", tmp_path / "out")
    (tmp_path / "source").mkdir()
    assert_refused(scripts.prepare(*arguments), f"no train.en in {tmp_path / 'source'}")
    file = tmp_path / "source" / "train.en.gz"
    file.write_bytes(gzip.compress(b"a\nb\n"))
    assert_refused(scripts.prepare(*arguments), "train.en has 2 lines, not 29000")
    file.write_bytes(file.read_bytes()[:-4])
    assert_refused(scripts.prepare(*arguments), f"{file} cannot be read")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "scripts_under_test"}


def test_sides_of_different_lengths_are_refused_in_a_sample_too(scripts, tmp_path):
    (tmp_path / "source").mkdir()
    for split in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
        for language, text in (("en", "a\nb\n"), ("de", "a\n" if split == "val" else "a\nb\n")):
            (tmp_path / "source" / f"{split}.{language}").write_text(text)
    arguments = ("--source", tmp_path / "source", "--output", tmp_path / "out", "--sample")
    run = scripts.prepare("multi30k", *arguments)
    assert_refused(run, "val.en has 2 lines and val.de 1, but both must have as many")
    assert not (tmp_path / "out.preparing").exists()


@pytest.mark.slow
def test_a_line_that_would_become_two_sentences(scripts, tmp_path):
    """A carriage return within each side, so that both have as many sentences."""
    (tmp_path / "source").mkdir()
    for split in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
        for language, line in (("en", 1), ("de", 50)):
            text = sentences(random.Random(1), 60).lower().split("\n")
            text[line] = "the\rrare"
            with open(tmp_path / "source" / f"{split}.{language}", "w", newline="") as file:
                file.write("\n".join(text))
    arguments = ("--source", tmp_path / "source", "--output", tmp_path / "out", "--sample")
    run = scripts.prepare("multi30k", *arguments)
    assert_refused(run, "train.en-de.en has 61 sentences for the 60 lines of train.en")


def test_text_with_capitals_is_not_the_releases(scripts, tmp_path):
    (tmp_path / "source").mkdir()
    for split in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
        for language in ("en", "de"):
            (tmp_path / "source" / f"{split}.{language}").write_text("A dog .\n")
    scripts.for_release("multi30k", train=1, val=1, test_2016_flickr=1, test_2017_flickr=1)
    arguments = ("multi30k", "--source", tmp_path / "source", "--output", tmp_path / "out")
    assert_refused(scripts.prepare(*arguments), "train.en has capitals: the release's lower-cased")


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
    scripts.stand_in("fairseq-preprocess", "exit 1")
    assert_refused(scripts.prepare(*arguments), "fairseq-preprocess failed")
    sums = (tmp_path / "out.preparing" / "sha256sums").read_text().splitlines()
    noted = dict(reversed(line.split("  ")) for line in sums)
    assert noted == {
        path.name.replace(".lc.norm.tok", ""): sha256(path) for path in mirror.folder.iterdir()
    }
