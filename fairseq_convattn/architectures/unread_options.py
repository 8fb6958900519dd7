"""Options of composite attention that a command line gives and that no layer reads."""

from argparse import Namespace
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from ..mixers import MixerConfig
from ..ops.attention import TABLE_TERMS
from .layer_mixers import COMPOSITE_MIXERS, attention_terms, layer_mixers, refuse


class _Use(NamedTuple):
    """Whether a layer of composite attention reads an option, and in words what it takes."""

    reads: Callable[[MixerConfig, Namespace], bool]
    needs: str


def _has_span(mixer: MixerConfig, args: Namespace) -> bool:
    return not set(TABLE_TERMS).isdisjoint(mixer.attention_terms) or mixer.beyond_span == "mask"


def _has_parameters(mixer: MixerConfig, args: Namespace) -> bool:
    return not {"content", "alibi"}.issuperset(mixer.attention_terms)


def _convolves(mixer: MixerConfig, args: Namespace) -> bool:
    projections = {mixer.query_key_projection, mixer.value_projection}
    return projections != {"linear"} or mixer.value_conv != "none"


def _has_span_or_its_taps(mixer: MixerConfig, args: Namespace) -> bool:
    own = args.projection_kernel_size is not None
    return _has_span(mixer, args) or (_convolves(mixer, args) and not own)


def _has_these_terms(mixer: MixerConfig, args: Namespace) -> bool:
    return set(mixer.attention_terms) == set(attention_terms(args))


_SPAN = f"one of the terms {', '.join(TABLE_TERMS)}, or --beyond-span mask"
_PARAMETERS = "a term that is learned, as neither content nor alibi is"
_ANY = _Use(lambda mixer, args: True, "")
_USES = {
    "attention_terms": _Use(
        _has_these_terms, "the mixer composite; those of tisa are content,tisa"
    ),
    "attention_span": _Use(_has_span_or_its_taps, _SPAN),
    "beyond_span": _Use(_has_span, _SPAN),
    "tisa_kernels": _Use(lambda mixer, args: "tisa" in mixer.attention_terms, "the term tisa"),
    "share_tables_across_heads": _Use(_has_parameters, _PARAMETERS),
    "share_tables_across_layers": _Use(_has_parameters, _PARAMETERS),
    "query_key_projection": _ANY,
    "value_projection": _ANY,
    "projection_kernel_size": _Use(
        _convolves, "--query-key-projection, --value-projection or --value-conv"
    ),
    "projection_activation": _ANY,
    "convolved_heads": _ANY,
    "value_conv": _ANY,
}


def refuse_unread(args: Namespace, stacks: Iterable[str], given: Collection[str]) -> None:
    """Refuse an option that the user gave and that no layer of any stack reads.

    Args:
        args: a complete configuration (:func:`config.complete`).
        stacks: ``encoder`` and ``decoder``, or one of them.
        given: the options that are the user's, and not a preset's or a default.

    Raises:
        ValueError: the message is one line and names the option.
    """
    mixers = [mixer for side in stacks for mixer in layer_mixers(args, side)]
    composite = [mixer for mixer in mixers if mixer.mixer in COMPOSITE_MIXERS]
    for option, use in _USES.items():
        if option in given and not any(use.reads(mixer, args) for mixer in composite):
            needs = use.needs if composite else f"the mixer {' or '.join(COMPOSITE_MIXERS)}"
            refuse(option, f"no layer reads it; it needs {needs}")
