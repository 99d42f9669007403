"""The step that moves a finished artifact to its output, and the removal of what earlier writers left there.

pfl deletes only files that it made. An old artifact stays until the new one replaces it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pflcli.artifacts import locks
from pflcli.artifacts import manifest as manifests
from pflcli.core.errors import ConflictError, InputError


def partial_folder(out: Path) -> Path:
    """Return the folder in which the artifact at ``out`` is written."""
    return out.with_name(out.name + ".partial")


def replaced_folder(out: Path) -> Path:
    """Return the folder to which the old artifact at ``out`` is moved until the new one is there."""
    return out.with_name(out.name + ".partial.old")


def unlisted_files(out: Path) -> list[str]:
    """Return the names in an artifact's folder that its manifest, possibly damaged, does not list."""
    if out.is_symlink():
        return []
    try:
        listed = set(manifests.read(out).files)
    except InputError:
        text = (out / manifests.NAME).read_text(encoding="utf-8", errors="replace")
        listed = set(re.findall(r'"([^"\n]+)": \{\s*"sha256"', text))
    expected = {*listed, manifests.NAME}
    return sorted(
        item.name for item in out.iterdir() if item.name not in expected or (item.is_dir() and not item.is_symlink())
    )


def move(folder: Path, out: Path) -> None:
    """Rename ``folder`` to ``out``, after the old artifact there, if any, to ``OUT.partial.old``.

    Raises OSError; nothing is renamed then.
    """
    if not os.path.lexists(out) or (not out.is_symlink() and not any(out.iterdir())):
        folder.rename(out)  # also replaces an empty folder
        return
    old = replaced_folder(out)
    _remove(old)  # from an earlier replacement
    out.rename(old)
    try:
        folder.rename(out)
    except OSError:
        old.rename(out)
        raise


def find_replaced(out: Path) -> Path | None:
    """Return the old artifact that a killed writer moved away from ``out`` but did not remove."""
    old = replaced_folder(out)
    with suppress(OSError):
        if old.is_symlink() or not any(old.iterdir()) or is_only_artifact(old):
            return old
    return None


def find_interrupted(out: Path) -> tuple[Path | None, Path | None]:
    """Return the folders of the old and of the new artifact if a writer was killed between its two renames.

    Each is None if it is not complete; both are if ``out`` exists.
    """
    if os.path.lexists(out):
        return None, None
    old, new = (folder if _is_complete(folder) else None for folder in (replaced_folder(out), partial_folder(out)))
    return old, new


def _is_complete(folder: Path) -> bool:
    try:
        return all((folder / name).is_file() for name in manifests.read(folder).files)
    except (InputError, OSError):
        return False


def is_only_artifact(folder: Path) -> bool:
    """Whether a folder contains an artifact, complete or not, and no other files."""
    return manifests.is_artifact(folder) and not unlisted_files(folder)


def tidy_after_kill(out: Path) -> None:
    """Remove the old artifact and the lock of a killed writer of ``out``, unless another writer is active."""
    if find_replaced(out) or locks.file(out).exists():
        with suppress(ConflictError, OSError), locks.acquire(out):  # they may belong to another user, or host
            tidy(out)


def tidy(out: Path) -> None:
    """Remove the artifact that was replaced at ``out``. Requires the lock."""
    if old := find_replaced(out):
        _remove(old)


def _remove(folder: Path) -> None:
    """Remove an artifact or an empty folder; keep anything else."""
    with suppress(OSError):
        if folder.is_symlink():
            folder.unlink()
            return
        if is_only_artifact(folder):
            clear(folder)
        folder.rmdir()


def discard(partial: Path) -> None:
    """Remove an unfinished folder."""
    with suppress(OSError):
        clear(partial)
        partial.rmdir()


def clear(folder: Path, keep: Iterable[str] = ()) -> None:
    """Remove everything in a folder except the names in ``keep``; draft and manifest, which mark it as ours, last."""
    for item in sorted(folder.iterdir(), key=lambda item: item.name in (manifests.DRAFT, manifests.NAME)):
        if item.name in keep:
            continue
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        else:
            item.unlink()
