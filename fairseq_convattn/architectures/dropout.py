"""Dropout with masks that a CPU draws fast."""

from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from ..mixers.base import dropout_p
from ..ops.masks import kept


class Dropout(FairseqDropout):
    """fairseq's dropout with the masks of :func:`fairseq_convattn.ops.masks.kept` on a CPU."""

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        p = dropout_p(self)
        if not 0 < p < 1 or x.device.type != "cpu" or inplace:
            return super().forward(x, inplace)
        mask, keep = kept(x, p)
        return x * mask.to(x.dtype).mul_(1 / keep)


def use_fast_dropout(module: nn.Module) -> None:
    """Replace fairseq's dropout everywhere in ``module``."""
    for parent in module.modules():
        for name, child in parent.named_children():
            if type(child) is FairseqDropout:
                setattr(parent, name, Dropout(child.p, child.module_name))
