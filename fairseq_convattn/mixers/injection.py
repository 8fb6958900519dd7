"""Convolutions injected into attention: into its projections, or beside its values."""

from abc import ABC, abstractmethod

import torch
from fairseq.utils import get_activation_fn
from torch import Tensor, nn

from ..ops import dynamic_conv, lightweight_conv, normalize_taps
from .config import PROJECTIONS as PROJECTIONS
from .config import VALUE_CONVOLUTIONS as VALUE_CONVOLUTIONS
from .config import MixerConfig


def _convolve(
    x: Tensor,
    taps: Tensor,
    config: MixerConfig,
    padding_mask: Tensor | None,
    state: dict[str, Tensor | None] | None,
    name: str,
    impl: str | None = None,
) -> Tensor:
    """Convolve ``x``, ``[time, batch, channels]``, with zeros at padding. ``state[name]``,
    ``[batch, positions, channels]``, has the inputs before and gets those for what follows.
    """
    if padding_mask is not None:
        x = x.masked_fill(padding_mask.t().unsqueeze(-1), 0)
    convolution = lightweight_conv if taps.dim() == 2 else dynamic_conv
    if state is None:
        return convolution(x, taps, causal=config.causal, impl=impl)
    tail = state[name].transpose(0, 1) if name in state else x[:0]
    y, tail = convolution(x, taps, causal=True, tail=tail, impl=impl)
    state[name] = tail.transpose(0, 1)
    return y


def _depthwise_taps(config: MixerConfig) -> nn.Parameter:
    taps = torch.empty(config.embed_dim, config.projection_kernel_size)
    bound = config.projection_kernel_size**-0.5
    return nn.Parameter(nn.init.uniform_(taps, -bound, bound))


class ProjectionConvolution(nn.Module, ABC):
    """A projection to queries, keys or values that sees neighbouring positions (Chang et
    al. 2021, section 4). With ``config.convolved_heads == "half"`` the second half of the
    heads is projected linearly.
    """

    def __init__(self, config: MixerConfig):
        super().__init__()
        self.config = config
        self.activation = get_activation_fn(config.projection_activation)
        parts = 2 if config.convolved_heads == "half" else 1
        self.heads = config.num_heads // parts
        self.channels = config.embed_dim // parts

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        linear: nn.Module,
        padding_mask: Tensor | None,
        state: dict[str, Tensor | None] | None,
        name: str,
    ) -> Tensor:
        """Project ``x``, ``[time, batch, embed_dim]``.

        Args:
            linear: the pointwise projection, ``embed_dim`` to ``embed_dim``.
            padding_mask: boolean ``[batch, time]``, True at padding.
            state: in decoding, where this projection keeps its inputs under ``name``.

        Returns:
            ``[time, batch, embed_dim]``.
        """


class SeparableProjection(ProjectionConvolution):
    """Depthwise convolution over time -> activation -> linear."""

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        self.taps = _depthwise_taps(config)

    def forward(self, x, linear, padding_mask, state, name):
        y = _convolve(x, self.taps, self.config, padding_mask, state, name, impl="reference")
        y = linear(self.activation(y))
        if self.channels == self.config.embed_dim:
            return y
        return torch.cat([y[..., : self.channels], linear(x)[..., self.channels :]], dim=-1)


class LightweightProjection(ProjectionConvolution):
    """Linear -> lightweight convolution, a kernel per head -> activation."""

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        taps = torch.empty(self.heads, 1, config.projection_kernel_size)
        self.kernel = nn.Parameter(nn.init.xavier_uniform_(taps).squeeze(1))

    def kernel_logits(self, y: Tensor) -> Tensor:
        return self.kernel

    def forward(self, x, linear, padding_mask, state, name):
        y = linear(x)
        convolved, rest = y[..., : self.channels], y[..., self.channels :]
        taps = normalize_taps(self.kernel_logits(convolved), self.config.tap_norm)
        convolved = _convolve(convolved, taps, self.config, padding_mask, state, name)
        return torch.cat([self.activation(convolved), rest], dim=-1)


class DynamicProjection(LightweightProjection):
    """Linear -> dynamic convolution, predicted from its own input -> activation."""

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        del self.kernel
        self.kernel_proj = nn.Linear(
            self.channels, self.heads * config.projection_kernel_size, bias=False
        )

    def kernel_logits(self, y: Tensor) -> Tensor:
        return self.kernel_proj(y).unflatten(-1, (self.heads, -1))


_PROJECTION_CONVOLUTIONS = {
    "lightweight": LightweightProjection,
    "dynamic": DynamicProjection,
    "separable": SeparableProjection,
}


def projection_convolution(config: MixerConfig, kind: str) -> ProjectionConvolution | None:
    """The convolution of a projection of :data:`PROJECTIONS`; None for ``linear``."""
    return None if kind == "linear" else _PROJECTION_CONVOLUTIONS[kind](config)


class ValueConvolution(nn.Module):
    """A depthwise convolution of the values with a bias, to be added to attention's output
    (Chang et al. 2021, section 4).
    """

    def __init__(self, config: MixerConfig):
        super().__init__()
        self.config = config
        self.taps = _depthwise_taps(config)
        self.bias = nn.Parameter(torch.zeros(config.embed_dim))
        scaled = config.value_conv == "scaled"
        self.scale = nn.Parameter(torch.ones(config.num_heads, 1)) if scaled else None

    def forward(
        self, v: Tensor, padding_mask: Tensor | None, state: dict[str, Tensor | None] | None
    ) -> Tensor:
        """``[time, batch, embed_dim]`` from values of that shape."""
        y = _convolve(v, self.taps, self.config, padding_mask, state, "values", "reference")
        y = y + self.bias
        if self.scale is None:
            return y
        return (y.unflatten(-1, (self.config.num_heads, -1)) * self.scale).flatten(-2)
