"""The artifacts that a comparison was made from, inputs first, its runs, and the commands that make it again."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from pflcli.artifacts import codebook, kinds
from pflcli.artifacts.manifest import Input
from pflcli.artifacts.reader import Artifact, follow
from pflcli.core.errors import InputError
from pflcli.core.wording import is_relative_path
from pflcli.evaluation.stored_comparison import Comparison


@dataclass(frozen=True)
class Lineage:
    """The artifacts behind a comparison, including itself; missing ones are known by their references only."""

    artifacts: tuple[Artifact, ...]
    """each artifact once, after all its inputs"""
    missing: tuple[Input, ...]
    base: Path
    """the folder that paths on the page are relative to, so that the page reveals nothing about the machine"""

    @property
    def dataset(self) -> str:
        """The name of the dataset; empty if the partition is missing."""
        partition = next((item for item in self.artifacts if item.kind == "partition"), None)
        return (
            "" if partition is None else codebook.read(partition).dataset or str(partition.manifest.request["dataset"])
        )

    def name(self, artifact: Artifact) -> str:
        """Return the path of an artifact as the page shows it."""
        return Path(os.path.relpath(artifact.path.resolve(), self.base)).as_posix()

    def inputs(self, artifact: Artifact) -> list[Artifact]:
        """Return the inputs of an artifact that still exist, in the manifest's order."""
        by_fingerprint = {other.manifest.fingerprint: other for other in self.artifacts}
        references = artifact.manifest.inputs
        return [by_fingerprint[item.fingerprint] for item in references if item.fingerprint in by_fingerprint]

    def rows(self) -> list[list[str]]:
        """Return path, kind, description, versions, seconds and fingerprint of each artifact."""
        return [[self.name(artifact), *_describe(artifact)] for artifact in self.artifacts]

    def nearest(self, artifact: Artifact, kind: str) -> Artifact | None:
        """Return the nearest artifact of a kind in the lineage of an artifact, including itself, or None."""
        if artifact.kind == kind:
            return artifact
        for item in self.inputs(artifact):
            result = self.nearest(item, kind)
            if result is not None:
                return result
        return None


_MADE_BY_COMPARE = {"backbone", "embeddings", "datastore", "predictions", "tuning"}
"""Kinds of artifacts that ``pfl compare`` makes itself."""

HEADINGS = ["artifact", "kind", "what it is", "pfl", "Python", "seconds", "fingerprint"]


def _describe(artifact: Artifact) -> list[str]:
    manifest = artifact.manifest
    words = ", ".join(filter(None, kinds.load(artifact.kind).describe(manifest)))
    seconds = manifest.made.get("seconds")
    versions = [str(manifest.made.get(key, "")) for key in ("pfl", "python")]
    took = "" if seconds is None else f"{seconds:.1f}"
    return [artifact.kind, words, *versions, took, manifest.fingerprint[:12]]


def trace(artifact: Artifact) -> Lineage:
    """Return the lineage of an artifact; raises InputError if one in it is damaged, but not if one is missing."""
    ordered: dict[str, Artifact] = {}
    missing: dict[str, Input] = {}

    def walk(item: Artifact) -> None:
        if item.manifest.fingerprint in ordered:
            return
        for reference in item.manifest.inputs:
            try:
                walk(follow(item, reference))
            except InputError:
                missing[reference.fingerprint] = reference
        ordered[item.manifest.fingerprint] = item

    walk(artifact)
    folders = [str(item.path.resolve().parent) for item in ordered.values()]
    return Lineage(tuple(ordered.values()), tuple(missing.values()), Path(os.path.commonpath(folders)).parent)


def list_commands(lineage: Lineage) -> list[str]:
    """Return the command lines that make the artifacts again, in order, with paths as on the page.

    An artifact of an earlier version of pfl may not record its command; its line then ends with ``...``.
    """
    left_out = _MADE_BY_COMPARE if lineage.artifacts[-1].kind == "comparison" else set()
    return [_format_command(item, lineage) for item in lineage.artifacts if item.kind not in left_out]


def _format_command(artifact: Artifact, lineage: Lineage) -> str:
    recorded = artifact.manifest.made.get("command")
    if not isinstance(recorded, str):
        words = [*kinds.made_by(artifact.kind).split()[:2], *map(lineage.name, lineage.inputs(artifact))]
        return f"{shlex.join(words)} -o {shlex.quote(lineage.name(artifact))} ..."
    folder, words = artifact.path.resolve().parent, shlex.split(recorded)  # paths are relative to the folder
    return shlex.join(
        Path(os.path.relpath(os.path.normpath(folder / word), lineage.base)).as_posix()
        if is_relative_path(word, before)
        else word
        for before, word in zip(["", *words], words, strict=False)
    )


def label_runs(comparison: Comparison, lineage: Lineage) -> list[tuple[str, int, Artifact]]:
    """Return label, seed and predictions of each existing run."""
    existing = {item.manifest.fingerprint: item for item in lineage.artifacts}
    labelled = []
    for reference in comparison.artifact.manifest.inputs:
        run = existing.get(reference.fingerprint)
        if run is None or run.kind != "predictions":
            continue
        seed = int(run.manifest.request["seed"])
        label = _find_row(reference.role, str(run.manifest.request["method"]), comparison)
        if label is not None:
            labelled.append((label, seed, run))
    return labelled


def _find_row(role: str, method: str, comparison: Comparison) -> str | None:
    """Return the row of the table that a run belongs to: recorded by a comparison, else the only row of its method."""
    label = role.rpartition(", seed ")[0]
    if label in comparison.methods:
        return label
    rows = [row["label"] for row in comparison.rows if row.get("method", row["label"]) == method]
    return rows[0] if len(rows) == 1 else None


def rounds_source(run: Artifact, lineage: Lineage) -> Artifact | None:
    """Return the artifact with the rounds of a run: itself, or the backbone of FedAvg; None if it has none.

    A method that adapts after the rounds has none.
    """
    if "rounds.csv" in run.manifest.files:
        return run
    return lineage.nearest(run, "backbone") if run.manifest.request["method"] == "fedavg" else None
