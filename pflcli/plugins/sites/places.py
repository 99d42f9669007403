"""Where the run of a deployment takes place: at its server, or at one of its sites.

A phase is the setup, a round, or the personalization. It is a sequence of deliveries from the server to clients and of
channels from clients to the server, in the order of the method's calls, which is the same everywhere. A server has no
clients. It plays a phase until it needs a channel that has not arrived, which raises ``Pending``; what it has delivered
until then is the question to the clients. A site plays the phase with its own clients until a delivery has not arrived;
the channels that are complete by then are its answer. Once more arrives, both play the phase again from its beginning;
a site that stays may wait instead, and play on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core import parameters
from pflcli.core.errors import ComputationError, InputError
from pflcli.core.federation.attendance import AllAbsent, Diverged, client_list
from pflcli.core.federation.run import NOBODY, Average, Channel, Delivery, Package, Place, Run, T
from pflcli.core.federation.uploads import Encoding, Step
from pflcli.core.parameters import Params, Stacked, TrainedClients
from pflcli.core.parameters.model_table import ModelTable
from pflcli.plugins.sites.messages import Form, Layout, are_finite, fits

_IDS = ":ids"
"""The tensor with the ids of relayed rows."""


class Pending(Exception):
    """Raised at a place when a phase needs something that has not arrived."""


@dataclass(frozen=True)
class Sent:
    """What a client sends over a channel: tensors, which ``read`` returns, with a weight and a training loss."""

    read: Callable[[], Params]
    weight: float
    loss: float


@dataclass
class Reply:
    """What the server knows of a client in a phase: whether it trained or diverged, and its channels by number."""

    trained: bool = False
    diverged: bool = False
    complete: set[int] = field(default_factory=set)
    """the channels that are complete, also those over which the client sent nothing"""
    sent: dict[int, Sent] = field(default_factory=dict)


@dataclass(eq=False)
class _Playing(Place):
    """A place that follows the calls of a phase; each play of it has other notes."""

    deliveries: list[tuple[Layout, dict[int, Params]]] = field(default_factory=list)
    """what was delivered in this play: its layout, and what each client receives"""
    channels: list[Form] = field(default_factory=list)
    """what each channel of this play carries"""
    asked: NDArray[np.int64] = field(default_factory=NOBODY.copy)
    """the clients (n,) that take part in this phase, or those of this site that do"""
    _notes: Any = None

    def reset(self) -> None:
        """Forget what was exchanged in an earlier play."""
        self._notes, self.deliveries, self.channels = None, [], []

    def begin(self, run: Run) -> None:
        """Forget what was exchanged if this is a new play of a phase."""
        if run.notes is not self._notes:
            self.reset()
            self._notes = run.notes

    def new_channel(self, run: Run, form: Form) -> int:
        """Return the number of the next channel of this play."""
        self.begin(run)
        self.channels.append(form)
        return len(self.channels) - 1


def layout_of(delivery: Delivery) -> Layout:
    """Return the layout of a package; a free first axis is the negative of its maximum."""
    free = () if delivery.most is None else (-delivery.most,)
    return {name: (value.dtype, (*free, *value.shape)) for name, value in delivery.like.items()}


def form_of(channel: Channel) -> Form:
    """Return what a channel carries for a client."""
    layout = parameters.outline({**channel.like, **channel.also})
    return Form(layout, is_update=channel.start is not None, is_record=channel.is_record)


def split_package(delivery: Delivery, ids: NDArray[np.int64], package: Params) -> Iterator[tuple[list[int], Params]]:
    """Yield clients with what each of them receives of a package for ``ids`` (n,), which may have a row for each."""
    if not delivery.rows:
        yield ids.tolist(), dict(package)
    for place, client in enumerate(ids.tolist() if delivery.rows else ()):
        yield [client], {name: value[place].clone() for name, value in package.items()}


@dataclass(eq=False)
class AtServer(_Playing):
    """The server of a deployment: no client is here. ``run.federation`` has their numbers of samples, but no sample."""

    replies: Mapping[int, Reply] = field(default_factory=dict)
    """what has arrived in this phase, by client"""
    losses: Sequence[tuple[float, float]] = ()
    """the training losses in the replies, each with its weight"""
    gone: Collection[int] = ()
    """clients that were asked in this phase and did not answer"""
    rehearses: bool = False
    """whether each client sends what a channel is like, to find out what a method exchanges"""
    unpacks: bool = True
    """whether uploads have arrived as a step packs them"""
    awaited: int | None = None
    """the channel that this play lacks"""
    starts: dict[int, Params] = field(default_factory=dict)
    """the model from which clients trained what they send over a channel with a mean"""
    _is_noted: bool = False

    def reset(self) -> None:
        """Forget what was exchanged in an earlier play."""
        super().reset()
        self._is_noted, self.awaited, self.starts = False, None, {}

    def cohort(self, run: Run, t: int) -> NDArray[np.int64]:
        """Draw the clients of round ``t``, none of which is here."""
        self.begin(run)
        self.asked = run.draw_cohort(t, self.gone)
        return NOBODY

    def participants(self, run: Run) -> NDArray[np.int64]:
        """Return nobody; all participants take part that are not gone."""
        self.begin(run)
        self.asked = np.setdiff1d(run.federation.participants, [*self.gone])
        return NOBODY

    def everyone(self, here: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the clients of this phase."""
        return self.asked

    def deliver(self, run: Run, clients: NDArray[np.int64], delivery: Delivery) -> Iterator[Package]:
        """Record what is sent to each client, and count the bytes."""
        self.begin(run)
        layout, packages = layout_of(delivery), dict[int, Params]()
        for ids, made in super().deliver(run, self.asked, delivery):
            for receivers, package in split_package(delivery, ids, made):
                for name, value in package.items():
                    if name not in layout or not fits(parameters.outline({name: value})[name], layout[name]):
                        raise ComputationError(f"the method delivers '{name}' in another form than it says")
                packages.update(dict.fromkeys(receivers, package))
        self.deliveries.append((layout, packages))
        return iter(())

    def collect(self, run: Run, parts: Iterable[TrainedClients], channel: Channel) -> Iterator[TrainedClients]:
        """Return what clients have sent; raises Pending, when it is read, if something is missing."""
        number = self.new_channel(run, form_of(channel))
        for _ in parts:  # nobody is here, but packages are delivered in between
            pass
        return self._collect(run, channel, number)

    def _collect(self, run: Run, channel: Channel, number: int) -> Iterator[TrainedClients]:
        senders = self.asked if channel.senders is None else np.asarray(channel.senders.tolist(), dtype=np.int64)
        like, size = {**channel.like, **channel.also}, channel.size(run)
        found = [] if self.rehearses and channel.is_record else self.read(run, number, senders, like)
        silent = set(senders.tolist()) - {client for client, _ in found}
        if silent and not channel.is_record:
            raise Diverged(silent, ("reply", run.attendance.t))
        for client, sent in found:
            if size:
                run.count_upload(size)
            yield TrainedClients(
                np.asarray([client]),
                {name: value.unsqueeze(0) for name, value in sent.read().items()},
                np.asarray([sent.weight]),
                np.asarray([sent.loss]),
                np.ones(1, dtype=bool),
            )

    def relay(self, run: Run, table: ModelTable, wanted: Mapping[int, NDArray[np.int64]]) -> None:
        """Pass on the rows that clients ask for, and count their bytes."""
        masks = self.collect(run, (), Channel(_mask(run), counted=False))
        asked = {int(part.clients[0]): np.flatnonzero(part.params["wanted"][0].numpy()) for part in masks}

        def rows() -> Iterator[Package]:
            for client, ids in asked.items():
                if len(ids):
                    run.send("peer", table.default, copies=len(ids))
                    yield np.asarray([client]), {**table[ids], _IDS: torch.from_numpy(ids)}

        self.deliver(run, NOBODY, _relayed(run, table, rows))

    def mean(self, run: Run, downloaded: Params) -> Average:
        """Return the mean of the replies."""
        return _MeanOfReplies(run, downloaded, self)

    def read(self, run: Run, number: int, expected: NDArray[np.int64], like: Params) -> list[tuple[int, Sent]]:
        """Return what the ``expected`` clients sent over a channel; raises Pending, AllAbsent or Diverged."""
        if run.attendance.all_absent and not run.sealed:
            raise AllAbsent
        clients = expected.tolist()
        if self.rehearses:
            sizes = run.declared
            return [(client, Sent(lambda: like, float(sizes[client]), 0.0)) for client in clients]
        if diverged := [c for c in self.asked.tolist() if c in self.replies and self.replies[c].diverged]:
            raise Diverged(diverged, ("reply", run.attendance.t))
        if not all(client in self.replies and number in self.replies[client].complete for client in clients):
            self.awaited = number
            raise Pending
        if not self._is_noted:
            run.notes.trained.update(c for c in self.asked.tolist() if c in self.replies and self.replies[c].trained)
            run.notes.losses += self.losses
            self._is_noted = True
        return [
            (client, self.replies[client].sent[number]) for client in clients if number in self.replies[client].sent
        ]


