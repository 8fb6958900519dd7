"""``python -m fairseq_convattn.report.pack``: a recipe's model as a folder to hand on.

The folder has ``model.pt`` in half precision and without the optimizer's state, the dictionaries,
what splits text into subwords, and ``README.md``, a model card. From Python it opens with
``from_pretrained(FOLDER)``.
"""

import argparse
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.data.data_utils import infer_language_pair
from torch import Tensor

from ..architectures.hub import CODES, DICTIONARIES, PIECES
from ..checkpoints.checks import CheckpointError, check_finite
from ..checkpoints.files import read_checkpoint, write_checkpoint
from ..durable import appearing
from ..run_records import write_json
from . import ReportError
from .collected import collected, results_table
from .runs import Run

_OF_PREPARATION = {"bpe/codes": CODES, "bpe/bpe.model": PIECES}


class _Use(NamedTuple):
    """How a task's models are used from Python."""

    model: str
    call: str


_USES = {
    "translation": _Use("ConvAttnModel", "translate({text!r})"),
    "summarization": _Use("ConvAttnModel", "summarize({text!r})"),
    "language_modeling": _Use("ConvAttnLanguageModel", "sample({text!r}, sampling=True)"),
    "masked_lm": _Use("ConvAttnMaskedLanguageModel", "fill_mask({text!r})"),
}
_TEXTS = {"language_modeling": "the", "masked_lm": "the <mask>"}


def pack(run: Path, output: Path) -> None:
    """Write the folder of a finished run's model.

    Raises:
        CheckpointError: the model cannot be read, or has values beyond float16's.
        FileExistsError: ``output`` is there already.
        FileNotFoundError: the run has no model, or its prepared data are not there any more.
        ReportError: ``run`` is no run of a recipe, a smoke test, or has no scores yet.
    """
    record = Run(run)
    results = collected(record)
    model = run / "checkpoints" / "average.pt"
    if not model.is_file():
        model = run / "checkpoints" / "checkpoint_best.pt"
    state = read_checkpoint(model)
    task = state["cfg"]["task"]
    data = Path(task["data"])
    with appearing(output) as folder:
        folder.mkdir()
        _copy_text_files(data, folder)
        if "source_lang" in task and not task["source_lang"]:
            task["source_lang"], task["target_lang"] = infer_language_pair(str(data))
        task["data"] = "."
        state["cfg"]["checkpoint"]["save_dir"] = "checkpoints"
        state["model"] = _halved(state["model"])
        write_checkpoint(state, folder / "model.pt")
        write_json(results, folder / "results.json")
        card = _card(output.name, results, task["_name"], _sample(record), folder)
        (folder / "README.md").write_text(card, encoding="utf-8")


def _copy_text_files(data: Path, folder: Path) -> None:
    dictionaries = [path for pattern in DICTIONARIES for path in data.glob(pattern)]
    if not dictionaries:
        raise FileNotFoundError(f"{data} has no dictionaries; it has to be as in training")
    for path in dictionaries:
        shutil.copyfile(path, folder / path.name)
    for prepared, name in _OF_PREPARATION.items():
        path = data.parent / prepared
        if path.is_file():
            shutil.copyfile(path, folder / name)


def _halved(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Equal ones, such as tied embeddings, are one tensor, which a file has once."""
    halved: dict[str, Tensor] = {}
    for name, weight in weights.items():
        half = weight.half() if weight.is_floating_point() else weight
        halved[name] = next((x for x in halved.values() if _is_equal(x, half)), half)
    check_finite(halved)
    return halved


def _is_equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def _sample(run: Run) -> tuple[str, str] | None:
    """A source, as the model reads it, and what it wrote."""
    found = next(iter(run.generated.values()), None)
    return (found.sources[0], found.hypotheses[0]) if found and found.sources else None


def _card(
    name: str, results: Mapping[str, Any], task: str, sample: tuple[str, str] | None, folder: Path
) -> str:
    use, text = _USES[task], sample[0] if sample else _TEXTS.get(task, "...")
    versions = results["environment"]["versions"]
    table = results_table([folder / "results.json"])
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    parts = [
        f"# {results['title']}, {results['architecture']}",
        f"{results['parameters']:,} parameters in half precision, {size:.1f} MB.",
        "```python\n"
        f"from fairseq_convattn.architectures import {use.model}\n\n"
        f'{use.model}.from_pretrained("{name}").{use.call.format(text=text)}\n```',
    ]
    if sample:
        parts.append(f"It answers `{sample[1]}` (with the training's decoding options).")
    parts += [
        "The model reads and writes text that is prepared like the training's: the recipe below "
        "says how.",
        "## Results",
        table,
        "## Training",
        f"```bash\n{results['command']}\n```",
        f"After {results['paper']}; {results['origin']}. Chosen here: {results['reading']}.",
        f"Trained by torch {versions['torch']}, fairseq_convattn {versions['fairseq_convattn']}. "
        "`results.json` has the versions, the checksums of the data and the validation curve.",
        "## Limits",
        "It learned from one corpus, whose licence says what may be done with it. Text of another "
        "kind is answered badly.",
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_convattn.report.pack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="folder of a finished run of a recipe")
    parser.add_argument(
        "--output", type=Path, required=True, help="folder to write; it must not exist"
    )
    arguments = parser.parse_args()
    try:
        pack(arguments.run, arguments.output)
    except (CheckpointError, ReportError, OSError) as error:
        sys.exit(f"error: {error}")
    print(*(path for path in sorted(arguments.output.iterdir())), sep="\n")


if __name__ == "__main__":
    main()
