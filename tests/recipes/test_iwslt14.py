"""IWSLT14 as we prepare it, beside the files that fairseq's own script makes."""

import gzip
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

from fairseq_convattn.recipes.catalogue.translation import TED

SEGMENTS = 'source scripts/prepare_common.sh; for file; do segments "$file"; done'
TO_TOKENISE = f"{SEGMENTS} | apostrophes"


def lines(file: Path) -> list[str]:
    return gzip.decompress(file.read_bytes()).decode().splitlines()


def output(*command: object, **options) -> bytes:
    words = list(map(str, command))
    return subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, **options).stdout


def test_references_are_scored_as_released(tmp_path):
    file = tmp_path / "test.xml"
    file.write_text('<doc>\n<seg id="1"> It’s "so" . </seg>\n<seg id="12">It\'s</seg>\n</doc>\n')
    assert output("bash", "-c", SEGMENTS, "bash", file).decode() == 'It’s "so" .\nIt\'s\n'
    tokenised = output("bash", "-c", TO_TOKENISE, "bash", file).decode()
    assert tokenised == "It's \"so\" .\nIt's\n"


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("language", ["de", "en"])
def test_the_test_set_has_fairseqs_tokens(shared, language):
    """The released XML; fairseq's valid is a part of the training set, which is not here."""
    pytest.importorskip("sacremoses")
    corpus = shared / "data" / "iwslt14"
    files = [corpus / "raw" / f"IWSLT14.{name}.de-en.{language}.xml.gz" for name in TED]
    text = output("bash", "-c", TO_TOKENISE, "bash", *files)
    tokenise = ("python", "scripts/moses_text.py", "tokenise", "--language", language, "--lower")
    assert output(*tokenise, input=text).decode().splitlines() == lines(
        corpus / "tok" / f"test.{language}.gz"
    )


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("language", ["de", "en"])
@pytest.mark.parametrize("split", ["valid", "test"])
def test_tokens_are_split_as_fairseqs(shared, tmp_path, split, language):
    pytest.importorskip("subword_nmt")
    corpus = shared / "data" / "iwslt14"
    (tmp_path / "code").write_bytes(gzip.decompress((corpus / "bpe" / "code.gz").read_bytes()))
    tokens = gzip.decompress((corpus / "tok" / f"{split}.{language}.gz").read_bytes())
    found = output("subword-nmt", "apply-bpe", "-c", tmp_path / "code", input=tokens)
    assert found.decode().splitlines() == lines(corpus / "bpe" / f"{split}.{language}.gz")
