"""``convattn score`` on plain files and on what fairseq-generate prints."""

import json
import logging
import random
import re
import sys

import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from fairseq_convattn.scoring.__main__ import main
from fairseq_convattn.scoring.generated import read_texts
from fairseq_convattn.scoring.rouge import ROUGE_TYPES


class Scored:
    """What the script printed; its exit status, 0 where it did not say."""

    def __init__(self, status, out: str, err: str):
        self.message = status if isinstance(status, str) else ""
        self.status = 1 if self.message else status
        self.out, self.err = out, err

    @property
    def json(self) -> dict:
        return json.loads(self.out)


@pytest.fixture
def score(monkeypatch, capsys, tmp_path, caplog):
    """The script in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    # its log, which fairseq turns on, goes to the standard error of the test that imported it
    caplog.set_level(logging.WARNING, "sacrebleu")

    def run(metric: str, *arguments: str) -> Scored:
        status = 0
        try:
            main(["--metric", metric, *arguments])
        except SystemExit as exit_:
            status = exit_.code
        return Scored(status, *capsys.readouterr())

    return run


@pytest.fixture
def write(tmp_path):
    def write_lines(name: str, lines) -> list[str]:
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return list(lines)

    return write_lines


def corpus(seed: int) -> list[str]:
    """Texts of which any two share much."""
    generator = random.Random(seed)
    start = "The state-of-the-art cats ran , and a dog barks at 3.5 houses".split()
    lines = []
    for _ in range(12):
        words = [word for word in start if generator.random() < 0.8]
        sentences = generator.sample([f"{' '.join(words)}.", "It runs on."], 2)
        lines.append(" ".join(sentences))
    return lines


PLAIN = ("--reference", "ref", "--hypothesis", "hyp")


@pytest.fixture
def texts(write) -> tuple[list[str], list[str], list[str]]:
    return tuple(write(name, corpus(seed)) for seed, name in enumerate(("hyp", "ref", "ref2")))


def rouge_means(hypotheses, *references, stem=True) -> dict[str, list[float]]:
    """Precision, recall and F1 in percent, by rouge-score itself."""
    direct = RougeScorer(list(ROUGE_TYPES), use_stemmer=stem)
    scores = [
        direct.score_multi(targets, text)
        for text, *targets in zip(hypotheses, *references, strict=True)
    ]
    return {
        name: [
            100 * sum(values) / len(scores)
            for values in zip(*(s[name] for s in scores), strict=True)
        ]
        for name in ROUGE_TYPES
    }


def test_rouge_is_rouge_score(score, texts):
    hyp, *refs = texts
    files = ("--reference", "ref", "ref2", "--hypothesis", "hyp", "--rouge-no-stem")
    result = score("rouge", *files, "--format", "json").json
    for name, expected in rouge_means(hyp, *refs, stem=False).items():
        found = result["scores"][name]
        figures = [found[key] for key in ("precision", "recall", "score")]
        assert figures == pytest.approx(expected, rel=1e-13)
        low, high = found["confidence"]
        assert low < found["score"] < high
    assert "|nrefs:2|stem:no|" in result["signature"]
    assert score("rouge", *files).out.endswith(result["signature"] + "\n")


def test_rouge_splits_sentences(score, texts, write):
    hyp, ref, _ = texts
    result = score("rouge", *PLAIN)
    assert "ROUGE-Lsum is ROUGE-L here" in result.err
    result = score("rouge", *PLAIN, "--rouge-split", "punctuation", "--format", "json")
    expected = rouge_means(*([text.replace(". ", ".\n") for text in side] for side in (hyp, ref)))
    assert result.json["scores"]["rougeLsum"]["score"] == pytest.approx(expected["rougeLsum"][2])
    assert expected["rougeLsum"] != pytest.approx(expected["rougeL"])
    assert "|split:punctuation|" in result.json["signature"] and "ROUGE-Lsum" not in result.err
    assert score("rouge", *PLAIN, "--rouge-split", "dots").message == (
        "error: --rouge-split: sentences are split at newline, punctuation or a marker such as "
        "<q>, not at 'dots'"
    )


@pytest.mark.parametrize(
    ("metric", "options", "direct"),
    [
        ("bleu", (), sacrebleu.BLEU()),
        ("bleu", ("--tokenize", "none"), sacrebleu.BLEU(tokenize="none")),
        ("bleu", ("--tokenize", "intl", "--lowercase"), sacrebleu.BLEU(True, tokenize="intl")),
        ("chrf", (), sacrebleu.CHRF()),
        ("chrf", ("--lowercase",), sacrebleu.CHRF(lowercase=True)),
    ],
)
def test_bleu_and_chrf_are_sacrebleu(score, texts, metric, options, direct):
    hyp, *refs = texts
    files = ("--reference", "ref", "ref2", "--hypothesis", "hyp")
    expected = direct.corpus_score(hyp, refs)
    result = score(metric, *files, *options, "--format", "json").json
    ((name, found),) = result["scores"].items()
    assert (name, found["score"]) == (expected.name, expected.score)
    resampled = direct.corpus_score(hyp, refs, n_bootstrap=1000)
    mean, half = resampled._mean, resampled._ci
    assert half > 0 and found["confidence"] == pytest.approx([mean - half, mean + half])
    fields = str(direct.get_signature()).split("|")
    assert set(fields) < set(result["signature"].split("|"))
    printed = score(metric, *files, *options).out.splitlines()
    assert printed[0].startswith(expected.format())
    assert printed[1] == result["signature"]


def test_compounds_are_split_as_in_the_papers(score, write):
    """A hyphen between spaces is not a compound and matches none."""
    write("hyp", ["a state-of-the-art x-y-z model - it"])
    write("ref", ["a state - of-the-art x-y-z model - all"])
    write("ref2", ["x-y model"])
    files = ("--reference", "ref", "ref2", "--hypothesis", "hyp")
    result = score("bleu", *files, "--compound-split", "--format", "json").json
    joint, end = " ##AT##-##AT## ", "x ##AT##-##AT## y-z model -"
    hyp = f"a {joint.join(('state', 'of', 'the', 'art'))} {end} it"
    ref = f"a state - {joint.join(('of', 'the', 'art'))} {end} all"
    expected = sacrebleu.BLEU(tokenize="none", force=True).corpus_score(
        [hyp], [[ref], ["x ##AT##-##AT## y model"]]
    )
    assert result["scores"]["BLEU"]["score"] == expected.score
    assert "|tok:none|" in result["signature"]
    assert result["signature"].endswith("|compounds:split")


@pytest.mark.parametrize("tokenize", ["zh", "char"])
def test_chinese_is_scored_by_characters_however_words_are_split(score, write, tokenize):
    hyp, ref = (
        ["我们 昨天 去 了 北京 。", "他 很 高兴 , OK ?"],
        ["我们昨天到了北京。", "她很高兴, OK?"],
    )
    write("ref", ref)
    write("split", hyp)
    write("hyp", [re.sub(r"(?<=[^A-Z,]) ", "", text) for text in hyp])
    options = ("--tokenize", tokenize, "--reference", "ref", "--format", "json", "--hypothesis")
    found, whole = (score("bleu", *options, name).json for name in ("split", "hyp"))
    characters = ([" ".join(text.replace(" ", "")) for text in side] for side in (hyp, ref))
    if tokenize == "zh":  # what is not Chinese keeps its words
        characters = ([text.replace("O K", "OK") for text in side] for side in characters)
    hyp, ref = map(list, characters)
    expected = sacrebleu.BLEU(tokenize="none", force=True).corpus_score(hyp, [ref])
    assert found["scores"]["BLEU"]["score"] == expected.score
    assert whole["scores"] == found["scores"]
    assert f"|tok:{tokenize}|" in found["signature"]


def test_tokens_are_scored_as_text(score, write):
    """Both ways to score one output, as recipes do."""
    pytest.importorskip("sacremoses")
    tokens = ["It 's a state @-@ of @-@ the @-@ art , isn 't it ?", "&quot; No , &quot; he said ."]
    text = ["It's a state-of-the-art, isn't it?", '"No," he said.']
    raw = ["It's a state-of-the-art thing, no?", '"No," he says &amp; " goes " .']
    write("gen", generated(tokens, tokens, tokens))
    write("raw", raw)
    write("ref", tokens)
    options = ("--detokenize", "en", "--hypothesis", "gen", "--format", "json")
    result = score("bleu", *options, "--reference", "raw").json
    expected = sacrebleu.BLEU().corpus_score(text, [raw])
    assert result["scores"]["BLEU"]["score"] == expected.score < 100
    assert re.search(r"\|tok:13a\|.*\|detok:sacremoses-en-hypothesis-\d", result["signature"])
    write("other D", generated(tokens, ["x", "y"], tokens))
    other = ("--detokenize", "en", "--hypothesis", "other D", "--reference", "raw")
    assert score("bleu", *other, "--format", "json").json == result
    for both in ((), ("--reference", "ref", "--detokenize-reference")):
        result = score("bleu", *options, *both).json
        assert result["scores"]["BLEU"]["score"] == pytest.approx(100)
        assert "|detok:sacremoses-en-both-" in result["signature"]
    unknown = score("bleu", *options[2:], "--detokenize", "xx", "--reference", "raw")
    assert "--detokenize: unknown 'xx', choose from" in unknown.message
    result = score("chrf", *options, "--reference", "raw").json
    assert result["scores"]["chrF2"]["score"] == sacrebleu.CHRF().corpus_score(text, [raw]).score
    tokenised = ("--tokenize", "none", "--reference", "ref", "--hypothesis", "gen")
    assert score("bleu", *tokenised).out.startswith("BLEU = 100.00 ")
    write("joined", generated(tokens, text, text))
    result = score("bleu", "--detokenize", "en", "--hypothesis", "joined")
    assert "the T- lines of joined are detokenised; add a tokenised --ref" in result.message


@pytest.mark.parametrize("metric", ["bleu", "chrf", "rouge"])
def test_paired_bootstrap(score, texts, write, metric):
    """Against itself, a system that is clearly worse, and the other way about."""
    write("same", texts[0])
    write("worse", [" ".join(text.split()[::3]) for text in texts[0]])
    alone = score(metric, *PLAIN, "--format", "json").json
    found = score(metric, *PLAIN, "--baseline", "worse", "--format", "json").json
    assert found["scores"] == alone["scores"]
    for name, p_value in found["p_values"].items():
        assert found["baseline"][name]["score"] < found["scores"][name]["score"]
        assert p_value < 0.01
    turned = ("--reference", "ref", "--hypothesis", "worse", "--baseline", "hyp")
    result = score(metric, *turned, "--format", "json").json
    assert result["baseline"] == found["scores"] and result["scores"] == found["baseline"]
    result = score(metric, *PLAIN, "--baseline", "same", "--format", "json").json
    assert set(result["p_values"].values()) == {1.0}
    lines = score(metric, *PLAIN, "--baseline", "worse").out.splitlines()
    assert lines[0] == "hypothesis hyp" and "baseline worse" in lines
    assert any(re.fullmatch(r"difference in .+: \+\d+\.\d\d, p = 0\.00\d\d", x) for x in lines)


def generated(hypotheses, detokenised=None, targets=None, numbers=None) -> list[str]:
    """fairseq-generate's output with two hypotheses a sentence, in another order."""
    lines = ["2026-01-01 00:00:00 | INFO | fairseq_cli.generate | {'path': 'D-1'}"]
    for i in reversed(numbers or range(len(hypotheses))):
        lines.append(f"S-{i}\tx\ty")
        if targets:
            lines.append(f"T-{i}\t{targets[i]}")
        for score, text in (("-0.5", hypotheses[i]), ("-inf", "second best")):
            lines.append(f"H-{i}\t{score}\t{text}")
            if detokenised:
                lines.append(f"D-{i}\t{score}\t{detokenised[i] if text[:6] != 'second' else text}")
            lines.append(f"P-{i}\t-0.5000")
    return [*lines, "Generate test with beam=5: BLEU4 = 1.00"]


