"""Exported programs give the model's numbers, at other sizes than those of the export."""

import copy
import functools
import inspect
import os
import shutil
import subprocess
import sys
from argparse import Namespace

import numpy
import pytest
import torch
from conftest import SHRUNK_LM, random_tokens, task_of, train
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.models.roberta import RobertaModel

from fairseq_convattn.architectures import ConvAttnMaskedLanguageModel, ConvAttnModel
from fairseq_convattn.export import export
from fairseq_convattn.export.__main__ import main

SOURCE, TARGET = 11, 23
slow = pytest.mark.slow
MIXERS = [
    "dynamic,attention",
    pytest.param("composite,lightweight", marks=slow),
    pytest.param("tisa", marks=slow),
    pytest.param("dynamic", marks=slow),
]
OPTIONS = {
    "plain": {},
    "renormalised, windowed, injected": {
        "renorm_padding": True,
        "beyond_span": "mask",
        "attention_span": 3,
        "attention_terms": "content,fixed,query",
        "query_key_projection": "separable",
        "value_projection": "dynamic",
        "value_conv": "scaled",
    },
    "learned positions, pre-norm": {
        "encoder_learned_pos": True,
        "decoder_learned_pos": True,
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
    },
    **{
        f"{kind} short convolutions": {
            "short_convolution": kind,
            "short_convolution_on": "qkvo12",
            "short_convolution_taps": 3,
        }
        for kind in ("static", "headwise", "low_rank")
    },
}


def built(mixers, **options):
    torch.manual_seed(5)
    task = task_of()
    sizes = {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 24, "encoder_layers": 2}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_layers": 2}
    args = Namespace(**sizes, **heads, encoder_mixers=mixers, decoder_mixers=mixers, **options)
    return ConvAttnModel.build_model(args, task).eval(), task.source_dictionary


