"""``pfl embed``: compute features of a dataset's images with a frozen encoder."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from pflcli.artifacts import codebook
from pflcli.artifacts.codebook import Codebook
from pflcli.artifacts.kinds import dataset as artifact
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import config, datasets, foreign, sources
from pflcli.core.datasets import SPLITS, Samples
from pflcli.core.errors import InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.tasks import Labels
from pflcli.data.preparation import imported_dataset
from pflcli.options.embed import Embed
from pflcli.options.function import command
from pflcli.workflow.prediction.encoders import BATCH, Choice, FrozenEncoder
from pflcli.workflow.training import hardware

CHECKPOINT_SECONDS = 5.0
"""Seconds between checkpoints."""


@command(Embed)
def embed(asked: Embed) -> Outcome:
    """Compute features of the images of ``dataset`` with a frozen ``encoder``, and store them as a dataset.

    ``dataset`` is a name, with its files in ``root``, or the folder of an imported one. ``encoder`` is torchvision:NAME
    or timm:NAME with the file ``weights``, or onnx:FILE, of which ``output`` is one tensor. Images are resized to
    ``size`` pixels, and normalized by ImageNet's mean and deviation unless ``normalize`` is "none". The result records
    the encoder and a hash of its weights. With ``keep_test``, a built-in dataset's published test samples stay test
    samples; the splits of an imported dataset are always kept. An interrupted run resumes where it stopped.

    Raises UsageError for contradictory options; InputError for a dataset without images, and for weights that do not
    fit the encoder.

    >>> from onnx import helper, save
    >>> from pflcli import embed
    >>> steps = [helper.make_node("GlobalAveragePool", ["x"], ["mean"]), helper.make_node("Flatten", ["mean"], ["z"])]
    >>> x, z = (helper.make_tensor_value_info(*each) for each in (("x", 1, ["n", 3, 32, 32]), ("z", 1, ["n", 3])))
    >>> graph = helper.make_graph(steps, "colours", [x], [z])
    >>> save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), "colours.onnx")
    >>> embed("writers", "runs/colours", encoder="onnx:colours.onnx").kind
    'dataset'
    """
    execution = asked.execution.reading(asked.root)
    name = str(asked.dataset)
    choice = Choice(
        asked.encoder, None if asked.weights is None else Path(asked.weights), asked.size, asked.normalize, asked.output
    )
    choice.check()
    execution = execution.reading(choice.file)
    device, threads = hardware.device(execution.device), hardware.threads(execution.threads)
    source = imported_dataset.open_dataset(name)
    samples, dataset_options = _load_samples(name, source, asked)
    encoder = choice.open(samples.x.shape[1:])
    book = Codebook(name, (), samples.names) if source is None else codebook.read(source)
    spec = ArtifactSpec(
        "dataset",
        _request(name, source, samples, dataset_options, encoder),
        () if source is None else (source.as_input("dataset", Path(asked.out)),),
        code={"encoders": sources.module_hash("workflow.prediction.encoders")},
    )

    def build(writer: ArtifactWriter) -> Built:
        encoder.to(device)
        features = _embed(encoder, samples.x, writer, execution, threads)
        labels = None if samples.task is None else Labels.of(samples.task)
        classes = book.class_names(samples.classes) if labels is None else []
        stored = artifact.Dataset(
            features,
            samples.y,
            classes,
            samples.owner,
            split=_split(samples),
            group=samples.group,
            is_ordered=samples.ordered,
            coarse=samples.coarse,
            kept=samples.kept,
            labels=labels,
        )
        known = Codebook(book.dataset, (), tuple(classes), encoder=encoder.facts, unit=book.unit)
        artifact.write(writer, stored, known)
        summary = imported_dataset.summarize(stored, 0)
        execution.reporter.say(
            f"{len(features)} images {f'of {len(classes)} classes' if labels is None else f'with a {labels.kind}'}, "
            f"{features.shape[1]} features by {encoder.facts}"
        )
        weights = os.path.relpath(choice.file.resolve(), Path(asked.out).resolve())
        return Built(
            summary, {"source": book.dataset or name, "weights": weights, "device": device, "threads": threads}
        )

    width = 0 if not len(samples.x) else encoder.embed(samples.x[:1]).nbytes
    return make(asked.out, spec, execution, build, needed_bytes=width * len(samples.x))


def _load_samples(name: str, source: Artifact | None, asked: Embed) -> tuple[Samples, Any]:
    """Return the images, and the options of the dataset, None if it has none.

    Raises InputError if the samples are not images.
    """
    if source is None:
        definition = datasets.load(name)
        if definition.Config is None and asked.options:
            raise UsageError(f"dataset {name} has no options", "leave out --set")
        cfg = config.build_each({f"dataset {name}": definition.Config}, asked.options or {})[0]
        load, more = definition.load, {} if cfg is None else {"cfg": cfg}
    else:
        if asked.options:
            raise UsageError(f"--set has no effect: {source.path} is an imported dataset", "leave it out")
        if asked.keep_test:
            raise UsageError("--keep-test is for built-in datasets: splits of imported ones are kept", "leave it out")
        load, cfg, more = partial(imported_dataset.load_samples, source), None, {}
    with foreign.parsing(str(asked.root or name), name):
        samples: Samples = load(Path(asked.root) if asked.root is not None else None, download=asked.download, **more)
        samples.check(name)
    if samples.x.dtype != np.uint8:
        kind = "tokens" if samples.x.dtype == np.int16 else "features"
        raise InputError(f"{name} contains {kind}, and encoders take images")
    if asked.keep_test and samples.is_test is None:
        raise UsageError(f"{name} has no published test samples to keep", "leave out --keep-test")
    return samples if asked.keep_test or source is not None else replace(samples, is_test=None), cfg


def _request(
    name: str, source: Artifact | None, samples: Samples, dataset_options: Any, encoder: FrozenEncoder
) -> dict[str, Any]:
    """Return the request of the dataset: the images and the encoder."""
    earlier = {} if source is None else source.manifest.request
    return {
        "form": "embedded",
        "sha256": samples.sha256(),
        **dict.fromkeys(("client", "label", "features", "delimiter")),
        "missing": "error",
        "standardize": False,
        "resize": earlier.get("resize"),
        **{name: earlier[name] for name in ("convert", "frame") if name in earlier},
        "dataset": name if source is None else "imported",
        **({} if dataset_options is None else {"dataset_options": config.plain(dataset_options)}),
        **({} if samples.is_test is None else {"keep_test": True}),
        "encoder": asdict(encoder.facts),
    }


def _split(samples: Samples) -> NDArray[np.int8] | None:
    """Return the given split of each sample (n,), None if there is none."""
    if samples.is_test is None:
        return None
    split = np.full(len(samples.y), SPLITS.index("train"), np.int8)
    split[samples.is_test] = SPLITS.index("test")
    if samples.is_validation is not None:
        split[samples.is_validation] = SPLITS.index("validation")
    return split


def _embed(
    encoder: FrozenEncoder, x: NDArray[Any], writer: ArtifactWriter, execution: Execution, threads: int
) -> NDArray[np.float32]:
    """Return the features (n, d) of all images; batches are stored until the artifact is complete.

    A checkpoint lists the hashes of the batches that are complete, and an interrupted run continues behind them.
    """
    width = encoder.embed(x[:1]).shape[1]
    features = np.empty((len(x), width), np.float32)
    content = writer.read_checkpoint()
    hashes = np.empty((0, 32), np.uint8) if content is None else _parse_checkpoint(content, writer)
    batches = writer.row_files()(0)
    done = len(hashes) * BATCH
    batches.check(np.arange(len(hashes)), BATCH * width * features.itemsize, hashes)
    for number in range(len(hashes)):
        batch = features[number * BATCH : (number + 1) * BATCH]
        batches.read(number, batch.view(np.uint8).reshape(-1), BATCH * width * features.itemsize)
    if done:
        execution.reporter.say(f"{done} images were embedded before the interruption")
    with execution.reporter.progress("embed", len(x)) as advance:
        advance(done, "")
        saved = time.monotonic()
        for first in range(done, len(x), BATCH):
            batch = encoder.embed(x[first : first + BATCH], threads)
            features[first : first + BATCH] = batch
            advance(len(batch), "")
            if len(batch) < BATCH:
                break  # the last batch, which may be shorter, is not stored
            batches.write(first // BATCH, batch.nbytes, [(slice(None), batch.view(np.uint8).reshape(-1))])
            if time.monotonic() - saved >= CHECKPOINT_SECONDS:
                batches.sync()
                rows = np.arange(first // BATCH + 1)
                known = batches.hashes(rows, batch.nbytes)
                writer.write_checkpoint(safetensors.numpy.save({"hashes": known}))
                saved = time.monotonic()
    return features


def _parse_checkpoint(content: bytes, writer: ArtifactWriter) -> NDArray[np.uint8]:
    """Return the hashes (n, 32) of the stored batches; raises InputError if the checkpoint is damaged."""
    try:
        hashes = safetensors.numpy.load(content)["hashes"]
        if hashes.dtype != np.uint8 or hashes.ndim != 2 or hashes.shape[1] != 32:
            raise ValueError
    except Exception:  # a parser raises anything on a damaged file
        folder = writer.folder
        raise InputError(
            f"the checkpoint of {folder} is damaged", f"remove it (rm -r {folder}), and start again"
        ) from None
    return hashes
