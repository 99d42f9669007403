"""Every format of images that Pillow writes is read exactly or refused by name, whatever its file is called."""

from __future__ import annotations

import functools
import io

import numpy as np
import pytest
from PIL import Image

from pflcli.core.errors import InputError
from pflcli.data.formats import images

Image.init()
FORMATS = sorted(Image.SAVE)
SUFFIXES = sorted(suffix for suffix, form in Image.registered_extensions().items() if form in Image.SAVE)
PIXELS = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
NOT_IMAGES = {".h5", ".hdf", ".bufr", ".grib"}
"""Endings of data, which Pillow does not read without handlers."""


@functools.cache
def encode(form, mode):
    """Return an image file in this format, and its pixels as Pillow reads them; None if Pillow cannot write it."""
    memory = io.BytesIO()
    options = {
        "WEBP": {"lossless": True},
        "AVIF": {"quality": 100, "subsampling": "4:4:4"},
        "ICO": {"sizes": [(16, 16)]},
    }
    try:
        Image.fromarray(PIXELS).convert(mode).save(memory, form, **options.get(form, {}))
    except (OSError, ValueError, KeyError, SystemError):
        return None
    return memory.getvalue()


def write(root, name, content):
    """Write a folder of two clients, of which the second has one file of this ``name``."""
    for client, label in (("a", "x"), ("a", "y"), ("b", "x")):
        (root / client / label).mkdir(parents=True)
    for label in ("x", "y"):
        Image.fromarray(PIXELS).save(root / "a" / label / "0.png")
    (root / "b" / "x" / name).write_bytes(content)
    return root / "b" / "x" / name


def read(root, **options):
    folder = images.find(root, None)
    return images.read(folder, images.Decoding(**options), lambda *step: None)


def join_message_and_fix(error):
    return "\n".join([error.message, *error.fix])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_images_give_the_same_samples_in_every_lossless_format(suffix, tmp_path):
    form = Image.registered_extensions()[suffix]
    content = encode(form, "RGB") or encode(form, "L") or encode(form, "1")
    if content is None:
        pytest.skip(f"Pillow does not write {form}")
    path = write(tmp_path, f"0{suffix}", content)
    if form in ("PALM", "PDF", "EPS", "WMF"):
        with pytest.raises(InputError) as error:
            read(tmp_path)
        assert f"{path} is an image of a format that pfl does not read" in error.value.message
        return
    if form == "ICNS":  # Pillow enlarges it
        with pytest.raises(InputError, match="has 1024x1024 pixels"):
            read(tmp_path)
        return
    raw = read(tmp_path, convert="rgb")
    assert raw.owner.tolist() == ["a", "a", "b"]
    with Image.open(path) as opened:
        expected = np.asarray(opened.convert("RGB"))
    np.testing.assert_array_equal(raw.x[2], expected)
    if form not in ("AVIF", "JPEG", "MPO", "JPEG2000", "DDS", "GIF", "BLP", "MSP", "XBM"):
        np.testing.assert_array_equal(raw.x[2], raw.x[0])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["0", "0.bin", "0.png.bak"])
def test_import_refuses_an_image_when_its_file_name_has_no_image_suffix(form, name, tmp_path):
    content = encode(form, "RGB") or encode(form, "L") or encode(form, "1") or encode(form, "F")
    if content is None or form in ("PALM", "PDF", "EPS"):  # Pillow does not identify them
        pytest.skip(f"Pillow does not write {form}")
    path = write(tmp_path, name, content)
    with pytest.raises(InputError, match="is an image") as error:
        read(tmp_path)
    assert str(path) in error.value.message


@pytest.mark.parametrize("suffix", [".dcm", ".heic", ".nii.gz", ".svg", ".pdf", ".eps"])
def test_import_refuses_an_image_when_pillow_does_not_read_it(suffix, tmp_path):
    path = write(tmp_path, f"0{suffix}", b"x")
    Image.fromarray(PIXELS).save(path.parent / "1.png")
    with pytest.raises(InputError, match="does not read") as error:
        read(tmp_path)
    assert str(path) in error.value.message


def test_import_refuses_dicom_when_its_name_has_no_ending(tmp_path):
    write(tmp_path, "IM0001", bytes(128) + b"DICM" + bytes(100))
    with pytest.raises(InputError, match=r"IM0001 is an image \(DICOM\)"):
        read(tmp_path)


@pytest.mark.parametrize("place", ["c/x/notes.txt", "c/readme.md", "a/z/labels.csv", "b/z/thumbs.db"])
def test_import_refuses_a_client_or_class_folder_that_has_files_but_no_image(place, tmp_path):
    path = write(tmp_path, "0.png", (encode("PNG", "RGB")))
    other = tmp_path / place
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_text("no image")
    with pytest.raises(InputError, match="has no image, but") as error:
        read(tmp_path)
    assert other.name in error.value.message
    assert path.exists()


def test_import_reports_the_files_and_folders_it_ignores(tmp_path):
    write(tmp_path, "0.png", encode("PNG", "RGB"))
    (tmp_path / "readme.txt").write_text("text")
    (tmp_path / "paper.pdf").write_text("beside the clients")
    (tmp_path / "b" / "x" / "notes.txt").write_text("text")
    (tmp_path / ".thumbs").mkdir()
    (tmp_path / ".thumbs" / "0.png").write_bytes(encode("PNG", "RGB"))
    (tmp_path / "c").mkdir()
    (tmp_path / "b" / "y").mkdir()
    assert read(tmp_path).remarks == (
        "ignored, not images: 3 files, such as b/x/notes.txt",
        "ignored, hidden: 1 file, such as .thumbs/0.png",
        "empty: c, b/y",
    )


