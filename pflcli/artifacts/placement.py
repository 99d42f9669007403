"""The step that moves a finished artifact to its output, and the removal of what earlier writers left there.

pfl deletes only files that it made. An old artifact stays until the new one replaces it.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pflcli.artifacts import locks
from pflcli.artifacts import manifest as manifests
from pflcli.errors import ConflictError, InputError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h
_RENAME_SWAP = 2  # sys/stdio.h of macOS


def partial_folder(out: Path) -> Path:
    """Return the folder in which the artifact at ``out`` is written."""
    return out.with_name(out.name + ".partial")


def unlisted_files(out: Path) -> list[str]:
    """Return the names in an artifact's folder that its manifest, possibly damaged, does not list."""
    if out.is_symlink():
        return []
    try:
        listed = set(manifests.read(out).files)
    except InputError:
        text = (out / manifests.NAME).read_text(encoding="utf-8", errors="replace")
        listed = set(re.findall(r'"([^"\n]+)": \{\s*"sha256"', text))
    expected = {*listed, manifests.NAME, manifests.DRAFT}
    return sorted(
        item.name for item in out.iterdir() if item.name not in expected or (item.is_dir() and not item.is_symlink())
    )


def move(folder: Path, out: Path) -> None:
    """Rename ``folder`` to ``out``; an old artifact there becomes ``OUT.replaced-PID``, in one step if possible.

    Raises OSError; ``out`` is then unchanged, or the new artifact if the names were already exchanged.
    """
    if not os.path.lexists(out) or (not out.is_symlink() and not any(out.iterdir())):
        folder.rename(out)  # also replaces an empty folder
        return
    old = out.with_name(f"{out.name}.replaced-{os.getpid()}")
    _remove(old)  # left by an earlier process with the same number
    if _exchange(folder, out):
        folder.rename(old)
        return
    out.rename(old)
    try:
        folder.rename(out)
    except OSError:
        old.rename(out)
        raise


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names in one step; return False, without a change, if the system cannot."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):
        return False
    names = os.fsencode(first), os.fsencode(second)
    if hasattr(library, "renameat2"):  # Linux
        return bool(library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)
    if hasattr(library, "renamex_np"):  # macOS
        return bool(library.renamex_np(*names, _RENAME_SWAP) == 0)
    return False


def find_leftovers(out: Path) -> list[Path]:
    """Return the old artifacts that a killed writer moved away from ``out`` but did not remove."""
    name = re.compile(re.escape(out.name) + r"\.replaced-\d+")
    try:
        paths = sorted(item for item in out.parent.iterdir() if name.fullmatch(item.name) and _is_removable(item))
    except OSError:
        return []
    unfinished = partial_folder(out)
    if manifests.is_artifact(out) and _is_removable(unfinished) and not (unfinished / manifests.DRAFT).exists():
        paths.append(unfinished)  # the names were exchanged, and the old artifact was not renamed yet
    return paths


def find_interrupted(out: Path) -> tuple[list[Path], Path | None]:
    """Return the folders of the old artifacts and of the complete new one after a writer was killed in its last step.

    The new one is None if it is not complete. Returns no folders if ``out`` exists.
    """
    if os.path.lexists(out):
        return [], None
    new = partial_folder(out)
    return [item for item in find_leftovers(out) if _is_complete(item)], new if _is_complete(new) else None


def _is_complete(folder: Path) -> bool:
    try:
        return all((folder / name).is_file() for name in manifests.read(folder).files)
    except (InputError, OSError):
        return False


def _is_removable(item: Path) -> bool:
    return item.is_symlink() or is_only_artifact(item) or (item.is_dir() and not any(item.iterdir()))


def is_only_artifact(folder: Path) -> bool:
    """Whether a folder contains an artifact, complete or not, and no other files."""
    return manifests.is_artifact(folder) and not unlisted_files(folder)


def tidy_after_kill(out: Path) -> None:
    """Remove the files and the lock of a killed writer of ``out``, unless another writer is active."""
    if find_leftovers(out) or locks.file(out).exists() or (out / manifests.DRAFT).exists():
        with suppress(ConflictError, OSError), locks.acquire(out):  # they may belong to another user, or host
            tidy(out)


def tidy(out: Path) -> None:
    """Remove the artifacts that were replaced at ``out``, also those of killed writers. Requires the lock."""
    for item in find_leftovers(out):
        _remove(item)
    with suppress(OSError):
        (out / manifests.DRAFT).unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    """Remove an artifact, the manifest last, so that it is recognized until then. Keep anything else."""
    if folder.is_symlink():
        folder.unlink()
    elif is_only_artifact(folder):
        clear(folder, {manifests.NAME})
        shutil.rmtree(folder, ignore_errors=True)
    else:
        with suppress(OSError):
            folder.rmdir()


def discard(partial: Path) -> None:
    """Remove an unfinished folder, the draft last, so that it is recognized until then."""
    with suppress(OSError):
        clear(partial, {manifests.DRAFT})
        shutil.rmtree(partial)


def clear(folder: Path, keep: Iterable[str]) -> None:
    """Remove everything in a folder except the names in ``keep``."""
    manifest_last = sorted(folder.iterdir(), key=lambda item: item.name == manifests.NAME)
    for item in manifest_last:  # the folder is recognized as an artifact until then
        if item.name in keep:
            continue
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        else:
            item.unlink()
