"""Writes artifacts: files first, manifest last, then a rename; an old artifact is moved aside before.

Files are written to ``OUT.partial/`` under the lock ``OUT.partial.lock``. A folder without a manifest is not an
artifact. If a writer is killed, the same request resumes its work.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray

from pflcli.artifacts import disk, h5_file, kinds, locks, placement
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.client_blocks import LazyRows
from pflcli.artifacts.decision import require_replaceable
from pflcli.artifacts.manifest import ArtifactSpec, Manifest
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.row_file import RowFile
from pflcli.core.errors import ComputationError, ConflictError, InputError
from pflcli.core.reporter import SILENT, Reporter

_CHECKPOINT = Path("checkpoint", "state.safetensors")


class ArtifactWriter:
    """An unfinished artifact; a context manager that, after a failure, keeps the files needed to resume."""

    def __init__(self, out: Path, spec: ArtifactSpec, *, force: bool = False, reporter: Reporter = SILENT) -> None:
        """Lock ``OUT.partial``; raises ConflictError if another writer has it. ``prepare`` comes before all else."""
        self.out = Path(out)
        self.spec = spec
        self.force = force
        self.reporter = reporter
        self.folder = placement.partial_folder(self.out)
        self._files: dict[str, dict[str, Any]] = {}
        self.seconds = 0.0
        """seconds of earlier work on the artifact, which count as well"""
        self._keep_folder = True
        self.complete: Manifest | None = None
        """The manifest, if a killed writer of this request has written all files; only ``finish`` remains to do."""
        self._new_parents = [folder for folder in self.out.parents if not folder.exists()]
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._lock = locks.acquire(self.out, reporter.say)
        except OSError as error:
            raise InputError(f"cannot write to {self.out.parent}: {error.strerror}", "choose another --out") from None

    def prepare(self, *, resumes: bool = False) -> Self:
        """Begin the folder, or continue the unfinished one of this request if it ``resumes``; return self."""
        self._began = time.monotonic()
        try:
            self.folder.mkdir(exist_ok=True)
            if resumes:
                self.complete = self._read_complete_manifest()
                if self.complete is not None:
                    return self
            else:
                placement.clear(self.folder, {manifests.DRAFT, manifests.NAME})
            self._keep_folder = False
            draft = manifests.draft_content(self.spec, force=self.force)
            _replace(self.folder / manifests.DRAFT, self.folder / manifests.UNFINISHED_DRAFT, draft)
            (self.folder / manifests.NAME).unlink(missing_ok=True)  # it marked the folder until the draft was there
        except OSError as error:
            raise disk.write_error(f"cannot write to {self.folder}", self.folder, error) from None
        return self

    def _require_lock(self) -> None:
        """Raise ConflictError if another process took over the lock, and with it the folder."""
        if self._lock.is_lost():
            raise ConflictError(
                f"this pfl lost the lock on {self.out}: it was suspended, or could not reach the folder, "
                f"for over {locks.LEASE_SECONDS:.0f} seconds",
                "repeat this command; if another pfl has taken over, wait for it to finish",
            )

    def _read_complete_manifest(self) -> Manifest | None:
        """Return the manifest of a partial folder if it is of this request and all files are complete, or None."""
        with suppress(InputError):
            manifest = manifests.read(self.folder)
            if manifest.fingerprint == self.spec.fingerprint:
                Artifact(self.folder, manifest).verify()
                return manifest
        return None

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Release the lock; remove a partial folder unless it has a checkpoint or the complete artifact.

        After a ComputationError the folder is always removed: the computation would fail again in the same way. Folders
        above it that this writer made are removed after a failure if they are empty.
        """
        failed = kind is not None and issubclass(kind, ComputationError)
        try:
            is_unwanted = failed or not (self.folder / _CHECKPOINT).is_file()
            if is_unwanted and not self._keep_folder and not self._lock.is_lost():
                placement.discard(self.folder)
        finally:
            self._lock.release()
            if kind is not None:
                with suppress(OSError):  # a folder that is not empty stays
                    for folder in self._new_parents:
                        folder.rmdir()

    def write(self, name: str, content: bytes) -> None:
        """Write one file of the artifact; raises InputError if that fails."""
        self.stream(name, [content])

    def stream(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Write one file of the artifact in pieces; it may be larger than memory."""
        self._require_lock()
        digest, size = hashlib.sha256(), 0

        def hashed() -> Iterator[bytes | memoryview]:
            nonlocal size
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                yield chunk

        try:
            disk.write(self.folder / name, hashed())
        except OSError as error:
            needed = sum(map(len, chunks)) if isinstance(chunks, list) else None  # an iterator is used up
            raise disk.write_error(f"cannot write {self.folder / name}", self.folder, error, needed) from None
        self._files[name] = {"sha256": digest.hexdigest(), "bytes": size}

    @contextmanager
    def h5(self, name: str) -> Iterator[Any]:
        """Yield an HDF5 file of the artifact to fill; it may be larger than memory."""
        path = self.folder / name
        with h5_file.create(path) as file:
            yield file
        with path.open("rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        self._files[name] = {"sha256": digest, "bytes": path.stat().st_size}

    def write_h5(
        self, name: str, arrays: Mapping[str, NDArray[Any] | LazyRows], attrs: Mapping[str, Any] | None = None
    ) -> None:
        """Write an HDF5 file with these arrays, by ``group/name``, and attributes."""
        with self.h5(name) as file:
            h5_file.fill(file, arrays, attrs)

    def read_or_make(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return the content of a file from the unfinished run or, if it has none, from ``make()``.

        The file is part of the artifact, and survives an interruption.
        """
        self._require_lock()
        path = self.folder / name
        try:
            content = path.read_bytes() if path.is_file() else make()
            if not path.is_file():
                _replace(path, path.with_name(f"{name}.tmp"), content)
        except OSError as error:
            raise disk.write_error(f"cannot write {path}", self.folder, error) from None
        self._files[name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        return content

    def row_files(self) -> Callable[[int], RowFile]:
        """Return what opens the row file of a table, by its number; it is stored and removed with the checkpoint.

        Rows are empty unless there is a checkpoint now.
        """
        folder, is_new = self.checkpoint.parent, not self.checkpoint.is_file()
        return lambda number: RowFile(folder / f"table-{number}.rows", number, empty=is_new)

    def write_checkpoint(self, content: bytes) -> None:
        """Replace the checkpoint atomically."""
        self._require_lock()
        folder = self.folder / "checkpoint"
        try:
            folder.mkdir(exist_ok=True)
            _replace(self.folder / _CHECKPOINT, folder / "state.tmp", content)
        except OSError as error:
            raise disk.write_error(f"cannot write a checkpoint to {folder}", self.folder, error, len(content)) from None

    def read_checkpoint(self) -> bytes | None:
        """Return the last checkpoint of an unfinished run with this request, or None."""
        return self.checkpoint.read_bytes() if self.checkpoint.is_file() else None

    @property
    def checkpoint(self) -> Path:
        """The path of the checkpoint, whether there is one or not."""
        return self.folder / _CHECKPOINT

    def commit(self, summary: dict[str, Any], circumstances: dict[str, Any]) -> Manifest:
        """Write the manifest, sync, and rename the folder to its final name.

        Raises ConflictError if another program has created files there. If a step fails after the manifest was written,
        all files are kept, and the same request finishes the artifact.
        """
        self._require_lock()
        manifest = Manifest(
            kind=self.spec.kind,
            schema=kinds.schemas()[self.spec.kind],
            fingerprint=self.spec.fingerprint,
            request=dict(self.spec.request),
            inputs=self.spec.inputs,
            code=dict(self.spec.code),
            files=self._files,
            summary=summary,
            made={**circumstances, "seconds": round(self.seconds + time.monotonic() - self._began, 3)},
        )
        try:
            disk.write(self.folder / manifests.NAME, [manifest.to_json().encode()])
            disk.sync_folder(self.folder)
        except OSError as error:
            raise disk.write_error(f"cannot finish {self.out}", self.folder, error) from None
        self._keep_folder = True
        self.finish(manifest)
        return manifest

    def finish(self, manifest: Manifest) -> None:
        """Move the complete folder to the output; raises as ``commit`` does."""
        self._require_lock()
        require_replaceable(self.out, self.spec, force=self.force)  # other programs do not ask for the lock
        try:
            placement.clear(self.folder, {*manifest.files, manifests.NAME})
            placement.move(self.folder, self.out)
            disk.sync_folder(self.out.parent)
            placement.tidy(self.out)
        except OSError as error:
            raise InputError(
                f"cannot finish {self.out}: {error.strerror}",
                "all files are kept: remove the cause and repeat the request, which then repeats only this step",
            ) from None


def _replace(path: Path, temporary: Path, content: bytes) -> None:
    """Replace a file atomically; a killed writer may leave ``temporary``."""
    disk.write(temporary, [content])
    temporary.replace(path)
    disk.sync_folder(path.parent)
