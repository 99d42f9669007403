"""Folders dealt by FL-bench: ``partition.pkl`` and ``args.json`` beside the files of the dataset.

https://github.com/KarhouTam/FL-bench. ``partition.pkl`` has the indices of each client's training, validation and test
samples in the dataset, whose training and test part are joined in this order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.data import datasets
from pflcli.data.datasets import Samples
from pflcli.data.formats import RawSamples, dealt, hash_files, plain_pickle, read_json_object, require_folder
from pflcli.errors import InputError
from pflcli.foreign import parsing, read_npy, require_file

_PARTITION, _ARGS = "partition.pkl", "args.json"
_SPLITS = {"train": "train", "val": "validation", "test": "test"}

_KNOWN = {"cifar10": "cifar10", "cifar100": "cifar100", "mnist": "mnist", "emnist": "emnist", "fmnist": "fashion-mnist"}
"""The dataset of pfl that reads the files of FL-bench's dataset."""
_ARRAYS = {
    "femnist": ("data.npy", "targets.npy", 62),
    "celeba": ("data.npy", "targets.npy", 2),
    "synthetic": ("data.npy", "targets.npy", 0),
    "medmnistS": ("raw/xdata.npy", "raw/ydata.npy", 11),
    "medmnistC": ("raw/xdata.npy", "raw/ydata.npy", 11),
    "medmnistA": ("raw/xdata.npy", "raw/ydata.npy", 11),
    "covid19": ("raw/xdata.npy", "raw/ydata.npy", 4),
}
"""The files of samples and labels, and the number of classes, 0 if it is that of the labels."""


@dataclass(frozen=True)
class Folder:
    """A dealt folder: the indices of each split of each client, FL-bench's arguments, and all samples of the dataset.

    ``x`` (n, ...) are the samples and ``y`` (n,) their labels.
    """

    root: Path
    clients: tuple[dict[str, NDArray[np.int64]], ...]
    args: dict[str, Any]
    x: NDArray[Any]
    y: NDArray[Any]
    classes: tuple[str, ...]

    def sha256(self) -> str:
        """Return a hash of the samples and of the partition."""
        samples = Samples(self.x, self.y, len(self.classes)).sha256()
        files = hash_files(self.root, [self.root / name for name in (_PARTITION, _ARGS)])
        return hashlib.sha256((samples + files).encode()).hexdigest()


def open_folder(root: Path) -> Folder:
    """Read a dealt folder; raises InputError if a file is missing, damaged or of a dataset that pfl does not read."""
    require_folder(root)
    for file in (_PARTITION, _ARGS):
        if not (root / file).exists():
            raise InputError(
                f"{root} has no {file}, so FL-bench did not deal it",
                "flbench:FL-bench/data/NAME, after its generate_data.py",
            )
    args = read_json_object(root / _ARGS)
    name = args.get("dataset")
    if not isinstance(name, str) or name not in (*_KNOWN, *_ARRAYS):
        raise InputError(
            f"{root / _ARGS}: pfl does not read FL-bench's dataset {str(name)[:40]!r}",
            f"it reads {', '.join([*_KNOWN, *_ARRAYS])}",
        )
    x, y, classes = _read_samples(root, name, args)
    return Folder(root, tuple(_read_partition(root / _PARTITION, len(y))), args, x, y, classes)


def _read_samples(root: Path, name: str, args: dict[str, Any]) -> tuple[NDArray[Any], NDArray[Any], tuple[str, ...]]:
    """Return the samples, labels and names of classes of FL-bench's dataset ``name``."""
    if name in _ARRAYS:
        files = [root / file for file in _ARRAYS[name][:2]]
        for file in files:
            require_file(file)
        with parsing(str(root), "NPY", "is it complete?"):
            x, y = (read_npy(file) for file in files)
        if name == "femnist":
            x = x.reshape(-1, 1, 28, 28)
        return x, y.reshape(-1), tuple(map(str, range(_ARRAYS[name][2])))
    dataset = datasets.load(_KNOWN[name])
    options = {} if dataset.Config is None else {"cfg": dataset.Config(split=args.get("emnist_split", "byclass"))}
    with parsing(str(root), _KNOWN[name]):
        samples = dataset.load(root, **options)
        samples.check(name)
    if name == "cifar100" and args.get("super_class") and samples.coarse is not None:
        return samples.x, samples.coarse, tuple(map(str, range(20)))
    return samples.x, samples.y, samples.names


