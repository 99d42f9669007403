"""A sweep: the scores of kNN-Per at every point of a grid of options, by accuracy or the first metric of the task.

``metrics.json`` and ``table.csv``: a row per point and lambda. ``clients.csv``: each client's tuned lambda at each
point, and its score. ``sweep.png``: scores along one axis; ``sweep.vl.json``: its Vega-Lite specification.
"""

from __future__ import annotations

from pflcli.artifacts.kinds import describe_count, describe_percent, read_labels
from pflcli.artifacts.manifest import Manifest
from pflcli.artifacts.reader import Artifact
from pflcli.core import tasks

SCHEMA = 1
MADE_BY = "pfl sweep EMBEDDINGS -o DIR"


def check(artifact: Artifact) -> None:
    """Read its metrics; raises InputError if they are damaged."""
    artifact.json("metrics.json")


def describe(manifest: Manifest) -> list[str]:
    """Return a few facts that distinguish artifacts of this kind, as text."""
    summary, labels = manifest.summary, read_labels(manifest, 0)
    metric = tasks.KINDS[labels.kind].metrics[0] if labels.kind in tasks.KINDS else ""
    best = summary.get(metric)
    if labels.fields is None or not isinstance(best, float):
        shown = describe_percent(f"best {metric}", best)
    else:
        shown = f"best {metric} {best:.4g} {labels.unit}".rstrip()
    return [describe_count(summary.get("rows"), "row"), shown]
