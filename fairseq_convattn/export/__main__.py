"""Export a trained model as programs of torch.export and ONNX.

The programs need neither fairseq nor this package. They give the model's numbers, up to
float32's rounding, at every batch size and length.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY, BaseFairseqModel
from torch import Tensor
from torch.export import ExportedProgram

from ..architectures.dictionaries import languages_of
from ..architectures.pretrained import DICTIONARIES
from ..checkpoints.checks import CheckpointError, naming
from ..checkpoints.files import (
    architecture_of,
    as_mapping,
    read_outline,
    require_file,
    stored_options,
)
from ..command_lines import missing_modules, one_line_errors
from ..durable import appearing, require_new
from . import export
from .programs import in_a_line


def main(argv: Sequence[str] | None = None) -> None:
    """The command that exports; its arguments are the process's unless given."""
    parser = argparse.ArgumentParser(prog="convattn export", description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--output", required=True, help="folder to write; it must not exist")
    beside = "the checkpoint's, if they are there, or that of the training"
    parser.add_argument("--data", help=f"folder of the dictionaries (default: {beside})")
    parser.add_argument(
        "--onnx", action="store_true", help="write ONNX too (pip install onnx onnxscript)"
    )
    arguments = parser.parse_args(argv)
    output = Path(arguments.output)
    if arguments.onnx and (missing := missing_modules("onnx", "onnxscript")):
        sys.exit(f"error: --onnx needs {missing}")
    with one_line_errors(ValueError):
        with naming(arguments.checkpoint):
            require_file(arguments.checkpoint)
            _refuse_classifiers(arguments.checkpoint)
        require_new(output)
        programs, start = export(_loaded(arguments.checkpoint, arguments.data))
        with appearing(output) as complete:
            complete.mkdir()
            _write(complete, programs, start, arguments.onnx)
    print(*sorted(output.iterdir()), sep="\n")


def _refuse_classifiers(checkpoint: str) -> None:
    """Raise CheckpointError for a fine-tuned model, which would lose its classes."""
    if stored_options(read_outline(checkpoint), "task").get("_name") == "sentence_prediction":
        raise CheckpointError(
            "a fine-tuned classifier cannot be exported; in Python "
            "ConvAttnMaskedLanguageModel.from_pretrained opens it, and predict uses it"
        )


def _loaded(checkpoint: str, data: str | None) -> BaseFairseqModel:
    """The model of a checkpoint.

    Args:
        data: the folder of the dictionaries; None: the checkpoint's or that of the training.
    """
    beside = Path(checkpoint).parent
    if data is None and _has_dictionaries(beside):
        data = str(beside)
    elif data and not _has_dictionaries(folder := Path(data.split(os.pathsep)[0])):
        raise FileNotFoundError(f"--data: no dictionary ({', '.join(DICTIONARIES)}) in {folder}")
    with in_a_line(f"{checkpoint} cannot be loaded"):
        try:
            overrides = {"data": data} if data else {}
            overrides |= _languages(checkpoint, data) if data else {}
            (model,), _, _ = load_model_ensemble_and_task([checkpoint], overrides)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{error}; --data is the folder of the dictionaries") from None
        except KeyError:
            architecture = architecture_of(read_outline(checkpoint))
            if architecture in {*ARCH_MODEL_REGISTRY, *MODEL_REGISTRY}:
                raise
            lacks = f"it needs the plugin that defines its architecture, {architecture}"
            if architecture is None:
                lacks = "it does not say how its model was built"
            raise CheckpointError(f"{checkpoint} cannot be loaded: {lacks}") from None
    return model


def _languages(checkpoint: str, data: str) -> dict[str, str]:
    """The languages of the training, if the data have their dictionaries: where these lie alone,
    fairseq cannot infer a pair."""
    names = languages_of(as_mapping(as_mapping(read_outline(checkpoint)).get("cfg")))
    folder = Path(data.split(os.pathsep)[0])
    if not all((folder / f"dict.{name}.txt").is_file() for name in names):
        return {}
    return dict(zip(("source_lang", "target_lang"), names, strict=False))


def _has_dictionaries(folder: Path) -> bool:
    return any(any(folder.glob(name)) for name in DICTIONARIES)


def _write(
    folder: Path, programs: dict[str, ExportedProgram], start: list[Tensor], onnx: bool
) -> None:
    """``NAME.pt2``, ``NAME.onnx``, and ``start.npz`` with the arrays ``arr_0``, ``arr_1``, ..."""
    for name, program in programs.items():
        content = io.BytesIO()  # on a full disk PyTorch's own writer would abort the process
        torch.export.save(program, content)
        (folder / f"{name}.pt2").write_bytes(content.getbuffer())
        if onnx:
            with in_a_line("torch.onnx"):
                torch.onnx.export(program, dynamo=True, verbose=False).save(folder / f"{name}.onnx")
    if start:
        numpy.savez(folder / "start.npz", *(x.numpy() for x in start))


if __name__ == "__main__":
    main()
