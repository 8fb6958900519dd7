import csv
import importlib
import json
import re
import shlex
import subprocess
import sys

import pytest
from conftest import PLUGIN, ROOT, task_of
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import build_model
from run_documents import blocks, pages

from fairseq_convattn.recipes import catalogue
from fairseq_convattn.recipes.__main__ import main
from fairseq_convattn.run_records import parse_options

sys.path.append(str(ROOT / "docs"))
generate = importlib.import_module("generate")

PARSERS = {
    "fairseq-train": options.get_training_parser,
    "fairseq-generate": options.get_generation_parser,
    "fairseq-interactive": options.get_interactive_generation_parser,
    "fairseq-eval-lm": options.get_eval_lm_parser,
    "fairseq-preprocess": options.get_preprocessing_parser,
}
RESULTS = ROOT / "docs" / "data" / "results"
WIKITEXT2_TYPES = 33_280  # fairseq fills a dictionary up to a multiple of eight
DOCUMENTS = [*pages(), *sorted(ROOT.glob("C*.md"))]
MIXERS = re.compile("dynamic|lightweight|composite|tisa|static|headwise|low_rank")
NO_MIXERS = ("", "for comparison", "the three longest turns")


def text_of(page) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page) -> set[str]:
    """The names that GitHub and MyST give the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text_of(page), flags=re.S), re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def fairseq_commands() -> list:
    """Every fairseq command of the documents, also of blocks that are not run."""
    found = []
    for block in (block for page in pages() for block in blocks(page)):
        for line in block.text.replace("\\\n", " ").splitlines():
            if block.language == "bash" and (match := re.search(r"\bfairseq-[a-z-]+ .*", line)):
                words = shlex.split(re.split(r" [|<>] ?", match[0])[0], comments=True)
                if words[0] in PARSERS and "ARCH" not in words:
                    found.append(pytest.param(words, id=f"{block}-{words[0]}"))
    return found


PARTS = ("operation", "attention", "layer")  # of the benchmark of short convolutions


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_links_resolve(page):
    assert "]\\(" not in text_of(page), "an escaped link"
    for file, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", text_of(page)):
        target = page.parent / file if file else page
        assert target.exists(), f"{page.name} links {file}"
        assert not anchor or anchor in anchors(target), f"{page.name} links {file}#{anchor}"


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_scripts_and_benchmarks_that_are_named_exist(page):
    for name in re.findall(r"\b(?:scripts|benchmarks)/\w+\.(?:sh|py)", text_of(page)):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


@pytest.mark.parametrize("words", fairseq_commands())
def test_fairseq_takes_the_options_of_every_command(words):
    parser = PARSERS[words[0]]()
    arguments = [str(PLUGIN) if word == "fairseq_convattn" else word for word in words[1:]]
    if words[0] == "fairseq-preprocess":
        parser.parse_args(arguments)
    else:
        options.parse_args_and_arch(parser, arguments)


def test_nothing_that_is_run_installs_anything():
    for block in (block for page in pages() for block in blocks(page)):
        installs = re.search(r"pip install|(quickstart|setup|test)\.sh", block.text)
        assert block.reason or not installs, f"{block} installs packages"


def test_the_readme_is_short():
    assert len(text_of(ROOT / "README.md").splitlines()) <= 150


def test_the_tests_that_the_page_of_equivalences_names_exist():
    files = ROOT.glob("tests/equivalences/test_*.py")
    tests = {name for file in files for name in re.findall(r"def test_(e\d_\w+)", text_of(file))}
    named = re.findall(r"`(?:test_)?(e\d_\w+)`", text_of(ROOT / "docs/equivalences.md"))
    assert named and set(named) <= tests


def test_no_run_is_listed_twice():
    contents = [
        json.dumps(json.loads(text_of(file)), sort_keys=True) for file in RESULTS.glob("*.json")
    ]
    assert contents and len(set(contents)) == len(contents)


@pytest.mark.parametrize(
    "file", sorted(RESULTS.glob("wikitext2-*.json")), ids=lambda file: file.stem
)
def test_commands_of_language_models_build_the_models_of_their_runs(file, capsys):
    run = json.loads(text_of(file))
    words = shlex.split(run["command"].removeprefix("python -m fairseq_convattn.recipes"))
    main([words[0], "--dry-run", *words[1:]])
    (command,) = re.findall(r"^fairseq-train (.*)", capsys.readouterr().out, re.MULTILINE)
    arguments = options.parse_args_and_arch(PARSERS["fairseq-train"](), shlex.split(command))
    model = convert_namespace_to_omegaconf(arguments).model
    net = build_model(model, task_of(WIKITEXT2_TYPES - Dictionary().nspecial))
    assert sum(weight.numel() for weight in net.parameters()) == run["parameters"]


def rows_of_runs() -> list:
    """What tables say of a run, and the run that they name for it."""
    found = []
    for file in sorted((ROOT / "docs" / "data").glob("*.csv")):
        with open(file, encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                baseline = {"system": row.get("baseline"), "results": row.get("baseline results")}
                for said in (row, baseline):
                    for run in (said.get("results") or "").split():
                        found.append(pytest.param(said, run, id=f"{file.stem}-{run}"))
    return found


@pytest.mark.parametrize(("said", "name"), rows_of_runs())
def test_a_row_names_the_run_that_it_tells_of(said, name):
    path = ROOT / "docs" / "data" / "results" / f"{name}.json"
    run = json.loads(text_of(path))
    words = shlex.split(run["command"])
    given = parse_options(words[words.index("--") + 1 :]) if "--" in words else {}
    options_of_run = {**catalogue.RECIPES[words[3]].training, **given}
    system = said.get("mixer") or said.get("system") or ""
    mixer = run["mixer"]
    if mixer == "short_conv":
        mixer = given.get("--short-convolution", "low_rank")
    assert MIXERS.findall(system) == MIXERS.findall(mixer) or system in NO_MIXERS
    assert said.get("architecture", run["architecture"]) == run["architecture"]
    told = system + said.get("figure", "")
    assert ("--encoder-normalize-before" in given) >= ("pre-norm" in told)
    assert "post-norm" not in told or "--encoder-normalize-before" not in given
    for precision in ("float32", "bfloat16"):
        assert precision not in said.get("precision", system) or run["precision"] == precision
    for column, value in (
        ("seed", run["seed"]),
        ("learning rate", options_of_run["--lr"]),
        ("warm-up", options_of_run["--warmup-updates"]),
    ):
        assert said.get(column, str(value)).removeprefix("seed ") == str(value)


RUN = {"parameters": 7, "updates": 9, "validation_perplexity": [[5, 30.0], [9, 20.0]]}


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Reads a table's first row; the runs ``a`` and ``b`` have 30.004 and 31.016 BLEU."""
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    folder = tmp_path / "docs" / "data" / "results"
    folder.mkdir(parents=True)
    for name, score in (("a", 30.004), ("b", 31.016)):
        run = {**RUN, "scores": [{"name": "test BLEU", "score": score}]}
        (folder / f"{name}.json").write_text(json.dumps(run))

    run = {**RUN, "scores": [{"name": "test rouge1", "score": 40.0}]}
    (folder / "rouge.json").write_text(json.dumps(run))

    def read(head: str, *rows: str) -> dict[str, str]:
        (tmp_path / "table.csv").write_text("\n".join((head, *rows)))
        return generate.read_table(tmp_path / "table.csv")[0]

    return read


