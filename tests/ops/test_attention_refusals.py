"""What composite attention refuses."""

import pytest
import torch
from kernel_cases import NATIVE

from fairseq_convattn.ops import composite_attention

HEADS, WIDTH, SPAN = 2, 4, 2


def inputs(queries, keys, dtype=torch.float64):
    return [torch.randn(3, HEADS, time, WIDTH, dtype=dtype) for time in (queries, keys, keys)]


BAD = [
    ({}, {}, "no terms"),
    (["content"], {}, "terms must be a dict"),
    ({"convolution": None}, {}, "unknown term"),
    ({"content": None, "fixed": torch.zeros(3, 5)}, {}, "fixed must be"),
    ({"content": None, "fixed": torch.zeros(2, 5).cfloat()}, {}, "fixed must be of floating point"),
    ({"fixed": torch.zeros(2, 4)}, {}, "give an odd number"),
    ({"fixed": torch.zeros(2, 5), "key": torch.zeros(1, 3, WIDTH).double()}, {}, "the same span"),
    ({"query": torch.zeros(1, 3, WIDTH + 1)}, {}, "query must be"),
    ({"query": torch.zeros(1, 3, WIDTH)}, {}, "q in torch.float64 and query in torch.float32"),
    ({"tisa": torch.zeros(2, 5)}, {}, "tisa takes 3 tensors"),
    ({"tisa": (torch.zeros(2, 5), torch.zeros(2, 1), torch.zeros(2, 5))}, {}, "must agree"),
    ({"content": torch.zeros(1)}, {}, "content takes None"),
    ({"t5": torch.zeros(2, 6)}, {}, "multiple of 4"),
    ({"content": None}, {"beyond": "mask"}, "needs a span"),
    ({"fixed": torch.zeros(2, 5)}, {"span": 3}, "a span of 3, but tables for 2"),
    ({"content": None}, {"span": -1}, "a whole number >= 0, not -1"),
    ({"content": None}, {"span": 2.5}, "a whole number >= 0, not 2.5"),
    ({"content": None}, {"beyond": "wrap"}, "unknown beyond"),
    ({"content": None}, {"impl": "fast"}, "unknown impl"),
    ({"content": None}, {"dropout_p": 1.0}, "dropout_p"),
    ({"content": None}, {"padding_mask": torch.zeros(3, 5)}, "boolean"),
]


@pytest.mark.parametrize("terms, options, message", BAD)
def test_refuses_what_does_not_go_together(terms, options, message):
    with pytest.raises(ValueError, match=message):
        composite_attention(*inputs(5, 5), terms, **{"causal": False, **options})


def test_refuses_inputs_of_wrong_shapes_and_dtypes():
    q, k, v = inputs(5, 5)
    for bad in (
        (q, k.float(), v),
        (q.float(), k.float(), v),
        (q[0], k, v),
        (q, k[:2], v),
        (q, k, v[:, :, 1:]),
        (q[..., 1:], k, v),
        (q, k[:, :, 1:], v[:, :, 1:]),
        (q[..., :0], k[..., :0], v),
        (q.long(), k.long(), v.long()),
    ):
        with pytest.raises(ValueError):
            composite_attention(*bad, {"content": None}, causal=False)


@pytest.mark.parametrize("impl", ["reference", "tiled", NATIVE])
def test_refuses_terms_on_another_device(impl):
    q, k, v = inputs(5, 5, dtype=torch.float32)
    terms = {"content": None, "fixed": torch.randn(HEADS, SPAN + 1, device="meta")}
    with pytest.raises((ValueError, RuntimeError), match="device"):
        composite_attention(q, k, v, terms, causal=True, impl=impl)
