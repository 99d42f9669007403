"""Small files that unpack to gigabytes are refused before the memory is taken."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import textwrap
import zlib

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS = 12 * 10**6
WORD = "n" * 10**5
MAX_GROWTH = 700
"""Megabytes: 256 that any file may unpack to, twice, and what the readers themselves take."""


def write_parquet(path, columns):
    pq.write_table(pa.table(columns), path, store_schema=False)  # so that a dictionary is read as words


def write_feather(path, columns):
    with pa.ipc.new_file(path, pa.table(columns).schema) as writer:
        writer.write_table(pa.table(columns))


def write_npz(path, **arrays):
    np.savez_compressed(path, **arrays)


def write_hdf5(path, shape=(100, 2), owner=None):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", shape, "f4", chunks=True, compression="gzip")
        file["y"] = np.arange(100) % 2
        if owner is not None:
            owner(file)


def write_same_name(file):
    names = file.create_dataset("owner", (10**6,), h5py.string_dtype(), chunks=(10**6,), compression="gzip")
    names[0] = WORD


def write_png(path, width, height):
    """Write a PNG in colour that is black."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(1 + 3 * width)) for _ in range(height)) + packer.flush()
    path = path.with_suffix("") / "a" / "x" / "0.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


def repeat(word, count, kind=None):
    return pa.RunEndEncodedArray.from_arrays(pa.array([count], pa.int32()), pa.array([word], kind))


def make_string_views(word, count):
    views = np.frombuffer(pa.array([word], pa.string_view()).buffers()[1], np.uint8)
    return pa.Array.from_buffers(
        pa.string_view(), count, [None, pa.py_buffer(np.tile(views, count)), pa.py_buffer(word.encode())]
    )


def make_list_views(count, length):
    return pa.ListViewArray.from_arrays(
        pa.array(np.zeros(count, np.int32)), pa.array(np.full(count, length, np.int32)), pa.array(np.zeros(length))
    )


def dictionary(word, count):
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), pa.array([word]))


HALF = 3 * 10**4
LABELS = {"class": np.arange(HALF) % 2}
TABLE = {"client": "who", "label": "class"}
BOMBS = {
    "Parquet, a dictionary": ("parquet", TABLE, lambda: {"who": dictionary(WORD, HALF), **LABELS, "a": pa.nulls(HALF)}),
    "Parquet, nulls": ("parquet", TABLE, lambda: {name: pa.nulls(ROWS) for name in ("who", "class", "a")}),
    "Feather, a run": ("feather", TABLE, lambda: {"who": repeat("ann", 2**31 - 1), "class": repeat(1, 2**31 - 1)}),
    "Feather, lists of nulls": (
        "feather", TABLE,
        lambda: {"who": ["a"], "a": pa.FixedSizeListArray.from_arrays(pa.nulls(2 * 10**9), 2 * 10**9)},
    ),
    "Feather, views of one list": ("feather", TABLE, lambda: {"who": ["a"] * 9**4, "a": make_list_views(9**4, 10**5)}),
    "Feather, views of one word": ("feather", TABLE, lambda: {"who": make_string_views(WORD, HALF), **LABELS}),
    "Feather, structures of nulls": (
        "feather", TABLE,
        lambda: {"who": pa.StructArray.from_arrays([pa.nulls(2**30)], ["a"]), "class": pa.nulls(2**30)},
    ),
    "Feather, nulls": ("feather", TABLE, lambda: {name: pa.nulls(2**31 - 1) for name in ("who", "class")}),
    "Feather, a dictionary": ("feather", TABLE, lambda: {"who": dictionary(WORD, HALF), **LABELS, "a": pa.nulls(HALF)}),
    "Feather, a run of a long word": ("feather", TABLE, lambda: {"who": repeat(WORD, HALF), **LABELS}),
    "NPZ": ("npz", {}, lambda: {"x": np.zeros((ROWS, 25), np.int8), "y": np.arange(2), "owner": np.arange(2)}),
    "HDF5": ("h5", {"client": "none"}, lambda: {"shape": (ROWS, 25)}),
    "HDF5, one name for all": ("h5", {}, lambda: {"owner": write_same_name}),
    "PNG": ("png", {}, lambda: {"width": 10_000, "height": 7_000}),
}  # fmt: skip
WRITERS = {
    "parquet": write_parquet,
    "feather": write_feather,
    "npz": lambda path, columns: write_npz(path, **columns),
    "h5": lambda path, columns: write_hdf5(path, **columns),
    "png": lambda path, columns: write_png(path, **columns),
}  # fmt: skip

PROGRAM = textwrap.dedent("""
    import json, resource, sys
    resource.setrlimit(resource.RLIMIT_AS, (6 * 10**9, 6 * 10**9))
    import pandas, pyarrow.parquet, h5py, PIL.Image
    from pflcli.commands.import_data import import_data
    from pflcli.core.errors import InputError
    for data, options in json.load(sys.stdin):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            import_data(data, "out", **options)
        except InputError as error:
            words = error.message
        else:
            words = "read"
        print(json.dumps([words, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1000]), flush=True)
""")


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_import_refuses_small_files_that_unpack_to_gigabytes(tmp_path):
    jobs = []
    for at, (form, options, content) in enumerate(BOMBS.values()):
        path = tmp_path / f"{at}.{'h5' if form == 'h5' else form}"
        WRITERS[form](path, content())
        stored = path if path.exists() else path.with_suffix("")
        size = sum(file.stat().st_size for file in ([stored] if stored.is_file() else stored.rglob("*.*")))
        assert size < 2 * 10**6, (at, size)
        jobs.append((str(stored), options))
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    for name, (words, growth) in zip(BOMBS, answers, strict=True):
        assert any(word in words for word in ("declares", "the maximum is")), f"{name}: {words}"
        assert growth <= MAX_GROWTH, f"{name} took {growth} MB"
