"""What torch would make of a file is known before torch makes it."""

import copyreg
import io
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from fairseq.models.roberta.model import RobertaClassificationHead

from fairseq_convattn.checkpoints.checks import CheckpointError
from fairseq_convattn.checkpoints.files import read_any_checkpoint, read_outline

pytestmark = pytest.mark.reliability


class Made:
    """Pickled as a call of ``function``."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Changed(torch.nn.Parameter):
    """Pickled as a parameter that takes another extent."""

    def __reduce_ex__(self, protocol):
        empty = torch.nn.Parameter, (torch.zeros(0, dtype=torch.uint8), False)
        return *empty, (Made(*empty), 0, (1000,), (1,))


class New:
    """Pickled as a call of ``ByteTensor.__new__``."""

    __class__ = torch.ByteTensor

    def __reduce_ex__(self, protocol):
        return copyreg.__newobj__, (torch.ByteTensor, 1000)


def of_two(offset, size, stride, *more, function=torch._utils._rebuild_tensor_v2):
    """A tensor of a storage of two elements."""
    return Made(function, torch.zeros(2)._typed_storage(), offset, (size,), (stride,), *more)


@pytest.mark.parametrize(
    "weight",
    [
        Made(torch.ByteTensor, 1000),
        Made(torch.Tensor, 1000),
        Made(torch._utils._rebuild_tensor, Made(torch.FloatStorage, 9), 0, (9,), (1,)),
        Made(torch._tensor._rebuild_from_type_v2, torch.ByteTensor, torch.Tensor, (1000,), {}),
        Made(torch._utils._rebuild_tensor, Made(torch.UntypedStorage, 9), 0, (9,), (1,)),
        New(),
        Changed(torch.zeros(0)),
        of_two(0, 3, 1, False, {}),
        of_two(1, 2, 1, False, {}),
        of_two(0, 2, 2, False, {}),
        of_two(0, 3, 1, function=torch._utils._rebuild_tensor),
        of_two(0, 2, 1, False, {}, {"neg": True}),
    ],
)
@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("read", [read_any_checkpoint, read_outline])
def test_no_weight_is_what_this_process_had_in_memory(tmp_path, monkeypatch, weight, is_zip, read):
    state, path = {"model": {"weight": weight, "other": torch.zeros(2)}}, tmp_path / "x.pt"
    torch.save(state, path, _use_new_zipfile_serialization=is_zip)
    monkeypatch.setattr(torch, "load", Mock())
    with pytest.raises(CheckpointError, match="not an ordinary tensor|beyond its storage"):
        read(path)
    assert not torch.load.called


def test_a_file_that_was_written_again_is_read_again(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"model": {"a": torch.zeros(2)}}, path)
    read_any_checkpoint(path)
    torch.save({"model": {"a": Made(torch.Tensor, 1000)}}, path)
    with pytest.raises(CheckpointError, match="calls torch.Tensor"):
        read_any_checkpoint(path)


def test_a_weight_has_no_hooks(tmp_path):
    weight = of_two(0, 2, 1, True, OrderedDict({0: torch.ByteTensor}))
    torch.save({"model": {"a": weight}}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match="model.a is not an ordinary tensor"):
        read_any_checkpoint(tmp_path / "x.pt")


def pickles_of(path: Path) -> list[bytes]:
    """The five pickles at the beginning of an old file, and the rest."""
    content, parts, start = io.BytesIO(path.read_bytes()), [], 0
    for _ in range(5):
        list(pickletools.genops(content))
        parts.append(content.getvalue()[start : content.tell()])
        start = content.tell()
    return [*parts, content.getvalue()[start:]]


def old_file(path: Path) -> Path:
    state = {"model": {"weight": torch.ones(2), "shared": torch.nn.Parameter(torch.zeros(2))}}
    torch.save(state, path, _use_new_zipfile_serialization=False)
    return path


@pytest.mark.parametrize("is_named", [False, True])
def test_no_weight_of_an_old_file_is_without_values(tmp_path, is_named):
    """Also if its name is in the file, but not in the list."""
    whole, cut = old_file(tmp_path / "whole.pt"), tmp_path / "cut.pt"
    assert read_any_checkpoint(whole)["model"]["weight"].equal(torch.ones(2))
    *parts, names, _ = pickles_of(whole)
    named = pickle.dumps(pickle.loads(names)[0], 2)[:-1] if is_named else b"\x80\x02"
    cut.write_bytes(b"".join((*parts, named, b"].")))
    assert len(torch.load(cut, weights_only=True)["model"]) == 2
    with pytest.raises(CheckpointError, match="tensors without values"):
        read_any_checkpoint(cut)


@pytest.mark.parametrize("view", [("KEY", 0, 1), {"a": 1, "b": 2, "c": 3}])
def test_no_storage_of_an_old_file_is_a_part_of_another_one(tmp_path, view):
    whole = old_file(tmp_path / "whole.pt")
    first, second, third, content, *rest = pickles_of(whole)
    none = content.index(b"Nt")  # the view of the first storage
    told = pickle.dumps(view, 2)[2:-1]
    content = content[:none] + told + content[none + 1 :]
    (tmp_path / "view.pt").write_bytes(b"".join((first, second, third, content, *rest)))
    with pytest.raises(CheckpointError, match="is a part of another one"):
        read_any_checkpoint(tmp_path / "view.pt")


def replace_in_pickle(path: Path, old: bytes, new: bytes) -> None:
    """In a zip archive's."""
    with zipfile.ZipFile(path) as archive:
        parts = {record.filename: archive.read(record) for record in archive.infolist()}
    (name,) = (name for name in parts if name.endswith("data.pkl"))
    assert old in parts[name]
    parts[name] = parts[name].replace(old, new)
    with zipfile.ZipFile(path, "w") as archive:
        for part, content in parts.items():
            archive.writestr(part, content)


