"""GLUE's rows, pieces, metrics and tables."""

import math

import pytest
from conftest import ROOT

from fairseq_convattn.glue import binarising
from fairseq_convattn.glue.binarising import Pieces, binarise
from fairseq_convattn.glue.finetuning import Run, finetune
from fairseq_convattn.glue.metrics import score, summary, table
from fairseq_convattn.glue.reading import read_examples
from fairseq_convattn.glue.tasks import TASKS, GlueError

HEADER, GOOD = "index\tsentence1\tsentence2\tlabel", "1\tpremise\thypothesis\tentailment"


@pytest.mark.parametrize(
    ("task", "lines", "message"),
    [
        ("RTE", [HEADER, GOOD, "a\tb\tc"], "line 3: 3 columns, not 4"),
        ("RTE", [HEADER, GOOD.replace("entailment", "neutral")], "line 2: label is 'neutral', not"),
        ("RTE", [HEADER, GOOD, "\udcff"], "line 3: not UTF-8"),
        ("RTE", ["a\tb\tc\td", GOOD], "has no column sentence1"),
        ("RTE", [HEADER], "has no examples"),
        ("RTE", [], "has no column sentence1"),
        ("CoLA", ["a\tlabel\tc\td"], "line 1: acceptable is 'label'"),
        ("STS-B", ["sentence1\tsentence2\tscore", "a\tb\t5.1"], "line 2: score is '5.1'"),
        ("STS-B", ["sentence1\tsentence2\tscore", "a\tb\tnan"], "line 2: score is 'nan'"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(tmp_path, task, lines, message):
    path = tmp_path / "file.tsv"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    with pytest.raises(GlueError, match=f"{path}.*{message}"):
        read_examples(TASKS[task], path)


def test_rows_of_a_test_set_are_in_order_and_complete(tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text("index\tsentence\n0\tone\n1\ttwo\n")
    assert read_examples(TASKS["CoLA"], path, labelled=False) == ([("one",), ("two",)], [])
    path.write_text("index\tsentence\n0\tone\n2\ttwo\n")
    with pytest.raises(GlueError, match="line 3: index is '2', not 1"):
        read_examples(TASKS["CoLA"], path, labelled=False)
    path.write_text("index\tquestion1\tquestion2\n0\tone\n")
    with pytest.raises(GlueError, match="line 2: 2 columns, not 3"):
        read_examples(TASKS["QQP"], path, labelled=False)


def test_a_sentence_may_be_empty_and_a_file_as_on_windows(tmp_path):
    (tmp_path / "dev.tsv").write_bytes(b"\xef\xbb\xbfsentence\tlabel\r\n\t1\r\n a \t0\n")
    found = read_examples(TASKS["SST-2"], tmp_path / "dev.tsv")
    assert found == ([("",), (" a ",)], ["1", "0"])
    (tmp_path / "dev.tsv").write_text("gj04\t1\t*\t\n")
    assert read_examples(TASKS["CoLA"], tmp_path / "dev.tsv").sentences == [("",)]


def test_malformed_rows_of_qqp_are_counted_and_reported(tmp_path, pretrained_files, capsys):
    """Some questions of the original file hold a newline, which makes two short rows."""
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    good, halves = "1\t2\t3\tthe cat\ta mat\t1", ["1\t2\t3\tthe", "cat\ta mat\t0"]
    for file in ("train", "dev"):
        path = tmp_path / "QQP" / f"{file}.tsv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join([header, good, *halves, good, ""]))
    found = read_examples(TASKS["QQP"], tmp_path / "QQP" / "train.tsv")
    assert found == ([("the cat", "a mat")] * 2, ["1", "1"])
    binarise(["QQP"], tmp_path, tmp_path / "bin", Pieces(*pretrained_files), sample=True)
    said = capsys.readouterr().out
    assert f"{tmp_path / 'QQP/train.tsv'} has 2 rows with too few or too many columns" in said
    assert f"{tmp_path}/QQP/train.tsv has 2 examples, not 363,846 or 363,849" in said


@pytest.mark.parametrize(("text", "known"), [("the cat", True), ("ξξξ ψψψ", False)])
def test_text_that_a_model_hardly_knows(text, known, tmp_path, pretrained_files, capsys):
    for file in ("train", "dev"):
        path = tmp_path / "RTE" / f"{file}.tsv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"index\tsentence1\tsentence2\tlabel\n0\t{text}\t{text}\tentailment\n")
    binarise(["RTE"], tmp_path, tmp_path / "bin", Pieces(*pretrained_files), sample=True)
    assert ("hardly knows this text" in capsys.readouterr().out) != known


def test_a_release_of_another_size_is_refused(miniature, pretrained_files, tmp_path):
    with pytest.raises(GlueError, match="RTE/train.tsv has 8 examples, not 2,490 .*--sample"):
        binarise(["RTE"], miniature[0], tmp_path / "bin", Pieces(*pretrained_files))


def test_nothing_is_written_unless_all_tasks_can_be(miniature, pretrained_files, tmp_path):
    (tmp_path / "WNLI").mkdir()
    (tmp_path / "RTE").symlink_to(miniature[0] / "RTE")
    (tmp_path / "WNLI" / "train.tsv").write_text("no\theader\n")
    pieces = Pieces(*pretrained_files)
    with pytest.raises(GlueError, match="WNLI"):
        binarise(["RTE", "WNLI"], tmp_path, tmp_path / "bin", pieces, sample=True)
    assert not (tmp_path / "bin").exists()


def test_model_and_dictionary_must_belong_together(pretrained_files, tmp_path):
    model, dictionary = pretrained_files
    words = tmp_path / "dict.txt"
    words.write_text("".join(f"word{i} 1\n" for i in range(50)))
    with pytest.raises(GlueError, match="only 0 of the 50 entries"):
        Pieces(model, words)
    with pytest.raises(GlueError, match="is not a SentencePiece model"):
        Pieces(dictionary, dictionary)
    with pytest.raises(GlueError, match="is not a dictionary of fairseq"):
        Pieces(model, ROOT / "pyproject.toml")


@pytest.mark.parametrize("at_a_time", [1, 2, 3, 5])
def test_sentences_are_encoded_in_parts(pretrained_files, monkeypatch, at_a_time):
    pieces, sentences = Pieces(*pretrained_files), ["the cat", "", "a mat", "sat on the mat", "a"]
    expected = [pieces.dictionary.string(line) for line in pieces.encode(sentences)]
    assert len(expected) == len(sentences) and len(set(expected)) == len(sentences)
    monkeypatch.setattr(binarising, "_AT_A_TIME", at_a_time)
    assert [pieces.dictionary.string(line) for line in pieces.encode(sentences)] == expected


LABELS, PREDICTIONS = [1, 1, 1, 0, 0], [1, 1, 0, 0, 1]  # 2 true, 1 false positives


def test_metrics_by_hand():
    assert score(TASKS["CoLA"], LABELS, PREDICTIONS) == {
        "matthews": pytest.approx(100 * (2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2))
    }
    found = score(TASKS["MRPC"], LABELS, PREDICTIONS)
    assert found == {"accuracy": pytest.approx(60), "f1": pytest.approx(100 * 4 / 6)}
    assert score(TASKS["MRPC"], [0, 0], [0, 0]) == {"accuracy": 100, "f1": 0}
    assert score(TASKS["STS-B"], [1, 2, 3], [1, 2, 4]) == {
        "pearson": pytest.approx(100 * 3 / math.sqrt(2 * 42 / 9)),
        "spearman": pytest.approx(100),
    }


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["CoLA", "STS-B"])
def test_constant_predictions_have_no_correlation(name):
    labels = [0.5, 1.0, 2.0] if name == "STS-B" else [1, 0, 1]
    found = score(TASKS[name], labels, [0, 0, 0])
    assert set(found.values()) == {0.0}


def test_summary_and_table():
    seeds = [
        {"seed": seed, "epoch": 2, "scores": {"accuracy_matched": a, "accuracy_mismatched": b}}
        for seed, a, b in ((1, 50.0, 10.0), (2, 80.0, 20.0), (7, 60.0, 60.0))
    ]
    found = summary(seeds)
    assert found["accuracy_matched"]["median"] == 60
    assert found["accuracy_matched"]["std"] == pytest.approx(math.sqrt(700 / 3))
    assert (found["accuracy_mismatched"]["min"], found["accuracy_mismatched"]["max"]) == (10, 60)
    heads, *lines = (line.split() for line in table(seeds).splitlines())
    assert heads == "seed epoch accuracy matched accuracy mismatched".split()
    assert lines[2] == "7 2 60.00 60.00".split() and lines[3] == "median 60.00 20.00".split()
    assert summary(seeds[:1])["accuracy_matched"]["std"] is None
    assert table(seeds[:1]).splitlines()[-1].split() == ["std", "-", "-"]


@pytest.mark.parametrize(("absent", "package"), [("sklearn", "scikit-learn"), ("scipy", "scipy")])
def test_without_its_libraries_fine_tuning_says_what_to_install(not_installed, absent, package):
    not_installed(absent)
    with pytest.raises(GlueError, match=f"^GLUE's metrics need {package}: pip install {package}$"):
        finetune(Run(*[None] * len(Run._fields)), [1])
