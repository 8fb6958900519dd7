"""CUDA graphs of decoding steps, for decoders whose mixers are all convolutions.

Launching the kernels of a step takes longer than running them. What a convolution remembers has
a fixed size, so that one graph can launch all layers; what attention remembers grows.
"""

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor, nn

from ..mixers.base import IncrementalState, Sizes, State
from ..mixers.convolution import DynamicConvolution, LightweightConvolution
from ..ops import Past
from ..ops.implementation import requested, unfit_for_operators

BATCH = "step_graph"  # its place in fairseq's incremental state
KEYS = 8  # a graph takes a multiple of so many source positions

Step = Callable[[], tuple[Tensor, Tensor | None]]
Features = tuple[Tensor, dict[str, Any]]


class CudaGraph:
    """Calls a step on fixed tensors: the first time as it is, later as a CUDA graph."""

    def __init__(self, step: Step):
        self._step, self._graph, self._outputs = step, None, None

    def __call__(self) -> tuple[Tensor, Tensor | None]:
        if self._graph is not None:
            self._graph.replay()
            return self._outputs
        # torch.cuda.graph would empty the allocator's cache and, in older versions, collect garbage
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        stream = _capture_stream(torch.cuda.current_device())
        stream.wait_stream(before)
        with torch.cuda.stream(stream):
            outputs = self._step()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._outputs = self._step()
            finally:
                graph.capture_end()
        before.wait_stream(stream)
        self._step, self._graph = None, graph
        return outputs


@functools.cache  # every stream has memory of its own for matrix products
def _capture_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class StepGraph:
    """One step of a decoder's layers, on tensors that stay where they are.

    Attributes:
        x: ``[1, rows, embed_dim]``, the embedded tokens.
        padding: boolean ``[rows, 1]``, which of them are padding.
        order: ``[rows]``, which hypothesis each one continues; a step resets it.
        state: the decoder's incremental state.
        batch: says which batch it decodes; None when that is done.
    """

    def __init__(
        self,
        decoder: TransformerDecoderBase,
        sizes: Sizes,
        state: IncrementalState,
        x: Tensor,
        record: Callable[[Step], Step],
    ):
        self.sizes, self.weights = sizes, _weights(decoder)
        self.batch = lambda: None
        self.x = x.new_zeros(1, sizes.rows, x.size(-1))
        self.padding = torch.zeros(sizes.rows, 1, dtype=torch.bool, device=x.device)
        self.order = torch.arange(sizes.rows, device=x.device)
        self.state = _padded(decoder, state, sizes)
        tensors = self.x, self.padding, self.order, self.state
        self.run = record(functools.partial(_step, decoder, *tensors))

    def can_take(self, decoder: TransformerDecoderBase, sizes: Sizes) -> bool:
        """Whether a batch of ``sizes`` fits and leaves no more than about half of the room."""
        (sentences, beams, keys), room = sizes, self.sizes
        small = sentences <= room.sentences and keys <= room.keys and beams == room.beams
        fills = room.sentences <= 2 * sentences and room.keys <= 2 * keys + KEYS
        return self.batch() is None and small and fills and self.weights == _weights(decoder)

    def load(self, decoder: TransformerDecoderBase, state: IncrementalState) -> None:
        """Continue from ``state``."""
        _copy(_padded(decoder, state, self.sizes), self.state)
        torch.arange(len(self.order), out=self.order)


