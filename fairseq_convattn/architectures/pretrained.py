"""``from_pretrained``: trained models from Python."""

import difflib
import os
import re
from argparse import Namespace
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from fairseq.data.encoders import BPE_REGISTRY, TOKENIZER_REGISTRY
from fairseq.hub_utils import from_pretrained
from fairseq.models import FairseqEncoderDecoderModel, FairseqEncoderModel, FairseqLanguageModel
from fairseq.registry import REGISTRIES
from omegaconf import DictConfig, OmegaConf, open_dict

from .hub import ConvAttnHub, ConvAttnMaskedHub

DICTIONARIES = ("dict*.txt", "input0/dict.txt")  # the second: sentence_prediction's
_KINDS = (FairseqEncoderDecoderModel, FairseqLanguageModel, FairseqEncoderModel)
_CODE = re.compile(r"[a-z]{2}([_-]\w+)?")  # of a language; sides may have other names, such as src
CODES, PIECES = "bpecodes", "sentencepiece.bpe.model"  # found by fairseq beside a checkpoint
_BINARISED = "the folder that fairseq-preprocess wrote"
_PIECES_FILE, _CODES_FILE = "sentencepiece_model", "bpe_codes"
# options that fairseq reads without having them in a checkpoint's configuration
_ELSEWHERE = {"load_checkpoint_heads", "user_dir", "generation_args"}


class Pretrained:
    """A model class whose checkpoints open as :class:`ConvAttnHub`."""

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str | os.PathLike,
        checkpoint_file: str | os.PathLike = "model.pt",
        data_name_or_path: str | os.PathLike = ".",
        **options,
    ) -> ConvAttnHub:
        """Load a trained model.

        Args:
            model_name_or_path: the folder of the checkpoint.
            checkpoint_file: its name there; several, with colons between, are an ensemble.
            data_name_or_path: the folder of the dictionaries. A path that begins with a dot is
                looked up in the checkpoint's folder first, then in the working directory.
            options: ``bpe`` and ``tokenizer`` with their own options, and others that replace
                those of the checkpoint. ``sentencepiece_model=FILE`` implies
                ``bpe="sentencepiece"``, as does a file ``sentencepiece.bpe.model`` in the
                checkpoint's folder.

        Raises:
            FileNotFoundError: a folder or its dictionaries are not there.
            ValueError: an option cannot work, the model does not have it (of several, the last
                one), or the model is of another class; the message names it.
        """
        loaded = _load(cls, model_name_or_path, checkpoint_file, data_name_or_path, options)
        return ConvAttnHub(loaded["args"], loaded["task"], loaded["models"])


class PretrainedMaskedLanguageModel:
    """A model class whose checkpoints open as :class:`ConvAttnMaskedHub`."""

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str | os.PathLike,
        checkpoint_file: str | os.PathLike = "model.pt",
        data_name_or_path: str | os.PathLike = ".",
        bpe: str | None = "sentencepiece",
        **options,
    ) -> ConvAttnMaskedHub:
        """Load a trained model, in evaluation mode.

        Arguments and errors are those of :meth:`Pretrained.from_pretrained`. With ``bpe=None`` it
        takes tokens alone.
        """
        options = {"bpe": bpe, "load_checkpoint_heads": True, **options}
        loaded = _load(cls, model_name_or_path, checkpoint_file, data_name_or_path, options)
        return ConvAttnMaskedHub(loaded["args"], loaded["task"], loaded["models"][0]).eval()


def _load(
    model: type,
    folder: str | os.PathLike,
    checkpoint_file: str,
    data: str | os.PathLike,
    options: dict[str, Any],
) -> dict[str, Any]:
    folder, checkpoint_file, data = map(os.fspath, (folder, checkpoint_file, data))
    options = {
        "required_batch_size_multiple": 1,  # with more, fairseq drops sentences
        **{k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in options.items()},
    }
    _require_checkpoints(folder, checkpoint_file)
    data = _data_folder(folder, data)
    if _PIECES_FILE in options or Path(folder, PIECES).exists():
        options.setdefault("bpe", "sentencepiece")
    _require_subwords(folder, options)
    try:
        loaded = from_pretrained(folder, checkpoint_file, data, model.hub_models(), **options)
    except Exception as error:  # fairseq raises this very class where there are no pairs
        _explain_data(error, data)
        raise
    _apply(options, loaded["args"], loaded["task"].cfg)
    _refuse_unknown(options.keys() - _ELSEWHERE, set(_option_names(loaded["args"])))
    kind = next(kind for kind in _KINDS if issubclass(model, kind))
    for name, found in zip(checkpoint_file.split(os.pathsep), loaded["models"], strict=False):
        if not isinstance(found, kind):
            right = type(found).__name__
            raise ValueError(f"{name} is not a {model.__name__}: use {right}.from_pretrained")
    return loaded


