"""Low-rank short convolutions by compiled kernels, ``native/short_convolution.c``."""

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import native
from ..implementation import unfit_for_operators
from .operators import register

DTYPES = (torch.float32, torch.bfloat16)
VECTOR = 16  # floats of the widest
# Sentences share a gradient of u until they have so many tokens, unless there are fewer pieces.
TOKENS, PIECES = 512, 64


class _Sequence(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("time_stride", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
    ]


class _Problem(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_int64) for n in ("time", "inputs", "batch", "channels", "ranks", "taps")),
        *((n, ctypes.c_int64) for n in ("left", "sentences", "own", "half", "stride", "ones")),
        *((n, _Sequence) for n in ("x", "y", "grad", "grad_x")),
        *((n, ctypes.c_void_p) for n in ("z", "u", "rank_pairs", "channel_pairs")),
        *((n, ctypes.c_void_p) for n in ("grad_z", "grad_u")),
    ]


_library = native.library


def unfit(*tensors: Tensor) -> str:
    """Why the kernels cannot take such inputs; empty when they can."""
    if any(x.device.type != "cpu" for x in tensors):
        return "is for tensors on the CPU"
    if any(x.dtype not in DTYPES for x in tensors):
        return f"takes float32 and bfloat16, not {', '.join(str(x.dtype) for x in tensors)}"
    return unfit_for_operators() if native.is_built() else native.NOT_BUILT


def _sequence(x: Tensor) -> _Sequence:
    return _Sequence(x.data_ptr(), x.stride(0), x.stride(1))


def _in_panels(up: Tensor, whole: bool) -> Tensor:
    """``[panels, taps, ranks, channels of a panel]``, channels with zeros at the end; ranks, too,
    if they are to be ``whole`` vectors."""
    panel = _library.convattn_panel_of_short_convolution()
    ranks = -up.size(0) % VECTOR if whole else 0
    padded = F.pad(up.float(), (0, -up.size(2) % panel, 0, 0, 0, ranks))
    return padded.unflatten(2, (-1, panel)).permute(2, 1, 0, 3).contiguous()


def _in_pairs(u: Tensor, x: Tensor, z: Tensor, up: Tensor) -> tuple[Tensor, Tensor] | None:
    """``[panels, taps, ranks / 2, channels, 2]`` and ``[panels, taps, channels / 2, ranks, 2]`` of
    panels, if AMX is to multiply: all is bfloat16, and there are ranks, not a static kernel."""
    exact = {x.dtype, z.dtype, up.dtype} == {torch.bfloat16}
    if native.instructions() != "amx" or not exact or up.size(0) == 1:
        return None
    half = u.bfloat16()
    ranks = half.unflatten(2, (-1, 2)).transpose(3, 4).contiguous()
    channels = half.unflatten(3, (-1, 2)).movedim(2, 3).contiguous()
    return ranks, channels


def _problem(
    x: Tensor,
    shape: torch.Size,
    ranks: Tensor | None,
    u: Tensor,
    pairs: tuple[Tensor, Tensor] | None,
    left: int,
    own: int,
) -> _Problem:
    """
    Args:
        shape: that of z.
        ranks: z in float32; None: ones.
    """
    problem = _Problem(
        time=shape[0],
        inputs=x.size(0),
        batch=x.size(1),
        channels=x.size(2),
        ranks=shape[2],
        taps=u.size(1),
        left=left,
        sentences=1,
        own=own,
        half=x.dtype == torch.bfloat16,
        stride=u.size(2),
        ones=ranks is None,
        x=_sequence(x),
        z=None if ranks is None else ranks.data_ptr(),
        u=u.data_ptr(),
    )
    if pairs is not None:
        problem.rank_pairs, problem.channel_pairs = (t.data_ptr() for t in pairs)
    return problem


def _run(problem: _Problem, backward: bool) -> None:
    native.run_convolution(_library.convattn_short_convolve, problem, backward=backward)


def _are_ones(z: Tensor) -> bool:
    """Whether z is a single one that repeats, as where kernels are static."""
    repeats = all(size == 1 or not step for size, step in zip(z.shape, z.stride(), strict=True))
    return repeats and z.numel() > 0 and z.size(2) == 1 and z[0, 0, 0].item() == 1


def _forward(x: Tensor, z: Tensor, up: Tensor, left: int, own: int) -> Tensor:
    u = _in_panels(up, whole=up.size(0) > 1)
    pairs = _in_pairs(u, x, z, up)
    x, ranks = native.dense(x), None if _are_ones(z) else z.float().contiguous()
    y = x.new_empty(z.size(0), *x.shape[1:])
    problem = _problem(x, z.shape, ranks, u, pairs, left, own)
    problem.y = _sequence(y)
    _run(problem, backward=False)
    return y


def _backward(
    grad: Tensor, x: Tensor, z: Tensor, up: Tensor, left: int, own: int, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    u = _in_panels(up, whole=up.size(0) > 1 or wanted[1])
    pairs = _in_pairs(u, x, z, up)
    grad, x = native.dense(grad), native.dense(x)
    ranks = None if not wanted[1] and _are_ones(z) else z.float().contiguous()
    problem = _problem(x, z.shape, ranks, u, pairs, left, own)
    problem.grad = _sequence(grad)
    grad_x = grad_z = grad_u = None
    if wanted[0]:
        grad_x = x.new_empty(x.shape)
        problem.grad_x = _sequence(grad_x)
    if wanted[1]:
        grad_z = u.new_empty(u.size(0), *z.shape[:2], u.size(2))
        problem.grad_z = grad_z.data_ptr()
    if wanted[2]:
        time, batch = z.shape[:2]
        problem.sentences = max(1, min(-(-TOKENS // time), -(-batch // PIECES)))
        grad_u = u.new_empty(-(-batch // problem.sentences), *u.shape)
        problem.grad_u = grad_u.data_ptr()
    _run(problem, backward=True)
    if wanted[1]:
        grad_z = grad_z.sum(0)[..., : z.size(2)].to(z.dtype).contiguous()
    if wanted[2]:
        grad_u = grad_u.sum(0).permute(2, 1, 0, 3).flatten(2)
        grad_u = grad_u[: up.size(0), :, : up.size(2)].to(up.dtype).contiguous()
    return grad_x, grad_z, grad_u


convolve = register("short_convolve", _forward, _backward, DTYPES, ("CPU",))
