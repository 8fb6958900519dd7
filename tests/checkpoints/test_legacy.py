"""Checkpoints in the format of 2019: those recorded with the code of then, and others
made here from fairseq's own lightconv models, whose names of then are put back."""

import ast
import json
import math
import shlex
from argparse import Namespace

import pytest
import torch
from conftest import SHRUNK, eval_lm, generate, slow_but, task_of, train
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, build_model
from fairseq.models.lightconv import LightConvModel
from fairseq.models.lightconv_lm import LightConvLanguageModel

from fairseq_convattn.checkpoints.checks import CheckpointError, check_configuration
from fairseq_convattn.checkpoints.legacy import convert_checkpoint, main

TYPES = 26  # with fairseq's own 30
RECORDED = {
    "dynamic": "checkpoint_last.pt",
    "light": "checkpoint_last.pt",
    "light-as-written": "checkpoint_last.as_written.pt",
    "v062_light": "checkpoint_last.pt",
}


@pytest.fixture(scope="module", params=slow_but(RECORDED, "dynamic", "v062_light"))
def recorded(request, shared, tmp_path_factory):
    """A folder of recorded outputs and the converted checkpoint that must give them."""
    folder = shared / "legacy" / request.param.partition("-")[0]
    new = tmp_path_factory.mktemp(request.param) / "converted.pt"
    convert_checkpoint(folder / RECORDED[request.param], new)
    return folder, new


def load(checkpoint, **overrides):
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], arg_overrides=overrides
    )
    return models[0].eval()


def assert_recorded(recorded: dict, score) -> None:
    """That ``score`` of a prefix and a state gives what was recorded, whole and by token."""
    previous = torch.tensor([recorded["prev_output_ids"]])
    target = torch.tensor(recorded["tgt_ids"]).unsqueeze(1)
    for state, name in ((None, "logprobs"), ({}, "logprobs_incremental")):
        ends = [previous.size(1)] if state is None else range(1, previous.size(1) + 1)
        scores = torch.cat([score(previous[:, :end], state) for end in ends], dim=1)
        actual, expected = scores[0].gather(1, target)[:, 0], torch.tensor(recorded[name])
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


@torch.no_grad()
def test_recorded_log_probabilities(recorded):
    folder, checkpoint = recorded
    model = load(checkpoint, data=str(folder / "data"))
    pairs = json.loads((folder / "tf_logprobs.json").read_text())["pairs"]
    assert pairs
    for pair in pairs:
        source = torch.tensor([pair["src_ids"]])
        encoded = model.encoder(source, torch.tensor([source.size(1)]))

        def score(previous, state, encoded=encoded):
            outputs = model.decoder(previous, encoder_out=encoded, incremental_state=state)
            return outputs[0].log_softmax(-1)

        assert_recorded(pair, score)


def test_recorded_hypotheses(recorded):
    folder, checkpoint = recorded
    expected = {}
    for line in (folder / "gen.beam5.txt").read_text().splitlines():
        if line.startswith("H-"):
            number, score, text = line.split("\t")
            expected[int(number[2:])] = float(score), text
    hypotheses = generate(folder / "data", checkpoint, "--batch-size", "16")
    assert hypotheses.keys() == expected.keys()
    for number, (score, text) in expected.items():
        assert hypotheses[number][1] == text
        assert hypotheses[number][0] * math.log(2) == pytest.approx(score, abs=1e-4)


@pytest.fixture(scope="module")
def recorded_lm(shared, tmp_path_factory):
    new = tmp_path_factory.mktemp("lm") / "converted.pt"
    convert_checkpoint(shared / "legacy" / "lm" / "checkpoint_last.pt", new)
    return shared / "legacy" / "lm", new


