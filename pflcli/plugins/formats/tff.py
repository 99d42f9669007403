"""HDF5 files of TensorFlow Federated: the group ``examples`` has one group per client, such as ``f0000_14``.

https://www.tensorflow.org/federated/api_docs/python/tff/simulation/datasets. A client's group has its arrays ``label``
and ``pixels`` or ``image``. ``NAME_train.h5`` has the training samples, ``NAME_test.h5`` the test samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.errors import InputError
from pflcli.core.foreign import require_file, require_room
from pflcli.data.formats import ABSENT, RawSamples, arrays, hash_files, require_utf8_name, to_text
from pflcli.data.preparation.user_data import UserData

_GROUP, _LABEL = "examples", "label"
_PIXELS = ("pixels", "image")


@dataclass(frozen=True)
class Files:
    """The file of each split; the only split is empty if there is no file of test samples."""

    paths: dict[str, Path]

    @property
    def count(self) -> int:
        """The number of files."""
        return len(self.paths)

    def sha256(self) -> str:
        """Return a hash of all files and their names."""
        paths = list(self.paths.values())
        return hash_files(paths[0].parent, paths)


def find(path: Path) -> Files:
    """Find the file, or the only ``*_train.h5`` of a folder, and the file of its test samples, if there is one."""
    if path.is_dir():
        trains = sorted(path.glob("*_train.h5"))
        if len(trains) != 1:
            raise InputError(f"{path} has {len(trains)} files *_train.h5", "tff:FILE")
        path = trains[0]
    require_file(path)
    require_utf8_name(path)
    stem = path.stem.removesuffix("_train").removesuffix("_test")
    train, test = (path.with_name(f"{stem}_{split}{path.suffix}") for split in ("train", "test"))
    if path == test and train.is_file():
        raise InputError(f"{path} has only test samples", f"tff:{train} reads training and test samples")
    if path == train and test.exists():
        require_file(test)
        return Files({"train": train, "test": test})
    return Files({"": path})


def recognize(path: Path) -> tuple[Path, list[str]] | None:
    """Return the file with a group of clients, and what to type; in a folder, the first one named ``*_train.h5``."""
    import h5py

    if path.is_dir():
        file = next(iter(sorted(path.glob("*_train.h5"))), None)
        return None if file is None else (file, [f"pfl import tff:{file} -o DIR"])
    if path.suffix.lower() not in (".h5", ".hdf5"):
        return None
    try:
        with h5py.File(path, "r", locking=False) as content:
            return (path, [f"pfl import tff:{path} -o DIR"]) if [*content] == [_GROUP] else None
    except (OSError, RuntimeError):  # damaged, which the reader of arrays says
        return None


def read(found: Files, asked: UserData, advance: Callable[[int, str], None]) -> RawSamples:
    """Read the images of all clients with their splits, which ``--split-column none`` joins.

    Raises InputError if a file has no clients, or if their samples are text or differ in shape.
    """
    import h5py

    parts: list[tuple[str, str, str, NDArray[Any], NDArray[Any]]] = []
    for split, path in found.paths.items():
        with h5py.File(path, "r", locking=False) as file:
            clients = file.get(_GROUP) if isinstance(file.get(_GROUP, getlink=True), h5py.HardLink) else None
            if not isinstance(clients, h5py.Group) or not len(clients):
                raise InputError(f"{path} has no group '{_GROUP}' of clients, so TensorFlow Federated did not write it")
            for client in sorted(clients):
                x, y = _read_client(path, clients, client)
                if len(y):
                    parts.append((client, split, f"{path.name}: {client}", x, y))
        advance(1, "")
    if not parts:
        raise InputError(f"{next(iter(found.paths.values()))} has no samples")
    for _, _, where, x, _ in parts:
        if x.shape[1:] != parts[0][3].shape[1:]:
            raise InputError(
                f"{where}: samples have shape {x.shape[1:]}, but those of {parts[0][2]} {parts[0][3].shape[1:]}"
            )
    name = found.paths[next(iter(found.paths))].name
    require_room(name, sum(x.nbytes for *_, x, _ in parts))
    images, remark = arrays.check_samples(name, np.concatenate([x for *_, x, _ in parts]), None, "images")
    sizes = [len(y) for *_, y in parts]
    first = np.cumsum([0, *sizes])

    def place(row: int, role: str, at: Sequence[int]) -> str:
        number = int(np.searchsorted(first, row, side="right")) - 1
        return f"{parts[number][2]}, sample {row - first[number]}"

    has_splits = "train" in found.paths and asked.roles.split != ABSENT
    remarks = [f"training samples of {name}, test samples of {found.paths['test'].name}"] if has_splits else []
    return RawSamples(
        x=images,
        label=np.concatenate([to_text(y, f"{where}: {_LABEL}") for _, _, where, _, y in parts]),
        owner=np.repeat([client for client, *_ in parts], sizes),
        place=place,
        remarks=(*remarks, *([remark] if remark else [])),
        declares_classes=True,
        metadata={"split": np.repeat([split for _, split, *_ in parts], sizes)} if has_splits else {},
    )


def _read_client(path: Path, clients: Any, client: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the images and labels of one client; raises InputError for other samples."""
    import h5py

    where = f"{path.name}: {client}"
    is_here = isinstance(clients.get(client, getlink=True), h5py.HardLink)
    group: Any = clients[client] if is_here and isinstance(clients[client], h5py.Group) else {}
    names = sorted(group)
    pixels = [name for name in _PIXELS if name in names]
    if not pixels or _LABEL not in names:
        raise InputError(
            f"{where} has {', '.join(names[:6]) or 'no arrays'} instead of pixels or image, and label",
            "pfl reads images from TensorFlow Federated (EMNIST, CIFAR-100); it imports text only as embeddings",
        )
    for name in (pixels[0], _LABEL):
        if not isinstance(group.get(name, getlink=True), h5py.HardLink) or not isinstance(group[name], h5py.Dataset):
            raise InputError(f"{where}: '{name}' is not an array")
    x, y = (arrays.load_dataset(path, group[name]) for name in (pixels[0], _LABEL))
    if y.shape != (len(x),):
        raise InputError(f"{where}: label has shape {y.shape}, but there are {len(x)} samples")
    return x, y
