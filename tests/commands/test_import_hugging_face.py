"""Hugging Face datasets: what ``save_to_disk`` writes and what the hub stores, with and without clients."""

from __future__ import annotations

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.errors import InputError, PflError, UsageError
from pflcli.execution import Execution

library = pytest.importorskip("datasets", reason="the library datasets is not installed")
DRAW = np.random.default_rng(0)
NAMES = ["cat", "dog", "bird"]
IMAGE = {"_type": "Image"}
CLASSES = {"_type": "ClassLabel", "names": NAMES}
PNG = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def png(pixels):
    memory = io.BytesIO()
    Image.fromarray(pixels).save(memory, "PNG")
    return memory.getvalue()


def pictures(count, shape=(8, 8, 3)):
    return DRAW.integers(0, 256, (count, *shape), dtype=np.uint8)


def image_table(pixels, labels, **more):
    stored = [{"bytes": png(image), "path": f"{row}.png"} for row, image in enumerate(pixels)]
    columns = {"img": pa.array(stored, PNG), "label": pa.array(labels, pa.int64())}
    return described(pa.table(columns | more), img=IMAGE, label=CLASSES)


def described(table, **features):
    """The table with the features that `datasets` writes into its schema."""
    content = json.dumps({"info": {"features": features}})
    return table.replace_schema_metadata({"huggingface": content})


def save(folder, *tables):
    """Save the rows of all tables, in a file for each."""
    whole = library.Dataset(pa.concat_tables(tables))
    whole.save_to_disk(folder, num_shards=len(tables))


def save_splits(folder, **tables):
    library.DatasetDict({split: library.Dataset(table) for split, table in tables.items()}).save_to_disk(folder)


def numbers(count, first=0, **more):
    columns = {
        "writer": [f"w{row % 3}" for row in range(count)],
        "a": np.arange(first, first + count, dtype=float),
        "b": DRAW.normal(size=count),
        "label": [row % 2 for row in range(count)],
    }
    return described(pa.table(columns | more), label={"_type": "ClassLabel", "names": ["no", "yes"]})


@pytest.fixture
def take(tmp_path):
    """Import a folder and return the dataset that came of it."""

    def run(folder, **options):
        import_data(f"hf:{folder}", tmp_path / "out", execution=Execution(force=True), **options)
        return datasets.read(open_artifact(tmp_path / "out", "dataset"))

    return run


def test_images_with_splits_and_a_column_of_clients(tmp_path, take):
    train, test = pictures(9), pictures(3)
    save_splits(
        tmp_path / "a",
        train=image_table(train, np.arange(9) % 3, who=pa.array([f"w{row % 3}" for row in range(9)])),
        test=image_table(test, [2, 1, 0], who=pa.array(["w0", "w1", "w2"])),
    )
    read = take(tmp_path / "a", client="who")
    np.testing.assert_array_equal(read.x, np.concatenate([train, test]))
    assert read.classes == NAMES
    assert read.y.tolist() == [*(np.arange(9) % 3), 2, 1, 0]
    assert read.owner.tolist() == [f"w{row % 3}" for row in range(9)] + ["w0", "w1", "w2"]
    assert read.split.tolist() == [0] * 9 + [2] * 3
    partition(str(tmp_path / "out"), tmp_path / "p")
    assert partitions.read(open_artifact(tmp_path / "p")).sizes.tolist() == [[2, 1, 1]] * 3


def test_a_dataset_without_splits_in_several_files(tmp_path, take):
    images = pictures(7, (8, 8))
    save(tmp_path / "a", image_table(images[:4], [0, 1, 2, 0]), image_table(images[4:], [1, 2, 0]))
    read = take(tmp_path / "a", client="none", resize=4)
    assert (read.x.shape, read.owner, read.split) == ((7, 4, 4), None, None)
    assert read.y.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_each_folder_of_flower_is_a_client(tmp_path, take):
    images = [pictures(6) for _ in range(3)]
    for at, pixels in enumerate(images):
        save_splits(
            tmp_path / "a" / f"part_{at}",
            train=image_table(pixels[:4], [0, 1, 2, at]),
            test=image_table(pixels[4:], [2, at]),
        )
    read = take(tmp_path / "a")
    np.testing.assert_array_equal(read.x, np.concatenate(images))
    assert read.owner.tolist() == [f"part_{at}" for at in range(3) for _ in range(6)]
    assert read.split.tolist() == [0, 0, 0, 0, 2, 2] * 3
    with pytest.raises(UsageError, match="--client is for one table"):
        take(tmp_path / "a", client="label")
    read = take(tmp_path / "a", split_column="none")
    assert read.split is None
    (tmp_path / "a" / "server").mkdir()
    with pytest.raises(InputError, match="server is no saved dataset"):
        take(tmp_path / "a")