class _MeanOfReplies(Average):
    """The server's aggregate of the uploads in replies, which are added in the order of clients."""

    is_plain = False

    def __init__(self, run: Run, downloaded: Params, place: AtServer) -> None:
        super().__init__(run, downloaded)
        self._place = place
        packed = parameters.outline(pack(run.uploads, downloaded, downloaded))
        self._number = place.new_channel(run, Form(packed, is_update=True))
        place.starts[self._number] = downloaded

    @property
    def is_defined(self) -> bool:
        return bool(self._read()) or self._run.privacy is not None

    def _read(self) -> list[tuple[int, Sent]]:
        return self._place.read(self._run, self._number, self._place.asked, self._downloaded)

    def value(self) -> Params:
        """Return the aggregate; raises Pending if replies are missing, AllAbsent if none of them has an upload."""
        run, clients = self._run, list[int]()
        size, found = Encoding(self._downloaded, run.uploads).size(self._downloaded), self._read()
        for client, sent in found:
            run.count_upload(size)
            steps = run.uploads if self._place.unpacks and not self._place.rehearses else ()
            received = unpack(steps, sent.read(), self._downloaded)
            self._uploads.add({name: value.unsqueeze(0) for name, value in received.items()}, np.asarray([sent.weight]))
            clients.append(client)
        if not clients and run.privacy is None:
            raise AllAbsent
        return run.aggregate_uploads(self._uploads, np.asarray(clients, dtype=np.int64))


