"""Stored predictions, opened with all that made them, so that their clients can answer further samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pflcli import config, sources
from pflcli.artifacts import client_blocks, codebook, lineage_order
from pflcli.artifacts.codebook import Codebook
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.kinds.partition import Form, Partition
from pflcli.artifacts.kinds.predictions import LaterClients
from pflcli.artifacts.reader import Artifact, ancestor, follow
from pflcli.data.preparation import preprocessing
from pflcli.data.preparation.preprocessing import Preprocessing
from pflcli.errors import GoneError, InputError, UsageError
from pflcli.execution import Execution
from pflcli.federation.run import Run
from pflcli.methods import Method
from pflcli.settings import Settings
from pflcli.training import initial_weights as initial
from pflcli.training import run_request
from pflcli.training.build_run import build_run


@dataclass(frozen=True)
class ReopenedRun:
    """Predictions of one method with the run that made them: everything that ``personalize`` was asked for."""

    artifact: Artifact
    name: str
    method: Method
    cfg: Any
    settings: Settings
    seed: int
    lineage: Mapping[str, Artifact | None]
    """artifacts by kind, None for those that are not in the lineage"""
    earlier_run: Artifact | None
    """the predictions whose choices were taken"""
    weights: initial.Weights | None
    """initial weights from a file of the user's"""
    later: LaterClients | None = None
    """the clients that came after the rounds, behind those of the partition"""

    @property
    def partition(self) -> Artifact:
        """The partition whose clients were personalized."""
        artifact = self.lineage["partition"]
        assert artifact is not None  # every run has one
        return artifact

    @property
    def begins_with_weights(self) -> bool:
        """Whether models began with the weights of a file."""
        return "weights" in self.artifact.manifest.request

    def run(self, data: Partition, execution: Execution) -> Run:
        """Return the run on the samples ``data``, with its lineage, initial weights and choices."""
        return build_run(
            data,
            self.method,
            self.cfg,
            self.settings,
            self.seed,
            execution,
            lineage=self.lineage,
            begins_with_weights=self.begins_with_weights,
            weights=self.weights,
            earlier_run=self.earlier_run,
        )

    def execution(self, execution: Execution) -> Execution:
        """Return how to compute: as the predictions were, where it is left to this method, so that bits agree."""
        mode = self.artifact.manifest.made.get("engine", "auto")
        return Execution(
            device=execution.device,
            engine=mode if execution.engine == "auto" else execution.engine,
            threads=execution.threads,
            reporter=execution.reporter,
        )


def reopen(artifact: Artifact, weights: Path | str | None) -> ReopenedRun:
    """Open predictions of one method and their lineage.

    Raises InputError if a part of the lineage is missing or the predictions are too old to be read as a run, UsageError
    if the run began with ``weights`` of a file that are not given, or with others.
    """
    request = artifact.manifest.request
    name = str(request["method"])
    method = run_request.method_of(artifact)
    reference = next((item for item in artifact.manifest.inputs if item.role == "source"), None)
    if reference is None:
        raise InputError(f"{artifact.path} does not say what it was made from", "run its method again")
    source = follow(artifact, reference)
    lineage = {kind: ancestor(source, kind) for kind in lineage_order.KINDS}
    if lineage["partition"] is None:
        raise InputError(f"{artifact.path} does not descend from a partition", "run its method again")
    choices = next((item for item in artifact.manifest.inputs if item.role == "choices"), None)
    try:
        cfg = config.build(method.Config, request["options"], name)
        settings = run_request.resolve_settings(request["settings"], {})
    except UsageError as error:
        raise InputError(
            f"{artifact.path} was made by another version of pfl: {error.message}", "run its method again"
        ) from None
    return ReopenedRun(
        artifact,
        name,
        method,
        cfg,
        settings,
        int(request["seed"]),
        lineage,
        None if choices is None else follow(artifact, choices),
        _weights(artifact, lineage["backbone"], weights),
        _later_clients(artifact, lineage["partition"]),
    )


def _later_clients(artifact: Artifact, partition: Artifact) -> LaterClients | None:
    """Return the clients that came after the rounds; raises InputError if their samples are not of the partition's."""
    later, form = predictions.later_clients(artifact), partitions.form(partition)
    if later is None:
        return None
    known = int(partition.manifest.summary["clients"])
    is_alike = (later.x.shape[1:], str(later.x.dtype)) == (form.shape, form.dtype)
    if (
        not is_alike
        or known + (len(later.offsets) - 1) // len(client_blocks.SPLITS) != artifact.manifest.summary["clients"]
    ):
        raise InputError(
            f"{artifact.path / predictions.UNSEEN} is inconsistent: its samples or clients do not fit {partition.path}"
        )
    return later


def _weights(artifact: Artifact, backbone: Artifact | None, file: Path | str | None) -> initial.Weights | None:
    """Return the weights with which a run began that has no backbone; raises UsageError if they are not given."""
    digest = artifact.manifest.request.get("weights")
    if file is None:
        if digest is not None and backbone is None:
            raise UsageError(f"{artifact.path} began with the weights of a file", "--weights FILE, with that file")
        return None
    weights = initial.read(file)
    if weights.digest != digest:
        raise UsageError(f"{artifact.path} did not begin with {weights.path}", "leave out --weights")
    return weights


def changed_code(artifact: Artifact) -> list[str]:
    """Return the files, such as methods/ditto, that have changed since the predictions were made."""
    changed = []
    for name, digest in artifact.manifest.code.items():
        group, slash, file = name.partition("/")
        if slash and group in ("methods", "models") and sources.code_hash(group, file) != digest:
            changed.append(name)
    return changed


def preprocessing_of(artifact: Artifact, partition: Artifact, book: Codebook, client: str | None) -> Preprocessing:
    """Return how the samples of a client became what the model takes; see ``preprocessing.from_codebook``."""
    try:
        dataset = ancestor(partition, "dataset")
    except GoneError:
        dataset = None
    resize = None if dataset is None else dataset.manifest.request.get("resize")
    form: Form = partitions.form(partition)
    return preprocessing.from_codebook(str(artifact.path), book, form, client, resize)


def client_names(artifact: Artifact) -> list[str]:
    """Return the names of the clients (m,), their numbers where they have none."""
    return codebook.read(artifact).client_names(int(artifact.manifest.summary["clients"]))


def number_of(client: str, names: Sequence[str]) -> int | None:
    """Return the number of the client of this name, None if there is none."""
    places = np.flatnonzero(np.asarray(names, dtype=np.str_) == client)
    return int(places[0]) if len(places) else None
