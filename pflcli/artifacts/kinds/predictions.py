"""Predictions: a method's class probabilities for every sample, stored once and scored at any time.

``predictions.h5``: a group per split with ``p`` (n, C) float32 rows of probabilities, further (n, C) parts if the
method has them (``global``, ``knn``), ``y``, ``sample`` (n,), ``offsets`` (m + 1,); group ``tuned`` with one (m,)
array for each value that was tuned on clients' validation samples; if the partition has it, ``new`` (m,) bool, the
clients that took no part in training the global model. ``state.safetensors``: the method's last state. If the method
had rounds, ``rounds.csv``, one row per round, and row 0 if it communicated before the first; if clients had neighbours,
``neighbours.csv``: their mean number by round, and their precision and recall if the partition has true clusters; if
clients had attention, ``attention.csv``: means over clients by round (``evaluation/metrics/client_relations.py``).
Predictions of ``pfl stack`` have no rounds; their state is an exponent per learner. Those of ``pfl new-client`` have
``unseen.h5``, the samples of the clients that joined after the rounds, which are the last clients: ``x`` (n, ...),
``y``, ``sample`` (n,), ``offsets`` (3 a + 1,) over the blocks (client, split), and their ``kept_columns``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import client_blocks, kept_columns
from pflcli.artifacts.kept_columns import Kept
from pflcli.artifacts.kinds import describe_count, describe_name, read_labels
from pflcli.artifacts.manifest import Manifest
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import registry
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import InputError
from pflcli.core.tasks import CLASSES, Labels

SCHEMA = 1
MADE_BY = "pfl personalize METHOD SOURCE -o DIR"

FILE = "predictions.h5"
UNSEEN = "unseen.h5"
_STATE = "state.safetensors"
_FRAME = ("y", "sample", "offsets")
_ARRAYS = ("x", *_FRAME)


@dataclass(frozen=True)
class SplitPredictions:
    """Predictions for one split of all clients; ``parts`` always has ``p``."""

    parts: dict[str, NDArray[np.float32]]
    y: NDArray[np.int64]
    sample: NDArray[np.int64]
    offsets: NDArray[np.int64]


@dataclass(frozen=True)
class Predictions:
    """Predictions on one or more splits, and the values tuned on clients' validation samples."""

    splits: dict[str, SplitPredictions]
    tuned: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    new: NDArray[np.bool_] | None = None
    labels: Labels | None = None
    """what labels are; None for classes"""


@dataclass(frozen=True)
class LaterClients:
    """The samples of clients that joined after the rounds; see the module for shapes."""

    x: NDArray[Any]
    y: NDArray[np.int64]
    sample: NDArray[np.int64]
    offsets: NDArray[np.int64]
    kept: Kept = field(default_factory=dict)


def write_later_clients(writer: ArtifactWriter, later: LaterClients) -> None:
    """Write ``unseen.h5``."""
    arrays = {name: getattr(later, name) for name in _ARRAYS}
    writer.write_h5(UNSEEN, arrays | kept_columns.encode(later.kept))


def read_later_clients(artifact: Artifact) -> LaterClients | None:
    """Read the clients that joined after the rounds, None if there are none; raises InputError for a damaged file."""
    if UNSEEN not in artifact.manifest.files:
        return None
    where = f"{artifact.path}/{UNSEEN}"
    with artifact.h5(UNSEEN) as file:
        arrays = {name: file[name][...] for name in _ARRAYS}
        later = LaterClients(**arrays, kept=kept_columns.read(file, where, len(arrays["y"])))
    client_blocks.check(where, later.offsets, len(later.x), len(later.y), len(later.sample))
    with artifact.h5(FILE) as file:
        outputs = file["test"]["p"].shape[1]
    client_blocks.check_labels(where, later.y, outputs, read_labels(artifact.manifest, outputs))
    client_blocks.check_integers(where, sample=later.sample)
    if later.x.dtype.kind == "f":
        client_blocks.check_finite(where, x=later.x)
    if (len(later.offsets) - 1) % len(SPLITS):
        raise InputError(f"{where} is inconsistent: its blocks do not match its clients")
    return later


def write(writer: ArtifactWriter, predictions: Predictions) -> None:
    """Write ``predictions.h5``; raises ValueError if a row is not a distribution (a bug of the method)."""
    arrays: dict[str, NDArray[np.generic]] = {}
    for split, answers in predictions.splits.items():
        if not _are_sound(answers.parts["p"], predictions.labels):
            raise ValueError(f"a row of p in split {split} is not a probability distribution")
        arrays |= {f"{split}/{name}": values for name, values in answers.parts.items()}
        arrays |= {f"{split}/{name}": getattr(answers, name) for name in _FRAME}
    arrays |= {f"tuned/{name}": values for name, values in predictions.tuned.items()}
    if predictions.new is not None:
        arrays["new"] = predictions.new
    # Sort by name: arrays that a resumed run reads from its checkpoint are in another order.
    writer.write_h5(FILE, dict(sorted(arrays.items())))


def _are_sound(p: NDArray[np.float32], labels: Labels | None) -> bool:
    if labels is not None and labels.kind != CLASSES:
        return p.ndim == 2 and p.shape[1] == labels.outputs and bool(np.isfinite(p).all())
    return bool(p.ndim == 2 and np.isfinite(p).all() and (p >= 0).all() and np.allclose(p.sum(axis=1), 1, atol=1e-4))


