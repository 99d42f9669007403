"""Folders of images, ``CLIENT/LABEL/image.png``; without clients ``LABEL/image.png``."""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.errors import InputError
from pflcli.core.foreign import parsing, require_file, require_room
from pflcli.core.wording import counted, listed
from pflcli.data.formats import ABSENT, RawSamples, hash_files, require_utf8_name
from pflcli.data.formats.given_splits import find_splits

COLOURS = {"grey": "L", "rgb": "RGB", "grey12": "L"}
"""The values of ``--convert``, and the modes of Pillow that they stand for."""
_NEVER_OPENED = ("EPS", "MPEG")
"""Formats that Pillow knows but pfl does not open: Pillow runs Ghostscript for EPS, and cannot decode MPEG."""
_DOCUMENTS = (".pdf", ".ps")
"""Endings of images that pfl does not read, unless the files lie beside the folders of clients and classes."""
_UNREAD = (
    ".eps", ".wmf", ".emf", ".svg", ".svgz", ".palm", ".pict", ".pct", ".heic", ".heif", ".hif", ".jxl", ".jxr",
    ".djvu", ".exr", ".hdr", ".xcf", ".ai", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf", ".raf", ".rw2", ".raw",
    ".dcm", ".dicom", ".ima", ".nii", ".nii.gz", ".nrrd", ".mha", ".mhd", ".svs", ".ndpi", ".mrxs", ".czi", ".lif",
)  # fmt: skip
"""Endings of images that Pillow does not read, or only with other programs."""
_SINGLE = ("MPO", "PSD", "ICO", "ICNS")
"""Formats whose further frames are previews, depth maps, layers or sizes of the same image."""
_MAX_12_BITS = 4095
"""The largest pixel of 12 bits, as scanners store them in files of 16: divided by 257, 17 grey levels would be left."""


