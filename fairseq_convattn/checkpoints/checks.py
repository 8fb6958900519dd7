"""Checks of checkpoints: the archive, the configuration and the weights."""

import functools
import hashlib
import os
import re
import zipfile
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from omegaconf import AnyNode, DictConfig, ListConfig, OmegaConf
from torch import Tensor, nn

from .option_text import is_active, texts_of

DIGEST = "digest"
"""The key under which a checkpoint stores the digest of its weights."""


class CheckpointError(ValueError):
    """A checkpoint is invalid; the message says in one line why."""


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Put a file's name before the message of a :class:`CheckpointError`."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error.__cause__


# Paths and free text, which fairseq never evaluates; a folder may be called ``data (old)``.
FREE_TEXT = {
    *("data", "save_dir", "path", "restore_file", "finetune_from_model", "source_prefix"),
    *("tensorboard_logdir", "log_file", "results_path", "input", "user_dir", "wandb_project"),
    *("bpe_codes", "sentencepiece_model", "gpt2_encoder_json", "gpt2_vocab_bpe", "bpe_vocab_file"),
    *("encoder_embed_path", "decoder_embed_path", "continue_once", "quantization_config_path"),
    *("w2v_path", "pretrained_checkpoint", "lm_path", "lang_dict", "config_yaml"),
    *("bpe_vocab", "bpe_merges", "sentencepiece_model_path"),
    *("load_pretrained_encoder_from", "load_pretrained_decoder_from"),
    *("target_dictionary", "source_dict", "target_dict", "fixed_dictionary", "label_dir"),
    *("lang_to_offline_shard_ratio", "multitask_config_yaml", "pretrained_mlm_checkpoint"),
    *("baseline_model", "seq2seq_path", "save_predictions", "aim_repo", "plasma_path"),
}
_INTERPOLATION = re.compile(r"\$\{")
_RESOLVER = re.compile(r"\$\{.*:", re.DOTALL)  # such as ${oc.env:HOME}
_OF_A_NODE = {"_content", "_val", "_metadata", "_parent", "_flags_cache"}
"""The attributes of omegaconf's containers and values."""
_MOST_VALUES = 1_000_000
_MOST_LEVELS = 100
_MOST_EXPANDED = 2**26
"""Bytes that tensors may claim beyond the file's: some packages store expanded views."""
_MOST_NAMES = 100
"""How many times its file size a checkpoint's tensors may claim, since shared layers are counted
under every name."""

# fairseq stores these without ever having set or read them.
UNINITIALISED = re.compile(r"(?:.+\.)?(?:_float_tensor|conv\.conv_bias)")


def once_per_version(check: Callable[[str], None]) -> Callable[[str | Path], None]:
    """The check of a file, cached, so that an unchanged file is read once."""

    @functools.lru_cache(maxsize=1)
    def cached(path: str, *version: int) -> None:
        check(path)

    @functools.wraps(check)
    def checked(path: str | Path) -> None:
        now = os.stat(path)
        cached(str(path), now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)

    return checked


@once_per_version
def check_archive(path: str) -> None:
    """See that a zip archive, as torch writes them, is whole: nothing in it is compressed or
    larger than the file, and every record matches its CRC-32. Files of other formats pass.

    Raises:
        CheckpointError: it is not.
    """
    if not os.path.getsize(path):
        raise CheckpointError("it is empty")
    if not is_zip(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            if any(record.compress_type != zipfile.ZIP_STORED for record in records):
                raise CheckpointError("it is compressed, and torch compresses nothing")
            if sum(record.file_size for record in records) > Path(path).stat().st_size:
                raise CheckpointError("its parts claim to be larger than the file")
            if min((record.header_offset for record in records), default=0):
                raise CheckpointError("it is damaged: something stands before its first part")
            damaged = archive.testzip()
    except CheckpointError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        raise CheckpointError(f"it was cut off or is damaged ({error})") from error
    if damaged:
        raise CheckpointError(f"its part {damaged} is damaged: the checksum does not match")


def is_zip(path: str | Path) -> bool:
    """Whether a file begins like torch's archives; it may still be truncated."""
    with open(path, "rb") as file:
        return b"PK".startswith(file.read(2))


def check_sizes(state: Any, size: int) -> None:
    """Check that the tensors of a checkpoint need about as much memory as its file has bytes.

    Raises:
        CheckpointError: they claim far more, a tensor is not an ordinary one, or the checkpoint is
            too deep or has too many values.
    """
    together = 0
    for name, value in _values(state):
        if isinstance(value, Tensor):
            if not _is_ordinary(value):
                raise CheckpointError(f"{name} is not an ordinary tensor")
            claimed = value.numel() * value.element_size()
            together += claimed
            if claimed > size + _MOST_EXPANDED or together > _MOST_NAMES * size + _MOST_EXPANDED:
                raise CheckpointError(f"{name} claims {claimed:,} bytes in a file of {size:,}")


def _is_ordinary(tensor: Tensor) -> bool:
    """Whether its values are all in its storage: torch does not check a sparse tensor's indices.
    It has no attributes, which could replace methods, and no hooks."""
    is_plain = type(tensor) in (Tensor, nn.Parameter) and not vars(tensor)
    return (
        is_plain
        and tensor._backward_hooks in (None, {})
        and tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_meta)
    )


