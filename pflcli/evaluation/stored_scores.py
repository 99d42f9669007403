"""Write the scores from which a table and verdicts follow: a row per run, and a row per client of each run.

``runs.csv`` has the options, the federation, the rounds, the versions and every metric of a run; ``clients.csv`` has
the metrics of its clients. Verdicts have those of all their comparisons, whose name is the first column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pflcli.artifacts import codebook, csv_file
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core.metrics import catalogue
from pflcli.evaluation import client_identity, convergence, summary
from pflcli.evaluation.changed_options import assign, list_set_options, list_set_settings
from pflcli.evaluation.round_costs import Link
from pflcli.evaluation.summary import Scored, ScoredPredictions

RUNS, CLIENTS = "runs.csv", "clients.csv"
NEIGHBOURS = {"neighbour_precision": "precision", "neighbour_recall": "recall"}
"""Metrics of the neighbours in the last round, with the columns of ``neighbours.csv``."""
_CONTENT = {"samples", "content"}
"""Facts of a partition that its fingerprint covers."""

Aims = tuple[float | None, Link | None]
"""The target accuracy and the link of a table."""


def write(work: ArtifactWriter, scored: Mapping[str, Sequence[Scored]], aims: Mapping[str, Aims], split: str) -> None:
    """Write both files of the comparisons ``scored``, by name; a single one needs none."""
    work.write(CLIENTS, render_clients(scored, split))
    runs = [
        {**({"comparison": name} if name else {}), **row}
        for name, items in scored.items()
        for row in _list_runs(items, *aims[name])
    ]
    names = dict.fromkeys(key for row in runs for key in row)
    heading = [*(key for key in names if key != "made_with"), "made_with"]
    work.write(RUNS, csv_file.encode_rounded(heading, ([row.get(key) for key in heading] for row in runs)))


def measure_run(item: Scored, target: float | None, link: Link | None) -> dict[str, Any]:
    """Return every metric of a single run by name."""
    row = summary.summarize_method(item.label, [item], target, link)
    return {name: record["value"] for name, record in row["metrics"].items()} | _read_neighbours(item.artifact)


def _read_neighbours(artifact: Artifact) -> dict[str, float]:
    """Return the precision and recall of neighbours in the last round; empty if they were not stored."""
    rows = artifact.table("neighbours.csv") if "neighbours.csv" in artifact.manifest.files else []
    with artifact.parsing("neighbours.csv"):
        return {name: float(rows[-1][key]) for name, key in NEIGHBOURS.items() if rows and rows[-1].get(key)}


def _list_runs(items: Sequence[Scored], target: float | None, link: Link | None) -> Iterator[dict[str, Any]]:
    groups: dict[str, list[Scored]] = {}
    for item in items:
        groups.setdefault(item.label, []).append(item)
    for group in groups.values():
        rise = convergence.measure_rise([item.curve for item in group], group[0].validation_samples)
        partitions = summary.identify_partitions(group)
        for item in group:
            request, facts = item.artifact.manifest.request, item.artifact.manifest.summary
            yield {
                "method": item.label,
                "seed": item.seed,
                "options": assign(list_set_options(item.method, request["options"])),
                "settings": assign(list_set_settings(request["settings"])),
                "federation": _describe_partition(client_identity.read_partition(item.artifact)),
                "partition": partitions[item.seed],
                "rounds": facts.get("rounds"),
                "unfinished": rise,
                "reference": int(item.is_reference),
                "repeats_baseline": int(item.repeats_baseline),
                **measure_run(item, target, link),
                "made_with": _describe_machine(item.artifact.manifest.made),
            }


def _describe_partition(partition: Artifact | None) -> str:
    """Return dataset, scheme and options of a partition, with its seed; empty if it no longer exists."""
    if partition is None:
        return ""
    request = partition.manifest.request
    dataset = codebook.read(partition).dataset or str(request["dataset"])
    values = {**request.get("options", {}), **{k: v for k, v in request.items() if k not in _CONTENT}}
    chosen = {k: v for k, v in values.items() if k not in ("dataset", "options") and v not in (None, 0, "")}
    return f"{dataset}: {assign({**chosen, 'seed': request.get('seed')})}"


def _describe_machine(made: Mapping[str, Any]) -> str:
    versions = {"pfl": made.get("pfl"), "python": made.get("python"), **made.get("libraries", {})}
    known = [f"{name} {version}" for name, version in versions.items() if version]
    return ", ".join([*known, *([made["processor"]] if "processor" in made else [])])


def render_clients(comparisons: Mapping[str, Sequence[ScoredPredictions]], split: str) -> bytes:
    """Return ``clients.csv``: a row for each client of each method and seed of each comparison."""
    scored = [item for items in comparisons.values() for item in items]
    tuned = sorted({name for item in scored for name in item.tuned})
    has_unseen = any(item.new is not None for item in scored)
    has_names = any(item.names is not None for item in scored)
    ranked_by = scored[0].metric_names[0] if scored else catalogue.DEFAULT[0]
    names = dict.fromkeys(name for item in scored for name in item.metric_names) or catalogue.DEFAULT
    columns = [metric.name for metric in catalogue.client_metrics(tuple(names))]

    def rows() -> Iterator[list[Any]]:
        for comparison, items in comparisons.items():
            for item in items:
                for client in range(len(item.n)):
                    name = [item.names[client] if item.names is not None else None] if has_names else []
                    values = [item.client[column][client] if column in item.client else None for column in columns]
                    values += [None if item.baseline is None else item.baseline[client], item.gain[client]]
                    values += [item.tuned[key][client] if key in item.tuned else None for key in tuned]
                    unseen = [None if item.new is None else int(item.new[client])] if has_unseen else []
                    yield [
                        *([comparison] if comparison else []),
                        item.label,
                        item.seed,
                        client,
                        *name,
                        int(item.n[client]),
                        *(None if value is None else float(value) for value in values),
                        *unseen,
                    ]

    heading = ["comparison"] * ("" not in comparisons) + ["method", "seed", "client", *["name"] * has_names]
    heading += [f"n_{split}", *columns, f"baseline_{ranked_by}", "gain", *tuned, *["unseen"] * has_unseen]
    return csv_file.encode_rounded(heading, rows())
