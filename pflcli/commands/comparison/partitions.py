"""The partitions of a comparison, one for each seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pflcli.artifacts import codebook
from pflcli.artifacts.chosen import open_one
from pflcli.artifacts.reader import Artifact
from pflcli.errors import InputError, UsageError
from pflcli.training import run_request

SPLIT = "test"
"""The samples that are scored."""


def by_seed(sources: Sequence[Path | str], seeds: Sequence[int] | None) -> dict[int, Artifact]:
    """Return the partition of each seed; raises UsageError if two partitions or two seeds are the same."""
    artifacts = [open_one(source, "partition") for source in sources]
    if not artifacts:
        raise UsageError("no partition to compare on", "pfl compare PARTITION -o DIR")
    for artifact in artifacts:
        if not artifact.manifest.summary.get(SPLIT, 1):
            raise InputError(f"{artifact.path} has no {SPLIT} samples to score", "--fractions 0.6,0.2,0.2")
    if len(artifacts) == 1:
        run_seeds = [run_request.seed_of(None, artifacts[0])] if seeds is None else list(seeds)
        if len({*run_seeds}) < len(run_seeds) or not run_seeds or min(run_seeds) < 0:
            raise UsageError(f"--seeds {','.join(map(str, run_seeds))} are not different numbers", "--seeds 0,1,2")
        return dict.fromkeys(run_seeds, artifacts[0])
    if seeds is not None:
        raise UsageError(
            "--seeds needs a single partition: several are each used under the seed that they were drawn with",
            "give one partition, or leave out --seeds",
        )
    partitions: dict[int, Artifact] = {}
    for artifact in artifacts:
        seed = run_request.seed_of(None, artifact)
        codebook.require_same(artifacts[0], artifact, "classes", "features")
        if seed in partitions:
            raise UsageError(
                f"{partitions[seed].path} and {artifact.path} are both of seed {seed}",
                "several partitions stand for several seeds: pfl partition DATASET -o DIR --seed 1",
            )
        partitions[seed] = artifact
    return partitions
