"""Language modelling through fairseq's own entry points."""

import math

import pytest
import torch
from conftest import (
    SHRUNK_LM,
    eval_lm,
    generate,
    hydra_train,
    interactive,
    same_weights,
    slow_but,
    train,
    validate,
)
from fairseq import checkpoint_utils
from fairseq.data import Dictionary

TASK = ("--task", "language_modeling", "--sample-break-mode", "eos")
MIXERS = {
    "lightweight": ("--arch", "lightweight_conv_lm_tiny"),
    "dynamic": ("--arch", "dynamic_conv_lm_tiny"),
    "attention": ("--arch", "attention_lm_tiny"),
    "composite": ("--arch", "composite_attention_lm_tiny", "--value-conv", "depthwise"),
    "tisa": ("--arch", "tisa_lm_tiny"),
    "short_conv": ("--arch", "short_conv_lm_tiny"),
    "hybrid": (
        *("--arch", "dynamic_conv_lm_tiny", "--decoder-mixers", "dynamic,attention"),
        *("--decoder-kernel-sizes", "4,31"),
    ),
}
ADAPTIVE = (
    *("--adaptive-input", "--adaptive-softmax-cutoff", "8,16", "--adaptive-softmax-factor", "2"),
    *("--criterion", "adaptive_loss", "--ddp-backend", "legacy_ddp"),
)
INPUTS_AND_OUTPUTS = {
    "shared": (
        ("--share-decoder-input-output-embed",),
        lambda d: d.output_projection.weight is d.embed_tokens.weight,
    ),
    "adaptive": (
        (*ADAPTIVE, "--adaptive-input-cutoff", "10", "--adaptive-input-factor", "4"),
        lambda d: (
            d.adaptive_softmax.cutoff[:2] == [8, 16]
            and d.embed_tokens.cutoff[0] == 10
            and d.adaptive_softmax.tail[0][0].out_features == 8
            and d.embed_tokens.embeddings[1][0].embedding_dim == 4
        ),
    ),
    "adaptive, tied": (
        (
            *ADAPTIVE,
            "--adaptive-input-factor",
            "2",
            "--tie-adaptive-weights",
            "--tie-adaptive-proj",
        ),
        lambda d: (
            d.adaptive_softmax.head.word_proj.weight.data_ptr()
            == d.embed_tokens.embeddings[0][0].weight.data_ptr()
        ),
    ),
    "adaptive softmax": (
        ("--adaptive-softmax-cutoff", "8", *ADAPTIVE[-4:]),
        lambda d: d.adaptive_softmax is not None and d.embed_tokens.weight.size(1) == 16,
    ),
    "characters": (
        (
            *("--character-embeddings", "--character-filters", "[(1, 8), (2, 4)]"),
            *("--character-embedding-dim", "3", "--char-embedder-highway-layers", "1"),
        ),
        lambda d: (
            [c.out_channels for c in d.embed_tokens.convolutions] == [8, 4]
            and d.embed_tokens.char_embeddings.embedding_dim == 3
            and len(d.embed_tokens.highway.layers) == 1
        ),
    ),
}


def load(checkpoint):
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])
    return model.eval(), task


def windows(task, **options) -> list[dict[str, torch.Tensor]]:
    """What fairseq-eval-lm scores, one sample at a time."""
    for name, value in options.items():
        setattr(task.args, name, value)
    task.load_dataset("test")
    dataset = task.dataset("test")
    return [dataset[i] for i in range(len(dataset))]


@torch.no_grad()
def scores_by_token(model, sample) -> list[float]:
    """In base 2, from one call of the model for every token."""
    state, scores = {}, []
    for step, token in enumerate(sample["target"]):
        output = model.decoder(sample["source"][None, : step + 1], incremental_state=state)
        log_probabilities = model.get_normalized_probs(output, log_probs=True)
        scores.append(log_probabilities[0, -1, token].item() / math.log(2))
    return scores


def loss_by_token(model, samples, first: int = 0) -> float:
    """The mean over the tokens of all samples, each from its ``first`` on."""
    scores = [score for s in samples for score in scores_by_token(model, s)[first:]]
    return -sum(scores) / len(scores)


