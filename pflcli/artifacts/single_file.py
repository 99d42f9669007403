"""One file that takes its place in one step: a killed writer leaves the old one or the new one, never a part."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def replace(path: Path, content: bytes) -> None:
    """Write a file, in place of the one that exists; raises OSError, and the old file then stays."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
