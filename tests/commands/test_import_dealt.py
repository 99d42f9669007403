"""Folders dealt by PFLlib and FL-bench: clients keep their samples and test samples, and nothing is executed."""

from __future__ import annotations

import io
import json
import pickle
import zipfile

import numpy as np
import pytest

from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.data.formats import plain_pickle
from pflcli.errors import InputError, PflError, UsageError
from pflcli.execution import Execution

DRAW = np.random.default_rng(0)


def pixels(count, shape=(28, 28)):
    return DRAW.integers(0, 256, (count, *shape), dtype=np.uint8)


def normalized(images):
    """What PFLlib stores of images (n, H, W) or (n, H, W, 3): float32, channels first, from -1 to 1."""
    images = images[..., None] if images.ndim == 3 else images
    return ((images.transpose(0, 3, 1, 2) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)).astype(np.float32)


def write_pfllib(root, clients, **config):
    """Write ``clients``, a dict of (x, y) by split for each, as PFLlib's ``save_file`` does."""
    for split in ("train", "test"):
        (root / split).mkdir(parents=True, exist_ok=True)
        for number, client in enumerate(clients):
            x, y = client[split]
            with (root / split / f"{number}.npz").open("wb") as file:
                np.savez_compressed(file, data={"x": x, "y": y})
    if config:
        (root / "config.json").write_text(json.dumps({"num_clients": len(clients), **config}))
    return f"pfllib:{root}"


def features(sizes=((9, 3), (6, 4), (5, 0)), classes=3):
    """Clients with this many training and test samples of two features."""
    return [
        {
            split: (DRAW.normal(size=(count, 2)).astype(np.float32), np.arange(count) % classes)
            for split, count in zip(("train", "test"), pair, strict=True)
        }
        for pair in sizes
    ]


def test_clients_of_pfllib_keep_their_images_and_test_samples(tmp_path):
    images = [{"train": pixels(10), "test": pixels(4)} for _ in range(12)]
    labels = [{split: DRAW.integers(0, 3, len(x)) for split, x in client.items()} for client in images]
    clients = [
        {split: (normalized(client[split]), labels[number][split]) for split in client}
        for number, client in enumerate(images)
    ]
    import_data(write_pfllib(tmp_path / "MNIST", clients, num_classes=4, batch_size=10), tmp_path / "data")
    stored = datasets.read(open_artifact(tmp_path / "data"))
    assert stored.classes == ["0", "1", "2", "3"]  # the network of PFLlib has four outputs too
    np.testing.assert_array_equal(
        stored.x, np.concatenate([client[split] for client in images for split in ("train", "test")])
    )
    partition(str(tmp_path / "data"), tmp_path / "p")
    dealt = partitions.read(open_artifact(tmp_path / "p"))
    assert list(dealt.names) == [f"{number:02d}" for number in range(12)]  # in PFLlib's order, not 0, 1, 10, 11, 2
    assert dealt.sizes.tolist() == [[8, 2, 4]] * 12
    for number in range(12):
        first, _, test, last = dealt.offsets[3 * number : 3 * number + 4]
        np.testing.assert_array_equal(dealt.x[test:last], images[number]["test"])
        np.testing.assert_array_equal(dealt.y[test:last], labels[number]["test"])
        learned = sorted(x.tobytes() for x in dealt.x[first:test])
        assert learned == sorted(x.tobytes() for x in images[number]["train"])


def test_fractions_may_keep_all_training_samples(tmp_path):
    import_data(write_pfllib(tmp_path / "a", features()), tmp_path / "data")
    partition(str(tmp_path / "data"), tmp_path / "p", fractions=(1, 0, 0))
    assert partitions.read(open_artifact(tmp_path / "p")).sizes.tolist() == [[9, 0, 3], [6, 0, 4], [5, 0, 0]]


