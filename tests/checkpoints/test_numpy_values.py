"""Metrics that fairseq logs as numpy's numbers and arrays."""

import io
import pickle

import numpy
import pytest
import torch
from conftest import SHRUNK, generate, train

from fairseq_convattn import compatibility
from fairseq_convattn.checkpoints.averaging import average_checkpoints
from fairseq_convattn.checkpoints.files import read_checkpoint

compatibility.apply()
RECONSTRUCT = numpy.arange(1).__reduce__()[0]
BLEU = ("--eval-bleu", "--eval-bleu-args", '{"beam": 1}', "--eval-bleu-detok", "space")


def stored(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


class Reduced:
    """Pickled as what ``__reduce__`` may return."""

    def __init__(self, *reduction):
        self.reduction = reduction

    def __reduce__(self):
        return self.reduction


def claiming(shape, kind="f8", content=bytes(8)):
    """An array in the way that numpy pickles it."""
    state = (1, shape, numpy.dtype(kind), False, content)
    return Reduced(RECONSTRUCT, (numpy.ndarray, (0,), b"b"), state)


@pytest.mark.parametrize("kind", ["bool", "int8", "uint16", "int64", "float16", "float64", ">f4"])
def test_numbers_and_arrays_are_read(kind):
    array = numpy.arange(6).reshape(2, 3).T.astype(kind)
    file = stored({"array": array, "number": array[1, 1]})
    found = torch.load(file, weights_only=True)
    assert numpy.array_equal(found["array"], array) and found["number"] == array[1, 1]
    again = stored(found["array"] + found["array"])
    assert b"fairseq_convattn" not in again.getvalue()
    assert numpy.array_equal(torch.load(again, weights_only=False), array + array)


def test_arrays_of_numpy_1_are_read():
    content = pickle.dumps(numpy.array([1.5, 2.5]), protocol=2)
    old = content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"numpy.core.multiarray" in old
    found = torch.serialization._weights_only_unpickler.load(io.BytesIO(old), encoding="utf-8")
    assert found.tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    "value",
    [
        numpy.array([print, 1], dtype=object),
        numpy.array(["text"]),
        numpy.zeros(2, dtype=[("field", "f4")]),
        numpy.datetime64("2026-01-01"),
        claiming((10**12,)),
        claiming((10**12, 0)),
        claiming((-1, -8), "i1"),
        claiming((-1, -1)),
        claiming((1,), content=[print]),
        Reduced(numpy.ndarray, (10**9,)),
        Reduced(numpy.dtype, ("O",)),
    ],
)
def test_anything_else_is_refused(value):
    with pytest.raises(pickle.UnpicklingError):
        torch.load(stored(value), weights_only=True)


def test_a_training_with_bleu_goes_on_and_translates(data, tmp_path):
    arguments = ("--arch", "dynamic_conv_tiny", *SHRUNK, *BLEU, "--best-checkpoint-metric", "bleu")
    for updates in ("2", "4"):
        train(data, tmp_path, *arguments, "--max-update", updates)
    state = read_checkpoint(tmp_path / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 4
    assert generate(data, tmp_path / "checkpoint_best.pt")
    average_checkpoints([tmp_path / "checkpoint_best.pt"], tmp_path / "average.pt")
