"""``pfl import-predictions``: the probabilities of another tool as predictions, after checking every row."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.kinds.predictions import SplitPredictions
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import foreign, registry
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import InputError, UsageError, closest
from pflcli.options.function import command
from pflcli.plugins.referee.options import ImportPredictions

KEYS = ("client", "sample", "split")
_TOLERANCE = 0.01
"""How far the sum of a row may be from 1, as of rounded numbers; rows are divided by their sums."""


@command(ImportPredictions)
def import_predictions(asked: ImportPredictions) -> Outcome:
    """Import the probabilities, or numbers, that another tool predicted for samples of the partition ``like``.

    Raises UsageError for a name that a method of pfl has; InputError, with the first such row, for rows that are no
    probabilities, or no finite numbers if labels are numbers, for unknown or repeated samples, and if a split is not
    complete.

    >>> import numpy as np
    >>> from pflcli import Federation, import_predictions, partition
    >>> writers = Federation.from_dataset("writers", clients=6)  # the clients and splits of the partition
    >>> names, sizes = writers.client_names, writers.sizes("test")
    >>> who, p = np.repeat(names, sizes), np.full((sum(sizes), 10), 0.1)
    >>> sample = writers.sample[writers.rows_of(writers.clients, "test")]
    >>> np.savez("p.npz", client=who, sample=sample, split=np.full(len(p), "test"), p=p)
    >>> import_predictions("p.npz", "runs/theirs", like=partition("writers", "runs/p", clients=6), name="theirs").kind
    'predictions'
    """
    _require_name(asked.name)
    like, data = open_one(asked.like, "partition"), Path(asked.data)
    foreign.require_file(data)
    seed = like.manifest.request["seed"] if asked.seed is None else asked.seed
    with data.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    spec = ArtifactSpec(
        "predictions",
        {"method": asked.name, "options": {}, "settings": {}, "seed": seed, "content": content},
        (like.as_input("source", Path(asked.out)),),
    )

    def build(work: ArtifactWriter) -> Built:
        partition, book = partitions.read(like), codebook.read(like)
        names, labels = book.class_names(partition.classes), partition.labels
        shape = np.zeros((1, labels.outputs), np.float32)
        numbers = [*labels.task().tabulate(shape)]
        table = _read(data, numbers or [f"p({name})" for name in names])
        splits = arrange(table, partition, str(like.path), are_numbers=bool(numbers))
        predictions.write(work, predictions.Predictions(splits, new=partition.new, labels=labels))
        codebook.write(work, book)
        summary = {
            "method": asked.name,
            "foreign": True,
            "clients": len(partition.names),
            **dict.fromkeys(("participants", "model_bytes", "rounds", "bytes_up", "bytes_down", "bytes_peer"), 0),
            "reported": "by another tool",
            "tuned": {},
            **labels.facts(),
        }
        return Built(summary, {"seconds_inputs": 0})

    return make(asked.out, spec, asked.execution.reading(data), build)


def _require_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", name):
        raise UsageError(f"--name {name} is not a name of letters, digits, '_', '.', '+' and '-'", "--name theirs")
    if name == "stack" or registry.exists("methods", name):
        raise UsageError(f"'{name}' is a method of pfl, and its rows would be mixed", f"--name {name}-theirs")


@dataclass(frozen=True)
class Table:
    """The rows of a file: names of clients and splits, samples (n,), and predictions (n, C) in the order of classes.

    ``first`` is the number of the first row, as a user counts them: 2 in a CSV file, 0 in an array.
    """

    path: Path
    client: NDArray[np.str_]
    sample: NDArray[np.int64]
    split: NDArray[np.str_]
    p: NDArray[np.float64]
    first: int

    def error(self, row: int, problem: str, *fix: str) -> InputError:
        """Return the error about a row."""
        return InputError(f"{self.path}, row {self.first + row}: {problem}", *fix)


def _read(path: Path, columns: Sequence[str]) -> Table:
    """Read a file with the ``columns`` of predictions; InputError if one is missing or unknown, or has no numbers."""
    if path.suffix.lower() == ".npz":
        client, sample, split, p = foreign.read_npz(path, *KEYS, "p")
        if sample.dtype.kind not in "iu" or p.dtype.kind not in "iuf":
            raise InputError(
                f"{path}: sample contains {sample.dtype}, and p {p.dtype}, but integers and floats are needed"
            )
        if p.ndim != 2 or {len(client), len(sample), len(split)} != {len(p)} or p.shape[1] != len(columns):
            raise InputError(f"{path}: p has the shape {p.shape}, but (samples, {len(columns)} columns) is needed")
        return Table(path, client.astype(str), sample.astype(np.int64), split.astype(str), p.astype(float), 0)
    if path.suffix.lower() != ".csv":
        raise UsageError(f"{path} has an unknown suffix for predictions", "a file FILE.csv or FILE.npz")
    import pandas as pd

    with foreign.reading(path, "CSV"):
        cells = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True, encoding="utf-8-sig")
    wanted = [*KEYS, *columns]
    if lacking := [name for name in wanted if name not in cells]:
        raise InputError(f"{path} has no column {lacking[0]}", f"its columns are {', '.join(map(str, cells))[:200]}")
    if unknown := [name for name in cells if str(name) not in wanted]:
        raise InputError(f"{path} has the unknown column {unknown[0]}", closest(str(unknown[0]), wanted))
    numbers = {name: pd.to_numeric(cells[name], errors="coerce") for name in wanted if name not in ("client", "split")}
    sample = numbers.pop("sample").to_numpy(dtype=float)
    strings = (cells[name].to_numpy(dtype=str) for name in ("client", "split"))
    client, split = strings
    p = np.stack([values.to_numpy(dtype=float) for values in numbers.values()], axis=1)
    table = Table(path, client, np.nan_to_num(sample).astype(np.int64), split, p, 2)
    if len(wrong := np.flatnonzero(~(sample == table.sample))):
        raise table.error(wrong[0], f"'{cells['sample'].iloc[wrong[0]]}' is not the number of a sample")
    return table


def arrange(
    table: Table, partition: Partition, where: str, *, are_numbers: bool = False
) -> dict[str, SplitPredictions]:
    """Return the predictions of each split that a table has, in the order of the partition, which is at ``where``.

    Raises InputError as ``import_predictions`` does.
    """
    place = _locate(table, partition, where)
    if are_numbers:
        _require_finite(table)
    else:
        _require_probabilities(table)
    ordered = np.full(len(partition.sample), -1)
    ordered[place] = np.arange(len(place))
    block = np.repeat(np.arange(len(partition.offsets) - 1), np.diff(partition.offsets))
    p = (table.p if are_numbers else table.p / table.p.sum(axis=1, keepdims=True)).astype(np.float32)
    splits = {}
    for number, split in enumerate(SPLITS):
        rows = np.flatnonzero(block % len(SPLITS) == number)
        missing = rows[ordered[rows] < 0]
        if len(missing) == len(rows) and split != "test":
            continue
        if len(missing):
            name = partition.names[block[missing[0]] // len(SPLITS)]
            raise InputError(
                f"{table.path} does not cover the {split} samples of {where}: sample {partition.sample[missing[0]]} of"
                f" client {name} is the first of {len(missing)} that are missing, of {len(rows)}"
            )
        offsets = np.concatenate([[0], np.cumsum(partition.sizes[:, number])])
        parts = {"p": p[ordered[rows]]}
        splits[split] = SplitPredictions(parts, partition.y[rows], partition.sample[rows], offsets)
    return splits


def _locate(table: Table, partition: Partition, where: str) -> NDArray[np.int64]:
    """Return the row of the partition that each row of the table is about, (n,)."""
    for values, known, noun in ((table.client, partition.names, "client"), (table.split, SPLITS, "split")):
        if len(wrong := np.flatnonzero(~np.isin(values, np.asarray(known)))):
            word = str(values[wrong[0]])
            raise table.error(wrong[0], f"{where} has no {noun} '{word}'", closest(word, list(known)[:20]))
    order = np.argsort(partition.sample)
    place: NDArray[np.int64] = order[np.searchsorted(partition.sample[order], table.sample).clip(max=len(order) - 1)]
    if len(wrong := np.flatnonzero(partition.sample[place] != table.sample)):
        fix = "sample is the number of a sample in samples.h5 of the partition, its row in the dataset"
        raise table.error(wrong[0], f"{where} has no sample {table.sample[wrong[0]]}", fix)
    block = np.repeat(np.arange(len(partition.offsets) - 1), np.diff(partition.offsets))[place]
    client, split = np.asarray(partition.names)[block // len(SPLITS)], np.asarray(SPLITS)[block % len(SPLITS)]
    if len(wrong := np.flatnonzero((client != table.client) | (split != table.split))):
        row = wrong[0]
        raise table.error(
            row,
            f"sample {table.sample[row]} is a {split[row]} sample of client {client[row]}, not a {table.split[row]}"
            f" sample of client {table.client[row]}",
        )
    first = np.full(len(partition.sample), len(place))
    np.minimum.at(first, place, np.arange(len(place)))
    if len(wrong := np.flatnonzero(first[place] != np.arange(len(place)))):
        earlier = table.first + first[place[wrong[0]]]
        raise table.error(wrong[0], f"sample {table.sample[wrong[0]]} is there already, in row {earlier}")
    return place


def _require_finite(table: Table) -> None:
    """Raise InputError for the first row with a prediction that is no finite number."""
    if len(wrong := np.flatnonzero(~np.isfinite(table.p.astype(np.float32)).all(axis=1))):
        raise table.error(wrong[0], "a prediction is not a finite number", "give a number for each sample")


def _require_probabilities(table: Table) -> None:
    """Raise InputError for the first row that is no distribution over classes, up to rounding."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = table.p.sum(axis=1)
        is_sound = np.isfinite(table.p).all(axis=1) & (table.p >= 0).all(axis=1) & (np.abs(total - 1) <= _TOLERANCE)
    if not is_sound.all():
        row = int(np.flatnonzero(~is_sound)[0])
        problem = "a probability is not a number of at least 0" if not (table.p[row] >= 0).all() else ""
        problem = problem or f"probabilities have the sum {total[row]:g} instead of 1"
        raise table.error(row, problem, "give a probability for each class, such as the softmax of logits")
