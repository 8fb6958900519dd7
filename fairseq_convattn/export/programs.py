"""Models in a form that torch.export takes: no branches on data, decoding state as tensors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models import BaseFairseqModel, FairseqDecoder
from fairseq.modules import SinusoidalPositionalEmbedding
from fairseq.utils import make_positions
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.overrides import TorchFunctionMode

from ..architectures import ConvAttnLanguageModel, ConvAttnMaskedLanguageModel, ConvAttnModel
from ..checkpoints.checks import CheckpointError
from ..mixers.base import Remembering, TokenMixer
from ..ops import Past
from ..program_errors import causes

_LONGEST = 300
"""Maximum length of a cause in characters; torch.export's fill pages."""


class _AsIfPadded(TorchFunctionMode):
    """Takes every truth value of a tensor as True: fairseq's stacks branch on whether anything
    is padded, and an exported program has to handle padding."""

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if function is torch.Tensor.__bool__:
            return True
        return function(*args, **(kwargs or {}))


class _Positions(nn.Module):
    """Position embeddings from a table of fixed size, ``[positions, channels]``."""

    def __init__(self, embedding: nn.Module, longest: int):
        super().__init__()
        self.padding_idx = embedding.padding_idx
        if isinstance(embedding, SinusoidalPositionalEmbedding):
            size = longest + self.padding_idx + 1
            table = embedding.get_embedding(size, embedding.embedding_dim, self.padding_idx)
        else:
            table = embedding.weight.detach()
        self.register_buffer("table", table)

    def forward(self, tokens: Tensor, incremental_state: dict | None = None) -> Tensor:
        if incremental_state is None:
            return F.embedding(make_positions(tokens, self.padding_idx), self.table)
        return self.table[self.padding_idx + 1 + incremental_state["position"]["first"]][None, None]


class Encoder(nn.Module):
    """Source tokens ``[batch, source]`` -> the encoder's output ``[source, batch, channels]``,
    its padding mask ``[batch, source]``, and for every decoder layer the keys and values ``[batch,
    heads, source, head_dim]`` that :class:`Step` takes."""

    def __init__(self, model: BaseFairseqModel):
        super().__init__()
        self.encoder = model.encoder
        self.attentions = nn.ModuleList(layer.encoder_attn for layer in model.decoder.layers)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        with _AsIfPadded():
            output = self.encoder(tokens)
            x, padding = output["encoder_out"][0], output["encoder_padding_mask"][0]
            pairs = [layer._keys_and_values(x, padding, None)[:2] for layer in self.attentions]
        return x.contiguous(), padding, [y.contiguous() for pair in pairs for y in pair]


class Whole(nn.Module):
    """Tokens ``[batch, time]`` -> logarithms of probabilities ``[batch, time, types]``, for
    language models and masked ones."""

    def __init__(self, model: BaseFairseqModel):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        with _AsIfPadded():
            return self.model.get_normalized_probs(self.model(tokens), log_probs=True)


class Step(nn.Module):
    """A token of decoding -> logarithms of the next one's probabilities ``[batch, types]``, and
    the state after it.

    Its inputs are the token ``[batch, 1]``, its position (the first is 0, end-of-sentence), the
    state, and behind an encoder what :class:`Encoder` gives. A state's tensors begin with
    ``batch``, so beam search reorders each of them by ``index_select(0, order)``. ``start`` is
    the state before the first token, for a batch of one.
    """

    def __init__(self, decoder: FairseqDecoder):
        super().__init__()
        self.decoder = decoder
        self.start, self._slots = [], []
        for number, module in enumerate(self._remembering()):
            state, tails = _before(module)
            self._slots += [(number, name, name in tails) for name in state]
            self.start += [_batch_first(x, name in tails) for name, x in state.items()]

    def forward(
        self,
        token: Tensor,
        position: Tensor,
        state: list[Tensor],
        padding: Tensor | None = None,
        memory: list[Tensor] | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        decoding = {"position": {"first": position}}
        remembering = self._remembering()
        states = [{} for _ in remembering]
        for (number, name, is_tail), x in zip(self._slots, state, strict=True):
            states[number][name] = _batch_first(x, is_tail)
        for module, before in zip(remembering, states, strict=True):
            module._set_input_buffer(decoding, before)
        encoder_out = None
        if memory is not None:
            layers = self.decoder.layers
            for layer, k, v in zip(layers, memory[::2], memory[1::2], strict=True):
                kept = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding}
                layer.encoder_attn._set_input_buffer(decoding, {**kept, "beams": 1})
            encoder_out = {"encoder_out": memory[:1], "encoder_padding_mask": [padding]}
        with _AsIfPadded():
            y = self.decoder(token, encoder_out=encoder_out, incremental_state=decoding)
            scores = self.decoder.get_normalized_probs(y, log_probs=True)[:, -1]
        after = [module._get_input_buffer(decoding) for module in remembering]
        return scores, [_batch_first(after[n][name], tail) for n, name, tail in self._slots]

    def _remembering(self) -> list[Remembering]:
        """What keeps a state, layer by layer, but the attention to the encoder."""
        layers = self.decoder.layers
        parts = ((layer.self_attn, layer.feed_forward_convolutions) for layer in layers)
        return [part for pair in parts for part in pair if part is not None]


