"""A decoder's attention to its encoder, through PyTorch's scaled_dot_product_attention or, where it
trains faster, our kernel for bfloat16."""

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor

from ..ops.attention import native_bfloat16 as bfloat16
from .attention import attend
from .base import Copyable, Sizes, dropout_p


class CrossAttention(Copyable, MultiheadAttention):
    """fairseq's cross-attention, with the same parameters.

    In decoding, all hypotheses of a sentence share one copy of its keys and values.
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
        """Attend from ``query`` to ``key``, as fairseq's does.

        Args:
            query: ``[time, batch, embed_dim]``.
            key, value: ``[keys, batch, encoder's embed_dim]``, the same tensor.
            key_padding_mask: boolean ``[batch, keys]``, True at padding.
            incremental_state: fairseq's decoding state: the keys and values that stay.
            need_weights: whether to return the weights too, averaged over the heads.
            static_kv: whether keys and values stay the same while a sequence is decoded.
                False: fairseq's own code runs.
            need_head_weights: whether to return the weights of every head.
            attn_mask, before_softmax: as fairseq's, whose own code runs then.

        Returns:
            ``[time, batch, embed_dim]``, and the weights, ``[batch, time, keys]`` or
            ``[heads, batch, time, keys]``, or None.
        """
        if attn_mask is not None or before_softmax or not static_kv:
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
        k, v, mask = self._keys_and_values(key, key_padding_mask, incremental_state)
        q = self.q_proj(query).view(time, k.size(0), -1, self.num_heads, self.head_dim)
        beams = q.size(2)
        q = q.permute(1, 3, 2, 0, 4).flatten(2, 3)  # [sentences, heads, beams and time, head_dim]
        hidden = None if mask is None else mask[:, None, None].bool()
        need_weights = need_weights or need_head_weights
        explicit = need_weights or incremental_state is not None
        y, weights = self._attend(q, k, v, hidden, explicit)
        y = y.unflatten(2, (beams, time)).permute(3, 0, 2, 1, 4).reshape(time, batch, -1)
        if not need_weights:
            return self.out_proj(y), None
        weights = weights.unflatten(2, (beams, time)).permute(1, 0, 2, 3, 4).flatten(1, 2)
        return self.out_proj(y), weights if need_head_weights else weights.mean(0)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, explicit: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs ``[sentences, heads, queries, head_dim]`` and, if ``explicit``, the weights
        ``[sentences, heads, queries, keys]``. Few queries are faster explicitly."""
        dropout = self.dropout_module
        if not explicit:
            p = dropout_p(dropout)
            if bfloat16.pays(q, k, v, p, self.training):
                mask = None if hidden is None else hidden[:, 0, 0]
                y = bfloat16.attention(q, k, v, causal=False, padding_mask=mask, dropout_p=p)
                return y, None
            visible = None if hidden is None else ~hidden
            return attend(q, k, v, visible, p), None
        scores = (q * self.scaling) @ k.transpose(-1, -2)
        if hidden is not None:
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        at_least_float32 = torch.promote_types(scores.dtype, torch.float32)
        weights = scores.softmax(-1, dtype=at_least_float32).type_as(scores)
        if hidden is not None:  # zeros where a source is nothing but padding
            weights = weights.masked_fill(hidden, 0)
        return dropout(weights) @ v, weights

    def _keys_and_values(
        self, key: Tensor, padding_mask: Tensor | None, incremental_state: dict | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """``[sentences, heads, keys, head_dim]`` each, and their padding."""
        state = {} if incremental_state is None else self._get_input_buffer(incremental_state)
        if "prev_key" in state:
            return state["prev_key"], state["prev_value"], state["prev_key_padding_mask"]
        beams = 1
        if incremental_state is not None and self._are_beams(key, padding_mask):
            beams, key = self.beam_size, key[:, :: self.beam_size]
            padding_mask = None if padding_mask is None else padding_mask[::beams]
        k, v = (
            x.unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)
            for x in (self.k_proj(key), self.v_proj(key))
        )
        if incremental_state is not None:
            k, v = k.contiguous(), v.contiguous()
            state = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding_mask}
            self._set_input_buffer(incremental_state, {**state, "beams": beams})
        return k, v, padding_mask

    def sizes(self, incremental_state: dict) -> Sizes:
        """How large the keys and values in a decoding state are."""
        state = self._get_input_buffer(incremental_state)
        return Sizes(len(state["prev_key"]), state["beams"], state["prev_key"].size(2))

    def padded(self, state: dict, sizes: Sizes) -> dict:
        """``state`` for up to so many sentences and keys."""
        k, v, mask = (state[f"prev_{name}"] for name in ("key", "value", "key_padding_mask"))
        sentences, keys = sizes.sentences - k.size(0), sizes.keys - k.size(2)
        mask = k.new_zeros(k.size(0), k.size(2)) if mask is None else mask
        return {
            "prev_key": F.pad(k, (0, 0, 0, keys, 0, 0, 0, sentences)),
            "prev_value": F.pad(v, (0, 0, 0, keys, 0, 0, 0, sentences)),
            "prev_key_padding_mask": F.pad(mask.bool(), (0, keys, 0, sentences), value=True),
            "beams": state["beams"],
        }

    def unpadded(self, state: dict, sizes: Sizes) -> dict:
        """The sentences and keys of ``sizes`` in what :meth:`padded` has begun."""
        sentences, keys = slice(sizes.sentences), slice(sizes.keys)
        return {
            "prev_key": state["prev_key"][sentences, :, keys].clone(),
            "prev_value": state["prev_value"][sentences, :, keys].clone(),
            "prev_key_padding_mask": state["prev_key_padding_mask"][sentences, keys].clone(),
            "beams": state["beams"],
        }

    def _are_beams(self, key: Tensor, padding_mask: Tensor | None) -> bool:
        """Whether every ``beam_size`` successive keys are equal. ``beam_size`` alone does not
        tell: an earlier search may have set it."""
        if self.beam_size == 1 or key.size(1) % self.beam_size:
            return False
        groups = key.unflatten(1, (-1, self.beam_size))
        alike = torch.equal(groups, groups[:, :, :1].expand_as(groups))
        if padding_mask is None:
            return alike
        groups = padding_mask.unflatten(0, (-1, self.beam_size))
        return alike and torch.equal(groups, groups[:, :1].expand_as(groups))

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> dict:
        """Keep the keys and values of the remaining sentences. With several beams nothing is copied
        while hypotheses swap within their sentences: as in fairseq, an order as long as the last
        must not swap sentences."""
        state = self._get_input_buffer(incremental_state)
        if "prev_key" not in state:
            return incremental_state
        beams, kept = state.get("beams", 1), new_order
        if beams > 1:
            if len(new_order) == beams * state["prev_key"].size(0):
                return incremental_state
            sentences = new_order // beams
            if len(new_order) % beams:
                kept, beams = sentences, 1
            else:
                groups = sentences.view(-1, beams)
                together = torch.equal(groups, groups[:, :1].expand_as(groups))
                kept, beams = (groups[:, 0], beams) if together else (sentences, 1)
        tensors = {
            name: x if x is None else x.index_select(0, kept)
            for name, x in state.items()
            if name != "beams"
        }
        self._set_input_buffer(incremental_state, {**tensors, "beams": beams})
        return incremental_state
