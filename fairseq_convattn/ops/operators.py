"""Registers operations as PyTorch operators in ``torch.ops.convattn``, for torch.compile, too."""

import functools
from collections.abc import Callable

import torch

_library = torch.library.Library("convattn", "DEF")


def define(
    name: str, schema: str, compute: Callable, fake: Callable, devices: tuple[str, ...] = ("CPU",)
) -> None:
    """Register ``convattn::name``.

    Args:
        schema: its arguments and results, as PyTorch writes them.
        compute: what it does.
        fake: returns results of the same shapes and dtypes without contents.
        devices: PyTorch's dispatch keys of those that it is for.
    """
    _library.define(name + schema)
    for device in devices:
        _library.impl(name, compute, device)
    torch.library.register_fake(f"convattn::{name}", fake)


def differentiate(name: str, save: Callable, gradients: Callable) -> Callable:
    """Register the derivatives of ``convattn::name``, computed by ``convattn::name_backward``,
    which itself cannot be differentiated.

    Args:
        save, gradients: as ``setup_context`` and ``backward`` of torch.library.register_autograd;
            ``gradients`` gets the operator ``name_backward`` first.

    Returns:
        The operator ``name``.
    """
    operator, of_backward = (getattr(torch.ops.convattn, n) for n in (name, f"{name}_backward"))

    def refuse(ctx, *grads):
        instead = "use impl='reference', or set CONVATTN_IMPL=reference"
        raise RuntimeError(f"convattn::{name} has no second derivatives: {instead}")

    gradients = functools.partial(gradients, of_backward)
    torch.library.register_autograd(f"convattn::{name}", gradients, setup_context=save)
    torch.library.register_autograd(f"convattn::{name}_backward", refuse)
    return operator
