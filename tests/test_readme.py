import re
import shlex

from conftest import ROOT

from fairseq_convattn.architectures.overview import (
    architecture_table,
    language_model_table,
    masked_language_model_table,
)


def test_its_tables_of_architectures_are_the_codes():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for table in (architecture_table, language_model_table, masked_language_model_table):
        assert table() in readme


def training(commands: str) -> tuple[str, dict[str, str | None]]:
    """The data and the options of the only fairseq-train among them."""
    lines = commands.replace("\\\n", "").splitlines()
    (line,) = (line for line in lines if line.startswith("fairseq-train "))
    _, data, *words = shlex.split(line)
    options, name = {}, ""
    for word in words:
        name = word if word.startswith("--") else name
        options[name] = None if word == name else word
    return data, options


def test_its_training_on_multi30k_is_the_recipes():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Multi30k\n(.*?)^## ", readme, flags=re.MULTILINE | re.DOTALL)
    golden = ROOT / "tests" / "recipes" / "golden" / "multi30k.txt"
    data, options = training(section)
    data_of_recipe, of_recipe = training(golden.read_text(encoding="utf-8"))
    del options["--save-dir"], of_recipe["--save-dir"]
    assert data == data_of_recipe and options.items() <= of_recipe.items()
    devices = {"--distributed-world-size", "--ddp-backend", "--fp16"}
    assert of_recipe.keys() - options == {"--task", "--log-format", "--log-interval", *devices}


def test_every_equivalence_on_its_page_is_a_test_and_the_other_way_round():
    page = (ROOT / "docs" / "equivalences.md").read_text(encoding="utf-8")
    tests = (ROOT / "tests" / "test_equivalences.py").read_text(encoding="utf-8")
    named = re.findall(r"`(?:test_)?(e[1-6]_\w+)`", page)
    assert set(named) == set(re.findall(r"def test_(e[1-6]_\w+)", tests))


def test_the_files_that_the_documents_name_are_there():
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    names = {
        (document, name)
        for document in documents
        for text in [document.read_text(encoding="utf-8")]
        for name in (
            *re.findall(r"\]\((?!http)([^)#]+)\)", text),
            *re.findall(r"\b(?:scripts|benchmarks)/\w+\.(?:sh|py)", text),
        )
    }
    assert {"scripts/score.py", "docs/results.md"} <= {name for _, name in names}
    for document, name in names:
        folder = ROOT if name.startswith(("scripts", "benchmarks")) else document.parent
        assert (folder / name).exists(), f"{document.name} names {name}"
