"""Data and commands that several tests share."""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import io
import os
import random
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
import torch

if importlib.util.find_spec("fairseq"):  # tests/ops run without it
    import yaml
    from fairseq import checkpoint_utils, options
    from fairseq.data import Dictionary
    from fairseq.dataclass import utils
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.logging import metrics
    from fairseq_cli import eval_lm as eval_lm_command
    from fairseq_cli import generate as generate_command
    from fairseq_cli import interactive as interactive_command
    from fairseq_cli import preprocess as preprocess_command
    from fairseq_cli import train as train_command
    from fairseq_cli import validate as validate_command
    from glue_miniature import miniature_sentences, write_miniature, write_pretrained
    from omegaconf import DictConfig
    from quick_composition import compose
    from release_scripts import Mirror, Scripts

    utils.compose = compose

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = ROOT / "fairseq_convattn"
SHARED = ROOT.parent / "shared"
FOR_GPUS = {"--fp16", "--memory-efficient-fp16", "--amp"}


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny models run fastest so, and it keeps runs reproducible."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def memory_of_the_gpu() -> Iterator[None]:
    """It is given back after every test, as processes share it."""
    yield
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@pytest.fixture(scope="session", autouse=True)
def nothing_of_the_users(tmp_path_factory) -> Iterator[Path]:
    """The working directory: a checkout in which nobody has prepared data or trained."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("fairseq_convattn", "scripts"):
        (folder / name).symlink_to(ROOT / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        yield folder


@pytest.fixture
def unlistable(monkeypatch) -> Callable[[Path], None]:
    """Makes a folder one that may be entered but not listed, which a mode cannot for root."""
    folders, listdir = set(), os.listdir

    def refusing(folder="."):
        if Path(folder) in folders:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return listdir(folder)

    monkeypatch.setattr(os, "listdir", refusing)
    return folders.add


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real corpora and published checkpoints, which only developers have."""
    if not SHARED.is_dir():
        pytest.skip("needs the developers' data in ../shared")
    return SHARED


@pytest.fixture
def scripts(tmp_path) -> Scripts:
    """Copies of the preparation scripts."""
    (tmp_path / "scripts_under_test").mkdir()
    return Scripts(tmp_path / "scripts_under_test")


@pytest.fixture
def not_installed(monkeypatch) -> Callable[..., None]:
    """Makes ``find_spec`` find none of the packages that are named."""
    found = importlib.util.find_spec

    def hide(*names: str) -> None:
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name in names else found(name)
        )

    return hide