def sentences(dictionary, batch, time):
    """The first begins with padding."""
    tokens = random_tokens(dictionary, batch, time)
    tokens[0, : time // 3] = dictionary.pad()
    return tokens


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    print(f"largest difference {(actual - expected).abs().max().item():.1e}")


def check_translation(net, dictionary, encode, step, start):
    """``encode`` and ``step`` are programs that take and give lists of tensors."""
    source = sentences(dictionary, 3, SOURCE)
    previous = random_tokens(dictionary, 3, TARGET)
    encoder_out = net.encoder(source, None)
    x, padding, *memory = encode(source)
    assert torch.equal(padding, encoder_out["encoder_padding_mask"][0])
    assert_close(x[~padding.T], encoder_out["encoder_out"][0][~padding.T])
    whole = net.get_normalized_probs(net.decoder(previous, encoder_out), log_probs=True)
    state = [x.expand(3, *x.shape[1:]).contiguous() for x in start]
    for t in range(TARGET):
        scores, *state = step(previous[:, t : t + 1], torch.tensor(t), *state, padding, *memory)
        assert_close(scores, whole[:, t])


def flat(values):
    return [x for y in values for x in (flat(y) if isinstance(y, (tuple, list)) else [y])]


def programs_of(net):
    """Those of torch.export, called with flat lists."""
    programs, start = export(net)
    encoder, step = (programs[name].module() for name in ("encoder", "step"))
    n = len(start)

    def run_step(token, position, *rest):
        return flat(step(token, position, list(rest[:n]), rest[n], list(rest[n + 1 :])))

    return (lambda tokens: flat(encoder(tokens))), run_step, start, programs


@functools.cache
def exported(mixers):
    return programs_of(built(mixers)[0])


@torch.no_grad()
@pytest.mark.parametrize("mixers", MIXERS)
def test_encoder_and_step(mixers):
    net, dictionary = built(mixers)
    *callables, programs = exported(mixers)
    check_translation(net, dictionary, *callables)
    for program in programs.values():
        # AOTInductor takes the examples' strides for those of all inputs
        assert all(x.is_contiguous() for x in flat(program.example_inputs[0]))
        # they run where this package is not
        assert not [node for node in program.graph.nodes if "convattn" in str(node.target)]


@torch.no_grad()
@pytest.mark.parametrize("options", [pytest.param(x, marks=slow) for x in list(OPTIONS)[1:]])
def test_encoder_and_step_with(options):
    mixers = "composite,lightweight" if "injected" in options else "dynamic,attention"
    net, dictionary = built(mixers, **OPTIONS[options])
    *callables, _ = programs_of(built(mixers, **OPTIONS[options])[0])
    check_translation(net, dictionary, *callables)


@pytest.mark.slow
@torch.no_grad()
def test_masked_language_models():
    shape = {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 24, "encoder_layers": 2}
    task = task_of()
    dictionary = task.source_dictionary
    args = {**shape, "encoder_attention_heads": 4, "encoder_mixers": "tisa,dynamic"}
    net = ConvAttnMaskedLanguageModel.build_model(Namespace(**args), task).eval()
    programs, start = export(copy.deepcopy(net))
    assert (list(programs), start) == (["model"], [])
    given = sentences(dictionary, 3, SOURCE)
    expected = net.get_normalized_probs(net(given), log_probs=True)
    real = given != dictionary.pad()
    assert_close(programs["model"].module()(given)[real], expected[real])


@torch.no_grad()
def test_states_follow_their_hypotheses():
    """Reordered by index_select, as :class:`Step` says."""
    net, dictionary = built("dynamic,attention")
    encode, step, start, _ = exported("dynamic,attention")
    source = sentences(dictionary, 1, SOURCE).expand(4, -1).contiguous()
    previous = random_tokens(dictionary, 4, 9)
    order = torch.tensor([2, 0, 0, 3])
    _, padding, *memory = encode(source)
    state = [x.expand(4, *x.shape[1:]).contiguous() for x in start]
    for t in range(9):
        if t == 6:
            state = [x.index_select(0, order) for x in state]
        scores, *state = step(previous[:, t : t + 1], torch.tensor(t), *state, padding, *memory)
    seen = torch.cat([previous[order, :6], previous[:, 6:]], dim=1)
    whole = net.get_normalized_probs(net.decoder(seen, net.encoder(source, None)), log_probs=True)
    assert_close(scores, whole[:, -1])


ALONE = """
import sys
sys.modules["fairseq"] = sys.modules["fairseq_convattn"] = None
import numpy, torch
{}
torch.save(run_language_model(sys.argv[1], torch.load(sys.argv[2])), sys.argv[2])
"""


def run_language_model(folder, tokens):
    """The scores of the exported programs, of which the step's are the whole model's."""
    model, step = (torch.export.load(f"{folder}/{x}.pt2").module() for x in ("model", "step"))
    start = numpy.load(f"{folder}/start.npz").values()
    state = [torch.from_numpy(x).expand(len(tokens), *x.shape[1:]).contiguous() for x in start]
    whole = model(tokens)
    for t in range(tokens.size(1)):
        scores, state = step(tokens[:, t : t + 1], torch.tensor(t), state)
        assert (scores - whole[:, t]).abs().max() < 1e-5
    return whole


@pytest.fixture(scope="module")
def language_model(monolingual, tmp_path_factory):
    folder = tmp_path_factory.mktemp("language_model")
    given = ("--task", "language_modeling", "--arch", "dynamic_conv_lm_tiny", *SHRUNK_LM)
    given += ("--decoder-layers", "1", "--decoder-kernel-sizes", "5")
    train(monolingual, folder, *given, "--tokens-per-sample", "30", "--max-update", "1")
    return folder / "checkpoint_last.pt"


@torch.no_grad()
@pytest.mark.parametrize("alone", [False, pytest.param(True, marks=slow)])
def test_command_exports_a_language_model(language_model, tmp_path, alone):
    """It runs in a process without fairseq and this package, too."""
    main([str(language_model), "--output", str(tmp_path / "exported")])
    (net,), _, task = load_model_ensemble_and_task([str(language_model)])
    tokens = torch.randint(4, len(task.target_dictionary), (3, 17))
    expected = net.eval().get_normalized_probs(net(tokens), log_probs=True)
    if alone:
        torch.save(tokens, tmp_path / "tokens")
        code = ALONE.format(inspect.getsource(run_language_model))
        given = [str(tmp_path / name) for name in ("exported", "tokens")]
        subprocess.run([sys.executable, "-c", code, *given], check=True, cwd=tmp_path)
        actual = torch.load(tmp_path / "tokens")
    else:
        actual = run_language_model(tmp_path / "exported", tokens)
    assert_close(actual, expected)


def test_dictionaries_beside_the_checkpoint_are_the_models(
    language_model, monolingual, tmp_path, monkeypatch
):
    """As in a packed folder, whose checkpoint names none."""
    state = torch.load(language_model)
    state["cfg"]["task"]["data"] = "."
    (tmp_path / "packed").mkdir()
    torch.save(state, tmp_path / "packed" / "model.pt")
    monkeypatch.chdir(tmp_path)
    given = tmp_path / "packed" / "model.pt"
    fails([given], "dict.txt", "--data is the folder of the dictionaries")
    fails([given, "--data", tmp_path], f"no dictionary (dict*.txt, input0/dict.txt) in {tmp_path}")
    shutil.copyfile(monolingual / "dict.txt", tmp_path / "packed" / "dict.txt")
    monkeypatch.setattr(sys.modules[main.__module__], "export", lambda model: ({}, []))
    main([str(given), "--output", str(tmp_path / "exported")])
    assert not list((tmp_path / "exported").iterdir())
    shards = os.pathsep.join([str(monolingual), str(tmp_path)])
    main([str(language_model), "--data", shards, "--output", str(tmp_path / "again")])


def test_the_languages_are_those_of_the_training(trained, data, tmp_path, monkeypatch):
    for name in ("dict.src.txt", "dict.tgt.txt"):
        shutil.copyfile(data / name, tmp_path / name)
    shutil.copyfile(trained, tmp_path / "model.pt")
    models = []
    monkeypatch.setattr(
        sys.modules[main.__module__], "export", lambda model: (models.append(model) or {}, [])
    )
    main([str(tmp_path / "model.pt"), "--output", str(tmp_path / "exported")])
    assert len(models) == 1


def fails(given, *causes):
    """The line of an export that fails, and leaves nothing."""
    output = given[0].with_name("failed")
    with pytest.raises(SystemExit) as it:
        main([str(x) for x in (given[0], "--output", output, *given[1:])])
    line = str(it.value)
    assert line.startswith("error: ") and "\n" not in line
    assert all(cause in line for cause in causes), line
    assert not output.exists() and not list(output.parent.glob(".writing-*"))


def test_a_decoder_that_attends_to_its_source_by_itself_is_refused():
    net, _ = built("attention", cross_self_attention=True)
    with pytest.raises(ValueError, match="--cross-self-attention"):
        export(net)


def test_fairseqs_masked_language_model_is_refused():
    with pytest.raises(ValueError, match="RobertaModel is not a model of this plugin"):
        export(RobertaModel.__new__(RobertaModel))


def test_another_packages_model_is_refused(monolingual, tmp_path):
    given = ("--task", "language_modeling", "--arch", "transformer_lm", "--decoder-embed-dim", "8")
    given += ("--decoder-layers", "1", "--tokens-per-sample", "30", "--max-update", "1")
    train(monolingual, tmp_path, *given)
    fails([tmp_path / "checkpoint_last.pt"], "is not a model of this plugin")


def test_what_fails_is_said_in_a_line(language_model, tmp_path, monkeypatch):
    state = torch.load(language_model)
    torch.save({**state, "cfg": {"task": {"_name": "sentence_prediction"}}}, tmp_path / "tuned.pt")
    fails([tmp_path / "tuned.pt"], "tuned.pt: a fine-tuned classifier cannot be exported")
    (tmp_path / "text.pt").write_text("text")
    fails([tmp_path / "text.pt"], "text.pt: it is not a checkpoint")
    del state["model"]["decoder.embed_tokens.weight"]
    torch.save(state, tmp_path / "without.pt")
    fails([tmp_path / "without.pt"], "without.pt cannot be loaded: ", "embed_tokens.weight")
    state["cfg"]["model"]["_name"] = "other"
    torch.save(state, tmp_path / "other.pt")
    fails([tmp_path / "other.pt"], "it needs the plugin that defines its architecture, other")
    torch.save({"model": state["model"]}, tmp_path / "unnamed.pt")
    fails([tmp_path / "unnamed.pt"], "it does not say how its model was built")
    fails([tmp_path / "othr.pt"], "othr.pt: there is no such file; did you mean other.pt?")
    fails([tmp_path], f"{tmp_path}: it is a folder; give one of its .pt files")

    def unable(*arguments, **options):
        raise RuntimeError("no operator\nfor this")

    command = sys.modules[main.__module__]
    monkeypatch.setattr(command, "missing_modules", lambda *names: None)
    monkeypatch.setattr(torch.onnx, "export", unable)
    monkeypatch.setattr(command, "export", lambda model: ({"model": None}, []))
    monkeypatch.setattr(torch.export, "save", lambda program, file: None)
    fails([language_model, "--onnx"], "error: torch.onnx: RuntimeError: no operator for this")
    monkeypatch.setattr(command, "export", export)
    monkeypatch.setattr(torch.export, "export", unable)
    fails([language_model], "error: torch.export: RuntimeError: no operator for this")


@slow
@torch.no_grad()
@pytest.mark.parametrize("mixers", ["dynamic,attention", "composite,lightweight", "tisa"])
def test_onnx(mixers, tmp_path):
    """Run by ONNX's reference evaluator."""
    reference = pytest.importorskip("onnx.reference")
    pytest.importorskip("onnxscript")
    net, dictionary = built(mixers)
    programs, start = export(built(mixers)[0])
    run = {}
    for name, program in programs.items():
        torch.onnx.export(program, dynamo=True, verbose=False).save(tmp_path / name)
        run[name] = reference.ReferenceEvaluator(str(tmp_path / name))

    def call(name):
        def evaluate(*tensors):
            inputs = zip(run[name].input_names, tensors, strict=True)
            outputs = run[name].run(None, {key: x.numpy() for key, x in inputs})
            return [torch.from_numpy(numpy.asarray(y)) for y in outputs]

        return evaluate

    check_translation(net, dictionary, call("encoder"), call("step"), start)
