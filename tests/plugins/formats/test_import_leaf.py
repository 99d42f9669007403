"""LEAF's JSON and the HDF5 files of TensorFlow Federated: clients keep their names, samples and splits."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from importing import import_and_read, read_dataset, refuse
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.partition import partition
from pflcli.core.errors import InputError, PflError, UsageError

DRAW = np.random.default_rng(0)


def write_leaf(path, users):
    """Write ``users``, lists x and y by name, as LEAF's scripts do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content))


def draw_users(count, names, width=60):
    return {name: (DRAW.normal(size=(count, width)).tolist(), [0.0, 1.0] * (count // 2)) for name in names}


@pytest.mark.parametrize("inside", ["", "data/"])
def test_users_of_leaf_keep_their_training_and_test_samples(inside, tmp_path):
    train = [draw_users(6, ["f_01", "f_00"]), draw_users(4, ["f_02"])]
    test = draw_users(2, ["f_00", "f_01"])
    for number, part in enumerate(train):
        write_leaf(tmp_path / "syn" / f"{inside}train" / f"{number}.json", part)
    write_leaf(tmp_path / "syn" / f"{inside}test" / "a.json", test)
    read = import_and_read(f"leaf:{tmp_path / 'syn'}", tmp_path / "out")
    assert read.owner.tolist() == ["f_01"] * 6 + ["f_00"] * 6 + ["f_02"] * 4 + ["f_00"] * 2 + ["f_01"] * 2
    assert read.split.tolist() == [0] * 16 + [2] * 4
    assert read.classes == ["0", "1"]
    expected = [row for part in (*train, test) for x, _ in part.values() for row in x]
    np.testing.assert_array_equal(read.x, np.float32(expected))
    partition(str(tmp_path / "out"), tmp_path / "p", fractions=(1, 0, 0))
    dealt = partitions.read(open_artifact(tmp_path / "p"))
    assert dict(zip(dealt.names, dealt.sizes.tolist(), strict=True)) == {
        "f_00": [6, 0, 2], "f_01": [6, 0, 2], "f_02": [4, 0, 0],
    }  # fmt: skip
    assert read_dataset(f"leaf:{tmp_path / 'syn'}", split_column="none").split is None
    refuse(InputError, "has the samples of one split", f"leaf:{tmp_path / 'syn' / inside / 'train'}")
    (tmp_path / "syn" / f"{inside}test" / "a.json").unlink()
    refuse(InputError, r"has no test/\*.json, but", f"leaf:{tmp_path / 'syn'}")


@pytest.mark.parametrize("place", ["all_data.json", "all_data/all_data_0.json", "data/all_data/0.json"])
def test_users_of_leaf_without_splits_are_read(place, tmp_path):
    pixels = DRAW.integers(0, 256, (8, 784))
    users = {"ann": ((pixels[:4] / 255).tolist(), [5, 6, 5, 6]), "bob": ((pixels[4:] / 255).tolist(), [5, 7, 7, 7])}
    write_leaf(tmp_path / "a" / place, users)
    source = f"leaf:{tmp_path / 'a'}"
    read = read_dataset(source)
    assert (read.x.shape, read.x.dtype, read.split, read.owner.tolist()) == (
        (8, 784),
        np.float32,
        None,
        ["ann"] * 4 + ["bob"] * 4,
    )
    read = read_dataset(source, samples="images")
    np.testing.assert_array_equal(read.x, pixels.reshape(8, 28, 28))
    np.testing.assert_array_equal(read_dataset(f"leaf:{tmp_path / 'a' / place}").y, read.y)
    refuse(UsageError, "--label is for tables", source, label="y")


TEXT = {
    "Sent140": ([["1", "Mon", "NO_QUERY", "ann", "good morning", "training"]], "x contains text", "--embeddings"),
    "CelebA": (["000001.jpg"], "x contains names of images", "CLIENT/LABEL/IMAGE"),
    "Shakespeare": (["to be or not to be"], "x contains text", "pfl partition shakespeare"),
    "two lengths": ([[1.0, 2.0], [1.0]], "lists have different lengths", ""),
    "nothing": ([[], []], "consist of numbers", ""),
    "objects": ([{"a": 1}], "consist of numbers", ""),
}


@pytest.mark.parametrize("case", TEXT)
def test_import_refuses_leaf_when_samples_are_not_numbers(case, tmp_path):
    x, problem, fix = TEXT[case]
    write_leaf(tmp_path / "a" / "all_data.json", {"ann": (x, [0] * len(x))})
    with pytest.raises(InputError, match=problem) as error:
        read_dataset(f"leaf:{tmp_path / 'a'}")
    assert "all_data.json: ann" in error.value.message
    assert fix in "\n".join(error.value.fix)


@pytest.mark.parametrize("dataset", ["femnist", "shakespeare"])
def test_built_in_leaf_dataset_is_refused_when_a_split_is_missing(dataset, tmp_path):
    for split in ("train", "test"):
        write_leaf(tmp_path / "data" / split / "all_data_0.json", draw_users(2, ["ann"], 784))
    with pytest.raises(InputError, match="has only a part of the samples"):
        partition(dataset, tmp_path / "p", root=tmp_path / "data" / "train")


def write_tff(path, clients, key="pixels", label="label"):
    with h5py.File(path, "w") as file:
        for client, (x, y) in clients.items():
            file[f"examples/{client}/{key}"] = x
            file[f"examples/{client}/{label}"] = y


def test_clients_of_tensorflow_federated_keep_their_samples(tmp_path):
    images = DRAW.integers(0, 256, (10, 28, 28), dtype=np.uint8)
    unit = (images / 255).astype(np.float32)
    root = tmp_path / "emnist"
    root.mkdir()
    train, test = root / "fed_emnist_train.h5", root / "fed_emnist_test.h5"
    write_tff(train, {"f1_2": (unit[:4], np.arange(4)), "f0_1": (unit[4:7], np.arange(3))})
    alone = read_dataset(f"tff:{train}")
    assert (alone.split, alone.owner.tolist()) == (None, ["f0_1"] * 3 + ["f1_2"] * 4)
    write_tff(test, {"f1_2": (unit[7:9], np.arange(2)), "f0_1": (unit[9:], np.arange(1))})
    for source in (train, root):
        read = read_dataset(f"tff:{source}")
        np.testing.assert_array_equal(read.x, images[[4, 5, 6, 0, 1, 2, 3, 9, 7, 8]])
        assert read.y.tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 0, 1]
        assert read.split.tolist() == [0] * 7 + [2] * 3
    assert read_dataset(f"tff:{train}", split_column="none").split is None
    refuse(InputError, "has only test samples", f"tff:{test}")
    with pytest.raises(UsageError, match="is HDF5 of TensorFlow Federated") as error:
        read_dataset(train)
    assert error.value.fix == (f"pfl import tff:{train} -o DIR",)


def test_colour_images_of_tensorflow_federated_are_read(tmp_path):
    images = DRAW.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    write_tff(tmp_path / "fed_cifar100_train.h5", {"0": (images, np.arange(6) % 2)}, key="image")
    np.testing.assert_array_equal(read_dataset(f"tff:{tmp_path / 'fed_cifar100_train.h5'}").x, images)


@pytest.mark.parametrize(
    ("clients", "key", "words"),
    [
        ({"a": ([b"to be"], [0])}, "snippets", "a has label, snippets instead of pixels"),
        ({"a": (np.zeros((2, 8, 8)), [0])}, "pixels", "label has shape"),
        ({"a": (np.zeros((2, 8, 8)), [0, 1]), "b": (np.zeros((2, 9, 9)), [0, 1])}, "pixels", "but those of"),
        ({"a": (np.full((2, 8, 8), 999.0), [0, 1])}, "pixels", "no pixels"),
        ({}, "pixels", "has no group 'examples'"),
    ],
)
def test_import_refuses_tensorflow_federated_when_samples_are_no_images(clients, key, words, tmp_path):
    write_tff(tmp_path / "d.h5", clients, key)
    refuse(PflError, words, f"tff:{tmp_path / 'd.h5'}")


def write_dealt(root):
    for split in ("train", "test"):
        (root / split).mkdir(parents=True)
        np.savez(root / split / "0.npz", data=np.zeros(3))
    (root / "config.json").write_text("{}")
    return "docs/cookbook/pfllib-flbench.md"


def write_flbench(root):
    root.mkdir()
    (root / "partition.pkl").write_bytes(b"")
    (root / "args.json").write_text("{}")
    return "docs/cookbook/pfllib-flbench.md"


def write_saved(root):
    (root / "train").mkdir(parents=True)
    (root / "dataset_dict.json").write_text("{}")
    (root / "train" / "state.json").write_text("{}")
    return f"hf:{root}"


def write_parquet(root):
    (root / "data").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), root / "data" / "train-0.parquet")
    return f"hf:{root}"


