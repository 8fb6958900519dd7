#!/usr/bin/env python
"""fairseq's commands from end to end: tokens per second, parameters and memory of whole models.

Runs fairseq-train on language models (6 layers, 512 / 2048 / 8, 8,000 types) and on encoders and
decoders of IWSLT's or WMT's big shape, and fairseq-generate at beam 5 with outputs of one length,
which models with random weights need to be compared: this package's models beside fairseq's
transformer and lightconv of the same shape, on random text. Language models have dropout 0.1,
convolutions DropConnect 0.1 and attention none, translators what their presets have. Every run is
a process of its own, all models in turn, round after round. Linux only.
"""

import argparse
import json
import os
import random
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from measuring import (
    Table,
    add_csv,
    add_device,
    add_names,
    add_numbers,
    lengths,
    processor,
    program,
    save,
    setting,
)

PLUGIN = Path(__file__).resolve().parents[1] / "fairseq_convattn"
USER_DIR = shlex.quote(str(PLUGIN))
TASKS = ("lm", "translation", "generate")
MODELS = ("dynamic", "lightweight", "attention", "transformer", "lightconv")
FAIRSEQS = ("transformer", "lightconv")
FIELDS = (
    "task",
    "model",
    "tokens",
    "tokens_per_second",
    "least",
    "most",
    "sentences_per_second",
    "memory_MiB",
    "parameters",
)
TYPES = 8_000
LM_SHAPE = (
    "--decoder-layers 6 --decoder-embed-dim 512 --decoder-ffn-embed-dim 2048 "
    "--decoder-attention-heads 8 --share-decoder-input-output-embed --dropout 0.1"
)
LM_ARCHITECTURES = {
    "dynamic": "convattn_lm --decoder-mixers dynamic --weight-dropout 0.1",
    "lightweight": "convattn_lm --decoder-mixers lightweight --weight-dropout 0.1",
    "attention": "convattn_lm --decoder-mixers attention",
    "transformer": "transformer_lm",
    "lightconv": (
        "lightconv_lm --decoder-conv-type dynamic --weight-softmax True --weight-dropout 0.1 "
        "--input-dropout 0"
    ),
}
SHAPES = ("iwslt_de_en", "wmt_en_de_big")
TRANSLATION_ARCHITECTURES = {
    "dynamic": "dynamic_conv_{}",
    "lightweight": "lightweight_conv_{}",
    "attention": "attention_{}",
    "transformer": "transformer_{}",
    "lightconv": "lightconv_{} --encoder-conv-type dynamic --decoder-conv-type dynamic",
}
SENTENCE = 27  # tokens, and those of every output, as IWSLT's have on average
WORDS_OF_A_LINE = 100  # of the text that is cut into the language models' blocks
BEAM = 5


class Run(NamedTuple):
    """Tokens and, decoding, sentences per second, MiB at the peak, and parameters."""

    speed: float
    sentences: float | None
    memory: float | None
    parameters: int | None


