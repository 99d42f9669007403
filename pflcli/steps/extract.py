"""``pfl extract``: embed every sample once with the backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pflcli import registry
from pflcli.artifacts import blocks, codebook, embeddings
from pflcli.artifacts import partition as partitions
from pflcli.artifacts.artifact import Artifact, open_artifact, parent
from pflcli.artifacts.backbone import tensors
from pflcli.artifacts.manifest import Draft
from pflcli.artifacts.partition import Partition
from pflcli.artifacts.store import Work
from pflcli.errors import InputError
from pflcli.steps import machine, training
from pflcli.steps.making import Manner, Outcome, make


def lineage(source: Artifact, kind: str) -> Artifact:
    """Return the artifact of ``kind`` that ``source`` descends from; raises InputError if there is none."""
    found = parent(source, kind)
    if found is None:
        raise InputError(f"{source.path} does not descend from a {kind}")
    return found


def extract(
    source: Path | str | Artifact,
    out: Path | str,
    *,
    partition: Path | str | Artifact | None = None,
    manner: Manner | None = None,
) -> Outcome:
    """Store the representation and the logits of every sample, for every split, under the backbone ``source``.

    The samples are those that the backbone was trained on, or those of another ``partition``, such as the clients'
    data after a shift. Raises InputError if its samples or classes are not of the backbone's kind.
    """
    manner = manner or Manner()
    backbone = open_artifact(source, "backbone")
    trained_on = lineage(backbone, "partition")
    chosen = trained_on if partition is None else open_artifact(partition, "partition")
    request = backbone.manifest.request
    # Another partition stands before the backbone, whose lineage would lead to the one that it was trained on.
    inputs = [backbone.as_input("backbone", Path(out))]
    if chosen.manifest.fingerprint != trained_on.manifest.fingerprint:
        inputs.insert(0, chosen.as_input("partition", Path(out)))
    draft = Draft("embeddings", {"seed": request["seed"]}, tuple(inputs))

    def build(work: Work) -> tuple[dict[str, Any], dict[str, Any]]:
        plan = training.settings(request["settings"], {})
        code = registry.load("methods", request["method"])
        data = partitions.read(chosen)
        if chosen is not trained_on:
            _match(chosen, data, backbone, partitions.read(trained_on))
        run = training.prepare(data, code, None, plan, request["seed"], manner)
        weights = tensors(backbone)
        splits: dict[str, embeddings.Embedded] = {}
        with manner.watch.progress("extract", len(data.y)) as advance:
            for split in blocks.SPLITS:
                rows = np.concatenate([run.federation.rows(int(client), split) for client in run.clients])
                logits, z = run.engine.infer(weights, rows, features=True)
                splits[split] = embeddings.Embedded(
                    z=z.cpu().numpy(),
                    logits=logits.cpu().numpy(),
                    y=run.federation.y[rows].cpu().numpy(),
                    sample=data.sample[rows],
                    offsets=blocks.offsets(run.federation.sizes(split)),
                )
                advance(len(rows), split)
        embeddings.write(work, splits)
        codebook.write(work, codebook.read(chosen))
        dimension = splits["train"].z.shape[1]
        manner.watch.say(f"{len(data.y)} samples, {dimension}-d")
        summary = {"samples": len(data.y), "dimension": dimension, "clients": len(run.clients)}
        return summary, {"device": machine.device(manner.device), "threads": run.engine.threads}

    return make(out, draft, manner, build)


def _match(chosen: Artifact, data: Partition, backbone: Artifact, known: Partition) -> None:
    """Raise InputError unless ``data`` could be fed to a model that was trained on ``known``."""
    for what, here, there in (
        ("samples of shape", data.x.shape[1:], known.x.shape[1:]),
        ("samples of type", data.x.dtype, known.x.dtype),
        ("a number of classes of", data.classes, known.classes),
    ):
        if here != there:
            raise InputError(
                f"{chosen.path} has {what} {here}, but {backbone.path} was trained on {there}",
                f"pfl train-global {chosen.path} -o DIR",
            )
