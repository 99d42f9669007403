"""The laws of schemes."""

from __future__ import annotations

from typing import Any

import numpy as np

from pflcli import config
from pflcli.data import schemes
from pflcli.data.datasets import Samples
from pflcli.errors import UsageError
from pflcli.laws import BrokenLawError, Subject, law, require

_CLIENTS = 8


def _samples() -> Samples:
    """Return 600 small images of ten classes, by ten owners, with superclasses."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 10, 600)
    x = draw.integers(0, 256, (600, 4, 4)).astype(np.uint8)
    owner = np.asarray([f"owner {number}" for number in draw.integers(0, 10, 600)])
    return Samples(x, y, 10, owner, coarse=y // 2)


def _split(subject: Subject, samples: Samples, clients: int = _CLIENTS, seed: int = 0) -> list[Any]:
    code = schemes.load(subject.name)
    cfg = config.build(code.Config, subject.options, subject.name)
    return code.split(samples, clients, cfg, np.random.default_rng(seed))


@law("schemes")
def no_sample_has_two_clients(subject: Subject) -> None:
    """Every client's rows exist, and no row is given to two clients or twice to one.

    Otherwise a training sample of one client could be a test sample of another.
    """
    samples = _samples()
    rows = np.concatenate([np.asarray(part) for part in _split(subject, samples)])
    require(np.issubdtype(rows.dtype, np.integer), f"rows are {rows.dtype} instead of integers")
    require(bool((rows >= 0).all() and (rows < len(samples.y)).all()), "a row is outside of the samples")
    require(len(np.unique(rows)) == len(rows), f"{len(rows) - len(np.unique(rows))} rows are given twice")


@law("schemes")
def there_are_as_many_clients_as_asked_for(subject: Subject) -> None:
    """``split`` returns one array of rows for each client that ``--clients`` asks for.

    Tables report this number of clients.
    """
    for clients in (5, _CLIENTS):
        parts = _split(subject, _samples(), clients)
        require(len(parts) == clients, f"{len(parts)} parts for {clients} clients")


@law("schemes")
def the_same_seed_gives_the_same_split(subject: Subject) -> None:
    """The same generator gives the same rows.

    A partition can be repeated from its seed.
    """
    first, second = (_split(subject, _samples()) for _ in range(2))
    require(all(map(np.array_equal, first, second)), "the same seed gives other rows")


@law("schemes")
def impossible_requests_are_refused(subject: Subject) -> None:
    """More clients than samples are refused by a UsageError that says what is possible.

    Users who mistype a number get a one-line message instead of a traceback.
    """
    try:
        _split(subject, _samples(), clients=10_000)
    except UsageError as error:
        require(bool(error.message), "the error has no message")
    else:
        raise BrokenLawError("10,000 clients of 600 samples are accepted")


@law("schemes")
def transforms_keep_samples_valid(subject: Subject) -> None:
    """If clusters transform samples, each cluster keeps their number, shape and type, and labels stay in range.

    The samples of a partition are checked before they are written.
    """
    code, samples = schemes.load(subject.name), _samples()
    cfg = config.build(code.Config, subject.options, subject.name)
    cluster = code.cluster(_CLIENTS, cfg)
    groups = [] if cluster is None else np.unique(cluster).tolist()
    require(cluster is None or len(cluster) == _CLIENTS, "cluster() does not return a cluster for each client")
    for group in groups:
        x, y = code.transform(samples.x, samples.y, group, samples.classes, cfg, np.random.default_rng(0))
        require(x.shape == samples.x.shape and x.dtype == samples.x.dtype, f"cluster {group} changes shape or type")
        sound = len(y) == len(x) and bool((y >= 0).all() and (y < samples.classes).all())
        require(sound, f"cluster {group} has labels outside of 0 to {samples.classes - 1}")