@dataclass(frozen=True)
class Arrived:
    """A delivery that has arrived at a site: whose package each client shares, and how to read one by its layout."""

    holders: Mapping[int, int]
    read: Callable[[int, Layout], Params]


@dataclass(eq=False)
class AtSite(_Playing):
    """A site of a deployment, with some of the clients; the samples of the others are not in ``run.federation``."""

    sizes: NDArray[np.int64] = field(default_factory=NOBODY.copy)
    """the numbers of training samples (m,) that all clients have declared"""
    steps: Sequence[Step] = ()
    """the upload steps of the settings"""
    sends_records: bool = True
    """whether the site sends records, on which no model depends"""
    arrived: Sequence[Arrived] = ()
    """the deliveries that have arrived in this phase"""
    sent: dict[int, dict[int, tuple[Params, float, float]]] = field(default_factory=dict)
    """what each client sends, with a weight and a loss, by channel"""
    complete: set[int] = field(default_factory=set)
    """the channels that are complete"""
    received: int = 0
    """the number of deliveries that the method has asked for"""
    wait: Callable[[], None] | None = None
    """waits until another delivery has arrived; by default, a play ends where one is missing"""

    def reset(self) -> None:
        """Forget what was exchanged in an earlier play."""
        super().reset()
        self.sent, self.complete, self.received = {}, set(), 0

    def cohort(self, run: Run, t: int) -> NDArray[np.int64]:
        """Return the clients of this site that take part, without those that diverged in an earlier attempt."""
        self.begin(run)
        run.attendance.selected = self.asked
        return run.attendance.present

    def participants(self, run: Run) -> NDArray[np.int64]:
        """Return the clients of this site that have training samples."""
        return self.asked[run.federation.sizes("train")[self.asked] > 0]

    def declared(self, run: Run) -> NDArray[np.int64]:
        """Return the numbers of training samples (m,) that all clients have declared."""
        return self.sizes

    def serve(self, make: Callable[[], T], otherwise: T) -> T:
        """Return ``otherwise``, as the server is elsewhere."""
        return otherwise

    def deliver(self, run: Run, clients: NDArray[np.int64], delivery: Delivery) -> Iterator[Package]:
        """Return what the server has sent; waits, or raises Pending, if that has not arrived.

        Raises InputError if it does not fit.
        """
        self.begin(run)
        while self.received >= len(self.arrived):
            if self.wait is None:
                raise Pending
            self.wait()
        arrived, layout = self.arrived[self.received], layout_of(delivery)
        self.received += 1
        here = [client for client in clients.tolist() if client in arrived.holders]
        packages = {holder: arrived.read(holder, layout) for holder in dict.fromkeys(arrived.holders[c] for c in here)}
        received = [packages[arrived.holders[client]] for client in here]
        for package in received if delivery.most is not None else ():
            if {len(value) for value in package.values()} != {max(1, len(next(iter(package.values()))))}:
                raise InputError("the server delivers no row, or more rows of one tensor than of another")
        for package in received if delivery.counted else ():
            run.send("down", package)
        if delivery.rows:
            return iter([(np.asarray(here), parameters.stack(received))] if here else [])
        # One after the other, as several that share a product would have other last bits.
        return iter([(np.asarray([client]), package) for client, package in zip(here, received, strict=True)])

    def collect(self, run: Run, parts: Iterable[TrainedClients], channel: Channel) -> Iterator[TrainedClients]:
        """Note what clients that are here send, all at once, and yield it as the server receives it."""
        number, all_received = self.new_channel(run, form_of(channel)), list[TrainedClients]()
        for part in parts:
            if channel.is_record and not self.sends_records:
                continue  # other code may run between parts
            received = channel.upload(run, part)
            if channel.start is not None and self.steps and self.steps[-1].packs:
                start = channel.start(part) if callable(channel.start) else channel.start
                packed = Encoding(start, self.steps[-1:])({name: received.params[name] for name in channel.like})
                received.params.update(packed)
            self.note(number, part.clients, received.params, part.weights, part.loss)
            all_received.append(received)
        sent = self.sent.get(number, {})
        wrong = [client for client, (params, _, _) in sent.items() if not are_finite(params)]
        if wrong and run.sealed:
            raise ComputationError(f"{client_list(wrong)} would send numbers that are not finite, which no message has")
        if wrong:
            raise Diverged(wrong, ("collect", run.attendance.t))
        self.complete.add(number)
        return iter(all_received)

    def note(
        self,
        number: int,
        clients: NDArray[np.int64],
        params: Stacked,
        weights: NDArray[np.float64],
        losses: NDArray[np.float64],
    ) -> None:
        """Note what clients (n,) send over a channel: tensors (n, ...), weights (n,) and losses (n,)."""
        sent = self.sent.setdefault(number, {})
        for place, client in enumerate(clients.tolist()):
            own = {name: value.clone() for name, value in parameters.pick(params, place).items()}
            sent[client] = own, float(weights[place]), float(losses[place])

    def relay(self, run: Run, table: ModelTable, wanted: Mapping[int, NDArray[np.int64]]) -> None:
        """Ask for rows, and write those that arrive into ``table``."""
        clients = np.asarray([*wanted], dtype=np.int64)
        masks = torch.zeros(len(clients), len(run.clients), dtype=torch.bool)
        for mask, ids in zip(masks, wanted.values(), strict=True):
            mask[torch.from_numpy(ids)] = True
        part = TrainedClients.untrained(clients, {"wanted": masks})
        for _ in self.collect(run, [part], Channel(_mask(run), counted=False)):
            pass
        for (client,), package in self.deliver(run, clients, _relayed(run, table, dict)):
            ids, rows = package[_IDS].numpy(), {name: package[name] for name in table.default}
            if not np.isin(ids, wanted[int(client)]).all() or len(np.unique(ids)) < len(ids):
                raise InputError("the server passes on other models than the site asked for")
            run.send("peer", table.default, copies=len(ids))
            table[ids] = rows

    def mean(self, run: Run, downloaded: Params) -> Average:
        """Return what collects uploads; its value is ``downloaded``, as only the server can compute the mean."""
        return _SentUploads(run, downloaded, self)