def check_optimizer(state: Any) -> None:
    """Check that the optimizer's state does not choose torch's compiled implementations, which
    trust its shapes; fairseq never does.

    Raises:
        CheckpointError: it does.
    """
    optimizer = state.get("last_optimizer_state") if isinstance(state, dict) else None
    for name, value in _everything(optimizer):
        option = name.rpartition(".")[2]
        if option in ("fused", "foreach") and value is not None and value is not False:
            raise CheckpointError(f"its optimizer's {option} is {str(value)[:80]}, not False")


def check_configuration(state: Any, as_stored: bool = True) -> None:
    """Check that a checkpoint's configuration (``cfg``, or ``args`` in old files) holds plain
    values, and no text that would run code if evaluated.

    fairseq evaluates options of models, tasks and criteria as Python. It stores interpolations
    resolved, so in a file they could only assemble code that no single option shows.

    Args:
        state: the checkpoint.
        as_stored: it is as the file has it, not as fairseq completed it with interpolations.

    Raises:
        CheckpointError: a value is not allowed; the message names its option.
    """
    if type(state) is not dict:
        raise CheckpointError("not a fairseq checkpoint")
    parts = {part: state.get(part) for part in ("cfg", "args")}
    for part, options in parts.items():
        if not isinstance(options, (Mapping, Namespace, type(None))):  # a text would be YAML
            raise CheckpointError(f"its {part} is a {type(options).__name__}, not options by name")
    refers = _INTERPOLATION if as_stored else _RESOLVER
    for name, value in _values(parts, _plain_option if as_stored else _plain_value):
        field = name.rpartition(".")[2]
        if value is not None and not isinstance(value, (bool, int, float, str)):
            raise CheckpointError(f"its option {name} is a {type(value).__name__}")
        if isinstance(value, str) and any(map(refers.search, texts_of(value))):
            raise CheckpointError(f"its option {name} is {value[:80]!r}, which looks things up")
        if isinstance(value, str) and field not in FREE_TEXT and is_active(value):
            raise CheckpointError(f"its option {name} is {value[:80]!r}, which is code")


def check_finite(weights: Mapping[str, Any]) -> None:
    """Check that the weights have names and contain no NaN and no infinity.

    Raises:
        CheckpointError: they do not; the message names the weight.
    """
    for name, weight in weights.items():
        if not isinstance(name, str):
            raise CheckpointError(f"a weight is called {name!r}, which is not a name")
        if not isinstance(weight, Tensor) or not weight.is_floating_point():
            continue
        # A sum is thirty times as fast as isfinite, but may overflow for large values.
        total = weight.sum(dtype=torch.promote_types(weight.dtype, torch.float32))
        if not total.isfinite() and not weight.isfinite().all() and not UNINITIALISED.match(name):
            count = int((~weight.isfinite()).sum())
            raise CheckpointError(f"{name} has {count:,} of {weight.numel():,} values not finite")


def check_digest(state: Mapping[str, Any]) -> None:
    """Check the weights against the digest that the checkpoint stores, if any.

    Raises:
        CheckpointError: the weights have changed.
    """
    expected = state.get(DIGEST)
    if expected is not None and expected != weights_digest(state["model"]):
        raise CheckpointError(
            f"its weights are not those that were written ({DIGEST} {str(expected)[:12]}); remove "
            f"its {DIGEST!r} if you have changed them"
        )


