"""Export a trained model as programs of torch.export and ONNX.

The programs need neither fairseq nor this package. They give the model's numbers, up to
float32's rounding, at every batch size and length.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from torch import Tensor
from torch.export import ExportedProgram

from ..child_processes import exit_on_signals
from ..command_lines import missing_modules
from ..durable import appearing, require_new
from . import export
from .programs import in_a_line


def main(argv: Sequence[str] | None = None) -> None:
    """The command that exports; its arguments are the process's unless given."""
    parser = argparse.ArgumentParser(prog="convattn export", description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--output", required=True, help="folder to write; it must not exist")
    parser.add_argument("--data", help="folder of the dictionaries (default: that of the training)")
    parser.add_argument(
        "--onnx", action="store_true", help="write ONNX too (pip install onnx onnxscript)"
    )
    arguments = parser.parse_args(argv)
    exit_on_signals()
    output = Path(arguments.output)
    overrides = {"data": arguments.data} if arguments.data else {}
    if arguments.onnx and (missing := missing_modules("onnx", "onnxscript")):
        sys.exit(f"error: --onnx needs {missing}")
    try:
        require_new(output)
        with in_a_line(f"{arguments.checkpoint} cannot be loaded"):
            (model,), _, _ = load_model_ensemble_and_task([arguments.checkpoint], overrides)
        programs, start = export(model)
        with appearing(output) as complete:
            complete.mkdir()
            _write(complete, programs, start, arguments.onnx)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(*(path for path in sorted(output.iterdir())), sep="\n")


def _write(
    folder: Path, programs: dict[str, ExportedProgram], start: list[Tensor], onnx: bool
) -> None:
    """``NAME.pt2``, ``NAME.onnx``, and ``start.npz`` with the arrays ``arr_0``, ``arr_1``, ..."""
    for name, program in programs.items():
        torch.export.save(program, folder / f"{name}.pt2")
        if onnx:
            with in_a_line("torch.onnx"):
                torch.onnx.export(program, dynamo=True, verbose=False).save(folder / f"{name}.onnx")
    if start:
        numpy.savez(folder / "start.npz", *(x.numpy() for x in start))


if __name__ == "__main__":
    main()
