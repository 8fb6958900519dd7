"""The specification of composite attention: one softmax over the sum of its terms."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .terms import Options, Terms, at_distances, relative_bias, wide


def attend(q: Tensor, k: Tensor, v: Tensor, terms: Terms, options: Options) -> Tensor:
    """softmax_j(S) v, with every term of S as in Chang et al. 2021, section 3, and Wennberg
    and Henter 2021, eq. 7; see :func:`composite_attention`, which checks the arguments.
    """
    causal, beyond, span, padding_mask, dropout_p, scale = options
    queries, keys = q.size(2), k.size(2)
    position = torch.arange(keys, device=q.device)
    r = position - position[keys - queries :, None]  # [queries, keys]
    dtype = v.dtype
    q, k = wide(q) * scale, wide(k)

    scores = relative_bias(terms, r.flatten(), causal=causal, beyond=beyond).unflatten(-1, r.shape)
    scores = scores.expand(q.size(0), q.size(1), -1, -1).to(q.dtype)
    if "content" in terms:
        scores = scores + torch.einsum("bhid,bhjd->bhij", q, k)
    if "query" in terms:
        w = at_distances(wide(terms["query"]), r, causal=causal, beyond=beyond)
        scores = scores + torch.einsum("bhid,hijd->bhij", q, w.expand(q.size(1), -1, -1, -1))
    if "key" in terms:  # a table over i - j, turned round
        w = at_distances(wide(terms["key"]).flip(1), r, causal=causal, beyond=beyond) * scale
        scores = scores + torch.einsum("bhjd,hijd->bhij", k, w.expand(q.size(1), -1, -1, -1))
    if "key_only" in terms:
        u = (wide(terms["key_only"]) * scale).expand(q.size(1), -1)
        scores = scores + torch.einsum("hd,bhjd->bhj", u, k).unsqueeze(2)

    visible = torch.ones_like(r, dtype=torch.bool)
    if causal:
        visible = r <= 0
    if beyond == "mask":
        visible = visible & (r.abs() <= span)
    if padding_mask is not None:
        visible = visible & ~padding_mask[:, None, None, :]
    scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    attention = F.softmax(scores, dim=-1).masked_fill(~visible, 0)
    return (F.dropout(attention, dropout_p) @ v.to(attention.dtype)).to(dtype)
