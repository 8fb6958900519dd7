"""Wraps the functions by which fairseq loads checkpoints, continues an epoch or runs a shell, and
its ``eval``.

fairseq has no hook between reading a file and building the task that its configuration
names, which may evaluate options as Python. So the plugin replaces some of its functions in memory
when it is loaded; fairseq's files are not changed.
"""

import difflib
import functools
import importlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils, file_utils
from fairseq.data import EpochBatchIterator
from fairseq.data.fasta_dataset import FastaDataset
from fairseq.file_io import PathManager
from omegaconf import DictConfig

from ..durable import entries, require_no_links
from ..training_options import values_of
from . import stand_ins
from .checks import (
    CheckpointError,
    check_configuration,
    check_digest,
    check_finite,
    check_optimizer,
    naming,
)
from .continuation import require_same_model
from .files import architecture_of, as_mapping, check_file, is_ours, stored_options
from .option_text import evaluated
from .recovery import LAST, recovered

logger = logging.getLogger(__name__)

NAMES_OF_2019 = {"encoder.layers.0.linear1.weight", "encoder.layers.0.layer_norms.0.weight"}

# fairseq-validate takes the checkpoint's task
_CHOOSING_THE_TASK = ("fairseq-generate", "fairseq-interactive")

# beginnings of the names of files that fairseq-train writes in --save-dir
WRITTEN = ("checkpoint", "crash.pt", "dummy")

# fairseq's modules that evaluate options
EVALUATING = (
    *("utils", "criterions.ctc", "data.audio.raw_audio_dataset", "data.codedataset"),
    *("models.fconv", "models.fconv_lm", "models.fconv_self_att", "models.hubert.hubert"),
    *("models.lightconv_lm", "models.speech_to_text.s2t_wav_transformer"),
    *("models.transformer_lm", "models.wav2vec.wav2vec", "models.wav2vec.wav2vec2"),
    *("optim.adafactor", "optim.adam", "optim.adamax", "optim.cpu_adam", "optim.fused_lamb"),
)


def install() -> None:
    """Check what fairseq loads and evaluates, and recover trainings that were killed."""
    for module, name, wrapper in (
        (checkpoint_utils, "load_checkpoint_to_cpu", _checking),
        (checkpoint_utils, "load_checkpoint", _recovering),
        (checkpoint_utils, "verify_checkpoint_directory", _refusing_links),
        (file_utils, "load_archive_file", _refusing_archives),
        (FastaDataset, "_build_index", _refusing_shell_code),
        (EpochBatchIterator, "state_dict", _noting_workers),
    ):
        function = getattr(module, name)
        if not hasattr(function, "guarded"):
            function = wrapper(function)
            function.guarded = True
            setattr(module, name, function)
    for name in EVALUATING:
        importlib.import_module(f"fairseq.{name}").eval = evaluated


def _checking(load: Callable[..., dict]) -> Callable[..., dict]:
    @functools.wraps(load)
    def load_checkpoint_to_cpu(path: str, *args: Any, **kwargs: Any) -> dict:
        """fairseq's, of files that pass every check of this package.

        Raises:
            CheckpointError: the file is remote or damaged, its weights are not finite or not those
                that were written, an option of it (or of ``--model-overrides``) is code, or its
                optimizer's state could corrupt memory.
        """
        with _explained(path):
            if PathManager.path_requires_pathmanager(path):
                raise CheckpointError("only local files can be checked: download it")
            if os.path.isfile(path):
                outline = check_file(path)
                check_configuration(outline)
                _refuse_2019(outline)
        with stand_ins.allowed():
            state = load(path, *args, **kwargs)
        with _explained(path):
            check_configuration(state, as_stored=False)  # with --model-overrides
            check_digest(state)
            check_optimizer(state)  # where fairseq has put it
            _warn_of_unknown(args[0] if args else kwargs.get("arg_overrides"), state)
            _warn_of_another_task(state)
            # lightconv checkpoints have weights that were never set
            if is_ours(architecture_of(state)):
                check_finite(state["model"])
        return state

    return load_checkpoint_to_cpu


def _warn_of_unknown(overrides: dict[str, Any] | None, state: dict) -> None:
    """Warn of ``--model-overrides`` that fairseq ignores, as the checkpoint has no such option."""
    stored = as_mapping(state.get("cfg"))
    names, words = set(stored).union(*map(as_mapping, stored.values())), " ".join(sys.argv)
    # fairseq-validate overrides all of its options
    quoted = [x for x in overrides or () if f"'{x}'" in words or f'"{x}"' in words]
    for name in () if not stored else sorted(set(quoted) - names):
        close = difflib.get_close_matches(name, names, n=1)
        logger.warning(
            "--model-overrides: the checkpoint has no option %s, which changes nothing%s",
            *(name, f"; did you mean {close[0]}?" if close else ""),
        )


def _warn_of_another_task(state: dict) -> None:
    """Warn of a model that fairseq evaluates by a task which cuts or scores in another way."""
    if Path(sys.argv[0]).name not in _CHOOSING_THE_TASK:
        return
    trained = stored_options(state, "task").get("_name")
    given = values_of(sys.argv[1:], "--task", task="translation").task
    if trained != given and {trained, given} == {"translation", "summarization"}:
        logger.warning(
            "the checkpoint was trained with --task %s, and is used with %s: lengths and cuts are "
            "other ones",
            *(trained, given),
        )


