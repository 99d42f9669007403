"""What each artifact costs: seconds from a rehearsal, bytes from the formats of files, and a few measured constants.

The constants were measured on an AMD EPYC of 2 cores (``benchmarks/estimates.py`` prints what they come to). They stand
for work that a rehearsal does not do: files.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pflcli.estimates.excerpt import Excerpt
from pflcli.estimates.rehearsal import Phases, Rehearsal

_ARTIFACT = 0.04
"""Seconds of any artifact: manifests, locks, a model that is built."""
_READ = 2.5e-9
"""Seconds per byte of a file that is checked and read: SHA-256 takes 1.7 of them."""
_COPIED = 8e-9
"""Seconds per byte of clients' models that a finished run copies into a file, parameter by parameter."""
_ROW = 2e-9
"""Seconds per byte of a client's model that a round writes to a file, beyond what a copy in memory takes."""
_CHECKPOINTS = 1.03
"""Checkpoints: each waits for 20 times what the last one took."""
_START = 2.5
"""Seconds until a process has loaded PyTorch and planned a comparison."""
_TABLE = (1.2, 0.045)
"""Seconds of the table of a comparison and its picture: fixed, and for each of its predictions."""

_LABEL, _ID, _OFFSET = 8, 8, 8
_HDF5 = 4096
"""Bytes of an HDF5 file beside its arrays, and of a manifest."""
_ROW_OF_ROUNDS = 75
"""Bytes of a round in ``rounds.csv``."""
_TABLE_BYTES = (650_000, 150)
"""Bytes of a comparison: its picture, and for each client and method a row of its tables."""


@dataclass(frozen=True)
class Cost:
    """What one artifact costs: processor seconds, bytes on disk, and bytes there only while it is made."""

    seconds: Phases = field(default_factory=Phases)
    disk: float = 0.0
    scratch: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        """Return the cost of one artifact after the other."""
        return Cost(self.seconds + other.seconds, self.disk + other.disk, max(self.scratch, other.scratch))


def of_predictions(rehearsal: Rehearsal, part: Excerpt, rounds: int) -> Cost:
    """Return the cost of ``pfl personalize`` of a method with so many ``rounds``."""
    splits, samples = rehearsal.splits, part.samples * part.sample_bytes
    answered_samples = sum(int(part.sizes[:, ("train", "validation", "test").index(split)].sum()) for split in splits)
    answers = answered_samples * (rehearsal.parts * 4 * part.federation.classes + _LABEL + _ID)
    offsets = len(splits) * (len(part.sizes) + 1) * _OFFSET
    state = rehearsal.state_bytes + rehearsal.table_bytes
    disk = answers + offsets + state + rounds * _ROW_OF_ROUNDS + 2 * _HDF5 + part.codebook_bytes
    # A checkpoint never overwrites the models that the last one needs: during a run there are up to two of each.
    scratch = 2 * rehearsal.table_bytes + rehearsal.state_bytes + answers * (rounds > 0)
    return Cost(_seconds(rehearsal, samples, rehearsal.table_bytes), disk, scratch)


def of_backbone(rehearsal: Rehearsal, part: Excerpt, rounds: int) -> Cost:
    """Return the cost of ``pfl train-global``."""
    samples = part.samples * part.sample_bytes
    disk = rehearsal.model_bytes + rounds * _ROW_OF_ROUNDS + _HDF5 + part.codebook_bytes
    return Cost(_seconds(rehearsal, samples, 0), disk, rehearsal.state_bytes)


def of_embeddings(seconds_per_sample: float, dimension: int, part: Excerpt) -> Cost:
    """Return the cost of ``pfl extract``, where representations have so many dimensions."""
    samples = part.samples * part.sample_bytes
    count = int(part.sizes.sum())
    disk = count * (4 * (dimension + part.federation.classes) + _LABEL + _ID) + 4 * _HDF5 + part.codebook_bytes
    seconds = Phases(seconds_per_sample * count, _ARTIFACT + _READ * (samples + 2 * disk))
    return Cost(seconds, disk + 3 * (len(part.sizes) + 1) * _OFFSET)


def of_datastore(dimension: int, part: Excerpt, embeddings: Cost) -> Cost:
    """Return the cost of ``pfl build-datastore`` with exact indexes."""
    count, clients = int(part.sizes[:, 0].sum()), len(part.sizes)
    disk = count * (4 * dimension + _LABEL + _ID) + clients * (45 + 3 * _OFFSET) + 2 * _HDF5 + part.codebook_bytes
    return Cost(Phases(0.0, _ARTIFACT + _READ * (embeddings.disk + 2 * disk) + 4e-5 * clients), disk)


def of_stack(part: Excerpt, pooled: int) -> Cost:
    """Return the cost of ``pfl stack`` of the predictions of ``pooled`` methods."""
    answered_samples = int(part.sizes[:, 1:].sum())
    disk = answered_samples * (2 * 4 * part.federation.classes + _LABEL + _ID) + 2 * _HDF5 + part.codebook_bytes
    return Cost(Phases(0.0, _ARTIFACT + 2e-7 * answered_samples * pooled * part.federation.classes), disk)


def of_table(methods: int, predictions: int, clients: int) -> Cost:
    """Return the cost of a comparison beside its steps: the process, and the table of so many ``predictions``."""
    fixed, each = _TABLE
    picture, row = _TABLE_BYTES
    return Cost(
        Phases(0.0, _START + fixed + each * predictions), picture + row * clients * predictions * 0.5 + 4000 * methods
    )


def _seconds(rehearsal: Rehearsal, samples: int, tables: float) -> Phases:
    """Return the seconds of a run with its files."""
    total = (rehearsal.rounds + rehearsal.answers).times(_CHECKPOINTS)
    written = _ROW * rehearsal.written_bytes + _COPIED * tables
    return total + Phases(0.0, _ARTIFACT + _READ * (samples + rehearsal.state_bytes) + written)
