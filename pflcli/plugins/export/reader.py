"""Predict samples with an exported model: python reader.py FOLDER DATA.

DATA is a table (.csv, .tsv), written as the one of the import, or an array (.npy, .npz). The script needs NumPy and
onnxruntime, and faiss-cpu if FOLDER contains store.faiss. model.json describes the computation.
"""

from __future__ import annotations

import csv
import json
import re
import sys
import unicodedata
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

SPACES = " \u00a0\u2007\u2009\u202f"
INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad"))
DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"), "-")
HYPHENS = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"), "-")
APOSTROPHES = dict.fromkeys(map(ord, "`\u00b4\u02b9\u02bc\u2018\u2019\u201b\u2032\uff07"), "'")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf", re.ASCII)


def spell_number(cell: str, table: dict[str, Any], strip: list[str]) -> str | None:
    """Return the number in a cell of a table, read as pfl reads it, in Python's spelling; None for anything else."""
    cell = cell.translate(INVISIBLE).strip()
    for mark in strip:
        cell = cell.removeprefix(mark).removesuffix(mark).strip()
    cell = cell.translate(DASHES)
    cell = "".join(str(int(c)) if not c.isascii() and c.isdecimal() else c for c in cell)
    decimal, thousands = table["decimal"], table["thousands"]
    if thousands:
        mark = f"[{SPACES}]" if thousands == "space" else re.escape(thousands)
        grouped = re.fullmatch(rf"([+-]?)[{SPACES}]*(\d{{1,3}}(?:{mark}\d{{3}})+)((?:{re.escape(decimal)}.*)?)", cell)
        cell = grouped[1] + re.sub(mark, "", grouped[2]) + grouped[3] if grouped else cell
    if decimal != "." and "." in cell:
        cell = "" if decimal in cell or re.fullmatch(r"[+-]?[1-9]\d{0,2}(\.\d{3})+", cell) else cell
    elif decimal != ".":
        cell = cell.replace(decimal, ".", 1)
    return cell if NUMBER.fullmatch(cell) else None


def parse_numbers(cells: list[str], table: dict[str, Any], missing: list[str]) -> list[float | None]:
    """Return the numbers of a column, nan if missing and None if a cell is none; True is 1, beside numbers alone."""
    marks = [float(word) for word in missing if NUMBER.fullmatch(word)]
    words = ["nan" if cell in missing else spell_number(cell, table, table["strip"]) for cell in cells]
    truths = [{"true": "1", "false": "0"}.get(cell.lower()) for cell in cells]
    if all(word is not None or truth is not None for word, truth in zip(words, truths, strict=True)):
        words = [truth if word is None else word for word, truth in zip(words, truths, strict=True)]
    numbers = [None if word is None else float(word) for word in words]
    return [float("nan") if number in marks else number for number in numbers]


def find_words(cells: list[str], words: list[str], table: dict[str, Any], missing: list[str]) -> list[float | None]:
    """Return the positions of the cells of a column among ``words``, nan if missing and None for an unknown word."""
    names = [shorten(word, table) for word in words]
    marks = [*missing, *(shorten(mark, table) for mark in missing)]
    found: list[float | None] = []
    for cell in cells:
        name = shorten(cell, table)
        if cell in missing or name in marks:
            found.append(float("nan"))
            continue
        known = [name] if name in names or not table["fold_case"] else [n for n in names if fold(n) == fold(name)]
        found.append(names.index(known[0]) if known and known[0] in names else None)
    return found


def shorten(word: str, table: dict[str, Any]) -> str:
    """Return a number as Python spells it, without a point if it is whole, as 7 for 7.0; other words as they are."""
    number = spell_number(word, table, [])
    if number is None or "." not in number:
        return word if number is None else number
    return str(int(Decimal(number))) if float(number).is_integer() else number


def fold(word: str) -> str:
    """Return what all spellings of a word have in common: no case, spaces or typography."""
    word = word.translate(INVISIBLE).translate(APOSTROPHES).translate(HYPHENS)
    word = unicodedata.normalize("NFKC", unicodedata.normalize("NFC", word))
    return "".join(unicodedata.normalize("NFC", word.casefold()).split())


def cut_comment(line: str, mark: str, quoted: bool) -> tuple[str, bool]:
    """Return a line without its comment, and whether a quoted cell goes on after it."""
    at = -1
    while (at := line.find(mark, at + 1)) >= 0:
        if not quoted ^ (line.count('"', 0, at) % 2 == 1):
            return line[:at].rstrip() + "\n", False
    return line, quoted ^ (line.count('"') % 2 == 1)


