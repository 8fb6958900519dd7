"""What users do, through fairseq's own entry points."""

import pytest
import torch
from conftest import (
    PLUGIN,
    SHRUNK,
    command,
    generate,
    hydra_train,
    interactive,
    same_weights,
    slow_but,
    train,
    validate,
)
from fairseq import checkpoint_utils
from fairseq_cli import train as train_command

from fairseq_convattn.checkpoints import guard

MIXERS = {
    "lightweight": ("--arch", "lightweight_conv_tiny"),
    "dynamic": ("--arch", "dynamic_conv_tiny"),
    "attention": ("--arch", "attention_tiny"),
    "composite": ("--arch", "composite_attention_tiny"),
    "tisa": ("--arch", "tisa_tiny"),
    "short_conv": ("--arch", "short_conv_tiny", "--short-convolution-on", "qkvo12"),
    "hybrid": (
        *("--arch", "dynamic_conv_tiny", "--encoder-mixers", "dynamic,attention"),
        *("--decoder-mixers", "attention,lightweight", "--decoder-kernel-sizes", "4,31"),
    ),
    "hybrid with injections": (
        *("--arch", "dynamic_conv_tiny", "--encoder-mixers", "composite,tisa"),
        *("--decoder-mixers", "dynamic,composite", "--query-key-projection", "dynamic"),
        *("--value-projection", "separable", "--value-conv", "scaled"),
        *("--convolved-heads", "half", "--attention-terms", "content,fixed,query,key"),
        *("--share-tables-across-layers", "--beyond-span", "zero", "--attention-span", "2"),
    ),
}


def tied(model, *names) -> bool:
    return len({model.get_parameter(name).data_ptr() for name in names}) == 1


EMBEDDINGS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
OUTPUT = "decoder.output_projection.weight"
FEATURES = {
    "shared embeddings, layer drop, learned positions and pre-norm": (
        "--share-all-embeddings --encoder-layerdrop 0.5 --decoder-layerdrop 0.25 "
        "--encoder-learned-pos --decoder-learned-pos --encoder-normalize-before "
        "--decoder-normalize-before",
        lambda m: (
            tied(m, *EMBEDDINGS, OUTPUT)
            and (m.encoder.layers.p, m.decoder.layers.p) == (0.5, 0.25)
            and all(
                x.embed_positions.weight.requires_grad
                and x.layer_norm
                and x.layers[0].normalize_before
                for x in (m.encoder, m.decoder)
            )
        ),
    ),
    "shared output embeddings, activation checkpointing and every option of the mixers": (
        "--share-decoder-input-output-embed --checkpoint-activations "
        "--encoder-conv-dim 8 --decoder-conv-dim 32 --encoder-glu false --weight-dropout 0.2 "
        "--weight-norm l2 --input-dropout 0.3 --conv-bias --renorm-padding",
        lambda m: (
            tied(m, EMBEDDINGS[1], OUTPUT)
            and not tied(m, *EMBEDDINGS)
            and all("forward" in vars(x) for x in (*m.encoder.layers, *m.decoder.layers))
            and m.encoder.layers[0].self_attn.in_proj.out_features == 8
            and m.decoder.layers[1].self_attn.in_proj.out_features == 64
            and m.decoder.layers[1].self_attn.bias.numel() == 32
            and m.encoder.layers[0].self_attn.tap_dropout_module.p == 0.2
            and m.encoder.layers[0].self_attn.input_dropout_module.p == 0.3
            and m.encoder.layers[0].self_attn.config.tap_norm == "l2"
            and m.encoder.layers[0].self_attn.config.renorm_padding
        ),
    ),
    "adaptive softmax": (
        "--adaptive-softmax-cutoff 8,16 --criterion adaptive_loss --ddp-backend legacy_ddp",
        lambda m: m.decoder.adaptive_softmax.cutoff[:2] == [8, 16],
    ),
    "adaptive softmax with shared embeddings": (
        "--adaptive-softmax-cutoff 8 --criterion adaptive_loss --ddp-backend legacy_ddp "
        "--share-all-embeddings",
        lambda m: m.decoder.output_projection is None and tied(m, *EMBEDDINGS),
    ),
    "one layer without positions, embedding norm, activation and another decoder width": (
        "--encoder-layers 1 --decoder-layers 1 --no-token-positional-embeddings "
        "--layernorm-embedding --no-scale-embedding --activation-fn gelu "
        "--decoder-embed-dim 8 --decoder-output-dim 12 --decoder-ffn-embed-dim 24",
        lambda m: (
            len(m.encoder.layers) == len(m.decoder.layers) == 1
            and m.encoder.embed_positions is m.decoder.embed_positions is None
            and m.encoder.layernorm_embedding
            and m.decoder.embed_scale == 1
            and m.encoder.layers[0].activation_fn.__name__ == "gelu"
            and m.decoder.project_out_dim.out_features == 12
            and m.decoder.layers[0].fc1.weight.shape == (24, 8)
        ),
    ),
    "cross+self-attention": (
        "--decoder-mixers attention --cross-self-attention --no-cross-attention",
        lambda m: (
            m.decoder.layers[0].encoder_attn is None
            and not m.decoder.layers[0].self_attn.self_attention
        ),
    ),
}


