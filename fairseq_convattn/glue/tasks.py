"""The nine tasks of GLUE (Wang et al. 2019, table 1), as data."""

from dataclasses import dataclass, field

HIGHEST_SCORE = 5.0  # of STS-B, from 0
PREPARE_ANEW = (
    "give other data with --data, or prepare them with the dictionary of the pre-training "
    "(convattn prepare glue --dictionary)"
)


class GlueError(ValueError):
    """An input cannot be used for GLUE; the message says in one line which and why."""


@dataclass(frozen=True)
class GlueTask:
    """One task.

    Attributes:
        sentences: columns of its files that hold one sentence, or two.
        examples: numbers of examples by file, one for each release.
        label: the column of the label.
        classes: the labels, in the order of the model's outputs; none: a score from 0 to 5.
        metrics: names of ``metrics.score``.
        files: the file behind each of fairseq's subsets with labels.
        test_files: the same of the test sets, which have none; a release may lack them.
        columns: names of the columns, where the labelled files have no first line that gives them.
        drop_malformed: leave out rows with another number of columns, as GLUE does; none of a
            test set.
    """

    sentences: tuple[str, ...]
    examples: dict[str, tuple[int, ...]]
    label: str = "label"
    classes: tuple[str, ...] = ("0", "1")
    metrics: tuple[str, ...] = ("accuracy",)
    files: dict[str, str] = field(default_factory=lambda: {"train": "train", "valid": "dev"})
    test_files: dict[str, str] = field(default_factory=lambda: {"test": "test"})
    columns: tuple[str, ...] = ()
    drop_malformed: bool = False

    @property
    def dev_sets(self) -> dict[str, str]:
        """The suffix of a metric's name, by subset: ``_matched`` for ``dev_matched``."""
        dev = {subset: file for subset, file in self.files.items() if subset != "train"}
        return {subset: file.removeprefix("dev") for subset, file in dev.items()}


_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")

TASKS = {
    "CoLA": GlueTask(
        ("sentence",),
        {"train": (8551,), "dev": (1043,), "test": (1063,)},
        label="acceptable",
        metrics=("matthews",),
        columns=("source", "acceptable", "mark", "sentence"),
    ),
    "SST-2": GlueTask(("sentence",), {"train": (67349,), "dev": (872,), "test": (1821,)}),
    "MRPC": GlueTask(
        ("#1 String", "#2 String"),
        {"train": (3668,), "dev": (408,), "test": (1725,)},
        label="Quality",
        metrics=("accuracy", "f1"),
    ),
    "STS-B": GlueTask(
        _PAIR,
        {"train": (5749,), "dev": (1500,), "test": (1379,)},
        label="score",
        classes=(),
        metrics=("pearson", "spearman"),
    ),
    "QQP": GlueTask(
        ("question1", "question2"),
        # QQP-clean.zip and the QQP.zip before it
        {"train": (363846, 363849), "dev": (40430,), "test": (390965,)},
        label="is_duplicate",
        metrics=("accuracy", "f1"),
        drop_malformed=True,
    ),
    "MNLI": GlueTask(
        _PAIR,
        {
            **{"train": (392702,), "dev_matched": (9815,), "dev_mismatched": (9832,)},
            **{"test_matched": (9796,), "test_mismatched": (9847,)},
        },
        label="gold_label",
        classes=("entailment", "neutral", "contradiction"),
        files={"train": "train", "valid": "dev_matched", "valid1": "dev_mismatched"},
        test_files={"test": "test_matched", "test1": "test_mismatched"},
    ),
    "QNLI": GlueTask(
        ("question", "sentence"),
        {"train": (104743,), "dev": (5463,), "test": (5463,)},
        classes=_ENTAILMENT,
    ),
    "RTE": GlueTask(_PAIR, {"train": (2490,), "dev": (277,), "test": (3000,)}, classes=_ENTAILMENT),
    "WNLI": GlueTask(_PAIR, {"train": (635,), "dev": (71,), "test": (146,)}),
}
