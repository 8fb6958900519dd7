"""Models with random weights, built as fairseq's commands build them."""

import shlex
import tempfile
import warnings
from pathlib import Path

from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig

PLUGIN = Path(__file__).resolve().parents[1] / "fairseq_convattn"
DICTIONARIES = ("dict.txt", "dict.de.txt", "dict.en.txt")


def untrained(
    architecture: str, types: int, more: str
) -> tuple[FairseqTask, BaseFairseqModel, DictConfig]:
    """A model, its task and the configuration.

    Args:
        architecture: a name, perhaps with options.
        types: in every dictionary, without special ones.
        more: options of fairseq-train.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in DICTIONARIES:
            Path(folder, name).write_text("".join(f"{n} 1\n" for n in range(types)))
        given = shlex.split(f"--arch {architecture} {more} --required-batch-size-multiple 1")
        parser = options.get_training_parser()
        arguments = [folder, "--user-dir", str(PLUGIN), *given]
        with warnings.catch_warnings(action="ignore"):  # hydra's, of its own future
            configuration = convert_namespace_to_omegaconf(
                options.parse_args_and_arch(parser, arguments)
            )
        task = tasks.setup_task(configuration.task)
    return task, task.build_model(configuration.model), configuration