@pytest.fixture
def benchmark_of(monkeypatch) -> Callable[[str], ModuleType]:
    """The modules of benchmarks/ by name."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


@pytest.fixture
def mirror(tmp_path) -> Iterator[Mirror]:
    """A server of what is in tmp_path/source."""
    server = Mirror(tmp_path / "source")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def miniature(tmp_path_factory) -> tuple[Path, dict]:
    """GLUE: a folder with TASK/*.tsv; their rows by task and file."""
    folder = tmp_path_factory.mktemp("glue")
    return folder, write_miniature(folder)


@pytest.fixture(scope="module")
def pretrained_files(tmp_path_factory, miniature) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pieces")
    return write_pretrained(folder, miniature_sentences(miniature[1]), size=70)


def preprocess(pairs: dict[str, list[tuple[str, str]]], folder: Path, *extra: str) -> Path:
    """fairseq-preprocess on parallel sentences; the folder for fairseq-train."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, lines in pairs.items():
        for side, language in enumerate(("src", "tgt")):
            text = "".join(pair[side] + "\n" for pair in lines)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    arguments = ["-s", "src", "-t", "tgt", "--destdir", str(folder / "bin"), *extra]
    for split in pairs:
        arguments += [f"--{split}pref", str(folder / split)]
    preprocess_command.main(options.get_preprocessing_parser().parse_args(arguments))
    return folder / "bin"


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """A small word-for-word task with a joined dictionary: letters to capitals, reversed."""
    generator = random.Random(1)

    def pair():
        words = [generator.choice("abcdefghij") for _ in range(generator.randint(2, 9))]
        return " ".join(words), " ".join(word.upper() for word in reversed(words))

    splits = {
        name: [pair() for _ in range(n)]
        for name, n in (("train", 400), ("valid", 20), ("test", 13))
    }
    return preprocess(splits, tmp_path_factory.mktemp("data"), "--joined-dictionary")


@pytest.fixture(scope="session")
def monolingual(tmp_path_factory) -> Path:
    """A small text for language models: letters that follow one another, mostly."""
    generator = random.Random(2)
    folder = tmp_path_factory.mktemp("monolingual")
    arguments = ["--only-source", "--destdir", str(folder / "bin")]
    for split, lines in (("train", 300), ("valid", 20), ("test", 13)):
        with open(folder / split, "w", encoding="utf-8") as file:
            for _ in range(lines):
                first = generator.randrange(20)
                letters = (first + generator.choice((i, i, 7)) for i in range(first % 9 + 1))
                print(*("abcdefghijklmnopqrst"[letter % 20] for letter in letters), file=file)
        arguments += [f"--{split}pref", str(folder / split)]
    preprocess_command.main(options.get_preprocessing_parser().parse_args(arguments))
    return folder / "bin"


@pytest.fixture(scope="session")
def trained(data, tmp_path_factory) -> Path:
    """A tiny translation model after one update, which tests leave as it is."""
    folder = tmp_path_factory.mktemp("trained")
    train(data, folder, "--arch", "dynamic_conv_tiny", *SHRUNK, "--max-update", "1")
    return folder / "checkpoint_last.pt"


def task_of(types: int = 8, positions: int = 64) -> Namespace:
    """What fairseq builds models for, with one dictionary of so many types and fairseq's own."""
    dictionary = Dictionary()
    for number in range(types):
        dictionary.add_symbol(f"type{number}")
    return Namespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        max_positions=lambda: positions,
        args=Namespace(max_target_positions=positions, tokens_per_sample=positions),
    )


def random_tokens(dictionary: Dictionary, *shape: int) -> torch.Tensor:
    return torch.randint(dictionary.nspecial, len(dictionary), shape)


def train(data: Path, save_dir: Path, *extra: str) -> None:
    """fairseq-train in this process, a few updates unless told otherwise."""
    forget_earlier_trainings()
    train_command.main(training(data, save_dir, *extra))


def forget_earlier_trainings() -> None:
    """Best scores and counts of ``--patience``, which fairseq keeps while its process lives."""
    for function in (checkpoint_utils.save_checkpoint, train_command.should_stop_early):
        for name in ("best", "num_runs"):
            vars(function).pop(name, None)


def training(data: Path, save_dir: Path, *extra: str) -> DictConfig:
    """The configuration of :func:`train`."""
    arguments = [
        str(data),
        *("--user-dir", str(PLUGIN), "--save-dir", str(save_dir), "--optimizer", "adam"),
        *("--lr", "0.003", "--max-tokens", "600", "--required-batch-size-multiple", "1"),
        *("--num-workers", "0", "--no-progress-bar", "--seed", "1"),
        *extra,
    ]
    if not (FOR_GPUS.intersection(extra) and torch.cuda.is_available()):
        arguments.append("--cpu")
    if "--max-update" not in arguments:
        arguments += ["--max-update", "3"]
    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))


def validate(data: Path, checkpoint: Path, *extra: str) -> float:
    """fairseq-validate in this process: the loss, in base 2."""
    arguments = [str(data), "--user-dir", str(PLUGIN), "--path", str(checkpoint), "--cpu"]
    arguments += ["--num-workers", "0", "--no-progress-bar", "--max-tokens", "600"]
    arguments += ["--required-batch-size-multiple", "1", *extra]
    parse, parser = options.parse_args_and_arch, options.get_validation_parser
    overrides = parse(parser(), arguments, suppress_defaults=True)
    with metrics.aggregate(new_root=True) as validated:
        validate_command.main(
            convert_namespace_to_omegaconf(parse(parser(), arguments)), override_args=overrides
        )
    return validated.get_smoothed_value("loss")


def generate(data: Path, checkpoint: Path, *extra: str) -> dict[int, tuple[float, str]]:
    """fairseq-generate in this process: score (base 2) and text by sentence number."""
    return _hypotheses(generate_command.main, generation(data, checkpoint, *extra))


def generation(data: Path, checkpoint: Path, *extra: str) -> DictConfig:
    """The configuration of :func:`generate`."""
    parser = options.get_generation_parser()
    arguments = (*_decoding(data, checkpoint), "--required-batch-size-multiple", "1", *extra)
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))


def interactive(
    data: Path, checkpoint: Path, *extra: str, source: str | Path = "test.src"
) -> dict[int, tuple[float, str]]:
    """fairseq-interactive in this process on the test set's source, or another file."""
    parser = options.get_interactive_generation_parser()
    arguments = (*_decoding(data, checkpoint), "--input", str(data.parent / source), *extra)
    arguments = options.parse_args_and_arch(parser, arguments)
    return _hypotheses(interactive_command.main, convert_namespace_to_omegaconf(arguments))


def eval_lm(data: Path, checkpoint: Path, *extra: str) -> float:
    """fairseq-eval-lm in this process: the loss, in base 2."""
    arguments = [str(data), "--user-dir", str(PLUGIN), "--path", str(checkpoint), "--cpu"]
    arguments += ["--num-workers", "0", "--no-progress-bar", *extra]
    parser = options.get_eval_lm_parser()
    return eval_lm_command.main(options.parse_args_and_arch(parser, arguments))["loss"]


def _decoding(data: Path, checkpoint: Path) -> tuple[str, ...]:
    return (
        *(str(data), "--user-dir", str(PLUGIN), "--path", str(checkpoint), "--beam", "5"),
        *("--cpu", "--num-workers", "0", "--no-progress-bar"),
    )


def _hypotheses(main, arguments) -> dict[int, tuple[float, str]]:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        main(arguments)
    hypotheses = {}
    for line in output.getvalue().splitlines():
        if line.startswith("H-"):
            number, score, text = line.split("\t")
            hypotheses[int(number[2:])] = float(score), text
    return hypotheses


def command(name: str, *arguments, **kwargs) -> subprocess.CompletedProcess:
    """An installed command as a user types it."""
    program = Path(sys.executable).with_name(name)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [str(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        **kwargs,
    )


def hydra_train(
    folder: Path, task: dict, model: dict, criterion: str, shape: Sequence[str], **more: dict
) -> None:
    """fairseq-hydra-train as typed; checkpoints go to ``folder / "hydra"``.

    Args:
        shape: of the model, as on a command line.
        more: other parts of the configuration, instead of two updates by default.
    """
    sizes = {n[2:].replace("-", "_"): int(x) for n, x in zip(shape[::2], shape[1::2], strict=True)}
    config = {
        "common": {"user_dir": str(PLUGIN), "cpu": True, "no_progress_bar": True, "seed": 1},
        "task": task,
        "model": {**model, **sizes},
        "criterion": {"_name": criterion},
        "optimizer": {"_name": "adam", "lr": [0.003]},
        "lr_scheduler": {"_name": "fixed"},
        "dataset": {
            "max_tokens": 600,
            "num_workers": 0,
            "required_batch_size_multiple": 1,
            "data_buffer_size": 0,  # its thread can abort the process as it ends, pytorch#38228
        },
        "optimization": {"max_update": 2, "lr": [0.003]},
        **more,
    }
    (folder / "experiment.yaml").write_text("# @package _global_\n" + yaml.safe_dump(config))
    run = command(
        *("fairseq-hydra-train", "--config-dir", folder, "--config-name", "experiment"),
        *(f"hydra.run.dir={folder}", f"checkpoint.save_dir={folder / 'hydra'}"),
    )
    assert run.returncode == 0, run.stdout + run.stderr


def same_weights(first: Path, second: Path, *others: str) -> bool:
    """Whether two checkpoints have equal weights, but for those that fairseq never sets, and equal
    tensors in other parts."""
    parts = ("model", *others)
    a, b = ([*map(tensors_of, map(torch.load(x).get, parts))] for x in (first, second))
    return all(
        found.keys() == expected.keys()
        and found
        and all(torch.equal(found[name], expected[name]) for name in found)
        for found, expected in zip(a, b, strict=True)
    )


def tensors_of(state: object, name: str = "") -> dict[str, torch.Tensor]:
    """The tensors in nested dictionaries and lists, but those that fairseq never sets."""
    if isinstance(state, torch.Tensor):
        return {} if name.endswith("_float_tensor") else {name: state}
    if isinstance(state, list):
        state = dict(enumerate(state))
    parts = state.items() if isinstance(state, dict) else ()
    return {k: v for x, value in parts for k, v in tensors_of(value, f"{name}.{x}").items()}


def slow_but(names: Iterable[str], *quick: str) -> list:
    """Parameters of a test of which only the ``quick`` ones are run by default."""
    marks = {name: [pytest.mark.slow] for name in names} | {name: [] for name in quick}
    return [pytest.param(name, marks=marks[name]) for name in names]


SHRUNK = (
    *("--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32"),
    *("--encoder-attention-heads", "4", "--decoder-attention-heads", "4"),
    *("--encoder-layers", "2", "--decoder-layers", "2"),
)
SHRUNK_LM = (
    *("--decoder-embed-dim", "16", "--decoder-ffn-embed-dim", "32"),
    *("--decoder-attention-heads", "4", "--decoder-layers", "2"),
)


@pytest.fixture(scope="session")
def fairseqs_transformer(data, tmp_path_factory) -> Path:
    """Checkpoints of fairseq's own, with learned positions in its encoder."""
    folder = tmp_path_factory.mktemp("transformer")
    positions = ("--encoder-learned-pos", "--max-source-positions", "40")
    train(
        data, folder, "--arch", "transformer", *SHRUNK, *positions, "--max-target-positions", "30",
        "--save-interval-updates", "2", "--max-update", "4",
    )  # fmt: skip
    return folder
