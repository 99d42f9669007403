"""Selects the clients of a round: a cohort of fixed size or, with differential privacy, each client independently."""

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
            """Return the random generator for ``key``."""

    def cohort(self, t: int) -> NDArray[np.int64]:
        """Return the sorted clients that complete round ``t``.

        Clients are drawn uniformly from the participants, the clients with training samples that are not new, and drop
        out independently. If no client completes the round, all selected clients are returned, and ``local_sgd`` ends
        the round. With differential privacy each participant is selected independently, and the round takes place even
        if no client is selected.
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
        """Return the cohort's share of the participants' training samples.

        With differential privacy this is the sampling rate, which reveals nothing about the cohort.
        """
        if self.privacy is not None:
            return self.settings.participation
        sizes = self.federation.sizes("train")
        return float(sizes[cohort].sum() / sizes[self.federation.participants].sum())