@pytest.mark.parametrize("mixer", slow_but(MIXERS, "hybrid with injections"))
def test_train_resume_validate_generate(mixer, data, tmp_path):
    options = (*MIXERS[mixer], *SHRUNK, "--share-all-embeddings")
    train(data, tmp_path / "whole", *options, "--max-update", "6")
    train(data, tmp_path / "resumed", *options, "--max-update", "3")
    train(data, tmp_path / "resumed", *options, "--max-update", "6")
    whole = tmp_path / "whole" / "checkpoint_last.pt"
    assert same_weights(whole, tmp_path / "resumed" / "checkpoint_last.pt")
    logged = torch.load(whole)["extra_state"]["val_loss"]
    assert validate(data, whole, "--task", "translation") == logged
    hypotheses = generate(data, whole)
    assert sorted(hypotheses) == list(range(13))  # none dropped, though 13 % 8 != 0
    for others in (generate(data, whole, "--batch-size", "1"), interactive(data, whole)):
        assert others.keys() == hypotheses.keys()
        for number, (score, text) in others.items():
            assert hypotheses[number] == (pytest.approx(score, abs=1e-4), text)


@pytest.mark.parametrize("feature", FEATURES)
def test_what_fairseqs_transformer_offers(feature, data, tmp_path):
    flags, holds = FEATURES[feature]
    options = (*MIXERS["hybrid"], *SHRUNK)
    if "layers 1" in flags or "decoder-mixers" in flags:
        options = (*MIXERS["dynamic"], *SHRUNK)
    train(data, tmp_path, *options, *flags.split(), "--max-update", "1", "--disable-validation")
    checkpoint = tmp_path / "checkpoint_last.pt"
    assert len(generate(data, checkpoint, "--beam", "2", "--max-len-b", "5")) == 13
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])
    assert holds(model)


def test_checkpointed_activations_give_the_same_training(data, tmp_path):
    few = ("--max-update", "2", "--disable-validation")
    for name, flags in (("a", ()), ("b", ("--checkpoint-activations",))):
        train(data, tmp_path / name, *MIXERS["hybrid"], *SHRUNK, *few, *flags)
    a, b = (torch.load(tmp_path / name / "checkpoint_last.pt")["model"] for name in "ab")
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=1e-4)


def test_pretrained_embeddings(data, tmp_path):
    vectors = tmp_path / "vectors"
    vectors.write_text("1 16\na " + " ".join(["0.25"] * 16) + "\n")
    options = ("--encoder-embed-path", str(vectors), "--lr", "0", "--max-update", "1")
    train(data, tmp_path, *MIXERS["dynamic"], *SHRUNK, *options)
    state = torch.load(tmp_path / "checkpoint_last.pt")["model"]
    rows = state["encoder.embed_tokens.weight"].eq(0.25).all(dim=1)
    assert rows.sum() == 1


def test_a_stack_is_pruned_in_training_and_the_other_at_inference(data, tmp_path):
    options = ("--encoder-layerdrop", "0.2", "--decoder-layers-to-keep", "1")
    for updates in ("2", "3"):
        train(data, tmp_path, *MIXERS["hybrid"], *SHRUNK, *options, "--max-update", updates)
    checkpoint = tmp_path / "checkpoint_last.pt"
    overrides = {"encoder_layers_to_keep": "1"}
    assert len(generate(data, checkpoint, "--model-overrides", str(overrides))) == 13
    stored = torch.load(checkpoint)["model"]
    (net,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], overrides)
    for layers, name in (
        (net.encoder.layers, "encoder.layers.1"),
        (net.decoder.layers, "decoder.layers.0"),
    ):
        (layer,) = layers.children()
        assert torch.equal(layer.fc1.weight, stored[f"{name}.fc1.weight"])


