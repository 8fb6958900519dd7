"""No option that a checkpoint brings runs code, whatever reads the checkpoint."""

import dataclasses
import itertools
import re
import shutil
import tarfile
from argparse import Namespace
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import fairseq
import pytest
import torch
from conftest import (
    SHRUNK,
    command,
    eval_lm,
    generate,
    interactive,
    train,
    validate,
)
from fairseq import checkpoint_utils
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.data.fasta_dataset import FastaDataset
from fairseq.dataclass.configs import FairseqConfig
from fairseq.file_io import PathManager
from fairseq.logging.meters import AverageMeter
from fairseq.models import ARCH_CONFIG_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.models.transformer import TransformerModel
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf

from fairseq_convattn.analysis.checkpoint import analysis
from fairseq_convattn.architectures import ConvAttnModel
from fairseq_convattn.checkpoints import files, guard
from fairseq_convattn.checkpoints.averaging import average_checkpoints
from fairseq_convattn.checkpoints.checks import FREE_TEXT, CheckpointError, check_configuration
from fairseq_convattn.checkpoints.files import read_checkpoint
from fairseq_convattn.checkpoints.legacy import convert_checkpoint
from fairseq_convattn.glue.pretrained import read_pretrained
from fairseq_convattn.recipes.checkpoint import evaluated

pytestmark = pytest.mark.reliability

MODELS = ("convattn", "convattn_lm", "convattn_mlm")
TASKS = (
    *("translation", "summarization", "language_modeling", "masked_lm", "sentence_prediction"),
    "multilingual_translation",  # evaluates its options
)
CRITERIA = (
    *("cross_entropy", "label_smoothed_cross_entropy", "adaptive_loss", "masked_lm"),
    *("sentence_prediction", "ctc"),  # ctc evaluates its options
)


def touch(target) -> str:
    return f"__import__('pathlib').Path({str(target)!r}).touch()"


def with_attributes(container, **attributes):
    """Attributes that the container's items do not show, as a pickle can set them."""
    vars(container).update(attributes)
    return container


PAYLOADS = {
    "a call": touch,
    "a call after space": lambda target: f" \t{touch(target)}",
    "a call after a line": lambda target: f"\n{touch(target)}",
    "a call in a list": lambda target: f"[{touch(target)} or 5]",
    "a list with a call": lambda target: [1, touch(target)],
    "a call in a dictionary": lambda target: {"deep": {"deeper": [touch(target)]}},
    "a call with a name": lambda target: f"[x := {touch(target)}]",
    "a call in a text": lambda target: "f'{" + f'__import__("os").mkdir("{target}")' + "}'",
    "without end": lambda target: "9**9**9**9",
    "too much": lambda target: "[0] * 10**12",
    "too many times": lambda target: "[[0] * 10_000] * 10_000",
    "times a result": lambda target: "[0] * (10_000 - 1)",
    "a wide text": lambda target: "'%2000000000d' % 1",
    "a wide text in a text": lambda target: "f'{1:2000000000}'",
    "a wide number": lambda target: "1 << 10_000_000_000",
    "a text that doubles": lambda target: f"[x := 'ha'{', x := x + x' * 60}]",
    "nested loops": lambda target: f"[0{' for _ in (1, 2)' * 60}]",
    "the environment": lambda target: "${oc.env:HOME}",
    "another option": lambda target: "${common.user_dir}",
    "two halves": lambda target: "${common.x}${common.y}",
    "attributes": lambda target: with_attributes(OrderedDict(), layers=touch(target)),
    "a method": lambda target: with_attributes(OmegaConf.create({"x": touch(target)}), keys=dict),
    "a method of a list": lambda target: with_attributes(OmegaConf.create([]), __iter__=dict),
    "an object": lambda target: torch.ones(2),
}


def fields() -> Iterator[tuple[str, str, str]]:
    """Part, its ``_name`` and the option, of everything that a configuration can hold."""
    parts = [("model", name, MODEL_DATACLASS_REGISTRY[name]) for name in MODELS]
    parts += [("task", name, TASK_DATACLASS_REGISTRY.get(name)) for name in TASKS]
    parts += [("criterion", name, CRITERION_DATACLASS_REGISTRY[name]) for name in CRITERIA]
    for registry, found in REGISTRIES.items():
        parts += [(registry, name, config) for name, config in found["dataclass_registry"].items()]
    for field in dataclasses.fields(FairseqConfig):
        if dataclasses.is_dataclass(field.type):
            parts.append((field.name, "", field.type))
    for part, name, config in parts:
        own = (
            [field.name for field in dataclasses.fields(config)] if config else ["left_pad_source"]
        )
        yield from ((part, name, option) for option in own if option not in FREE_TEXT)


