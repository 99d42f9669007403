"""The choices of an earlier run, for a run that has no validation samples to choose on.

With ``--refit``, a run trains on validation samples. Marfoq et al. (2022), https://arxiv.org/abs/2111.09360, section
6, tune kNN-Per on validation samples and then train on training and validation samples. Every method can do this: a
first run without ``--refit`` makes the choices, and a second run takes them from it (``--choices``) and trains on all
samples.
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
from pflcli.core.errors import InputError, UsageError


def open_run(
    names: tuple[str, ...],
    request: Mapping[str, Any],
    choices: Path | str | Artifact | None,
    partition: Artifact | None,
) -> Artifact | None:
    """Return the predictions from which a run takes its choices, or None if it makes its own or has nothing to choose.

    ``names`` are the options that clients choose on validation samples, ``request`` is the request of the run, and
    ``choices`` are the predictions that the user gave. Raises UsageError if they are missing or have no effect,
    InputError if they were made by another request or on another partition.
    """
    method = request["method"]
    if not (request["settings"]["refit"] and names):
        if choices is not None:
            reason = "has nothing to choose" if request["settings"]["refit"] else "chooses itself without --refit"
            raise UsageError(f"--choices has no effect on this run: {method} {reason}")
        return None
    if choices is None:
        raise UsageError(
            f"{method} chooses {' and '.join(names)} on validation samples, and --refit leaves none to choose on",
            f"run it without --refit first, then: pfl personalize {method} SOURCE --refit --choices PREDICTIONS",
        )
    artifact = open_one(choices, "predictions")
    earlier = {**artifact.manifest.request, "settings": {**artifact.manifest.request["settings"], "refit": True}}
    if artifact.manifest.request["settings"].get("refit"):
        raise InputError(f"{artifact.path} was run with --refit itself and chose nothing", "give a run without --refit")
    differing = [key for key in ("method", "options", "settings", "seed") if earlier[key] != request[key]]
    if differing:
        raise InputError(
            f"{artifact.path} was run with another {' and another '.join(differing)}: its choices do not fit this run"
        )
    before = ancestor(artifact, "partition")
    if before is None or partition is None or before.manifest.fingerprint != partition.manifest.fingerprint:
        raise InputError(
            f"{artifact.path} was made on the partition {before.path if before else '(unknown)'}, not on "
            f"{partition.path if partition else '(unknown)'}"
        )
    return artifact


def read_choices(artifact: Artifact, names: tuple[str, ...]) -> dict[str, NDArray[np.float64]]:
    """Return what each client (m,) chose, by name; raises InputError if something is missing."""
    chosen = predictions.read_tuned(artifact)
    for name in names:
        if name not in chosen:
            raise InputError(f"{artifact.path} does not contain the {name} that its clients chose", "run it again")
    return {name: chosen[name] for name in names}
