"""Registers operations as PyTorch operators in ``torch.ops.convattn``, for torch.compile, too."""

from collections.abc import Callable

import torch
from torch import Tensor

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


def register(
    name: str,
    inputs: str,
    results: str,
    forward: Callable,
    backward: Callable,
    fake: Callable,
    devices: tuple[str, ...],
    *,
    differentiable: int,
    kept: tuple[int, ...] = (),
) -> Callable:
    """Register ``convattn::name`` with its derivatives, computed by ``convattn::name_backward``,
    which itself cannot be differentiated.

    Args:
        inputs: its arguments as PyTorch writes them: tensors first, and first of all those that
            have derivatives, ``differentiable`` of them.
        results: its results, of which the first one has derivatives.
        forward: from the arguments returns the results.
        backward: from the first result's gradient, the results ``kept``, the arguments and a flag
            for each differentiable one returns the wanted gradients, None for others.
        fake: as ``forward``, without contents.
        devices: PyTorch's dispatch keys of those that it is for.
        kept: numbers of results.

    Returns:
        The operator ``name``.
    """
    tensors = inputs.count("Tensor")

    def compute_backward(grad: Tensor, *rest) -> list[Tensor]:
        return [grad.new_empty(0) if x is None else x for x in backward(grad, *rest)]

    def fake_backward(grad: Tensor, *rest) -> list[Tensor]:
        *arguments, wanted = rest[len(kept) :]
        return [
            x.new_empty(x.shape) if need else grad.new_empty(0)
            for x, need in zip(arguments[:differentiable], wanted, strict=True)
        ]

    results_kept = "".join(f"Tensor result{number}, " for number in kept)
    of_backward = f"(Tensor grad, {results_kept}{inputs}, bool[] wanted) -> Tensor[]"
    define(name, f"({inputs}) -> {results}", forward, fake, devices)
    define(f"{name}_backward", of_backward, compute_backward, fake_backward, devices)
    operator, backward_operator = (
        getattr(torch.ops.convattn, n) for n in (name, f"{name}_backward")
    )

    def save(ctx, inputs, output) -> None:
        output = output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*(output[number] for number in kept), *inputs[:tensors])
        ctx.others = inputs[tensors:]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    def differentiate(ctx, grad: Tensor | None, *_) -> tuple[Tensor | None, ...]:
        nothing = (None,) * len(ctx.needs_input_grad)
        if grad is None:
            return nothing
        wanted = list(ctx.needs_input_grad[:differentiable])
        found = backward_operator(grad, *ctx.saved_tensors, *ctx.others, wanted)
        found = (x if need else None for x, need in zip(found, wanted, strict=True))
        return *found, *nothing[differentiable:]

    def refuse(ctx, *grads):
        instead = "use impl='reference', or set CONVATTN_IMPL=reference"
        raise RuntimeError(f"convattn::{name} has no second derivatives: {instead}")

    torch.library.register_autograd(f"convattn::{name}", differentiate, setup_context=save)
    torch.library.register_autograd(f"convattn::{name}_backward", refuse)
    return operator
