"""The laws of schemes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core import config, rng, schemes
from pflcli.core.datasets import Samples
from pflcli.core.errors import UsageError
from pflcli.plugins.checks.laws import DoubtfulError, Subject, law, other_process
from pflcli.plugins.checks.laws import datasets as laws_of_datasets
from pflcli.workflow.admission import BrokenLawError, NotApplicable, require

_CLIENTS = 8
_SIGNIFICANT = 6.0
"""Standard errors beyond which a correlation differs from zero."""


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
    """The same generator gives the same rows, clusters and transformed samples, and no global generator changes.

    A partition can be repeated from its seed.
    """
    before = rng.read_globals()
    first, second = (_digest(subject) for _ in range(2))
    for what, digest in first.items():
        require(digest == second[what], f"the same seed gives other {what}")
    unchanged = before == rng.read_globals()
    require(unchanged, "a global generator changes: draw from the rng that split and transform are given")


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
    elsewhere = other_process.call(_digest, subject)
    for what, digest in _digest(subject).items():
        same = digest == elsewhere[what]
        require(same, f"another process gives other {what}: is something in the order of a set, or of hashes?")


def _digest(subject: Subject) -> dict[str, str]:
    """Return hashes of each client's rows, of the clusters and of their transformed samples, for seeds 0 and 1."""
    rows, clusters, transformed = (hashlib.sha256() for _ in range(3))
    for seed in (0, 1):
        for part in _split(subject, _samples(), seed=seed):
            rows.update(np.asarray(part, dtype=np.int64).tobytes() + b"|")
        clusters.update(np.asarray(_cluster(subject), dtype=np.int64).tobytes())
        for _, x, y in _transform(subject, seed):
            transformed.update(x.tobytes() + np.asarray(y, dtype=np.int64).tobytes())
    digests = {"rows": rows, "clusters": clusters, "transformed samples": transformed}
    return {what: digest.hexdigest() for what, digest in digests.items()}


def _cluster(subject: Subject) -> NDArray[np.int64]:
    """Return the cluster of each client, (0,) if no clusters transform samples."""
    cfg = config.build(schemes.load(subject.name).Config, subject.options, subject.name)
    cluster = schemes.load(subject.name).cluster(_CLIENTS, cfg)
    return np.zeros(0, np.int64) if cluster is None else cluster


def _transform(subject: Subject, seed: int = 0) -> Iterator[tuple[int, NDArray[Any], NDArray[np.int64]]]:
    """Yield each cluster with all samples as it transforms them, and their labels."""
    code = schemes.load(subject.name)
    cfg = config.build(code.Config, subject.options, subject.name)
    for group in np.unique(_cluster(subject)).tolist():
        samples = _samples()
        draw = np.random.default_rng(seed)
        yield group, *code.transform(samples.x, samples.y, group, samples.classes, cfg, draw)


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
    samples = _samples()
    require(len(_cluster(subject)) in (0, _CLIENTS), "cluster() does not return a cluster for each client")
    for group, x, y in _transform(subject):
        require(x.shape == samples.x.shape and x.dtype == samples.x.dtype, f"cluster {group} changes shape or type")
        sound = len(y) == len(x) and bool((y >= 0).all() and (y < samples.classes).all())
        require(sound, f"cluster {group} has labels outside of 0 to {samples.classes - 1}")


@law("schemes")
def transformed_samples_do_not_tell_the_label(subject: Subject) -> None:
    """If clusters transform samples that have nothing to do with their labels, they still have nothing to do with them.

    No single value of a sample separates a class from the others. (A warning if a value is correlated with a class.)
    With the label in the samples, every method looks perfect.
    """
    for group, x, y in _transform(subject):
        classes = _samples().classes
        if found := laws_of_datasets.find_telling_value(x, y, classes):
            value, label = found
            raise BrokenLawError(f"in cluster {group}, value {value} alone tells whether a sample has label {label}")
        values, is_label = x.reshape(len(y), -1).astype(np.float64), np.eye(classes)[y]
        deviations = [each - each.mean(axis=0) for each in (values, is_label)]
        norms = [np.maximum(np.linalg.norm(each, axis=0), 1e-12) for each in deviations]
        correlation = deviations[0].T @ deviations[1] / np.outer(*norms)
        value, label = np.unravel_index(np.abs(correlation).argmax(), correlation.shape)
        strongest = float(correlation[value, label])
        if abs(strongest) * math.sqrt(len(y)) > _SIGNIFICANT:
            raise DoubtfulError(
                f"in cluster {group}, value {value} has a correlation of {strongest:.2f} with label {label}"
            )
