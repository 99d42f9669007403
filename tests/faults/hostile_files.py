"""Give every reader of foreign files what it was not made for, and see that it refuses by name, or reads rightly.

    python tests/faults/hostile_files.py [COUNT] [--seed N] [--only READER ...]

For each reader: what is no file at all (a pipe, a device, a socket, folders, links), files that are empty, cut, of
zeros or of noise, files that declare more than they hold or unpack without end, and mutations of a good file, COUNT in
all. A reader may take a file or refuse it, with exit code 2 or 3 and its name, within 10 seconds and 6 GB of memory.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.lib import format as npy
from PIL import Image
from safetensors.numpy import save as safetensors

MEMORY = 6 * 10**9
DRAW = np.random.default_rng(0)


@dataclass(frozen=True)
class Reader:
    """Where it looks for its file in a folder, a good file, the command, and files made against it alone."""

    name: str
    path: str
    good: Callable[[], bytes]
    words: tuple[str, ...]
    traps: dict[str, Callable[[], bytes]]


@dataclass(frozen=True)
class Case:
    """One hostile file: ``write`` makes it at a path."""

    reader: Reader
    description: str
    write: Callable[[Path], object]


# Good files


def packed(form: Callable[[io.BytesIO], object]) -> bytes:
    memory = io.BytesIO()
    form(memory)
    return memory.getvalue()


def arrays() -> dict[str, np.ndarray]:
    return {
        "x": DRAW.normal(size=(12, 3)).astype(np.float32),
        "y": np.arange(12) % 2,
        "owner": np.asarray(["ann", "bob", "cy"])[np.arange(12) % 3],
    }


def npz(**values: np.ndarray) -> bytes:
    return packed(lambda file: np.savez(file, **values))


def hdf5(fill: Callable[[h5py.File], object]) -> bytes:
    def write(file: io.BytesIO) -> None:
        with h5py.File(file, "w") as h5:
            fill(h5)

    return packed(write)


def good_hdf5(h5: h5py.File) -> None:
    values = arrays()
    h5["x"], h5["y"] = values["x"], values["y"]
    h5["owner"] = [str(name) for name in values["owner"]]


def parquet(**columns: object) -> bytes:
    return packed(lambda file: pq.write_table(pa.table(columns), file))


def png(side: int = 4) -> bytes:
    image = Image.fromarray(DRAW.integers(0, 256, (side, side), dtype=np.uint8))
    return packed(lambda file: image.save(file, "PNG"))


def idx(sizes: tuple[int, ...], content: bytes | None = None) -> bytes:
    head = bytes([0, 0, 8, len(sizes)]) + b"".join(size.to_bytes(4, "big") for size in sizes)
    return head + (bytes(int(np.prod(sizes))) if content is None else content)


def fashion() -> dict[str, np.ndarray]:
    x, y = np.zeros((6, 28, 28), np.uint8), np.arange(6, dtype=np.uint8)
    return {"x_train": x, "y_train": y, "x_test": x, "y_test": y}


def leaf(x: list[object], y: list[object], user: str = "u") -> bytes:
    content = {"users": [user], "num_samples": [len(y)], "user_data": {user: {"x": x, "y": y}}}
    return json.dumps(content).encode()


def stations() -> bytes:
    names = "PM2.5,PM10,SO2,NO2,CO,O3,TEMP,PRES,DEWP,RAIN,WSPM"
    rows = [f"2013,3,{1 + hour // 24},{hour % 24},{','.join('1' * 11)},N,A" for hour in range(300)]
    return "\n".join([f"year,month,day,hour,{names},wd,station", *rows]).encode()


def good_tff(h5: h5py.File) -> None:
    for name in ("ann", "bob"):
        client = h5.create_group(f"examples/{name}")
        client["pixels"], client["label"] = np.full((6, 28, 28), 0.5, np.float32), np.arange(6) % 2


def tff_with(name: str, fill: Callable[[h5py.Group], object]) -> bytes:
    def write(h5: h5py.File) -> None:
        good_tff(h5)
        del h5[f"examples/ann/{name}"]
        fill(h5["examples/ann"])

    return hdf5(write)


def feather(**columns: object) -> bytes:
    table = pa.table(columns)

    def write(file: io.BytesIO) -> None:
        with pa.ipc.new_file(file, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)

    return packed(write)


def frame() -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(CSV))


def excel(cells: list[list[object]]) -> bytes:
    return packed(lambda file: pd.DataFrame(cells).to_excel(file, header=False, index=False))


def excel_bomb() -> bytes:
    """Return a sheet of 420 MB, most of it empty rows."""
    plain = io.BytesIO(excel([["who", "class", "a"], ["ann", "yes", 1]]))
    target = io.BytesIO()
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as written:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("sheet1.xml"):
                content = content.replace(b"</sheetData>", b"<row/>" * 60_000_000 + b"</sheetData>")
            written.writestr(name, content)
    return target.getvalue()


def torch_file(value: object) -> bytes:
    return packed(lambda file: torch.save(value, file))


STATE = {
    "body.1.weight": np.zeros((2, 784), np.float32),
    "body.1.bias": np.zeros(2, np.float32),
    "head.weight": np.zeros((10, 2), np.float32),
    "head.bias": np.zeros(10, np.float32),
}

CSV = b"who,class,a,b\n" + b"ann,yes,1.5,-2\nbob,no,0.1,3\ncy,no,7,0\n" * 6
TOML = b'[partition]\nclients = 5\nset = "x=1"\n'


# Files made against one reader


def member(content: bytes, name: str = "x.npy", declared: int | None = None) -> bytes:
    """Return a ZIP file of one member, whose size is told to be another."""
    raw = packed(lambda file: _zip(file, name, content))
    if declared is not None:
        for mark, at in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
            place = raw.index(mark) + at
            raw = raw[:place] + struct.pack("<I", declared) + raw[place + 4 :]
    return raw


def _zip(file: io.BytesIO, name: str, content: bytes) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr(name, content)


def header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    return packed(
        lambda file: npy.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    )


def npz_with(name: str, content: bytes) -> bytes:
    def write(file: io.BytesIO) -> None:
        np.savez(file, **{key: value for key, value in arrays().items() if key != name})
        with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as target:
            target.writestr(f"{name}.npy", content)

    return packed(write)


def npz_bomb() -> bytes:
    """Return zeros without end: 400 MB that take 400 kB, in one more packing step than the pieces they come in."""
    return npz_with("x", header((10**8, 1)) + bytes(4 * 10**8))


def h5_deep(h5: h5py.File) -> None:
    group = h5
    for _ in range(2000):
        group = group.create_group("g")
    group["x"] = [1.0]


def h5_with(name: str, fill: Callable[[h5py.File], object]) -> bytes:
    def write(h5: h5py.File) -> None:
        good_hdf5(h5)
        del h5[name]
        fill(h5)

    return hdf5(write)


def h5_loop(h5: h5py.File) -> None:
    h5.create_group("g")["back"] = h5["/"]


def h5_same(h5: h5py.File) -> None:
    """Let a million samples have one and the same name of 100 kB."""
    data = h5.create_dataset("owner", (10**6,), h5py.string_dtype(), chunks=(10**6,), compression="gzip")
    data[0] = "n" * 10**5


def png_of(width: int, height: int) -> bytes:
    """Return a PNG that declares so many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(min(10**7, height * (width + 1))))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def safe(dtype: str, *shape: int) -> bytes:
    """Return a safetensors file of one tensor, whose numbers take 4 bytes."""
    content = json.dumps({"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(content)) + content + bytes(4)


DEEP = b"[" * 100_000 + b"]" * 100_000
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"

TABLE = {
    "a line without end": lambda: b"who,class,a\n" + b"," * (20 * 2**20),
    "a line of one cell": lambda: b"who,class,a\nann,yes," + b"1" * (20 * 2**20) + b"\n",
    "a zero byte far in": lambda: CSV * 300 + b"ann,yes,\x001,2\n",
    "an open quote": lambda: CSV + b'"ann,' + b"x,\n" * 200_000,
    "a name of 1 MB": lambda: CSV + b"n" * 120_000 + b",yes,1,2\n" + CSV.partition(b"\n")[2] * 300,
    "a number of 1 MB": lambda: CSV + b"ann,yes," + b"9" * 100_000 + b",2\n",
    "escapes": lambda: CSV.replace(b"ann", b"\x1b[31man\x07\r\x9b"),
    "100,000 columns": lambda: b"who,class" + b",c" * 10**5 + b"\nann,yes" + b",1" * 10**5 + b"\n",
    "latin-1": lambda: CSV.replace(b"ann", b"Ren\xe9"),
    "UTF-16": lambda: CSV.decode().encode("utf-16"),
    "commas": lambda: b"," * 10**6,
    "lone carriage returns": lambda: CSV.replace(b"\n", b"\r ") * 1000,
}
NPZ = {
    "terabytes declared": lambda: npz_with("x", header((10**6, 10**6)) + bytes(100)),
    "overflowing sizes": lambda: npz_with("x", header((2**32, 2**32)) + bytes(100)),
    "a negative size": lambda: npz_with("x", header((-1, 3)) + bytes(100)),
    "wide text": lambda: npz_with("owner", header((12,), "<U1000000000") + bytes(100)),
    "a bomb": npz_bomb,
    "a member that lies": lambda: member(header((10**9,)) + bytes(100), declared=2**32 - 2),
    "objects": lambda: npz_with("x", packed(lambda file: np.save(file, np.asarray([{}], object), allow_pickle=True))),
    "one array": lambda: packed(lambda file: np.save(file, np.zeros(3))),
    "one array of terabytes": lambda: header((10**12,)),
    "a pickle": lambda: b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "no samples": lambda: npz(x=np.zeros((0, 3)), y=np.zeros(0, int), owner=np.zeros(0, int)),
    "no features": lambda: npz(x=np.zeros((12, 0)), y=np.arange(12), owner=np.arange(12)),
    "a deep header": lambda: npz_with("x", b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000),
    "a structure": lambda: npz_with("x", packed(lambda file: np.save(file, np.zeros(12, "i4,f8")))),
}
READERS = [
    Reader("csv", "t.csv", lambda: CSV, ("import", "t.csv", "--client", "who", "--label", "class"), TABLE),
    Reader(
        "parquet",
        "t.parquet",
        lambda: parquet(who=["ann", "bob"] * 6, **{"class": ["yes", "no", "no"] * 4}, a=list(range(12))),
        ("import", "t.parquet", "--client", "who", "--label", "class"),
        {
            "a value in every row": lambda: parquet(
                who=pa.array(["n" * 10**5] * 10**5).dictionary_encode(), **{"class": [0, 1] * 50_000}, a=[1.0] * 10**5
            ),
            "rows without end": lambda: parquet(
                who=pa.array(np.zeros(3 * 10**7, np.int8)),
                **{"class": pa.array(np.zeros(3 * 10**7, np.int8))},
                a=pa.array(np.zeros(3 * 10**7, np.int8)),
            ),
            "lists": lambda: parquet(who=["a", "b"], **{"class": [0, 1]}, a=[[1, 2], [3]]),
            "one name twice": lambda: packed(
                lambda file: pq.write_table(
                    pa.Table.from_arrays([pa.array([1])] * 3, names=["who", "class", "who"]), file
                )
            ),
        },
    ),
    Reader("npz", "t.npz", lambda: npz(**arrays()), ("import", "t.npz"), NPZ),
    Reader(
        "feather",
        "t.feather",
        lambda: feather(who=["ann", "bob"] * 6, **{"class": ["yes", "no", "no"] * 4}, a=list(range(12))),
        ("import", "t.feather", "--client", "who", "--label", "class"),
        {
            "a value in every row": lambda: feather(
                who=pa.array(["n" * 10**5] * 10**5).dictionary_encode(), **{"class": [0, 1] * 50_000}, a=[1.0] * 10**5
            ),
            "a bomb": lambda: feather(who=["n"] * 10**8, **{"class": pa.nulls(10**8)}),
            "missing values without end": lambda: feather(
                who=pa.nulls(3 * 10**8), **{"class": pa.nulls(3 * 10**8)}, a=pa.nulls(3 * 10**8)
            ),
            "a run in every row": lambda: feather(
                who=["a"] * 10, **{"class": [0, 1] * 5},
                a=pa.RunEndEncodedArray.from_arrays(pa.array([10], pa.int32()), pa.array([1.0])),
            ),
            "lists": lambda: feather(who=["a", "b"], **{"class": [0, 1]}, a=[[1, 2], [3]]),
            "no rows": lambda: feather(who=pa.array([], pa.string()), **{"class": pa.array([], pa.int64())}),
            "no mark": lambda: feather(who=["a", "b"])[8:],
        },
    ),
    Reader(
        "JSON lines",
        "t.jsonl",
        lambda: frame().to_json(orient="records", lines=True).encode(),
        ("import", "t.jsonl", "--client", "who", "--label", "class"),
        {
            "100,000 levels": lambda: DEEP,
            "100,000 levels within": lambda: b'{"who": "ann", "class": "no", "a": ' + DEEP + b"}",
            "a name of 1 MB": lambda: json.dumps({"who": "n" * 10**6, "class": "no", "a": 1, "b": 2}).encode(),
            "a number of 1 MB": lambda: b'{"who": "ann", "class": "no", "a": ' + b"9" * 10**6 + b"}",
            "a record without end": lambda: json.dumps({f"c{at}": 1 for at in range(10**5)}).encode(),
            "a column of its own for each row": lambda: b"\n".join(b'{"c%d": 1}' % at for at in range(20_000)),
            "lists of objects": lambda: b'[[{"who": 1}]]',
        },
    ),
    Reader(
        "excel",
        "t.xlsx",
        lambda: excel([list(frame().columns), *frame().to_numpy().tolist()]),
        ("import", "t.xlsx", "--client", "who", "--label", "class"),
        {
            "a bomb": excel_bomb,
            "a member that lies": lambda: member(b"<worksheet/>" * 10, "xl/worksheets/sheet1.xml", declared=2**32 - 2),
            "no cells": lambda: excel([[]]),
            "a cell of 30,000 characters": lambda: excel([["who", "class", "a"], ["n" * 30_000, "yes", 1]] * 2),
        },
    ),
    Reader(
        "stata",
        "t.dta",
        lambda: packed(lambda file: frame().rename(columns={"class": "kind"}).to_stata(file, write_index=False)),
        ("import", "t.dta", "--client", "who", "--label", "kind"),
        {},
    ),
    Reader(
        "csv.gz",
        "t.csv.gz",
        lambda: gzip.compress(CSV),
        ("import", "t.csv.gz", "--client", "who", "--label", "class"),
        {
            "a bomb": lambda: gzip.compress(b"who,class,a\n" + b"ann,yes,1\n" * 4 * 10**7),
            "zeros without end": lambda: gzip.compress(bytes(3 * 10**8)),
            "a line without end": lambda: gzip.compress(b"who,class,a\n" + b"," * (20 * 2**20)),
            "no end": lambda: gzip.compress(CSV * 300)[:-20],
        },
    ),
    Reader(
        "LEAF",
        "dealt/train/a.json",
        lambda: leaf([[0.5, 1.5]] * 6, [1, 2, 3, 1, 2, 3]),
        ("import", "leaf:dealt", "--split-column", "none"),
        {
            "100,000 levels": lambda: DEEP,
            "100,000 levels within": lambda: leaf([1], [1]).replace(b'"x": [1]', b'"x": ' + DEEP),
            "a user of 1 MB": lambda: leaf([[0.5, 1.5]] * 6, [1, 2, 3, 1, 2, 3], user="n" * 10**6),
            "a number of 1 MB": lambda: leaf([1], [1]).replace(b"[1]", b"[" + b"9" * 10**6 + b"]"),
            "lists of two lengths": lambda: leaf([[1, 2], [3]], [0, 1]),
            "objects": lambda: leaf([{"a": 1}] * 2, [0, 1]),
            "infinite": lambda: leaf([[float("inf")]] * 2, [0, 1]),
            "labels out of range": lambda: leaf([[0.5]] * 2, [10**30, 1]),
            "lists as labels": lambda: leaf([[0.5]] * 2, [[0], [1]]),
            "a million users": lambda: json.dumps(
                {"users": [f"u{at}" for at in range(10**6)], "num_samples": [0] * 10**6, "user_data": {}}
            ).encode(),
        },
    ),
    Reader(
        "TensorFlow Federated",
        "t_train.h5",
        lambda: hdf5(good_tff),
        ("import", "tff:t_train.h5"),
        {
            "terabytes declared": lambda: tff_with(
                "pixels", lambda at: at.create_dataset("pixels", (10**9, 28, 28), "f4", chunks=(100, 28, 28))
            ),
            "a bomb": lambda: tff_with(
                "pixels",
                lambda at: at.create_dataset(
                    "pixels", (10**6, 28, 28), "u1", chunks=(10**4, 28, 28), compression="gzip"
                ),
            ),
            "a large piece": lambda: tff_with(
                "pixels",
                lambda at: at.create_dataset(
                    "pixels", (6, 28, 28), "f4", chunks=(3 * 10**5, 28, 28), maxshape=(None, 28, 28)
                ),
            ),
            "deep groups": lambda: hdf5(h5_deep),
            "a ring of groups": lambda: hdf5(lambda h5: h5.create_group("examples").__setitem__("back", h5["/"])),
            "a link to another file": lambda: tff_with(
                "pixels", lambda at: at.__setitem__("pixels", h5py.ExternalLink("/dev/zero", "x"))
            ),
            "rows in another file": lambda: tff_with(
                "pixels", lambda at: at.create_dataset("pixels", (6, 28, 28), "f4", external=[("/dev/zero", 0, 18816)])
            ),
            "ragged": lambda: tff_with("pixels", lambda at: at.create_dataset("pixels", (6,), h5py.vlen_dtype("f4"))),
            "text": lambda: tff_with("pixels", lambda at: at.create_dataset("snippets", data=["To be"] * 6)),
            "empty": lambda: tff_with("label", lambda at: at.create_dataset("label", data=h5py.Empty("f4"))),
        },
    ),
    Reader(
        "hdf5",
        "t.h5",
        lambda: hdf5(good_hdf5),
        ("import", "t.h5"),
        {
            "terabytes declared": lambda: h5_with(
                "x", lambda h5: h5.create_dataset("x", (10**6, 10**6), "f4", chunks=(100, 100))
            ),
            "a bomb": lambda: h5_with(
                "x", lambda h5: h5.create_dataset("x", (10**8, 4), "f4", chunks=(10**6, 4), compression="gzip")
            ),
            "a large piece": lambda: h5_with(
                "x", lambda h5: h5.create_dataset("x", (12, 3), "f4", chunks=(30_000, 30_000), maxshape=(None, None))
            ),
            "deep groups": lambda: hdf5(h5_deep),
            "a ring of groups": lambda: h5_with("x", h5_loop),
            "one long name for all": lambda: h5_with("owner", h5_same),
            "a link to another file": lambda: h5_with(
                "x", lambda h5: h5.__setitem__("x", h5py.ExternalLink("/dev/zero", "x"))
            ),
            "rows in another file": lambda: h5_with(
                "x", lambda h5: h5.create_dataset("x", (12, 3), "f4", external=[("/dev/zero", 0, 144)])
            ),
            "ragged": lambda: h5_with("x", lambda h5: h5.create_dataset("x", (12,), h5py.vlen_dtype("f4"))),
            "empty": lambda: h5_with("x", lambda h5: h5.create_dataset("x", data=h5py.Empty("f4"))),
            "a group": lambda: h5_with("x", lambda h5: h5.create_group("x")),
        },
    ),
    Reader(
        "images",
        "pictures/ann/cat/0.png",
        png,
        ("import", "pictures"),
        {
            "a terapixel": lambda: png_of(10**6, 10**6),
            "400 megapixels": lambda: png_of(20_000, 20_000),
            "pixels that lack": lambda: png_of(5000, 100)[:200],
            "a program": lambda: EPS,
            "text without end": lambda: png()[:33] + struct.pack(">I", 10**7) + b"zTXt" + zlib.compress(bytes(10**8)),
        },
    ),
    Reader(
        "idx",
        "train-images-idx3-ubyte",
        lambda: idx((6, 28, 28)),
        ("partition", "mnist", "--root", ".", "--scheme", "iid", "--clients", "2"),
        {
            "terabytes declared": lambda: idx((2**31, 2**31, 28), b""),
            "sizes that overflow": lambda: idx((2**32 - 1,) * 4, b"")[:4] + bytes([255] * 16),
            "255 sizes": lambda: bytes([0, 0, 8, 255]) + bytes([1, 0, 0, 0] * 255),
        },
    ),
    Reader(
        "idx.gz",
        "t10k-images-idx3-ubyte.gz",
        lambda: gzip.compress(idx((6, 28, 28))),
        ("partition", "mnist", "--root", ".", "--scheme", "iid", "--clients", "2"),
        {
            "a bomb": lambda: gzip.compress(idx((2**20, 28, 28), b"") + bytes(10**8)),
            "terabytes declared": lambda: gzip.compress(idx((2**31, 2**31, 28), b"")),
        },
    ),
    Reader(
        "fashion-mnist",
        "fashion_mnist.npz",
        lambda: npz(**fashion()),
        ("partition", "fashion-mnist", "--root", ".", "--scheme", "iid", "--clients", "2"),
        {name: NPZ[name] for name in ("one array", "a pickle", "objects", "a member that lies")}
        | {"labels of text": lambda: npz(**{**fashion(), "y_train": np.full(6, "q")})},
    ),
    Reader(
        "femnist",
        "all_data_0.json",
        lambda: leaf([[0.5] * 784] * 6, [1, 2, 3, 1, 2, 3]),
        ("partition", "femnist", "--root", "."),
        {
            "100,000 levels": lambda: DEEP,
            "100,000 levels within": lambda: leaf([1], [1]).replace(b'"x": [1]', b'"x": ' + DEEP),
            "a user of 1 MB": lambda: leaf([[0.5] * 784] * 6, [1, 2, 3, 1, 2, 3], user="n" * 10**6),
            "a number of 1 MB": lambda: leaf([1], [1]).replace(b"[1]", b"[" + b"9" * 10**6 + b"]"),
            "not numbers": lambda: leaf([["a"] * 784], ["b"]),
            "infinite": lambda: leaf([[float("inf")] * 784], [1]),
            "labels out of range": lambda: leaf([[0.5] * 784], [10**30]),
        },
    ),
    Reader(
        "shakespeare",
        "shakespeare_roles.jsonl.gz",
        lambda: gzip.compress(json.dumps({"user": "ann", "lines": ["x" * 2000]}).encode()),
        ("partition", "shakespeare", "--root", "."),
        {
            "a bomb": lambda: gzip.compress(bytes(2 * 10**8)),
            "100,000 levels": lambda: gzip.compress(DEEP),
            "a user of 1 MB": lambda: gzip.compress(json.dumps({"user": "n" * 10**6, "lines": ["x" * 2000]}).encode()),
            "lines of numbers": lambda: gzip.compress(b'{"user": 1, "lines": [1, 2]}'),
            "a number": lambda: gzip.compress(b"5"),
        },
    ),
    Reader(
        "air-quality",
        "PRSA_Data_A_1-2.csv",
        stations,
        ("partition", "air-quality", "--root", "."),
        {
            "a year of 9999": lambda: stations() + b"\n9999,1,1,1," + b"1," * 11 + b"N,A",
            "a long station": lambda: stations().replace(b"N,A", b"N," + b"n" * 3000),
            "a line without end": lambda: stations() + b"\n" + b"," * (20 * 2**20),
            "infinite": lambda: stations().replace(b"1,1,1,1,1", b"inf,1,1,1,1"),
            "a number of 1 MB": lambda: stations() + b"\n" + b"9" * 100_000,
        },
    ),
    Reader(
        "weights .pt",
        "w.pt",
        lambda: torch_file({name: torch.from_numpy(value) for name, value in STATE.items()}),
        ("train-global", "../p", "--model", "mlp", "--rounds", "0", "--threads", "1", "--weights", "w.pt"),
        {
            "a view of terabytes": lambda: torch_file({"w": torch.zeros(1).expand(10**6, 10**6)}),
            "a small view": lambda: torch_file({"w": torch.zeros(1).expand(10, 10)}),
            "sparse": lambda: torch_file({"w": torch.eye(3).to_sparse()}),
            "nowhere": lambda: torch_file({"w": torch.zeros(3, device="meta")}),
            "a list": lambda: torch_file([1, 2]),
            "not finite": lambda: torch_file({"w": torch.tensor([float("nan")])}),
            "a zip bomb": lambda: member(bytes(10**8), "archive/data.pkl"),
            "a pickle": lambda: b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
            "not 32 bits": lambda: torch_file({"w": torch.zeros(3, dtype=torch.complex64)}),
            "a name of 1 MB": lambda: torch_file({"n" * 10**6: torch.zeros(3)}),
            "1,000 names": lambda: torch_file({f"n{at}": torch.zeros(0) for at in range(1000)}),
        },
    ),
    Reader(
        "weights .safetensors",
        "w.safetensors",
        lambda: safetensors(STATE),
        ("train-global", "../p", "--model", "mlp", "--rounds", "0", "--threads", "1", "--weights", "w.safetensors"),
        {
            "a header of terabytes": lambda: struct.pack("<Q", 2**40) + b"{}",
            "terabytes declared": lambda: safe("F32", 10**6, 10**6),
            "sizes that overflow": lambda: safe("F32", 2**33, 2**33),
            "8 bits": lambda: safe("F8_E4M3", 4),
            "100,000 levels": lambda: struct.pack("<Q", len(DEEP)) + DEEP,
        },
    ),
    Reader(
        "configuration",
        "c.toml",
        lambda: TOML,
        ("partition", "writers", "--config", "c.toml"),
        {
            "100,000 levels": lambda: b"[partition]\nset = " + DEEP,
            "deep keys": lambda: b"[partition]\n" + b".".join([b"a"] * 5000) + b" = 1",
            "2 MB": lambda: b"#" * 2 * 10**6,
            "a date": lambda: b"[partition]\nclients = 2020-01-01\n",
            "a list": lambda: b"[partition]\nclients = [1, [2]]\n",
            "infinite": lambda: b"[partition]\nclients = inf\n",
            "a number of 1 MB": lambda: b"[partition]\nclients = " + b"9" * 10**5,
            "a table for a value": lambda: b"[partition.clients]\na = 1\n",
            "another kind of table": lambda: b"partition = 5\n",
        },
    ),
]  # fmt: skip
if find_spec("datasets") is not None:
    READERS.append(
        Reader(
            "Hugging Face",
            "hub/train-0.parquet",
            lambda: parquet(who=["ann", "bob"] * 6, **{"class": ["yes", "no", "no"] * 4}, a=list(range(12))),
            ("import", "hf:hub", "--client", "who", "--label", "class"),
            {
                "a value in every row": lambda: parquet(
                    who=pa.array(["n" * 10**5] * 10**5).dictionary_encode(),
                    **{"class": [0, 1] * 50_000},
                    a=[1.0] * 10**5,
                ),
                "lists of two lengths": lambda: parquet(who=["a", "b"], **{"class": [0, 1]}, a=[[1, 2], [3]]),
                "two images of noise": lambda: parquet(
                    who=["a", "b"], **{"class": [0, 1]}, a=[{"bytes": b"noise", "path": "0.png"}] * 2
                ),
                "a terapixel": lambda: parquet(
                    who=["a", "b"], **{"class": [0, 1]}, a=[{"bytes": png_of(10**6, 10**6), "path": "0.png"}] * 2
                ),
            },
        )
    )


# What no reader opens, and what any file may become


def _socket(path: Path) -> None:
    previous = Path.cwd()
    os.chdir(path.parent)  # the name of a socket may have 107 bytes
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(path.name)
    os.chdir(previous)


NO_FILES: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a socket": _socket,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to a terminal": lambda path: path.symlink_to("/dev/ptmx"),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a terabyte of holes": lambda path: os.truncate(path, 2**40) if not path.write_bytes(b"") else None,
}
ANY: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "empty": lambda good, draw: b"",
    "zeros": lambda good, draw: bytes(1000),
    "noise": lambda good, draw: draw.randbytes(1000),
    "half": lambda good, draw: good[: len(good) // 2],
    "twice": lambda good, draw: good * 2,
}


def _cut(good: bytes, draw: random.Random) -> bytes:
    return good[: draw.randrange(len(good))]


def _flip(good: bytes, draw: random.Random) -> bytes:
    raw = bytearray(good)
    for _ in range(draw.choice((1, 1, 2, 8, 64))):
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    return bytes(raw)


def _splice(good: bytes, draw: random.Random) -> bytes:
    first, last = sorted(draw.choices(range(len(good)), k=2))
    return good[:first] + draw.choice((b"", good[first:last] * 2, b"\xff" * 8, bytes(8))) + good[last:]


def _extreme(good: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(good))
    number = draw.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"99999999", b"-1", b"1e400", b"nan"))
    return good[:place] + number + good[place + len(number) :]


