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
from random import Random

import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "scripts"))
invented, corpus, language, articles = map(
    importlib.import_module,
    ("invented_language", "generate_corpus", "generate_language", "generate_articles"),
)

GENERATORS = {"corpus": corpus, "language": language, "articles": articles}
SIZES = {"test": 200, "valid": 100, "train": 4000}
NAME = re.compile(r"\b[A-Z][a-z]+\b")
CODE = re.compile(r"\b[A-Z]\d\d\b")
# SHA-256 of the files of seed 1, on which the documents' figures were measured
DIGESTS = {
    "corpus": "23ee4254956f7ca6bbbb57e681b9f54c1b84ba2305653eb7e535b8252a9244b6",
    "language": "e00075cf006138cffaee6a2c8393b2a958a2f6e1bcba824ab32c934976b28b9a",
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


def translated(source: str) -> str:
    """The translation of a sentence, from left to right."""
    tokens = source.split()

    def take(words) -> str:
        return tokens.pop(0) if tokens and tokens[0] in words else ""

    def phrase() -> tuple[list[str], str]:
        if NAME.fullmatch(tokens[0]):
            return [tokens.pop(0)], "a"
        determiner, adjective, noun = tokens.pop(0), take(invented.ADJECTIVES), tokens.pop(0)
        plural = noun not in invented.NOUNS
        stem, noun_class = invented.NOUNS[noun[:-1] if plural else noun]
        ending = {"sun": "a", "moon": "o", "stone": "e"}[noun_class] + ("n" if plural else "")
        words = [invented.DETERMINERS[determiner] + ending, stem + ("i" if plural else "")]
        words += [invented.ADJECTIVES[adjective] + ending] if adjective else []
        words += [tokens.pop(0)] if tokens and CODE.fullmatch(tokens[0]) else []
        return words, ending

    subject, ending = phrase()
    if take(["who"]):
        verb = tokens.pop(0)
        subject += ["ki", *phrase()[0], invented.VERBS[verb] + ending]
    adverb, verb = take(invented.ADVERBS), tokens.pop(0)
    thing, _ = phrase()
    preposition = take(invented.POSTPOSITIONS)
    where = [*phrase()[0], invented.POSTPOSITIONS[preposition]] if preposition else []
    time = take(invented.TIMES)
    assert not tokens
    first, adverbs = [invented.TIMES[time]] if time else [], [invented.ADVERBS.get(adverb, "")]
    verbs = [invented.VERBS[verb] + ending]
    return " ".join(filter(None, [*first, *subject, *where, *thing, *adverbs, *verbs]))


def test_every_target_is_the_translation_of_its_source(files):
    for split in SIZES:
        pairs = zip(files["corpus"][f"{split}.src"], files["corpus"][f"{split}.tgt"], strict=True)
        assert all(translated(source) == target for source, target in pairs)
    source, target = corpus.__doc__.strip().splitlines()[-2:]
    assert translated(source) == target.strip()
    assert {len(line.split()) for line in files["corpus"]["train.src"]} == set(range(4, 17))


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


def bits(line: str, sentence) -> float:
    words = line.split()
    return -math.log2(ends(sentence, words, 0)[len(words)])


def test_a_sentence_is_as_probable_as_the_draw_that_made_it():
    rng, sentence = Random(3), language.sentence()
    for _ in range(50):
        words, drawn = language.draw(rng, sentence)
        assert bits(" ".join(words), sentence) == pytest.approx(drawn)


def test_entropy_and_length_of_a_language_that_can_be_listed():
    last = language.Choice(("b", ("c", language.one_of(("d", ("e", "e"))))), (0.25, 0.75))
    phrase = (language.perhaps(0.3, "a"), last)
    sentences = {
        (*first, *rest): p * q
        for first, p in {("a",): 0.3, (): 0.7}.items()
        for rest, q in {("b",): 0.25, ("c", "d"): 0.375, ("c", "e", "e"): 0.375}.items()
    }
    entropy = -sum(p * math.log2(p) for p in sentences.values())
    length = sum(p * len(words) for words, p in sentences.items())
    assert language.expected(phrase) == pytest.approx((length, entropy))


def test_the_best_possible_perplexity_is_that_of_the_text(files):
    report = json.loads("\n".join(files["language"]["entropy.json"]))
    lines, test, sentence = files["language"]["test.txt"], report["test"], language.sentence()
    assert test["tokens"] == sum(len(line.split()) + 1 for line in lines)
    drawn = sum(bits(line, sentence) for line in lines)
    assert test["bits_per_token"] == pytest.approx(drawn / test["tokens"], abs=1e-5)
    assert test["perplexity"] == pytest.approx(2 ** test["bits_per_token"], abs=1e-4)
    rate = report["language"]["bits_per_token"]
    assert report["train"]["bits_per_token"] == pytest.approx(rate, rel=0.01)


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
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / f"generate_{name}.py", *map(str, arguments)],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        check=False,
        capture_output=True,
        text=True,
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
    assert refused.stderr == "error: --valid must be from 1 to 1,000,000, not 0\n"
    assert not (tmp_path / "new").exists()