def weights_digest(weights: Mapping[str, Any]) -> str:
    """SHA-256 over names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        weight = weights[name]
        if isinstance(weight, Tensor):
            digest.update(f"{name} {weight.dtype} {list(weight.shape)}\n".encode())
            digest.update(weight.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
        else:
            digest.update(f"{name} {weight!r}\n".encode())
    return digest.hexdigest()


def _plain_option(name: str, value: Any) -> Any:
    """A container of options as a plain one, without calling its methods; all else as it is.

    Raises:
        CheckpointError: it has attributes, which could hide values or replace methods.
    """
    kind = type(value)
    if kind is Namespace:
        return dict(vars(value))
    if kind is OrderedDict and not vars(value):
        return dict(value)
    if kind in (DictConfig, ListConfig, AnyNode):
        if vars(value).keys() <= _OF_A_NODE:
            return vars(value).get("_val" if kind is AnyNode else "_content")
        raise CheckpointError(f"its option {name} is a {kind.__name__} with attributes of its own")
    if isinstance(value, (Mapping, Namespace)) and kind is not dict:
        raise CheckpointError(f"its option {name} is a {kind.__name__}")
    return value


def as_container(config: Any) -> Any:
    """A configuration of OmegaConf's as plain values, interpolations as text.

    Raises:
        CheckpointError: it is damaged.
    """
    try:
        return OmegaConf.to_container(config, resolve=False)
    except Exception as error:  # it can fail in any way
        raise CheckpointError("its configuration is damaged") from error


def _plain_value(name: str, value: Any) -> Any:
    """A container as a plain one; all else as it is.

    Raises:
        CheckpointError: a dictionary has an attribute instead of a method, or metadata other than
            versions. Other attributes are not used.
    """
    if OmegaConf.is_config(value):
        value = as_container(value)
    if isinstance(value, dict):
        attributes = getattr(value, "__dict__", {})
        for attribute in attributes:
            if hasattr(type(value), attribute):
                raise CheckpointError(f"{name} has {attribute} of its own")
        if not _are_versions(attributes.get("_metadata", {})):
            raise CheckpointError(f"{name} has metadata that are no versions")
    return vars(value) if isinstance(value, Namespace) else value


def _are_versions(metadata: Any) -> bool:
    """Whether these are versions of modules and of their spectral norms, as torch stores them; it
    obeys some other entries."""
    inner = dict.values(metadata) if isinstance(metadata, dict) else [None]
    return not getattr(metadata, "__dict__", None) and all(map(_is_version, inner))


def _is_version(module: Any) -> bool:
    """Whether it is like ``{"version": 1}``, with a dictionary of other versions if the module has
    spectral norms."""
    if type(module) is not dict:
        return False
    versions = {**module}
    norms = versions.pop("spectral_norm", {})
    numbers = type(norms) is dict and all(
        type(x) is int for x in (*norms.values(), *versions.values())
    )
    return numbers and versions.keys() <= {"version"}


def _values(
    root: Any, plain: Callable[[str, Any], Any] = _plain_value
) -> Iterator[tuple[str, Any]]:
    """The values in nested containers, by dotted name."""
    containers = (Mapping, list, tuple, set, frozenset)
    return (item for item in _everything(root, plain) if not isinstance(item[1], containers))


def _everything(
    root: Any, plain: Callable[[str, Any], Any] = _plain_value
) -> Iterator[tuple[str, Any]]:
    """Nested containers, which ``plain`` makes plain, and their values, by dotted name."""
    waiting, seen = [("", root)], 0
    while waiting:
        name, value = waiting.pop()
        value = plain(name, value)
        seen += len(value) if isinstance(value, (Mapping, list, tuple, set, frozenset)) else 0
        if seen > _MOST_VALUES or name.count(".") > _MOST_LEVELS:
            raise CheckpointError("it has too many values, or too deep ones, for a checkpoint")
        if isinstance(value, Mapping):
            waiting += [(f"{name}.{key}".lstrip("."), inner) for key, inner in value.items()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            waiting += [(f"{name}.{place}", inner) for place, inner in enumerate(value)]
        yield name, value
