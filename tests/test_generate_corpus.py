import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from random import Random

import pytest
import sacrebleu

SCRIPT = Path(__file__).parents[1] / "scripts" / "generate_corpus.py"
SPEC = importlib.util.spec_from_file_location("generate_corpus", SCRIPT)
assert SPEC is not None and SPEC.loader is not None
corpus = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(corpus)

SIZES = {"test": 200, "valid": 200, "train": 6000}
NAME = re.compile(r"[A-Z][a-z]+")
COPIED = re.compile(r"[A-Z]\w+")


@pytest.fixture(scope="module")
def files() -> dict[str, list[str]]:
    return corpus.generate(SIZES, seed=1)


def copied_words(line: str) -> list[str]:
    return [word for word in line.split() if COPIED.fullmatch(word)]


def names(lines: list[str]) -> set[str]:
    return {word for line in lines for word in line.split() if NAME.fullmatch(word)}


def codes(lines: list[str]) -> set[str]:
    return {word for line in lines for word in copied_words(line)} - names(lines)


def test_sizes_and_lengths(files):
    for split, size in SIZES.items():
        assert len(files[f"{split}.src"]) == len(files[f"{split}.tgt"]) == size
    for name, lines in files.items():
        for line in lines:
            assert line == " ".join(line.split())
            if name.endswith(".src"):
                assert 4 <= len(line.split()) <= 16


def test_every_sentence_is_distinct_and_held_out(files):
    for side in ("src", "tgt"):
        lines = [line for split in SIZES for line in files[f"{split}.{side}"]]
        assert len(set(lines)) == len(lines) == 6400


def test_a_seed_fixes_the_corpus():
    sizes = SIZES | {"train": 100}
    assert corpus.generate(sizes, seed=1) == corpus.generate(sizes, seed=1)
    assert corpus.generate(sizes, seed=1) != corpus.generate(sizes, seed=2)


def test_training_size_leaves_the_held_out_sets_alone(files):
    small = corpus.generate(SIZES | {"train": 10}, seed=1)
    for name in ("valid.src", "valid.tgt", "test.src", "test.tgt"):
        assert small[name] == files[name]


def test_vocabulary_is_small_and_unambiguous(files):
    source_types = {word for line in files["train.src"] for word in line.split()}
    assert 100 <= sum(not COPIED.fullmatch(word) for word in source_types) <= 150
    stems = [stem for stem, _ in corpus.NOUNS.values()]
    for table in (corpus.DETERMINERS, corpus.ADJECTIVES, corpus.VERBS):
        stems += table.values()
    for table in (corpus.POSTPOSITIONS, corpus.ADVERBS, corpus.TIMES):
        stems += table.values()
    assert len(set(stems)) == len(stems)
    assert len(corpus.NOUNS) == sum(
        len(nouns) for nouns in (corpus.PEOPLE_AND_ANIMALS, corpus.THINGS, corpus.PLACES)
    )


def test_held_out_words_occur_in_training_except_names_and_codes(files):
    for side in ("src", "tgt"):
        training = {word for line in files[f"train.{side}"] for word in line.split()}
        held_out = {word for line in files[f"test.{side}"] for word in line.split()}
        assert all(COPIED.fullmatch(word) for word in held_out - training)


def test_names_and_codes_are_copied(files):
    for split in SIZES:
        for source, target in zip(files[f"{split}.src"], files[f"{split}.tgt"], strict=True):
            assert sorted(copied_words(source)) == sorted(copied_words(target))
    assert all(len(code) == 3 for code in codes(files["test.src"]))


@pytest.mark.parametrize("kind", [names, codes])
def test_many_held_out_copies_are_unseen(files, kind):
    held_out = kind(files["test.src"])
    assert len(held_out) > 50
    assert len(held_out - kind(files["train.src"])) > 0.25 * len(held_out)


def test_name_before_a_plain_noun():
    pair = corpus.sentence(
        corpus.proper_name("Tomira"), "saw", corpus.noun_phrase("the", "boat", adjective="red")
    )
    assert pair == ("Tomira saw the red boat", "Tomira la lerod ruspa siva")


