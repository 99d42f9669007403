"""Begin, resume and commit an artifact: files first, manifest last, one rename.

Work happens in ``OUT.partial/``, which its writer holds locked (flock on the folder itself, so that no lock file is
left behind). No manifest: not an artifact. A killed writer leaves a partial folder, which the same request resumes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from pflcli.artifacts import drafts, placing
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.artifact import Artifact
from pflcli.artifacts.manifest import Draft, Manifest
from pflcli.artifacts.rows import Rows
from pflcli.errors import ComputationError, ConflictError, InputError, UsageError

_CHECKPOINT = Path("checkpoint", "state.safetensors")


class Decision(StrEnum):
    """What a request means for the output that it names."""

    NEW = "new"
    UP_TO_DATE = "up to date"
    RESUME = "resume"
    REPLACE = "replace"


def decide(out: Path, draft: Draft, *, force: bool) -> tuple[Decision, str]:
    """Say what writing ``draft`` to ``out`` would do, and why; changes nothing.

    Raises ConflictError if the output, or an unfinished one, was made by a different request and ``force`` is off, or
    if what stands at ``out`` cannot or must not be replaced; UsageError if ``out`` cannot be the name of an artifact.
    """
    if out.name in ("", ".."):
        raise UsageError(f"'{out}' does not name a new folder", "--out runs/x")
    old, damage = _standing(out)
    if old is not None and old.fingerprint == draft.fingerprint:
        if not force:
            return Decision.UP_TO_DATE, f"{out} was made by this very request"
        if _tidying(out, draft):
            return Decision.UP_TO_DATE, f"{out} was made by this very request, killed while it tidied up"
    placing.check(out, draft)
    partial = placing.partial(out)
    begun = drafts.read(partial)
    if not begun and _foreign(partial):
        raise ConflictError(f"{partial} is needed and was not made by pfl", "choose another folder for --out")
    stands = old is not None or damage is not None
    if not stands and out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConflictError(f"{out} exists and is not a pfl artifact", "choose another folder for --out")
    if stands and not force:
        others = placing.unlisted(out)
        cure = f"move {', '.join(others)} out of it, then --force replaces it" if others else "--force replaces it"
        if old is None:
            raise ConflictError(damage or "", cure)
        raise ConflictError(f"{out} exists and was made by another request", *_changes(old, draft), cure)
    if stands:
        placing.check_replaceable(out, draft)
    if begun.get("fingerprint") == draft.fingerprint and (begun.get("force") or not force):
        return Decision.RESUME, f"{partial} holds {_state(partial, draft)} of this very request"
    if stands:
        return Decision.REPLACE, f"--force; {damage}" if damage else "--force"
    if begun and not force:
        raise ConflictError(
            f"{partial} holds an unfinished run of another request",
            *manifests.differences(begun.get("request", {}), draft.request),
            "repeat that request to finish it, or --force to discard it",
        )
    return Decision.NEW, f"{out} is empty" if out.exists() else f"{out} does not exist"


def _standing(out: Path) -> tuple[Manifest | None, str | None]:
    """Return the manifest of the artifact at ``out``, or what is wrong with it; neither if there is no artifact."""
    if not manifests.ours(out):
        return None, None
    try:
        return manifests.read(out), None
    except InputError as error:
        return None, error.message


def _state(partial: Path, draft: Draft) -> str:
    whole = _standing(partial)[0]
    return "all" if whole is not None and whole.fingerprint == draft.fingerprint else "an unfinished run"


def _changes(old: Manifest, draft: Draft) -> list[str]:
    if old.kind != draft.kind:
        return [f"kind: {old.kind} -> {draft.kind}"]
    lines = manifests.differences(old.request, draft.request)
    before = {item.role: item.fingerprint[:12] for item in old.inputs}
    after = {item.role: item.fingerprint[:12] for item in draft.inputs}
    if lines:
        # An input that comes or goes with the request goes without saying.
        before, after = ({role: known[role] for role in before.keys() & after.keys()} for known in (before, after))
    lines += manifests.differences(before, after, "input ")
    # A name that stands on one side alone comes with the request, or was not recorded when the old one was made.
    shared = old.code.keys() & draft.code.keys()
    lines += [f"the code of {name} has changed" for name in sorted(shared) if old.code[name] != draft.code[name]]
    if not lines and old.code.keys() != draft.code.keys():
        lines = [f"it was made before the code of {name} was recorded" for name in sorted({*draft.code} - shared)]
    return lines or [f"schema: {old.schema} -> {manifests.SCHEMAS[draft.kind]}"]


def _tidying(out: Path, draft: Draft) -> bool:
    """Whether the artifact at ``out`` was put there by a writer of this request that was killed while it tidied up."""
    with suppress(InputError):
        return drafts.read(out).get("fingerprint") == draft.fingerprint
    return False


def _foreign(partial: Path) -> bool:
    """Whether a folder without a draft holds what pfl did not write."""
    held = {item.name for item in partial.iterdir()} if partial.is_dir() else set()
    return not held <= {drafts.FRESH} and not placing.is_sole(partial)


class Work:
    """An artifact being written; a context manager that keeps what is needed to resume when it fails."""

    def __init__(self, out: Path, draft: Draft, *, force: bool = False) -> None:
        """Lock and prepare ``OUT.partial``; raises ConflictError as ``decide`` does, or if another writer has it."""
        self.out = Path(out)
        self.draft = draft
        self.force = force
        self.folder = placing.partial(self.out)
        self._files: dict[str, dict[str, Any]] = {}
        self._began = time.monotonic()
        self._kept = False
        self.whole: Manifest | None = None
        """The manifest of what a killed writer of this request has left whole: ``finish`` it, and build nothing."""
        decision, _ = decide(self.out, draft, force=force)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"cannot write to {self.out.parent}: {error.strerror}", "choose another --out") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConflictError(f"{self.out} is being written by another pfl", "wait for it to end") from None
        try:
            here = self.folder.stat() if self.folder.exists() else None
            if here is None or not os.path.samestat(os.fstat(self._lock), here):
                raise ConflictError(f"{self.out} is being written by another pfl", "wait for it to end")
            if decision is Decision.RESUME:
                self.whole = self._left_whole()
            else:
                placing.clear(self.folder, {drafts.NAME})  # which says whose the folder is, until it is replaced
                _replace(self.folder / drafts.NAME, self.folder / drafts.FRESH, drafts.content(draft, force=force))
        except OSError as error:
            os.close(self._lock)
            raise placing.refusal(f"cannot write to {self.folder}", self.folder, error) from None
        except ConflictError:
            os.close(self._lock)
            raise

    def _left_whole(self) -> Manifest | None:
        """Return the manifest of an unfinished folder that lacks nothing; remove one whose files are not there."""
        with suppress(InputError):
            manifest = manifests.read(self.folder)
            if manifest.fingerprint == self.draft.fingerprint:
                Artifact(self.folder, manifest).verify()
                self._kept = True
                return manifest
        (self.folder / manifests.NAME).unlink(missing_ok=True)
        return None

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Release the lock; a partial folder that has neither a checkpoint nor all of the artifact goes.

        So does one whose computation failed: it would fail again at the same place.
        """
        failed = kind is not None and issubclass(kind, ComputationError)
        try:
            if not self._kept and (failed or not (self.folder / _CHECKPOINT).is_file()):
                placing.discard(self.folder)
        finally:
            os.close(self._lock)

    def write(self, name: str, content: bytes) -> None:
        """Write one file of the artifact; raises InputError if the disk refuses it."""
        self.stream(name, [content])

    def stream(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Write one file of the artifact in pieces: the whole may not fit into memory."""
        digest, size = hashlib.sha256(), 0

        def counted() -> Iterator[bytes | memoryview]:
            nonlocal size
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                yield chunk

        try:
            _write(self.folder / name, counted())
        except OSError as error:
            needed = sum(map(len, chunks)) if isinstance(chunks, list) else None
            raise placing.refusal(f"cannot write {self.folder / name}", self.folder, error, needed) from None
        self._files[name] = {"sha256": digest.hexdigest(), "bytes": size}

    def rows(self, number: int, *, fresh: bool) -> Rows:
        """Return the rows of table ``number``, which live beside the checkpoint and end with it."""
        return Rows(self.folder / "checkpoint" / f"table-{number}.rows", number, fresh=fresh)

    def checkpoint(self, content: bytes) -> None:
        """Replace the checkpoint at once: a killed writer leaves the old one or the new one, never a mixture."""
        folder = self.folder / "checkpoint"
        try:
            folder.mkdir(exist_ok=True)
            _replace(self.folder / _CHECKPOINT, folder / "state.tmp", content)
        except OSError as error:
            raise placing.refusal(f"cannot write a checkpoint to {folder}", self.folder, error, len(content)) from None

    def saved(self) -> bytes | None:
        """Return the last checkpoint of an unfinished run of this request, or None."""
        path = self.folder / _CHECKPOINT
        return path.read_bytes() if path.is_file() else None

    def commit(self, summary: dict[str, Any], made: dict[str, Any]) -> Manifest:
        """Write the manifest, sync, and rename the folder to its final name.

        Raises ConflictError if something else has come to stand there meanwhile. Whatever fails after the manifest is
        written, all of the artifact is kept, and the same request puts it in its place.
        """
        manifest = Manifest(
            kind=self.draft.kind,
            schema=manifests.SCHEMAS[self.draft.kind],
            fingerprint=self.draft.fingerprint,
            request=dict(self.draft.request),
            inputs=self.draft.inputs,
            code=dict(self.draft.code),
            files=self._files,
            summary=summary,
            made={**made, "seconds": round(time.monotonic() - self._began, 3)},
        )
        try:
            _write(self.folder / manifests.NAME, [manifest.to_json().encode()])
            _sync(self.folder)
        except OSError as error:
            raise placing.refusal(f"cannot finish {self.out}", self.folder, error) from None
        self._kept = True
        self.finish(manifest)
        return manifest

    def finish(self, manifest: Manifest) -> None:
        """Put the folder, whole with its manifest, in its place; raises as ``commit`` does."""
        decision, _ = decide(self.out, self.draft, force=self.force)
        try:
            if decision is Decision.UP_TO_DATE:  # brought there meanwhile by something else
                placing.discard(self.folder)
                return
            placing.clear(self.folder, {*manifest.files, manifests.NAME, drafts.NAME})
            with suppress(OSError):
                (self.out / drafts.NAME).unlink(missing_ok=True)  # only the new one is to be finished from now on
            placing.put(self.folder, self.out)
            _sync(self.out.parent)
            placing.tidy(self.out)
        except OSError as error:
            raise InputError(
                f"cannot finish {self.out}: {error.strerror}",
                "nothing is lost: repeat the request when the cause is gone, and this step alone is done again",
            ) from None


def _write(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    with path.open("wb") as file:
        file.writelines(chunks)
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, fresh: Path, content: bytes) -> None:
    """Write a file at once: whoever is killed leaves the old one or the new one, and maybe ``fresh``."""
    _write(fresh, [content])
    fresh.replace(path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
