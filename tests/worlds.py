"""A small federation in memory, with the odd clients that real data has, and runs on it."""

from __future__ import annotations

import numpy as np
import torch

from pflcli import config, models, registry
from pflcli.fl import params as P
from pflcli.fl.engine import Engine
from pflcli.fl.federation import SPLITS, Federation
from pflcli.fl.neighbours import Stores, flat_indexes
from pflcli.fl.run import Embedded, Run
from pflcli.fl.table import Table
from pflcli.settings import Settings

# Samples by client in train, validation and test: ordinary, one sample, no test, no validation, one class, empty.
SIZES = ((12, 4, 5), (1, 0, 0), (7, 3, 0), (6, 0, 4), (8, 3, 3), (0, 0, 0), (9, 3, 4))
ONE_CLASS = 4
CLASSES = 3
FEATURES = 5


def federation(seed: int = 0) -> Federation:
    """Three noisy classes; every client's features are shifted by its own offset."""
    draw = np.random.default_rng(seed)
    sizes = np.asarray(SIZES)
    offsets = np.concatenate([[0], np.cumsum(sizes.ravel())])
    client = np.repeat(np.arange(len(sizes)), sizes.sum(axis=1))
    y = draw.integers(0, CLASSES, offsets[-1])
    y[client == ONE_CLASS] = 1
    x = draw.normal(size=(len(y), FEATURES)) + 2.0 * np.eye(FEATURES)[y] + 0.3 * client[:, None]
    return Federation.of(x.astype(np.float32), y, offsets, CLASSES)


def run(
    method: str | None = None,
    *,
    seed: int = 0,
    threads: int = 1,
    way: str = "auto",
    options: dict | None = None,
    **settings: object,
) -> Run:
    """A run of ``method`` with all that it may need: a backbone (unlike the start), embeddings and stores."""
    data = federation()
    plan = config.build(Settings, {"model": "mlp", "rounds": 3, "participation": 0.5, "batch_size": 4, **settings}, "")
    net = models.create("mlp", data.in_shape, CLASSES, seed)
    engine = Engine(net, data, seed=seed, threads=threads, way=way)
    code = registry.load("methods", method) if method else None
    cfg = config.build(code.Config, options or {}, str(method)) if code else None
    made = Run(code.KIND if code else "server", cfg, plan, seed, data, engine, P.of(net))
    made.backbone = P.of(models.create("mlp", data.in_shape, CLASSES, seed + 1))
    made.embeddings = embed(made)
    made.stores = stores(made)
    return made


def embed(made: Run) -> dict[str, Embedded]:
    """Embed every split with the run's backbone."""
    found = {}
    for split in SPLITS:
        rows = np.concatenate([made.federation.rows(int(c), split) for c in made.clients])
        logits, z = made.engine.infer(made.backbone, rows, features=True)
        bounds = np.concatenate([[0], np.cumsum(made.federation.sizes(split))])
        found[split] = Embedded(z.numpy(), logits.numpy(), made.federation.y[rows].numpy(), bounds)
    return found


def stores(made: Run) -> Stores:
    """Build every client's store: training rows first, validation rows behind."""
    vectors, labels, train = [], [], []
    for client in made.clients:
        parts = [made.embeddings[split].take(np.asarray([client])) for split in ("train", "validation")]
        vectors.append(np.concatenate([part.z for part in parts]))
        labels.append(np.concatenate([part.y for part in parts]))
        train.append(len(parts[0].y))
    return Stores(
        *flat_indexes(vectors),
        np.concatenate(labels),
        np.cumsum([0, *map(len, labels)]),
        np.asarray(train),
    )


def play(method: str, made: Run, first: int = 0, last: int | None = None, state: dict | None = None) -> dict:
    """Run a method's rounds ``first`` to ``last`` and return its state."""
    code = registry.load("methods", method)
    if state is None:
        state = code.setup(made) if hasattr(code, "setup") else {}
    if hasattr(code, "train_round"):
        for t in range(first, made.settings.rounds if last is None else last):
            state = code.train_round(made, state, t)
    return state


def answers(method: str, made: Run, state: dict, clients: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """What a method answers, by split, as ``personalize`` stores it."""
    code = registry.load("methods", method)
    made.sealed = True
    predictor = code.personalize(made, state, made.clients if clients is None else clients)
    found = {split: predictor.answer(split)["p"] for split in predictor.splits}
    made.sealed = False
    return found


def same(a: object, b: object) -> bool:
    """Whether two nested states are equal to the bit."""
    if isinstance(a, Table) and isinstance(b, Table):
        return same({"all": a[range(len(a))]}, {"all": b[range(len(b))]})
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
