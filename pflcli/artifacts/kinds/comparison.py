"""A comparison: an evaluation of many methods and seeds that one command has run, with the files of an evaluation.

Its inputs are beside it, in the folder that ``-o`` names.
"""

from __future__ import annotations

from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.kinds._wording import count, word
from pflcli.artifacts.manifest import Manifest
from pflcli.artifacts.reader import Artifact

SCHEMA = 1
MADE_BY = "pfl compare PARTITION... -o DIR"


def check(artifact: Artifact) -> None:
    """Read every file; raises InputError if one is damaged or has an invalid value."""
    evaluation.read(artifact)


def describe(manifest: Manifest) -> list[str]:
    """Return the facts that tell one from another, in words."""
    summary = manifest.summary
    return [
        count(summary.get("methods"), "method"),
        count(summary.get("predictions"), "run"),
        word(summary.get("best"), "best"),
    ]
