"""Nearest neighbours of many clients: pfl, one FAISS call at a time, and scikit-learn, side by side.

    python benchmarks/knn.py [--clients 200 --train 250 --test 50 --dimension 1280 --k 10] [--repeats 5]

Subjects take turns within each repeat; prints median milliseconds, wall clock and CPU, and ratios. ``build`` is vectors
to indexes on disk, ``search`` indexes on disk to neighbours, ``score`` neighbours to accuracy over 7 values of lambda,
and ``grid`` accuracy over 101 capacities x 101 values of lambda, against building FAISS's indexes for each capacity.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line sets it

import torch

from pflcli.knn import grid as sweep
from pflcli.knn.exact import nearest
from pflcli.knn.flat_format import flat_pieces
from pflcli.knn.stores import Stores, votes


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"clients": 200, "train": 250, "test": 50, "dimension": 1280, "k": 10, "repeats": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--classes", type=int, default=10)
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {vars(args)}")
    with tempfile.TemporaryDirectory() as folder:
        world = World(args, Path(folder))
        subjects = world.subjects()
        wall, cpu = measured(subjects, args.repeats)
    for name in subjects:
        print(f"{name:20} {wall[name]:9.1f} ms, {cpu[name]:9.1f} ms of CPU")
    for label, times in (("time", wall), ("CPU", cpu)):
        pfl = sum(times[f"pfl {part}"] for part in ("build", "search"))
        faiss = sum(times[f"faiss {part}"] for part in ("build", "search"))
        print(f"{label}: search {times['faiss search'] / times['pfl search']:.1f} times FAISS in a loop, ", end="")
        print(f"build and search {faiss / pfl:.1f} times", end="")
        if "scikit-learn" in times:
            print(f", {times['scikit-learn'] / pfl:.1f} times scikit-learn", end="")
        print(f"; a capacity of the grid {times['pfl grid'] / 101 / faiss:.3f} of a rebuild by FAISS")
    print(f"places in which neighbours agree with FAISS: {world.agreement():.6f}")


def measured(subjects: dict[str, Callable[[], None]], repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return median milliseconds of wall clock and of CPU, the subjects in turn, after a first round."""
    timings: dict[str, list[tuple[float, float]]] = {name: [] for name in subjects}
    for _ in range(repeats + 1):
        for name, subject in subjects.items():
            began, spent = time.perf_counter(), time.process_time()
            subject()
            timings[name].append(((time.perf_counter() - began) * 1e3, (time.process_time() - spent) * 1e3))
    wall, cpu = ({n: statistics.median(pair[i] for pair in v[1:]) for n, v in timings.items()} for i in (0, 1))
    return wall, cpu


class World:
    """Clustered vectors, labels, and what each subject makes of them."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        draw = np.random.default_rng(0)
        self.args, self.folder = args, folder
        m, n, q, d = args.clients, args.train, args.test, args.dimension
        centres = draw.normal(size=(args.classes, d))
        self.y = draw.integers(0, args.classes, m * n)
        self.truth = draw.integers(0, args.classes, m * q)
        # ReLU features: sparse and positive, classes apart by about their spread.
        self.z = np.maximum(centres[self.y] + draw.normal(size=(m * n, d)), 0).astype(np.float32)
        self.queries = np.maximum(centres[self.truth] + draw.normal(size=(m * q, d)), 0).astype(np.float32)
        self.model = draw.dirichlet(np.ones(args.classes), m * q)
        self.bounds, self.offsets = np.arange(m + 1) * q, np.arange(m + 1) * n
        self.found: Any = None
        self.found_by_faiss: Any = None

    def subjects(self) -> dict[str, Callable[[], None]]:
        """Return what is timed, by name."""
        known = {
            "faiss build": self.faiss_build,
            "faiss search": self.faiss_search,
            "pfl build": self.build,
            "pfl search": self.search,
            "pfl score": self.score,
            "pfl grid": self.grid,
        }
        try:
            import sklearn.neighbors  # noqa: F401
        except ImportError:
            print("scikit-learn is not installed: skipped (pip install scikit-learn)")
            return known
        return {**known, "scikit-learn": self.scikit_learn}

    def part(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a client's stored vectors and queries."""
        rows, query_bounds = self.offsets[client : client + 2], self.bounds[client : client + 2]
        return self.z[slice(*rows)], self.queries[slice(*query_bounds)]

    def build(self) -> None:
        """Write every client's index to one file."""
        pieces, self.ends = flat_pieces([self.part(client)[0] for client in range(self.args.clients)])
        with (self.folder / "pfl").open("wb") as file:
            file.writelines(pieces)

    def search(self) -> None:
        """Read the file and search all clients' stores for their queries."""
        blob = np.memmap(self.folder / "pfl", np.uint8, mode="c")
        train = np.full(self.args.clients, self.args.train)
        stores = Stores(blob, self.ends, self.y, self.offsets, train, self.args.threads)
        every = np.arange(self.args.clients)
        self.found = stores.search(every, self.queries, self.bounds, self.args.k)

    def score(self) -> None:
        """Score seven values of lambda."""
        p = votes(self.found, self.args.classes, -np.sqrt(self.found.distance))
        sweep.accuracy(p, self.model, self.truth, self.bounds, np.asarray([0, 0.1, 0.3, 0.5, 0.7, 0.9, 1]))

    def grid(self) -> None:
        """Score 101 capacities x 101 values of lambda from one search."""
        capacities = lambdas = np.linspace(0, 1, 101)
        for client in range(self.args.clients):
            stored, queries = self.part(client)
            y = self.y[slice(*self.offsets[client : client + 2])]
            span = slice(*self.bounds[client : client + 2])
            place = np.random.default_rng(client).permutation(len(stored))
            in_store = place < np.ceil(capacities * len(stored))[:, None]
            p = sweep.Ranked.of(stored, y, queries).votes(in_store, [self.args.k], [1.0], self.args.classes)[:, 0, 0]
            sweep.correct(p, self.model[span], self.truth[span], lambdas)

    def faiss_build(self) -> None:
        """Build one index after the other, a file each."""
        import faiss

        faiss.omp_set_num_threads(1)
        for client in range(self.args.clients):
            index = faiss.IndexFlatL2(self.args.dimension)
            index.add(self.part(client)[0])
            faiss.write_index(index, str(self.folder / f"{client}.faiss"))

    def faiss_search(self) -> None:
        """Read and search one index after the other."""
        import faiss

        pieces = []
        for client in range(self.args.clients):
            index = faiss.read_index(str(self.folder / f"{client}.faiss"))
            pieces.append(index.search(self.part(client)[1], self.args.k)[1])
        self.found_by_faiss = np.concatenate(pieces)

    def scikit_learn(self) -> None:
        """Build and search by scikit-learn's brute force."""
        from sklearn.neighbors import NearestNeighbors

        for client in range(self.args.clients):
            stored, queries = self.part(client)
            NearestNeighbors(n_neighbors=self.args.k, algorithm="brute", n_jobs=1).fit(stored).kneighbors(queries)

    def agreement(self) -> float:
        """Return the share of places in which the neighbours are those that FAISS found."""
        rows = [nearest(*self.part(client), self.args.k)[1] for client in range(self.args.clients)]
        return float((np.concatenate(rows) == self.found_by_faiss).mean())


if __name__ == "__main__":
    main()
