"""GLUE: binarise its files (which convattn prepare glue does), fine-tune a pre-trained model on a
task, predict the test sets.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ..checkpoints.checks import CheckpointError
from ..child_processes import CommandFailed
from ..command_lines import at_dashes, one_line_errors, seed_number, whole_number
from .binarising import Pieces, binarise
from .evaluation import data_of
from .finetuning import Run, best_checkpoint, finetune
from .submission import write_submission
from .tasks import TASKS, GlueError


def learning_rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, not '{text}'")
    return rate


def seed_numbers(text: str) -> list[int]:
    return sorted({seed_number(number) for number in text.split(",")})


def task_names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in TASKS:
            raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(TASKS)}")
    return names


def default_output(model: Path) -> Path:
    """Beside the checkpoint, or beside the folder of another fine-tuning."""
    if model.is_dir():
        model = model.resolve()
        return model.with_name(f"{model.name}-glue")
    return model.with_name(f"{model.stem}-glue")


NUMBER = {"type": whole_number(1), "metavar": "N"}
FOLDER = {"type": Path, "metavar": "DIR"}
PREPARED = Path("data/glue/bin")


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for add_command in (add_binarise, add_finetune, add_predict):
        add_command(commands)
    return parser


def add_binarise(commands: argparse._SubParsersAction) -> None:
    add = commands.add_parser("binarise", help="write TASK/input0, input1 and label").add_argument
    add("--tsv", type=Path, required=True, help="folder of TASK/train.tsv, ...")
    add("--output", type=Path, required=True, help="folder to write to")
    add("--tasks", type=task_names, required=True)
    add("--sentencepiece", type=Path, required=True)
    add("--dictionary", type=Path, required=True)
    add("--sample", action="store_true", help="any numbers of examples")


def add_finetune(commands: argparse._SubParsersAction) -> None:
    add = commands.add_parser(
        "finetune",
        help="train on a task with several seeds, score on its dev sets",
        prog="convattn glue finetune",
        usage="%(prog)s TASK MODEL [options] [-- fairseq-train's options]",
        description="Fine-tune a masked language model on a task of GLUE with several seeds and "
        "print its scores on the dev set: GLUE's metrics over the whole set, of the "
        "epoch that is best there. Every seed is in OUTPUT/seedN, with the checkpoints "
        "of all epochs until it is done and then of the best one; what is done is not "
        "done again, and what was interrupted continues. OUTPUT/results.json has "
        "scores, medians and spread of all seeds there, commands and versions. The "
        "learning rate rises for 10 % of the updates and then falls linearly to 0; Adam, "
        "weight decay and defaults are those of BERT (Devlin et al. 2019, appendix A), for "
        "models of its size: small models need a higher learning rate.",
        epilog="Further options go to fairseq-train after --, and win: -- --dropout 0.2 --fp16. "
        "One GPU is used, or the CPU if there is none.",
    ).add_argument
    add("task", choices=TASKS, metavar="TASK", help=", ".join(TASKS))
    start = (
        "checkpoint of the pre-training; or the OUTPUT of another fine-tuning: its best seed is "
        "used, for example MNLI's for RTE. A classifier with as many classes is kept"
    )
    add("model", type=Path, metavar="MODEL", help=start)
    prepared = "the bin folder that convattn prepare glue wrote (default: %(default)s)"
    add("--data", default=PREPARED, help=prepared, **FOLDER)
    own_folder = "folder for checkpoints and results (default: MODEL without .pt, then -glue/TASK)"
    add("--output", help=own_folder, **FOLDER)
    add(
        "--seeds",
        type=seed_numbers,
        default=[1, 2, 3],
        metavar="N,...",
        help="seeds of the classifier's weights, the batches and dropout (default: 1,2,3)",
    )
    add("--lr", type=learning_rate, default=2e-5, help="peak learning rate (default: 2e-5)")
    add("--batch-size", default=32, help="default: 32", **NUMBER)
    add("--epochs", default=3, help="default: 3", **NUMBER)
    cut = (
        "cut inputs to N tokens (default: to the longest input of the pre-training; fixed for "
        "models with learned positions)"
    )
    add("--max-positions", help=cut, **NUMBER)


def add_predict(commands: argparse._SubParsersAction) -> None:
    add = commands.add_parser(
        "predict",
        help="write a fine-tuned model's predictions of the test set",
        prog="convattn glue predict",
        usage="%(prog)s TASK MODEL [options]",
        description="Write OUTPUT/TASK.tsv (MNLI-m.tsv and MNLI-mm.tsv), the predictions of the "
        "test set in the format of GLUE's server: a line for each example, its number and the "
        "label. The files of all tasks together, zipped, are a submission.",
    ).add_argument
    add("task", choices=TASKS, metavar="TASK", help=", ".join(TASKS))
    tuned = "checkpoint of a fine-tuning on TASK, or its OUTPUT, of which the best seed is taken"
    add("model", type=Path, metavar="MODEL", help=tuned)
    prepared = f"the bin folder with test sets (default: the fine-tuning's, or else {PREPARED})"
    add("--data", help=prepared, **FOLDER)
    add("--output", default=Path("submission"), help="default: %(default)s", **FOLDER)


def main(given: Sequence[str] | None = None) -> None:
    arguments, extra = at_dashes(sys.argv[1:] if given is None else given)
    parser = command_line()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        hint = " (those of fairseq-train come after --)" if options.command == "finetune" else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if extra and options.command != "finetune":
        parser.error(f"{options.command} takes no options of fairseq-train: {' '.join(extra)}")
    try:
        with one_line_errors(CheckpointError, GlueError, CommandFailed):
            _run(options, extra)
    except KeyboardInterrupt:
        again = "; the same command continues" if options.command == "finetune" else ""
        print(f"interrupted{again}", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def _run(options: argparse.Namespace, extra: Sequence[str]) -> None:
    if options.command == "binarise":
        pieces = Pieces(options.sentencepiece, options.dictionary)
        binarise(options.tasks, options.tsv, options.output, pieces, options.sample)
    elif options.command == "predict":
        model = best_checkpoint(options.model)
        data = options.data or data_of(model) or PREPARED
        for path in write_submission(options.task, model, data, options.output):
            print(f"wrote {path}")
    else:
        given, options.model = options.model, best_checkpoint(options.model)
        if options.output is None:
            options.output = default_output(given) / options.task
        run = Run(*(getattr(options, name) for name in Run._fields if name != "extra"), extra)
        finetune(run, options.seeds)


if __name__ == "__main__":
    main()
