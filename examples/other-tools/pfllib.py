"""Train a method of PFLlib on a partition of pfl, and write its probabilities for `pfl import-predictions`.

    python examples/other-tools/pfllib.py CHECKOUT PARTITION OUT.csv -algo Ditto -m DNN -gr 20 -lr 0.05

``CHECKOUT`` is a copy of https://github.com/TsingZ0/PFLlib, ``PARTITION`` one of grey images of 28 x 28 pixels, and
what follows are options of PFLlib's ``main.py``. A client predicts with its personal model if it keeps one
(``model_per``), else with the model that the server sends after the last round. For methods that predict in another
way, such as by prototypes, change ``predict``. Needs what PFLlib imports, and h5py.
"""

from __future__ import annotations

import csv
import importlib
import os
import runpy
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

SPLITS = np.array(["train", "validation", "test"])


def read(partition: Path) -> dict[str, Any]:
    """Return the arrays of a partition, with the client and the split of each sample."""
    with h5py.File(partition / "samples.h5") as file:
        arrays = {name: file[name][...] for name in ("x", "y", "sample")}
        block = np.repeat(np.arange(len(file["offsets"]) - 1), np.diff(file["offsets"]))
        names, classes = file["names"].asstr()[...], int(file.attrs["classes"])
    arrays["x"] = arrays["x"].astype(np.float32)[:, None] / 255
    return {**arrays, "client": block // 3, "split": SPLITS[block % 3], "names": names, "classes": classes}


def write_dataset(folder: Path, samples: dict[str, Any]) -> None:
    """Write the samples as PFLlib reads them; it trains on training samples, and tests on validation samples."""
    for split, name in (("train", "train"), ("validation", "test")):
        (folder / name).mkdir(parents=True)
        for client in range(len(samples["names"])):
            rows = (samples["client"] == client) & (samples["split"] == split)
            data = {"x": samples["x"][rows], "y": samples["y"][rows]}
            np.savez(folder / name / f"{client}.npz", data=np.array(data, dtype=object))


def predict(client: Any, x: torch.Tensor) -> torch.Tensor:
    """Return a client's probabilities (n, classes)."""
    net = getattr(client, "model_per", client.model).eval()
    with torch.no_grad():
        return torch.softmax(net(x.to(client.device)), dim=1).double().cpu()


def main() -> None:
    """Train, and write the file."""
    checkout, partition, out = (Path(word).resolve() for word in sys.argv[1:4])
    samples = read(partition)
    sys.path.insert(0, str(checkout / "system"))
    try:
        importlib.import_module("cvxpy")
    except ImportError:  # one method of PFLlib needs it, and all import it
        sys.modules["cvxpy"] = types.ModuleType("cvxpy")
    sys.argv = ["main.py", "-data", "MNIST-pfl", "-dev", "cpu", *sys.argv[4:]]
    sys.argv += ["-nc", str(len(samples["names"])), "-ncl", str(samples["classes"])]
    server_class = importlib.import_module("flcore.servers.serverbase").Server

    def write(server: Any) -> None:
        if server.algorithm != "Local":
            server.send_models()
        with out.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["client", "sample", "split", *(f"p({label})" for label in range(samples["classes"]))])
            for client in server.clients:
                for split in SPLITS[1:]:
                    rows = np.flatnonzero((samples["client"] == client.id) & (samples["split"] == split))
                    p = predict(client, torch.from_numpy(samples["x"][rows]))
                    for row, probabilities in zip(rows, p.tolist(), strict=True):
                        table.writerow([samples["names"][client.id], samples["sample"][row], split, *probabilities])
        raise SystemExit  # what follows reads PFLlib's results

    with tempfile.TemporaryDirectory() as folder:
        write_dataset(Path(folder, "dataset", "MNIST-pfl"), samples)
        Path(folder, "system").mkdir()
        os.chdir(Path(folder, "system"))
        server_class.save_results = write  # PFLlib calls it after the last round
        runpy.run_path(str(checkout / "system" / "main.py"), run_name="__main__")


if __name__ == "__main__":
    main()
