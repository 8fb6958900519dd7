"""What the tests of every operation's kernels share."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from fairseq_convattn.ops.native import is_built, use_instructions

needs_kernels = pytest.mark.skipif(
    not is_built(), reason="the kernels were not compiled: no C compiler at installation"
)
NATIVE = pytest.param("native", marks=needs_kernels)


@contextlib.contextmanager
def kernels_for(instructions: str) -> Iterator[None]:
    """Compiled kernels have these instructions; skips the test where the machine has not."""
    try:
        if not use_instructions(instructions):
            pytest.skip(f"this machine has no {instructions}")
        yield
    finally:
        use_instructions(None)


def with_threads(counts: Sequence[int], compute: Callable[[], tuple]) -> list[tuple]:
    """What is computed with each number of threads."""
    before, results = torch.get_num_threads(), []
    try:
        for count in counts:
            torch.set_num_threads(count)
            results.append(compute())
    finally:
        torch.set_num_threads(before)
    return results


def with_gradients(
    function: Callable[..., Tensor], tensors: Sequence[Tensor], grad: Tensor, *arguments, **options
) -> tuple[Tensor, ...]:
    """The function's output, and its gradients."""
    tensors = [t.detach().requires_grad_() for t in tensors]
    y = function(*tensors, *arguments, **options)
    return y.detach(), *torch.autograd.grad(y, tensors, grad.to(y.dtype))


def assert_equal(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Bit for bit."""
    assert all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))
