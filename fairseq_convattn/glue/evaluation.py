"""A fine-tuned model's scores on whole dev sets."""

import warnings
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import FairseqDataset
from fairseq.data.data_utils import load_indexed_dataset
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from omegaconf import OmegaConf

from ..checkpoints.files import read_checkpoint, stored_options, updates_of
from ..run_records import read_json, sha256
from .metrics import score
from .tasks import PREPARE_ANEW, TASKS, GlueError, GlueTask

HEAD = "sentence_classification_head"
_BIN_FOLDER = "--data is the folder bin that `convattn prepare glue` has written"


def evaluate(task: GlueTask, checkpoint: Path, data: Path, batch_size: int) -> dict[str, Any]:
    """Score a checkpoint on every example of the task's dev sets.

    Returns:
        ``scores`` by metric, in percent; ``epoch`` and ``updates`` after which the checkpoint was
        written; ``checkpoint``.

    Raises:
        CheckpointError: the checkpoint cannot be read.
        GlueError: not every example has one finite prediction.
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint), {"data": str(data)})
    model, fairseq_task = _load(checkpoint, state)
    scores: dict[str, float] = {}
    for subset, suffix in task.dev_sets.items():
        read = _predict(task, model, fairseq_task, subset, batch_size)
        labels, predictions = zip(*read, strict=True)
        found = score(task, labels, predictions)
        scores |= {f"{metric}{suffix}": value for metric, value in found.items()}
    iterator = state["extra_state"]["train_iterator"]
    # at the end of an epoch, fairseq stores the next one's number
    finished = iterator.get("iterations_in_epoch", 0) == 0
    return {
        "checkpoint": str(checkpoint),
        "scores": scores,
        "epoch": iterator["epoch"] - finished,
        "updates": updates_of(state),
    }


def predict(name: str, checkpoint: Path, data: Path, batch_size: int) -> dict[str, list[float]]:
    """The predictions of a checkpoint, by test set: numbers of classes, or scores divided by
    ``HIGHEST_SCORE``, in the order of the file.

    Args:
        name: of ``TASKS``.
        data: the task's folder.

    Raises:
        CheckpointError: the checkpoint cannot be read.
        GlueError: the data have no test sets, the checkpoint is not of this task, or they do not go
            together.
    """
    task = TASKS[name]
    state = read_checkpoint(checkpoint)
    _require_tuned(name, checkpoint, state)
    if not data.is_dir():
        raise GlueError(f"there is no {data}; {_BIN_FOLDER}")
    for subset, file in task.test_files.items():
        for number in range(len(task.sentences)):
            if _sentences(data / f"input{number}" / subset) is None:
                raise GlueError(
                    f"{data} has no test set: remove the folder of `convattn prepare glue` and "
                    f"prepare it again, from a release that has {name}/{file}.tsv"
                )
    _require_dictionary(checkpoint, data)
    state["cfg"]["task"]["data"] = str(data)
    state["cfg"] = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
    try:
        model, fairseq_task = _load(checkpoint, state)
        return {
            subset: [made for _, made in _predict(task, model, fairseq_task, subset, batch_size)]
            for subset in task.test_files
        }
    except (ValueError, RuntimeError) as error:  # RuntimeError: fairseq's models, of other sizes
        raise GlueError(f"{checkpoint} and {data} do not go together: {error}") from error


def _sentences(prefix: Path) -> FairseqDataset | None:
    """The sentences of ``prefix.idx`` and ``prefix.bin``; None if they are not there.

    Raises:
        GlueError: they are cut off.
    """
    index, text = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    content = index.read_bytes() if index.is_file() and text.is_file() else b""
    if content.startswith(b"MMIDIDX"):  # 26 bytes, then the lengths of sentences and their places
        count, last_place = (int.from_bytes(x, "little") for x in (content[18:26], content[-8:]))
        if len(content) != 26 + 12 * count or text.stat().st_size <= last_place:
            raise GlueError(
                f"{prefix}.idx or .bin is cut off: remove {prefix.parents[1]} and "
                "prepare the data again"
            )
    return load_indexed_dataset(str(prefix), None)


def _require_tuned(name: str, checkpoint: Path, state: dict[str, Any]) -> None:
    """Refuse a checkpoint that was not fine-tuned on the task, in a folder of its name."""
    chosen = stored_options(state, "task")
    if chosen.get("_name") != "sentence_prediction" or Path(chosen.get("data") or "").name != name:
        raise GlueError(f"{checkpoint} is not fine-tuned on {name}")


def _require_dictionary(checkpoint: Path, data: Path) -> None:
    """Compare dictionaries with the settings of the fine-tuning: fairseq's models store no digest
    of theirs."""
    then = _settings(checkpoint).get("dictionary_sha256")
    if then not in (None, sha256(data / "input0" / "dict.txt")):
        raise GlueError(f"{data} has another dictionary than the fine-tuning's: {PREPARE_ANEW}")


def data_of(checkpoint: Path) -> Path | None:
    """The folder of the tasks' folders from which a checkpoint was fine-tuned, if it is there."""
    data = _settings(checkpoint).get("data")  # with the task's folder
    return Path(data).parent if data and Path(data).is_dir() else None


