"""CUDA graphs of decoding steps find what decoding without them finds.

On a CPU a stand-in repeats the operations of a step.
"""

import copy
from argparse import Namespace

import pytest
import torch
from conftest import random_tokens, task_of
from fairseq.sequence_generator import SequenceGenerator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairseq_convattn.architectures import ConvAttnLanguageModel, ConvAttnModel
from fairseq_convattn.architectures.step_graphs import BATCH, CudaGraph, StepGraphs, suits_graphs
from fairseq_convattn.mixers.convolution import DynamicConvolution
from fairseq_convattn.ops import use_implementation

VARIANTS = {
    "dynamic": {},
    "lightweight": {},
    "dynamic,lightweight": {"decoder_kernel_sizes": "1,5"},
    "dynamic + renorm": {"renorm_padding": True},
    "dynamic + l2": {"tap_norm": "l2", "conv_bias": True},
    "dynamic + learned positions": {"decoder_learned_pos": True, "activation_fn": "gelu"},
    "dynamic + projections": {
        "decoder_output_dim": 12,
        "decoder_normalize_before": True,
        "layernorm_embedding": True,
    },
}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Tape(TorchDispatchMode):
    """What a CUDA graph does, on a CPU: it repeats the operations of the first step, nothing of
    Python's, on the very tensors of then. What would wait for a GPU is refused."""

    def __init__(self, step):
        super().__init__()
        self.step, self.operations, self.outputs = step, [], None

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        waits = ("_local_scalar_dense", "equal", "nonzero", "masked_select")
        assert operation.overloadpacket.__name__ not in waits
        result = operation(*args, **(kwargs or {}))
        if isinstance(result, (torch.Tensor, tuple)) and not is_view(result, args):
            self.operations.append((operation, args, kwargs or {}, result))
        return result

    @torch.inference_mode()
    def run(self):
        if self.outputs is None:
            with self:
                self.outputs = self.step()
            return self.outputs
        for operation, args, kwargs, result in self.operations:
            found = operation(*args, **kwargs)
            if not operation._schema.is_mutable:
                for old, new in zip(tree_leaves(result), tree_leaves(found), strict=True):
                    old.copy_(new)
        return self.outputs


def is_view(result, args):
    memory = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
    alike = isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() in memory
    return alike and all(result is not x for x in args)


class Counting:
    """Makes such graphs, and counts them and their steps."""

    def __init__(self):
        self.graphs = self.steps = 0

    def __call__(self, step):
        self.graphs += 1
        tape = Tape(step)

        def counted():
            self.steps += 1
            return tape.run()

        return counted


def model(variant, seed=15, **options):
    torch.manual_seed(seed)
    args = Namespace(
        encoder_embed_dim=16,
        encoder_ffn_embed_dim=24,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_layers=1,
        decoder_layers=2,
        decoder_mixers=variant.partition(" + ")[0],
        **{"decoder_kernel_sizes": "3,7", **VARIANTS.get(variant, {}), **options},
    )
    net = ConvAttnModel.build_model(args, task_of()).eval()
    return randomized(net)


def randomized(net):
    for parameter in net.parameters():  # hypotheses of fresh models hardly differ
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=1.5 * parameter.size(-1) ** -0.5)
        else:
            parameter.data += 0.2 * torch.randn_like(parameter)
    return net


def batch(sentences, longest):
    """Sentences of many lengths, left-padded as fairseq pads them."""
    dictionary = task_of().source_dictionary
    lengths = torch.randint(1, longest + 1, (sentences,)).sort(descending=True).values
    lengths[0] = longest
    tokens = random_tokens(dictionary, sentences, longest)
    for row, length in zip(tokens, lengths, strict=True):
        row[: longest - length] = dictionary.pad()
    return {"net_input": {"src_tokens": tokens, "src_lengths": lengths}}


def batches():
    torch.manual_seed(2)
    return [batch(*sizes) for sizes in ((12, 5), (12, 5), (8, 7), (16, 3), (1, 17), (12, 18))]


