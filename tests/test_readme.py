import re

from conftest import ROOT

from fairseq_convattn.architectures.overview import architecture_table, language_model_table


def test_its_tables_of_architectures_are_the_codes():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert architecture_table() in readme and language_model_table() in readme


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
