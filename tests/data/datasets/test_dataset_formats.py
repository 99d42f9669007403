"""Readers of images (idx files, LEAF's JSON, CIFAR's batches) return the values that were written."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest

from originals import SHARED, X, Y, idx, leaf, needs_shared, write_idx
from pflcli.core import datasets
from pflcli.core.datasets import Samples
from pflcli.core.errors import InputError, UsageError
from pflcli.core.vision import torchvision
from pflcli.data.datasets import cifar100, emnist, femnist, mnist

DRAW = np.random.default_rng(0)


@pytest.mark.parametrize(("folder", "zipped"), [("MNIST/raw", False), ("MNIST/raw", True), (".", True), (".", False)])
def test_mnist_reads_idx_files(folder, zipped, tmp_path):
    write_idx(tmp_path / folder, "train", "t10k", zipped=zipped)
    samples = mnist.load(tmp_path)
    np.testing.assert_array_equal(samples.x, X)
    np.testing.assert_array_equal(samples.y, Y)
    assert samples.owner is None


@needs_shared
def test_mnist_of_the_shared_folder_equals_the_digits_of_writers():
    digits, written = mnist.load(SHARED), datasets.load("writers").load(SHARED)
    np.testing.assert_array_equal(digits.x, written.x)
    assert digits.owner is None


@pytest.mark.parametrize("folder", ["EMNIST/raw", "EMNIST/raw/gzip", "gzip", "."])
def test_emnist_transposes_images_upright(folder, tmp_path):
    write_idx(tmp_path / folder, "emnist-letters-train", "emnist-letters-test", y=Y + 1, zipped="gzip" in folder)
    samples = emnist.load(tmp_path)
    assert samples.classes == 26
    np.testing.assert_array_equal(samples.y, Y)
    for image, stored in zip(samples.x, X, strict=True):
        assert image[2, 7] == stored[7, 2]
        np.testing.assert_array_equal(image, stored.T)


def test_emnist_reads_other_splits(tmp_path):
    write_idx(tmp_path / "EMNIST" / "raw", "emnist-balanced-train", "emnist-balanced-test", y=Y + 37)
    samples = emnist.load(tmp_path, cfg=emnist.Config("balanced"))
    assert (samples.classes, samples.y.max()) == (47, 46)
    with pytest.raises(UsageError, match=r"\(split=letters\) .* emnist-letters-train|emnist_letters_31k"):
        emnist.load(tmp_path)
    with pytest.raises(UsageError, match="emnist-digits-train-images"):
        emnist.load(tmp_path, cfg=emnist.Config("digits"))


def test_emnist_classes_equal_those_of_torchvision():
    classes = torchvision().datasets.EMNIST.classes_split_dict
    assert {split: tuple(name for name in names if name != "N/A") for split, names in classes.items()} == emnist.NAMES


@needs_shared
def test_emnist_letters_of_the_shared_folder_are_upright():
    """A capital T has its bar on top, an L its bar at the bottom: more ink there than opposite, on the average."""
    samples = emnist.load(SHARED)
    samples.check("emnist")
    assert samples.x.shape == (31200, 28, 28)
    top, bottom = (
        {letter: samples.x[samples.y == ord(letter) - ord("A"), rows].mean() for letter in "TL"}
        for rows in (slice(4, 10), slice(18, 24))
    )
    assert top["T"] > 1.2 * bottom["T"]
    assert bottom["L"] > 1.2 * top["L"]


@pytest.mark.parametrize("folder", ["femnist/data/all_data", "femnist", "."])
def test_femnist_reads_leaf_files(folder, tmp_path):
    grey = (X.reshape(9, 784) / 255).tolist()
    white = [[1.0] * 784]
    leaf(tmp_path / folder / "all_data_0.json", {"f0001": (grey[:4], [0, 61, 10, 36]), "none": ([], [])})
    leaf(tmp_path / folder / "all_data_1.json", {"f0002": (grey[4:] + white, [9, 9, 9, 9, 9, 1])})
    samples = femnist.load(tmp_path)
    samples.check("femnist")
    np.testing.assert_array_equal(samples.x[:9], X)
    assert samples.x[9].min() == 255
    assert samples.x.dtype == np.uint8
    assert samples.y.tolist() == [0, 61, 10, 36, 9, 9, 9, 9, 9, 1]
    assert samples.owner.tolist() == ["f0001"] * 4 + ["f0002"] * 6


IMAGE = [0.5] * 784
BAD = {
    "short": ({"a": ([IMAGE[:5]], [1])}, {}, "a: x is not a list of images of 784 numbers"),
    "ragged": ({"a": ([IMAGE, IMAGE[:5]], [1, 1])}, {}, "784 numbers"),
    "bytes": ({"a": ([[255] * 784], [1])}, {}, "from 0 to 1"),
    "nan": ({"a": ([[float("nan")] * 784], [1])}, {}, "from 0 to 1"),
    "text": ({"a": (["x" * 784], [1])}, {}, "784 numbers"),
    "label": ({"a": ([IMAGE], ["1"])}, {}, "y is not a list of whole numbers"),
    "lengths": ({"a": ([IMAGE], [1, 2])}, {}, "a has 1 x and 2 y, but num_samples 2"),
    "told": ({"a": ([IMAGE], [1])}, {"num_samples": [7]}, "num_samples 7"),
    "users": ({"a": ([IMAGE], [1])}, {"users": ["b"]}, "user_data has 1 users that 'users' lacks"),
    "more users": ({"a": ([IMAGE], [1])}, {"users": ["a", "b"]}, "2 users, but 1 num_samples"),
    "key": ({"a": ([IMAGE], [1])}, {"user_data": []}, "no dict 'user_data'"),
    "nobody": ({}, {}, "no user has a sample"),
}


@pytest.mark.parametrize("name", BAD)
def test_damaged_leaf_files_are_refused_by_name(name, tmp_path):
    data, changes, words = BAD[name]
    leaf(tmp_path / "all_data.json", data, **changes)
    with pytest.raises(InputError, match=words):
        femnist.load(tmp_path)


def test_femnist_refuses_invalid_json(tmp_path):
    for text in ('{"users": [', "[]", "\x00", "[" * 100_000):
        (tmp_path / "all_data.json").write_text(text)
        with pytest.raises(InputError, match=r"all_data\.json"):
            femnist.load(tmp_path)


def truncate_file(path):
    path.write_bytes(path.read_bytes()[:-5])


def change_magic_number(path):
    path.write_bytes(b"\0\0\x0d\x03" + path.read_bytes()[4:])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate_file, "is damaged: its header announces 6x28x28 bytes, got 4699"),
        (change_magic_number, "not an IDX file"),
        (lambda path: path.write_bytes(b""), "not an IDX file"),
        (lambda path: path.unlink(), "lacks train-images-idx3-ubyte"),
        (lambda path: idx(path, X[:5]), r"images \(5, 28, 28\) and labels \(6,\)"),
        (lambda path: idx(path, X[:6, :7]), "not \\(n, 28, 28\\)"),
    ],
)
def test_damaged_idx_files_are_refused_by_name(damage, words, tmp_path):
    write_idx(tmp_path, "train", "t10k")
    damage(tmp_path / "train-images-idx3-ubyte")
    with pytest.raises(InputError, match=words):
        mnist.load(tmp_path)


def test_damaged_gzip_files_are_refused_by_name(tmp_path):
    write_idx(tmp_path, "train", "t10k", zipped=True)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    for content in (b"nonsense", path.read_bytes()[:-9]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"t10k-images-idx3-ubyte\.gz cannot be read"):
            mnist.load(tmp_path)


def write_cifar100(root, fine):
    """Write CIFAR-100's own files, and return what torchvision is to find: names with checksums."""
    x = DRAW.integers(0, 256, (len(fine), 3, 32, 32), dtype=np.uint8)
    folder = root / "cifar-100-python"
    folder.mkdir()
    half = len(fine) // 2
    parts = {
        "train": {"data": x[:half].reshape(half, -1), "fine_labels": fine[:half]},
        "test": {"data": x[half:].reshape(len(fine) - half, -1), "fine_labels": fine[half:]},
        "meta": {"fine_label_names": [str(label) for label in range(100)]},
    }
    sums = {}
    for name, part in parts.items():
        content = pickle.dumps(part)
        (folder / name).write_bytes(content)
        sums[name] = hashlib.md5(content).hexdigest()
    return x, sums


