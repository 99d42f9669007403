"""Whether rounds with differential privacy reveal a client only by its one clipped update in each noisy mean.

The noise hides one update of each client per round. Two runs on data that differ in one client are compared. The second
run releases the means of the first, so that the two may differ only in the updates of this client: in neither the
updates and the predictions of others nor anything that the server sends. What a server computes from the means alone is
thereby allowed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.artifacts.kinds.partition import read_form
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.core import config, methods, registry
from pflcli.core.datasets import SPLITS
from pflcli.core.engine.federation import Federation
from pflcli.core.errors import UnsuitedError, UsageError
from pflcli.core.federation.private_mean import PrivateMean, Release
from pflcli.core.federation.run import LINKS, RunInputs
from pflcli.core.methods import Method
from pflcli.core.parameters import Params, Stacked, pick
from pflcli.core.settings import Settings
from pflcli.core.simulation import loop
from pflcli.workflow.admission import BrokenLawError, Shape, find_obstacle, networks, require
from pflcli.workflow.admission import small_federation as small

_CLIENT = 6
"""The client by which the data of two runs differ."""
_MIN_ROUNDS = 12
"""Least rounds of each run: what a state keeps may be sent rounds later, such as every fifth or tenth round."""
_ROUNDING = 1e-5
"""Largest distance of two models that count as equal, as a share of 1 + their norm."""
_ROUNDING_OF_P = 1e-4
"""Largest difference of two probabilities that count as equal."""


@dataclass
class _Round:
    """What a server sent and released in one round, and the uploads of which it took the mean, by client."""

    sent: list[Params] = field(default_factory=list)
    uploads: dict[int, Params] = field(default_factory=dict)
    mean: Params = field(default_factory=dict)
    predictions: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """after the last round, the predictions (n, C) of the other clients, by split"""


class _RecordedMean(PrivateMean):
    """A private mean that records its rounds; it releases the means of ``given`` rounds, if there are any."""

    def __init__(self, given: Sequence[_Round], absent: Sequence[int], mean: PrivateMean) -> None:
        super().__init__(mean.noise, mean.clip, mean.adapts, mean.rate, mean.clients, mean.rng)
        self.given, self.absent = given, absent
        self.rounds = [_Round()]  # the first one is the setup
        self.uploading: NDArray[np.int64] = np.zeros(0, np.int64)
        """the clients whose uploads are added next"""

    def sample(self, participants: NDArray[np.int64], t: int) -> NDArray[np.int64]:
        """Return all participants but the ``absent`` ones."""
        return np.setdiff1d(participants, self.absent)

    def begin_round(self, t: int) -> None:
        """Begin a round and its record."""
        super().begin_round(t)
        self.rounds[t + 1 :] = [_Round()]  # a round that is repeated without a client is recorded once

    def begin(self, downloaded: Params) -> Release:
        """Return the recorded mean of this round."""
        super().begin(downloaded)
        self.release = _RecordedRelease(self, downloaded, len(self.rounds) - 2)
        return self.release


class _RecordedRelease(Release):
    """The mean of a round of which each upload is recorded."""

    _mechanism: _RecordedMean

    def add(self, stacked: Stacked, weights: NDArray[np.float64]) -> None:
        """Record the uploads (m, ...) with a positive weight, and add them; require one of each client."""
        uploads = self._mechanism.rounds[-1].uploads
        for place in np.flatnonzero(np.asarray(weights) > 0).tolist():
            client = int(self._mechanism.uploading[place])
            require(client not in uploads, f"the mean of a round has two uploads of client {client}")
            uploads[client] = pick(stacked, place)
        super().add(stacked, weights)

    def value(self) -> Params:
        """Return the mean of the round or, if it is given, that of the other run."""
        record, given = self._mechanism.rounds[-1], self._mechanism.given
        record.mean = super().value()
        mean = given[len(self._mechanism.rounds) - 1].mean if given else record.mean
        return {name: value.clone() for name, value in mean.items()}


def require_checked(name: str, method: Method, cfg: Any, settings: Settings, source: Artifact) -> None:
    """Raise UsageError if an epsilon would be stated for a user's code that breaks ``require_bounded``.

    Code is checked if it is a file of the user or comes from an installed package: the method, an upload step, or the
    network, which must not carry anything from client to client. The tests of the package check its own. ``cfg`` are
    the options of the method; ``source`` is the partition of the clients, or descends from it. As many rounds are
    checked as the run has, up to 50.
    """
    if not settings.dp or not method.has_rounds or "up" not in LINKS[method.KIND]:
        return
    steps = [("uploads", step.partition(":")[0]) for step in settings.upload]
    foreign = [each for each in (("methods", name), *steps) if registry.is_foreign(*each)]
    options, code = json.dumps(config.plain(cfg)), tuple(registry.path(*each).read_bytes() for each in foreign)
    rounds = min(max(settings.rounds, _MIN_ROUNDS), small.MAX_ROUNDS)
    reason = _find_fault(name, options, tuple(settings.upload), rounds, code) if foreign else ""
    partition, model = ancestor(source, "partition"), ("models", settings.model.partition(":")[0])
    if not reason and partition is not None and registry.is_foreign(*model):
        shape = Shape.of_form(read_form(partition))
        reason = _find_fault_of_network(settings.model, shape, registry.path(*model).read_bytes())
        foreign, name = [model], settings.model
    if reason:
        files = [registry.used_files().get("/".join(each), each[1]) for each in foreign]
        raise UsageError(
            f"no epsilon can be stated for {name}, which breaks the law of differential privacy: {reason}",
            *(f"pfl check {file}" for file in files),
            "leave out --dp-epsilon and --dp-noise",
        )


@functools.cache
def _find_fault(name: str, options: str, upload: tuple[str, ...], rounds: int, code: tuple[bytes, ...]) -> str:
    """Return why a method breaks ``require_bounded`` with these options, as JSON; empty if it does not.

    ``code`` is the content of the files that are checked.
    """
    return find_obstacle(lambda: require_bounded(name, json.loads(options), upload, rounds))


@functools.cache
def _find_fault_of_network(name: str, shape: Shape, code: bytes) -> str:
    """Return why what a network computes depends on more than a client's samples; empty if it does not."""
    checks = (networks.require_seeded, networks.require_one_by_one)
    return next(filter(None, (find_obstacle(functools.partial(check, name, shape)) for check in checks)), "")