class Commands:
    """fairseq's commands in a folder, on random text."""

    def __init__(self, folder: Path, arguments: argparse.Namespace):
        self.folder, self.arguments = folder, arguments
        self.compiled: set[str] = set()
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(arguments.threads),
            "PYTHONPATH": os.pathsep.join([str(PLUGIN.parent), os.environ.get("PYTHONPATH", "")]),
        }

    def run(self, command: str) -> tuple[str, float]:
        """Run a command; returns its output and its peak memory in MiB."""
        executable, *rest = shlex.split(command)
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [program(executable), *rest],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self.environment,
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            printed = output.read()
        if process.returncode and not _aborted_after_training(process.returncode, printed):
            sys.exit(f"error: {command}\n{printed[-3000:]}")
        return printed, usage.ru_maxrss / 1024

    def write(self, name: str, lines: int, words: int) -> None:
        randomly = random.Random(1)
        text = (
            " ".join(str(randomly.randrange(TYPES)) for _ in range(words)) for _ in range(lines)
        )
        (self.folder / name).write_text("".join(f"{line}\n" for line in text))

    def dictionary(self) -> str:
        """Write a dictionary of all types; a short text would lack some."""
        (self.folder / "types").write_text("".join(f"{word} 1\n" for word in range(TYPES)))
        return "types"

    def _tokens(self, longest: int) -> int:
        """Number of tokens that all updates take, in sequences of at most ``longest``."""
        return (self.arguments.updates + 1) * max(self.arguments.batch_tokens, longest)

    def text(self) -> str:
        """A folder of text, made on first use; as in :meth:`parallel_text`."""
        if not (self.folder / "data").exists():
            lines = 1 + self._tokens(max(self.arguments.tokens)) // WORDS_OF_A_LINE
            self.write("text", lines, WORDS_OF_A_LINE)
            self.run(
                "fairseq-preprocess --only-source --trainpref text --destdir data "
                f"--srcdict {self.dictionary()}"
            )
        return "data"

    def parallel_text(self, tokens: int) -> str:
        """A folder of sentence pairs of this length, and a test set."""
        name = f"parallel-{tokens}"
        if not (self.folder / name).exists():
            sentences = max(self.arguments.sentences, 1 + self._tokens(tokens) // tokens)
            for split, count in (("train", sentences), ("test", self.arguments.sentences)):
                for language in ("de", "en"):
                    self.write(f"{split}.{language}", count, tokens - 1)
            self.run(
                "fairseq-preprocess -s de -t en --trainpref train --testpref test "
                f"--destdir {name} --joined-dictionary --srcdict {self.dictionary()}"
            )
        return name

    def train(self, data: str, architecture: str, more: str) -> Run:
        printed, memory = self.run(
            f"fairseq-train {data} --user-dir {USER_DIR} --arch {architecture} {more} --seed 1 "
            "--optimizer adam --lr 1e-4 --disable-validation --num-workers 0 --log-format json "
            f"--log-interval 1 --max-update {self.arguments.updates} {self.on_device()} "
            "--required-batch-size-multiple 1 --update-epoch-batch-itr True"
        )
        if self.arguments.device == "cuda":
            memory = _gpu_memory(printed)
        return Run(_trained_speed(printed), None, memory, _parameters(printed))

    def on_device(self) -> str:
        if self.arguments.device == "cpu":
            return "--cpu"
        return f"--{self.arguments.precision} --distributed-world-size 1"

    def train_language_model(self, model: str, tokens: int) -> Run:
        return self.train(
            self.text(),
            f"{LM_ARCHITECTURES[model]} {LM_SHAPE}",
            f"--task language_modeling --sample-break-mode none --tokens-per-sample {tokens} "
            f"--max-tokens {max(tokens, self.arguments.batch_tokens)} --no-save",
        )

    def train_translation(self, model: str, tokens: int) -> Run:
        """Train, and keep the model if it is to decode."""
        generates = "generate" in self.arguments.tasks and tokens == SENTENCE
        wanted = generates and not self.checkpoint(model).exists()
        saving = f"--save-dir {model} --no-epoch-checkpoints" if wanted else "--no-save"
        return self.train(
            self.parallel_text(tokens),
            TRANSLATION_ARCHITECTURES[model].format(self.arguments.shape),
            f"--share-all-embeddings --max-tokens {max(tokens, self.arguments.batch_tokens)} "
            f"--max-source-positions {tokens + 1} --max-target-positions {tokens + 1} {saving}",
        )

    def checkpoint(self, model: str) -> Path:
        return self.folder / model / "checkpoint_last.pt"

    def generate(self, model: str) -> Run:
        checkpoint = self.checkpoint(model)
        if not checkpoint.exists():
            self.train_translation(model, SENTENCE)
        command = (
            f"fairseq-generate {self.parallel_text(SENTENCE)} --user-dir {USER_DIR} "
            f"--path {shlex.quote(str(checkpoint))} --beam {BEAM} "
            f"--min-len {SENTENCE} --max-len-a 0 --max-len-b {SENTENCE} --quiet "
            f"{'--cpu' if self.arguments.device == 'cpu' else '--fp16'} "
            f"--batch-size {self.arguments.sentences_per_batch} --num-workers 0 "
            "--required-batch-size-multiple 1"
        )
        if self.arguments.device == "cuda" and model not in (*FAIRSEQS, *self.compiled):
            # Triton compiles, and keeps what it compiled on the disk
            self.run(command)
            self.compiled.add(model)
        printed, memory = self.run(command)
        found = re.search(r"([\d.]+) sentences/s, ([\d.]+) tokens/s\)", printed)
        sentences, speed = map(float, found.groups())
        return Run(speed, sentences, memory if self.arguments.device == "cpu" else None, None)


def _aborted_after_training(returncode: int, printed: str) -> bool:
    """A thread that still pins a batch to come can abort fairseq-train after its last update."""
    return returncode == -signal.SIGABRT and "| done training in " in printed


def _updates(printed: str) -> list[dict]:
    """The log record of each update of fairseq-train."""
    return [
        json.loads(line[line.index("{") :])
        for line in printed.splitlines()
        if "| train_inner |" in line
    ]


def _gpu_memory(printed: str) -> float:
    """Peak MiB, within 51: fairseq logs the free memory in tenths of a GiB."""
    free = min(float(update["gb_free"]) for update in _updates(printed))
    return torch.cuda.get_device_properties(0).total_memory / 2**20 - free * 1024


def _trained_speed(printed: str) -> float:
    """The median speed over updates, without the first one, which allocates and compiles."""
    speeds = [float(update["wps"]) for update in _updates(printed)]
    if len(speeds) < 2:
        sys.exit("error: fewer than two updates to measure: raise --updates")
    return statistics.median(speeds[1:])


def _parameters(printed: str) -> int:
    return int(re.search(r"num\. shared model params: ([\d,]+)", printed)[1].replace(",", ""))


def measure(commands: Commands, arguments: argparse.Namespace) -> Iterator[dict]:
    """Rows of ``FIELDS``, one after every run; a later one of the same case and model replaces
    it."""
    cases = []
    if "lm" in arguments.tasks:
        cases += [("lm", tokens) for tokens in arguments.tokens]
    if "translation" in arguments.tasks:
        cases += [("translation", n) for n in dict.fromkeys((SENTENCE, *arguments.tokens))]
    if "generate" in arguments.tasks:
        cases += [("generate", SENTENCE)]
    for task, tokens in cases:
        found: dict[str, list[Run]] = {model: [] for model in arguments.models}
        for _ in range(arguments.repetitions):
            for model, runs in found.items():
                if task == "lm":
                    runs.append(commands.train_language_model(model, tokens))
                elif task == "translation":
                    runs.append(commands.train_translation(model, tokens))
                else:
                    runs.append(commands.generate(model))
                yield _row(task, model, tokens, runs)


def _row(task: str, model: str, tokens: int, runs: list[Run]) -> dict:
    speeds = [run.speed for run in runs]
    figures = (statistics.median(speeds), min(speeds), max(speeds))
    more = (_median(runs, "sentences"), _median(runs, "memory"), runs[0].parameters)
    return dict(zip(FIELDS, (task, model, tokens, *figures, *more), strict=True))


def _median(runs: list[Run], field: str) -> float | None:
    values = [getattr(run, field) for run in runs]
    return None if None in values else statistics.median(values)


def _label(model: str) -> str:
    return f"fairseq's {model}" if model in FAIRSEQS else model


TABLE = Table(
    *(("task", "<11"), ("tokens", ">6,"), ("model", "<23"), ("tokens/s", ">9,.1f")),
    *(("least..most", ">15,.0f"), ("x transformer", ">13.2f"), ("x lightconv", ">11.2f")),
    *(("sentences/s", ">11.2f"), ("MiB", ">6,.0f"), ("parameters", ">11,")),
)


def line(row: dict, rows: list[dict]) -> str:
    """A printed line, with ratios to fairseq's models in the same case."""
    same = {
        other["model"]: other["tokens_per_second"]
        for other in rows
        if (other["task"], other["tokens"]) == (row["task"], row["tokens"])
    }
    speed = row["tokens_per_second"]
    return TABLE.line(
        *(row["task"], row["tokens"], _label(row["model"]), speed, (row["least"], row["most"])),
        *(speed / same[name] if name in same else None for name in FAIRSEQS),
        *(row["sentences_per_second"], row["memory_MiB"], row["parameters"]),
    )


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add_names(parser, "--tasks", TASKS)
    add_names(parser, "--models", MODELS)
    parser.add_argument(
        "--tokens",
        type=lengths,
        default=[128, 512, 1024, 2048],
        help=f"of the language models' blocks, and beside {SENTENCE} of the translators' sentences "
        "(default: 128,512,1024,2048)",
    )
    parser.add_argument(
        "--shape", choices=SHAPES, default=SHAPES[0], help=f"of translators (default: {SHAPES[0]})"
    )
    add_numbers(
        parser,
        ("--batch-tokens", 2048, "tokens of an update, at most, or one sequence"),
        ("--updates", 5, "of a training run, of which the median but for the first one"),
        ("--sentences", 128, "to be translated"),
        ("--sentences-per-batch", 32, "while translating"),
        ("--repetitions", 3, "rounds, of which the median"),
        ("--threads", os.cpu_count(), "of every process"),
    )
    add_device(parser)
    parser.add_argument(
        "--precision",
        choices=("bf16", "fp16"),
        default="bf16",
        help="of training on a GPU (default: bf16); fairseq-generate and fairseq's own models on "
        "a GPU know fp16 alone",
    )
    add_csv(parser)
    return parser


def main() -> None:
    parser = _options()
    arguments = parser.parse_args()
    if arguments.updates < 2:
        parser.error("--updates: the first one is not counted")
    if arguments.device == "cuda":
        own = [model for model in arguments.models if model in FAIRSEQS]
        if own and arguments.precision == "bf16":
            parser.error(f"--models {own[0]}: fairseq takes --bf16 for a TPU; add --precision fp16")
    machine = processor()
    if arguments.device == "cuda":
        machine = f"{torch.cuda.get_device_name()}, {arguments.precision}; {machine}"
    print(f"{setting(f'{machine}, {arguments.threads} threads')}\n\n{TABLE.header}", flush=True)
    rows: dict[tuple, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        commands = Commands(Path(folder), arguments)
        runs_of_a_case = arguments.repetitions * len(arguments.models)
        for done, row in enumerate(measure(commands, arguments), start=1):
            rows[row["task"], row["tokens"], row["model"]] = row
            save(list(rows.values()), FIELDS, arguments.csv)
            if done % runs_of_a_case == 0:
                case = list(rows.values())[-len(arguments.models) :]
                print(*(line(one, case) for one in case), sep="\n", flush=True)


if __name__ == "__main__":
    main()
