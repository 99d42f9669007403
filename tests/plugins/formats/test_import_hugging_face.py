"""Hugging Face datasets: what ``save_to_disk`` writes and what the hub stores, with and without clients."""

from __future__ import annotations

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from importing import import_and_read, read_dataset, refuse
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.core.errors import InputError, PflError, UsageError

library = pytest.importorskip("datasets", reason="the library datasets is not installed")
DRAW = np.random.default_rng(0)
NAMES = ["cat", "dog", "bird"]
IMAGE = {"_type": "Image"}
CLASSES = {"_type": "ClassLabel", "names": NAMES}
PNG = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def read_saved(folder, **options):
    return read_dataset(f"hf:{folder}", **options)


def refuse_saved(kind, expected, folder, **options):
    return refuse(kind, expected, f"hf:{folder}", **options)


def encode_png(pixels):
    memory = io.BytesIO()
    Image.fromarray(pixels).save(memory, "PNG")
    return memory.getvalue()


def draw_images(count, shape=(8, 8, 3)):
    return DRAW.integers(0, 256, (count, *shape), dtype=np.uint8)


def image_table(pixels, labels, **more):
    stored = [{"bytes": encode_png(image), "path": f"{row}.png"} for row, image in enumerate(pixels)]
    columns = {"img": pa.array(stored, PNG), "label": pa.array(labels, pa.int64())}
    return describe_features(pa.table(columns | more), img=IMAGE, label=CLASSES)


def describe_features(table, **features):
    """The table with the features that `datasets` writes into its schema."""
    content = json.dumps({"info": {"features": features}})
    return table.replace_schema_metadata({"huggingface": content})


def save(folder, *tables):
    """Save the rows of all tables, in a file for each."""
    whole = library.Dataset(pa.concat_tables(tables))
    whole.save_to_disk(folder, num_shards=len(tables))


def save_splits(folder, **tables):
    library.DatasetDict({split: library.Dataset(table) for split, table in tables.items()}).save_to_disk(folder)


def make_numbers(count, first=0, **more):
    columns = {
        "writer": [f"w{row % 3}" for row in range(count)],
        "a": np.arange(first, first + count, dtype=float),
        "b": DRAW.normal(size=count),
        "label": [row % 2 for row in range(count)],
    }
    return describe_features(pa.table(columns | more), label={"_type": "ClassLabel", "names": ["no", "yes"]})


def test_import_reads_images_with_splits_and_a_client_column(tmp_path):
    train, test = draw_images(9), draw_images(3)
    save_splits(
        tmp_path / "a",
        train=image_table(train, np.arange(9) % 3, who=pa.array([f"w{row % 3}" for row in range(9)])),
        test=image_table(test, [2, 1, 0], who=pa.array(["w0", "w1", "w2"])),
    )
    read = import_and_read(f"hf:{tmp_path / 'a'}", tmp_path / "out", client="who")
    np.testing.assert_array_equal(read.x, np.concatenate([train, test]))
    assert read.classes == NAMES
    assert read.y.tolist() == [*(np.arange(9) % 3), 2, 1, 0]
    assert read.owner.tolist() == [f"w{row % 3}" for row in range(9)] + ["w0", "w1", "w2"]
    assert read.split.tolist() == [0] * 9 + [2] * 3
    partition(str(tmp_path / "out"), tmp_path / "p")
    assert partitions.read(open_artifact(tmp_path / "p")).sizes.tolist() == [[2, 1, 1]] * 3


def test_import_reads_a_saved_dataset_in_several_files(tmp_path):
    images = draw_images(7, (8, 8))
    save(tmp_path / "a", image_table(images[:4], [0, 1, 2, 0]), image_table(images[4:], [1, 2, 0]))
    read = read_saved(tmp_path / "a", client="none", resize=4)
    assert (read.x.shape, read.owner, read.split) == ((7, 4, 4), None, None)
    assert read.y.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_import_reads_each_folder_of_flower_as_a_client(tmp_path):
    images = [draw_images(6) for _ in range(3)]
    for at, pixels in enumerate(images):
        save_splits(
            tmp_path / "a" / f"part_{at}",
            train=image_table(pixels[:4], [0, 1, 2, at]),
            test=image_table(pixels[4:], [2, at]),
        )
    read = read_saved(tmp_path / "a")
    np.testing.assert_array_equal(read.x, np.concatenate(images))
    assert read.owner.tolist() == [f"part_{at}" for at in range(3) for _ in range(6)]
    assert read.split.tolist() == [0, 0, 0, 0, 2, 2] * 3
    refuse_saved(UsageError, "--client is for one table", tmp_path / "a", client="label")
    read = read_saved(tmp_path / "a", split_column="none")
    assert read.split is None
    (tmp_path / "a" / "server").mkdir()
    refuse_saved(InputError, "server is no saved dataset", tmp_path / "a")


