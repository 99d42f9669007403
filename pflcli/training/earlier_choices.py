"""Choices that clients made by validation samples in an earlier run, so that a run with ``refit`` can train on these.

Marfoq et al. (2022), https://arxiv.org/abs/2111.09360, section 6, tune kNN-Per on validation samples and then train on
training and validation samples. Here every method may do so: the first run, without ``refit``, leaves the validation
samples aside and chooses; the second takes its choices (``--choices``) and leaves nothing aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.errors import InputError, UsageError


def source(
    names: tuple[str, ...],
    request: Mapping[str, Any],
    choices: Path | str | Artifact | None,
    partition: Artifact | None,
) -> Artifact | None:
    """Return the predictions from which a run takes its choices, or None if it chooses itself or has no choices.

    ``names`` are those of the options that clients choose by validation samples, ``request`` is that of the run,
    ``choices`` the predictions that the user named. Raises UsageError if they are needed and missing, or not needed;
    InputError if they were made by another request or for another partition.
    """
    method = request["method"]
    if not (request["settings"]["refit"] and names):
        if choices is not None:
            reason = "has nothing to choose" if request["settings"]["refit"] else "chooses itself without --refit"
            raise UsageError(f"--choices does not go with this run: {method} {reason}")
        return None
    if choices is None:
        raise UsageError(
            f"{method} chooses {' and '.join(names)} by validation samples, and --refit leaves none to choose by",
            f"run it without --refit first, then: pfl personalize {method} SOURCE --refit --choices PREDICTIONS",
        )
    artifact = open_one(choices, "predictions")
    earlier = {**artifact.manifest.request, "settings": {**artifact.manifest.request["settings"], "refit": True}}
    if artifact.manifest.request["settings"].get("refit"):
        raise InputError(f"{artifact.path} was run with --refit itself and chose nothing", "give the run without it")
    differing = [key for key in ("method", "options", "settings", "seed") if earlier[key] != request[key]]
    if differing:
        raise InputError(
            f"{artifact.path} was run with another {' and another '.join(differing)}: its choices are not for this run"
        )
    before = ancestor(artifact, "partition")
    if before is None or partition is None or before.manifest.fingerprint != partition.manifest.fingerprint:
        raise InputError(
            f"{artifact.path} is of the partition {before.path if before else '(unknown)'}, not of "
            f"{partition.path if partition else '(unknown)'}"
        )
    return artifact


def read(artifact: Artifact | None, names: tuple[str, ...]) -> dict[str, NDArray[np.float64]]:
    """Return what each client (m,) chose, by name; raises InputError if something is missing."""
    if artifact is None:
        return {}
    chosen = predictions.tuned(artifact)
    for name in names:
        if name not in chosen:
            raise InputError(f"{artifact.path} does not say which {name} its clients chose", "run it again")
    return {name: chosen[name] for name in names}
