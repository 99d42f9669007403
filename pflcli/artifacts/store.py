"""Begin, resume and commit an artifact: files first, manifest last, one rename.

Work happens in ``OUT.partial/``, which its writer holds locked (flock on the folder itself, so that no lock file is
left behind). No manifest: not an artifact. A killed writer leaves a partial folder, which the same request resumes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.manifest import Draft, Manifest
from pflcli.artifacts.rows import Rows
from pflcli.errors import ComputationError, ConflictError, InputError, UsageError

_DRAFT = "draft.json"
_CHECKPOINT = Path("checkpoint", "state.safetensors")


class Decision(StrEnum):
    """What a request means for the output that it names."""

    NEW = "new"
    UP_TO_DATE = "up to date"
    RESUME = "resume"
    REPLACE = "replace"


def decide(out: Path, draft: Draft, *, force: bool) -> tuple[Decision, str]:
    """Say what writing ``draft`` to ``out`` would do, and why; changes nothing.

    Raises ConflictError if the output, or an unfinished one, was made by a different request and ``force`` is off,
    or if ``out`` is a folder that pfl did not make, or one of the inputs.
    """
    if out.name in ("", ".."):
        raise UsageError(f"'{out}' does not name a new folder", "--out runs/x")
    if any(item.path == "." for item in draft.inputs):
        raise ConflictError(f"{out} is what the {draft.kind} is to be made from", "choose another folder for --out")
    partial = _partial(out)
    if partial.is_dir() and any(partial.iterdir()) and not ((partial / _DRAFT).is_file() or manifests.ours(partial)):
        raise ConflictError(f"{partial} is needed and was not made by pfl", "choose another folder for --out")
    if out.exists():
        if not manifests.ours(out):
            if out.is_dir() and not any(out.iterdir()):
                return Decision.NEW, f"{out} is empty"
            raise ConflictError(f"{out} exists and is not a pfl artifact", "choose another folder for --out")
        try:
            old = manifests.read(out)
        except InputError as error:
            if force:
                return Decision.REPLACE, f"--force; {error.message}"
            raise ConflictError(error.message, "--force replaces it") from None
        if old.fingerprint == draft.fingerprint and not force:
            return Decision.UP_TO_DATE, f"{out} was made by this very request"
        if not force:
            raise ConflictError(
                f"{out} exists and was made by another request", *_changes(old, draft), "--force replaces it"
            )
        return Decision.REPLACE, "--force"
    begun = _read_draft(partial)
    if begun and not force:
        if begun.get("fingerprint") == draft.fingerprint:
            return Decision.RESUME, f"{partial} holds an unfinished run of this very request"
        raise ConflictError(
            f"{partial} holds an unfinished run of another request",
            *manifests.differences(begun.get("request", {}), draft.request),
            "repeat that request to finish it, or --force to discard it",
        )
    return Decision.NEW, f"{out} does not exist"


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


def _partial(out: Path) -> Path:
    return out.with_name(out.name + ".partial")


def _read_draft(partial: Path) -> dict[str, Any]:
    try:
        raw = json.loads((partial / _DRAFT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


class Work:
    """An artifact being written; a context manager that keeps what is needed to resume when it fails."""

    def __init__(self, out: Path, draft: Draft, *, force: bool = False) -> None:
        """Lock and prepare ``OUT.partial``; raises ConflictError as ``decide`` does, or if another writer has it."""
        self.out = Path(out)
        self.draft = draft
        self.force = force
        self.folder = _partial(self.out)
        self._files: dict[str, dict[str, Any]] = {}
        self._began = time.monotonic()
        self._committed = False
        decision, _ = decide(self.out, draft, force=force)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            where = self.out.parent
            raise InputError(f"cannot write to {where}: {error.strerror}", "choose another --out") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConflictError(f"{self.out} is being written by another pfl", "wait for it to end") from None
        try:
            if decision is not Decision.RESUME:
                self._clear()
                _write(self.folder / _DRAFT, [json.dumps({**asdict(draft), "fingerprint": draft.fingerprint}).encode()])
        except OSError as error:
            os.close(self._lock)
            raise InputError(f"cannot write to {self.folder}: {error.strerror}") from None

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Release the lock; a partial folder without a checkpoint is of no use and goes.

        So does one whose computation failed: it would fail again at the same place.
        """
        failed = kind is not None and issubclass(kind, ComputationError)
        if not self._committed and (failed or not (self.folder / _CHECKPOINT).is_file()):
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    def _clear(self) -> None:
        for item in self.folder.iterdir():
            if item.name == _DRAFT:
                continue  # says whose the folder is, until it is overwritten
            if item.is_dir():
                shutil.rmtree(item)
            else:
                item.unlink()

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
            raise InputError(f"cannot write {self.folder / name}: {error.strerror}") from None
        self._files[name] = {"sha256": digest.hexdigest(), "bytes": size}

    def rows(self, number: int, *, fresh: bool) -> Rows:
        """Return the rows of table ``number``, which live beside the checkpoint and end with it."""
        return Rows(self.folder / "checkpoint" / f"table-{number}.rows", number, fresh=fresh)

    def checkpoint(self, content: bytes) -> None:
        """Replace the checkpoint at once: a killed writer leaves the old one or the new one, never a mixture."""
        folder = self.folder / "checkpoint"
        fresh = folder / "state.tmp"
        try:
            folder.mkdir(exist_ok=True)
            _write(fresh, [content])
            fresh.replace(folder / "state.safetensors")
            _sync(folder)
        except OSError as error:
            raise InputError(f"cannot write a checkpoint to {folder}: {error.strerror}") from None

    def saved(self) -> bytes | None:
        """Return the last checkpoint of an unfinished run of this request, or None."""
        path = self.folder / _CHECKPOINT
        return path.read_bytes() if path.is_file() else None

    def commit(self, summary: dict[str, Any], made: dict[str, Any]) -> Manifest:
        """Write the manifest, sync, and rename the folder to its final name.

        Raises ConflictError if something else has come to stand there meanwhile.
        """
        decide(self.out, self.draft, force=self.force)
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
            (self.folder / _DRAFT).unlink()
            shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)
            _sync(self.folder)
            old = None
            if self.out.exists():
                old = self.out.with_name(f"{self.out.name}.replaced-{os.getpid()}")
                self.out.rename(old)
            try:
                self.folder.rename(self.out)
            except OSError:
                if old is not None:
                    old.rename(self.out)
                raise
            self._committed = True
            _sync(self.out.parent)
        except OSError as error:
            raise InputError(f"cannot finish {self.out}: {error.strerror}") from None
        self._sweep()
        return manifest

    def _sweep(self) -> None:
        """Remove what was replaced, now or by a writer that was killed before it could."""
        for item in self.out.parent.iterdir():
            if re.fullmatch(re.escape(self.out.name) + r"\.replaced-\d+", item.name):
                if item.is_symlink():
                    item.unlink()
                else:
                    shutil.rmtree(item, ignore_errors=True)


def _write(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    with path.open("wb") as file:
        file.writelines(chunks)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
