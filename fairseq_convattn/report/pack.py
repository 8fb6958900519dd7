"""A recipe's model as a folder to hand on.

The folder has model.pt in half precision and without the optimizer's state, the dictionaries,
what splits text into subwords, and README.md, a model card. From Python it opens with
ConvAttnModel.from_pretrained(FOLDER), or that of ConvAttnLanguageModel and the like.
"""

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.data.data_utils import infer_language_pair
from torch import Tensor

from ..architectures.dictionaries import LANGUAGES, STORED
from ..architectures.pretrained import CODES, PIECES
from ..checkpoints.checks import CheckpointError, check_finite
from ..checkpoints.files import plain_configuration, read_checkpoint, write_checkpoint
from ..command_lines import one_line_errors
from ..durable import appearing, require_no_links
from ..markdown import code, text
from ..run_records import write_json
from . import ReportError
from .collected import collected, results_table
from .runs import Run


class _Use(NamedTuple):
    """How a task's models are used from Python, which checkpoint a recipe scores that averages
    none, and what its models read if nothing splits text for them."""

    model: str
    call: str
    checkpoint: str = "checkpoint_best.pt"
    without_pieces: str = "It reads and writes subwords: the folder has nothing that splits text."


_USES = {
    "translation": _Use("ConvAttnModel", "translate({text!r})"),
    "summarization": _Use("ConvAttnModel", "summarize({text!r})"),
    "language_modeling": _Use(
        "ConvAttnLanguageModel",
        "sample('the', sampling=True)",
        without_pieces="It reads the words of its dictionary, split by spaces.",
    ),
    "masked_lm": _Use(
        "ConvAttnMaskedLanguageModel", "fill_mask('the <mask>')", "checkpoint_last.pt"
    ),
}
_LONGEST = 200  # characters of a sample
_TO_KNOW = ("parameters", "architecture", "origin")  # of results, for the card


def pack(run: Path, output: Path, data: Path | None = None) -> None:
    """Write the folder of a finished run's model.

    Args:
        data: the folder of the prepared data, where it is not that of the training any more.

    Raises:
        CheckpointError: the model cannot be read, or has values beyond float16's.
        FileExistsError: ``output`` is there already, or the model is a symbolic link.
        FileNotFoundError: the folder of ``output`` or the prepared data are not there.
        ReportError: ``run`` is not a run of a recipe, a smoke test, or lacks what the card tells,
            or a file to pack is elsewhere.
    """
    record = Run(run)
    results = collected(record)
    use = _USES.get(record.training.get("--task") or "")
    missing = [name for name in _TO_KNOW if not results.get(name)]
    if not use or missing:
        raise ReportError(f"{run} does not say its {', '.join(missing) or 'task'}")
    scored = "average.pt" if "average" in record.stages else use.checkpoint
    model = run / "checkpoints" / scored
    require_no_links([model.parent, model], "run")
    state = read_checkpoint(model)
    state.pop("last_optimizer_state", None)
    task = state["cfg"]["task"]
    binarised = _binarised(data) if data else _data_of_the_training(task["data"], run)
    with appearing(output) as folder:
        folder.mkdir()
        _copy_dictionaries(binarised, folder)
        if "source_lang" in task and not task["source_lang"]:
            task["source_lang"], task["target_lang"] = infer_language_pair(str(binarised))
        bpe = _copy_subwords(binarised.parent, task.get("source_lang"), folder)
        state["cfg"] = _configuration(state["cfg"], bpe)
        state["extra_state"] = {"train_iterator": {"epoch": 1}}
        state["model"] = _halved(state["model"], model)
        write_checkpoint(state, folder / "model.pt")
        write_json(results, folder / "results.json")
        card = _card(output.name, results, use, _sample(record), folder)
        (folder / "README.md").write_text(card, encoding="utf-8")


def _binarised(data: Path) -> Path:
    """A folder of prepared data, or a binarised one, as a recipe takes it.

    Raises:
        FileNotFoundError: it has no dictionaries.
    """
    data = data.resolve()
    for folder in (data / "bin", data):
        if any(folder.glob("dict*.txt")):
            return folder
    raise FileNotFoundError(f"--data: neither {data} nor {data / 'bin'} has dictionaries")


def _data_of_the_training(data: str, run: Path) -> Path:
    """The folder that a checkpoint names, if it is near: who wrote the file chose it.

    Raises:
        ReportError: it is not.
    """
    folder = Path(data).resolve()
    if not any(folder.parent.is_relative_to(near.resolve()) for near in (Path(), run)):
        raise ReportError(f"its data are in {folder}: if they may be packed, give --data {folder}")
    return folder


def _copy(path: Path, to: Path) -> None:
    """Copy one of the prepared data's files.

    Raises:
        ReportError: a link leads out of its folder.
    """
    if path.resolve().parent != path.parent:
        raise ReportError(
            f"{path} leads to {path.resolve()}: only files of the data's own folder are packed; "
            "give --data the folder that has them"
        )
    shutil.copyfile(path, to)


