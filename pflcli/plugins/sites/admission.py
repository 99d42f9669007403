"""Whether a method can run among real sites with the bytes of its simulation.

A simulation is recorded: what was delivered to each client in each phase, and what each sent. Then each client alone
plays the phases at a site, with what was delivered to it, while every number of the server is nan: it has to send and
keep the same. And the server plays them without a sample, with what clients sent: its state, and what it delivers, have
to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core import config, methods, parameters, rng
from pflcli.core.engine.federation import Federation
from pflcli.core.federation.run import NOBODY, Average, Channel, Delivery, Package, Place, Run, RunInputs
from pflcli.core.methods import Method, State
from pflcli.core.parameters import Params, Stacked, TrainedClients
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.settings import Settings
from pflcli.core.simulation import loop
from pflcli.core.simulation.create_run import create_run
from pflcli.plugins.sites.after_rounds import embed_by_layer, sends_after_rounds
from pflcli.plugins.sites.endpoints import final_entries, kept_in_rows, replace_entries, server_entries
from pflcli.plugins.sites.messages import Layout, Patterns
from pflcli.plugins.sites.opening import rehearse
from pflcli.plugins.sites.places import Arrived, AtServer, AtSite, Pending, Reply, Sent, split_package
from pflcli.workflow import admission
from pflcli.workflow.admission import BrokenLawError, NotApplicable, describe_error, require
from pflcli.workflow.admission import small_federation as small
from pflcli.workflow.admission.own_samples import require_own_samples

_MIN_ROUNDS = 4
"""Least rounds of a check: a method may do something else after some rounds, such as those of a warm-up."""
_ROUNDING = 2e-7
"""Maximum difference of predictions that is due to the number of clients that predict together."""


@dataclass
class _Phase:
    """What was exchanged in one play of a phase, by client, and the clients (n,) that took part."""

    notes: Any = None
    asked: NDArray[np.int64] = field(default_factory=NOBODY.copy)
    deliveries: list[dict[int, Params]] = field(default_factory=list)
    channels: list[dict[int, tuple[Params, float, float]]] = field(default_factory=list)
    """tensors, weight and loss"""
    updates: set[int] = field(default_factory=set)
    """the channels of which the server takes a mean"""


class _Recorded(Place):
    """A simulation that records what is exchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = _Phase()
        self.averaged = 0
        """the bytes of updates of which the server takes means"""
        self.is_over = False
        """whether the rounds are over; before, personal models are measured, which is no phase"""

    def _begin(self, run: Run) -> _Phase:
        if run.sealed and not self.is_over:
            return _Phase()
        if self.phase.notes is not run.notes:
            self.phase = _Phase(run.notes)
        return self.phase

    def cohort(self, run: Run, t: int) -> NDArray[np.int64]:
        """Draw the clients of a round, and record them."""
        self._begin(run).asked = super().cohort(run, t)
        return self.phase.asked

    def participants(self, run: Run) -> NDArray[np.int64]:
        """Return all participants, and record them."""
        self._begin(run).asked = super().participants(run)
        return self.phase.asked

    def deliver(self, run: Run, clients: NDArray[np.int64], delivery: Delivery) -> Iterator[Package]:
        """Record what each client receives."""
        received = dict[int, Params]()
        self._begin(run).deliveries.append(received)

        def follow() -> Iterator[Package]:
            for ids, package in super(_Recorded, self).deliver(run, clients, delivery):
                for receivers, own in split_package(delivery, ids, package):
                    received.update({client: _copy(own) for client in receivers})
                yield ids, package

        return follow()

    def collect(self, run: Run, parts: Iterable[TrainedClients], channel: Channel) -> Iterator[TrainedClients]:
        """Record what each client sends."""
        sent = dict[int, tuple[Params, float, float]]()
        self._begin(run).channels.append(sent)
        for name, value in {**channel.like, **channel.also}.items():
            require(value.layout == torch.strided, f"'{name}' is no dense tensor")

        def follow() -> Iterator[TrainedClients]:
            for part in super(_Recorded, self).collect(run, parts, channel):
                for place, client in enumerate(part.clients.tolist()):
                    own = _copy(parameters.pick(part.params, place))
                    like = parameters.outline({**channel.like, **channel.also})
                    require(parameters.outline(own) == like, f"client {client} sends something in another form")
                    sent[client] = own, float(part.weights[place]), float(part.loss[place])
                yield part

        return follow()

    def relay(self, run: Run, table: ModelTable, wanted: Mapping[int, NDArray[np.int64]]) -> None:
        """Record who asks for which rows, and the rows."""
        asked, received = dict[int, tuple[Params, float, float]](), dict[int, Params]()
        phase = self._begin(run)
        phase.channels.append(asked)
        phase.deliveries.append(received)
        for client, ids in wanted.items():
            mask = torch.zeros(len(run.clients), dtype=torch.bool)
            mask[torch.from_numpy(np.sort(ids))] = True
            asked[client] = {"wanted": mask}, 0.0, 0.0
            if len(ids):
                received[client] = {**table[np.sort(ids)], ":ids": torch.from_numpy(np.sort(ids))}

    def mean(self, run: Run, downloaded: Params) -> Average:
        """Return a mean that records uploads."""
        phase = self._begin(run)
        phase.updates.add(len(phase.channels))
        phase.channels.append({})
        return _RecordedMean(run, downloaded, phase.channels[-1], self)

    def sends_more(self, run: Run) -> bool:
        """Return whether clients have sent more than updates of which the server takes means."""
        return run.traffic["up"] + run.traffic["peer"] > self.averaged