@pytest.mark.parametrize(
    "noun, plural, source, target",
    [
        ("baker", False, "the old baker hid my map", "la dorim gelta mo ravis dakra"),
        ("baker", True, "the old bakers hid my map", "lan dorimi geltan mo ravis dakran"),
        ("cat", False, "the old cat hid my map", "lo misol gelto mo ravis dakro"),
        ("cat", True, "the old cats hid my map", "lon misoli gelton mo ravis dakron"),
        ("bear", False, "the old bear hid my map", "le urtik gelte mo ravis dakre"),
        ("bear", True, "the old bears hid my map", "len urtiki gelten mo ravis dakren"),
    ],
)
def test_determiner_adjective_and_verb_agree(noun, plural, source, target):
    subject = corpus.noun_phrase("the", noun, plural=plural, adjective="old")
    pair = corpus.sentence(subject, "hid", corpus.noun_phrase("my", "map"))
    assert pair == (source, target)


def test_receiver_and_time_move_before_the_object():
    pair = corpus.sentence(
        corpus.noun_phrase("our", "cat"),
        "gave",
        corpus.noun_phrase("your", "lamp", adjective="heavy", code="K48"),
        where=corpus.adposition("to", corpus.proper_name("Dova")),
        time="today",
    )
    assert pair == (
        "our cat gave your heavy lamp K48 to Dova today",
        "sulen so misol Dova vo te sopal dorge K48 nembo",
    )


def test_example_of_the_docstring():
    head = corpus.noun_phrase("the", "sailor", plural=True, adjective="old")
    source, target = corpus.sentence(
        corpus.relative_clause(head, "saw", corpus.proper_name("Tomira")),
        "hid",
        corpus.noun_phrase("my", "lamp", code="K48"),
        where=corpus.adposition("near", corpus.noun_phrase("our", "bridge", plural=True)),
        adverb="quietly",
        time="yesterday",
    )
    assert f"    {source}\n    {target}\n" in corpus.__doc__


def test_word_for_word_translation_scores_badly(files):
    together: dict[str, Counter[str]] = defaultdict(Counter)
    sources: Counter[str] = Counter()
    targets: Counter[str] = Counter()
    for source, target in zip(files["train.src"], files["train.tgt"], strict=True):
        target_words = set(target.split())
        targets.update(target_words)
        for word in set(source.split()):
            sources[word] += 1
            together[word].update(target_words)
    best = {
        word: max(found, key=lambda other: found[other] / (sources[word] + targets[other]))
        for word, found in together.items()
    }
    hypotheses = [
        " ".join(best.get(word, word) for word in line.split()) for line in files["test.src"]
    ]
    assert sacrebleu.corpus_bleu(hypotheses, [files["test.tgt"]]).score < 50


def run_script(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        check=False,
        capture_output=True,
        text=True,
    )


def test_command_line_writes_six_files_whatever_the_hash_seed(tmp_path):
    sizes = ("--train", "30", "--valid", "5", "--test", "4")
    for hash_seed in ("1", "2"):
        assert run_script(str(tmp_path / hash_seed), *sizes, hash_seed=hash_seed).returncode == 0
    expected = corpus.generate({"test": 4, "valid": 5, "train": 30}, seed=1)
    for directory in tmp_path.iterdir():
        assert {path.name for path in directory.iterdir()} == set(expected)
        for name, lines in expected.items():
            assert (directory / name).read_text(encoding="utf-8").split("\n") == [*lines, ""]


@pytest.mark.parametrize(
    "option, value, message",
    [
        ("--train", "-1", "--train must be at least 1, not -1"),
        ("--valid", "0", "--valid must be at least 1, not 0"),
        ("--train", "999999999999", "too many"),
    ],
)
def test_bad_sizes_are_one_line_errors(tmp_path, option, value, message):
    with pytest.raises(SystemExit) as error:
        corpus.main([str(tmp_path / "out"), option, value])
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_output_that_is_a_file_is_a_one_line_error(tmp_path):
    output = tmp_path / "file"
    output.write_text("kept")
    result = run_script(str(output))
    assert result.returncode == 1
    assert result.stderr == f"generate_corpus.py: {output} exists and is not a directory\n"
    assert output.read_text() == "kept"


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
        corpus.distinct_pairs(Random(1), 2, lambda rng: ("the same", "lo misol"))