@pytest.mark.parametrize(
    ("stored", "shape"),
    [
        ((3, 8, 8), (8, 8, 3)),
        ((1, 8, 8), (8, 8)),
        ((9, 1, 16), (16, 9)),
        ((16, 9), (16, 9)),
        ((5,), (5,)),
    ],
)
def test_shapes_of_pfllib(tmp_path, stored, shape):
    scale = 255 if shape[0] == 8 else 1
    x = DRAW.integers(0, 256, (6, *stored)).astype(np.float32) / scale
    clients = [{"train": (x[:4], np.arange(4) % 2), "test": (x[4:], np.arange(2))}]
    import_data(write_pfllib(tmp_path / "a", clients), tmp_path / "data")
    read = datasets.read(open_artifact(tmp_path / "data"))
    assert read.x.shape == (6, *shape)
    assert read.x.dtype == (np.uint8 if scale == 255 else np.float32)
    expected = np.moveaxis(x.reshape(6, stored[0], -1) * scale, 1, -1) if len(stored) == 3 else x
    np.testing.assert_allclose(np.asarray(read.x).reshape(expected.shape), expected, atol=1e-4)


class Bomb:
    """Runs a program when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def npz_of(content, **more):
    """An NPZ file with the pickle ``content`` as an array of one object."""
    npy, whole = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(npy, {"descr": "|O", "fortran_order": False, "shape": ()} | more)
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("data.npy", npy.getvalue() + content)
    return whole.getvalue()


@pytest.mark.parametrize("nested", [False, True])
def test_no_object_is_created(tmp_path, nested):
    bomb = Bomb(tmp_path / "executed")
    source = write_pfllib(tmp_path / "a", features())
    value = {"x": [bomb], "y": [0]} if nested else bomb
    (tmp_path / "a" / "train" / "1.npz").write_bytes(npz_of(pickle.dumps(np.asarray(value, dtype=object))))
    with pytest.raises(InputError, match=r"train/1\.npz contains an object of (io|_io)\.open; pfl loads only numbers"):
        import_data(source, tmp_path / "data")
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "data").exists()


HOSTILE = {
    "a function of NumPy": b"cnumpy\nload\n(S'x'\ntR.",
    "an attribute of a module": b"\x80\x04\x8c\x05numpy\x8c\x0bndarray.any\x93.",
    "an extension": b"\x80\x02\x82\x01.",
    "a persistent name": b"Pname\n.",
    "a type with fields": b"cnumpy\ndtype\n(S'V8'\nI0\nI1\ntR.",
    "a bare name": b"cnumpy\nndarray\n.",
    "another type": b"cnumpy.core.multiarray\n_reconstruct\n(I0\nI0\nI0\ntR"
    b"(I1\n(I1\ntcnumpy\ndtype\n(S'V8'\ntRI00\nC\x00tb.",
    "attributes of a name": b"cnumpy\nndarray\n(dS'__defaults__'\n(I1\ntstb.",
    "a shape that lies": pickle.dumps(np.arange(3)).replace(b"K\x03\x85", b"K\x7f\x85"),
    "no end": pickle.dumps(np.arange(3))[:-20],
    "a list in itself": b"(lp0\ng0\na.",
    "terabytes": b"\x80\x04\x8e" + (1 << 42).to_bytes(8, "little"),
    "terabytes to fill": b"\x80\x05\x96" + (1 << 42).to_bytes(8, "little"),
    "nothing": b"",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_pickles_are_refused(tmp_path, case):
    source = write_pfllib(tmp_path / "a", features())
    (tmp_path / "a" / "test" / "0.npz").write_bytes(npz_of(HOSTILE[case]))
    with pytest.raises(InputError, match=r"test/0\.npz"):
        import_data(source, tmp_path / "data")


@pytest.mark.parametrize("protocol", range(2, 6))
def test_pickles_of_arrays_are_read_as_they_are(protocol):
    value = {
        "x": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "foreign": np.arange(3, dtype=">i4"),
        "flags": np.asarray([True, False]),
        "words": np.asarray(["a", "longer"]),
        "number": np.float64(0.5),
        "list": [1, 2.5, "x", None, (True, [np.arange(2)])],
        "objects": np.asarray([1, "a"], dtype=object),
        3: np.zeros((0, 2)),
    }
    read = plain_pickle.load(pickle.dumps(value, protocol), "it")
    assert list(read) == list(value)
    for key in ("x", "fortran", "foreign", "flags", "words", 3):
        np.testing.assert_array_equal(read[key], value[key])
        assert read[key].dtype == value[key].dtype
    assert read["number"] == 0.5
    assert read["list"][:4] == [1, 2.5, "x", None]
    np.testing.assert_array_equal(read["list"][4][1][0], np.arange(2))
    assert read["objects"] == [1, "a"]


def replace(number, split, x=None, y=None):
    """Return a change of one file of dealt clients."""

    def change(clients):
        old = clients[number][split]
        clients[number][split] = (old[0] if x is None else x, old[1] if y is None else y)

    return change


WRONG = {
    "complex samples": (
        replace(0, "train", x=np.ones((9, 2), complex)),
        r"train/0\.npz contains an array of type 'c16'",
    ),
    "words as samples": (replace(0, "train", x=np.full((9, 2), "a")), r"train/0\.npz: x has type <U1, not numbers"),
    "texts": (
        replace(0, "train", x=np.asarray([([1, 2], 2)] * 9, dtype=object)),
        r"train/0\.npz: x is not an array of numbers, such as the texts",
    ),
    "fractions as labels": (
        replace(1, "test", y=np.full(4, 0.5)),
        r"test/1\.npz: y\[0\]: '0\.5' is neither in 'classes'",
    ),
    "words as labels": (replace(1, "test", y=np.full(4, "cat")), r"test/1\.npz: y\[0\]: 'cat' is neither in 'classes'"),
    "a class too many": (replace(1, "test", y=np.full(4, 3)), r"test/1\.npz: y\[0\]: '3' is neither .* 0 to 2"),
    "one-hot labels": (replace(1, "test", y=np.zeros((4, 3))), r"test/1\.npz: y has shape \(4, 3\)"),
    "a label too few": (replace(1, "test", y=np.zeros(3, int)), r"test/1\.npz: y has shape \(3,\), but x has 4"),
    "another width": (replace(1, "test", x=np.zeros((4, 3))), r"test/1\.npz: samples have shape \(3,\), but .* \(2,\)"),
    "a gap": (replace(2, "train", x=np.full((5, 2), np.nan)), r"train/2\.npz: x\[0, 0\]: no value"),
}


@pytest.mark.parametrize("case", WRONG)
def test_unfit_arrays_are_named(tmp_path, case):
    change, message = WRONG[case]
    clients = features()
    change(clients)
    with pytest.raises(InputError, match=message):
        import_data(write_pfllib(tmp_path / "a", clients, num_classes=3), tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_every_client_needs_training_samples_and_one_needs_test_samples(tmp_path):
    with pytest.raises(InputError, match="client '1' has no training samples"):
        import_data(write_pfllib(tmp_path / "a", features([(9, 3), (0, 4)])), tmp_path / "data")
    with pytest.raises(InputError, match="b has no test samples"):
        import_data(write_pfllib(tmp_path / "b", features([(9, 0), (4, 0)])), tmp_path / "data")
    with pytest.raises(InputError, match="c has no training samples"):
        import_data(write_pfllib(tmp_path / "c", features([(0, 2), (0, 3)])), tmp_path / "data")


def test_pixels_that_were_not_8_bit_are_refused(tmp_path):
    x = DRAW.normal(size=(6, 3, 8, 8)).astype(np.float32)
    clients = [{"train": (x[:4], np.arange(4) % 2), "test": (x[4:], np.arange(2))}]
    with pytest.raises(InputError, match=r"train/0\.npz: x contains .*, which is no pixel of an 8-bit image"):
        import_data(write_pfllib(tmp_path / "a", clients), tmp_path / "data")
    x[...] = np.nan
    with pytest.raises(InputError, match=r"train/0\.npz: x contains nan"):
        import_data(write_pfllib(tmp_path / "b", clients), tmp_path / "data")


def damaged(root, case):
    file = root / "train" / "1.npz"
    if case == "cut":
        file.write_bytes(file.read_bytes()[:-30])
    elif case == "changed":
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 255
        file.write_bytes(bytes(content))
    elif case == "plain arrays":
        np.savez(file, x=np.zeros((3, 2)), y=np.zeros(3))
    elif case == "a plain array":
        np.savez(file, data=np.zeros((3, 2)))
    elif case == "no labels":
        np.savez(file, data={"x": np.zeros((3, 2))})
    elif case == "absent":
        file.unlink()
    elif case == "config":
        (root / "config.json").write_text("{")
    elif case == "fewer clients":
        (root / "config.json").write_text('{"num_clients": 2}')
    elif case == "more clients":
        (root / "config.json").write_text('{"num_clients": 5}')
    elif case == "no clients":
        (root / "config.json").write_text('{"num_clients": "3"}')


DAMAGE = {
    "cut": r"train/1\.npz cannot be read as NPZ",
    "changed": r"train/1\.npz cannot be read as NPZ",
    "plain arrays": r"train/1\.npz has no array 'data'",
    "a plain array": r"train/1\.npz: array 'data' is not a dict of x and y",
    "no labels": r"train/1\.npz: array 'data' is not a dict of x and y",
    "absent": r"train/1\.npz does not exist, but there are 3 clients",
    "config": r"config\.json cannot be read as JSON",
    "fewer clients": r"train/2\.npz belongs to no client: there are 2",
    "more clients": r"train/3\.npz does not exist, nor those of 1 other client, but there are 5 clients",
    "no clients": r"config\.json: num_clients is 3, not a positive number",
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_folders_are_refused(tmp_path, case):
    source = write_pfllib(tmp_path / "a", features())
    damaged(tmp_path / "a", case)
    with pytest.raises(InputError, match=DAMAGE[case]):
        import_data(source, tmp_path / "data")


def test_other_folders_are_refused_with_the_right_one(tmp_path):
    write_pfllib(tmp_path / "a" / "MNIST", features())
    with pytest.raises(InputError, match=r"has no train/0\.npz") as caught:
        import_data(f"pfllib:{tmp_path / 'a'}", tmp_path / "data")
    assert f"pfllib:{tmp_path / 'a' / 'MNIST'}" in caught.value.fix
    for form in ("pfllib", "flbench"):
        with pytest.raises(InputError, match="nowhere does not exist"):
            import_data(f"{form}:{tmp_path / 'nowhere'}", tmp_path / "data")
        with pytest.raises(UsageError, match="names no folder"):
            import_data(f"{form}:", tmp_path / "data")
    write_pfllib(tmp_path / "Shakespeare", features())
    with pytest.raises(InputError, match="Shakespeare contains texts as numbers of characters"):
        import_data(f"pfllib:{tmp_path / 'Shakespeare'}", tmp_path / "data")
    with pytest.raises(PflError, match="is inside its source"):
        import_data(f"pfllib:{tmp_path / 'a' / 'MNIST'}", tmp_path / "a" / "MNIST" / "data")


@pytest.mark.parametrize("option", [{"client": "c"}, {"label": "y"}, {"features": "x"}, {"split_column": "s"}])
def test_the_folder_gives_clients_labels_and_splits(tmp_path, option):
    with pytest.raises(UsageError, match=r"gives clients, labels and splits"):
        import_data(write_pfllib(tmp_path / "a", features()), tmp_path / "data", **option)


def test_the_same_folder_is_up_to_date_and_a_changed_one_is_not(tmp_path):
    source = write_pfllib(tmp_path / "a", features())
    import_data(source, tmp_path / "data")
    assert import_data(source, tmp_path / "data").decision == "up to date"
    write_pfllib(tmp_path / "a", features())
    with pytest.raises(PflError, match="made by another request"):
        import_data(source, tmp_path / "data")
    assert import_data(source, tmp_path / "data", execution=Execution(force=True)).decision != "up to date"


def test_the_recorded_command_names_the_folder_from_the_artifact(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pfllib(tmp_path / "in" / "a", features())
    (tmp_path / "runs").mkdir()
    import_data("pfllib:in/a", "runs/data")
    assert open_artifact(tmp_path / "runs" / "data").manifest.made["command"] == "pfl import pfllib:../in/a -o ./data"


def write_flbench(root, indices, dataset="synthetic", **args):
    """Write the partition as FL-bench's ``generate_data.py`` does."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "partition.pkl").open("wb") as file:
        pickle.dump({"separation": {"train": [0], "total": len(indices)}, "data_indices": indices}, file)
    (root / "args.json").write_text(json.dumps({"dataset": dataset, "split": "sample", "seed": 42, **args}))
    return f"flbench:{root}"


