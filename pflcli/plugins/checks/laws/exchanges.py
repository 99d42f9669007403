"""A record of what clients and server of a run hand over, and of what clients train from, to compare with its bytes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pflcli.core import parameters
from pflcli.core.federation.run import Average, Run
from pflcli.core.parameters import Params, Stacked, TrainedClients
from pflcli.core.parameters.model_table import ModelTable


class Exchanges:
    """Follows a run: which tensors each client knows, and how many bytes it needed without having received them.

    A client knows the initial models, what it was sent by ``run.download``, and what it has trained. Tensors are
    compared by content. What a client trains from and does not know was sent by ``run.send``, or not counted.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.needed = 0
        """bytes that clients trained from, but knew neither by ``download`` nor by themselves, over all rounds"""
        self.sent = 0
        """bytes counted by ``run.send`` down and between peers, over all rounds"""
        self.faults: list[str] = []
        """what was counted wrongly"""
        self.excess: list[str] = []
        """what was sent more often than clients trained from it"""
        self.weights: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
        """the clients (n,) and weights (n,) of the uploads that were added to a mean, for each call"""
        self.draws: Counter[str] = Counter()
        """the number of generators that the method asked for, by the first word of the key"""
        self._common = {digest(value) for value in run.init.values()}
        self._known: dict[int, set[str]] = {client: set() for client in run.clients.tolist()}
        self._shapes: dict[int, set[tuple[int, ...]]] = {client: set() for client in run.clients.tolist()}
        self._trained: dict[int, set[str]] = {client: set() for client in run.clients.tolist()}
        self._sent: dict[int, set[str]] = {client: set() for client in run.clients.tolist()}
        self._sent_by_some: set[str] = set()
        self._is_inside = False
        names = ("send", "download", "upload", "averaging", "rng", "initial_models")
        self._followed = {name: getattr(run, name) for name in names}
        """methods of the run; those of this class, with an underscore, are called in their place"""
        for name in names:
            setattr(run, name, getattr(self, f"_{name}"))
        self._follow_training()
        self.begin_round()

    def begin_round(self) -> None:
        """Begin a round: the same content may be sent again."""
        self._received: Counter[int] = Counter()
        self._unknown: dict[int, dict[str, int]] = {}
        self._unexplained: dict[int, dict[str, int]] = {}
        self._downloads: set[tuple[int, str]] = set()
        self._uploads: set[tuple[int, str]] = set()
        self._raw_down: list[tuple[set[str], int]] = []
        self._downloaded: set[str] = set()
        self._starts: set[str] = set()
        self.averaged_up = self.raw_up = 0

    def end_round(self) -> None:
        """Add up what clients needed in this round, and find what was counted twice or for absent clients."""
        for client, unknown in self._unknown.items():
            if sum(unknown.values()) > self._received[client]:
                self.needed += sum(unknown.values())
            else:
                self.needed += sum(self._unexplained[client].values())
        selected = len(self.run.attendance.selected)
        for content, copies in self._raw_down:
            if content and content <= self._downloaded:
                self.faults.append("what run.download sends is counted again by run.send")
            elif content and content <= self._starts - self._common and copies > selected:
                self.excess.append(f"a model is sent {copies} times to the {selected} clients of a round")

    def has_sent(self, client: int, value: Tensor) -> bool:
        """Return whether a client has sent a tensor that it trained; others were computed by the server."""
        content = digest(value)
        return content not in self._trained[client] or content in self._sent[client] | self._sent_by_some

    def _send(self, link: str, params: Mapping[str, Tensor], copies: int = 1) -> None:
        if not self._is_inside:
            if link != "down":
                self._sent_by_some |= {digest(value) for value in params.values()}
                self._sent_by_some |= {digest(row) for value in params.values() if value.ndim for row in value}
            if link == "up":
                self.raw_up += parameters.size(params) * copies
            else:
                self.sent += parameters.size(params) * copies
            if link == "down":
                self._raw_down.append(({digest(value) for value in params.values()} - {CONSTANT}, copies))
        self._followed["send"](link, params, copies)

    def _download(self, params: Params, clients: NDArray[np.int64], *args: Any, **options: Any) -> Params:
        self._is_inside = True
        received: Params = self._followed["download"](params, clients, *args, **options)
        self._is_inside = False
        if not options.get("counted", True):  # what clients need of it is counted by ``run.send``
            return received
        digests, whole = {digest(value) for value in params.values()}, digest_model(params)
        self._downloaded |= digests
        for client in np.asarray(clients).tolist():
            if (client, whole) in self._downloads:
                self.faults.append(f"the same is sent twice to client {client} in a round")
            self._downloads.add((client, whole))
            self._known[client] |= digests
            self._shapes[client] |= {tuple(value.shape) for value in params.values()}
            self._received[client] += parameters.size(params)
        return received

    def _upload(
        self, params: Stacked, downloaded: Params | Stacked, clients: NDArray[np.int64], **options: Any
    ) -> Stacked:
        before = self.run.traffic["up"]
        received: Stacked = self._followed["upload"](params, downloaded, clients, **options)
        self.averaged_up += self.run.traffic["up"] - before
        sent = {name: value for name, value in params.items() if name in downloaded}
        for place, client in enumerate(np.asarray(clients).tolist()):
            self._sent[client] |= {digest(value[place]) for value in sent.values()}
            whole = digest_model(parameters.pick(sent, place))
            if (client, whole) in self._uploads:
                self.faults.append(f"client {client} uploads the same twice in a round")
            self._uploads.add((client, whole))
        return received

    def _averaging(self, downloaded: Params) -> Average:
        mean: Average = self._followed["averaging"](downloaded)
        add = mean.add

        def followed_add(params: Stacked, weights: NDArray[np.float64], clients: NDArray[np.int64]) -> None:
            self.weights.append((np.asarray(clients), np.asarray(weights, dtype=np.float64)))
            add(params, weights, clients)

        mean.add = followed_add  # type: ignore[method-assign]
        return mean

    def _rng(self, *key: str | int) -> np.random.Generator:
        self.draws[str(key[0]) if key else ""] += 1
        drawn: np.random.Generator = self._followed["rng"](*key)
        return drawn

    def _initial_models(self, count: int) -> Stacked:
        models: Stacked = self._followed["initial_models"](count)
        self._common |= {digest(row) for value in models.values() for row in value}
        return models

    def _follow_training(self) -> None:
        engine, train = self.run.engine, self.run.engine.local_sgd

        def followed(clients: Any, start: Any, *args: Any, **kwargs: Any) -> Iterator[TrainedClients]:
            ids = np.asarray(clients, dtype=np.int64)
            if len(ids):
                models = start[ids] if isinstance(start, ModelTable) else start
                self._note_starts(ids, models)
            for part in train(clients, start, *args, **kwargs):
                for place, client in enumerate(part.clients.tolist()):
                    trained = {digest(value[place]) for value in part.params.values()}
                    self._known[client] |= trained
                    self._trained[client] |= trained - {CONSTANT}
                    self._shapes[client] |= {tuple(value.shape[1:]) for value in part.params.values()}
                yield part

        engine.local_sgd = followed  # type: ignore[method-assign]

    def _note_starts(self, clients: NDArray[np.int64], models: Params | Stacked) -> None:
        """Note which tensors of the models from which clients train they do not know."""
        is_one = any(models[name].shape == value.shape for name, value in self.run.init.items() if name in models)
        rows = [models] * len(clients) if is_one else [parameters.pick(models, at) for at in range(len(clients))]
        # A tensor with which several clients begin comes from the server. What each computes of the model that it has
        # received mostly has the shape of a tensor of that model.
        holders = Counter(content for row in rows for content in {digest(value) for value in row.values()})
        for place, client in enumerate(clients.tolist()):
            model = rows[place]
            digests = {digest(value): parameters.size({"": value}) for value in model.values()}
            self._starts |= digests.keys()
            new = digests.keys() - self._known[client] - self._common - {CONSTANT}
            self._unknown.setdefault(client, {}).update({each: digests[each] for each in new})
            strange = {digest(value) for value in model.values() if tuple(value.shape) not in self._shapes[client]}
            strange = {content for content in strange if holders[content] > 1}
            self._unexplained.setdefault(client, {}).update({each: digests[each] for each in new & strange})
            self._known[client] |= new


CONSTANT = "constant"
"""The digest of tensors with a single value, such as zeros, which are no secret of anybody."""


def digest(value: Tensor) -> str:
    """Return a hash of the numbers in a tensor."""
    array = value.detach().contiguous().cpu().numpy()
    if array.size == 0 or (array == array.flat[0]).all():
        return CONSTANT
    return hashlib.sha256(array.tobytes()).hexdigest()


def digest_model(params: Mapping[str, Tensor]) -> str:
    """Return a hash of names and numbers."""
    return " ".join(f"{name} {digest(params[name])}" for name in sorted(params))
