"""Read a stored comparison: rows of its table and scores of its clients, from its own files only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.reader import Artifact
from pflcli.core.errors import InputError
from pflcli.core.metrics import catalogue
from pflcli.core.metrics.metric import Metric
from pflcli.evaluation import client_identity, summary
from pflcli.evaluation.charts import vega
from pflcli.evaluation.presentation import notes, tables
from pflcli.evaluation.presentation.conclusion import Conclusion, name_baseline

Scores = NDArray[np.float64]

KINDS = ("comparison", "evaluation")
"""The kinds of artifacts that compare methods on a page."""

MAX_DRAWN = 200
"""Greatest number of clients that are drawn; of more, this number at even distances."""

_FIXED = {"method", "seed", "client", "name", "unseen", "gain"}


@dataclass(frozen=True)
class Clients:
    """The m clients of a comparison, with the names that charts show.

    Scores are means over the seeds under which the same client occurs.
    """

    names: list[str]
    keys: list[tuple[int, int]]
    """the first seed under which each client occurs, and its number there, (m,)"""
    samples: Scores
    """numbers of scored samples, (m,)"""
    scores: dict[str, Scores]
    """scores by method, (m,); nan where unknown"""
    baseline: Scores | None
    """scores of the baseline, (m,)"""
    lower_is_better: bool
    tuned: dict[tuple[str, str], Scores]
    """options that clients tuned on validation samples, (m,) by method and name of the option; not of references"""
    total: int = 0
    """the number of clients per seed, also of those without scored samples"""

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """The order of clients in charts, (m,): the worst served first, by the baseline or the mean over methods."""
        with np.errstate(all="ignore"):
            reference = self.baseline
            if reference is None or np.isnan(reference).all():
                reference = pd.DataFrame(self.scores).mean(axis=1).to_numpy(np.float64)
        sign = -1 if self.lower_is_better else 1
        return np.argsort(np.nan_to_num(sign * reference, nan=math.inf), kind="stable")

    @property
    def drawn(self) -> NDArray[np.intp]:
        """The clients that are drawn, in order: all, or ``MAX_DRAWN`` evenly spaced ones including both ends."""
        count = len(self.order)
        if count <= MAX_DRAWN:
            return self.order
        return self.order[np.linspace(0, count - 1, MAX_DRAWN).round().astype(np.intp)]

    @property
    def is_thinned(self) -> bool:
        """Whether some clients are not drawn."""
        return len(self.names) > MAX_DRAWN


@dataclass(frozen=True)
class Comparison:
    """A comparison or evaluation with its table and its clients."""

    artifact: Artifact
    metrics: Mapping[str, Any]
    clients: Clients

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """The rows of the table, best method first, and then references."""
        return sorted(self.metrics["methods"], key=lambda row: summary.sort_key(row, self.metric))

    @property
    def methods(self) -> list[str]:
        """The labels of the methods, best first."""
        return [row["label"] for row in self.rows]

    @property
    def metric(self) -> Metric:
        """The metric that ranks methods."""
        return tables.find_entry(self.metrics, _find_ranking_metric(self.metrics))

    @property
    def baseline(self) -> str | None:
        """The reference of gains: a method, ``global`` (the global model), or None."""
        name: str | None = self.metrics["baseline"]
        return name

    @property
    def baseline_name(self) -> str:
        """The name of the baseline in a sentence."""
        return name_baseline(str(self.baseline))

    @property
    def seeds(self) -> list[int]:
        """All seeds."""
        return sorted({seed for row in self.metrics["methods"] for seed in row["seeds"]})

    @property
    def chosen(self) -> str:
        """The method whose gains are drawn first: the one that the conclusion is about, else the best method."""
        found = self.conclusion
        ranked = [row["label"] for row in self.rows if not row.get("reference")]
        compared = [label for label in ranked if label != self.baseline]
        chosen = found.shown or found.best
        return chosen if chosen is not None and chosen in compared else (compared or self.methods)[0]

    @property
    def conclusion(self) -> Conclusion:
        """What the table says."""
        return Conclusion.read(self.metrics)

    @property
    def answer(self) -> list[str]:
        """The conclusion: the decision, for whom, and the cost."""
        return self.conclusion.sentences

    @property
    def notes(self) -> list[str]:
        """The notes below the table, without the conclusion."""
        return notes.list_notes(self.metrics)

    @property
    def title(self) -> str:
        """The name of the comparison's folder."""
        path = self.artifact.path.resolve()
        return path.parent.name if path.name == self.artifact.kind else path.name

    def row(self, label: str) -> Mapping[str, Any]:
        """Return the row of a method."""
        return next(row for row in self.metrics["methods"] if row["label"] == label)