@torch.no_grad()
def test_recorded_log_probabilities_of_the_language_model(recorded_lm):
    folder, checkpoint = recorded_lm
    model = load(checkpoint, data=str(folder / "data"))
    sentences = json.loads((folder / "tf_logprobs.json").read_text())["sentences"]
    assert len(sentences) == 100

    def score(previous, state):
        outputs = model.decoder(previous, incremental_state=state)
        return model.get_normalized_probs(outputs, log_probs=True)

    for sentence in sentences:
        assert_recorded(sentence, score)


@pytest.mark.parametrize("batch_size", slow_but(["1", "7", "100"], "7"))
def test_recorded_perplexity_of_the_language_model(recorded_lm, batch_size):
    """1,452 tokens: 3.6296 nats by sentence, 4.0535 in blocks of 64."""
    folder, checkpoint = recorded_lm
    for nats, options in (
        (3.6296, ("--sample-break-mode", "eos")),
        (4.0535, ("--tokens-per-sample", "64")),
    ):
        loss = eval_lm(folder / "data", checkpoint, *options, "--batch-size", batch_size)
        assert loss * math.log(2) == pytest.approx(nats, abs=5e-5)


def names_of_2019(key: str) -> str:
    for new, old in (
        ("layer_norm1", "layer_norms.0"),
        ("layer_norm2", "layer_norms.1"),
        ("decoder.output_projection.weight", "decoder.embed_out"),
    ):
        key = key.replace(new, old)
    return key


def checkpoint_of(model, args, later: bool) -> dict:
    """Random weights under the names of 2019, or of later."""
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.3)
        if name.endswith("conv_bias"):  # never used: whatever was in memory
            parameter.data.fill_(float("nan"))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    if not later:
        state = {names_of_2019(k): v for k, v in state.items() if not k.endswith("conv_bias")}
    return {"args": args, "model": state, "optimizer_history": [{"num_updates": 7}]}


def lightconv(arch="lightconv", later=False, half=False, **options):
    """A random fairseq model and its checkpoint."""
    torch.manual_seed(3)
    shape = {
        "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 24, "encoder_attention_heads": 4,
        "decoder_attention_heads": 2, "encoder_layers": 2, "decoder_layers": 3,
        "encoder_kernel_size_list": [3, 5], "decoder_kernel_size_list": [3, 4, 7],
        "encoder_conv_type": "lightweight", "decoder_conv_type": "dynamic",
        "weight_softmax": True, "adaptive_softmax_factor": 4,
        "tie_adaptive_weights": False, "tie_adaptive_proj": False,
    }  # fmt: skip
    args = Namespace(arch=arch, **{**shape, **options})
    args.source_lang, args.target_lang, args.data = "de", "en", "data"
    ARCH_CONFIG_REGISTRY[arch](args)
    model = LightConvModel.build_model(args, task_of(TYPES)).eval()
    checkpoint = checkpoint_of(model, args, later)
    if not later:
        if args.share_decoder_input_output_embed:
            checkpoint["model"].pop("decoder.embed_out", None)
        checkpoint["model"]["encoder.embed_positions._float_tensor"] = torch.zeros(1)
    if half:
        model = model.half().float()
        checkpoint["model"] = {key: value.half() for key, value in checkpoint["model"].items()}
    return model, checkpoint


CONFIGURATIONS = {
    "GLU": {},
    "no GLU, pre-norm": {
        **{"encoder_glu": False, "decoder_glu": False},
        **{"encoder_normalize_before": True, "decoder_normalize_before": True},
    },
    "shared embeddings, learned positions": {
        **{"share_all_embeddings": True},
        **{"encoder_learned_pos": True, "decoder_learned_pos": True},
    },
    "shared output embeddings, no positions": {
        **{"share_decoder_input_output_embed": True, "no_token_positional_embeddings": True},
    },
    "other widths": {"encoder_conv_dim": 8, "decoder_conv_dim": 32, "decoder_output_dim": 12},
    "no softmax, later names": {"weight_softmax": False, "later": True},
    "adaptive softmax": {"adaptive_softmax_cutoff": "[10, 20]"},
    "adaptive softmax, shared": {"adaptive_softmax_cutoff": "10,20", "share_all_embeddings": True},
    "dynamic encoder, half precision": {
        **{"encoder_conv_type": "dynamic", "decoder_conv_type": "lightweight", "half": True},
    },
    "big": {"arch": "lightconv_wmt_en_de_big", "decoder_embed_dim": 16, "decoder_ffn_embed_dim": 8},
}