def test_import_follows_symbolic_links_and_refuses_a_cycle(tmp_path):
    write(tmp_path / "one", "0.png", encode("PNG", "RGB"))
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "d").symlink_to(tmp_path / "one" / "a")
    (tmp_path / "two" / "e").symlink_to(tmp_path / "one" / "b", target_is_directory=True)
    assert read(tmp_path / "two").owner.tolist() == ["d", "d", "e"]
    (tmp_path / "one" / "b" / "up").symlink_to(tmp_path / "two")
    with pytest.raises(InputError, match="is a link to"):
        read(tmp_path / "two")


def save(image, form="PNG", **options):
    memory = io.BytesIO()
    image.save(memory, form, **options)
    return memory.getvalue()


RAMP = np.arange(256, dtype=np.uint8).reshape(16, 16)
SEE_THROUGH = np.dstack([RAMP, RAMP, RAMP, 255 * (RAMP > 99).astype(np.uint8)])
WHITE = np.where(RAMP > 99, RAMP, 255)
MODES = {
    "16 bits": (save(Image.fromarray(RAMP.astype(np.uint16) * 257)), ".png", "grey", RAMP),
    "16 bits of TIFF": (save(Image.fromarray(RAMP.astype(np.uint16) * 257), "TIFF"), ".tif", "rgb", RAMP),
    "16 bits of PGM": (b"P5 16 16 65535\n" + (RAMP.astype(">u2") * 257).tobytes(), ".pgm", "grey", RAMP),
    "transparent": (save(Image.fromarray(SEE_THROUGH)), ".png", "rgb", WHITE),
    "transparent grey": (save(Image.fromarray(SEE_THROUGH).convert("LA")), ".png", "grey", WHITE),
    "a transparent colour": (save(Image.fromarray(RAMP), transparency=0), ".png", "grey", np.where(RAMP, RAMP, 255)),
    "CMYK": (save(Image.fromarray(np.dstack([RAMP] * 3)).convert("CMYK"), "TIFF"), ".tif", "rgb", RAMP),
    "YCbCr": (save(Image.fromarray(np.dstack([RAMP] * 3)).convert("YCbCr"), "TIFF"), ".tif", "rgb", None),
}  # fmt: skip


@pytest.mark.parametrize("case", MODES)
def test_import_converts_an_image_only_when_asked(case, tmp_path):
    content, suffix, convert, grey = MODES[case]
    path = write(tmp_path, f"0{suffix}", content)
    with pytest.raises(InputError) as error:
        read(tmp_path)
    assert str(path) in error.value.message
    assert "--convert" in join_message_and_fix(error.value)
    x = read(tmp_path, convert=convert).x
    assert x.shape == (3, 16, 16, *(3,) * (convert == "rgb"))
    if grey is not None:
        np.testing.assert_array_equal(x[2], np.dstack([grey] * 3) if convert == "rgb" else grey)


def test_import_requires_convert_when_grey_and_colour_images_are_mixed(tmp_path):
    write(tmp_path, "0.png", encode("PNG", "L"))
    with pytest.raises(InputError, match=r"is grey, .* in colour") as error:
        read(tmp_path)
    assert "--convert rgb or --convert grey" in join_message_and_fix(error.value)
    np.testing.assert_array_equal(
        read(tmp_path, convert="grey").x, [np.asarray(Image.fromarray(PIXELS).convert("L"))] * 3
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (RAMP.astype(np.float32), "floating-point numbers"),
        (RAMP.astype(np.int32) * 10**6, "integers of 32 bits"),
        (RAMP.astype(np.uint16), "255 of 65535, which becomes 1 of 255"),
    ],
)  # fmt: skip
def test_import_refuses_pixels_when_their_range_is_unknown(values, words, tmp_path):
    root = tmp_path / "c" / "x"
    root.mkdir(parents=True)
    Image.fromarray(values).save(root / "0.tif")
    with pytest.raises(InputError, match=words):
        read(tmp_path, convert="grey")


@pytest.mark.parametrize("form", ["GIF", "TIFF", "WEBP", "PNG", "AVIF"])
def test_import_asks_for_the_frame_when_an_image_has_several(form, tmp_path):
    frames = [Image.fromarray(np.full((16, 16, 3), value, np.uint8)) for value in (0, 120, 250)]
    options = {"lossless": True} if form == "WEBP" else {}
    try:
        content = save(frames[0], form, save_all=True, append_images=frames[1:], **options)
    except (OSError, KeyError):
        pytest.skip(f"this Pillow does not write {form}")
    suffix = {"AVIF": ".avif"}.get(form, f".{form.lower()}")
    path = write(tmp_path, f"0{suffix}", content)
    with pytest.raises(InputError, match="has 3 frames or pages") as error:
        read(tmp_path)
    assert str(path) in error.value.message
    assert "--frame 1" in join_message_and_fix(error.value)
    x = read(tmp_path, frame=1, convert="rgb").x
    np.testing.assert_array_equal(x[0], PIXELS)
    np.testing.assert_allclose(x[2].astype(int), 0, atol=2)
    for path in tmp_path.glob("a/*/0.png"):
        path.write_bytes(content)
        path.rename(path.with_suffix(suffix))
    np.testing.assert_allclose(read(tmp_path, frame=2, convert="grey").x.astype(int), 120, atol=2)
    with pytest.raises(InputError, match="has 3 frames, not 4"):
        read(tmp_path, frame=4)
