"""Predictions of the test sets as GLUE's server takes them: ``index`` and ``prediction``."""

from collections.abc import Sequence
from pathlib import Path

from ..durable import appearing, require_new
from .evaluation import predict
from .tasks import HIGHEST_SCORE, TASKS, GlueTask

_BATCH_SIZE = 32  # sentences
_SUFFIX = {"test": "", "test_matched": "-m", "test_mismatched": "-mm"}


def write_submission(name: str, checkpoint: Path, data: Path, output: Path) -> list[Path]:
    """Write ``output/TASK.tsv`` for each test set of a task (MNLI's: -m and -mm), and return them.

    Args:
        name: of ``TASKS``.
        checkpoint: of a fine-tuning on this task.
        data: the folder of the task's folder.

    Raises:
        GlueError: there is no test set, the checkpoint is of another task, or a prediction is no
            number.
        OSError: ``output`` cannot be made, or a file is there already.
    """
    task = TASKS[name]
    paths = {
        subset: output / f"{name}{_SUFFIX[file]}.tsv" for subset, file in task.test_files.items()
    }
    output.mkdir(parents=True, exist_ok=True)
    for path in paths.values():
        require_new(path)
    predictions = predict(name, checkpoint, data / name, _BATCH_SIZE)
    for subset, path in paths.items():
        with appearing(path) as complete:
            complete.write_text(_text(task, predictions[subset]), encoding="ascii")
    return list(paths.values())


def _text(task: GlueTask, predictions: Sequence[float]) -> str:
    lines = (f"{number}\t{_word(task, made)}\n" for number, made in enumerate(predictions))
    return "".join(("index\tprediction\n", *lines))


def _word(task: GlueTask, prediction: float) -> str:
    if task.classes:
        return task.classes[int(prediction)]
    return f"{min(max(HIGHEST_SCORE * prediction, 0.0), HIGHEST_SCORE):.3f}"