class _RecordedMean(Average):
    """A mean of which each upload is recorded."""

    is_plain = False

    def __init__(
        self, run: Run, downloaded: Params, sent: dict[int, tuple[Params, float, float]], place: _Recorded
    ) -> None:
        super().__init__(run, downloaded)
        self._sent, self._place = sent, place

    def add(self, params: Stacked, weights: NDArray[np.float64], clients: NDArray[np.int64]) -> None:
        before = self._run.traffic["up"]
        received = self._run.upload(params, self._downloaded, clients)
        self._place.averaged += self._run.traffic["up"] - before
        for place, client in enumerate(clients.tolist()):
            self._sent[client] = _copy(parameters.pick(received, place)), float(weights[place]), 0.0
        self._uploads.add(received, weights)
        self._clients.append(clients)


def _make_run(method: str, plan: Mapping[str, Any], data: Federation, inputs: RunInputs) -> Run:
    """Return a run of a method with the options and settings of a ``plan``, and a backbone if it needs one."""
    code, settings = methods.load(method), {key: value for key, value in plan.items() if key != "options"}
    chosen = config.build(Settings, {"model": "mlp", "participation": 0.5, "batch_size": 4, **settings}, "")
    cfg = config.build(code.Config, plan["options"], method)
    run = create_run(code, cfg, data, chosen, 0, replace(inputs, private_rng=partial(rng.generator, 0)))
    if not code.NEEDS:
        return run
    assert run.draw_model is not None
    backbone = run.draw_model(1)
    return replace(run, inputs=replace(run.inputs, backbone=backbone, embeddings=embed_by_layer(run, backbone, None)))


def rehearse_small(method: str) -> Patterns:
    """Return what clients of the small federation exchange by a method with its default options."""
    data, inputs = (
        keep_samples(small.make_federation(), NOBODY, declared=True),
        RunInputs(place=AtServer(rehearses=True)),
    )
    return rehearse(method, methods.load(method), _make_run(method, {"options": {}, "rounds": 3}, data, inputs))


