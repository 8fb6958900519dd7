"""Predictions of the test sets as GLUE's server takes them: ``index`` and ``prediction``."""

from collections.abc import Sequence
from pathlib import Path

from ..durable import put_in_place
from .evaluation import predict
from .tasks import HIGHEST_SCORE, TASKS, GlueError, GlueTask

_BATCH_SIZE = 32  # sentences
_SUFFIX = {"test": "", "test_matched": "-m", "test_mismatched": "-mm"}


def write_submission(name: str, checkpoint: Path, data: Path, output: Path) -> list[Path]:
    """Write ``output/TASK.tsv`` for each test set of a task (MNLI's: -m and -mm), and return them.

    Args:
        name: of ``TASKS``.
        checkpoint: of a fine-tuning on this task.
        data: the folder of the task's folder.

    Raises:
        GlueError: there is no test set, the checkpoint is of another task, a file is there, or a
            prediction is no number.
        OSError: ``output`` cannot be made.
    """
    task = TASKS[name]
    paths = {
        subset: output / f"{name}{_SUFFIX[file]}.tsv" for subset, file in task.test_files.items()
    }
    for path in paths.values():
        if path.exists():
            raise GlueError(f"{path} is there already; choose another folder with --output")
    output.mkdir(parents=True, exist_ok=True)
    predictions = predict(name, checkpoint, data / name, _BATCH_SIZE)
    partials = [path.with_name(f"{path.name}.partial") for path in paths.values()]
    for subset, partial in zip(paths, partials, strict=True):
        partial.write_text(_text(task, predictions[subset]), encoding="ascii")
    for partial, path in zip(partials, paths.values(), strict=True):
        put_in_place(partial, path)
    return list(paths.values())


def _text(task: GlueTask, predictions: Sequence[float]) -> str:
    lines = (f"{number}\t{_word(task, made)}\n" for number, made in enumerate(predictions))
    return "".join(("index\tprediction\n", *lines))


def _word(task: GlueTask, prediction: float) -> str:
    if task.classes:
        return task.classes[int(prediction)]
    return f"{min(max(HIGHEST_SCORE * prediction, 0.0), HIGHEST_SCORE):.3f}"
