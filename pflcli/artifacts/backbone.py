"""The backbone: ``weights.safetensors`` (``body.*``, ``head.*``) and ``rounds.csv``, one row a round.

Row 0 is there if the method sent something before its rounds.
"""

from __future__ import annotations

from typing import Any

from pflcli.artifacts.artifact import Artifact
from pflcli.errors import InputError

WEIGHTS = "weights.safetensors"


def tensors(artifact: Artifact, name: str = WEIGHTS) -> dict[str, Any]:
    """Read named torch tensors from a safetensors file; raises InputError if it is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return dict(load(artifact.read(name)))
    except SafetensorError as error:
        raise InputError(f"{artifact.path / name} cannot be read: {error}") from None