def test_import_reads_splits_named_after_clients_as_clients(tmp_path):
    save_splits(tmp_path / "a", client_0=make_numbers(6), client_1=make_numbers(4, 6))
    read = read_saved(tmp_path / "a", features="a,b")
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
def test_import_reads_parquet_files_of_the_hub(tmp_path, train, test):
    for name, table in ((train, make_numbers(6)), (test, make_numbers(3, 6))):
        (tmp_path / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, tmp_path / "a" / name)
    read = read_saved(tmp_path / "a", client="writer")
    assert sorted(read.x[:, 0].tolist()) == list(range(9))
    assert read.owner is not None
    assert read.classes == ["no", "yes"]
    if "test" in test:
        of_split = dict(zip(read.x[:, 0].tolist(), read.split.tolist(), strict=True))
        assert of_split == {value: 0 if value < 6 else 2 for value in range(9)}
    else:
        assert read.split is None  # nothing to test on


def test_import_reads_parquet_folders_as_clients(tmp_path):
    for client in ("ann", "bob"):
        for split in ("train", "test"):
            (tmp_path / "a" / client).mkdir(parents=True, exist_ok=True)
            pq.write_table(make_numbers(4), tmp_path / "a" / client / f"{split}.parquet")
    read = read_saved(tmp_path / "a", features="b")
    assert sorted(set(zip(read.owner.tolist(), read.split.tolist(), strict=True))) == [
        ("ann", 0), ("ann", 2), ("bob", 0), ("bob", 2),
    ]  # fmt: skip


def test_import_reads_columns_of_arrays(tmp_path):
    vectors, series = DRAW.normal(size=(6, 5)).astype(np.float32), DRAW.normal(size=(6, 4, 2))
    pixels = draw_images(6, (4, 4))
    table = make_numbers(6)
    for name, values in {"vector": vectors, "series": series, "pixels": pixels}.items():
        flat = pa.array(values.reshape(-1))
        for side in values.shape[:0:-1]:
            flat = pa.FixedSizeListArray.from_arrays(flat, side) if name != "series" else make_lists(flat, side)
        table = table.append_column(name, flat)
    save(tmp_path / "a", table)
    for name, values in {"vector": vectors, "series": series, "pixels": pixels}.items():
        read = read_saved(tmp_path / "a", client="writer", features=name)
        np.testing.assert_array_equal(read.x, values.astype(read.x.dtype))
        assert read.x.dtype == (np.uint8 if name == "pixels" else np.float32)
    refuse_saved(UsageError, "3 columns of arrays: vector, series, pixels", tmp_path / "a", client="writer")


def make_lists(flat, side):
    return pa.ListArray.from_arrays(pa.array(np.arange(0, len(flat) + 1, side), pa.int32()), flat)


def test_import_reads_class_label_features_as_words(tmp_path):
    sex = {"_type": "ClassLabel", "names": ["female", "male"]}
    table = pa.table({"age": np.arange(12.0), "sex": [0, 1, -1] * 4, "ill": [0, 1] * 6})
    save(tmp_path / "a", describe_features(table, sex=sex, ill={"_type": "ClassLabel", "names": ["no", "yes"]}))
    read = read_saved(tmp_path / "a", client="none", label="ill", missing="median")
    assert read.features[:3] == ("age", "sex=female", "sex=male")
    np.testing.assert_array_equal(read.x[:2, 1:3], [[1, 0], [0, 1]])
    assert np.isnan(read.x[2, 1:3]).all()
    assert read.classes == ["no", "yes"]


def test_import_of_the_same_dataset_is_up_to_date_unless_splits_are_dropped(tmp_path):
    save_splits(tmp_path / "a", train=make_numbers(6), test=make_numbers(3))
    source = f"hf:{tmp_path / 'a'}"
    import_data(source, tmp_path / "data", client="writer")
    assert import_data(source, tmp_path / "data", client="writer").decision == "up to date"
    with pytest.raises(PflError, match="made by another request"):
        import_data(source, tmp_path / "data", client="writer", split_column="none")


