"""Results to commit and the table that is made of them."""

import json
import shlex
from pathlib import Path

import pytest
from run_folders import LOG, START, write_run

from fairseq_convattn.recipes import catalogue
from fairseq_convattn.recipes.__main__ import command_line, resolve
from fairseq_convattn.recipes.record import results
from fairseq_convattn.report.__main__ import main
from fairseq_convattn.run_records import write_json

ENVIRONMENT = {
    "versions": {"torch": "2.13.0"},
    "git": {"commit": "0123456789abcdef", "changed": True},
    "processor": "A | B",
    "gpus": [],
    "variables": {"TORCH_HOME": "/home/someone"},
}


def full_run(folder: Path, source: str = "--source ", **more) -> Path:
    """A run with everything in its results that a real one has."""
    command = (
        f"python -m fairseq_convattn.recipes multi30k --mixer dynamic {source}{folder}/raw "
        f"--output={folder} -- --num-workers 0 --weight-norm l2 "
        f"--finetune-from-model {folder}/model.pt --bpe-codes=../../codes {folder}/lr=1/x.pt ~/y.pt"
    )
    scores = {"test2 BLEU": 33.0, "test BLEU": 41.5, "test BLEU, detokenised": 40.25}
    log = f"{LOG}{START}fairseq_cli.train | done training in 9.0 seconds\n"
    run = write_run(folder, scores=scores, log=log, command=command, precision="bfloat16")
    stage = json.loads((run / "stages" / "train.json").read_text())
    write_json({**stage, "environment": ENVIRONMENT}, run / "stages" / "train.json")
    write_json({"environment": {"processor": "another"}}, run / "stages" / "score.json")
    content = json.loads((run / "results.json").read_text())
    for score in content["scores"]:
        score["published"] = score["published"] if score["name"] == "test BLEU" else {}
    write_json(content | more, run / "results.json")
    return run


def cells(line: str) -> list[str]:
    """Of a row, where every bar that is not escaped ends a cell."""
    kept = line.replace(r"\|", "!").strip("|").split("|")
    return [cell.strip().replace("!", "|") for cell in kept]


@pytest.mark.parametrize("source", ["--source ", "--source="])
def test_from_runs_to_a_table(tmp_path, capsys, source):
    (tmp_path / "runs").mkdir()
    run = full_run(tmp_path / "runs" / "multi30k-dynamic-seed1", source, unknown_key=1)
    main([str(run), "--collect", str(tmp_path / "docs" / "results")])
    (path,) = (tmp_path / "docs" / "results").iterdir()
    assert path.name == "multi30k-dynamic-seed1.json"
    assert "someone" not in path.read_text() and str(tmp_path) not in path.read_text()
    collected = json.loads(path.read_text())
    assert collected["validation_perplexity"] == [[200, 188.67], [300, 64.5]]
    assert collected["validation_loss"] == [[200, 8.1], [300, 8.1]]
    assert collected["ended_by"] == "max-epoch"
    main(["--table", str(path)])
    _, table, notes, _, commands = capsys.readouterr().out.strip().split("\n\n")
    heads, _, *rows = map(cells, table.splitlines())
    *published, row = (dict(zip(heads, cells, strict=True)) for cells in rows)
    given = "--weight-norm l2 --finetune-from-model model.pt --bpe-codes=codes x.pt y.pt"
    assert heads[5:7] == ["test BLEU [1]", "test2 BLEU [1]"]
    assert row == {
        **{"run": "1", "system": f"dynamic, {given}, seed 1"},
        **{"parameters": "91,264", "updates": "300", "precision": "bfloat16"},
        "test BLEU [1]": "41.50 [41.00, 42.00] (+11.80)",
        "test2 BLEU [1]": "33.00 [32.50, 33.50]",
        **{"time": "50 min [3]", "commit": "0123456, with changes"},
    }
    assert [{name: cell for name, cell in line.items() if cell} for line in published] == [
        {"system": "dynamic, published [2]", "test BLEU [1]": "29.70"},
        {"system": "attention, published [2]", "test BLEU [1]": "29.30"},
    ]
    assert notes.splitlines() == [
        "- [1] `BLEU|nrefs:1|case:mixed|tok:none|version:2.6.0`",
        "- [2] Wu et al. 2019",
        r"- [3] A \| B",
    ]
    command = "python -m fairseq_convattn.recipes multi30k --mixer dynamic --source DIR --"
    assert commands == f"1. `{command} --num-workers 0 {given} --bf16`"


@pytest.mark.parametrize(
    ("given", "precision", "printed"),
    [
        ("", "float32", " -- --fp32"),
        (" -- --lr 1", "float16", " -- --lr 1 --fp16"),
        (" -- --memory-efficient-bf16", "bfloat16", " -- --memory-efficient-bf16"),
        ("", None, ""),
    ],
)
def test_commands_repeat_the_precision(tmp_path, capsys, given, precision, printed):
    command = "python -m fairseq_convattn.recipes multi30k --mixer dynamic"
    run = write_run(tmp_path / "a", scores={"x": 1.0}, command=command + given, precision=precision)
    main([str(run), "--collect", str(tmp_path)])
    main(["--table", str(tmp_path / "a.json")])
    assert f"1. `{command}{printed}`" in capsys.readouterr().out


