"""Writes safetensors files in pieces: https://github.com/huggingface/safetensors, section Format."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator

Column = tuple[str, object, tuple[int, ...], Iterable[bytes]]
"""A tensor's name, torch type, shape and bytes in pieces."""

_TYPES = {"float32": ("F32", 4), "float64": ("F64", 8), "int64": ("I64", 8), "uint8": ("U8", 1), "bool": ("BOOL", 1)}


def pieces(columns: Iterable[Column]) -> Iterator[bytes]:
    """Yield the bytes of a safetensors file with these columns, reading one column at a time."""
    columns, header, end = list(columns), {}, 0
    for name, dtype, shape, _ in columns:
        name_of_type, width = _TYPES[str(dtype).removeprefix("torch.")]
        size = math.prod(shape) * width
        header[name] = {"dtype": name_of_type, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for *_, chunks in columns:
        yield from chunks