class _Places:
    """The recorded simulation of the small federation, a site for each group of clients, and the server."""

    def __init__(self, method: str, plan: Mapping[str, Any], groups: Sequence[NDArray[np.int64]]) -> None:
        self.name, self.code = method, methods.load(method)
        make, data = partial(_make_run, method, plan), small.make_federation()
        self.recorded, self.at_server = _Recorded(), AtServer(unpacks=False)
        self.run = make(data, RunInputs(place=self.recorded))
        self.server = make(keep_samples(data, NOBODY, declared=True), RunInputs(place=self.at_server))
        self.sites = {
            tuple(group.tolist()): make(keep_samples(data, group), RunInputs(place=AtSite(sizes=data.sizes("train"))))
            for group in groups
        }
        self.states: dict[tuple[int, ...], State] = {}
        self.state: State = {}
        self.at_its_server: State = {}

    def play(self, t: int) -> None:
        """Play round ``t``, or the setup before the first, in all places; raises BrokenLawError if one differs."""
        self.recorded.phase = _Phase()
        self.state = self._advance(self.run, self.state, t)
        if t < 0:
            self._in_rows = kept_in_rows(self.code, self.state, len(self.run.clients))
        phase, when = self.recorded.phase, "the setup" if t < 0 else f"round {t + 1}"
        for group, run in self.sites.items():
            asked = run.clients[np.isin(run.clients, group) & (np.isin(run.clients, phase.asked) | (t < 0))]
            if len(asked):
                state = poison(self.code, self.states.get(group, {}))
                self.states[group] = self._at_one_site(run, state, asked, t, when)
        self._at_server(lambda: self._advance(self.server, self.at_its_server, t), when)
        self._compare_rows(phase.asked if t >= 0 else self.run.clients, when)

    def _advance(self, run: Run, state: State, t: int) -> State:
        if t < 0:
            run.tables = 0
            return loop.set_up(run, self.name, self.code).state
        after, _ = loop.play_round(run, self.name, self.code, state, t)
        return dict(after)

    def _at_one_site(self, run: Run, state: State, asked: NDArray[np.int64], t: int, when: str) -> State:
        """Play a phase at a site, and compare what it sends; returns the state after it."""
        place = run.inputs.place
        assert isinstance(place, AtSite)
        self._bring(place, asked)
        alone = f"{when}, client {asked[0]}" if len(asked) == 1 else when
        try:
            after = self._advance(run, state, t)
        except Pending:
            raise BrokenLawError(f"{alone}: waits for what was not delivered in the simulation") from None
        except Exception as error:
            text = describe_error(error)
            raise BrokenLawError(f"clients cannot train if they know only what they download: {text}") from error
        self._compare_sent(place, asked, when)
        return after

    def _bring(self, place: AtSite, asked: NDArray[np.int64]) -> None:
        """Let what was delivered arrive at a site."""
        place.reset()
        place.asked, place.arrived = (
            asked,
            [
                Arrived({c: c for c in asked.tolist() if c in packages}, partial(_read, packages))
                for packages in self.recorded.phase.deliveries
            ],
        )

    def _compare_sent(self, place: AtSite, asked: NDArray[np.int64], when: str) -> None:
        alone, phase = f"{when}, client {asked[0]}" if len(asked) == 1 else when, self.recorded.phase
        require(place.received == len(phase.deliveries), f"{alone}: receives less than was delivered")
        require(len(place.channels) == len(phase.channels), f"{alone}: has other channels than in the simulation")
        sizes = self.run.federation.sizes("train")
        depends = (
            "depends on more than it downloaded" if len(asked) > 1 else "depends on the other clients of the round"
        )
        for number, sent in enumerate(phase.channels):
            own = place.sent.get(number, {})
            expected = {client: each for client, each in sent.items() if client in asked}
            require(own.keys() == expected.keys(), "other clients upload at a site than in a simulation")
            for client, (params, weight, _) in expected.items():
                differing = [
                    name for name, value in params.items() if _bytes(value) != _bytes(own[client][0].get(name))
                ]
                seen = f"{when}, client {client}: its upload {depends}"
                require(
                    not differing and params.keys() == own[client][0].keys(), f"{seen} ({', '.join(differing[:1])})"
                )
                require(weight == own[client][1], f"{seen} (its weight)")
                if number in phase.updates and not 0 < weight <= sizes[client]:
                    raise NotApplicable("an update weighs nothing, or more than its client has training samples")

    def _at_server(self, advance: Callable[[], State], when: str) -> None:
        """Play a phase at the server, and compare the state that ``advance`` returns, and what it delivers."""
        place, phase = self.at_server, self.recorded.phase
        place.reset()
        place.replies = {
            client: Reply(
                trained=True,
                complete={*range(len(phase.channels))},
                sent={
                    number: Sent(partial(_copy, sent[client][0]), *sent[client][1:])
                    for number, sent in enumerate(phase.channels)
                    if client in sent
                },
            )
            for client in phase.asked.tolist()
        }
        try:
            self.at_its_server = advance()
        except Exception as error:
            text = "a channel is missing" if isinstance(error, Pending) else describe_error(error)
            raise BrokenLawError(f"{when}: the server needs more than clients send: {text}") from error
        expected, seen = (server_entries(self.code, each) for each in (self.state, self.at_its_server))
        small.require_equal(expected, seen, f"{when}: what the server computes depends on samples")
        require(len(place.deliveries) == len(phase.deliveries), f"{when}: the server delivers something else")
        for (_, made), recorded in zip(place.deliveries, phase.deliveries, strict=True):
            for client in phase.asked.tolist():
                same = small.are_equal(made.get(client), recorded.get(client))
                require(same, f"{when}: what the server delivers to client {client} depends on samples")

    def _compare_rows(self, clients: NDArray[np.int64], when: str) -> None:
        """Require that what is kept of each client is right at its site or, in a table, at the server."""
        for group in self.sites:
            own = np.intersect1d(clients, group)
            here, there = (_rows_of(self.code, each, own, self._in_rows) for each in (self.state, self.states[group]))
            server = _rows_of(self.code, self.at_its_server, own, self._in_rows)
            for key, rows in here.items():
                places = [there, server] if key.startswith("table ") else [there]
                same = any(small.are_equal(rows, each.get(key)) for each in places)
                if len(group) > 1:
                    seen = f"{when}: what a client keeps depends on more than it downloaded"
                else:
                    seen = f"{when}: what a client keeps depends on the other clients of the round"
                require(same, f"{seen} ('{key.partition(' ')[2]}')")

    def personalize(self) -> None:
        """Predict at the sites; raises BrokenLawError if predictions are others than those of the simulation."""
        self.recorded.phase, self.recorded.is_over = _Phase(), True
        expected = small.predict(self.name, self.run, self.state)
        self.recorded.phase.asked = self.run.clients
        entries, data = final_entries(self.code, self.state), self.run.federation
        for group, run in self.sites.items():
            place, own = run.inputs.place, np.asarray(group)
            assert isinstance(place, AtSite)
            self._bring(place, own)
            known, state = final_entries(self.code, self.states[group]), self.states[group]
            if self.code.has_rounds:
                if parameters.outline(known) != parameters.outline(entries):
                    raise NotApplicable("the server's part of the state gets another form in the rounds")
                state = replace_entries(poison(self.code, state), entries)
            elif not len(np.intersect1d(own, data.participants)):
                continue  # no site of a deployment has no training sample
            try:
                seen = small.predict(self.name, run, state, own)
            except Exception as error:
                text = "a delivery is missing" if isinstance(error, Pending) else describe_error(error)
                raise BrokenLawError(f"clients cannot predict with what they receive: {text}") from error
            if self.code.has_rounds:
                self._compare_sent(place, own, "after the rounds")
            for split, values in seen.items():
                rows = np.searchsorted(data.rows_of(data.clients, split), data.rows_of(own, split))
                difference = np.abs(values - expected[split][rows]).max(initial=0)
                require(difference <= _ROUNDING, f"client {own[0]} predicts otherwise at a site ({difference:.1e})")
        if self.recorded.phase.deliveries or self.recorded.phase.channels:  # else sites predict without the server
            self._at_server(self._personalize_nobody, "after the rounds")

    def _personalize_nobody(self) -> State:
        """Let the server do its part of the personalization, without clients; returns its state."""
        self.at_server.asked = self.run.clients
        with self.server.personalizing():
            self.code.personalize(self.server, self.at_its_server, NOBODY)
        return self.at_its_server


