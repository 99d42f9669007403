"""What kinds of artifacts need to know of an artifact and its manifest, which know all kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class Manifest(Protocol):
    """The facts of an artifact; see ``manifest.Manifest``."""

    @property
    def kind(self) -> str: ...

    @property
    def summary(self) -> dict[str, Any]: ...


class Artifact(Protocol):
    """An artifact on disk; see ``reader.Artifact``."""

    @property
    def path(self) -> Path: ...

    @property
    def kind(self) -> str: ...
