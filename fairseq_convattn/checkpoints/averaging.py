"""The mean of several checkpoints' weights, which often scores better than each."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..architectures.dictionaries import (
    STORED,
    languages_of,
    require_same_dictionaries,
    reversed_direction,
)
from ..command_lines import one_line_errors, whole_number
from ..durable import require_new
from .checks import DIGEST, weights_digest
from .continuation import other_option
from .files import (
    CheckpointError,
    as_mapping,
    read_checkpoint,
    read_outline,
    stored_options,
    updates_of,
    write_checkpoint,
)
from .recovery import LAST

_EPOCH = re.compile(r"checkpoint(\d+)\.pt")
_UPDATE = re.compile(r"checkpoint_\d+_(\d+)\.pt")
_BEST = re.compile(r"checkpoint\.best_(.+)_(-?\d+(?:\.\d+)?)\.pt")
_DESCRIPTION = """\
Average the weights of checkpoints.

The newest five epochs (or updates, where no epoch was saved):
  %(prog)s --inputs CKPT_DIR --last 5 --output OUT.pt
The best five by the validation metric, of those that --keep-best-checkpoints kept:
  %(prog)s --inputs CKPT_DIR --best 5 --output OUT.pt
Any files:
  %(prog)s --inputs A.pt B.pt --output OUT.pt

The result decodes with fairseq-generate --path OUT.pt and is fine-tuned with
fairseq-train --finetune-from-model OUT.pt.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """The command that averages; its arguments are the process's unless given."""
    arguments = _command_line().parse_args(argv)
    with one_line_errors(CheckpointError):
        average_checkpoints(
            _chosen(arguments),
            arguments.output,
            progress=lambda path: print(f"averaging {path}", file=sys.stderr, flush=True),
            repeats=bool(arguments.last),
        )
        print(f"wrote {arguments.output}", flush=True)


def average_checkpoints(
    inputs: Sequence[str | Path],
    output: str | Path,
    progress: Callable[[str | Path], None] = lambda path: None,
    repeats: bool = False,
) -> None:
    """Write a checkpoint with the mean of the weights of others.

    All but the weights is the last input's, without its optimizer's state.

    Args:
        inputs: one checkpoint or more of the same model.
        output: the file to write; it must not exist.
        progress: called with each input before it is read.
        repeats: whether inputs may have equal weights, as epochs after a learning rate of zero.

    Raises:
        CheckpointError: there is no input, one is there twice or cannot be read, its weights have
            other names, shapes or types than the first one's, or it is of another model,
            direction or dictionary.
        FileExistsError: ``output`` is there already.
        FileNotFoundError: the directory of ``output`` is not there.
    """
    require_new(output)
    state: dict = {}
    first: dict = {}
    layout: dict[str, str] = {}
    sums: dict[str, Tensor] = {}
    seen: dict[str, str | Path] = {}
    for path in inputs:
        progress(path)
        state = read_checkpoint(path)
        state.pop("last_optimizer_state", None)
        weights = state["model"]
        layout = layout or _layout(weights)
        first = first or {**state, "model": {}}
        _require_same(layout, inputs[0], _layout(weights), path)
        _require_same_function(first, inputs[0], state, path)
        digest = state.get(DIGEST) or weights_digest(weights)
        if digest in seen and not repeats:
            raise CheckpointError(f"{path} has the weights of {seen[digest]}: give them once")
        seen[digest] = path
        _add(weights, sums)
    if not state:
        raise CheckpointError("there is no checkpoint to average")
    state["model"] = _means(sums, len(inputs), state["model"])
    write_checkpoint(state, output)


def last_checkpoints(directory: str | Path, count: int) -> list[Path]:
    """The newest epoch checkpoints or, if there are none, update checkpoints; in order.

    Raises:
        CheckpointError: there are fewer than ``count``, or one has more updates than the last one.
    """
    kind, found = "epoch", _named(directory, _EPOCH)
    if not found:
        kind, found = "epoch or update", _named(directory, _UPDATE)
    _require_count(directory, found, count, kind)
    found.sort(key=lambda name: int(name[1]))
    return _final(directory, found, count)


def best_checkpoints(directory: str | Path, count: int) -> list[Path]:
    """The best of those that ``--keep-best-checkpoints`` kept, the best one last.

    Whether a higher value is better is read in one of them.

    Raises:
        CheckpointError: there are fewer than ``count``, they were chosen by several metrics, do
            not say which values are better, or one has more updates than the last one.
    """
    found = _named(directory, _BEST)
    metrics = sorted({name[1] for name in found})
    if len(metrics) > 1:
        raise CheckpointError(
            f"{directory} has the best checkpoints by {' and by '.join(metrics)}; "
            "name the files to average"
        )
    _require_count(directory, found, count, "best")
    sign = 1 if _maximizes(Path(directory, found[0][0])) else -1
    found.sort(key=lambda name: (sign * float(name[2]), name[0]))
    return _final(directory, found, count)


