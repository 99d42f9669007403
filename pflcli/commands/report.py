"""``pfl report``: one page to read and to send, of one or several comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pflcli.artifacts import placement
from pflcli.artifacts.reader import open_artifact
from pflcli.errors import UsageError
from pflcli.page import bundle, content, data, html, lineage, repeat, runs, sentences, writing
from pflcli.reporter import SILENT, Reporter


@dataclass(frozen=True)
class Page:
    """What was written: the page, the folder of its data, and the answers in words, one of each comparison."""

    path: Path
    data: Path
    answers: list[str]


def report(sources: Sequence[Path | str], out: Path | str, *, force: bool = False, reporter: Reporter = SILENT) -> Page:
    """Write the page ``out`` of comparisons or evaluations, and its numbers into the folder ``NAME_data`` beside it.

    A page that ``pfl report`` wrote earlier is replaced, another file only with ``force``. Raises UsageError without
    the extra ``pflcli[report]`` or for a name of a page that is none, InputError for damaged artifacts, ConflictError
    where something else stands.
    """
    out = Path(out)
    bundle.require()
    if not sources:
        raise UsageError("nothing to report", "pfl report COMPARISON... -o report.html")
    artifacts = [open_artifact(source, *content.KINDS) for source in sources]
    paths = [artifact.path.resolve() for artifact in artifacts]
    if len({*paths}) < len(paths):
        raise UsageError("the same comparison is given twice")
    writing.require_place(out, force=force)
    for artifact in artifacts:
        placement.require_outside(artifact.path, [out, writing.data_folder(out)])
    from pflcli.page import run_charts

    sections, added = [], []
    for artifact in artifacts:
        comparison = content.read(artifact)
        history = lineage.trace(artifact)
        run = runs.read(comparison, history)
        drawn = run_charts.of(comparison, run)
        reporter.detail(f"{artifact.path}: {len(drawn)} charts")
        stills = [bundle.still(chart.spec, is_wide=chart.is_wide) for chart in drawn]
        sections.append(html.Section(comparison, drawn, stills, history, repeat.lines(history), run.remarks))
        added.append(run)
    page = html.page(sections, bundle.javascript(), writing.data_folder(out).name)
    writing.write(out, page, data.files(sections, added))
    return Page(out, writing.data_folder(out), [sentences.answer(section.content)[0] for section in sections])
