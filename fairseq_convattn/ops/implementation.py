"""Which implementation of the convolutions is the default, and where operators can be used."""

import contextlib
import functools
import importlib.util
import os
from collections.abc import Iterator

import torch

TRITON = "triton"  # its kernels are imported when they are used

_NAMES = ("reference", "banded", "native", TRITON)


def check(condition: bool, message: str) -> None:
    """Raise ValueError with the message where the condition does not hold."""
    if not condition:
        raise ValueError(message)


def checked_name(name: str | None, source: str = "") -> str | None:
    """The name of an implementation of the convolutions; None for the fastest.

    Raises:
        ValueError: there is none of this name.
    """
    message = f"{source}unknown impl {name!r}: choose from {', '.join(_NAMES)}"
    check(name in (None, *_NAMES), message)
    return name


_forced = checked_name(
    os.environ.get("CONVATTN_IMPL") or None, "CONVATTN_IMPL in the environment: "
)


def forced_implementation() -> str | None:
    """The name in ``CONVATTN_IMPL`` or of :func:`use_implementation`; None: the fastest one
    that can take the inputs."""
    return _forced


@contextlib.contextmanager
def use_implementation(name: str | None) -> Iterator[None]:
    """Within the block every convolution, in every thread, uses this implementation or raises
    ValueError. Attention is not affected.

    Args:
        name: as ``impl`` of :func:`lightweight_conv`; None for the fastest.

    Raises:
        ValueError: there is none of this name.
    """
    global _forced
    before, _forced = _forced, checked_name(name)
    try:
        yield
    finally:
        _forced = before


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def unfit_for_operators() -> str:
    """Why PyTorch's operators of this package cannot be called here; empty when they can."""
    in_forward_mode = torch.autograd.forward_ad._current_level >= 0
    in_torch_func = torch._C._functorch.maybe_current_level() is not None
    if in_forward_mode or in_torch_func or torch.jit.is_tracing():
        return "does not support torch.jit.trace, torch.func or forward-mode differentiation"
    if torch.compiler.is_exporting():
        return "cannot be exported: use impl='reference'"
    return ""
