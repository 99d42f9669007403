"""A sweep: the accuracy of kNN-Per at every point of a grid of options.

``metrics.json`` and ``table.csv``: a row per point and lambda. ``clients.csv``: each client's tuned lambda at each
point, and its accuracy. ``sweep.png``: accuracy along one axis; ``sweep.vl.json``: its Vega-Lite specification.
"""

from __future__ import annotations

from pflcli.artifacts.kinds import describe_count, describe_percent
from pflcli.artifacts.manifest import Manifest
from pflcli.artifacts.reader import Artifact

SCHEMA = 1
MADE_BY = "pfl sweep EMBEDDINGS -o DIR"


def check(artifact: Artifact) -> None:
    """Read its metrics; raises InputError if they are damaged."""
    artifact.json("metrics.json")


def describe(manifest: Manifest) -> list[str]:
    """Return a few facts that distinguish artifacts of this kind, as text."""
    summary = manifest.summary
    return [describe_count(summary.get("rows"), "row"), describe_percent("best accuracy", summary.get("accuracy"))]
