"""Sphinx's settings for the site: the Markdown pages of this folder and a reference."""

import importlib
import re
import sys
from pathlib import Path
from pkgutil import iter_modules

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

project = "fairseq_convattn"
release = re.search(
    r'^__version__ = "(.+)"$', (ROOT / "fairseq_convattn" / "__init__.py").read_text(), re.MULTILINE
)[1]
author = copyright = "the authors of fairseq_convattn"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"{project} {release}"

myst_heading_anchors = 3
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_inherit_docstrings = False
html_copy_source = False

PACKAGES = ("ops", "mixers", "architectures", "scoring", "checkpoints")


def reference() -> str:
    """The packages' public names: those that a package lists, or else those of its modules."""
    blocks = []
    for name in PACKAGES:
        try:
            package = importlib.import_module(f"fairseq_convattn.{name}")
        except ModuleNotFoundError:
            continue
        modules = [package.__name__]
        if not hasattr(package, "__all__"):
            modules += [
                f"{package.__name__}.{module.name}" for module in iter_modules(package.__path__)
            ]
        listed = "" if len(modules) > 1 else "\n   :imported-members:"
        blocks += [f"## {name}\n", "```{eval-rst}"]
        blocks += [f".. automodule:: {module}\n   :members:{listed}\n" for module in modules]
        blocks.append("```\n")
    return "\n".join(blocks)


def complete_page(app: Sphinx, page: str, source: list[str]) -> None:
    """What only the site has: its contents, its reference, and no links out of ``docs`` but to
    pages, which the site offers as files."""
    text = re.sub(r"\]\((\.\./[^)#]*\.md)\)", r"](path:\1)", source[0])
    text = re.sub(r"\[([^\]]*)\]\(\.\./[^)]*\)", r"\1", text)
    if page == "index":
        for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
            pages = re.findall(r"^- \[.*?\]\(([\w-]+)\.md\)", section, re.MULTILINE)
            options = f":hidden:\n:caption: {section.splitlines()[0]}\n\n"
            text += "\n```{toctree}\n" + options + "\n".join(pages) + "\n```\n"
    elif page == "reference":
        text += "\n" + reference()
    source[0] = text


def skip_fields(app, what: str, name: str, member: object, skip: bool, options) -> bool | None:
    """Fields of a named tuple without a description: the tuple's own has them."""
    return True if str(getattr(member, "__doc__", "")).startswith("Alias for field") else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("source-read", complete_page)
