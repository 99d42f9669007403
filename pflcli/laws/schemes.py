"""The laws of schemes."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from pflcli import config
from pflcli.data import schemes
from pflcli.data.datasets import Samples
from pflcli.errors import UsageError
from pflcli.laws import BrokenLawError, DoubtfulError, NotApplicable, Subject, law, other_process, require

_CLIENTS = 8


def _samples(count: int = 600, classes: int = 10) -> Samples:
    """Return small images of ten classes or another number of them, by ten owners, with superclasses."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, classes, count)
    x = draw.integers(0, 256, (count, 4, 4)).astype(np.uint8)
    owner = np.asarray([f"owner {number}" for number in draw.integers(0, 10, count)])
    return Samples(x, y, classes, owner, coarse=y // 2)


def _split(subject: Subject, samples: Samples, clients: int = _CLIENTS, seed: int = 0) -> list[Any]:
    code = schemes.load(subject.name)
    cfg = config.build(code.Config, subject.options, subject.name)
    return code.split(samples, clients, cfg, np.random.default_rng(seed))


def _require_valid(parts: list[Any], samples: Samples) -> None:
    """Require rows that exist, each of them at most once."""
    rows = np.concatenate([np.asarray(part) for part in parts])
    require(np.issubdtype(rows.dtype, np.integer), f"rows are {rows.dtype} instead of integers")
    require(bool((rows >= 0).all() and (rows < len(samples.y)).all()), "a row is outside of the samples")
    require(len(np.unique(rows)) == len(rows), f"{len(rows) - len(np.unique(rows))} rows are given twice")


@law("schemes")
def no_sample_has_two_clients(subject: Subject) -> None:
    """Every client's rows exist, and no row is given to two clients or twice to one.

    Otherwise a training sample of one client could be a test sample of another.
    """
    samples = _samples()
    _require_valid(_split(subject, samples), samples)


@law("schemes")
def every_sample_has_a_client(subject: Subject) -> None:
    """Every sample is given to a client, unless the file has ``LEAVES_OUT = True``.

    Samples that are lost without a word make a dataset smaller than tables say.
    """
    if schemes.load(subject.name).LEAVES_OUT:
        raise NotApplicable("the file has LEAVES_OUT = True")
    for count, classes, clients in ((600, 10, _CLIENTS), (601, 10, _CLIENTS), (607, 10, 5), (600, 20, _CLIENTS)):
        given = sum(len(part) for part in _split(subject, _samples(count, classes), clients))
        seen = f"{count - given} of {count} samples of {classes} classes"
        require(given >= count, f"{seen} are given to none of {clients} clients")


@law("schemes")
def no_client_has_everything(subject: Subject) -> None:
    """The samples are divided: no client has all of them. (A warning if a client has more than nine of ten.)

    With one client that has samples, nothing is federated.
    """
    shares, largest = [], []
    for seed in range(3):
        sizes = np.asarray([len(part) for part in _split(subject, _samples(), seed=seed)])
        shares.append(sizes.max() / max(sizes.sum(), 1))
        largest.append(int(sizes.argmax()))
    everything = min(shares) == 1
    require(not (everything and len(set(largest)) == 1), f"client {largest[0]} has all samples, for any seed")
    if min(shares) > 0.9:
        raise DoubtfulError(f"one of {_CLIENTS} clients has {100 * min(shares):.0f} % of the samples, for any seed")


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
def another_seed_gives_another_split(subject: Subject) -> None:
    """Another generator gives clients other rows, in any order, unless the file has ``RANDOM = False``; then it gives
    the same ones.

    Several seeds show how much a result depends on the split. If the seed has no effect, their interval is too narrow.
    """
    first, second = (map(np.sort, _split(subject, _samples(), seed=seed)) for seed in (0, 1))
    same = all(map(np.array_equal, first, second))
    is_random = schemes.load(subject.name).RANDOM
    require(
        same != is_random, "seeds 0 and 1 give the same rows" if same else "RANDOM = False, but the seed has an effect"
    )


@law("schemes")
def another_process_gives_the_same_split(subject: Subject) -> None:
    """Another process, in which Python orders sets and hashes words otherwise, gives the same rows.

    A partition can be repeated from its seed on another day and on another machine.
    """
    same = other_process.call(digest_split, subject) == digest_split(subject)
    require(same, "another process gives other rows: is something in the order of a set, or of hashes?")


def digest_split(subject: Subject) -> str:
    """Return a hash of each client's rows."""
    parts = [np.asarray(part, dtype=np.int64).tobytes() for part in _split(subject, _samples())]
    return hashlib.sha256(b"|".join(parts)).hexdigest()


@law("schemes")
def splitting_does_not_change_samples(subject: Subject) -> None:
    """``split`` does not change the samples in place.

    The samples that are written would no longer be those of the dataset.
    """
    samples, untouched = _samples(), _samples()
    _split(subject, samples)
    require(samples.sha256() == untouched.sha256(), "split changes the samples that it is given")


@law("schemes")
def odd_samples_are_split_or_refused(subject: Subject) -> None:
    """Samples that lack a class, and features without owners or superclasses, are split or refused by a UsageError.

    Users bring data of all kinds, and get a message of one line instead of a traceback.
    """
    whole = _samples()
    without_class = whole.take(np.flatnonzero(whole.y != 3))
    features = Samples(whole.x.reshape(600, 16).astype(np.float32), whole.y, 10)
    for samples in (without_class, features):
        try:
            parts = _split(subject, samples)
        except UsageError:
            continue
        _require_valid(parts, samples)
        require(len(parts) == _CLIENTS, f"{len(parts)} parts for {_CLIENTS} clients")


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
