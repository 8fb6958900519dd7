"""Composite attention by the Triton kernels of ``triton_tiles``."""

import contextlib
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from .scores import Layout, Scores, decompose
from .terms import Terms
from .triton_tiles import backward_by_keys, backward_by_queries, forward_by_queries

WIDEST = 256
ADDED = ("column", "band", "row_step", "column_step")  # to scores, where they are not None


class Blocks(NamedTuple):
    """Of queries and of keys, and how Triton is to compile a kernel for them.

    For the backward pass by queries, no more queries than keys.
    """

    queries: int
    keys: int
    warps: int
    stages: int


def unfit(q: Tensor, v: Tensor) -> str:
    """Why the kernels cannot take such inputs; empty when they can."""
    if not q.is_cuda and isinstance(forward_by_queries, triton.JITFunction):
        return (
            "needs tensors on a GPU, or TRITON_INTERPRET=1 in the environment before Triton is "
            "imported"
        )
    if q.is_cuda and torch.cuda.get_device_capability(q.device) < (8, 0):
        return "needs a GPU of compute capability 8.0 or more"
    if not q.is_cuda and torch.bfloat16 in (q.dtype, v.dtype):
        return "needs a GPU for bfloat16, whose bits Triton's interpreter multiplies as integers"
    if torch.float64 in (q.dtype, v.dtype):
        return "computes in float32: give float32 or half precision"
    if max(q.size(3), v.size(3)) > WIDEST:
        return f"takes heads of at most {WIDEST}, not {max(q.size(3), v.size(3))}"
    return ""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms,
    padding_mask: Tensor | None,
    *,
    causal: bool,
    beyond: str,
    span: int | None,
    dropout_p: float,
    scale: float,
) -> Tensor:
    """Same contract as :func:`reference.attend`; no second derivatives.

    Half precision is multiplied as such, and sums are float32. Products of float32 follow
    ``torch.set_float32_matmul_precision``.
    """
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    scores, layout = decompose(
        *(x.to(dtype) for x in (q, k, v)),
        terms,
        padding_mask,
        causal=causal,
        beyond=beyond,
        span=span,
        scale=scale,
        widen=False,
    )
    seed = int(torch.randint(2**62, ())) if dropout_p > 0 else 0
    return _TritonAttention.apply(layout, dropout_p, seed, *scores).to(v.dtype)


class _TritonAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layout: Layout, dropout_p: float, seed: int, *tensors: Tensor | None):
        scores = Scores(*tensors)
        kernels = _Kernels(scores, layout, dropout_p, seed)
        y, lse = kernels.forward()
        ctx.options = layout, dropout_p, seed
        ctx.save_for_backward(*tensors, y, lse)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        *tensors, y, lse = ctx.saved_tensors
        kernels = _Kernels(Scores(*tensors), *ctx.options)
        wanted = Scores(*ctx.needs_input_grad[3:])
        return None, None, None, *kernels.backward(y, lse, grad, wanted)


