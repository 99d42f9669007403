"""``pfl extract``: compute the representation of every sample with the backbone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import client_blocks, codebook
from pflcli.artifacts.kinds import embeddings, read_labels
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds.backbone import read_tensors
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.open_by_path import Chosen, open_one
from pflcli.artifacts.reader import Artifact, require_ancestor
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import InputError
from pflcli.core.federation.layers import represent_by_layer
from pflcli.core.federation.run import Run
from pflcli.core.parameters import Params
from pflcli.core.reporter import Advance
from pflcli.options.extract import Extract
from pflcli.options.function import command
from pflcli.workflow.training import hardware
from pflcli.workflow.training.run_spec import RunSpec


@command(Extract)
def extract(asked: Extract) -> Outcome:
    """Store the representation and the logits of every sample of every split, computed by the backbone ``source``.

    The samples are those of the backbone's partition or of another ``partition``, such as the clients' data after a
    distribution shift. ``layer`` is the name of a module of the network, whose output represents a sample instead of
    the input of the head. Raises UsageError if there is no such layer; InputError if the shape or type of the samples
    differs from those of the backbone, or if its classes or features have another meaning.

    >>> from pflcli import extract, partition, train_global
    >>> trained = train_global(partition("writers", "runs/p", clients=6), "runs/g", model="mlp", rounds=2)
    >>> extract(trained, "runs/e").kind
    'embeddings'
    """
    execution = asked.execution
    backbone = open_one(asked.source, "backbone", chosen=Chosen(asked.method, asked.seed))
    trained_on = require_ancestor(backbone, "partition")
    chosen = trained_on if asked.partition is None else open_one(asked.partition, "partition")
    execution = execution.reading(chosen.path)
    request = backbone.manifest.request
    if asked.partition is not None:
        _require_match(chosen, backbone, trained_on)
    # The chosen partition comes first: ``ancestor`` would otherwise find the one that the backbone was trained on.
    inputs = [backbone.as_input("backbone", Path(asked.out))]
    if chosen.manifest.fingerprint != trained_on.manifest.fingerprint:
        inputs.insert(0, chosen.as_input("partition", Path(asked.out)))
    # Without the option, older requests, made before it existed, still match.
    chosen_layer = {} if asked.layer is None else {"layer": asked.layer}
    draft = ArtifactSpec("embeddings", {"seed": request["seed"], **chosen_layer}, tuple(inputs))

    def build(work: ArtifactWriter) -> Built:
        spec = RunSpec.of_backbone(backbone)
        data = partitions.read(chosen)
        if chosen is not trained_on and spec.settings.normalize == "dataset":
            spec = replace(spec, normalized_like=partitions.read(trained_on))
        run = spec.build(data, execution)
        assert run.backbone is not None
        weights = run.backbone
        empty = run.engine.infer(weights, np.empty(0, np.int64), features=True)
        classes, dimension = (int(values.shape[1]) for values in empty)
        if asked.layer is not None:
            dimension = represent_by_layer(run, np.arange(1), asked.layer).shape[1]
        with execution.reporter.progress("extract", len(data.y)) as advance:
            splits = {split: _embed(run, weights, data, split, asked.layer, advance) for split in SPLITS}
            embeddings.write(work, splits, dimension, classes)
        codebook.write(work, codebook.read(chosen))
        execution.reporter.say(f"{len(data.y)} samples, {dimension}-d")
        summary = {"samples": len(data.y), "dimension": dimension, "clients": len(run.clients)}
        summary |= read_labels(chosen.manifest, 0).facts()
        return Built(summary, {"device": hardware.device(execution.device), "threads": run.engine.threads})

    needed_bytes = _estimate_bytes(chosen, backbone) if asked.layer is None else 0
    return make(asked.out, draft, execution, build, needed_bytes=needed_bytes)


SAMPLES_PER_PIECE = 1 << 12
"""Samples that are embedded at a time: a multiple of the engine's batch size."""


def _embed(
    run: Run, weights: Params, data: Partition, split: str, layer: str | None, advance: Advance
) -> embeddings.SplitPieces:
    """Return one split of all clients, which is embedded in pieces when it is written."""
    rows = run.federation.rows_of(run.clients, split)

    def pieces() -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        for piece in run.engine.divide(rows, SAMPLES_PER_PIECE) if len(rows) else ():
            logits, z = run.engine.infer(weights, piece, features=layer is None)
            if layer is not None:
                z = represent_by_layer(run, piece, layer)
            yield z.cpu().numpy(), logits.cpu().numpy()
            advance(len(piece), split)

    offsets = client_blocks.offsets(run.federation.sizes(split))
    return embeddings.SplitPieces(data.y[rows], data.sample[rows], offsets, pieces)


def _estimate_bytes(chosen: Artifact, backbone: Artifact) -> int:
    """Return the bytes of representations and logits in float32; 0 if the backbone is only planned."""
    head = read_tensors(backbone).get("head.weight") if backbone.manifest.files else None
    return 0 if head is None else 4 * sum(head.shape[:2]) * int(chosen.manifest.summary.get("samples", 0))


def _require_match(chosen: Artifact, backbone: Artifact, trained_on: Artifact) -> None:
    """Raise InputError unless the model of ``backbone`` accepts the samples of ``chosen``, with the same meaning."""
    form, needed = partitions.read_form(chosen), partitions.read_form(trained_on)
    for feature, actual, expected in (
        ("samples of shape", form.shape, needed.shape),
        ("samples of type", form.dtype, needed.dtype),
        ("a number of classes of", form.labels.outputs, needed.labels.outputs),
        ("targets standardized by client:", form.labels.task().by_client, needed.labels.task().by_client),
    ):
        if actual != expected:
            raise InputError(
                f"{chosen.path} has {feature} {actual}, but {backbone.path} was trained on {expected}",
                f"pfl train-global {chosen.path} -o DIR",
            )
    fix = "to read new data in the same way: pfl import DATA --like PARTITION -o DIR"
    codebook.require_same(chosen, backbone, *codebook.INPUTS, fix=fix)
