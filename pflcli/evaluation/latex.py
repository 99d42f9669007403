"""The table of an evaluation or a comparison for a paper, in LaTeX with booktabs.

In each column of scores, the best method is bold, and so are methods that do not differ significantly from it: their
difference from the best, paired by client, is not significant at 5 % after Holm's correction for the number of methods.
Gains over the baseline use the same test (``metrics/gains.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.reader import Artifact
from pflcli.evaluation import client_identity
from pflcli.evaluation.metrics import catalogue, gains, scores
from pflcli.evaluation.metrics.catalogue import Metric
from pflcli.evaluation.presentation import prediction_sets, tables
from pflcli.wording import counted

RISK = 0.05
"""Significance level at which a method differs from the best one."""

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    **{mark: f"\\{mark}" for mark in "{}%&$#_"},
}


def render(artifact: Artifact) -> str:
    """Return the tables of an evaluation or a comparison as LaTeX: scores and, if measured, prediction sets.

    Raises InputError if a file of the artifact is damaged.
    """
    metrics = evaluation.read(artifact)
    names = tables.shown(metrics, _select_columns(metrics))
    table = tables.build(metrics, columns=names)
    bold = {name: find_best_group(artifact, metrics, name) for name in names}
    fixed = len(table.heading) - len(names)  # method and seeds
    body = []
    for method, row in zip(metrics["methods"], table.rows, strict=True):
        cells = [escape(row[0])]
        for name, cell in zip(names, row[fixed:], strict=True):
            cells.append(
                rf"\textbf{{{_format_number(cell)}}}" if method["label"] in bold[name] else _format_number(cell)
            )
        body.append(cells)
    heading = [escape(table.heading[0]), *map(escape, table.heading[fixed:])]
    label = _make_label(artifact)
    text = "% Needs \\usepackage{booktabs}.\n" + _build_environment(
        heading, body, _write_caption(metrics, bold), label, 1
    )
    if "sets" in metrics:
        sets = prediction_sets.table(metrics)
        rows = [[*map(escape, row[:2]), *map(_format_number, row[2:])] for row in sets.rows]
        caption = escape(f"{prediction_sets.title(metrics)}.{_describe_spread(metrics)}")
        text += "\n" + _build_environment([*map(escape, sets.heading)], rows, caption, f"{label}-sets", 2)
    return text


def escape(text: str) -> str:
    """Escape the special characters of LaTeX, and a first ``[`` or ``*``, which a row break takes as its argument."""
    plain = "".join(_SPECIAL.get(mark, mark if mark.isprintable() else " ") for mark in text)
    return f"{{}}{plain}" if plain.startswith(("[", "*")) else plain


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


def _write_caption(metrics: Mapping[str, Any], bold: Mapping[str, set[str]]) -> str:
    methods = counted(len(metrics["methods"]), "method")
    words = f"{metrics['split'].capitalize()} scores of {methods}.{_describe_spread(metrics)}"
    if any(metric.get("interval") for row in metrics["methods"] for metric in row["metrics"].values()):
        words += " Brackets: 95 % intervals."
    if any(bold.values()):
        words += (
            " Bold: the best, and methods that do not differ significantly from it (5 %, paired by client, Holm's"
            " correction)."
        )
    return escape(words)


def _describe_spread(metrics: Mapping[str, Any]) -> str:
    most = max(len(row["seeds"]) for row in metrics["methods"])
    return f" Mean ± standard deviation over {most} seeds." if most > 1 else ""


def _make_label(artifact: Artifact) -> str:
    path = artifact.path.resolve()
    name = path.parent.name if path.name == artifact.kind else path.name
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "methods"


def find_best_group(artifact: Artifact, metrics: Mapping[str, Any], name: str) -> set[str]:
    """Return the labels of the best method by a metric and of methods that do not differ significantly from it.

    The metric must be a mean over clients of scores in ``clients.csv``. The set is empty for other metrics, and for a
    single method. A method with other clients than the best one cannot be compared and is not in the set.
    """
    metric = catalogue.METRICS[name]
    column = metric.score or name
    values = {
        row["label"]: row["metrics"][name]["value"]
        for row in metrics["methods"]
        if row["metrics"].get(name, {}).get("value") is not None
    }
    if not _is_mean(metric) or len(values) < 2:
        return set()
    table = client_identity.read_client_table(artifact)
    if column not in table:
        return set()
    best = max(values, key=lambda label: metric.sign * values[label])
    samples = f"n_{metrics['split']}"
    is_one_partition = client_identity.is_one_partition(artifact)
    p: dict[str, float] = {}
    for label in values:
        differences = _pair_differences(table, best, label, column, samples)
        if label == best or differences is None:
            continue
        weights = [
            np.ones(len(pair)) if metric.over is scores.mean else pair[samples].to_numpy(np.float64)
            for pair in differences
        ]
        identities = [_identify_clients(pair, is_one_partition) for pair in differences]
        estimate = gains.mean_gain(
            [pair["difference"].to_numpy(np.float64) for pair in differences], weights, identities
        )
        p[label] = 1.0 if estimate is None else estimate.p
    return {best, *(label for label, value in gains.holm(p).items() if value >= RISK)}


def _is_mean(metric: Metric) -> bool:
    """Return whether a metric is a mean over clients, weighted by samples or not."""
    is_weighted = metric.is_per_client and metric.weighting == catalogue.BY_SAMPLES
    return is_weighted or (bool(metric.score) and metric.over in (scores.mean, scores.weighted_mean))


def _pair_differences(
    table: pd.DataFrame, best: str, other: str, column: str, samples: str
) -> list[pd.DataFrame] | None:
    """Return one table per seed with the difference in a score between two methods for each client with both scores.

    Return None if no seed has both methods, or if their clients or numbers of samples differ.
    """
    pairs = []
    by_method = {label: dict(iter(table[table["method"] == label].groupby("seed"))) for label in (best, other)}
    for seed in by_method[best].keys() & by_method[other].keys():
        first, second = (by_method[label][seed].sort_values("client") for label in (best, other))
        if not np.array_equal(first[["client", samples]].to_numpy(), second[["client", samples]].to_numpy()):
            return None
        pair = first.assign(difference=first[column].to_numpy() - second[column].to_numpy())
        pair = pair[(pair[samples] > 0) & pair["difference"].notna()]
        if len(pair):
            pairs.append(pair)
    return pairs or None


def _identify_clients(pair: pd.DataFrame, is_one_partition: bool) -> NDArray[np.str_]:
    """Return the identity of each client: its name if the data have names, else its number within a partition."""
    if "name" in pair and pair["name"].notna().all():
        return pair["name"].to_numpy(str)
    numbers = pair["client"].astype(str)
    return (numbers if is_one_partition else pair["seed"].astype(str) + "/" + numbers).to_numpy(str)