def metric_value(row: Mapping[str, Any], name: str) -> float:
    """Return the value of a metric in a method's row, nan if unknown."""
    number = row["metrics"].get(name, {}).get("value")
    return math.nan if number is None else float(number)


def _find_ranking_metric(metrics: Mapping[str, Any]) -> str:
    """Return the metric that ranks methods; raises InputError if this version does not know it."""
    name: str = next(iter(metrics.get("metric", ())), catalogue.DEFAULT[0])
    if name not in catalogue.METRICS:
        raise InputError(f"methods are ranked by '{name}', which needs a newer pfl", "pip install --upgrade pflcli")
    return name


def read_comparison(artifact: Artifact) -> Comparison:
    """Read a comparison or an evaluation; raises InputError if a file is damaged."""
    metrics = evaluation.read(artifact)
    ranking = _find_ranking_metric(metrics)
    table = client_identity.read_client_table(artifact)
    with artifact.parsing("clients.csv"):
        table = table.astype({column: np.float64 for column in table.columns if column not in ("method", "name")})
        clients = _read_clients(table, metrics, ranking, client_identity.is_one_partition(artifact))
    return Comparison(artifact, metrics, clients)


def _read_clients(table: pd.DataFrame, metrics: Mapping[str, Any], ranking: str, is_one_partition: bool) -> Clients:
    """Return the clients in ``clients.csv``; a client with a name in the data is the same under every seed."""
    seeds = table["seed"].nunique()
    number = table["client"].astype(int)
    words = "client " + number.astype(str)
    if seeds > 1 and not is_one_partition:
        words += ", seed " + table["seed"].astype(int).astype(str)
    name = table["name"].fillna("") if "name" in table else pd.Series("", table.index)
    table = table.assign(who=name.where(name != "", words).map(vega.escape_name))
    # Clients with the same name are distinguished by their numbers.
    unclear = table.duplicated(["method", "seed", "who"], keep=False)
    table["who"] = table["who"].where(~unclear, table["who"] + " (" + words + ")")
    total = int(table.groupby("seed")["client"].nunique().max())
    table = table[table[f"n_{metrics['split']}"] > 0]
    order = {name: place for place, name in enumerate(dict.fromkeys(table["who"]))}
    first = table.drop_duplicates("who")

    def means(column: str, rows: pd.DataFrame) -> Scores:
        result = np.full(len(order), math.nan)
        by_client = rows.groupby("who", sort=False)[column].mean()
        result[[order[name] for name in by_client.index]] = by_client.to_numpy()
        return result

    by_method = {label: table[table["method"] == label] for label in (row["label"] for row in metrics["methods"])}
    references = {row["label"] for row in metrics["methods"] if row.get("reference")}
    base = f"baseline_{ranking}"
    beside = _FIXED | {base, f"n_{metrics['split']}"} | {*catalogue.METRICS}
    tuned = {
        (label, column): means(column, rows)
        for column in table.columns
        if column not in beside and column != "who" and not column.startswith("baseline_")
        for label, rows in by_method.items()
        if label not in references and rows[column].notna().any()
    }
    baseline = means(base, table) if metrics["baseline"] is not None else None
    return Clients(
        names=[*order],
        keys=[(int(seed), int(client)) for seed, client in zip(first["seed"], first["client"], strict=True)],
        samples=means(f"n_{metrics['split']}", table),
        scores={label: means(ranking, rows) for label, rows in by_method.items()},
        baseline=baseline,
        lower_is_better=catalogue.METRICS[ranking].lower_is_better,
        tuned=tuned,
        total=total,
    )
