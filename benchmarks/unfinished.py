"""How often the warning that a run stopped too early is right, on curves other than those it was chosen on.

    python benchmarks/unfinished.py FOLDER --root DATA

Trains methods to the end on eight federations, in FOLDER, where finished runs are reused. Each curve of validation
accuracy is cut at a tenth, a fifth, three tenths and half of its rounds. A cut is half-trained if twice as many rounds
gain a point or more, and trained if they gain less than 0.3 points; others are not counted. What is gained is the
difference of means over the measurements around both rounds, over all seeds. Printed is how many half-trained and
trained cuts are named by the rule of ``pfl compare``, and by its predecessor, a line through the last third of the
measurements; and, of the cuts that the rule names, the median share of the gain per doubling that twice as many rounds
then gained.

The model is logistic regression, or the two hidden layers of ``mlp``. The rule was chosen on other federations:
writers with learning rate 0.05, Fashion-MNIST by Dirichlet draws, EMNIST with five samples a client, hospitals by
logistic regression, air quality, and MNIST with relabelled classes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pflcli
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.core import scores
from pflcli.evaluation import convergence, round_costs

Curve = NDArray[np.float64]
"""Measured rounds, and the accuracies there, (2, n)."""
CUTS = (0.1, 0.2, 0.3, 0.5)
HALF_TRAINED, TRAINED = 0.01, 0.003
TWO = ("fedavg", "ditto")


@dataclass(frozen=True)
class Case:
    """A federation, and how its methods are trained."""

    name: str
    dataset: str
    rounds: int
    scheme: str = "natural"
    options: dict[str, Any] = field(default_factory=dict)
    part: int | None = None
    """one of this many random parts of the samples"""
    clients: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    methods: tuple[str, ...] = TWO
    seeds: tuple[int, ...] = (0,)


MLP, FEW = {"model": "mlp"}, {"model": "mlp", "participation": 0.4}
CASES = (
    Case("EMNIST, Dirichlet 0.3", "emnist", 200, "dirichlet", {"alpha": 0.3}, 10, 20, {}, (*TWO, "apfl"), (0, 1)),
    Case("Fashion-MNIST, iid", "fashion-mnist", 200, "iid", part=25, clients=20),
    Case("hospitals, mlp", "heart-disease", 100, settings={**MLP, "lr": 0.02}, methods=(*TWO, "fedrep", "apfl")),
    Case("MNIST, rotated", "mnist", 200, "clusters", {"groups": 4, "kind": "rotation"}, 20, 20),
    Case("writers, mlp, rate 0.01", "writers", 200, settings={**FEW, "lr": 0.01}, methods=("fedavg",)),
    Case("writers, mlp, rate 0.2", "writers", 200, settings={**FEW, "lr": 0.2}, methods=("fedavg",)),
    Case("V-MNIST", "v-mnist", 200, part=20),
    Case("MNIST, two classes, mlp", "mnist", 150, "shards", {"n": 2}, 40, 20, MLP, ("fedavg", "fedrep")),
)


def train(case: Case, folder: Path, root: Path) -> list[list[tuple[Curve, int]]]:
    """Return the curves of each method, one per seed, with the number of validation samples."""
    where = folder / case.name.replace(" ", "-").replace(",", "")
    parts = []
    for seed in case.seeds:
        parts.append(where / f"partition-{seed}")
        given: dict[str, Any] = (
            {} if case.dataset == "writers" else {"root": root / "heart" if "heart" in case.dataset else root}
        )
        given |= {"part": (1, case.part)} if case.part else {}
        pflcli.partition(
            case.dataset, parts[-1], scheme=case.scheme, options=case.options, seed=seed, clients=case.clients, **given
        )
    settings = {
        **{"model": "logistic", "rounds": case.rounds, "participation": 1.0, "batch_size": 10, "lr": 0.05},
        **{"eval_every": max(case.rounds // 100, 1), **case.settings},
    }
    options = {"ditto": {"lam": 1.0}} if "ditto" in case.methods else None  # one model per client, instead of a grid
    pflcli.compare(parts, where / "runs", methods=case.methods, settings=settings, options=options, references=False)
    curves = []
    for method in case.methods:
        artifacts = [open_artifact(where / "runs" / f"seed-{seed}" / method) for seed in case.seeds]
        curves.append(
            [
                (np.array(round_costs.read_progress(each)[0]), predictions.read_shape(each, "validation")[0])
                for each in artifacts
            ]
        )
    return curves


def warns(curve: Curve, samples: int) -> bool:
    """Return whether the rule names this curve."""
    return convergence.measure_rise([(curve[0].tolist(), curve[1].tolist())], samples) is not None


def warned_before(curve: Curve, samples: int) -> bool:
    """Return whether the predecessor would: a rise of a point and two standard errors over the last third."""
    count = max(4, math.ceil(curve.shape[1] / 3))
    t, a = curve[0, -count:] - curve[0, -count:].mean(), curve[1, -count:]
    slope = t @ a / (t @ t)
    error = np.sqrt(((a - a.mean() - slope * t) ** 2).sum() / (count - 2) / (t @ t))
    return bool(slope * (t[-1] - t[0]) >= 0.01 and slope > 2 * error)


RULES: dict[str, Callable[[Curve, int], bool]] = {"rule": warns, "predecessor": warned_before}


def accuracy_at(curve: Curve, t: float) -> float:
    """Return the mean accuracy around round ``t``, an eighth of it to both sides, or of three measurements."""
    near = abs(curve[0] - t) <= t / 8
    if near.sum() < 3:
        near = np.isin(np.arange(curve.shape[1]), np.argsort(abs(curve[0] - t))[:3])
    return float(curve[1, near].mean())


@dataclass(frozen=True)
class Cut:
    """A curve that ends early: what twice as many rounds ``gained``, what the line ``said``, and who ``named`` it."""

    gained: float
    said: float
    named: dict[str, bool]

    @property
    def state(self) -> str:
        """Whether it is half-trained or trained; empty between the two."""
        return "half-trained" if self.gained >= HALF_TRAINED else "trained" if self.gained < TRAINED else ""


def cut_short(runs: Sequence[tuple[Curve, int]]) -> Iterator[Cut]:
    """Yield the curves of a method's ``runs``, one per seed, cut at each of CUTS."""
    mean = np.mean([curve for curve, _ in runs], axis=0)
    for share in CUTS:
        t = share * mean[0, -1]
        gained = accuracy_at(mean, 2 * t) - accuracy_at(mean, t)
        for curve, samples in runs:
            cut = curve[:, curve[0] <= t]
            fitted = scores.gain_per_doubling(*cut, 4)
            if fitted is not None:
                yield Cut(gained, fitted[0], {name: rule(cut, samples) for name, rule in RULES.items()})


def describe(name: str, cuts: Sequence[Cut]) -> str:
    """Return a row: how many half-trained and trained cuts each rule names, and what came of what the line said."""
    cells = []
    for state in ("half-trained", "trained"):
        judged = [cut for cut in cuts if cut.state == state]
        cells += [f"{sum(cut.named[rule] for cut in judged)} of {len(judged)}" for rule in RULES]
    shares = [cut.gained / cut.said for cut in cuts if cut.named["rule"]]
    return f"| {name} | {' | '.join(cells)} | {f'{np.median(shares):.2f}' if shares else ''} |"


def main() -> None:
    """Print a row for each federation, and one for all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--root", type=Path, required=True)
    asked = parser.parse_args()
    titles = ("half-trained: {}", "trained: {}")
    heading = [title.format(rule) for title in titles for rule in RULES]
    print(f"| federation | {' | '.join(heading)} | gained of what was said |")
    print(f"|---|{'---:|' * (len(heading) + 1)}")
    together: list[Cut] = []
    for case in CASES:
        cuts = [cut for runs in train(case, asked.folder, asked.root) for cut in cut_short(runs)]
        together += cuts
        print(describe(case.name, cuts), flush=True)
    print(describe("together", together))


if __name__ == "__main__":
    main()
