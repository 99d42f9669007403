"""Begin, resume and commit an artifact: files first, manifest last, one rename.

Files are written to ``OUT.partial/``, which the writer locks (flock on the folder itself, so that no lock file is left
behind). Without a manifest it is not an artifact. The same request resumes what a killed writer has left there.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from pflcli.artifacts import disk, drafts, kinds, locks, placement
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.decision import Decision, decide
from pflcli.artifacts.manifest import ArtifactSpec, Manifest
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.row_file import RowFile
from pflcli.errors import ComputationError, ConflictError, InputError

_CHECKPOINT = Path("checkpoint", "state.safetensors")


class ArtifactWriter:
    """An artifact that is being written; a context manager that, after a failure, keeps what is needed to resume."""

    def __init__(self, out: Path, spec: ArtifactSpec, *, force: bool = False) -> None:
        """Lock and prepare ``OUT.partial``; raises ConflictError as ``decide`` does, or if another writer has it."""
        self.out = Path(out)
        self.spec = spec
        self.force = force
        self.folder = placement.partial(self.out)
        self._files: dict[str, dict[str, Any]] = {}
        self._began = time.monotonic()
        self._keep_folder = False
        self.complete: Manifest | None = None
        """The manifest, if a killed writer of this request has written all files: ``finish`` it, and build nothing."""
        decision, _ = decide(self.out, spec, force=force)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"cannot write to {self.out.parent}: {error.strerror}", "choose another --out") from None
        try:
            if not locks.acquire(self._lock):
                raise ConflictError(f"{self.out} is being written by another pfl", "wait for it to end")
        except OSError as error:
            os.close(self._lock)
            raise InputError(
                f"cannot lock {self.folder}: {error.strerror}", "choose another --out, on a file system with locks"
            ) from None
        except ConflictError:
            os.close(self._lock)
            raise
        try:
            current = self.folder.stat() if self.folder.exists() else None
            if current is None or not os.path.samestat(os.fstat(self._lock), current):
                raise ConflictError(f"{self.out} is being written by another pfl", "wait for it to end")
            if decision is Decision.RESUME:
                self.complete = self._complete_manifest()
            else:
                placement.clear(self.folder, {drafts.NAME})  # it says who uses the folder, until it is replaced
                _replace(self.folder / drafts.NAME, self.folder / drafts.UNFINISHED, drafts.content(spec, force=force))
        except OSError as error:
            os.close(self._lock)
            raise disk.write_error(f"cannot write to {self.folder}", self.folder, error) from None
        except ConflictError:
            os.close(self._lock)
            raise

    def _complete_manifest(self) -> Manifest | None:
        """Return the manifest of a partial folder with all its files; remove a manifest whose files are missing."""
        with suppress(InputError):
            manifest = manifests.read(self.folder)
            if manifest.fingerprint == self.spec.fingerprint:
                Artifact(self.folder, manifest).verify()
                self._keep_folder = True
                return manifest
        (self.folder / manifests.NAME).unlink(missing_ok=True)
        return None

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Release the lock; remove a partial folder unless it has a checkpoint or the complete artifact.

        It is also removed if the computation failed, since it would fail again in the same way.
        """
        failed = kind is not None and issubclass(kind, ComputationError)
        try:
            if not self._keep_folder and (failed or not (self.folder / _CHECKPOINT).is_file()):
                placement.discard(self.folder)
        finally:
            os.close(self._lock)

    def write(self, name: str, content: bytes) -> None:
        """Write one file of the artifact; raises InputError if that fails."""
        self.stream(name, [content])

    def stream(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Write one file of the artifact in pieces, as it may not fit into memory."""
        digest, size = hashlib.sha256(), 0

        def hashed() -> Iterator[bytes | memoryview]:
            nonlocal size
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                yield chunk

        try:
            _write(self.folder / name, hashed())
        except OSError as error:
            needed = sum(map(len, chunks)) if isinstance(chunks, list) else None
            raise disk.write_error(f"cannot write {self.folder / name}", self.folder, error, needed) from None
        self._files[name] = {"sha256": digest.hexdigest(), "bytes": size}

    def rows(self, number: int, *, empty: bool) -> RowFile:
        """Return the row file of table ``number``, which is stored beside the checkpoint and removed with it."""
        return RowFile(self.folder / "checkpoint" / f"table-{number}.rows", number, empty=empty)

    def checkpoint(self, content: bytes) -> None:
        """Replace the checkpoint in one step: a killed writer leaves the old one or the new one, never a mixture."""
        folder = self.folder / "checkpoint"
        try:
            folder.mkdir(exist_ok=True)
            _replace(self.folder / _CHECKPOINT, folder / "state.tmp", content)
        except OSError as error:
            raise disk.write_error(f"cannot write a checkpoint to {folder}", self.folder, error, len(content)) from None

    def saved(self) -> bytes | None:
        """Return the last checkpoint of an unfinished run of this request, or None."""
        path = self.folder / _CHECKPOINT
        return path.read_bytes() if path.is_file() else None

    def commit(self, summary: dict[str, Any], circumstances: dict[str, Any]) -> Manifest:
        """Write the manifest, sync, and rename the folder to its final name.

        Raises ConflictError if another program has put something there meanwhile. If a step fails after the manifest
        was written, all files are kept, and the same request finishes the artifact.
        """
        manifest = Manifest(
            kind=self.spec.kind,
            schema=kinds.schemas()[self.spec.kind],
            fingerprint=self.spec.fingerprint,
            request=dict(self.spec.request),
            inputs=self.spec.inputs,
            code=dict(self.spec.code),
            files=self._files,
            summary=summary,
            made={**circumstances, "seconds": round(time.monotonic() - self._began, 3)},
        )
        try:
            _write(self.folder / manifests.NAME, [manifest.to_json().encode()])
            _sync(self.folder)
        except OSError as error:
            raise disk.write_error(f"cannot finish {self.out}", self.folder, error) from None
        self._keep_folder = True
        self.finish(manifest)
        return manifest

    def finish(self, manifest: Manifest) -> None:
        """Put the folder with its manifest in its place; raises as ``commit`` does."""
        decision, _ = decide(self.out, self.spec, force=self.force)
        try:
            if decision is Decision.UP_TO_DATE:  # another process has made it meanwhile
                placement.discard(self.folder)
                return
            placement.clear(self.folder, {*manifest.files, manifests.NAME, drafts.NAME})
            with suppress(OSError):
                (self.out / drafts.NAME).unlink(missing_ok=True)  # from now on, only the new artifact is unfinished
            placement.move(self.folder, self.out)
            _sync(self.out.parent)
            placement.tidy(self.out)
        except OSError as error:
            raise InputError(
                f"cannot finish {self.out}: {error.strerror}",
                "no file is lost: remove the cause and repeat the request, which then repeats only this step",
            ) from None


def _write(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    with path.open("wb") as file:
        file.writelines(chunks)
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, temporary: Path, content: bytes) -> None:
    """Replace a file in one step; a killed writer leaves the old file or the new one, and maybe ``temporary``."""
    _write(temporary, [content])
    temporary.replace(path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