def require_bounded(
    method: str, options: Mapping[str, Any], upload: Sequence[str] = (), rounds: int = _MIN_ROUNDS
) -> None:
    """Raise BrokenLawError if rounds of a method reveal more of a client than one clipped update in each mean.

    ``upload`` are the upload steps, ``rounds`` how many rounds are played. Raises UnsuitedError if differential privacy
    does not cover the method.
    """
    data, play = small.make_federation(), functools.partial(_play, method, options, upload, rounds)
    first = play(data)
    others = {
        "with other samples of one client": play(_change_client(data), given=first),
        "without one client": play(data, given=first, absent=[_CLIENT]),
    }
    for what, played in others.items():
        for t, (expected, seen) in enumerate(zip(first, played, strict=True)):
            when = f"in round {t}" if t else "before the first round"
            _require_same_sends(expected.sent, seen.sent, f"{what}, the server sends something else {when}")
            for client in sorted({*expected.uploads, *seen.uploads} - {_CLIENT}):
                same = _are_close(expected.uploads.get(client, {}), seen.uploads.get(client, {}))
                require(same, f"{what}, client {client} uploads something else {when}")
        for split, p in first[-1].predictions.items():
            moved = float(np.abs(p - played[-1].predictions[split]).max(initial=0))
            require(
                moved <= _ROUNDING_OF_P,
                f"{what}, others predict otherwise with the same means: probabilities differ by {moved:.1e}",
            )


def _require_same_sends(expected: Sequence[Params], sent: Sequence[Params], otherwise: str) -> None:
    """Require that everything that a server sent is among what it sent in the other run."""
    for params in sent:
        is_known = any(_are_close(params, other) for other in expected)
        require(is_known, f"{otherwise}, although the mean is the same: it sends more than follows from the mean")


def _change_client(data: Federation) -> Federation:
    """Return the federation in which one client has other samples, of which fewer are for training."""
    place = len(SPLITS) * _CLIENT
    offsets = data.offsets.copy()
    offsets[place + 1] -= 2
    return replace(small.replace_samples(data, *SPLITS, clients=np.asarray([_CLIENT])), offsets=offsets)


def _play(
    method: str,
    options: Mapping[str, Any],
    upload: Sequence[str],
    rounds: int,
    data: Federation,
    *,
    given: Sequence[_Round] = (),
    absent: Sequence[int] = (),
) -> list[_Round]:
    """Return the setup and the rounds of a run, the last of which also sends the final global model."""
    run = small.make_run(
        method,
        options=options,
        data=data,
        inputs=RunInputs(private_mean=functools.partial(_RecordedMean, given, absent)),
        upload=[*upload],
        mode="stacked",  # so that upload steps see several clients at once
        rounds=rounds,
        participation=1.0,
        dp_noise=0.0,
        dp_clip="0.05",
    )
    mean = run.privacy
    assert isinstance(mean, _RecordedMean)
    send, receive = run.send, run.upload

    def record(link: str, params: Mapping[str, torch.Tensor], copies: int = 1) -> None:
        if link == "down":
            mean.rounds[-1].sent.append({name: value.clone() for name, value in params.items()})
        send(link, params, copies)

    def note_clients(params: Stacked, downloaded: Any, clients: NDArray[np.int64], **kwargs: Any) -> Stacked:
        mean.uploading = clients
        return receive(params, downloaded, clients, **kwargs)

    run.send, run.upload = record, note_clients  # type: ignore[method-assign]
    code = methods.load(method)
    try:
        state = loop.set_up(run, method, code).state
    except UnsuitedError as error:
        message = f"the file has no SENDS_MORE, and its setup is refused with differential privacy: {error.message}"
        raise BrokenLawError(message) from None
    for t in range(rounds):
        state, _ = loop.play_round(run, method, code, state, t)
    if isinstance(state.get("global"), dict):
        mean.rounds[-1].sent.append(state["global"])
    others = run.clients[run.clients != _CLIENT]
    mean.rounds[-1].predictions = small.predict(method, run, state, others)
    return mean.rounds


def _are_close(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Return whether two models are equal up to rounding."""
    if {name: value.shape for name, value in one.items()} != {name: value.shape for name, value in other.items()}:
        return False
    distance, norm = 0.0, 0.0
    for name, value in one.items():
        distance += float((value.double() - other[name].double()).square().sum())
        norm += float(value.double().square().sum())
    return bool(distance**0.5 <= _ROUNDING * (1 + norm**0.5))