def test_output_of_fairseq_generate(score, write):
    tokenised = ["don 't b , c .", "", "d\u2028 e , f ."]
    detokenised = ["don't b, c.", "", "d\u2028 e, f."]
    targets = ["don't b, d.", "x y", "d e, f."]
    write("hyp", detokenised)
    write("tok", tokenised)
    write("ref", targets)
    write("gen", generated(tokenised, detokenised, targets))
    plain = score("bleu", *PLAIN).out
    assert score("bleu", "--reference", "ref", "--hypothesis", "gen").out == plain
    assert score("bleu", "--hypothesis", "gen").out == plain
    assert score("bleu", "--hypothesis", "gen", "--baseline", "gen").status == 0
    none = ("--tokenize", "none", "--reference", "ref", "--hypothesis")
    assert score("bleu", *none, "gen").out == score("bleu", *none, "tok").out
    result = score("bleu", "--tokenize", "none", "--hypothesis", "gen")
    assert result.message == (
        "error: the T- lines of gen are detokenised; add a tokenised --reference"
    )
    write("no D", generated(tokenised))
    assert score("bleu", *none, "no D").out == score("bleu", *none, "tok").out


def test_tokens_are_no_mistake(score, write, caplog):
    """sacreBLEU warns of a hundred texts whose last period is a token."""
    for name in ("hyp", "ref"):
        write(name, ["a b c d ."] * 100)
    score("bleu", *PLAIN, "--tokenize", "none")
    assert not caplog.records