def checkpoint(part: str, name: str, option: str, value) -> dict:
    cfg = {"model": {"_name": "convattn"}, "task": {"_name": "translation"}}
    cfg[part] = {"_name": name or None, option: value}
    return {
        "args": None,
        "cfg": cfg,
        "model": {"w": torch.ones(2)},
        "optimizer_history": [{"optimizer_name": "Adam", "lr_scheduler_state": {}}],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }


@pytest.mark.parametrize("payload", PAYLOADS)
def test_every_option_is_read_before_fairseq_sees_it(tmp_path, payload):
    """With the first payload all options, with the others one of each part."""
    target, path, seen = tmp_path / "created", tmp_path / "evil.pt", set()
    for part, name, option in fields():
        if payload != "a call" and part in seen:
            continue
        seen.add(part)
        state = checkpoint(part, name, option, PAYLOADS[payload](target))
        torch.save(state, path)
        for read in (read_checkpoint, checkpoint_utils.load_checkpoint_to_cpu):
            with pytest.raises(CheckpointError, match=rf"its option cfg\.{part}\.{option}"):
                read(str(path))
    assert len(seen) > 12 and not target.exists()


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_namespace_is_read_too(tmp_path, payload):
    args = Namespace(arch="convattn", task="translation", x=PAYLOADS[payload](tmp_path / "created"))
    state = {**checkpoint("model", "convattn", "dropout", 0.1), "args": args, "cfg": None}
    torch.save(state, tmp_path / "evil.pt")
    for read in (read_checkpoint, checkpoint_utils.load_checkpoint_to_cpu):
        with pytest.raises(CheckpointError, match=r"its option args\.x"):
            read(str(tmp_path / "evil.pt"))
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize(
    "value",
    [
        *("(0.9, 0.98)", "[(1, 64), (2, 128)]", "3,7,15", "@@ ", "de-en", "a/b.pt"),
        *("[(512, 10, 5)] + [(512, 3, 2)] * 4", "3 * [(512, 5)]"),  # fairseq's wav2vec, fconv
        *('{"beam": 4, "lenpen": 0.6}', "data (old", "x" * 10_000, [0.5, None], {}),
    ],
)
def test_what_options_are_is_let_in(tmp_path, value):
    torch.save(checkpoint("task", "translation", "x", value), tmp_path / "good.pt")
    read_checkpoint(tmp_path / "good.pt")
    checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "good.pt"))


@pytest.mark.parametrize("text", ["${task.data}", r"'\x24{task.data}'", r"['$' '\173task.data}']"])
@pytest.mark.parametrize("option", ["user_dir", "wandb_project"])
def test_a_free_text_refers_to_nothing(tmp_path, option, text):
    torch.save(checkpoint("common", "", option, text), tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match=rf"its option cfg\.common\.{option}"):
        read_checkpoint(tmp_path / "evil.pt")


def test_an_archive_is_not_unpacked(tmp_path):
    archive = tmp_path / "in" / "model.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as packed:
        packed.addfile(tarfile.TarInfo("model/../../created"))
    with pytest.raises(FileNotFoundError, match="unpack an archive first"):
        ConvAttnModel.from_pretrained(archive)
    for place in (archive, str(archive), "https://example.org/model.tar.gz"):
        with pytest.raises(CheckpointError, match="unpack an archive first"):
            TransformerModel.from_pretrained(place)
    assert archive.is_file() and not (tmp_path / "created").exists()


def test_no_shell_reads_a_name_of_a_fasta_file(tmp_path, monkeypatch):
    """Which options of a checkpoint can bring, as those of multilingual denoising."""
    run = Mock(return_value=b"0 1")
    monkeypatch.setattr("fairseq.data.fasta_dataset.subprocess.check_output", run)
    for name in ("$(touch created)", "a;b", "a b", "`a`", "a|b", "a\nb"):
        with pytest.raises(ValueError, match="fairseq hands this name to a shell"):
            FastaDataset(str(tmp_path / name))
    assert not run.called
    assert len(FastaDataset(str(tmp_path / "größe-b_1.2"))) == 2 and run.called