def found(models, samples, beam=3, **options):
    dictionary = task_of().target_dictionary
    search = SequenceGenerator(
        models, dictionary, beam_size=beam, max_len_a=1, max_len_b=9, **options
    )
    return [search.generate(models, sample) for sample in samples]


def with_graphs(models, record=None, device="cpu"):
    record = record or Counting()
    for net in models:
        net.decoder.step_graphs = StepGraphs(record, device)
    return record


def assert_same(actual, expected, **tolerances):
    for ours, theirs in zip(actual, expected, strict=True):
        for hypotheses, others in zip(ours, theirs, strict=True):
            for a, e in zip(hypotheses, others, strict=True):
                assert torch.equal(a["tokens"], e["tokens"])
                for name in ("score", "positional_scores", "attention"):
                    torch.testing.assert_close(a[name], e[name], **tolerances)


@pytest.mark.parametrize("variant", VARIANTS)
def test_beam_search_finds_the_same(variant):
    net, samples = model(variant), batches()
    expected = found([net], samples)
    record = with_graphs([net])
    assert_same(found([net], samples), expected)
    assert record.steps > 30
    lengths = [{max(len(h["tokens"]) for h in sentence) for sentence in each} for each in expected]
    assert max(map(len, lengths)) > 1  # sentences ended at different steps


@pytest.mark.parametrize(
    "options", [{"beam": 1}, {"beam": 4, "min_len": 5, "unk_penalty": 1}], ids=str
)
def test_other_searches_find_the_same(options):
    net, samples = model("dynamic"), batches()
    expected = found([net], samples, **options)
    record = with_graphs([net])
    assert_same(found([net], samples, **options), expected)
    assert record.steps > 30


def test_bfloat16_finds_the_same():
    net, samples = model("dynamic").bfloat16(), batches()
    expected = found([net], samples)
    record = with_graphs([net])
    assert_same(found([net], samples), expected)
    assert record.steps > 30


def test_ensembles_find_the_same():
    models, samples = (
        [model("dynamic"), model("lightweight", seed=16), model("attention")],
        batches(),
    )
    expected = found(models, samples)
    record = with_graphs(models[:2])
    assert_same(found(models, samples), expected)
    assert record.steps > 60


def test_language_models_find_the_same():
    args = Namespace(
        decoder_embed_dim=16, decoder_ffn_embed_dim=24, decoder_attention_heads=4,
        decoder_layers=2, decoder_mixers="dynamic", decoder_kernel_sizes="3,7",
        max_target_positions=64,
    )  # fmt: skip
    torch.manual_seed(5)
    net = randomized(ConvAttnLanguageModel.build_model(args, task_of()).eval())
    tokens = random_tokens(task_of().source_dictionary, 4, 3)
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([3] * 4)}}

    def continued():
        search = SequenceGenerator([net], task_of().target_dictionary, beam_size=3, max_len_b=9)
        return [search.generate([net], sample, prefix_tokens=tokens)]

    expected = continued()
    record = with_graphs([net])
    assert_same(continued(), expected)
    assert record.steps > 5


def test_a_graph_serves_the_batches_that_it_can_take():
    net = model("dynamic")
    record = with_graphs([net])
    torch.manual_seed(2)
    for sizes, graphs in (
        ((6, 5), 1), ((6, 8), 1), ((4, 2), 1), ((7, 5), 2), ((3, 5), 3), ((3, 9), 4), ((3, 16), 4),
        ((3, 4), 4), ((3, 3), 5),
    ):  # fmt: skip
        found([net], [batch(*sizes)])
        assert record.graphs == graphs, sizes
    old = net.decoder.layers[0].fc1.weight
    net.decoder.layers[0].fc1.weight = torch.nn.Parameter(old.detach().clone())
    found([net], [batch(3, 3)])
    assert record.graphs == 6
    found([net], [batch(2, 3)], beam=4)
    assert record.graphs == 7


