"""What a checkpoint says about positions, read from its weights without building the model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor

from ..architectures.config import ENCODER_DECODER
from ..checkpoints.checks import CheckpointError
from ..checkpoints.files import read_checkpoint, updates_of
from ..mixers.composite import TERM_PARAMETERS
from ..ops.attention import POSITION_TERMS, alibi_slopes
from .curves import curves_by_layers, kernel_curves, shared_by_layers, term_curves
from .stored import POSITIONS, StoredStack, stored_stacks
from .toeplitz import r2_by_positions

# Sinusoids have no last position; as many as fairseq's translation models allow.
_SINUSOIDAL_POSITIONS = 1024
_PADDING = 1  # the padding index of fairseq's Dictionary; BertDictionary's is 0

_CONTENT = ("self_attn.in_proj_weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight")
# What is convolved: the layer's input, or what attention is computed from.
_KERNELS = {
    "input": ("self_attn.kernel", "conv.weight"),
    "queries": ("self_attn.q_conv.kernel",),
    "keys": ("self_attn.k_conv.kernel",),
    "values": ("self_attn.v_conv.kernel",),
}
_PROJECTION = "project_embedding.weight"
_CONVOLVED = ("self_attn.q_conv.", "self_attn.k_conv.")
_DYNAMIC = ("kernel_proj.weight", "conv.weight_linear.weight")
_UNFIT = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


def analysis(path: str | Path, block: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Analyse one checkpoint. An R^2 is None where it is not defined.

    Args:
        path: a checkpoint of fairseq's or of this plugin, of 2019 too.
        block: positions in a block.

    Returns:
        Plain data, which JSON takes: the ``checkpoint``, its ``updates`` (None where it does not
        say) and its ``stacks`` by name. Each has ``notes`` (what was assumed, and what was left
        out and why), ``positions``, R^2 of the heads (``attention``), curves of relative ``terms``
        by name, and ``kernels`` of lightweight convolutions, normalised over their taps, by what
        is convolved: ``input``, or attention's ``queries``, ``keys`` or ``values``.
        And the learned tables of positions, ``[positions, width]``, by stack.

    Raises:
        CheckpointError: the file cannot be read, holds numbers that are not finite, options or
            shapes that do not fit together, or nothing to analyse.
    """
    state = read_checkpoint(path)
    try:
        stacks, tables = _analysed(state, block)
        found = {"checkpoint": str(path), "updates": updates_of(state), "stacks": stacks}
    except _UNFIT as error:
        raise CheckpointError(f"{path}: its options or weights do not fit: {error!r}") from error
    if not stacks:
        raise CheckpointError(
            f"{path}: there is nothing to analyse: no position embeddings ({POSITIONS}, or "
            f"sinusoidal), no relative terms ({', '.join(POSITION_TERMS)}), no lightweight "
            "convolutions"
        )
    return found, tables


def _analysed(state: dict, block: int) -> tuple[dict[str, dict], dict[str, Tensor]]:
    """The stacks that have something to analyse, and the learned tables of positions, by name."""
    stacks, tables = {}, {}
    for stored in stored_stacks(state):
        learned = _learned(stored)
        table = _sinusoidal(stored) if learned is None else learned
        kind = "sinusoidal" if learned is None else "learned"
        found = {
            "positions": None if table is None else _of_positions(kind, table, block),
            "attention": [] if table is None else _attention(stored, table, block),
            "terms": _terms(stored),
            "kernels": _kernels(stored),
            "notes": stored.notes,
        }
        if table is not None or found["terms"] or found["kernels"]:
            stacks[stored.name] = found
        if learned is not None:
            tables[stored.name] = learned
    return stacks, tables


def layer_names(layers: Sequence[int]) -> str:
    """``layer 3``, ``layers 0, 2`` or ``layers 0-11``."""
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"layers {layers[0]}-{layers[-1]}"
    return f"layers {', '.join(map(str, layers))}"


def stack_title(name: str) -> str:
    """``encoder`` or ``decoder``, as a reader calls it."""
    return "encoder" if "encoder" in name else name.partition(".")[0] or "model"


def _of_positions(kind: str, table: Tensor, block: int) -> dict[str, Any]:
    r2 = r2_by_positions(table @ table.T, block)
    return {"kind": kind, "number": table.size(0), "width": table.size(1), "r2": r2}


def _learned(stored: StoredStack) -> Tensor | None:
    """The table of positions, ``[positions, width]`` in float64, without the rows of padding."""
    if POSITIONS not in stored.weights:
        return None
    table = stored.weights[POSITIONS].double()
    zero = (table[: _PADDING + 1] == 0).all(dim=1).nonzero()  # the row of padding is never trained
    return table[int(zero.max()) + 1 if len(zero) else 0 :]


def _sinusoidal(stored: StoredStack) -> Tensor | None:
    """fairseq's sinusoidal positions, which no checkpoint stores; None if the model has none."""
    without = str(stored.options.get("no_token_positional_embeddings")).lower() == "true"
    width = stored.option("embed_dim")
    if stored.option("learned_pos") is not False or without or not isinstance(width, int):
        return None
    name = "max_source_positions" if stored.side == "encoder" else "max_target_positions"
    limit = stored.options.get(name) or _SINUSOIDAL_POSITIONS
    rows = _PADDING + 1 + min(limit, _SINUSOIDAL_POSITIONS)
    table = SinusoidalPositionalEmbedding.get_embedding(rows, width, _PADDING)
    stored.notes.append(
        "its positions are sinusoids, not in the checkpoint but computed; E E^T is a Toeplitz "
        "matrix by construction"
    )
    return table[_PADDING + 1 :].double()


