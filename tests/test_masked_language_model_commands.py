"""Masked language models from pre-training to fine-tuning, through fairseq's commands."""

import random
import shutil
from pathlib import Path

import pytest
import sentencepiece
import torch
from conftest import hydra_train, same_weights, train, validate
from fairseq import checkpoint_utils, options
from fairseq_cli import preprocess as preprocess_command

from fairseq_convattn.architectures import ConvAttnMaskedLanguageModel

TASK = (
    *("--task", "masked_lm", "--criterion", "masked_lm", "--sample-break-mode", "eos"),
    *("--tokens-per-sample", "64"),
)
SHRUNK = (
    *("--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32"),
    *("--encoder-attention-heads", "4", "--encoder-layers", "2"),
)
CLASSIFY = (
    *("--task", "sentence_prediction", "--criterion", "sentence_prediction", "--num-classes", "2"),
    *("--init-token", "0", "--max-positions", "64"),
)
ALL_AT_ONCE = ("--share-encoder-layers", "true", "--encoder-input-dim", "8")
WORDS = "ash beech cedar elm fir hazel larch maple oak pine rowan willow".split()


def sentence(generator) -> str:
    """Trees in the order of the alphabet, which a masked one can be guessed from."""
    first, length = generator.randrange(12), generator.randint(3, 9)
    return " ".join(WORDS[(first + i) % 12] for i in range(length))


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """A folder with ``pieces.model``, binarised text in ``bin`` and, in ``classify``,
    sentences and whether willows come first."""
    folder, generator = tmp_path_factory.mktemp("texts"), random.Random(3)
    splits = {
        name: [sentence(generator) for _ in range(n)] for name, n in (("train", 300), ("valid", 30))
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(splits["train"]),
        model_prefix=str(folder / "pieces"),
        vocab_size=100,
        hard_vocab_limit=False,
        model_type="word",
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "pieces.model"))
    for split, lines in splits.items():
        encoded = [" ".join(pieces.encode(line, out_type=str)) for line in lines]
        labels = [str(int(line < "g")) for line in lines]
        for name, content in (("text", encoded), ("label", labels)):
            (folder / f"{split}.{name}").write_text("".join(f"{line}\n" for line in content))
    binarise(folder, "text", folder / "bin")
    binarise(folder, "text", folder / "classify" / "input0", "--srcdict", folder / "bin/dict.txt")
    binarise(folder, "label", folder / "classify" / "label")
    return folder


def binarise(folder: Path, name: str, destination: Path, *extra) -> None:
    arguments = ["--only-source", "--destdir", destination, *extra]
    for split in ("train", "valid"):
        arguments += [f"--{split}pref", folder / f"{split}.{name}"]
    parser = options.get_preprocessing_parser()
    preprocess_command.main(parser.parse_args(list(map(str, arguments))))


MIXERS = ("dynamic_conv", "attention", "composite_attention", "tisa")


@pytest.mark.slow
@pytest.mark.parametrize("mixer", MIXERS)
def test_pretrain_resume_validate_finetune(mixer, texts, tmp_path):
    model = ("--arch", f"{mixer}_bert_tiny", *SHRUNK, *ALL_AT_ONCE)
    if mixer == "dynamic_conv":
        model = (*model, "--encoder-kernel-sizes", "5")
    whole, resumed = (tmp_path / name / "checkpoint_last.pt" for name in ("whole", "resumed"))
    train(texts / "bin", whole.parent, *TASK, *model, "--max-update", "6")
    train(texts / "bin", resumed.parent, *TASK, *model, "--max-update", "3")
    train(texts / "bin", resumed.parent, *TASK, *model, "--max-update", "6")
    assert same_weights(whole, resumed)
    logged = torch.load(whole)["extra_state"]["val_loss"]
    assert validate(texts / "bin", whole, *TASK) == logged

    tuned = tmp_path / "tuned" / "checkpoint_last.pt"
    start = ("--restore-file", str(whole), "--reset-optimizer", "--reset-dataloader")
    start = (*start, "--reset-meters", "--lr", "0", "--max-update", "1")
    train(texts / "classify", tuned.parent, *CLASSIFY, *model, *start)
    before, after = (torch.load(path)["model"] for path in (whole, tuned))
    assert all(torch.equal(before[name], after[name]) for name in before)
    heads = {name for name in after.keys() - before.keys()}
    assert heads and all(name.startswith("classification_heads.") for name in heads)
    logged = torch.load(tuned)["extra_state"]["val_loss"]
    assert validate(texts / "classify", tuned, *CLASSIFY) == logged


