"""``python -m fairseq_convattn``: the architectures and options that the plugin adds."""

import argparse

from .architectures import ConvAttnLanguageModel, ConvAttnMaskedLanguageModel, ConvAttnModel
from .architectures.overview import (
    PIECES,
    VOCABULARY,
    architecture_table,
    language_model_table,
    masked_language_model_table,
)
from .architectures.presets import ARCHITECTURE_NAMES
from .architectures.registration import TASK_MODELS
from .outputs import flag
from .summarization.options import own_options


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
    if base == "convattn_lm":
        model, table = ConvAttnLanguageModel, language_model_table()
    elif base == "convattn_mlm":
        model = ConvAttnMaskedLanguageModel
        table = masked_language_model_table()
        names += f" (sizes with {PIECES:,} types and 512 positions)"
    else:
        model, table = ConvAttnModel, architecture_table()
        names += f" (sizes with {VOCABULARY:,} shared types)"
    parser = argparse.ArgumentParser(
        usage=f"fairseq-train DATA --task {task} --user-dir fairseq_convattn --arch ARCH [options]",
        description=f"{command.description}\n\n"
        f"Architectures: {base}, whose defaults are given below, and {names}:\n\n{table}",
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
    parser.print_help()


if __name__ == "__main__":
    main()