def test_weights_of_another_type_in_the_same_memory_get_another_graph():
    net = model("dynamic").bfloat16()
    record = with_graphs([net])
    found([net], batches()[:1])
    for weight in net.parameters():
        weight.data = weight.data.view(torch.float16)
    found([net.half()], batches()[:1])
    assert record.graphs == 2


def steps(net, sample, orders, alignment_layer=None, state=None):
    """Features of successive steps, before each of them any new orders of hypotheses."""
    encoder_out = net.encoder(**sample["net_input"])
    state = {} if state is None else state
    torch.manual_seed(3)
    rows = len(sample["net_input"]["src_tokens"])
    outputs, tokens = [], random_tokens(task_of().target_dictionary, rows, 1)
    for i, successive in enumerate(orders):
        for order in map(torch.tensor, successive):
            net.decoder.reorder_incremental_state_scripting(state, order)
            encoder_out = net.encoder.reorder_encoder_out(encoder_out, order)
            tokens = tokens[order]
        options = {"alignment_layer": alignment_layer} if i == 5 else {}
        features, extra = net.decoder(
            tokens, encoder_out=encoder_out, incremental_state=state, features_only=True, **options
        )
        outputs += [features, extra["attn"][0]]
        following = random_tokens(task_of().target_dictionary, len(tokens), 1)
        if i == 2:
            following[0] = task_of().target_dictionary.pad()
        tokens = torch.cat([tokens, following], dim=1)
    return outputs


@torch.no_grad()
@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("variant", ["dynamic", "dynamic + renorm"])
def test_any_new_orders_and_other_alignments_are_right(variant, beams):
    """What a graph cannot follow goes on without it."""
    net = model(variant)
    net.set_beam_size(beams)
    torch.manual_seed(2)
    sample = batch(4, 5)
    for name, tensor in sample["net_input"].items():
        sample["net_input"][name] = tensor.repeat_interleave(beams, dim=0)
    swapped = list(range(4 * beams))
    swapped[:beams] = swapped[:beams][::-1]
    first_twice = [0] * beams + swapped[beams:]
    without_first, last = swapped[beams:], swapped[-beams:]
    across, more = swapped[::-1][1:], swapped + swapped[:beams]
    for orders, layer in (
        ([[], [], [swapped], [], [swapped], [], []], 0),
        ([[], [], [], [first_twice, swapped], [], [swapped, without_first], []], 0),
        ([[], [swapped], [], [without_first], [], [], []], None),
        ([[], [], [], [last], [], []], None),
        ([[], [], [], [first_twice, across], [], []], None),
        ([[], [], [], [more], [], [], []], None),
    ):
        net.decoder.step_graphs = None
        expected = steps(net, sample, orders, layer)
        record = with_graphs([net])
        for actual, e in zip(steps(net, sample, orders, layer), expected, strict=True):
            torch.testing.assert_close(actual, e)
        assert record.steps >= 2


@torch.no_grad()
def test_two_batches_at_once_have_graphs_of_their_own():
    net = model("dynamic")
    torch.manual_seed(2)
    samples, states = [batch(3, 4), batch(3, 4)], [{}, {}]
    expected = [steps(net, sample, [[]] * 4) for sample in samples]
    record = with_graphs([net])
    actual = [
        steps(net, sample, [[]] * 4, state=state)
        for sample, state in zip(samples, states, strict=True)
    ]
    torch.testing.assert_close(actual, expected)
    assert record.graphs == 2 and BATCH in states[0] and BATCH in states[1]


@torch.no_grad()
def test_a_batch_that_stops_leaves_nothing_to_the_next():
    net, state = model("dynamic"), {}
    torch.manual_seed(2)
    sample = batch(3, 4)
    expected = steps(net, sample, [[]] * 4)
    record = with_graphs([net])
    steps(net, sample, [[]] * 3, state=state)
    net.decoder.reorder_incremental_state_scripting(state, torch.tensor([2, 1, 0]))
    del state
    torch.testing.assert_close(steps(net, sample, [[]] * 4), expected)
    assert record.graphs == 1


