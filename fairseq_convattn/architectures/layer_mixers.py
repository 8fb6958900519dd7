"""From the options of a model to the mixer of every layer, with one-line errors."""

from argparse import Namespace

from ..mixers import MIXERS, MixerConfig
from ..ops.taps import RENORMALIZABLE, TAP_NORMALIZATIONS

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


def layer_mixers(args: Namespace, side: str) -> list[MixerConfig]:
    """Resolve the mixers of a stack's layers, those that are kept when pruning.

    Args:
        args: a complete configuration (:func:`config.complete`).
        side: ``encoder`` or ``decoder``.

    Raises:
        ValueError: an option cannot work; the message is one line and names it.
    """
    layers = getattr(args, f"{side}_layers")
    names = _per_layer(args, side, "mixers", _mixer_names(args, side), layers)
    sizes = getattr(args, f"{side}_kernel_sizes") or default_kernel_sizes(layers)
    sizes = _per_layer(args, side, "kernel_sizes", sizes, layers)
    mixers = [_mixer(args, side, *layer) for layer in zip(names, sizes, strict=True)]
    kept = getattr(args, f"{side}_layers_to_keep")
    return [mixers[i] for i in _kept_layers(side, kept, layers)] if kept else mixers


def default_kernel_sizes(layers: int) -> list[int]:
    """3, 7, 15 and then 31 (Wu et al. 2019, section 5.1), for any number of layers."""
    return ([3, 7, 15] + [31] * layers)[:layers]


def _mixer_names(args: Namespace, side: str) -> list[str]:
    names = [name.strip() for name in getattr(args, f"{side}_mixers").split(",")]
    for name in names:
        if name not in MIXERS:
            _refuse(side, "mixers", f"unknown mixer {name!r}, choose from {', '.join(MIXERS)}")
    return names


def _per_layer(args: Namespace, side: str, option: str, values: list, layers: int) -> list:
    if len(values) == 1:
        return values * layers
    if len(values) != layers:
        _refuse(
            side,
            option,
            f"{len(values)} values for {layers} layers (--{side}-layers); give one, or one per layer",
        )
    return values


def _kept_layers(side: str, kept: str, layers: int) -> list[int]:
    try:
        indices = sorted(int(index) for index in kept.split(","))
    except ValueError:
        indices = [-1]
    if indices[0] < 0 or indices[-1] >= layers:
        _refuse(side, "layers_to_keep", f"{kept!r} must name layers from 0 to {layers - 1}")
    return indices


def _mixer(args: Namespace, side: str, name: str, kernel_size: int) -> MixerConfig:
    config = MixerConfig(
        mixer=name,
        embed_dim=getattr(args, f"{side}_embed_dim"),
        num_heads=getattr(args, f"{side}_attention_heads"),
        causal=side == "decoder",
        kernel_size=kernel_size,
        conv_dim=getattr(args, f"{side}_conv_dim"),
        glu=_boolean(side, getattr(args, f"{side}_glu")),
        tap_norm=str(args.weight_norm),
        weight_dropout=args.weight_dropout,
        input_dropout=args.input_dropout,
        conv_bias=args.conv_bias,
        renorm_padding=args.renorm_padding,
        attention_dropout=args.attention_dropout,
        self_attention=not (side == "decoder" and args.cross_self_attention),
        quant_noise=args.quant_noise_pq,
        quant_noise_block_size=args.quant_noise_pq_block_size,
    )
    _check(args, side, config)
    return config


def _check(args: Namespace, side: str, config: MixerConfig) -> None:
    heads = config.num_heads
    if heads < 1 or config.embed_dim % heads:
        _refuse(side, "attention_heads", f"{heads} heads do not divide the width {config.embed_dim} (--{side}-embed-dim)")
    if config.mixer == "attention":
        return
    if config.conv_dim % heads:
        _refuse(side, "attention_heads", f"{heads} heads do not divide the width {config.conv_dim} (--{side}-conv-dim)")
    if config.kernel_size < 1:
        _refuse(side, "kernel_sizes", f"a kernel of {config.kernel_size} taps cannot work, give at least 1")
    if not config.causal and config.kernel_size % 2 == 0:
        _refuse(side, "kernel_sizes", f"a kernel of {config.kernel_size} taps cannot be centred, give an odd number")
    if config.tap_norm not in TAP_NORMALIZATIONS:
        raise ValueError(f"--weight-norm: unknown {config.tap_norm!r}, choose from {', '.join(TAP_NORMALIZATIONS)}")
    if config.renorm_padding and config.tap_norm not in RENORMALIZABLE:
        raise ValueError(f"--renorm-padding: works with --weight-norm {', '.join(RENORMALIZABLE)}, not {config.tap_norm}")
    if not config.self_attention:
        raise ValueError(f"--cross-self-attention: needs --decoder-mixers attention in every layer, not {config.mixer}")


def _boolean(side: str, text: str) -> bool:
    if str(text).lower() not in _TRUE + _FALSE:
        _refuse(side, "glu", f"{text!r} is neither true nor false")
    return str(text).lower() in _TRUE


def _refuse(side: str, option: str, reason: str) -> None:
    raise ValueError(f"--{side}-{option.replace('_', '-')}: {reason}")
