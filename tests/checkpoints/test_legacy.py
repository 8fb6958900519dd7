"""Checkpoints in the format of 2019: those recorded with the code of then, and others
made here from fairseq's own lightconv models, whose names of then are put back."""

import json
import math
import shlex
import subprocess
import sys
from argparse import Namespace

import pytest
import torch
from conftest import ROOT, SHRUNK, command, eval_lm, generate, train
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, build_model
from fairseq.models.lightconv import LightConvModel
from fairseq.models.lightconv_lm import LightConvLanguageModel

from fairseq_convattn.checkpoints.files import CheckpointError
from fairseq_convattn.checkpoints.legacy import convert_checkpoint

RECORDED = {
    "dynamic": "checkpoint_last.pt",
    "light": "checkpoint_last.pt",
    "light-as-written": "checkpoint_last.as_written.pt",
    "v062_light": "checkpoint_last.pt",
}


@pytest.fixture(scope="module", params=RECORDED)
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


def log_probabilities(model, source, previous, incremental=False):
    source, previous = torch.tensor([source]), torch.tensor([previous])
    lengths = torch.tensor([source.size(1)])
    encoder_out, state = model.encoder(source, lengths), {} if incremental else None
    ends = range(1, previous.size(1) + 1) if incremental else [previous.size(1)]
    outputs = [
        model.decoder(previous[:, :end], encoder_out=encoder_out, incremental_state=state)[0]
        for end in ends
    ]
    return torch.cat(outputs, dim=1)[0].log_softmax(-1)


@torch.no_grad()
def test_recorded_log_probabilities(recorded):
    folder, checkpoint = recorded
    model = load(checkpoint, data=str(folder / "data"))
    pairs = json.loads((folder / "tf_logprobs.json").read_text())["pairs"]
    assert pairs
    for pair in pairs:
        target = torch.tensor(pair["tgt_ids"]).unsqueeze(1)
        for incremental, name in ((False, "logprobs"), (True, "logprobs_incremental")):
            scores = log_probabilities(model, pair["src_ids"], pair["prev_output_ids"], incremental)
            expected = torch.tensor(pair[name])
            torch.testing.assert_close(
                scores.gather(1, target).squeeze(1), expected, rtol=0, atol=1e-4
            )


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
    for sentence in sentences:
        previous = torch.tensor([sentence["prev_output_ids"]])
        target = torch.tensor(sentence["tgt_ids"]).unsqueeze(1)
        for incremental, name in ((False, "logprobs"), (True, "logprobs_incremental")):
            ends = range(1, previous.size(1) + 1) if incremental else [previous.size(1)]
            state = {} if incremental else None
            outputs = [model.decoder(previous[:, :n], incremental_state=state)[0] for n in ends]
            scores = model.get_normalized_probs((torch.cat(outputs, dim=1), None), log_probs=True)
            actual, expected = scores[0].gather(1, target)[:, 0], torch.tensor(sentence[name])
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("batch_size", ["1", "7", "100"])
def test_recorded_perplexity_of_the_language_model(recorded_lm, batch_size):
    """1,452 tokens: 3.6296 nats by sentence, 4.0535 in blocks of 64."""
    folder, checkpoint = recorded_lm
    for nats, options in (
        (3.6296, ("--sample-break-mode", "eos")),
        (4.0535, ("--tokens-per-sample", "64")),
    ):
        loss = eval_lm(folder / "data", checkpoint, *options, "--batch-size", batch_size)
        assert loss * math.log(2) == pytest.approx(nats, abs=5e-5)


def vocabulary(types=30) -> Dictionary:
    dictionary = Dictionary()
    for i in range(types - len(dictionary)):
        dictionary.add_symbol(f"word{i}")
    return dictionary


def names_of_2019(key: str) -> str:
    for new, old in (
        ("layer_norm1", "layer_norms.0"),
        ("layer_norm2", "layer_norms.1"),
        ("decoder.output_projection.weight", "decoder.embed_out"),
    ):
        key = key.replace(new, old)
    return key


