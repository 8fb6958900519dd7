"""Reads ``logs/train.log``, written by fairseq-train with ``--log-format json``."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

Point = tuple[int, float]
"""A number of updates, and a value after them."""

_FIGURES = re.compile(r" \| (train_inner|valid) \| (\{.*\})\s*$")
_PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+)")
_SESSION = "+ "  # what the recipes' runner writes before every session
_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \| ")
_GPU_MEMORY = re.compile(r"total memory = ([\d.]+) GB")
_DONE = "done training"
_ENDS = {  # what is logged, and the option that ended the training
    "early stop since": "patience",
    "Stopping training due to num_updates": "max-update",
    "Stopping training due to cumulative_training_time": "stop-time-hours",
    "stopping training because current learning rate": "stop-min-lr",
    _DONE: "max-epoch",  # the only one that is not logged
}
_LOGGERS = r"fairseq_cli\.train|fairseq_convattn\.checkpoints\.guard"
_END = re.compile(rf" \| (?:{_LOGGERS}) \| ({'|'.join(_ENDS)})")


@dataclass
class TrainLog:
    """One training with all its sessions; values that the log lacks are empty or None.

    Attributes:
        loss: training loss (base 2) by updates, means of the intervals of the log.
        perplexity: that of the validation set.
        validation_loss: that of the validation set, whose best value ``--patience`` waits for.
        speeds: target tokens a second of each interval.
        sessions: how often the training was begun or resumed.
        seconds: duration of all sessions together.
        gpu_memory: the most that was in use on a GPU, in GiB.
        ended_by: the option of fairseq-train that ended the last session, without dashes; None
            if it was interrupted.
    """

    loss: list[Point] = field(default_factory=list)
    perplexity: list[Point] = field(default_factory=list)
    validation_loss: list[Point] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    sessions: int = 0
    seconds: float | None = None
    parameters: int | None = None
    gpu_memory: float | None = None
    ended_by: str | None = None

    @property
    def updates(self) -> int | None:
        """The last that the log knows of."""
        return max(
            (points[-1][0] for points in (self.loss, self.perplexity) if points), default=None
        )


def read_train_log(lines: Sequence[str]) -> TrainLog:
    """The figures of a log. If a training resumed from an earlier update, the later values
    count."""
    log = TrainLog()
    total, least_free = 0.0, math.inf
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
        elif (match := _FIGURES.search(line)) and (figures := _figures(match[2])):
            if match[1] == "valid":
                _append(log.perplexity, figures, "valid_num_updates", "valid_ppl")
                _append(log.validation_loss, figures, "valid_num_updates", "valid_loss")
                continue
            _append(log.loss, figures, "num_updates", "loss")
            least_free = min(least_free, float(figures.get("gb_free", "inf")))
            if 0 < (speed := float(figures.get("wps", 0))) < math.inf:
                log.speeds.append(speed)
    log.sessions = sum(bool(x) for x in sessions)
    log.ended_by = _ended_by(lines)
    log.seconds = sum((max(x) - min(x)).total_seconds() for x in sessions if x) or None
    if least_free < total:
        log.gpu_memory = total - least_free
    return log


def _ended_by(lines: Sequence[str]) -> str | None:
    """The first reason that the last session gives, if it came to its end."""
    begun = max((n for n, line in enumerate(lines) if line.startswith(_SESSION)), default=0)
    ends = [match[1] for line in lines[begun:] if (match := _END.search(line))]
    return _ENDS[ends[0]] if _DONE in ends else None


def _figures(text: str) -> Mapping[str, str]:
    """The figures of a line; empty for a truncated line with the next session's output behind
    it."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {}


def _append(points: list[Point], figures: Mapping[str, str], updates: str, value: str) -> None:
    """Append a point, unless a value is missing or not finite; fairseq writes numbers as
    strings."""
    x, y = (float(figures.get(name, "nan")) for name in (updates, value))
    if not math.isfinite(x) or not math.isfinite(y):
        return
    while points and points[-1][0] >= x:
        points.pop()
    points.append((int(x), y))
