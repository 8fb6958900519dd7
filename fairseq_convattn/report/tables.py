"""The figures of a section as tables of text. What is not there is said, and never a zero."""

from collections.abc import Callable, Iterable, Sequence
from statistics import mean
from typing import NamedTuple

from .markdown import Table, code, table, text
from .runs import Run, machine
from .significance import EXPLANATION
from .systems import Result, Section, System

MISSING = "\u2013"
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


def parts(section: Section) -> list[Part]:
    """Scores, their differences and costs; without differences where nothing is to compare."""
    published = [(f"published figures: {section.paper}", "")] if section.paper else []
    scores = Part("Scores", score_table(section), _OF_SCORES, [*published, *_signatures(section)])
    costs = Part("Speed and memory", cost_table(section), _OF_COSTS)
    compared = significance_table(section)
    if compared is None:
        return [scores, costs]
    found = filter(None, section.comparisons.values())
    notes = [("", signature) for signature in dict.fromkeys(one.signature for one in found)]
    return [scores, Part("Significance", compared, EXPLANATION, notes), costs]


def markdown(sections: Sequence[Section]) -> str:
    """All parts of every recipe."""
    lines = []
    for section in sections:
        lines += [f"## {text(section.title)}", *warnings(section)]
        for part in parts(section):
            lines += [table(part.table), part.explanation]
            notes = [f"- {text(note)}" + (code(end) if end else "") for note, end in part.notes]
            lines += ["\n".join(notes)] if notes else []
    return "\n\n".join(lines)


def warnings(section: Section) -> list[str]:
    """What is to be known before the scores are compared."""
    found = []
    if section.smoke:
        found.append("Smoke tests: they show that every stage runs, their scores mean nothing.")
    unconfirmed = dict.fromkeys(run.content.get("unconfirmed") for run in section.runs)
    found += [f"Unconfirmed: {text}." for text in unconfirmed if text]
    if names := section.differing_texts:
        found.append(f"Not all runs have the same {', '.join(names)}: their scores do not compare.")
    return found


def score_table(section: Section) -> Table:
    """Every score of every system beside the published figure of the same mixer, and the
    figures of mixers that were not run."""
    columns = ("score", "system", "seeds", "result", "spread", "published", "difference")
    rows = []
    for name in section.score_names or [MISSING]:
        rows += [[name, *_score_row(section, system, name)] for system in section.systems]
        run = {system.mixer for system in section.systems}
        rows += [
            [name, mixer, MISSING, NOT_RUN, MISSING, f"{figure:.2f}", MISSING]
            for mixer, figure in section.published(name).items()
            if mixer not in run
        ]
    return Table(columns, rows, columns[2:])


def _score_row(section: Section, system: System, name: str) -> list[str]:
    figure = section.published(name).get(system.mixer)
    published = MISSING if figure is None else f"{figure:.2f}"
    result = system.result(name)
    if result is None:
        return [system.label, _seeds(system.runs), NOT_FINISHED, MISSING, published, MISSING]
    seeds = _seeds(system.runs)
    if len(result.values) < len(system.runs):
        seeds = f"{len(result.values)} of {len(system.runs)}"
    compared = figure is not None and not section.smoke
    difference = signed(result.mean - figure) if compared else MISSING
    return [system.label, seeds, f"{result.mean:.2f}", _spread(result), published, difference]


def _spread(result: Result) -> str:
    if result.deviation is not None:
        return f"\u00b1 {result.deviation:.2f}"
    return MISSING if result.interval is None else "[{:.2f}, {:.2f}]".format(*result.interval)


def _seeds(runs: Sequence[Run]) -> str:
    """Which one, or how many."""
    if len(runs) > 1:
        return str(len(runs))
    return MISSING if runs[0].seed is None else f"seed {runs[0].seed}"


def _signatures(section: Section) -> list[tuple[str, str]]:
    """How scores were computed, by their names."""
    found = [
        (f"{name}: ", result.signature)
        for name in section.score_names
        for system in section.systems
        if (result := system.result(name))
    ]
    return list(dict.fromkeys(found))


def significance_table(section: Section) -> Table | None:
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
    return Table(columns, rows, columns[2:])


def cost_table(section: Section) -> Table:
    """What training and decoding took, means over seeds."""
    columns = (
        *("system", "parameters", "updates", "best validation perplexity"),
        *("training tokens/s", "training time", "peak memory", "decoded sentences/s", "machine"),
    )
    rows = [
        [
            system.label,
            _mean(system, lambda run: run.log.parameters, "{:,.0f}"),
            _updates(system.runs),
            _mean(system, lambda run: run.log.best_perplexity, "{:,.2f}"),
            _mean(system, lambda run: run.log.tokens_per_second, "{:,.0f}"),
            duration(_values(system, lambda run: run.log.seconds)),
            _memory(system),
            _mean(system, lambda run: run.sentences_per_second, "{:,.1f}"),
            _distinct(machine(run.environment) for run in system.runs),
        ]
        for system in section.systems
    ]
    return Table(columns, rows, columns[1:-1])


def _values(system: System, figure: Callable[[Run], float | None]) -> list[float]:
    return [value for value in map(figure, system.runs) if value is not None]


def _mean(system: System, figure: Callable[[Run], float | None], form: str) -> str:
    values = _values(system, figure)
    return form.format(mean(values)) if values else MISSING


def _updates(runs: Sequence[Run]) -> str:
    """How far training is; of several seeds the least."""
    unfinished = [run for run in runs if not run.trained]
    counts = [run.log.updates for run in unfinished or runs if run.log.updates is not None]
    if not unfinished:
        return f"{min(counts):,}" if counts else MISSING
    if not counts:
        return NOT_FINISHED
    wanted = unfinished[0].training.get("--max-update") or ""
    of_all = f" of {int(wanted):,}" if wanted.isdecimal() else ""
    return f"{min(counts):,}{of_all}, {NOT_FINISHED}"


def duration(seconds: Sequence[float]) -> str:
    """The mean, in seconds below two minutes, else in hours and minutes."""
    if not seconds:
        return MISSING
    whole = round(mean(seconds))
    hours, minutes = divmod(round(whole / 60), 60)
    if whole < 120:
        return f"{whole} s"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _memory(system: System) -> str:
    """The most that any seed took, on a GPU if there was one."""
    on_gpu = _values(system, lambda run: run.log.gpu_memory)
    if on_gpu:
        return f"{max(on_gpu):.1f} GiB, GPU"
    resident = [run.stages.get("train", {}).get("memory") or 0 for run in system.runs]
    return f"{max(resident) / 2**30:.2f} GiB, RAM" if any(resident) else MISSING


def _distinct(texts: Iterable[str | None]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text)) or MISSING


def signed(value: float) -> str:
    """With a sign that is as wide as a digit."""
    return f"{value:+.2f}".replace("-", _MINUS)
