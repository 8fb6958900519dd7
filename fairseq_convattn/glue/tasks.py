"""The nine tasks of GLUE (Wang et al. 2019, table 1), as data."""

from dataclasses import dataclass, field

HIGHEST_SCORE = 5.0  # of STS-B, from 0


class GlueError(ValueError):
    """Something cannot be used for GLUE; the message says in one line what and why."""


@dataclass(frozen=True)
class GlueTask:
    """One task.

    Attributes:
        sentences: columns of its files that hold one sentence, or two.
        label: the column of the label.
        classes: the labels, in the order of the model's outputs; none: a score from 0 to 5.
        metrics: of ``metrics.TITLES``.
        examples: numbers of examples by file, in every release there is.
        files: the file behind each of fairseq's subsets.
        columns: names of the columns, where the files have no first line that gives them.
        drop_malformed: leave out rows with another number of columns, as GLUE does.
    """

    sentences: tuple[str, ...]
    label: str
    classes: tuple[str, ...]
    metrics: tuple[str, ...]
    examples: dict[str, tuple[int, ...]]
    files: dict[str, str] = field(default_factory=lambda: {"train": "train", "valid": "dev"})
    columns: tuple[str, ...] = ()
    drop_malformed: bool = False

    @property
    def dev_sets(self) -> dict[str, str]:
        """What is added to the name of a metric, by subset: nothing unless there are two."""
        dev = {subset: file for subset, file in self.files.items() if subset != "train"}
        if len(dev) == 1:
            return dict.fromkeys(dev, "")
        return {subset: file.removeprefix("dev") for subset, file in dev.items()}


_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_PAIR = ("sentence1", "sentence2")

TASKS = {
    "CoLA": GlueTask(
        sentences=("sentence",),
        label="acceptable",
        classes=_BINARY,
        metrics=("matthews",),
        examples={"train": (8551,), "dev": (1043,)},
        columns=("source", "acceptable", "mark", "sentence"),
    ),
    "SST-2": GlueTask(
        sentences=("sentence",),
        label="label",
        classes=_BINARY,
        metrics=("accuracy",),
        examples={"train": (67349,), "dev": (872,)},
    ),
    "MRPC": GlueTask(
        sentences=("#1 String", "#2 String"),
        label="Quality",
        classes=_BINARY,
        metrics=("accuracy", "f1"),
        examples={"train": (3668,), "dev": (408,)},
    ),
    "STS-B": GlueTask(
        sentences=_PAIR,
        label="score",
        classes=(),
        metrics=("pearson", "spearman"),
        examples={"train": (5749,), "dev": (1500,)},
    ),
    "QQP": GlueTask(
        sentences=("question1", "question2"),
        label="is_duplicate",
        classes=_BINARY,
        metrics=("accuracy", "f1"),
        # of QQP-clean.zip and of the QQP.zip before it
        examples={"train": (363846, 363849), "dev": (40430,)},
        drop_malformed=True,
    ),
    "MNLI": GlueTask(
        sentences=_PAIR,
        label="gold_label",
        classes=("entailment", "neutral", "contradiction"),
        metrics=("accuracy",),
        examples={"train": (392702,), "dev_matched": (9815,), "dev_mismatched": (9832,)},
        files={"train": "train", "valid": "dev_matched", "valid1": "dev_mismatched"},
    ),
    "QNLI": GlueTask(
        sentences=("question", "sentence"),
        label="label",
        classes=_ENTAILMENT,
        metrics=("accuracy",),
        examples={"train": (104743,), "dev": (5463,)},
    ),
    "RTE": GlueTask(
        sentences=_PAIR,
        label="label",
        classes=_ENTAILMENT,
        metrics=("accuracy",),
        examples={"train": (2490,), "dev": (277,)},
    ),
    "WNLI": GlueTask(
        sentences=_PAIR,
        label="label",
        classes=_BINARY,
        metrics=("accuracy",),
        examples={"train": (635,), "dev": (71,)},
    ),
}
