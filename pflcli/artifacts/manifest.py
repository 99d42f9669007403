"""A manifest: what an artifact is, which request made it from which inputs, and the hash of every file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pflcli.errors import InputError

NAME = "manifest.json"
SCHEMAS = {
    "dataset": 1,
    "partition": 1,
    "backbone": 1,
    "embeddings": 1,
    "datastore": 1,
    "predictions": 1,
    "evaluation": 1,
    "comparison": 1,
    "sweep": 1,
}
"""The schema version that this code writes, by kind; it reads every version up to it."""


@dataclass(frozen=True)
class Input:
    """An artifact that another was made from; ``path`` is relative to the folder that holds the manifest."""

    role: str
    kind: str
    fingerprint: str
    path: str


@dataclass(frozen=True)
class Draft:
    """What identifies an artifact before it exists: its kind, request, inputs and code."""

    kind: str
    request: Mapping[str, Any]
    inputs: tuple[Input, ...] = ()
    code: Mapping[str, str] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over everything that can change the result; time, device and paths stay outside."""
        identity = {
            "kind": self.kind,
            "schema": SCHEMAS[self.kind],
            "request": self.request,
            "inputs": [[item.role, item.fingerprint] for item in self.inputs],
            "code": self.code,
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Manifest:
    """The facts of a finished artifact, as stored in its ``manifest.json``."""

    kind: str
    schema: int
    fingerprint: str
    request: dict[str, Any]
    inputs: tuple[Input, ...]
    code: dict[str, str]
    files: dict[str, dict[str, Any]]
    summary: dict[str, Any]
    made: dict[str, Any]

    def to_json(self) -> str:
        """Return the text of ``manifest.json``."""
        return json.dumps(asdict(self), indent=2) + "\n"


def ours(folder: Path) -> bool:
    """Whether pfl made a folder, be its manifest damaged: other programs write a ``manifest.json`` too."""
    try:
        return (folder / NAME).read_bytes().startswith(b'{\n  "kind": ')
    except OSError:
        return False


def read(folder: Path) -> Manifest:
    """Read a folder's manifest; raises InputError if there is none, or one that this version cannot read."""
    path = folder / NAME
    if not folder.exists():
        raise InputError(f"{folder} does not exist")
    if not path.is_file():
        raise InputError(f"{folder} is not a pfl artifact: it has no {NAME}")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        raw["inputs"] = tuple(Input(**item) for item in raw["inputs"])
        manifest = Manifest(**raw)
        newer = manifest.schema > SCHEMAS.get(manifest.kind, 0)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{path} is damaged: it is not a manifest") from None
    if newer:
        raise InputError(
            f"{folder} is a {manifest.kind} of schema {manifest.schema}, made by a newer pfl",
            "pip install --upgrade pflcli",
        )
    return manifest


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """List what differs between two requests, as ``alpha: 0.3 -> 0.1``."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            lines.append(f"{prefix}{key}: {_short(before)} -> {_short(after)}")
    return lines


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
