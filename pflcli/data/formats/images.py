"""Folders of images, ``CLIENT/LABEL/image.png``; without clients ``LABEL/image.png``."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.data.formats import ABSENT, RawSamples, hash_files, require_utf8_name
from pflcli.errors import InputError
from pflcli.foreign import parsing, require_file, require_room
from pflcli.wording import counted

SUFFIXES = (".png", ".jpg", ".jpeg")
_FORMATS = ("PNG", "JPEG", "MPO", "GIF", "BMP", "WEBP")
"""The formats that are read, for every suffix. Pillow reads others, and runs Ghostscript for one of them."""


@dataclass(frozen=True)
class ImageFolder:
    """The sorted ``paths`` of images: ``CLIENT/LABEL/IMAGE`` or, without ``has_clients``, ``LABEL/IMAGE``.

    ``ignored`` are the other files of the folder.
    """

    root: Path
    paths: list[Path]
    ignored: list[Path]
    has_clients: bool

    def sha256(self) -> str:
        """Return a hash of all images and their paths."""
        return hash_files(self.root, self.paths)


def find(root: Path, client: str | None) -> ImageFolder:
    """Find the images; raises InputError if there is none, or if one is at another depth or not a regular file."""
    has_clients = client != ABSENT
    layout = "CLIENT/LABEL/IMAGE" if has_clients else "LABEL/IMAGE"
    folder = _find_images(root, f" at {layout}", has_clients=has_clients)
    for path in folder.paths:
        depth = len(path.relative_to(root).parts)
        if depth != 2 + has_clients:
            hint = f"--client {ABSENT} if images are not assigned to clients yet" if depth == 2 else ""
            raise InputError(f"{path} is not at {layout}", hint or f"arrange the images as {layout}")
    return folder


def find_at_any_depth(root: Path) -> ImageFolder:
    """Find the images of a folder at any depth; raises InputError if there is none, or one is not a regular file."""
    return _find_images(root, "", has_clients=False)


def _find_images(root: Path, where: str, *, has_clients: bool) -> ImageFolder:
    """Find the images and other files of a folder, without hidden ones such as .DS_Store."""
    files = [
        path
        for path in sorted(root.rglob("*"))
        if not path.is_dir() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    ]
    for path in files:
        require_utf8_name(path)
    images = [path for path in files if path.suffix.lower() in SUFFIXES]
    for path in images:
        require_file(path)
    if not images:
        example = f", but {files[0].relative_to(root)}" if files else ""
        raise InputError(f"{root} has no image{example}", f"images are {', '.join(SUFFIXES)} files{where}")
    return ImageFolder(root, images, [path for path in files if path.suffix.lower() not in SUFFIXES], has_clients)


def read(folder: ImageFolder, resize: int | None, advance: Callable[[int, str], None]) -> RawSamples:
    """Read images as uint8 (n, H, W), or (n, H, W, 3) in colour, resized to ``resize`` x ``resize`` pixels if given.

    Raises InputError for a file that is not an image, or that differs in size or colour from the first.
    """
    ignored = folder.ignored
    return RawSamples(
        x=decode(((str(path), path) for path in folder.paths), len(folder.paths), str(folder.root), resize, advance),
        label=np.asarray([path.parent.name for path in folder.paths]),
        owner=np.asarray([path.parent.parent.name for path in folder.paths]) if folder.has_clients else None,
        place=lambda row, role, at: str(folder.paths[row]),
        remarks=(
            f"ignored, not images: {counted(len(ignored), 'file')}, such as {ignored[0].relative_to(folder.root)}",
        )
        if ignored
        else (),
    )


def decode(
    images: Iterable[tuple[str, Path | bytes]],
    count: int,
    name: str,
    resize: int | None,
    advance: Callable[[int, str], None],
) -> NDArray[np.uint8]:
    """Return ``count`` images, each a name for messages and its file or content, as ``read`` does."""
    pixels: list[NDArray[np.uint8]] = []
    first = ""
    for place, source in images:
        with parsing(place, "an image", "repair it or remove it"):
            image = _read_pixels(source, place, resize)
        if not pixels:
            first = place
            require_room(f"{name} ({count} images)", count * image.nbytes)
        if pixels and image.ndim != pixels[0].ndim:
            kinds = {2: "grey", 3: "in colour"}
            raise InputError(
                f"{place} is {kinds[image.ndim]}, {first} {kinds[pixels[0].ndim]}",
                "make all images grey, or all of them RGB",
            )
        if pixels and image.shape != pixels[0].shape:
            sizes = ["x".join(map(str, shape[1::-1])) for shape in (image.shape, pixels[0].shape)]
            raise InputError(
                f"{place} has {sizes[0]} pixels (width x height), {first} {sizes[1]}",
                "--resize 32 resizes all of them to 32x32",
            )
        pixels.append(image)
        advance(1, "")
    return np.stack(pixels)


def _read_pixels(source: Path | bytes, name: str, resize: int | None) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # twice as many pixels are an error
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_FORMATS) as opened:
            # Rotate as a viewer does: cameras store their orientation.
            image = _convert(ImageOps.exif_transpose(opened), name)
            if resize is not None:
                image = image.resize((resize, resize), Image.Resampling.BILINEAR)
            return np.array(image, dtype=np.uint8)


def _convert(image: Any, name: str) -> Any:
    """Return an image as 8-bit grey or RGB; raises InputError if that would lose information."""
    if image.mode in ("L", "RGB"):
        return image
    if image.mode == "1":
        return image.convert("L")
    if image.mode == "P":
        image = image.convert("RGBA")
    if image.mode in ("LA", "RGBA"):
        if image.getextrema()[-1] != (255, 255):
            raise InputError(f"{name} has transparent pixels", "flatten it onto a background first")
        return image.convert(image.mode[:-1])
    raise InputError(f"{name} has mode {image.mode}; pfl reads 8-bit grey and RGB", "convert it first")
