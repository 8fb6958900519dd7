"""What the tests of ``--task summarization`` share."""

import random
import sys

import pytest
from conftest import PLUGIN, SHRUNK, preprocess
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

TASK = ("--task", "summarization")
DYNAMIC = ("--arch", "dynamic_conv_tiny", *SHRUNK)
SHORT_ROUGE = ("--eval-rouge", "--eval-rouge-args", '{"beam": 2, "max_len_b": 12}')
CUT = 10
LENGTHS = (CUT - 1, CUT, CUT + 1, CUT + 2, 3 * CUT, 60, 1, 14, 22, 5, 9, 11, 33)


@pytest.fixture(scope="module")
def articles(tmp_path_factory):
    """Letters, of which the first third in capitals is the summary; LENGTHS tokens long in
    each split but train, where they come several times."""
    generator = random.Random(2)

    def pair(length):
        words = [generator.choice("abcdefghij") for _ in range(length)]
        return " ".join(words), " ".join(word.upper() for word in words[: 1 + length // 3])

    splits = {"train": LENGTHS * 20, "valid": LENGTHS, "test": LENGTHS}
    pairs = {name: [pair(length) for length in lengths] for name, lengths in splits.items()}
    return preprocess(pairs, tmp_path_factory.mktemp("articles"), "--joined-dictionary")


def lines(data, name) -> list[list[str]]:
    return [line.split() for line in (data.parent / name).read_text().splitlines()]


def setup(data, *flags):
    """The task as fairseq-train sets it up."""
    arguments = (str(data), "--user-dir", str(PLUGIN), "--arch", "transformer", *TASK, *flags)
    namespace = options.parse_args_and_arch(options.get_training_parser(), arguments)
    return tasks.setup_task(convert_namespace_to_omegaconf(namespace).task)


def run(main, monkeypatch, *arguments) -> None:
    """A command in this process."""
    plugin = ("--user-dir", str(PLUGIN), "--cpu", "--no-progress-bar", "--num-workers", "0")
    monkeypatch.setattr(sys, "argv", ["fairseq", *map(str, (*arguments, *TASK, *plugin))])
    main()


def texts(hypotheses) -> list[list[str]]:
    return [hypotheses[number][1].split() for number in sorted(hypotheses)]
