"""The page: one file, nothing of which comes from elsewhere."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .. import __version__
from .chart import Line, chart, mean_curve, swatch
from .runs import Run
from .samples import Sample, samples
from .significance import EXPLANATION
from .style import STYLE
from .systems import Section, System
from .tables import (
    MISSING,
    NO_FIGURE,
    NOT_FINISHED,
    Table,
    cost_table,
    score_notes,
    score_table,
    significance_signatures,
    significance_table,
    warnings,
)

# nothing is fetched and no script runs, whatever texts the page has
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_LONG = 320  # characters of a text that are shown at once


def page(sections: Sequence[Section], count: int) -> str:
    """The HTML of sections, with ``count`` sample outputs in each."""
    titles = list(dict.fromkeys(section.title for section in sections))
    heading = titles[0] if len(titles) == 1 else f"{len(titles)} recipes"
    body = [f"<h1>{escape(heading)}</h1>", _overview(sections)]
    for section in sections:
        body += _section(section, count, len(sections) > 1)
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(heading)}</title>",
            f"<style>{STYLE}</style></head>",
            "<body>",
            *body,
            f"<footer>fairseq_convattn {escape(__version__)}</footer>",
            "</body></html>\n",
        )
    )


def _overview(sections: Sequence[Section]) -> str:
    runs = sum(len(system.runs) for section in sections for system in section.systems)
    systems = sum(len(section.systems) for section in sections)
    return (
        f'<p class="soft">{_count(runs, "run")} of {_count(systems, "system")}. Missing figures '
        f"are shown as {MISSING}; runs that have not come to an end as {NOT_FINISHED}.</p>"
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _section(section: Section, count: int, several: bool) -> list[str]:
    level = "h3" if several else "h2"

    def part(title: str) -> str:
        return f'<{level} class="part">{title}</{level}>'

    parts = [f'<h2 class="recipe">{escape(section.title)}</h2>'] if several else []
    parts += [f'<p class="warning">{escape(text)}</p>' for text in warnings(section)]
    parts += [part("Scores"), _table(score_table(section), "Scores", grouped=True)]
    parts.append(
        '<p class="soft">Spread: of several seeds \u00b1 the standard deviation, of a single one '
        "the 95 % interval of resampled texts. Difference: from the published figure of the same "
        "mixer.</p>"
    )
    parts.append(_notes(section))
    if significance := significance_table(section):
        parts += [part("Significance"), _table(significance, "Significance", grouped=True)]
        parts.append(f'<p class="soft">{escape(EXPLANATION)}</p>')
        parts.append(_codes(significance_signatures(section)))
    parts += [part("Learning curves"), _curves(section)]
    parts += [part("Speed and memory"), _table(cost_table(section), "Speed and memory")]
    parts.append(
        '<p class="soft">Training speed: median over the log of target tokens a second. Several '
        "seeds: means, of memory the most.</p>"
    )
    found = samples(section, count)
    parts += [part("Sample outputs"), *map(_sample, found)] if found else []
    parts.append(part("How the runs were made"))
    parts += [_run(system, run) for system in section.systems for run in system.runs]
    return parts


def _table(table: Table, name: str, grouped: bool = False) -> str:
    """Rows that begin alike, one below the other, say so once if they are ``grouped``."""
    numeric = [column in table.numeric for column in table.columns]
    head = "".join(
        f'<th scope="col"{_number(n)}>{escape(column)}</th>'
        for column, n in zip(table.columns, numeric, strict=True)
    )
    rows, before = [], None
    for cells in table.rows:
        again = grouped and cells[0] == before
        before = cells[0]
        first = "" if again else escape(cells[0])
        texts = "".join(
            f"<td{_number(n)}>{_figure(cell)}</td>"
            for cell, n in zip(cells[1:], numeric[1:], strict=True)
        )
        kind = "" if again else ' class="first"'
        rows.append(f'<tr{kind}><th scope="row">{first}</th>{texts}</tr>')
    return (
        f'<div class="scroll" role="region" aria-label="{escape(name)}" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _number(numeric: bool) -> str:
    return ' class="number"' if numeric else ""


def _figure(text: str) -> str:
    if text in (MISSING, NO_FIGURE, NOT_FINISHED):
        return f'<span class="missing">{escape(text)}</span>'
    return escape(text)


def _notes(section: Section) -> str:
    notes = "".join(
        f"<li>{escape(note.score)}: <code>{escape(note.signature)}</code><br>"
        f"published: {escape(note.published)}</li>"
        for note in score_notes(section)
    )
    return f'<ul class="notes">{notes}</ul>' if notes else ""


def _codes(texts: Sequence[str]) -> str:
    items = "".join(f"<li><code>{escape(text)}</code></li>" for text in texts)
    return f'<ul class="notes">{items}</ul>'


def _curves(section: Section) -> str:
    loss = [
        Line(system.label, mean_curve(curves), curves)
        for system in section.systems
        for curves in [[run.log.loss for run in system.runs]]
    ]
    perplexity = [
        Line(system.label, mean_curve(curves), curves)
        for system in section.systems
        for curves in [[run.log.perplexity for run in system.runs]]
    ]
    figures = (
        _plot(loss, "Training loss", "loss (base 2)", False),
        _plot(perplexity, "Validation perplexity", "perplexity, logarithmic", True),
    )
    legend = "".join(
        f"<li>{swatch(i)}{escape(system.label)}{_without_curve(system)}</li>"
        for i, system in enumerate(section.systems)
    )
    return f'<div class="figures">{"".join(figures)}</div><ul class="legend">{legend}</ul>'


def _plot(lines: Sequence[Line], title: str, label: str, logarithmic: bool) -> str:
    drawing = chart(lines, f"{title} against updates", label, logarithmic)
    if not drawing:
        drawing = f'<p class="missing">{MISSING} no log of it</p>'
    faint = any(len([seed for seed in line.seeds if seed]) > 1 for line in lines)
    note = "; thin lines are single seeds" if faint and drawing else ""
    return f"<figure>{drawing}<figcaption>{title} against updates{note}.</figcaption></figure>"


def _without_curve(system: System) -> str:
    if any(run.log.loss or run.log.perplexity for run in system.runs):
        return ""
    return ' <span class="missing">(no training log)</span>'


def _sample(sample: Sample) -> str:
    texts = [("source", sample.source), ("reference", sample.reference), *sample.outputs]
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{_long(text)}</td></tr>'
        for name, text in texts
    )
    return (
        f'<table class="sample"><caption>Sentence {sample.number} of the test set</caption>'
        f"<tbody>{rows}</tbody></table>"
    )


def _long(text: str | None) -> str:
    if text is None:
        return f'<span class="missing">{MISSING}</span>'
    if not text.strip():
        return '<span class="missing">(empty)</span>'
    if len(text) <= _LONG:
        return escape(text)
    cut = text.rfind(" ", 0, _LONG)
    cut = cut if cut > 0 else _LONG
    return f"{escape(text[:cut])} <details><summary>\u2026</summary>{escape(text[cut:])}</details>"


def _run(system: System, run: Run) -> str:
    content = run.content
    seed = MISSING if run.seed is None else str(run.seed)
    facts = {
        "folder": str(run.folder),
        "command": content.get("command"),
        "hyper-parameters": content.get("origin"),
        "our reading": content.get("reading"),
        "batch": _batch(content.get("batch")),
    }
    environments = [record.get("environment") or {} for record in run.stages.values()]
    alike = all(environment == environments[0] for environment in environments)
    if environments and alike:
        facts |= _environment(environments[0])
    parts = [_facts(facts)]
    for (name, record), environment in zip(run.stages.items(), environments, strict=True):
        parts.append(f'<h4 class="stage">{escape(name)}</h4>')
        parts.append(_facts(_times(record) | ({} if alike else _environment(environment))))
        parts.append(f"<pre><code>{escape(chr(10).join(record.get('commands', ())))}</code></pre>")
    data = content.get("data") or {}
    if data:
        parts.append('<h4 class="stage">SHA-256 of the data</h4>')
        parts.append(_facts(data))
    begun = "" if run.scores else f', <span class="missing">{NOT_FINISHED}</span>'
    return (
        f'<details class="run"><summary>{escape(system.label)}, seed {seed}{begun}</summary>'
        f"{''.join(parts)}</details>"
    )


def _batch(batch: Mapping[str, Any] | None) -> str | None:
    return f"{batch['per_update']:,} {batch['unit']} an update" if batch else None


def _times(record: Mapping[str, Any]) -> dict[str, str | None]:
    seconds = record.get("seconds")
    return {
        "begun": record.get("begun"),
        "finished": record.get("finished"),
        "took": None if seconds is None else f"{seconds:,.1f} s",
    }


def _environment(environment: Mapping[str, Any]) -> dict[str, str | None]:
    git = environment.get("git")
    gpus = ", ".join(environment.get("gpus") or ())
    return {
        "versions": _pairs(environment.get("versions")),
        "commit": f"{git['commit']}{', with changes' if git['changed'] else ''}" if git else None,
        "machine": gpus or environment.get("processor"),
        "platform": environment.get("platform"),
        "variables": _pairs(environment.get("variables")),
    }


def _pairs(mapping: Mapping[str, Any] | None) -> str | None:
    return ", ".join(f"{name} {value}" for name, value in (mapping or {}).items()) or None


def _facts(facts: Mapping[str, str | None]) -> str:
    return f"<dl>{''.join(_fact(*fact) for fact in facts.items())}</dl>"


def _fact(name: str, value: str | None) -> str:
    text = f'<span class="missing">{MISSING}</span>' if value in (None, "") else escape(value)
    return f"<dt>{escape(name)}</dt><dd>{text}</dd>"
