"""The preparation of IWSLT14's low-resource set, WikiText-2 and SAMSum."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from release_scripts import load_script

from fairseq_convattn.recipes import catalogue

extract_samsum = load_script("extract_samsum")


def test_dialogues_keep_speakers_and_turns(tmp_path):
    said = "Ann Lee: Hi,  at 5:30?\r\nBo: \r\nBo: Yes :-)\nAnn Lee: Fine then,\nsee you"
    said += "\nBo: Bring the\u2028very big bag\r\n"
    entries = [
        {"dialogue": said, "summary": "They\nmeet."},
        {"dialogue": "", "summary": "Nothing."},
    ]
    (tmp_path / "x.json").write_text(json.dumps(entries))
    extract_samsum.main([str(tmp_path / "x.json"), str(tmp_path / "test")])
    assert (tmp_path / "test.source").read_text() == (
        "Ann Lee : Hi, at 5:30? <turn> Bo : Yes :-) <turn> Ann Lee : Fine then, see you <turn> "
        "Bo : Bring the very big bag\n"
    )
    assert (tmp_path / "test.target").read_text() == "They meet.\n"
    assert (tmp_path / "test.longest3").read_text() == (
        "Bo: Bring the very big bag Ann Lee: Hi, at 5:30? Ann Lee: Fine then,\n"
    )
    (tmp_path / "x.json").write_text('[{"summary": "x"}]')
    with pytest.raises(SystemExit, match="error: .*x.json: 'dialogue'"):
        extract_samsum.main([str(tmp_path / "x.json"), str(tmp_path / "test")])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "corpus"),
    [("iwslt14_de_en_low", "iwslt14"), ("wikitext2", "wikitext-2"), ("samsum", "samsum")],
)
def test_the_whole_release_is_what_is_expected(shared, tmp_path, recipe, corpus):
    """All numbers of lines and tokens, which a sample does not show."""
    for module in catalogue.RECIPES[recipe].needs.get("prepare", ()):
        pytest.importorskip(module)
    script, *options = catalogue.RECIPES[recipe].prepare_script or (f"prepare_{recipe}.sh",)
    arguments = [*options, "--source", str(shared / "data" / corpus), "--output"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", str(ROOT / "scripts" / script), *arguments, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
        check=False,
    )
    assert run.returncode == 0 and "ready: " in run.stdout, run.stdout + run.stderr