def read(artifact: Artifact, split: str) -> SplitPredictions:
    """Read one split; raises InputError if the file is damaged or has no predictions on that split."""
    with artifact.h5(FILE) as file:
        stored = [name for name in SPLITS if name in file]
        if not stored:
            raise InputError(f"{artifact.path} has no predictions: they are at the sites", "pfl show, for the table")
        if split not in stored:
            method = artifact.manifest.request.get("method", "the method")
            option = "--answer-train" if split == "train" else "without --refit"
            raise InputError(
                f"{artifact.path} has no predictions on {split}, only on {', '.join(stored)}: {method} learned from it",
                f"pfl personalize {method} SOURCE -o DIR {option}",
            )
        group = file[split]
        frame = {name: group[name][...] for name in _FRAME}
        parts = {name: group[name][...] for name in group if name not in _FRAME}
        answers = SplitPredictions(parts=parts, **frame)
        lengths = (len(answers.y), len(answers.sample), *(len(values) for values in parts.values()))
    where = f"{artifact.path}/{FILE}, split {split},"
    client_blocks.check(where, answers.offsets, *lengths)
    client_blocks.check_finite(where, **parts)
    client_blocks.check_integers(where, sample=answers.sample)
    if len({values.shape for values in parts.values()}) > 1:
        raise InputError(f"{where} is inconsistent: its parts have different shapes")
    labels = read_labels(artifact.manifest, parts["p"].shape[1] if "p" in parts else 0)
    if not ("p" in parts and _are_sound(parts["p"], labels)):
        raise InputError(f"{where} is inconsistent: a row of p is not a probability distribution")
    client_blocks.check_labels(where, answers.y, labels.outputs, labels)
    return answers


def has_split(artifact: Artifact, split: str) -> bool:
    """Return whether there are predictions on a split."""
    with artifact.h5(FILE) as file:
        return split in file


def read_shape(artifact: Artifact, split: str) -> tuple[int, int]:
    """Return the numbers of predicted samples of a split and of outputs; 0 and 0 if it is not predicted."""
    with artifact.h5(FILE) as file:
        return file[f"{split}/p"].shape if split in file else (0, 0)


def learned_splits(artifact: Artifact) -> tuple[str, ...]:
    """Return the splits that the run learned from."""
    return ("train", "validation") if artifact.manifest.request["settings"].get("refit") else ("train",)


def is_transductive(artifact: Artifact) -> bool:
    """Return whether predictions, or those that a stack pools, depend on other test samples of a client."""
    return bool(artifact.manifest.summary.get("transductive", False))


def summarize_tuned(tuned: Mapping[str, NDArray[Any]]) -> dict[str, dict[str, float]]:
    """Return mean, minimum and maximum over clients of each value in ``tuned``, (m,) each, for the summary."""
    return {
        name: {"mean": float(np.mean(values)), "min": float(np.min(values)), "max": float(np.max(values))}
        for name, values in tuned.items()
    }


def read_tuned(artifact: Artifact) -> dict[str, NDArray[np.float64]]:
    """Read the values that were tuned on each client's validation samples, (m,) each."""
    with artifact.h5(FILE) as file:
        values = {name: file["tuned"][name][...] for name in file["tuned"]} if "tuned" in file else {}
        _check_clients(file, artifact, values)
    client_blocks.check_finite(f"{artifact.path}/{FILE}", **values)
    return values


def read_new_clients(artifact: Artifact) -> NDArray[np.bool_] | None:
    """Read which clients took no part in training the global model, (m,), or None if none are recorded."""
    with artifact.h5(FILE) as file:
        values = file["new"][...] if "new" in file else None
        _check_clients(file, artifact, {} if values is None else {"new": values})
    return values


def read_state(artifact: Artifact, choices: Iterable[tuple[str, ...]]) -> dict[str, NDArray[Any]]:
    """Read arrays of the method's last state, by name: the first tuple of ``choices`` whose names all exist.

    A method declares what it records in its ``RECORDS``. Returns an empty dict if no choice is complete. Raises
    InputError if the file is damaged.
    """
    from safetensors import safe_open

    recorded = _records(str(artifact.manifest.request["method"]))
    choices = [names for names in choices if all(name.partition("/")[0] in recorded for name in names)]
    artifact.check(_STATE)
    with artifact.parsing(_STATE), safe_open(artifact.path / _STATE, "numpy") as file:
        existing = {*file.keys()}
        names = next((names for names in choices if existing.issuperset(names)), ())
        return {name: file.get_tensor(name) for name in names}


def _records(method: str) -> tuple[str, ...]:
    """Return the ``RECORDS`` of a method; empty for a stack, or a method that this version does not have."""
    if not registry.exists("methods", method):
        return ()
    return tuple(registry.card("methods", method).facts.get("RECORDS", ()))


def _check_clients(file: Any, artifact: Artifact, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise InputError unless each array has one value per client."""
    counts = {len(file[split]["offsets"]) - 1 for split in SPLITS if split in file}
    for name, values in arrays.items():
        if {values.shape} != {(count,) for count in counts}:
            raise InputError(f"{artifact.path}/{FILE} is inconsistent: {name} is not one value per client")


def check(artifact: Artifact) -> None:
    """Read every file; raises InputError if one is damaged or has an invalid value."""
    for split in SPLITS:
        if has_split(artifact, split):
            read(artifact, split)
    read_tuned(artifact)
    read_new_clients(artifact)
    read_later_clients(artifact)


def describe(manifest: Manifest) -> list[str]:
    """Return a few facts that distinguish artifacts of this kind, as text."""
    request, summary = manifest.request, manifest.summary
    seed = request.get("seed")
    return [
        describe_name(request.get("method")),
        "" if seed is None else f"seed {seed}",
        describe_name(request.get("settings", {}).get("model"), "model"),
        describe_count(summary.get("rounds"), "round"),
    ]
