"""The quickstart's data: a translation task, a language of known entropy, and headlines."""

import hashlib
import importlib
import json
import math
import os
import re
import subprocess
import sys
from collections import defaultdict

import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "scripts"))
corpus, language, articles = map(
    importlib.import_module, ("generate_corpus", "generate_language", "generate_articles")
)

GENERATORS = {"corpus": corpus, "language": language, "articles": articles}
SIZES = {"test": 200, "valid": 100, "train": 4000}
NAME = re.compile(r"\b[A-Z][a-z]+\b")
# SHA-256 of the files of seed 1, on which the documents' figures were measured
DIGESTS = {
    "corpus": "23ee4254956f7ca6bbbb57e681b9f54c1b84ba2305653eb7e535b8252a9244b6",
    "language": "fe6db1c897bfb676c616d5bf4aec629539be0787a9a0ac1714e399c699794201",
    "articles": "1c9fabde888f97c96a4529b7827f70b304678b72c2213af7e871797182b7de81",
}


@pytest.fixture(scope="module")
def files() -> dict[str, dict[str, list[str]]]:
    """The lines of every file, by generator and file."""
    return {name: module.generate(SIZES, 1) for name, module in GENERATORS.items()}


@pytest.mark.parametrize("name", GENERATORS)
def test_the_data_are_those_of_the_documents(files, name):
    """Of a seed; the number of training lines leaves the other files alone."""
    text = "".join(f"{file}\n" + "\n".join(lines) for file, lines in files[name].items())
    assert hashlib.sha256(text.encode()).hexdigest() == DIGESTS[name]
    small = GENERATORS[name].generate(SIZES | {"train": 10}, 1)
    held_out = [file for file in small if file.startswith(("test.", "valid."))]
    assert held_out and all(small[file] == files[name][file] for file in held_out)


def ends(phrase, words: list[str], start: int) -> dict[int, float]:
    """The probability that ``phrase`` is words[start:end], by end, however it is drawn."""
    found: dict[int, float] = defaultdict(float)
    if isinstance(phrase, str):
        return {start + 1: 1.0} if words[start : start + 1] == [phrase] else {}
    if isinstance(phrase, language.Choice):
        for part, probability in zip(phrase.phrases, phrase.probabilities, strict=True):
            for end, p in ends(part, words, start).items():
                found[end] += probability * p
        return found
    found[start] = 1.0
    for part in phrase:
        before, found = found, defaultdict(float)
        for middle, probability in before.items():
            for end, p in ends(part, words, middle).items():
                found[end] += probability * p
    return found


def test_the_best_possible_perplexity_is_that_of_the_text(files):
    report = json.loads("\n".join(files["language"]["entropy.json"]))
    lines, test, sentence = files["language"]["test.txt"], report["test"], language.sentence()
    assert test["tokens"] == sum(len(line.split()) + 1 for line in lines)
    bits = 0.0
    for words in map(str.split, lines):
        bits -= math.log2(ends(sentence, words, 0)[len(words)])
    assert test["bits_per_token"] == pytest.approx(bits / test["tokens"], abs=1e-5)
    assert test["perplexity"] == pytest.approx(2 ** test["bits_per_token"], abs=1e-4)


def test_the_headline_tells_the_one_event_that_matters(files):
    matters = (*articles.BEFORE[True], *articles.AFTER[True])
    lines = files["articles"]
    for article, headline in zip(lines["train.src"], lines["train.tgt"], strict=True):
        place, person, verb, *rest = headline.replace(" :", "").split()
        events = article.split(" : ", 1)[1].removesuffix(" .").split(" . ")
        (told,) = (event.split() for event in events if any(text in event for text in matters))
        assert {person, *rest} <= set(told) and article.startswith(f"{place} ")
        assert verb in (articles.PRESENT.get(word) for word in told)
        assert len(set(NAME.findall(article))) == len(NAME.findall(article))


def run(name: str, *arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / "scripts" / f"generate_{name}.py", *map(str, arguments)]
    return subprocess.run(
        command, env=os.environ | {"PYTHONHASHSEED": "7"}, capture_output=True, text=True
    )


@pytest.mark.parametrize("name", GENERATORS)
def test_the_command(tmp_path, name):
    expected = GENERATORS[name].generate({"test": 4, "valid": 5, "train": 30}, 1)
    sizes = ("--train", 30, "--valid", 5, "--test", 4)
    assert run(name, tmp_path / "out", *sizes).returncode == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(expected)
    for file, lines in expected.items():
        assert (tmp_path / "out" / file).read_text(encoding="utf-8").split("\n") == [*lines, ""]
    again = run(name, tmp_path / "out", *sizes)
    assert again.returncode == 1 and "is there already" in again.stderr
    refused = run(name, tmp_path / "new", "--valid", "0")
    assert refused.stderr == "error: each of --train, --valid and --test needs a line at least\n"
    assert not (tmp_path / "new").exists()


def test_where_data_can_be_generated(tmp_path):
    def generate(target: str) -> str:
        command = [sys.executable, ROOT / "scripts/generate_corpus.py", target, "--train", "9"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stderr

    assert "is the working directory: choose a new folder" in generate(".")
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    assert generate("link") == ""
    assert (tmp_path / "disk" / "train.src").exists() and (tmp_path / "link").is_symlink()
