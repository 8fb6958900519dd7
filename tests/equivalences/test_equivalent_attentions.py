"""Where published attentions are composite attention (Chang et al. 2021). Every test states in its
name what it shows: the other paper's formula is written out here."""

import math

import equivalence_cases
import pytest
import torch
from equivalence_cases import (
    BATCH,
    CHANNELS,
    HEAD_DIM,
    HEADS,
    LENGTHS,
    assert_agree,
    assert_differ,
    distances,
    lightweight_logits,
    normal,
    padding,
    queries_keys_values,
    softmax_over,
    visible,
)

from fairseq_convattn.ops import lightweight_conv, normalize_taps
from fairseq_convattn.ops.attention import alibi_slopes

seed = equivalence_cases.seed
attend = equivalence_cases.attend
causal = equivalence_cases.causal


def shaw(q, k, v, a, span, seen):
    """Shaw et al. 2018, eq. 4 and section 3.2: e_ij = q_i . (k_j + a_clip(j - i)) / sqrt(d).

    a: ``[2 span + 1, head_dim]``, one table for all heads.
    """
    time = q.size(2)
    e = q.new_zeros(BATCH, HEADS, time, time)
    for i in range(time):
        clipped = [max(-span, min(span, j - i)) for j in range(time)]
        keys = k + torch.stack([a[span + r] for r in clipped])  # [batch, heads, keys, head_dim]
        e[:, :, i] = (q[:, :, i, None] * keys).sum(-1) / math.sqrt(HEAD_DIM)
    return softmax_over(seen, e) @ v


def test_e2_shaws_attention_is_content_and_query_with_clipped_distances(attend, causal):
    span = 4
    a = normal(2 * span + 1, HEAD_DIM)
    table = torch.stack([a[r + span] for r in distances(causal, span)])
    for time in LENGTHS:
        q, k, v = queries_keys_values(time)
        mask = padding(time)
        published = shaw(q, k, v, a, span, visible(mask, time, causal))
        terms = {"content": None, "query": table.unsqueeze(0)}
        assert_agree(attend(q, k, v, terms, causal=causal, padding_mask=mask), published)


# E3: Transformer-XL.


def sinusoids(positions):
    """R of Vaswani et al. 2017, where positions may be negative: ``[positions, channels]``."""
    rates = 10000 ** (-torch.arange(0, CHANNELS, 2, dtype=torch.float64) / CHANNELS)
    angles = torch.tensor(positions).unsqueeze(1) * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def transformer_xl(q, k, v, w_r, u, v_bias, scale, seen):
    """Dai et al. 2019, section 3.3, with projected queries and keys:

    A_ij = q_i . k_j + q_i . W_R R_{i-j} + u . k_j + v . W_R R_{i-j}.

    The queries are the last positions; what precedes them is the memory.

    w_r: ``[heads, head_dim, channels]``; u, v_bias: ``[heads, head_dim]``.
    """
    queries, keys = q.size(2), k.size(2)
    scores = q.new_zeros(BATCH, HEADS, queries, keys)
    for row, i in enumerate(range(keys - queries, keys)):
        relative = sinusoids([i - j for j in range(keys)]) @ w_r.mT  # [heads, keys, head_dim]
        query = q[:, :, row, None]
        a = (query * k).sum(-1)
        b = (query * relative).sum(-1)
        c = (u.unsqueeze(1) * k).sum(-1)
        d = (v_bias.unsqueeze(1) * relative).sum(-1)
        scores[:, :, row] = a + b + c + d
    return softmax_over(seen, scores * scale) @ v


def transformer_xl_terms(w_r, u, v_bias, scale, causal, span):
    """wQ_r = W_R R_{-r} and beta_r = v . W_R R_{-r} scale."""
    table = sinusoids([-r for r in distances(causal, span)]) @ w_r.mT  # [heads, taps, head_dim]
    fixed = (v_bias.unsqueeze(1) * table).sum(-1) * scale
    return {"content": None, "fixed": fixed, "query": table, "key_only": u}


def transformer_xl_parameters():
    return normal(HEADS, HEAD_DIM, CHANNELS) / 3, normal(HEADS, HEAD_DIM), normal(HEADS, HEAD_DIM)