def synthetic(root, count=30):
    root.mkdir()
    x, y = DRAW.normal(size=(count, 4)), np.arange(count) % 3
    np.save(root / "data.npy", x)
    np.save(root / "targets.npy", y.astype(np.int32))
    return x, y


def test_clients_of_flbench_keep_their_samples(tmp_path):
    x, y = synthetic(tmp_path / "a")
    rows = DRAW.permutation(30).astype(np.int32)
    indices = [
        {"train": rows[:6], "val": rows[6:8], "test": rows[8:11]},
        {"train": rows[11:17].tolist(), "val": [], "test": rows[17:19].tolist()},
        {"train": [np.int64(row) for row in rows[19:22]], "val": [], "test": rows[:0]},
    ]
    import_data(write_flbench(tmp_path / "a", indices), tmp_path / "data")
    partition(str(tmp_path / "data"), tmp_path / "p")
    dealt = partitions.read(open_artifact(tmp_path / "p"))
    assert dealt.sizes.tolist() == [[6, 2, 3], [6, 0, 2], [3, 0, 0]]
    for number, client in enumerate(indices):
        for place, split in enumerate(("train", "val", "test")):
            first, last = dealt.offsets[3 * number + place :][:2]
            chosen = np.asarray(client[split], dtype=int)
            np.testing.assert_array_equal(dealt.x[first:last], x[chosen].astype(np.float32))
            np.testing.assert_array_equal(dealt.y[first:last], y[chosen])


