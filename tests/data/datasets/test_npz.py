"""NPZ files: large uncompressed images are mapped into memory, all other arrays are read."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from pflcli.core import foreign
from pflcli.core.errors import InputError
from pflcli.core.foreign import Npz, read_npz

IMAGES = np.random.default_rng(0).integers(0, 256, size=(60, 5, 4), dtype=np.uint8)


@pytest.fixture(autouse=True)
def treat_arrays_as_large(monkeypatch):
    monkeypatch.setattr(foreign, "_MIN_MAPPED_BYTES", 100)


@pytest.mark.parametrize(
    ("save", "images", "is_mapped"),
    [
        (np.savez, IMAGES, True),
        (np.savez, IMAGES[:0], False),
        (np.savez, np.asfortranarray(IMAGES), False),
        (np.savez, IMAGES.astype(np.float32), False),
        (np.savez_compressed, IMAGES, False),
    ],
    ids=["mapped", "empty", "columns first", "numbers", "packed"],
)
def test_npz_load_returns_the_saved_array_and_maps_large_ones(save, images, is_mapped, tmp_path):
    save(tmp_path / "a.npz", y=np.arange(60), x=images)
    with Npz(tmp_path / "a.npz") as file:
        array = file.load("x")
    assert np.array_equal(array, images)
    assert array.dtype == images.dtype
    assert array.flags.writeable != is_mapped


def test_read_npz_refuses_a_damaged_array(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=IMAGES)
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("x.npy").compress_type == zipfile.ZIP_STORED
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.npz"):
        read_npz(path, "x")
