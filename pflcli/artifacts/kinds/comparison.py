"""A comparison: an evaluation of the methods and seeds that one command ran, with the files of an evaluation.

Its inputs are in the same folder, the output folder of the command.
"""

from __future__ import annotations

from pflcli.artifacts.kinds import describe_count, describe_name, evaluation
from pflcli.artifacts.manifest import Manifest

SCHEMA = 1
MADE_BY = "pfl compare PARTITION... -o DIR"

check = evaluation.read


def describe(manifest: Manifest) -> list[str]:
    """Return a few facts that distinguish artifacts of this kind, as text."""
    summary = manifest.summary
    return [
        describe_count(summary.get("methods"), "method"),
        describe_count(summary.get("predictions"), "run"),
        describe_name(summary.get("best"), "best"),
    ]
