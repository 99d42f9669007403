"""What tests of several packages share: making small artifacts, comparing folders, reading imports."""

from __future__ import annotations

import ast
import csv
import dataclasses
from functools import cache
from pathlib import Path

import numpy as np

import pflcli
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.make import Built, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import open_artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import methods, registry
from pflcli.core.datasets import SPLITS
from pflcli.core.engine import backend
from pflcli.core.execution import Execution

FORCE = Execution(force=True)
CLASSIFYING = [name for name in registry.names("methods") if {"classes", "any"} & {*methods.load(name).TASKS}]
"""The methods that learn classes."""

ONE_OF_EACH_KIND = ("local", "knn-per", "fedavg-plus", "fedavg", "scaffold", "ditto", "fedem", "pens")
"""Methods for tests of what does not depend on the method: without rounds, after them, with a global model, with
personal models, with several models, and among peers. The laws in pflcli/plugins/checks/laws run for every method."""

NAMES = ("p", "b", "e", "d", "knn", "fedavg", "st", "ev", "au", "sw", "ud", "nc")
"""Artifacts of the chain ``small`` in conftest.py."""


def files_of(*packages):
    """All files of packages of pfl, such as ``data/schemes``; a package without files is an error."""
    found = {package: sorted((ROOT / package).rglob("*.py")) for package in packages}
    assert all(found.values()), found
    return [file for files in found.values() for file in files]


def spec(kind="partition", inputs=(), code=None, **request):
    return ArtifactSpec(kind, {"alpha": 0.3, **request}, tuple(inputs), code or {})


def build(work):
    work.write("a.txt", b"content")
    return {"n": 1}, {"device": "cpu"}


def error_text(error):
    """An error as a person reads it."""
    return "\n".join([error.value.message, *error.value.fix])


def kill(work):
    """Leave the work as a killed process does: the lock goes, the folder stays."""
    work._lock.release()


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def rows(folder):
    """``rounds.csv`` without the seconds, which nobody can repeat."""
    with (folder / "rounds.csv").open(newline="") as file:
        return [{**row, "seconds": ""} for row in csv.DictReader(file)]


def same(actual, expected):
    for name in open_artifact(expected).manifest.files:
        if name == "rounds.csv":
            assert rows(actual) == rows(expected)
        else:
            assert (actual / name).read_bytes() == (expected / name).read_bytes(), name
    one, two = (open_artifact(path).manifest for path in (actual, expected))
    assert [*one.files] == [*two.files]
    assert (one.fingerprint, one.summary) == (two.fingerprint, two.summary)
    assert not actual.with_name(actual.name + ".partial").exists()


ROOT = Path(pflcli.__file__).parent


def imports(node):
    """The modules that a piece of code imports, lazily and for type checking too."""
    for item in ast.walk(node):
        if isinstance(item, ast.Import):
            yield from (alias.name for alias in item.names)
        elif isinstance(item, ast.ImportFrom):
            assert item.level == 0, "imports are absolute"
            inner = [f"{item.module}.{alias.name}" for alias in item.names]
            modules = [name for name in inner if is_module(name)]
            yield from modules if modules == inner else (item.module, *modules)


@cache
def is_module(name):
    path = ROOT.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def store_predictions(folder, request, stored, names=(), seconds_inputs=0.0, **summary):
    """Write predictions as an artifact of a run that sent nothing, with a codebook."""
    count = len(next(iter(stored.splits.values())).offsets) - 1
    facts = {"clients": count, "participants": count, "model_bytes": 1000, "reported": "last round"}
    with ArtifactWriter(folder, ArtifactSpec("predictions", request)).prepare() as work:
        predictions.write(work, stored)
        codebook.write(work, codebook.Codebook(clients=names))
        sent = {"bytes_up": 0, "bytes_down": 0, "bytes_peer": 0}
        work.commit({**facts, **sent, **summary}, {"seconds_inputs": seconds_inputs})
    return folder


def shuffle_test_labels(source, out):
    """Copy a partition with its test labels shuffled, under the manifest of the original but for the hash of files."""
    original = open_artifact(source)
    data = partitions.read(original)
    labels, bounds = data.y.copy(), data.offsets.reshape(-1)
    starts = range(SPLITS.index("test"), len(bounds) - 1, len(SPLITS))
    tested = np.concatenate([np.arange(bounds[start], bounds[start + 1]) for start in starts])
    labels[tested] = np.random.default_rng(0).permutation(labels[tested])
    assert (labels != data.y).sum() > 20

    def write(work):
        partitions.write(work, dataclasses.replace(data, y=labels), codebook.read(original))
        return Built(dict(original.manifest.summary), {})

    manifest = original.manifest
    make(out, ArtifactSpec("partition", manifest.request, manifest.inputs, manifest.code), Execution(), write)
    assert open_artifact(out).manifest.fingerprint == manifest.fingerprint
    assert partitions.read(open_artifact(out)).y.tobytes() != data.y.tobytes()
    return out


def chart_rows(node):
    """Return all rows of data in a Vega-Lite specification."""
    if isinstance(node, list):
        return [row for item in node for row in chart_rows(item)]
    if not isinstance(node, dict):
        return []
    own = node["data"]["values"] if "data" in node else []
    return own + [row for key, item in node.items() if key != "data" for row in chart_rows(item)]


def set_own_products(monkeypatch, own):
    """Set whether pfl computes matrix products itself; without effect where acceleration is off."""
    products = backend.part("products")
    if products is not None:
        monkeypatch.setattr(products, "COMPILED", own)
        monkeypatch.setattr(products, "COMPILED_CHAINS", own)


def cross_entropy_rule(network, params, batch):
    """Return the cross-entropy and its gradients: a gradient rule that trains as without one."""
    return network.gradient(params, batch)
