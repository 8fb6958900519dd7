"""What a GPU would see, on none: fake tensors of a device that is not the CPU.

They refuse to be mixed with the CPU's, and to say what is in them, for which a GPU would have to
be waited for.
"""

import pytest
import torch
from conftest import slow_but
from test_mixers import BATCH, CONVOLUTIONS, VARIANTS, WIDTH, mixer
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import backend_registration

from fairseq_convattn.mixers import CrossAttention
from fairseq_convattn.ops import use_implementation
from fairseq_convattn.ops.implementation import has_triton

DEVICE = "elsewhere"
TIME = 9
slow = pytest.mark.slow
needs_triton = pytest.mark.skipif(not has_triton(), reason="needs Triton: pip install triton")
EACH = slow_but(  # those that compute the most
    VARIANTS,
    *("lightweight-renorm", "dynamic-renorm", "dynamic-bias", "composite", "composite-injected"),
    *("attention-static", "attention-headwise", "attention-low-rank", "composite-window", "tisa"),
)
PASSES = [
    pytest.param(False, torch.bfloat16, "reference", id="reference"),
    pytest.param(True, torch.float16, "triton", id="triton, causal", marks=needs_triton),
    pytest.param(True, torch.float16, "reference", id="reference, causal", marks=slow),
    pytest.param(False, torch.bfloat16, "triton", id="triton", marks=[needs_triton, slow]),
]


@pytest.fixture(scope="module", autouse=True)
def device():
    set_up = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if set_up is None:
        pytest.skip("this PyTorch knows no devices written in Python")
    set_up(DEVICE)


@pytest.fixture
def kernels(request, monkeypatch):
    """Those of the name; Triton's are called with nothing launched."""
    if request.param == "triton":
        from fairseq_convattn.ops.attention import triton_launch as attention
        from fairseq_convattn.ops.convolution import triton_launch as convolution
        from fairseq_convattn.ops.short_convolution import triton_headwise as headwise
        from fairseq_convattn.ops.short_convolution import triton_launch as low_rank

        for launching in (attention._Kernels, headwise._Kernels, low_rank._Kernels):
            monkeypatch.setattr(launching, "_launch", lambda *_, **__: None)
        for module in (attention, convolution, headwise, low_rank):
            monkeypatch.setattr(module, "unfit", lambda *_: "")
    with use_implementation(request.param), FakeTensorMode():
        yield request.param


def moved(module, dtype):
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, x in tensors.items():
                if x is not None:
                    kind = dtype if x.is_floating_point() else x.dtype
                    there = torch.empty(x.shape, device=DEVICE, dtype=kind)
                    is_parameter = tensors is part._parameters
                    tensors[name] = torch.nn.Parameter(there) if is_parameter else there
    return module


def inputs(dtype):
    x = torch.randn(TIME, BATCH, WIDTH, device=DEVICE, dtype=dtype, requires_grad=True)
    return x, torch.zeros(BATCH, TIME, dtype=torch.bool, device=DEVICE)


@pytest.mark.parametrize("causal, dtype, kernels", PASSES, indirect=["kernels"])
@pytest.mark.parametrize("variant", EACH)
def test_mixers_stay_on_their_device(variant, causal, dtype, kernels):
    dropout = {"weight_dropout": 0.1} if variant in CONVOLUTIONS else {}
    module = moved(mixer(variant, causal, input_dropout=0.1, **dropout), dtype).train()
    x, mask = inputs(dtype)
    for padding_mask in (None, mask):
        y, _ = module(x, x, x, key_padding_mask=padding_mask)
        assert (y.device, y.dtype) == (x.device, dtype)
        (x_grad,) = torch.autograd.grad(y.sum(), x)
        assert (x_grad.device, x_grad.dtype) == (x.device, dtype)


@torch.no_grad()
@pytest.mark.parametrize(
    "kernels",
    ["reference", pytest.param("triton", marks=[needs_triton, slow])],
    indirect=True,
)
@pytest.mark.parametrize("variant", EACH)
def test_states_stay_on_their_device(variant, kernels):
    module = moved(mixer(variant, causal=True), torch.float16).eval()
    x, mask = inputs(torch.float16)
    for padding_mask in (None, mask):
        state = {}
        for t in range(3):
            step = x[t : t + 1]
            seen = None if padding_mask is None else padding_mask[:, t : t + 1]
            y, _ = module(step, step, step, key_padding_mask=seen, incremental_state=state)
            assert (y.device, y.dtype) == (x.device, x.dtype)
            order = torch.zeros(BATCH, dtype=torch.long, device=DEVICE)
            module.reorder_incremental_state(state, order)


@pytest.mark.parametrize("need_weights", [False, True])
def test_cross_attention_stays_on_its_device(need_weights):
    with FakeTensorMode():
        module = CrossAttention(WIDTH, 3, encoder_decoder_attention=True, dropout=0.1)
        module = moved(module, torch.float16)
        x, mask = inputs(torch.float16)
        for train in (True, False):
            module.train(train)
            state = None if train else {}
            y, _ = module(
                x, x, x, key_padding_mask=mask, incremental_state=state, static_kv=True,
                need_weights=need_weights,
            )  # fmt: skip
            assert (y.device, y.dtype) == (x.device, x.dtype)
