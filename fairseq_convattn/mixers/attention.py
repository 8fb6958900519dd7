"""Self-attention through PyTorch's scaled_dot_product_attention."""

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor

from .config import MixerConfig


class KeyValueCache:
    """Heads, and fairseq's decoding state of keys and values, for attention modules."""

    def _heads(self, x: Tensor) -> Tensor:
        """``[time, batch, embed_dim]`` -> ``[batch, heads, time, head_dim]``."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)

    def _cached(
        self,
        incremental_state: dict,
        k: Tensor,
        v: Tensor,
        padding_mask: Tensor | None,
        window: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Append to the cache, which keeps the last ``window`` positions, or all.

        Returns:
            All keys, all values and the padding mask of all keys, of the window and ``k``.
        """
        state = self._get_input_buffer(incremental_state)
        past_mask = state.get("prev_key_padding_mask")
        if padding_mask is not None or past_mask is not None:
            past = state["prev_key"].size(2) if "prev_key" in state else 0
            padding_mask = torch.cat(
                [
                    self._or_unpadded(past_mask, k, past),
                    self._or_unpadded(padding_mask, k, k.size(2)),
                ],
                dim=1,
            )
        if "prev_key" in state:
            alike = k is v
            v = torch.cat([state["prev_value"], v], dim=2)
            k = v if alike else torch.cat([state["prev_key"], k], dim=2)
        kept = slice(0 if window is None else max(0, k.size(2) - window), None)
        mask = padding_mask if padding_mask is None else padding_mask[:, kept]
        state |= {"prev_key": k[:, :, kept], "prev_value": v[:, :, kept]}
        self._set_input_buffer(incremental_state, {**state, "prev_key_padding_mask": mask})
        return k, v, padding_mask

    @staticmethod
    def _or_unpadded(mask: Tensor | None, like: Tensor, length: int) -> Tensor:
        if mask is not None:
            return mask
        return torch.zeros(like.size(0), length, dtype=torch.bool, device=like.device)


class SelfAttention(KeyValueCache, MultiheadAttention):
    """fairseq's multi-head self-attention (same parameters, same decoding cache), causal
    by itself in a decoder, so that no time x time mask has to be built for it.
    """

    def __init__(self, config: MixerConfig):
        super().__init__(
            config.embed_dim,
            config.num_heads,
            dropout=config.attention_dropout,
            self_attention=config.self_attention,
            q_noise=config.quant_noise,
            qn_block_size=config.quant_noise_block_size,
        )
        self.causal = config.causal

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict[str, dict[str, Tensor | None]] | None = None,
        need_weights: bool = False,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Attend from ``query`` to ``key``.

        Args:
            query: ``[time, batch, embed_dim]``. With an ``incremental_state``, the
                positions that follow those already seen, one or several.
            key, value: ``[keys, batch, embed_dim]``; they end where the query ends.
            key_padding_mask: boolean ``[batch, keys]``, True at padding.
            incremental_state: fairseq's decoding state: cached keys and values.
            need_weights, static_kv: not used; no attention weights are computed.
            attn_mask: added to the scores, ``[time, keys]``.

        Returns:
            ``[time, batch, embed_dim]`` and None in place of attention weights.
        """
        q, k, v = (
            self._heads(self.q_proj(query)),
            self._heads(self.k_proj(key)),
            self._heads(self.v_proj(value)),
        )
        if incremental_state is not None:
            k, v, key_padding_mask = self._cached(incremental_state, k, v, key_padding_mask)
        dropout = self.dropout_module
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            dropout_p=dropout.p if self.training or dropout.apply_during_inference else 0.0,
            **self._mask(q, k, key_padding_mask, attn_mask),
        )  # [batch, heads, time, head_dim]
        return self.out_proj(y.permute(2, 0, 1, 3).flatten(2)), None

    def _mask(
        self, q: Tensor, k: Tensor, padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> dict[str, Tensor | bool | None]:
        """Keyword arguments of scaled_dot_product_attention, which gives zeros to a query
        that sees nothing (one at padding)."""
        time, keys = q.size(2), k.size(2)
        visible = None
        if self.causal and time > 1:
            if padding_mask is None and attn_mask is None and time == keys:
                return {"is_causal": True}
            visible = q.new_ones(time, keys, dtype=torch.bool).tril(keys - time)
        if padding_mask is not None:
            unpadded = ~padding_mask[:, None, None, :].bool()
            visible = unpadded if visible is None else visible & unpadded
        if attn_mask is None:
            return {"attn_mask": visible}
        attn_mask = attn_mask.to(q.dtype)
        if visible is not None:
            attn_mask = attn_mask.masked_fill(~visible, float("-inf"))
        return {"attn_mask": attn_mask}
