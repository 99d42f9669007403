"""The conversion of PFLlib's and FL-bench's folders on a page of the cookbook."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from test_cookbook import PAGES, run_page

DRAW = np.random.default_rng(0)
TRAIN, TEST = 10, 4


def draw_samples(count):
    return DRAW.integers(0, 256, (count, 8, 8), dtype=np.uint8), np.arange(count) % 3


def write_pfllib(clients):
    """Write images and labels per client and split as PFLlib does: float32, channels first, from -1 to 1."""
    for number, client in enumerate(clients):
        for split, (x, y) in client.items():
            path = Path("PFLlib/dataset/MNIST", split, f"{number}.npz")
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = ((x[:, None] / np.float32(255)) - np.float32(0.5)) / np.float32(0.5)
            with path.open("wb") as file:
                np.savez_compressed(file, data={"x": pixels, "y": y})


def write_flbench(x, y, clients):
    """Write images (n, 28, 28), their labels, and clients' indices of them, as FL-bench does for femnist."""
    folder = Path("FL-bench/data/femnist")
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "data.npy", x.reshape(len(x), -1))
    np.save(folder / "targets.npy", y)
    (folder / "partition.pkl").write_bytes(pickle.dumps({"separation": {}, "data_indices": clients}))


@pytest.fixture
def clients_of_both_libraries(tmp_path, monkeypatch):
    """Work in a folder with twelve clients of both libraries, and return those of PFLlib and all of FL-bench."""
    monkeypatch.chdir(tmp_path)
    dealt = [{"train": draw_samples(TRAIN), "test": draw_samples(TEST)} for _ in range(12)]
    write_pfllib(dealt)
    x, y = DRAW.integers(0, 256, (60, 28, 28)) / np.float32(255), np.arange(60) % 4
    rows = DRAW.permutation(60).reshape(2, 30)
    indices = [{"train": row[:15].tolist(), "val": row[15:20].tolist(), "test": row[20:]} for row in rows]
    write_flbench(x, y, indices)
    return dealt, (x, y, indices)


def run_functions():
    names = {}
    exec(re.search(r"^```python\n(.*?)^```", PAGES["pfllib-flbench"], flags=re.S | re.M)[1], names)
    return names


def test_clients_keep_their_test_samples_when_a_folder_is_converted(clients_of_both_libraries, pfl):
    assert not list(run_page("pfllib-flbench", pfl))
    dealt, (x, _, indices) = clients_of_both_libraries
    stored = partitions.read(open_artifact("runs/pfllib-p"))
    assert list(stored.names) == [f"{number:04d}" for number in range(12)]
    assert stored.sizes.tolist() == [[8, 2, TEST]] * 12
    for number, client in enumerate(dealt):
        first, last = stored.offsets[3 * number + 2 : 3 * number + 4]
        np.testing.assert_array_equal(stored.x[first:last, ..., 0], client["test"][0])
        np.testing.assert_array_equal(stored.y[first:last], client["test"][1])
    stored = partitions.read(open_artifact("runs/flbench-p"))
    assert stored.sizes.tolist() == [[15, 5, 10]] * 2
    for number, client in enumerate(indices):
        for at, rows in enumerate(client.values()):
            first, last = stored.offsets[3 * number + at : 3 * number + at + 2]
            pixels = np.rint(x[np.asarray(rows)] * 255).astype(np.uint8)
            assert sorted(map(bytes, stored.x[first:last])) == sorted(map(bytes, pixels))


def test_conversion_refuses_pfllib_when_a_sample_is_in_two_places(clients_of_both_libraries):
    dealt, _ = clients_of_both_libraries
    dealt[1]["test"] = dealt[0]["train"]
    write_pfllib(dealt)
    names = run_functions()
    with pytest.raises(SystemExit, match=r"10 samples are in two places, such as \[\(0, 'train'\), \(1, 'test'\)\]"):
        names["save"](names["read_pfllib"]("PFLlib/dataset/MNIST"), "pfllib.npz")
    assert not Path("pfllib.npz").exists()


def test_conversion_refuses_flbench_when_an_index_is_in_two_places(clients_of_both_libraries):
    _, (x, y, indices) = clients_of_both_libraries
    indices[1]["test"][0] = indices[0]["val"][2]
    write_flbench(x, y, indices)
    names = run_functions()
    with pytest.raises(SystemExit, match=rf"1 samples are in two places, such as sample {indices[0]['val'][2]}$"):
        list(names["read_flbench"]("FL-bench/data/femnist", x, y))


def test_conversion_writes_series_with_channels_last(clients_of_both_libraries):
    names = run_functions()
    x = DRAW.normal(size=(6, 9, 1, 16)).astype(np.float32)
    for split, rows in (("train", slice(0, 4)), ("test", slice(4, 6))):
        Path("PFLlib/dataset/HAR", split).mkdir(parents=True)
        data = {"x": x[rows], "y": np.arange(6)[rows] % 2}
        np.savez(f"PFLlib/dataset/HAR/{split}/0.npz", data=np.asarray(data, dtype=object))
    names["save"](names["read_pfllib"]("PFLlib/dataset/HAR"), "har.npz")
    np.testing.assert_array_equal(np.load("har.npz")["x_train"], np.moveaxis(x[:4, :, 0], 1, 2))