def test_a_table_has_the_figures_of_the_runs_that_it_names(table):
    one = table("parameters,updates,validation perplexity,test BLEU,results", ",,,,a")
    assert list(one.values()) == ["7", "9", "20.00", "30.00", "a"]
    assert table("BLEU,results", '"{test BLEU}, post-norm",a b')["BLEU"] == "30.51, post-norm"
    above = table("BLEU above,results,baseline results", "{test BLEU},b,a")
    assert above["BLEU above"] == "1.01"


def test_a_row_that_names_no_run_has_figures_of_its_own(table):
    assert table("test BLEU,results", "31.01,")["test BLEU"] == "31.01"
    assert table("BLEU,results", '"41.02, published",', "{test BLEU},a")["BLEU"][:5] == "41.02"


@pytest.mark.parametrize(
    ("head", "rows", "message"),
    [
        ("test BLEU,results", ["30.00,a"], "line 2: test BLEU has a figure, and a has it, too"),
        ("BLEU,results", ["{test BLEU},a", "31.02,b"], "line 3: BLEU has a figure, and b has it"),
        ("BLEU,results", ["{test BLEU} 30.0,a"], "line 2: BLEU has a figure, and a has it, too"),
        ("BLEU,results", ["{test BLEU},"], "line 2: {test BLEU} is unknown, results names no run"),
        ("BLEU", ["30.00", "{test BLEU}"], "line 3: {test BLEU} is unknown, results names no run"),
        ("BLEU,results", ["{test BLUE},a"], "line 2: {test BLUE} is unknown, a has parameters, "),
        ("BLEU,results", ["{},a"], "line 2: {} is unknown, a has parameters, "),
        ("BLEU,results", ["{test BLEU},a c"], "line 2: docs/data/results has no run c"),
        ("BLEU,results,baseline results", ["{test BLEU},a,c"], "line 2: docs/data/results has no"),
        ("BLEU,results", ["{test BLEU},a rouge"], "line 2: only one of a and rouge has test BLEU"),
        (
            "BLEU,results,baseline results",
            ["{test BLEU},a,rouge"],
            "line 2: only one of a and rouge has test BLEU",
        ),
    ],
)
def test_a_row_that_contradicts_its_runs_is_refused(table, head, rows, message):
    with pytest.raises(SystemExit, match=re.escape(f"error: table.csv, {message}")):
        table(head, *rows)