def test_a_storage_has_one_size(tmp_path):
    """torch takes the first."""
    path = tmp_path / "x.pt"
    torch.save({"model": {"a": torch.zeros(300), "b": torch.zeros(400)}}, path)
    replace_in_pickle(path, b"X\x01\x00\x00\x001", b"X\x01\x00\x00\x000")
    with pytest.raises(CheckpointError, match="describes the storage 0 in two ways"):
        read_any_checkpoint(path)


def test_a_storage_of_an_old_file_has_one_size(tmp_path):
    state, path = {"a": torch.zeros(300), "b": torch.zeros(400)}, tmp_path / "x.pt"
    torch.save({"model": state}, path, _use_new_zipfile_serialization=False)
    *parts, names, rest = pickles_of(path)
    first, second = (pickle.dumps(str(t.untyped_storage()._cdata), 2)[2:-3] for t in state.values())
    assert first in parts[3] and second in parts[3]
    parts[3] = parts[3].replace(second, first)
    path.write_bytes(b"".join((*parts, pickle.dumps([pickle.loads(first + b".")], 2), rest)))
    with pytest.raises(CheckpointError, match="in two ways"):
        read_any_checkpoint(path)


def test_a_storages_name_can_be_read_in_one_way(tmp_path):
    """These bytes of a SHORT_BINSTRING are one letter for torch, and two for pickletools."""
    path = tmp_path / "x.pt"
    torch.save({"model": {"a": torch.zeros(2)}}, path)
    replace_in_pickle(path, b"X\x01\x00\x00\x000", b"U\x02\xc3\xa9")
    with pytest.raises(CheckpointError, match="something else than storages"):
        read_any_checkpoint(path)


def test_a_storage_is_not_changed(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"model": {"a": torch.zeros(2)}}, path)
    storage = b"tq\tQ"
    replace_in_pickle(path, storage, storage + b"}X\x05\x00\x00\x00dtypectorch\nfloat64\nsb")
    with pytest.raises(CheckpointError, match="changes a tensor"):
        read_any_checkpoint(path)


@pytest.mark.parametrize("told", [b"X\x07\x00\x00\x00storagf", b"U\x07storagf"])
def test_refers_to_storages_alone(tmp_path, told):
    path = tmp_path / "x.pt"
    torch.save({"model": {"a": torch.zeros(2)}}, path)
    replace_in_pickle(path, b"X\x07\x00\x00\x00storage", told)
    with pytest.raises(CheckpointError, match="something else than storages"):
        read_any_checkpoint(path)


@pytest.mark.parametrize("elements", [b"G@\x08" + bytes(6), b"X\x01\x00\x00\x003", b"\x88"])
def test_a_storage_has_a_number_of_elements(tmp_path, elements):
    path = tmp_path / "x.pt"
    torch.save({"model": {"a": torch.zeros(77)}}, path)
    replace_in_pickle(path, b"KMt", elements + b"t")
    with pytest.raises(CheckpointError, match="something else than storages"):
        read_any_checkpoint(path)


def test_metadata_may_have_versions_of_spectral_norms(tmp_path):
    head = RobertaClassificationHead(4, 4, 2, "tanh", 0.0, do_spectral_norm=True)
    torch.save({"model": head.state_dict()}, tmp_path / "x.pt")
    assert "out_proj.weight_orig" in read_any_checkpoint(tmp_path / "x.pt")["model"]


def test_metadata_do_not_exchange_a_models_parameters(tmp_path):
    state = {"model": torch.nn.Linear(2, 2).state_dict()}
    torch.save(state, tmp_path / "good.pt")
    assert read_any_checkpoint(tmp_path / "good.pt")
    versions = state["model"]._metadata
    hiding = OrderedDict({"": {"assign_to_params_buffers": True}})
    hiding.values = OrderedDict
    for other in (
        {"": {"version": 1, "assign_to_params_buffers": True}},
        hiding,
        [versions],
        {"": 1},
        {"": {"version": True}},
        {"": {"version": 1, "spectral_norm": [1]}},
        {"": {"version": 1, "spectral_norm": {"weight.version": "1"}}},
    ):
        state["model"]._metadata = other
        torch.save(state, tmp_path / "evil.pt")
        with pytest.raises(CheckpointError, match="model has metadata that are no versions"):
            read_any_checkpoint(tmp_path / "evil.pt")
