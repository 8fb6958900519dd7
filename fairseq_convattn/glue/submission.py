"""Predictions of the test sets as GLUE's server takes them: ``index`` and ``prediction``."""

from collections.abc import Sequence
from pathlib import Path

from ..durable import put_in_place
from .evaluation import predict
from .tasks import HIGHEST_SCORE, TASKS, GlueError, GlueTask

_SUFFIX = {"test": "", "test_matched": "-m", "test_mismatched": "-mm"}


def write_submission(
    name: str, checkpoint: Path, data: Path, output: Path, batch_size: int = 32
) -> list[Path]:
    """Write ``output/TASK.tsv`` for each test set of a task (MNLI's: -m and -mm), and return them.

    Args:
        name: of ``TASKS``.
        checkpoint: of a fine-tuning on this task.
        data: the folder of the task's folder.

    Raises:
        GlueError: there is no test set, the checkpoint is of another task, or a file is there.
    """
    task = TASKS[name]
    paths = {
        subset: output / f"{name}{_SUFFIX[file]}.tsv" for subset, file in task.test_files.items()
    }
    for path in paths.values():
        if path.exists():
            raise GlueError(f"{path} is there already; choose another folder with --output")
    predictions = predict(task, checkpoint, data / name, batch_size)
    output.mkdir(parents=True, exist_ok=True)
    for subset, path in paths.items():
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(_text(task, predictions[subset]), encoding="ascii")
        put_in_place(partial, path)
    return list(paths.values())


def _text(task: GlueTask, predictions: Sequence[float]) -> str:
    lines = (f"{number}\t{_word(task, made)}\n" for number, made in enumerate(predictions))
    return "".join(("index\tprediction\n", *lines))


def _word(task: GlueTask, prediction: float) -> str:
    if task.classes:
        return task.classes[int(prediction)]
    return f"{min(max(HIGHEST_SCORE * prediction, 0.0), HIGHEST_SCORE):.3f}"