def lightconv(arch="lightconv", later=False, half=False, **options):
    """A random fairseq model and its checkpoint under the names of 2019, or of later."""
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
    dictionary = vocabulary()
    ARCH_CONFIG_REGISTRY[arch](args)
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    model = LightConvModel.build_model(args, task).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    for name, parameter in model.named_parameters():
        if name.endswith("conv_bias"):  # never used: whatever was in memory
            parameter.data.fill_(float("nan"))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    if not later:
        state = {names_of_2019(k): v for k, v in state.items() if not k.endswith("conv_bias")}
        if args.share_decoder_input_output_embed:
            state.pop("decoder.embed_out", None)
        state["encoder.embed_positions._float_tensor"] = torch.zeros(1)
    if half:
        model, state = model.half().float(), {key: value.half() for key, value in state.items()}
    return model, {"args": args, "model": state, "optimizer_history": [{"num_updates": 7}]}


CONFIGURATIONS = {
    "GLU": {},
    "no GLU": {"encoder_glu": False, "decoder_glu": False},
    "pre-norm": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "shared embeddings": {"share_all_embeddings": True},
    "shared output embeddings": {"share_decoder_input_output_embed": True},
    "other widths": {"encoder_conv_dim": 8, "decoder_conv_dim": 32, "decoder_output_dim": 12},
    "no softmax": {"weight_softmax": False},
    "learned positions": {"encoder_learned_pos": True, "decoder_learned_pos": True},
    "no positions": {"no_token_positional_embeddings": True},
    "adaptive softmax": {"adaptive_softmax_cutoff": "[10, 20]"},
    "adaptive softmax, shared": {"adaptive_softmax_cutoff": "10,20", "share_all_embeddings": True},
    "dynamic encoder": {"encoder_conv_type": "dynamic", "decoder_conv_type": "lightweight"},
    "big": {"arch": "lightconv_wmt_en_de_big", "decoder_embed_dim": 16, "decoder_ffn_embed_dim": 8},
    "later names": {"later": True},
    "half precision": {"half": True},
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


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_converted_models_give_what_fairseqs_give(name, tmp_path):
    old, state = lightconv(**CONFIGURATIONS[name])
    torch.save(state, tmp_path / "old.pt")
    convert_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt")
    weights = torch.load(tmp_path / "new.pt")["model"].values()
    assert {weight.dtype for weight in weights if weight.is_floating_point()} == {torch.float32}
    dictionary = vocabulary()
    task = Namespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        build_model=lambda cfg: build_model(cfg, task),
    )
    (new,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(tmp_path / "new.pt")], task=task
    )
    source = torch.randint(4, len(dictionary), (2, 9))
    source[0, :2] = dictionary.pad()
    previous = torch.randint(4, len(dictionary), (2, 8))  # no shorter than any kernel
    arguments = (source, torch.tensor([7, 9]), previous)
    expected, actual = old(*arguments)[0], new.eval()(*arguments)[0]
    torch.testing.assert_close(actual, expected)


def lightconv_lm(arch="lightconv_lm", later=False, **options):
    """A random language model of fairseq's and its checkpoint under the names of 2019."""
    torch.manual_seed(4)
    args = Namespace(
        arch=arch,
        **{
            "decoder_embed_dim": 16, "decoder_ffn_embed_dim": 24, "decoder_attention_heads": 4,
            "decoder_layers": 2, "decoder_kernel_size_list": [3, 5],
            "decoder_conv_type": "dynamic", "weight_softmax": True, "dropout": 0.1,
            "attention_dropout": 0.1, "relu_dropout": 0.0, "tokens_per_sample": 20,
            "share_decoder_input_output_embed": False, "no_token_positional_embeddings": False,
            "character_filters": "[(1, 8), (2, 4)]", "character_embedding_dim": 4,
            "char_embedder_highway_layers": 1, "data": "data", "sample_break_mode": "eos",
        },
    )  # fmt: skip
    for name, value in options.items():
        setattr(args, name, value)
    ARCH_CONFIG_REGISTRY[arch](args)
    dictionary = vocabulary()
    task = Namespace(dictionary=dictionary, output_dictionary=dictionary)
    model = LightConvLanguageModel.build_model(args, task).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.3)
        if name.endswith("conv_bias"):
            parameter.data.fill_(float("nan"))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    if not later:
        state = {names_of_2019(k): v for k, v in state.items() if not k.endswith("conv_bias")}
    return model, {"args": args, "model": state, "optimizer_history": [{"num_updates": 7}]}


