"""What fairseq-train wrote to ``logs/train.log`` with ``--log-format json``."""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median

Point = tuple[int, float]
"""A number of updates, and a value after them."""

_FIGURES = re.compile(r" \| (train_inner|valid) \| (\{.*\})\s*$")
_PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+)")
_SESSION = "+ "  # what the recipes' runner writes before every session
_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \| ")
_GPU_MEMORY = re.compile(r"total memory = ([\d.]+) GB")
_CONFIGURATION = "fairseq_cli.train | {"
_PRECISION = re.compile(r"'(bf16|fp16|amp)': True")
_PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "amp": "mixed float16", None: "float32"}


@dataclass
class TrainLog:
    """One training, all its sessions; what is not in the log is empty or None.

    Attributes:
        loss: training loss (base 2) by updates, means of the intervals of the log.
        perplexity: that of the validation set.
        speeds: target tokens a second of each interval.
        seconds: how long it took, all sessions together.
        gpu_memory: the most that was in use on a GPU, in GiB.
        precision: of the last session: ``float32``, ``bfloat16``, ``float16``.
    """

    loss: list[Point] = field(default_factory=list)
    perplexity: list[Point] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    seconds: float | None = None
    parameters: int | None = None
    gpu_memory: float | None = None
    precision: str | None = None

    @property
    def updates(self) -> int | None:
        """The last that the log knows of."""
        return max(
            (points[-1][0] for points in (self.loss, self.perplexity) if points), default=None
        )

    @property
    def tokens_per_second(self) -> float | None:
        """The median of the intervals, on which validation and checkpoints weigh little."""
        return median(self.speeds) if self.speeds else None

    @property
    def best_perplexity(self) -> float | None:
        return min((value for _, value in self.perplexity), default=None)


def read_train_log(path: Path) -> TrainLog:
    """The figures of a log; none if there is no such file.

    Raises:
        OSError: the file cannot be read.
    """
    if not path.is_file():
        return TrainLog()
    with open(path, encoding="utf-8", errors="replace") as lines:
        return parse_train_log(lines)


def parse_train_log(lines: Iterable[str]) -> TrainLog:
    """The same of its lines. Where a training continued from an earlier update, what comes
    later counts."""
    log = TrainLog()
    total, least_free = None, math.inf
    sessions: list[list[datetime]] = []  # fairseq's own clock starts anew with some sessions
    for line in lines:
        if line.startswith(_SESSION):
            sessions.append([])
        elif (time := _TIME.match(line)) and sessions:
            sessions[-1].append(datetime.fromisoformat(time[1]))
        if match := _PARAMETERS.search(line):
            log.parameters = int(match[1].replace(",", ""))
        elif match := _GPU_MEMORY.search(line):
            total = float(match[1])
        elif _CONFIGURATION in line:
            match = _PRECISION.search(line)
            log.precision = _PRECISIONS[match and match[1]]
        elif match := _FIGURES.search(line):
            figures = _numbers(match[2])
            least_free = min(least_free, figures.get("gb_free", math.inf))
            _add(log, match[1], figures)
    spans = [(max(times) - min(times)).total_seconds() for times in sessions if times]
    log.seconds = sum(spans) or None
    if total is not None and least_free < total:
        log.gpu_memory = total - least_free
    return log


def _numbers(text: str) -> dict[str, float]:
    """The finite numbers of a line, which fairseq writes as strings."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError:  # cut short
        return {}
    numbers = {}
    for name, value in content.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            continue
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def _add(log: TrainLog, kind: str, figures: dict[str, float]) -> None:
    if kind == "valid":
        _append(log.perplexity, figures.get("valid_num_updates"), figures.get("valid_ppl"))
    else:
        _append(log.loss, figures.get("num_updates"), figures.get("loss"))
        if figures.get("wps", 0) > 0:
            log.speeds.append(figures["wps"])


def _append(points: list[Point], updates: float | None, value: float | None) -> None:
    if updates is None or value is None:
        return
    while points and points[-1][0] >= updates:
        points.pop()
    points.append((int(updates), value))