def test_the_index_of_a_fasta_file_is_not_written_through_a_link(tmp_path, monkeypatch):
    run = Mock(return_value=b"0 1")
    monkeypatch.setattr("fairseq.data.fasta_dataset.subprocess.check_output", run)
    (tmp_path / "train.fasta.idx.npy").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match="npy is a symbolic link"):
        FastaDataset(str(tmp_path / "train"), cache_indices=True)
    assert not (tmp_path / "elsewhere").exists()


def in_the_history(state, optimizer):
    state["optimizer_history"][-1]["optimizer"] = optimizer


def as_in_old_files(state, optimizer):
    del state["optimizer_history"]
    state.update(optimizer=optimizer, best_loss=1.0)


def in_its_place(state, optimizer):
    state["last_optimizer_state"] = optimizer


@pytest.mark.parametrize(
    ("option", "value", "put"),
    [
        ("foreach", True, in_its_place),
        ("fused", True, in_the_history),
        ("fused", True, as_in_old_files),
        *(
            ("fused", value, in_its_place)
            for value in (True, 1, [1], (None,), {"x": None}, Namespace(), Counter([False]))
        ),
    ],
)
def test_an_optimizer_does_not_become_a_compiled_one(trained, tmp_path, option, value, put):
    """torch's would write beyond a state that is smaller than its weight."""
    state, path = torch.load(trained), str(tmp_path / "x.pt")
    optimizer = state["last_optimizer_state"]
    (group,) = optimizer["param_groups"]
    group[option] = None
    put(state, optimizer)
    torch.save(state, path)
    checkpoint_utils.load_checkpoint_to_cpu(path)
    group[option] = value
    torch.save(state, path)
    with pytest.raises(CheckpointError, match=f"x.pt: its optimizer's {option} is .+, not False"):
        checkpoint_utils.load_checkpoint_to_cpu(path)


@pytest.mark.parametrize("method", ["items", "keys", "values", "__iter__"])
def test_no_attribute_of_a_dictionary_hides_what_is_in_it(trained, tmp_path, method):
    state, path = torch.load(trained), str(tmp_path / "x.pt")
    state["last_optimizer_state"] = hiding = OrderedDict(state["last_optimizer_state"])
    setattr(hiding, method, OrderedDict)
    torch.save(state, path)
    with pytest.raises(CheckpointError, match=f"last_optimizer_state has {method} of its own"):
        checkpoint_utils.load_checkpoint_to_cpu(path)


@pytest.mark.parametrize("part", ["cfg", "args"])
@pytest.mark.parametrize("options", ["model: {x: 1}", ["model"], ()])
def test_options_are_mappings(tmp_path, part, options):
    """fairseq would read a text as YAML, whose escapes no check sees."""
    state = {**checkpoint("model", "convattn", "dropout", 0.1), "cfg": None, part: options}
    torch.save(state, tmp_path / "evil.pt")
    for read in (read_checkpoint, checkpoint_utils.load_checkpoint_to_cpu):
        with pytest.raises(CheckpointError, match=f"its {part} is a {type(options).__name__}"):
            read(str(tmp_path / "evil.pt"))


def test_a_remote_file_is_refused(monkeypatch):
    """iopath would read it again after the check."""
    monkeypatch.setattr(PathManager, "path_requires_pathmanager", lambda path: "://" in path)
    with pytest.raises(CheckpointError, match="s3://bucket/model.pt.*only local files"):
        checkpoint_utils.load_checkpoint_to_cpu("s3://bucket/model.pt")


@pytest.mark.parametrize(
    "option",
    [
        *("data", "sentencepiece_model", "bpe_merges", "user_dir", "plasma_path", "aim_repo"),
        *("continue_once", "quantization_config_path", "save_predictions", "lang_dict"),
        *("label_dir", "target_dictionary", "source_dict", "target_dict", "fixed_dictionary"),
        *("lang_to_offline_shard_ratio", "multitask_config_yaml", "pretrained_mlm_checkpoint"),
        *("baseline_model", "seq2seq_path"),
    ],
)
def test_files_may_be_called_like_calls(tmp_path, option):
    torch.save(checkpoint("task", "x", option, "data (old)/bpe (1).model"), tmp_path / "good.pt")
    read_checkpoint(tmp_path / "good.pt")


