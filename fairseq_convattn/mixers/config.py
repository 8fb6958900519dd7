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
        attention_terms: what composite attention's scores are made of, of
            :data:`fairseq_convattn.ops.attention.TERMS`.
        attention_span: n, the distance that its tables reach.
        beyond_span: ``clip``, ``zero`` or ``mask``.
        tisa_kernels: radial kernels of the ``tisa`` term.
        share_tables_across_heads: None for what the papers do (``query`` and ``key`` yes,
            the others no).
        share_tables_across_layers: one set of tables for all layers of a stack.
        query_key_projection, value_projection: ``linear``, or the convolution that
            projects them: ``lightweight``, ``dynamic`` or ``separable``.
        projection_kernel_size: taps of those convolutions and of the values'.
        projection_activation: fairseq's name of an activation in those projections.
        convolved_heads: ``all``, or ``half``: the second half is projected linearly.
        value_conv: ``none``, or a convolution of the values that is added to attention's
            output: ``depthwise``, or ``scaled`` by a learned number per head.
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
    attention_terms: tuple[str, ...] = ("content", "fixed", "query")
    attention_span: int = 8
    beyond_span: str = "clip"
    tisa_kernels: int = 5
    share_tables_across_heads: bool | None = None
    share_tables_across_layers: bool = False
    query_key_projection: str = "linear"
    value_projection: str = "linear"
    projection_kernel_size: int = 17
    projection_activation: str = "linear"
    convolved_heads: str = "all"
    value_conv: str = "none"
    self_attention: bool = True
    quant_noise: float = 0.0
    quant_noise_block_size: int = 8
