"""The interfaces of trained models from Python."""

import difflib
import logging
import numbers
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NoReturn

from fairseq.data import Dictionary
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE
from fairseq.dataclass.configs import GenerationConfig
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.models import FairseqModel
from fairseq.models.roberta import RobertaHubInterface
from fairseq.tasks import FairseqTask
from fairseq.utils import model_eval
from omegaconf import DictConfig
from torch import Tensor, nn

from .albert_text import is_alberts, pieces_of
from .dictionaries import WORD, subwords_of

logger = logging.getLogger(__name__)

# options of fairseq-generate that no model from Python follows
_OF_COMMANDS = {"prefix_size", "lm_path", "retain_dropout", "constraints", "nbest"}
_SUBWORD_OPTIONS = {
    "sentencepiece": "sentencepiece_model=FILE",
    "subword_nmt": "bpe='subword_nmt', bpe_codes=FILE",
}
# what fairseq says of a sentence's size and the most it may be, each for one side or for both
_TOO_LONG = re.compile(r"Size of sample #\d+ is invalid \(=(.+)\) since max_positions=(.+?), skip")


def beyond_limit(message: str) -> tuple[int, int] | None:
    """The tokens of a sample and the most that its model takes, from fairseq's message that these
    are fewer; None of any other message."""
    found = _TOO_LONG.match(message)
    if not found:
        return None
    sizes, limits = (re.findall(r"\d+", re.sub(r"np\.\w+", "", x)) for x in found.groups())
    pairs = [(int(size), int(most)) for size, most in zip(sizes, limits, strict=False)]
    return next((pair for pair in pairs if pair[0] > pair[1]), pairs[0])