@pytest.mark.parametrize("mixer", slow_but(MIXERS, "hybrid"))
def test_train_resume_validate_score_generate(mixer, monolingual, tmp_path):
    options = (*TASK, *MIXERS[mixer], *SHRUNK_LM, "--max-tokens", "200")
    whole, resumed = (tmp_path / name / "checkpoint_last.pt" for name in ("whole", "resumed"))
    train(monolingual, whole.parent, *options, "--max-update", "6")
    train(monolingual, resumed.parent, *options, "--max-update", "3")
    train(monolingual, resumed.parent, *options, "--max-update", "6")
    assert same_weights(whole, resumed)
    train(monolingual, resumed.parent, *options, "--max-update", "50")
    logged = torch.load(resumed)["extra_state"]["val_loss"]
    assert validate(monolingual, resumed, *TASK) == logged

    model, task = load(resumed)
    by_token = loss_by_token(model, windows(task))
    loss = eval_lm(monolingual, resumed, *TASK, "--batch-size", "5")
    assert loss == pytest.approx(by_token, abs=1e-5)

    lengths = ("--max-len-b", "20", "--min-len", "6")
    hypotheses = interactive(monolingual, resumed, *TASK, *lengths, source="test")
    prompts = (monolingual.parent / "test").read_text().splitlines()
    assert sorted(hypotheses) == list(range(len(prompts)))
    dictionary = Dictionary.load(str(monolingual / "dict.txt"))
    for number, (score, text) in hypotheses.items():
        assert text.startswith(prompts[number])
        target = dictionary.encode_line(text, add_if_not_exist=False).long()
        sample = {"source": target.roll(1), "target": target}
        assert score == pytest.approx(-loss_by_token(model, [sample]), abs=1e-4)
    others = generate(monolingual, resumed, *TASK, *lengths, "--batch-size", "1")
    assert {text for _, text in others.values()} == {text for _, text in hypotheses.values()}


def test_lines_that_are_too_long_are_skipped(monolingual, tmp_path):
    options = (*TASK, *MIXERS["dynamic"], *SHRUNK_LM, "--tokens-per-sample", "10")
    train(monolingual, tmp_path, *options, "--skip-invalid-size-inputs-valid-test")
    lines = tmp_path / "lines"
    lines.write_text(f"my lamp\n{'lamp ' * 50}\nmy lamp\n")
    lengths = ("--max-len-b", "5", "--buffer-size", "3")
    last = tmp_path / "checkpoint_last.pt"
    assert sorted(interactive(monolingual, last, *TASK, *lengths, source=lines)) == [0, 2]


@pytest.mark.parametrize("mode", slow_but(["none", "complete", "complete_doc", "eos"], "none"))
def test_sample_break_modes_and_beginnings_of_sentence(mode, monolingual, tmp_path):
    task_options = (*TASK[:2], "--sample-break-mode", mode, "--tokens-per-sample", "16")
    task_options = (*task_options, "--add-bos-token")
    train(monolingual, tmp_path, *task_options, *MIXERS["hybrid"], *SHRUNK_LM)
    checkpoint = tmp_path / "checkpoint_last.pt"
    model, task = load(checkpoint)
    samples = windows(task)
    bos = task.source_dictionary.bos()
    assert all(sample["source"][0] == bos for sample in samples)
    loss = eval_lm(monolingual, checkpoint, *task_options, "--batch-size", "3")
    # the first target is <s> itself, which fairseq-eval-lm leaves out
    assert loss == pytest.approx(loss_by_token(model, samples, first=1), abs=1e-5)


@pytest.mark.parametrize("name", INPUTS_AND_OUTPUTS)
def test_inputs_and_outputs(name, monolingual, tmp_path):
    """Adaptive or from characters, tied or not."""
    flags, holds = INPUTS_AND_OUTPUTS[name]
    train(monolingual, tmp_path, *TASK, *MIXERS["hybrid"], *SHRUNK_LM, *flags, "--max-update", "2")
    checkpoint = tmp_path / "checkpoint_last.pt"
    model, task = load(checkpoint)
    assert holds(model.decoder)
    loss = eval_lm(monolingual, checkpoint, *TASK)
    assert loss == pytest.approx(loss_by_token(model, windows(task)), abs=1e-5)


@pytest.mark.slow
def test_hydra(monolingual, tmp_path):
    """fairseq-hydra-train with a configuration file gives the model of fairseq-train."""
    task = {"_name": "language_modeling", "data": str(monolingual), "sample_break_mode": "eos"}
    model = {
        "_name": "dynamic_conv_lm_tiny",
        "decoder_kernel_sizes": [3, 5],
        "adaptive_input": True,
        "adaptive_softmax_cutoff": [8, 16],
        "decoder_learned_pos": True,
    }
    alone = {"ddp_backend": "legacy_ddp"}
    hydra_train(
        *(tmp_path, {**task, "tokens_per_sample": 64}, model, "adaptive_loss", SHRUNK_LM),
        distributed_training=alone,
    )
    train(
        *(monolingual, tmp_path / "plain", *TASK, "--tokens-per-sample", "64"),
        *(*MIXERS["dynamic"], *SHRUNK_LM, "--decoder-kernel-sizes", "3,5", "--adaptive-input"),
        *("--adaptive-softmax-cutoff", "8,16", "--decoder-learned-pos", "--max-update", "2"),
        *("--criterion", "adaptive_loss", "--ddp-backend", "legacy_ddp"),
    )
    hydra, plain = (tmp_path / name / "checkpoint_last.pt" for name in ("hydra", "plain"))
    assert same_weights(hydra, plain)
    assert eval_lm(monolingual, hydra, *TASK) == eval_lm(monolingual, plain, *TASK)