def test_import_names_splits_and_columns_left_out(tmp_path, pfl):
    words = {"caption": [f"words {row} of many" for row in range(6)], "sound": [{"rate": 1}] * 6}
    save_splits(
        tmp_path / "a",
        train=make_numbers(6, **words),
        test=make_numbers(6, **words),
        unsupervised=make_numbers(6, **words),
    )
    more = {"who": pa.array(["a", "b"] * 3), "more": pa.array(range(6)), "caption": pa.array(words["caption"])}
    save(tmp_path / "b", image_table(draw_images(6), [0, 1, 2] * 2, **more))
    said = pfl("import", f"hf:{tmp_path / 'a'}", "--client", "writer", "-o", tmp_path / "out").err
    assert "12 samples of 2 classes" in said
    assert "not taken over: split unsupervised" in said
    assert "left out, not numbers: caption" in said
    assert "not taken over: column sound\n" in said
    said = pfl("import", f"hf:{tmp_path / 'b'}", "--client", "who", "-o", tmp_path / "images").err
    assert "not taken over: columns more, caption\n" in said


def make_labelled_table(values):
    return describe_features(
        pa.table({"who": ["a", "b"] * 3, "x": np.arange(6.0), "label": values}),
        label=CLASSES,
    )


TABLES = {
    "a class too many": (
        make_labelled_table([0, 1, 2, 3, 0, 1]),
        r"a, row 4 .*, column 'label': 3 is no class \(0 to 2\)",
    ),
    "no label": (make_labelled_table([0, 1, 2, -1, 0, 1]), r"a, row 4 .*, column 'label': no value"),
    "a missing label": (make_labelled_table([0, 1, 2, None, 0, 1]), r"a, row 4 .*, column 'label': no value"),
    "a fraction": (
        pa.table({"who": ["a", "b"] * 3, "x": np.arange(6.0), "label": np.arange(6) / 4}),
        "is a fraction, and no name of a class",
    ),
}


@pytest.mark.parametrize("case", TABLES)
def test_import_refuses_unsuitable_labels(tmp_path, case):
    table, message = TABLES[case]
    save(tmp_path / "a", table)
    refuse_saved(InputError, message, tmp_path / "a", client="who", label="label")


def test_import_names_the_row_of_an_invalid_image(tmp_path):
    stored = [{"bytes": encode_png(image), "path": ""} for image in draw_images(3)]
    for case, (bad, message) in {
        "cut": ({"bytes": stored[2]["bytes"][:20], "path": ""}, r"row 3 .*, column 'img' cannot be read as an image"),
        "nothing": (None, r"row 3 .*: no image"),
        "another size": ({"bytes": encode_png(draw_images(1, (9, 8, 3))[0]), "path": ""}, r"row 3 .* has 8x9 pixels"),
    }.items():
        table = pa.table({"img": pa.array([*stored[:2], bad], PNG), "label": [0, 1, 0]})
        save(tmp_path / case, describe_features(table, img=IMAGE, label=CLASSES))
        refuse_saved(InputError, message, tmp_path / case, client="none")


def test_import_refuses_arrays_of_different_shapes(tmp_path):
    for case, values in {"ragged": [[1.0, 2.0], [3.0], [4.0, 5.0]], "null": [[1.0, 2.0], None, [3.0, 4.0]]}.items():
        save(tmp_path / case, describe_features(pa.table({"x": values, "label": [0, 1, 0]}), label=CLASSES))
        refuse_saved(
            InputError, r"row 2 .*, column 'x': its shape differs from that of row 1", tmp_path / case, client="none"
        )
    save(
        tmp_path / "gap", describe_features(pa.table({"x": [[1.0, None], [3.0, 4.0]], "label": [0, 1]}), label=CLASSES)
    )
    refuse_saved(InputError, r"row 1 .*, column 'x': no value", tmp_path / "gap", client="none")


def test_import_names_missing_client_or_label_columns(tmp_path):
    save(tmp_path / "a", image_table(draw_images(3), [0, 1, 2], coarse=pa.array([0, 0, 1])))
    refuse_saved(UsageError, "--client is missing", tmp_path / "a")
    two = describe_features(pa.table({"x": [1.0, 2.0], "fine": [0, 1], "coarse": [0, 1]}), fine=CLASSES, coarse=CLASSES)
    save(tmp_path / "b", two)
    with pytest.raises(UsageError, match="--label is missing: b has 2 columns of classes") as caught:
        read_saved(tmp_path / "b", client="none")
    assert "--label COL, one of: fine, coarse" in caught.value.fix
    refuse_saved(UsageError, "--resize is for images", tmp_path / "b", client="none", label="fine", resize=4)
    refuse_saved(InputError, "no column 'nothing'", tmp_path / "b", client="none", label="nothing")