def test_all_scores_stand_where_none_is_published(tmp_path, capsys):
    given = {"published": {}, "unconfirmed": "the schedule"}
    run = write_run(tmp_path / "a", scores={"one": 1.0, "two": 2.0}, **given)
    main([str(run), "--collect", str(tmp_path)])
    main(["--table", str(tmp_path / "a.json")])
    _, table, *_, note = capsys.readouterr().out.strip().split("\n\n")
    assert "the schedule" in note
    heads, _, row = map(cells, table.splitlines())
    assert heads[5:7] == ["one [1]", "two [1]"]
    assert row[5:7] == ["1.00 [0.50, 1.50]", "2.00 [1.50, 2.50]"]


def test_a_baseline_of_a_recipe_is_a_row(tmp_path, capsys):
    recipe, run = catalogue.RECIPES["samsum"], tmp_path / "a"
    command = ["samsum", "--mixer", "dynamic", "--output", str(run)]
    settings = resolve(command_line().parse_args(command), recipe, [])
    run.mkdir()
    for number, name in enumerate(("", ".unstemmed", ".longest-3"), 1):
        scores = {"rouge1": {"score": number, "confidence": [0, 9]}}
        write_json({"signature": "ROUGE", "scores": scores}, run / f"scores.test{name}.json")
    content = results(shlex.join(command), recipe, settings, {}, recipe.scores(settings))
    write_json(content, run / "results.json")
    main([str(run), "--collect", str(tmp_path)])
    main(["--table", str(tmp_path / "a.json")])
    table = capsys.readouterr().out.split("\n\n")[1]
    heads, _, *rows = map(cells, table.splitlines())
    assert heads[5:7] == ["test rouge1 [1]", "time"]
    assert [(row[1], row[5]) for row in rows] == [
        ("lightweight, published [2]", "33.19"),
        ("dynamic, published [2]", "33.79"),
        ("longest-3, baseline", "3.00 [0.00, 9.00]"),
        ("dynamic, seed 1", "1.00 [0.00, 9.00] (\u221232.79)"),
    ]


def test_a_resumed_training_is_called_so(tmp_path, capsys):
    run = write_run(tmp_path / "a", scores={"one": 1.0}, log=LOG + LOG)
    main([str(run), "--collect", str(tmp_path)])
    main(["--table", str(tmp_path / "a.json")])
    assert "| 1 h 40 min in 2 sessions" in capsys.readouterr().out


def test_every_corpus_has_a_table(tmp_path, capsys):
    for name, title in (("a", "First"), ("b", "Second"), ("c", "First")):
        run = write_run(tmp_path / name, scores={"one": 1.0}, published={}, title=title)
        main([str(run), "--collect", str(tmp_path)])
    main(["--table", *(str(tmp_path / f"{name}.json") for name in "abc")])
    _, first, runs, second, others, *_ = capsys.readouterr().out.strip().split("\n\n")
    assert (first, second) == ("### First", "### Second")
    assert [[cells(line)[0] for line in x.splitlines()[2:]] for x in (runs, others)] == [
        ["1", "3"],
        ["2"],
    ]


def test_runs_without_scores_that_count_are_not_collected(tmp_path):
    good = full_run(tmp_path / "good")
    for name, changes, message in (
        ("smoke", {"smoke": True}, "smoke is a smoke test"),
        ("going", {"scores": []}, "going has no scores yet"),
    ):
        bad = full_run(tmp_path / name, **changes)
        with pytest.raises(SystemExit, match=f"^error: .*{message}[^\n]*$"):
            main([str(good), str(bad), "--collect", str(tmp_path / "docs")])
        assert not (tmp_path / "docs").exists()


def test_collected_results_are_not_replaced(tmp_path):
    run = full_run(tmp_path / "a")
    other = full_run(tmp_path / "b")
    (tmp_path / "a.json").write_text("mine")
    unfinished = json.dumps(json.loads((run / "results.json").read_text()) | {"scores": []})
    with pytest.raises(SystemExit, match="a.json is there already"):
        main([str(other), str(run), "--collect", str(tmp_path)])
    assert (tmp_path / "a.json").read_text() == "mine" and not (tmp_path / "b.json").exists()
    damaged = unfinished.replace('"scores": []', '"scores": [{"name": "x"}]')
    for text, message in (
        ("mine", "is damaged"),
        (unfinished, "has no scores"),
        (damaged, "is damaged: a score needs name, score"),
    ):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(SystemExit, match=f"^error: .*a.json {message}"):
            main(["--table", str(tmp_path / "a.json")])


def test_options_of_the_page_do_not_go_with_a_table(tmp_path, capsys):
    for page in (("--output", "t.md"), ("--samples", "3")):
        for instead in (("--table",), ("--collect", str(tmp_path))):
            with pytest.raises(SystemExit):
                main([str(tmp_path), *instead, *page])
            assert "--output and --samples are for the page" in capsys.readouterr().err
