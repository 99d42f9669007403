"""Nearest neighbours of many clients: pfl, FAISS client by client, and scikit-learn, side by side.

    python benchmarks/knn.py [--clients 200 --train 250 --test 50 --dimension 1280 --k 10] [--repeats 5]

Subjects take turns within each repeat; prints median milliseconds, wall clock and CPU, and ratios. ``build`` is vectors
to indexes in files, ``synced`` with a wait for the disk, as pfl waits for what it writes, and ``copy`` the same bytes
from memory to disk; ``search`` indexes on disk to neighbours, by FAISS in a loop with one thread, in a loop with all
threads, and in a pool of threads, and by pfl; ``score`` neighbours to accuracy over 7 values of lambda, and ``grid``
accuracy over 101 capacities x 101 values of lambda, against building FAISS's indexes for each capacity.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line sets it

import torch

from pflcli.core.knn.indexes import find_nearest, flat_indexes
from pflcli.core.knn.stores import Stores
from pflcli.core.knn.voting import vote_by_distance
from pflcli.methods.parts import knn_grid as sweep


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
        print(f"{name:24} {wall[name]:9.1f} ms, {cpu[name]:9.1f} ms of CPU")
    for label, times in (("time", wall), ("CPU", cpu)):
        pfl = sum(times[f"pfl {part}"] for part in ("build", "search"))
        best = min(times[name] for name in times if name.startswith("faiss search"))
        faiss = times["faiss build"] + best
        ratios = times["faiss search"] / times["pfl search"], best / times["pfl search"]
        print(f"{label}: search {ratios[0]:.1f} times FAISS in a loop, {ratios[1]:.1f} its fastest arrangement")
        print(f"{label}: build {times['pfl build, synced'] / times['copy, synced']:.2f} of a copy; ", end="")
        print(f"build and search {faiss / pfl:.1f} times FAISS", end="")
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
        self.neighbours: Any = None
        self.neighbours_by_faiss: Any = None

    def subjects(self) -> dict[str, Callable[[], None]]:
        """Return what is timed, by name."""
        known: dict[str, Callable[[], None]] = {
            "faiss build": self.faiss_build,
            "faiss search": self.faiss_search,
            **({} if self.args.threads == 1 else self.faiss_in_parallel()),
            "copy, synced": self.copy,
            "pfl build, synced": lambda: self.build(synced=True),
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

    def build(self, synced: bool = False) -> None:
        """Write every client's index to one file."""
        blob, self.ends = flat_indexes([self.part(client)[0] for client in range(self.args.clients)])
        with (self.folder / "pfl").open("wb") as file:
            file.write(blob.data)
            if synced:
                file.flush()
                os.fsync(file.fileno())

    def copy(self) -> None:
        """Write as many bytes as the indexes have, from one place in memory."""
        with (self.folder / "copy").open("wb") as file:
            file.write(self.z.data)
            file.flush()
            os.fsync(file.fileno())

    def search(self) -> None:
        """Read the file and search all clients' stores for their queries."""
        blob = np.memmap(self.folder / "pfl", np.uint8, mode="c")
        stores = Stores(blob, self.ends, self.y, self.offsets, self.args.threads)
        every = np.arange(self.args.clients)
        self.neighbours = stores.search(every, self.queries, self.bounds, self.args.k)

    def score(self) -> None:
        """Score seven values of lambda."""
        p = vote_by_distance(self.neighbours, self.args.classes, -np.sqrt(self.neighbours.distance))
        lambdas = np.asarray([0, 0.1, 0.3, 0.5, 0.7, 0.9, 1])
        sweep.count_correct_by_client(p[None], self.model, self.truth, self.bounds, lambdas)

    def grid(self) -> None:
        """Score 101 capacities x 101 values of lambda from one search."""
        capacities = lambdas = np.linspace(0, 1, 101)
        for client in range(self.args.clients):
            stored, queries = self.part(client)
            y = self.y[slice(*self.offsets[client : client + 2])]
            span = slice(*self.bounds[client : client + 2])
            place = np.random.default_rng(client).permutation(len(stored))
            in_store = place < np.ceil(capacities * len(stored))[:, None]
            bounds = np.asarray([0, len(stored)]), np.asarray([0, len(queries)])
            ranked = sweep.Ranked.rank_clients(stored, y, bounds[0], queries, bounds[1])
            p = ranked.compute_votes(in_store, [self.args.k], [1.0], self.args.classes)[:, 0, 0]
            sweep.count_correct(p, self.model[span], self.truth[span], lambdas)

    def faiss_build(self) -> None:
        """Build one index after the other, a file each."""
        import faiss

        faiss.omp_set_num_threads(1)
        for client in range(self.args.clients):
            index = faiss.IndexFlatL2(self.args.dimension)
            index.add(self.part(client)[0])
            faiss.write_index(index, str(self.folder / f"{client}.faiss"))

    def faiss_search(self, threads: int = 1) -> None:
        """Read and search one index after the other, with so many threads each."""
        import faiss

        faiss.omp_set_num_threads(threads)
        self.neighbours_by_faiss = np.concatenate(
            [self.faiss_neighbours(client) for client in range(self.args.clients)]
        )
        faiss.omp_set_num_threads(1)

    def faiss_in_parallel(self) -> dict[str, Callable[[], None]]:
        """Return the arrangements of FAISS that use several threads, by name."""
        return {
            f"faiss search, {self.args.threads} threads": lambda: self.faiss_search(self.args.threads),
            f"faiss search, pool of {self.args.threads}": self.faiss_pool,
        }

    def faiss_pool(self) -> None:
        """Read and search the indexes in a pool of threads, of one intra-op thread each."""
        import faiss

        with ThreadPoolExecutor(self.args.threads, initializer=lambda: faiss.omp_set_num_threads(1)) as pool:
            list(pool.map(self.faiss_neighbours, range(self.args.clients)))

    def faiss_neighbours(self, client: int) -> np.ndarray:
        """Read and search the index of a client."""
        import faiss

        index = faiss.read_index(str(self.folder / f"{client}.faiss"))
        return np.asarray(index.search(self.part(client)[1], self.args.k)[1])

    def scikit_learn(self) -> None:
        """Build and search by scikit-learn's brute force."""
        from sklearn.neighbors import NearestNeighbors

        for client in range(self.args.clients):
            stored, queries = self.part(client)
            NearestNeighbors(n_neighbors=self.args.k, algorithm="brute", n_jobs=1).fit(stored).kneighbors(queries)

    def agreement(self) -> float:
        """Return the share of places in which the neighbours are those that FAISS found."""
        rows = [find_nearest(*self.part(client), self.args.k)[1] for client in range(self.args.clients)]
        return float((np.concatenate(rows) == self.neighbours_by_faiss).mean())


if __name__ == "__main__":
    main()