def test_cifar100_keeps_superclasses(tmp_path, monkeypatch):
    fine = [0, 99, 54, 62, 70, 82, 92, 3]
    x, sums = write_cifar100(tmp_path, fine)
    with pytest.raises(InputError, match="cannot be read as CIFAR100"):  # another file than Krizhevsky's
        cifar100.load(tmp_path)
    reader = torchvision().datasets.CIFAR100
    monkeypatch.setattr(reader, "train_list", [["train", sums["train"]]])
    monkeypatch.setattr(reader, "test_list", [["test", sums["test"]]])
    monkeypatch.setattr(reader, "meta", {**reader.meta, "md5": sums["meta"]})
    samples = cifar100.load(tmp_path)
    samples.check("cifar100")
    np.testing.assert_array_equal(samples.x, x.transpose(0, 2, 3, 1))
    assert samples.y.tolist() == fine
    assert samples.coarse[2:7].tolist() == [2] * 5  # the five flowers
    assert samples.coarse[[0, 1, 7]].tolist() == [4, 13, 8]


@needs_shared
def test_cifar100_superclasses_equal_those_of_the_data():
    with np.load(Path(SHARED) / "cifar100_12k.npz") as file:
        assert file["coarse_of_fine"].tolist() == list(cifar100.COARSE)
    samples = cifar100.load(SHARED)
    assert np.bincount(samples.coarse).tolist() == [600] * 20
    assert np.bincount(cifar100.COARSE).tolist() == [5] * 20


