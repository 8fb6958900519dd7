"""Where published forms of attention and convolution are one and the same, in float64.

Every test states in its name what it shows: on one side composite attention (Chang et al.
2021), on the other a convolution of :mod:`fairseq_convattn.ops` or the other paper's formula,
written out here. i is the query's position, j the key's, r = j - i their distance, d the width
of a head, K the taps of a kernel. ``pytest -rP`` prints the differences.
"""

import math
from functools import partial

import pytest
import torch

from fairseq_convattn.mixers import MixerConfig, build_mixer
from fairseq_convattn.ops import (
    composite_attention,
    dynamic_conv,
    lightweight_conv,
    low_rank_short_conv,
    normalize_taps,
    short_conv,
    taps_inside,
)
from fairseq_convattn.ops.attention import alibi_slopes
from fairseq_convattn.ops.attention.api import IMPLEMENTATIONS

TOLERANCE = 1e-10
BATCH, HEADS, HEAD_DIM = 3, 3, 4
CHANNELS = HEADS * HEAD_DIM
TIME = 131
LENGTHS = (1, 2, 5, 13, TIME)  # shorter than the kernels, and longer


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


@pytest.fixture(params=[name for name in IMPLEMENTATIONS if name != "native"])  # no float64
def attend(request):
    return partial(composite_attention, impl=request.param)


@pytest.fixture(params=[False, True], ids=["centred", "causal"])
def causal(request):
    return request.param


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def queries_keys_values(queries, keys=None):
    """``[batch, heads, time, head_dim]`` each."""
    keys = keys or queries
    return (normal(BATCH, HEADS, time, HEAD_DIM) for time in (queries, keys, keys))


