"""``pfl report``: write one self-contained page about comparisons, and about federations of real sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pflcli.artifacts.decision import require_outside
from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.reader import Artifact
from pflcli.core import plugins
from pflcli.core.errors import NotDrawnError, UsageError
from pflcli.core.wording import listed
from pflcli.evaluation import lineage
from pflcli.evaluation.charts import vega
from pflcli.evaluation.in_memory import compare_results
from pflcli.evaluation.presentation.section import Section
from pflcli.evaluation.stored_comparison import KINDS, read_comparison
from pflcli.options.function import command
from pflcli.plugins.page import charts as page_charts
from pflcli.plugins.page import html, in_memory, page_files, runs
from pflcli.plugins.page.chart import Chart
from pflcli.plugins.page.options import OTHERS, Report


@dataclass(frozen=True)
class Page:
    """The written page, the folder with its data, and a sentence about each comparison and each federation."""

    path: Path
    data: Path
    answers: list[str]


@command(Report)
def report(asked: Report) -> Page:
    """Write the page ``out`` about comparisons or evaluations, and its numbers into the folder ``NAME_data`` beside it.

    ``sources`` is one path, or several; other artifacts among them, such as audits, get sections at the end. Results of
    ``simulate`` are a source as well, in a mapping as ``table`` takes it. A page that ``pfl report`` wrote earlier is
    replaced; another file is replaced only with ``force``. Raises UsageError if there is no comparison where a page
    needs one, or for an ``out`` that is not the name of a page, InputError for damaged artifacts, ConflictError if
    another file exists.

    >>> from pflcli import Federation, report, simulate
    >>> writers = Federation.from_dataset("writers", clients=6)
    >>> names = ("fedavg", "local")
    >>> results = {name: simulate(name, writers, model="logistic", rounds=2, quiet=True) for name in names}
    >>> report(results, "page.html").path.name
    'page.html'
    """
    out, reporter = Path(asked.out), asked.execution.reporter
    if not asked.sources:
        raise UsageError("nothing to report", "pfl report COMPARISON... -o report.html")
    results = [source for source in asked.sources if isinstance(source, Mapping)]
    opened = [open_one(source, *KINDS, *OTHERS) for source in asked.sources if not isinstance(source, Mapping)]
    paths = [artifact.path.resolve() for artifact in opened]
    if len({*paths}) < len(paths):
        raise UsageError("the same artifact is given twice")
    artifacts = [artifact for artifact in opened if artifact.kind in KINDS]
    others: list[tuple[str, Section]] = [
        (kind, plugins.load("KINDS", kind, "section")(artifact))
        for kind in OTHERS
        for artifact in opened
        if artifact.kind == kind
    ]
    answering = [other for _, other in others if other.page_title]
    if not artifacts and not answering and not results:
        given = listed(sorted({f"{kind.removesuffix('s')}s" for kind, _ in others}))
        raise UsageError(
            f"a report needs a comparison or an evaluation, not only {given}",
            "pfl report COMPARISON AUDIT... -o report.html",
        )
    page_files.require_writable(out, force=asked.execution.force)
    for artifact in opened:
        require_outside(artifact.path, [out, page_files.data_folder(out)])
    read = [*map(_read_stored, artifacts), *(_read_results(mapping, out.stem) for mapping in results)]
    charts = [page_charts.draw(each.comparison, each.runs) for each in read]
    try:
        with reporter.progress("charts", sum(map(len, charts))) as advance:

            def render_still(chart: Chart) -> str:
                url = page_charts.render_still(chart)
                advance(1, chart.title)
                return url

            stills = [[render_still(chart) for chart in drawn] for drawn in charts]
            javascript = vega.bundle_javascript()
    except (NotDrawnError, UsageError) as error:
        reporter.say(f"the page has no pictures: {error.describe()}")
        charts, stills, javascript = [[] for _ in charts], [[] for _ in charts], ""
    sections = [
        replace(each, charts=drawn, stills=pictures) for each, drawn, pictures in zip(read, charts, stills, strict=True)
    ]
    shown = [other for _, other in others]
    page = html.render_page(sections, shown, javascript, page_files.data_folder(out).name)
    page_files.write(out, page, page_files.build_files(sections, others))
    answers = [*(section.comparison.answer[0] for section in sections), *(other.answer for other in answering)]
    return Page(out, page_files.data_folder(out), answers)


def _read_stored(artifact: Artifact) -> html.Section:
    """Return the section of a stored comparison, without charts."""
    comparison, history = read_comparison(artifact), lineage.trace(artifact)
    return html.Section(comparison, (), (), history, runs.read(comparison, history))


def _read_results(results: Mapping[str, Any], name: str) -> html.Section:
    """Return the section of results in memory, without charts."""
    comparison = read_comparison(in_memory.evaluate(compare_results(results), name))
    behind = in_memory.collect_runs(results, comparison)
    return html.Section(comparison, (), (), in_memory.NOTHING, behind, in_memory.spell_calls(results))
