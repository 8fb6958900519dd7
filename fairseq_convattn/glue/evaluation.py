"""A fine-tuned model's scores on whole dev sets."""

import warnings
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, utils
from fairseq.data.data_utils import load_indexed_dataset

from .metrics import score
from .tasks import GlueError, GlueTask

HEAD = "sentence_classification_head"


def evaluate(task: GlueTask, checkpoint: Path, data: Path, batch_size: int) -> dict[str, Any]:
    """Score a checkpoint on every example of the task's dev sets.

    Returns:
        ``scores`` by metric, in percent; ``epoch`` and ``updates`` after which the checkpoint was
        written; ``checkpoint``.

    Raises:
        GlueError: not every example has one prediction.
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint), {"data": str(data)})
    (model,), _, fairseq_task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], state=state
    )
    model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    scores: dict[str, float] = {}
    for subset, suffix in task.dev_sets.items():
        found = score(task, *_predict(task, model, fairseq_task, subset, batch_size))
        scores |= {f"{metric}{suffix}": value for metric, value in found.items()}
    iterator = state["extra_state"]["train_iterator"]
    # at the end of an epoch, fairseq stores the next one's number
    finished = iterator.get("iterations_in_epoch", 0) == 0
    return {
        "checkpoint": str(checkpoint),
        "scores": scores,
        "epoch": iterator["epoch"] - finished,
        "updates": state["optimizer_history"][-1]["num_updates"],
    }


@torch.no_grad()
def _predict(task: GlueTask, model, fairseq_task, subset: str, batch_size: int):
    """Labels and predictions in the order of the file."""
    warnings.filterwarnings("ignore", "'pin_memory'")  # fairseq's, without a GPU
    dataset = fairseq_task.load_dataset(subset)
    batches = fairseq_task.get_batch_iterator(
        dataset,
        max_sentences=batch_size,
        max_positions=fairseq_task.max_positions(),
        required_batch_size_multiple=1,
    ).next_epoch_itr(shuffle=False)
    found: dict[int, tuple[float, float]] = {}
    for batch in batches:
        batch = utils.move_to_cuda(batch) if torch.cuda.is_available() else batch
        outputs, _ = model(**batch["net_input"], features_only=True, classification_head_name=HEAD)
        predictions = outputs.argmax(dim=-1) if task.classes else outputs.float().view(-1)
        pairs = zip(batch["target"].view(-1).tolist(), predictions.tolist(), strict=True)
        found |= zip(batch["id"].tolist(), pairs, strict=True)
    if len(found) != len(dataset):
        raise GlueError(f"{len(found)} of the {len(dataset)} examples of {subset} were read")
    return zip(*(found[number] for number in range(len(dataset))), strict=True)


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
        sentences = load_indexed_dataset(str(prefix), None)
        if sentences is None:
            raise GlueError(
                f"there is no {prefix}.idx; --data is the folder bin that "
                "`convattn prepare glue` has written"
            )
        lengths = lengths + sentences.sizes  # with a </s> each
    return (lengths + (len(task.sentences) - 1) * (separators - 1)).tolist()
