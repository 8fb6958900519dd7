"""Dynamic short convolutions of layers with attention (Sieberling et al. 2026)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import low_rank_short_conv, short_conv
from ..ops.short_convolution.step import step, step_pays
from .base import State, without_padding
from .config import MixerConfig


def convolve_short(
    convolution: Callable,
    x: Tensor,
    kernels: tuple[Tensor | None, ...],
    state: State | None,
    name: str,
    **options: bool,
) -> Tensor:
    """``convolution`` continued from ``state[name]``, ``[batch, n, channels]``, which it updates.

    Args:
        convolution: :func:`short_conv` or :func:`low_rank_short_conv`.
        x: ``[time, batch, channels]``.
        kernels: the convolution's next arguments.
        options: its keyword arguments.
    """
    if state is None:
        return convolution(x, *kernels, **options)
    y, tail = convolution(x, *kernels, tail=_tail(x, state, name), **options)
    state[name] = tail.transpose(0, 1)
    return y


def convolve_step(
    x: Tensor, kernels: Tensor, state: State, name: str, residual: bool = True
) -> Tensor:
    """As :func:`convolve_short`, of ``x`` ``[1, batch, channels]`` and kernels ``[taps, batch or 1,
    channels]``."""
    y, tail = step(x, kernels, _tail(x, state, name), residual)
    state[name] = tail.transpose(0, 1)
    return y


def _tail(x: Tensor, state: State, name: str) -> Tensor:
    """``[n, batch, channels]``: the inputs before ``x``."""
    return state[name].transpose(0, 1) if name in state else x[:0]


class ShortConvolution(nn.Module):
    """A convolution of few taps, with a residual, of the ``[time, batch, width]`` that one of a
    layer's linear maps gives.

    Its kernels are predicted from the layer's input, ``low_rank`` or ``headwise``, beside a
    static one per channel, which starts uniformly within 1 / sqrt(taps). The predicted ones start
    at zero, so that all kinds start as ``static``; in the authors' code only those of low rank do.
    """

    def __init__(self, config: MixerConfig, width: int):
        super().__init__()
        inputs, taps = config.embed_dim, config.short_convolution_taps
        self.causal = config.causal or config.short_convolution_window == "causal"
        self.heads = config.num_heads
        self.static = nn.Parameter(torch.empty(width, taps).uniform_(-(taps**-0.5), taps**-0.5))
        self.down = self.up = self.kernel = None
        if config.short_convolution == "low_rank":
            rank = config.short_convolution_rank
            self.down = nn.Linear(inputs, rank, bias=False)
            self.up = nn.Parameter(torch.zeros(rank, taps, width))
        elif config.short_convolution == "headwise":
            self.kernel = nn.Parameter(torch.zeros(self.heads * taps, inputs))

    @property
    def predictor(self) -> Tensor | None:
        """The weight ``[features, embed_dim]`` that predicts kernels; None of static ones."""
        return self.kernel if self.down is None else self.down.weight

    def forward(
        self,
        y: Tensor,
        predicted: Tensor | None,
        padding_mask: Tensor | None,
        state: State | None,
        name: str,
    ) -> Tensor:
        """Convolve ``y``, ``[time, batch, width]``.

        Args:
            predicted: ``[time, batch, features]``, of the layer's input by ``predictor``; of low
                rank with a one at the end, which the static kernel is multiplied with, or not.
            padding_mask: boolean ``[batch, time]``, True at padding.
            state: in decoding, ``state[name]``, ``[batch, n, width]``, has the previous y.
        """
        y = without_padding(y, padding_mask)
        factors = (x for x in (self.static, self.up, predicted) if x is not None)
        if state is not None and step_pays(y, *factors):
            return convolve_step(y, self._kernels(predicted), state, name)
        convolution = short_conv
        if self.down is not None:
            convolution, kernels = low_rank_short_conv, (predicted, self.up, self.static)
            if predicted.size(-1) > len(self.up):
                kernels = predicted, torch.cat([self.up, self.static.t().unsqueeze(0)])
        elif self.kernel is not None:
            kernels = (predicted.unflatten(-1, (self.heads, -1)), self.static)
        else:
            kernels = (None, self.static)
        return convolve_short(convolution, y, kernels, state, name, causal=self.causal)

    def _kernels(self, predicted: Tensor | None) -> Tensor:
        """``[taps, batch or 1, width]`` from ``[1, batch, features]``."""
        static = self.static.t().contiguous()
        if predicted is None:
            return static.unsqueeze(1)
        if self.down is not None:
            z = predicted[0, :, : len(self.up)]
            kernels = torch.addmm(static.flatten(), z, self.up.flatten(1))
            return kernels.unflatten(1, static.shape).transpose(0, 1)
        of_heads = predicted[0].unflatten(1, (self.heads, 1, -1)).permute(3, 0, 1, 2)
        return (of_heads + static.unflatten(1, (1, self.heads, -1))).flatten(2)


def _is_plain(linear: nn.Module | None) -> bool:
    """Whether its weight alone says what it computes: it was not quantised, parametrised, wrapped
    (LoRA) or given hooks."""
    if linear is None:
        return True
    return type(linear) is nn.Linear and not (linear._forward_hooks or linear._forward_pre_hooks)


class ShortConvolutions(nn.ModuleDict):
    """Short convolutions of a layer, by the letter of the linear map that each follows.

    Args:
        widths: the channels that each map gives. Others that ``config`` names are left out.
    """

    def __init__(self, config: MixerConfig, widths: dict[str, int]):
        named = {name: widths[name] for name in config.short_convolved if name in widths}
        super().__init__({name: ShortConvolution(config, width) for name, width in named.items()})
        self.config = config

    def predict(self, x: Tensor, state: State | None) -> dict[str, Tensor | None]:
        """What each predicts its kernels from, given the layer's input ``[time, batch,
        embed_dim]`` and decoding state: one product for all."""
        kind = self.config.short_convolution
        if not self or kind == "static":
            return dict.fromkeys(self)
        static = next(iter(self.values())).static
        is_step = state is not None and step_pays(x, static)
        has_ones = kind == "low_rank" and not is_step
        if not all(_is_plain(each.down) for each in self.values()):
            found = {name: each.down(x) for name, each in self.items()}
            return {n: F.pad(z, (0, 1), value=1.0) if has_ones else z for n, z in found.items()}
        weights, bias = [each.predictor for each in self.values()], None
        if has_ones:  # for each a one that no weight predicts
            first = weights[0]
            nothing, one = first.new_zeros(1, x.size(-1)), first.new_zeros(len(first))
            bias = F.pad(one, (0, 1), value=1.0).repeat(len(weights))
            weights = [part for weight in weights for part in (weight, nothing)]
        found = F.linear(x, torch.cat(weights), bias).chunk(len(self), dim=-1)
        return dict(zip(self, found, strict=True))

    def convolve(
        self,
        name: str,
        y: Tensor,
        predicted: dict[str, Tensor | None],
        padding_mask: Tensor | None,
        state: State | None,
    ) -> Tensor:
        """``y``, what the map ``name`` gives, after its convolution, if it has one; ``predicted``
        is of :meth:`predict`."""
        if name not in self:
            return y
        return self[name](y, predicted[name], padding_mask, state, f"short_{name}")
