"""Generate small odd federations and give each to a method, any scheme and any small settings.

    python tests/faults/federations.py [COUNT] [--seed N]

Clients of one sample, of one class, without test or validation samples or without any, constant and huge features, rows
that all are the same, clients that come later. Whatever it is: every command ends with exit code 0, and then every test
sample of every client has finite probabilities that sum to 1; or it refuses in words, with the code that
docs/commands.md gives.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import trying
from helpers import CLASSIFYING
from pflcli.artifacts.kinds import partition, predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.core import registry
from trying import Tally

METHODS = CLASSIFYING
FRACTIONS = ("0.6,0.2,0.2", "0.6,0.2,0.2", "0.5,0,0.5", "0.9,0.05,0.05", "0.1,0.1,0.8", "0.4,0.6,0")
ODD = ("one class each", "one class", "constant", "zeros", "same rows", "huge", "one huge value")
SCHEMES = ("natural", "iid", "dirichlet", "classes", "shards", "quantity", "clusters")
REFUSALS = {2, 3, 5}


@dataclass(frozen=True)
class World:
    """What is tried: data, and the words of the commands."""

    sizes: tuple[int, ...]
    classes: int
    features: int
    odd: tuple[str, ...]
    draw: int
    split: tuple[object, ...]
    method: str
    training: tuple[object, ...]

    def write(self, path: Path) -> None:
        draw = np.random.default_rng(self.draw)
        n = sum(self.sizes)
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
        y = draw.integers(0, self.classes, n)
        if "one class each" in self.odd:
            y = owner % self.classes
        if "one class" in self.odd:
            y[:] = 0
        x = draw.normal(size=(n, self.features)) + y[:, None]
        if "constant" in self.odd:
            x[:, 0] = 3.0
        if "zeros" in self.odd:
            x[:] = 0.0
        if "same rows" in self.odd:
            x[:] = x[:1]
        if "huge" in self.odd:
            x *= 1e18
        if "one huge value" in self.odd:
            x[0, 0] = 1e30
        np.savez(path, x=x.astype(np.float32), y=y, owner=owner)

    def commands(self) -> list[tuple[object, ...]]:
        """Return what is typed: the partition, what the method needs, and the method."""
        needs = registry.card("methods", self.method).facts["NEEDS"]
        chain = [("import", "data.npz", "-o", "data"), ("partition", "data", *self.split, "-o", "p")]
        if not needs:
            return [*chain, ("personalize", self.method, "p", *self.training, "-o", "out")]
        chain += [("train-global", "p", *self.training, "-o", "b"), ("extract", "b", "-o", "e")]
        chain += [("build-datastore", "e", "-o", "d")]
        return [*chain, ("personalize", self.method, "d", "-o", "out")]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    clients, scheme = draw(st.integers(1, 12)), draw(st.sampled_from(SCHEMES))
    split: list[object] = ["--scheme", scheme, "--fractions", draw(st.sampled_from(FRACTIONS))]
    if scheme != "natural":
        split += ["--clients", draw(st.integers(1, 12))]
    if scheme == "clusters":
        split += ["--set", f"groups={draw(st.integers(1, 3))}", "--set", "kind=labels"]
    if scheme in ("dirichlet", "clusters"):
        split += ["--set", f"alpha={draw(st.sampled_from((0.01, 0.3, 10)))}"]
    if draw(st.booleans()):
        split += ["--new-clients", draw(st.sampled_from((0.1, 0.5)))]
    training: list[object] = ["--threads", 1, "--model", draw(st.sampled_from(("mlp", "mlp", "logistic")))]
    training += ["--rounds", draw(st.integers(1, 3)), "--participation", draw(st.sampled_from((0.1, 0.5, 1)))]
    training += ["--batch-size", draw(st.sampled_from((1, 4, 32))), "--lr", draw(st.sampled_from((0.01, 0.1, 1, 10)))]
    if draw(st.booleans()):
        training += ["--report", "best"]
    return World(
        tuple(draw(st.lists(st.integers(1, 30), min_size=clients, max_size=clients))),
        draw(st.integers(2, 5)),
        draw(st.integers(1, 6)),
        draw(st.sampled_from((*[()] * 7, *((odd,) for odd in ODD), ODD[:3:2]))),
        draw(st.integers(0, 999)),
        tuple(split),
        draw(st.sampled_from(METHODS)),
        tuple(training),
    )


def give(world: World, folder: Path, tally: Tally) -> str:
    """Try one, and return how it was refused, if it was."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    world.write(folder / "data.npz")
    tally.tried += 1
    for words in world.commands():
        ended = trying.within(words, folder)
        where = f"{' '.join(map(str, words))}: {ended}; {world}"
        if ended.seconds > trying.PATIENCE:
            tally.fault("hangs", where)
        if ended.talks_nonsense():
            tally.fault("tracebacks", where)
            return "a fault"
        if ended.code:
            if ended.code not in REFUSALS or not re.search("^pfl: ", ended.err, re.MULTILINE):
                tally.fault("broken", where)
            error_lines = [line for line in ended.err.splitlines() if line.startswith("pfl: ")]
            return f"exit {ended.code}: " + re.sub(r"\d[\d.e+-]*", "N", error_lines[0] if error_lines else ended.err)
    answers = open_artifact(folder / "out")
    sizes = partition.read(open_artifact(folder / "p")).sizes
    for place, split in enumerate(("train", "validation", "test")):
        if predictions.has_split(answers, split):
            stored = predictions.read(answers, split)  # refuses what is no distribution
            if [*np.diff(stored.offsets)] != [*sizes[:, place]] or not np.isfinite(stored.parts["p"]).all():
                tally.fault("silent", f"clients have no or other answers on {split}: {world}")
    return ""


def generated(count: int, number: int, folder: Path) -> tuple[Tally, Counter[str]]:
    """Try ``count`` federations; return what went wrong, and how many were refused in which words."""
    tally, refused = Tally("federations"), Counter[str]()

    @seed(number)
    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
    )
    @given(worlds())
    def each(world: World) -> None:
        if tally.tried < count:
            refusal = give(world, folder, tally)
            if refusal:
                refused[refusal] += 1

    with contextlib.suppress(KeyboardInterrupt):  # and report what was tried until then
        each()
    return tally, refused


def main() -> None:
    args = trying.arguments(__doc__, 1000, "federations")
    trying.warm()
    with trying.place() as root:
        generated(2, args.seed, root / "it")  # modules and compiled code come, which takes seconds once
        tally, refused = generated(args.count, args.seed, root / "it")
    tally.notes.append(f"{refused.total()} refused in words")
    trying.heading()
    print(tally.row(), flush=True)
    for words, count in refused.most_common():
        print(f"{count:5d} {words}")
    trying.report([tally])


if __name__ == "__main__":
    main()