@torch.no_grad()
def test_too_few_tokens_are_refused_as_without_a_graph():
    net, state = model("dynamic"), {}
    record = with_graphs([net])
    steps(net, batch(3, 4), [[]] * 3, state=state)
    with pytest.raises(ValueError, match="must have the batch"):
        steps(net, batch(2, 4), [[]], state=state)
    assert record.graphs == 1


@torch.no_grad()
def test_a_state_that_others_share_gets_no_graph():
    net, state = model("dynamic"), {"another": {}}
    record = with_graphs([net])
    steps(net, batch(3, 4), [[]] * 3, state=state)
    assert "another" in state and record.graphs == 0


def test_inference_mode_and_what_follows():
    net, samples = model("dynamic"), batches()[:2]
    expected = found([net], samples)
    record = with_graphs([net])
    for mode in (True, False, True):
        with torch.inference_mode(mode):
            assert_same(found([net], samples), expected)
    assert record.graphs == 1


def test_what_graphs_cannot_do_goes_without(monkeypatch):
    samples = batches()[:1]
    net = model("dynamic")
    record = with_graphs([net])
    with use_implementation("reference"):
        found([net], samples)
    with torch.autocast("cpu", torch.bfloat16):
        found([net], samples)
    steps(net, samples[0], [[]] * 3)  # with gradients
    with torch.no_grad():
        steps(net.train(), samples[0], [[]] * 3)
        net.eval()
        with torch.autograd.forward_ad.dual_level():
            steps(net, samples[0], [[]] * 3)
        with monkeypatch.context() as patch:  # torch.compile itself takes half a minute
            patch.setattr(torch.compiler, "is_compiling", lambda: True)
            steps(net, samples[0], [[]] * 3)
    net.decoder.step_graphs.device = "cuda"
    found([net], samples)
    assert record.graphs == 0


@pytest.mark.parametrize(
    "mixers, built, prepared, expected",
    [
        ("dynamic", {}, {}, True),
        ("dynamic,lightweight", {}, {}, True),
        ("dynamic,attention", {}, {}, False),
        ("dynamic", {"decoder_layerdrop": 0.999}, {}, True),
        ("dynamic,attention", {"decoder_layerdrop": 0.999}, {}, False),
        ("dynamic", {"checkpoint_activations": True}, {}, False),
        ("dynamic", {}, {"retain_dropout": True}, False),
    ],
)
def test_decoders_that_get_graphs(mixers, built, prepared, expected):
    net = model(mixers, **built).train()
    assert net.decoder.step_graphs is None
    net.make_generation_fast_(**prepared)
    assert (net.decoder.step_graphs is not None) == expected


def test_copies_begin_without_a_graph():
    net = model("dynamic")
    with_graphs([net])
    expected = found([net], batches()[:1])
    twin = copy.deepcopy(net)
    assert net.decoder.step_graphs.last is not None and twin.decoder.step_graphs.last is None
    assert_same(found([twin], batches()[:1]), expected)


@needs_gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_on_a_gpu(variant):
    net = model(variant).cuda()
    samples = [
        {"net_input": {name: x.cuda() for name, x in sample["net_input"].items()}}
        for sample in batches()
    ]
    expected = found([net], samples * 2)
    with_graphs([net], CudaGraph, "cuda")
    assert_same(found([net], samples * 2), expected, rtol=1e-4, atol=1e-4)
    assert net.decoder.step_graphs.last.run._graph is not None


def test_a_mixer_that_remembers_more_is_decoded_without_graphs():
    class Counting(DynamicConvolution):
        def mix(self, x, padding_mask, state):
            if state is not None:
                state["seen"] = state.get("seen", 0) + x.new_ones(x.size(1))
            return super().mix(x, padding_mask, state)

    net = model("dynamic")
    assert suits_graphs(net.decoder)
    net.decoder.layers[0].self_attn.__class__ = Counting
    assert not suits_graphs(net.decoder)