def test_flbench_numbers_training_images_before_test_images(tmp_path):
    (tmp_path / "a").mkdir()
    images, labels = pixels(20, (32, 32, 3)), np.arange(20) % 10
    np.savez(
        tmp_path / "a" / "cifar10_12k.npz",
        x_train=images[:15], y_train=labels[:15], x_test=images[15:], y_test=labels[15:],
    )  # fmt: skip
    indices = [{"train": [3, 16, 0], "val": [], "test": [19]}, {"train": [7, 18], "val": [], "test": [1]}]
    import_data(write_flbench(tmp_path / "a", indices, "cifar10"), tmp_path / "data")
    stored = datasets.read(open_artifact(tmp_path / "data"))
    np.testing.assert_array_equal(stored.x, images[[3, 16, 0, 19, 7, 18, 1]])
    assert stored.classes[3] == "cat"
    assert stored.owner.tolist() == ["0"] * 4 + ["1"] * 3


@pytest.mark.parametrize("args", [{}, {"super_class": True}])
def test_superclasses_of_flbench_are_those_of_cifar100(tmp_path, args):
    (tmp_path / "a").mkdir()
    images, fine = pixels(6, (32, 32, 3)), np.asarray([4, 0, 99, 55, 72, 1])  # beaver, apple, worm, otter, seal, fish
    np.savez(
        tmp_path / "a" / "cifar100_12k.npz",
        x_train=images[:4], y_train=fine[:4], x_test=images[4:], y_test=fine[4:],
    )  # fmt: skip
    indices = [{"train": [0, 3], "val": [], "test": [4]}, {"train": [1, 5], "val": [], "test": [2]}]
    import_data(write_flbench(tmp_path / "a", indices, "cifar100", **args), tmp_path / "data")
    stored = datasets.read(open_artifact(tmp_path / "data"))
    assert len(stored.classes) == (20 if args else 100)
    # All three aquatic mammals are of superclass 0 in FL-bench's own numbering.
    assert stored.y.tolist() == ([0, 0, 0, 4, 1, 13] if args else [4, 55, 72, 0, 1, 99])