def test_a_tokeniser_whose_package_is_missing_is_one_line(score, texts, monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    message = score("bleu", *PLAIN, "--tokenize", "ja-mecab").message
    assert message.startswith("error: Japanese tokenization requires")


def test_unknown_words_do_not_match(score, write):
    """Tokenisers make of fairseq's <<unk>> in targets what they make of a hypothesis's <unk>."""
    hyp, ref = ["<unk> <unk> <unk> b c d e"] * 3, ["<<unk>> <<unk>> <<unk>> b c x y"] * 3
    write("gen", generated(hyp, hyp, ref))
    result = score("rouge", "--hypothesis", "gen", "--format", "json")
    assert result.json["scores"]["rouge1"]["score"] == pytest.approx(100 * 2 / 7)
    assert "the hypotheses have 9 <unk>" in result.err
    assert "the references have 9 <<unk>>" in result.err
    result = score("bleu", "--hypothesis", "gen", "--format", "json").json
    masked = [text.replace("<<unk>>", "nothing") for text in ref]
    assert result["scores"]["BLEU"]["score"] == sacrebleu.corpus_bleu(hyp, [masked]).score
    assert result["scores"]["BLEU"]["score"] < sacrebleu.corpus_bleu(hyp, [ref]).score / 2


def test_warnings_name_their_file_once(score, texts, write):
    write("worse", [*texts[0][:-1], ""])
    write("ref", [*texts[1][:-1], ""])
    files = ("--reference", "ref", "ref2", "--hypothesis", "hyp", "--baseline", "worse")
    assert score("chrf", *files).err.splitlines() == [
        "warning: worse: 1 of 12 hypotheses are empty",
        "warning: ref: 1 of 12 references are empty",
    ]


def test_references_as_hypotheses_are_told(score, texts, write):
    write("gen", generated(texts[1]))
    for name, way_out in (("ref", ""), ("gen", "; fairseq-generate writes the references with")):
        told = score("bleu", "--reference", "ref", "--hypothesis", name).err
        line = f"warning: {name}: every hypothesis is its reference{way_out}"
        assert line in told and ("--score-reference" in told) == bool(way_out)
    assert "every hypothesis" not in score("bleu", "--reference", "ref", "--hypothesis", "hyp").err


def test_a_reference_of_other_sentences_is_told(score, write):
    """Those of the sentences may be tokenised, cut and normalised in another way."""
    ref = write(
        "ref", ["Don't walk on the café's grass, please!", "It has been raining.", "He left"]
    )
    write("other", ["Do not walk there if it rains.", "He has been left.", "On the grass, he"])

    def is_told(*references, targets):
        write("gen", generated(ref, None, targets))
        told = score("bleu", "--reference", *references, "--hypothesis", "gen").err
        return "does the reference belong to another subset" in told

    for targets in (
        ["don 't walk on the cafe\u0301 's grass ,", "it has been", "he left"],
        [
            "Don't walk on <<unk>> <<unk>> grass, <<unk>>",
            "<<unk>> has been raining.",
            "<<unk>> left",
        ],
        ["Do@@ n't w@@ alk on the ca@@ fé@@ 's gra@@ ss", "it has", "he"],
        ["\u2581D on 't \u2581w alk \u2581on", "\u2581It \u2581has", "\u2581H e"],
    ):
        assert is_told("other", targets=targets)
        assert not is_told("other", "ref", targets=targets)
    for unreadable in (["464 318", "17", "9"], ["<<unk>>", "<<unk>> <<unk>>", ""]):
        assert not is_told("other", targets=unreadable)


def test_a_reference_in_another_order_is_told(score, write):
    lines = [
        f"{word} number {i * i} is {word[::-1]}" for i, word in enumerate(["oak", "elm"] * 200)
    ]
    write("gen", generated(lines, None, lines))
    write("moved", [*lines[:150], *lines[151:], lines[150]])
    assert "another order" in score("bleu", "--reference", "moved", "--hypothesis", "gen").err


def test_line_ends_and_byte_order_marks_are_no_text(score, texts, tmp_path):
    expected = score("chrf", *PLAIN).out
    for name in ("hyp", "ref"):
        lines = (tmp_path / name).read_bytes().splitlines()
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + b"".join(x + b"\r\n" for x in lines))
        assert read_texts(tmp_path / name).hypotheses == [x.decode() for x in lines]
        assert score("chrf", *PLAIN).out == expected