def write_splits(root):
    for split in ("train", "test"):
        write_leaf(root / "data" / split / "all_data.json", draw_users(2, ["ann"]))
    return f"leaf:{root / 'data'}"


def write_h5(root):
    root.mkdir()
    write_tff(root / "fed_train.h5", {"a": (np.zeros((1, 8, 8)), [0])})
    return f"tff:{root / 'fed_train.h5'}"


def write_pickle(root):
    (root / "train" / "task_0").mkdir(parents=True)
    (root / "train" / "task_0" / "train.pkl").write_bytes(b"")
    return "np.savez('data.npz'"


def write_info(root):
    (root / "part_0").mkdir(parents=True)
    (root / "part_0" / "dataset_info.json").write_text("{}")
    return f"hf:{root}"


@pytest.mark.parametrize(
    "write",
    [write_dealt, write_flbench, write_saved, write_info, write_parquet, write_splits, write_h5, write_pickle],
    ids=lambda write: write.__name__,
)
def test_import_names_the_prefix_when_another_library_wrote_the_folder(write, tmp_path):
    source = write(tmp_path / "a")
    with pytest.raises(UsageError, match=r"has no image, but|contains pickles") as error:
        read_dataset(tmp_path / "a")
    assert source in error.value.fix[0]


def test_import_names_the_prefix_when_a_file_is_in_the_layout_of_leaf(tmp_path):
    write_leaf(tmp_path / "all_data.json", {"ann": ([["1", "a", "b"]], [0])})
    with pytest.raises(UsageError, match="is JSON in LEAF's layout") as error:
        read_dataset(tmp_path / "all_data.json")
    assert error.value.fix[0] == f"pfl import leaf:{tmp_path / 'all_data.json'} -o DIR"
    assert "FEMNIST or Shakespeare" in error.value.fix[1]
