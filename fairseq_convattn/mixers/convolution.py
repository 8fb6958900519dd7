"""Lightweight and dynamic convolution sub-layers (Wu et al. 2019, sections 3 to 5)."""

from abc import abstractmethod

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from ..ops import Past, dynamic_conv, lightweight_conv, normalize_taps, taps_inside
from ..ops.convolution.past import Ring
from .base import Sizes, State, TokenMixer, dropout_p, initialized, without_padding
from .config import MixerConfig


def convolve(
    x: Tensor,
    logits: Tensor,
    bias: Tensor | None,
    state: State | None,
    name: str,
    *,
    tap_norm: str,
    causal: bool,
    inside: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Normalise kernels and convolve. The convolution continues from ``state[name]``, a tail or a
    ``Past``, and updates it.

    Args:
        x: ``[time, batch, channels]``.
        logits: kernels before normalisation, ``[heads, kernel_size]`` or ``[time, batch, heads,
            kernel_size]``.
        inside: which taps fall on real tokens, ``[time, batch, 1, kernel_size]``; None: all count.
        dropout_p: probability of dropping a tap, independently at every position.
    """
    softmax = tap_norm == "softmax" and inside is None
    taps = logits if softmax else normalize_taps(logits, tap_norm, inside)
    if taps.dim() == 2 and dropout_p > 0:
        taps = taps.expand(*x.shape[:2], -1, -1)
    convolution = lightweight_conv if taps.dim() == 2 else dynamic_conv
    options = {"causal": causal, "softmax": softmax, "dropout_p": dropout_p}
    if state is None:
        return convolution(x, taps, bias, **options)
    past = state[name] if name in state else Past.none(x.size(1), x)
    y, state[name] = convolution(x, taps, bias, tail=past, **options)
    return y


class ConvolutionMixer(TokenMixer):
    """Input dropout -> linear (and GLU) -> zero at padding -> convolution -> linear.

    Subclasses define the kernels. In the 2019 code these steps are ``linear1``, ``conv`` and
    ``linear2`` of a layer.
    """

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        self.conv_dim = config.conv_dim or config.embed_dim
        name = type(self).__name__
        self.input_dropout_module = FairseqDropout(config.input_dropout, module_name=name)
        self.tap_dropout_module = FairseqDropout(config.weight_dropout, module_name=name)
        self.in_proj = self._linear(self.embed_dim, self.conv_dim * (2 if config.glu else 1))
        self.out_proj = self._linear(self.conv_dim, self.embed_dim)
        self.bias = nn.Parameter(torch.zeros(self.conv_dim)) if config.conv_bias else None

    def _linear(self, inputs: int, outputs: int) -> nn.Linear:
        return initialized(nn.Linear(inputs, outputs), self.config.initialization)

    @abstractmethod
    def kernel_logits(self, x: Tensor) -> Tensor:
        """Kernels before normalisation, from the tensor that is convolved.

        Args:
            x: ``[time, batch, conv_dim]``.

        Returns:
            ``[heads, kernel_size]`` or ``[time, batch, heads, kernel_size]``.
        """

    def mix(self, x: Tensor, padding_mask: Tensor | None, state: State | None) -> Tensor:
        x = self.in_proj(self.input_dropout_module(x))
        if self.config.glu:
            x = F.glu(x, dim=-1)
        x = without_padding(x, padding_mask)
        return self.out_proj(self._convolve(x, padding_mask, state))

    def _convolve(self, x: Tensor, padding_mask: Tensor | None, state: State | None) -> Tensor:
        inside = None
        if self.config.renorm_padding:
            inside = self._taps_inside(x, padding_mask, state)
        return convolve(
            x,
            self.kernel_logits(x),
            self.bias,
            state,
            "past",
            tap_norm=self.config.tap_norm,
            causal=self.config.causal,
            inside=inside,
            dropout_p=dropout_p(self.tap_dropout_module),
        )

    def _taps_inside(self, x: Tensor, padding_mask: Tensor | None, state: State | None) -> Tensor:
        """Which taps fall on real tokens, ``[time, batch, 1, kernel_size]``; ``state`` keeps
        which inputs were real."""
        real = torch.ones(x.shape[1::-1], dtype=torch.bool, device=x.device)
        if padding_mask is not None:
            real = ~padding_mask
        kernel_size = self.config.kernel_size
        if state is not None:
            real = torch.cat([state.get("prev_real", real[:, :0]), real], dim=1)
            state["prev_real"] = real[:, max(0, real.size(1) - kernel_size + 1) :]
        return taps_inside(real.t(), x.size(0), kernel_size, causal=self.config.causal)

    def padded(self, state: State, sizes: Sizes) -> State:
        """``state`` in its final size, as if only zeros had come before, for up to so many rows."""
        size = self.config.kernel_size
        padded = {"past": Ring.of(state["past"], size, sizes.rows)}
        if "prev_real" in state:
            real = state["prev_real"]
            before = size - 1 - real.size(1)
            padded["prev_real"] = F.pad(real, (before, 0, 0, sizes.rows - len(real)))
        return padded

    def unpadded(self, state: State, sizes: Sizes) -> State:
        """The rows of ``sizes`` in what :meth:`padded` has begun."""
        unpadded = {"past": state["past"].past(sizes.rows)}
        if "prev_real" in state:
            unpadded["prev_real"] = state["prev_real"][: sizes.rows].clone()
        return unpadded


class LightweightConvolution(ConvolutionMixer):
    """One kernel per head for all positions (Wu et al. 2019, section 3).

    With DropConnect the kernel is dropped independently at every position, as the
    paper drops entries of the banded matrix.
    """

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        kernel = torch.empty(config.num_heads, 1, config.kernel_size)
        self.kernel = nn.Parameter(nn.init.xavier_uniform_(kernel).squeeze(1))

    def kernel_logits(self, x: Tensor) -> Tensor:
        return self.kernel


class DynamicConvolution(ConvolutionMixer):
    """A kernel predicted at every position from that position (Wu et al. 2019, section 4)."""

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        taps = config.num_heads * config.kernel_size
        self.kernel_proj = nn.Linear(self.conv_dim, taps, bias=False)

    def kernel_logits(self, x: Tensor) -> Tensor:
        return self.kernel_proj(x).unflatten(-1, (self.num_heads, self.config.kernel_size))