def refused(result: Scored, message: str) -> bool:
    return (result.status, result.out, result.message) == (1, "", f"error: {message}")


def test_texts_that_cannot_be_scored(score, write, tmp_path):
    hyp = write("hyp", ["a", "b", "c"])
    write("ref", ["a", "b"])
    write("gen", generated(hyp, hyp, hyp))
    write("no T", generated(hyp, hyp))
    write("other T", generated(hyp, hyp, ["x", "y", "z"]))
    write("gap", generated(hyp, hyp, hyp, numbers=[0, 2]))
    write("cut", [*generated(hyp, hyp, hyp), "T-3\td"])
    write("two", generated(hyp, hyp, hyp) * 2)
    write("hypotheses", [line for line in generated(hyp, hyp) * 2 if line[0] in "HD"])
    (tmp_path / "empty").touch()
    (tmp_path / "latin").write_bytes("\u00fc\n".encode("latin-1"))

    def rouge(reference, *rest):
        return score("rouge", *(("--reference", reference) if reference else ()), *rest)

    mismatch = "they must correspond line by line"
    for metric in ("bleu", "rouge"):
        assert refused(score(metric, *PLAIN), f"ref has 2 texts and hyp 3: {mismatch}")
    several = ("--reference", "hyp", "ref", "--hypothesis", "gen")
    assert refused(score("bleu", *several), f"hyp has 3 texts and ref 2: {mismatch}")
    result = rouge("hyp", "--hypothesis", "gen", "--baseline", "ref")
    assert refused(result, f"hyp has 3 texts and ref 2: {mismatch}")
    result = rouge(None, "--hypothesis", "gen", "--baseline", "ref")
    assert refused(result, f"T- lines of gen has 3 texts and ref 2: {mismatch}")

    missing = "has no T- lines to score against; add --reference"
    assert refused(rouge(None, "--hypothesis", "hyp"), f"hyp {missing}")
    assert refused(rouge(None, "--hypothesis", "no T"), f"no T {missing}")
    result = rouge(None, "--hypothesis", "gen", "--baseline", "other T")
    assert refused(result, "--hypothesis and --baseline have different T- lines; add --reference")
    result = rouge("gen", "--hypothesis", "hyp")
    assert refused(result, "gen is fairseq-generate's output, no reference")

    assert "gap lacks sentence 1: " in rouge("ref", "--hypothesis", "gap").message
    assert "cut lacks sentence 3: " in rouge("ref", "--hypothesis", "cut").message
    assert "two has S-2 twice" in rouge("ref", "--hypothesis", "two").message
    assert "hypotheses has H-2 twice" in rouge("ref", "--hypothesis", "hypotheses").message
    assert refused(rouge("ref", "--hypothesis", "empty"), "empty is empty")
    assert "latin is not UTF-8 text" in rouge("ref", "--hypothesis", "latin").message
    assert "No such file" in rouge("ref", "--hypothesis", "nowhere").message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("meteor", *PLAIN), "invalid choice: 'meteor'"),
        (("rouge", *PLAIN, "--tokenize", "13a"), "--tokenize cannot be used with --metric rouge"),
        (("bleu", *PLAIN, "--rouge-no-stem"), "--rouge-no-stem cannot be used with --metric bleu"),
        (("bleu", *PLAIN, "--rouge-split", ""), "--rouge-split cannot be used with --metric bleu"),
        (
            ("bleu", *PLAIN, "--compound-split", "--tokenize", "13a"),
            "--compound-split is for tokenised text",
        ),
        (
            ("bleu", *PLAIN, "--detokenize", "en", "--compound-split"),
            "--detokenize cannot be used with --tokenize none or --compound-split",
        ),
        (
            ("bleu", "--detokenize", "en", "--hypothesis", "hyp", "--detokenize-reference"),
            "--detokenize-reference is for --detokenize LANGUAGE and --reference FILE",
        ),
    ],
)
def test_options_that_do_not_go_together(score, texts, arguments, message):
    result = score(*arguments)
    assert result.status == 2 and message in result.err.splitlines()[-1]