def _batch_first(x: Tensor, is_tail: bool) -> Tensor:
    """Transpose a convolution's tail ``[n, batch, channels]`` to batch first, or back."""
    return (x.transpose(0, 1) if is_tail else x).contiguous()


def _before(module: Remembering) -> tuple[dict[str, Tensor], set[str]]:
    """The state before the first token, in tensors whose sizes stay, but for keys and values, and
    the names of those that begin with time."""
    if isinstance(module, TokenMixer):
        return _after_padding(module)
    return module.start(), set()


def _after_padding(mixer: TokenMixer) -> tuple[dict[str, Tensor], set[str]]:
    """A mixer's state after enough padding that the tails of its convolutions no longer grow, and
    the names of these tails."""
    config, decoding = mixer.config, {}
    enough = 1 + max(
        config.kernel_size,
        config.projection_taps,
        config.attention_span,
        config.short_convolution_taps,
    )

    def see_padding(time: int) -> dict:
        x, mask = torch.zeros(time, 1, mixer.embed_dim), torch.ones(1, time, dtype=torch.bool)
        mixer(x, x, x, key_padding_mask=mask, incremental_state=decoding)
        return mixer._get_input_buffer(decoding)

    state = see_padding(enough)
    tails = {name for name, x in state.items() if isinstance(x, Past)}
    state = {name: x.inputs() if name in tails else x for name, x in state.items()}
    mixer._set_input_buffer(decoding, state)
    return see_padding(1), tails


@torch.no_grad()
def export(model: BaseFairseqModel) -> tuple[dict[str, ExportedProgram], list[Tensor]]:
    """Export a trained model; the model is modified.

    Returns:
        by name ``encoder`` and ``step`` (:class:`Encoder`, :class:`Step`) of an encoder-decoder,
        ``model`` and ``step`` (:class:`Whole`) of a language model, ``model`` of a masked one;
        the state before the first token.

    Raises:
        ValueError: the model cannot be exported; the message is one line.
    """
    if not isinstance(model, ConvAttnModel | ConvAttnLanguageModel | ConvAttnMaskedLanguageModel):
        raise ValueError(f"{type(model).__name__} is not a model of this plugin: not exported")
    if hasattr(model, "decoder"):
        mixers = [layer.self_attn for layer in model.decoder.layers.children()]
        if not all(mixer.config.self_attention for mixer in mixers):
            raise ValueError("a model with --cross-self-attention cannot be exported")
    with in_a_line("torch.export"):
        return _programs(model)


def _programs(model: BaseFairseqModel) -> tuple[dict[str, ExportedProgram], list[Tensor]]:
    model = model.float().cpu().eval()
    for stack in list(model.modules()):
        if getattr(stack, "embed_positions", None) is not None:
            stack.embed_positions = _Positions(stack.embed_positions, int(stack.max_positions()))
    batch, time = Dim("batch"), Dim("time")
    tokens = torch.full((2, 3), 4)
    if not hasattr(model, "decoder"):
        return {"model": _exported(Whole(model), (tokens,), ({0: batch, 1: time},))}, []
    step = Step(model.decoder)
    state = [x.repeat_interleave(2, 0) for x in step.start]
    if not hasattr(model, "encoder"):
        programs = {"model": _exported(Whole(model), (tokens,), ({0: batch, 1: time},))}
        more, dimensions = (), ()
    else:
        encoder = Encoder(model)
        programs = {"encoder": _exported(encoder, (tokens,), ({0: batch, 1: time},))}
        more = encoder(tokens)[1:]
        dimensions = {0: batch, 1: time}, [{0: batch, 2: time}] * len(more[1])
    given = tokens[:, :1].contiguous(), torch.tensor(0), state, *more
    grown = [x.shape != y.shape for x, y in zip(state, step(*given)[1], strict=True)]
    growing = [
        {0: batch, **{i: Dim.AUTO for i in range(1, x.dim()) if grows}}
        for x, grows in zip(state, grown, strict=True)
    ]
    programs["step"] = _exported(step, given, ({0: batch}, {}, growing, *dimensions))
    return programs, step.start


def _exported(module: nn.Module, given: tuple, dimensions: tuple) -> ExportedProgram:
    """``given`` are contiguous: AOTInductor takes their strides for those of all inputs."""
    return torch.export.export(module, given, dynamic_shapes=dimensions, strict=False)


@contextmanager
def in_a_line(step: str) -> Iterator[None]:
    """Report any failure of a step of the export in one line.

    Raises:
        CheckpointError, OSError: raised unchanged.
        ValueError: anything else failed; the message names the step and the cause.
    """
    try:
        yield
    except (CheckpointError, OSError):
        raise
    except Exception as error:
        cause = next(causes(error))
        line = " ".join(str(cause).split())[:_LONGEST]
        raise ValueError(f"{step}: {type(cause).__name__}: {line}") from error
