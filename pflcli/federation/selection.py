"""Selects the clients of a round: a cohort of fixed size, or with differential privacy each client on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pflcli.engine.federation import Federation
from pflcli.federation.attendance import Attendance
from pflcli.federation.private_mean import PrivateMean
from pflcli.settings import Settings


class Selection:
    """The part of a run that selects clients."""

    settings: Settings
    federation: Federation
    attendance: Attendance
    privacy: PrivateMean | None

    if TYPE_CHECKING:

        def rng(self, *key: str | int) -> np.random.Generator:
            """Return the random generator of ``key``."""

    def cohort(self, t: int) -> NDArray[np.int64]:
        """Return the clients of round ``t`` that answer, sorted.

        They are drawn uniformly among the participants: seen clients that have training samples. Clients drop out
        independently. If nobody answers, all selected clients are returned, and ``local_sgd`` ends the round. With
        differential privacy each participant is selected on its own; nobody may be, and the round takes place.
        """
        participants = self.federation.participants
        if self.privacy is not None:
            selected = self.privacy.sample(participants, t)
        else:
            count = max(1, round(self.settings.participation * len(participants)))
            selected = np.sort(self.rng("cohort", t).choice(participants, size=count, replace=False))
        self.attendance.selected, rate = selected, self.settings.dropout
        if rate:
            drops = [self.rng("dropout", t, client).random() < rate for client in selected.tolist()]
            self.attendance.dropped = selected[drops]
        answering = self.attendance.answering
        return answering if len(answering) or self.privacy is not None else selected

    def share_of_samples(self, cohort: NDArray[np.int64]) -> float:
        """Return the share of the participants' training samples that a cohort has.

        With differential privacy it is the sampling rate, which says nothing about the cohort.
        """
        if self.privacy is not None:
            return self.settings.participation
        sizes = self.federation.sizes("train")
        return float(sizes[cohort].sum() / sizes[self.federation.participants].sum())
