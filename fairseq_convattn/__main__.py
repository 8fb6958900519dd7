"""``python -m fairseq_convattn``: the architectures and options that the plugin adds."""

import argparse

from .architectures import ConvAttnLanguageModel, ConvAttnMaskedLanguageModel, ConvAttnModel
from .architectures.overview import (
    FAMILIES,
    PIECES,
    VOCABULARY,
    table_of_shapes,
    table_of_sizes,
)
from .architectures.presets import ARCHITECTURE_NAMES
from .architectures.registration import TASK_MODELS
from .markdown import Table, raw_table
from .spelling import flag
from .summarization.options import own_options


def _table(rows: list[dict[str, str]]) -> str:
    return raw_table(Table(list(rows[0]), [list(row.values()) for row in rows], ()))


def main() -> None:
    names = ", ".join(name.format("X") for name in ARCHITECTURE_NAMES.values())
    command = argparse.ArgumentParser(
        prog="convattn architectures",
        description="Options added to fairseq-train (its own --help omits them).",
    )
    command.add_argument(
        "--task",
        choices=tuple(TASK_MODELS),
        default="translation",
        help="whose architectures and options to print (default: translation)",
    )
    task = command.parse_args().task
    base = TASK_MODELS[task]
    model, sizes = {
        "convattn": (ConvAttnModel, f"with {VOCABULARY:,} shared types"),
        "convattn_lm": (ConvAttnLanguageModel, "with the types above"),
        "convattn_mlm": (ConvAttnMaskedLanguageModel, f"with {PIECES:,} types and 512 positions"),
    }[base]
    shapes, parameters = (make(FAMILIES[base]) for make in (table_of_shapes, table_of_sizes))
    parser = argparse.ArgumentParser(
        usage=f"fairseq-train DATA --task {task} --user-dir fairseq_convattn --arch ARCH [options]",
        description=f"{command.description}\n\n"
        f"Architectures: {base}, whose defaults are given below, and {names}:\n\n"
        f"{_table(shapes)}\n\nMillion parameters, {sizes}:\n\n{_table(parameters)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    model.add_args(parser)
    if task == "summarization":
        group = parser.add_argument_group("options of the task")
        for option in own_options():
            takes = {"nargs": "?"} if "argparse_const" in option.metadata else {}
            takes = {"action": "store_true"} if option.type is bool else takes
            group.add_argument(flag(option.name), help=option.metadata["help"], **takes)
    print(parser.format_help(), end="")  # print_help hides that it cannot write


if __name__ == "__main__":
    main()
