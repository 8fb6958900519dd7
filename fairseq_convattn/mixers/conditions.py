"""When a mixer's options have an effect (``reads``) and which values do not go together
(``impossible``, ``refused``), for the table in ``config``."""

import numbers
from typing import TYPE_CHECKING

from ..ops.attention import TABLE_TERMS
from ..ops.taps import RENORMALIZABLE

if TYPE_CHECKING:
    from .config import MixerConfig

CONVOLUTIONS = ("lightweight", "dynamic")
COMPOSITE = ("composite", "tisa")
# the terms that read each projection
PROJECTION_TERMS = {"q": {"content", "query"}, "k": {"content", "key", "key_only"}}


def has_tables(config: "MixerConfig") -> bool:
    return not set(TABLE_TERMS).isdisjoint(config.attention_terms)


def has_span(config: "MixerConfig") -> bool:
    return has_tables(config) or config.beyond_span == "mask"


def has_span_or_its_taps(config: "MixerConfig") -> bool:
    taps_from_span = config.projection_kernel_size is None
    return has_span(config) or (taps_from_span and convolves(config))


def has_parameters(config: "MixerConfig") -> bool:
    return not {"content", "alibi"}.issuperset(config.attention_terms)


def projections(config: "MixerConfig") -> set[str]:
    return {config.query_key_projection, config.value_projection} - {"linear"}


def normalises(config: "MixerConfig") -> bool:
    return config.mixer in CONVOLUTIONS or not projections(config).isdisjoint(CONVOLUTIONS)


def convolves(config: "MixerConfig") -> bool:
    return bool(projections(config)) or config.value_conv != "none"


def bad_size(size: object) -> str | None:
    fits = isinstance(size, numbers.Integral) and size >= 1
    return None if fits else f"must be a whole number of at least 1, not {size!r}"


def bad_taps(config: "MixerConfig", taps: int) -> str | None:
    return None if config.causal or taps % 2 else f"must be odd in an encoder, not {taps}"


def bad_conv_dim(config: "MixerConfig") -> str | None:
    width, heads = config.conv_dim or config.embed_dim, config.num_heads
    return f"{heads} heads do not divide the width {width}" if width % heads else None


def bad_renormalization(config: "MixerConfig") -> str | None:
    if not config.renorm_padding or config.tap_norm in RENORMALIZABLE:
        return None
    return f"works with --weight-norm {', '.join(RENORMALIZABLE)}, not {config.tap_norm}"


def bad_attention_dropout(config: "MixerConfig") -> str | None:
    if config.mixer in COMPOSITE and config.attention_dropout == 1:
        return "must be less than 1 for composite attention, not 1.0"
    return None


def bad_span(config: "MixerConfig") -> str | None:
    tables = config.mixer == "composite" and has_tables(config)
    if tables and config.attention_span == 0 and config.beyond_span == "clip":
        return "must be at least 1 with --beyond-span clip, not 0"
    return None


def bad_beyond(config: "MixerConfig") -> str | None:
    if config.mixer != "composite" or config.beyond_span != "zero" or has_tables(config):
        return None
    terms = ",".join(config.attention_terms)
    return f"zero needs one of the terms {', '.join(TABLE_TERMS)}, not {terms}"


def bad_query_key_projection(config: "MixerConfig") -> str | None:
    seen = set.union(*PROJECTION_TERMS.values()).intersection(config.attention_terms)
    if config.query_key_projection == "linear" or seen:
        return None
    return f"the terms {','.join(config.attention_terms)} use neither queries nor keys"


def _not_convolved(config: "MixerConfig") -> str | None:
    needed = "needs a convolution in --query-key-projection or --value-projection"
    return None if projections(config) else needed


def bad_activation(config: "MixerConfig") -> str | None:
    return None if config.projection_activation == "linear" else _not_convolved(config)


def bad_convolved_heads(config: "MixerConfig") -> str | None:
    return None if config.convolved_heads == "all" else _not_convolved(config)


def bad_halves(config: "MixerConfig") -> str | None:
    odd = config.convolved_heads == "half" and config.num_heads % 2
    return f"half needs an even number of heads, not {config.num_heads}" if odd else None


def bad_short_convolution(config: "MixerConfig") -> str | None:
    if config.short_convolution == "none" or config.self_attention:
        return None
    return "mutually exclusive with --cross-self-attention"


def bad_short_convolution_on(config: "MixerConfig") -> str | None:
    if config.mixer not in COMPOSITE or config.short_convolution == "none":
        return None
    unused = [
        letter
        for letter, terms in PROJECTION_TERMS.items()
        if letter in config.short_convolution_on and terms.isdisjoint(config.attention_terms)
    ]
    used = "".join(letter for letter in config.short_convolution_on if letter not in unused)
    terms = f"the terms {','.join(config.attention_terms)} do not use {' and '.join(unused)}"
    return f"{terms}; give {used or 'v'}" if unused else None
