"""Render the page as HTML: answers, tables, charts, and sections of plug-ins. All text from data is escaped here."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from pflcli import __version__
from pflcli.core import registry
from pflcli.core.errors import PflError
from pflcli.core.metrics import catalogue
from pflcli.core.wording import counted
from pflcli.evaluation.charts import vega
from pflcli.evaluation.lineage import HEADINGS, Lineage, list_commands
from pflcli.evaluation.presentation import further_tables, tables
from pflcli.evaluation.presentation.conclusion import DAGGER, Marks, explain_marks
from pflcli.evaluation.presentation.section import Section as Other
from pflcli.evaluation.stored_comparison import Comparison
from pflcli.plugins.page.chart import Chart
from pflcli.plugins.page.group_chart import GROUPS
from pflcli.plugins.page.runs import Runs

GENERATOR = '<meta name="generator" content="pfl report'
"""The mark at the beginning of every page by which pfl recognizes its own pages."""

_FOLDER = Path(__file__).parent
_LEFT_OUT = {
    *("accuracy_mean", "macro_precision", "macro_precision_mean"),
    *("megabytes_per_client", "exchanges", "processor_seconds"),
}
"""Metrics that are not in the page's table, to save width."""
_STACK = "Stack: the predictions of other methods pooled into one, with exponents learned on validation samples."
_SCROLL_HINT = '<p class="hint" aria-hidden="true">More columns: scroll the table sideways \u2192</p>'
"""The line below a table, which is shown while columns are hidden at its right."""
_PAN_HINT = '<p class="hint" aria-hidden="true">Scroll the picture sideways \u2192</p>'
"""The same below a picture."""
_NO_MARKS = Marks()
_MAX_OPEN_ARTIFACTS = 12
"""The list of artifacts is collapsed if it is longer."""


@dataclass(frozen=True)
class Section:
    """One comparison on the page; ``stills`` are data URLs of pictures shown until its charts are drawn."""

    comparison: Comparison
    charts: Sequence[Chart]
    stills: Sequence[str]
    lineage: Lineage
    runs: Runs
    calls: Sequence[str] = ()
    """the lines of Python that make results in memory again"""

    @property
    def commands(self) -> Sequence[str]:
        """What makes the comparison again: command lines, or lines of Python."""
        return self.calls or list_commands(self.lineage)

    @cached_property
    def marks(self) -> Mapping[str, Marks]:
        """The marks of each metric in the table."""
        comparison = self.comparison
        return Marks.read(comparison.metrics, tables.shown(comparison.metrics, _select_columns(comparison)))

    @property
    def dataset(self) -> str:
        """The name of the dataset, or of the comparison if the partition no longer exists."""
        return self.lineage.dataset or self.comparison.title

    @property
    def title(self) -> str:
        """The name of the dataset and of the comparison's folder."""
        return f"{self.dataset} ({self.comparison.title})" if self.lineage.dataset else self.comparison.title