MUTATIONS = {"cut": _cut, "flipped": _flip, "spliced": _splice, "extreme": _extreme}


def cases(count: int, seed: int = 0, readers: list[Reader] = READERS) -> Iterator[Case]:
    """Yield every file made by hand, then mutations of good ones up to ``count``."""
    draw = random.Random(seed)
    by_hand = 0
    for reader in readers:
        hand = {name: lambda path, make=make: path.write_bytes(make()) for name, make in reader.traps.items()}
        any_ = {
            name: lambda path, change=change, good=reader.good: path.write_bytes(change(good(), random.Random(seed)))
            for name, change in ANY.items()
        }
        for name, write in {**NO_FILES, **any_, **hand}.items():
            by_hand += 1
            yield Case(reader, name, write)
    for at in range(count - by_hand):
        reader, (name, change) = readers[at % len(readers)], draw.choice(list(MUTATIONS.items()))
        content = change(reader.good(), draw)
        yield Case(reader, f"{name} {at}", lambda path, content=content: path.write_bytes(content))


def lay(case: Case, folder: Path) -> list[str]:
    """Make the files that a case needs in a folder, and return the words of its command."""
    path = folder / case.reader.path
    path.parent.mkdir(parents=True, exist_ok=True)
    if case.reader.name == "images":
        for name in ("ann/dog/1.png", "bob/cat/2.png"):
            other = folder / "pictures" / name
            other.parent.mkdir(parents=True, exist_ok=True)
            other.write_bytes(png())
    if case.reader.name == "LEAF":
        other = folder / "dealt" / "test" / "a.json"
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(leaf([[0.5, 1.5]] * 2, [1, 2]))
    if case.reader.name.startswith("idx"):
        for stem in ("train", "t10k"):
            (folder / f"{stem}-images-idx3-ubyte").write_bytes(idx((6, 28, 28)))
            (folder / f"{stem}-labels-idx1-ubyte").write_bytes(idx((6,)))
        path.with_suffix("").unlink() if path.suffix == ".gz" else path.unlink()
    case.write(path)
    return [*case.reader.words, "--out", "out"]