def test_splits_with_names_of_clients_are_clients(tmp_path, take):
    save_splits(tmp_path / "a", client_0=numbers(6), client_1=numbers(4, 6))
    read = take(tmp_path / "a", features="a,b")
    assert read.owner.tolist() == ["client_0"] * 6 + ["client_1"] * 4
    assert read.split is None
    assert read.x[:, 0].tolist() == list(range(10))
    assert read.features == ("a", "b")


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"),
        ("plain/train-0.parquet", "plain/test-0.parquet"),
        ("train/0000.parquet", "test/0000.parquet"),
        ("train.parquet", "validation.parquet"),
    ],
)
def test_parquet_files_of_the_hub(tmp_path, take, train, test):
    for name, table in ((train, numbers(6)), (test, numbers(3, 6))):
        (tmp_path / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, tmp_path / "a" / name)
    read = take(tmp_path / "a", client="writer")
    assert sorted(read.x[:, 0].tolist()) == list(range(9))
    assert read.owner is not None
    assert read.classes == ["no", "yes"]
    if "test" in test:
        of_split = dict(zip(read.x[:, 0].tolist(), read.split.tolist(), strict=True))
        assert of_split == {value: 0 if value < 6 else 2 for value in range(9)}
    else:
        assert read.split is None  # nothing to test on


def test_parquet_folders_of_clients(tmp_path, take):
    for client in ("ann", "bob"):
        for split in ("train", "test"):
            (tmp_path / "a" / client).mkdir(parents=True, exist_ok=True)
            pq.write_table(numbers(4), tmp_path / "a" / client / f"{split}.parquet")
    read = take(tmp_path / "a", features="b")
    assert sorted(set(zip(read.owner.tolist(), read.split.tolist(), strict=True))) == [
        ("ann", 0), ("ann", 2), ("bob", 0), ("bob", 2),
    ]  # fmt: skip


def test_arrays_of_a_column(tmp_path, take):
    vectors, series = DRAW.normal(size=(6, 5)).astype(np.float32), DRAW.normal(size=(6, 4, 2))
    pixels = pictures(6, (4, 4))
    table = numbers(6)
    for name, values in {"vector": vectors, "series": series, "pixels": pixels}.items():
        flat = pa.array(values.reshape(-1))
        for side in values.shape[:0:-1]:
            flat = pa.FixedSizeListArray.from_arrays(flat, side) if name != "series" else _lists(flat, side)
        table = table.append_column(name, flat)
    save(tmp_path / "a", table)
    for name, values in {"vector": vectors, "series": series, "pixels": pixels}.items():
        read = take(tmp_path / "a", client="writer", features=name)
        np.testing.assert_array_equal(read.x, values.astype(read.x.dtype))
        assert read.x.dtype == (np.uint8 if name == "pixels" else np.float32)
    with pytest.raises(UsageError, match="3 columns of arrays: vector, series, pixels"):
        take(tmp_path / "a", client="writer")


def _lists(flat, side):
    return pa.ListArray.from_arrays(pa.array(np.arange(0, len(flat) + 1, side), pa.int32()), flat)


def test_other_columns_of_classes_are_words_and_not_numbers(tmp_path, take):
    sex = {"_type": "ClassLabel", "names": ["female", "male"]}
    table = pa.table({"age": np.arange(12.0), "sex": [0, 1, -1] * 4, "ill": [0, 1] * 6})
    save(tmp_path / "a", described(table, sex=sex, ill={"_type": "ClassLabel", "names": ["no", "yes"]}))
    read = take(tmp_path / "a", client="none", label="ill", missing="median")
    assert read.features[:3] == ("age", "sex=female", "sex=male")
    np.testing.assert_array_equal(read.x[:2, 1:3], [[1, 0], [0, 1]])
    assert np.isnan(read.x[2, 1:3]).all()
    assert read.classes == ["no", "yes"]


def test_the_same_dataset_is_up_to_date_unless_its_splits_are_joined(tmp_path):
    save_splits(tmp_path / "a", train=numbers(6), test=numbers(3))
    source = f"hf:{tmp_path / 'a'}"
    import_data(source, tmp_path / "data", client="writer")
    assert import_data(source, tmp_path / "data", client="writer").decision == "up to date"
    with pytest.raises(PflError, match="made by another request"):
        import_data(source, tmp_path / "data", client="writer", split_column="none")


