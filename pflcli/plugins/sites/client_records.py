"""Records of clients as files: what a site can send of its test samples, for a table that needs no sample.

A file has the records of the clients of one run, a method under a seed, as JSON. It takes about 800 bytes a client with
two classes and the default metrics; ``tests/plugins/sites/test_client_records.py`` holds it to 1,000. A reader accepts
nothing else than these fields, and checks that numbers agree with one another. ``evaluation.records`` says which
results do not follow from records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray
from pydantic import Strict

from pflcli.artifacts import disk
from pflcli.artifacts import manifest as manifests
from pflcli.core import foreign
from pflcli.core.wording import counted
from pflcli.evaluation.summary import ScoredPredictions

VERSION = 1
"""The version of the format."""

_CLOSED = {"extra": "forbid"}
_Whole = Annotated[int, Strict(), Ge(0), Le(1 << 40)]
_Number = Annotated[float, Strict()]
_LARGEST = 1e30
"""The largest number of a record: sums and squares of larger ones may not be finite."""
_ROUNDING = 1e-6
"""By how much a sum of confidences may exceed the number of samples, and accuracy differ from that of the counts."""


@dataclass(frozen=True)
class Scores:
    """What a client tells of its samples but their number; ``evaluation.records.Records`` documents the fields."""

    __pydantic_config__ = _CLOSED
    samples: str
    client: dict[str, _Number | None]
    counts: tuple[tuple[_Whole, ...], tuple[_Whole, ...], tuple[_Whole, ...]]
    gaps: tuple[_Number, ...]
    shared: _Number | None
    differs: _Number | None
    discordant: _Whole | None
    pairs: dict[str, tuple[tuple[_Whole, Annotated[int, Strict()], Annotated[int, Strict()]], ...]]
    tuned: dict[str, _Number]


@dataclass(frozen=True)
class ClientRecord:
    """The number ``n`` of samples of the client with this ``name``, and its ``scores``; None if they are withheld."""

    __pydantic_config__ = _CLOSED
    name: str
    n: _Whole
    scores: Scores | None


@dataclass(frozen=True)
class RunRecords:
    """The records of the ``clients`` of a run for the samples of a ``split``."""

    __pydantic_config__ = _CLOSED
    version: _Whole
    label: str
    seed: Annotated[int, Strict(), Ge(0)]
    split: str
    clients: tuple[ClientRecord, ...]


@dataclass(frozen=True)
class SiteRecords:
    """The records of the client of a site for the runs of a federation, which is known by its fingerprint."""

    __pydantic_config__ = _CLOSED
    version: _Whole
    federation: str
    client: str
    runs: tuple[RunRecords, ...]


def list_records(item: ScoredPredictions, split: str, names: Sequence[str], fewest: int = 0) -> RunRecords:
    """Return the records of a scored run, whose clients have these ``names`` (m,).

    Clients with fewer than ``fewest`` samples withhold all but their number. It is 0 for a simulation.
    """
    return RunRecords(
        VERSION,
        item.label,
        item.seed,
        split,
        tuple(withhold(_make_record(item, client, name), fewest) for client, name in enumerate(names)),
    )


def withhold(record: ClientRecord, fewest: int) -> ClientRecord:
    """Return a record without scores if the client has fewer than ``fewest`` samples, but more than none."""
    return ClientRecord(record.name, record.n, None) if 0 < record.n < fewest else record


def _make_record(item: ScoredPredictions, client: int, name: str) -> ClientRecord:
    known = {field: values[client] for field, values in item.client.items()}
    scores = Scores(
        samples=str(item.samples[client]),
        client={field: None if math.isnan(value) else float(value) for field, value in known.items()},
        counts=tuple(tuple(row) for row in item.counts[client].tolist()),  # type: ignore[arg-type]
        gaps=tuple(item.gaps[client].tolist()),
        shared=None if item.shared is None or math.isnan(item.shared[client]) else float(item.shared[client]),
        differs=None if item.differs is None else float(np.nan_to_num(item.differs[client])),
        discordant=int(item.discordant[client]) if len(item.discordant) else None,
        pairs={label: tuple(tuple(row) for row in sums[client].tolist()) for label, sums in item.pairs.items()},
        tuned={field: float(values[client]) for field, values in item.tuned.items()},
    )
    return ClientRecord(name, int(item.n[client]), scores)


def join(records: RunRecords) -> dict[str, Any]:
    """Return the fields of ``Records``, and what clients ``tuned``, for a run whose clients have these records.

    A client that withholds its scores counts as one without samples.
    """
    told = [each.scores for each in records.clients]
    first = next((each for each in told if each is not None), None)
    if first is None:
        raise ValueError("all clients withhold their scores")
    classes, seeds = len(first.counts[0]), {label: len(sums) for label, sums in first.pairs.items()}

    def gather(field: str, otherwise: Any) -> NDArray[Any]:
        return np.asarray([otherwise if each is None else getattr(each, field) for each in told])

    def number(values: Sequence[float | None]) -> NDArray[np.float64]:
        return np.asarray([math.nan if value is None else value for value in values], np.float64)

    sizes = np.asarray([each.n for each in records.clients], np.int64)
    withheld = np.asarray([each is None for each in told])
    return {
        "n": np.where(withheld, 0, sizes),
        "withheld": np.where(withheld, sizes, 0),
        "samples": gather("samples", ""),
        "client": {
            name: number([None if each is None else each.client[name] for each in told]) for name in first.client
        },
        "counts": gather("counts", np.zeros((3, classes), np.int64)).astype(np.int64),
        "gaps": gather("gaps", np.zeros(len(first.gaps))).astype(np.float64),
        "shared": None
        if all(each is None or each.shared is None for each in told)
        else number([None if e is None else e.shared for e in told]),
        "differs": None if first.differs is None else gather("differs", 0.0).astype(np.float64),
        "discordant": np.zeros(0) if first.discordant is None else gather("discordant", 0).astype(np.int64),
        "pairs": {
            label: np.asarray([np.zeros((count, 3)) if e is None else e.pairs[label] for e in told], np.int64)
            for label, count in seeds.items()
        },
        "tuned": {name: number([None if each is None else each.tuned[name] for each in told]) for name in first.tuned},
    }


def write(path: Path, records: RunRecords | SiteRecords) -> int:
    """Write a file of records, and return its bytes; raises ValueError for an infinite number."""
    content = json.dumps(asdict(records), allow_nan=False, separators=(",", ":")).encode()
    disk.write(path, [content])
    return len(content)


def read(path: Path) -> RunRecords:
    """Read a file of records; raises InputError if it has anything else, or numbers that contradict one another."""
    with foreign.reading(path, "records of clients"):
        records: RunRecords = manifests.validate(RunRecords, _read_json(path))
        require_consistent(records)
        return records


def read_site(path: Path) -> SiteRecords:
    """Read the records of a site; raises InputError as ``read`` does."""
    with foreign.reading(path, "the scores of a site"):
        records: SiteRecords = manifests.validate(SiteRecords, _read_json(path))
        for each in records.runs:
            require_consistent(each)
        return records


def _read_json(path: Path) -> Any:
    value = json.loads(foreign.read_json_text(path))
    if isinstance(value, dict) and value.get("version", VERSION) != VERSION:
        raise ValueError(f"its version is {value['version']}, and this pfl reads version {VERSION}")
    return value


def require_consistent(records: RunRecords) -> None:
    """Raise ValueError unless names differ, all clients have the same fields, and no number exceeds another one."""
    names = [each.name for each in records.clients]
    if len({*names}) < len(names):
        raise ValueError("a client occurs twice")
    forms = {describe_form(each.scores) for each in records.clients} - {None}
    if len(forms) > 1:
        raise ValueError("clients tell different things")
    for each in records.clients:
        if each.scores is not None and (fault := _find_fault(each.n, each.scores)):
            raise ValueError(f"client {each.name!r} with {counted(each.n, 'sample')}: {fault}")


def describe_form(scores: Scores | None) -> tuple[Any, ...] | None:
    """Return what must be the same for all clients of a run; None for a client that withholds its scores."""
    if scores is None:
        return None
    return (
        tuple(scores.client),
        tuple(map(len, scores.counts)),
        len(scores.gaps),
        scores.differs is None,
        scores.discordant is None,
        tuple((label, len(sums)) for label, sums in scores.pairs.items()),
        tuple(scores.tuned),
    )


def _find_fault(n: int, scores: Scores) -> str:
    """Return what is wrong with the scores of a client; empty if nothing is."""
    labels, predicted, hits = scores.counts
    numbers = [*scores.client.values(), *scores.gaps, scores.shared, scores.differs, *scores.tuned.values()]
    if not all(abs(value) <= _LARGEST for value in numbers if value is not None):
        return "a number is not finite, or too large"
    if len({len(labels), len(predicted), len(hits)}) > 1:
        return "counts of different numbers of classes"
    if labels and (sum(labels) != n or sum(predicted) != n):
        return "counts by class do not add up to the samples"
    if any(hit > min(pair) for hit, *pair in zip(hits, labels, predicted, strict=True)):
        return "more right predictions of a class than labels or predictions"
    if labels and n and abs((scores.client.get("accuracy", sum(hits) / n) or 0) - sum(hits) / n) > _ROUNDING:
        return "accuracy is not that of the right predictions"
    if sum(map(abs, scores.gaps)) > n + _ROUNDING:
        return "confidences exceed the samples"
    if (scores.discordant or 0) > n:
        return "more discordant samples than samples"
    sums = [row for rows in scores.pairs.values() for row in rows]
    if any(shared > n or abs(product) > shared or abs(own) > shared for shared, product, own in sums):
        return "sums of differences exceed the samples"
    return ""
