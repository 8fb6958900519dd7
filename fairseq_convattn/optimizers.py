"""fairseq's optimizers, which also save what fairseq's checkpoints lack for a training to resume.

The float32 weights: with ``--fp16`` and ``--bf16`` an optimizer updates float32 copies, and fairseq
saves only the rounded weights. And the best loss and the count of ``--patience``, which start anew
in fairseq.
"""

import sys

from fairseq import checkpoint_utils
from fairseq.optim import register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.optim.nag import FairseqNAG, FairseqNAGConfig
from torch import Tensor, bfloat16, equal, float16, float32

_WEIGHTS, _PATIENCE = "float32_weights", "patience"


class _Resumable:
    _saved_patience: dict = {}

    def state_dict(self) -> dict:
        patience = {name: float(value) for name, value in _patience().items()}
        state = {**super().state_dict(), _PATIENCE: patience}
        weights = [weight.detach() for weight in self.params]
        if all(weight.dtype == float32 for weight in weights):  # not with --memory-efficient-*
            state[_WEIGHTS] = weights
        return state

    def load_state_dict(self, state_dict: dict, optimizer_overrides: dict | None = None) -> None:
        super().load_state_dict(state_dict, optimizer_overrides)
        self._saved_patience = state_dict.get(_PATIENCE, {})
        saved = state_dict.get(_WEIGHTS, [])
        pairs = list(zip(self.params, saved, strict=True)) if saved else []
        if all(_is_rounded(weight.detach(), saved.to(weight.device)) for weight, saved in pairs):
            for weight, saved in pairs:
                weight.data.copy_(saved)

    def step(self, *arguments, **options) -> None:
        """Before the first step ``--patience`` counts on, unless ``--reset-meters`` made fairseq
        forget the best score."""
        if hasattr(checkpoint_utils.save_checkpoint, "best"):
            _patience().update(self._saved_patience)
        self._saved_patience = {}
        super().step(*arguments, **options)


def _is_rounded(weight: Tensor, saved: Tensor) -> bool:
    """Not so where the model's weights were changed since, as by averaging checkpoints."""
    return any(equal(saved.to(half).float(), weight) for half in (bfloat16, float16))


def _patience() -> dict:
    """Where fairseq-train remembers the best loss and how many validations ago it was."""
    train = sys.modules.get("fairseq_cli.train", sys.modules["__main__"])
    return vars(train.should_stop_early) if hasattr(train, "should_stop_early") else {}


@register_optimizer("convattn_adam", dataclass=FairseqAdamConfig)
class ConvAttnAdam(_Resumable, FairseqAdam):
    """fairseq's Adam; a training that is resumed is the one that was not interrupted."""


@register_optimizer("convattn_nag", dataclass=FairseqNAGConfig)
class ConvAttnNAG(_Resumable, FairseqNAG):
    """fairseq's Nesterov momentum; a training that is resumed is the one that was not
    interrupted."""


# fairseq resumes a training with a class of the same name only; the state is adam's or nag's
ConvAttnAdam.__name__, ConvAttnNAG.__name__ = FairseqAdam.__name__, FairseqNAG.__name__
