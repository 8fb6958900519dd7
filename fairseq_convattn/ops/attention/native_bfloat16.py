"""Composite attention of bfloat16 with products by AMX, by the compiled kernels of
``native/attention_bfloat16.c``."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import native
from ..implementation import requested, unfit_for_operators
from ..native_tensors import dense
from .dropout import Dropout
from .operators import register
from .scores import HIDDEN, Layout, Scores
from .terms import Options
from .tiles import LOG2_E

FLOAT_BYTES = 4
FEW = 8  # keys; PyTorch's attention is about as fast then


class Part(ctypes.Structure):
    """A tensor ``[heads of all sentences, ...]`` as kernels take it; strides in elements."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("head_stride", "row_stride")),
    ]


_GRADIENTS = tuple(f"grad_{name}" for name in Scores._fields)


class _Attention(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("count", "heads", "queries", "keys")),
        *((name, ctypes.c_int64) for name in ("width", "values")),
        *((name, ctypes.c_int64) for name in ("left", "right", "reach", "is_causal")),
        *((name, ctypes.c_double) for name in ("scale", "hidden")),
        *((name, ctypes.c_uint32) for name in ("low_seed", "high_seed")),
        ("keep", ctypes.c_double),
        *((name, Part) for name in ("q", "k", "v", "y", "grad", *_GRADIENTS[:3])),
        *((name, Part) for name in (*Scores._fields[3:], "lse", *_GRADIENTS[3:])),
    ]


def fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernels can take such inputs on a CPU, and the machine has AMX."""
    return {q.dtype, k.dtype, v.dtype} == {torch.bfloat16} and native.has_amx()


def pays(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, training: bool) -> bool:
    """Whether :func:`attention` is faster than PyTorch's, which it is in training, and nothing else
    is requested."""
    wanted = training and dropout_p < 1 and requested(None) is None and not unfit_for_operators()
    fitting = wanted and q.device.type == "cpu" and fits(q, k, v)
    return fitting and k.size(2) > FEW  # last: in torch.export a size becomes a guard


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    padding_mask: Tensor | None,
    dropout_p: float,
) -> Tensor:
    """Attention without relative terms; arguments as :func:`composite_attention`'s. If it is not
    causal, queries may be more than keys."""
    options = Options(causal, "clip", None, padding_mask, dropout_p, q.size(3) ** -0.5)
    return attend(q, k, v, {"content": None}, options)


def _forward(scores: Scores, layout: Layout, dropout: Dropout | None) -> tuple[Tensor, Tensor]:
    y = scores.v.new_empty(*scores.q.shape[:3], scores.v.size(3))
    lse = scores.curve.new_empty(scores.q.shape[:3])
    _run(scores, layout, dropout, {"y": y, "lse": lse})
    return y, lse


def _backward(
    grad: Tensor,
    y: Tensor,
    lse: Tensor,
    scores: Scores,
    layout: Layout,
    dropout: Dropout | None,
    wanted: Sequence[bool],
) -> Scores:
    grads = Scores(
        *(
            (x.new_zeros if name in ("column", "column_step") else x.new_empty)(x.shape)
            if want
            else None
            for name, x, want in zip(Scores._fields, scores, wanted, strict=True)
        )
    )
    batch, heads = scores.q.shape[:2]
    given = {"lse": lse, "grad": grad}
    given |= dict(zip(_GRADIENTS, grads, strict=True))
    if grads.curve is not None:  # each head of a sentence has its own, for any number of threads
        given["grad_curve"] = scores.curve.new_zeros(batch, heads, scores.curve.size(1))
    _run(scores, layout, dropout, given)
    if grads.curve is None:
        return grads
    curve = given["grad_curve"].sum(0)
    return grads._replace(curve=curve if len(grads.curve) > 1 else curve.sum(0, keepdim=True))


def _run(
    scores: Scores, layout: Layout, dropout: Dropout | None, given: dict[str, Tensor | None]
) -> None:
    batch, heads, queries, width = scores.q.shape
    if not batch * heads:
        return
    if not native.has_amx():
        raise RuntimeError("attend_native_bfloat16 needs kernels for a CPU with AMX")
    low, high = dropout.seeds if dropout else (0, 0)
    tensors = {**scores._asdict(), **given}
    tensors["curve"] = (scores.curve * LOG2_E).expand(heads, -1)
    flat = {
        name: dense(x) if name == "curve" else dense(x.flatten(0, 1))
        for name, x in tensors.items()
        if x is not None
    }
    parts = {name: Part(x.data_ptr(), *x.stride()[:2]) for name, x in flat.items()}
    for name in ("curve", "grad_curve"):  # from the first query's first key on
        if name in parts:
            parts[name].data += FLOAT_BYTES * (queries - 1)
    problem = _Attention(
        count=batch * heads,
        heads=heads,
        queries=queries,
        keys=scores.k.size(2),
        width=width,
        values=scores.v.size(3),
        left=layout.left,
        right=layout.right,
        reach=-1 if layout.reach is None else layout.reach,
        is_causal=layout.causal,
        scale=layout.scale,
        hidden=HIDDEN / 2,
        low_seed=low,
        high_seed=high,
        keep=1 - dropout.p if dropout else 1,
        **parts,
    )
    attend = native.library.convattn_attend_bfloat16
    threads = torch.get_num_threads()
    if attend(ctypes.byref(problem), "grad" in given, threads, native.run_in_parallel):
        raise MemoryError("no memory for the scores of some queries")


attend = register(
    "attend_native_bfloat16", _forward, _backward, (torch.bfloat16,), ("CPU",), few_keys=True
)