def test_every_architecture_of_fairseqs_is_let_in():
    """Some evaluate layers that their defaults write as products, such as fconv's."""
    checked = []
    for architecture, complete in ARCH_CONFIG_REGISTRY.items():
        args = Namespace()
        with suppress(AttributeError):  # a few need options that only their command line has
            complete(args)
        check_configuration({"args": args})
        checked += [architecture] if vars(args) else []
    for name, config in MODEL_DATACLASS_REGISTRY.items():
        fields = dataclasses.fields(config)
        texts = {x.name: x.default for x in fields if isinstance(x.default, str)}
        options = {name: text for name, text in texts.items() if "${" not in text}
        check_configuration({"cfg": {"model": {"_name": name, **options}}})
    assert {"fconv", "transformer", "lightconv"} < set(checked)


# What fairseq evaluates, in a model, a task and a criterion that build and load it first.
PLACES = {
    "model": ("model", {"adaptive_softmax_cutoff": "{}"}),
    "task": ("task", {"_name": None, "task": "multilingual_translation", "left_pad_source": "{}"}),
    "criterion": ("criterion", {"_name": "ctc", "wer_args": "{}"}),
}


def overridden(data, path, *_) -> None:
    code = "__import__('pathlib').Path('created').touch()"
    good = path.with_name("good.pt")
    generate(data, good, "--model-overrides", repr({"adaptive_softmax_cutoff": code}))


TRANSLATION = ("--arch", "dynamic_conv_tiny", *SHRUNK)
DOORS = {
    "generate": generate,
    "interactive": interactive,
    "validate": lambda data, path: validate(data, path, "--task", "translation"),
    "overrides": overridden,
    "language model": lambda data, path: generate(
        data, path.with_name("good.pt"), "--lm-path", str(path)
    ),
    "hub": lambda data, path: ConvAttnModel.from_pretrained(str(path.parent), path.name, str(data)),
    "restore": lambda data, path: train(
        data, path.parent / "new", *TRANSLATION, "--restore-file", str(path)
    ),
    "fine-tune": lambda data, path: train(
        data, path.parent / "new", *TRANSLATION, "--finetune-from-model", str(path)
    ),
    "average": lambda data, path: average_checkpoints([path], path.with_name("average.pt")),
    "convert": lambda data, path: convert_checkpoint(path, path.with_name("new.pt")),
    "analysis": lambda data, path: analysis(path, block=128),
    "recipes": lambda data, path: evaluated(path, "translation"),
    "glue": lambda data, path: read_pretrained(path),
    "eval-lm": eval_lm,
}


def poisoned(trained, folder, place: str, code: str):
    """A copy of a good checkpoint with code in one place."""
    state = torch.load(trained)
    part, options = PLACES[place]
    for name, value in options.items():
        state["cfg"][part][name] = code if value == "{}" else value
    torch.save(state, folder / "evil.pt")
    shutil.copyfile(trained, folder / "good.pt")
    return folder / "evil.pt"


QUICK = list(zip(DOORS, itertools.cycle(PLACES), strict=False))


@pytest.mark.parametrize(
    "door, place",
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in itertools.product(DOORS, PLACES)
    ],
)
def test_every_door_checks_options_first(
    trained, data, monolingual, tmp_path, monkeypatch, door, place
):
    """By the function that knows all of them, and nothing is executed before."""

    def refuse(state):
        raise CheckpointError("options are looked at")

    monkeypatch.chdir(tmp_path)
    path = poisoned(trained, tmp_path, place, touch(tmp_path / "created"))
    binarised = monolingual if door == "eval-lm" else data
    with pytest.raises(ValueError, match="which is code"):
        DOORS[door](binarised, path)
    for module in (files, guard):
        monkeypatch.setattr(module, "check_configuration", refuse)
    with pytest.raises(ValueError, match="options are looked at"):
        DOORS[door](binarised, path)
    assert not (tmp_path / "created").exists()
    assert {file.name for file in tmp_path.rglob("*.pt")} == {"evil.pt", "good.pt"}


