"""Make the artifacts that several methods share: the backbone of FedAvg, embeddings, a datastore."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.extract import extract
from pflcli.commands.train_global import train_global
from pflcli.execution import Execution
from pflcli.training.initial_weights import Weights

Act = Callable[[Sequence[Artifact], Execution], Outcome]
"""Makes one artifact from its input artifacts."""


def shared_artifacts(
    folder: Path,
    settings: Mapping[str, Any],
    weights: Weights | None,
    seed: int,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Act]:
    """Return, by kind and in their order, functions that make the shared artifacts in ``folder``.

    ``options`` are those of the method that trains the backbone.
    """

    def backbone(sources: Sequence[Artifact], execution: Execution) -> Outcome:
        return train_global(
            sources[0],
            folder / "backbone",
            options=options,
            settings=settings,
            weights=weights,
            seed=seed,
            execution=execution,
        )

    def embeddings(sources: Sequence[Artifact], execution: Execution) -> Outcome:
        return extract(sources[0], folder / "embeddings", execution=execution)

    def datastore(sources: Sequence[Artifact], execution: Execution) -> Outcome:
        return build_datastore(sources[0], folder / "datastore", execution=execution)

    return {"backbone": backbone, "embeddings": embeddings, "datastore": datastore}
