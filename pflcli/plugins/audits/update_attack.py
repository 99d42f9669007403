"""The attack on an update: the class counts and single samples that it reveals, beside those that a guess finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pflcli.core import rng
from pflcli.core.tasks import CLASSES
from pflcli.plugins.audits import class_counts, records
from pflcli.plugins.audits.class_counts import Counts
from pflcli.plugins.audits.first_round import FirstRound, Update
from pflcli.plugins.audits.records import TOLERANCE, Rows

_REFERENCES = 2000
"""Samples that the attacker draws to estimate the mean prediction."""
_GUESSES = 5
"""Repetitions of the guess of records, of which the mean is reported."""
_SAME = 1e-6
"""The largest difference of predictions for which a model predicts the same for all samples."""


@dataclass(frozen=True)
class Found:
    """What an update that ``samples`` samples have made reveals.

    ``wrong_counts`` samples are in a wrong class of the estimated counts, ``guessed_wrong_counts`` in those of the
    guess; None if labels are no classes. ``records`` samples are recovered within the tolerance; ``guessed_records`` is
    the mean number that as many guesses find. Of ``singled_out`` rows, which the attacker takes for single samples,
    ``singled_out_right`` are. ``errors`` (records, d) are the absolute errors of recovered samples, in
    the unit of each column.
    """

    samples: int
    wrong_counts: int | None
    guessed_wrong_counts: int | None
    records: int
    guessed_records: float
    singled_out: int
    singled_out_right: int
    errors: Rows


class Scale(NamedTuple):
    """The mean and deviation (d,) by which features were standardized; 0 and 1 if they were not."""

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    def to_unit(self, features: Rows) -> Rows:
        """Return features (n, d) in the unit of each column."""
        return np.asarray(features * self.deviation + self.mean)


class Attacker:
    """Knows the downloaded model, the settings, the numbers of samples, and the units of columns with their moments.

    ``scales`` are those by which the features of each client were standardized; with ``centred`` by its own samples, so
    that they add up to 0. A guess of class counts has the class shares of the other clients; of all clients together,
    equal shares. A guess of records draws each value from the same column of the other clients.
    """

    def __init__(self, first_round: FirstRound, seed: int, scales: Mapping[int, Scale], *, centred: bool) -> None:
        self.round, self.seed, self.scales, self.centred = first_round, seed, scales, centred
        self.clients = [*first_round.updates]
        everybody = self._samples(self.clients)[0]
        spread = everybody.std(axis=0)
        self._deviation = np.where(spread > 0, spread, 1.0)
        noise = rng.generator(seed, "audit", "references").standard_normal((_REFERENCES, everybody.shape[1]))
        self._references = everybody.mean(axis=0) + spread * noise
        own = np.concatenate([self.scales[client].to_unit(self._samples([client])[0]) for client in self.clients])
        spread = own.std(axis=0)
        self.deviation = np.where(spread > 0, spread, 1.0)
        """the deviation (d,) of each column over all clients, in its own unit"""
        values = [np.unique(column.round(3)) for column in (own / self.deviation).T]
        self._values = {place: known for place, known in enumerate(values) if len(known) <= 2}

    def attack_client(self, client: int) -> Found:
        """Attack the update of one client."""
        first = self.round
        return self._attack(first.updates[client], first.sum_rates(first.samples[client]), [client])

    def attack_change(self) -> Found:
        """Attack the change of the global model as if it was the update of a client with the samples of all."""
        first = self.round
        rates = [first.sum_rates(first.samples[client]) for client in self.clients]
        weights = [1 if first.run.privacy else first.samples[client] for client in self.clients]
        return self._attack(first.change, float(np.average(rates, weights=weights)), self.clients)

    def _samples(self, clients: Sequence[int]) -> tuple[Rows, NDArray[np.int64]]:
        """Return the training samples (n, d) and their labels (n,) of clients."""
        federation = self.round.run.federation
        rows = np.concatenate([federation.rows(client, "train") for client in clients])
        return federation.samples(rows).cpu().double().numpy(), federation.y.cpu().numpy()[rows]

    def _attack(self, update: Update, rates: float, clients: list[int]) -> Found:
        x, y = self._samples(clients)
        quotients = records.divide_updates(*(update[name] for name in self.round.layers.first))
        lone = quotients[:0]
        wrong = guessed = None
        if self.round.run.task.kind == CLASSES:
            estimated = self._estimate_counts(update, rates, len(y), quotients)
            wrong, guessed = self._compare_counts(estimated, y, clients)
            lone = self._find_lone_samples(update, rates, estimated)
        candidates = np.concatenate([quotients, lone])
        certain = self._single_out(quotients, lone, clients, len(y))
        found = records.find_records(candidates, x, self._deviation)
        others = [client for client in self.clients if client not in clients]
        known, draw = self._samples(others or clients)[0], rng.generator(self.seed, "audit", "guess", *clients)
        guesses = [records.draw_guesses(known, len(candidates), draw) for _ in range(_GUESSES)]
        by_guess = [(records.find_records(each, x, self._deviation) >= 0).sum() for each in guesses]
        right = [records.measure_errors(x, candidates[place], self._deviation).min() <= TOLERANCE for place in certain]
        errors = np.abs(x - candidates[found])[found >= 0] if len(candidates) else x[:0]
        return Found(
            samples=len(y),
            wrong_counts=wrong,
            guessed_wrong_counts=guessed,
            records=int((found >= 0).sum()),
            guessed_records=float(np.mean(by_guess)),
            singled_out=len(certain),
            singled_out_right=int(sum(right)),
            errors=errors * self.scales[clients[0]].deviation,
        )

    def _estimate_counts(self, update: Update, rates: float, samples: int, quotients: Rows) -> Counts:
        """Return the estimated numbers of samples by class, (C,)."""
        first = self.round
        references = quotients[:1] if samples == 1 and len(quotients) else self._references
        p = first.predict(references).mean(axis=0)
        if not self._is_gradient(rates):
            p = (p + first.predict(references, update).mean(axis=0)) / 2
        return class_counts.estimate_counts(update[first.layers.head[1]], p, rates, samples)

    def _is_gradient(self, rates: float) -> bool:
        """Whether an update is a single gradient."""
        return rates == self.round.run.settings.lr_at(0)

    def _find_lone_samples(self, update: Update, rates: float, counts: Counts) -> Rows:
        """Return the only samples (k, d) of their classes, if clients are standardized and the model is constant."""
        first = self.round
        is_known = self.centred and first.layers.is_single and self._is_gradient(rates)
        if not is_known or np.ptp(first.predict(self._references), axis=0).max() >= _SAME:
            return np.zeros((0, first.features))
        return records.read_lone_samples(update[first.layers.first[0]], rates, counts)

    def _single_out(self, quotients: Rows, lone: Rows, clients: list[int], samples: int) -> list[int]:
        """Return the positions among quotients and lone samples that the attacker takes for single samples.

        These are the only sample of a client or class; else quotients on which units agree, if the columns that have
        two values at all clients have one of them.
        """
        if samples == 1:
            return [0] if len(quotients) else []
        if self.round.layers.is_single:
            return [*range(len(quotients), len(quotients) + len(lone))]
        has_unit = len(clients) == 1 or not self.centred
        own = self.scales[clients[0]].to_unit(quotients) / self.deviation
        values = self._values if has_unit else {}
        return [
            place
            for place in records.find_agreeing(quotients, self._deviation).tolist()
            if all(np.abs(own[place, column] - known).min() <= TOLERANCE for column, known in values.items())
        ]

    def _compare_counts(self, estimated: Counts, y: NDArray[np.int64], clients: list[int]) -> tuple[int, int]:
        """Return how many samples with labels ``y`` (n,) are in a wrong class of the estimate, and of the guess."""
        classes = len(estimated)
        others = [client for client in self.clients if client not in clients]
        shares = np.bincount(self._samples(others)[1], minlength=classes) if others else np.ones(classes)
        guess = class_counts.round_counts(shares / shares.sum() * len(y), len(y))
        true = np.bincount(y, minlength=classes)
        return class_counts.count_wrong(estimated, true), class_counts.count_wrong(guess, true)
