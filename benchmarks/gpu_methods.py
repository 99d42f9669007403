"""The parts of benchmarks/gpu.py that run whole methods: PFLlib's setting, and agreement of two devices."""

from __future__ import annotations

import csv
import gc
import importlib.util
import itertools
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import pflcli
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.core import methods, registry
from pflcli.core.errors import PflError
from pflcli.core.execution import Execution

HOUR, PUBLISHED_ROUNDS = 3600, 2000
PROBABILITY, ACCURACY = 0.02, 0.005
"""Tolerances of ``agree``: a GPU rounds float32 sums in another order, and steps of SGD multiply that."""
SHARED: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "local": {},
    "fedprox": {},
    "ditto": {"lam": 0.1},
    "apfl": {},
    "fedamp": {},
    "fedper": {},
    "fedrep": {"head_epochs": 1, "final_epochs": 0},
    "fedbabu": {},
    "lg-fedavg": {},
    "pfedme": {"lam": 15, "inner_lr": 0.01, "epochs": 0},
    "per-fedavg": {"alpha": 0.005},
    "scaffold": {},
    "fedproto": {},
    "fedrod": {},
    "fedala": {},
    "feddbe": {},
}
"""Methods that PFLlib has, too, with options. FedBN is FedAvg on a network without BatchNorm."""


def release(device: str) -> None:
    """Give back the memory of the part before, and count its peak anew."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def verdict(reached: bool, device: str) -> str:
    """Say whether a goal is reached."""
    if device == "cpu":
        return "of no meaning on a CPU; goal"
    return "goal reached" if reached else "goal missed"


def published(root: Path | None, count: int, device: str, only: set[str]) -> bool:
    """Play PFLlib's setting with every method that it has, too; without ``root`` on random images."""
    settings = {"model": "cnn-valid", "participation": 1.0, "batch_size": 10, "lr": 0.005, "rounds": count}
    settings["eval_every"] = count
    total, fewer = 0.0, count < PUBLISHED_ROUNDS
    print(f"{'method':12} {'seconds':>9} {'ms a round':>11} {f'{PUBLISHED_ROUNDS} rounds':>12}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        dealing, images = example(), folder / "random.npz"
        if root is not None:
            images = root / "fashion_mnist.npz"
        else:
            random_images(images)
            dealing.LEAST = 4
        dealing.main(images, folder / "dealt.npz")
        pflcli.import_data(folder / "dealt.npz", folder / "data", client="client", label="label", features="x")
        pflcli.partition(folder / "data", folder / "p", fractions=(0.75, 0, 0.25), seed=0)
        for name, options in SHARED.items():
            if only and name not in only:
                continue
            release(device)
            out, execution = folder / name, Execution(device=device)
            began = time.perf_counter()
            pflcli.personalize(name, folder / "p", out, options=options, settings=settings, execution=execution)
            took = time.perf_counter() - began
            each = round_seconds(out / "rounds.csv") or took / count
            every_round = took + (PUBLISHED_ROUNDS - count) * each if fewer else took
            total += every_round
            print(f"{name:12} {took:9.1f} {1e3 * each:11.1f} {every_round:10.1f} s", flush=True)
    note = f", extrapolated from {count} rounds, not measured" if fewer else ""
    print(f"together: {total:.0f} s{note} ({verdict(total <= HOUR, device)}: {HOUR})")
    return True


def random_images(path: Path) -> None:
    """Write an NPZ file like that of Fashion-MNIST, with few images."""
    draw = np.random.default_rng(0)
    arrays = {}
    for split, n in (("train", 500), ("test", 100)):
        arrays[f"x_{split}"] = draw.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        arrays[f"y_{split}"] = np.arange(n) % 10
    np.savez(path, **arrays)


def example() -> ModuleType:
    """Return examples/public_partition.py, which deals samples as PFLlib does."""
    path = Path(__file__).parents[1] / "examples" / "public_partition.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def round_seconds(table: Path) -> float | None:
    """Return the median seconds of a round but the first, None if there is none."""
    if not table.exists():
        return None
    with table.open(encoding="utf-8") as file:
        spent = [float(row["seconds"]) for row in csv.DictReader(file)]
    return statistics.median(spent[1:]) if len(spent) > 1 else None


def agree(device: str, only: set[str]) -> bool:
    """Let every method answer on both devices, and compare."""
    first, second = Execution(device="cpu", engine="loop"), Execution(device=device)
    if device == "cpu":
        second = replace(first, engine="stacked")
    print(f"cpu and {device}; tolerances: probability {PROBABILITY}, accuracy {ACCURACY}")
    settings, agreed = {"participation": 0.5, "rounds": 3, "lr": 0.05}, True
    names = [name for name in registry.names("methods") if not only or name in only]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        pflcli.partition("writers", folder / "p", seed=0)
        for model, name in itertools.product(("mlp", "cnn") if device == "cuda" else ("mlp",), names):
            method = methods.load(name)
            if not method.has_rounds or method.NEEDS:
                continue
            answers, label = [], f"{name}, {model}"
            try:
                for side, execution in (("first", first), ("second", second)):
                    out = folder / f"{label} {side}"
                    pflcli.personalize(
                        name, folder / "p", out, settings=settings | {"model": model}, execution=execution
                    )
                    answers.append(predictions.read(open_artifact(out), "test"))
            except PflError as error:
                print(f"  {label:20} does not run here: {error}", flush=True)
                continue
            except RuntimeError as error:  # the others are still worth measuring
                print(f"  {label:20} FAILED: {error}", flush=True)
                agreed = False
                continue
            agreed &= compared(label, *answers)
    return agreed


def compared(label: str, first: predictions.SplitPredictions, second: predictions.SplitPredictions) -> bool:
    """Print how far two sets of answers are apart, and return whether that is within the tolerances."""
    apart = max(float(np.abs(part - second.parts[key]).max()) for key, part in first.parts.items())
    accuracies = [float((next(iter(side.parts.values())).argmax(-1) == side.y).mean()) for side in (first, second)]
    agreed = apart <= PROBABILITY and abs(accuracies[0] - accuracies[1]) <= ACCURACY
    end = "agree" if agreed else "DO NOT AGREE"
    print(f"  {label:20} probability {apart:.1e}, accuracy {accuracies[0]:.4f}, {accuracies[1]:.4f}: {end}", flush=True)
    return agreed
