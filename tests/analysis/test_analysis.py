"""The analysis of checkpoints against the models' own modules."""

import math
import re
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from checkpoints_to_analyse import masked_lm, only_stack, save, translation
from fairseq import checkpoint_utils

from fairseq_convattn.analysis.checkpoint import analysis
from fairseq_convattn.analysis.report import analyse, findings, markdown
from fairseq_convattn.analysis.toeplitz import toeplitz_r2
from fairseq_convattn.checkpoints.checks import CheckpointError
from fairseq_convattn.checkpoints.legacy import convert_checkpoint
from fairseq_convattn.ops import composite_attention, lightweight_conv, normalize_taps


def embedded_positions(module, length: int) -> torch.Tensor:
    """What a model adds at the first positions of a text without padding."""
    return module(torch.full((1, length), 5))[0].detach().double()


def naive_head_r2(positions: torch.Tensor, query, key, heads: int) -> list[float]:
    """R^2 of F^ of each head, with F^ as attention computes its scores: projected, cut into
    heads, multiplied position by position."""
    n = len(positions)
    q = (positions @ query.T.double()).view(n, heads, -1).detach()
    k = (positions @ key.T.double()).view(n, heads, -1).detach()
    found = []
    for h in range(heads):
        rows = [[torch.dot(q[i, h], k[j, h]) for j in range(n)] for i in range(n)]
        found.append(toeplitz_r2(torch.tensor(rows)))
    return found


def head_r2(stack: dict) -> list[list[float]]:
    return [[head["overall"] for head in layer["heads"]] for layer in stack["attention"]]


def test_positions_and_heads_of_fairseqs_transformer(fairseqs_transformer):
    path = fairseqs_transformer / "checkpoint_last.pt"
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    result, tables = analysis(path, 16)
    assert list(tables) == ["encoder"]
    assert result["updates"] == 4
    kinds = {"encoder": ("learned", 40), "decoder": ("sinusoidal", 30)}
    for side, (kind, number) in kinds.items():
        stack, module = result["stacks"][side], getattr(model, side)
        positions = embedded_positions(module.embed_positions, number)
        found = stack["positions"]
        assert (found["kind"], found["number"], found["width"]) == (kind, number, 16)
        assert found["r2"]["overall"] == pytest.approx(toeplitz_r2(positions @ positions.T))
        first = positions[:16]
        assert found["r2"]["blocks"][0]["r2"] == pytest.approx(toeplitz_r2(first @ first.T))
        assert [layer["layers"] for layer in stack["attention"]] == [[0], [1]]
        expected = [
            naive_head_r2(
                positions, layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight, heads=4
            )
            for layer in module.layers
        ]
        for r2, layer in zip(head_r2(stack), expected, strict=True):
            assert r2 == pytest.approx(layer)
    assert result["stacks"]["decoder"]["positions"]["r2"]["overall"] == pytest.approx(1, abs=1e-6)
    assert "sinusoids" in result["stacks"]["decoder"]["notes"][0]
    assert not result["stacks"]["encoder"]["notes"]


def test_weights_and_options_as_older_checkpoints_have_them(fairseqs_transformer, tmp_path):
    """Options in parts or in a namespace; query, key and value in one."""
    state = torch.load(fairseqs_transformer / "checkpoint_last.pt")
    expected = head_r2(analysis_of(fairseqs_transformer / "checkpoint_last.pt"))
    parts = {"encoder": {"attention_heads": 4}, "decoder": {"attention_heads": 4}}
    assert head_r2(analysis_of(save(tmp_path / "a.pt", state["model"], parts))) == expected
    for layer in (0, 1):
        prefix = f"encoder.layers.{layer}.self_attn."
        weights = [state["model"].pop(f"{prefix}{x}_proj.weight") for x in "qkv"]
        state["model"][f"{prefix}in_proj_weight"] = torch.cat(weights)
    state["args"] = Namespace(encoder_attention_heads=4)
    torch.save({**state, "cfg": None}, tmp_path / "b.pt")
    assert head_r2(analysis_of(tmp_path / "b.pt")) == expected


