"""Small trained models of every kind, which from_pretrained loads."""

import random
from pathlib import Path

import pytest
import sentencepiece
from conftest import SHRUNK, SHRUNK_LM, preprocess, train
from fairseq import options
from fairseq_cli import preprocess as preprocess_command

WORDS = "cedar elm fir hazel larch oak pine rowan willow ash".split()
TINY = ("--max-update", "10", "--no-epoch-checkpoints")
PIECES = {"sentencepiece_model": "bpe.model"}
SOURCES = ["oak pine rowan", "elm fir cedar hazel larch willow ash oak", "ash"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Models of a few updates, and below ``example`` with the names that docs/python.md has."""
    root = tmp_path_factory.mktemp("python")
    generator = random.Random(1)
    texts = [" ".join(generator.choices(WORDS, k=generator.randint(2, 8))) for _ in range(150)]
    (root / "text").write_text("\n".join(texts))
    sentencepiece.SentencePieceTrainer.train(
        input=str(root / "text"),
        model_prefix=str(root / "bpe"),
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(root / "bpe.model"))
    lines = [" ".join(pieces.encode(text, out_type=str)) for text in texts]
    sources = [" ".join(pieces.encode(text, out_type=str)) for text in SOURCES]
    pairs = list(zip(lines, reversed(lines), strict=True))
    splits = {"train": pairs[10:], "valid": pairs[:10], "test": [(s, s) for s in sources]}
    for task, flags in (
        ("translation", ()),
        ("summarization", ("--max-source-tokens", "6", "--source-prefix", sources[0].split()[0])),
    ):
        name = "summaries" if task == "summarization" else task
        data = preprocess(splits, root / "texts" / name, "--joined-dictionary")
        (root / "data").mkdir(exist_ok=True)
        (root / "data" / name).symlink_to(data)
        model = ("--task", task, "--arch", "dynamic_conv_tiny", *SHRUNK, *flags, *TINY)
        batches = ("--max-tokens", "200", "--required-batch-size-multiple", "8")
        train(data, root / "checkpoints" / name, *model, *batches)
    arguments = ["--only-source", "--destdir", str(root / "data" / "lm")]
    for split, source in (("train", lines[10:]), ("valid", lines[:10]), ("test", sources)):
        (root / "texts" / split).write_text("\n".join(source) + "\n")
        arguments += [f"--{split}pref", str(root / "texts" / split)]
    preprocess_command.main(options.get_preprocessing_parser().parse_args(arguments))
    blocks = ("--tokens-per-sample", "64", "--sample-break-mode")
    model = ("--arch", "dynamic_conv_lm_tiny", *SHRUNK_LM, *blocks, "eos", *TINY)
    train(root / "data" / "lm", root / "checkpoints" / "lm", "--task", "language_modeling", *model)
    model = ("--arch", "composite_attention_bert_tiny", *SHRUNK[:6], *blocks, "complete", *TINY)
    masked = ("--task", "masked_lm", "--criterion", "masked_lm", *model)
    train(root / "data" / "lm", root / "checkpoints" / "mlm", *masked)
    link_examples(root)
    return root


def link_examples(root: Path) -> None:
    """The models where the pages of the documents make them."""
    for page, name, data in (
        ("translation", "translation", "translation"),
        ("lm", "lm", "lm"),
        ("summarization", "summaries", "summaries"),
        ("mlm", "mlm", "lm"),
    ):
        example = root / "example" / page
        example.mkdir(parents=True)
        (example / "checkpoints").symlink_to(root / "checkpoints" / name)
        (example / "bin").symlink_to(root / "data" / data)
        (example / "bpe.model").symlink_to(root / "bpe.model")


@pytest.fixture
def here(folder, monkeypatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def load(model, name, data=None, **options):
    data = f"data/{data or name}"
    return model.from_pretrained(f"checkpoints/{name}", "checkpoint_last.pt", data, **options)
