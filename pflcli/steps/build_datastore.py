"""``pfl build-datastore``: one exact index for each client over its own embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import blocks, datastore, embeddings
from pflcli.artifacts.artifact import open_artifact
from pflcli.artifacts.manifest import Draft
from pflcli.artifacts.store import Work
from pflcli.errors import UsageError
from pflcli.fl import capacity as capacities
from pflcli.fl.neighbours import flat_pieces
from pflcli.steps import training
from pflcli.steps.making import Manner, Outcome, make


def build_datastore(
    source: Path | str,
    out: Path | str,
    *,
    capacity: float = 1.0,
    seed: int | None = None,
    manner: Manner | None = None,
) -> Outcome:
    """Build each client's store from its training and validation embeddings.

    ``capacity`` is the fraction of a client's samples that its store keeps, drawn at random (stores of smaller
    capacity are subsets of larger ones). Training samples stand first, so that lambda can be tuned against them alone.
    """
    manner = manner or Manner()
    if not 0 <= capacity <= 1:
        raise UsageError(f"--capacity {capacity:g} is not a fraction between 0 and 1", "--capacity 0.5")
    origin = open_artifact(source, "embeddings")
    seed = training.draws(seed, origin)
    request = {"index": "Flat", "metric": "squared L2", "capacity": capacity, "seed": seed}
    draft = Draft("datastore", request, (origin.as_input("embeddings", Path(out)),))

    def build(work: Work) -> tuple[dict[str, Any], dict[str, Any]]:
        splits = embeddings.read(origin)
        parts = [splits[split] for split in ("train", "validation")]
        count = len(parts[0].offsets) - 1
        stores: list[NDArray[np.float32]] = []
        held: list[tuple[NDArray[np.int64], ...]] = []
        train: list[int] = []
        with manner.watch.progress("build-datastore", count) as advance:
            for client in range(count):
                kept = []
                for part, split in zip(parts, ("train", "validation"), strict=True):
                    first, last = part.offsets[client], part.offsets[client + 1]
                    order = capacities.uptake(seed, split, client, last - first)
                    kept.append(first + capacities.kept(capacity, order))
                pairs = list(zip(parts, kept, strict=True))
                stores.append(np.concatenate([part.z[rows] for part, rows in pairs]))
                held.append(
                    tuple(
                        np.concatenate([getattr(part, name)[rows] for part, rows in pairs]) for name in ("y", "sample")
                    )
                )
                train.append(len(kept[0]))
                advance(1, "")
        indexes, ends = flat_pieces(stores)
        y, sample = (np.concatenate([pair[place] for pair in held]) for place in (0, 1))
        datastore.write(
            work,
            indexes,
            y=y,
            sample=sample,
            offsets=blocks.offsets([len(y) for y, _ in held]),
            train=np.asarray(train, dtype=np.int64),
            bytes=ends,
        )
        manner.watch.say(f"{count} stores of {len(y)} samples, {ends[-1] / 1e6:.1f} MB")
        summary = {
            "clients": count,
            "samples": len(y),
            "bytes": int(ends[-1]),
            "capacity": capacity,
        }
        return summary, {}

    return make(out, draft, manner, build)