def wrong(folder: Path, code: int, err: str) -> tuple[str, str] | None:
    """Return what kind of fault a command has shown, and what it is, if any."""
    if code not in (0, 2, 3) or "Traceback" in err or "a bug" in err:
        return "tracebacks", f"exit {code}: {err[-300:]}"
    if (folder / "out.partial").exists() or (code != 0) == (folder / "out").exists():
        return "broken", f"exit {code} and {sorted(item.name for item in folder.iterdir())}"
    if code and len(err) > 3000:
        return "broken", f"{len(err)} characters of words"
    return None


def names_file(case: Case, err: str) -> bool:
    """Whether an error names the file, or the folder in which it was sought."""
    path = Path(case.reader.path)
    names = {path.name, path.name.partition(".")[0], path.parts[0]}
    return any(name in err for name in names) or "--root FOLDER" in err


def program() -> None:
    import resource

    import trying

    args = trying.arguments(__doc__, 300, "hostile files", only=[reader.name for reader in READERS])
    trying.warm()
    trying.heading()
    readers = [reader for reader in READERS if reader.name in args.only]
    tallies = {reader.name: trying.Tally(reader.name) for reader in readers}
    slowest = dict.fromkeys(tallies, 0.0)
    with trying.place() as root:
        partition = trying.pfl(["partition", "writers", "--clients", "5", "--out", "p"], root)
        assert partition.code == 0, partition
        for at, case in enumerate(cases(args.count, args.seed, readers)):
            folder = root / str(at)
            folder.mkdir()
            tally = tallies[case.reader.name]
            tally.tried += 1
            words = lay(case, folder)
            ended = trying.Command(words, folder, lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))).end(
                trying.PATIENCE
            )
            slowest[case.reader.name] = max(slowest[case.reader.name], ended.seconds)
            if ended.hung:
                tally.fault("hangs", case.description)
            elif fault := wrong(folder, ended.code, ended.err):
                tally.fault(fault[0], f"{case.description}: {fault[1]}")
            elif ended.code and not names_file(case, ended.err):
                tally.fault("silent", f"{case.description}: {ended}")
            trying.shutil.rmtree(folder)
    for tally in tallies.values():
        tally.notes.append(f"slowest {slowest[tally.name]:.1f} s")
        print(tally.row(), flush=True)
    trying.report(list(tallies.values()))


if __name__ == "__main__":
    program()
