"""Checks of the output folder, and the step that moves a finished artifact there.

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

from pflcli.artifacts import draft_file, locks
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.errors import ConflictError, InputError, UsageError

_SUFFIX = max(len(".replaced-") + 7, locks.LONGEST_SUFFIX)  # process ids have at most 7 digits
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h
_RENAME_SWAP = 2  # sys/stdio.h of macOS


def partial(out: Path) -> Path:
    """Return the folder in which the artifact at ``out`` is written."""
    return out.with_name(out.name + ".partial")


def require_folder(out: Path) -> None:
    """Raise ConflictError if ``out`` cannot be a folder of artifacts."""
    if manifests.is_artifact(out):
        raise ConflictError(f"{out} is a pfl artifact itself", "choose another folder for --out")
    if out.exists() and not out.is_dir():
        raise ConflictError(f"{out} exists and is not a folder", "choose another folder for --out")


def check(out: Path, spec: ArtifactSpec) -> None:
    """Check, before anything is computed, that the output can be written at the end; changes nothing.

    Raises UsageError for a name that is too long, ConflictError for a mount point, a broken link, and a folder that is
    an input of ``spec`` or inside one.
    """
    longest = _longest_name(out.parent) - _SUFFIX
    if len(os.fsencode(out.name)) > longest:
        raise UsageError(f"the name '{out.name}' is too long", f"choose one of at most {longest} bytes for --out")
    if out.is_symlink() and not out.exists():
        raise ConflictError(
            f"{out} is a link to {out.readlink()}, which does not exist", f"rm {out}, or choose another --out"
        )
    if _is_mount(out):
        raise ConflictError(
            f"{out} is a mount point, and an artifact cannot replace it",
            f"choose a folder inside it: --out {out / spec.kind}",
        )
    for item in spec.inputs:
        if item.path == ".":
            raise ConflictError(f"{out} is an input of the {spec.kind}", "choose another folder for --out")
        if set(Path(item.path).parts) == {".."}:
            raise ConflictError(
                f"{out} is inside the {item.kind} from which the {spec.kind} is made",
                "choose a folder outside it for --out",
            )
        if (out.resolve() / item.path).resolve().is_relative_to(partial(out).resolve()):
            raise ConflictError(
                f"pfl would write to {partial(out)}, which contains the {item.kind} from which the {spec.kind} is made",
                "choose another folder for --out",
            )


def _longest_name(folder: Path) -> int:
    """Return the maximum bytes of a name in ``folder``, or in its nearest parent that exists."""
    try:
        return os.pathconf(
            next(above for above in (folder, *folder.absolute().parents) if above.exists()), "PC_NAME_MAX"
        )
    except (OSError, ValueError):
        return 255


def _is_mount(out: Path) -> bool:
    if out.is_symlink() or not out.is_dir():
        return False  # the link is replaced, and its target stays
    try:  # os.path.ismount misses a bind mount of the same file system
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return os.path.ismount(out)
    path = os.fsencode(out.resolve())
    return any(re.sub(rb"\\(\d{3})", lambda code: bytes([int(code[1], 8)]), line.split()[4]) == path for line in lines)


def require_outside(out: Path, reads: Iterable[Path]) -> None:
    """Raise ConflictError if a path in ``reads`` is inside the folder that is replaced, or inside ``OUT.partial``."""
    for path in reads:
        for folder in (out, partial(out)):
            if path.resolve().is_relative_to(folder.resolve()):
                raise ConflictError(
                    f"{path} is an input inside {folder}, which would be replaced",
                    "copy it elsewhere, or choose another folder for --out",
                )


def _ancestors(out: Path, spec: ArtifactSpec) -> set[Path]:
    """Return the folders of all artifacts in the lineage of ``spec`` that exist."""
    unread, folders = [out.resolve() / item.path for item in spec.inputs], set[Path]()
    while unread:
        folder = unread.pop().resolve()
        if folder not in folders:
            folders.add(folder)
            with suppress(InputError):  # an input that has moved is reported when it is read
                unread += [folder / item.path for item in manifests.read(folder).inputs]
    return folders


def check_replaceable(out: Path, spec: ArtifactSpec) -> None:
    """Raise ConflictError if replacing the artifact at ``out`` would delete an ancestor, or files not made by pfl."""
    if out.resolve() in _ancestors(out, spec):
        raise ConflictError(f"{out} is in the lineage of the {spec.kind}", "choose another folder for --out")
    for item in spec.inputs:
        if Path(item.path).parts[:1] != ("..",) and (out / item.path).exists():
            raise ConflictError(
                f"{out / item.path} is an input of the {spec.kind} inside {out}, which would be replaced",
                "choose another folder for --out",
            )
    others = unlisted(out)
    if others:
        raise ConflictError(
            f"{out} has files that its manifest does not list, and --force would delete them: {', '.join(others)}",
            f"move them out of {out}, or choose another folder for --out",
        )


def unlisted(out: Path) -> list[str]:
    """Return the names in an artifact's folder that its manifest, possibly damaged, does not list."""
    if out.is_symlink():
        return []
    try:
        listed = set(manifests.read(out).files)
    except InputError:
        text = (out / manifests.NAME).read_text(encoding="utf-8", errors="replace")
        listed = set(re.findall(r'"([^"\n]+)": \{\s*"sha256"', text))
    expected = {*listed, manifests.NAME, draft_file.NAME}
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


def leftovers(out: Path) -> list[Path]:
    """Return the old artifacts that a killed writer moved away from ``out`` but did not remove."""
    name = re.compile(re.escape(out.name) + r"\.replaced-\d+")
    try:
        paths = sorted(item for item in out.parent.iterdir() if name.fullmatch(item.name) and _is_removable(item))
    except OSError:
        return []
    unfinished = partial(out)
    if manifests.is_artifact(out) and _is_removable(unfinished) and not (unfinished / draft_file.NAME).exists():
        paths.append(unfinished)  # the names were exchanged, and the old artifact was not renamed yet
    return paths


def interrupted(out: Path) -> tuple[list[Path], Path | None]:
    """Return the folders of the old artifacts and of the complete new one after a writer was killed in its last step.

    The new one is None if it is not complete. Returns no folders if ``out`` exists.
    """
    if os.path.lexists(out):
        return [], None
    return [item for item in leftovers(out) if _is_complete(item)], partial(out) if _is_complete(partial(out)) else None


def _is_complete(folder: Path) -> bool:
    try:
        return all((folder / name).is_file() for name in manifests.read(folder).files)
    except (InputError, OSError):
        return False


def _is_removable(item: Path) -> bool:
    return item.is_symlink() or is_only_artifact(item) or (item.is_dir() and not any(item.iterdir()))


def is_only_artifact(folder: Path) -> bool:
    """Whether a folder contains an artifact, complete or not, and no other files."""
    return manifests.is_artifact(folder) and not unlisted(folder)


def tidy_after_kill(out: Path) -> None:
    """Remove the files and the lock of a killed writer of ``out``, unless another writer is active."""
    if leftovers(out) or locks.folder(out).is_dir() or (out / draft_file.NAME).exists():
        with suppress(ConflictError, OSError):  # they may belong to another user, or to another host
            lock = locks.acquire(out)
            try:
                tidy(out)
            finally:
                lock.release()


def tidy(out: Path) -> None:
    """Remove the artifacts that were replaced at ``out``, also those of killed writers. Requires the lock."""
    for item in leftovers(out):
        _remove(item)
    with suppress(OSError):
        (out / draft_file.NAME).unlink(missing_ok=True)


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
        clear(partial, {draft_file.NAME})
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