def converted(state, tmp_path, name="new.pt") -> dict:
    torch.save(state, tmp_path / "old.pt")
    convert_checkpoint(tmp_path / "old.pt", tmp_path / name)
    return torch.load(tmp_path / name)


def test_options_as_text_and_options_that_are_missing(tmp_path):
    _, state = lightconv(encoder_glu=False, weight_softmax=False)
    expected = converted(state, tmp_path)["cfg"]["model"]
    for name, value in vars(state["args"]).items():
        setattr(state["args"], name, str(value))
    assert converted(state, tmp_path, "text.pt")["cfg"]["model"] == expected
    assert (expected["encoder_glu"], expected["weight_norm"]) == ("false", "none")

    _, state = lightconv(encoder_layers=7, encoder_kernel_size_list=[3, 7, 15, 31, 31, 31, 31])
    for name in ("encoder_layers", "encoder_kernel_size_list", "input_dropout", "encoder_glu"):
        delattr(state["args"], name)
    model = converted(state, tmp_path, "missing.pt")["cfg"]["model"]
    assert (model["encoder_layers"], model["input_dropout"]) == (7, 0.1)


def test_checkpoints_that_keep_a_configuration_beside_the_options(tmp_path):
    """As fairseq 0.10 and later write them."""
    _, state = lightconv(later=True)
    expected = converted(state, tmp_path)["cfg"]
    task = {"_name": "translation", "source_lang": "de", "target_lang": "en", "data": "data"}
    args = state["args"]
    for name in task.keys() & vars(args):
        delattr(args, name)
    state |= {"args": None, "cfg": {"model": args, "task": task}}
    actual = converted(state, tmp_path, "later.pt")["cfg"]
    assert actual["model"] == expected["model"] and actual["task"] == expected["task"]


def loaded(path):
    """A model with a dictionary of 30 types, evaluating."""
    task = task_of(TYPES)
    task.build_model = lambda cfg: build_model(cfg, task)
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(path)], task=task)
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_converted_models_give_what_fairseqs_give(name, tmp_path):
    old, state = lightconv(**CONFIGURATIONS[name])
    weights = converted(state, tmp_path)["model"].values()
    assert {weight.dtype for weight in weights if weight.is_floating_point()} == {torch.float32}
    source = torch.randint(4, 30, (2, 9))
    source[0, :2] = task_of(TYPES).source_dictionary.pad()
    previous = torch.randint(4, 30, (2, 8))  # no shorter than any kernel
    arguments = (source, torch.tensor([7, 9]), previous)
    torch.testing.assert_close(loaded(tmp_path / "new.pt")(*arguments)[0], old(*arguments)[0])


def lightconv_lm(arch="lightconv_lm", later=False, **options):
    """A random language model of fairseq's and its checkpoint."""
    torch.manual_seed(4)
    shape = {
        "decoder_embed_dim": 16, "decoder_ffn_embed_dim": 24, "decoder_attention_heads": 4,
        "decoder_layers": 2, "decoder_kernel_size_list": [3, 5], "decoder_conv_type": "dynamic",
        "weight_softmax": True, "dropout": 0.1, "attention_dropout": 0.1, "relu_dropout": 0.0,
        "tokens_per_sample": 20, "share_decoder_input_output_embed": False,
        "no_token_positional_embeddings": False, "character_filters": "[(1, 8), (2, 4)]",
        "character_embedding_dim": 4, "char_embedder_highway_layers": 1, "data": "data",
        "sample_break_mode": "eos",
    }  # fmt: skip
    args = Namespace(arch=arch, **{**shape, **options})
    ARCH_CONFIG_REGISTRY[arch](args)
    dictionary = task_of(TYPES).source_dictionary
    task = Namespace(dictionary=dictionary, output_dictionary=dictionary)
    model = LightConvLanguageModel.build_model(args, task).eval()
    return model, checkpoint_of(model, args, later)


