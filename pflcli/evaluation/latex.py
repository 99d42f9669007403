"""The table of an evaluation or a comparison for a paper, in LaTeX with booktabs.

Methods have the names of their papers. In each column of mean scores, the best method is bold, and a dagger marks
methods that are not shown to be worse (``presentation/conclusion.py``). The caption begins with the conclusion.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.reader import Artifact
from pflcli.core import registry
from pflcli.core.metrics import catalogue
from pflcli.core.wording import counted
from pflcli.evaluation.presentation import prediction_sets, tables
from pflcli.evaluation.presentation.conclusion import DAGGER, Conclusion, Marks, explain_marks

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    DAGGER: r"$^{\dagger}$",
    **{mark: f"\\{mark}" for mark in "{}%&$#_"},
}


def render(artifact: Artifact) -> str:
    """Return the tables of an evaluation or a comparison as LaTeX: scores and, if measured, prediction sets.

    Raises InputError if a file of the artifact is damaged.
    """
    return render_metrics(evaluation.read(artifact), _make_label(artifact))


def render_metrics(metrics: Mapping[str, Any], label: str) -> str:
    """Return the tables of the content of ``metrics.json`` as LaTeX, with the label ``tab:LABEL``."""
    names = tables.shown(metrics, _select_columns(metrics))
    table = tables.build(metrics, columns=names)
    marks = Marks.read(metrics, names)
    papers = name_methods(metrics["methods"])
    fixed = len(table.heading) - len(names)  # method and seeds
    body = []
    for method, row in zip(metrics["methods"], table.rows, strict=True):
        cells = [
            _mark(_format_number(cell), method["label"], marks[name])
            for name, cell in zip(names, row[fixed:], strict=True)
        ]
        body.append([escape(papers[method["label"]] + tables.mark_reference(method)), *cells])
    heading = [escape(table.heading[0]), *map(escape, table.heading[fixed:])]
    text = "% Needs \\usepackage{booktabs}.\n" + _build_environment(
        heading, body, _write_caption(metrics, marks), label, 1
    )
    if "sets" in metrics:
        sets = prediction_sets.table(metrics)
        rows = [[escape(papers[row[0]]), escape(row[1]), *map(_format_number, row[2:])] for row in sets.rows]
        caption = escape(f"{prediction_sets.title(metrics)}.{_describe_spread(metrics)}")
        text += "\n" + _build_environment([*map(escape, sets.heading)], rows, caption, f"{label}-sets", 2)
    return text


def escape(text: str) -> str:
    """Escape the special characters of LaTeX, and a first ``[`` or ``*``, which a row break takes as its argument."""
    plain = "".join(_SPECIAL.get(mark, mark if mark.isprintable() else " ") for mark in text)
    return f"{{}}{plain}" if plain.startswith(("[", "*")) else plain


def name_methods(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the name of each method in its paper (``PAPER``), with what its label adds, by label.

    Methods whose files are unknown, and those that would have the same name as another, keep their labels.
    """
    names: dict[str, str] = {}
    for row in rows:
        label, method = str(row["label"]), str(row.get("method", row["label"]))
        known = registry.exists("methods", method)
        paper = registry.card("methods", method).facts.get("PAPER") if known else row.get("paper")
        added = label.removeprefix(method)
        variant = f" ({added[1:]})" if added.startswith("@") else added
        names[label] = f"{paper}{variant}" if paper and label.startswith(method) else label
    counts = Counter(names.values())
    return {label: name if counts[name] == 1 else label for label, name in names.items()}


def _mark(cell: str, label: str, marks: Marks) -> str:
    """Return a cell in bold if its method is the best of the column, with a dagger if it is not shown to be worse."""
    if label in marks.best:
        return rf"\textbf{{{cell}}}"
    return cell + _SPECIAL[DAGGER] if label in marks.not_worse else cell


def _format_number(cell: str) -> str:
    """Format a cell: signed numbers in math mode, so that a minus is not a hyphen, and the chance mark raised."""
    if cell == "-":
        return "--"
    signed = re.sub(r"[+-]\d+(?:\.\d+)?", lambda match: f"${match[0]}$", escape(cell))
    return signed.replace(tables.MARK, f"$^{{{tables.MARK}}}$")


def _build_environment(
    heading: Sequence[str], rows: Sequence[Sequence[str]], caption: str, label: str, text_columns: int
) -> str:
    """Return a table environment; the first ``text_columns`` columns contain text, the others numbers."""
    columns = "l" * text_columns + "r" * (len(heading) - text_columns)
    lines = [
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{caption}}}",
        f"  \\label{{tab:{label}}}",
        f"  \\begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        f"    {' & '.join(heading)} \\\\",
        r"    \midrule",
        *(f"    {' & '.join(row)} \\\\" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _select_columns(metrics: Mapping[str, Any]) -> list[str]:
    """Return the metrics of a paper's table: scores, the gain and the traffic; ``table.csv`` has all metrics."""
    named = tuple(metrics.get("metric", catalogue.DEFAULT))
    left_out = {"better_off", "worse_off"}
    return [
        name
        for name in catalogue.columns("comparison", named)
        if name in (*named, "megabytes") or (catalogue.METRICS[name].compared in (1, 2) and name not in left_out)
    ]


def _write_caption(metrics: Mapping[str, Any], marks: Mapping[str, Marks]) -> str:
    references = sum(bool(row.get("reference")) for row in metrics["methods"])
    methods = counted(len(metrics["methods"]) - references, "method")
    beside = f" and {counted(references, 'reference')}" if references else ""
    words = f"{Conclusion.read(metrics).sentence}. "
    words += f"{metrics['split'].capitalize()} scores of {methods}{beside}.{_describe_spread(metrics)}"
    if any(metric.get("interval") for row in metrics["methods"] for metric in row["metrics"].values()):
        words += f" Brackets: intervals of gains, {tables.format_level(metrics)} together."
    return escape(" ".join([words, *explain_marks(marks.values(), tables.read_level(metrics))]))


def _describe_spread(metrics: Mapping[str, Any]) -> str:
    most = max(len(row["seeds"]) for row in metrics["methods"])
    return f" Mean ± standard deviation over {most} seeds." if most > 1 else ""


def _make_label(artifact: Artifact) -> str:
    path = artifact.path.resolve()
    name = path.parent.name if path.name == artifact.kind else path.name
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "methods"
