import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.slow
@pytest.mark.ci
def test_learns_its_task(tmp_path):
    environment = {**os.environ, "VIRTUAL_ENV": sys.prefix}
    run = subprocess.run(
        ["bash", str(ROOT / "scripts" / "quickstart.sh"), "--output", str(tmp_path / "new")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    bleu = re.search(r"BLEU\|(\S+) = (\d+\.\d)", run.stdout)
    assert "version:" in bleu[1] and float(bleu[2]) >= 90
    commands = (tmp_path / "new" / "commands.sh").read_text(encoding="utf-8")
    for name in ("fairseq-preprocess", "fairseq-train", "fairseq-generate", "sacrebleu"):
        assert f"{name} " in commands
    assert len((tmp_path / "new" / "translated.txt").read_text().splitlines()) == 200
