"""Half precision: losses within a band of float32's, no overflow in long inputs, resuming."""

import functools
import gzip
import tempfile
from pathlib import Path

import pytest
import torch
from conftest import FOR_GPUS, SHRUNK, preprocess, same_weights, train

from fairseq_convattn.architectures.presets import ARCHITECTURE_NAMES
from fairseq_convattn.mixers import MIXERS, MixerConfig, build_mixer
from fairseq_convattn.ops.attention import TERMS

pytestmark = pytest.mark.reliability

slow = pytest.mark.slow
HALF = {
    "bf16": ("--bf16",),
    "memory-efficient bf16": ("--memory-efficient-bf16",),
    "fp16": ("--fp16",),
    "memory-efficient fp16": ("--memory-efficient-fp16",),
    "amp": ("--amp",),
}
BAND = 0.02  # of float32's loss, relatively


@functools.cache
def losses(base, data, mixer, given):
    """Of validation, in base 2, in the order of time."""
    folder = Path(tempfile.mkdtemp(dir=base))
    train(data, folder, "--arch", ARCHITECTURE_NAMES[mixer].format("tiny"), *given)
    found = sorted(folder.glob("checkpoint_*_*.pt"), key=lambda path: path.stat().st_mtime)
    return [torch.load(path)["extra_state"]["val_loss"] for path in found]


def assert_within_the_band(base, data, mixer, given, precision):
    if FOR_GPUS.intersection(HALF[precision]) and not torch.cuda.is_available():
        pytest.skip(f"{precision} needs a GPU")
    wide, half = (losses(base, data, mixer, given + x) for x in ((), HALF[precision]))
    worst = max(abs(h / w - 1) for h, w in zip(half, wide, strict=True))
    print(f"{mixer}, {precision}: float32 {wide}, half {half}, at most {worst:.2%} apart")
    assert len(wide) > 1 and wide[-1] < wide[0] and worst < BAND


@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize(
    "mixer", [m if m == "dynamic" else pytest.param(m, marks=slow) for m in MIXERS]
)
def test_a_few_updates(data, tmp_path_factory, mixer, precision):
    given = (*SHRUNK, "--max-update", "12", "--save-interval-updates", "6", "--lr", "0.01")
    assert_within_the_band(tmp_path_factory.getbasetemp(), data, mixer, given, precision)


@pytest.fixture(scope="session")
def multi30k(shared, tmp_path_factory):
    """2,000 sentences, as words."""
    folder = shared / "data" / "multi30k" / "tok"
    pairs = {"train": _sentences(folder, "train", 2000), "valid": _sentences(folder, "val", 100)}
    words = ("--thresholdsrc", "3", "--thresholdtgt", "3")
    return preprocess(pairs, tmp_path_factory.mktemp("multi30k"), *words)


def _sentences(folder, split, count):
    english, german = (
        gzip.decompress((folder / f"{split}.{language}.gz").read_bytes()).decode().splitlines()
        for language in ("en", "de")
    )
    return list(zip(english, german, strict=True))[:count]


@slow
@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize("mixer", MIXERS)
def test_200_updates_on_real_sentences(multi30k, tmp_path_factory, mixer, precision):
    given = (*SHRUNK, "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64")
    given = (*given, "--max-update", "200", "--save-interval-updates", "100", "--max-tokens", "500")
    assert_within_the_band(tmp_path_factory.getbasetemp(), multi30k, mixer, given, precision)


LONG = 4096


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mixer", MIXERS)
def test_long_inputs_do_not_overflow(mixer, dtype):
    """Outputs and gradients, for every term of composite attention."""
    torch.manual_seed(1)
    terms = {"attention_terms": tuple(TERMS)} if mixer == "composite" else {}
    config = MixerConfig(
        mixer=mixer, embed_dim=8, num_heads=2, causal=True, kernel_size=31, **terms
    )
    module = build_mixer(config)
    x = 4 * torch.randn(LONG, 1, 8)
    y, _ = module(x, x, x)
    module, x = module.to(dtype), x.to(dtype).requires_grad_()
    half, _ = module(x, x, x)
    half.float().pow(2).mean().backward()
    gradients = [x.grad, *(p.grad for p in module.parameters())]
    assert all(gradient.isfinite().all() for gradient in gradients)
    torch.testing.assert_close(half.float(), y, rtol=0.05, atol=0.05 * y.abs().max().item())


@pytest.mark.parametrize(
    "given, is_exact",
    [
        (("--memory-efficient-bf16",), True),
        (("--bf16",), False),  # fairseq stores its weights rounded, and not the float32 copy
        (("--bf16", "--optimizer", "convattn_adam"), True),
        pytest.param(("--bf16", "--optimizer", "convattn_nag"), True, marks=slow),
        pytest.param(("--memory-efficient-bf16", "--optimizer", "convattn_adam"), True, marks=slow),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_resumes_bit_for_bit(data, tmp_path, given, is_exact):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    ends = [folder / "checkpoint_last.pt" for folder in (whole, resumed)]
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--dropout", "0.3", *given)
    given = (*given, "--update-epoch-batch-itr", "True")
    train(data, whole, *given, "--max-update", "6")
    train(data, resumed, *given, "--max-update", "3")
    stored = torch.load(ends[1])["model"]
    assert all(torch.equal(x, x.bfloat16().float()) for x in stored.values())
    train(data, resumed, *given, "--max-update", "6")
    assert is_exact == same_weights(*ends)


@pytest.mark.parametrize(
    "precision", [(), pytest.param(("--bf16",), marks=slow)], ids=("float32", "bf16")
)
@pytest.mark.parametrize("optimizer", ["adam", pytest.param("nag", marks=slow)])
def test_goes_on_with_fairseqs_optimizer_and_back(data, tmp_path, optimizer, precision):
    """As with fairseq's alone, which with --bf16 begins from rounded weights every time."""
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--update-epoch-batch-itr", "True", *precision)
    for folder, second in (("fairseqs", optimizer), ("ours", f"convattn_{optimizer}")):
        for updates, name in enumerate((optimizer, second, optimizer), 1):
            length = ("--max-update", str(updates))
            train(data, tmp_path / folder, *given, "--optimizer", name, *length)
    assert same_weights(*(tmp_path / x / "checkpoint_last.pt" for x in ("fairseqs", "ours")))


@pytest.mark.parametrize("precision", [(), ("--bf16",)], ids=("float32", "bf16"))
def test_changed_weights_are_not_replaced_by_those_of_the_optimizer(data, tmp_path, precision):
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK, *precision, "--optimizer", "convattn_adam")
    train(data, tmp_path, *given, "--max-update", "1")
    path = tmp_path / "checkpoint_last.pt"
    state = torch.load(path)
    state["model"]["encoder.layers.0.fc1.weight"].fill_(5)
    torch.save(state, path)
    train(data, tmp_path, *given, "--max-update", "2")
    found = torch.load(path)["model"]["encoder.layers.0.fc1.weight"]
    torch.testing.assert_close(found, torch.full_like(found, 5), rtol=0, atol=0.1)
