"""The weights and options of a model's stacks, as a checkpoint of any age stores them."""

import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from ..checkpoints.files import CheckpointError

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
        notes: for whoever reads the analysis.
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

    def option(self, name: str) -> Any:
        """The option ``encoder_NAME`` (or ``encoder.NAME``); None where there is neither."""
        part = self.options.get(self.side)
        nested = part.get(name) if isinstance(part, Mapping) else None
        return self.options.get(f"{self.side}_{name}", nested)

    def mixers(self) -> dict[int, str]:
        """This plugin's token mixer of every layer; {} in other models."""
        names = str(self.option("mixers") or "").split(",")
        kept = self.option("layers_to_keep")  # the file has these alone, numbered anew
        if len(names) == 1:
            names *= len(self.layers)
        elif kept:
            names = [names[index] for index in sorted(map(int, str(kept).split(",")))]
        return {layer: name.strip() for layer, name in zip(self.layers, names, strict=False)}

    def double(self, *weights: Tensor) -> tuple[Tensor, ...]:
        """float64, from whatever precision.

        Raises:
            CheckpointError: there are numbers that are not finite.
        """
        doubles = tuple(weight.double() for weight in weights)
        if not all(weight.isfinite().all() for weight in doubles):
            raise CheckpointError(f"weights of its {self.name} are not finite")
        return doubles


def stored_stacks(state: dict) -> list[StoredStack]:
    """The stacks of a checkpoint that have layers or a table of positions.

    Args:
        state: what :func:`read_checkpoint` gives.
    """
    options = model_options(state)
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


def model_options(state: dict) -> dict[str, Any]:
    """How a checkpoint's model was built, or {}."""
    options = state.get("args")
    if options is None and isinstance(state.get("cfg"), (dict, DictConfig)):  # since 0.10
        options = state["cfg"].get("model")
    if isinstance(options, DictConfig):
        options = OmegaConf.to_container(options)
    if isinstance(options, Namespace):
        options = vars(options)
    return options if isinstance(options, dict) else {}


def updates(state: dict) -> int | None:
    """After how many updates a checkpoint was written; None where it does not say."""
    history = state.get("optimizer_history")
    last = history[-1] if isinstance(history, list) and history else None
    number = last.get("num_updates") if isinstance(last, Mapping) else None
    return number if isinstance(number, int) else None
