"""Which implementation of an operation runs, and where operators can be used."""

import contextlib
import functools
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from .native import NOT_BUILT, is_built

_SLOW = "an operation of fairseq_convattn runs in PyTorch, several times slower: its"
NAMES = ("reference", "tiled", "native", "triton")


class Implementation(NamedTuple):
    """One way to compute an operation.

    Attributes:
        run: computes it.
        unfit: says why ``run`` cannot take such inputs; empty when it can.
    """

    run: Callable[..., Tensor]
    unfit: Callable[..., str] = lambda *inputs: ""


def check(condition: bool, message: str) -> None:
    """Raise ValueError with the message where the condition does not hold."""
    if not condition:
        raise ValueError(message)


def check_floating(name: str, x: Tensor) -> None:
    """Raise ValueError unless ``x`` is of floating point."""
    check(x.is_floating_point(), f"{name} must be of floating point, not {x.dtype}")


def checked_name(name: str | None, source: str = "") -> str | None:
    """The name of an implementation; None for the fastest.

    Raises:
        ValueError: there is none of this name.
    """
    message = f"{source}unknown impl {name!r}: choose from {', '.join(NAMES)}"
    check(name in (None, *NAMES), message)
    return name


class _Request:
    """What asks for an implementation; equal to itself alone."""

    def __init__(self, name: str | None):
        self.name = name


_OF_THE_ENVIRONMENT = checked_name(
    os.environ.get("CONVATTN_IMPL") or None, "CONVATTN_IMPL in the environment: "
)
# the environment and each open block of use_implementation; the last one counts
_requests = [_Request(_OF_THE_ENVIRONMENT)]


@contextlib.contextmanager
def use_implementation(name: str | None) -> Iterator[None]:
    """Within the block every operation of this package, in every thread, uses this implementation
    or raises ValueError. Of several open blocks the one that was entered last counts.

    Args:
        name: as ``impl`` of :func:`lightweight_conv`; None for the fastest.

    Raises:
        ValueError: there is none of this name.
    """
    request = _Request(checked_name(name))
    _requests.append(request)
    try:
        yield
    finally:
        _requests.remove(request)


def requested(name: str | None) -> str | None:
    """The implementation that the caller, the environment or :func:`use_implementation` asks for;
    None for the fastest.

    Raises:
        ValueError: there is none of this name.
    """
    return checked_name(name or _requests[-1].name)


def without_autocast(device: str) -> contextlib.AbstractContextManager:
    """Autocast would compute an operation's products and sums in half precision."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return contextlib.nullcontext()


def choose(
    name: str | None,
    implementations: Mapping[str, Implementation],
    triton: Callable[[], Implementation],
    inputs: tuple[Tensor, ...],
    otherwise: str,
    native_pays: bool = True,
) -> Callable[..., Tensor]:
    """What computes an operation.

    Args:
        name: that of the implementation; None: what ``CONVATTN_IMPL`` or
            :func:`use_implementation` names, else the fastest that can take the inputs.
        implementations: all but Triton's, by name.
        triton: imports and returns Triton's.
        inputs: what ``Implementation.unfit`` takes.
        otherwise: the fastest where neither Triton nor compiled kernels serve.
        native_pays: whether compiled kernels are faster than that.

    Raises:
        ValueError: there is none of this name, or it cannot take the inputs.
    """
    name = requested(name)
    if name is not None:
        check(name != "triton" or has_triton(), "impl='triton' needs Triton: pip install triton")
        chosen = triton() if name == "triton" else implementations[name]
        unfit = chosen.unfit(*inputs)
        check(not unfit, f"impl={name!r} {unfit}")
        return chosen.run
    device = inputs[0].device.type
    if device == "cuda":
        kernels = triton() if has_triton() else None
        unfit = kernels.unfit(*inputs) if kernels else "needs Triton: pip install triton"
        if not unfit:
            return kernels.run
        if not unfit_for_operators():
            warn_once(f"{_SLOW} Triton kernel {unfit}")
    if device == "cpu" and native_pays and not implementations["native"].unfit(*inputs):
        return implementations["native"].run
    if device == "cpu" and not is_built() and not unfit_for_operators():
        warn_once(f"{_SLOW} C kernel {NOT_BUILT}")
    return implementations[otherwise].run


def warn_once(message: str) -> None:
    """Warn once per process; a compiled function warns when it is traced."""
    _warn(message)


# what torch.compiler.assume_constant_result does, without importing the compiler
warn_once._dynamo_marked_constant = True


@functools.cache
def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)


_found_triton = importlib.util.find_spec("triton") is not None


def has_triton() -> bool:
    """Whether Triton is installed."""
    return _found_triton


def _in_torch_func() -> bool:
    return torch._C._functorch.maybe_current_level() is not None


# as above: Dynamo traces no call that returns a number
_in_torch_func._dynamo_marked_constant = True


def unfit_for_operators() -> str:
    """Why PyTorch's operators of this package cannot be called here; empty when they can."""
    in_forward_mode = torch.autograd.forward_ad._current_level >= 0
    if in_forward_mode or _in_torch_func() or torch.jit.is_tracing():
        return "does not support torch.jit.trace, torch.func or forward-mode differentiation"
    if torch.compiler._is_exporting_flag:  # in torch 2.11 compiled code, is_exporting() is True
        return "cannot be exported: use impl='reference'"
    return ""
