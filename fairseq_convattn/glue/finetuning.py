"""Fine-tuning a pre-trained model on one task with several seeds."""

import re
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq import checkpoint_utils

import fairseq_convattn

from ..architectures.dictionaries import digest, require_same_dictionaries
from ..checkpoints.recovery import restore_last
from ..child_processes import run as run_command
from ..command_lines import missing_modules
from ..folder_lock import locked
from ..run_records import difference, read_json, sha256, versions, write_json
from ..training_options import option_of, refusal
from .binarising import read_dictionary
from .evaluation import evaluate, example_lengths
from .metrics import summary, table
from .pretrained import Pretrained, read_pretrained
from .tasks import PREPARE_ANEW, TASKS, GlueError, GlueTask

_WARMUP = 0.1
# options of fairseq-train that the command sets itself
_OURS = {
    *("--arch", "-a", "--task", "--criterion", "--user-dir", "--seed", "--save-dir"),
    *("--restore-file", "--finetune-from-model", "--num-classes", "--regression-target"),
    *("--init-token", "--separator-token", "--max-positions", "--batch-size", "--max-sentences"),
    *("--max-tokens", "--update-freq", "--lr", "--lr-scheduler", "--total-num-update"),
    *("--warmup-updates", "--max-epoch", "--max-update", "--distributed-world-size"),
    "--classification-head-name",
}
# with these the checkpoint of an epoch would be missing
_LOSING = {
    *("--no-save", "--save-interval", "--checkpoint-suffix", "--no-epoch-checkpoints"),
    *("--keep-last-epochs", "--stop-time-hours"),
}
_LOSS = re.compile(r" train \| epoch 0*(\d+) \| loss ([\d.]+|nan|inf) ")


class Run(NamedTuple):
    """One fine-tuning: model, task and options.

    Attributes:
        model: a checkpoint.
        data: the folder of the task's folder.
        max_positions: inputs are cut to this many tokens; None: as in the pre-training.
        extra: further arguments for fairseq-train.
    """

    task: str
    model: Path
    data: Path
    output: Path
    lr: float
    batch_size: int
    epochs: int
    max_positions: int | None
    extra: Sequence[str]


def finetune(run: Run, seeds: Sequence[int]) -> None:
    """Fine-tune with every seed that is not done yet.

    Prints a table of all seeds in ``output``, earlier calls included, and writes
    ``output/results.json``.

    Raises:
        BlockingIOError: another run is writing to ``output``.
        CheckpointError: the model cannot be read.
        FileExistsError: ``output`` has files of something else.
        GlueError: model, data and options do not fit, ``output`` holds results of others, or
            scikit-learn or scipy is not installed.
        CommandFailed: training fails.
    """
    if missing := missing_modules("sklearn", "scipy"):
        raise GlueError(f"GLUE's metrics need {missing}")
    pretrained = read_pretrained(run.model)
    run = run._replace(max_positions=run.max_positions or pretrained.max_positions)
    data = run.data / run.task
    separators = 1 if pretrained.segments else 2
    lengths = {
        subset: example_lengths(TASKS[run.task], data, subset, separators)
        for subset in TASKS[run.task].files
    }
    _check(run, pretrained, data)
    with locked(run.output, "settings.json"):
        settings = _settings(run, pretrained, lengths)
        _require_same(settings, run.output)
        for subset, number in settings["cut"].items():
            if number:
                print(
                    f"note: {number:,} of {settings['examples'][subset]:,} examples of {subset} "
                    f"are cut to {settings['max_positions']} tokens"
                )
        for seed in seeds:
            _finetune_seed(run, pretrained, len(lengths["train"]), seed)
        finished = map(read_json, run.output.glob("seed*/result.json"))
        done = sorted(finished, key=lambda one: one["seed"])
        results = run.output / "results.json"
        write_json({**settings, "seeds": done, "summary": summary(done)}, results)
    title = f"{run.task}, dev set, in %, {run.model} ({pretrained.architecture})"
    print(f"\n{title}\n\n{table(done)}\n")
    print(f"The epoch is the best one on the dev set, by the metrics' mean.\nwrote {results}")


