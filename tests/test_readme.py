from conftest import ROOT

from fairseq_convattn.architectures.overview import architecture_table


def test_its_table_of_architectures_is_the_codes():
    assert architecture_table() in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_files_it_names_are_there():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("quickstart.sh", "test.sh", "sentencepiece_bpe.py", "average_checkpoints.py"):
        assert f"scripts/{name}" in readme and (ROOT / "scripts" / name).is_file()
    for name in ("docs/family.svg", "docs/results.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        assert name in readme and (ROOT / name).is_file()