class ConvAttnHub(GeneratorHubInterface):
    """fairseq's interface of a trained model that generates text, in evaluation mode.

    ``translate`` and ``sample`` take a sentence or a list of sentences, the beam's size, and
    what fairseq-generate calls its options, with underscores: ``lenpen=0.8``.
    """

    def __init__(self, cfg: DictConfig, task: FairseqTask, models: Sequence[FairseqModel]):
        super().__init__(cfg, task, models)
        warnings.filterwarnings("ignore", "'pin_memory'")  # fairseq's, without a GPU
        longest = self.max_positions
        longest = max(longest) if isinstance(longest, tuple) else longest
        # the training's may be too small for a long sentence
        if cfg.dataset.max_tokens is not None:
            cfg.dataset.max_tokens = max(cfg.dataset.max_tokens, longest)
        self.eval()

    def translate(
        self, sentences: str | list[str], beam: int = 5, verbose: bool = False, **options
    ) -> str | list[str]:
        """Translate sentences.

        Raises:
            ValueError: the model is a language model, or a sentence is empty.
        """
        if not hasattr(self.models[0], "encoder"):
            raise ValueError("a language model only continues texts: use sample")
        texts = _full(sentences)
        return super().translate(texts, beam, verbose, **options) if texts else []

    def sample(
        self, sentences: str | list[str], beam: int = 1, verbose: bool = False, **options
    ) -> str | list[str]:
        """Continue texts; with an encoder-decoder, translate them. ``generate`` has the whole
        beam and its scores.

        Raises:
            TypeError: ``sentences`` is neither a text nor a list of texts.
        """
        texts = _texts(sentences)
        return [] if texts == [] else super().sample(texts, beam, verbose, **options)

    def summarize(self, sentences: str | list[str], beam: int = 5, **options) -> str | list[str]:
        """Summarize texts: ``translate`` under the name of the task.

        Sources are cut and prefixed as in training, and options default to those of
        ``fairseq-generate --task summarization``.
        """
        return self.translate(sentences, beam, **options)

    def score(self, sentences: str | list[str], *args, **options) -> dict | list[dict]:
        """Score sentences with a language model.

        Returns:
            For every sentence a dictionary. ``positional_scores`` are the natural logarithms
            of the tokens' probabilities ``[tokens]``, end-of-sentence not included. ``score``
            is their mean, so the perplexity of the sentence is ``exp(-score)``.

        Raises:
            ValueError: the model is not a language model, or a sentence is empty.
        """
        if hasattr(self.models[0], "encoder"):
            raise ValueError("score: only language models score sentences in Python")
        texts = _full(sentences)
        return super().score(texts, *args, **options) if texts else []

    def generate(
        self,
        tokenized_sentences: Tensor | list[Tensor],
        beam: int = 5,
        verbose: bool = False,
        **options,
    ) -> list:
        """Generate for binarised sentences.

        Args:
            tokenized_sentences: ``[tokens]``, or a list of those.
            verbose: also print the hypotheses.
            options: those of fairseq-generate, ``prefix_allowed_tokens_fn`` and
                ``inference_step_args``, whose ``prefix_tokens`` have a row for each sentence.

        Returns:
            The hypotheses of the sentence, best first; for a list, a list of those.

        Raises:
            TypeError: a sentence is not a tensor.
            ValueError: the beam is not a whole number of at least 1, an option is not one of
                fairseq-generate's that models in Python follow, a sentence is longer than the
                model's positions, a language model's prompt fills ``max_len_b``, or prefixes are
                more or fewer than sentences.
        """
        if not isinstance(beam, numbers.Integral) or beam < 1:
            raise ValueError(f"beam must be a whole number of at least 1, not {beam!r}")
        own = {"inference_step_args", "prefix_allowed_tokens_fn"}
        known = GenerationConfig.__dataclass_fields__.keys() | own
        unknown = options.keys() - known | options.keys() & _OF_COMMANDS
        if unknown:
            names = ", ".join(sorted(unknown))
            close = difflib.get_close_matches(names, (known | {"beam"}) - _OF_COMMANDS, n=1)
            mistyped = len(unknown) == 1 and close and names not in known
            instead = f"; did you mean {close[0]}?" if mistyped else ""
            instead = "; generate has the whole beam" if "nbest" in unknown else instead
            raise ValueError(f"{names}: no option of models in Python{instead}")
        if not all(isinstance(sentence, Tensor) for sentence in tokenized_sentences):
            raise TypeError("generate takes what encode returns; texts are for translate or sample")
        if isinstance(tokenized_sentences, Tensor) and tokenized_sentences.dim() == 1:
            # fairseq would forget the options that it names
            return self.generate(tokenized_sentences[None], beam, verbose, **options)[0]
        self._require_room(tokenized_sentences, options)
        arguments = options.get("inference_step_args") or {}
        prefixes = arguments.get("prefix_tokens")
        if prefixes is not None and len(prefixes) != len(tokenized_sentences):
            raise ValueError(f"{len(prefixes)} prefixes for {len(tokenized_sentences)} sentences")
        if prefixes is not None and len(prefixes) > 1:
            # fairseq would sort the sentences alone
            steps = [{**arguments, "prefix_tokens": prefix[None]} for prefix in prefixes]
            return [
                self.generate(one, beam, verbose, **{**options, "inference_step_args": step})
                for one, step in zip(tokenized_sentences, steps, strict=True)
            ]
        return super().generate(tokenized_sentences, int(beam), verbose, **options)

    def _require_room(self, prompts: Tensor | list[Tensor], options: dict[str, Any]) -> None:
        """fairseq would cut a language model's prompt where its limit is reached."""
        if hasattr(self.models[0], "encoder") or options.get("score_reference"):
            return
        limits = self.cfg.generation
        per_token, fixed = (options.get(x, limits[x]) for x in ("max_len_a", "max_len_b"))
        for prompt in prompts:
            tokens = int((prompt != self.src_dict.eos()).sum())
            if int(per_token * (tokens + 1) + fixed) <= tokens < self.max_positions:
                raise ValueError(
                    f"the prompt has {tokens:,} tokens, and max_len_b={fixed:,} counts them, too: "
                    "give a larger one"
                )

    def _build_batches(
        self, tokens: list[Tensor], skip_invalid_size_inputs: bool
    ) -> Iterator[dict[str, Any]]:
        self._warn_of_unknown_tokens(tokens)
        try:
            return super()._build_batches(tokens, skip_invalid_size_inputs)
        except Exception as error:  # fairseq raises this very class
            sizes = beyond_limit(str(error))
            if sizes is None:
                raise
            size, most = sizes
            raise ValueError(f"{size:,} tokens, the model takes {most:,}: split the text") from None

    def _warn_of_unknown_tokens(self, sentences: Sequence[Tensor]) -> None:
        """Warn of the first sentence of which the dictionary has less than half."""
        way_out = "is the text in the language of the training, and prepared as there?"
        if self.bpe is None and (kind := subwords_of(self.src_dict)):
            way_out = f"is the text split into subwords? Give {_SUBWORD_OPTIONS[kind]}"
        for sentence in sentences:
            tokens = sentence[sentence != self.src_dict.eos()]
            unknown = int((tokens == self.src_dict.unk()).sum())
            if 2 * unknown > len(tokens):
                logger.warning(
                    "%d of %d tokens are unknown to the dictionary: %s",
                    *(unknown, len(tokens), way_out),
                )
                return