def analysis_of(checkpoint: Path, stack: str = "encoder", block: int = 128) -> dict:
    return analysis(checkpoint, block)[0]["stacks"][stack]


def test_a_table_without_rows_of_padding_and_in_half_precision(tmp_path):
    table = torch.randn(20, 8).half()
    state = {"encoder.embed_positions.weight": table}
    _, tables = analysis(save(tmp_path / "a.pt", state, {}), 8)
    assert torch.equal(tables["encoder"], table.double())
    table[0] = 0  # BertDictionary has its padding there
    _, tables = analysis(save(tmp_path / "b.pt", state, {}), 8)
    assert torch.equal(tables["encoder"], table[1:].double())


def test_roberta_as_published(tmp_path):
    """Its stack was called decoder.sentence_encoder, its options the encoder's."""
    prefix = "decoder.sentence_encoder"
    state = {
        f"{prefix}.embed_positions.weight": torch.randn(20, 8),
        f"{prefix}.layers.0.self_attn.in_proj_weight": torch.randn(24, 8),
    }
    path = tmp_path / "model.pt"
    torch.save({"args": Namespace(encoder_attention_heads=2), "model": state}, path)
    result, _ = analysis(path, 128)
    assert len(head_r2(result["stacks"][prefix])[0]) == 2
    assert markdown([result]).startswith("encoder: ")


def test_sinusoids_alone_are_no_row_of_the_table(tmp_path):
    given = {"encoder_mixers": "lightweight", "decoder_mixers": "lightweight"}
    _, path = translation(tmp_path, **given, max_source_positions=2000)
    result, _ = analysis(path, 128)
    assert result["stacks"]["encoder"]["positions"]["number"] == 1024
    assert "|" not in markdown([result])


def test_positions_narrower_than_the_layers_and_shared_layers(tmp_path):
    model, path = masked_lm(
        tmp_path, encoder_mixers="attention", encoder_input_dim=8, share_encoder_layers="true"
    )
    encoder = model.encoder.sentence_encoder
    result = analysis_of(path, "encoder.sentence_encoder")
    positions = embedded_positions(encoder.embed_positions, 40)
    attention = encoder.layers[0].self_attn
    expected = naive_head_r2(
        positions @ encoder.project_embedding.weight.T, attention.q_proj.weight,
        attention.k_proj.weight, heads=4,
    )  # fmt: skip
    assert [layer["layers"] for layer in result["attention"]] == [[0, 1, 2]]
    assert head_r2(result)[0] == pytest.approx(expected)
    assert result["positions"]["width"] == 8
    assert any("through project_embedding.weight" in note for note in result["notes"])
    state = torch.load(path)
    del state["model"]["encoder.sentence_encoder.project_embedding.weight"]
    torch.save(state, path)
    result = analysis_of(path, "encoder.sentence_encoder")
    assert result["attention"] == [] and "8 wide" in result["notes"][0]


@pytest.mark.parametrize(
    "options",
    [
        {"query_key_projection": "separable"},
        {"attention_terms": "fixed,query,key"},
        {"attention_terms": "fixed,query"},
    ],
)
def test_no_r2_of_heads_that_do_not_multiply_linear_maps(options, tmp_path):
    _, path = masked_lm(
        tmp_path, encoder_mixers="composite,attention,composite",
        no_token_positional_embeddings="false", **options,
    )  # fmt: skip
    result = analysis_of(path, "encoder.sentence_encoder")
    assert [layer["layers"] for layer in result["attention"]] == [[1]]
    assert any(note.startswith("layers 0, 2: no R^2 per head") for note in result["notes"])


