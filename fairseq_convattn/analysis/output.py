"""The directory that the analysis writes."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ..checkpoints.files import require_new
from .checkpoint import Contents


def write_analysis(
    directory: str | Path, results: Sequence[dict], last: Contents, block: int
) -> list[str]:
    """Write ``analysis.json`` and the figures; the directory appears complete or not at all.

    Args:
        results: what :func:`report.analysis` says of checkpoints, in order.
        last: what the last of them holds.
        block: positions in a block.

    Returns:
        The names of the files.

    Raises:
        FileExistsError: ``directory`` is there already.
        FileNotFoundError: its parent is not there.
    """
    from .figures import figures  # with matplotlib, which not everyone has

    with TemporaryDirectory(dir=Path(directory).parent, prefix=".writing-") as temporary:
        complete = Path(temporary, Path(directory).name)
        complete.mkdir()
        content = {"block": block, "checkpoints": results}
        (complete / "analysis.json").write_text(
            json.dumps(content, indent=1, allow_nan=False), encoding="utf-8"
        )
        for name, figure in figures(results, last, block):
            figure.savefig(complete / f"{name}.png", dpi=200)
        require_new(directory)
        os.replace(complete, directory)
    return sorted(path.name for path in Path(directory).iterdir())