@dataclass(frozen=True)
class Decoding:
    """The options for pixels: the side after resizing, ``grey`` or ``rgb``, and the frame, counted from 1, to read."""

    resize: int | None = None
    convert: str | None = None
    frame: int | None = None

    def options(self) -> dict[str, int | str]:
        """Return the options that are given, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class ImageFolder:
    """The sorted ``paths`` of images: ``CLIENT/LABEL/IMAGE``, ``SPLIT/LABEL/IMAGE`` or ``LABEL/IMAGE``.

    ``layout`` says which, and is empty for images at any depth. ``remarks`` name what is left out: files that are not
    images, hidden files, and empty folders.
    """

    root: Path
    paths: list[Path]
    remarks: tuple[str, ...]
    layout: str

    def sha256(self) -> str:
        """Return a hash of all images and their paths."""
        return hash_files(self.root, self.paths)


def find(root: Path, client: str | None, split: str | None = None) -> ImageFolder:
    """Find the images; raises InputError if there is none, or if one is unread, at another depth or no regular file.

    Without clients, folders named like splits may contain the folders of classes; a ``split`` of "none" joins them.
    Raises InputError also for a client or class that has files, but no image.
    """
    if client != ABSENT:
        return _find_images(root, "CLIENT/LABEL/IMAGE")
    folders = {path.parent.name for path in root.glob("*/*") if path.is_dir()}
    above = ("FOLDER/" if split == ABSENT else "SPLIT/") if find_splits(folders) else ""
    return _find_images(root, f"{above}LABEL/IMAGE")


def find_at_any_depth(root: Path) -> ImageFolder:
    """Find the images of a folder at any depth; raises InputError if there is none, or one is not a regular file."""
    return _find_images(root, "")


def has_image(root: Path) -> bool:
    """Return whether a folder has a file with the name of an image."""
    return any(path.suffix.lower() in _suffixes() for path in root.rglob("*"))


def _find_images(root: Path, layout: str) -> ImageFolder:
    """Find the images and other files of a folder, without hidden ones such as .DS_Store."""
    depth = layout.count("/")
    found = sorted(_walk(root, (root.resolve(),)))
    hidden = [path for path in found if any(part.startswith(".") for part in path.relative_to(root).parts)]
    files = sorted(set(found) - set(hidden))
    for path in files:
        require_utf8_name(path)
    images: list[Path] = []
    others: list[Path] = []
    for path in files:
        is_sample = len(path.relative_to(root).parts) > depth
        (images if _is_read(path, is_sample=is_sample) else others).append(path)
    if not images:
        example = f", but {files[0].relative_to(root)}" if files else ""
        where = f" at {layout}" if layout else ""
        raise InputError(
            f"{root} has no image{example}", f"images are .png, .jpg and other files that Pillow reads{where}"
        )
    if layout:
        _require_layout(root, images, layout)
        _require_no_loss(root, images, others, depth)
    remarks = [
        f"{what}: {counted(len(paths), 'file')}, such as {paths[0].relative_to(root)}"
        for what, paths in (
            ("ignored, not images", others),
            ("ignored, hidden", [path for path in hidden if path.suffix.lower() in _suffixes()]),
        )
        if paths
    ]
    empty = _list_empty_folders(root, files, depth) if layout else []
    remarks += [f"empty: {listed(empty, 5)}"] if empty else []
    return ImageFolder(root, images, tuple(remarks), layout)


def _walk(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """Yield all files below a folder, also in linked folders; raises InputError for a link to a folder ``above``."""
    try:
        inside = list(folder.iterdir())
    except OSError as error:
        raise InputError(f"cannot read {folder}: {error.strerror}") from None
    for path in inside:
        if not path.is_dir():
            yield path
            continue
        target = path.resolve()
        if target in above:
            raise InputError(f"{path} is a link to {target}, which contains it", "remove the link")
        yield from _walk(path, (*above, target))


def _is_read(path: Path, *, is_sample: bool) -> bool:
    """Return whether a file is an image that pfl reads; False if it is no image.

    Raises InputError for an image that would be left out: of a format that pfl does not read, or of a name that does
    not tell that it is an image. ``is_sample`` is whether the file lies where images are.
    """
    if path.suffix.lower() in _suffixes():
        require_file(path)
        return True
    endings = (*_UNREAD, *_DOCUMENTS) if is_sample else _UNREAD
    if path.name.lower().endswith(endings):
        raise InputError(
            f"{path} is an image of a format that pfl does not read",
            "convert it, for example to PNG, or move it elsewhere",
        )
    form = _identify(path)
    if form:
        raise InputError(
            f"{path} is an image ({form}), but its name does not end like one",
            "rename it, for example to .png, or move it elsewhere",
        )
    return False


@functools.cache
def _formats() -> tuple[str, ...]:
    """Return the formats that Pillow reads by itself; those of stubs need programs that are not there."""
    from PIL import Image, ImageFile

    Image.init()
    return tuple(
        name
        for name, (opener, _) in Image.OPEN.items()
        if name not in _NEVER_OPENED and not (isinstance(opener, type) and issubclass(opener, ImageFile.StubImageFile))
    )


@functools.cache
def _suffixes() -> frozenset[str]:
    """Return the endings of the names of images that are read, such as .png."""
    from PIL import Image

    readable = {*_formats(), "MPO"}  # MPO is opened as JPEG
    return frozenset(suffix for suffix, form in Image.registered_extensions().items() if form in readable)


def _identify(path: Path) -> str:
    """Return the format of an image by its content, empty for any other file."""
    from PIL import Image

    if not path.is_file():
        return ""
    with path.open("rb") as file:
        if file.read(132)[128:] == b"DICM":
            return "DICOM"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path, formats=_formats()) as image:
                return str(image.format)
    except Image.DecompressionBombError:
        return "a very large one"
    except Exception:  # each format raises its own errors for unexpected bytes
        return ""


def _require_layout(root: Path, images: list[Path], layout: str) -> None:
    """Raise InputError for an image at another depth than that of ``layout``."""
    for path in images:
        depth = len(path.relative_to(root).parts)
        if depth != len(Path(layout).parts):
            is_without_clients = depth == 2
            hint = f"--client {ABSENT} if images are not assigned to clients yet" if is_without_clients else ""
            raise InputError(f"{path} is not at {layout}", hint or f"arrange the images as {layout}")


def _require_no_loss(root: Path, images: list[Path], others: list[Path], depth: int) -> None:
    """Raise InputError if a client or class has files but no image."""
    for level in range(depth):
        name_of = {path: path.relative_to(root).parts[level] for path in images}
        known = set(name_of.values())
        for path in others:
            parts = path.relative_to(root).parts
            if len(parts) > level + 1 and parts[level] not in known:
                lost = root.joinpath(*parts[: level + 1])
                raise InputError(
                    f"{lost} has no image, but {path.relative_to(lost)}",
                    "convert its files to PNG, or move it elsewhere",
                )


def _list_empty_folders(root: Path, files: list[Path], depth: int) -> list[str]:
    """Return the folders of clients and classes that contain no file, by name."""
    filled = {folder for path in files for folder in path.parents}
    folders = [path for level in range(1, depth + 1) for path in sorted(root.glob("/".join("*" * level)))]
    return [
        path.relative_to(root).as_posix()
        for path in folders
        if path.is_dir() and path not in filled and not path.name.startswith(".") and path.parent in {root, *filled}
    ]


def read(folder: ImageFolder, decoding: Decoding, advance: Callable[[int, str], None]) -> RawSamples:
    """Read images as uint8 (n, H, W), or (n, H, W, 3) in colour.

    Raises InputError for a file that is not an image, that would lose information unless ``decoding`` allows it, or
    that differs in size or colour from the first.
    """
    names = [path.parent.parent.name for path in folder.paths]
    split_of = find_splits(names) if folder.layout.startswith("SPLIT") else {}
    owner = np.asarray(names) if folder.layout.startswith("CLIENT") else None
    paths = ((str(path), path) for path in folder.paths)
    return RawSamples(
        x=decode(paths, len(folder.paths), str(folder.root), decoding, advance, owner),
        label=np.asarray([path.parent.name for path in folder.paths]),
        owner=owner,
        place=lambda row, role, at: str(folder.paths[row]),
        remarks=folder.remarks,
        metadata={"split": np.asarray([split_of.get(name, name) for name in names])} if split_of else {},
        declares_classes=True,
    )


def decode(
    images: Iterable[tuple[str, Path | bytes]],
    count: int,
    name: str,
    decoding: Decoding,
    advance: Callable[[int, str], None],
    owner: NDArray[np.str_] | None = None,
) -> NDArray[np.uint8]:
    """Return ``count`` images, each a name for messages and its file or content, as ``read`` does.

    Raises InputError for a client, of those in ``owner`` (count,), whose images of 16 bits have no more than 12.
    """
    pixels: list[NDArray[np.uint8]] = []
    first = ""
    brightest: dict[str, int] = {}
    for place, source in images:
        with parsing(place, "an image", "repair it or remove it"):
            image, brightness = _read_pixels(source, place, decoding)
        if brightness is not None:
            client = "" if owner is None else str(owner[len(pixels)])
            brightest[client] = max(brightness, brightest.get(client, 0))
        if not pixels:
            first = place
            require_room(f"{name} ({count} images)", count * image.nbytes)
        if pixels and image.ndim != pixels[0].ndim:
            kinds = {2: "grey", 3: "in colour"}
            raise InputError(
                f"{place} is {kinds[image.ndim]}, {first} {kinds[pixels[0].ndim]}",
                "--convert rgb or --convert grey makes them alike",
            )
        if pixels and image.shape != pixels[0].shape:
            sizes = ["x".join(map(str, shape[1::-1])) for shape in (image.shape, pixels[0].shape)]
            raise InputError(
                f"{place} has {sizes[0]} pixels (width x height), {first} {sizes[1]}",
                "--resize 32 resizes all of them to 32x32",
            )
        pixels.append(image)
        advance(1, "")
    dark = [client for client, brightness in brightest.items() if brightness <= _MAX_12_BITS]
    if dark and decoding.convert != "grey12":
        of_client = f" of client '{dark[0]}'" if dark[0] else ""
        raise InputError(
            f"{name}: the brightest pixel of the images with 16 bits{of_client} is {brightest[dark[0]]} of 65535, which"
            f" becomes {round(brightest[dark[0]] / 257)} of 255",
            "--convert grey12 if the pixels of all images have 12 bits: it divides them by 16",
            "else scale them to the whole range of 16 bits, or to 8 bits, first",
        )
    return np.stack(pixels)


def _read_pixels(source: Path | bytes, name: str, decoding: Decoding) -> tuple[NDArray[np.uint8], int | None]:
    """Return the pixels of one image, and the largest one if they had 16 bits."""
    from PIL import Image, ImageOps

    stored = len(source) if isinstance(source, bytes) else source.stat().st_size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # twice as many pixels are an error
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_formats()) as opened:
            bytes_per_pixel = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2}.get(opened.mode, 4)
            require_room(name, opened.width * opened.height * bytes_per_pixel, stored)
            _choose_frame(opened, name, decoding.frame)
            is_16_bit = opened.mode.startswith("I;16") or (opened.mode == "I" and opened.format in ("PNG", "PPM"))
            # Rotate as a viewer does: cameras store their orientation.
            turned = ImageOps.exif_transpose(opened)
            image = _convert(_narrow(turned, name, decoding) if is_16_bit else turned, name, decoding.convert)
            if decoding.resize is not None:
                image = image.resize((decoding.resize, decoding.resize), Image.Resampling.BILINEAR)
            brightest = int(np.asarray(turned).max()) if is_16_bit else None
            return np.array(image, dtype=np.uint8), brightest


def _choose_frame(image: Any, name: str, frame: int | None) -> None:
    """Select a frame; raises InputError for several ones of which none is chosen, or if there is no such frame."""
    count = 1 if image.format in _SINGLE else getattr(image, "n_frames", 1)
    if frame is None and count > 1:
        raise InputError(f"{name} has {count} frames or pages", "--frame 1 reads the first frame of every image")
    if frame is not None and frame > count:
        raise InputError(f"{name} has {counted(count, 'frame')}, not {frame}", "--frame 1")
    if frame is not None and count > 1:
        image.seek(frame - 1)


def _narrow(image: Any, name: str, decoding: Decoding) -> Any:
    """Return a grey image of 16 bits as one of 8 bits; raises InputError unless ``decoding`` converts images."""
    from PIL import Image

    if decoding.convert is None:
        raise InputError(
            f"{name} has 16 bits per pixel (mode {image.mode}); pfl reads 8",
            "--convert grey divides pixels of 16 bits by 257, --convert grey12 those of 12 bits by 16",
        )
    pixels = np.asarray(image, dtype=np.float32)
    if decoding.convert == "grey12":
        if pixels.max() > _MAX_12_BITS:
            raise InputError(f"{name} has a pixel of {pixels.max():.0f}, more than 12 bits", "--convert grey")
        return Image.fromarray((pixels // 16).astype(np.uint8))
    return Image.fromarray(np.rint(pixels / 257).astype(np.uint8))


def _convert(image: Any, name: str, convert: str | None) -> Any:
    """Return an image as 8-bit grey or RGB; raises InputError if that loses information and ``convert`` is None."""
    from PIL import Image

    if image.mode in ("1", "L", "RGB") and "transparency" in image.info:
        image = image.convert("RGBA" if image.mode == "RGB" else "LA")
    if image.mode in ("P", "PA", "La", "RGBa"):
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    if image.mode in ("LA", "RGBA"):
        opaque = image.mode[:-1]
        if image.getextrema()[-1] != (255, 255):
            if convert is None:
                raise InputError(
                    f"{name} has transparent pixels",
                    "--convert rgb or --convert grey lays images on a white background",
                )
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
        image = image.convert(opaque)
    if image.mode in ("1", "RGBX"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    if image.mode in ("I", "F"):
        kind = "integers of 32 bits" if image.mode == "I" else "floating-point numbers"
        raise InputError(
            f"{name} has pixels that are {kind}, whose range is unknown",
            "save it with 8 or 16 bits per pixel, or import the pixels as an array (.npz)",
        )
    if image.mode not in ("L", "RGB"):
        if convert is None:
            raise InputError(f"{name} has mode {image.mode}; pfl reads 8-bit grey and RGB", "--convert rgb")
        image = image.convert("RGB")
    return image if convert is None else image.convert(COLOURS[convert])
