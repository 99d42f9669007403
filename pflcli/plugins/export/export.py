"""``pfl export``: write one client's model to a folder that works without pfl."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli import __version__
from pflcli.artifacts import disk, placement, plain_output
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.open_by_path import Chosen, open_one
from pflcli.core.errors import ComputationError, ConflictError, InputError
from pflcli.core.execution import Execution
from pflcli.core.foreign import size
from pflcli.core.wording import counted
from pflcli.data.formats import missing_name_error
from pflcli.data.preparation.preprocessing import Preprocessing
from pflcli.methods.parts.logarithmic_pool import STACK
from pflcli.options.function import command
from pflcli.plugins.export import description, onnx_network
from pflcli.plugins.export.description import ENCODER, IMAGES, INDEX, NAME, NETWORK, READER, STORE, Agreement
from pflcli.plugins.export.options import Export
from pflcli.plugins.export.standalone_model import StandaloneModel, build_standalone_model
from pflcli.workflow.prediction import reopened_run

FILES = {NAME, NETWORK, STORE, INDEX, READER, IMAGES, ENCODER}
ROUNDING_ERROR = 1e-5
"""Largest difference of predictions, divided by their size, that is not reported: rounding rarely causes more."""
DRAWN_IMAGES = 8
"""Images on which the exported encoder is compared."""
MAX_DIFFERENCE = 1e-3
"""Difference of predictions, divided by their size, above which the exported network is wrong."""


@dataclass(frozen=True)
class Exported:
    """The exported folder ``path``, the sizes of its ``files`` in bytes, and the content of its ``model.json``."""

    path: Path
    model: Mapping[str, Any]
    files: Mapping[str, int]


@command(Export)
def export(asked: Export) -> Exported:
    """Write the model of one client of the predictions ``source`` to the folder ``out``, which works without pfl.

    The folder contains the network as ONNX, the store of kNN-Per, ``model.json``, and a script that predicts from them
    with NumPy and onnxruntime. Before the folder is moved to ``out``, the predictions of that script for the client's
    test samples (other samples if there are none) are compared with those of pfl. The predictions of a real site are
    those of one client, and need no ``client``.
    ``weights`` is the file of initial weights of a run without a backbone. If ``embed`` computed the features, the
    folder also contains the encoder and takes images; ``encoder_weights`` is the file with its weights, by default the
    one that ``embed`` read. If that is gone, the folder takes features.

    Raises UsageError if a package is missing; InputError for an unknown client, another one than that of a site, or a
    method that predicts by more than networks and a store; ConflictError if ``out`` exists and may not be replaced;
    ComputationError if the folder predicts differently from pfl.

    >>> from pflcli import export, partition, personalize
    >>> trained = personalize("ditto", partition("writers", "runs/p", clients=6), "runs/ditto", model="mlp", rounds=2)
    >>> sorted(export(trained, "model", client="w0012", force=True).files)
    ['model.json', 'network.onnx', 'reader.py']
    """
    execution = asked.execution
    onnx_network.require_packages()
    artifact, path = open_one(asked.source, "predictions", chosen=Chosen(asked.method, asked.seed)), Path(asked.out)
    if path.name in ("", ".."):  # such as ".": files are written beside the folder first, under its name
        path = path.resolve()
    _require_replaceable(path, force=execution.force)
    if artifact.manifest.request["method"] == STACK:
        raise InputError(
            f"{artifact.path} is a stack, which combines several methods and cannot be exported",
            "pfl export the predictions of one of its methods",
        )
    names = reopened_run.client_names(artifact)
    run = reopened_run.reopen(artifact, asked.weights)
    client = reopened_run.choose_client(artifact, run.partition, asked.client)
    if client not in names:
        raise missing_name_error(str(artifact.path), "client", client, names)
    embedded = run.lineage["embeddings"]
    if embedded is not None and "layer" in embedded.manifest.request:
        raise InputError(
            f"{artifact.path} represents samples by the layer {embedded.manifest.request['layer']}, and the exported "
            "network only has the input of its head",
            f"pfl predict {artifact.path}",
        )
    parts = build_standalone_model(run, names.index(client), execution, asked.encoder_weights)
    try:
        with plain_output.fill_folder(path, FILES) as partial:
            for name, content in _contents(parts).items():
                disk.write(partial / name, [content])
            agreement = _agreement(parts, partial)
            model = description.describe(parts, __version__, agreement)
            disk.write(partial / NAME, [description.encode(model)])
            files = {item.name: item.stat().st_size for item in sorted(partial.iterdir())}
            _require_replaceable(path, force=execution.force)
            _move(partial, path)
    except OSError as error:
        raise disk.write_error(f"cannot write {path}", path.parent, error) from None
    _report(path, parts, agreement, files, execution)
    return Exported(path, model, files)


def _require_replaceable(out: Path, *, force: bool) -> None:
    """Raise ConflictError if ``out`` may not be replaced, InputError if its parent folder does not exist."""
    if not out.parent.is_dir():
        raise InputError(f"{out.parent} does not exist", f"mkdir -p {out.parent}")
    if manifests.is_artifact(out.parent):
        raise ConflictError(f"{out.parent} is an artifact, which must not be changed", "choose another --out")
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return
    if not out.is_dir() or out.is_symlink() or not (out / NAME).is_file() or manifests.is_artifact(out):
        raise ConflictError(f"{out} exists, and pfl export did not write it", "choose another --out")
    others = sorted(item.name for item in out.iterdir() if item.name not in FILES)
    if others:
        raise ConflictError(
            f"{out} contains files that pfl export did not write, and --force would delete them: {', '.join(others)}",
            f"move them out of {out}, or choose another --out",
        )
    if not force:
        raise ConflictError(f"{out} exists", "--force replaces it")


def _contents(parts: StandaloneModel) -> dict[str, bytes]:
    """Return the files of the folder by name; ``model.json`` does not contain the agreement with pfl yet."""
    reader = Path(description.__file__).with_name(READER)
    files = {NETWORK: onnx_network.export_network(parts), READER: reader.read_bytes()}
    if parts.neighbours is not None:
        store, memory = parts.neighbours.store, io.BytesIO()
        arrays: dict[str, Any] = {"y": store.y} if store.z is None else {"y": store.y, "z": store.z}
        np.savez(memory, **arrays)
        files[STORE] = memory.getvalue()
        if store.index is not None:
            files[INDEX] = store.index.tobytes()
    if parts.encoder is not None:
        files[IMAGES], files[ENCODER] = onnx_network.export_encoder(parts.encoder)
    return {**files, NAME: description.encode(description.describe(parts, __version__))}


def _agreement(parts: StandaloneModel, folder: Path) -> Agreement:
    """Compare the predictions of the folder for the client's samples with those of pfl.

    Raises ComputationError if they differ although the folder contains only a network.
    """
    from pflcli.plugins.export import reader

    of_features = description.describe(replace(parts, encoder=None), __version__)
    p = reader.predict(folder, of_features, undo_preprocessing(parts.x, parts.preprocessing))
    difference = np.abs(p - parts.p).max(axis=1) / parts.task.size
    if parts.encoder is not None:  # the client's images are not stored, so drawn ones take their place
        x = np.random.default_rng(0).integers(0, 256, (DRAWN_IMAGES, *parts.encoder.facts.shape), np.uint8)
        p = reader.predict(folder, description.describe(parts, __version__), x)
        expected = reader.predict(folder, of_features, parts.encoder.embed(x).astype(np.float64))
        difference = np.append(difference, np.abs(p - expected).max(axis=1) / parts.task.size)
    if difference.max() > MAX_DIFFERENCE and parts.neighbours is None:
        raise ComputationError(
            f"the {_name_predictions(parts)} of the exported network differ from those of pfl by "
            f"{difference.max():.1g}: this is a bug in pfl"
        )
    return Agreement(len(difference), int((difference > ROUNDING_ERROR).sum()), float(difference.max()))


def _name_predictions(parts: StandaloneModel) -> str:
    return "probabilities" if parts.classes else f"predictions, divided by {parts.task.size:.4g},"


def undo_preprocessing(x: NDArray[Any], preprocessing: Preprocessing) -> NDArray[Any]:
    """Return samples of a partition (n, ...) as in a file: not standardized, and with nan for missing values."""
    if preprocessing.is_images or preprocessing.is_tokens:
        return x
    x = x.astype(np.float64)
    if preprocessing.scale is not None:
        x = x * preprocessing.scale.sd + preprocessing.scale.mean
    if not preprocessing.median:
        return x
    columns, at = [], 0
    for column in preprocessing.columns:
        width = len(column.features)
        values, at = x[..., at : at + width], at + width
        if column.gaps:
            values, at = np.where(x[..., at : at + 1] > 0.5, np.nan, values), at + 1
        columns.append(values)
    return np.concatenate(columns, axis=-1) if columns else x


def _move(folder: Path, out: Path) -> None:
    """Rename ``folder`` to ``out``, then remove the folder that it replaces."""
    if os.path.lexists(out):
        _remove(placement.replaced_folder(out))  # from an export that was killed
    placement.move(folder, out)
    _remove(placement.replaced_folder(out))


def _remove(folder: Path) -> None:
    """Remove a folder that ``export`` wrote, if it exists; keep anything else."""
    with suppress(OSError):
        if {item.name for item in folder.iterdir()} <= FILES:
            shutil.rmtree(folder)


def _report(
    path: Path, parts: StandaloneModel, agreement: Agreement, files: Mapping[str, int], execution: Execution
) -> None:
    """Report what was written and how it was checked, and warn that a store contains the client's data."""
    say = execution.reporter.say
    say(f"{parts.method} for client {parts.client}: {size(sum(files.values()))}; python {path / READER} {path} DATA")
    drawn = "" if parts.encoder is None else f" and {DRAWN_IMAGES} drawn images"
    say(
        f"compared with pfl on {counted(len(parts.x), 'sample')} of the client{drawn}: "
        f"{_name_predictions(parts)} differ by at most {agreement.largest_difference:.1g}"
    )
    if agreement.beyond:
        reason = "rounding" if parts.neighbours is None else "rounding, which exchanges neighbours at the same distance"
        say(f"WARNING: {agreement.beyond} of them differ by more than {ROUNDING_ERROR:g}, because of {reason}")
    if parts.neighbours is not None:
        say(f"WARNING: {description.describe_privacy(parts)}")
