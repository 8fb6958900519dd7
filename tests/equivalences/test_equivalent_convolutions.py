"""Where convolutions are composite attention (Chang et al. 2021) without content, masked beyond the
span. Every test states in its name what it shows."""

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
    TIME,
    assert_agree,
    assert_differ,
    kernel_size,
    lightweight_logits,
    normal,
    padding,
    queries_keys_values,
)

from fairseq_convattn.mixers import MixerConfig, build_mixer
from fairseq_convattn.ops import (
    dynamic_conv,
    lightweight_conv,
    low_rank_short_conv,
    normalize_taps,
    short_conv,
    taps_inside,
)

seed = equivalence_cases.seed
attend = equivalence_cases.attend
causal = equivalence_cases.causal


def heads_first(x):
    """``[time, batch, channels]`` -> ``[batch, heads, time, head_dim]``."""
    return x.unflatten(2, (HEADS, -1)).permute(1, 2, 0, 3)


def time_first(x):
    return x.permute(2, 0, 1, 3).flatten(2)


def tokens(time):
    """What is convolved, ``[time, batch, channels]``, zero at padding; and the padding."""
    mask = padding(time)
    return normal(time, BATCH, CHANNELS) * ~mask.T.unsqueeze(2), mask


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
