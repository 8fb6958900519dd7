"""The weights and options of a model's stacks, as a checkpoint of any age stores them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..checkpoints.files import stored_options

POSITIONS = "embed_positions.weight"

_LAYER = re.compile(r"(?:(?P<stack>.+?)\.)?layers\.(?P<layer>\d+)\.(?P<name>.+)")
_OTHER = re.compile(r"(?:(?P<stack>.+)\.)?(?P<name>[^.]+\.[^.]+)")


@dataclass
class StoredStack:
    """An encoder or a decoder.

    Attributes:
        name: what its weights' names begin with: ``encoder``, ``encoder.sentence_encoder``.
        options: how the model was built; {} where the checkpoint does not say.
        weights: by their names in the stack, such as ``embed_positions.weight``.
        layers: the weights of each layer, by their names in the layer.
        notes: remarks for the reader of the analysis.
    """

    name: str
    options: Mapping[str, Any]
    weights: dict[str, Tensor] = field(default_factory=dict)
    layers: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def side(self) -> str:
        """``encoder`` or ``decoder``, as options begin."""
        return self.name.partition(".")[0]

    @property
    def causal(self) -> bool:
        """Whether positions see earlier ones only."""
        return self.side == "decoder"

    @property
    def heads(self) -> int | None:
        heads = self.option("attention_heads")
        if heads is None:  # in 2019 fairseq named RoBERTa's encoder decoder
            heads = self.options.get("encoder_attention_heads")
        return heads if isinstance(heads, int) else None

    def option(self, name: str) -> Any:
        """The option ``encoder_NAME`` (or ``encoder.NAME``); None where there is neither."""
        part = self.options.get(self.side)
        nested = part.get(name) if isinstance(part, Mapping) else None
        return self.options.get(f"{self.side}_{name}", nested)

    def mixers(self) -> dict[int, str]:
        """This plugin's token mixer of every layer; {} in other models."""
        names = str(self.option("mixers") or "").split(",")
        kept = self.option("layers_to_keep")  # the file has only the kept layers, renumbered
        if len(names) == 1:
            names *= len(self.layers)
        elif kept:
            names = [names[index] for index in sorted(map(int, str(kept).split(",")))]
        return {layer: name.strip() for layer, name in zip(self.layers, names, strict=False)}


def stored_stacks(state: dict) -> list[StoredStack]:
    """The stacks of a checkpoint that have layers or a table of positions.

    Args:
        state: what :func:`read_checkpoint` gives.
    """
    options = stored_options(state, "model")
    stacks: dict[str, StoredStack] = {}
    for key, weight in state["model"].items():
        found = _LAYER.fullmatch(str(key)) or _OTHER.fullmatch(str(key))
        if found is None or not isinstance(weight, Tensor):
            continue
        name = found["stack"] or ""
        stack = stacks.setdefault(name, StoredStack(name, options))
        if found.re is _LAYER:
            stack.layers.setdefault(int(found["layer"]), {})[found["name"]] = weight
        else:
            stack.weights[found["name"]] = weight
    for stack in stacks.values():
        stack.layers = dict(sorted(stack.layers.items()))
    return [stack for stack in stacks.values() if stack.layers or POSITIONS in stack.weights]