def test_a_mistyped_model_override_is_named(data, trained, tmp_path, monkeypatch, caplog):
    overrides = "{'max_target_position': 9, 'dropout': 0.1}"
    options = ("--task", "translation", "--model-overrides", overrides)
    monkeypatch.setattr("sys.argv", ["fairseq-validate", *options])
    monkeypatch.setattr(guard.logger, "handlers", [caplog.handler])
    monkeypatch.setattr(guard.logger, "propagate", False)
    for run in (generate, validate):
        caplog.clear()
        run(data, trained, *options)
        (warning,) = [x for x in caplog.messages if x.startswith("--model-overrides")]
        assert "no option max_target_position," in warning
        assert warning.endswith("did you mean max_target_positions?")
    caplog.clear()
    monkeypatch.setattr("sys.argv", ["fairseq-validate"])  # which overrides all that it is given
    state = torch.load(trained)
    del state["cfg"]["dataset"]["max_tokens"]
    torch.save(state, tmp_path / "other.pt")
    validate(data, tmp_path / "other.pt", "--task", "translation", "--max-tokens", "600")
    assert not any("--model-overrides" in x for x in caplog.messages)


@pytest.mark.slow
def test_learns_to_translate(data, tmp_path):
    """Reversing and capitalising cannot be learnt without cross-attention and order."""
    shape = ("--encoder-embed-dim", "64", "--encoder-layers", "2", "--decoder-layers", "2")
    schedule = ("--max-update", "250", "--dropout", "0", "--share-all-embeddings")
    train(data, tmp_path, *MIXERS["dynamic"], *shape, *schedule, "--no-epoch-checkpoints")
    lines = (data.parent / "test.tgt").read_text().splitlines()
    hypotheses = generate(data, tmp_path / "checkpoint_last.pt")
    right = sum(hypotheses[i][1] == line for i, line in enumerate(lines))
    assert right >= 9


PLUGIN_AS_TYPED = ("--user-dir", "fairseq_convattn")
WARNING = "add --required-batch-size-multiple 1"


def test_training_as_typed(data, tmp_path):
    """No environment variable."""
    run = command(
        *("fairseq-train", data, *PLUGIN_AS_TYPED, *MIXERS["dynamic"], *SHRUNK, "--cpu"),
        *("--save-dir", tmp_path, "--max-update", 2, "--max-tokens", 600, "--optimizer", "adam"),
        *("--num-workers", 0),
    )
    assert run.returncode == 0, run.stderr
    assert WARNING in run.stdout and (tmp_path / "checkpoint_last.pt").exists()


@pytest.mark.slow
@pytest.mark.ci
def test_decoding_as_typed(data, tmp_path):
    """No environment variable, no warning about checkpoints, none executed."""
    train(data, tmp_path, *MIXERS["dynamic"], *SHRUNK)
    checkpoint = ("--path", tmp_path / "checkpoint_last.pt", "--cpu", "--num-workers", 0)
    run = command("fairseq-generate", data, *PLUGIN_AS_TYPED, *checkpoint)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("\nH-") + run.stdout.startswith("H-") == 8
    assert WARNING in run.stderr
    assert "weights_only" not in run.stdout + run.stderr


def test_errors_come_before_data_and_without_a_traceback(tmp_path, monkeypatch):
    options = ("--arch", "dynamic_conv_tiny", "--encoder-kernel-sizes", "3,7")
    command = ["fairseq-train", str(tmp_path / "no data"), "--user-dir", str(PLUGIN), *options]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit, match="^error: --encoder-kernel-sizes: 2 values"):
        train_command.cli_main()


@pytest.mark.slow
def test_hydra(data, tmp_path):
    """fairseq-hydra-train with a configuration file gives the model of fairseq-train."""
    task = {"_name": "translation", "data": str(data)}
    model = {"_name": "dynamic_conv_tiny", "encoder_glu": False, "decoder_kernel_sizes": [3, 5]}
    adam = {"_name": "convattn_adam", "lr": [0.003]}
    hydra_train(tmp_path, task, model, "cross_entropy", SHRUNK, optimizer=adam)
    flags = ("--encoder-glu", "false", "--decoder-kernel-sizes", "3,5", "--max-update", "2")
    train(data, tmp_path / "plain", *MIXERS["dynamic"], *SHRUNK, *flags)
    hydra, plain = (tmp_path / name / "checkpoint_last.pt" for name in ("hydra", "plain"))
    assert same_weights(hydra, plain)
    assert len(generate(data, hydra)) == 13
