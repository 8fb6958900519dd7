"""The console command ``convattn``, which has a subcommand for everything but fairseq's own.

Each is a module, run as ``python -m`` runs it. None is imported before it is chosen.
"""

import difflib
import errno
import logging
import os
import runpy
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent
IN_CHECKOUT = (FOLDER / "setup.sh").is_file()


class Command(NamedTuple):
    """A subcommand: the module to run, what it does, and arguments that work."""

    module: str
    summary: str
    example: str


COMMANDS = {
    "architectures": Command(
        "fairseq_convattn",
        "architectures and the options that they add to fairseq-train",
        "--task language_modeling",
    ),
    "prepare": Command(
        "",
        "download a corpus and make it ready for fairseq-train",
        "multi30k --output data/multi30k",
    ),
    "sentencepiece": Command(
        "sentencepiece_bpe",
        "learn subwords and split text into them",
        "train --input train.en train.de --model-prefix bpe --vocab-size 10000",
    ),
    "average": Command(
        "fairseq_convattn.checkpoints.averaging",
        "average the weights of checkpoints",
        "--inputs checkpoints --last 5 --output average.pt",
    ),
    "score": Command(
        "fairseq_convattn.scoring",
        "BLEU, chrF or ROUGE, with intervals and significance",
        "--metric bleu --reference test.de --hypothesis translated.txt",
    ),
    "recipe": Command(
        "fairseq_convattn.recipes",
        "reproduce a published result, from raw text to its score",
        "multi30k --mixer dynamic --dry-run",
    ),
    "report": Command(
        "fairseq_convattn.report",
        "one page of several runs of recipes",
        "runs/multi30k-* --output report.html",
    ),
    "analyse": Command(
        "fairseq_convattn.analysis",
        "what a checkpoint has learned about positions",
        "checkpoints/checkpoint_best.pt --output analysis",
    ),
    "glue": Command(
        "fairseq_convattn.glue",
        "fine-tune a masked language model on GLUE, predict test sets",
        "finetune MRPC checkpoints/checkpoint_best.pt --seeds 1,2,3",
    ),
    "pack": Command(
        "fairseq_convattn.report.pack",
        "a recipe's model as a folder to share, with a model card",
        "runs/multi30k-dynamic-seed1 --output multi30k-dynamic",
    ),
    "export": Command(
        "fairseq_convattn.export",
        "a model as programs of torch.export and ONNX",
        "checkpoints/checkpoint_best.pt --output exported",
    ),
    "convert": Command(
        "fairseq_convattn.checkpoints.legacy",
        "make a LightConv or DynamicConv checkpoint of 2019 loadable",
        "model.pt converted.pt",
    ),
    "convert-albert": Command(
        "fairseq_convattn.checkpoints.albert",
        "convert the published ALBERT",
        "albert-base-v2 data/albert",
    ),
}

SECOND_EXAMPLES = {  # of commands whose first argument chooses what they do
    ("sentencepiece", "encode"): "encode --model bpe.model < train.en > train.pieces.en",
    ("glue", "predict"): "predict MRPC checkpoints/checkpoint_best-glue/MRPC --output submission",
}

REQUIRED = {  # arguments of preparing a corpus
    "glue": " --sentencepiece bpe.model --dictionary data/mlm/bin/dict.txt",
    "mlm": " --source text",
    "wmt17_zh_en": " --source release",
}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    score = f"convattn score {COMMANDS['score'].example}"
    return "\n".join(
        ("example:", f"  {score}", "", "usage: convattn COMMAND [arguments]", "", "commands:")
        + (*lines, "", "convattn COMMAND --help explains each of them.")
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a subcommand of ``convattn``.

    Args:
        arguments: its name and its arguments; by default those of the command line.
    """
    if sys.stdout is None:
        sys.exit("error: standard output is closed; redirect it, to /dev/null for example")
    if sys.stderr is None:  # print would take standard output
        sys.stderr = open(os.devnull, "w")
    try:
        try:
            choose(arguments)
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EPIPE):
            raise
        sys.stdout = None  # Python would try to write the rest and fail again
        place = error.filename or "standard output"
        sys.exit(f"error: {place}: {error.strerror}" if error.errno == errno.ENOSPC else 1)


def choose(arguments: Sequence[str] | None) -> None:
    """:func:`main`, without its errors of standard output."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return
    if name not in COMMANDS:
        sys.exit(f"error: convattn has no command '{name}'; {suggestion(name, COMMANDS)}")
    if {"-h", "--help"}.intersection(rest):
        example = SECOND_EXAMPLES.get((name, rest[0]), COMMANDS[name].example)
        if name == "prepare" and rest[0] in corpora():
            example = f"{rest[0]}{REQUIRED.get(rest[0], '')} --output data/{rest[0]}"
        print(f"example:\n  convattn {name} {example}\n", flush=True)
    # fairseq's commands are found beside this one, even in an environment that is not active
    programs = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join((programs, os.environ.get("PATH", os.defpath)))
    if name == "prepare":
        prepare(rest)
    else:
        run(COMMANDS[name].module, rest, f"convattn {name}")


def suggestion(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean '{close[0]}'?" if close else f"there are {', '.join(names)}"


def run(module: str, arguments: Sequence[str], program: str) -> None:
    """``python -m module``, without what fairseq logs while it is imported.

    Without a module that it needs the process ends with a line that says so.
    """
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(FOLDER))
    if IN_CHECKOUT:
        sys.path.insert(0, str(FOLDER.parent))
    logging.basicConfig(level=logging.WARNING)
    warnings.filterwarnings("ignore", "fairseq is not installed")
    # names of files need not be UTF-8
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if stream is not None:
            stream.reconfigure(encoding="utf-8", errors=errors)
    try:
        runpy.run_module(module, run_name="__main__")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in ("fairseq_convattn", module):
            raise
        sys.exit(missing(error.name))


def missing(module: str) -> str:
    """The message that says how to install a missing module."""
    way_out = "pip install it"
    if IN_CHECKOUT:
        way_out = "run 'bash scripts/setup.sh' or activate its environment"
    return f"error: {sys.executable} has no {module}: {way_out}"


def corpora() -> dict[str, Path]:
    """The scripts ``prepare_NAME.sh`` by name."""
    scripts = {file.stem.removeprefix("prepare_"): file for file in FOLDER.glob("prepare_*.sh")}
    return {name: scripts[name] for name in sorted(scripts) if name != "common"}


def prepare(arguments: Sequence[str]) -> None:
    """Replace this process by ``prepare_NAME.sh``."""
    scripts = corpora()
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        lines = [f"  {name:11}  {title(script)}" for name, script in scripts.items()]
        usage = "usage: convattn prepare CORPUS [options]"
        options = "convattn prepare CORPUS --help shows a corpus's options."
        print("\n".join((usage, "", "corpora:", *lines, "", options)))
        return
    if name not in scripts:
        sys.exit(f"error: no corpus '{name}'; {suggestion(name, scripts)}")
    os.environ["CONVATTN_COMMAND"] = f"convattn prepare {name}"
    os.execvp("bash", ["bash", str(scripts[name]), *rest])


def title(script: Path) -> str:
    """What a script prepares, from the comment in its second line."""
    comment = script.read_text(encoding="utf-8").splitlines()[1].removeprefix("# ")
    return comment.partition(", ready for")[0]


if __name__ == "__main__":
    main()
