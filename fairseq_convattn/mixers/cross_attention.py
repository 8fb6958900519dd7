"""A decoder's attention to its encoder, through PyTorch's scaled_dot_product_attention."""

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor


class CrossAttention(MultiheadAttention):
    """fairseq's, with the same parameters and the same decoding state. While decoding, the
    hypotheses of a sentence are queries to the one copy of its keys and values.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict[str, dict[str, Tensor | None]] | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from ``query`` to ``key``; all as fairseq's.

        Args:
            query: ``[time, batch, embed_dim]``.
            key, value: ``[keys, batch, encoder's embed_dim]``, the same tensor.
            key_padding_mask: boolean ``[batch, keys]``, True at padding.
            incremental_state: fairseq's decoding state: the keys and values that stay.
            need_weights: whether to return the weights too, the mean over the heads.
            static_kv: whether keys and values stay while a sequence is decoded.
            attn_mask, before_softmax, need_head_weights: what fairseq's own code computes.

        Returns:
            ``[time, batch, embed_dim]``, and the weights, ``[batch, time, keys]``, or None.
        """
        left_to_fairseq = attn_mask is not None or before_softmax or need_head_weights
        if left_to_fairseq or not static_kv:
            return super().forward(
                query,
                key,
                value,
                key_padding_mask=key_padding_mask,
                incremental_state=incremental_state,
                need_weights=need_weights,
                static_kv=static_kv,
                attn_mask=attn_mask,
                before_softmax=before_softmax,
                need_head_weights=need_head_weights,
            )
        time, batch, _ = query.shape
        k, v, mask = self._keys_and_values(key, key_padding_mask, incremental_state, batch)
        q = self.q_proj(query).view(time, k.size(0), -1, self.num_heads, self.head_dim)
        beams = q.size(2)
        q = q.permute(1, 3, 2, 0, 4).flatten(2, 3)  # [sentences, heads, beams and time, head_dim]
        visible = None if mask is None else ~mask[:, None, None].bool()
        explicit = need_weights or incremental_state is not None
        y, weights = self._attend(q, k, v, visible, explicit)
        y = y.unflatten(2, (beams, time)).permute(3, 0, 2, 1, 4).reshape(time, batch, -1)
        if weights is not None:
            weights = weights.unflatten(1, (beams, time)).flatten(0, 1)
        return self.out_proj(y), weights if need_weights else None

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, explicit: bool
    ) -> tuple[Tensor, Tensor | None]:
        """``[sentences, heads, queries, head_dim]``; where the weights are computed explicitly,
        which is faster for few queries, those too, ``[sentences, queries, keys]``."""
        dropout = self.dropout_module
        if not explicit:
            p = dropout.p if self.training or dropout.apply_during_inference else 0.0
            return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=p), None
        scores = (q * self.scaling) @ k.transpose(-1, -2)
        if visible is not None:
            scores = scores.masked_fill(~visible, float("-inf"))
        weights = scores.softmax(-1, dtype=torch.float32).type_as(scores)
        return dropout(weights) @ v, weights.mean(1)

    def _keys_and_values(
        self,
        key: Tensor,
        padding_mask: Tensor | None,
        incremental_state: dict | None,
        batch: int,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """``[sentences, heads, keys, head_dim]`` each, and their padding."""
        state = {}
        if incremental_state is not None:
            state = self._get_input_buffer(incremental_state)
        if "prev_key" in state:
            return state["prev_key"], state["prev_value"], state["prev_key_padding_mask"]
        if incremental_state is not None and self.beam_size > 1 and batch == key.size(1):
            key = key[:, :: self.beam_size]
            padding_mask = None if padding_mask is None else padding_mask[:: self.beam_size]
        k, v = (
            x.unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)
            for x in (self.k_proj(key), self.v_proj(key))
        )
        if incremental_state is not None:
            k, v = k.contiguous(), v.contiguous()
            state = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding_mask}
            self._set_input_buffer(incremental_state, state)
        return k, v, padding_mask
