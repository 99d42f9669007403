"""Datasets that come with the package, and datasets that are read from folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pflcli
from originals import SHARED, idx, needs_shared, write_idx
from pflcli.core import datasets as data
from pflcli.core import foreign
from pflcli.core.datasets import Samples
from pflcli.core.errors import InputError, PflError, UsageError
from pflcli.data.datasets import cifar10, fashion_mnist, writers


def test_writers_are_included_in_the_package():
    samples = writers.load(None)
    samples.check("writers")
    assert samples.x.shape == (5486, 28, 28)
    assert samples.x.dtype == np.uint8
    assert len(np.unique(samples.owner)) == 60
    assert set(samples.y.tolist()) == set(range(10))
    folder = Path(pflcli.__file__).parent / "data" / "datasets"
    assert (folder / "writers.npz").stat().st_size < 1.2e6
    assert "CC BY-SA" in (folder / "writers.LICENSE.md").read_text()


@needs_shared
def test_full_writers_dataset_contains_the_included_one():
    small, full = writers.load(None), writers.load(SHARED)
    assert len(np.unique(full.owner)) == 627
    for owner in np.unique(small.owner)[::20]:
        embedded_images, full_images = (s.x[s.owner == owner].reshape(-1, 784) for s in (small, full))
        assert sorted(map(bytes, embedded_images)) == sorted(map(bytes, full_images))


@needs_shared
@pytest.mark.parametrize(("name", "n", "shape"), [("fashion-mnist", 70000, (28, 28)), ("cifar10", 12000, (32, 32, 3))])
def test_datasets_of_the_shared_folder_are_read(name, n, shape):
    samples = data.load(name).load(SHARED)
    samples.check(name)
    assert samples.x.shape == (n, *shape)
    assert np.bincount(samples.y).tolist() == [n // 10] * 10


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
@pytest.mark.parametrize("root", [None, "empty"])
def test_missing_dataset_is_refused_with_the_root_option(name, root, tmp_path):
    with pytest.raises(UsageError, match="is not included in pfl") as error:
        data.load(name).load(tmp_path if root else None)
    assert "--root" in error.value.fix[0]


def test_fashion_mnist_reads_the_torchvision_layout(tmp_path):
    draw = np.random.default_rng(0)
    raw = tmp_path / "FashionMNIST" / "raw"
    x = draw.integers(0, 256, (9, 28, 28), dtype=np.uint8)
    y = draw.integers(0, 10, 9).astype(np.uint8)
    for name, rows in (("train", slice(0, 6)), ("t10k", slice(6, 9))):
        idx(raw / f"{name}-images-idx3-ubyte", x[rows])
        idx(raw / f"{name}-labels-idx1-ubyte", y[rows])
    samples = fashion_mnist.load(tmp_path)
    np.testing.assert_array_equal(samples.x, x)
    np.testing.assert_array_equal(samples.y, y)


def test_damaged_cifar_batches_are_refused(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="cannot be read as CIFAR10"):
        cifar10.load(tmp_path)


def test_dataset_is_downloaded_only_on_request(tmp_path, monkeypatch):
    downloads = []

    class Reader:
        def __init__(self, root, *, train, download):
            downloads.append(download)
            self.data, self.targets = np.zeros((2, 28, 28), np.uint8), [0, 1]

    datasets = type("datasets", (), {"FashionMNIST": Reader})
    monkeypatch.setattr("pflcli.core.vision.torchvision", lambda: type("module", (), {"datasets": datasets}))
    (tmp_path / "FashionMNIST" / "raw").mkdir(parents=True)
    with pytest.raises(UsageError, match="is not included in pfl"):
        fashion_mnist.load(tmp_path)
    assert not downloads
    fashion_mnist.load(tmp_path, download=True)
    assert downloads == [True, True]
    with pytest.raises(UsageError, match="needs a target folder"):
        fashion_mnist.load(None, download=True)


def test_damaged_npz_files_are_refused(tmp_path):
    path = tmp_path / "fashion_mnist.npz"
    path.write_bytes(b"PK nonsense")
    with pytest.raises(InputError, match="cannot be read as NPZ"):
        fashion_mnist.load(tmp_path)
    np.savez(path, x_train=np.zeros(3))
    with pytest.raises(InputError, match="no array 'y_train'"):
        fashion_mnist.load(tmp_path)
    np.savez(path, **dict.fromkeys(("x_train", "y_train", "x_test", "y_test"), np.asarray([{}], dtype=object)))
    with pytest.raises(InputError, match="does not unpickle"):
        foreign.read_npz(path, "x_train")


BAD = {
    "lengths": (Samples(np.zeros((3, 2)), np.zeros(2, int), 1), "x has 3 rows, but y has 2"),
    "coarse": (Samples(np.zeros((2, 2)), np.zeros(2, int), 1, coarse=np.zeros(3, int)), "but coarse has 3"),
    "nothing": (Samples(np.zeros((0, 2)), np.zeros(0, int), 1), "no samples"),
    "nan": (Samples(np.asarray([[0.0, 1.0], [2.0, np.nan]]), np.zeros(2, int), 1), "nan in row 1, column 1"),
    "infinity": (Samples(np.asarray([[np.inf, 1.0]]), np.zeros(1, int), 1), "inf in row 0, column 0"),
    "label": (Samples(np.zeros((2, 2)), np.asarray([0, 3]), 3), "row 1 has label 3, outside 0..2"),
}


@pytest.mark.parametrize("name", BAD)
def test_check_refuses_bad_samples_and_names_the_problem(name):
    samples, words = BAD[name]
    with pytest.raises(InputError, match=words):
        samples.check("mine")


def test_error_classes_have_distinct_exit_codes():
    codes = {cls.__name__: cls.exit_code for cls in PflError.__subclasses__()}
    known = {"UsageError": 2, "InputError": 3, "ConflictError": 4, "ComputationError": 5}
    assert {name: codes[name] for name in known} == known
    assert set(codes.values()) == set(known.values())


def test_published_test_samples_are_marked(tmp_path):
    write_idx(tmp_path / "MNIST" / "raw", "train", "t10k")
    write_idx(tmp_path, "emnist-letters-train", "emnist-letters-test")
    draw = {"x_train": np.zeros((5, 32, 32, 3), np.uint8), "x_test": np.ones((2, 32, 32, 3), np.uint8)}
    labels = {"y_train": np.arange(5), "y_test": np.arange(2)}
    for name in ("cifar10_12k", "cifar100_12k"):
        np.savez(tmp_path / f"{name}.npz", **draw, **labels)
    for name, split in (("mnist", 6), ("emnist", 6), ("cifar10", 5), ("cifar100", 5)):
        samples = data.load(name).load(tmp_path)
        samples.check(name)
        assert samples.is_test.tolist() == [row >= split for row in range(len(samples.y))], name
        assert samples.take(np.asarray([0, split])).is_test.tolist() == [False, True]
