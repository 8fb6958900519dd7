"""ROUGE against rouge-score itself, and under fairseq."""

import logging
import math
import random
import subprocess
import sys
from importlib.metadata import version
from statistics import NormalDist

import pytest
from fairseq.scoring import build_scorer
from omegaconf import OmegaConf
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.scoring import Score

from fairseq_convattn.scoring import rouge
from fairseq_convattn.scoring.checks import (
    hypothesis_warnings,
    mask_unknowns,
    reference_warnings,
)
from fairseq_convattn.scoring.rouge import (
    ROUGE_TYPES,
    RougeSettings,
    corpus_scores,
    paired_p_values,
    rouge_warnings,
    sentence_scores,
    signature,
    split_sentences,
)

WORDS = "the cats cat running runs, Run. a happily happy state-of-the-art U.S. <q> don't 3.5 über"


def summaries(seed: int) -> list[str]:
    generator = random.Random(seed)

    def sentence() -> str:
        return " ".join(generator.choices(WORDS.split(), k=generator.randint(0, 9)))

    return ["\n".join(sentence() for _ in range(generator.randint(0, 4))) for _ in range(30)]


@pytest.mark.parametrize("stem", [True, False])
def test_agrees_with_rouge_score(stem):
    direct = RougeScorer(list(ROUGE_TYPES), use_stemmer=stem)
    settings = RougeSettings(stem=stem)
    for hypothesis, first, second in zip(*map(summaries, range(3)), strict=True):
        assert sentence_scores(hypothesis, [first], settings) == direct.score(first, hypothesis)
        several = sentence_scores(hypothesis, [first, second], settings)
        assert several == direct.score_multi([first, second], hypothesis)


@pytest.mark.parametrize("hypothesis", ["", "\n\n", "..."])
def test_an_empty_hypothesis_scores_nothing_and_counts(hypothesis):
    empty, full = sentence_scores(hypothesis, ["a b"]), sentence_scores("a b", ["a b"])
    for name in ROUGE_TYPES:
        assert tuple(empty[name]) == (0, 0, 0)
        assert corpus_scores([empty, full])[name].fmeasure == 50


@pytest.mark.parametrize(
    ("split", "text", "sentences"),
    [
        ("newline", "It ate. It slept.\nIt left.", ["It ate. It slept.", "It left."]),
        (
            "punctuation",
            'Was it 3.5? "Yes!" it said. It ate . It slept...',
            ["Was it 3.5?", '"Yes!"', "it said.", "It ate .", "It slept..."],
        ),
        ("punctuation", "It ate.\nIt slept", ["It ate.", "It slept"]),
        ("<q>", "It ate. Not much <q> It slept\nlong", ["It ate. Not much ", " It slept", "long"]),
    ],
)
def test_sentences(split, text, sentences):
    settings = RougeSettings(split=split)
    assert split_sentences(text, settings).split("\n") == sentences
    reversed_, direct = "\n".join(reversed(sentences)), "\n".join(sentences)
    expected = RougeScorer(list(ROUGE_TYPES), use_stemmer=True).score(reversed_, direct)
    assert sentence_scores(text, [reversed_], settings) == expected


@pytest.mark.parametrize("split", ["", " ", "punct", "q"])
def test_what_sentences_cannot_be_split_at(split):
    with pytest.raises(ValueError, match="newline, punctuation or a marker such as <q>, not"):
        RougeSettings(split=split)
    with pytest.raises(ValueError, match="write newline"):
        RougeSettings(split=r"\n")


def test_references_are_several_texts():
    for references in ("one text", []):
        with pytest.raises(ValueError, match="references"):
            sentence_scores("a", references)


def corpus(fmeasures) -> list[dict[str, Score]]:
    return [{name: Score(f / 2, f / 4, f) for name in ROUGE_TYPES} for f in fmeasures]


def test_means_in_percent_and_their_interval():
    """Of 400 scores, 120 are 1: the mean of 400 draws is nearly normal."""
    scores = corpus([1.0] * 120 + [0.0] * 280)
    for score in corpus_scores(scores).values():
        assert (score.precision, score.recall, score.fmeasure) == (15, 7.5, 30)
        half = 100 * 1.96 * math.sqrt(0.3 * 0.7 / 400)
        assert (score.low, score.high) == pytest.approx((30 - half, 30 + half), abs=0.6)
    assert corpus_scores(scores[::-1]) == corpus_scores(scores)
    with pytest.raises(ValueError, match="no summary"):
        corpus_scores([])


@pytest.mark.parametrize("mean", [0.0, 0.02, -0.02, 0.2])
def test_paired_bootstrap(mean):
    """400 differences of +-0.2 around a mean, against the normal approximation."""
    baseline = [random.Random(1).uniform(0.3, 0.5)] * 400
    system = [f + mean + (0.2 if i % 2 else -0.2) for i, f in enumerate(baseline)]
    expected = 2 * (1 - NormalDist().cdf(abs(mean) / (0.2 / math.sqrt(400))))
    p_values = paired_p_values(corpus(system), corpus(baseline))
    for name in ROUGE_TYPES:
        assert p_values[name] == pytest.approx(max(expected, 1 / 1001), abs=0.02)
    assert p_values == paired_p_values(corpus(system[::-1]), corpus(baseline))


def test_a_system_does_not_differ_from_itself():
    scores = corpus([0.1, 0.5, 0.9])
    assert set(paired_p_values(scores, scores).values()) == {1.0}
    with pytest.raises(ValueError, match="3 summaries cannot be paired with 2"):
        paired_p_values(scores, scores[:2])