def test_femnist_of_flbench_is_read_as_images(tmp_path):
    (tmp_path / "a").mkdir()
    images = pixels(6)
    np.save(tmp_path / "a" / "data.npy", images.reshape(6, 784) / 255)
    np.save(tmp_path / "a" / "targets.npy", np.asarray([0, 61, 5, 7, 9, 9]))
    indices = [{"train": [0, 1], "test": [2]}, {"train": [4, 3], "test": [5]}]
    import_data(write_flbench(tmp_path / "a", indices, "femnist"), tmp_path / "data")
    stored = datasets.read(open_artifact(tmp_path / "data"))
    np.testing.assert_array_equal(stored.x, images[[0, 1, 2, 4, 3, 5]])
    assert len(stored.classes) == 62


FLBENCH = {
    "an index too large": ({"train": [0, 30], "test": [1]}, {}, r"client 0: train index 30 is not below 30"),
    "a negative index": ({"train": [0, -1], "test": [1]}, {}, r"client 0: train index -1 is not below 30"),
    "a fraction": ({"train": [0.5], "test": [1]}, {}, r"client 0: its train indices are not whole numbers"),
    "a test sample that is trained on": (
        {"train": [0, 1, 7], "test": [7]},
        {},
        "sample 7 is in client 0, train and in client 0, test",
    ),
    "a training sample of another client": (
        {"train": [0, 5], "test": [1]},
        {},
        "sample 5 is in client 0, train and in client 1, test",
    ),
    "a sample for validation": (
        {"train": [0, 9], "val": [9], "test": [1]},
        {},
        "sample 9 is in client 0, train and in client 0, validation",
    ),
    "a sample twice": ({"train": [0, 0], "test": [1]}, {}, "sample 0 is in client 0, train and in client 0, train"),
    "a list alone": ([0, 1], {}, "client 0 has no train and test indices"),
    "clients apart": ({"train": [], "test": [1]}, {"split": "user"}, "dealt with --split user"),
    "another dataset": ({"train": [0], "test": [1]}, {"dataset": "svhn"}, "does not read FL-bench's dataset 'svhn'"),
    "another root": ({"train": [0], "test": [1]}, {"dataset": "mnist"}, "mnist is not included in pfl"),
}


@pytest.mark.parametrize("case", FLBENCH)
def test_unfit_partitions_of_flbench_are_named(tmp_path, case):
    client, args, message = FLBENCH[case]
    synthetic(tmp_path / "a")
    good = {"train": [2, 3, 4], "test": [5]}
    with pytest.raises(PflError, match=message):
        import_data(write_flbench(tmp_path / "a", [client, good], **args), tmp_path / "data")


def test_files_of_flbench_are_not_executed(tmp_path):
    synthetic(tmp_path / "a")
    source = write_flbench(tmp_path / "a", [{"train": [2, 3, 4], "test": [5]}])
    (tmp_path / "a" / "partition.pkl").write_bytes(pickle.dumps({"data_indices": [Bomb(tmp_path / "executed")]}))
    with pytest.raises(InputError, match=r"partition\.pkl contains an object of (io|_io)\.open"):
        import_data(source, tmp_path / "data")
    assert not (tmp_path / "executed").exists()
    (tmp_path / "a" / "partition.pkl").unlink()
    with pytest.raises(InputError, match=r"has no partition\.pkl"):
        import_data(source, tmp_path / "data")