_ADAPTIVE = {
    "adaptive_input": True, "adaptive_input_cutoff": "10,20", "adaptive_softmax_cutoff": "10,20",
    "adaptive_input_factor": 2.0, "adaptive_softmax_factor": 2.0,
}  # fmt: skip
LANGUAGE_MODELS = {
    "dynamic": {},
    "lightweight": {"decoder_conv_type": "lightweight", "decoder_glu": False},
    "shared": {"share_decoder_input_output_embed": True},
    "other widths": {"decoder_input_dim": 8, "decoder_output_dim": 12, "decoder_conv_dim": 32},
    "adaptive": _ADAPTIVE,
    "adaptive, tied": {**_ADAPTIVE, "tie_adaptive_weights": True, "tie_adaptive_proj": True},
    "adaptive softmax": {"adaptive_softmax_cutoff": "10"},
    "adaptive softmax with a cut-off at the end": {"adaptive_softmax_cutoff": "10,30"},
    "characters": {"character_embeddings": True},
    "learned positions": {"decoder_learned_pos": True},
    "big": {"arch": "lightconv_lm_gbw"},
    "later names": {"later": True},
}


@torch.no_grad()
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_converted_language_models_give_what_fairseqs_give(name, tmp_path):
    old, state = lightconv_lm(**LANGUAGE_MODELS[name])
    torch.save(state, tmp_path / "old.pt")
    cfg = convert_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt")
    adaptive = cfg["model"]["adaptive_softmax_cutoff"] is not None
    assert cfg["criterion"]["_name"] == ("adaptive_loss" if adaptive else "cross_entropy")
    assert (cfg["task"]["sample_break_mode"], cfg["task"]["tokens_per_sample"]) == ("eos", 20)
    dictionary = vocabulary()
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    task.build_model = lambda cfg: build_model(cfg, task)
    (new,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(tmp_path / "new.pt")], task=task
    )
    previous = torch.randint(4, len(dictionary), (2, 8))
    expected, actual = old(previous)[0], new.eval()(previous)[0]
    torch.testing.assert_close(actual, expected)


