"""The answers of all clients, some clients at a time, once the rounds of a method are over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pflcli.artifacts import blocks
from pflcli.artifacts.kinds import datastore, embeddings, predictions
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds.backbone import tensors
from pflcli.artifacts.make import Execution
from pflcli.artifacts.reader import Artifact
from pflcli.engine.engine import probabilities
from pflcli.errors import ComputationError
from pflcli.federation.run import Predictor, Run
from pflcli.knn.stores import Stores
from pflcli.methods import Method
from pflcli.reporter import report_within
from pflcli.training import absences
from pflcli.training.personal_accuracy import at_a_time
from pflcli.training.rounds import Checkpoints


def provide(run: Run, lineage: Mapping[str, Artifact | None]) -> None:
    """Read the backbone, the embeddings and the datastore of a lineage into the run, as far as it has them."""
    if lineage["backbone"] is not None:
        device, trained = run.federation.x.device, tensors(lineage["backbone"], like=run.init)
        run.backbone = {name: value.to(device) for name, value in trained.items()}
    if lineage["embeddings"] is not None:
        run.embeddings = embeddings.read(lineage["embeddings"])
    if lineage["datastore"] is not None:
        assert run.embeddings is not None  # a datastore is built from embeddings
        packed = datastore.read_stores(lineage["datastore"], run.federation.classes, run.embeddings["train"].z.shape[1])
        run.arrived = datastore.arrived(lineage["datastore"])
        run.stores = Stores(packed.blob, packed.bytes, packed.y, packed.offsets, packed.train, run.engine.threads)


def answer(run: Run, name: str, method: Method, checkpoints: Checkpoints, execution: Execution) -> None:
    """Let all clients that have not answered yet personalize and answer, some at a time; nothing may be sent."""
    progress = checkpoints.progress
    completed, total = progress.answered_clients, len(run.clients)
    with (
        run.personalizing(),
        report_within(execution.reporter, run.engine, name, total, completed) as advance,
        checkpoints.on_interruption(),
    ):
        for first in range(completed, total, count := at_a_time(run)):
            clients = run.clients[first : first + count]
            try:
                predictor = method.personalize(run, progress.reported, clients)
            except ComputationError as error:
                raise ComputationError(f"{name}: {error.message}", *error.fix) from None
            splits = answered_splits(run, predictor)
            by_split = {split: with_global(run, predictor.answer(split), clients, split) for split in splits}
            answers = {**absences.checked(run, clients, by_split), "tuned": predictor.tuned}
            # One append, so that an interruption leaves all answers of these clients or none.
            progress.answers.append((len(clients), _tensors(answers)))
            advance(len(clients), "")
            checkpoints.offer()


def answered_splits(run: Run, predictor: Predictor) -> list[str]:
    """Return the splits that are answered; validation samples that a run has learned from are training samples."""
    return [split for split in predictor.splits if split != "validation" or not run.settings.refit]


def _tensors(arrays: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, torch.Tensor]]:
    return {key: {name: torch.from_numpy(values) for name, values in parts.items()} for key, parts in arrays.items()}


def with_global(run: Run, parts: Mapping[str, Any], clients: Any, split: str) -> dict[str, Any]:
    """Add the answer of the backbone, so that ``evaluate`` can tell who is better off than with it."""
    if run.backbone is None or "global" in parts:
        return dict(parts)
    if run.embeddings is not None:
        return {**parts, "global": probabilities(torch.from_numpy(run.embeddings[split].take(clients).logits))}
    return {**parts, "global": run.predictor(clients, run.backbone).answer(split)["p"]}


def with_labels(
    run: Run, data: partitions.Partition, split: str, parts: Mapping[str, torch.Tensor]
) -> predictions.SplitPredictions:
    """Return the answers of all clients on a split, with their labels and sample ids."""
    rows = run.federation.rows_of(run.clients, split)
    return predictions.SplitPredictions(
        parts={name: values.numpy() for name, values in parts.items()},
        y=data.y[rows],
        sample=data.sample[rows],
        offsets=blocks.offsets(run.federation.sizes(split)),
    )
