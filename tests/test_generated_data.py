"""The quickstart's data: a translation task, a language of known entropy, and headlines."""

import importlib
import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
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


@pytest.fixture(scope="module")
def files() -> dict[str, dict[str, list[str]]]:
    """The lines of every file, by generator and file."""
    return {name: module.generate(SIZES, 1) for name, module in GENERATORS.items()}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_fixes_the_data_and_the_training_size_leaves_the_rest_alone(files, name):
    for file, lines in files[name].items():
        if file.endswith((".src", ".tgt", ".txt")):
            assert len(lines) == SIZES[file[:-4]]
            assert all(line == " ".join(line.split()) for line in lines)
    small = GENERATORS[name].generate(SIZES | {"train": 10}, 1)
    held_out = [file for file in small if file.startswith(("test.", "valid."))]
    assert all(small[file] == files[name][file] for file in held_out)
    other = GENERATORS[name].generate(SIZES | {"train": 10}, 2)
    assert all(other[file] != files[name][file] for file in held_out)


@pytest.mark.parametrize("name", ["corpus", "articles"])
def test_what_is_held_out_is_new_in_its_names_and_codes_alone(files, name):
    lines = files[name]
    for side in ("src", "tgt"):
        everything = list(itertools.chain(*(lines[f"{split}.{side}"] for split in SIZES)))
        assert len(set(everything)) == len(everything)
        training, test = (" ".join(lines[f"{split}.{side}"]) for split in ("train", "test"))
        unseen = set(test.split()) - set(training.split())
        assert all(NAME.fullmatch(word) or CODE.fullmatch(word) for word in unseen)
        for pattern in (NAME, CODE):
            known, copied = (set(pattern.findall(text)) for text in (training, test))
            assert len(copied) > 50 and (name == "articles" or len(copied - known) > 10)


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


def test_no_two_words_are_translated_alike():
    tables = (invented.DETERMINERS, invented.ADJECTIVES, invented.VERBS, invented.POSTPOSITIONS)
    stems = [stem for stem, _ in invented.NOUNS.values()]
    for table in (*tables, invented.ADVERBS, invented.TIMES):
        stems += table.values()
    assert len(stems) == len(set(stems))


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


def bits(line: str) -> float:
    words = line.split()
    return -math.log2(ends(language.sentence(), words, 0)[len(words)])


def test_a_sentence_is_as_probable_as_the_draw_that_made_it():
    rng = Random(3)
    for _ in range(100):
        words, drawn = language.draw(rng, language.sentence())
        assert bits(" ".join(words)) == pytest.approx(drawn)


def test_entropy_and_length_of_a_language_that_can_be_listed():
    last = language.Choice(("b", ("c", language.one_of(("d", ("e", "e"))))), (0.25, 0.75))
    phrase = (language.perhaps(0.3, "a"), last)
    sentences = {
        (*first, *rest): p * q
        for first, p in {("a",): 0.3, (): 0.7}.items()
        for rest, q in {("b",): 0.25, ("c", "d"): 0.375, ("c", "e", "e"): 0.375}.items()
    }
    entropy = -sum(p * math.log2(p) for p in sentences.values())
    assert language.entropy(phrase) == pytest.approx(entropy)
    length = sum(p * len(words) for words, p in sentences.items())
    assert language.mean_length(phrase) == pytest.approx(length)


def test_the_best_possible_perplexity_is_that_of_the_text(files):
    report = json.loads("\n".join(files["language"]["entropy.json"]))
    lines, test = files["language"]["test.txt"], report["test"]
    assert test["tokens"] == sum(len(line.split()) + 1 for line in lines)
    assert test["bits_per_token"] == pytest.approx(sum(map(bits, lines)) / test["tokens"], abs=1e-5)
    assert test["perplexity"] == pytest.approx(2 ** test["bits_per_token"], abs=1e-4)
    rate = report["language"]["bits_per_token"]
    assert report["train"]["bits_per_token"] == pytest.approx(rate, rel=0.01)


def test_verbs_agree_with_their_subjects_at_any_distance(files):
    endings = {"sun": ("a", "an"), "moon": ("o", "on"), "stone": ("e", "en")}
    classes = {stem + i: c for stem, c in invented.NOUNS.values() for i in ("", "i")}
    distances = set()
    for words in map(str.split, files["language"]["train.txt"]):
        subject = next(i for i, word in enumerate(words) if word in classes)
        ending = endings[classes[words[subject]]][words[subject].endswith("i")]
        assert words[-1].removesuffix(ending) in invented.VERBS.values()
        distances.add(len(words) - 1 - subject)
    assert min(distances) == 3 and max(distances) == 15


def events(article: str) -> list[str]:
    """Its sentences, without the line of place and time."""
    return article.split(" : ", 1)[1].removesuffix(" .").split(" . ")


def chosen(article: str) -> int:
    matters = (*articles.BEFORE[True], *articles.AFTER[True])
    (number,) = (i for i, text in enumerate(events(article)) if any(m in text for m in matters))
    return number


def test_the_headline_tells_the_one_event_that_matters(files):
    lines, where = files["articles"], Counter()
    for article, headline in zip(lines["train.src"], lines["train.tgt"], strict=True):
        place, person, verb, *rest = headline.replace(" :", "").split()
        told = events(article)[chosen(article)].split()
        assert {person, *rest} <= set(told) and article.startswith(f"{place} ")
        assert verb in (articles.PRESENT.get(word) for word in told)
        assert len(set(NAME.findall(article))) == len(NAME.findall(article))
        where[len(events(article)), chosen(article)] += 1
    for count in (3, 4):  # its position does not tell
        share = sum(where[count, i] for i in range(count)) / count
        assert all(abs(where[count, i] / share - 1) < 0.2 for i in range(count))
    assert set(articles.PRESENT) == set(invented.VERBS)


def run(name: str, *arguments: object, hash_seed: str = "0") -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / f"generate_{name}.py", *map(str, arguments)],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", GENERATORS)
def test_the_command_writes_the_same_files_whatever_the_hash_seed(tmp_path, name):
    expected = GENERATORS[name].generate({"test": 4, "valid": 5, "train": 30}, 1)
    for hash_seed in ("1", "2"):
        output = tmp_path / hash_seed
        sizes = ("--train", 30, "--valid", 5, "--test", 4)
        assert run(name, output, *sizes, hash_seed=hash_seed).returncode == 0
        assert {path.name for path in output.iterdir()} == set(expected)
        for file, lines in expected.items():
            assert (output / file).read_text(encoding="utf-8").split("\n") == [*lines, ""]
    again = run(name, output, *sizes)
    assert again.returncode == 1 and "is there already" in again.stderr


@pytest.mark.parametrize("size", ["-1", "0", "999999999999"])
def test_bad_sizes_are_one_line_errors(tmp_path, size):
    with pytest.raises(SystemExit, match=f"--valid must be from 1 to 1,000,000, not {size}$"):
        corpus.main([str(tmp_path / "out"), "--valid", size])
    assert not (tmp_path / "out").exists()


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    write_text = Path.write_text

    def fail_on_train(path, *arguments, **options):
        if path.name == "train.tgt":
            raise OSError("disk full")
        return write_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", fail_on_train)
    with pytest.raises(SystemExit, match="disk full"):
        corpus.main([str(tmp_path), "--train", "9", "--valid", "3", "--test", "3"])
    assert list(tmp_path.iterdir()) == []


def test_a_grammar_that_runs_dry_is_an_error():
    with pytest.raises(ValueError, match="too few distinct sources"):
        invented.parallel_files(lambda rng: ("the same", "lo misol"), {"train": 2}, seed=1)
