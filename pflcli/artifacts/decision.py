"""Decides whether to make, resume, replace or keep the output of a request."""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from pflcli.artifacts import draft_file, kinds, placement
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.manifest import ArtifactSpec, Manifest
from pflcli.errors import ConflictError, InputError, UsageError


class Decision(StrEnum):
    """The action for a request, given the state of its output."""

    NEW = "new"
    UP_TO_DATE = "up to date"
    RESUME = "resume"
    REPLACE = "replace"


def decide(out: Path, spec: ArtifactSpec, *, force: bool) -> tuple[Decision, str]:
    """Return the action for writing ``spec`` to ``out``, and the reason; changes nothing.

    Raises ConflictError if the output, or an unfinished one, was made by another request and ``force`` is off, or if
    the files at ``out`` cannot or must not be replaced; UsageError if ``out`` cannot be the name of an artifact.
    """
    if out.name in ("", ".."):
        raise UsageError(f"'{out}' is not a valid name for a new folder", "--out runs/x")
    old, damage = _manifest_at(out)
    if old is not None and old.fingerprint == spec.fingerprint:
        if not force:
            return Decision.UP_TO_DATE, f"{out} was made by the same request"
        if _cleans_up(out, spec):
            return Decision.UP_TO_DATE, f"{out} was made by the same request, which was killed during its cleanup"
    placement.check(out, spec)
    partial = placement.partial(out)
    begun = draft_file.read(partial)
    if not begun and _has_foreign_files(partial):
        raise ConflictError(
            f"{partial} was not made by pfl, which needs this folder to write {out}", "choose another folder for --out"
        )
    exists = old is not None or damage is not None
    if not exists and out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConflictError(f"{out} exists and is not a pfl artifact", "choose another folder for --out")
    if exists and not force:
        others = placement.unlisted(out)
        remedy = f"move {', '.join(others)} out of it, then --force replaces it" if others else "--force replaces it"
        if old is None:
            raise ConflictError(damage or "", remedy)
        raise ConflictError(f"{out} exists and was made by another request", *_changes(old, spec), remedy)
    if exists:
        placement.check_replaceable(out, spec)
    if begun.get("fingerprint") == spec.fingerprint and (begun.get("force") or not force):
        return Decision.RESUME, f"{partial} contains {_state(partial, spec)} of the same request"
    if exists:
        return Decision.REPLACE, f"--force; {damage}" if damage else "--force"
    if begun and not force:
        raise ConflictError(
            f"{partial} contains an unfinished run of another request",
            *manifests.differences(begun.get("request", {}), spec.request),
            "repeat that request to finish it, or --force to discard it",
        )
    return Decision.NEW, f"{out} is empty" if out.exists() else f"{out} does not exist"


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


def _cleans_up(out: Path, spec: ArtifactSpec) -> bool:
    """Whether a writer of this request finished the artifact at ``out``, but was killed before its cleanup."""
    with suppress(InputError):
        return draft_file.read(out).get("fingerprint") == spec.fingerprint
    return False


def _has_foreign_files(partial: Path) -> bool:
    """Whether a folder without a draft has files that pfl did not write."""
    names = {item.name for item in partial.iterdir()} if partial.is_dir() else set()
    return not names <= {draft_file.UNFINISHED} and not placement.is_only_artifact(partial)
