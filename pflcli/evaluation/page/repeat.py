"""The command lines that make an artifact again, as the artifacts of its lineage record them."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from pflcli.artifacts import kinds
from pflcli.artifacts.reader import Artifact
from pflcli.evaluation.page.lineage import Lineage

_IN_COMPARE = {"backbone", "embeddings", "datastore", "predictions", "tuning"}
"""Kinds that ``pfl compare`` makes itself."""


def lines(lineage: Lineage) -> list[str]:
    """Return the commands in their order, with paths as the page shows them.

    An artifact of an earlier version of pfl may record no command; its line then ends with ``...``.
    """
    inside = _IN_COMPARE if lineage.artifacts[-1].kind == "comparison" else set()
    return [_line(item, lineage) for item in lineage.artifacts if item.kind not in inside]


def _line(artifact: Artifact, lineage: Lineage) -> str:
    recorded = artifact.manifest.made.get("command")
    if not isinstance(recorded, str):
        words = [*kinds.made_by(artifact.kind).split()[:2], *map(lineage.name, lineage.inputs(artifact))]
        return f"{shlex.join(words)} -o {shlex.quote(lineage.name(artifact))} ..."
    # Paths, which begin with a dot, are relative to the folder of the artifact.
    return shlex.join(
        _path(artifact.path.resolve().parent / word, lineage) if word.startswith(".") else word
        for word in shlex.split(recorded)
    )


def _path(path: Path, lineage: Lineage) -> str:
    return Path(os.path.relpath(os.path.normpath(path), lineage.base)).as_posix()
