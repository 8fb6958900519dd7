"""From the options of a model to the mixer of every layer, with one-line errors."""

import re
from argparse import Namespace
from collections.abc import Iterable

from fairseq.utils import get_available_activation_fns

from ..mixers import MIXERS, MixerConfig
from ..mixers.composite import TISA_TERMS
from ..mixers.injection import PROJECTIONS, VALUE_CONVOLUTIONS
from ..ops.attention import BEYOND, TABLE_TERMS, TERMS
from ..ops.taps import RENORMALIZABLE, TAP_NORMALIZATIONS

COMPOSITE_MIXERS = ("composite", "tisa")
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")
_CHOICES = {
    "beyond_span": BEYOND,
    "query_key_projection": PROJECTIONS,
    "value_projection": PROJECTIONS,
    "projection_activation": get_available_activation_fns(),
    "convolved_heads": ("all", "half"),
    "value_conv": VALUE_CONVOLUTIONS,
}


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
    names = _split(option, text)
    for name in names:
        if name not in MIXERS:
            refuse(option, f"unknown mixer {name!r}, choose from {', '.join(MIXERS)}")
    return names


def _split(option: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if any(names) and not all(names):
        refuse(option, f"a name is missing in {text!r}, before or after a comma")
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
    causal = side == "decoder"
    span = args.attention_span
    across_heads = args.share_tables_across_heads
    terms, taps = attention_terms(args), args.projection_kernel_size
    config = MixerConfig(
        mixer=name,
        embed_dim=getattr(args, f"{side}_embed_dim"),
        num_heads=getattr(args, f"{side}_attention_heads"),
        causal=causal,
        kernel_size=kernel_size,
        conv_dim=getattr(args, f"{side}_conv_dim"),
        glu=boolean(f"{side}_glu", getattr(args, f"{side}_glu")),
        tap_norm=str(args.weight_norm),
        weight_dropout=args.weight_dropout,
        input_dropout=args.input_dropout,
        conv_bias=args.conv_bias,
        renorm_padding=args.renorm_padding,
        attention_dropout=args.attention_dropout,
        attention_terms=TISA_TERMS if name == "tisa" else terms,
        attention_span=span,
        beyond_span=str(args.beyond_span),
        tisa_kernels=args.tisa_kernels,
        share_tables_across_heads=across_heads
        and boolean("share_tables_across_heads", across_heads),
        share_tables_across_layers=boolean(
            "share_tables_across_layers", args.share_tables_across_layers
        ),
        query_key_projection=str(args.query_key_projection),
        value_projection=str(args.value_projection),
        projection_kernel_size=(span if causal else 2 * span) + 1 if taps is None else taps,
        projection_activation=str(args.projection_activation),
        convolved_heads=str(args.convolved_heads),
        value_conv=str(args.value_conv),
        self_attention=not (side == "decoder" and getattr(args, "cross_self_attention", False)),
        quant_noise=args.quant_noise_pq,
        quant_noise_block_size=args.quant_noise_pq_block_size,
    )
    _check(side, config)
    return config


def _check(side: str, config: MixerConfig) -> None:
    heads, width = config.num_heads, config.embed_dim
    if heads < 1 or width % heads:
        refuse(
            f"{side}_attention_heads",
            f"{heads} heads do not divide the width {width} (--{side}-embed-dim)",
        )
    for option, known in _CHOICES.items():
        _check_choice(option, getattr(config, option), known)
    if not 0 <= config.attention_dropout <= 1:
        refuse("attention_dropout", f"{config.attention_dropout} is no probability")
    if config.mixer in COMPOSITE_MIXERS:
        _check_composite(config)
    elif config.mixer != "attention":
        _check_convolution(side, config)
    if config.mixer != "attention" and not config.self_attention:
        refuse(
            "cross_self_attention",
            f"needs --decoder-mixers attention in every layer, not {config.mixer}",
        )


def _check_convolution(side: str, config: MixerConfig) -> None:
    heads, taps = config.num_heads, config.kernel_size
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
    if config.weight_dropout == 1:
        refuse("weight_dropout", "1 would drop every tap")
    _check_choice("weight_norm", config.tap_norm, TAP_NORMALIZATIONS)
    if config.renorm_padding and config.tap_norm not in RENORMALIZABLE:
        refuse(
            "renorm_padding",
            f"works with --weight-norm {', '.join(RENORMALIZABLE)}, not {config.tap_norm}",
        )


def _check_composite(config: MixerConfig) -> None:
    if config.mixer == "composite":
        _check_terms(config)
    if config.attention_dropout == 1:
        refuse("attention_dropout", "composite attention needs less than 1, not 1.0")
    if config.attention_span < 0:
        refuse("attention_span", f"a span of {config.attention_span} cannot work")
    if config.tisa_kernels < 1:
        refuse("tisa_kernels", f"{config.tisa_kernels} kernels cannot work, give at least 1")
    taps = config.projection_kernel_size
    if taps < 1:
        refuse("projection_kernel_size", f"{taps} taps cannot work, give at least 1")
    if not config.causal and taps % 2 == 0:
        refuse("projection_kernel_size", f"{taps} taps cannot work, give an odd number")
    projections = (config.query_key_projection, config.value_projection)
    if set(projections) == {"linear"}:
        for option, default in (("projection_activation", "linear"), ("convolved_heads", "all")):
            if getattr(config, option) != default:
                refuse(
                    option,
                    "nothing is convolved; give --query-key-projection or --value-projection",
                )
    if config.convolved_heads == "half" and config.num_heads % 2:
        refuse("convolved_heads", f"{config.num_heads} heads have no half")


def attention_terms(args: Namespace) -> tuple[str, ...]:
    """The names in ``--attention-terms``, of a complete configuration.

    Raises:
        ValueError: one is unknown, missing or there twice; the message is one line.
    """
    terms = _split("attention_terms", str(args.attention_terms))
    if not any(terms):
        refuse("attention_terms", f"no terms, choose from {', '.join(TERMS)}")
    for term in terms:
        _check_choice("attention_terms", term, TERMS)
        if terms.count(term) > 1:
            refuse("attention_terms", f"{term!r} twice")
    return tuple(terms)


def _check_terms(config: MixerConfig) -> None:
    terms = config.attention_terms
    from_tables = set(terms) & set(TABLE_TERMS)
    if config.beyond_span == "zero" and not from_tables:
        refuse(
            "beyond_span",
            f"zero concerns the terms {', '.join(TABLE_TERMS)}, not {','.join(terms)}",
        )
    if config.attention_span == 0 and config.beyond_span == "clip" and from_tables:
        refuse("attention_span", "with a span of 0 --beyond-span clip gives all positions one tap")
    contents = ("content", "query", "key", "key_only")
    if config.query_key_projection != "linear" and not set(terms) & set(contents):
        refuse(
            "query_key_projection",
            f"the terms {','.join(terms)} look at neither queries nor keys",
        )


def _check_choice(option: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        refuse(option, f"unknown {value!r}, choose from {', '.join(known)}")


def boolean(option: str, text: str) -> bool:
    """``true`` or ``false``, as text."""
    if str(text).lower() not in _TRUE + _FALSE:
        refuse(option, f"{text!r} is neither true nor false")
    return str(text).lower() in _TRUE


def refuse(option: str, reason: str) -> None:
    """Raise ValueError, in one line that names the option."""
    raise ValueError(f"--{option.replace('_', '-')}: {reason}")
