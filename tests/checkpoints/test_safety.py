import os
import pickle
import random
import tarfile
import zipfile
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from omegaconf import OmegaConf

from fairseq_convattn.checkpoints.averaging import average_checkpoints, best_checkpoints
from fairseq_convattn.checkpoints.checks import CheckpointError
from fairseq_convattn.checkpoints.files import read_checkpoint, write_checkpoint


class Runs:
    """Pickled as a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Unknown:
    """An object that does nothing, of a type that no checkpoint needs."""


def checkpoint(**more) -> dict:
    return {
        "args": None,
        "cfg": {"model": {"_name": "convattn"}},
        "model": {"w": torch.ones(2)},
        "optimizer_history": [
            {"optimizer_name": "Adam", "lr_scheduler_state": {}, "num_updates": 3}
        ],
        "extra_state": {"train_iterator": {"epoch": 1}},
        **more,
    }


CALLS = {
    "mkdir": lambda path: Runs(os.mkdir, str(path)),
    "system": lambda path: Runs(os.system, f"touch {path}"),
    "exec": lambda path: Runs(exec, f"open({str(path)!r}, 'w').close()"),
    "open": lambda path: Runs(open, str(path), "w"),
}
PLACES = {
    "top": lambda evil: checkpoint(surprise=evil),
    "model": lambda evil: checkpoint(model={"w": torch.ones(2), "v": evil}),
    "args": lambda evil: checkpoint(args=Namespace(arch="lightconv", data=evil)),
    "omegaconf": lambda evil: checkpoint(
        cfg=OmegaConf.create({"model": evil}, flags={"allow_objects": True})
    ),
}
READERS = {
    "read": read_checkpoint,
    "best": lambda path: best_checkpoints(path.parent, 1),
    "fairseq": lambda path: checkpoint_utils.load_checkpoint_to_cpu(str(path)),
}


def save(directory: Path, state: dict, **options) -> Path:
    path = directory / "checkpoint.best_loss_1.000.pt"
    torch.save(state, path, **options)
    return path


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("call", "place"),
    [("system", "top"), ("exec", "model"), ("open", "args"), ("mkdir", "omegaconf")],
)
def test_no_call_is_run(tmp_path, call, place, reader, options):
    path = save(tmp_path, PLACES[place](CALLS[call](tmp_path / "created")), **options)
    with pytest.raises(CheckpointError, match=r"it refers to \S+, which is not loaded"):
        READERS[reader](path)
    assert os.listdir(tmp_path) == [path.name]


def test_a_damaged_configuration_is_named(tmp_path):
    cfg = OmegaConf.create({"model": {}})
    vars(cfg)["_content"] = {"model": 1}  # no node
    with pytest.raises(CheckpointError, match=r"\.pt: its configuration is damaged"):
        read_checkpoint(save(tmp_path, checkpoint(cfg=cfg)))


def test_an_unknown_type_is_not_read(tmp_path):
    path = save(tmp_path, checkpoint(args=Namespace(arch="lightconv"), x=Unknown()))
    with pytest.raises(CheckpointError, match=rf"it refers to {Unknown.__module__}.Unknown") as it:
        read_checkpoint(path)
    assert "\n" not in str(it.value)
    path = save(tmp_path, checkpoint(args=Namespace(arch="lightconv")))
    assert read_checkpoint(path)["args"].arch == "lightconv"


@pytest.mark.parametrize(
    "content, reason",
    [
        (None, "there is no such file; did you mean checkpoint_1.pt?"),
        (b"", "it is empty"),
        (b"Hello, this is text.", "it is not a checkpoint, or"),
        (b"PK\x03\x04 not an archive", "cut off or is damaged"),
        (pickle.dumps({"model": {}}, protocol=2), "it is not a checkpoint, or"),
        ([1, 2], "it has no 'model'"),
        ({"weights": {}}, "it has no 'model'"),
        ({"model": [1]}, "it has no 'model'"),
    ],
)
def test_what_is_no_checkpoint_is_refused_in_one_line(tmp_path, content, reason):
    path = tmp_path / "checkpoint1.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    else:
        (tmp_path / "checkpoint_1.pt").touch()
    with pytest.raises(CheckpointError, match=reason) as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize("kind", ["a tar archive", "an unknown protocol"])
def test_nobody_is_advised_to_load_unsafely(tmp_path, kind):
    path = save(tmp_path, checkpoint(), pickle_protocol=4)
    if kind == "a tar archive":
        with tarfile.open(tmp_path / "checkpoint1.pt", "w") as archive:
            archive.add(path)
        path = tmp_path / "checkpoint1.pt"
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    assert "it is not a checkpoint, or is damaged" in str(caught.value)
    assert "False" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.5, 0.999])
@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
def test_a_truncated_checkpoint_is_refused(tmp_path, share, options):
    path = save(tmp_path, checkpoint(), **options)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError):
        read_checkpoint(path)


@pytest.mark.filterwarnings(r"ignore:\s*'config' is validated")
def test_configuration_in_a_namespace_loads(tmp_path):
    args = Namespace(arch="lightconv", task="translation", lr=[0.1], nested=Namespace(x=None))
    path = save(tmp_path, checkpoint(args=args, cfg=None))
    assert read_checkpoint(path)["args"] == args
    assert checkpoint_utils.load_checkpoint_to_cpu(str(path))["cfg"].task._name == "translation"


@pytest.mark.parametrize("configuration", ["args", "cfg"])
def test_averages_keep_such_configuration(tmp_path, configuration):
    value = Namespace(x=1) if configuration == "args" else OmegaConf.create({"x": 1})
    path = save(tmp_path, checkpoint(**{configuration: value}))
    average_checkpoints([path], tmp_path / "out.pt")
    assert read_checkpoint(tmp_path / "out.pt")[configuration] == value


def damaged(content: bytes, state: dict) -> bytes:
    """One bit of the last weight flipped, as a disk may."""
    place = content.index(state["model"]["w"].numpy().tobytes())
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def claiming_40_terabytes(directory: Path) -> Path:
    huge = torch.zeros(1).expand(10**13)
    return save(directory, checkpoint(model={"w": huge}))


def compressed(directory: Path) -> Path:
    path = save(directory, checkpoint(model={"w": torch.zeros(100_000)}))
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return path


def many_names(directory: Path) -> Path:
    """One tensor of 1 MB under 200 names, which an average would hold 200 times."""
    weight = torch.zeros(2**18)
    return save(directory, checkpoint(model={f"w{number}": weight for number in range(200)}))


def laughing(directory: Path) -> Path:
    """A list of two lists that are the same one, thirty times over."""
    laughs: list = ["ha"]
    for _ in range(30):
        laughs = [laughs, laughs]
    return save(directory, checkpoint(cfg={"model": {"dropout": laughs}}))


def deep(directory: Path) -> Path:
    value: list = []
    for _ in range(150):
        value = [value]
    return save(directory, checkpoint(cfg={"model": {"dropout": value}}))


def of_many_values(directory: Path) -> Path:
    """A list that one tuple of half a million values fills three times."""
    values = (None,) * 500_000
    return save(directory, checkpoint(cfg={"model": {"dropout": [values] * 3}}))


def as_written(shape: tuple[int, ...], place: int) -> torch.Tensor:
    """A sparse tensor of one value; torch does not look where that is when it loads it."""
    return torch.sparse_coo_tensor([[place]], [1.0], shape, check_invariants=False)


def with_another_detach() -> torch.Tensor:
    weight = torch.ones(2)
    weight.detach = torch.Tensor
    return weight


def test_a_parameter_is_an_ordinary_tensor(tmp_path):
    path = save(tmp_path, checkpoint(model={"w": torch.nn.Parameter(torch.ones(2))}))
    assert read_checkpoint(path)["model"]["w"].tolist() == [1, 1]


@pytest.mark.reliability
@pytest.mark.parametrize("reader", ["read", "fairseq"])
@pytest.mark.parametrize(
    "weight",
    [
        as_written((4,), 10**9),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        torch.ones(2, device="meta"),
        with_another_detach(),
    ],
)
def test_only_ordinary_tensors_are_read(tmp_path, weight, reader):
    path = save(tmp_path, checkpoint(model={"w": weight}))
    with pytest.raises(CheckpointError, match="is not an ordinary tensor"):
        READERS[reader](path)


@pytest.mark.reliability
@pytest.mark.parametrize(
    ("bomb", "reason"),
    [
        (claiming_40_terabytes, r"model\.w claims 40,000,000,000,000 bytes in a file of"),
        (many_names, r"model\.w\d+ claims 1,048,576 bytes in a file of"),
        (compressed, "it is compressed"),
        (laughing, "too many values"),
        (of_many_values, "too many values"),
        (deep, "too deep"),
    ],
)
@pytest.mark.parametrize("reader", ["fairseq", pytest.param("read", marks=pytest.mark.slow)])
def test_what_would_expand_without_bound_is_refused(tmp_path, bomb, reason, reader):
    path = bomb(tmp_path)
    with pytest.raises(CheckpointError, match=reason) as caught:
        READERS[reader](path)
    assert "\n" not in str(caught.value) and os.listdir(tmp_path) == [path.name]


@pytest.mark.reliability
@pytest.mark.parametrize("reader", ["read", "fairseq"])
def test_a_flipped_bit_is_seen(tmp_path, reader):
    state = checkpoint(model={"w": torch.rand(500)})
    path = save(tmp_path, state)
    path.write_bytes(damaged(path.read_bytes(), state))
    assert not torch.equal(torch.load(path)["model"]["w"], state["model"]["w"])  # torch sees none
    with pytest.raises(CheckpointError, match="the checksum does not match"):
        READERS[reader](path)


@pytest.mark.reliability
def test_an_archive_behind_another_is_refused(tmp_path):
    path = save(tmp_path, checkpoint())
    path.write_bytes(2 * path.read_bytes())
    with pytest.raises(CheckpointError, match="something stands before its first part"):
        read_checkpoint(path)


@pytest.mark.reliability
def test_any_damage_of_the_archive_is_named(tmp_path):
    """Also what zipfile reports in other ways: undecodable names, offsets before the file."""
    content, weights = save(tmp_path, checkpoint()).read_bytes(), checkpoint()["model"]
    numbers, path, messages = random.Random(1), tmp_path / "damaged.pt", []
    for _ in range(200):
        damaged = bytearray(content)
        for _ in range(4):
            damaged[numbers.randrange(len(content) - 1000, len(content))] = numbers.randrange(256)
        path.write_bytes(damaged)
        try:
            read = read_checkpoint(path)["model"]
        except CheckpointError as error:
            messages.append(str(error))
        else:
            assert read.keys() == weights.keys() and torch.equal(read["w"], weights["w"])
    assert len(messages) > 150
    assert all(str(path) in message and "\n" not in message for message in messages)


@pytest.mark.reliability
@pytest.mark.parametrize("reader", ["read", "fairseq"])
def test_weights_that_were_changed_after_writing_are_seen(tmp_path, reader):
    write_checkpoint(checkpoint(), tmp_path / "written.pt")
    READERS["read"](tmp_path / "written.pt")
    state = torch.load(tmp_path / "written.pt")
    state["model"]["w"][1] += 1e-7
    with pytest.raises(CheckpointError, match="its weights are not those that were written"):
        READERS[reader](save(tmp_path, state))
    del state["digest"]
    READERS[reader](save(tmp_path, state))


@pytest.mark.reliability
@pytest.mark.parametrize("reader", ["read", "fairseq"])
@pytest.mark.parametrize(
    "value, dtype",
    [
        (float("nan"), torch.float32),
        (float("inf"), torch.float16),
        (-float("inf"), torch.float32),
    ],
)
def test_weights_that_are_not_finite_are_named(tmp_path, value, dtype, reader):
    weights = torch.tensor([1.0, value, 3.0], dtype=dtype)
    path = save(tmp_path, checkpoint(model={"fine": torch.full((9,), 6e4).to(dtype), "w": weights}))
    with pytest.raises(CheckpointError, match="w has 1 of 3 values not finite"):
        READERS[reader](path)


def test_a_weight_without_a_name(tmp_path):
    path = save(tmp_path, checkpoint(model={3: torch.ones(2)}))
    with pytest.raises(CheckpointError, match="a weight is called 3, which is not a name"):
        read_checkpoint(path)


@pytest.mark.reliability
def test_weights_that_are_fine(tmp_path):
    """A sum that is not finite, what fairseq never sets, and an expanded view: no bomb."""
    weights = {
        "large": torch.full((4,), 3e38),
        "decoder.adaptive_softmax._float_tensor": torch.full((1,), float("nan")),
        "encoder.layers.0.conv.conv_bias": torch.full((2,), float("nan")),
        "positions": torch.arange(1000).expand(50, -1),
    }
    for read in (READERS["read"], READERS["fairseq"]):
        read(save(tmp_path, checkpoint(model=weights)))


def test_another_packages_architecture_is_named_once(tmp_path, caplog):
    for architecture in ("transformer_iwslt_de_en", "transformer_iwslt_de_en", "convattn"):
        read_checkpoint(save(tmp_path, checkpoint(cfg={"model": {"_name": architecture}})))
    (warning,) = caplog.messages
    assert "transformer_iwslt_de_en is not this plugin's" in warning


def test_a_checkpoint_without_weights_is_named(tmp_path):
    state = {name: value for name, value in checkpoint().items() if name != "model"}
    path = save(tmp_path, state)
    with pytest.raises(CheckpointError, match=f"{path}: fairseq_convattn cannot check it") as error:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert "\n" not in str(error.value)


def test_the_architecture_is_the_one_that_fairseq_builds(tmp_path, caplog):
    """Of a file with both configurations, that of the old format."""
    both = checkpoint(args=Namespace(arch="fconv"), cfg={"model": {"_name": "convattn"}})
    read_checkpoint(save(tmp_path, both))
    (warning,) = caplog.messages
    assert "fconv is not this plugin's" in warning
