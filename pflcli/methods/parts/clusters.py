"""Trains and selects models of clusters, for methods with one model per cluster of clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.method import Run, Stacked, TrainedClients, parameters


def select_models(models: Stacked, cluster: NDArray[np.int64]) -> Stacked:
    """Return a read-only stack (n, ...) with the model of each of these clusters (n,)."""
    if len(cluster) and (cluster == cluster[0]).all():
        return parameters.repeat(parameters.pick(models, int(cluster[0])), len(cluster))
    return {name: value[torch.from_numpy(cluster).to(value.device)] for name, value in models.items()}


def train_and_average(
    run: Run,
    models: Stacked,
    cohort: NDArray[np.int64],
    cluster: NDArray[np.int64],
    t: int,
    *,
    shared: str = "",
    on_upload: Callable[[TrainedClients, Stacked], None] | None = None,
) -> Stacked:
    """Return the clusters' models (k, ...) after a round of FedAvg within each cluster.

    ``cluster`` (n,) is the cluster of each client of the cohort. A cluster without clients in the cohort keeps its
    model. Parameters whose name starts with ``shared``, if it is not empty, are averaged over the whole cohort.
    ``on_upload`` is called with each uploaded part and the initial models of its clients.
    """
    common = run.aggregator.begin(parameters.part(parameters.pick(models, 0), shared)) if shared else None
    count, senders = len(next(iter(models.values()))), list[NDArray[np.int64]]()
    means = [run.aggregator.begin(parameters.pick(models, c)) for c in range(count)]
    cluster_of = dict(zip(cohort.tolist(), cluster.tolist(), strict=True))
    for ids in run.client_chunks(cohort):
        start_clusters = np.asarray([cluster_of[i] for i in ids.tolist()])
        start = select_models(models, start_clusters)
        for trained in run.local_sgd(ids, start, t=t):
            part = replace(trained, params=run.upload(trained.params, start, trained.clients))
            if on_upload:
                on_upload(part, start)
            part_clusters = np.asarray([cluster_of[i] for i in part.clients.tolist()])
            senders.append(part.clients)
            for c in np.unique(part_clusters):
                members = np.flatnonzero(part_clusters == c)
                means[c].add(parameters.take(part.params, members), part.weights[members])
            if common is not None:
                common.add({n: v for n, v in part.params.items() if n.startswith(shared)}, part.weights)
    updated = {name: value.clone() for name, value in models.items()}
    all_senders = np.concatenate(senders)
    sender_clusters = np.asarray([cluster_of[i] for i in all_senders.tolist()])
    for c in np.unique(cluster):
        for name, value in run.aggregate_uploads(means[c], all_senders[sender_clusters == c]).items():
            updated[name][c] = value
    if common is not None:
        for name, value in run.aggregate_uploads(common, all_senders).items():
            updated[name][:] = value
    return updated


def find_best(run: Run, models: Stacked, clients: NDArray[np.int64], clusters: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of the model with the lowest loss on each client's training samples, (n,); ties to the first.

    A client without training samples gets the most common cluster in ``clusters`` (m,) of all clients; -1 is none.
    """
    most_common = np.bincount(clusters[clusters >= 0], minlength=1).argmax()
    rows = [run.federation.rows(int(client), "train") for client in clients]
    count = len(next(iter(models.values())))
    losses = np.stack([run.loss_per_group(parameters.pick(models, c), rows) for c in range(count)])  # (k, n)
    lowest = np.where(np.isnan(losses), np.inf, losses).argmin(axis=0)
    return np.where([len(part) > 0 for part in rows], lowest, most_common).astype(np.int64)