def _apply(options: dict[str, Any], cfg: DictConfig, task: Any) -> None:
    """Set what fairseq keeps as it was in the training, or takes from files beside the checkpoint,
    whatever it is given; and a tokenizer's languages, which are English otherwise."""
    with open_dict(cfg):
        for part in ("bpe", "tokenizer"):
            stored = cfg.get(part)
            name = stored._name if isinstance(stored, DictConfig) else stored
            if part in options and options[part] != name:
                cfg[part] = _entry(part, options[part])
            if not isinstance(cfg.get(part), DictConfig):
                continue
            languages = {x: getattr(task, x, None) for x in ("source_lang", "target_lang")}
            codes = {x: value for x, value in languages.items() if _CODE.fullmatch(str(value))}
            given = codes | options
            for field in given.keys() & cfg[part].keys() - {"_name"}:
                cfg[part][field] = given[field]


def _entry(part: str, name: str | None) -> DictConfig | str | None:
    """The configuration of an entry of one of fairseq's registries, with its defaults."""
    schema = REGISTRIES[part]["dataclass_registry"].get(name)
    if schema is None:
        return name
    entry = DictConfig(schema)
    entry._name = name
    return entry


def _explain_data(error: Exception, data: str) -> None:
    """Raise a one-line FileNotFoundError if the error is of data of another kind."""
    needs = "data_name_or_path needs the folder of the model's own training data"
    if str(error).startswith("Could not infer language pair"):
        way_out = f"{needs}, or give source_lang and target_lang"
        raise FileNotFoundError(f"{data} has no sentence pairs; {way_out}") from None
    file = getattr(error, "filename", None)
    if isinstance(file, str) and Path(file).name.startswith("dict"):
        raise FileNotFoundError(f"there is no {file}; {needs}") from None


def _require_checkpoints(folder: str, names: str) -> None:
    if not Path(folder).is_dir():  # fairseq would unpack an archive, anywhere that it says
        if folder.endswith(".pt"):
            parent, name = os.path.split(folder)
            way = f"it takes a folder and a file, from_pretrained({parent or '.'!r}, {name!r})"
        else:
            way = f"there is none in {os.getcwd()}: give the whole path (unpack an archive first)"
        raise FileNotFoundError(f"{folder}: no such folder; {way}")
    for name in names.split(os.pathsep):
        if not Path(folder, name).is_file():
            present = ", ".join(sorted(path.name for path in Path(folder).glob("*.pt")))
            hint = f"give one of those there as checkpoint_file: {present}"
            raise FileNotFoundError(
                f"{folder} has no {name}; {hint if present else 'it has no checkpoints'}"
            )


def _require_subwords(folder: str, options: dict[str, Any]) -> None:
    """Check the options ``bpe`` and ``tokenizer``; find the file of the former beside the
    checkpoint if it is not given."""
    for option, registry in (("bpe", BPE_REGISTRY), ("tokenizer", TOKENIZER_REGISTRY)):
        if options.get(option) not in (None, *registry):
            names = ", ".join(sorted(registry))
            raise ValueError(f"{option}={options[option]!r} is unknown; fairseq has {names}")
    needed = {
        "sentencepiece": (_PIECES_FILE, (PIECES,)),
        "subword_nmt": (_CODES_FILE, (CODES, "code")),
    }
    option, names = needed.get(options.get("bpe"), (None, ()))
    if option in (None, *options):
        return
    for name in names:
        if Path(folder, name).is_file():
            options[option] = str(Path(folder, name))
            return
    raise ValueError(
        f"bpe={options['bpe']!r} needs {option}=FILE, or {names[0]} beside the checkpoint"
    )


def _option_names(options: Any) -> Iterator[str]:
    """The names of options in all parts of fairseq's configuration."""
    if isinstance(options, DictConfig):
        options = OmegaConf.to_container(options, resolve=False)
    for name, value in (vars(options) if isinstance(options, Namespace) else options).items():
        yield name
        if isinstance(value, dict | DictConfig | Namespace):
            yield from _option_names(value)


def _refuse_unknown(given: Set[str], known: Set[str]) -> None:
    for name in sorted(given - known):
        if needed := " or ".join(_readers(name)):
            raise ValueError(f"{name} needs {needed}")
        close = difflib.get_close_matches(name, known | {_PIECES_FILE, _CODES_FILE}, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"{name}: the model has no such option{hint}")


def _readers(name: str) -> Iterator[str]:
    """What reads an option of subwords or tokens, as from_pretrained takes it."""
    for option in ("bpe", "tokenizer"):
        for entry, dataclass in REGISTRIES[option]["dataclass_registry"].items():
            if dataclass is not None and name in dataclass.__dataclass_fields__:
                yield f"{option}={entry!r}"


def _data_folder(folder: str, data: str) -> str:
    candidates = [Path(data)]
    if data.startswith("."):
        candidates.insert(0, Path(folder, data))
    if not any(candidate.is_dir() for candidate in candidates):
        raise FileNotFoundError(f"{data}: no such folder; data_name_or_path needs {_BINARISED}")
    for candidate in candidates:
        if any(any(candidate.glob(name)) for name in DICTIONARIES):
            return str(candidate.resolve())
    raise FileNotFoundError(
        f"no dictionary (dict.*.txt) in {' or '.join(map(str, candidates))}; data_name_or_path "
        f"needs {_BINARISED}"
    )