def test_what_is_left_out_is_named(tmp_path, pfl):
    words = {"caption": [f"words {row} of many" for row in range(6)], "sound": [{"rate": 1}] * 6}
    save_splits(tmp_path / "a", train=numbers(6, **words), test=numbers(6, **words), unsupervised=numbers(6, **words))
    more = {"who": pa.array(["a", "b"] * 3), "more": pa.array(range(6)), "caption": pa.array(words["caption"])}
    save(tmp_path / "b", image_table(pictures(6), [0, 1, 2] * 2, **more))
    said = pfl("import", f"hf:{tmp_path / 'a'}", "--client", "writer", "-o", tmp_path / "out").err
    assert "12 samples of 2 classes" in said
    assert "not taken over: split unsupervised" in said
    assert "left out, not numbers: caption" in said
    assert "not taken over: column sound\n" in said
    said = pfl("import", f"hf:{tmp_path / 'b'}", "--client", "who", "-o", tmp_path / "images").err
    assert "not taken over: columns more, caption\n" in said


def with_label(values):
    return described(
        pa.table({"who": ["a", "b"] * 3, "x": np.arange(6.0), "label": values}),
        label=CLASSES,
    )


TABLES = {
    "a class too many": (with_label([0, 1, 2, 3, 0, 1]), r"a, row 4 .*, column 'label': 3 is no class \(0 to 2\)"),
    "no label": (with_label([0, 1, 2, -1, 0, 1]), r"a, row 4 .*, column 'label': no value"),
    "a missing label": (with_label([0, 1, 2, None, 0, 1]), r"a, row 4 .*, column 'label': no value"),
    "a fraction": (
        pa.table({"who": ["a", "b"] * 3, "x": np.arange(6.0), "label": np.arange(6) / 4}),
        "is a quantity",
    ),
}


@pytest.mark.parametrize("case", TABLES)
def test_unfit_labels_are_named(tmp_path, take, case):
    table, message = TABLES[case]
    save(tmp_path / "a", table)
    with pytest.raises(InputError, match=message):
        take(tmp_path / "a", client="who", label="label")


def test_images_must_be_images(tmp_path, take):
    stored = [{"bytes": png(image), "path": ""} for image in pictures(3)]
    for case, (bad, message) in {
        "cut": ({"bytes": stored[2]["bytes"][:20], "path": ""}, r"row 3 .*, column 'img' cannot be read as an image"),
        "nothing": (None, r"row 3 .*: no image"),
        "another size": ({"bytes": png(pictures(1, (9, 8, 3))[0]), "path": ""}, r"row 3 .* has 8x9 pixels"),
    }.items():
        table = pa.table({"img": pa.array([*stored[:2], bad], PNG), "label": [0, 1, 0]})
        save(tmp_path / case, described(table, img=IMAGE, label=CLASSES))
        with pytest.raises(InputError, match=message):
            take(tmp_path / case, client="none")


def test_arrays_must_have_one_shape(tmp_path, take):
    for case, values in {"ragged": [[1.0, 2.0], [3.0], [4.0, 5.0]], "null": [[1.0, 2.0], None, [3.0, 4.0]]}.items():
        save(tmp_path / case, described(pa.table({"x": values, "label": [0, 1, 0]}), label=CLASSES))
        with pytest.raises(InputError, match=r"row 2 .*, column 'x': its shape differs from that of row 1"):
            take(tmp_path / case, client="none")
    save(tmp_path / "gap", described(pa.table({"x": [[1.0, None], [3.0, 4.0]], "label": [0, 1]}), label=CLASSES))
    with pytest.raises(InputError, match=r"row 1 .*, column 'x': no value"):
        take(tmp_path / "gap", client="none")


def test_missing_roles_are_named(tmp_path, take):
    save(tmp_path / "a", image_table(pictures(3), [0, 1, 2], coarse=pa.array([0, 0, 1])))
    with pytest.raises(UsageError, match="--client is missing"):
        take(tmp_path / "a")
    two = described(pa.table({"x": [1.0, 2.0], "fine": [0, 1], "coarse": [0, 1]}), fine=CLASSES, coarse=CLASSES)
    save(tmp_path / "b", two)
    with pytest.raises(UsageError, match="--label is missing: b has 2 columns of classes") as caught:
        take(tmp_path / "b", client="none")
    assert "--label COL, one of: fine, coarse" in caught.value.fix
    with pytest.raises(UsageError, match="--resize is for images"):
        take(tmp_path / "b", client="none", label="fine", resize=4)
    with pytest.raises(InputError, match="no column 'nothing'"):
        take(tmp_path / "b", client="none", label="nothing")


