"""From what a comparison was made: each artifact once, the first ones first, and which of them are missing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pflcli.artifacts import codebook, kinds
from pflcli.artifacts.manifest import Input
from pflcli.artifacts.reader import Artifact, follow
from pflcli.errors import InputError


@dataclass(frozen=True)
class Lineage:
    """The artifacts behind a comparison, itself included; those that are gone are known by their references alone."""

    artifacts: tuple[Artifact, ...]
    """each once, after all that it was made from"""
    missing: tuple[Input, ...]
    base: Path
    """the folder to which paths are relative on the page, so that it tells nothing of the machine"""

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
        """Return path, kind, facts, versions, seconds and fingerprint of each."""
        return [[self.name(artifact), *_facts(artifact)] for artifact in self.artifacts]

    def nearest(self, artifact: Artifact, kind: str) -> Artifact | None:
        """Return the nearest artifact of a kind that an artifact was made from, itself included, or None."""
        if artifact.kind == kind:
            return artifact
        for item in self.inputs(artifact):
            result = self.nearest(item, kind)
            if result is not None:
                return result
        return None


HEADINGS = ["artifact", "kind", "what it is", "pfl", "Python", "seconds", "fingerprint"]


def _facts(artifact: Artifact) -> list[str]:
    manifest = artifact.manifest
    words = ", ".join(filter(None, kinds.load(artifact.kind).describe(manifest)))
    seconds = manifest.made.get("seconds")
    return [
        artifact.kind,
        words,
        str(manifest.made.get("pfl", "")),
        str(manifest.made.get("python", "")),
        "" if seconds is None else f"{seconds:.1f}",
        manifest.fingerprint[:12],
    ]


def trace(artifact: Artifact) -> Lineage:
    """Return the lineage of an artifact; raises InputError if an artifact in it is damaged, not if one is missing."""
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
