"""Predict samples with an exported model: python reader.py FOLDER DATA.

DATA is a table (.csv, .tsv) or an array (.npy, .npz). The script needs NumPy and onnxruntime, and faiss-cpu if FOLDER
contains store.faiss. model.json describes the computation.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


def parse_cell(cell: str) -> float | str:
    """Return the content of a cell, as a number if it is one."""
    try:
        return float({"true": "1", "false": "0"}.get(cell.lower(), cell))
    except ValueError:
        return cell


def read_samples(path: Path, model: dict[str, Any]) -> Any:
    """Return the samples (n, ...) of a file; missing values are nan."""
    if path.suffix in (".npy", ".npz"):
        arrays: Any = np.load(path)
        return arrays if path.suffix == ".npy" else arrays["x" if "x" in arrays else arrays.files[0]]
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = list(filter(None, csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")))
    if len(lines) < 2:
        sys.exit(f"{path} has no samples below a row of column names")
    names, rows = [name.strip() for name in lines[0]], lines[1:]
    for number, row in enumerate(rows):
        if len(row) != len(names):
            sys.exit(f"{path}, sample {number} has {len(row)} cells, and the header {len(names)}")
    features: list[list[Any]] = []
    for column in model["columns"] or [{"name": name, "words": []} for name in names]:
        if names.count(column["name"]) != 1:
            sys.exit(f"{path} has {'two columns' if column['name'] in names else 'no column'} '{column['name']}'")
        cells = [row[names.index(column["name"])].strip() for row in rows]
        values = [None if cell in model["missing"] else parse_cell(cell) for cell in cells]
        words = [parse_cell(word) for word in column["words"]]
        for cell, value in zip(cells, values, strict=True):
            if value is not None and (value not in words if words else isinstance(value, str)):
                sys.exit(f"{path}, column '{column['name']}': '{cell}' is no {'known word' if words else 'number'}")
        features += [[None if v is None else float(v == word) for v in values] for word in words] or [values]
    return np.asarray(features, dtype=np.float64).T


def search_store(folder: Path, z: Any, k: int) -> tuple[Any, Any]:
    """Return the squared distances (n, k) from representations z (n, d) to the nearest stored samples, and classes."""
    store = np.load(folder / "store.npz")
    if "z" in store:
        stored = store["z"].astype(np.float64)
        squared, row = np.stack([((stored - query) ** 2).sum(axis=1) for query in z]), np.arange(len(stored))[None]
    else:
        import faiss

        index, size = faiss.read_index(str(folder / "store.faiss")), len(store["y"])
        squared, row = index.search(z, min(k, size) + index.ntotal - size)
        squared = np.where((row < 0) | (row >= size), np.inf, np.maximum(squared, 0).astype(np.float64))
    order = np.argsort(squared, axis=1, kind="stable")[:, :k]
    squared, row = (np.take_along_axis(np.broadcast_to(a, squared.shape), order, axis=1) for a in (squared, row))
    return squared, np.where(np.isfinite(squared), store["y"][row % len(store["y"])], -1)


def open_graph(file: Path) -> Any:
    """Return a session of onnxruntime for a graph."""
    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


def embed_images(folder: Path, encoder: dict[str, Any], x: Any) -> Any:
    """Return the features (n, d) of images (n, ...) by a frozen encoder, 64 images at a time."""
    prepare, network = (open_graph(folder / name) for name in encoder["files"])
    outputs, name = [encoder["output"]] if encoder["output"] else None, network.get_inputs()[0].name
    batches = (prepare.run(None, {"x": x[first : first + 64]})[0] for first in range(0, len(x), 64))
    features = np.concatenate([network.run(outputs, {name: batch})[0] for batch in batches])
    return features.reshape(len(x), -1).astype(np.float64)


def predict(folder: Path, model: dict[str, Any], x: Any) -> Any:
    """Return the probabilities (n, C) of samples (n, ...) as read from a file."""
    session = open_graph(folder / "network.onnx")
    if list(x.shape[1:]) != model["input"]["shape"]:
        sys.exit(f"each sample has the shape {list(x.shape[1:])}; the network takes {model['input']['shape']}")
    if not len(x):
        sys.exit("there are no samples")
    if not np.can_cast(x.dtype, model["input"]["dtype"], casting="same_kind"):
        sys.exit(f"the samples are {x.dtype} numbers; the network takes {model['input']['dtype']}")
    x = x.astype(model["input"]["dtype"])
    if "encoder" in model:
        x = embed_images(folder, model["encoder"], x)
    p, *z = session.run(None, {"x": x})
    if not np.isfinite(p).all():
        sys.exit(f"sample {np.argwhere(~np.isfinite(p))[0][0]} has a value that is missing or too large")
    if rule := model["neighbours"]:  # kNN-Per, Eq. 6 and 7
        squared, label = search_store(folder, z[0], rule["k"])
        distance = np.sqrt(squared) if rule["kernel"] == "euclidean" else squared / z[0].shape[1]
        first = np.where(np.isfinite(distance[:, :1]), distance[:, :1], 0)
        vote = np.exp((first - distance) / rule["sigma"])
        votes = np.stack([(vote * (label == c)).sum(axis=1) for c in range(p.shape[1])], axis=1)
        total = votes.sum(axis=1, keepdims=True)
        weight = rule["lambda"] * np.maximum(0, 1 - rule["decay"] * first) * (total > 0)
        p = weight * votes / np.where(total > 0, total, 1) + (1 - weight) * p
    return p


def main(folder: Path, path: Path) -> None:
    """Print the predictions for the samples of a file as CSV."""
    try:
        model = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        x = read_samples(path, model)
    except (OSError, EOFError, ValueError) as error:
        sys.exit(f"{folder} or {path} cannot be read: {error}")
    names, predictions = model["classes"], predict(folder, model, x).tolist()
    lines = csv.writer(sys.stdout, lineterminator="\n")
    lines.writerow(["sample", "class", "probability", *(f"p({name})" for name in names)])
    for number, p in enumerate(predictions):
        lines.writerow([number, names[p.index(max(p))], max(p), *p])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
