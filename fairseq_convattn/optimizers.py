"""fairseq's optimizers, which also save what fairseq's checkpoints lack for a training to resume.

The float32 weights: with ``--fp16`` and ``--bf16`` an optimizer updates float32 copies, and fairseq
saves only the rounded weights. And the best loss and the count of ``--patience``, which start anew
in fairseq. They do not save when the loss scale last changed (``--fp16``), nor the loss scale
(``--amp``).
"""

import sys

from fairseq import checkpoint_utils
from fairseq.optim import register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.optim.nag import FairseqNAG, FairseqNAGConfig
from torch import Tensor, bfloat16, equal, float16, float32, optim

_WEIGHTS, _PATIENCE = "float32_weights", "patience"


class _Resumable:
    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        # fairseq makes its float32 copies with gradients, which a new model's weights do not have
        self.optimizer.has_copies = any(
            weight.grad is not None and weight.dtype == float32
            for group in self.optimizer.param_groups
            for weight in group["params"]
        )
        # with --amp fairseq saves and loads torch's optimizer, not its own
        self.optimizer.register_state_dict_post_hook(_add)
        self.optimizer.register_load_state_dict_pre_hook(_load)


def _add(optimizer: optim.Optimizer, state: dict) -> None:
    found = _stopping().items()
    state[_PATIENCE] = {name: float(x) for name, x in found if name in ("best", "num_runs")}
    if optimizer.has_copies:
        state[_WEIGHTS] = _weights(optimizer)


def _load(optimizer: optim.Optimizer, state: dict) -> None:
    weights, saved = _weights(optimizer), state.get(_WEIGHTS, ())
    pairs = list(zip(weights, saved, strict=True)) if len(saved) == len(weights) else []
    if all(_is_rounded(weight, saved.to(weight.device)) for weight, saved in pairs):
        for weight, saved in pairs:
            weight.copy_(saved)
    patience = dict(state.get(_PATIENCE, {}))

    def count_on(*_: object) -> None:
        """Before the first step, unless ``--reset-meters`` made fairseq forget the best score."""
        if hasattr(checkpoint_utils.save_checkpoint, "best"):
            _stopping().update(patience)
        patience.clear()

    optimizer.register_step_pre_hook(count_on)


def _weights(optimizer: optim.Optimizer) -> list[Tensor]:
    return [weight.detach() for group in optimizer.param_groups for weight in group["params"]]


def _is_rounded(weight: Tensor, saved: Tensor) -> bool:
    """Not so where the model's weights were changed since, as by averaging checkpoints."""
    return any(equal(saved.to(half).float(), weight) for half in (bfloat16, float16))


def _stopping() -> dict:
    """Where fairseq-train remembers the best loss and how many validations ago it was."""
    train = sys.modules.get("fairseq_cli.train", sys.modules["__main__"])
    return vars(train.should_stop_early) if hasattr(train, "should_stop_early") else {}


@register_optimizer("convattn_adam", dataclass=FairseqAdamConfig)
class ConvAttnAdam(_Resumable, FairseqAdam):
    """fairseq's Adam; in float32 and bfloat16 a training that is resumed is the one that was not
    interrupted."""


@register_optimizer("convattn_nag", dataclass=FairseqNAGConfig)
class ConvAttnNAG(_Resumable, FairseqNAG):
    """fairseq's Nesterov momentum, otherwise as :class:`ConvAttnAdam`."""


# fairseq resumes a training with a class of the same name only; the state is adam's or nag's
ConvAttnAdam.__name__, ConvAttnNAG.__name__ = FairseqAdam.__name__, FairseqNAG.__name__
