"""``convattn``: encoder-decoder models with any token mixer in every layer."""

from argparse import Namespace

from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import nn

from ..mixers.options import refuse
from . import checks
from .config import ENCODER_DECODER
from .dictionaries import remember_dictionaries, remember_languages
from .presets import ENCODER_DECODER_PRESETS
from .pretrained import Pretrained
from .registration import ConfiguredModel, options_to_build, register_family, require_task
from .stacks import ConvAttnDecoder, ConvAttnEncoder


class ConvAttnModel(ConfiguredModel, Pretrained, TransformerModelBase):
    """fairseq's transformer with any token mixer of :data:`fairseq_convattn.mixers.MIXERS` in
    every layer (Wu et al. 2019, Chang et al. 2021, Wennberg and Henter 2021).
    """

    schema = ENCODER_DECODER

    @classmethod
    def build_model(cls, cfg: Namespace | DictConfig, task: FairseqTask) -> "ConvAttnModel":
        """Build the model that ``cfg`` describes (flat; what it lacks is filled in).

        Raises:
            ValueError: an option cannot work; the message names it. Or the task is for other
                models, as that of fairseq-eval-lm.
        """
        require_task("convattn", task)
        options = options_to_build(cfg, cls.schema)
        remember_dictionaries(cfg, task)
        remember_languages(cfg, task)
        types = len(task.target_dictionary)
        checks.clusters("adaptive_softmax", options, "decoder_output_dim", types)
        for shared in ("share_all_embeddings", "merge_src_tgt_embed"):
            if getattr(options, shared) and task.source_dictionary != task.target_dictionary:
                refuse(shared, "needs data of fairseq-preprocess --joined-dictionary")
        return super().build_model(nested_config(options), task)

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Module
    ) -> ConvAttnEncoder:
        return ConvAttnEncoder(cfg, src_dict, embed_tokens, cfg.encoder.mixers)

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Module
    ) -> ConvAttnDecoder:
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


def nested_config(options: Namespace) -> TransformerConfig:
    """fairseq's nested configuration, with ``encoder.mixers`` and ``decoder.mixers``."""
    cfg = TransformerConfig.from_namespace(options)
    cfg.encoder.mixers, cfg.decoder.mixers = options.encoder_mixers, options.decoder_mixers
    return cfg


register_family("convattn", ConvAttnModel, ENCODER_DECODER_PRESETS)
