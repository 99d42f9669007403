"""Writes safetensors files in pieces: https://github.com/huggingface/safetensors, section Format."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping

Column = tuple[str, object, tuple[int, ...], Iterable[bytes]]
"""A tensor's name, torch type, shape and bytes in pieces."""

TYPES = {
    **{"float64": ("F64", 8), "float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2)},
    **{"int64": ("I64", 8), "int32": ("I32", 4), "int16": ("I16", 2), "int8": ("I8", 1)},
    **{"uint8": ("U8", 1), "bool": ("BOOL", 1)},
}
"""The name of a torch type in a file, and its bytes."""


def pieces(columns: Iterable[Column], metadata: Mapping[str, str] | None = None) -> Iterator[bytes]:
    """Yield the bytes of a safetensors file with these columns, in their order, reading one column at a time."""
    columns, end = list(columns), 0
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, dtype, shape, _ in columns:
        name_of_type, width = TYPES[str(dtype).removeprefix("torch.")]
        size = math.prod(shape) * width
        header[name] = {"dtype": name_of_type, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for *_, chunks in columns:
        yield from chunks