_ADAPTIVE = {
    "adaptive_input": True, "adaptive_input_cutoff": "10,20", "adaptive_softmax_cutoff": "10,20",
    "adaptive_input_factor": 2.0, "adaptive_softmax_factor": 2.0,
}  # fmt: skip
LANGUAGE_MODELS = {
    "dynamic": {},
    "lightweight": {"decoder_conv_type": "lightweight", "decoder_glu": False},
    "shared, learned positions": {
        **{"share_decoder_input_output_embed": True, "decoder_learned_pos": True},
    },
    "other widths": {"decoder_input_dim": 8, "decoder_output_dim": 12, "decoder_conv_dim": 32},
    "adaptive": _ADAPTIVE,
    "adaptive, tied": {**_ADAPTIVE, "tie_adaptive_weights": True, "tie_adaptive_proj": True},
    "adaptive softmax with a cut-off at the end": {"adaptive_softmax_cutoff": "10,30"},
    "characters": {"character_embeddings": True},
    "big": {"arch": "lightconv_lm_gbw"},
    "later names": {"later": True},
}


@torch.no_grad()
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_converted_language_models_give_what_fairseqs_give(name, tmp_path):
    old, state = lightconv_lm(**LANGUAGE_MODELS[name])
    cfg = converted(state, tmp_path)["cfg"]
    adaptive = cfg["model"]["adaptive_softmax_cutoff"] is not None
    assert cfg["criterion"]["_name"] == ("adaptive_loss" if adaptive else "cross_entropy")
    assert (cfg["task"]["sample_break_mode"], cfg["task"]["tokens_per_sample"]) == ("eos", 20)
    previous = torch.randint(4, 30, (2, 8))
    torch.testing.assert_close(loaded(tmp_path / "new.pt")(previous)[0], old(previous)[0])


def printed_advice(state, tmp_path, capsys) -> list[str]:
    """What the command says to fine-tune new.pt with, having converted ``state`` into it."""
    torch.save(state, tmp_path / "old.pt")
    main([str(tmp_path / "old.pt"), str(tmp_path / "new.pt")])
    return shlex.split(capsys.readouterr().out.partition("to fine-tune it: ")[2])


def assert_it_fine_tunes(data, options, tmp_path) -> None:
    finetune = ("--finetune-from-model", str(tmp_path / "new.pt"), "--lr", "0", "--max-update", "1")
    train(data, tmp_path / "tuned", *options, *finetune)
    converted = torch.load(tmp_path / "new.pt")["model"]
    tuned = torch.load(tmp_path / "tuned" / "checkpoint_last.pt")["model"]
    assert all(torch.equal(tuned[key], converted[key]) for key in converted)


@pytest.mark.parametrize("adaptive", [False, True], ids=["plain", "adaptive"])
def test_a_converted_language_model_trains_on(adaptive, monolingual, tmp_path, capsys):
    types = len(Dictionary.load(str(monolingual / "dict.txt")))
    _, state = lightconv_lm(
        decoder_glu=False, **({"adaptive_softmax_cutoff": "8"} if adaptive else {})
    )
    state["args"].output_dictionary_size = 9 if not adaptive else -1
    state["model"]["decoder.embed_tokens.weight"] = torch.zeros(types, 16)
    if adaptive:
        tail = "decoder.adaptive_softmax.tail.0"
        state["model"][f"{tail}.2.weight"] = state["model"][f"{tail}.2.weight"][: types - 8]
    else:
        state["model"]["decoder.embed_out"] = torch.zeros(9, 16)
    options = printed_advice(state, tmp_path, capsys)
    assert options[:4] == ["--task", "language_modeling", "--arch", "convattn_lm"]
    assert {"--tokens-per-sample=20", "--sample-break-mode=eos"} <= set(options)
    assert_it_fine_tunes(monolingual, options, tmp_path)


