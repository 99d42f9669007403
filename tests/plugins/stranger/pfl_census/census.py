"""``pfl census``."""

import json
from pathlib import Path

from pfl_census.options import Census
from pflcli.artifacts.kinds import partition
from pflcli.artifacts.make import Built, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.open_by_path import open_one
from pflcli.options.function import command


@command(Census)
def census(asked):
    """Count the classes of each client."""
    artifact = open_one(asked.partition, "partition")

    def build(work):
        data = partition.read(artifact)
        counts = {name: int((row > 0).sum()) for name, row in zip(data.names, data.label_counts, strict=True)}
        work.write("counts.json", json.dumps(counts).encode())
        return Built({"clients": len(counts)}, {})

    spec = ArtifactSpec("census", {}, (artifact.as_input("partition", Path(asked.out)),))
    return make(asked.out, spec, asked.execution, build)