def _attention(stored: StoredStack, table: Tensor, block: int) -> list[dict[str, Any]]:
    """R^2 of ``E W_Q W_K^T E^T`` of every head, for the layers that score by linear queries and
    keys. Biases are left out, as in the paper."""
    heads = stored.heads
    found, other = {}, []
    for layer, weights in stored.layers.items():
        pair = _query_and_key(weights)
        if pair and _scores_by_content(stored, layer) and heads and not len(pair[0]) % heads:
            found[layer] = pair
        elif any(name in weights for name in _CONTENT):
            other.append(layer)
    if other:
        stored.notes.append(
            f"{layer_names(other)}: no R^2 per head, as there are no queries and keys of a known "
            "number of heads that are linear maps and multiplied"
        )
    width = next((query.size(1) for query, _ in found.values()), None)
    projected = _projected(stored, table, width) if width else None
    if projected is None:
        return []
    result = []
    for layers, pair in shared_by_layers(found):
        queries, keys = ((projected @ x.T).unflatten(1, (heads, -1)).unbind(1) for x in pair)
        products = (query @ key.T for query, key in zip(queries, keys, strict=True))
        by_head = [r2_by_positions(product, block) for product in products]
        result.append({"layers": layers, "heads": by_head})
    return result


def _query_and_key(weights: dict[str, Tensor]) -> tuple[Tensor, ...] | None:
    """``W_Q`` and ``W_K``, ``[embed_dim, embed_dim]`` in float64; None where one is missing."""
    if "self_attn.in_proj_weight" in weights:  # one weight for query, key and value
        return weights["self_attn.in_proj_weight"].double().chunk(3)[:2]
    names = [name for name in _CONTENT[1:] if name in weights and weights[name].dim() == 2]
    return tuple(weights[name].double() for name in names) if len(names) == 2 else None


def _scores_by_content(stored: StoredStack, layer: int) -> bool:
    if any(name.startswith(_CONVOLVED) for name in stored.layers[layer]):
        return False
    return stored.mixers().get(layer) != "composite" or "content" in _term_names(stored)


def _term_names(stored: StoredStack) -> list[str]:
    """Names of the terms of this plugin's composite attention."""
    terms = stored.options.get("attention_terms") or ENCODER_DECODER.base["attention_terms"]
    return [name.strip() for name in str(terms).split(",")]


def _projected(stored: StoredStack, table: Tensor, width: int) -> Tensor | None:
    """The positions as the layers see them, ``[positions, width]``; the width may exceed the
    table's."""
    if table.size(1) == width:
        return table
    if _PROJECTION not in stored.weights:
        stored.notes.append(
            f"no R^2 per head, for nothing leads from its positions, {table.size(1)} wide, to its "
            f"layers, {width} wide"
        )
        return None
    stored.notes.append(f"its layers see its positions through {_PROJECTION}")
    return table @ stored.weights[_PROJECTION].double().T


def _terms(stored: StoredStack) -> dict[str, list[dict]]:
    composite = [layer for layer, mixer in stored.mixers().items() if mixer == "composite"]
    slopes = {}  # not parameters of the model
    if stored.heads and "alibi" in _term_names(stored):
        slopes = dict.fromkeys(composite, {"self_attn.terms.alibi": alibi_slopes(stored.heads)})
    curves = {}
    for term in POSITION_TERMS:
        names, found = TERM_PARAMETERS.get(term, (term,)), {}
        for layer, weights in stored.layers.items():
            known = {**weights, **slopes.get(layer, {})}
            parameters = [known.get(f"self_attn.terms.{name}") for name in names]
            if all(parameter is not None for parameter in parameters):
                doubles = tuple(parameter.double() for parameter in parameters)
                found[layer] = term_curves(term, doubles, stored.causal)
        if found:
            curves[term] = curves_by_layers(found)
    return curves


def _kernels(stored: StoredStack) -> dict[str, list[dict]]:
    norm = stored.options.get("weight_norm") or ENCODER_DECODER.base["weight_norm"]
    if stored.options.get("weight_softmax") is False:  # fairseq's lightconv
        norm = "none"
    curves = {}
    for convolved, names in _KERNELS.items():
        found = {
            layer: kernel_curves(weights[name].double(), str(norm), stored.causal)
            for layer, weights in stored.layers.items()
            for name in names
            if name in weights and _is_lightweight(stored, name)
        }
        if found:
            curves[convolved] = curves_by_layers(found)
    dynamic = [
        layer
        for layer, weights in stored.layers.items()
        if any(name.endswith(_DYNAMIC) for name in weights)
    ]
    if dynamic:
        stored.notes.append(
            f"{layer_names(dynamic)}: no kernels of dynamic convolutions, which depend on the input"
        )
    return curves


def _is_lightweight(stored: StoredStack, name: str) -> bool:
    """Whether a layer is fairseq's lightconv: other layers have a ``conv.weight``, too."""
    return name != "conv.weight" or stored.option("conv_type") == "lightweight"
