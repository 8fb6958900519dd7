"""Which implementation computes an operation."""

import warnings
from types import SimpleNamespace

import pytest

from fairseq_convattn.ops import implementation
from fairseq_convattn.ops.implementation import Implementation, choose


@pytest.fixture
def on_gpu(monkeypatch):
    """Chooses for an input that only seems to be on a GPU, as there need not be one."""
    implementation._warn.cache_clear()
    x = SimpleNamespace(device=SimpleNamespace(type="cuda"))

    def chosen(reason, has_triton=True):
        monkeypatch.setattr(implementation, "has_triton", lambda: has_triton)
        kernels = Implementation("kernels", lambda _: reason)
        return choose(None, {"tiled": Implementation("PyTorch")}, lambda: kernels, (x,), "tiled")

    yield chosen
    implementation._warn.cache_clear()


def test_a_gpu_that_computes_in_pytorch_says_why_once(on_gpu):
    with pytest.warns(UserWarning, match="its Triton kernel takes at most 16 taps, not 17"):
        assert on_gpu("takes at most 16 taps, not 17") == "PyTorch"
    with pytest.warns(UserWarning, match="needs Triton"):
        assert on_gpu("", has_triton=False) == "PyTorch"
    with warnings.catch_warnings(action="error"):
        assert on_gpu("takes at most 16 taps, not 17") == "PyTorch"
        assert on_gpu("") == "kernels"
