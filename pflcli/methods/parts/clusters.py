"""Trains and selects models of clusters, for methods with one model per cluster of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import Diverged, Packages, Params, Run, Stacked, TrainedClients, parameters


def select_models(models: Stacked, cluster: NDArray[np.int64]) -> Stacked:
    """Return a read-only stack (n, ...) with the model of each of these clusters (n,)."""
    if len(cluster) and (cluster == cluster[0]).all():
        return parameters.repeat(parameters.pick(models, int(cluster[0])), len(cluster))
    return {name: value[torch.from_numpy(cluster).to(value.device)] for name, value in models.items()}


def train_and_average(
    run: Run,
    models: Stacked,
    here: NDArray[np.int64],
    cluster: NDArray[np.int64],
    t: int,
    *,
    shared: str = "",
    on_upload: Callable[[TrainedClients, Stacked], None] | None = None,
) -> tuple[Stacked, NDArray[np.int64]]:
    """Return the clusters' models (k, ...) after a round of FedAvg within each cluster, and each client's cluster (m,).

    ``cluster`` (m,) is the cluster of each client before. Those of the cohort without one, -1, receive all models, and
    choose the one with the lowest loss. A cluster without clients in the cohort keeps its model. Parameters whose name
    starts with ``shared``, if it is not empty, are averaged over the whole cohort. ``on_upload`` is called with each
    uploaded part and the initial models of its clients.
    """
    initial, chosen = receive_models(run, models, here, cluster)

    def train() -> Iterator[TrainedClients]:
        for ids in run.client_chunks(here):
            for part in run.local_sgd(ids, stack_received(run, initial, ids), t=t):
                yield replace(part, params={**part.params, "cluster": chosen[torch.from_numpy(part.clients)]})

    parts = run.collect(
        train(), run.init, start=lambda part: stack_received(run, initial, part.clients), also={"cluster": chosen[0]}
    )
    return run.serve(lambda: _average(run, models, parts, cluster, t, shared, on_upload), (models, cluster))


def receive_models(
    run: Run, models: Stacked, here: NDArray[np.int64], cluster: NDArray[np.int64]
) -> tuple[dict[int, Params], Tensor]:
    """Send each client of the cohort the model of its cluster (m,), or all of them if it has none, -1.

    Returns what each client that is ``here`` (n,) takes, in the latter case the model with the lowest loss, and the
    numbers (m,) of those that clients chose, -1 for the others.
    """
    received: dict[int, Params] = {}
    chosen = torch.full((len(run.clients),), -1)
    all_models, most = (lambda: _all_models(run, models, here, cluster)), len(run.clients)
    for ids, sent in run.deliver(all_models, here, run.init, most=most, counted=False):
        best = find_best(run, sent, ids, cluster)
        choices = [parameters.pick(sent, c) for c in range(len(next(iter(sent.values()))))]
        received |= {client: choices[c] for client, c in zip(ids.tolist(), best.tolist(), strict=True)}
        chosen[torch.from_numpy(ids)] = torch.from_numpy(best)
    for ids, own in run.deliver(lambda: _own_models(run, models, here, cluster), here, run.init, counted=False):
        received |= dict.fromkeys(ids.tolist(), own)
    return received, chosen


def _all_models(run: Run, models: Stacked, here: NDArray[np.int64], cluster: NDArray[np.int64]) -> Packages:
    """Yield the clients of the cohort without a cluster, with all models."""
    cohort = run.everyone(here)
    if len(new := cohort[cluster[cohort] < 0]):
        yield new, models


def _own_models(run: Run, models: Stacked, here: NDArray[np.int64], cluster: NDArray[np.int64]) -> Packages:
    """Yield the clients of the cohort in each cluster, with its model."""
    cohort = run.everyone(here)
    for c in np.unique(cluster[cohort][cluster[cohort] >= 0]):
        yield cohort[cluster[cohort] == c], parameters.pick(models, c)


def stack_received(run: Run, received: Mapping[int, Params], clients: NDArray[np.int64]) -> Stacked:
    """Return a read-only stack (n, ...) with the model that each of these clients has received."""
    models = [received[client] for client in clients.tolist()] or [run.init]
    # A new client has a view of its own of the model that it chose.
    if len({tuple(value.data_ptr() for value in model.values()) for model in models}) == 1:
        return parameters.repeat(models[0], len(clients))
    return parameters.stack(models)


def _average(
    run: Run,
    models: Stacked,
    parts: Iterable[TrainedClients],
    cluster: NDArray[np.int64],
    t: int,
    shared: str,
    on_upload: Callable[[TrainedClients, Stacked], None] | None,
) -> tuple[Stacked, NDArray[np.int64]]:
    """Return the clusters' means of the uploads, and each client's cluster (m,).

    Raises Diverged for clients whose cluster does not exist.
    """
    common = run.aggregator.begin(parameters.part(parameters.pick(models, 0), shared)) if shared else None
    count, senders, cluster = len(next(iter(models.values()))), list[NDArray[np.int64]](), cluster.copy()
    means = [run.aggregator.begin(parameters.pick(models, c)) for c in range(count)]
    for part in parts:
        chosen = part.params["cluster"].numpy()
        uploaded = {name: part.params[name] for name in run.init}
        cluster[part.clients] = np.where(chosen < 0, cluster[part.clients], chosen)
        if len(wrong := part.clients[cluster[part.clients] >= count]):
            raise Diverged(wrong.tolist(), ("choose", t))  # no honest client: it drops out of the round
        senders.append(part.clients)
        if on_upload:
            on_upload(part, select_models(models, cluster[part.clients]))
        for c in np.unique(cluster[part.clients]):
            members = np.flatnonzero(cluster[part.clients] == c)
            means[c].add(parameters.take(uploaded, members), part.weights[members])
        if common is not None:
            common.add({n: v for n, v in uploaded.items() if n.startswith(shared)}, part.weights)
    updated, all_senders = {name: value.clone() for name, value in models.items()}, np.concatenate(senders)
    for c in np.unique(cluster[all_senders]):
        for name, value in run.aggregate_uploads(means[c], all_senders[cluster[all_senders] == c]).items():
            updated[name][c] = value
    if common is not None:
        for name, value in run.aggregate_uploads(common, all_senders).items():
            updated[name][:] = value
    return updated, cluster


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