def printed_advice(state, tmp_path) -> list[str]:
    """What the command says to fine-tune new.pt with, having converted ``state`` into it."""
    torch.save(state, tmp_path / "old.pt")
    script = (sys.executable, ROOT / "scripts" / "convert_checkpoint.py")
    run = subprocess.run(
        [*script, tmp_path / "old.pt", tmp_path / "new.pt"],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return shlex.split(run.stdout.partition("to fine-tune it: ")[2])


def assert_it_fine_tunes(data, options, tmp_path) -> None:
    finetune = ("--finetune-from-model", str(tmp_path / "new.pt"), "--lr", "0", "--max-update", "1")
    train(data, tmp_path / "tuned", *options, *finetune)
    converted = torch.load(tmp_path / "new.pt")["model"]
    tuned = torch.load(tmp_path / "tuned" / "checkpoint_last.pt")["model"]
    assert all(torch.equal(tuned[key], converted[key]) for key in converted)


@pytest.mark.parametrize("adaptive", [False, True], ids=["plain", "adaptive"])
def test_a_converted_language_model_trains_on(adaptive, monolingual, tmp_path):
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
    options = printed_advice(state, tmp_path)
    assert options[:4] == ["--task", "language_modeling", "--arch", "convattn_lm"]
    for option in ("tokens-per-sample 20", "sample-break-mode eos"):
        assert f"--{option}" in " ".join(options)
    assert_it_fine_tunes(monolingual, options, tmp_path)


def test_a_language_model_that_does_not_say_how_long_its_samples_are(tmp_path):
    _, state = lightconv_lm()
    for name in ("tokens_per_sample", "max_source_positions", "max_target_positions"):
        delattr(state["args"], name) if hasattr(state["args"], name) else None
    torch.save(state, tmp_path / "old.pt")
    cfg = convert_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt")
    assert cfg["model"]["tokens_per_sample"] == cfg["task"]["tokens_per_sample"] == 1024
    assert cfg["model"]["max_target_positions"] is None


def test_kernels_of_the_cuda_layer(tmp_path):
    """It keeps lightweight kernels as [heads, taps], the others as [heads, 1, taps]."""
    _, state = lightconv()
    torch.save(state, tmp_path / "a.pt")
    for key, value in state["model"].items():
        if key.endswith("conv.weight"):
            state["model"][key] = value.squeeze(1)
    torch.save(state, tmp_path / "b.pt")
    for name in "ab":
        convert_checkpoint(tmp_path / f"{name}.pt", tmp_path / f"{name}-new.pt")
    a, b = (torch.load(tmp_path / f"{name}-new.pt")["model"] for name in "ab")
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_the_command_converts_and_its_advice_fine_tunes(data, tmp_path):
    dictionary = Dictionary.load(str(data / "dict.src.txt"))
    _, state = lightconv(encoder_glu=False, share_all_embeddings=True)
    for side in ("encoder", "decoder"):
        state["model"][f"{side}.embed_tokens.weight"] = torch.zeros(len(dictionary), 16)
    options = printed_advice(state, tmp_path)
    assert options[:4] == ["--task", "translation", "--arch", "convattn"]
    assert_it_fine_tunes(data, options, tmp_path)


def refusal(state, tmp_path) -> str:
    torch.save(state, tmp_path / "old.pt")
    with pytest.raises(CheckpointError) as error:
        convert_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt")
    assert not (tmp_path / "new.pt").exists()
    return str(error.value)


def test_refuses_what_is_no_such_checkpoint(data, tmp_path):
    _, state = lightconv()
    del state["model"]["encoder.layers.0.linear1.bias"]
    assert "do not fit its options" in refusal(state, tmp_path)
    _, state = lightconv()
    state["args"].encoder_embed_dim = 32
    assert "do not fit its options" in refusal(state, tmp_path)
    _, state = lightconv()
    state["args"].arch = "transformer"
    assert "its architecture is transformer" in refusal(state, tmp_path)
    state["args"].arch = "lightconv_lm_gbw"
    assert "do not fit its options" in refusal(state, tmp_path)
    assert "does not say how" in refusal({"model": {}}, tmp_path)
    _, state = lightconv()
    state["model"]["encoder.layers.0.fc1.bias"] = [1.0]
    assert "is a list, not a tensor" in refusal(state, tmp_path)
    _, state = lightconv()
    state["args"].source_lang = "${oc.env:HOME}"
    assert "source_lang is '${oc.env:HOME}'" in refusal(state, tmp_path)
    _, state = lightconv()
    state["args"].encoder_kernel_size_list = [3]
    state["args"].encoder_layers = 5
    assert "do not fit its options" in refusal(state, tmp_path)
    assert "it has no 'model'" in refusal({"weights": {}}, tmp_path)
    train(data, tmp_path, "--arch", "dynamic_conv_tiny", *SHRUNK, "--max-update", "1")
    with pytest.raises(
        CheckpointError, match="dynamic_conv_tiny model in today's format: use it as it is"
    ):
        convert_checkpoint(tmp_path / "checkpoint_last.pt", tmp_path / "new.pt")


def test_evaluates_no_text(tmp_path):
    """fairseq itself evaluates these options of its models as Python."""
    _, state = lightconv()
    state["args"].adaptive_softmax_cutoff = f"[open({str(tmp_path / 'run')!r}, 'w').close() or 5]"
    assert "adaptive_softmax_cutoff is" in refusal(state, tmp_path)
    _, state = lightconv_lm()
    state["args"].character_filters = f"[open({str(tmp_path / 'run')!r}, 'w').close()]"
    assert "character_filters is" in refusal(state, tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_converted_checkpoint_validates(data, tmp_path):
    _, state = lightconv(share_all_embeddings=True)
    state["args"].source_lang, state["args"].target_lang = "src", "tgt"
    types = len(Dictionary.load(str(data / "dict.src.txt")))
    for side in ("encoder", "decoder"):
        state["model"][f"{side}.embed_tokens.weight"] = torch.zeros(types, 16)
    converted(state, tmp_path)
    run = command(
        *("fairseq-validate", data, "--user-dir", "fairseq_convattn", "--cpu"),
        *("--path", tmp_path / "new.pt", "--task", "translation", "--max-tokens", "500"),
        *("--required-batch-size-multiple", "1", "--num-workers", "0"),
    )
    assert run.returncode == 0, run.stderr
    # equal scores for all types: the loss in base 2 is that of guessing
    assert f"loss {round(math.log2(types), 3)}" in run.stdout


def test_overwrites_nothing(tmp_path):
    _, state = lightconv()
    torch.save(state, tmp_path / "old.pt")
    (tmp_path / "new.pt").write_text("precious")
    with pytest.raises(FileExistsError):
        convert_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt")
    assert (tmp_path / "new.pt").read_text() == "precious"
