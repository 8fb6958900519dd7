import importlib
import re
import subprocess
import sys
from collections import Counter
from random import Random

import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "scripts"))
articles = importlib.import_module("generate_articles")

SCRIPT = ROOT / "scripts" / "generate_articles.py"
SIZES = {"test": 200, "valid": 200, "train": 3000}
MATTERS = (*articles.BEFORE[True], *articles.AFTER[True])
COPIED = re.compile(r"[A-Z]\w+")


@pytest.fixture(scope="module")
def files() -> dict[str, list[str]]:
    return articles.generate(SIZES, seed=1)


def sentences(article: str) -> list[str]:
    """Those of the events, without the line of place and time."""
    return article.split(" : ", 1)[1].removesuffix(" .").split(" . ")


def chosen(article: str) -> int:
    (number,) = (
        i for i, text in enumerate(sentences(article)) if any(phrase in text for phrase in MATTERS)
    )
    return number


def test_sizes_and_lengths(files):
    for split, size in SIZES.items():
        assert len(files[f"{split}.src"]) == len(files[f"{split}.tgt"]) == size
    for article, headline in zip(files["train.src"], files["train.tgt"], strict=True):
        assert article == " ".join(article.split()) and headline == " ".join(headline.split())
        assert 30 <= len(article.split()) <= 70
        assert len(headline.split()) == 8


def test_every_article_and_headline_is_distinct_and_held_out(files):
    for side in ("src", "tgt"):
        lines = [line for split in SIZES for line in files[f"{split}.{side}"]]
        assert len(set(lines)) == len(lines)


def test_the_headline_tells_the_one_event_that_matters(files):
    for article, headline in zip(files["train.src"], files["train.tgt"], strict=True):
        place, person, verb, thing, code, preposition, where = headline.replace(" :", "").split()
        told = sentences(article)[chosen(article)].split()
        for word in (person, thing, code, preposition, where):
            assert word in told
        assert verb in (articles.PRESENT.get(word) for word in told)
        assert article.startswith(f"{place} ")


def test_position_does_not_tell_which_event_matters(files):
    places = Counter((len(sentences(article)), chosen(article)) for article in files["train.src"])
    for count in articles.EVENTS:
        total = sum(n for (events, _), n in places.items() if events == count)
        for number in range(count):
            assert places[count, number] / total == pytest.approx(1 / count, abs=0.05)


def test_copying_sentences_scores_badly(files):
    rouge_scorer = pytest.importorskip("rouge_score.rouge_scorer")
    scorer = rouge_scorer.RougeScorer(["rougeL"])

    def score(hypotheses: list[str]) -> float:
        pairs = zip(files["test.tgt"], hypotheses, strict=True)
        scores = [scorer.score(*pair)["rougeL"].fmeasure for pair in pairs]
        return 100 * sum(scores) / len(scores)

    sources = files["test.src"]
    assert score([source.split(" . ")[0] for source in sources]) < 40
    assert score([" . ".join(source.split(" . ")[:2]) for source in sources]) < 40
    assert score([sentences(source)[-1] for source in sources]) < 40
    right = [sentences(source)[chosen(source)] for source in sources]
    assert 50 < score(right) < 70


def test_names_and_codes_are_new_and_as_many_as_the_language_has(files):
    def copied(split: str) -> set[str]:
        return {word for line in files[f"{split}.tgt"] for word in COPIED.findall(line)}

    held_out = copied("test")
    assert len(held_out) > 400
    assert len(held_out - copied("train")) > 0.25 * len(held_out)


def test_people_and_places_of_an_article_have_names_of_their_own(files):
    names = re.compile(r"\b[A-Z][a-z]+\b")
    for article in files["train.src"]:
        assert len(set(names.findall(article))) == len(names.findall(article))


def test_example_of_the_docstring():
    told = [
        articles.event(
            *("Kado", "hid", "lamp", "K48", "near", "bridge"),
            title="sailor",
            adverb="gladly",
            determiner="my",
            where_determiner="our",
        ),
        articles.event("Mila", "sent", "hat", "B07", "to", "Davo", adjective="red"),
        articles.event(
            *("Dovali", "drew", "map", "R55", "in", "garden"),
            title="baker",
            determiner="your",
            where_determiner="our",
        ),
    ]
    remarks = (
        {"before": articles.BEFORE[False][3]},
        {"after": articles.AFTER[True][2]},
        {"after": articles.AFTER[False][0]},
    )
    lines = [
        articles.remark(event.report, **where) for event, where in zip(told, remarks, strict=True)
    ]
    text = " ".join(articles.__doc__.split())
    assert f"Tomira today : {' '.join(lines)} Tomira : {told[1].headline} " in text


def test_every_past_tense_has_a_present():
    assert set(articles.PRESENT) == {*articles.TRANSITIVE_VERBS, *articles.TRANSFER_VERBS}
    assert len(set(articles.PRESENT.values())) == len(articles.PRESENT)


def test_a_seed_fixes_the_data_and_training_size_leaves_the_held_out_sets_alone(files):
    small = articles.generate(SIZES | {"train": 10}, seed=1)
    for name in ("valid.src", "valid.tgt", "test.src", "test.tgt"):
        assert small[name] == files[name]
    assert articles.generate(SIZES | {"train": 10}, seed=2)["test.src"] != files["test.src"]
    assert articles.draw_article(Random(5)) == articles.draw_article(Random(5))


def test_command_line_writes_six_files(tmp_path):
    sizes = {"test": 4, "valid": 5, "train": 30}
    arguments = [part for split, size in sizes.items() for part in (f"--{split}", str(size))]
    subprocess.run([sys.executable, SCRIPT, tmp_path / "new", *arguments], check=True)
    expected = articles.generate(sizes, seed=1)
    assert {path.name for path in (tmp_path / "new").iterdir()} == set(expected)
    for name, lines in expected.items():
        assert (tmp_path / "new" / name).read_text(encoding="utf-8").split("\n") == [*lines, ""]


def test_a_bad_size_is_a_one_line_error(tmp_path):
    with pytest.raises(SystemExit, match=r"--valid must be at least 1, not -3$"):
        articles.main([str(tmp_path / "out"), "--valid", "-3"])
    assert not (tmp_path / "out").exists()