def test_r2_of_the_heads_of_composite_attention_with_a_content_term(tmp_path):
    _, path = masked_lm(
        tmp_path, encoder_mixers="composite,attention,composite", attention_terms="content,fixed",
        no_token_positional_embeddings="false",
    )  # fmt: skip
    assert [layer["layers"] for layer in only_stack(path)["attention"]] == [[0], [1], [2]]


def content_independent_scores(attention, distances: torch.Tensor, causal: bool):
    """f(j - i) of every head up to a constant, out of the operation itself."""
    terms = {
        name: value
        for name, value in attention.terms(torch.device("cpu")).items()
        if name not in ("content", "query", "key", "key_only")
    }
    n = int(distances.abs().max()) + 1
    zeros = torch.zeros(1, 4, n if causal else 2 * n - 1, 4, dtype=torch.double)
    identity = torch.eye(zeros.size(2), dtype=torch.double).expand(1, 4, -1, -1)
    weights = composite_attention(zeros, zeros, identity, terms, causal=causal)
    return weights[0, :, n - 1].detach().log()[:, distances + n - 1]


@pytest.mark.parametrize("term", ["fixed", "tisa", "t5", "kerple", "alibi"])
def test_curves_are_what_attention_adds(term, tmp_path):
    share = "true" if term == "tisa" else "false"
    model, path = translation(
        tmp_path, encoder_mixers="composite", decoder_mixers="composite",
        attention_terms=f"content,{term}", attention_span=3, share_tables_across_layers=share,
    )  # fmt: skip
    stacks = analysis(path, 128)[0]["stacks"]
    for side in ("encoder", "decoder"):
        causal = side == "decoder"
        found = stacks[side]["terms"]
        assert list(found) == [term] and not stacks[side]["positions"]
        together = share == "true" or term == "alibi"
        assert [x["layers"] for x in found[term]] == ([[0, 1]] if together else [[0], [1]])
        for curves in found[term]:
            farthest = 3 if term == "fixed" else 128
            right = 0 if causal else farthest
            assert curves["distances"] == list(range(-farthest, right + 1))
            distances, values = torch.tensor(curves["distances"]), torch.tensor(curves["heads"])
            near = distances.abs() <= 20  # where no weight is lost in rounding
            distances, values = distances[near], values[:, near]
            attention = getattr(model, side).layers[curves["layers"][0]].self_attn
            expected = content_independent_scores(attention, distances, causal)
            difference = values - expected
            shown = expected > -30
            spread = [row[s].max() - row[s].min() for row, s in zip(difference, shown, strict=True)]
            assert max(spread) < 1e-5


def test_alibi_is_where_composite_attention_is(tmp_path):
    """Also of layers that are kept, in any order: the checkpoint numbers them anew, and may have
    the last one first."""
    mixers = "attention,composite,tisa,composite"
    _, path = masked_lm(
        tmp_path, encoder_mixers=mixers, encoder_layers=4, attention_terms="content,alibi",
        encoder_layers_to_keep="3,0,1",
    )  # fmt: skip
    state = torch.load(path)
    torch.save({**state, "model": dict(reversed(state["model"].items()))}, path)
    (curves,) = only_stack(path)["terms"]["alibi"]
    assert curves["layers"] == [1, 2]
    slopes = [2**-2, 2**-4, 2**-6, 2**-8]  # Press et al. 2022: of four heads
    assert [head[128 - 3] for head in curves["heads"]] == [-3 * slope for slope in slopes]


def test_lengths_of_query_and_key_vectors(tmp_path):
    model, path = translation(
        tmp_path, encoder_mixers="composite", decoder_mixers="composite", attention_span=2,
        attention_terms="content,query,key",
    )  # fmt: skip
    for side, stack in analysis(path, 128)[0]["stacks"].items():
        taps = [-2, -1, 0] if side == "decoder" else [-2, -1, 0, 1, 2]
        terms = getattr(model, side).layers[0].self_attn.terms
        for name, table in (("query", terms.query[0]), ("key", terms.key[0].flip(0))):
            curves = stack["terms"][name][0]
            assert curves["distances"] == taps
            expected = [math.hypot(*vector) for vector in table.tolist()]
            assert curves["heads"] == [pytest.approx(expected)]


