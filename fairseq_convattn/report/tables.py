"""The figures of a section as tables of text. What is not there is said, and never a zero."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple

from ..markdown import MISSING, Table, code, table, text
from .runs import Run, machine
from .significance import EXPLANATION
from .systems import Section, System

NOT_FINISHED = "not finished"
NOT_RUN = "not run"
_MINUS = "\u2212"
_OF_SCORES = (
    "Spread: the standard deviation (\u00b1) over several seeds, or the 95 % interval of resampled "
    "texts for one. Difference: from the published figure of the same mixer."
)
_OF_COSTS = (
    "Training speed: median of target tokens a second over the log. Of several seeds: means, and "
    "the highest memory."
)


class Part(NamedTuple):
    """A table with what is to be known of it.

    Attributes:
        notes: texts, each with a signature or the empty string.
    """

    title: str
    table: Table
    explanation: str
    notes: Sequence[tuple[str, str]] = ()


def markdown(sections: Sequence[Section]) -> str:
    """All parts of every recipe."""
    lines = []
    for section in sections:
        lines += [f"## {text(section.title)}", *map(text, warnings(section))]
        for part in parts(section):
            lines += [table(part.table), part.explanation]
            notes = [_note(*note) for note in part.notes]
            lines += ["\n".join(notes)] if notes else []
    return "\n\n".join(lines)


def _note(note: str, signature: str) -> str:
    return " ".join(filter(None, ("-", text(note), signature and code(signature))))


def warnings(section: Section) -> list[str]:
    """What is to be known before the scores are compared."""
    found = []
    if section.smoke:
        found.append("Smoke tests: they show that every stage runs, their scores mean nothing.")
    unconfirmed = dict.fromkeys(run.content.get("unconfirmed") for run in section.runs)
    found += [f"Unconfirmed: {what}." for what in unconfirmed if what]
    compared = section.runs if section.baseline and len(section.systems) > 1 else []
    references = {x["--reference"] for run in compared for x in run.tokenised.values()}
    missing = sorted({Path(path).name for path in references if not Path(path).is_file()})
    if missing and not section.smoke:
        found.append(f"Not tested for significance, for want of references: {', '.join(missing)}.")
    sums: dict[str, set[str]] = {}
    for run in section.runs:
        for name, digest in run.content.get("data", {}).items():
            sums.setdefault(name, set()).add(digest)
    differing = [name for name in sums if name.startswith("text/") and len(sums[name]) > 1]
    if differing:
        names = ", ".join(differing)
        found.append(f"Not all runs have the same {names}: their scores do not compare.")
    return found


def parts(section: Section) -> list[Part]:
    """Scores, their differences and costs; without differences where nothing is to compare."""
    found = [scores_part(section), significance_part(section), costs_part(section)]
    return [part for part in found if part]


def scores_part(section: Section) -> Part:
    """Every score of every system beside the published figure of the same mixer, and the
    figures of mixers that were not run."""
    columns = ("score", "system", "seeds", "result", "spread", "published", "difference")
    scores = [score for run in section.runs for score in run.scores]
    published: dict[str, Mapping[str, float]] = {}
    for score in scores:
        published[score["name"]] = published.get(score["name"]) or score["published"]
    mixers = {system.mixer for system in section.systems}
    rows = []
    for name, figures in (published or {MISSING: {}}).items():
        for system in section.systems:
            cells = _score_cells(system, name, figures.get(system.mixer), section.smoke)
            rows.append([name, system.label, *cells])
        rows += [
            [name, mixer, MISSING, NOT_RUN, MISSING, f"{figure:.2f}", MISSING]
            for mixer, figure in figures.items()
            if mixer not in mixers
        ]
    sources = dict.fromkeys(score["published_in"] for score in scores if score["published"])
    notes = [(f"published figures: {source}", "") for source in sources]
    notes += dict.fromkeys((f"{score['name']}: ", score["signature"]) for score in scores)
    return Part("Scores", Table(columns, rows, columns[2:]), _OF_SCORES, notes)


def _score_cells(system: System, name: str, published: float | None, smoke: bool) -> list[str]:
    scores = [score for run in system.runs for score in run.scores if score["name"] == name]
    values = [score["score"] for score in scores]
    known = MISSING if published is None else f"{published:.2f}"
    if not values:
        return [_seeds(system.runs), NOT_FINISHED, MISSING, known, MISSING]
    seeds, spread, difference = _seeds(system.runs), MISSING, MISSING
    if len(values) < len(system.runs):
        seeds = f"{len(values)} of {len(system.runs)}"
    if len(values) > 1:
        spread = f"\u00b1 {stdev(values):.2f}"
    elif interval := scores[0].get("confidence"):
        spread = "[{:.2f}, {:.2f}]".format(*interval)
    if published is not None and not smoke:
        difference = signed(mean(values) - published)
    return [seeds, f"{mean(values):.2f}", spread, known, difference]


def _seeds(runs: Sequence[Run]) -> str:
    """The seed of a single run, or the number of runs."""
    if len(runs) > 1:
        return str(len(runs))
    return MISSING if runs[0].seed is None else f"seed {runs[0].seed}"


def significance_part(section: Section) -> Part | None:
    """Every system beside the baseline on every test set; None if there is nothing to compare."""
    if section.baseline is None or not section.comparisons:
        return None
    against = f"BLEU of {section.baseline.label}"
    columns = ("test set", "system", "seed", "BLEU", against, "difference", "p-value")
    rows = []
    for (test, label), found in section.comparisons.items():
        cells = [MISSING] * 5
        if found:
            cells = [str(found.seed), f"{found.score:.2f}", f"{found.baseline:.2f}"]
            cells += [signed(found.score - found.baseline), f"{found.p_value:.4f}"]
        rows.append([test, label, *cells])
    signatures = dict.fromkeys(one.signature for one in section.comparisons.values() if one)
    notes = [("", signature) for signature in signatures]
    return Part("Significance", Table(columns, rows, columns[2:]), EXPLANATION, notes)


def costs_part(section: Section) -> Part:
    """What training and decoding took, means over seeds."""
    columns = (
        *("system", "parameters", "updates", "best validation perplexity"),
        *("training tokens/s", "training time", "peak memory", "decoded sentences/s", "machine"),
    )
    rows = [[system.label, *_costs(system.runs)] for system in section.systems]
    return Part("Speed and memory", Table(columns, rows, columns[1:-1]), _OF_COSTS)


def _costs(runs: Sequence[Run]) -> list[str]:
    logs = [run.log for run in runs]
    lowest = [min(value for _, value in log.perplexity) for log in logs if log.perplexity]
    # validation and checkpoints weigh little on a median
    speeds = [median(log.speeds) for log in logs if log.speeds]
    machines = dict.fromkeys(filter(None, (machine(run.environment) for run in runs)))
    return [
        _mean((log.parameters for log in logs), "{:,.0f}".format),
        _updates(runs),
        _mean(lowest, "{:,.2f}".format),
        _mean(speeds, "{:,.0f}".format),
        _mean((log.seconds for log in logs), duration),
        _memory(runs),
        _mean((run.sentences_per_second for run in runs), "{:,.1f}".format),
        "; ".join(machines) or MISSING,
    ]


def _mean(values: Iterable[float | None], form: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    return form(mean(known)) if known else MISSING


def _updates(runs: Sequence[Run]) -> str:
    """How far training is; of several seeds the least."""
    unfinished = [run for run in runs if "train" not in run.stages and not run.checkpoint]
    counts = [run.log.updates for run in unfinished or runs if run.log.updates is not None]
    if not unfinished:
        return f"{min(counts):,}" if counts else MISSING
    if not counts:
        return NOT_FINISHED
    wanted = unfinished[0].training.get("--max-update") or ""
    of_all = f" of {int(wanted):,}" if wanted.isdecimal() else ""
    return f"{min(counts):,}{of_all}, {NOT_FINISHED}"


def _memory(runs: Sequence[Run]) -> str:
    """The most that any seed took, on a GPU if there was one."""
    if on_gpu := [run.log.gpu_memory for run in runs if run.log.gpu_memory]:
        return f"{max(on_gpu):.1f} GiB, GPU"
    resident = max(run.stages.get("train", {}).get("memory") or 0 for run in runs)
    return f"{resident / 2**30:.2f} GiB, RAM" if resident else MISSING


def duration(seconds: float) -> str:
    """In seconds below two minutes, else in hours and minutes."""
    whole = round(seconds)
    hours, minutes = divmod(round(whole / 60), 60)
    if whole < 120:
        return f"{whole} s"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def signed(value: float) -> str:
    """With a sign that is as wide as a digit."""
    return f"{value:+.2f}".replace("-", _MINUS)