@pytest.mark.parametrize("words", ["columns=BLUE", "where=BLUE:1", "rows=BLUE columns=x value=x"])
def test_a_comment_that_names_an_unknown_column_is_refused(tmp_path, words):
    (tmp_path / "table.csv").write_text("x\n1\n")
    (tmp_path / "page.md").write_text(f"<!-- table table.csv {words} -->\n")
    with pytest.raises(SystemExit, match="error: page.md: table.csv has no column 'BLUE'"):
        generate.with_tables(tmp_path / "page.md")


@pytest.mark.parametrize("words", ["colums=x", "where=x:2"])
def test_a_comment_that_makes_no_table_is_refused(tmp_path, words):
    (tmp_path / "table.csv").write_text("x\n1\n")
    (tmp_path / "page.md").write_text(f"<!-- table table.csv {words} -->\n")
    with pytest.raises(SystemExit, match="error: page.md: table.csv: "):
        generate.with_tables(tmp_path / "page.md")


def without_commas(cell):
    return cell.replace(",", "") if cell[:1].isdigit() else cell


@pytest.mark.parametrize(
    ("file", "names", "column", "unit", "cell"),
    [
        ("gpu_convolutions", "pass,convolution,taps,tokens", "H200 us", 1000, 6),
        ("gpu_short_convolutions", "pass,part,short convolutions", "H200 ms", 1, 4),
    ],
)
def test_figures_of_the_h200_are_those_of_the_acceptance_page(file, names, column, unit, cell):
    page = text_of(ROOT / "docs" / "gpu-acceptance-h200.md").partition("\n## Convolutions without")
    text, names = page[0 if "taps" in names else 2], names.split(",")
    found = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| b")]
    ours = [row for row in found if row[5:6] == ["triton"] or row[2] in PARTS]
    of_page = {tuple(row[1 : 1 + len(names)]): float(row[cell].replace(",", "")) for row in ours}
    lines = generate.read_table(ROOT / "docs" / "data" / f"{file}.csv")
    assert len(lines) > 20
    for line in lines:
        given = unit * of_page[tuple(without_commas(line[name]) for name in names)]
        assert float(line[column]) == pytest.approx(given, rel=1e-3, abs=unit / 2000), line


def test_figures_of_glue_are_those_of_its_results():
    files = {
        "absolute positions, again": "absolute",
        "absolute positions, pre-norm": "prenorm",
        "content,tisa, again": "tisa",
        "content,tisa": "tisa-first",
    }
    metrics = {"accuracy": "RTE accuracy", "pearson": "STS-B Pearson", "spearman": "STS-B Spearman"}
    data = ROOT / "docs" / "data"
    expected = {}
    for positions, name in files.items():
        for task in ("RTE", "STS-B"):
            for path in (data / "glue").glob(f"{name}-{task}.json"):
                results = json.loads(text_of(path))
                for metric, scores in results["summary"].items():
                    figures = [f"{scores[part]:.2f}" for part in ("median", "min", "max")]
                    expected[positions, str(results["epochs"]), metrics[metric]] = figures
    found = {
        tuple(row.values())[:3]: [*row.values()][3:]
        for row in generate.read_table(data / "glue_epochs.csv")
    }
    assert found == expected
    rates = []
    for rate in ("-1e-4", "-2e-4", "", "-1e-3"):
        results = json.loads(text_of(data / "glue" / f"absolute-STS-B{rate}.json"))
        (scores,) = (each["scores"] for each in results["seeds"] if each["seed"] == 1)
        figures = (f"{scores[metric]:.2f}" for metric in ("pearson", "spearman"))
        rates.append([str(results["lr"]), *figures])
    assert [[*row.values()] for row in generate.read_table(data / "glue_rates.csv")] == rates


def assert_seeds(row: dict[str, str], results: dict, metric: str = "pearson") -> None:
    """The row's figures of seeds 1 to 3, empty for those that were not run."""
    found = {each["seed"]: f"{each['scores'][metric]:.2f}" for each in results["seeds"]}
    assert [row[f"seed {n}"] for n in (1, 2, 3)] == [found.get(n, "") for n in (1, 2, 3)]


def test_figures_of_pre_trainings_and_fine_tunings_are_those_of_their_results():
    files = {
        ("content,tisa", "b7a3b1a"): "tisa-first-STS-B-3",
        ("content,tisa", "c7f5b4a"): "tisa-first-STS-B-3-today",
        ("content,tisa, again", "b4cff86"): "tisa-STS-B-3",
        ("content,tisa, again", "b7a3b1a"): "tisa-STS-B-3-b7a3b1a",
        ("content,tisa, seed 2", "b7a3b1a"): "tisa-seed2-STS-B-3",
    }
    data = ROOT / "docs" / "data"
    rows = generate.read_table(data / "glue_origins.csv")
    assert [(row["pre-training"], row["fine-tuned at"]) for row in rows] == [*files]
    for row, name in zip(rows, files.values(), strict=True):
        results = json.loads(text_of(data / "glue" / f"{name}.json"))
        assert_seeds(row, results)