def read_table(path: Path, table: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns, and the cells of each sample."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = list(file)
    declared = re.fullmatch(r"sep=(.)\r?\n", lines[0]) if lines else None
    lines = lines[max(table["skip_rows"], int(declared is not None)) :]
    if table["comment"]:
        quoted = False
        for number, line in enumerate(lines):
            lines[number], quoted = cut_comment(line, table["comment"], quoted)
    delimiter = table["delimiter"] or (declared[1] if declared else "\t" if path.suffix in (".tsv", ".tab") else ",")
    if delimiter == "whitespace":
        lines = [" ".join(re.findall(r'"(?:[^"]|"")*"|[^ \t\r\n]+', line)) + "\n" for line in lines]
    delimiter = {"tab": "\t", "\\t": "\t", "whitespace": " "}.get(delimiter, delimiter)
    rows = [row for row in csv.reader(lines, delimiter=delimiter) if row and not (len(row) == 1 and row[0].isspace())]
    names = rows.pop(0) if rows and table["header"] else []
    if not rows:
        sys.exit(f"{path} has no samples below a row of column names")
    names = table["names"] or [name.strip() for name in names] or [str(at) for at in range(len(rows[0]))]
    for number, row in enumerate(rows):
        if len(row) != len(names):
            expected = f"{len(names)} columns, separated by {delimiter!r}"
            sys.exit(f"{path}, sample {number} has {len(row)} cells, and the table {expected}")
    return names, rows


def read_samples(path: Path, model: dict[str, Any]) -> Any:
    """Return the samples (n, ...) of a file; missing values are nan."""
    if path.suffix in (".npy", ".npz"):
        arrays: Any = np.load(path)
        return arrays if path.suffix == ".npy" else arrays["x" if "x" in arrays else arrays.files[0]]
    table = model["table"]
    names, rows = read_table(path, table)
    features: list[list[Any]] = []
    for column in model["columns"] or [{"name": name, "words": []} for name in names]:
        if names.count(column["name"]) != 1:
            sys.exit(f"{path} has {'two columns' if column['name'] in names else 'no column'} '{column['name']}'")
        if column.get("size"):
            sys.exit(f"{path}: column '{column['name']}' has lists of {column['size']} numbers: use an array (.npy)")
        cells, words = [row[names.index(column["name"])].strip() for row in rows], column["words"]
        values: list[float | None]
        if words:
            values = find_words(cells, words, table, model["missing"])
        else:
            values = parse_numbers(cells, table, model["missing"])
        if None in values:
            cell = cells[values.index(None)]
            sys.exit(f"{path}, column '{column['name']}': '{cell}' is no {'known word' if words else 'number'}")
        features += [[float(v == at) if v == v else v for v in values] for at in range(len(words))] or [values]  # noqa: PLR0124
    return np.asarray(features, dtype=np.float64).T


def search_store(folder: Path, z: Any, k: int) -> tuple[Any, Any]:
    """Return the squared distances (n, k) from representations z (n, d) to the nearest stored samples, and labels."""
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
    """Return the probabilities (n, C), or predicted numbers, of samples (n, ...) as read from a file."""
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
        if model["classes"]:
            votes = np.stack([(vote * (label == c)).sum(axis=1) for c in range(p.shape[1])], axis=1)
            total = votes.sum(axis=1, keepdims=True)
        elif "quantiles" in model:
            order = np.argsort(np.where(np.isfinite(squared), label, np.inf), axis=1, kind="stable")
            label, reached = np.take_along_axis(label, order, 1), np.take_along_axis(vote, order, 1).cumsum(axis=1)
            total = reached[:, -1:]
            place = (reached[:, :, None] < np.asarray(model["quantiles"]) * total[:, :, None]).sum(axis=1)
            votes = np.take_along_axis(label, np.minimum(place, label.shape[1] - 1), 1) * total
        else:
            votes, total = (vote * label).sum(axis=1, keepdims=True), vote.sum(axis=1, keepdims=True)
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
    heading = ["class", "probability", *(f"p({name})" for name in names)] if names else model["predictions"]
    lines.writerow(["sample", *heading])
    for number, p in enumerate(predictions):
        lines.writerow([number, *([names[p.index(max(p))], max(p)] if names else []), *p])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