KINDS = {
    "flat bytes": np.zeros((3, 784), np.uint8),
    "bytes of rank 5": np.zeros((3, 1, 2, 2, 2), np.uint8),
    "wide tokens": np.zeros((3, 80), np.int64),
    "tokens of rank 3": np.zeros((3, 80, 2), np.int16),
    "truth values": np.zeros((3, 5), bool),
    "text": np.asarray([["a"], ["b"], ["c"]]),
    "numbers in a row": np.zeros(3, np.float32),
}


@pytest.mark.parametrize("name", KINDS)
def test_check_refuses_samples_of_unknown_type(name):
    with pytest.raises(InputError, match=r"mine: x is .*, neither uint8 images .* nor int16 tokens"):
        Samples(KINDS[name], np.zeros(3, np.int64), 1).check("mine")


@pytest.mark.parametrize(
    "x", [np.zeros((3, 4, 4), np.uint8), np.zeros((3, 4, 4, 3), np.uint8), np.zeros((3, 9)), np.zeros((3, 9), np.int16)]
)
def test_check_accepts_samples_of_every_type(x):
    Samples(x, np.zeros(3, np.int64), 1, coarse=np.zeros(3, np.int64)).check("mine")


def test_check_refuses_invalid_superclasses_and_order():
    x, y = np.zeros((3, 4)), np.zeros(3, np.int64)
    with pytest.raises(InputError, match="x has 3 rows, but coarse has 2"):
        Samples(x, y, 1, coarse=y[:2]).check("mine")
    with pytest.raises(InputError, match="row 1 has superclass -1"):
        Samples(x, y, 1, coarse=np.asarray([0, -1, 0])).check("mine")
    with pytest.raises(InputError, match="need owners"):
        Samples(x, y, 1, ordered=True, gap=2).check("mine")
    with pytest.raises(InputError, match="not both"):
        Samples(x, y, 1, ordered=True, group=y).check("mine")


@pytest.mark.parametrize("token", [-1, 3])
def test_check_names_the_row_of_tokens_outside_the_classes(token):
    x = np.zeros((4, 9), np.int16)
    x[2, 5] = token
    with pytest.raises(InputError, match=r"mine: row 2 has tokens outside 0\.\.2"):
        Samples(x, np.zeros(4, np.int64), 3).check("mine")
