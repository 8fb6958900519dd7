"""What a checkpoint may bring: a configuration whose text somebody would evaluate."""

import dataclasses
import functools
import itertools
from argparse import Namespace

import pytest
from fairseq.models import build_model
from omegaconf import OmegaConf

from fairseq_convattn.architectures.config import (
    ENCODER_DECODER,
    LANGUAGE_MODEL,
    MASKED_LANGUAGE_MODEL,
    complete,
)
from fairseq_convattn.architectures.skeleton import Vocabulary

TINY = {
    "dynamic_conv_tiny": (
        ENCODER_DECODER,
        {
            "encoder_embed_dim": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_ffn_embed_dim": 8,
        },
    ),
    "dynamic_conv_lm_tiny": (LANGUAGE_MODEL, {"decoder_embed_dim": 16, "decoder_layers": 1}),
    "dynamic_conv_bert_tiny": (
        MASKED_LANGUAGE_MODEL,
        {"encoder_embed_dim": 24, "encoder_layers": 1, "encoder_ffn_embed_dim": 8},
    ),
}


def fields(arch) -> list[str]:
    return [f.name for f in dataclasses.fields(TINY[arch][0].config) if f.name != "_name"]


@functools.cache
def stored(arch) -> dict:
    schema, shape = TINY[arch]
    return vars(complete(Namespace(**shape), schema)) | {"_name": arch}


def built(arch, without=(), **changed):
    """The model of a stored configuration, as fairseq builds it for its commands."""
    cfg = {k: v for k, v in (stored(arch) | changed).items() if k not in without}
    types = Vocabulary(40)
    task = Namespace(
        source_dictionary=types,
        target_dictionary=types,
        args=Namespace(max_target_positions=None, tokens_per_sample=8),
        max_positions=lambda: 8,
    )
    return build_model(OmegaConf.create(cfg, flags={"allow_objects": True}), task)  # so too


@pytest.mark.parametrize("each", [2, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("arch", TINY)
def test_code_and_wrong_types_are_refused_in_every_field(arch, each, tmp_path):
    """By default two values a field, another pair for the next one."""
    executed = tmp_path / "executed"
    code = f"__import__('pathlib').Path({str(executed)!r}).touch()"
    values = itertools.cycle((code, {"a": 1}, f"[{code}]", ["x"], [[]], f"8,{code}", b"", {}))
    for field in fields(arch):
        for hostile in itertools.islice(values, each):
            with pytest.raises(ValueError, match=f"^--{field.replace('_', '-')}: ") as error:
                built(arch, **{field: hostile})
            assert "\n" not in str(error.value) and not executed.exists()


@pytest.mark.parametrize("arch", TINY)
def test_a_stored_configuration_builds_whatever_else_it_brings(arch):
    """fairseq would take a whole decoder's or encoder's configuration from there."""
    nested = {"xformers_att_config": "exit()", "layers": 5}
    model = built(arch, encoder=nested, decoder=nested, quant_noise={"pq": "exit()"})
    assert sum(p.numel() for p in model.parameters()) == sum(
        p.numel() for p in built(arch).parameters()
    )


def test_a_checkpoint_of_an_earlier_version_builds():
    """It has what its preset set and no layer reads, and lacks what came later."""
    model = built(
        "dynamic_conv_tiny",
        without=("share_tables_across_layers", "value_conv"),
        encoder_mixers="attention",
        decoder_mixers="attention",
        weight_dropout=0.3,
    )
    assert model.encoder.layers[0].mixer_config.mixer == "attention"