def _copy_dictionaries(binarised: Path, folder: Path) -> None:
    dictionaries = list(binarised.glob("dict*.txt"))
    if not dictionaries:
        raise FileNotFoundError(
            f"{binarised} has no dictionaries: run this where the recipe ran, or give --data"
        )
    for path in dictionaries:
        _copy(path, folder / path.name)


def _copy_subwords(data: Path, source: str | None, folder: Path) -> dict[str, str] | None:
    """What splits text, under the name that fairseq looks for; its configuration."""
    codes = ("subword_nmt", "bpe_codes", CODES)
    pieces = ("sentencepiece", "sentencepiece_model", PIECES)
    known = {"bpe.model": pieces, "codes": codes}
    if Path(name := f"codes.{source}").name == name:  # no path out of the folder
        known[name] = codes
    for name, (bpe, option, kept) in known.items():
        if (path := data / "bpe" / name).is_file():
            _copy(path, folder / kept)
            return {"_name": bpe, option: kept}
    return None


def _configuration(cfg: Mapping[str, Any], bpe: dict[str, str] | None) -> dict[str, Any]:
    """What loading needs of a training's configuration, the rest as fairseq's defaults: it has
    paths of the machine that trained."""
    packed = plain_configuration(*(cfg[part]["_name"] for part in ("task", "model", "criterion")))
    packed |= {name: cfg[name] for name in ("tokenizer", STORED, LANGUAGES) if name in cfg}
    for name in ("max_tokens", "batch_size"):
        packed["dataset"][name] = cfg["dataset"][name]
    packed["task"] = {**cfg["task"], "data": "."}
    model = {name: None for name in cfg["model"] if name.endswith("_embed_path")}
    packed["model"] = {**cfg["model"], **model}  # the weights have what was read there
    packed["bpe"] = bpe
    return packed


def _halved(weights: Mapping[str, Tensor], model: Path) -> dict[str, Tensor]:
    """In half precision; equal tensors, such as tied embeddings, are stored once."""
    halved: dict[str, Tensor] = {}
    for name, weight in weights.items():
        half = weight.half() if weight.is_floating_point() else weight
        same = (x for x in halved.values() if x.dtype == half.dtype and torch.equal(x, half))
        halved[name] = next(same, half)
    try:
        check_finite(halved)
    except CheckpointError as error:
        raise CheckpointError(f"{model} has weights beyond float16's 65,504: {error}") from None
    return halved


def _sample(run: Run) -> tuple[str, str]:
    """A source and what the model wrote; no long ones."""
    for texts in run.generated.values():
        for pair in zip(texts.sources or (), texts.hypotheses, strict=False):
            if max(map(len, pair)) <= _LONGEST:
                return pair
    return "...", ""


def _card(
    name: str, results: Mapping[str, Any], use: _Use, sample: tuple[str, str], folder: Path
) -> str:
    source, answer = sample
    kept = {path.name for path in folder.iterdir()}
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    parts = [
        f"# {text(results['title'])}, {text(results['architecture'])}",
        f"{results['parameters']:,} parameters in half precision, {size:.1f} MB.",
        "```python\n"
        f"from fairseq_convattn.architectures import {use.model}\n\n"
        f"{use.model}.from_pretrained({name!r}).{use.call.format(text=source)}\n```",
    ]
    training = [f"By the command above, after {text(results['paper'])}; {text(results['origin'])}."]
    if results.get("reading"):
        training.append(f"Chosen here: {text(results['reading'])}.")
    if answer:
        parts.append(f"With the recipe's decoding options it answers {code(answer)}.")
    if CODES in kept:
        parts.append("Its subwords need `pip install subword-nmt`.")
    elif PIECES not in kept:
        parts.append(use.without_pieces)
    parts += [
        "Input must look like the training text, which the recipe's stage `prepare` writes.",
        "## Results",
        results_table([folder / "results.json"]),
        "## Training",
        " ".join(training),
        "`results.json` has the versions, the checksums of the data and the validation curve.",
        "## Limits",
        f"It learned from one corpus, {text(results['title'])}; before you pass it on, read that "
        "corpus's licence. Other text is answered badly.",
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="convattn pack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="folder of a finished run of a recipe")
    parser.add_argument(
        "--output", type=Path, required=True, help="folder to write; it must not exist"
    )
    parser.add_argument(
        "--data", type=Path, help="folder of the prepared data (default: that of the training)"
    )
    arguments = parser.parse_args()
    with one_line_errors(CheckpointError, ReportError):
        pack(arguments.run, arguments.output, arguments.data)
    print(*sorted(arguments.output.iterdir()), sep="\n")


if __name__ == "__main__":
    main()
