"""From the options of a model to the mixer of every layer, with one-line errors."""

import re
from argparse import Namespace

from ..mixers import MIXERS, MixerConfig
from ..ops.taps import RENORMALIZABLE, TAP_NORMALIZATIONS

_NORMS = ", ".join(TAP_NORMALIZATIONS)
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
    if layers < 0:
        refuse(f"{side}_layers", f"{layers} layers cannot be built")
    option = f"{side}_kernel_sizes"
    sizes = whole_numbers(option, getattr(args, option), "3,7,15,31")
    names = _mixer_names(f"{side}_mixers", getattr(args, f"{side}_mixers"))
    names = _one_per_layer(f"{side}_mixers", names, layers)
    sizes = _one_per_layer(f"{side}_kernel_sizes", sizes, layers)
    mixers = [_mixer(args, side, *layer) for layer in zip(names, sizes, strict=True)]
    kept = getattr(args, f"{side}_layers_to_keep")
    return [mixers[i] for i in _kept(f"{side}_layers_to_keep", kept, layers)] if kept else mixers


def whole_numbers(option: str, given: str | int | list[int], example: str) -> list[int]:
    """``3,7,15`` on the command line; a number or a list from Python and from YAML."""
    numbers = given.strip("[] ").split(",") if isinstance(given, str) else given
    numbers = numbers if isinstance(numbers, list) else [numbers]
    if not all(re.fullmatch(r"\s*[+-]?\d+\s*", str(number)) for number in numbers):
        refuse(option, f"{given!r} must be whole numbers with commas between them, as {example}")
    return [int(number) for number in numbers]


def _mixer_names(option: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in MIXERS:
            refuse(option, f"unknown mixer {name!r}, choose from {', '.join(MIXERS)}")
    return names


def _one_per_layer(option: str, values: list, layers: int) -> list:
    if len(values) == 1:
        return values * layers
    if len(values) != layers:
        refuse(option, f"{len(values)} values for {layers} layers; give one, or one per layer")
    return values


def _kept(option: str, text: str, layers: int) -> list[int]:
    try:
        indices = sorted(int(index) for index in text.split(","))
    except ValueError:
        indices = [-1]
    if indices[0] < 0 or indices[-1] >= layers:
        refuse(option, f"{text!r} must name layers from 0 to {layers - 1}")
    return indices


def _mixer(args: Namespace, side: str, name: str, kernel_size: int) -> MixerConfig:
    config = MixerConfig(
        mixer=name,
        embed_dim=getattr(args, f"{side}_embed_dim"),
        num_heads=getattr(args, f"{side}_attention_heads"),
        causal=side == "decoder",
        kernel_size=kernel_size,
        conv_dim=getattr(args, f"{side}_conv_dim"),
        glu=boolean(f"{side}_glu", getattr(args, f"{side}_glu")),
        tap_norm=str(args.weight_norm),
        weight_dropout=args.weight_dropout,
        input_dropout=args.input_dropout,
        conv_bias=args.conv_bias,
        renorm_padding=args.renorm_padding,
        attention_dropout=args.attention_dropout,
        self_attention=not (side == "decoder" and getattr(args, "cross_self_attention", False)),
        quant_noise=args.quant_noise_pq,
        quant_noise_block_size=args.quant_noise_pq_block_size,
    )
    _check(side, config)
    return config


def _check(side: str, config: MixerConfig) -> None:
    heads, width, taps = config.num_heads, config.embed_dim, config.kernel_size
    if heads < 1 or width % heads:
        refuse(
            f"{side}_attention_heads",
            f"{heads} heads do not divide the width {width} (--{side}-embed-dim)",
        )
    if config.mixer == "attention":
        return
    if config.conv_dim < 1:
        refuse(f"{side}_conv_dim", f"a width of {config.conv_dim} cannot work")
    if config.conv_dim % heads:
        refuse(
            f"{side}_attention_heads",
            f"{heads} heads do not divide the width {config.conv_dim} (--{side}-conv-dim)",
        )
    if taps < 1:
        refuse(f"{side}_kernel_sizes", f"a kernel of {taps} taps cannot work, give at least 1")
    if not config.causal and taps % 2 == 0:
        refuse(
            f"{side}_kernel_sizes", f"a kernel of {taps} taps cannot be centred, give an odd number"
        )
    for option in ("weight_dropout", "input_dropout"):
        if not 0 <= getattr(config, option) <= 1:
            refuse(option, f"{getattr(config, option)} is no probability")
    if config.tap_norm not in TAP_NORMALIZATIONS:
        refuse("weight_norm", f"unknown {config.tap_norm!r}, choose from {_NORMS}")
    if config.renorm_padding and config.tap_norm not in RENORMALIZABLE:
        refuse(
            "renorm_padding",
            f"works with --weight-norm {', '.join(RENORMALIZABLE)}, not {config.tap_norm}",
        )
    if not config.self_attention:
        refuse(
            "cross_self_attention",
            f"needs --decoder-mixers attention in every layer, not {config.mixer}",
        )


def boolean(option: str, text: str) -> bool:
    """``true`` or ``false``, as text."""
    if str(text).lower() not in _TRUE + _FALSE:
        refuse(option, f"{text!r} is neither true nor false")
    return str(text).lower() in _TRUE


def refuse(option: str, reason: str) -> None:
    """Raise ValueError, in one line that names the option."""
    raise ValueError(f"--{option.replace('_', '-')}: {reason}")
