"""``convattn``: encoder-decoder models with any token mixer in every layer."""

import logging
from argparse import Namespace
from contextlib import nullcontext

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    MODEL_REGISTRY,
    register_model,
    register_model_architecture,
)
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from omegaconf import DictConfig, OmegaConf, open_dict

from .config import ConvAttnConfig, complete
from .layer_mixers import layer_mixers
from .presets import PRESETS
from .stacks import ConvAttnDecoder, ConvAttnEncoder

logger = logging.getLogger(__name__)


@register_model("convattn", dataclass=ConvAttnConfig)
class ConvAttnModel(TransformerModelBase):
    """fairseq's transformer with lightweight convolution, dynamic convolution or
    self-attention as the token mixer of every layer (Wu et al. 2019).
    """

    @classmethod
    def add_args(cls, parser):
        """Options without their defaults, so that a preset can tell what was given."""
        gen_parser_from_dataclass(parser, ConvAttnConfig(), delete_default=True)

    @classmethod
    def build_model(cls, cfg, task):
        """Build the model that ``cfg`` describes (flat; what it lacks is filled in).

        Raises:
            ValueError: an option cannot work; the message names it.
        """
        return super().build_model(nested_config(complete(cfg)), task)

    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens):
        return ConvAttnEncoder(cfg, src_dict, embed_tokens, cfg.encoder.mixers)

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens):
        return ConvAttnDecoder(
            cfg,
            tgt_dict,
            embed_tokens,
            cfg.decoder.mixers,
            no_encoder_attn=cfg.no_cross_attention,
        )

    def prepare_for_inference_(self, cfg):
        if not OmegaConf.select(cfg, "interactive.buffer_size"):  # fairseq-interactive drops none
            _warn_of_dropped_sentences(
                OmegaConf.select(cfg, "dataset.required_batch_size_multiple", default=1)
            )
        super().prepare_for_inference_(cfg)


def nested_config(args: Namespace) -> TransformerConfig:
    """fairseq's nested configuration of a complete flat one, with ``encoder.mixers`` and
    ``decoder.mixers`` resolved to one entry per layer.

    Raises:
        ValueError: an option cannot work; the message names it.
    """
    mixers = {side: layer_mixers(args, side) for side in ("encoder", "decoder")}
    cfg = TransformerConfig.from_namespace(args)
    cfg.encoder.mixers, cfg.decoder.mixers = mixers["encoder"], mixers["decoder"]
    return cfg


def _warn_of_dropped_sentences(required_batch_size_multiple: int) -> None:
    if required_batch_size_multiple > 1:
        logger.warning(
            "fairseq silently drops the last batch of a data set unless its size is a "
            "multiple of %d; add --required-batch-size-multiple 1 to keep every sentence",
            required_batch_size_multiple,
        )


def _architecture(preset: dict):
    """What fairseq calls for ``--arch``: with the command line's options before anything
    is loaded, and again with a stored or hydra configuration."""

    def apply(cfg: Namespace | DictConfig) -> None:
        with open_dict(cfg) if isinstance(cfg, DictConfig) else nullcontext():
            _fill(cfg, preset)
            # a checkpoint keeps its model's whole description, whatever defaults become
            _fill(cfg, vars(complete(cfg)))
        if isinstance(cfg, Namespace):
            try:
                nested_config(cfg)
            except ValueError as error:
                raise SystemExit(f"error: {error}") from None
            _warn_of_dropped_sentences(getattr(cfg, "required_batch_size_multiple", 1))

    return apply


def _fill(cfg: Namespace | DictConfig, values: dict) -> None:
    for name, value in values.items():
        if getattr(cfg, name, None) is None:
            setattr(cfg, name, value)


if MODEL_REGISTRY["convattn"] is not ConvAttnModel:
    raise ImportError("another plugin has registered a fairseq model named 'convattn'")

for _name, _preset in PRESETS.items():
    register_model_architecture("convattn", _name)(_architecture(_preset))
ARCH_CONFIG_REGISTRY["convattn"] = _architecture({})  # fairseq's own does nothing
