"""Small models, pre-trained for a moment, and generated tasks for the tests of fine-tuning."""

import json
import random
from pathlib import Path

import pytest
from conftest import train
from fairseq import checkpoint_utils, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import preprocess as preprocess_command
from fairseq_cli import train as train_command
from glue_miniature import miniature_sentences, write_miniature, write_pretrained, write_tsv

from fairseq_convattn.glue import finetuning
from fairseq_convattn.glue.binarising import Pieces, binarise
from fairseq_convattn.glue.finetuning import Run, finetune

SHRUNK = (
    *("--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32", "--encoder-layers", "2"),
    *("--encoder-attention-heads", "2"),
)
MASKED_LM = (
    *("--task", "masked_lm", "--criterion", "masked_lm", "--tokens-per-sample", "32"),
    *("--sample-break-mode", "complete", "--disable-validation", "--no-epoch-checkpoints"),
)
POSITIONS = 32
PAIRS = ("MRPC", "STS-B", "MNLI")
ON_CPU = ("--cpu", "--num-workers", "0")


def sentiments(count: int, rng: random.Random) -> list[dict[str, str]]:
    """Sentences of which those with a `good` are positive."""
    rows = []
    for number in range(count):
        words = rng.choices(["the", "cat", "sat", "on", "a", "mat"], k=rng.randint(2, 6))
        words.insert(rng.randrange(len(words)), "good" if number % 2 else "bad")
        rows.append({"sentence": " ".join(words), "label": str(number % 2)})
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """tsv, bin with SST-2 and the tasks of PAIRS, and text for pre-training in lm."""
    folder, rng = tmp_path_factory.mktemp("glue"), random.Random(3)
    rows = write_miniature(folder / "tsv")
    for file, count in (("train", 300), ("dev", 51)):
        rows["SST-2", file] = sentiments(count, rng)
        path = folder / "tsv" / "SST-2" / f"{file}.tsv"
        write_tsv(path, ("sentence", "label"), rows["SST-2", file])
    sentences = miniature_sentences(rows)
    model, dictionary = write_pretrained(folder, sentences, size=90)
    pieces = Pieces(model, dictionary)
    binarise(("SST-2", *PAIRS), folder / "tsv", folder / "bin", pieces, sample=True)
    encoded = (" ".join(pieces.processor.encode(s, out_type=str)) for s in sentences)
    (folder / "pieces").write_text("".join(f"{line}\n" for line in encoded), encoding="utf-8")
    arguments = ["--only-source", "--srcdict", str(dictionary), "--destdir", str(folder / "lm")]
    arguments += ["--trainpref", str(folder / "pieces")]
    preprocess_command.main(options.get_preprocessing_parser().parse_args(arguments))
    return folder


def pretrain(folder: Path, output: Path, *extra: str) -> Path:
    train(folder / "lm", output, *MASKED_LM, *SHRUNK, *extra)
    return output / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def model(folder) -> Path:
    arguments = ("--arch", "composite_attention_bert_tiny", "--attention-span", "3")
    return pretrain(folder, folder / "composite", *arguments)


@pytest.fixture(scope="module")
def roberta(folder) -> Path:
    arguments = ("--arch", "roberta", "--untie-weights-roberta")
    return pretrain(folder, folder / "roberta", *arguments)


@pytest.fixture
def in_process(monkeypatch) -> list[list[str]]:
    """fairseq-train in this process, which is faster; the commands that were run."""
    commands = []

    def run(command: list[str], log: Path) -> None:
        commands.append(command)
        log.touch()
        vars(checkpoint_utils.save_checkpoint).pop("best", None)
        arguments = options.parse_args_and_arch(options.get_training_parser(), command[1:])
        train_command.main(convert_namespace_to_omegaconf(arguments))

    monkeypatch.setattr(finetuning, "run_command", run)
    return commands


def run_of(task: str, folder: Path, model: Path, output: Path, **chosen) -> Run:
    defaults = {"lr": 0.01, "batch_size": 4, "epochs": 2, "max_positions": None, "extra": ON_CPU}
    options = {"data": folder / "bin", **defaults, **chosen}
    return Run(task=task, model=model, output=output, **options)


def finetuned(task: str, folder: Path, model: Path, output: Path, *seeds: int, **chosen) -> dict:
    """The results of a fine-tuning with these seeds, by default one."""
    finetune(run_of(task, folder, model, output, **chosen), seeds or [1])
    return results(output)


def results(output: Path) -> dict:
    return json.loads((output / "results.json").read_text())


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
