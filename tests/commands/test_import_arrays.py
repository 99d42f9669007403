"""``pfl import`` reads arrays as images, series or numbers, and asks if their values do not tell which."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from importing import read_dataset, refuse
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.core.errors import InputError, PflError, UsageError
from pflcli.core.models import create
from pflcli.data.formats import arrays

DRAW = np.random.default_rng(0)
GREY = DRAW.integers(0, 256, (12, 16, 16), dtype=np.uint8)
RGB = DRAW.integers(0, 256, (12, 10, 9, 3), dtype=np.uint8)
GREY[0, 0, :2] = RGB[0, 0, 0, :2] = 0, 255
ROLES = {"y": np.arange(12) % 2, "owner": np.arange(12) // 6}


@pytest.fixture
def import_arrays(tmp_path):
    """Import arrays and return the dataset."""

    def run(x, **options):
        np.savez(tmp_path / "d.npz", x=x, **ROLES)
        return read_dataset(tmp_path / "d.npz", **options)

    return run


SPELLINGS = {
    "8 bits": lambda x: x,
    "0 to 1": lambda x: (x / 255).astype(np.float32),
    "0 to 1 in 64 bits": lambda x: x / 255,
    "0 to 255": lambda x: x.astype(np.float32),
    "nearly whole": lambda x: x + np.float32(0.004) * (x < 255),
    "-1 to 1": lambda x: (x / 127.5 - 1).astype(np.float32),
    "integers": lambda x: x.astype(np.int64),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("images", [GREY, RGB], ids=["grey", "colour"])
def test_import_gives_the_same_images_for_every_spelling_of_pixels(spelling, images, import_arrays):
    x = SPELLINGS[spelling](images)
    np.testing.assert_array_equal(import_arrays(x, samples="images").x, images)
    if images is RGB:
        np.testing.assert_array_equal(import_arrays(x).x, images)
        np.testing.assert_array_equal(import_arrays(x.transpose(0, 3, 1, 2), layout="channels-first").x, images)


def test_import_finds_the_channels_of_floating_point_images(import_arrays):
    first = (RGB / 255).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(import_arrays(first).x, RGB)
    np.testing.assert_array_equal(import_arrays((GREY / 255)[..., None]).x, GREY[..., None])
    with pytest.raises(UsageError, match="where are the channels"):
        import_arrays(np.zeros((12, 3, 9, 3)))


@pytest.mark.parametrize("spelling", list(SPELLINGS)[1:])
def test_import_asks_when_samples_can_be_images_or_series(spelling, import_arrays):
    x = SPELLINGS[spelling](GREY)
    with pytest.raises(UsageError, match="its samples are images or series") as error:
        import_arrays(x)
    assert [line.partition(" for")[0] for line in error.value.fix] == ["--samples images", "--samples series"]
    series = import_arrays(x, samples="series").x
    np.testing.assert_array_equal(series, x.astype(np.float32))


def test_import_asks_when_rectangles_have_the_values_of_pixels(import_arrays):
    for x in (GREY[:, :9] / 255, GREY[:, :9].astype(np.float32)):
        with pytest.raises(UsageError, match="its samples are images or series"):
            import_arrays(x)


@pytest.mark.parametrize(
    "x",
    [
        DRAW.normal(size=(12, 16, 16)),
        DRAW.random((12, 128, 6)),
        60 + 40 * DRAW.random((12, 48, 11)),
        np.where(DRAW.random((12, 16, 16)) < 0.1, np.nan, 0.5),
    ],
    ids=["negative", "few channels", "fractions", "missing values"],
)
def test_import_reads_series_when_they_cannot_be_images(x, import_arrays):
    assert import_arrays(x, missing="median").x.shape[:2] == x.shape[:2]


def test_import_keeps_images_of_other_numbers(import_arrays):
    x = DRAW.normal(size=(12, 3, 8, 8)).astype(np.float32)
    np.testing.assert_array_equal(import_arrays(x).x, x)
    assert "not scaled" in arrays.check_samples("x", x, None)[1]
    np.testing.assert_array_equal(import_arrays(x.transpose(0, 2, 3, 1)).x, x)
    unit = DRAW.random((12, 3, 8, 8)).astype(np.float32)
    np.testing.assert_array_equal(import_arrays(unit, samples="numbers").x, unit)
    read = import_arrays(unit).x
    assert "rounded to 8 bits" in arrays.check_samples("x", unit, None)[1]
    np.testing.assert_array_equal(read, np.rint(255 * unit).transpose(0, 2, 3, 1))
    pixels = DRAW.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    read = import_arrays(pixels, samples="numbers").x
    np.testing.assert_array_equal(read, pixels.transpose(0, 3, 1, 2).astype(np.float32))


@pytest.mark.parametrize(
    ("x", "samples"),
    [
        (np.full((12, 8, 8), 300.0), "images"),
        (np.full((12, 8, 8), -3.0), "images"),
        (np.full((12, 8, 8), np.nan), "images"),
        (np.full((12, 8, 8, 3), 4095, np.uint16), None),
    ],
)
def test_import_refuses_pixels_when_their_range_is_unknown(x, samples, import_arrays):
    with pytest.raises(PflError, match="from") as error:
        import_arrays(x, samples=samples)
    assert "--samples numbers" in "\n".join(error.value.fix)


def test_samples_option_is_recorded_and_reused_by_like(tmp_path):
    np.savez(tmp_path / "d.npz", x=GREY / 255, **ROLES)
    import_data(tmp_path / "d.npz", tmp_path / "out", samples="images")
    assert open_artifact(tmp_path / "out").manifest.request["samples"] == "images"
    np.savez(tmp_path / "new.npz", x=GREY / 255, **ROLES)
    np.testing.assert_array_equal(read_dataset(tmp_path / "new.npz", like=tmp_path / "out").x, GREY)


@pytest.mark.parametrize("upper", [False, True])
def test_import_keeps_the_splits_of_keras_arrays(upper, tmp_path):
    x = DRAW.integers(0, 256, (12, 5, 5), dtype=np.uint8)
    parts = {"x_train": x[:8], "y_train": np.arange(8) % 2, "x_test": x[8:], "y_test": np.arange(4) % 2}
    parts = {name.replace("x", "X") if upper else name: values for name, values in parts.items()}
    path = tmp_path / "d.npz"
    np.savez(path, **parts)
    refuse(UsageError, "--client is missing", path)
    import_data(path, tmp_path / "a", client="none")
    read = datasets.read(open_artifact(tmp_path / "a"))
    np.testing.assert_array_equal(read.x, x)
    assert (read.split.tolist(), read.y.tolist()) == ([0] * 8 + [2] * 4, [0, 1] * 6)
    partition(str(tmp_path / "a"), tmp_path / "p", scheme="iid", clients=2)
    assert partitions.read(open_artifact(tmp_path / "p")).sizes[:, 2].sum() == 4
    assert read_dataset(path, client="none", split_column="none").split is None
    owners = {"owner_train": np.arange(8) % 3, "owner_test": np.arange(4) % 3}
    np.savez(path, **parts, **owners)
    assert read_dataset(path).owner.tolist() == [str(n) for n in [*owners["owner_train"], 0, 1, 2, 0]]
    np.savez(path, **{**parts, "y_test": np.arange(3)})
    refuse(InputError, "4 x_test, 3 y_test", path, client="none")
    np.savez(path, **{**parts, "y_test": [0, 1, np.nan, 0]})
    refuse(InputError, r"y_test\[2\]: no value", path, client="none")


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_import_names_text_that_is_not_utf8(suffix, tmp_path):
    names = np.array([b"caf\xe9", b"th\xe9"] * 6)
    path = tmp_path / f"d{suffix}"
    if suffix == ".npz":
        np.savez(path, x=np.ones((12, 2)), y=names, owner=ROLES["owner"])
    else:
        with h5py.File(path, "w") as file:
            file.update({"x": np.ones((12, 2)), "y": names, "owner": ROLES["owner"]})
    with pytest.raises(InputError, match=r"'y'.* contains b'caf\\xe9', which is not UTF-8") as error:
        import_data(path, tmp_path / "out")
    assert "latin-1" in error.value.fix[0]


@pytest.mark.parametrize("model", ["cnn", "alexnet", "resnet-18", "mobilenet-v2", "cnn-valid"])
def test_model_refuses_images_that_are_too_small(model):
    with pytest.raises(UsageError, match=r"images of at least \d+x\d+ pixels, not 16x3 pixels with 16 channels"):
        create(model, (16, 16, 3), 2, 0, tokens=False)
