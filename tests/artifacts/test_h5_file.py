"""HDF5 files that are written while they are filled, and read through memory maps."""

from __future__ import annotations

import errno
import io
import os
import re

import h5py
import numpy as np
import pytest

from pflcli.artifacts import client_blocks, h5_file
from pflcli.artifacts.client_blocks import LazyRows
from pflcli.core.errors import InputError

DRAW = np.random.default_rng(0)
ARRAYS = {
    "train/z": DRAW.normal(size=(900, 7)).astype(np.float32),
    "train/y": np.arange(900),
    "test/z": np.empty((0, 7), np.float32),
    "names": np.char.encode(np.asarray(["a", "é"]), "utf-8"),
}


def encode_in_memory(arrays, attrs):
    """The bytes of the same file, as h5py makes them in memory."""
    memory = io.BytesIO()
    with h5py.File(memory, "w", locking=False) as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, track_times=False)
        for key, value in attrs.items():
            file.attrs[key] = value
    return memory.getvalue()


def test_created_file_has_the_bytes_of_one_made_in_memory(tmp_path):
    with h5_file.create(tmp_path / "a.h5") as file:
        h5_file.fill(file, ARRAYS, {"classes": 3})
    assert (tmp_path / "a.h5").read_bytes() == encode_in_memory(ARRAYS, {"classes": 3})


def test_reserved_arrays_filled_in_turn_give_the_same_bytes(tmp_path):
    with h5_file.create(tmp_path / "a.h5") as file:
        datasets = {name: h5_file.reserve(file, name, ARRAYS[name].shape, ARRAYS[name].dtype) for name in ARRAYS}
        for first in range(0, 900, 100):
            for name in ("train/z", "train/y"):
                datasets[name][first : first + 100] = ARRAYS[name][first : first + 100]
        datasets["names"][:] = ARRAYS["names"]
    assert (tmp_path / "a.h5").read_bytes() == encode_in_memory(ARRAYS, {})


@pytest.mark.parametrize("rows", [DRAW.permutation(900)[:800], np.empty(0, np.int64)])
def test_lazy_rows_equal_the_rows_of_the_array(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(client_blocks, "PIECE_BYTES", 1000)
    source = ARRAYS["train/z"].astype(np.float64)
    gathered = LazyRows(source, rows, np.dtype(np.float32))
    expected = source[rows].astype(np.float32)
    assert (gathered.shape, gathered.ndim, len(gathered), gathered.nbytes) == (
        expected.shape,
        2,
        len(rows),
        expected.nbytes,
    )
    assert np.array_equal(np.asarray(gathered), expected)
    with h5_file.create(tmp_path / "a.h5") as file:
        h5_file.fill(file, {"x": gathered})
    assert (tmp_path / "a.h5").read_bytes() == encode_in_memory({"x": expected}, {})


def test_map_or_read_maps_large_arrays_read_only(tmp_path, monkeypatch):
    monkeypatch.setattr(h5_file, "_SMALL_ARRAY", 1000)
    with h5_file.create(tmp_path / "a.h5") as file:
        h5_file.fill(file, ARRAYS)
        file.create_dataset("packed", data=ARRAYS["train/z"], compression="gzip")
    with h5py.File(tmp_path / "a.h5", locking=False) as file:
        arrays = {name: h5_file.map_or_read(file[name]) for name in (*ARRAYS, "packed")}
    for name, expected in (ARRAYS | {"packed": ARRAYS["train/z"]}).items():
        assert np.array_equal(arrays[name], expected)
        assert arrays[name].flags.writeable == (name not in ("train/z", "train/y"))


def test_create_on_a_full_disk_states_the_needed_bytes(tmp_path, monkeypatch):
    written = os.pwrite

    def full(file, content, position):
        if position + len(content) > 10_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(file, content, position)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(InputError) as error, h5_file.create(tmp_path / "a.h5") as file:
        h5_file.fill(file, ARRAYS)
    assert "No space left on device" in error.value.message
    needed = re.search(r"([\d.]+) kB are needed", error.value.message)
    assert needed is not None
    assert float(needed[1]) > ARRAYS["train/z"].nbytes / 1000
