"""Which parts of the package import which."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PLUGIN

CORE = ("mixers", "architectures", "checkpoints", "export", "scoring", "summarization")
ANNEXES = {"recipes", "report", "glue", "analysis"}


def imported(file: Path) -> Iterator[str]:
    """The modules that a file imports, those of this package from ``fairseq_convattn`` on."""
    package = (PLUGIN.name, *file.relative_to(PLUGIN).parent.parts)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module.split(".") if node.module else []
            if node.level:
                module = [*package[: len(package) - node.level + 1], *module]
            yield from (".".join([*module, alias.name]) for alias in node.names)


def parts(folder: Path, pattern: str = "**/*.py") -> dict[str, set[str]]:
    """By file, the parts of the package and the other packages that it imports."""
    own = f"{PLUGIN.name}."
    return {
        str(file): {name.removeprefix(own).partition(".")[0] for name in imported(file)}
        for file in folder.glob(pattern)
    }


@pytest.mark.parametrize(
    ("folder", "pattern"), [("", "*.py"), *((folder, "**/*.py") for folder in CORE)]
)
def test_the_core_imports_no_annex(folder, pattern):
    for file, found in parts(PLUGIN / folder, pattern).items():
        assert ANNEXES.isdisjoint(found), file


def test_mixers_import_no_other_part_than_operations():
    for file, found in parts(PLUGIN / "mixers").items():
        own = {path.stem for path in PLUGIN.iterdir()}
        assert found.intersection(own) <= {"mixers", "ops", "spelling"}, file


def test_operations_know_torch_alone():
    for file, found in parts(PLUGIN / "ops").items():
        assert found.isdisjoint({"fairseq", "omegaconf", *CORE, *ANNEXES}), file
