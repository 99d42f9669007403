"""Sends models between clients and server: checks links, counts bytes, and applies upload steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pflcli import parameters
from pflcli.engine.local_sgd import is_stacked
from pflcli.errors import ComputationError, UnsuitedError
from pflcli.federation.attack import Attack
from pflcli.federation.attendance import Attendance
from pflcli.federation.local_training import LocalTraining
from pflcli.federation.private_mean import PrivateMean
from pflcli.parameters import Params, Stacked, TrainedClients

LINKS = {"local": (), "posthoc": (), "server": ("up", "down"), "peer": ("peer",)}
"""The links that a method of each KIND may use."""

Draw = Callable[[int], np.random.Generator]
"""Returns the generator of the i-th upload."""


class UploadStep(Protocol):
    """Changes uploads on their way to the server, see ``pflcli.federation.uploads``."""

    @property
    def is_random(self) -> bool:
        """Whether ``apply`` draws random numbers."""

    def apply(self, params: Stacked, downloaded: Stacked, draw: Draw = np.random.default_rng) -> Stacked:
        """Return the uploads (m, ...) that the server receives of models ``params`` trained from ``downloaded`` ones.

        ``draw(i)`` is the generator of the i-th upload.
        """

    def size(self, params: Params, size: int) -> int:
        """Return the bytes of one upload shaped like ``params``, which took ``size`` bytes before this step."""


class Uploads(Protocol):
    """The uploads of one round, which an aggregator combines into one model."""

    def add(self, stacked: Stacked, weights: NDArray[np.float64]) -> None:
        """Add the uploads (m, ...) of clients with weights (m,), after the upload steps."""

    def value(self) -> Params:
        """Return the model; raises ValueError if nothing with a positive weight was added."""


class Aggregator(Protocol):
    """Combines the uploads of a round into one model, see ``pflcli.federation.aggregators``."""

    def begin(self, downloaded: Params) -> Uploads:
        """Return an empty collection for the uploads of clients that received ``downloaded``."""


class WeightedMean:
    """The default aggregator: the mean by the clients' weights. It is separable: partial sums are enough."""

    separable = True

    def begin(self, downloaded: Params) -> Uploads:
        """Return an empty mean."""
        return parameters.Mean()


@dataclass(frozen=True)
class Encoding:
    """Turns trained models into uploads: selects the tensors that clients received, and applies upload ``steps``."""

    downloaded: Params | Stacked
    """the model that all clients received, or one per client (m, ...)"""
    steps: Sequence[UploadStep]

    def __call__(self, params: Stacked, draws: Callable[[int], Draw] | None = None) -> Stacked:
        """Return the uploads (m, ...) of trained models (m, ...).

        ``draws(i)`` returns the random numbers of the i-th step; it is required if a step is random.
        """
        received = self.uploaded_tensors(params)
        if self.steps:
            start = self.start(received)
            for place, step in enumerate(self.steps):
                received = step.apply(received, start, *([] if draws is None else [draws(place)]))
        return received

    @property
    def is_random(self) -> bool:
        """Whether a step draws random numbers."""
        return any(step.is_random for step in self.steps)

    def uploaded_tensors(self, params: Stacked | Params) -> Stacked:
        """Return the tensors that are uploaded."""
        return {name: value for name, value in params.items() if name in self.downloaded}

    def start(self, received: Stacked) -> Stacked:
        """Return the models (m, ...) that ``received`` was trained from, on its device."""
        like = parameters.pick(received, 0)
        start = {name: value.to(received[name].device) for name, value in self.downloaded.items() if name in received}
        return start if is_stacked(start, like) else parameters.repeat(start, len(next(iter(received.values()))))

    def size(self, params: Params) -> int:
        """Return the bytes of one upload of a model with these tensors."""
        one = self.uploaded_tensors(params)
        size = parameters.size(one)
        for step in self.steps:
            size = step.size(one, size)
        return size