def test_learns_the_text_then_a_class_and_serves_both(texts, tmp_path):
    """Through fairseq's commands and RoBERTa's hub interface."""
    model = ("--arch", "dynamic_conv_bert_tiny", *SHRUNK, "--encoder-embed-dim", "32")
    model = (*model, "--encoder-kernel-sizes", "15", "--dropout", "0", "--lr", "0.01")
    quick = ("--no-epoch-checkpoints", "--validate-interval", "50")
    train(texts / "bin", tmp_path / "a", *TASK, *model, *quick, "--max-update", "150")
    pretrained = tmp_path / "a" / "checkpoint_last.pt"
    start = ("--finetune-from-model", str(pretrained))
    train(
        texts / "classify", tmp_path / "b", *CLASSIFY, *model, *quick, *start, "--max-update", "40"
    )

    bpe = {"sentencepiece_model": str(texts / "pieces.model")}
    load = ConvAttnMaskedLanguageModel.from_pretrained
    hub = load(tmp_path / "a", "checkpoint_last.pt", str(texts / "bin"), **bpe).eval()
    (filled, probability, word), *_ = hub.fill_mask("cedar elm <mask> hazel larch", topk=3)
    assert (filled, word.strip()) == ("cedar elm fir hazel larch", "fir") and probability > 0.5
    sentence = hub.encode("oak pine")
    assert hub.decode(sentence) == "oak pine"
    states = hub.extract_features(sentence, return_all_hiddens=True)
    assert len(states) == 3 and states[-1].shape == (1, len(sentence), 32)
    torch.testing.assert_close(hub.extract_features(sentence), states[-1])
    with pytest.raises(ValueError, match="tokens exceeds maximum length: 65 > 64"):
        hub.extract_features(torch.full((65,), 5))

    hub = load(tmp_path / "b", "checkpoint_last.pt", str(texts / "classify"), **bpe).eval()
    labels = hub.task.label_dictionary
    for text, label in (("elm fir hazel", "1"), ("pine rowan willow ash", "0")):
        scores = hub.predict("sentence_classification_head", hub.encode(text))
        assert labels.string([scores.argmax().item() + labels.nspecial]) == label


def test_blocks_longer_than_the_table_of_positions(texts, tmp_path):
    blocks = (*TASK[:4], "--tokens-per-sample", "32", "--max-positions", "16")
    model = (*blocks, "--arch", "convattn_mlm", *SHRUNK)
    with pytest.raises(Exception, match="Size of sample .* max_positions=16"):
        train(texts / "bin", tmp_path / "a", *model)
    train(texts / "bin", tmp_path / "b", *model, "--no-token-positional-embeddings", "true")


@pytest.mark.slow
def test_several_languages(texts, tmp_path):
    """The task has a block's length, but no positions."""
    for language in ("xx", "yy"):
        shutil.copytree(texts / "bin", tmp_path / "bin" / language)
    shutil.copy(texts / "bin" / "dict.txt", tmp_path / "bin")
    task = ("--task", "multilingual_masked_lm", "--criterion", "masked_lm")
    model = ("--arch", "dynamic_conv_bert_tiny", *SHRUNK, "--tokens-per-sample", "32")
    train(tmp_path / "bin", tmp_path / "run", *task, *model, "--max-update", "2")
    trained = torch.load(tmp_path / "run" / "checkpoint_last.pt")["cfg"]["model"]
    assert trained["max_positions"] == 32


def test_pruning_when_loading(texts, tmp_path):
    model = ("--arch", "dynamic_conv_bert_tiny", *SHRUNK, "--encoder-layerdrop", "0.2")
    train(texts / "bin", tmp_path, *TASK, *model)
    checkpoint = str(tmp_path / "checkpoint_last.pt")
    overrides = {"encoder_layers_to_keep": "1"}
    (net,), _, _ = checkpoint_utils.load_model_ensemble_and_task([checkpoint], overrides)
    (layer,), state = net.eval().encoder.sentence_encoder.layers, torch.load(checkpoint)["model"]
    assert torch.equal(layer.fc1.weight, state["encoder.sentence_encoder.layers.1.fc1.weight"])


@pytest.mark.slow
def test_hydra(texts, tmp_path):
    """fairseq-hydra-train with a configuration file gives the model of fairseq-train."""
    task = {"_name": "masked_lm", "data": str(texts / "bin"), "sample_break_mode": "eos"}
    model = {
        "_name": "dynamic_conv_bert_tiny",
        "encoder_kernel_sizes": [3, 5],
        "encoder_input_dim": 8,
        "layernorm_embedding": False,
        "activation_fn": "relu",
    }
    # whole epochs: Python's end may abort when a thread of fairseq's still reads
    epoch = {"max_epoch": 1, "lr": [0.003]}
    hydra_train(
        *(tmp_path, {**task, "tokens_per_sample": 64}, model, "masked_lm", SHRUNK),
        optimization=epoch,
    )
    train(
        *(texts / "bin", tmp_path / "plain", *TASK, "--arch", "dynamic_conv_bert_tiny", *SHRUNK),
        *("--encoder-kernel-sizes", "3,5", "--encoder-input-dim", "8", "--max-update", "0"),
        *("--layernorm-embedding", "false", "--activation-fn", "relu", "--max-epoch", "1"),
    )
    hydra, plain = (tmp_path / name / "checkpoint_last.pt" for name in ("hydra", "plain"))
    assert same_weights(hydra, plain)
    assert validate(texts / "bin", hydra, *TASK) == validate(texts / "bin", plain, *TASK)