def _refuse_2019(outline: dict) -> None:
    """Refuse fairseq's LightConv and DynamicConv models of 2019, whose weights have other names
    today. fairseq itself renames those of its Transformers.

    Raises:
        CheckpointError: the file holds one; the message says how to convert it.
    """
    if NAMES_OF_2019.issubset(outline.get("model") or ()):
        raise CheckpointError(
            "a LightConv or DynamicConv model of 2019 has to be converted: convattn convert OLD NEW"
        )


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Name the file in the message of a check, and this package where a check itself fails."""
    with naming(path):
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:
            name = type(error).__name__
            raise CheckpointError(f"fairseq_convattn cannot check it ({name}: {error})") from error


def _refusing_links(verify: Callable[[str], None]) -> Callable[[str], None]:
    @functools.wraps(verify)
    def verify_checkpoint_directory(save_dir: str) -> None:
        """fairseq's, of folders where it overwrites no other file.

        Raises:
            FileExistsError: a file that fairseq-train may write is a symbolic link, or the folder
                cannot be listed.
        """
        found = entries(Path(save_dir), "--save-dir")
        require_no_links((x for x in found if x.name.startswith(WRITTEN)), "--save-dir")
        verify(save_dir)

    return verify_checkpoint_directory


def _refusing_archives(load: Callable[[str], str | None]) -> Callable[[str], str | None]:
    @functools.wraps(load)
    def load_archive_file(archive_file: str | os.PathLike) -> str | None:
        """fairseq's, of folders alone: it would unpack an archive's files wherever they say.

        Raises:
            CheckpointError: it is an archive.
        """
        if os.path.isfile(archive_file) or "://" in os.fspath(archive_file):
            raise CheckpointError(
                f"{archive_file}: give a folder; download and unpack an archive first"
            )
        return load(archive_file)

    return load_archive_file


def _refusing_shell_code(build: Callable[..., tuple]) -> Callable[..., tuple]:
    @functools.wraps(build)
    def _build_index(self: FastaDataset, path: str) -> tuple:
        """fairseq's, which puts the file's name into a shell command and then writes an index.

        Raises:
            ValueError: a shell would not take the name as it is.
            FileExistsError: the index is a symbolic link.
        """
        if re.search(r"[^\w@%+=:,./-]", path):
            raise ValueError(
                f"{path}.fasta: fairseq hands this name to a shell, which would interpret it; file "
                "and folders may have only letters, digits and @%+=:,.-_"
            )
        require_no_links([Path(f"{path}.fasta.idx.npy")], "data folder")
        return build(self, path)

    return _build_index


def _noting_workers(describe: Callable[..., dict]) -> Callable[..., dict]:
    @functools.wraps(describe)
    def state_dict(self: EpochBatchIterator) -> dict[str, Any]:
        """fairseq's, and the number of workers: ``iterations_in_epoch`` counts the batches of one
        of them."""
        return {**describe(self), "workers": self.num_shards}

    return state_dict


def _counting_for(trainer: Any, read: Callable[..., dict | None]) -> Callable[..., dict | None]:
    @functools.wraps(read)
    def load_checkpoint(*args: Any, **kwargs: Any) -> dict | None:
        """The trainer's, for as many workers as there are now: an epoch goes on after the batches
        that all workers together have taken. What is less than an update is repeated.

        With ``--grouped-shuffling`` the order of batches depends on the number of workers.
        """
        extra = read(*args, **kwargs)
        state = (extra or {}).get("train_iterator", {})
        if "workers" in state:
            frequencies = trainer.cfg.optimization.update_freq
            frequency = frequencies[min(state["epoch"], len(frequencies)) - 1]
            update = trainer.data_parallel_world_size * frequency
            done = state["iterations_in_epoch"] * state["workers"] // update
            state["iterations_in_epoch"] = done * frequency
        return extra

    return load_checkpoint


def _recovering(load: Callable[..., tuple]) -> Callable[..., tuple]:
    @functools.wraps(load)
    def load_checkpoint(cfg: DictConfig, trainer: Any, **kwargs: Any) -> tuple:
        """fairseq's, but from the newest intact checkpoint if the last one is damaged; with all
        updates in it nothing is trained.

        Raises:
            CheckpointError: the checkpoint is of another model.
            ValueError: it is of other dictionaries.
        """
        is_first = trainer.data_parallel_rank == 0
        regroups = not trainer.cfg.dataset.update_epoch_batch_itr
        if is_first and regroups and cfg.save_interval_updates > 0:
            logger.warning(
                "--save-interval-updates saves within epochs: a training that goes on from there "
                "sees other batches than an uninterrupted one; add --update-epoch-batch-itr True"
            )
        last, named = Path(cfg.save_dir, LAST), cfg
        cfg = recovered(cfg, is_first)
        continues_last = cfg is named and cfg.restore_file == LAST and last.exists()
        require_same_model(cfg, trainer.cfg, is_first)
        trainer.load_checkpoint = _counting_for(trainer, trainer.load_checkpoint)
        with stand_ins.allowed():  # the first worker sends the others what it has read
            loaded = load(cfg, trainer, **kwargs)
        if continues_last:
            _stop_if_finished(trainer, last if is_first else None)
        return loaded

    return load_checkpoint


def _stop_if_finished(trainer: Any, last: Path | None) -> None:
    """End a training whose ``--max-update`` updates are in its last checkpoint; fairseq would make
    one more and save it. ``last`` is for the message; None: there is none."""
    options, made = trainer.cfg.optimization, trainer.get_num_updates()
    if 0 < options.max_update <= made:
        if last:
            logger.warning(
                "Stopping training due to num_updates: %s has %d of --max-update %d. Nothing is "
                "trained or saved; a higher --max-update goes on",
                *(last, made, options.max_update),
            )
        options.max_epoch = -1