def require_same_elsewhere(
    method: str,
    options: Mapping[str, Any],
    rounds: int = _MIN_ROUNDS,
    upload: Sequence[str] = (),
    *,
    are_apart: bool = False,
) -> None:
    """Raise BrokenLawError if a method does not have the bytes of its simulation at sites and their server.

    With ``are_apart``, each client is alone at its site and computes alone in the simulation too, so that nothing may
    depend on the other clients of the round.
    Raises NotApplicable for a method that exchanges something in another way than places know.
    """
    code = methods.load(method)
    if reason := describe_exchange(code):
        raise NotApplicable(reason)
    clients = small.make_federation().clients
    groups = np.split(clients, len(clients)) if are_apart else [clients]
    plan = {"options": options, "rounds": rounds, "upload": upload, "apart": are_apart}
    places = _Places(method, plan, groups)
    try:
        for t in range(-1, rounds):
            places.play(t)
        places.personalize()
    except BrokenLawError as broken:
        if code.SENDS_MORE or places.recorded.sends_more(places.run):
            sent = code.SENDS_MORE or "more than updates that are averaged"
            raise NotApplicable(f"clients send {sent}: {broken}") from broken
        raise


def find_obstacle(method: str, options: Mapping[str, Any], rounds: int, upload: Sequence[str]) -> str:
    """Return why a method with these options cannot run among real sites with its simulation's bytes; empty if it can.

    ``rounds`` and the ``upload`` steps are those of the run.
    """
    code = methods.load(method)
    if not code.has_rounds:
        return _find_obstacle_after_rounds(method, options, upload)
    rounds = min(max(rounds, _MIN_ROUNDS), small.MAX_ROUNDS)
    test = partial(require_same_elsewhere, method, options, rounds, upload, are_apart=True)
    return admission.find_obstacle(test)


