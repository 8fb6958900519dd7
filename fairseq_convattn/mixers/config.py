from dataclasses import dataclass


@dataclass(frozen=True)
class MixerConfig:
    """What one layer's token mixer is made of. Mixers read what concerns them.

    Attributes:
        mixer: a name in the registry of :mod:`fairseq_convattn.mixers`.
        embed_dim: width of the mixer's input and output.
        num_heads: heads of the attention or of the convolution.
        causal: True in a decoder: a position sees itself and earlier ones.
        kernel_size: taps of the convolution.
        conv_dim: width that is convolved; None for ``embed_dim``.
        glu: gate the input projection (twice its parameters).
        tap_norm: a key of :data:`fairseq_convattn.ops.TAP_NORMALIZATIONS`.
        weight_dropout: DropConnect on the normalised taps.
        input_dropout: dropout on the mixer's input.
        conv_bias: add a learned bias to every convolved channel.
        renorm_padding: normalise over the taps that fall on real tokens.
        attention_dropout: dropout on attention's probabilities.
        self_attention: False when keys come from elsewhere too (``--cross-self-attention``).
        quant_noise: probability of quantisation noise on the projections.
        quant_noise_block_size: its block size.
    """

    mixer: str
    embed_dim: int
    num_heads: int
    causal: bool
    kernel_size: int = 31
    conv_dim: int | None = None
    glu: bool = True
    tap_norm: str = "softmax"
    weight_dropout: float = 0.0
    input_dropout: float = 0.0
    conv_bias: bool = False
    renorm_padding: bool = False
    attention_dropout: float = 0.0
    self_attention: bool = True
    quant_noise: float = 0.0
    quant_noise_block_size: int = 8
