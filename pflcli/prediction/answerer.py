"""Who answers for stored predictions: the run of their method or, of a stack, the runs of all its sources."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pflcli.artifacts.reader import Artifact, follow
from pflcli.evaluation.learners import STACK
from pflcli.execution import Execution
from pflcli.prediction import answering, personalized
from pflcli.prediction.answering import Answer
from pflcli.prediction.personalized import Personalized
from pflcli.prediction.pooled import pooled


@dataclass(frozen=True)
class Answerer:
    """Predictions with the ``run`` that made them or, of a stack, with its ``sources`` in their order."""

    artifact: Artifact
    run: Personalized | None
    sources: tuple[Answerer, ...] = ()

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.artifact.manifest.request["method"])

    @property
    def partition(self) -> Artifact:
        """The partition whose clients were personalized."""
        return self.sources[0].partition if self.run is None else self.run.partition

    def changed_code(self) -> list[str]:
        """Return the files of the registry that have changed since the predictions were made."""
        own = [] if self.run is None else personalized.changed_code(self.artifact)
        return sorted({*own, *(name for source in self.sources for name in source.changed_code())})

    def answer(self, client: int | None, x: NDArray[Any], execution: Execution) -> Answer:
        """Return what a client, by its number, answers for samples (n, ...); None is the global model.

        Raises InputError if there is no global model, ComputationError if the method cannot answer.
        """
        if self.run is None:
            answers = [source.answer(client, x, execution) for source in self.sources]
            return pooled(self.artifact, [source.method for source in self.sources], answers, client)
        if client is None:
            return answering.of_global(self.run, x, execution)
        by_split, _ = answering.predict_client(self.run, answering.ready(self.run, client, x, execution))
        return by_split["test"]


def opened(artifact: Artifact, weights: Path | str | None = None) -> Answerer:
    """Open predictions and what made them; raises as ``personalized.opened``."""
    if artifact.manifest.request["method"] != STACK:
        return Answerer(artifact, personalized.opened(artifact, weights))
    sources = [follow(artifact, reference) for reference in artifact.manifest.inputs if reference.role == "pooled"]
    began = [weights if "weights" in source.manifest.request else None for source in sources]
    return Answerer(artifact, None, tuple(opened(source, file) for source, file in zip(sources, began, strict=True)))