def test_signature():
    assert signature(2, RougeSettings(stem=False, split="<q>")) == (
        f"nrefs:2|stem:no|tok:rouge-score|split:<q>|n:1000|seed:12345|"
        f"version:{version('rouge-score')}"
    )


def test_rouge_warnings():
    marker = RougeSettings(split="<q>")
    assert not rouge_warnings(["one sentence.", "3.5", "USA"])
    assert not rouge_warnings(["one. two."], RougeSettings(split="punctuation"))
    (line,) = rouge_warnings(["one.", "two. three."])
    assert "no reference is split at newline" in line
    for text in ("one", "two. three.", "one\ntwo"):
        (line,) = rouge_warnings([text], marker)
        assert line.startswith("no reference has <q>")
    assert not rouge_warnings(["two. three.", "one <q> two"], marker)
    (line,) = rouge_warnings(["кот", "cat", ""])
    assert line.startswith("1 of 3 references score 0")


@pytest.mark.parametrize("split", ["newline", "punctuation"])
def test_warns_of_a_marker_that_counts_as_a_word(split):
    settings = RougeSettings(split=split)
    (line,) = rouge_warnings(["a. <q> b. <q> c.", "d <q> e", "f."], settings)
    assert "most references have <q>" in line and "--rouge-split '<q>'" in line
    for references in (["a <q> b", "c"], ["a <unk> b", "<unk>"], ["a<b c> d", "1 < 2 > 1"]):
        assert not rouge_warnings(references, settings)
    lines = rouge_warnings(["a <s> b"], RougeSettings(split="<q>"))
    assert [line.partition(",")[0] for line in lines] == [
        "most references have <s>",
        "no reference has <q>",
    ]


def test_warnings_of_texts():
    assert not hypothesis_warnings(["a cat", "a@b.c", "<<un"])
    assert not reference_warnings(["<unk", "the cat"])
    left, empty, unknown = hypothesis_warnings(["a c@@ at <unk>", "", "the ca@@"])
    assert "seem left in 2 of the hypotheses" in left and "1 of 3 hypotheses are empty" in empty
    assert "the hypotheses have 1 <unk>" in unknown
    left, empty, unknown = reference_warnings(["\u2581the", "<<unk>>", " "])
    assert "seem left in 1 of the references" in left and "1 of 3 references are empty" in empty
    assert "the references have 1 <<unk>>" in unknown


def test_needs_rouge_score_and_says_so(monkeypatch):
    def missing(name):
        raise rouge.PackageNotFoundError(name)

    monkeypatch.setattr(rouge, "version", missing)
    with pytest.raises(ImportError, match="pip install rouge-score"):
        build_scorer("rouge", None)


def test_rouge_score_is_loaded_late_and_fairseq_not_needed():
    code = (
        "import sys; sys.modules['fairseq'] = None\n"
        "from fairseq_convattn.scoring.rouge import sentence_scores\n"
        "import fairseq_convattn.scoring.checks, fairseq_convattn.scoring.generated\n"
        "assert 'rouge_score' not in sys.modules\n"
        "assert sentence_scores('a', ['a'])['rouge1'].fmeasure == 1\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_scorer_under_fairseq(caplog):
    """``add_string`` takes the reference first; the figures are rouge-score's."""
    hypotheses, references = summaries(3), summaries(4)
    scorer = build_scorer("rouge", None)
    direct = RougeScorer(list(ROUGE_TYPES), use_stemmer=True)
    scores = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        scorer.add_string(reference, hypothesis)
        scores.append(direct.score(reference, hypothesis))
    result = scorer.result_string()
    for name, label in zip(ROUGE_TYPES, ("1", "2", "L", "Lsum"), strict=True):
        precision, recall, fmeasure = (
            100 * math.fsum(values) / len(scores)
            for values in zip(*(score[name] for score in scores), strict=True)
        )
        assert f"ROUGE-{label} F1 = {fmeasure:.2f} [" in result
        assert f"], precision {precision:.2f}, recall {recall:.2f};" in result
    assert scorer.score() == pytest.approx(fmeasure, rel=1e-12)
    assert result.endswith(f"; ROUGE|{signature(1)}")
    assert "hypotheses are empty" in caplog.text


def test_unknown_words_do_not_match_under_fairseq(caplog):
    """fairseq writes <unk> in hypotheses and <<unk>> in targets, and rouge-score reads
    unk in both."""
    scorer = build_scorer("rouge", None)
    scorer.add_string("the <<unk>> <<unk>> sat", "the <unk> <unk> ran")
    with caplog.at_level(logging.WARNING):
        assert "ROUGE-1 F1 = 25.00 [25.00, 25.00], precision 25.00," in scorer.result_string()
    assert "the references have 2 <<unk>>" in caplog.text
    assert mask_unknowns("a <unk> b") == "a <unk> b"


def test_warnings_of_rouge_under_fairseq(caplog):
    scorer = build_scorer("rouge", None)
    scorer.add_string("кот", "cat")
    scorer.result_string()
    assert "1 of 1 references score 0" in caplog.text


def test_options_under_fairseq():
    options = {"_name": "rouge", "rouge_no_stem": True, "rouge_split": "<q>"}
    scorer = build_scorer(OmegaConf.create(options), None)
    scorer.add_string("he ran <q> it flies", "it fly <q> he ran")
    result = scorer.result_string()
    assert "ROUGE-L F1 = 50.00" in result and "ROUGE-Lsum F1 = 75.00" in result
    assert "|stem:no|" in result and "|split:<q>|" in result
    with pytest.raises(ValueError, match="^--rouge-split: .* not at 'punct'"):
        build_scorer(OmegaConf.create({**options, "rouge_split": "punct"}), None)
