"""The report of runs, from lines that fairseq wrote and folders that the recipes' runner wrote."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import ROOT, SHRUNK, train
from run_folders import (
    GPU,
    HEAD,
    LOG,
    SIGNATURE,
    START,
    Page,
    generated,
    inner,
    start,
    valid,
    write_run,
)

from fairseq_convattn.architectures.presets import ARCHITECTURE_NAMES
from fairseq_convattn.markdown import Table, table
from fairseq_convattn.recipes import catalogue
from fairseq_convattn.recipes.__main__ import command_line, resolve
from fairseq_convattn.recipes.recipe import STAGES
from fairseq_convattn.recipes.record import results
from fairseq_convattn.recipes.runner import Runner
from fairseq_convattn.report.__main__ import main
from fairseq_convattn.report.charts import mean_curve
from fairseq_convattn.report.systems import read_sections
from fairseq_convattn.report.tables import MISSING, costs_part, duration, scores_part
from fairseq_convattn.report.train_log import read_train_log
from fairseq_convattn.run_records import write_json


@pytest.fixture
def report(tmp_path, capsys):
    def write(*folders: Path, samples: int = 5) -> tuple[Page, str]:
        output = tmp_path / "report.html"
        main([*map(str, folders), "--output", str(output), "--samples", str(samples)])
        page = Page(output.read_text(encoding="utf-8"))
        output.unlink()
        return page, capsys.readouterr().out

    return write


def test_a_log_of_fairseq():
    log = read_train_log(LOG.splitlines(keepends=True))
    assert log.loss == [(100, 8.5), (200, 7.25), (300, 6.5)]
    assert log.perplexity == [(200, 188.67), (300, 64.5)]
    assert (log.updates, log.parameters, log.seconds) == (300, 91264, 3000)
    assert log.sessions == 1
    assert log.validation_loss == [(200, 8.1), (300, 8.1)]
    assert log.speeds == [9000, 7000]  # the first interval has none
    assert log.gpu_memory is None


def test_the_most_memory_of_a_gpu_that_was_not_free_is_shown(tmp_path):
    for seed, free in enumerate(("120.5", "99.5"), 1):
        log = GPU + inner(1, 8, gb_free="130.1") + inner(2, 8, gb_free=free) + inner(3, 8)
        write_run(tmp_path / str(seed), seed=seed, log=log)
    (section,) = read_sections([tmp_path / "1", tmp_path / "2"])
    assert costs_part(section).table.rows[0][6] == "40.2 GiB, GPU"


def test_a_training_that_was_taken_up_again_counts_once():
    first = [inner(100, 8), inner(200, 7), valid(200, 60), valid(300, 55), inner(400, 5)]
    second = [inner(250, 6.5), inner(300, 6.5), valid(300, 50)]
    again = HEAD.replace(START, start(2400))
    log = read_train_log(f"{HEAD}{''.join(first)}{again}{''.join(second)}".splitlines())
    assert log.loss == [(100, 8), (200, 7), (250, 6.5), (300, 6.5)]
    assert log.perplexity == [(200, 60), (300, 50)] and log.updates == 300
    assert log.seconds == 4000 + 600  # to the last line of the first, and of the second
    assert log.sessions == 2


@pytest.mark.parametrize(
    ("given", "ended_by", "validations"),
    [
        ("--max-update 1", "max-update", 1),
        ("--max-update 1 --stop-time-hours 1e-9", "max-update", 1),
        ("--max-update 9 --stop-time-hours 1e-9", "stop-time-hours", 1),
        ("--max-update 99 --patience 1 --lr 0", "patience", 2),
        ("--max-update 99 --max-epoch 1", "max-epoch", 1),
        ("--max-update 99 --lr 0 --stop-min-lr 0", "stop-min-lr", 0),
    ],
)
def test_what_ended_a_training_is_known(data, tmp_path, caplog, given, ended_by, validations):
    caplog.set_level("INFO")
    options = (*SHRUNK, "--no-save", "--log-format", "json", *given.split())
    train(data, tmp_path, "--arch", "dynamic_conv_tiny", *options)
    lines = [f"{START}{record.name} | {record.getMessage()}" for record in caplog.records]
    log = read_train_log(lines)
    assert log.ended_by == ended_by and len(log.validation_loss) == validations
    done = [line for line in lines if "done training" in line]
    assert read_train_log([x for x in lines if x not in done]).ended_by is None
    resumed = read_train_log([*lines, "+ fairseq-train", *done])
    assert resumed.ended_by == "max-epoch"


def test_a_finished_training_that_is_repeated_ended_as_before(data, tmp_path, caplog):
    caplog.set_level("INFO")
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--log-format", "json", "--max-update", "1")
    train(data, tmp_path, *given)
    caplog.clear()
    train(data, tmp_path, *given)
    lines = [f"{START}{record.name} | {record.getMessage()}" for record in caplog.records]
    assert read_train_log(lines).ended_by == "max-update"


def test_what_is_no_number_is_left_out():
    cut = inner(300, 6)[:60]
    lines = [inner(100, "nan"), inner(200, 7, "inf"), valid(200, "inf"), cut, cut + inner(300, 6)]
    log = read_train_log([*lines, "\n"])
    assert log.loss == [(200, 7)] and not log.perplexity and log.speeds == [9000]


def test_scores_stand_beside_the_published(tmp_path, report):
    """Two systems of one recipe, on the page and as Markdown."""
    dynamic = write_run(tmp_path / "a", scores={"BLEU": 29.1}, texts=["x"])
    attention = write_run(tmp_path / "b", "attention", scores={"BLEU": 29.45})
    page, printed = report(dynamic, attention)
    for found in (page.text, printed):
        assert "published figures: Wu et al. 2019" in found
    expected = ["BLEU", "dynamic", "seed 1", "29.10", "[28.60, 29.60]", "29.70", "\u22120.60"]
    assert page.row("BLEU") == expected
    assert f"| {' | '.join(expected)} |" in printed
    expected = ["", "attention", "seed 1", "29.45", "[28.95, 29.95]", "29.30", "+0.15"]
    assert page.row("", "attention") == expected
    assert SIGNATURE in page.text and f"`{SIGNATURE}`" in printed
    costs = ["91,264", "300", "64.50", "8,000", "50 min", "1.50 GiB, RAM"]
    assert page.row("dynamic", *costs)[-2] == "166.7"  # 2,000 sentences in 4 + 8 seconds
    assert page.row("attention", *costs)[-2] == MISSING
    heads = [attributes for tag, attributes in page.tags if tag == "th" and "scope" in attributes]
    assert {head["scope"] for head in heads} >= {"col", "row"}
    assert f"fairseq-train data/bin --seed 1 --save-dir {dynamic}/checkpoints" in page.text
    assert len([tag for tag, _ in page.tags if tag == "details"]) == 2


def test_seeds_are_one_system_with_mean_and_spread(tmp_path, report):
    scores = (29.0, 30.0, 29.3)
    folders = [
        write_run(tmp_path / str(i), seed=i, scores={"BLEU": score})
        for i, score in enumerate(scores, 1)
    ]
    other = write_run(tmp_path / "o", seed=1, scores={"BLEU": 28.0}, options="--weight-norm l2")
    page, printed = report(*folders, other)
    labels = ["dynamic, --dropout 0.3", "dynamic, --weight-norm l2"]
    deviation = (sum((s - sum(scores) / 3) ** 2 for s in scores) / 2) ** 0.5
    assert page.row("BLEU", labels[0])[2:5] == ["3", "29.43", f"\u00b1 {deviation:.2f}"]
    assert page.row("", labels[1])[2:5] == ["seed 1", "28.00", "[27.50, 28.50]"]


def test_of_several_seeds_the_one_that_is_least_far_counts(tmp_path):
    write_run(tmp_path / "done")
    write_run(tmp_path / "going", seed=2, trained=False, log=LOG + inner(350, 6))
    write_run(tmp_path / "behind", seed=3, trained=False, log=LOG + inner(325, 6))
    (section,) = read_sections([tmp_path / name for name in ("done", "going", "behind")])
    assert costs_part(section).table.rows[0][2] == "325 of 400, not finished"


def test_costs_of_several_seeds(tmp_path):
    """The fewest updates, the mean of 3,000 and 3,100 seconds, the most memory."""
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", seed=2, log=LOG + inner(310, 6), memory=1 << 29)
    (section,) = read_sections([tmp_path / "a", tmp_path / "b"])
    (row,) = costs_part(section).table.rows
    assert (row[2], row[5], row[6]) == ("300", "51 min", "1.50 GiB, RAM")


def test_durations_in_seconds_minutes_and_hours():
    times = {119: "119 s", 121: "2 min", 3500: "58 min", 7330: "2 h 2 min"}
    assert {seconds: duration(seconds) for seconds in times} == times


def test_stages_are_in_the_order_in_which_they_ended(tmp_path):
    run = write_run(tmp_path / "a")
    for name in sorted(STAGES):
        ended = f"2026-11-21T0{STAGES.index(name)}:00:00+00:00"
        write_json({"finished": ended}, run / "stages" / f"{name}.json")
    (section,) = read_sections([run])
    assert tuple(section.runs[0].stages) == STAGES


def test_precisions_are_systems_of_their_own(tmp_path):
    folders = [
        write_run(tmp_path / precision, seed=seed, precision=precision)
        for seed, precision in enumerate(("bfloat16", "float32"), 1)
    ]
    (section,) = read_sections(folders)
    labels = [system.label for system in section.systems]
    assert labels == ["dynamic, bfloat16", "dynamic, float32"]


def test_the_same_once_more_is_no_further_seed_and_other_devices_no_other_system(tmp_path):
    folders = [write_run(tmp_path / name, scores={"BLEU": 29}) for name in ("first", "again")]
    folders.append(write_run(tmp_path / "seed2", seed=2, options="--dropout 0.3 --num-workers 4"))
    record = json.loads((folders[2] / "stages" / "train.json").read_text())
    record["commands"] = [line.replace("freq 16", "freq 128") for line in record["commands"]]
    write_json(record, folders[2] / "stages" / "train.json")
    (section,) = read_sections(folders)
    found = {system.label: len(system.runs) for system in section.systems}
    assert found == {"dynamic, first": 2, "dynamic, again": 1}


def test_folders_of_one_name_are_told_apart(tmp_path):
    folders = [write_run(tmp_path / where / "run") for where in ("old", "new")]
    (section,) = read_sections(folders)
    assert [system.label for system in section.systems] == ["dynamic, old/run", "dynamic, new/run"]


def test_what_is_missing_is_said_and_never_zero(tmp_path, report):
    """Training under way, nothing logged yet, a stage alone, no published figure, one of several
    seeds."""
    runs = [
        write_run(tmp_path / "going", "dynamic", trained=False),
        write_run(tmp_path / "begun", "tisa", trained=False, log=None),
        write_run(tmp_path / "done", "composite", scores={"BLEU": 20.0}),
        write_run(tmp_path / "mute", "attention", log=HEAD),
        write_run(tmp_path / "seed2", "composite", 2),
    ]
    page, printed = report(*runs)
    assert page.row("BLEU")[1:] == ["dynamic", "seed 1", "not finished", "–", "29.70", "–"]
    assert page.row("", "tisa")[2:] == ["seed 1", "not finished", "–", "–", "–"]
    composite = ["1 of 2", "20.00", "[19.50, 20.50]", "–", "–"]
    assert page.row("", "composite")[2:] == composite
    assert page.row("dynamic")[2] == "300 of 400, not finished"
    assert page.row("tisa")[1:7] == ["–", "not finished", "–", "–", "–", "–"]
    assert page.row("attention")[1:6] == ["91,264", "–", "–", "–", "–"]
    assert "Sample outputs" not in page.text
    summaries = re.findall(r"(\w+), seed \d(, not finished)?", page.text)
    assert dict(summaries)["tisa"] and ("composite", "") in summaries
    for row in page.rows:
        assert not {"0", "0.00", "0.0", "nan", "None"} & set(row), row
    assert not re.search(r"\| 0(\.0+)? ", printed) and "None" not in printed + page.text


def test_smoke_tests_are_called_that_and_not_compared(tmp_path, report):
    page, printed = report(write_run(tmp_path / "a", scores={"BLEU": 0.2}, smoke=True))
    assert page.row("BLEU")[-2:] == ["29.70", "–"]
    assert page.row("", "attention")[2:] == ["–", "not run", "–", "29.30", "–"]
    for text in (page.text, printed):
        assert "their scores mean nothing" in text


def test_what_keeps_scores_from_being_compared_is_said(tmp_path, report):
    runs = []
    for mixer in ("dynamic", "tisa"):
        data = {"bin/dict.en.txt": mixer, "text/test.de": mixer, "text/a.de": ""}
        given = {"scores": {"BLEU": 9.0}, "unconfirmed": "batch | rate"}
        runs.append(write_run(tmp_path / mixer, mixer, data=data, **given))
    page, printed = report(*runs)
    for found, unconfirmed in ((page.text, "batch | rate"), (printed, r"batch \| rate")):
        assert "Not all runs have the same text/test.de: their" in found
        assert found.count(f"Unconfirmed: {unconfirmed}") == 1


@pytest.mark.parametrize(
    "place", ["generated.test.txt", "results.json", "logs", "logs/train.log", "stages/train.json"]
)
def test_no_file_elsewhere_is_shown(tmp_path, report, place):
    run = write_run(tmp_path / "a", texts=["dynamic"])
    (run / place).rename(tmp_path / "private")
    (run / place).symlink_to(tmp_path / "private")
    with pytest.raises(SystemExit, match=rf"{place} is a symbolic link.+itself be a link\)$"):
        report(run)


def test_nothing_is_shown_that_may_be_elsewhere(tmp_path, report, unlistable):
    run = write_run(tmp_path / "a", texts=["dynamic"])
    unlistable(run / "logs")
    with pytest.raises(SystemExit, match="logs cannot be listed.+another run$"):
        report(run)


def test_what_a_run_says_is_no_command_to_a_terminal_or_page(tmp_path, report):
    run = write_run(tmp_path / "a", unconfirmed="\x1b]0;title\x07 ![x](http://example)")
    _, printed = report(run)
    assert r"Unconfirmed: \x1b]0;title\x07 ![x]\(http://example)." in printed


def test_outputs_side_by_side(tmp_path, report):
    texts = [f"dynamic {i}" for i in range(9)]
    runs = [
        write_run(tmp_path / "a", texts=texts),
        write_run(tmp_path / "b", "attention", texts=[f"attention {i}" for i in range(9)]),
        write_run(tmp_path / "c", "tisa"),
        write_run(tmp_path / "d", "lightweight"),
    ]
    (runs[3] / "generated.test.txt").write_text(generated(texts, source="another set"))
    page, _ = report(*runs, samples=3)
    assert re.findall(r"Sentence (\d) of the test set", page.text) == ["2", "5", "8"]
    place = page.rows.index(["source", "a man <unk> 4"])
    assert page.rows[place : place + 6] == [
        ["source", "a man <unk> 4"],
        ["reference", "ein mann 4"],
        ["dynamic", "dynamic 4"],
        ["attention", "attention 4"],
        ["tisa", "–"],
        ["lightweight", "–"],
    ]
    page, _ = report(*runs, samples=0)
    assert "Sentence" not in page.text


def test_texts_are_text(tmp_path, report):
    """Whatever a model writes: it closes no tag, runs nothing and fetches nothing."""
    attack = '</td></table><script src="http://e.org">alert(1)</script><img onerror="x()" src=x>'
    given = {"title": f"T {attack}", "command": attack, "mixer": f"|`*{attack}"}
    given |= {"scores": {attack: 1}, "published": {attack: 2}, "paper": attack}
    texts = [attack, "", "\u2028 \x0b &lt;b&gt; \U0001f642"]
    page, printed = report(write_run(tmp_path / "a", texts=texts, **given))
    assert not {"script", "img", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert not [name for _, attributes in page.tags for name in attributes if name[:2] == "on"]
    assert not [a for _, a in page.tags if "src" in a or "href" in a]
    samples = [row[1] for row in page.rows if row[0] == f"|`*{attack}"]
    assert attack in samples and "(empty)" in samples
    assert any("&lt;b&gt; \U0001f642" in text for text in samples)
    outside_of_code = re.sub("`[^`\n]*`", "", printed.replace("\\`", ""))
    assert "<" not in outside_of_code.replace("\\<", "") and "| \\|\\`\\*" in printed
    (policy,) = (a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_every_recipe_has_a_section(tmp_path, report):
    other = write_run(tmp_path / "b", scores={"test perplexity": 26.0}, title="One Billion Word")
    page, printed = report(write_run(tmp_path / "a", scores={"BLEU": 29.0}), other)
    assert [tag for tag, _ in page.tags if tag in ("h1", "h2")] == ["h1", "h2", "h2"]
    assert printed.count("## ") == 2 and "## One Billion Word" in printed


def test_an_evaluated_checkpoint_has_no_training(tmp_path):
    given = {"scores": {"BLEU": 29.0}, "log": None, "checkpoint": "wmt/model.pt"}
    run = write_run(tmp_path / "a", **given)
    (run / "stages" / "train.json").unlink()
    (section,) = read_sections([run])
    assert scores_part(section).table.rows[0][1] == "dynamic, model.pt"
    assert costs_part(section).table.rows[0][2] == MISSING


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda run: run / "nowhere", "nowhere is not a folder"),
        (lambda run: (run / "results.json").write_text("{") and run, "results.json is damaged: "),
        (
            lambda run: (run / "results.json").write_text("[]") and run,
            "damaged: it is not a JSON object",
        ),
        (
            lambda run: (shutil.rmtree(run / "stages"), (run / "stages").touch()) and run,
            "stages is a file, not a folder",
        ),
    ],
)
def test_what_is_no_run_is_one_line(tmp_path, prepare, message):
    folder = prepare(write_run(tmp_path / "a"))
    with pytest.raises(SystemExit, match=f"^error: [^\n]*{re.escape(message)}[^\n]*$"):
        main([str(folder), "--output", str(tmp_path / "page.html")])
    assert not (tmp_path / "page.html").exists()


def test_heads_of_a_markdown_table_are_plain_text_too():
    heads = ("a|b", "c")
    lines = table(Table(heads, [["1", "2"]], heads[:1])).split("\n")
    assert lines == ["| a\\|b | c |", "| ---: | --- |", "| 1 | 2 |"]


def test_a_page_that_is_there_stays(tmp_path):
    run = write_run(tmp_path / "a")
    page = tmp_path / "page.html"
    page.write_text("mine")
    with pytest.raises(SystemExit, match="page.html is there already; .* another with --output"):
        main([str(run), "--output", str(page)])
    assert page.read_text() == "mine"
    with pytest.raises(SystemExit, match="there is no directory"):
        main([str(run), "--output", str(tmp_path / "no" / "page.html")])
    with pytest.raises(SystemExit, match="a is given twice"):
        main([str(run), str(run), "--output", str(tmp_path / "other.html")])
    assert {path.name for path in tmp_path.iterdir()} == {"a", "page.html"}


def test_curves_have_the_colour_of_their_mixer(tmp_path, report):
    """Of the page alone; text in a picture is text."""
    mixers = (*ARCHITECTURE_NAMES, "own")
    page, _ = report(*(write_run(tmp_path / mixer, mixer) for mixer in mixers))
    assert "loss (base 2)" in page.text
    drawn = [a["style"] for tag, a in page.tags if tag == "path" and "stroke: " in a["style"]]
    for mixer in mixers[:-1]:  # two curves and the legend
        assert len([style for style in drawn if f"--{mixer})" in style]) == 3
    assert not [style for style in drawn if "#" in style]


def test_systems_of_a_mixer_differ_in_dashes_and_their_seeds_are_faint(tmp_path, report):
    """A single point is a dot."""
    seeds = [write_run(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    begun = {"options": "--weight-norm l2", "log": START + inner(100, 9.1)}
    page, _ = report(*seeds, write_run(tmp_path / "other", **begun))
    drawn = [(tag, a["style"]) for tag, a in page.tags if "--dynamic)" in a.get("style", "")]
    lines = [style for tag, style in drawn if tag == "path"]
    assert len([style for style in lines if "stroke-opacity: 0.35" in style]) == 4  # two pictures
    dashed = [style for style in lines if "stroke-dasharray" in style]
    dots = [style for tag, style in drawn if tag == "use"]
    assert len(dashed) == len(dots) == 2  # a curve and the legend


def test_a_label_is_no_formula(tmp_path, report):
    page, _ = report(write_run(tmp_path / "run", "$^$"))
    assert "$^$" in page.text


def test_curves_before_the_first_validation(tmp_path, report):
    page, _ = report(write_run(tmp_path / "run", log=START + inner(100, 9.1), trained=False))
    assert "loss (base 2)" in page.text


def test_the_mean_of_curves_is_where_all_have_points():
    assert mean_curve([[(1, 2.0), (2, 4.0)], [(2, 8.0), (3, 1.0)]]) == [(2, 6.0)]
    assert mean_curve([]) == []


def test_what_is_not_installed_is_one_line(tmp_path, not_installed):
    not_installed("jinja2", "matplotlib")
    with pytest.raises(SystemExit, match="page needs jinja2 and matplotlib: pip install jinja2 m"):
        main([str(write_run(tmp_path / "a")), "--output", str(tmp_path / "page.html")])


def test_options_of_a_user_tell_systems_apart(tmp_path, monkeypatch):
    """Runs in folders of any name, from the recipe's own commands; also a system that is alone."""
    monkeypatch.chdir(ROOT)
    extra = {"base": "", "l2": "--weight-norm l2", "drop": "--dropout=0.1 --conv-bias"}
    for name, options in extra.items():
        given = ["multi30k_short", "--mixer", "dynamic", "--output", str(tmp_path / name)]
        recipe = catalogue.RECIPES["multi30k_short"]
        parsed = command_line().parse_intermixed_args(given)
        settings = resolve(parsed, recipe, options.split())
        runner = Runner(tmp_path / name, recipe.stages(settings))
        (tmp_path / name).mkdir()
        runner.finish(runner.stages[1], "2026", 1.0)
        command = shlex.join([*given, *(["--", *options.split()] if options else [])])
        write_json(results(command, recipe, settings, {}, []), tmp_path / name / "results.json")

    def labels(*names: str) -> list[str]:
        (section,) = read_sections([tmp_path / name for name in names])
        return [system.label for system in section.systems]

    assert labels("base", "l2") == ["dynamic", "dynamic, --weight-norm l2"]
    assert labels("base", "drop") == [
        "dynamic, --dropout 0.2",
        "dynamic, --dropout 0.1, --conv-bias",
    ]
    assert labels("l2") == ["dynamic, --weight-norm l2"] and labels("base") == ["dynamic"]