def _named(directory: str | Path, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    if not Path(directory).is_dir():
        raise CheckpointError(f"{directory} is not a directory")
    names = (pattern.fullmatch(path.name) for path in Path(directory).iterdir())
    return [name for name in names if name]


def _require_count(
    directory: str | Path, found: list[re.Match[str]], count: int, kind: str
) -> None:
    if len(found) < count:
        option = "--best" if kind == "best" else "--last"
        way_out = f"; {option} {len(found)} is what there is, or train for longer"
        if not found and kind == "best":
            way_out = ": train with --keep-best-checkpoints N"
        elif not found:
            way_out = ": no epoch ended, or the training had --no-epoch-checkpoints"
        raise CheckpointError(
            f"{directory} has {len(found)} {kind} checkpoints, fewer than {count}{way_out}"
        )


def _final(directory: str | Path, found: list[re.Match[str]], count: int) -> list[Path]:
    reached = _progress(Path(directory, LAST))
    chosen = [Path(directory, name[0]) for name in found[len(found) - count :]]
    for path in chosen:
        if any(own > last for own, last in zip(_progress(path), reached, strict=False)):
            raise CheckpointError(
                f"{path} has more updates than {LAST}: continue its training, move the files of an "
                "earlier training away, or name the files to average"
            )
    return chosen


def _progress(path: Path) -> tuple[int, ...]:
    """The epoch and the number of updates of a checkpoint; nothing where it does not say them."""
    try:
        state = read_outline(path)
        epoch, updates = state["extra_state"]["train_iterator"]["epoch"], updates_of(state)
    except (CheckpointError, OSError, LookupError, TypeError):
        return ()
    return (epoch, updates) if isinstance(epoch, int) and updates is not None else ()


def _maximizes(path: Path) -> bool:
    """Whether the metric that chose this checkpoint is one to maximize."""
    state = read_checkpoint(path)
    try:
        return bool(stored_options(state, "checkpoint")["maximize_best_checkpoint_metric"])
    except KeyError as error:
        raise CheckpointError(f"{path} does not say whether higher values are better") from error


def _layout(weights: dict) -> dict[str, str]:
    """What each weight is: ``float16 [2, 3]``."""
    return {
        name: f"{str(weight.dtype).removeprefix('torch.')} {list(weight.shape)}"
        if isinstance(weight, Tensor)
        else type(weight).__name__
        for name, weight in weights.items()
    }


def _require_same(
    first: dict[str, str], first_path: str | Path, other: dict[str, str], path: str | Path
) -> None:
    for name in [*first, *other]:
        if first.get(name) != other.get(name):
            raise CheckpointError(
                f"different models: {name} is {first.get(name, 'absent')} in {first_path} "
                f"and {other.get(name, 'absent')} in {path}"
            )


def _require_same_function(
    first: dict, first_path: str | Path, other: dict, path: str | Path
) -> None:
    models = [stored_options(state, "model") for state in (first, other)]
    if found := other_option(*models):
        option, *values = found
        raise CheckpointError(
            f"{first_path} was trained with {option} {values[0]} and {path} with {values[1]}: "
            "average checkpoints of one model"
        )
    if reason := reversed_direction(
        *(languages_of(as_mapping(state.get("cfg"))) for state in (first, other))
    ):
        raise CheckpointError(f"{first_path} {reason}: average checkpoints of one direction")
    then, now = (as_mapping(state.get("cfg")).get(STORED) for state in (first, other))
    try:
        require_same_dictionaries(then, now or (), str(first_path), "average those of one data set")
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _add(weights: dict, sums: dict[str, Tensor]) -> None:
    """Add what can be averaged to the sums, which are of float32 at least."""
    for name, weight in weights.items():
        if isinstance(weight, Tensor) and (weight.is_floating_point() or weight.is_complex()):
            if name not in sums:
                dtype = torch.promote_types(weight.dtype, torch.float32)
                sums[name] = torch.zeros(weight.shape, dtype=dtype)
            sums[name] += weight


def _means(sums: dict[str, Tensor], count: int, last: dict) -> dict:
    """The means, with the last checkpoint's types, and its counters and the like.

    Names that share one tensor there, such as tied embeddings, do so here.
    """
    means = dict(last)
    shared: dict[tuple, Tensor] = {}
    for name in sums:
        weight = last[name]
        mean = sums[name].div_(count).to(weight.dtype)
        place = weight.data_ptr(), weight.dtype, weight.shape, weight.stride()
        same = shared.setdefault(place, mean)
        means[name] = same if torch.equal(same, mean) else mean
    return means


def _command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--inputs", nargs="+", required=True, help="checkpoints, or the directory of them"
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--last", type=whole_number(1), metavar="N", help="the newest N")
    choice.add_argument("--best", type=whole_number(1), metavar="N", help="the best N")
    parser.add_argument("--output", required=True, help="file to write; it must not exist")
    return parser


def _chosen(arguments: argparse.Namespace) -> Sequence[str | Path]:
    """The files to average.

    Raises:
        CheckpointError: there are not as many as asked for, or a directory is given alone.
    """
    if not arguments.last and not arguments.best:
        for path in arguments.inputs:
            if Path(path).is_dir():
                raise CheckpointError(f"{path} is a directory; add --last N or --best N")
        return arguments.inputs
    if len(arguments.inputs) != 1:
        raise CheckpointError("--last and --best take one directory as --inputs")
    if arguments.last:
        return last_checkpoints(arguments.inputs[0], arguments.last)
    return best_checkpoints(arguments.inputs[0], arguments.best)


if __name__ == "__main__":
    main()