class Channel:
    """The part of a run that sends models and counts bytes."""

    kind: str
    rng: Callable[..., np.random.Generator]
    """returns the random generator for a key, see ``pflcli.rng``"""
    traffic: dict[str, int]
    attendance: Attendance
    sealed: bool
    losses: list[tuple[float, float]]
    uploads: Sequence[UploadStep]
    aggregator: Aggregator
    attack: Attack | None = None
    """the attack of poisoned clients on their updates"""
    left_out: dict[int, list[float]]
    """by client, the share of each of its uploads in this round that the aggregator left out"""
    privacy: PrivateMean | None

    def send(self, link: str, params: Mapping[str, Tensor], copies: int = 1) -> None:
        """Count ``copies`` transmissions of ``params`` over ``up``, ``down`` or ``peer``.

        In a round, bytes sent down include those to selected clients that do not complete it. Raises ComputationError
        if the method's KIND has no such link, or if clients are personalizing; UnsuitedError if there are upload steps,
        another aggregator than the mean, differential privacy, or an attack: they apply only to ``upload``.
        """
        if link != "down" and link in LINKS[self.kind]:
            self._require_mean()
            if self.privacy is not None:
                raise UnsuitedError(
                    "differential privacy does not cover this method: its clients send more than updates that are "
                    "averaged",
                    "leave out --dp-epsilon and --dp-noise",
                )
        if link == "up" and self.uploads:
            steps = " ".join(f"--upload {step}" for step in self.uploads)
            raise UnsuitedError(
                f"{steps} does not apply to this method: its server does more with uploads than average them",
                "leave out --upload",
            )
        self._count(link, parameters.size(params) * copies)

    def _require_mean(self) -> None:
        """Raise UnsuitedError if there is an attack, or another aggregator than the mean."""
        if not getattr(self.aggregator, "separable", True):
            raise UnsuitedError(
                f"--aggregator {self.aggregator} does not apply to this method: it does more with uploads than average "
                "them",
                "leave out --aggregator",
            )
        if self.attack is not None:
            raise UnsuitedError(
                "attacks on updates do not apply to this method: it does more with uploads than average them",
                "pfl partition ... --poison 0.2:flip poisons samples, for any method",
            )

    def _count(self, link: str, size: int) -> None:
        if self.sealed or link not in LINKS[self.kind]:
            when = "while personalizing" if self.sealed else f"as a method of kind {self.kind}"
            raise ComputationError(f"the method sent over link '{link}' {when}")
        self.traffic[link] += self.attendance.bytes_to_selected(size) if link == "down" else size

    def download(self, params: Params, clients: NDArray[np.int64]) -> Params:
        """Send ``params`` to each of the clients (n,), and return them."""
        self.send("down", params, copies=len(clients))
        return params

    def upload(
        self,
        params: Stacked,
        downloaded: Params | Stacked,
        clients: NDArray[np.int64],
        *,
        is_averaged: bool = True,
    ) -> Stacked:
        """Send the models that ``clients`` (m,) trained to the server, and return those (m, ...) that it receives.

        ``downloaded`` is the model that the clients received, or one per client (m, ...). Only the tensors of
        ``params`` (m, ...) with names in ``downloaded`` are uploaded. Poisoned clients manipulate their updates; then
        the upload steps are applied. Methods that do more with uploads than average them set ``is_averaged`` to False;
        options that cover only a mean then raise UnsuitedError.
        """
        if not is_averaged:
            self._require_mean()
        if self.privacy is not None and self.privacy.release is None:
            raise UnsuitedError(
                "differential privacy does not cover this method: its server computes a mean per cluster",
                "leave out --dp-epsilon and --dp-noise",
            )
        encode = Encoding(downloaded, self.uploads)
        received = encode.uploaded_tensors(params)
        if self.attack is not None:
            received = self.attack.apply(received, encode.start(received), clients, self.attendance.t)
        count, size = len(next(iter(received.values()))), encode.size(parameters.pick(received, 0))
        self._count("up", size * count)
        received = encode(received, lambda place: self._draws(clients, place))
        if self.uploads:
            self.attendance.uploads.update(clients.tolist())
        return received

    def _draws(self, clients: NDArray[np.int64], place: int) -> Draw:
        """Return the random numbers of the ``place``-th upload step for each of the clients (m,)."""
        t, counts = self.attendance.t, self.attendance.uploads
        return lambda i: self.rng("upload", place, t, int(clients[i]), counts[int(clients[i])])

    def averaging(self, downloaded: Params) -> Average:
        """Return an empty mean for the uploads of clients that received ``downloaded``."""
        return Average(self, downloaded)

    def average(self, parts: Iterable[TrainedClients], downloaded: Params) -> Params:
        """Upload the models trained from ``downloaded``, and return their mean, weighted by samples.

        If possible, the workers of an executor add the models up, and only the sum is sent to this process.
        """
        encode = Encoding(downloaded, self.uploads)
        before = len(self.losses)
        # Other aggregators, attacks, differential privacy and random steps need each upload.
        sums = isinstance(self.aggregator, WeightedMean) and self.attack is None and self.privacy is None
        sums = sums and not encode.is_random
        total = parts.total(encode) if sums and isinstance(parts, LocalTraining) else None
        if total is not None:
            self._count("up", encode.size(downloaded) * (len(self.losses) - before))
            return total.mean()
        mean = self.averaging(downloaded)
        for part in parts:
            mean.add(part.params, part.weights, part.clients)
        return mean.value()

    def aggregated(self, uploads: Uploads, clients: NDArray[np.int64]) -> Params:
        """Return the aggregate of the ``uploads`` of ``clients`` (n,), and record the shares that were left out."""
        model = uploads.value()
        for client, share in zip(clients.tolist(), getattr(uploads, "left_out", ()), strict=False):
            self.left_out.setdefault(client, []).append(float(share))
        return model


class Average:
    """The server's aggregate of uploads, by default their weighted mean.

    Only parameters with names in ``downloaded`` are uploaded.
    """

    def __init__(self, channel: Channel, downloaded: Params) -> None:
        self._channel, self._downloaded = channel, downloaded
        self._uploads = (channel.privacy or channel.aggregator).begin(downloaded)
        self._clients: list[NDArray[np.int64]] = []

    def add(self, params: Stacked, weights: NDArray[np.float64], clients: NDArray[np.int64]) -> None:
        """Upload ``params`` (m, ...) of ``clients`` (m,) and add them with ``weights`` (m,)."""
        self._uploads.add(self._channel.upload(params, self._downloaded, clients), weights)
        self._clients.append(clients)

    @property
    def is_defined(self) -> bool:
        """Whether there is a mean: it needs an upload, except with differential privacy."""
        return bool(self._clients) or self._channel.privacy is not None

    def value(self) -> Params:
        """Return the mean; raises ValueError if nothing with a positive weight was added."""
        clients = np.concatenate(self._clients) if self._clients else np.zeros(0, dtype=np.int64)
        return self._channel.aggregated(self._uploads, clients)