class Batch:
    """What a graph decodes, from its second step on."""

    def __init__(self, graph: StepGraph, sizes: Sizes):
        self.graph, self.sizes = graph, sizes
        graph.batch = weakref.ref(self)

    def step(self, decoder: TransformerDecoderBase, tokens: Tensor, x: Tensor) -> Features:
        """What the decoder returns after ``tokens``, ``[rows, time]``; ``x`` embeds the last."""
        rows = len(tokens)
        self.graph.x[:, :rows] = x
        torch.eq(tokens[:, -1:], decoder.padding_idx, out=self.graph.padding[:rows])
        features, weights = self.graph.run()
        if weights is not None:
            weights = weights[:rows, :, : self.sizes.keys].clone()
        return features[:rows].clone(), {"attn": [weights], "inner_states": []}

    def reorder(self, decoder: TransformerDecoderBase, order: Tensor) -> bool:
        """Whether the graph can follow: hypotheses may change places within their sentence, and
        sentences may end."""
        beams, known = self.sizes.beams, self.graph.order
        if len(order) % beams or len(order) > len(known):
            return False
        if beams == 1 or len(order) != self.sizes.rows:
            sentences = order.view(-1, beams) // beams
            if not torch.equal(sentences, sentences[:, :1].expand_as(sentences)):
                return False
            self._keep(decoder, sentences[:, 0])
        known[: len(order)] = known.index_select(0, order)
        return True

    def _keep(self, decoder: TransformerDecoderBase, sentences: Tensor) -> None:
        kept = slice(len(sentences))
        self.sizes = self.sizes._replace(sentences=len(sentences))
        if torch.equal(sentences, torch.arange(len(sentences), device=sentences.device)):
            return
        for layer in decoder.layers:
            if layer.encoder_attn is not None:
                for tensor in _tensors(layer.encoder_attn._get_input_buffer(self.graph.state)):
                    tensor[kept] = tensor.index_select(0, sentences)

    def leave(self, decoder: TransformerDecoderBase, state: IncrementalState) -> None:
        """Give ``state`` back to the modules, to continue without the graph."""
        del state[BATCH]
        own, order = dict(self.graph.state), self.graph.order
        for layer in decoder.layers:
            layer.self_attn.reorder_incremental_state(own, order)
        for module in _remembering(decoder):
            buffer = module.unpadded(module._get_input_buffer(own), self.sizes)
            module._set_input_buffer(state, buffer)


