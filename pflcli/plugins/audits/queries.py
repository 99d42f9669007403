"""Samples that an attacker submits to every client, and the predictions, computed by the code of ``pfl predict``.

The queries replace the test samples of all clients. The method's ``personalize`` then predicts for the same batches of
clients as in the original run. A submitted training sample is embedded and looked up like any other sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import client_blocks
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.reader import Artifact
from pflcli.core import rng
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import InputError
from pflcli.core.execution import Execution
from pflcli.core.federation.privacy.accounting import compose_epsilon
from pflcli.core.federation.privacy.guarantee import describe_random_numbers
from pflcli.core.simulation import absences
from pflcli.core.simulation.predict import client_batches, predict
from pflcli.plugins.audits import membership
from pflcli.workflow.prediction import embedding
from pflcli.workflow.prediction.reopened_run import ReopenedRun
from pflcli.workflow.prediction.stored_predictor import ClientPrediction, StoredPredictor, pool_predictions
from pflcli.workflow.training.state_files import load_state

DISTANCE = "distance"
"""The part with the distance (n, 1) from each sample to the nearest one in its client's store."""
VOTE_DELTA = 1e-5
"""Failure probability of the epsilon of all queries to a client together, if its neighbours vote with noise."""
_COUNT = len(SPLITS)


@dataclass(frozen=True)
class Queries:
    """Samples of a partition that an attacker submits: ``rows`` (n,), grouped by client at ``offsets`` (m + 1,)."""

    data: Partition
    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @property
    def y(self) -> NDArray[np.int64]:
        """The labels (n,)."""
        return self.data.y[self.rows]

    @property
    def sample(self) -> NDArray[np.int64]:
        """The rows of the dataset (n,); they identify the same samples in another partition."""
        return self.data.sample[self.rows]

    @property
    def client(self) -> NDArray[np.int64]:
        """The client of each sample (n,)."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def replace_test_samples(self) -> Partition:
        """Return the partition with its test samples replaced by these samples."""
        data, bounds = self.data, self.data.offsets
        pieces = [np.zeros(0, np.int64)]
        for client in range(len(data.names)):
            pieces.append(np.arange(bounds[_COUNT * client], bounds[_COUNT * client + 2]))
            pieces.append(self.rows[self.offsets[client] : self.offsets[client + 1]])
        rows, sizes = np.concatenate(pieces), data.sizes.copy()
        sizes[:, 2] = np.diff(self.offsets)
        return replace(data, x=data.x[rows], y=data.y[rows], sample=rows, offsets=client_blocks.offsets(sizes.ravel()))


def find_members(artifact: Artifact, data: Partition) -> NDArray[np.bool_]:
    """Return which samples (n,) of the partition the run learned from."""
    splits = [SPLITS.index(split) for split in predictions.learned_splits(artifact)]
    return np.isin(split_numbers(data), splits)


def split_numbers(data: Partition) -> NDArray[np.int64]:
    """Return the split of each sample (n,), an index into ``SPLITS``."""
    return np.repeat(np.tile(np.arange(_COUNT), len(data.names)), data.sizes.ravel())


def select_queries(data: Partition, chosen: NDArray[np.bool_]) -> Queries:
    """Return the ``chosen`` (n,) samples of a partition as queries to their own clients."""
    rows, client = np.flatnonzero(chosen), _client_numbers(data)
    return Queries(data, rows, client_blocks.offsets(np.bincount(client[rows], minlength=len(data.names))))


def draw_queries(predictor: StoredPredictor, data: Partition, is_unseen: NDArray[np.bool_], seed: int) -> Queries:
    """Draw equally many members and test samples of each client that took part in the rounds.

    Raises InputError if no client has both.
    """
    client = _client_numbers(data)
    is_member, split = find_members(predictor.artifact, data), split_numbers(data)
    candidate = (is_member | (split == 2)) & ~is_unseen[client]
    draws = [
        (np.flatnonzero(candidate & (client == number)), rng.generator(seed, "audit", number))
        for number in range(len(data.names))
    ]
    chosen = np.zeros(len(client), np.bool_)
    chosen[membership.balance_members(is_member, draws)] = True
    if not chosen.any():
        raise InputError(
            f"no client of {predictor.partition.path} has both training and test samples: nothing can be audited",
            "pfl partition DATASET -o DIR --fractions 0.6,0.2,0.2",
        )
    return select_queries(data, chosen)


def predict_queries(
    predictor: StoredPredictor, queries: Queries, execution: Execution
) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Return the parts of the predictions, (n, C) each, and remarks on the clients' models.

    The part ``p`` is always included, ``distance`` if clients search a store. Raises ComputationError if the method
    cannot predict.
    """
    if predictor.run is not None:
        return _predict_with_run(predictor.run, queries, execution)
    sources = [predict_queries(source, queries, execution) for source in predictor.sources]
    methods = [source.method for source in predictor.sources]
    by_client: list[Mapping[str, NDArray[Any]]] = []
    for first, last in zip(queries.offsets[:-1], queries.offsets[1:], strict=True):
        own = [
            ClientPrediction({name: values[first:last] for name, values in parts.items() if name != DISTANCE}, {})
            for parts, _ in sources
        ]
        by_client.append(pool_predictions(predictor.artifact, methods, own, len(by_client)).parts)
    parts = {name: np.concatenate([parts[name] for parts in by_client]) for name in by_client[0]}
    return parts, list(dict.fromkeys(remark for _, remarks in sources for remark in remarks))