def _settings(checkpoint: Path) -> dict[str, Any]:
    """Those of the fine-tuning; none if the checkpoint was moved out of its folder."""
    path = checkpoint.parent.parent / "settings.json"
    return read_json(path) if path.is_file() else {}


def _load(checkpoint: Path, state: dict[str, Any]) -> tuple[BaseFairseqModel, FairseqTask]:
    (model,), _, fairseq_task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], state=state
    )
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), fairseq_task


@torch.no_grad()
def _predict(
    task: GlueTask,
    model: BaseFairseqModel,
    fairseq_task: FairseqTask,
    subset: str,
    batch_size: int,
) -> list[tuple[float | None, float]]:
    """Label, None in a test set, and prediction of each example, in the order of the file."""
    warnings.filterwarnings("ignore", "'pin_memory'")  # fairseq's, without a GPU
    dataset = fairseq_task.load_dataset(subset)
    batches = fairseq_task.get_batch_iterator(
        dataset,
        max_sentences=batch_size,
        max_positions=fairseq_task.max_positions(),
        required_batch_size_multiple=1,
    ).next_epoch_itr(shuffle=False)
    found: dict[int, tuple[float | None, float]] = {}
    for batch in batches:
        batch = utils.move_to_cuda(batch) if torch.cuda.is_available() else batch
        outputs, _ = model(**batch["net_input"], features_only=True, classification_head_name=HEAD)
        if not outputs.isfinite().all():
            raise GlueError("a prediction is not a number: the fine-tuning has diverged")
        predictions = outputs.argmax(dim=-1) if task.classes else outputs.float().view(-1)
        numbers = batch["id"].tolist()
        labels = batch["target"].view(-1).tolist() if "target" in batch else [None] * len(numbers)
        found |= zip(numbers, zip(labels, predictions.tolist(), strict=True), strict=True)
    if len(found) != len(dataset):
        raise GlueError(f"{len(found)} of the {len(dataset)} examples of {subset} were read")
    return [found[number] for number in range(len(dataset))]


def example_lengths(task: GlueTask, data: Path, subset: str, separators: int) -> list[int]:
    """Tokens of the model's inputs, with ``<s>`` and separators, before anything is cut.

    Args:
        separators: between the sentences of a pair, 1 or 2.

    Raises:
        GlueError: the data are not there.
    """
    lengths = 1  # <s>
    for number in range(len(task.sentences)):
        prefix = data / f"input{number}" / subset
        sentences = _sentences(prefix)
        if sentences is None:
            raise GlueError(f"there is no {prefix}.idx; {_BIN_FOLDER}")
        lengths = lengths + sentences.sizes  # with a </s> each
    return (lengths + (len(task.sentences) - 1) * (separators - 1)).tolist()