@pytest.mark.parametrize("scale", [1, HEAD_DIM**-0.5], ids=["as printed", "scaled"])
@pytest.mark.parametrize("memory", [0, 6], ids=["alone", "with memory"])
def test_e3_transformer_xl_is_content_key_only_query_and_fixed_with_a_tap_for_every_distance(
    attend, causal, memory, scale
):
    w_r, u, v_bias = transformer_xl_parameters()
    for time in LENGTHS:
        keys = memory + time
        q, k, v = queries_keys_values(time, keys)
        mask = padding(keys)
        seen = visible(mask, time, causal)
        published = transformer_xl(q, k, v, w_r, u, v_bias, scale, seen)
        for span in (keys - 1, keys + 2):
            terms = transformer_xl_terms(w_r, u, v_bias, scale, causal, span)
            options = {"causal": causal, "padding_mask": mask, "scale": scale}
            assert_agree(attend(q, k, v, terms, **options), published)


def test_e3_transformer_xl_is_not_that_with_clipped_distances(attend, causal):
    w_r, u, v_bias = transformer_xl_parameters()
    q, k, v = queries_keys_values(13)
    mask = padding(13)
    published = transformer_xl(q, k, v, w_r, u, v_bias, 1, visible(mask, 13, causal))
    terms = transformer_xl_terms(w_r, u, v_bias, 1, causal, span=5)
    assert_differ(attend(q, k, v, terms, causal=causal, padding_mask=mask, scale=1), published)


# E4: DeBERTa.


def delta(i, j, k):
    """He et al. 2021, eq. 3: into [0, 2 k), so -k has a place of its own and k has not."""
    if i - j <= -k:
        return 0
    if i - j >= k:
        return 2 * k - 1
    return i - j + k


def deberta(q, k, v, q_r, k_r, reach, seen):
    """He et al. 2021, eq. 4: c2c + c2p + p2c; q_r, k_r: ``[heads, 2 reach, head_dim]``."""
    time = q.size(2)
    scores = q.new_zeros(BATCH, HEADS, time, time)
    for i in range(time):
        query = q[:, :, i, None]
        c2c = (query * k).sum(-1)
        c2p = (query * k_r[:, [delta(i, j, reach) for j in range(time)]]).sum(-1)
        p2c = (k * q_r[:, [delta(j, i, reach) for j in range(time)]]).sum(-1)
        scores[:, :, i] = c2c + c2p + p2c
    return softmax_over(seen, scores / math.sqrt(3 * HEAD_DIM)) @ v


def deberta_terms(q_r, k_r, reach, causal):
    """wQ_r = K^r_delta(0, r) for r = j - i, wK_s = Q^r_delta(0, s) for s = i - j."""
    query = [k_r[:, delta(0, r, reach)] for r in distances(causal, reach)]
    key = [q_r[:, delta(0, s, reach)] for s in range(0 if causal else -reach, reach + 1)]
    return {"content": None, "query": torch.stack(query, 1), "key": torch.stack(key, 1)}


@pytest.mark.parametrize("reach", [1, 4])
def test_e4_deberta_is_content_query_and_key_with_tables_per_head(attend, causal, reach):
    q_r, k_r = normal(2, HEADS, 2 * reach, HEAD_DIM)
    terms = deberta_terms(q_r, k_r, reach, causal)
    for time in LENGTHS:
        q, k, v = queries_keys_values(time)
        mask = padding(time)
        published = deberta(q, k, v, q_r, k_r, reach, visible(mask, time, causal))
        options = {"causal": causal, "padding_mask": mask}
        scale = 1 / math.sqrt(3 * HEAD_DIM)
        assert_agree(attend(q, k, v, terms, scale=scale, **options), published)
        last = q[:, :, -3:]  # as in decoding
        assert_agree(attend(last, k, v, terms, scale=scale, **options), published[:, :, -3:])
        absorbed = terms | {"key": terms["key"] / math.sqrt(3)}
        assert_agree(attend(q / math.sqrt(3), k, v, absorbed, **options), published)


# E5: gated attention.


def lightweight_matrix(beta, time, causal):
    """What the convolution multiplies a sequence by, ``[heads, queries, keys]``."""
    each_position = torch.eye(time, dtype=torch.float64).unsqueeze(2).expand(-1, -1, HEADS)
    taps = normalize_taps(beta, "softmax")
    return lightweight_conv(each_position, taps, causal=causal).permute(2, 0, 1)


def continued(beta, time, causal, beyond):
    """beta for every distance: a convolution with longer kernels, unless it is masked."""
    span = beta.size(1) - 1 if causal else beta.size(1) // 2
    if beyond == "mask" or time <= span:
        return beta
    at = {r: beta[:, tap] for tap, r in enumerate(distances(causal, span))}
    beta_beyond = {
        "clip": lambda r: at[-span] if r < 0 else at[span],
        "zero": lambda r: torch.zeros(HEADS, dtype=torch.float64),
    }[beyond]
    reach = distances(causal, time - 1)
    return torch.stack([at[r] if r in at else beta_beyond(r) for r in reach], dim=1)


