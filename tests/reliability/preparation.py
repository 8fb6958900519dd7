"""A preparation script that can be disturbed, on data in miniature."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from release_scripts import Scripts, tokens


class Preparation:
    """WikiText-2 in miniature. For fairseq-preprocess stands what copies its files slowly."""

    def __init__(self, scripts: Scripts, folder: Path, monolingual: Path):
        self.scripts, self.source = scripts, folder / "source"
        self.source.mkdir()
        sizes = {}
        for split in ("train", "valid", "test"):
            text = (monolingual.parent / split).read_text(encoding="utf-8")
            (self.source / f"{split}.txt").write_text(text, encoding="utf-8")
            sizes[split] = [text.count("\n"), tokens(text)]
        scripts.for_release("wikitext2", **sizes)
        scripts.stand_in(
            "fairseq-preprocess",
            'while [ "$1" != --destdir ]; do shift; done\n'
            f'for file in "{monolingual}"/*; do cp "$file" "$2"; sleep 0.01; done',
        )

    def begin(self, output: Path) -> subprocess.Popen:
        path = f"{self.scripts.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        script = self.scripts.folder / "prepare_wikitext2.sh"
        # where a shell has begun the tests with &, SIGINT would be ignored and could not be trapped
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        run = subprocess.Popen(
            ["bash", str(script), "--source", str(self.source), "--output", str(output)],
            env={**os.environ, "PATH": path},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        signal.signal(signal.SIGINT, before)
        return run