def _texts(sentences: str | Iterable[str]) -> str | list[str]:
    if isinstance(sentences, str):
        return sentences
    texts = list(sentences) if isinstance(sentences, Iterable) else [sentences]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("give a text, or a list of texts")
    return texts


def _full(sentences: str | Iterable[str]) -> str | list[str]:
    texts = _texts(sentences)
    for number, text in enumerate([texts] if isinstance(texts, str) else texts, start=1):
        if not text.strip():
            raise ValueError(f"sentence {number} is empty; leave it out")
    return texts


def _types_of_text(dictionary: Dictionary) -> list[int]:
    """The types that stand for text: no special symbols, and none that only make up numbers."""
    special = re.compile("<mask>$|madeupword")
    types = enumerate(dictionary.symbols)
    return [n for n, x in types if n >= dictionary.nspecial and not special.match(x)]


class _NoSubwords:
    """Stands for bpe where a model was loaded without it."""

    def encode(self, text: str) -> NoReturn:
        raise ValueError("texts need bpe, such as bpe='sentencepiece' in from_pretrained")

    decode = encode


class _AlbertPieces(SentencepieceBPE):
    """fairseq's SentencePiece, of text that is prepared as in ALBERT."""

    def encode(self, text: str) -> str:
        return " ".join(*pieces_of(self.sp, [text]))