def test_import_refuses_a_group_for_a_dataset_with_splits(tmp_path):
    save_splits(tmp_path / "a", train=make_numbers(6), test=make_numbers(6))
    with pytest.raises(UsageError, match="--group contradicts the splits") as caught:
        read_saved(tmp_path / "a", client="none", group="writer")
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
def test_import_refuses_damaged_saved_datasets(tmp_path, case):
    save_splits(tmp_path / "a", train=make_numbers(6), test=make_numbers(6))
    DAMAGE[case](tmp_path / "a" / "test")
    refuse_saved(InputError, "/a cannot be read as a saved dataset: ", tmp_path / "a", client="none")


def test_import_refuses_arrow_offsets_outside_the_file(tmp_path):
    """They would end the process where pyarrow follows them."""
    words = pa.array([["aaaaa"], ["b"], ["c"]])
    save(
        tmp_path / "a",
        describe_features(pa.table({"words": words, "x": [1.0, 2.0, 3.0], "label": [0, 1, 0]}), label=CLASSES),
    )
    file = next((tmp_path / "a").glob("*.arrow"))
    offsets = np.asarray([0, 1, 2, 3], np.int32).tobytes()
    content = file.read_bytes()
    assert content.count(offsets) == 1
    file.write_bytes(content.replace(offsets, np.asarray([0, 1, 2, 2**30], np.int32).tobytes()))
    refuse_saved(InputError, r"arrow cannot be read as Arrow: .*offset", tmp_path / "a", client="none")


def test_import_refuses_folders_without_a_consistent_dataset(tmp_path):
    refuse_saved(InputError, "nowhere does not exist", tmp_path / "nowhere")
    (tmp_path / "a").mkdir()
    refuse_saved(InputError, "contains no Hugging Face dataset", tmp_path / "a")
    save_splits(tmp_path / "b" / "one", train=make_numbers(6), test=make_numbers(6))
    save(tmp_path / "b" / "two", make_numbers(6))
    refuse_saved(InputError, "two is in no split, but one/train is in 'train'", tmp_path / "b")
    save(tmp_path / "c" / "one", make_numbers(6))
    save(tmp_path / "c" / "two", make_numbers(6).drop_columns(["b"]))
    with pytest.raises(InputError, match="two has other columns than one") as caught:
        read_saved(tmp_path / "c")
    assert caught.value.fix == ("they differ in: b",)
    save(tmp_path / "d", make_numbers(0))
    refuse_saved(InputError, "d has no samples", tmp_path / "d")


def test_import_reads_datasets_saved_by_the_library(tmp_path):
    images = draw_images(8)
    content = {"image": [Image.fromarray(image) for image in images], "label": [0, 1, 2, 0, 1, 2, 0, 1]}
    features = library.Features({"image": library.Image(), "label": library.ClassLabel(names=NAMES)})
    whole = library.Dataset.from_dict(content, features=features)
    for part, rows in {"part_0": [6, 0, 3, 1], "part_1": [7, 2, 4, 5]}.items():
        whole.select(rows).train_test_split(test_size=1, shuffle=False).save_to_disk(tmp_path / "a" / part)
    read = read_saved(tmp_path / "a")
    np.testing.assert_array_equal(read.x, images[[6, 0, 3, 1, 7, 2, 4, 5]])
    assert read.split.tolist() == [0, 0, 0, 2] * 2
    assert read.classes == NAMES
    (tmp_path / "b").mkdir()
    whole.to_parquet(tmp_path / "b" / "train-00000-of-00001.parquet")
    np.testing.assert_array_equal(read_saved(tmp_path / "b", client="none").x, images)
    matrix = library.Features({"x": library.Array2D((2, 3), "float32"), "label": library.ClassLabel(names=NAMES)})
    values = DRAW.normal(size=(4, 2, 3)).astype(np.float32)
    library.Dataset.from_dict({"x": list(values), "label": [0, 1, 2, 0]}, features=matrix).save_to_disk(tmp_path / "c")
    np.testing.assert_array_equal(read_saved(tmp_path / "c", client="none").x, values)
