"""Registers operations as PyTorch operators in ``torch.ops.convattn``, for torch.compile, too."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_library = torch.library.Library("convattn", "DEF")
_TENSORS = (Tensor, nn.Parameter)


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
        The operator ``name``; for plain tensors outside torch.compile a shorter way to the same
        functions, since PyTorch's own takes as long as several small kernels.
    """
    operation = _Operation(name, forward, backward, inputs.count("Tensor"), differentiable, kept)
    define(name, f"({inputs}) -> {results}", forward, fake, devices)
    results_kept = "".join(f"Tensor result{number}, " for number in kept)
    of_backward = f"(Tensor grad, {results_kept}{inputs}, bool[] wanted)"
    # several tensors: vmap's fallback batches no list
    gradients = ", ".join(["Tensor"] * differentiable)
    passes = operation.compute_backward, operation.fake_backward
    define(f"{name}_backward", f"{of_backward} -> ({gradients})", *passes, devices)
    operator = getattr(torch.ops.convattn, name)
    operation.backward_operator = getattr(torch.ops.convattn, f"{name}_backward")
    torch.library.register_autograd(
        f"convattn::{name}", operation.differentiate, setup_context=operation.save
    )
    torch.library.register_autograd(f"convattn::{name}_backward", operation.refuse)
    return _shorter(operation, operator, {device.lower() for device in devices})


@dataclass
class _Operation:
    """What PyTorch calls to differentiate an operator. For the fields see :func:`register`;
    ``tensors`` counts the arguments that are tensors."""

    name: str
    forward: Callable
    backward: Callable
    tensors: int
    differentiable: int
    kept: tuple[int, ...]
    backward_operator: Callable | None = None

    def compute_backward(self, grad: Tensor, *rest) -> tuple[Tensor, ...]:
        return tuple(grad.new_empty(0) if x is None else x for x in self.backward(grad, *rest))

    def fake_backward(self, grad: Tensor, *rest) -> tuple[Tensor, ...]:
        *arguments, wanted = rest[len(self.kept) :]
        return tuple(
            x.new_empty(x.shape) if need else grad.new_empty(0)
            for x, need in zip(arguments[: self.differentiable], wanted, strict=True)
        )

    def save(self, ctx, inputs, output) -> None:
        output = output if isinstance(output, tuple) else (output,)
        kept = (output[number] for number in self.kept)
        ctx.save_for_backward(*kept, *inputs[: self.tensors])
        ctx.others = inputs[self.tensors :]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    def differentiate(self, ctx, grad: Tensor | None, *_) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        return self.gradients(ctx, (grad, *ctx.saved_tensors), self.backward_operator)

    def gradients(
        self, ctx, given: tuple[Tensor | None, ...], backward: Callable
    ) -> tuple[Tensor | None, ...]:
        """Of all arguments, None for those that have none or need none."""
        wanted = list(ctx.needs_input_grad[: self.differentiable])
        found = backward(*given, *ctx.others, wanted)
        found = (x if need else None for x, need in zip(found, wanted, strict=True))
        return *found, *(None,) * (len(ctx.needs_input_grad) - self.differentiable)

    def refuse(self, ctx, *grads):
        instead = "use impl='reference', or set CONVATTN_IMPL=reference"
        raise RuntimeError(f"convattn::{self.name} has no second derivatives: {instead}")


def _shorter(operation: _Operation, operator: Callable, device_types: set[str]) -> Callable:
    """The operator, but plain tensors outside torch.compile go past PyTorch's dispatch."""

    def forward(ctx, *given):
        output = operation.forward(*given)
        operation.save(ctx, given, output)
        return output

    def backward(ctx, grad: Tensor | None, *_) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        given = grad, *ctx.saved_tensors  # activation checkpointing lets them be read once
        # a gradient that is to be differentiated itself is the operator's to refuse
        seen = torch.compiler.is_compiling() or torch.is_grad_enabled()
        plain = not seen and are_plain(given, device_types)
        passed = operation.backward if plain else operation.backward_operator
        return operation.gradients(ctx, given, passed)

    passes = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    eager = type(f"convattn::{operation.name}", (torch.autograd.Function,), passes)
    tensors = operation.tensors

    def run(*given):
        if torch.compiler.is_compiling() or not are_plain(given[:tensors], device_types):
            return operator(*given)
        # numbers of numpy become Python's, as in the operator
        given = (
            *given[:tensors],
            *(x.item() if hasattr(x, "item") else x for x in given[tensors:]),
        )
        if torch.is_grad_enabled() and any(x.requires_grad for x in given if type(x) in _TENSORS):
            return eager.apply(*given)
        return operation.forward(*given)

    return run


def are_plain(tensors: Iterable[Tensor | None], device_types: set[str]) -> bool:
    """Whether the tensors are what they seem, on such devices, and no mode of PyTorch is to see
    what is done with them. Subclasses are not, nor tensors that are negated, sparse, batched or
    fake."""
    modes = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
    return not modes and all(x is None or _is_plain(x, device_types) for x in tensors)


def _is_plain(x: Tensor, device_types: set[str]) -> bool:
    device_type = x.device.type
    if type(x) not in _TENSORS or device_type not in device_types:
        return False
    return torch._C._dispatch_keys(x).raw_repr() in _plain_keys(device_type)


@functools.cache
def _plain_keys(device_type: str) -> set[int]:
    """The dispatch keys that plain tensors have, made in inference mode or not."""
    found = set()
    for inference in (False, True):
        with torch.inference_mode(inference):
            plain = torch.empty(0, device=device_type)
            found.add(torch._C._dispatch_keys(plain).raw_repr())
    return found