PRE_TRAININGS = {
    "absolute positions": "absolute",
    "content,fixed": "fixed",
    "content,fixed,query": "query",
    "content,tisa": "tisa",
    "content,tisa, seed 2": "tisa-seed2",
}


def test_figures_of_fine_tunings_after_dialogues_are_those_of_their_results():
    data = ROOT / "docs" / "data"
    rows = generate.read_table(data / "glue_dialogues.csv")
    assert len(rows) == len({*data.glob("glue/dialogues-*.json")}) > 0
    for row in rows:
        name = f"dialogues-{PRE_TRAININGS[row['pre-training']]}-{row['updates']}-STS-B.json"
        results = json.loads(text_of(data / "glue" / name))
        assert row["epochs"] == str(results["epochs"])
        assert_seeds(row, results)


def test_figures_of_fine_tunings_after_next_sentences_are_those_of_their_results():
    data = ROOT / "docs" / "data"
    rows = generate.read_table(data / "glue_next.csv")
    assert len(rows) == len({*data.glob("glue/next-*.json")}) > 0
    for row in rows:
        task, metric = row["score"].rsplit(" ", 1)
        name = f"next-{PRE_TRAININGS[row['pre-training']]}-{row['updates']}-{task.split()[0]}.json"
        results = json.loads(text_of(data / "glue" / name))
        assert_seeds(row, results, metric.lower())


def test_tables_are_current():
    for document in generate.documents():
        if document != generate.OPTIONS:
            assert generate.with_tables(document) == text_of(document), document.name


@pytest.fixture(scope="module")
def pictures():
    pytest.importorskip("matplotlib")
    return importlib.import_module("pictures")


def test_pictures_are_current(pictures):
    for draw in pictures.PICTURES:
        picture = text_of(ROOT / "docs" / f"{draw.__name__}.svg")
        assert pictures.digest(draw()) in picture, f"run docs/pictures.py for {draw.__name__}"


@pytest.mark.parametrize(
    "change",
    [
        lambda figure: figure.axes[0].set_title("native", loc="left"),
        lambda figure: figure.axes[0].set_title("native"),
        lambda figure: figure.axes[0].set_xlabel("characters"),
        lambda figure: figure.axes[0].set_ylabel("ms"),
        lambda figure: figure.axes[0].xaxis.set_ticklabels(["1", "2", "3", "4"]),
        lambda figure: figure.axes[0].yaxis.set_major_formatter("{x:.2f}"),
        lambda figure: figure.axes[0].texts[0].set_text("bound"),
        lambda figure: figure.legends[0].get_texts()[0].set_text("native"),
        lambda figure: figure.suptitle("Convolutions"),
        lambda figure: figure.axes[0].lines[0].set_ydata(figure.axes[0].lines[1].get_ydata()),
    ],
)
def test_a_digest_tells_what_a_picture_shows(pictures, change):
    figure = pictures.convolutions()
    before = pictures.digest(figure)
    change(figure)
    assert pictures.digest(figure) != before


def test_a_digest_does_not_depend_on_the_layout(pictures):
    figure = pictures.learning_curves()
    before = pictures.digest(figure)
    figure.set_size_inches(3, 2)
    figure.draw_without_rendering()
    assert pictures.digest(figure) == before


@pytest.mark.slow  # .ci/run builds the documents, which checks it too
def test_options_and_tables_are_current():
    command = [sys.executable, "docs/generate.py", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
def test_every_command_of_the_documents_runs():
    run = subprocess.run([sys.executable, "tests/run_documents.py"], cwd=ROOT)
    assert run.returncode == 0


@pytest.mark.parametrize(
    ("recipe", "arch"),
    [("wmt16_en_de", "dynamic_conv_wmt_en_de_big"), ("cnn_dm", "dynamic_conv_cnn_dm")],
)
def test_commands_for_large_trainings_are_the_recipes(recipe, arch, capsys):
    main([recipe, "--mixer", "dynamic", "--gpus", "8", "--dry-run"])
    command = re.search(r"^fairseq-train .*", capsys.readouterr().out, re.MULTILINE)[0]
    (words,) = (each.values[0] for each in fairseq_commands() if arch in each.values[0])
    expected, shown = (parse_options(each) for each in (shlex.split(command), words))
    for place in ("command", "--save-dir", "--user-dir"):
        del expected[place], shown[place]
    assert shown == expected
