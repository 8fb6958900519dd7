"""GLUE's rows, pieces, metrics and tables."""

import dataclasses
import importlib.util
import math
from pathlib import Path

import pytest
from conftest import ROOT

from fairseq_convattn.glue import binarising
from fairseq_convattn.glue.binarising import Pieces, binarise
from fairseq_convattn.glue.metrics import require_libraries, score
from fairseq_convattn.glue.reading import read_examples
from fairseq_convattn.glue.report import summary, table
from fairseq_convattn.glue.tasks import TASKS, GlueError


def refused_file(name: str, lines: list[str], folder: Path) -> str:
    path = folder / "file.tsv"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    with pytest.raises(GlueError) as caught:
        read_examples(TASKS[name], path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_read_is_named_with_its_line(tmp_path):
    good = "1\tpremise\thypothesis\tentailment"
    header = "index\tsentence1\tsentence2\tlabel"
    assert "line 3: 3 columns, not 4" in refused_file("RTE", [header, good, "a\tb\tc"], tmp_path)
    assert "line 2: 5 columns" in refused_file("RTE", [header, f"{good}\tmore"], tmp_path)
    wrong = refused_file("RTE", [header, good, good.replace("entailment", "neutral")], tmp_path)
    assert "line 3: label is 'neutral', not one of entailment, not_entailment" in wrong
    assert "line 3: not UTF-8" in refused_file("RTE", [header, good, "\udcff"], tmp_path)
    assert "has no column sentence1" in refused_file("RTE", ["a\tb\tc\td", good], tmp_path)
    assert "has no examples" in refused_file("RTE", [header], tmp_path)
    assert "has no column sentence1" in refused_file("RTE", [], tmp_path)
    assert "line 1: acceptable is 'label'" in refused_file("CoLA", ["a\tlabel\tc\td"], tmp_path)
    for score_ in ("5.1", "-0.1", "nan", "high"):
        lines = ["sentence1\tsentence2\tscore", f"a\tb\t{score_}"]
        assert f"line 2: score is '{score_}'" in refused_file("STS-B", lines, tmp_path)


def test_a_sentence_may_be_empty(tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n\t1\n a \t0\n")
    found = read_examples(TASKS["SST-2"], tmp_path / "dev.tsv")
    assert found == ([("",), (" a ",)], ["1", "0"], 0)
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
    assert found == ([("the cat", "a mat")] * 2, ["1", "1"], 2)
    binarise(["QQP"], tmp_path, tmp_path / "bin", Pieces(*pretrained_files), sample=True)
    said = capsys.readouterr().out
    assert f"{tmp_path / 'QQP/train.tsv'} has 2 rows with too few or too many columns" in said
    assert f"{tmp_path}/QQP/train.tsv has 2 examples, not 363,846 or 363,849" in said


def test_a_release_of_another_size_is_refused(miniature, pretrained_files, tmp_path, monkeypatch):
    pieces = Pieces(*pretrained_files)
    with pytest.raises(GlueError, match="RTE/train.tsv has 8 examples, not 2,490 .*--sample"):
        binarise(["RTE"], miniature[0], tmp_path / "bin", pieces)
    rte = dataclasses.replace(TASKS["RTE"], examples={"train": (8,), "dev": (8,)})
    monkeypatch.setitem(binarising.TASKS, "RTE", rte)
    binarise(["RTE"], miniature[0], tmp_path / "bin", pieces)


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
    words.write_text("")
    with pytest.raises(GlueError, match="only 0 of the 0 entries"):
        Pieces(model, words)
    with pytest.raises(GlueError, match="is no SentencePiece model"):
        Pieces(dictionary, dictionary)
    with pytest.raises(GlueError, match="is no dictionary of fairseq"):
        Pieces(model, ROOT / "pyproject.toml")


# metrics

LABELS, PREDICTIONS = [1, 1, 1, 0, 0], [1, 1, 0, 0, 1]  # 2 true, 1 false positives


def test_metrics_by_hand():
    assert score(TASKS["CoLA"], LABELS, PREDICTIONS) == {
        "matthews": pytest.approx(100 * (2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2))
    }
    for name in ("MRPC", "QQP"):
        found = score(TASKS[name], LABELS, PREDICTIONS)
        assert found == {"accuracy": pytest.approx(60), "f1": pytest.approx(100 * 4 / 6)}
    for name in ("SST-2", "MNLI", "QNLI", "RTE", "WNLI"):
        assert score(TASKS[name], LABELS, PREDICTIONS) == {"accuracy": pytest.approx(60)}
    assert score(TASKS["STS-B"], [1, 2, 3], [1, 2, 4]) == {
        "pearson": pytest.approx(100 * 3 / math.sqrt(2 * 42 / 9)),
        "spearman": pytest.approx(100),
    }


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["CoLA", "MRPC", "STS-B"])
def test_constant_predictions_have_no_correlation(name):
    labels = [0.5, 1.0, 2.0] if name == "STS-B" else [1, 0, 1]
    found = score(TASKS[name], labels, [0, 0, 0])
    found.pop("accuracy", None)
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
    lines = [line.split("  ") for line in table(seeds).splitlines()]
    assert [cell.strip() for cell in lines[0] if cell.strip()] == [
        *("seed", "epoch", "accuracy matched", "accuracy mismatched"),
    ]
    assert "7 2 60.00 60.00".split() in [" ".join(line).split() for line in lines]
    assert "median 60.00 20.00".split() in [" ".join(line).split() for line in lines]
    assert summary(seeds[:1])["accuracy_matched"]["std"] is None
    assert table(seeds[:1]).splitlines()[-1].split() == ["std", "-", "-"]


@pytest.mark.parametrize("absent", ["sklearn", "scipy"])
def test_without_its_libraries_fine_tuning_says_what_to_install(monkeypatch, absent):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == absent else found(name)
    )
    package = {"sklearn": "scikit-learn", "scipy": "scipy"}[absent]
    with pytest.raises(GlueError, match=f"^GLUE's metrics need {package}: pip install {package}$"):
        require_libraries()
