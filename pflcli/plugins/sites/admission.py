"""Whether the clients of a method read only what they download, so that it can run among real sites.

A simulation is recorded: who took part in each round, what they downloaded and what they uploaded. The same rounds then
run at a site that has all clients, but of the server only what was downloaded: every other number is nan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core import methods, parameters
from pflcli.core.errors import ComputationError
from pflcli.core.federation.run import NOBODY, Average, Everywhere, Run, RunInputs
from pflcli.core.federation.uploads import Encoding
from pflcli.core.methods import Method, State
from pflcli.core.parameters import Params, Stacked
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.simulation import loop
from pflcli.core.wording import listed
from pflcli.plugins.sites.places import AtSite
from pflcli.workflow import admission
from pflcli.workflow.admission import NotApplicable, require
from pflcli.workflow.admission import small_federation as small
from pflcli.workflow.admission.own_samples import require_own_samples

_MIN_ROUNDS = 4
"""Least rounds of a check: a method may do something else after some rounds, such as those of a warm-up."""


@dataclass
class _Round:
    """The clients of a round (n,), what they downloaded, and the upload and weight of each."""

    asked: NDArray[np.int64] = field(default_factory=NOBODY.copy)
    downloads: list[Params] = field(default_factory=list)
    sent: dict[int, tuple[Params, float]] = field(default_factory=dict)
    copies: list[int] = field(default_factory=list)
    """the number of clients that each download went to"""
    uploads: list[tuple[int, Params]] = field(default_factory=list)
    """the client and content of each upload, in all means"""
    means: int = 0
    size: int = 0
    """bytes of an upload"""


class _Recorded(Everywhere):
    """A simulation that records its rounds; the first is the setup."""

    rounds: list[_Round]

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "rounds", [_Round()])

    def cohort(self, run: Run, t: int) -> NDArray[np.int64]:
        """Draw the clients of a round, and record them."""
        self.rounds.append(_Round(super().cohort(run, t)))
        return self.rounds[-1].asked

    def download(self, run: Run, params: Params, clients: NDArray[np.int64]) -> Params:
        """Record what is downloaded."""
        copied = {name: value.clone() for name, value in params.items()}
        self.rounds[-1].downloads.append(copied)
        self.rounds[-1].copies.append(len(clients))
        return super().download(run, params, clients)

    def mean(self, run: Run, downloaded: Params) -> Average:
        """Return a mean that records uploads."""
        self.rounds[-1].means += 1
        self.rounds[-1].size = Encoding(downloaded, run.uploads).size(downloaded)
        return _RecordedMean(run, downloaded, self.rounds[-1])


class _RecordedMean(Average):
    """A mean of which each upload is recorded."""

    is_plain = False

    def __init__(self, run: Run, downloaded: Params, played: _Round) -> None:
        super().__init__(run, downloaded)
        self._round = played

    def add(self, params: Stacked, weights: NDArray[np.float64], clients: NDArray[np.int64]) -> None:
        received = self._run.upload(params, self._downloaded, clients)
        for place, client in enumerate(clients.tolist()):
            upload = {name: value.clone() for name, value in parameters.pick(received, place).items()}
            self._round.uploads.append((client, upload))
            self._round.sent[client] = upload, float(weights[place])
        self._uploads.add(received, weights)
        self._clients.append(clients)


def require_read_from_downloads(
    method: str,
    options: Mapping[str, Any],
    rounds: int = _MIN_ROUNDS,
    upload: Sequence[str] = (),
    *,
    are_apart: bool = False,
) -> None:
    """Raise BrokenLawError if a client's upload or what it keeps depends on more of the server than its downloads.

    With ``are_apart``, each client is alone at its site and computes alone in the simulation too, so that neither may
    depend on the other clients of the round.
    Raises NotApplicable for a method that exchanges something else than the updates of which it takes one mean a round.
    """
    code = methods.load(method)
    if reason := describe_exchange(code):
        raise NotApplicable(reason)
    plan: dict[str, Any] = {"options": options, "rounds": rounds, "upload": upload, "apart": are_apart}
    recorded, there = _Recorded(), AtSite()
    run, site = (small.make_run(method, inputs=RunInputs(place=place), **plan) for place in (recorded, there))
    state, own = loop.set_up(run, method, code).state, code.setup(site)
    for t in range(-1, rounds):
        before = dict.fromkeys(run.traffic, 0) if t < 0 else dict(run.traffic)
        if t >= 0:
            state, _ = loop.play_round(run, method, code, state, t)
        played = recorded.rounds[t + 1] if len(recorded.rounds) > t + 1 else _Round()
        if played.means > 1 and not are_apart:
            return _require_same_uploads(method, options, rounds)
        _require_one_mean(run, played, before, t)
        if t < 0:
            continue
        uploads = dict[int, tuple[Params, float]]()
        for asked in np.split(played.asked, len(played.asked)) if are_apart else [played.asked]:
            there.asked, there.downloads = asked, played.downloads
            try:
                own, _ = loop.play_round(site, method, code, poison(code, own), t)
            except ComputationError as error:
                require(False, f"clients cannot train if they know only what they download: {error.message}")
            uploads |= there.sent
        require(uploads.keys() == played.sent.keys(), "other clients upload at a site than in a simulation")
        depends = "depends on the other clients of the round" if are_apart else "depends on more than it downloaded"
        for client, (sent, weight) in played.sent.items():
            other, its_weight = uploads[client]
            differing = [name for name, value in sent.items() if _bytes(value) != _bytes(other.get(name))]
            seen = f"round {t + 1}, client {client}: its upload {depends}"
            require(not differing and sent.keys() == other.keys(), f"{seen} ({', '.join(differing[:1])})")
            require(weight == its_weight, f"{seen} (its weight)")
        _require_same_rows(code, state, own, f"round {t + 1}: what a client keeps {depends}")


class _Replayed(_Recorded):
    """A simulation whose clients receive what those of the ``given`` one received."""

    given: _Recorded

    def __init__(self, given: _Recorded) -> None:
        super().__init__()
        object.__setattr__(self, "given", given)

    def download(self, run: Run, params: Params, clients: NDArray[np.int64]) -> Params:
        """Return what clients received at this place of the given simulation."""
        super().download(run, params, clients)
        t = len(self.rounds) - 1
        sent, place = self.given.rounds[t].downloads, len(self.rounds[t].downloads) - 1
        if place >= len(sent) or parameters.outline(sent[place]) != parameters.outline(params):
            raise NotApplicable("what clients download depends on what the server computes")
        return sent[place]


def _require_same_uploads(method: str, options: Mapping[str, Any], rounds: int) -> None:
    """Raise BrokenLawError if an upload depends on more of the server than downloads, with several means in a round.

    Raises NotApplicable if the server sends in another way than by ``run.download``.
    """
    code = methods.load(method)
    recorded = _Recorded()
    replayed = _Replayed(recorded)
    run, other = (
        small.make_run(method, inputs=RunInputs(place=place), options=options, rounds=rounds)
        for place in (recorded, replayed)
    )
    state, own = loop.set_up(run, method, code).state, loop.set_up(other, method, code).state
    for t in range(rounds):
        before = dict(run.traffic)
        state, _ = loop.play_round(run, method, code, state, t)
        played = recorded.rounds[t + 1]
        down = [
            parameters.size(params) * copies for params, copies in zip(played.downloads, played.copies, strict=True)
        ]
        if run.traffic["down"] - before["down"] != sum(down):
            raise NotApplicable("the server sends in another way than by run.download")
        try:
            own, _ = loop.play_round(other, method, code, poison(code, own), t)
        except ComputationError as error:
            require(False, f"clients cannot train if they know only what they download: {error.message}")
        others = replayed.rounds[t + 1].uploads
        require([c for c, _ in played.uploads] == [c for c, _ in others], "other clients upload in a replayed round")
        for (client, sent), (_, again) in zip(played.uploads, others, strict=True):
            difference = small.find_difference(sent, again)
            seen = f"round {t + 1}, client {client}: its upload depends on more than it downloaded"
            require(not difference, f"{seen} ({difference})")


def find_obstacle(method: str, options: Mapping[str, Any], rounds: int, upload: Sequence[str]) -> str:
    """Return why a method with these options cannot run among real sites with its simulation's bytes; empty if it can.

    ``rounds`` and the ``upload`` steps are those of the run.
    """
    code = methods.load(method)
    if not code.has_rounds:
        return _find_obstacle_after_rounds(method, options)
    rounds = min(max(rounds, _MIN_ROUNDS), small.MAX_ROUNDS)
    test = partial(require_read_from_downloads, method, options, rounds, upload, are_apart=True)
    return admission.find_obstacle(test)


def _find_obstacle_after_rounds(method: str, options: Mapping[str, Any]) -> str:
    """Return why clients cannot predict by themselves with a method that has no rounds; empty if they can."""
    code = methods.load(method)
    if code.REFERENCE:
        return "it is a reference, with which simulations compare methods"
    if code.SENDS_MORE:
        return f"clients also send {code.SENDS_MORE}"
    if code.KIND not in ("local", "posthoc"):
        return "clients exchange something outside of rounds"
    if unmet := set(code.NEEDS) - {"backbone", "datastore"}:
        return f"the method needs {listed(sorted(unmet))}, which a deployment does not make for it"
    return admission.find_obstacle(partial(require_own_samples, method, options, (small.LATE,)))


def describe_exchange(code: Method) -> str:
    """Return what a method exchanges that a deployment does not carry; empty if nothing is known."""
    if not code.has_rounds:
        return "the method has no rounds"
    if code.KIND != "server":
        return "clients do not send updates to a server"
    if code.NEEDS:
        return f"the method needs a {code.NEEDS[0]}"
    return f"clients also send {code.SENDS_MORE}" if code.SENDS_MORE else ""


def _require_one_mean(run: Run, played: _Round, before: Mapping[str, int], t: int) -> None:
    """Raise NotApplicable unless a round is a download, an upload per client, and one mean; the setup is nothing."""
    sent = {link: total - before[link] for link, total in run.traffic.items()}
    if t < 0:
        if any(sent.values()):
            raise NotApplicable("clients exchange something before the first round")
        return
    if played.means != 1:
        raise NotApplicable(f"the server takes {played.means} means in a round")
    sizes = run.federation.sizes("train")
    if not all(0 < weight <= sizes[client] for client, (_, weight) in played.sent.items()):
        raise NotApplicable("an update weighs nothing, or more than its client has training samples")
    down = sum(parameters.size(params) for params in played.downloads) * len(played.asked)
    if sent != {"up": played.size * len(played.sent), "down": down, "peer": 0}:
        raise NotApplicable("clients exchange more than a download and the update that the server averages")


def poison(code: Method, state: State) -> State:
    """Return a state in which the server's entries are nan, or -1 for integers."""
    return {key: value if key in code.KEEPS else _poison(value) for key, value in state.items()}


def _poison(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _poison(inner) for key, inner in value.items()}
    if isinstance(value, ModelTable):
        return value
    if value.is_floating_point():
        return torch.full_like(value, float("nan"))
    return torch.zeros_like(value) - 1 if value.dtype != torch.bool else torch.ones_like(value)


def _require_same_rows(code: Method, state: State, own: State, otherwise: str) -> None:
    """Require that tables and what clients keep are the same, bit for bit."""
    for key, value in state.items():
        if isinstance(value, ModelTable) or key in code.KEEPS:
            require(small.are_equal(value, own.get(key)), f"{otherwise} ('{key}')")
        elif isinstance(value, Mapping):
            inner = own[key] if isinstance(own.get(key), Mapping) else {}
            _require_same_rows(code, dict(value), inner, otherwise)


def _bytes(value: torch.Tensor | None) -> bytes:
    return b"" if value is None else value.contiguous().numpy().tobytes()
