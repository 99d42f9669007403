"""Opens an imported dataset, reads its samples, and summarizes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pflcli.artifacts import placement
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.reader import Artifact
from pflcli.core import registry
from pflcli.core.datasets import SPLITS, Samples, Scaling
from pflcli.core.errors import UsageError, closest


def open_dataset(dataset: str) -> Artifact | None:
    """Open the imported dataset in a folder; None for the name of a dataset in the registry.

    Raises UsageError if neither a dataset nor a folder has this name, InputError for a folder without a dataset.
    """
    exists = Path(dataset).exists() or any(placement.find_interrupted(Path(dataset)))
    if registry.exists("datasets", dataset):
        return None
    if not exists and "/" not in dataset:
        raise UsageError(
            f"unknown dataset '{dataset}', and there is no folder of this name",
            closest(dataset, registry.names("datasets")),
            "name a dataset (pfl list datasets) or the folder of an imported one (pfl import DATA ... -o DIR)",
        )
    return open_one(dataset, "dataset")


def load_samples(source: Artifact, root: Path | None, *, download: bool = False) -> Samples:
    """Return the samples of an imported dataset; raises UsageError for ``root`` and ``download``."""
    if root is not None or download:
        raise UsageError(f"--root and --download have no effect: {source.path} contains its samples", "leave them out")
    stored = datasets.read(source)
    standardize_by = ("client" if stored.by_client else "federation") if stored.standardize else ""
    samples = Samples(
        stored.x,
        stored.y,
        len(stored.classes) if stored.labels is None else stored.labels.outputs,
        stored.owner,
        stored.is_ordered,
        stored.gap,
        coarse=stored.coarse,
        scaling=Scaling(standardize_by, stored.fill) if standardize_by or stored.fill else None,
        group=stored.group,
        kept=stored.kept,
        task=None if stored.labels is None else stored.labels.task(),
    )
    if stored.split is None:
        return samples
    is_validation = stored.split == SPLITS.index("validation")
    return replace(
        samples,
        is_test=stored.split == SPLITS.index("test"),
        is_validation=is_validation if is_validation.any() else None,
    )


def summarize(dataset: datasets.Dataset, dropped: int) -> dict[str, Any]:
    """Return the summary of a dataset of which ``dropped`` samples were left out."""
    sizes = np.bincount(dataset.y, minlength=len(dataset.classes)).tolist() if dataset.labels is None else []
    counts = dict(zip(dataset.classes, sizes, strict=True))
    summary: dict[str, Any] = {
        "samples": len(dataset.y),
        "dropped": dropped,
        "shape": list(dataset.x.shape[1:]),
        "type": str(dataset.x.dtype),
        **({"classes": counts} if dataset.labels is None else dataset.labels.facts()),
        "features": list(dataset.features),
        "clients": None,
        **({"kept": [*dataset.kept]} if dataset.kept else {}),
    }
    if dataset.owner is not None:
        owned = np.unique(dataset.owner, return_counts=True)[1]
        summary |= {
            "clients": len(owned),
            "smallest": int(owned.min()),
            "median": float(np.median(owned)),
            "largest": int(owned.max()),
        }
    return summary
