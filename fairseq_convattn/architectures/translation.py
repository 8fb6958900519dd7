"""``convattn``: encoder-decoder models with any token mixer in every layer."""

from argparse import Namespace

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from omegaconf import OmegaConf

from .config import ENCODER_DECODER, ConvAttnConfig, complete
from .hub import Pretrained
from .layer_mixers import boolean, layer_mixers
from .presets import ENCODER_DECODER_PRESETS
from .registration import register_family, warn_of_dropped_sentences
from .stacks import ConvAttnDecoder, ConvAttnEncoder


class ConvAttnModel(Pretrained, TransformerModelBase):
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

    def set_beam_size(self, beam_size: int) -> None:
        """Called by fairseq's generator; hypotheses share their sentence's keys and values."""
        self.decoder.set_beam_size(beam_size)

    def prepare_for_inference_(self, cfg):
        if not OmegaConf.select(cfg, "interactive.buffer_size"):  # fairseq-interactive drops none
            warn_of_dropped_sentences(
                OmegaConf.select(cfg, "task._name"),
                OmegaConf.select(cfg, "dataset.required_batch_size_multiple", default=1),
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
    name = "no_token_positional_embeddings"
    setattr(cfg, name, boolean(name, getattr(args, name)))
    cfg.encoder.mixers, cfg.decoder.mixers = mixers["encoder"], mixers["decoder"]
    return cfg


register_family("convattn", ConvAttnModel, ENCODER_DECODER, ENCODER_DECODER_PRESETS, nested_config)
