"""The One Billion Word benchmark."""

import random
import re
import shutil
import tarfile
from pathlib import Path

import pytest
from release_scripts import assert_refused, binarised, sentences, sha256, tokens

GBW = "1-billion-word-language-modeling-benchmark-r13output"
TRAINING = "training-monolingual.tokenized.shuffled"
HELDOUT = "heldout-monolingual.tokenized.shuffled"


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


@pytest.mark.slow
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
    assert {path.name for path in output.iterdir()} == {"text", "bin", "origin"}
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
