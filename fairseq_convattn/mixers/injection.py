"""Convolutions injected into attention: into its projections, or beside its values."""

import torch
from fairseq.utils import get_activation_fn
from torch import Tensor, nn

from ..ops import short_conv
from ..ops.short_convolution.step import step_pays
from .base import State, without_padding
from .config import MixerConfig
from .convolution import convolve
from .short_convolution import convolve_short, convolve_step


def _depthwise_taps(config: MixerConfig) -> nn.Parameter:
    """``[channels, kernel_size]``, initialised as by ``nn.Conv1d``."""
    taps = torch.empty(config.embed_dim, config.projection_taps)
    bound = config.projection_taps**-0.5
    return nn.Parameter(nn.init.uniform_(taps, -bound, bound))


def _depthwise_conv(
    x: Tensor,
    taps: Tensor,
    bias: Tensor,
    config: MixerConfig,
    padding_mask: Tensor | None,
    state: State | None,
    name: str,
) -> Tensor:
    """Convolve every channel of ``x``, ``[time, batch, channels]``, with its own kernel, of
    ``taps``, ``[channels, kernel_size]``; the bias is added to the rounded sum."""
    x = without_padding(x, padding_mask)
    if state is not None and step_pays(x, taps):
        kernels = taps.t().contiguous().unsqueeze(1)
        y = convolve_step(x, kernels, state, name, residual=False)
    else:
        options = {"causal": config.causal, "residual": False}
        y = convolve_short(short_conv, x, (None, taps), state, name, **options)
    return y + bias.to(y.dtype)


class ProjectionConvolution(nn.Module):
    """A projection to queries, keys or values that sees neighbouring positions (Chang et
    al. 2021, section 4).

    With ``config.convolved_heads == "half"`` the second half of the heads is linear. ``forward``
    projects ``x``, ``[time, batch, embed_dim]``, to the same shape; its other arguments:

    Args:
        linear: the pointwise projection, ``embed_dim`` to ``embed_dim``.
        padding_mask: boolean ``[batch, time]``, True at padding.
        state: in decoding, this projection keeps its inputs there under ``name``.
    """

    def __init__(self, config: MixerConfig):
        super().__init__()
        self.config = config
        name = config.projection_activation
        # fairseq's linear one is a lambda, which cannot be pickled
        self.activation = nn.Identity() if name == "linear" else get_activation_fn(name)
        parts = 2 if config.convolved_heads == "half" else 1
        self.heads = config.num_heads // parts
        self.channels = config.embed_dim // parts


class SeparableProjection(ProjectionConvolution):
    """Depthwise convolution over time with a bias -> activation -> linear."""

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        self.taps = _depthwise_taps(config)
        bound = config.projection_taps**-0.5
        self.bias = nn.Parameter(nn.init.uniform_(torch.empty(config.embed_dim), -bound, bound))

    def forward(
        self,
        x: Tensor,
        linear: nn.Module,
        padding_mask: Tensor | None,
        state: State | None,
        name: str,
    ) -> Tensor:
        y = _depthwise_conv(x, self.taps, self.bias, self.config, padding_mask, state, name)
        y = linear(self.activation(y))
        if self.channels == self.config.embed_dim:
            return y
        return torch.cat([y[..., : self.channels], linear(x)[..., self.channels :]], dim=-1)


class LightweightProjection(ProjectionConvolution):
    """Linear -> lightweight convolution, a kernel per head -> activation."""

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        taps = torch.empty(self.heads, 1, config.projection_taps)
        self.kernel = nn.Parameter(nn.init.xavier_uniform_(taps).squeeze(1))

    def kernel_logits(self, y: Tensor) -> Tensor:
        return self.kernel

    def forward(
        self,
        x: Tensor,
        linear: nn.Module,
        padding_mask: Tensor | None,
        state: State | None,
        name: str,
    ) -> Tensor:
        y = linear(x)
        convolved, rest = y[..., : self.channels], y[..., self.channels :]
        logits = self.kernel_logits(convolved)
        convolved = without_padding(convolved, padding_mask)
        norm = {"tap_norm": self.config.tap_norm, "causal": self.config.causal}
        convolved = self.activation(convolve(convolved, logits, None, state, name, **norm))
        return torch.cat([convolved, rest], dim=-1) if rest.size(-1) else convolved


class DynamicProjection(LightweightProjection):
    """Linear -> dynamic convolution, predicted from its own input -> activation."""

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        del self.kernel
        self.kernel_proj = nn.Linear(self.channels, self.heads * config.projection_taps, bias=False)

    def kernel_logits(self, y: Tensor) -> Tensor:
        return self.kernel_proj(y).unflatten(-1, (self.heads, -1))


_PROJECTION_CONVOLUTIONS = {
    "lightweight": LightweightProjection,
    "dynamic": DynamicProjection,
    "separable": SeparableProjection,
}


def projection_convolution(config: MixerConfig, kind: str) -> ProjectionConvolution | None:
    """The convolution of a projection of :data:`.config.PROJECTIONS`; None for ``linear``."""
    return None if kind == "linear" else _PROJECTION_CONVOLUTIONS[kind](config)


class ValueConvolution(nn.Module):
    """A depthwise convolution of the values with a bias, which is added to the output of
    attention (Chang et al. 2021, section 4)."""

    def __init__(self, config: MixerConfig):
        super().__init__()
        self.config = config
        self.taps = _depthwise_taps(config)
        self.bias = nn.Parameter(torch.zeros(config.embed_dim))
        scaled = config.value_conv == "scaled"
        self.scale = nn.Parameter(torch.ones(config.num_heads, 1)) if scaled else None

    def forward(self, v: Tensor, padding_mask: Tensor | None, state: State | None) -> Tensor:
        """``[time, batch, embed_dim]`` from values of that shape."""
        y = _depthwise_conv(v, self.taps, self.bias, self.config, padding_mask, state, "values")
        if self.scale is None:
            return y
        return (y.unflatten(-1, (self.config.num_heads, -1)) * self.scale).flatten(-2)