@pytest.mark.parametrize("beyond", ["clip", "zero", "mask"])
def test_e5_softmax_of_content_and_fixed_is_attention_gated_by_a_lightweight_convolution(
    attend, causal, beyond
):
    """At the edges too, and without renorm: the product is normalised anyway."""
    beta = lightweight_logits(causal)
    for time in LENGTHS:
        q, k, v = queries_keys_values(time)
        mask = padding(time)
        seen = visible(mask, time, causal)
        content = softmax_over(seen, q @ k.transpose(2, 3) / math.sqrt(HEAD_DIM))
        gate = lightweight_matrix(continued(beta, time, causal, beyond), time, causal)
        product = content * gate
        gated = product / product.sum(-1, keepdim=True).clamp(min=1e-300)
        options = {"causal": causal, "beyond": beyond, "padding_mask": mask}
        assert_agree(attend(q, k, v, {"content": None, "fixed": beta}, **options), gated @ v)


# E6: parameterisations of the fixed term.

LONG = 141  # T5 puts all distances from 128 on into one bucket with those before


def assert_a_curve_is_a_fixed_term(attend, causal, term, parameters, f, scale=HEAD_DIM**-0.5):
    """Content plus f(h, j - i) is the term of that name, and the fixed term with a table of f."""
    q, k, v = queries_keys_values(LONG)
    mask = padding(LONG)
    reach = range(1 - LONG, LONG)
    curve = torch.tensor([[f(h, r) for r in reach] for h in range(HEADS)], dtype=torch.float64)
    i, j = torch.arange(LONG).unsqueeze(1), torch.arange(LONG)
    scores = q @ k.transpose(2, 3) * scale + curve[:, j - i + LONG - 1]
    published = softmax_over(visible(mask, LONG, causal), scores) @ v
    beta = curve[:, :LONG] if causal else curve
    for terms in ({term: parameters}, {"fixed": beta}):
        options = {"causal": causal, "padding_mask": mask, "scale": scale}
        assert_agree(attend(q, k, v, {"content": None, **terms}, **options), published)


def t5_bucket(r, buckets, bidirectional):
    """Raffel et al. 2020, section 2.1, as their code has it, in whole numbers.

    Distances below half of the buckets have one each; bucket number m after those begins at
    exact (128 / exact)^(m / rest). One half of all is for r > 0 when ``bidirectional``.
    """
    first, size = 0, max(0, -r)
    if bidirectional:
        buckets //= 2
        first, size = buckets * (r > 0), abs(r)
    exact = buckets // 2
    if size < exact:
        return first + size
    rest = buckets - exact
    begun = [m for m in range(rest) if exact ** (rest - m) * 128**m <= size**rest]
    return first + exact + begun[-1]


def test_e6_t5s_bias_is_a_fixed_term(attend, causal):
    """T5 does not divide by sqrt(d)."""
    table = normal(HEADS, 32)

    def f(h, r):
        return table[h, t5_bucket(r, 32, bidirectional=not causal)]

    assert_a_curve_is_a_fixed_term(attend, causal, "t5", table, f, scale=1)


def test_e6_alibi_is_a_fixed_term(attend, causal):
    """Press et al. 2022, section 3: -m_h |r|, where m_h = 2^(-8 h / H) for h = 1..H."""
    assert alibi_slopes(8).tolist() == [2.0**-h for h in range(1, 9)]
    slopes = [2 ** (-8 * h / HEADS) for h in range(1, HEADS + 1)]

    def f(h, r):
        return -slopes[h] * abs(r)

    parameters = torch.tensor(slopes, dtype=torch.float64)
    assert_a_curve_is_a_fixed_term(attend, causal, "alibi", parameters, f)


def test_e6_kerples_logarithm_is_a_fixed_term(attend, causal):
    """Chi et al. 2022: -r_1 log(1 + r_2 |r|) with r_1, r_2 > 0."""
    scale, rate = normal(2, HEADS).abs()

    def f(h, r):
        return -scale[h] * math.log(1 + rate[h] * abs(r))

    assert_a_curve_is_a_fixed_term(attend, causal, "kerple", (scale, rate), f)


def test_e6_tisa_is_a_fixed_term(attend, causal):
    """Wennberg and Henter 2021, eq. 7: sum_s a_s exp(-|b_s| (r - c_s)^2)."""
    a, b, c = normal(3, HEADS, 5)
    c = 5 * c

    def f(h, r):
        return sum(a[h, s] * math.exp(-abs(b[h, s]) * (r - c[h, s]) ** 2) for s in range(5))

    assert_a_curve_is_a_fixed_term(attend, causal, "tisa", (a, b, c), f)
