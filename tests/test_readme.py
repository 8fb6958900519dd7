import re
import shlex

from conftest import ROOT

from fairseq_convattn.architectures.overview import (
    architecture_table,
    language_model_table,
    masked_language_model_table,
)

DOCUMENTS = {
    path: path.read_text(encoding="utf-8")
    for path in (*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")))
}


def test_the_tables_of_architectures_are_the_codes():
    for table in (architecture_table, language_model_table, masked_language_model_table):
        assert any(table() in text for text in DOCUMENTS.values())


def training(commands: str) -> dict[str, str | None]:
    """The options of the first fairseq-train on Multi30k."""
    lines = commands.replace("\\\n", "").splitlines()
    line = next(line for line in lines if line.startswith("fairseq-train data/multi30k/bin "))
    options, name = {}, ""
    for word in shlex.split(line)[2:]:
        name = word if word.startswith("--") else name
        options[name] = None if word == name else word
    del options["--save-dir"]
    return options


def test_the_training_on_multi30k_is_the_recipes():
    golden = ROOT / "tests" / "recipes" / "golden" / "multi30k.txt"
    options = training("\n".join(DOCUMENTS.values()))
    of_recipe = training(golden.read_text(encoding="utf-8"))
    logging = {"--log-format", "--log-interval"}
    assert {x: options[x] for x in options.keys() - logging}.items() <= of_recipe.items()
    devices = {"--distributed-world-size", "--ddp-backend", "--fp16"}
    assert of_recipe.keys() - options <= {"--task", *logging, *devices}


def test_every_equivalence_on_its_page_is_a_test_and_the_other_way_round():
    page = (ROOT / "docs" / "equivalences.md").read_text(encoding="utf-8")
    tests = (ROOT / "tests" / "test_equivalences.py").read_text(encoding="utf-8")
    named = re.findall(r"`(?:test_)?(e[1-6]_\w+)`", page)
    assert set(named) == set(re.findall(r"def test_(e[1-6]_\w+)", tests))


def test_the_files_that_the_documents_name_are_there():
    names = {
        (document, name)
        for document, text in DOCUMENTS.items()
        for name in (
            *re.findall(r"\]\((?!http)([^)#]+)\)", text),
            *re.findall(r"\b(?:scripts|benchmarks)/\w+\.(?:sh|py)", text),
        )
    }
    assert {"scripts/score.py", "docs/results.md"} <= {name for _, name in names}
    for document, name in names:
        folder = ROOT if name.startswith(("scripts", "benchmarks")) else document.parent
        assert (folder / name).exists(), f"{document.name} names {name}"
