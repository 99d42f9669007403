"""Decides whether to make, resume, replace or keep the output of a request, and refuses unsuitable outputs.

Nothing here changes a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from pflcli.artifacts import kinds, locks, placement
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.manifest import ArtifactSpec, Manifest
from pflcli.core.errors import ConflictError, InputError, OutgrownError, UsageError


class Decision(StrEnum):
    """The action for a request, given the state of its output."""

    NEW = "new"
    UP_TO_DATE = "up to date"
    RESUME = "resume"
    REPLACE = "replace"


def is_up_to_date(out: Path, spec: ArtifactSpec, *, force: bool) -> bool:
    """Whether ``spec`` made the artifact at ``out``, and with ``force`` was killed only when it cleaned up after that.

    Raises UsageError if ``out`` cannot be the name of an artifact.
    """
    if out.name in ("", ".."):
        raise UsageError(f"'{out}' is not a valid name for a new folder", "--out runs/x")
    old, _ = _manifest_at(out)
    is_same = old is not None and old.fingerprint == spec.fingerprint
    return is_same and (not force or placement.find_replaced(out) is not None)


def decide(out: Path, spec: ArtifactSpec, *, force: bool) -> tuple[Decision, str]:
    """Return the action for writing ``spec`` to ``out``, and the reason; changes nothing.

    The lock on ``out`` keeps other writers from changing the action. Raises ConflictError if an unfinished artifact was
    made by another request and ``force`` is off, and as ``require_replaceable`` does.
    """
    if is_up_to_date(out, spec, force=force):
        return Decision.UP_TO_DATE, f"{out} was made by the same request"
    partial = placement.partial_folder(out)
    if _has_foreign_files(partial):
        raise ConflictError(
            f"{partial} was not made by pfl, which needs this folder to write {out}", "choose another folder for --out"
        )
    begun = manifests.read_draft(partial)
    old, damage = require_replaceable(out, spec, force=force)
    if begun.get("fingerprint") == spec.fingerprint and (begun.get("force") or not force):
        return Decision.RESUME, f"{partial} contains {_state(partial, spec)} of the same request"
    if old is not None and old.fingerprint != spec.fingerprint and manifests.has_fewer_rounds(old, spec):
        return Decision.REPLACE, f"{out} has fewer rounds or other inputs"
    if old is not None or damage is not None:
        return Decision.REPLACE, f"--force; {damage}" if damage else "--force"
    if begun and not force:
        raise ConflictError(
            f"{partial} contains an unfinished run of another request",
            *manifests.differences(begun.get("request", {}), spec.request),
            "repeat that request to finish it, or --force to discard it",
        )
    return Decision.NEW, f"{out} is empty" if out.exists() else f"{out} does not exist"


def require_replaceable(out: Path, spec: ArtifactSpec, *, force: bool) -> tuple[Manifest | None, str | None]:
    """Return the manifest of the artifact at ``out`` and the damage, if any; neither if ``out`` is free.

    Raises ConflictError if the artifact was made by another request and ``force`` is off, or if replacing it would
    delete an ancestor or files that are not made by pfl.
    """
    old, damage = _manifest_at(out)
    exists = old is not None or damage is not None
    if not exists and out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConflictError(f"{out} exists and is not a pfl artifact", "choose another folder for --out")
    if exists and not force:
        others = placement.unlisted_files(out)
        remedy = f"move {', '.join(others)} out of it, then --force replaces it" if others else "--force replaces it"
        if old is None:
            raise ConflictError(damage or "", remedy)
        kind = OutgrownError if manifests.has_fewer_rounds(old, spec) else ConflictError
        raise kind(f"{out} exists and was made by another request", *_changes(old, spec), remedy)
    if exists:
        _check_replaceable(out, spec)
    return old, damage


def _manifest_at(out: Path) -> tuple[Manifest | None, str | None]:
    """Return the manifest of the artifact at ``out`` and the damage, if any; neither if there is no artifact."""
    if not manifests.is_artifact(out):
        return None, None
    try:
        return manifests.read(out), None
    except InputError as error:
        return None, error.message


def _state(partial: Path, spec: ArtifactSpec) -> str:
    manifest, _ = _manifest_at(partial)
    is_complete = manifest is not None and manifest.fingerprint == spec.fingerprint
    return "all files" if is_complete else "an unfinished run"


def _changes(old: Manifest, spec: ArtifactSpec) -> list[str]:
    if old.kind != spec.kind:
        return [f"kind: {old.kind} -> {spec.kind}"]
    lines = manifests.differences(old.request, spec.request)
    before = {item.role: item.fingerprint[:12] for item in old.inputs}
    after = {item.role: item.fingerprint[:12] for item in spec.inputs}
    if lines:
        # The difference in requests explains inputs that only one of the two has.
        before, after = ({role: side[role] for role in before.keys() & after.keys()} for side in (before, after))
    lines += manifests.differences(before, after, "input ")
    # A name on one side only follows from the request, or was not recorded by the older version.
    shared = old.code.keys() & spec.code.keys()
    lines += [f"the code of {name} has changed" for name in sorted(shared) if old.code[name] != spec.code[name]]
    if not lines and old.code.keys() != spec.code.keys():
        lines = [f"it does not record the code of {name}" for name in sorted({*spec.code} - shared)]
    schema = kinds.schemas()[spec.kind]
    if not lines and old.schema != schema:
        lines = [f"schema: {old.schema} -> {schema}"]
    return lines or _input_changes(old, spec)


def _input_changes(old: Manifest, spec: ArtifactSpec) -> list[str]:
    """Return the inputs that are new or no longer used, or the two orders if only the order differs."""
    before, after = ([f"{item.role} {item.fingerprint[:12]}" for item in each.inputs] for each in (old, spec))
    gone, new = (sorted(set(one) - set(other)) for one, other in ((before, after), (after, before)))
    lines = [f"input {item} is no longer used" for item in gone] + [f"input {item} is new" for item in new]
    return lines or [f"order of the inputs: {', '.join(before)} -> {', '.join(after)}"]


def _has_foreign_files(partial: Path) -> bool:
    """Whether a folder without a draft has files that pfl did not write."""
    names = {item.name for item in partial.iterdir()} if partial.is_dir() else set()
    is_ours = manifests.DRAFT in names or names <= {manifests.UNFINISHED_DRAFT}
    return not is_ours and not placement.is_only_artifact(partial)


def require_place(out: Path, spec: ArtifactSpec) -> None:
    """Check, before anything is computed or locked, that the output can be written at the end; changes nothing.

    Raises UsageError for a name that is too long, ConflictError for a mount point, a broken link, and a folder that is
    an input of ``spec`` or inside one.
    """
    longest = _longest_name(out.parent) - locks.LONGEST_SUFFIX
    if len(os.fsencode(out.name)) > longest:
        raise UsageError(f"the name '{out.name}' is too long", f"choose one of at most {longest} bytes for --out")
    if out.is_symlink() and not out.exists():
        raise ConflictError(
            f"{out} is a link to {out.readlink()}, which does not exist", f"rm {out}, or choose another --out"
        )
    if os.path.ismount(out):
        raise ConflictError(
            f"{out} is a mount point, and an artifact cannot replace it",
            f"choose a folder inside it: --out {out / spec.kind}",
        )
    partial = placement.partial_folder(out)
    for item in spec.inputs:
        if item.path == ".":
            raise ConflictError(f"{out} is an input of the {spec.kind}", "choose another folder for --out")
        if set(Path(item.path).parts) == {".."}:
            raise ConflictError(
                f"{out} is inside the {item.kind} from which the {spec.kind} is made",
                "choose a folder outside it for --out",
            )
        if (out.resolve() / item.path).resolve().is_relative_to(partial.resolve()):
            raise ConflictError(
                f"pfl would write to {partial}, which contains the {item.kind} from which the {spec.kind} is made",
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


def _check_replaceable(out: Path, spec: ArtifactSpec) -> None:
    """Raise ConflictError if replacing the artifact at ``out`` would delete an ancestor, or files not made by pfl."""
    if out.resolve() in _ancestors(out, spec):
        raise ConflictError(f"{out} is in the lineage of the {spec.kind}", "choose another folder for --out")
    for item in spec.inputs:
        if Path(item.path).parts[:1] != ("..",) and (out / item.path).exists():
            raise ConflictError(
                f"{out / item.path} is an input of the {spec.kind} inside {out}, which would be replaced",
                "choose another folder for --out",
            )
    others = placement.unlisted_files(out)
    if others:
        raise ConflictError(
            f"{out} has files that its manifest does not list, and --force would delete them: {', '.join(others)}",
            f"move them out of {out}, or choose another folder for --out",
        )


def require_folder(out: Path) -> None:
    """Raise ConflictError if ``out`` cannot be a folder of artifacts."""
    if manifests.is_artifact(out):
        raise ConflictError(f"{out} is a pfl artifact itself", "choose another folder for --out")
    if out.exists() and not out.is_dir():
        raise ConflictError(f"{out} exists and is not a folder", "choose another folder for --out")


def require_outside(out: Path, reads: Iterable[Path]) -> None:
    """Raise ConflictError if a path in ``reads`` is inside the folder that is replaced, or inside ``OUT.partial``."""
    for path in reads:
        for folder in (out, placement.partial_folder(out)):
            if path.resolve().is_relative_to(folder.resolve()):
                raise ConflictError(
                    f"{path} is an input inside {folder}, which would be replaced",
                    "copy it elsewhere, or choose another folder for --out",
                )