def _predict_with_run(
    model: ReopenedRun, queries: Queries, execution: Execution
) -> tuple[dict[str, NDArray[Any]], list[str]]:
    data, execution = queries.replace_test_samples(), model.execution(execution)
    inputs = model.read_inputs(data, execution)
    if inputs.embeddings is not None:
        inputs = embedding.embed_test_samples(inputs, model.lineage, data, execution)
    run = model.build(data, execution, inputs)
    state = load_state(model.artifact, run, model.method)
    pieces: dict[str, list[NDArray[Any]]] = {}
    remarks: dict[str, None] = {}
    for clients in client_batches(run):
        predicted = predict(run, model.name, model.method, state, clients, ("test",))
        flags = predicted.flags
        remarks |= {text: None for kind, text in absences.FAILURES.items() if flags[kind].any()}
        for name, values in (predicted.parts["test"] | _nearest_distances(model, run, clients)).items():
            pieces.setdefault(name, []).append(values)
    run.engine.close()
    return {name: np.concatenate(values) for name, values in pieces.items()}, [*remarks]


def _nearest_distances(model: ReopenedRun, run: Any, clients: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return the distances (n, 1) to the nearest stored samples; empty if the method has no stores."""
    if "datastore" not in model.method.NEEDS:
        return {}
    part = run.embeddings["test"].take(clients)
    return {DISTANCE: np.sqrt(run.stores.search(clients, part.z, part.offsets, 1).distance)}


def match_queries(target: Queries, data: Partition, where: str) -> Queries:
    """Return the samples of ``target`` as queries to another partition of the same dataset, in the same order.

    Raises InputError, naming ``where``, if the clients differ or a client lacks one of the samples.
    """
    same_clients = list(data.names) == list(target.data.names)
    client = _client_numbers(data)
    order = np.argsort(data.sample)
    place = np.searchsorted(data.sample[order], target.sample)
    rows = order[np.minimum(place, len(order) - 1)]
    if not same_clients or not np.array_equal(data.sample[rows], target.sample):
        known = False
    else:
        known = np.array_equal(client[rows], target.client) and np.array_equal(data.y[rows], target.y)
    if not known:
        raise InputError(
            f"{where} cannot be a reference: its clients do not have the same samples",
            "pfl partition DATASET -o DIR, as before but with another --split-seed",
        )
    return Queries(data, rows, target.offsets)


def _client_numbers(data: Partition) -> NDArray[np.int64]:
    """Return the client of each sample of a partition, (n,)."""
    return np.repeat(np.arange(len(data.names)), data.sizes.sum(axis=1))


def find_unseen(data: Partition) -> NDArray[np.bool_]:
    """Return which clients (m,) of the partition took no part in the rounds."""
    return np.zeros(len(data.names), np.bool_) if data.new is None else data.new


def account_noisy_votes(predictor: StoredPredictor, queries: int) -> dict[str, Any]:
    """Return the epsilon that ``queries`` to one client spend, for ``audit.json``; empty if votes have no noise."""
    model = predictor.run
    if model is None or getattr(model.cfg, "vote", None) != "noisy":
        return {}
    each = float(model.cfg.vote_epsilon)
    return {
        "noisy_votes": {
            "epsilon_per_query": each,
            "queries": queries,
            "epsilon": each * queries,
            "delta": VOTE_DELTA,
            "epsilon_at_delta": compose_epsilon(each, queries, VOTE_DELTA),
            "random_numbers": describe_random_numbers(model.settings),
        }
    }