class _Kernels:
    """Launches the kernels on given scores."""

    def __init__(self, scores: Scores, layout: Layout, dropout_p: float, seed: int):
        self.scores = scores
        self.shape = scores.q.shape[:3]
        self.keys = scores.k.size(2)
        self.width, self.values = scores.q.size(3), scores.v.size(3)
        self.inputs = {
            **_strided("q", scores.q),
            **_strided("k", scores.k),
            **_strided("v", scores.v),
            "curve": scores.curve.contiguous(),
            "curve_h": scores.curve.size(1) if scores.curve.size(0) > 1 else 0,
        }
        for name in ADDED:
            x = getattr(scores, name)
            self.inputs[name] = None if x is None else x.contiguous()
        self.options = {
            "heads": self.shape[1],
            "queries": self.shape[2],
            "keys": self.keys,
            "offset": layout.offset,
            "left": layout.left,
            "right": layout.right,
            "reach": self.keys if layout.reach is None else layout.reach,
            "scale": layout.scale,
            "dropout_p": dropout_p,
            "seed": seed,
            "CAUSAL": layout.causal,
            "DROPOUT": dropout_p > 0,
            "WIDTH": self.width,
            "WIDTH_PADDED": _padded(self.width),
            "VALUES": self.values,
            "VALUES_PADDED": _padded(self.values),
            "PRECISION": _precision(scores.v.device),
        }

    def forward(self) -> tuple[Tensor, Tensor]:
        """Outputs, and the logarithms of the sums of exponentials, 0 where nothing is seen."""
        y = self.scores.v.new_empty(*self.shape, self.values)
        lse = torch.empty(self.shape, dtype=torch.float32, device=y.device)
        self._launch(forward_by_queries, _forward_blocks, "queries", y=y, lse=lse)
        return y, lse

    def backward(self, y: Tensor, lse: Tensor, grad: Tensor, wanted: Scores) -> Scores:
        """Gradients, None where not ``wanted``."""
        scores = self.scores
        blocks = _backward_blocks(max(self.width, self.values), grad.dtype)
        delta = torch.empty_like(lse)
        found = {name: _empty_like(getattr(scores, name)) for name in "qkv"}
        for name in ADDED:
            x = getattr(scores, name)
            found[name] = _empty_like(x) if getattr(wanted, name) else None
        if found["band"] is not None:
            found["band"].zero_()  # the kernel leaves out taps beyond the first and last key
        rows = triton.cdiv(self.shape[2], blocks.queries)
        diagonals = None
        if wanted.curve:
            shape = (*self.shape[:2], rows, self.keys + blocks.queries)
            diagonals = torch.zeros(shape, dtype=torch.float32, device=y.device)
        above = {**_strided("grad", grad), "lse": lse, "delta": delta}
        self._launch(
            backward_by_queries,
            _backward_blocks,
            "queries",
            **above,
            y=y,
            q_grad=found["q"],
            band_grad=found["band"],
            row_step_grad=found["row_step"],
            diagonals=diagonals,
        )
        self._launch(
            backward_by_keys,
            _backward_blocks,
            "keys",
            **above,
            k_grad=found["k"],
            v_grad=found["v"],
            column_step_grad=found["column_step"],
            column_grad=found["column"],
        )
        curve = None
        if wanted.curve:
            curve = _along_curve(diagonals, blocks.queries, self.shape[2], scores.curve)
        return Scores(curve=curve, **found)

    def _launch(self, kernel, choose_blocks, side: str, **arguments) -> None:
        """One program per block of ``side`` and head of a sentence."""
        blocks = choose_blocks(max(self.width, self.values), self.scores.v.dtype)
        length, block = {
            "queries": (self.shape[2], blocks.queries),
            "keys": (self.keys, blocks.keys),
        }[side]
        grid = (triton.cdiv(length, block) * self.shape[0] * self.shape[1],)
        with _on_device_of(self.scores.v):
            kernel[grid](
                **self.inputs,
                **arguments,
                **self.options,
                BLOCK_QUERIES=blocks.queries,
                BLOCK_KEYS=blocks.keys,
                num_warps=blocks.warps,
                num_stages=blocks.stages,
            )


def _forward_blocks(width: int, dtype: torch.dtype) -> Blocks:
    if dtype == torch.float32:
        return Blocks(64, 32, 4, 2) if width <= 64 else Blocks(32, 32, 4, 1)
    if width <= 64:
        return Blocks(64, 64, 4, 2)
    return Blocks(64, 64, 8, 1) if width <= 128 else Blocks(64, 32, 4, 1)


def _backward_blocks(width: int, dtype: torch.dtype) -> Blocks:
    if dtype == torch.float32:
        return Blocks(32, 32, 4, 1) if width <= 128 else Blocks(16, 16, 4, 1)
    if width <= 64:
        return Blocks(64, 64, 4, 2)
    return Blocks(64, 64, 8, 1) if width <= 128 else Blocks(32, 32, 4, 1)


def _precision(device: torch.device) -> str:
    """Triton's name for how float32 is multiplied; tf32x3 is as precise as float32."""
    if device.type != "cuda" or torch.version.hip:
        return "ieee"
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _padded(width: int) -> int:
    """What tiles can be wide."""
    return max(16, triton.next_power_of_2(width))


def _strided(name: str, x: Tensor) -> dict[str, Tensor | int]:
    """``[batch, heads, time, width]`` as the kernels take it: rows' elements side by side."""
    x = x if x.stride(-1) == 1 or x.size(-1) <= 1 else x.contiguous()
    return {name: x, f"{name}_b": x.stride(0), f"{name}_h": x.stride(1), f"{name}_t": x.stride(2)}


def _empty_like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _on_device_of(x: Tensor) -> contextlib.AbstractContextManager:
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def _along_curve(diagonals: Tensor, block: int, queries: int, curve: Tensor) -> Tensor:
    """Gradient of the curve, from the sums of ``backward_by_queries``.

    Rows of ``diagonals`` are of blocks of queries from the last to the first, so that the same
    distance is a block further to the left in every next row.
    """
    sums = diagonals.sum(0)
    if curve.size(0) == 1:
        sums = sums.sum(0, keepdim=True)
    heads, rows, _ = sums.shape
    skewed = F.pad(sums, (0, rows * block)).flatten(1)[:, : -rows * block]
    sums = skewed.reshape(heads, rows, -1).sum(1)
    return sums[:, rows * block - queries :][:, : curve.size(1)]
