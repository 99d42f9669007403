"""``pfl show``: what an artifact says of itself."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from pflcli.artifacts.artifact import Artifact, follow, open_artifact


def show(path: Path | str, *, lineage: bool = False, verify: bool = False) -> dict[str, Any]:
    """Return an artifact's facts; with ``lineage`` those of its inputs, nested; with ``verify`` every hash is checked.

    Raises InputError if a file is not what was written, or an input is gone.
    """
    artifact = open_artifact(path)
    return _facts(artifact, lineage=lineage, verify=verify)


def _facts(artifact: Artifact, *, lineage: bool, verify: bool) -> dict[str, Any]:
    if verify:
        artifact.verify()
    manifest = artifact.manifest
    facts: dict[str, Any] = {
        "path": str(artifact.path),
        "kind": manifest.kind,
        "schema": manifest.schema,
        "fingerprint": manifest.fingerprint,
        "request": manifest.request,
        "summary": manifest.summary,
        "made": manifest.made,
        "files": manifest.files,
        "inputs": [asdict(reference) for reference in manifest.inputs],
    }
    if verify:
        facts["verified"] = len(manifest.files)
    if lineage:
        facts["inputs"] = [
            _facts(follow(artifact, reference), lineage=True, verify=verify) for reference in manifest.inputs
        ]
    return facts