def _check(run: Run, pretrained: Pretrained, data: Path) -> None:
    _check_dictionary(run.model, pretrained, data)
    if pretrained.learned_positions and run.max_positions != pretrained.max_positions:
        raise GlueError(
            f"{run.model} has learned embeddings of {pretrained.max_positions} positions; "
            f"--max-positions {run.max_positions} does not go with them"
        )
    for word in run.extra:
        if option_of(word) in _LOSING:
            raise GlueError(f"{word} after --: the checkpoints of all epochs are evaluated")
        if option_of(word) in _OURS:
            raise GlueError(
                f"{word} after --: the command sets it; before -- there are --seeds, --lr, "
                "--batch-size, --epochs, --max-positions and --output"
            )
    command = _command(run, pretrained, examples=1, seed=1, folder=run.output)
    if run.extra and (reason := refusal(command[1:])):
        raise GlueError(f"after --: {reason}")


def _check_dictionary(model: Path, pretrained: Pretrained, data: Path) -> None:
    dictionary = read_dictionary(data / "input0" / "dict.txt")
    dictionary.add_symbol("<mask>")
    if len(dictionary) != pretrained.types:
        raise GlueError(
            f"{data} has {len(dictionary):,} types and {model} {pretrained.types:,}, both with "
            f"<mask>: {PREPARE_ANEW}"
        )
    try:
        now = [digest(dictionary)]
        require_same_dictionaries(pretrained.dictionaries, now, str(model), PREPARE_ANEW)
    except ValueError as error:
        raise GlueError(f"{data}: {error}") from None


def _settings(run: Run, pretrained: Pretrained, lengths: dict[str, list[int]]) -> dict[str, Any]:
    """The settings that results depend on; runs may share a folder if these are equal."""
    cut = {subset: sum(n > run.max_positions for n in each) for subset, each in lengths.items()}
    return {
        "task": run.task,
        "metrics": list(TASKS[run.task].metrics),
        "model": str(run.model),
        "model_sha256": sha256(run.model),
        "architecture": pretrained.architecture,
        "data": str(run.data / run.task),
        "dictionary_sha256": sha256(run.data / run.task / "input0" / "dict.txt"),
        "examples": {subset: len(tokens) for subset, tokens in lengths.items()},
        "cut": cut,
        "lr": run.lr,
        "batch_size": run.batch_size,
        "epochs": run.epochs,
        "max_positions": run.max_positions,
        "fairseq_arguments": list(run.extra),
    }


def _require_same(settings: dict[str, Any], output: Path) -> None:
    path = output / "settings.json"
    if not path.exists():
        write_json(settings, path)
        return
    may_move = {"model": "", "data": ""}
    if found := difference(read_json(path) | may_move, settings | may_move):
        raise GlueError(
            f"{output} has results of other options ({found}); choose another folder with --output"
        )