def test_kernels_are_the_response_to_an_impulse(tmp_path):
    model, path = translation(
        tmp_path, encoder_mixers="lightweight", decoder_mixers="lightweight,dynamic",
        encoder_kernel_sizes=[3, 7], decoder_kernel_sizes=[4, 5], weight_norm="tanh",
    )  # fmt: skip
    stacks = analysis(path, 128)[0]["stacks"]
    assert [x["layers"] for x in stacks["encoder"]["kernels"]["input"]] == [[0], [1]]
    assert [x["layers"] for x in stacks["decoder"]["kernels"]["input"]] == [[0]]
    assert "layer 1: no kernels of dynamic convolutions" in stacks["decoder"]["notes"][-1]
    for side, stack in stacks.items():
        for kernels in stack["kernels"]["input"]:
            distances, values = torch.tensor(kernels["distances"]), torch.tensor(kernels["heads"])
            kernel = getattr(model, side).layers[kernels["layers"][0]].self_attn.kernel.detach()
            impulse = torch.zeros(21, 1, 4, dtype=torch.double)
            impulse[10] = 1  # j = 10
            response = lightweight_conv(
                impulse, normalize_taps(kernel, "tanh"), causal=side == "decoder"
            ).float()
            torch.testing.assert_close(values, response[10 - distances, 0].T)  # i = j - distance
            assert response.abs().sum() == pytest.approx(values.abs().sum().item())


def test_kernels_of_convolved_projections(tmp_path):
    _, path = masked_lm(
        tmp_path, encoder_mixers="composite", query_key_projection="lightweight",
        value_projection="dynamic", attention_span=2,
    )  # fmt: skip
    stack = only_stack(path)
    assert list(stack["kernels"]) == ["queries", "keys"]
    first = stack["kernels"]["queries"][0]
    assert first["distances"] == [-2, -1, 0, 1, 2]
    assert [sum(head) for head in first["heads"]] == pytest.approx([1] * 4)
    assert "layers 0-2: no kernels of dynamic convolutions" in stack["notes"][0]


@pytest.mark.parametrize(
    "name", ["light/checkpoint_last.as_written.pt", "v062_light/checkpoint_last.pt"]
)
def test_kernels_of_2019_are_those_of_the_converted_checkpoint(name, shared, tmp_path):
    old, new = shared / "legacy" / name, tmp_path / "new.pt"
    convert_checkpoint(old, new)
    results = [analysis(path, 128)[0] for path in (old, new)]
    assert results[0]["stacks"] == results[1]["stacks"]
    assert results[0]["updates"] == 600
    kernels = results[0]["stacks"]["decoder"]["kernels"]["input"]
    assert [layer["distances"][0] for layer in kernels] == [-2, -6, -30]
    for layer in kernels:
        assert layer["distances"][-1] == 0
        assert [sum(head) for head in layer["heads"]] == pytest.approx([1] * 4)


def test_language_model_of_2019(shared):
    stack = analysis_of(shared / "legacy" / "lm" / "checkpoint_last.pt", "decoder")
    assert stack["positions"]["number"] == 64 and stack["kernels"] == {}
    assert "layers 0-2: no kernels of dynamic convolutions" in stack["notes"][-1]


def test_a_constant_table_has_no_r2(tmp_path):
    state = {"encoder.embed_positions.weight": torch.ones(5, 4)}
    results, _ = analyse([save(tmp_path / "a.pt", state, {})], block=4)
    r2 = results[0]["stacks"]["encoder"]["positions"]["r2"]
    assert r2["overall"] is None and r2["blocks"][1]["r2"] is None
    assert "| 0-4 | – |" in markdown(results)


