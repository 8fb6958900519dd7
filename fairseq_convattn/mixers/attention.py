"""Self-attention."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..ops import composite_attention
from ..ops.attention import native_bfloat16 as bfloat16
from .base import State, TokenMixer, dropout_p
from .config import MixerConfig
from .short_convolution import ShortConvolutions

LONG = 48  # keys; with fewer, PyTorch's attention with dropout is about as fast
_FOR_MASKS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, is_causal: bool = False
) -> Tensor:
    """PyTorch's scaled_dot_product_attention, ``[batch, heads, time, head_dim]``.

    With a mask it does without cuDNN's kernel, whose gradients can be NaN on Hopper GPUs
    (pytorch/pytorch#196678).

    Args:
        q, k, v: ``[batch, heads, time, head_dim]``; keys and values have a time of their own.
        mask: broadcast to ``[batch, heads, time, keys]``: boolean, True where a key is visible, or
            float, added to the scores.
        dropout: probability of dropping an attention weight.
        is_causal: whether a query sees only keys up to its own position; without a ``mask``.
    """
    on_gpu = mask is not None and q.is_cuda
    with sdpa_kernel(_FOR_MASKS) if on_gpu else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal)


class AttentionMixer(TokenMixer):
    """What mixers with queries, keys and values share: their heads, their cache, and the short
    convolutions of their projections."""

    def __init__(self, config: MixerConfig, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        widths = dict.fromkeys(("q", "k", "v", "o"), config.embed_dim)
        self.short_convolutions = ShortConvolutions(config, widths)

    def _heads(self, x: Tensor) -> Tensor:
        """``[time, batch, embed_dim]`` -> ``[batch, heads, time, head_dim]``."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)

    def _cached(
        self,
        state: State,
        k: Tensor,
        v: Tensor,
        padding_mask: Tensor | None,
        window: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Append to the cache, which keeps the last ``window`` positions, or all.

        Args:
            k, v: ``[batch, heads, time, head_dim]``; ``v`` is ``k`` where no term reads keys.
            padding_mask: boolean ``[batch, time]``, or None.

        Returns:
            Keys, values and padding mask of the cache and of ``k``.
        """
        past_mask = state.pop("prev_key_padding_mask", None)
        if padding_mask is not None or past_mask is not None:
            past = state["prev_key"].size(2) if "prev_key" in state else 0
            masks = ((past_mask, past), (padding_mask, k.size(2)))
            padding_mask = torch.cat(
                [k.new_zeros(k.size(0), n, dtype=torch.bool) if m is None else m for m, n in masks],
                dim=1,
            )
        alike = k is v
        if "prev_key" in state:
            v = torch.cat([state["prev_value"], v], dim=2)
            k = v if alike else torch.cat([state["prev_key"], k], dim=2)
        kept = slice(0 if window is None else max(0, k.size(2) - window), None)
        state["prev_value"] = v[:, :, kept]
        state["prev_key"] = state["prev_value"] if alike else k[:, :, kept]
        if padding_mask is not None:
            state["prev_key_padding_mask"] = padding_mask[:, kept]
        return k, v, padding_mask


class SelfAttention(AttentionMixer, MultiheadAttention):
    """fairseq's multi-head self-attention, with the same parameters and initial values.

    In a decoder it is causal by itself. Whole sequences without padding need no mask.
    """

    takes_key_value = True

    def __init__(self, config: MixerConfig):
        super().__init__(
            config,
            config.embed_dim,
            config.num_heads,
            dropout=config.attention_dropout,
            self_attention=config.self_attention,
        )

    def mix(
        self,
        x: Tensor,
        padding_mask: Tensor | None,
        state: State | None,
        key: Tensor | None = None,
        value: Tensor | None = None,
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        """The base's, with keys and values that end where the query ends.

        Args:
            padding_mask: boolean ``[batch, keys]``, True at padding.
            key, value: ``[keys, batch, embed_dim]``; None: the query's.
            attn_mask: ``[time, keys]``: boolean, True where a key is hidden, or float, added to the
                scores.
        """
        convolve = self.short_convolutions.convolve
        predicted = self.short_convolutions.predict(x, state)
        inputs = {"q": x, "k": x if key is None else key, "v": x if value is None else value}
        q, k, v = (
            self._heads(convolve(name, project(u), predicted, padding_mask, state))
            for (name, u), project in zip(
                inputs.items(), (self.q_proj, self.k_proj, self.v_proj), strict=True
            )
        )
        own_padding = padding_mask
        if state is not None:
            k, v, padding_mask = self._cached(state, k, v, padding_mask)
        y = self._attend(q, k, v, padding_mask, attn_mask)
        y = self.out_proj(y.permute(2, 0, 1, 3).flatten(2))
        return convolve("o", y, predicted, own_padding, state)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> Tensor:
        """``[batch, heads, time, head_dim]``, as all inputs. On a CPU, PyTorch's function stores
        every weight if it drops some; ours stores none, and trains faster in bfloat16 with AMX. It
        has no ``attn_mask``."""
        dropout = dropout_p(self.dropout_module)
        causal, time, keys = self.config.causal, q.size(2), k.size(2)
        if attn_mask is None and (not causal or time <= keys):
            options = {"causal": causal, "padding_mask": padding_mask, "dropout_p": dropout}
            if bfloat16.pays(q, k, v, dropout, self.training):
                return bfloat16.attention(q, k, v, **options)
            if 0 < dropout < 1 and q.device.type == "cpu" and time <= keys >= LONG:
                return composite_attention(q, k, v, {"content": None}, **options)
        return attend(q, k, v, dropout=dropout, **self._mask(q, k, padding_mask, attn_mask))

    def _mask(
        self, q: Tensor, k: Tensor, padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> dict[str, Tensor | bool | None]:
        """Keyword arguments of :func:`attend`, which gives zeros to a query that sees nothing (one
        at padding)."""
        time, keys = q.size(2), k.size(2)
        visible = None
        if self.config.causal and time > 1:
            if padding_mask is None and attn_mask is None and time == keys:
                return {"mask": None, "is_causal": True}
            visible = q.new_ones(time, keys, dtype=torch.bool).tril(keys - time)
        if padding_mask is not None:
            unpadded = ~padding_mask[:, None, None, :]
            visible = unpadded if visible is None else visible & unpadded
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            visible = ~attn_mask if visible is None else visible & ~attn_mask
            attn_mask = None
        if attn_mask is None:
            return {"mask": visible}
        attn_mask = attn_mask.to(q.dtype)
        if visible is not None:
            attn_mask = attn_mask.masked_fill(~visible, float("-inf"))
        return {"mask": attn_mask}