def test_the_advice_has_no_option_that_a_file_brings(tmp_path, capsys):
    _, state = lightconv_lm()
    state["args"].sample_break_mode = "--user-dir=folder"
    assert "--user-dir=folder" not in printed_advice(state, tmp_path, capsys)


def test_kernels_of_the_cuda_layer(tmp_path):
    """It keeps lightweight kernels as [heads, taps], the others as [heads, 1, taps]."""
    _, state = lightconv()
    a = converted(state, tmp_path, "a.pt")["model"]
    for key, value in state["model"].items():
        if key.endswith("conv.weight"):
            state["model"][key] = value.squeeze(1)
    b = converted(state, tmp_path, "b.pt")["model"]
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_the_command_converts_and_its_advice_fine_tunes(data, tmp_path, capsys):
    dictionary = Dictionary.load(str(data / "dict.src.txt"))
    _, state = lightconv(encoder_glu=False, share_all_embeddings=True)
    for side in ("encoder", "decoder"):
        state["model"][f"{side}.embed_tokens.weight"] = torch.zeros(len(dictionary), 16)
    options = printed_advice(state, tmp_path, capsys)
    assert options[:4] == ["--task", "translation", "--arch", "convattn"]
    assert_it_fine_tunes(data, options, tmp_path)


def refusal(state, tmp_path) -> str:
    torch.save(state, tmp_path / "old.pt")
    with pytest.raises(CheckpointError) as error:
        convert_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt")
    assert not (tmp_path / "new.pt").exists()
    return str(error.value)


@pytest.mark.parametrize("option", ["adaptive_softmax_cutoff", "encoder_kernel_size_list"])
def test_what_is_code_without_its_quotes_is_refused(option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "\"open('created', 'w')\""
    _, state = lightconv()
    setattr(state["args"], option, text)
    check_configuration(state)
    assert f"its option args.{option} is {ast.literal_eval(text)!r}" in refusal(state, tmp_path)
    assert not (tmp_path / "created").exists()


OTHERS = {
    "a weight is missing": lambda state: state["model"].pop("encoder.layers.0.linear1.bias"),
    "another width": lambda state: setattr(state["args"], "encoder_embed_dim", 32),
    "a language model's": lambda state: setattr(state["args"], "arch", "lightconv_lm_gbw"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_weights_that_do_not_fit_are_refused(tmp_path, other):
    _, state = lightconv()
    OTHERS[other](state)
    assert "do not fit its options" in refusal(state, tmp_path)


def test_refuses_what_is_no_such_checkpoint(data, tmp_path):
    _, state = lightconv()
    state["args"].encoder_layers = 5
    assert "encoder_layers" in refusal(state, tmp_path)
    state["args"].encoder_layers = 300_000_000
    assert "its option encoder_layers is 300,000,000" in refusal(state, tmp_path)
    state["args"] = {**vars(state["args"]), 1: 2}
    assert "an option's name is not text" in refusal(state, tmp_path)
    state["args"] = Namespace(arch="transformer")
    assert "its architecture is transformer" in refusal(state, tmp_path)
    assert "does not say how" in refusal({"model": {}}, tmp_path)
    assert "it has no 'model'" in refusal({"weights": {}}, tmp_path)
    _, state = lightconv()
    state["model"]["encoder.layers.0.fc1.bias"] = [1.0]
    assert "is a list, not a tensor" in refusal(state, tmp_path)
    train(data, tmp_path, "--arch", "dynamic_conv_tiny", *SHRUNK, "--max-update", "1")
    with pytest.raises(
        CheckpointError, match="dynamic_conv_tiny model in today's format: use it as it is"
    ):
        convert_checkpoint(tmp_path / "checkpoint_last.pt", tmp_path / "new.pt")
