"""``model.json``: everything besides the network that a reader needs to predict like the client."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from pflcli.artifacts.codebook import Dialect
from pflcli.core.wording import counted
from pflcli.data.formats.cells import list_missing
from pflcli.plugins.export import onnx_network
from pflcli.plugins.export.standalone_model import StandaloneModel
from pflcli.workflow.prediction.encoders import FrozenEncoder

FORMAT = 1
"""Version of the folder's format; increased when a reader of the previous one would predict wrongly."""
NAME, NETWORK, STORE, INDEX, READER = "model.json", "network.onnx", "store.npz", "store.faiss", "reader.py"
"""The files of the folder; INDEX exists only if the store is compressed."""
IMAGES, ENCODER = "images.onnx", "encoder.onnx"
"""With an encoder: the graph that resizes and normalizes images, and the one that computes their features."""


@dataclass(frozen=True)
class Agreement:
    """How far predictions of the folder and of pfl differ; for ``beyond`` of the ``samples`` by more than 1e-5.

    Those of numbers are divided by the task's ``size``. The samples are the client's test samples and, if the folder
    has an encoder, drawn images.
    """

    samples: int
    beyond: int
    largest_difference: float


def describe(model: StandaloneModel, version: str, agreement: Agreement | None = None) -> dict[str, Any]:
    """Return the fields of ``model.json``; docs/commands/export.md explains them."""
    prepared, nearby = model.preprocessing, model.neighbours
    is_images = prepared.is_images or model.encoder is not None
    shape = onnx_network.input_shape(prepared) if model.encoder is None else model.encoder.facts.shape
    return {
        "format": FORMAT,
        "pfl": version,
        "method": model.method,
        "client": model.client,
        "classes": list(model.classes),
        **({} if model.classes else describe_numbers(model)),
        "contains_client_data": nearby is not None,
        "privacy": describe_privacy(model),
        "input": {
            "dtype": onnx_network.input_dtype(prepared) if model.encoder is None else "uint8",
            "shape": list(shape),
            "layout": "channels-last" if is_images and len(shape) == 3 else None,
            "resize": prepared.decoding.resize,
        },
        **({} if model.encoder is None else {"encoder": describe_encoder(model.encoder)}),
        "columns": [
            {"name": column.name, "words": list(column.words), "gaps": column.gaps, "size": column.size}
            for column in prepared.columns
        ],
        "missing": list(list_missing(prepared.dialect)),
        "table": describe_table(prepared.dialect),
        "median": list(prepared.median),
        "mean": [] if prepared.scale is None else prepared.scale.mean.tolist(),
        "sd": [] if prepared.scale is None else prepared.scale.sd.tolist(),
        "networks": list(model.shares),
        "neighbours": nearby
        and {
            "samples": len(nearby.store.y),
            "k": nearby.k,
            "lambda": nearby.weight,
            "sigma": nearby.sigma,
            "decay": nearby.decay,
            "kernel": nearby.kernel,
        },
        "rule": describe_rule(model),
        "agreement": agreement and asdict(agreement),
    }


def describe_numbers(model: StandaloneModel) -> dict[str, Any]:
    """Return the fields of ``model.json`` on predictions that are no probabilities of classes."""
    levels = getattr(model.task, "quantiles", ())
    return {
        "task": model.task.kind,
        "predictions": list(model.task.tabulate(model.p)),
        "unit": model.task.unit,
        **({"quantiles": list(levels)} if levels else {}),
    }


def describe_table(dialect: Dialect) -> dict[str, Any]:
    """Return the fields of ``model.json`` on how tables are written."""
    return {
        "delimiter": dialect.delimiter,
        "decimal": dialect.decimal or ".",
        "thousands": dialect.thousands or None,
        "strip": list(dialect.strip or ()),
        "header": not dialect.names if dialect.header is None else dialect.header,
        "names": list(dialect.names or ()),
        "skip_rows": dialect.skip_rows or 0,
        "comment": dialect.comment or None,
        "fold_case": bool(dialect.fold_case),
    }


def describe_encoder(encoder: FrozenEncoder) -> dict[str, Any]:
    """Return the fields of ``model.json`` on the encoder: its facts, and its graphs in the order in which they run."""
    return {**asdict(encoder.facts), "files": [IMAGES, ENCODER]}


def describe_privacy(model: StandaloneModel) -> str:
    """Return a sentence on the client's data that the folder contains."""
    if model.neighbours is None:
        return "The folder contains no sample of the client; its network may have learned from them."
    store = model.neighbours.store
    contain = f"{STORE} contains" if store.index is None else f"{STORE} and {INDEX} contain"
    samples = counted(len(store.y), "training sample")
    return (
        f"{contain} the client's data: label and representation of {samples}, from which the samples may be "
        "reconstructed. Keep the folder where the client's data may be."
    )


def describe_rule(model: StandaloneModel) -> str:
    """Return the formulas by which predictions are computed."""
    formula = model.task.formula
    p = formula if len(model.shares) == 1 else f"sum of networks[m] * {formula} of network m"
    lines = f"network.onnx: {', then '.join([*_steps(model), f'p = {p}'])}."
    if model.neighbours is None:
        return lines
    distance = "|z - z_i|" if model.neighbours.kernel == "euclidean" else "|z - z_i|^2 / dimension of z"
    knn = (
        "knn, for each class: the sum of exp(-d_i / sigma) over those of the k nearest stored samples i that have this "
        "class, divided by the sum over all k"
    )
    if not model.classes:
        what = "quantiles of the labels" if getattr(model.task, "quantiles", ()) else "mean label"
        knn = f"knn: the {what} of the k nearest stored samples i, weighted by exp(-d_i / sigma)"
    return (
        f"{lines} Its second output is the representation z. The answer is w * knn + (1 - w) * p. {knn}; "
        f"d_i = {distance}; w = lambda * max(0, 1 - decay * d of the nearest)."
    )


def _steps(model: StandaloneModel) -> list[str]:
    """Return the preprocessing steps that are part of the graph, in words."""
    prepared = model.preprocessing
    if prepared.is_images:
        return ["x / 255", *(["(x - mean) / deviation of each channel"] if model.pixels else [])]
    steps = [] if model.encoder is None else ["the graphs of encoder.files, in this order, turn images into features x"]
    if prepared.median:
        marks = [column.name for column in prepared.columns if column.gaps]
        steps += ["a feature of 0 and 1 behind each column with gaps says where x is nan"] if marks else []
        steps += ["median where x is nan"]
    return steps + ([] if prepared.scale is None else ["(x - mean) / sd, or 0 where sd is 0"])


def encode(fields: dict[str, Any]) -> bytes:
    """Return ``model.json`` as bytes."""
    return (json.dumps(fields, indent=1, ensure_ascii=False) + "\n").encode()
