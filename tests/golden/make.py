"""Make one small artifact of every kind, to be kept: ``python tests/golden/make.py``.

It replaces the folder ``schema-N`` of the current schema, until the first release with it; later, run it only when a
schema changes, and never touch the older folders. With ``--fingerprints``, it stores only the fingerprints that the
artifacts have today, for a change that makes stored results out of date.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from pflcli.artifacts import kinds
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.compare import compare
from pflcli.commands.evaluate import evaluate
from pflcli.commands.extract import extract
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.commands.tune import tune
from pflcli.plugins.audits.audit import audit
from pflcli.plugins.claims.verify import verify
from pflcli.plugins.knn_tools.sweep import sweep
from pflcli.plugins.sites.federation import create_federation

CLAIMS = """
[experiments.claimed]
dataset = "writers"
partition = { clients = 4, part = "1/4" }
training = { model = "logistic", rounds = 1 }

[claims.learns]
says = "Local models are better than a guess"
on = ["claimed"]
method = "local"
direction = "higher"
value = 0.1
seeds = 2
"""


FINGERPRINTS = Path(__file__).parent / "fingerprints.json"


def make_chain(at: Path) -> None:
    """Write one artifact of every kind into a folder, from sources in a folder beside it."""
    sources = at.parent / "sources"
    sources.mkdir()
    draw = np.random.default_rng(0)
    y = np.tile(np.arange(10), 8)
    x = (draw.integers(0, 60, (80, 4, 4)) + 19 * y[:, None, None]).astype(np.uint8)
    np.savez(sources / "fashion_mnist.npz", x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])
    partition("fashion-mnist", at / "partition", scheme="dirichlet", clients=4, root=sources)
    rows = [f"{'ab'[i % 2]},{('no', 'yes')[i % 3 == 0]},{i / 8},{i % 5}" for i in range(12)]
    (sources / "table.csv").write_text("\n".join(["who,label,height,age", *rows]) + "\n")
    import_data(sources / "table.csv", at / "dataset", client="who", label="label", standardize=True)
    settings = {"model": "mlp", "rounds": 2, "participation": 0.5, "batch_size": 8}
    train_global(at / "partition", at / "backbone", settings=settings)
    extract(at / "backbone", at / "embeddings")
    build_datastore(at / "embeddings", at / "datastore", capacity=0.5)
    personalize("knn-per", at / "datastore", at / "predictions", options={"k": 3})
    evaluate([at / "predictions"], at / "evaluation")
    audit(at / "predictions", at / "audit")
    compare([at / "partition"], at, methods=["local"], settings=settings, references=False)
    personalize("fedavg", at / "partition", sources / "fedavg", settings=settings)
    create_federation(sources / "fedavg", at / "federation")
    partition(str(at / "dataset"), at / "hospitals")
    personalize("fedsgd", at / "hospitals", at / "attacked", settings={**settings, "model": "logistic"})
    audit(at / "attacked", at / "leakage", updates=True)
    sweep(at / "embeddings", at / "sweep", **{"capacity": "0,0.5,1", "k": "1,3", "weight": "0,1"})
    tune("local", at / "partition", at, search={"lr": "0.1,1"}, settings={**settings, "rounds": 1})
    (sources / "claims.toml").write_text(CLAIMS)
    verify(sources / "claims.toml", at)


def read_fingerprints(at: Path) -> dict[str, str]:
    """Return the fingerprints of all artifacts in a folder, by their paths.

    That of a federation is left out: its request has a hash of all files of pfl, by which sites compare theirs.
    """
    manifests = {path.parent: json.loads(path.read_text()) for path in sorted(at.rglob("manifest.json"))}
    return {
        folder.relative_to(at).as_posix(): manifest["fingerprint"]
        for folder, manifest in manifests.items()
        if manifest["kind"] != "federation"
    }


def main() -> None:
    """Write the chain of the current schema version, or the fingerprints of one, beside this file."""
    with tempfile.TemporaryDirectory() as folder:
        make_chain(made := Path(folder, "made"))
        if sys.argv[1:] == ["--fingerprints"]:
            FINGERPRINTS.write_text(json.dumps(read_fingerprints(made), indent=2) + "\n")
        else:
            at = Path(__file__).parent / f"schema-{max(kinds.schemas().values())}"
            shutil.rmtree(at, ignore_errors=True)
            shutil.copytree(made, at)


if __name__ == "__main__":
    main()