def _read_partition(path: Path, count: int) -> list[dict[str, NDArray[np.int64]]]:
    """Return the indices of each client's splits; raises InputError for one that is not below ``count``, or twice."""
    require_file(path)
    with parsing(str(path), "a pickle", "is it complete?"):
        partition = plain_pickle.load(path.read_bytes(), str(path))
    clients = partition.get("data_indices") if isinstance(partition, dict) else None
    if not isinstance(clients, list) or not clients:
        raise InputError(f"{path} has no list data_indices, so FL-bench did not write it")
    dealt = [_read_client(f"{path}: client {number}", client, count) for number, client in enumerate(clients)]
    _require_one_place(path, dealt)
    return dealt


def _require_one_place(path: Path, clients: Sequence[dict[str, NDArray[np.int64]]]) -> None:
    """Raise InputError if a sample is in two splits, at two clients, or twice in one split."""
    parts = [
        (f"client {number}, {split}", rows) for number, client in enumerate(clients) for split, rows in client.items()
    ]
    rows = np.concatenate([rows for _, rows in parts])
    part = np.repeat(np.arange(len(parts)), [len(rows) for _, rows in parts])
    order = np.argsort(rows, kind="stable")
    twice = np.flatnonzero(np.diff(rows[order]) == 0)
    if len(twice):
        first, second = (parts[part[order[at]]][0] for at in (twice[0], twice[0] + 1))
        raise InputError(
            f"{path}: {len(twice)} indices are repeated: sample {rows[order[twice[0]]]} is in {first} and in {second}",
            "deal it again with FL-bench's generate_data.py, so that each sample is in one place",
        )


def _read_client(where: str, client: Any, count: int) -> dict[str, NDArray[np.int64]]:
    if not isinstance(client, dict) or not {"train", "test"} <= client.keys():
        raise InputError(f"{where} has no train and test indices", "deal it again with FL-bench's generate_data.py")
    indices: dict[str, NDArray[np.int64]] = {}
    for name, split in _SPLITS.items():
        values = np.asarray(client.get(name, []))
        if values.ndim != 1 or (len(values) and values.dtype.kind not in "iu"):
            raise InputError(f"{where}: its {name} indices are not whole numbers")
        outside = values[(values < 0) | (values >= count)]
        if len(outside):
            raise InputError(
                f"{where}: {name} index {outside[0]} is not below {count}, the number of samples of the dataset",
                "the files beside partition.pkl are not those that it was made from",
            )
        indices[split] = values.astype(np.int64)
    return indices


def read(folder: Folder) -> RawSamples:
    """Return the samples of all clients with their splits; raises InputError if a client has no training samples."""
    without = [number for number, client in enumerate(folder.clients) if not len(client["train"])]
    if without and folder.args.get("split") == "user":
        raise InputError(
            f"{folder.root}: client {without[0]} has no training samples, as FL-bench dealt with --split user",
            "deal it again with --split sample: pfl evaluates each client on samples of its own",
        )
    blocks = [
        dealt.Block(number, split, folder.x[rows], folder.y[rows], f"{_PARTITION}: client {number}, {split}")
        for number, client in enumerate(folder.clients)
        for split, rows in client.items()
    ]
    return dealt.join(blocks, folder.root.name, folder.classes, _remarks(folder))


def _remarks(folder: Folder) -> list[str]:
    names = ("alpha", "classes_per_client", "shards_per_client", "iid", "test_ratio", "val_ratio", "seed")
    known = [f"{name} {folder.args[name]}" for name in names if isinstance(folder.args.get(name), int | float)]
    lines = [f"dealt by FL-bench: {', '.join(known)}"] if known else []
    rows = np.concatenate([rows for client in folder.clients for rows in client.values()])
    unused = len(folder.y) - len(np.unique(rows))
    return [*lines, *([f"assigned to no client, and left out: {unused} samples"] if unused else [])]