class StepGraphs:
    """The graphs of one decoder: the last one is kept, for the next batches that it can take.

    Args:
        record: makes a graph of a step.
        device: the type of device on which it can.
    """

    def __init__(self, record: Callable[[Step], Step] = CudaGraph, device: str = "cuda"):
        self.record, self.device, self.last = record, device, None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "last": None}  # graphs cannot be copied

    def step(
        self, decoder: TransformerDecoderBase, tokens: Tensor, state: IncrementalState, usual: bool
    ) -> Features | None:
        """What the decoder returns after ``tokens``, ``[rows, time]``; None, and a ``state`` to
        continue from, where no graph can tell.

        Args:
            usual: whether only the last layer's attention weights are wanted.
        """
        usual = usual and self._can_run(decoder, tokens)
        batch = state.get(BATCH)
        if batch is not None and not (usual and len(tokens) == batch.sizes.rows):
            batch.leave(decoder, state)
            return None
        if batch is None and not (usual and _has_begun(decoder, state)):
            return None
        x = _embedded(decoder, tokens, state)
        if batch is None:
            batch = self._begin(decoder, len(tokens), state, x)
        return batch.step(decoder, tokens, x)

    def _can_run(self, decoder: TransformerDecoderBase, tokens: Tensor) -> bool:
        here = tokens.device.type == self.device
        if here and tokens.is_cuda:
            here = tokens.get_device() == torch.cuda.current_device()
        differentiates = torch.is_grad_enabled() or decoder.training
        traced = torch.compiler.is_compiling() or unfit_for_operators()
        casts = torch.is_autocast_enabled(tokens.device.type)
        return here and requested(None) is None and not (differentiates or traced or casts)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _begin(
        self, decoder: TransformerDecoderBase, rows: int, state: IncrementalState, x: Tensor
    ) -> Batch:
        sizes = Sizes(rows, 1, 0)
        if decoder.layers[0].encoder_attn is not None:
            sizes = decoder.layers[0].encoder_attn.sizes(state)
        graph = self.last
        if graph is not None and graph.can_take(decoder, sizes):
            graph.load(decoder, state)
        else:
            self.last = graph = None  # its memory is free for the next one
            room = sizes._replace(keys=-(-sizes.keys // KEYS) * KEYS)
            self.last = graph = StepGraph(decoder, room, state, x, self.record)
        state.clear()
        state[BATCH] = batch = Batch(graph, sizes)
        return batch


def suits_graphs(decoder: TransformerDecoderBase) -> bool:
    """Whether the decoder's state has a fixed size, and its layers never wait for the GPU.
    Somebody's subclass of a mixer may remember more."""
    every = decoder.layers.children()  # to iterate over the list in training would drop some
    mixers = [getattr(layer, "self_attn", None) for layer in every]
    fixed = all(type(mixer) in (LightweightConvolution, DynamicConvolution) for mixer in mixers)
    waits = decoder.cfg.checkpoint_activations  # saves the state of random numbers
    return bool(mixers) and fixed and not waits


def _step(
    decoder: TransformerDecoderBase,
    x: Tensor,
    padding: Tensor,
    order: Tensor,
    state: IncrementalState,
) -> tuple[Tensor, Tensor | None]:
    """The part of fairseq's ``extract_features`` after the embeddings."""
    new = dict(state)
    for layer in decoder.layers:
        layer.self_attn.reorder_incremental_state(new, order)
    weights, source = None, x  # that there is a source is all that layers need to know
    for layer in decoder.layers:
        last = layer is decoder.layers[-1]
        x, weights, _ = layer(
            x,
            source,
            incremental_state=new,
            self_attn_padding_mask=padding,
            need_attn=last,
            need_head_weights=last,
        )
    _copy(new, state)
    torch.arange(len(order), out=order)
    if weights is not None:
        weights = weights.mean(0)
    if decoder.layer_norm is not None:
        x = decoder.layer_norm(x)
    x = x.transpose(0, 1)
    return x if decoder.project_out_dim is None else decoder.project_out_dim(x), weights


def _embedded(decoder: TransformerDecoderBase, tokens: Tensor, state: IncrementalState) -> Tensor:
    """The last tokens as fairseq's ``extract_features`` embeds them, ``[1, rows, embed_dim]``."""
    x = decoder.embed_scale * decoder.embed_tokens(tokens[:, -1:].contiguous())
    if decoder.quant_noise is not None:
        x = decoder.quant_noise(x)
    if decoder.project_in_dim is not None:
        x = decoder.project_in_dim(x)
    if decoder.embed_positions is not None:
        x = x + decoder.embed_positions(tokens, incremental_state=state)[:, -1:]
    if decoder.layernorm_embedding is not None:
        x = decoder.layernorm_embedding(x)
    return x.transpose(0, 1)


def _remembering(decoder: TransformerDecoderBase) -> Iterator[nn.Module]:
    for layer in decoder.layers:
        yield layer.self_attn
        if layer.encoder_attn is not None:
            yield layer.encoder_attn


def _has_begun(decoder: TransformerDecoderBase, state: IncrementalState) -> bool:
    buffers = [module._get_input_buffer(state) for module in _remembering(decoder)]
    return all(buffers) and len(buffers) == len(state)


def _padded(
    decoder: TransformerDecoderBase, state: IncrementalState, sizes: Sizes
) -> IncrementalState:
    padded = {}
    for module in _remembering(decoder):
        module._set_input_buffer(padded, module.padded(module._get_input_buffer(state), sizes))
    return padded


def _tensors(buffer: State) -> Iterator[Tensor]:
    for value in buffer.values():
        if isinstance(value, Past):
            yield from (value.rows, value.index)
        elif isinstance(value, Tensor):
            yield value


def _copy(source: IncrementalState, target: IncrementalState) -> None:
    for name, buffer in target.items():
        for new, old in zip(_tensors(source[name]), _tensors(buffer), strict=True):
            if new is not old:
                old.copy_(new)


def _weights(decoder: TransformerDecoderBase) -> list[tuple[int, torch.dtype]]:
    """Where the weights are: a graph knows them by that."""
    return [(weight.data_ptr(), weight.dtype) for weight in decoder.parameters()]
