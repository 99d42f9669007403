"""``pfl report``: write one self-contained page about comparisons, and about federations of real sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pflcli.artifacts.decision import require_outside
from pflcli.artifacts.open_by_path import open_one
from pflcli.core.errors import NotDrawnError, UsageError
from pflcli.core.reporter import SILENT, Reporter
from pflcli.evaluation import compared_runs, lineage
from pflcli.evaluation.charts import vega
from pflcli.evaluation.page import charts as page_charts
from pflcli.evaluation.page import html, page_files
from pflcli.evaluation.stored_comparison import KINDS, read_comparison


@dataclass(frozen=True)
class Page:
    """The written page, the folder with its data, and a sentence about each comparison and each federation."""

    path: Path
    data: Path
    answers: list[str]


def report(
    sources: Path | str | Sequence[Path | str], out: Path | str, *, force: bool = False, reporter: Reporter = SILENT
) -> Page:
    """Write the page ``out`` about comparisons or evaluations, and its numbers into the folder ``NAME_data`` beside it.

    ``sources`` is one path, or several; audits, verdicts and federations among them get sections at the end. A page
    that ``pfl report`` wrote earlier is replaced; another file is replaced only with ``force``. Raises UsageError for
    audits and verdicts alone or for an ``out`` that is not the name of a page, InputError for damaged artifacts,
    ConflictError if another file exists.
    """
    out = Path(out)
    if not sources:
        raise UsageError("nothing to report", "pfl report COMPARISON... -o report.html")
    given = [sources] if isinstance(sources, Path | str) else sources
    opened = [open_one(source, *KINDS, "audit", "verdicts", "federation") for source in given]
    paths = [artifact.path.resolve() for artifact in opened]
    if len({*paths}) < len(paths):
        raise UsageError("the same artifact is given twice")
    artifacts = [artifact for artifact in opened if artifact.kind in KINDS]
    shown_audits = [html.Audit(artifact) for artifact in opened if artifact.kind == "audit"]
    judged = [html.Judged(artifact) for artifact in opened if artifact.kind == "verdicts"]
    agreed = [html.Agreed(artifact) for artifact in opened if artifact.kind == "federation"]
    if not artifacts and not agreed:
        raise UsageError(
            "a report needs a comparison or an evaluation, not only audits and verdicts",
            "pfl report COMPARISON AUDIT... -o report.html",
        )
    page_files.require_writable(out, force=force)
    for artifact in opened:
        require_outside(artifact.path, [out, page_files.data_folder(out)])
    comparisons = [read_comparison(artifact) for artifact in artifacts]
    lineages = [lineage.trace(artifact) for artifact in artifacts]
    behind = [compared_runs.read(*pair) for pair in zip(comparisons, lineages, strict=True)]
    charts = [page_charts.draw(*pair) for pair in zip(comparisons, behind, strict=True)]
    try:
        with reporter.progress("charts", sum(map(len, charts))) as advance:

            def render_still(chart: page_charts.Chart) -> str:
                url = page_charts.render_still(chart)
                advance(1, chart.title)
                return url

            stills = [[render_still(chart) for chart in drawn] for drawn in charts]
            javascript = vega.bundle_javascript()
    except (NotDrawnError, UsageError) as error:
        reporter.say(f"the page has no pictures: {error.describe()}")
        charts, stills, javascript = [[] for _ in charts], [[] for _ in charts], ""
    sections = [html.Section(*parts) for parts in zip(comparisons, charts, stills, lineages, behind, strict=True)]
    parts = sections, shown_audits, judged, agreed
    page = html.render_page(*parts, javascript, page_files.data_folder(out).name)
    page_files.write(out, page, page_files.build_files(*parts))
    answers = [*(section.comparison.answer[0] for section in sections), *(item.answer for item in agreed)]
    return Page(out, page_files.data_folder(out), answers)
