"""Where the run of a deployment takes place: at its server, or at one of its sites.

A server has no clients. It plays a round until the method needs the mean of uploads, which raises ``Pending``; what was
downloaded until then is the question to the clients. Once all of them have answered, it plays the same round again, to
its end. A site plays the round with its own clients. Their downloads are those of the server's question, and what the
method makes of a mean there is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pflcli.core import parameters
from pflcli.core.errors import ComputationError, UnsuitedError
from pflcli.core.federation.attendance import AllAbsent, Diverged
from pflcli.core.federation.run import NOBODY, Average, Delivery, Package, Place, Run, T
from pflcli.core.federation.uploads import Encoding
from pflcli.core.parameters import Params, Stacked


class Pending(Exception):
    """Raised at a server when a round needs uploads that have not arrived."""


@dataclass(frozen=True)
class Reply:
    """What the server knows of a client after a round: whether it ``trained`` or ``diverged``, and its upload.

    ``read`` returns the upload as the steps left it, with its ``weight``; it is None for a client that sent nothing.
    """

    trained: bool
    diverged: bool
    weight: float = 0.0
    read: Callable[[], Params] | None = None


@dataclass
class AtServer(Place):
    """The server of a deployment: no client is here. ``run.federation`` has their numbers of samples, but no sample."""

    replies: Mapping[int, Reply] | None = None
    """the replies of this round by client, None until they have arrived"""
    losses: Sequence[tuple[float, float]] = ()
    """the training losses in the replies, each with its weight"""
    gone: Sequence[int] = ()
    """clients that were asked in this round and did not answer"""
    asked: NDArray[np.int64] = field(default_factory=NOBODY.copy)
    """the clients of this round (n,)"""
    downloads: list[Params] = field(default_factory=list)
    """what was downloaded in this round"""
    uploaded: Params | None = None
    """tensors with the names, types and shapes of an upload, once the method takes the mean"""

    def cohort(self, run: Run, t: int) -> NDArray[np.int64]:
        """Draw the clients of round ``t``, none of which is here."""
        self.asked, self.downloads, self.uploaded = run.draw_cohort(t, self.gone), [], None
        return NOBODY

    def everyone(self, here: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the clients of this round."""
        return self.asked

    def deliver(self, run: Run, clients: NDArray[np.int64], delivery: Delivery) -> Iterator[Package]:
        """Record what is sent, and count the bytes for the clients of this round."""
        for _, params in delivery.make():
            self.downloads.append(dict(params))
            run.send("down", params, copies=len(self.asked))
        return iter(())

    def mean(self, run: Run, downloaded: Params) -> Average:
        """Return the mean of the replies; raises UnsuitedError for a second mean in a round."""
        if self.uploaded is not None:
            raise UnsuitedError(
                "the server computes several means in a round, between which clients would have to wait"
            )
        self.uploaded = downloaded
        return _MeanOfReplies(run, downloaded, self)


class _MeanOfReplies(Average):
    """The server's aggregate of the uploads in replies, which are added in the order of clients."""

    is_plain = False

    def __init__(self, run: Run, downloaded: Params, place: AtServer) -> None:
        super().__init__(run, downloaded)
        self._place = place

    @property
    def is_defined(self) -> bool:
        return self._run.privacy is not None or any(reply.read is not None for _, reply in self._replies())

    def _replies(self) -> list[tuple[int, Reply]]:
        """Return the replies of the clients of this round; raises Pending, AllAbsent or Diverged."""
        asked, replies = self._place.asked.tolist(), self._place.replies
        if self._run.attendance.all_absent:
            raise AllAbsent
        if asked and replies is None:
            raise Pending
        found = [(client, replies[client]) for client in asked] if replies else []
        if diverged := [client for client, reply in found if reply.diverged]:
            raise Diverged(diverged, ("reply", self._run.attendance.t))
        return found

    def value(self) -> Params:
        """Return the aggregate; raises Pending if replies are missing, AllAbsent if none of them has an upload."""
        run, clients = self._run, list[int]()
        size, found = Encoding(self._downloaded, run.uploads).size(self._downloaded), self._replies()
        for client, reply in found:
            if reply.read is not None:
                run.count_upload(size)
                upload = {name: value.unsqueeze(0) for name, value in reply.read().items()}
                self._uploads.add(upload, np.asarray([reply.weight]))
                clients.append(client)
        run.notes.trained.update(client for client, reply in found if reply.trained)
        run.notes.losses += self._place.losses
        if not clients and run.privacy is None:
            raise AllAbsent
        return run.aggregate_uploads(self._uploads, np.asarray(clients, dtype=np.int64))


@dataclass
class AtSite(Place):
    """A site of a deployment, with some of the clients; the samples of the others are not in ``run.federation``."""

    asked: NDArray[np.int64] = field(default_factory=NOBODY.copy)
    """the clients (n,) of this site that take part in this round"""
    downloads: Sequence[Params] = ()
    """what the server sends in this round"""
    sent: dict[int, tuple[Params, float]] = field(default_factory=dict)
    """the upload of each client of this round, with its weight"""
    uploaded: Params = field(default_factory=dict)
    """what the clients of this round received of the tensors that they upload"""
    _received: int = 0
    """the number of ``downloads`` that the method has received"""

    def cohort(self, run: Run, t: int) -> NDArray[np.int64]:
        """Return the clients of this site that take part, without those that diverged in an earlier attempt."""
        self.sent, self._received = {}, 0
        run.attendance.selected = self.asked
        return run.attendance.present

    def serve(self, make: Callable[[], T], otherwise: T) -> T:
        """Return ``otherwise``, as the server is elsewhere."""
        return otherwise

    def deliver(self, run: Run, clients: NDArray[np.int64], delivery: Delivery) -> Iterator[Package]:
        """Return what the server has sent; raises ComputationError if it does not fit."""
        received = self.downloads[self._received] if self._received < len(self.downloads) else {}
        if parameters.outline(received) != parameters.outline(delivery.like):
            raise ComputationError("the tensors from the server are not those that the method downloads")
        self._received += 1
        run.send("down", received, copies=len(clients))
        return iter([(clients, received)])

    def mean(self, run: Run, downloaded: Params) -> Average:
        """Return what collects uploads; its value is ``downloaded``, as only the server can compute the mean."""
        return _SentUploads(run, downloaded, self)


class _SentUploads(Average):
    """Collects the uploads of a site's clients, which the server averages."""

    is_plain = False

    def __init__(self, run: Run, downloaded: Params, place: AtSite) -> None:
        self._run, self._downloaded, self._place = run, downloaded, place
        place.uploaded = downloaded

    def add(self, params: Stacked, weights: NDArray[np.float64], clients: NDArray[np.int64]) -> None:
        received = self._run.upload(params, self._downloaded, clients)
        for place, (client, weight) in enumerate(zip(clients.tolist(), weights.tolist(), strict=True)):
            self._place.sent[client] = parameters.pick(received, place), float(weight)

    @property
    def is_defined(self) -> bool:
        return bool(self._place.sent)

    def value(self) -> Params:
        return self._downloaded
