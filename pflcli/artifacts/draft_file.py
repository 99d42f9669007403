"""``draft.json``, which records the request of an unfinished artifact, with a seal over the whole file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.errors import InputError

NAME = "draft.json"
"""Exists until the artifact is at its final path and all other files are removed."""

UNFINISHED = "draft.tmp"
"""The temporary name of the draft, which a writer leaves if it is killed while it writes the draft."""


def content(spec: ArtifactSpec, *, force: bool) -> bytes:
    """Return the bytes of ``draft.json``; ``force`` is true for a request with ``--force``."""
    fields = json.loads(json.dumps({**asdict(spec), "fingerprint": spec.fingerprint, "force": force}))
    return json.dumps({**fields, "seal": manifests.digest(fields)}).encode()


def read(folder: Path) -> dict[str, Any]:
    """Return the fields of a folder's draft, empty if it has none; raises InputError if the draft is damaged."""
    path = folder / NAME
    if not path.is_file():
        return {}
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if fields.pop("seal") != manifests.digest(fields):
            raise ValueError
    except Exception:  # a parser raises anything on a damaged file
        raise InputError(
            f"{path} is damaged, or was written by an older pfl",
            f"if pfl made {folder}, remove it (rm -r {folder}) and start again; or choose another --out",
        ) from None
    return fields
