"""Resolves a model's options into the mixer of every layer; finds options that no layer reads."""

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..mixers import MixerConfig
from ..mixers.config import OPTIONS, fixed_options, may_read
from ..mixers.options import Option, refuse
from . import fairseq_options


def layer_mixers(options: Namespace, side: str) -> list[MixerConfig]:
    """Resolve the mixers of a stack's layers, those that pruning drops too.

    Args:
        options: the values of all options of the model.
        side: ``encoder`` or ``decoder``.

    Raises:
        ValueError: an option cannot work; the message is one line and names it.
    """
    layers, heads = (getattr(options, f"{side}_{x}") for x in ("layers", "attention_heads"))
    width = getattr(options, f"{side}_embed_dim")
    if width % heads:
        refuse(
            f"{side}_attention_heads",
            f"{heads} heads do not divide the width {width} (--{side}-embed-dim)",
        )
    names, sizes = (
        _one_per_layer(f"{side}_{x}", getattr(options, f"{side}_{x}"), layers)
        for x in ("mixers", "kernel_sizes")
    )
    common = MixerConfig(
        mixer="",
        embed_dim=width,
        num_heads=heads,
        causal=side == "decoder",
        self_attention=not (side == "decoder" and getattr(options, "cross_self_attention", False)),
        **{
            field: getattr(options, option_name(field, option, side))
            for field, option in OPTIONS.items()
            if field != "kernel_size"
        },
    )
    mixers = [
        replace(common, mixer=name, kernel_size=size, **fixed_options(name))
        for name, size in zip(names, sizes, strict=True)
    ]
    for mixer in dict.fromkeys(mixers):
        _check(side, mixer)
    return mixers


def kept_layers(options: Any, side: str) -> list[int]:
    """The layers of a stack that pruning keeps, or all."""
    option, layers = f"{side}_layers_to_keep", getattr(options, f"{side}_layers")
    text = getattr(options, option)
    if not text:
        return list(range(layers))
    kept = sorted(int(layer) for layer in text.split(","))
    if kept[-1] >= layers:
        refuse(option, f"must be layers from 0 to {layers - 1}, not {text!r}")
    return kept


def option_name(field: str, option: Option, side: str) -> str:
    """The option of a model that sets a field of the mixers in ``side``."""
    name = option.name or field
    return f"{side}_{name}" if option.per_stack else name


def _one_per_layer(option: str, values: list | tuple, layers: int) -> list:
    if len(values) == 1:
        return [*values] * layers
    if len(values) != layers:
        refuse(option, f"{len(values)} values for {layers} layers; give one, or one per layer")
    return values


def _check(side: str, config: MixerConfig) -> None:
    for field, option in OPTIONS.items():
        if config.mixer not in option.readers:
            continue
        if reason := option.impossible(config) or option.refused(config):
            refuse(option_name(field, option, side), reason)
    if config.mixer != "attention" and not config.self_attention:
        refuse(
            "cross_self_attention",
            f"needs --decoder-mixers attention in every layer, not {config.mixer}",
        )


def unread(options: Namespace, stacks: Iterable[str]) -> dict[str, str]:
    """The options that are set without effect, each with the reason.

    Args:
        options: the values of all options, ``encoder_mixers`` and ``decoder_mixers`` resolved.
        stacks: ``encoder`` and ``decoder``, or one of them.
    """
    found = fairseq_options.without_effect(options)
    for field, option in OPTIONS.items():
        names = {option_name(field, option, side): [] for side in stacks}
        for side in stacks:
            names[option_name(field, option, side)] += getattr(options, f"{side}_mixers")
        for name, mixers in names.items():
            needs = _missing(option, mixers, vars(options).get(name)) if option.help else None
            if needs:
                found[name] = f"no layer reads it; it needs {needs}"
    return found


def _missing(option: Option, mixers: list[MixerConfig], value: Any) -> str | None:
    """What a layer would need to read the option; None where one reads it."""

    def reads(config: MixerConfig) -> bool:
        if config.mixer in option.fixed:  # names, in any order
            return set(option.fixed[config.mixer]) == set(value)
        return config.mixer not in option.readers or option.reads(config)

    readers = [mixer for mixer in mixers if may_read(mixer.mixer, option)]
    if any(map(reads, readers)):
        return None
    *others, last = option.readers
    names = f"{', '.join(others)} or {last}" if others else last
    return option.needs if readers else f"the mixer {names}"
