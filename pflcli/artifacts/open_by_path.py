"""Opens the artifacts in a folder: the folder itself, or those in the output folder of compare or tune."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pflcli.artifacts import kinds
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.kinds import tuning
from pflcli.artifacts.reader import Artifact, ancestor, open_artifact
from pflcli.errors import GoneError, InputError, UsageError
from pflcli.wording import listed

_RESULTS = ("comparison", "tuning")
"""The folders of the results in ``compare -o`` and ``tune -o``, which are also the kinds of the results."""


def open_one(
    path: Path | str | Artifact, *allowed: str, method: str | None = None, seed: int | None = None
) -> Artifact:
    """Open the artifact at ``path``; raises UsageError, with the choices, if there are several."""
    found = open_all(path, *allowed, method=method, seed=seed)
    if len(found) > 1:
        choices = listed([str(item.path) for item in found], most=5)
        what = "predictions" if all(item.kind == "predictions" for item in found) else "suitable artifacts"
        raise UsageError(f"{path} contains {len(found)} {what}, but one is needed", f"choose one of {choices}")
    return found[0]


def open_all(
    path: Path | str | Artifact, *allowed: str, method: str | None = None, seed: int | None = None
) -> list[Artifact]:
    """Open the artifacts at ``path``.

    ``path`` is an artifact, or the folder given to ``compare -o`` or ``tune -o``. For such a folder, the first of these
    that has an ``allowed`` kind is returned: the comparison or tuning; the predictions of the comparison, or of the
    best trial of the tuning; the artifacts that the predictions were made from, such as their partition. ``method`` (a
    method, or the name of its folder) and ``seed`` select among predictions. Raises UsageError if none match,
    InputError if there is no artifact or none of an allowed kind.
    """
    folder = None if isinstance(path, Artifact) else Path(path)
    result = None if folder is None or manifests.is_artifact(folder) else _result(folder)
    if folder is None or result is None:
        found = [open_artifact(path, *allowed)]
    elif not allowed or result.name in allowed:
        found = [open_artifact(result, *allowed)]
    elif "predictions" in allowed:
        found = _predictions(folder, result)
    else:
        found = _sources(folder, result, allowed)
    if method is None and seed is None:
        return found
    left = [item for item in found if _matches(item, method, seed)]
    if not left:
        wanted = " and ".join(
            words for words in (method and f"--method {method}", None if seed is None else f"--seed {seed}") if words
        )
        choices = listed([f"{item.path} (seed {item.manifest.request.get('seed')})" for item in found], most=5)
        raise UsageError(f"{path} has no predictions of {wanted}", f"it contains {choices}")
    return left


def _result(folder: Path) -> Path | None:
    """Return the comparison or tuning directly inside a folder, or None."""
    if (folder / manifests.NAME).exists():
        return None
    return next((folder / name for name in _RESULTS if manifests.is_artifact(folder / name)), None)


def _predictions(folder: Path, result: Path) -> list[Artifact]:
    """Open the predictions of a comparison, or those of the best trial of a tuning."""
    artifact = open_artifact(result)
    if artifact.kind == "tuning":
        content = tuning.read(artifact)
        best = next(trial["path"] for trial in content["trials"] if trial["trial"] == content["best"])
        paths = [Path(best) if Path(best).is_absolute() else result / best]
    else:
        paths = [result / item.path for item in artifact.manifest.inputs if item.kind == "predictions"]
    if not paths:
        raise InputError(f"{folder} contains no predictions")
    return [open_artifact(Path(os.path.normpath(path)), "predictions") for path in paths]


def _sources(folder: Path, result: Path, allowed: Sequence[str]) -> list[Artifact]:
    """Return the artifacts of the ``allowed`` kinds that the predictions in a folder were made from, each once."""
    made = _predictions(folder, result)
    found: dict[str, Artifact] = {}
    for item in made:
        for kind in allowed:
            with suppress(GoneError):
                source = ancestor(item, kind)
                if source is not None:
                    found.setdefault(source.manifest.fingerprint, source)
    if not found:
        choices = listed([str(path) for path in (result, *(item.path for item in made))], most=5)
        raise InputError(
            f"{folder} contains no {' or '.join(allowed)}, which this command needs",
            f"it contains {choices}",
            *(kinds.made_by(kind) for kind in allowed),
        )
    return [*found.values()]


def _matches(artifact: Artifact, method: str | None, seed: int | None) -> bool:
    request = artifact.manifest.request
    has_method = method is None or method in (request.get("method"), artifact.path.name)
    return has_method and (seed is None or request.get("seed") == seed)