def _find_obstacle_after_rounds(method: str, options: Mapping[str, Any], upload: Sequence[str]) -> str:
    """Return why a method that has no rounds cannot run among real sites, as ``find_obstacle`` does."""
    code = methods.load(method)
    if code.TASKS == ("series",):
        return "it predicts series, which sites do not agree on"
    if sends_after_rounds(code):
        return admission.find_obstacle(partial(require_same_elsewhere, method, options, 0, upload, are_apart=True))
    if code.KIND not in ("local", "posthoc"):
        return "samples leave the clients" if code.REFERENCE else "clients exchange something, and it has no rounds"
    return admission.find_obstacle(partial(require_own_samples, method, options, (small.LATE,)))


def describe_exchange(code: Method) -> str:
    """Return what a method exchanges that a deployment does not carry; empty if nothing is known."""
    if sends_after_rounds(code):
        return ""
    if not code.has_rounds:
        return "the method has no rounds"
    if code.KIND not in ("server", "peer"):
        return "clients do not send updates to a server"
    return f"the method needs a {code.NEEDS[0]}" if code.NEEDS else ""


def keep_samples(data: Federation, clients: NDArray[np.int64] | Sequence[int], *, declared: bool = False) -> Federation:
    """Return a federation with the samples of ``clients`` alone; with ``declared``, the others keep their numbers."""
    blocks = [data.rows(int(client), "train", "validation", "test") for client in clients]
    rows = np.concatenate([NOBODY, *blocks])
    sizes = np.diff(data.offsets).reshape(-1, 3).copy()
    others = np.setdiff1d(data.clients, np.asarray(clients, dtype=np.int64))
    sizes[others] *= [int(declared), 0, 0]
    offsets = np.concatenate([[0], np.cumsum(sizes.ravel())])
    return replace(data, x=data.x[torch.from_numpy(rows)], y=data.y[torch.from_numpy(rows)], offsets=offsets)


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


def _rows_of(
    code: Method, state: State, clients: NDArray[np.int64], in_rows: set[str], prefix: str = ""
) -> dict[str, Any]:
    """Return what is kept of clients (n,) in tables and in ``KEEPS``, by its kind and path."""
    found = dict[str, Any]()
    for key, value in state.items():
        if isinstance(value, ModelTable):
            found[f"table {prefix}{key}"] = value[clients]
        elif key in code.KEEPS and key in in_rows:
            found[f"keeps {prefix}{key}"] = value[torch.from_numpy(clients)]
        elif isinstance(value, Mapping) and key not in code.KEEPS:
            found |= _rows_of(code, dict(value), clients, in_rows, f"{prefix}{key}/")
    return found


def _copy(params: Params) -> Params:
    return {name: value.clone() for name, value in params.items()}


def _read(packages: Mapping[int, Params], holder: int, layout: Layout) -> Params:
    """Return what was delivered to a client; raises BrokenLawError if it has another form than the method says."""
    require(packages[holder].keys() == layout.keys(), "what is delivered has other tensors than the method says")
    return _copy(packages[holder])


def _bytes(value: torch.Tensor | None) -> bytes:
    return b"" if value is None else value.contiguous().numpy().tobytes()