def padding(time):
    """One sentence without padding, one that ends with it, one that begins with it."""
    mask = torch.zeros(BATCH, time, dtype=torch.bool)
    mask[1, time - time // 3 :] = True
    mask[2, : time // 3] = True
    return mask


def visible(mask, queries, causal):
    """Which keys a query sees, ``[batch, 1, queries, keys]``."""
    keys = mask.size(1)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    return (seen.tril(keys - queries) if causal else seen) & ~mask[:, None, None]


def softmax_over(seen, scores):
    """Zeros where nothing is seen."""
    weights = scores.exp() * seen
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def distances(causal, span):
    """Those of a table's taps, r = j - i."""
    return range(-span, 1 if causal else span + 1)


def largest_difference(one, other):
    assert one.shape == other.shape
    difference = (one - other).abs().max().item()
    print(f"largest difference {difference:.1e}")
    return difference


def assert_agree(one, other):
    assert largest_difference(one, other) <= TOLERANCE


def assert_differ(one, other):
    assert largest_difference(one, other) > 0.01


# E1 and E2: attention without content, masked beyond the span, and convolutions.


def kernel_size(causal):
    return 6 if causal else 7


def heads_first(x):
    """``[time, batch, channels]`` -> ``[batch, heads, time, head_dim]``."""
    return x.unflatten(2, (HEADS, -1)).permute(1, 2, 0, 3)


def time_first(x):
    return x.permute(2, 0, 1, 3).flatten(2)


def tokens(time):
    """What is convolved, ``[time, batch, channels]``, zero at padding; and the padding."""
    mask = padding(time)
    return normal(time, BATCH, CHANNELS) * ~mask.T.unsqueeze(2), mask


def lightweight_logits(causal):
    """beta: ``[heads, taps]``."""
    return normal(HEADS, kernel_size(causal))


def query_term(causal):
    """W_Q: ``[heads, head_dim, channels]``, and wQ: ``[heads, taps, head_dim]``."""
    return normal(HEADS, HEAD_DIM, CHANNELS), normal(HEADS, kernel_size(causal), HEAD_DIM)


def generator_of(projection, table):
    """W_gen[h, r] = W_Q^h . wQ_r / sqrt(d): ``[heads, taps, channels]``."""
    return torch.einsum("hdc,hkd->hkc", projection, table) / math.sqrt(table.size(2))


def dynamic_logits(x, generator):
    return torch.einsum("tbc,hkc->tbhk", x, generator)


def fixed_attention(attend, x, mask, beta, causal):
    q, k, _ = queries_keys_values(x.size(0))  # no term looks at them
    options = {"causal": causal, "beyond": "mask", "padding_mask": mask}
    return time_first(attend(q, k, heads_first(x), {"fixed": beta}, **options))


def query_attention(attend, x, mask, projection, table, causal):
    q = torch.einsum("hdc,tbc->bhtd", projection, x)
    options = {"causal": causal, "beyond": "mask", "padding_mask": mask}
    return time_first(attend(q, normal(*q.shape), heads_first(x), {"query": table}, **options))


def inside_taps(mask, causal):
    return taps_inside(~mask.T, mask.size(1), kernel_size(causal), causal=causal)


def assert_equal_but_for_the_mass_outside(attention, convolution, logits, inside):
    """The convolution's rows are attention's times the softmax mass of the taps inside."""
    mass = (normalize_taps(logits, "softmax") * inside).sum(-1)  # [time, batch, heads]
    assert_agree(convolution, attention * mass.repeat_interleave(HEAD_DIM, dim=2))
    assert_differ(convolution, attention)


def test_e1_fixed_term_masked_beyond_the_span_is_a_lightweight_convolution_in_the_interior(
    attend, causal
):
    beta, (x, mask) = lightweight_logits(causal), tokens(TIME)
    attention = fixed_attention(attend, x, mask, beta, causal)
    convolution = lightweight_conv(x, normalize_taps(beta, "softmax"), causal=causal)
    interior = inside_taps(mask, causal).all(-1).squeeze(-1)
    assert interior.sum() > TIME
    assert_agree(attention[interior], convolution[interior])


def test_e1_fixed_term_masked_beyond_the_span_is_a_lightweight_convolution_at_the_edges_with_renorm(
    attend, causal
):
    beta = lightweight_logits(causal)
    for time in LENGTHS:
        x, mask = tokens(time)
        inside = inside_taps(mask, causal)
        taps = normalize_taps(beta.expand(time, BATCH, -1, -1), "softmax", inside)
        attention = fixed_attention(attend, x, mask, beta, causal)
        assert_agree(attention, dynamic_conv(x, taps, causal=causal))


def test_e1_without_renorm_the_convolution_at_the_edges_is_that_attention_times_the_mass_inside(
    attend, causal
):
    beta = lightweight_logits(causal)
    for time in LENGTHS[1:]:
        x, mask = tokens(time)
        assert_equal_but_for_the_mass_outside(
            fixed_attention(attend, x, mask, beta, causal),
            lightweight_conv(x, normalize_taps(beta, "softmax"), causal=causal),
            beta,
            inside_taps(mask, causal),
        )


def test_e2_query_term_masked_beyond_the_span_is_a_dynamic_convolution_in_the_interior(
    attend, causal
):
    projection, table = query_term(causal)
    x, mask = tokens(TIME)
    attention = query_attention(attend, x, mask, projection, table, causal)
    taps = normalize_taps(dynamic_logits(x, generator_of(projection, table)), "softmax")
    convolution = dynamic_conv(x, taps, causal=causal)
    interior = inside_taps(mask, causal).all(-1).squeeze(-1)
    assert interior.sum() > TIME
    assert_agree(attention[interior], convolution[interior])


def test_e2_query_term_masked_beyond_the_span_is_a_dynamic_convolution_at_the_edges_with_renorm(
    attend, causal
):
    projection, table = query_term(causal)
    for time in LENGTHS:
        x, mask = tokens(time)
        logits = dynamic_logits(x, generator_of(projection, table))
        taps = normalize_taps(logits, "softmax", inside_taps(mask, causal))
        attention = query_attention(attend, x, mask, projection, table, causal)
        assert_agree(attention, dynamic_conv(x, taps, causal=causal))


def test_e2_without_renorm_the_convolution_at_the_edges_is_that_attention_times_the_mass_inside(
    attend, causal
):
    projection, table = query_term(causal)
    for time in LENGTHS[1:]:
        x, mask = tokens(time)
        logits = dynamic_logits(x, generator_of(projection, table))
        assert_equal_but_for_the_mass_outside(
            query_attention(attend, x, mask, projection, table, causal),
            dynamic_conv(x, normalize_taps(logits, "softmax"), causal=causal),
            logits,
            inside_taps(mask, causal),
        )


def up_to_a_constant(logits, dim):
    """Without the mean over the taps, which their softmax does not see."""
    return logits - logits.mean(dim, keepdim=True)


def as_query_term(generator, head_dim):
    """W_Q and wQ whose generator is the nearest of rank ``head_dim`` (Eckart and Young)."""
    u, s, vh = torch.linalg.svd(up_to_a_constant(generator, 1), full_matrices=False)
    projection = s[:, :head_dim, None] * vh[:, :head_dim]
    return projection, u[:, :, :head_dim] * math.sqrt(head_dim)


def full_rank_generator(causal):
    generator = normal(HEADS, kernel_size(causal), CHANNELS)
    assert torch.linalg.matrix_rank(generator).tolist() == [kernel_size(causal)] * HEADS
    return generator


def test_e2_generator_rank_is_at_most_head_width(attend, causal):
    projection, table = query_term(causal)
    taps = kernel_size(causal)
    assert HEAD_DIM < taps - 1
    generator = generator_of(projection, table)
    assert torch.linalg.matrix_rank(generator).tolist() == [HEAD_DIM] * HEADS

    def spread(log_kernels):
        """Singular values, ``[heads, taps]``, of many positions' kernels."""
        return torch.linalg.svdvals(up_to_a_constant(log_kernels, -1).transpose(0, 1))

    x = normal(TIME, 1, CHANNELS)
    q = torch.einsum("hdc,tbc->bhtd", projection, x)
    every_weight = torch.eye(TIME, dtype=torch.float64).expand(1, HEADS, -1, -1)
    rows = attend(q, q, every_weight, {"query": table}, causal=causal, beyond="mask")
    left = taps - 1 if causal else taps // 2
    interior = range(left, TIME - (taps - 1 - left))
    kernels = [rows[0, :, i, i - left : i - left + taps].log() for i in interior]
    attention = spread(torch.stack(kernels))
    assert attention[:, HEAD_DIM - 1].min() > 0.1
    assert_agree(attention[:, HEAD_DIM:], torch.zeros(HEADS, taps - HEAD_DIM))

    logits = dynamic_logits(x, full_rank_generator(causal))
    convolution = spread(normalize_taps(logits, "softmax").log().squeeze(1))
    assert convolution[:, taps - 2].min() > 0.1  # the softmax takes one dimension, no more


def test_e2_full_rank_generator_is_not_expressible_by_heads_narrower_than_taps_minus_one(
    attend, causal
):
    generator = full_rank_generator(causal)
    singular = torch.linalg.svdvals(up_to_a_constant(generator, 1))
    x, mask = tokens(TIME)
    taps = normalize_taps(dynamic_logits(x, generator), "softmax", inside_taps(mask, causal))
    convolution = dynamic_conv(x, taps, causal=causal)
    for head_dim in (HEAD_DIM, kernel_size(causal) - 2):
        projection, table = as_query_term(generator, head_dim)
        missed = up_to_a_constant(generator, 1) - generator_of(projection, table)
        residual = torch.linalg.matrix_norm(missed)
        assert_agree(residual, singular[:, head_dim:].square().sum(1).sqrt())
        assert residual.min() > 0.1
        assert_differ(query_attention(attend, x, mask, projection, table, causal), convolution)


def test_e2_any_generator_is_expressible_by_heads_as_wide_as_taps_minus_one(attend, causal):
    generator = full_rank_generator(causal)
    x, mask = tokens(TIME)
    taps = normalize_taps(dynamic_logits(x, generator), "softmax", inside_taps(mask, causal))
    convolution = dynamic_conv(x, taps, causal=causal)
    for head_dim in (kernel_size(causal) - 1, kernel_size(causal)):
        projection, table = as_query_term(generator, head_dim)
        attention = query_attention(attend, x, mask, projection, table, causal)
        assert_agree(attention, convolution)


def layers(mixer, term, causal):
    """A convolution and composite attention as layers, with the same projections around them."""
    taps = HEAD_DIM + 1
    common = {"embed_dim": CHANNELS, "num_heads": HEADS, "causal": causal}
    convolution = MixerConfig(
        mixer=mixer, kernel_size=taps, glu=False, renorm_padding=True, **common
    )
    composite = MixerConfig(
        mixer="composite",
        attention_terms=(term,),
        attention_span=taps - 1 if causal else taps // 2,
        beyond_span="mask",
        share_tables_across_heads=False,
        **common,
    )
    convolution, composite = build_mixer(convolution).double(), build_mixer(composite).double()
    for parameter in convolution.parameters():
        torch.nn.init.normal_(parameter)
    composite.v_proj.load_state_dict(convolution.in_proj.state_dict())
    composite.out_proj.load_state_dict(convolution.out_proj.state_dict())
    return convolution, composite


@torch.no_grad()
def assert_layers_agree(convolution, composite):
    for time in LENGTHS:
        mask = padding(time)
        x = normal(time, BATCH, CHANNELS)
        one, other = (
            layer(x, x, x, key_padding_mask=mask)[0] for layer in (convolution, composite)
        )
        assert_agree(one[~mask.T], other[~mask.T])


def test_e1_lightweight_layer_without_glu_and_with_renorm_is_a_composite_layer(causal):
    convolution, composite = layers("lightweight", "fixed", causal)
    composite.terms.load_state_dict({"fixed": convolution.kernel})
    assert_layers_agree(convolution, composite)


def test_e2_dynamic_layer_without_glu_and_with_renorm_is_a_composite_layer(causal):
    """Its kernels read the projected values: W_Q = P W_V, where the generator is wQ P."""
    convolution, composite = layers("dynamic", "query", causal)
    generator = convolution.kernel_proj.weight.unflatten(0, (HEADS, -1))
    projection, table = as_query_term(generator, HEAD_DIM)
    composite.terms.load_state_dict({"query": table})
    weight, bias = convolution.in_proj.weight, convolution.in_proj.bias
    projections = {"weight": projection @ weight, "bias": projection @ bias}
    composite.q_proj.load_state_dict({name: p.flatten(0, 1) for name, p in projections.items()})
    assert_layers_agree(convolution, composite)


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


@pytest.mark.parametrize("taps", [1, 4, 7])
def test_e7_headwise_short_convolution_alone_is_a_dynamic_convolution_without_softmax(causal, taps):
    """Sieberling et al. 2026, section 3, without static kernel and residual: the layer
    ``dynamic`` with ``--weight-norm none``, no GLU, and the kernels predicted from the input."""
    config = MixerConfig(
        mixer="dynamic",
        embed_dim=CHANNELS,
        num_heads=HEADS,
        causal=causal,
        kernel_size=taps,
        glu=False,
        tap_norm="none",
    )
    layer = build_mixer(config).double()
    for time in LENGTHS:
        x, mask = normal(time, BATCH, CHANNELS), padding(time)
        y = layer.in_proj(x).masked_fill(mask.t().unsqueeze(-1), 0)
        kernels = layer.kernel_proj(y).unflatten(-1, (HEADS, taps))
        short = short_conv(y, kernels, causal=causal, residual=False)
        assert_agree(layer(x, key_padding_mask=mask)[0], layer.out_proj(short))


@pytest.mark.parametrize("taps", [1, 4, 7])
def test_e7_low_rank_short_convolution_of_one_rank_per_tap_and_head_is_headwise(causal, taps):
    """With up[(h, k), k', c] = 1 where k = k' and head(c) = h, z are the taps."""
    up = torch.eye(HEADS * taps, dtype=torch.float64).view(-1, HEADS, taps).transpose(1, 2)
    up = up.repeat_interleave(HEAD_DIM, 2)
    static = normal(CHANNELS, taps)
    for time in LENGTHS:
        x, kernels = normal(time, BATCH, CHANNELS), normal(time, BATCH, HEADS, taps)
        headwise = short_conv(x, kernels, static, causal=causal)
        assert_agree(
            low_rank_short_conv(x, kernels.flatten(2), up, static, causal=causal), headwise
        )
