"""What each part of the plug-in ``accelerated`` brings: processor seconds with the part and without it, in turn.

    python benchmarks/acceleration.py [--model mlp] [--rounds 12] [--turns 3] [--only chain,pfedgp]
    python benchmarks/acceleration.py --model cnn --root FOLDER [--part 1/10]

Each turn runs ``personalize`` with the part and without it, on one thread, in this process, after three rounds that
load the code. The models are trained on writers (``mlp``) and on Fashion-MNIST dealt to 20 clients (``cnn``), with the
settings of ``comparison.py``. A line gives the least seconds of all turns. "whole" adds up the lines of a part.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pflcli
from pflcli.core.engine import backend, model_algebra, strategy
from pflcli.core.execution import Execution
from pflcli.plugins.accelerated import offers

SETTINGS: dict[str, dict[str, Any]] = {
    "mlp": {"participation": 0.4, "lr": 0.05, "eval_every": 5, "batch_size": 10},
    "cnn": {"participation": 1.0, "lr": 0.005, "eval_every": 10, "batch_size": 10},
}
GENERAL = ("fedavg", "scaffold", "ditto", "apfl", "fedrep", "fedala", "fedamp", "pfedme", "panm", "fedham")
"""Methods that stand for all: one model or two, steps of plain SGD or gradients of their own, mixed models."""


@dataclass(frozen=True)
class Part:
    """A part of the package: how to turn it off, and methods that it could serve."""

    off: Callable[[], Any]
    methods: Sequence[str]
    models: Sequence[str] = ("mlp", "cnn")


@contextmanager
def absent(*names: str) -> Iterator[None]:
    """Let ``backend.part`` find no module of these names."""
    found = backend.part

    def part(name: str) -> Any | None:
        return None if name in names else found(name)

    with patch.object(backend, "part", part):
        yield


@contextmanager
def own_products_of_models_absent() -> Iterator[None]:
    """Let PyTorch mix whole models and take their inner products."""

    class Backend:
        part = staticmethod(lambda name: None)

    with patch.object(model_algebra, "backend", Backend):
        yield


@contextmanager
def steps_in_place_absent() -> Iterator[None]:
    """Let chains take their steps one by one, not in a loop over all steps of a client."""
    choose = strategy.choose

    def chosen(*args: Any) -> Any:
        return replace(choose(*args), train=None)

    with patch.object(strategy, "choose", chosen):
        yield


PARTS = {
    "all": Part(lambda: patch.dict("os.environ", {backend.SWITCH: "0"}), (*GENERAL, "fedproto", "fedrod", "feddbe")),
    "chain": Part(lambda: patch.object(offers, "pays_to_compile", lambda _: False), GENERAL, ("mlp",)),
    "steps in place": Part(steps_in_place_absent, GENERAL, ("mlp",)),
    "program": Part(lambda: absent("graph"), GENERAL, ("cnn",)),
    "model products": Part(own_products_of_models_absent, ("fedamp", "panm", "fedala", "fedham", "fedattn")),
    "pfedgp": Part(lambda: absent("pfedgp"), ("pfedgp",)),
}


def main() -> None:
    """Measure each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SETTINGS, default="mlp")
    parser.add_argument("--root", help="folder with the files of Fashion-MNIST, for cnn")
    parser.add_argument("--part", default="1/10", help="part of Fashion-MNIST")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default="", help="names of parts, separated by commas")
    parser.add_argument("--methods", default="", help="of their methods, only these")
    args = parser.parse_args()
    only = set(filter(None, args.only.split(",")))
    settings = {"model": args.model, **SETTINGS[args.model]}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if args.model == "mlp":
            pflcli.partition("writers", scratch / "p", scheme="natural", seed=0)
        else:
            deal: dict[str, Any] = {"options": {"alpha": 0.1}, "clients": 20, "min_samples": 10}
            number, parts = args.part.split("/")
            deal |= {"scheme": "dirichlet", "part": (int(number), int(parts)), "root": args.root, "seed": 0}
            pflcli.partition("fashion-mnist", scratch / "p", **deal)
        print(f"{args.model}, {args.rounds} rounds, one thread: processor seconds of personalize", flush=True)
        print(f"{'part':16} {'method':10} {'with':>7} {'without':>8} {'ratio':>6}")
        for name, part in PARTS.items():
            if args.model in part.models and (not only or name in only):
                report(name, part, scratch, settings, args)


def report(name: str, part: Part, scratch: Path, settings: dict[str, Any], args: argparse.Namespace) -> None:
    """Print the seconds of a part's methods."""
    sums = [0.0, 0.0]
    chosen = set(filter(None, args.methods.split(",")))
    for method in (name for name in part.methods if not chosen or name in chosen):
        seconds: list[list[float]] = [[], []]
        for turn in range(-1, args.turns):
            own = {**settings, "rounds": 3 if turn < 0 else args.rounds}
            seconds[0].append(spent(method, scratch, own))
            with part.off():
                seconds[1].append(spent(method, scratch, own))
        least = [min(values[1:]) for values in seconds]
        sums = [total + value for total, value in zip(sums, least, strict=True)]
        print(f"{name:16} {method:10} {least[0]:7.2f} {least[1]:8.2f} {least[1] / least[0]:6.2f}", flush=True)
    if len(part.methods) > 1:
        print(f"{name:16} {'whole':10} {sums[0]:7.2f} {sums[1]:8.2f} {sums[1] / sums[0]:6.2f}", flush=True)


def spent(method: str, scratch: Path, settings: dict[str, Any]) -> float:
    """Return the processor seconds of a run."""
    with tempfile.TemporaryDirectory(dir=scratch) as out:
        began = time.process_time()
        pflcli.personalize(
            method, scratch / "p", Path(out, "m"), settings=settings, seed=0, execution=Execution(threads=1)
        )
        return time.process_time() - began


if __name__ == "__main__":
    main()
