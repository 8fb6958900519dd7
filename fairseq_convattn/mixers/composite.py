"""Composite attention (Chang et al. 2021) and TISA (Wennberg and Henter 2021)."""

from collections.abc import Callable

import torch
from fairseq.modules import FairseqDropout
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..ops import composite_attention
from ..ops.attention import Terms, alibi_slopes
from .attention import AttentionMixer
from .base import State, dropout_p
from .conditions import PROJECTION_TERMS
from .config import MixerConfig
from .injection import ValueConvolution, projection_convolution

T5_BUCKETS = 32
SHARED_TERMS = ("query", "key")  # one table for all heads in the paper
# The parameters of RelativeTerms. ALiBi's slopes are none.
TERM_PARAMETERS = {
    "fixed": ("fixed",),
    "query": ("query",),
    "key": ("key",),
    "key_only": ("key_only",),
    "tisa": ("tisa_amplitude", "tisa_sharpness", "tisa_center"),
    "t5": ("t5",),
    "kerple": ("kerple_scale", "kerple_rate"),
}


class RelativeTerms(nn.Module):
    """The parameters of composite attention's terms.

    Initialised as in the papers: ``query`` and ``key`` uniformly in +-1 / sqrt(taps); TISA's
    centres normally with mean 0 and standard deviation 5, its amplitudes and sharpnesses with 0.1
    and 0.01; KERPLE's factors uniformly in [0, 2), its rates in [0, 1); all others with zeros. In
    a causal mixer TISA's centres are mirrored to earlier positions.
    """

    def __init__(self, config: MixerConfig):
        super().__init__()
        self.config = config
        taps = config.span_taps
        width = config.embed_dim // config.num_heads
        shapes = {
            "fixed": (taps,),
            "query": (taps, width),
            "key": (taps, width),
            "key_only": (width,),
            "t5": (T5_BUCKETS,),
        }
        for name in config.attention_terms:
            if name in shapes:
                table = torch.zeros(self._heads(name), *shapes[name])
                if name in SHARED_TERMS:
                    nn.init.uniform_(table, -(taps**-0.5), taps**-0.5)
                setattr(self, name, nn.Parameter(table))
        if "tisa" in config.attention_terms:
            self._add_tisa(self._heads("tisa"), config.tisa_kernels)
        if "kerple" in config.attention_terms:
            self.kerple_scale = nn.Parameter(2 * torch.rand(self._heads("kerple")))
            self.kerple_rate = nn.Parameter(torch.rand(self._heads("kerple")))

    def _heads(self, term: str) -> int:
        shared = self.config.share_tables_across_heads
        if shared is None:
            shared = term in SHARED_TERMS
        return 1 if shared else self.config.num_heads

    def _add_tisa(self, heads: int, kernels: int) -> None:
        center = 5 * torch.randn(heads, kernels)
        self.tisa_amplitude = nn.Parameter(0.1 + 0.01 * torch.randn(heads, kernels))
        self.tisa_sharpness = nn.Parameter(0.1 + 0.01 * torch.randn(heads, kernels))
        self.tisa_center = nn.Parameter(-center.abs() if self.config.causal else center)

    def register_backward_hook(self, hook: Callable) -> RemovableHandle:
        """A full backward hook, for fairseq's NaN detector: PyTorch's older kind raises
        StopIteration for outputs without a tensor of their own."""
        return self.register_full_backward_hook(hook)

    def forward(self, device: torch.device) -> Terms:
        """The terms as :func:`fairseq_convattn.ops.composite_attention` takes them."""
        terms: dict[str, Tensor | tuple[Tensor, ...] | None] = {}
        for term in self.config.attention_terms:
            names = TERM_PARAMETERS.get(term, ())
            parameters = tuple(getattr(self, name) for name in names)
            terms[term] = parameters if len(parameters) > 1 else next(iter(parameters), None)
        if "alibi" in terms:
            terms["alibi"] = alibi_slopes(self.config.num_heads, device)
        return terms


class CompositeAttention(AttentionMixer):
    """Self-attention united with convolutions over relative positions.

    Its projections start as those of fairseq's multi-head attention. A projection that no
    term reads is not built. ``config`` names the terms of the scores and the injected
    convolutions (Chang et al. 2021, sections 3 and 4).
    """

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        self.dropout_module = FairseqDropout(
            config.attention_dropout, module_name=type(self).__name__
        )
        self.terms = RelativeTerms(config)
        wanted = set(config.attention_terms)
        uses = {
            "q": (wanted & PROJECTION_TERMS["q"], config.query_key_projection),
            "k": (wanted & PROJECTION_TERMS["k"], config.query_key_projection),
            "v": (True, config.value_projection),
        }
        for name, (used, kind) in uses.items():
            setattr(self, f"{name}_proj", self._linear(0.5**0.5) if used else None)
            conv = projection_convolution(config, kind) if used else None
            setattr(self, f"{name}_conv", conv)
        self.value_conv = ValueConvolution(config) if config.value_conv != "none" else None
        self.out_proj = self._linear(1.0)
        nn.init.zeros_(self.out_proj.bias)

    def _linear(self, gain: float) -> nn.Linear:
        linear = nn.Linear(self.embed_dim, self.embed_dim)
        nn.init.xavier_uniform_(linear.weight, gain=gain)
        return linear

    def mix(self, x: Tensor, padding_mask: Tensor | None, state: State | None) -> Tensor:
        predicted = self.short_convolutions.predict(x, state)
        q, k, v = (self._project(name, x, predicted, padding_mask, state) for name in "qkv")
        local = None if self.value_conv is None else self.value_conv(v, padding_mask, state)
        v = self._heads(v)
        q, k = (v if x is None else self._heads(x) for x in (q, k))  # no term reads these
        own_padding = padding_mask
        if state is not None:
            k, v, padding_mask = self._cached(state, k, v, padding_mask, self._window())
        y = composite_attention(
            q,
            k,
            v,
            self.terms(q.device),
            causal=self.config.causal,
            beyond=self.config.beyond_span,
            span=self._window(),
            padding_mask=padding_mask,
            dropout_p=dropout_p(self.dropout_module),
        )  # [batch, heads, time, head_dim]
        y = y.permute(2, 0, 1, 3).flatten(2)
        y = self.out_proj(y if local is None else y + local)
        return self.short_convolutions.convolve("o", y, predicted, own_padding, state)

    def _project(
        self,
        name: str,
        x: Tensor,
        predicted: dict[str, Tensor | None],
        padding_mask: Tensor | None,
        state: State | None,
    ) -> Tensor | None:
        linear, conv = getattr(self, f"{name}_proj"), getattr(self, f"{name}_conv")
        if linear is None:
            return None
        y = linear(x) if conv is None else conv(x, linear, padding_mask, state, name)
        return self.short_convolutions.convolve(name, y, predicted, padding_mask, state)

    def _window(self) -> int | None:
        """Distance that a query sees; None: unlimited."""
        return self.config.attention_span if self.config.beyond_span == "mask" else None
