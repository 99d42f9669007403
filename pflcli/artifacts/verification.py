"""Verifies that every file of an artifact has its recorded hash, can be parsed, and has valid values."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from pflcli.artifacts import codebook, kinds
from pflcli.artifacts.kinds import backbone
from pflcli.artifacts.reader import Artifact


def verify(artifact: Artifact) -> None:
    """Read every file of an artifact; raises InputError, with the name of a file that changed or is invalid."""
    artifact.verify()
    for name in artifact.manifest.files:
        if name == codebook.FILE:
            codebook.read(artifact)
        elif name == backbone.ROUNDS:
            backbone.read_rounds(artifact)
        elif Path(name).suffix in _PARSERS:  # for other files, the hash is enough
            _PARSERS[Path(name).suffix](artifact, name)
    kinds.load(artifact.kind).check(artifact)


def _load_tensors(artifact: Artifact, name: str) -> None:
    from safetensors.torch import load

    content = artifact.read(name)
    with artifact.parsing(name):
        load(content)  # values may be nan: the state of a method has nan for rounds without a measurement


def _decode_text(artifact: Artifact, name: str) -> None:
    content = artifact.read(name)
    with artifact.parsing(name):
        content.decode()


def _verify_picture(artifact: Artifact, name: str) -> None:
    from PIL import Image

    content = artifact.read(name)
    with artifact.parsing(name), Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
        picture.verify()


_PARSERS: dict[str, Callable[[Artifact, str], object]] = {
    ".json": Artifact.json,
    ".csv": Artifact.table,
    ".safetensors": _load_tensors,
    ".md": _decode_text,
    ".png": _verify_picture,
}