@pytest.mark.parametrize("code", ["sys.modules['ctypes'].cdll['./code']", "torch.ctypes.cdll.code"])
@pytest.mark.parametrize(
    "door, place", [("validate", "criterion"), ("hub", "task"), ("generate", "fairseq's")]
)
def test_attributes_and_items_are_not_looked_up(
    trained, fairseqs_transformer, data, tmp_path, monkeypatch, door, place, code
):
    """Neither is a call, but ctypes loads a library for them, which runs its constructor."""
    if place in PLACES:
        path = poisoned(trained, tmp_path, place, code)
    else:
        state, path = torch.load(fairseqs_transformer / "checkpoint_last.pt"), tmp_path / "evil.pt"
        state["cfg"]["model"].adaptive_softmax_cutoff = code
        torch.save(state, path)
    loaded = Mock()
    monkeypatch.setattr("ctypes.cdll", loaded)
    with pytest.raises(ValueError, match="fairseq may evaluate only numbers, texts"):
        DOORS[door](data, path)
    assert not loaded.mock_calls


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[(512, 3)] * 2 + [(-1, 2.5)]", [(512, 3), (512, 3), (-1, 2.5)]),
        (" {'a': True, \"b\": None}", {"a": True, "b": None}),
        ("('x' 'y', {1})", ("xy", {1})),
        ("(0.5 * 2, 3 * 4, -2 * +3)", (1.0, 12, -6)),
        ("-1 * [0] + 2 * [1]", [1, 1]),
    ],
)
def test_what_fairseq_evaluates(text, value):
    assert fairseq.utils.eval(text) == value and fairseq.models.fconv.eval(text) == value
    for other in (f"print({text})", f"({text}).real", f"[{text}][0]", "x", "f'{1}'", "9 ** 9"):
        with pytest.raises(ValueError, match="fairseq may evaluate only"):
            fairseq.utils.eval(other)
    assert fairseq.utils.eval_bool("False") is False and fairseq.utils.eval_bool(None) is False


def test_how_long_a_value_fairseq_evaluates():
    assert fairseq.utils.eval(f"[{'0,' * 100_000}]") == [0] * 100_000
    copied = f"[{'0,' * 100_000}]" + " + [0]" * 60
    for long in ("[0] * 9999999", copied, f"[{'0,' * 5000}] * 2000", "[0] * (1 + 1)"):
        with pytest.raises(ValueError, match="fairseq may evaluate only"):
            fairseq.utils.eval(long)


@pytest.mark.parametrize(
    ("pattern", "modules"),
    [
        (r"(?<![\w.])(eval|exec)\(", {*guard.EVALUATING}),
        (r"shell=True|os\.(system|popen)\(", {"data.fasta_dataset"}),
    ],
)
def test_every_module_of_fairseqs_that_runs_text_is_guarded(pattern, modules):
    """Its examples aside, which are plugins of their own."""
    folder = Path(fairseq.__file__).parent
    found = {
        ".".join(file.relative_to(folder).with_suffix("").parts)
        for file in folder.rglob("*.py")
        if re.search(pattern, file.read_text()) and "examples" not in file.parts
    }
    assert found == modules


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fairseq-generate", "fairseq-validate", "fairseq-train"])
def test_commands_as_typed_refuse_it(trained, data, tmp_path, name):
    path = poisoned(trained, tmp_path, "model", touch(tmp_path / "created"))
    arguments = [data, "--user-dir", "fairseq_convattn", "--task", "translation", "--cpu"]
    arguments += ["--max-tokens", "600"]
    if name == "fairseq-train":
        arguments += [*TRANSLATION, "--optimizer", "adam", "--lr", "0.1", "--max-update", "2"]
        arguments += ["--save-dir", tmp_path / "new", "--finetune-from-model", path]
    else:
        arguments += ["--path", path]
    run = command(name, *arguments)
    assert run.returncode and "which is code" in run.stderr.splitlines()[-1]
    assert not (tmp_path / "created").exists()


def test_a_checkpoint_of_2019_is_to_be_converted(tmp_path):
    names = ("linear1.weight", "layer_norms.0.weight")
    state = {"args": Namespace(arch="lightconv")}
    state["model"] = {f"encoder.layers.0.{name}": torch.ones(4) for name in names}
    torch.save(state, tmp_path / "old.pt")
    with pytest.raises(CheckpointError, match="old.pt.*convattn convert"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "old.pt"))


def test_a_transformer_of_then_is_let_in(fairseqs_transformer, data, tmp_path, monkeypatch):
    """fairseq still reads its names of layer norms, and pickled its meters then."""
    state = torch.load(fairseqs_transformer / "checkpoint_last.pt")
    for name in [name for name in state["model"] if name.startswith("encoder.layers.")]:
        old = name.replace("self_attn_layer_norm", "layer_norms.0")
        old = old.replace("final_layer_norm", "layer_norms.1")
        state["model"][old] = state["model"].pop(name)
    assert "encoder.layers.0.layer_norms.1.bias" in state["model"]
    monkeypatch.setattr(AverageMeter, "__module__", "fairseq.meters")
    state["extra_state"]["train_meters"] = {"train_loss": AverageMeter()}
    torch.save(state, tmp_path / "old.pt")
    assert generate(data, tmp_path / "old.pt")
