"""Systems beside the attention baseline, as sacreBLEU's own command line compares them."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from run_folders import Page, generated, write_run
from sacrebleu import BLEU

from fairseq_convattn.recipes.command import Command, Stage
from fairseq_convattn.recipes.runner import Runner
from fairseq_convattn.report.__main__ import main
from fairseq_convattn.report.systems import Section, read_sections
from fairseq_convattn.report.tables import MISSING, parts, significance_part, warnings
from fairseq_convattn.run_records import write_json
from fairseq_convattn.scoring.conventions import split_compounds

WORDS = "ein Mann fährt Rad well-known auf the-grass , und X-Y schläft .".split()
SENTENCES = 40
SIGNATURE = r"BLEU\|nrefs:1\|bs:1000\|seed:12345\|case:mixed\|eff:no\|tok:none\|smooth:exp\|.*"


def reference() -> list[str]:
    choice = random.Random(0)
    return [" ".join(choice.choices(WORDS, k=choice.randint(5, 12))) for _ in range(SENTENCES)]


def noisy(seed: int, noise: float) -> list[str]:
    """The reference with some of its words replaced."""
    choice = random.Random(seed)
    return [
        " ".join(choice.choice(WORDS) if choice.random() < noise else w for w in line.split())
        for line in reference()
    ]


def scored(
    folder: Path, texts: dict[str, list[str]], *options: str, name: str = "ref", **run: object
) -> Path:
    """A run that has written ``texts`` by test set, and scored them thrice."""
    write_run(folder, **run)
    commands = []
    metrics = [["--detokenize", "de"], ["--tokenize", "none", *options], ["--tokenize", "13a"]]
    for subset, lines in texts.items():
        output, target = folder / f"generated.{subset}.txt", folder.parent / f"{name}.{subset}.de"
        given = os.path.relpath(target)
        saved(target, reference())
        # D- lines are something else than what is scored
        text = re.sub(r"(?m)^(D-.*)$", r"\1 detokenised", generated(lines))
        output.write_text(text, encoding="utf-8")
        for metric in metrics:
            words = ["python", "scripts/cli.py", "score", "--metric", "bleu", *metric]
            words += ["--reference", given, "--hypothesis", str(output), "--format", "json"]
            commands.append(Command(words, stdout=folder / "scores.json"))
    Runner(folder, []).finish(Stage("score", commands), "2026", 1.0)
    return folder


def section(*folders: Path) -> Section:
    (found,) = read_sections(folders)
    return found


def rows(*folders: Path) -> list[list[str]] | None:
    part = significance_part(section(*folders))
    return part and part.table.rows


def saved(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_agrees_with_the_command_line_of_sacrebleu(tmp_path):
    """On two test sets, where one system is better and the other is not."""
    texts = {
        "attention": {"test": noisy(1, 0.3), "test1": noisy(2, 0.3)},
        "dynamic": {"test": noisy(3, 0.15), "test1": noisy(4, 0.3)},
    }
    runs = [scored(tmp_path / mixer, texts[mixer], mixer=mixer) for mixer in texts]
    found = section(*runs).comparisons
    assert list(found) == [("ref.test.de", "dynamic"), ("ref.test1.de", "dynamic")]
    environment = {k: v for k, v in os.environ.items() if k != "SACREBLEU_SEED"}
    for comparison, subset in zip(found.values(), ("test", "test1"), strict=True):
        target = saved(tmp_path / "reference.txt", reference())
        systems = [saved(tmp_path / f"{mixer}.txt", texts[mixer][subset]) for mixer in texts]
        command = [sys.executable, "-m", "sacrebleu", target, "-i", *systems, "-m", "bleu"]
        command += ["--tokenize", "none", "--force", "--paired-bs", "--format", "json"]
        printed = subprocess.run(
            command, capture_output=True, check=True, text=True, env=environment
        )
        before, after = (system["BLEU"] for system in json.loads(printed.stdout))
        assert comparison.baseline == pytest.approx(before["score"])
        assert comparison.score == pytest.approx(after["score"])
        assert comparison.p_value == pytest.approx(after["p_value"])
        assert comparison.seed == 1 and re.fullmatch(SIGNATURE, comparison.signature)
    better, alike = found.values()
    assert better.p_value < 0.05 < alike.p_value < 1


@pytest.mark.parametrize("option", ["--compound-split", "--lowercase"])
def test_texts_are_scored_as_the_recipe_scores_them(tmp_path, option):
    texts = {"attention": noisy(1, 0.3), "dynamic": [line.lower() for line in noisy(3, 0.2)]}
    runs = [scored(tmp_path / m, {"test": texts[m]}, option, mixer=m) for m in texts]
    (comparison,) = section(*runs).comparisons.values()
    change = {"--compound-split": split_compounds, "--lowercase": str.lower}[option]
    lines, references = ([change(line) for line in one] for one in (texts["dynamic"], reference()))
    metric = BLEU(tokenize="none", force=True)
    assert comparison.score == metric.corpus_score(lines, [references]).score
    ending = {"--compound-split": "|compounds:split", "--lowercase": "|case:lc|"}[option]
    assert ending in comparison.signature
    plain = metric.corpus_score(texts["dynamic"], [reference()])
    assert comparison.score != pytest.approx(plain.score)


def test_the_lowest_seed_that_both_have_counts(tmp_path):
    """Not the order in which runs are given, and no seed of which one system wrote nothing."""
    runs = [
        scored(tmp_path / f"{mixer}{seed}", {"test": noisy(seed, noise)}, mixer=mixer, seed=seed)
        for mixer, noise in (("attention", 0.3), ("dynamic", 0.2))
        for seed in (4, 3, 2)
    ]
    (tmp_path / "attention2" / "generated.test.txt").unlink()
    runs.append(write_run(tmp_path / "dynamic1", seed=1))
    (row,) = rows(*runs)
    scores = [
        BLEU(tokenize="none", force=True).corpus_score(noisy(3, noise), [reference()]).score
        for noise in (0.2, 0.3)
    ]
    assert row[:5] == ["ref.test.de", "dynamic", "3", *(f"{score:.2f}" for score in scores)]
    assert row[5] == f"{scores[0] - scores[1]:+.2f}"


def test_the_baseline_is_the_attention_without_options(tmp_path):
    window = {"options": "--attention-window 3", "command": "x -- --attention-window 3"}
    given = {"window": {"mixer": "attention", **window}, "plain": {"mixer": "attention"}, "a": {}}
    runs = [scored(tmp_path / name, {"test": noisy(1, 0.2)}, **given[name]) for name in given]
    found = section(*runs)
    assert found.baseline.runs[0].folder.name == "plain"
    labels = [label for _, label in found.comparisons]
    assert labels == ["attention, --attention-window 3", "dynamic"]


def test_outputs_that_are_the_same_do_not_differ(tmp_path):
    runs = [scored(tmp_path / m, {"test": noisy(1, 0.2)}, mixer=m) for m in ("attention", "tisa")]
    (row,) = rows(*runs)
    assert row[5:] == ["+0.00", "1.0000"]


def test_what_cannot_be_compared_is_missing(tmp_path, monkeypatch):
    """No output, another reference, an output of another length."""
    texts = {"test": noisy(1, 0.2)}
    runs = [
        scored(tmp_path / "attention", texts, mixer="attention"),
        scored(tmp_path / "dynamic", texts),
        scored(tmp_path / "other", texts, name="other", mixer="tisa"),
        scored(tmp_path / "short", {"test": noisy(1, 0.2)[:9]}, mixer="lightweight"),
        scored(tmp_path / "seed", texts, mixer="composite", seed=2),
        write_run(tmp_path / "going", options="--conv-bias", trained=False, log=None),
    ]
    (tmp_path / "other.test.de").write_text("anders\n" * SENTENCES, encoding="utf-8")
    monkeypatch.chdir(tmp_path)  # the report is made elsewhere than the runs
    found = {row[1]: row[2:] for row in rows(*runs)}
    assert found.pop("dynamic, --dropout 0.3")[0] == "1"
    assert list(found) == ["tisa", "lightweight", "composite", "dynamic, --conv-bias"]
    assert set(map(tuple, found.values())) == {(MISSING,) * 5}


@pytest.mark.parametrize("missing", ["baseline", "reference", "score"])
def test_without_a_baseline_there_is_no_section(tmp_path, missing):
    mixers = ("lightweight" if missing == "baseline" else "attention", "dynamic")
    runs = [scored(tmp_path / m, {"test": noisy(1, 0.2)}, mixer=m) for m in mixers]
    if missing == "reference":
        (tmp_path / "ref.test.de").unlink()
    elif missing == "score":
        (runs[0] / "stages" / "score.json").unlink()
    assert rows(*runs) is None
    assert [part.title for part in parts(section(*runs))] == ["Scores", "Speed and memory"]
    noted = any("test.de" in text for text in warnings(section(*runs)))
    assert noted == (missing == "reference")


def test_page_and_markdown_have_the_table_and_the_signature(tmp_path, capsys, caplog):
    caplog.set_level("INFO")
    texts = {"attention": noisy(1, 0.3), "dynamic": noisy(3, 0.35)}
    runs = [scored(tmp_path / m, {"test": texts[m]}, mixer=m) for m in texts]
    main([*map(str, runs), "--output", str(tmp_path / "page.html")])
    printed, errors = capsys.readouterr()
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    (row,) = rows(*runs)
    assert page.row("ref.test.de") == row and row[5].startswith("\u2212")
    assert page.row("test set")[4] == "BLEU of attention"
    assert f"| {' | '.join(row)} |" in printed
    ((_, signature),) = significance_part(section(*runs)).notes
    assert signature in page.text and f"- `{signature}`" in printed
    for run in runs:
        content = json.loads((run / "results.json").read_text(encoding="utf-8"))
        write_json(content | {"smoke": True}, run / "results.json")
    assert rows(*runs) is None  # as the scores of smoke tests mean nothing
    (tmp_path / "ref.test.de").unlink()
    assert not any("test.de" in text for text in warnings(section(*runs)))
    assert not [record for record in caplog.records if record.name == "sacrebleu"]
    assert errors == f"wrote {tmp_path / 'page.html'}\n"