def test_splits_contradict_a_group(tmp_path, take):
    save_splits(tmp_path / "a", train=numbers(6), test=numbers(6))
    with pytest.raises(UsageError, match="--group contradicts the splits") as caught:
        take(tmp_path / "a", client="none", group="writer")
    assert caught.value.fix == ("--split-column none",)


DAMAGE = {
    "no state": lambda folder: (folder / "state.json").unlink(),
    "no file": lambda folder: next(folder.glob("*.arrow")).unlink(),
    "a cut file": lambda folder: [path.write_bytes(path.read_bytes()[:-200]) for path in folder.glob("*.arrow")],
    "noise": lambda folder: [path.write_bytes(bytes(range(256))) for path in folder.glob("*.arrow")],
    "another state": lambda folder: (folder / "state.json").write_text("[]"),
    "not JSON": lambda folder: (folder / "state.json").write_text("{"),
    "no splits": lambda folder: (folder.parent / "dataset_dict.json").write_text("{}"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_folders_are_refused(tmp_path, take, case):
    save_splits(tmp_path / "a", train=numbers(6), test=numbers(6))
    DAMAGE[case](tmp_path / "a" / "test")
    with pytest.raises(InputError, match="/a cannot be read as a saved dataset: "):
        take(tmp_path / "a", client="none")


def test_offsets_outside_the_file_are_refused(tmp_path, take):
    """They would end the process where pyarrow follows them."""
    words = pa.array([["aaaaa"], ["b"], ["c"]])
    save(tmp_path / "a", described(pa.table({"words": words, "x": [1.0, 2.0, 3.0], "label": [0, 1, 0]}), label=CLASSES))
    file = next((tmp_path / "a").glob("*.arrow"))
    offsets = np.asarray([0, 1, 2, 3], np.int32).tobytes()
    content = file.read_bytes()
    assert content.count(offsets) == 1
    file.write_bytes(content.replace(offsets, np.asarray([0, 1, 2, 2**30], np.int32).tobytes()))
    with pytest.raises(InputError, match=r"arrow cannot be read as Arrow: .*offset"):
        take(tmp_path / "a", client="none")


def test_other_folders_are_refused(tmp_path, take):
    with pytest.raises(InputError, match="nowhere does not exist"):
        take(tmp_path / "nowhere")
    (tmp_path / "a").mkdir()
    with pytest.raises(InputError, match="contains no Hugging Face dataset"):
        take(tmp_path / "a")
    save_splits(tmp_path / "b" / "one", train=numbers(6), test=numbers(6))
    save(tmp_path / "b" / "two", numbers(6))
    with pytest.raises(InputError, match="two is in no split, but one/train is in 'train'"):
        take(tmp_path / "b")
    save(tmp_path / "c" / "one", numbers(6))
    save(tmp_path / "c" / "two", numbers(6).drop_columns(["b"]))
    with pytest.raises(InputError, match="two has other columns than one") as caught:
        take(tmp_path / "c")
    assert caught.value.fix == ("they differ in: b",)
    save(tmp_path / "d", numbers(0))
    with pytest.raises(InputError, match="d has no samples"):
        take(tmp_path / "d")


def test_what_the_library_saves(tmp_path, take):
    images = pictures(8)
    content = {"image": [Image.fromarray(image) for image in images], "label": [0, 1, 2, 0, 1, 2, 0, 1]}
    features = library.Features({"image": library.Image(), "label": library.ClassLabel(names=NAMES)})
    whole = library.Dataset.from_dict(content, features=features)
    for part, rows in {"part_0": [6, 0, 3, 1], "part_1": [7, 2, 4, 5]}.items():
        whole.select(rows).train_test_split(test_size=1, shuffle=False).save_to_disk(tmp_path / "a" / part)
    read = take(tmp_path / "a")
    np.testing.assert_array_equal(read.x, images[[6, 0, 3, 1, 7, 2, 4, 5]])
    assert read.split.tolist() == [0, 0, 0, 2] * 2
    assert read.classes == NAMES
    (tmp_path / "b").mkdir()
    whole.to_parquet(tmp_path / "b" / "train-00000-of-00001.parquet")
    np.testing.assert_array_equal(take(tmp_path / "b", client="none").x, images)
    matrix = library.Features({"x": library.Array2D((2, 3), "float32"), "label": library.ClassLabel(names=NAMES)})
    values = DRAW.normal(size=(4, 2, 3)).astype(np.float32)
    library.Dataset.from_dict({"x": list(values), "label": [0, 1, 2, 0]}, features=matrix).save_to_disk(tmp_path / "c")
    np.testing.assert_array_equal(take(tmp_path / "c", client="none").x, values)
