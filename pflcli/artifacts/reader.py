"""Opens finished artifacts. Files are checked against their hashes before they are parsed."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import h5_file, kinds, placement
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.manifest import Input, Manifest
from pflcli.core import foreign
from pflcli.core.errors import GoneError, InputError

_FORMS = {
    ".h5": "HDF5", ".json": "JSON", ".csv": "CSV", ".safetensors": "safetensors", ".faiss": "FAISS indexes",
    ".png": "PNG", ".md": "text", ".toml": "TOML",
}  # fmt: skip
"""Names of file formats, by suffix."""


@dataclass(frozen=True)
class Artifact:
    """A finished artifact on disk, or a planned one that will be made from ``origin``, with its future manifest."""

    path: Path
    manifest: Manifest
    origin: Artifact | None = None

    @property
    def kind(self) -> str:
        """The artifact's kind, such as ``partition``."""
        return self.manifest.kind

    def as_input(self, role: str, out: Path) -> Input:
        """Return the reference to this artifact in the manifest of an artifact at ``out``."""
        path = os.path.relpath(self.path.resolve(), Path(out).resolve())
        return Input(role, self.kind, self.manifest.fingerprint, path)

    def read(self, name: str) -> bytes:
        """Return a file's bytes; raises InputError if it is missing or its hash differs from the manifest's."""
        path = self._listed_path(name)
        try:
            self._require_regular(name)
            content = path.read_bytes()
        except OSError as error:
            raise self._damage_error(name, f"cannot be read ({error.strerror})") from None
        if hashlib.sha256(content).hexdigest() != self.manifest.files[name]["sha256"]:
            raise self._damage_error(name, "differs from what was written")
        return content

    def map_file(self, name: str) -> NDArray[np.uint8]:
        """Return a file's bytes (n,) as a read-only memory map, after checking its hash."""
        self.check(name)
        path = self._listed_path(name)
        return np.asarray(np.memmap(path, np.uint8, "r")) if path.stat().st_size else np.empty(0, np.uint8)

    @contextmanager
    def h5(self, name: str) -> Iterator[Any]:
        """Open an HDF5 file for reading, after checking its hash; errors of the parser become InputError.

        Raises InputError also for a file that refers to other files or declares more data than it has, which its hash
        does not cover.
        """
        import h5py

        self.check(name)
        with self.parsing(name), h5py.File(self._listed_path(name), "r", locking=False) as file:
            h5_file.require_plain(file, self._listed_path(name).stat().st_size)
            yield file

    @contextmanager
    def parsing(self, name: str) -> Iterator[None]:
        """Turn any error inside the block into an InputError on the file, with the command that makes it again."""
        suffix = Path(name).suffix
        with foreign.parsing(str(self.path / name), _FORMS.get(suffix, suffix), self._remedy):
            yield

    def json(self, name: str, record: Any = None) -> Any:
        """Return the value in a JSON file; raises InputError if it is damaged, or not a ``record`` (a TypedDict)."""
        content = self.read(name)
        with self.parsing(name):
            value = json.loads(content)
            if record is not None:
                manifests.validate(record, value, strict=True)
            return value

    def table(self, name: str) -> list[dict[str, str]]:
        """Return the rows of a CSV file as dicts; raises InputError if a row is longer or shorter than the header."""
        content = self.read(name)
        with self.parsing(name):
            heading, *rows = csv.reader(content.decode().splitlines(), strict=True)
            return [dict(zip(heading, row, strict=True)) for row in rows]

    def check(self, name: str) -> None:
        """Check a file's hash without reading it into memory; raises InputError if it differs from the manifest's."""
        try:
            self._require_regular(name)
            with self._listed_path(name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise self._damage_error(name, f"cannot be read ({error.strerror})") from None
        if digest != self.manifest.files[name]["sha256"]:
            raise self._damage_error(name, "differs from what was written")

    def verify(self) -> None:
        """Check every file of the artifact."""
        for name in self.manifest.files:
            self.check(name)

    def _require_regular(self, name: str) -> None:
        """Raise InputError or OSError for a pipe, a device, or a link to another folder, without opening it."""
        path = self._listed_path(name)
        if not stat.S_ISREG(path.stat().st_mode):
            raise self._damage_error(name, "is not a regular file")
        is_elsewhere = path.is_symlink() or path.name != name
        if is_elsewhere and path.resolve().parent != self.path.resolve():
            raise self._damage_error(name, "is a link to another folder")

    def _listed_path(self, name: str) -> Path:
        if name not in self.manifest.files:
            raise InputError(f"the manifest of {self.path} does not list a file {name}", self._remedy)
        return self.path / name

    def _damage_error(self, name: str, problem: str) -> InputError:
        return InputError(
            f"{self.path / name} {problem}: truncated, edited or damaged since {kinds.add_article(self.kind)} was made",
            self._remedy,
        )

    @property
    def _remedy(self) -> str:
        return f"make it again with --force: {kinds.made_by(self.kind)}"


def open_artifact(path: Path | str | Artifact, *allowed: str) -> Artifact:
    """Open the artifact at ``path``; raises InputError if it is missing, or its kind is not one of ``allowed``."""
    if isinstance(path, Artifact):
        artifact = path
    else:
        folder = Path(path)
        if folder.name == manifests.NAME:
            folder = folder.parent
        is_there = (folder / manifests.NAME).exists()
        if not is_there and (absence := _interruption_error(folder) or _absence_error(folder)):
            raise absence
        artifact = Artifact(folder, manifests.read(folder))
    if allowed and artifact.kind not in allowed:
        expected = " or ".join(kinds.add_article(kind) for kind in allowed)
        raise InputError(
            f"{artifact.path} contains {kinds.add_article(artifact.kind)}, but this command needs {expected}",
            *(kinds.made_by(kind) for kind in allowed),
        )
    return artifact


def _interruption_error(folder: Path) -> InputError | None:
    """Return the error, with remedies, for a folder that pfl was about to replace when it was killed, or None."""
    old, new = placement.find_interrupted(folder)
    where, fix = [], []
    if new is not None:
        kind = manifests.read(new).kind
        where.append(f"{new} contains the complete new {kind}")
        command = kinds.made_by(kind).replace("DIR", shlex.quote(str(folder)))
        fix.append(f"repeat the command that makes it ({command}) to put the new {kind} there")
    if old is not None:
        kind = manifests.read(old).kind
        where.append(f"{old} contains the old {kind}")
        fix.append(f"for the old {kind}: mv {shlex.quote(str(old))} {shlex.quote(str(folder))}")
    if not where:
        return None
    return InputError(f"{folder} is missing: pfl was killed in the last step of making it; {', '.join(where)}", *fix)


def _absence_error(path: Path) -> InputError | None:
    """Return the error, with remedies, for a file, or a folder with an unfinished artifact or comparison, or None."""
    if path.is_file():
        if manifests.is_artifact(path.parent):
            return InputError(f"{path} is not a pfl artifact but a file in one", f"give its folder: {path.parent}")
        command = f"pfl import {shlex.quote(str(path))} --client COL --label COL -o DIR && pfl partition DIR -o OTHER"
        return InputError(f"{path} is not a pfl artifact but a file; data must be imported first", command)
    repeat = "run the command again; it continues where it was interrupted"
    with suppress(InputError):
        draft = manifests.read_draft(placement.partial_folder(path))
        if draft and not path.exists():
            command = kinds.made_by(draft["kind"]).replace("DIR", shlex.quote(str(path)))
            return InputError(f"{path} is not finished", f"{repeat}: {command}")
    for pattern, result, command in (("seed-*/*", "comparison", "compare"), ("trials/*", "tuning", "tune")):
        for run in sorted(path.glob(pattern)):
            if manifests.is_artifact(run) or (run / manifests.DRAFT).is_file():
                return InputError(
                    f"{path} has no finished {result}", f"{repeat}: pfl {command} ... -o {shlex.quote(str(path))}"
                )
    return None


def ancestor(artifact: Artifact, kind: str) -> Artifact | None:
    """Return the nearest artifact of ``kind`` in the lineage, which begins with the artifact itself, or None.

    Raises GoneError if an input was moved, or replaced by another request.
    """
    if artifact.kind == kind:
        return artifact
    if artifact.origin is not None:
        return ancestor(artifact.origin, kind)
    for reference in artifact.manifest.inputs:
        if reference.kind == "dataset" != kind:
            continue  # a partition contains the samples, so that its dataset may be gone
        nearest = ancestor(follow(artifact, reference), kind)
        if nearest is not None:
            return nearest
    return None


def require_ancestor(source: Artifact, kind: str) -> Artifact:
    """Return the artifact of ``kind`` that ``source`` descends from; raises InputError if there is none."""
    nearest = ancestor(source, kind)
    if nearest is None:
        raise InputError(f"{source.path} does not descend from a {kind}")
    return nearest


def expected_artifact(
    path: Path, kind: str, fingerprint: str, request: Mapping[str, Any], origin: Artifact
) -> Artifact:
    """Return an artifact that does not exist yet, to plan other artifacts from it."""
    manifest = Manifest(kind, kinds.schemas()[kind], fingerprint, dict(request), (), {}, {}, {}, {})
    return Artifact(path, manifest, origin)


def follow(artifact: Artifact, reference: Input) -> Artifact:
    """Open an input of ``artifact`` at its recorded path, or in the same folder, if both were moved together.

    Raises GoneError if it is at neither place, InputError if the artifact at the recorded path is damaged.
    """
    recorded = Path(os.path.normpath(artifact.path.resolve() / reference.path))
    beside = (path.parent for path in artifact.path.resolve().parent.glob(f"*/{manifests.NAME}"))
    changed = False
    for folder in (recorded, *sorted(beside)):
        if not (folder / manifests.NAME).is_file():
            continue
        try:
            candidate = Artifact(_display_path(folder), manifests.read(folder))
        except InputError:
            if folder == recorded:
                raise
            continue
        if candidate.manifest.fingerprint == reference.fingerprint:
            return candidate
        changed = changed or folder == recorded
    interruption = _interruption_error(_display_path(recorded))
    fix = [f"make {artifact.path} again, or restore the {reference.kind}"] if interruption is None else interruption.fix
    state = "was replaced by another request" if changed else "no longer exists"
    raise GoneError(
        f"{artifact.path} was made from the {reference.kind} {_display_path(recorded)}, which {state}",
        *fix,
    )


def _display_path(path: Path) -> Path:
    """Return a path relative to the working directory if it is inside it, to keep messages short."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
