"""Opens the artifacts in a folder: the folder itself, or those in the folder of a site, compare or tune."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pflcli.artifacts import kinds
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.kinds import tuning
from pflcli.artifacts.reader import Artifact, ancestor, open_artifact
from pflcli.core.errors import GoneError, InputError, UsageError
from pflcli.core.wording import listed

_RESULTS = ("comparison", "tuning")
"""The folders of the results in ``compare -o`` and ``tune -o``, which are also the kinds of the results."""


@dataclass(frozen=True)
class Chosen:
    """The values of ``--method`` and ``--seed`` of a command, which choose among the runs in a folder."""

    method: str | None = None
    """a method, or the name of its folder, which is preferred"""
    seed: int | None = None
    draws: bool = False
    """whether the command also draws random numbers from the seed, which only chooses where there are several"""


def open_one(path: Path | str | Artifact, *allowed: str, chosen: Chosen | None = None) -> Artifact:
    """Open the artifact at ``path``; raises UsageError, with the choices, if there are several."""
    found = _find(path, allowed, chosen)
    if len(found) > 1:
        choices = listed([str(item.artifact.path) for item in found], most=5)
        what = "predictions" if all(item.artifact.kind == "predictions" for item in found) else "suitable artifacts"
        options = ["--method NAME"] if len({item.artifact.path.name for item in found}) > 1 else []
        options += ["--seed N"] if len({item.seed for item in found}) > 1 else []
        are_alternatives = len({item.artifact.kind for item in found}) == 1
        raise UsageError(
            f"{path} contains {len(found)} {what}, but one is needed",
            f"choose one of {choices}",
            f"or choose by {' and '.join(options)}" if chosen is not None and are_alternatives else "",
        )
    return found[0].artifact


def open_all(path: Path | str | Artifact, *allowed: str, chosen: Chosen | None = None) -> list[Artifact]:
    """Open the artifacts at ``path``.

    ``path`` is an artifact, the folder of a site, whose predictions are returned, or the folder given to ``compare -o``
    or ``tune -o``. For such a folder, the first of these
    that has an ``allowed`` kind is returned: the comparison or tuning; the predictions of the comparison, or of the
    best trial of the tuning; the artifacts that the predictions were made from, such as their partition. ``chosen``
    selects among predictions. Raises UsageError if none match, InputError if there is no artifact or none of an allowed
    kind.
    """
    return [item.artifact for item in _find(path, allowed, chosen)]


@dataclass(frozen=True)
class _Found:
    """An artifact in a folder, and a run that it belongs to: its predictions, or the artifact itself."""

    artifact: Artifact
    run: Artifact

    @property
    def seed(self) -> int | None:
        """The seed of the run."""
        seed: int | None = self.run.manifest.request.get("seed")
        return seed


def _find(path: Path | str | Artifact, allowed: Sequence[str], chosen: Chosen | None) -> list[_Found]:
    chosen = chosen or Chosen()
    folder = None if isinstance(path, Artifact) else Path(path)
    result = None if folder is None or manifests.is_artifact(folder) else _result(folder)
    if folder is not None and "predictions" in allowed and manifests.is_artifact(folder / "predictions"):
        path, folder = folder / "predictions", None
    if folder is None or result is None:
        artifact = open_artifact(path, *allowed)
        return _choose([_Found(artifact, artifact)], path, chosen)
    if not allowed or result.name in allowed:
        artifact = open_artifact(result, *allowed)
        return [_Found(artifact, artifact)]
    runs = _choose([_Found(item, item) for item in _predictions(folder, result)], path, chosen)
    return runs if "predictions" in allowed else _sources(folder, result, runs, allowed)


def _choose(found: list[_Found], path: Path | str | Artifact, chosen: Chosen) -> list[_Found]:
    """Return those of the chosen method and seed; raises UsageError if there is none."""
    seed = None if chosen.draws and len({item.seed for item in found}) == 1 else chosen.seed
    left = [item for item in found if seed is None or item.seed == seed]
    if chosen.method is not None:
        names = [item for item in left if item.artifact.path.name == chosen.method]
        left = names or [item for item in left if item.run.manifest.request.get("method") == chosen.method]
    if not left:
        wanted = " and ".join(
            words
            for words in (chosen.method and f"--method {chosen.method}", None if seed is None else f"--seed {seed}")
            if words
        )
        choices = listed([f"{item.artifact.path} (seed {item.seed})" for item in found], most=5)
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


def _sources(folder: Path, result: Path, runs: Sequence[_Found], allowed: Sequence[str]) -> list[_Found]:
    """Return the artifacts of the ``allowed`` kinds that the predictions ``runs`` were made from, each once."""
    found: dict[str, _Found] = {}
    for item in runs:
        for kind in allowed:
            with suppress(GoneError):
                source = ancestor(item.artifact, kind)
                if source is not None:
                    found.setdefault(source.manifest.fingerprint, _Found(source, item.artifact))
    if not found:
        choices = listed([str(path) for path in (result, *(item.artifact.path for item in runs))], most=5)
        raise InputError(
            f"{folder} contains no {' or '.join(allowed)}, which this command needs",
            f"it contains {choices}",
            *(kinds.made_by(kind) for kind in allowed),
        )
    return [*found.values()]