class ConvAttnMaskedHub(RobertaHubInterface):
    """fairseq's interface of a masked language model."""

    def __init__(self, cfg: DictConfig, task: FairseqTask, model: nn.Module) -> None:
        super().__init__(cfg, task, model)
        self.bpe = self.bpe or _NoSubwords()
        if isinstance(self.bpe, SentencepieceBPE) and is_alberts(self.bpe.sp):
            self.bpe = _AlbertPieces(cfg.bpe)

    def encode(
        self, sentence: str, *addl_sentences: str, no_separator: bool | None = None
    ) -> Tensor:
        """fairseq's, with the separators between the sentences of a pair that the model learned
        from.

        Args:
            no_separator: whether one ``</s>`` separates sentences, not two. None: as in the
                fine-tuning; before it, if the model has embeddings of segments, as in BERT.
        """
        no_separator = self._has_one_separator() if no_separator is None else no_separator
        return super().encode(sentence, *addl_sentences, no_separator=no_separator)

    def decode(self, tokens: Tensor) -> str | list[str]:
        """fairseq's, of pairs with the separators of :meth:`encode`.

        Args:
            tokens: ``[tokens]``.
        """
        if not self._has_one_separator() or tokens.dim() != 1:
            return super().decode(tokens)
        dictionary = self.task.source_dictionary
        words = tokens[tokens != dictionary.bos()]
        ends = (words == dictionary.eos()).nonzero().flatten().tolist()
        parts = [words[a + 1 : b] for a, b in pairwise([-1, *ends, len(words)])]
        parts = [part for part in parts if len(part)] or [words[:0]]
        texts = [self.bpe.decode(dictionary.string(part)) for part in parts]
        return texts[0] if len(texts) == 1 else texts

    def _has_one_separator(self) -> bool:
        # fairseq's older tasks have args, and None as cfg
        options = self.task.cfg or getattr(self.task, "args", None)
        if hasattr(options, "separator_token"):
            return options.separator_token is None
        encoder = self.model.encoder.sentence_encoder
        return getattr(encoder, "embed_segments", None) is not None

    def fill_mask(self, masked_input: str, topk: int = 5) -> list[tuple]:
        """The ``topk`` most probable fillings of the one ``<mask>`` of a text, or all: each the
        filled text, its probability and the word. Special symbols, which fairseq's own drops after
        it has taken ``topk``, are none.

        Raises:
            ValueError: the model was fine-tuned, the text does not have one ``<mask>`` or is longer
                than the model's positions, or topk is below 1.
        """
        if not hasattr(self.task, "mask_idx"):
            raise ValueError("this model was fine-tuned; its pre-training's checkpoint fills masks")
        spans = masked_input.split("<mask>")
        if len(spans) != 2:
            raise ValueError(f"{masked_input!r} must have one <mask>")
        if topk < 1:
            raise ValueError(f"topk must be at least 1, not {topk}")
        dictionary = self.task.source_dictionary
        pieces = " <mask> ".join(self.bpe.encode(span.rstrip()) for span in spans).strip()
        tokens = dictionary.encode_line(
            f"<s> {pieces} </s>", append_eos=False, add_if_not_exist=False
        )
        if len(tokens) > (most := self.model.max_positions()):
            raise ValueError(f"{len(tokens):,} tokens, the model takes {most:,}: split the text")
        at = (tokens == self.task.mask_idx).nonzero().item()
        with model_eval(self.model):
            logits = self.model(tokens.long()[None].to(self.device), features_only=False)[0]
        probabilities = logits[0, at].detach().float().softmax(-1)
        types = _types_of_text(dictionary)
        values, places = probabilities[types].topk(min(topk, len(types)))
        return [
            self._filled(masked_input, dictionary[types[place]], value)
            for value, place in zip(values.tolist(), places.tolist(), strict=True)
        ]

    def _filled(self, masked_input: str, piece: str, probability: float) -> tuple:
        word = f"{' ' if piece.startswith(WORD) else ''}{self.bpe.decode(piece)}"
        symbols = self.task.source_dictionary.symbols
        has_blank = word.startswith(" ") or any(symbol.startswith(WORD) for symbol in symbols)
        mask = " <mask>" if has_blank and " <mask>" in masked_input else "<mask>"
        return masked_input.replace(mask, word), probability, word

    def predict(self, head: str, tokens: Tensor, return_logits: bool = False) -> Tensor:
        """Log-probabilities of the classes, ``[sentences, classes]``; of a regression, whose head
        has one output, the score that it predicts, ``[sentences, 1]``.

        Raises:
            ValueError: the model has no such classification head.
        """
        heads = ", ".join(self.model.classification_heads)
        if not heads:
            raise ValueError("this model has no classification head: fine-tune it first")
        if head not in self.model.classification_heads:
            raise ValueError(f"this model has no classification head {head!r}; it has {heads}")
        is_regression = self.model.classification_heads[head].out_proj.out_features == 1
        return super().predict(head, tokens, return_logits or is_regression)
