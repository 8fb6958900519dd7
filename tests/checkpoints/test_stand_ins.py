"""Metrics that fairseq logs as numpy's numbers and arrays."""

import io
import pickle
from argparse import Namespace

import numpy
import pytest
import torch
from conftest import SHRUNK, generate, train

from fairseq_convattn.checkpoints import stand_ins
from fairseq_convattn.checkpoints.averaging import average_checkpoints
from fairseq_convattn.checkpoints.checks import CheckpointError
from fairseq_convattn.checkpoints.files import read_checkpoint

RECONSTRUCT, SCALAR = numpy.arange(1).__reduce__()[0], numpy.float64(1).__reduce__()[0]
BLEU = ("--eval-bleu", "--eval-bleu-args", '{"beam": 1}', "--eval-bleu-detok", "space")


@pytest.fixture(autouse=True)
def allowed():
    with stand_ins.allowed():
        yield


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


def test_results_are_plain():
    array = torch.load(stored(numpy.arange(3.0)), weights_only=True)
    assert type(array.sum()) is numpy.float64 and type(array + 1) is numpy.ndarray
    assert type(array.reshape(3, 1).sum(0)) is numpy.ndarray


def test_an_array_is_filled_once():
    """A tensor may share the memory that a second filling would free."""
    array = torch.load(stored(numpy.arange(3)), weights_only=True)
    with pytest.raises(pickle.UnpicklingError, match="filled twice"):
        array.__setstate__((1, (1,), stand_ins.NumberType("f8"), False, bytes(8)))


def test_empty_arrays_are_refused():
    """numpy 1 takes more dimensions than it has if all are 0."""
    array = stand_ins.StoredArray()
    with pytest.raises(pickle.UnpicklingError, match="of 0 bytes"):
        array.__setstate__((1, (0,) * 33, stand_ins.NumberType("f8"), False, b""))


def test_what_others_have_allowed_stays():
    own = [SCALAR, numpy.dtype, type(numpy.dtype("f8"))]
    before = torch.serialization.get_safe_globals()
    try:
        torch.serialization.add_safe_globals(own)
        for _ in range(2):
            with stand_ins.allowed():
                found = torch.load(stored(numpy.float64(2.5)), weights_only=True)
            now = torch.serialization.get_safe_globals()
            assert found == 2.5 and all(entry in now for entry in own)
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def test_messages_say_what_is_wrong(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": {}, "extra_state": numpy.array([print], dtype=object)}, path)
    with pytest.raises(
        CheckpointError, match=r"it has numpy values of type 'O8', which are not nu"
    ):
        read_checkpoint(path)


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
        claiming((1,) * 33),
        claiming((2**20 + 1,), "i1", content=bytes(2**20 + 1)),
        claiming((True,)),
        claiming((8,), "i1", content=[0] * 8),
        Reduced(RECONSTRUCT, (numpy.ndarray, (0,), b"b"), (1, (1,), Namespace(), False, bytes(8))),
        Reduced(SCALAR, (Namespace(dtype=numpy.dtype("M8[s]")), bytes(8))),
        Reduced(SCALAR, (numpy.dtype("f8"), bytes(16))),
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