def _finetune_seed(run: Run, pretrained: Pretrained, examples: int, seed: int) -> None:
    """Train with a seed, unless that is done, and write its ``result.json``."""
    folder = run.output / f"seed{seed}"
    result, log = folder / "result.json", folder / "train.log"
    if result.is_file():
        print(f"seed {seed} is done already", flush=True)
        _keep_only(Path(read_json(result)["checkpoint"]).name, folder)
        return
    folder.mkdir(exist_ok=True)
    restore_last(folder)
    command = _command(run, pretrained, examples, seed, folder)
    print(f"seed {seed}, log in {log}\n+ {shlex.join(command)}", flush=True)
    run_command(command, log)
    for epoch, loss in _LOSS.findall(log.read_text(encoding="utf-8", errors="replace")):
        print(f"  epoch {epoch}: training loss {loss}", flush=True)
    task, epochs = TASKS[run.task], []
    for checkpoint in _checkpoints(folder):
        found = evaluate(task, checkpoint, run.data / run.task, run.batch_size)
        text = ", ".join(f"{name} {value:.2f}" for name, value in found["scores"].items())
        print(f"  epoch {found['epoch']}, dev set: {text}", flush=True)
        epochs.append(found)
    best = max(epochs, key=lambda one: _quality(task, one))
    record = {
        "seed": seed,
        **best,
        "all_epochs": [{"epoch": one["epoch"], "scores": one["scores"]} for one in epochs],
        "command": shlex.join(command),
        "versions": versions(("torch", "scikit-learn", "scipy"))
        | {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"},
    }
    write_json(record, result)
    _keep_only(Path(best["checkpoint"]).name, folder)


def _keep_only(best: str, folder: Path) -> None:
    """Delete a seed's checkpoints of the other epochs, if the best one is there."""
    if not (folder / best).is_file():
        return
    for checkpoint in (*_checkpoints(folder), folder / "checkpoint_last.pt"):
        if checkpoint.name != best:
            checkpoint.unlink(missing_ok=True)


def best_checkpoint(model: Path) -> Path:
    """A checkpoint itself, or the one of the best seed of a folder of fine-tunings.

    Raises:
        GlueError: the folder has no results.
    """
    if not model.is_dir():
        return model
    if not (model / "results.json").is_file():
        raise GlueError(f"{model} has no results.json of convattn glue finetune; give a checkpoint")
    results = read_json(model / "results.json")
    if not results.get("seeds") or results.get("task") not in TASKS:
        raise GlueError(f"{model} is not an output of convattn glue finetune")
    best = max(results["seeds"], key=lambda one: _quality(TASKS[results["task"]], one))
    return model / f"seed{best['seed']}" / Path(best["checkpoint"]).name


def _quality(task: GlueTask, found: dict[str, Any]) -> float:
    """The mean of the metrics; with two dev sets, those of the first."""
    return statistics.mean(list(found["scores"].values())[: len(task.metrics)])


def _checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of the epochs, in order; the last state if no epoch was finished."""
    newest_first = checkpoint_utils.checkpoint_paths(str(folder), r"checkpoint(\d+)\.pt")
    return [Path(file) for file in reversed(newest_first)] or [folder / "checkpoint_last.pt"]


def _command(run: Run, pretrained: Pretrained, examples: int, seed: int, folder: Path) -> list[str]:
    task = TASKS[run.task]
    updates = -(-examples // run.batch_size) * run.epochs
    return [
        *("fairseq-train", str(run.data / run.task), "--save-dir", str(folder)),
        *("--user-dir", str(Path(fairseq_convattn.__file__).parent), "--seed", str(seed)),
        *("--task", "sentence_prediction", "--criterion", "sentence_prediction"),
        *("--num-classes", str(len(task.classes) or 1)),
        *(() if task.classes else ("--regression-target",)),
        *("--init-token", "0"),
        *(() if pretrained.segments else ("--separator-token", "2")),
        *("--max-positions", str(run.max_positions), "--shorten-method", "truncate"),
        *("--arch", pretrained.architecture, *pretrained.options),
        *("--finetune-from-model", str(run.model), "--find-unused-parameters"),
        *("--optimizer", "convattn_adam", "--adam-betas", "(0.9, 0.999)", "--adam-eps", "1e-6"),
        *("--weight-decay", "0.01", "--clip-norm", "1.0", "--lr", str(run.lr)),
        *("--lr-scheduler", "polynomial_decay", "--total-num-update", str(updates)),
        *("--warmup-updates", str(int(_WARMUP * updates)), "--max-epoch", str(run.epochs)),
        *("--batch-size", str(run.batch_size), "--required-batch-size-multiple", "1"),
        *("--update-epoch-batch-itr", "True"),
        *("--disable-validation", "--distributed-world-size", "1"),
        *("--log-format", "simple", *run.extra),
    ]
