"""The options of our models; those of their mixers are in :mod:`..mixers.config`."""

from collections.abc import Iterable

from fairseq.utils import get_available_activation_fns

from ..mixers import MIXERS
from ..mixers.config import OPTIONS, PER_LAYER
from ..mixers.options import FLAG, SWITCH, Option, choice, names, probability, whole

_TAPS = {
    "encoder": "odd (the kernel is centred)",
    "decoder": "any number >= 1 (the kernel is causal)",
}
_MIXERS = Option(
    names("mixer", MIXERS, repeated=True),
    f"token mixers of the {{side}}: {', '.join(MIXERS)}; {PER_LAYER}",
    default="dynamic",
)


def mixer_options(stacks: Iterable[str]) -> dict[str, Option]:
    """The options of the mixers of ``encoder``, ``decoder`` or both, by their names."""
    options = {}
    for side in stacks:
        own = {"mixers": _MIXERS} | {
            option.name or field: option for field, option in OPTIONS.items() if option.per_stack
        }
        for name, option in own.items():
            help_ = option.help.format(side=side, taps=_TAPS[side])
            options[f"{side}_{name}"] = option._replace(help=help_)
    for field, option in OPTIONS.items():
        if option.help and not option.per_stack:
            options[option.name or field] = option
    return options


MASKED_LANGUAGE_MODEL_OPTIONS = {
    "encoder_input_dim": Option(
        whole(1),
        "width of the token and position embeddings; if it differs from the encoder's, a linear "
        "map follows them and another one precedes the output",
        default_text="--encoder-embed-dim",
    ),
    "share_encoder_layers": Option(
        SWITCH,
        "one set of weights for all layers, except the tables of relative "
        "positions, which --share-tables-across-layers shares",
        default=False,
    ),
    "segments": Option(
        whole(0),
        "number of segment embeddings; BERT and ALBERT have two. A token's segment is the number "
        "of </s> before it, or the last one",
        default=0,
    ),
    "max_positions": Option(
        whole(1),
        "number of position embeddings, hence the longest input; without absolute positions "
        "there is no limit",
        default_text="the task's",
    ),
    "pooler_activation_fn": Option(
        choice(get_available_activation_fns()),
        "activation function of classification heads",
        default="tanh",
    ),
    "pooler_dropout": Option(
        probability(), "dropout probability of classification heads", default=0.0
    ),
    "untie_weights_roberta": Option(
        FLAG, "give the output its own table, not the embedding's", default=False
    ),
    "load_checkpoint_heads": Option(
        FLAG, "register and load the classification heads of a checkpoint", default=False
    ),
    "spectral_norm_classification_head": Option(
        FLAG, "apply spectral normalisation to classification heads", default=False
    ),
}