def render_page(sections: Sequence[Section], others: Sequence[Other], javascript: str, data_folder: str) -> str:
    """Return the HTML; ``javascript`` draws the charts, ``data_folder`` has the numbers as CSV and JSON."""
    style, script = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    data = {"dark": vega.dark_colours(), "sections": [_collect_chart_data(section) for section in sections]}
    several = len(sections) > 1
    titles = [section.title if several else section.dataset for section in sections]
    body = "".join(_render_section(section, number, several) for number, section in enumerate(sections))
    body += _render_others(others)
    parts = {f"c{number}": title for number, title in enumerate(titles)}
    parts |= {each.key: each.heading for each in others}
    title = (
        f"Personalization compared: {', '.join(titles)}"
        if titles
        else next(each.page_title for each in others if each.page_title)
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'{GENERATOR} {escape(__version__)}">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_build_policy(style, javascript, script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1>{_render_contents(parts)}</header>\n<main>\n{body}</main>\n"
        f"{_render_footer(data_folder)}"
        f'<script type="application/json" id="data">{embed_json(data)}</script>\n'
        f"<script>{javascript}</script>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def embed_json(value: Any) -> str:
    """Return JSON that is safe in a script element: ``<`` and Unicode line separators are escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _build_policy(style: str, *scripts: str) -> str:
    """Return the content security policy: no network access, and no scripts other than these."""
    hashes = " ".join(_hash_source(script) for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src {_hash_source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _collect_chart_data(section: Section) -> dict[str, Any]:
    """Return what the script needs to draw the charts of a section: specifications and names."""
    comparison = section.comparison
    specs = {chart.key: chart.spec for chart in section.charts}
    baseline = None if comparison.baseline is None else vega.escape_name(comparison.baseline)
    return {
        "baseline": baseline,
        "chosen": vega.escape_name(comparison.chosen),
        "specs": specs,
        "clients": _collect_client_scores(comparison),
    }


def _collect_client_scores(comparison: Comparison) -> dict[str, Any]:
    """Return what the script says of a highlighted client: its samples, and its score under each method."""
    clients, split = comparison.clients, comparison.metrics["split"]
    labels = [label for label in comparison.methods if not comparison.row(label).get("reference")]
    if comparison.baseline in labels:
        labels = [comparison.baseline, *(label for label in labels if label != comparison.baseline)]
    return {
        "split": split,
        "heading": comparison.metric.title,
        "percent": comparison.metric.percent,
        "methods": [vega.escape_name(label) for label in labels],
        "samples": {clients.names[client]: round(float(clients.samples[client])) for client in clients.drawn.tolist()},
        "scores": {
            clients.names[client]: [_round_score(clients.scores[label][client]) for label in labels]
            for client in clients.drawn.tolist()
        },
    }


def _round_score(score: float) -> float | None:
    return None if math.isnan(score) else round(float(score), 4)


def _escape_label(label: str) -> str:
    """Return the label of a method as in its charts, escaped as an attribute."""
    return escape(vega.escape_name(label))


def _render_contents(parts: Mapping[str, str]) -> str:
    """Return links to the ``parts`` of the page (titles by id); empty for a single part."""
    if len(parts) < 2:
        return ""
    items = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title in parts.items())
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


def _render_section(section: Section, number: int, several: bool) -> str:
    comparison = section.comparison
    mark = "" if several else ' class="unseen"'
    heading = f"<h2{mark}>{escape(section.title)}</h2>"
    lead, *facts = comparison.answer
    points = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    marks = explain_marks(section.marks.values(), tables.read_level(comparison.metrics))
    lines = [*marks, *comparison.notes, *_list_left_out(comparison), *section.runs.remarks]
    notes = "".join(f"<li>{_format_note(line)}</li>" for line in lines)
    return (
        f'<section class="comparison" id="c{number}">{heading}\n'
        f'<div class="answer"><p>{escape(lead)}</p><ul>{points}</ul></div>\n{_render_facts(section)}'
        f"<h3>All methods</h3>\n{_render_tools(comparison, number)}{_render_table(section)}"
        f'<ul class="notes">{notes}</ul>\n{_render_further(section)}'
        f'<h3>Pictures</h3>\n<div class="pictures">{_render_figures(section, number)}</div>\n'
        f"{_render_method_descriptions(comparison)}{_render_commands(section)}{_render_lineage(section.lineage)}</section>\n"
    )


def _list_left_out(comparison: Comparison) -> list[str]:
    """Return a note for each reason why methods of ``--methods all`` were left out."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in comparison.metrics.get("left_out", {}).items():
        # Not within a list of methods to type.
        by_reason.setdefault(re.sub(rf"(?<![\w,-]){re.escape(name)}(?![\w,-])", "the method", reason), []).append(name)
    return [f"left out: {', '.join(names)} ({reason})" for reason, names in by_reason.items()]


def _format_note(note: str) -> str:
    """Return a note as HTML; text between backticks becomes code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(note))


def _render_facts(section: Section) -> str:
    comparison = section.comparison
    tune = comparison.metrics.get("tune")
    budget = f"at most {counted(tune['trials'], 'trial')} per method" if tune else "none"
    references = [row for row in comparison.rows if row.get("reference")]
    compared = len(comparison.rows) - len(references)
    facts = [
        ("data", section.dataset),
        ("clients", _count_clients(comparison)),
        ("methods", str(compared) if comparison.baseline is None else f"{compared - 1} and the baseline"),
        *([("references", str(len(references)))] if references else []),
        ("seeds", ", ".join(map(str, comparison.seeds))),
        ("scored on", f"{comparison.metrics['split']} samples"),
        ("ranked by", comparison.metric.title),
        ("baseline", comparison.baseline_name if comparison.baseline else "none"),
        ("learned from", _describe_splits(comparison)),
        ("tuning", budget),
    ]
    items = "".join(f"<li>{escape(name)} <b>{escape(fact)}</b></li>" for name, fact in facts)
    return f'<ul class="facts">{items}</ul>\n'


def _count_clients(comparison: Comparison) -> str:
    """Return the number of clients that are scored, and of how many if some have no samples to score."""
    scored, total = max(map(tables.count_clients, comparison.rows)), comparison.clients.total
    return (
        f"{scored} of {total} (the others have no {comparison.metrics['split']} samples)"
        if scored < total
        else str(scored)
    )


def _describe_splits(comparison: Comparison) -> str:
    """Return the splits that the methods learned from, in words."""
    splits = {tuple(row.get("learned_from", ())) for row in comparison.rows}
    if len(splits) > 1:
        return "different samples"
    names = [name.replace("train", "training") for name in splits.pop()]
    return f"{' and '.join(names)} samples" if names else "not recorded"


def _render_tools(comparison: Comparison, number: int) -> str:
    """Return the legend, whose entries highlight a method, and the list of clients to highlight."""
    chips = "".join(
        f'<button type="button" class="chip" aria-pressed="false" data-method="{_escape_label(label)}">'
        f"{_render_swatch(colour, dash)}{escape(label)}</button>"
        for label, (colour, dash) in vega.method_styles(comparison.methods, comparison.baseline).items()
    )
    clients = comparison.clients
    names = [escape(clients.names[client]) for client in clients.drawn]
    options = "".join(f'<option value="{name}">{name}</option>' for name in ["", *names])
    options = options.replace("></option>", ">none</option>", 1)
    label = f'<label for="client-{number}">Client <select id="client-{number}">{options}</select></label>'
    reset = '<button type="button" class="reset">Clear</button>'
    group = '<div class="tools" role="group" aria-label="Highlight a method or a client in every picture">'
    return f'{group}{chips}{label}{reset}</div>\n<p class="told" aria-live="polite" hidden></p>\n'


def _render_swatch(colour: str, dash: Sequence[int]) -> str:
    dashes = f' stroke-dasharray="{" ".join(str(length / 2) for length in dash)}"' if dash else ""
    number = vega.LIGHT.index(colour) if colour in vega.LIGHT else "b"
    return (
        f'<svg viewBox="0 0 16 6" aria-hidden="true"><line class="m{number}" x1="0" y1="3" x2="16" y2="3" '
        f'stroke-width="3"{dashes}/></svg>'
    )


def _render_table(section: Section) -> str:
    comparison = section.comparison
    table = tables.build({**comparison.metrics, "methods": comparison.rows}, columns=[*section.marks])
    sorted_by = len(table.heading) - len(section.marks) + [*section.marks].index(comparison.metric.name)
    order = "ascending" if comparison.metric.lower_is_better else "descending"
    head = "".join(
        f'<th scope="col" aria-sort="{order if place == sorted_by else "none"}"><button type="button">{escape(title)}'
        "</button></th>"
        for place, title in enumerate(table.heading)
    )
    lines = []
    for method, (_, *cells) in zip(comparison.rows, table.rows, strict=True):
        label = method["label"]
        name = f'<button type="button" data-method="{_escape_label(label)}">{escape(label)}</button>'
        name += " (baseline)" if label == comparison.baseline else tables.mark_reference(method)
        columns = [_NO_MARKS] * (len(cells) - len(section.marks)) + [
            *section.marks.values()
        ]  # the first one is `seeds`
        numbers = "".join(_render_cell(cell, label, marks) for cell, marks in zip(cells, columns, strict=True))
        first = f'<th scope="row" data-value="{escape(label)}">{name}</th>'
        lines.append(f'<tr data-method="{_escape_label(label)}">{first}{numbers}</tr>\n')
    region = f'<div class="scroll" role="region" aria-label="All methods: {escape(comparison.title)}" tabindex="0">'
    body = f"<thead><tr>{head}</tr></thead>\n<tbody>{''.join(lines)}</tbody>"
    return f'{region}<table class="sortable">{body}</table></div>\n{_SCROLL_HINT}'


def _render_further(section: Section) -> str:
    """Return the tables of prediction sets and of scores by group, the latter with their pictures."""
    comparison, html = section.comparison, ""
    charts = zip(section.charts, section.stills, strict=True)
    pictures = [_render_figure(section, *pair) for pair in charts if pair[0].key.startswith(GROUPS)]
    for title, table, name in further_tables.list_tables({**comparison.metrics, "methods": comparison.rows}):
        html += f"<h3>{escape(title)}</h3>\n{_render_plain_table(table.heading, table.rows, title)}\n"
        if name.startswith(GROUPS) and pictures:
            html += f'<div class="pictures">{pictures.pop(0)}</div>\n'
    return html


def _select_columns(comparison: Comparison) -> list[str]:
    """Return the metrics in the page's table; ``N-methods.csv`` has all metrics."""
    ranked_by = tuple(comparison.metrics.get("metric", catalogue.DEFAULT))
    left_out = _LEFT_OUT | {catalogue.part(ranked_by[0], "mean")}
    return [name for name in catalogue.columns("comparison", ranked_by) if name in ranked_by or name not in left_out]


def _render_cell(cell: str, label: str, marks: Marks) -> str:
    """Return a cell of a method's row, in bold if it is the best of its column, or with a dagger if not shown worse."""
    mark = ' class="best"' if label in marks.best else ""
    dagger = f"<sup>{DAGGER}</sup>" if label in marks.not_worse else ""
    return f'<td{mark} data-value="{_sort_key(cell)}">{escape(cell)}{dagger}</td>'


def _sort_key(cell: str) -> str:
    """Return the number at the beginning of a cell, the sort key of its row; empty without one."""
    match = re.match(r"[+-]?\d+(\.\d+)?", cell)
    return match[0] if match else ""


def _render_figures(section: Section, number: int) -> str:
    """Return all pictures but those of groups, one at a time of those that the reader chooses among."""
    charts = zip(section.charts, section.stills, strict=True)
    pictures = (pair for pair in charts if not pair[0].key.startswith(GROUPS))
    html = ""
    for is_choice, group in groupby(pictures, key=lambda pair: bool(pair[0].choice)):
        figures = [(chart, _render_figure(section, chart, still)) for chart, still in group]
        html += _render_choice(figures, number) if is_choice else "".join(figure for _, figure in figures)
    return html


def _render_choice(figures: Sequence[tuple[Chart, str]], number: int) -> str:
    """Return pictures in the same place, with a button for each that shows it."""
    buttons = "".join(
        f'<input type="radio" name="axis-{number}" id="{chart.key}-{number}"{" checked" * (not place)}>'
        f'<label for="{chart.key}-{number}">{escape(chart.choice)}</label>'
        for place, (chart, _) in enumerate(figures)
    )
    bodies = "".join(figure for _, figure in figures)
    return f'<div class="choice" role="group" aria-label="Accuracy by">{buttons}\n{bodies}</div>\n'


def _render_figure(section: Section, chart: Chart, still: str) -> str:
    wide = ' class="wide"' if chart.is_wide else ""
    words = escape(f"{chart.title}. {chart.caption}")
    chosen = ""
    if chart.key == "dumbbell":
        chosen = f"<b>Shown: <span data-shown>{escape(section.comparison.chosen)}</span>.</b> "
    return (
        f'<figure{wide} data-chart="{escape(chart.key)}"><h4>{escape(chart.title)}</h4>\n'
        f"{_open_picture(chart)}"
        f'<div class="chart" role="img" aria-label="{words}"></div>'
        f'<img class="still" src="{still}" alt="{words}">{_close_picture(chart)}\n'
        f"<figcaption>{chosen}{escape(chart.caption)}</figcaption></figure>\n"
    )


def _open_picture(chart: Chart) -> str:
    """Return the beginning of the region in which a wide chart scrolls on a narrow screen."""
    if not chart.is_wide:
        return ""
    return f'<div class="scroll pan" role="region" aria-label="Picture: {escape(chart.title)}" tabindex="0">'


def _close_picture(chart: Chart) -> str:
    return f"</div>{_PAN_HINT}" if chart.is_wide else ""


def _render_method_descriptions(comparison: Comparison) -> str:
    """Return the first sentence of each method's documentation."""
    entries = []
    for row in comparison.rows:
        method = str(row.get("method", row["label"]))
        try:
            words = _STACK if method == "stack" else registry.card("methods", method).doc.partition("\n")[0]
        except PflError:  # unknown to this version
            continue
        entries.append(f"<dt>{escape(row['label'])}</dt><dd>{escape(words)}</dd>")
    return f"<h3>What the methods do</h3>\n<dl>{''.join(entries)}</dl>\n" if entries else ""


def _render_commands(section: Section) -> str:
    commands = escape("\n".join(section.commands))
    what = (
        f"With the same federation and pfl {__version__}, this Python reproduces the numbers, on"
        if section.calls
        else "These commands reproduce the numbers, given the versions below and"
    )
    return f"<h3>Repeat it</h3>\n<p>{what} a processor of the same kind.</p>\n<pre><code>{commands}</code></pre>\n"


def _render_lineage(lineage: Lineage) -> str:
    """Return the list of artifacts; empty for results in memory, which have none."""
    table = _render_plain_table(HEADINGS, lineage.rows(), "Artifacts")
    count = len(lineage.artifacts)
    is_open = "" if count > _MAX_OPEN_ARTIFACTS else " open"
    listed = f"<details{is_open}><summary>{counted(count, 'artifact')}, inputs first</summary>{table}</details>\n"
    return f"<h3>What it was made from</h3>\n{listed}" if count else ""


def _render_others(others: Iterable[Other]) -> str:
    """Return the sections on artifacts that are no comparisons, those of one kind below one heading."""
    html = ""
    for key, group in groupby(others, key=lambda each: each.key):
        sections = [*group]
        html += f'<section id="{key}"><h2>{escape(sections[0].heading)}</h2>\n'
        html += "".join(map(_render_other, sections)) + "</section>\n"
    return html


def _render_other(section: Other) -> str:
    html = f"<h3>{escape(section.title)}</h3>\n"
    if section.answer:
        html += f'<div class="answer"><p>{escape(section.answer)}</p></div>\n'
    for label, table in section.tables:
        html += _render_plain_table(table.heading, table.rows, label) + "\n"
    if section.notes:
        html += f'<ul class="notes">{"".join(f"<li>{escape(line)}</li>" for line in section.notes)}</ul>\n'
    if section.picture is not None:
        url, words = vega.data_url("image/png", section.picture.png), escape(section.picture.description)
        html += f'<figure class="wide"><img class="picture" src="{url}" alt="{words}">\n'
        html += f"<figcaption>{escape(section.picture.caption)}</figcaption></figure>\n"
    return html


def _render_plain_table(heading: Iterable[str], rows: Iterable[Iterable[str]], label: str) -> str:
    """Return a table that cannot be sorted, in a region named ``label`` that scrolls sideways."""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in heading)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return (
        f'<div class="scroll" role="region" aria-label="{escape(label)}" tabindex="0"><table class="plain">'
        f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>{_SCROLL_HINT}"
    )


def _render_footer(data_folder: str) -> str:
    return (
        f"<footer><p>Written by pfl {escape(__version__)}. All numbers of this page are in "
        f"{escape(data_folder)}/ as CSV and JSON. The page loads nothing from the network.</p></footer>\n"
    )