class _SentUploads(Average):
    """Collects the uploads of a site's clients, which the server averages."""

    is_plain = False

    def __init__(self, run: Run, downloaded: Params, place: AtSite) -> None:
        self._run, self._downloaded, self._place = run, downloaded, place
        packed = parameters.outline(pack(place.steps, downloaded, downloaded))
        self._number = place.new_channel(run, Form(packed, is_update=True))
        place.sent.setdefault(self._number, {})

    def add(self, params: Stacked, weights: NDArray[np.float64], clients: NDArray[np.int64]) -> None:
        received = self._run.upload(params, self._downloaded, clients)
        rows = [pack(self._place.steps, parameters.pick(received, at), self._downloaded) for at in range(len(clients))]
        self._place.note(self._number, clients, parameters.stack(rows), weights, np.zeros(len(clients)))

    @property
    def is_defined(self) -> bool:
        self._place.complete.add(self._number)
        return bool(self._place.sent[self._number])

    def value(self) -> Params:
        self._place.complete.add(self._number)
        return self._downloaded


def _mask(run: Run) -> Params:
    """Return what a client sends to ask for rows: whether it wants that of each client (m,)."""
    return {"wanted": torch.zeros(len(run.clients), dtype=torch.bool)}


def _relayed(run: Run, table: ModelTable, make: Callable[[], Any]) -> Delivery:
    """Return the delivery of rows of a table, with their ids."""
    return Delivery(make, {**table.default, _IDS: torch.tensor(0)}, most=len(run.clients), counted=False)


def pack(steps: Sequence[Step], upload: Params, downloaded: Params) -> Params:
    """Return the tensors that travel of one client's upload, to which all steps but one that packs were applied."""
    if not steps or not steps[-1].packs:
        return upload
    one, start = stack_one(upload), stack_one({name: downloaded[name] for name in upload})
    return parameters.pick(steps[-1].file.pack(one, start, steps[-1].cfg), 0)


def unpack(steps: Sequence[Step], sent: Params, downloaded: Params) -> Params:
    """Undo ``pack``."""
    if not steps or not steps[-1].packs:
        return sent
    return parameters.pick(steps[-1].file.unpack(stack_one(sent), stack_one(downloaded), steps[-1].cfg), 0)


def stack_one(params: Params) -> Stacked:
    """Return one model as a stack of one."""
    return {name: value.unsqueeze(0) for name, value in params.items()}
