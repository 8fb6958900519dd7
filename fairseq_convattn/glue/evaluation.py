"""A fine-tuned model's scores on whole dev sets."""

import warnings
from pathlib import Path
from typing import NamedTuple

import torch
from fairseq import checkpoint_utils, utils
from fairseq.data.data_utils import load_indexed_dataset

from .metrics import score
from .tasks import GlueError, GlueTask

HEAD = "sentence_classification_head"


class Evaluation(NamedTuple):
    """Scores by metric, in percent, and the epoch and update after which the checkpoint was
    written."""

    scores: dict[str, float]
    epoch: int
    updates: int


def evaluate(task: GlueTask, checkpoint: Path, data: Path, batch_size: int) -> Evaluation:
    """Score a checkpoint on every example of the task's dev sets.

    Raises:
        GlueError: not every example has one prediction.
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint), {"data": str(data)})
    (model,), _, fairseq_task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], state=state
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.eval().to(device)
    scores: dict[str, float] = {}
    for subset, suffix in task.dev_sets.items():
        labels, predictions = _predict(task, model, fairseq_task, subset, batch_size, device)
        found = score(task, labels, predictions)
        scores |= {f"{metric}{suffix}": value for metric, value in found.items()}
    return Evaluation(scores, *_position(state))


@torch.no_grad()
def _predict(task: GlueTask, model, fairseq_task, subset: str, batch_size: int, device: str):
    """Labels and predictions in the order of the file."""
    warnings.filterwarnings("ignore", "'pin_memory'")  # fairseq's, without a GPU
    dataset = fairseq_task.load_dataset(subset)
    batches = fairseq_task.get_batch_iterator(
        dataset,
        max_sentences=batch_size,
        max_positions=fairseq_task.max_positions(),
        required_batch_size_multiple=1,
    ).next_epoch_itr(shuffle=False)
    labels, predictions = {}, {}
    for batch in batches:
        batch = utils.move_to_cuda(batch) if device == "cuda" else batch
        outputs, _ = model(**batch["net_input"], features_only=True, classification_head_name=HEAD)
        found = outputs.argmax(dim=-1) if task.classes else outputs.float().view(-1)
        ids = batch["id"].tolist()
        predictions.update(zip(ids, found.tolist(), strict=True))
        labels.update(zip(ids, batch["target"].view(-1).tolist(), strict=True))
    if sorted(predictions) != list(range(len(dataset))):
        raise GlueError(f"{len(predictions)} of the {len(dataset)} examples of {subset} were read")
    return [labels[i] for i in range(len(dataset))], [predictions[i] for i in range(len(dataset))]


def _position(state: dict) -> tuple[int, int]:
    iterator = state["extra_state"]["train_iterator"]
    finished = iterator.get("iterations_in_epoch", 0) == 0  # then the epoch is the next one's
    return iterator["epoch"] - finished, state["optimizer_history"][-1]["num_updates"]


def example_lengths(task: GlueTask, data: Path, subset: str, separators: int) -> list[int]:
    """Tokens of the model's inputs, with ``<s>`` and separators, before anything is cut.

    Args:
        separators: between the sentences of a pair, 1 or 2.

    Raises:
        GlueError: the data are not there.
    """
    parts = []
    for number in range(len(task.sentences)):
        prefix = data / f"input{number}" / subset
        sentences = load_indexed_dataset(str(prefix), None)
        if sentences is None:
            raise GlueError(
                f"there is no {prefix}.idx; --data is the folder bin that "
                "`convattn prepare glue` has written"
            )
        # every sentence has a </s> after it; <s> is before the first
        parts.append(sentences.sizes + (separators - 1 if number else 1))
    return sum(parts).tolist()