def test_findings_are_sentences_with_numbers():
    r2 = [{"overall": -0.001}, {"overall": None}, {"overall": 0.75}]
    curves = [[0, 1, 5], [3, 1, 0], [0, 2, 0], [1, 1, 4]]  # highest after, before, at, after
    stack = {
        "positions": {"number": 40, "width": 16, "kind": "learned", "r2": {"overall": 0.125}},
        "attention": [{"layers": [1], "heads": r2}],
        "terms": {"fixed": [{"layers": [0, 2], "distances": [-1, 0, 1], "heads": curves}]},
        "kernels": {"input": [{"layers": [3], "distances": [-2, 0], "heads": [[0.25, 0.75]]}]},
    }
    numbers = [
        re.findall(r"[+-]?\d+(?:\.\d+)?", line.replace("R^2", "")) for line in findings(stack)
    ]
    assert numbers == [
        ["40", "16", "0.12", "0.31"],
        ["2", "0.37", "0.00", "1", "0", "0.75", "1", "2"],  # of layer 1, heads 0 and 2
        ["0", "2", "1", "4", "1", "2", "5.00", "+1", "0", "2", "0"],
        ["0.5", "3"],
    ]
    stack["positions"]["r2"]["overall"] = -0.001
    assert "R^2 = 0.00 with" in next(findings(stack))
    stack["positions"]["r2"]["overall"] = None
    assert "0.31" not in next(findings(stack))


@pytest.mark.parametrize("term, is_norm", [("query", True), ("key", True), ("fixed", False)])
def test_vectors_are_told_by_their_norm(term, is_norm):
    curves = [{"layers": [0], "distances": [0, 1], "heads": [[1, 2]]}]
    others = {"positions": None, "attention": [], "kernels": {}}
    (line,) = findings({**others, "terms": {term: curves}})
    assert ("norm" in line) == is_norm


def test_what_cannot_be_analysed(tmp_path):
    """``conv.weight`` is not fairseq's lightconv alone."""
    for name, weight in (("fc1", torch.ones(2, 2)), ("conv", torch.ones(2, 1, 3))):
        path = save(tmp_path / "a.pt", {f"encoder.layers.0.{name}.weight": weight}, {})
        with pytest.raises(CheckpointError, match="a.pt: there is nothing to analyse: no position"):
            analysis(path, 8)


@pytest.mark.parametrize(
    "options",
    [
        {"encoder_mixers": "lightweight", "weight_norm": "unknown"},
        {"encoder_mixers": "lightweight,tisa", "encoder_layers_to_keep": "first"},
    ],
)
def test_options_that_do_not_fit_the_weights(tmp_path, options):
    weights = {"encoder.layers.0.self_attn.kernel": torch.randn(2, 3)}
    path = save(tmp_path / "a.pt", weights, {"encoder_attention_heads": 2, **options})
    with pytest.raises(CheckpointError, match="a.pt: its options or weights do not fit: ValueErr"):
        analysis(path, 8)


def test_several_checkpoints_are_of_one_model_and_ordered_by_updates(tmp_path):
    def saved(updates: int | None, number: int = 5) -> Path:
        weights = {"encoder.embed_positions.weight": torch.randn(number, 4)}
        return save(tmp_path / f"{updates}-{number}.pt", weights, {}, updates)

    paths = [saved(updates) for updates in (30, 9, 200, 10)]
    results, last = analyse(paths, 128)
    assert [result["updates"] for result in results] == [9, 10, 30, 200]
    assert torch.equal(last["encoder"], analysis(paths[2], 128)[1]["encoder"])
    assert analyse([saved(None)], 128)[0][0]["updates"] is None
    with pytest.raises(CheckpointError, match="None-5.pt does not say after how many updates"):
        analyse([paths[0], saved(None)], 128)
    with pytest.raises(CheckpointError, match="5-6.pt and .*30-5.pt are not of the same model"):
        analyse([paths[0], saved(5, number=6)], 128)
