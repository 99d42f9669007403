"""The one place that imports torchvision."""

from __future__ import annotations

import importlib
import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def torchvision() -> ModuleType:
    """Import torchvision, also where its compiled part does not fit the installed torch.

    The registries' torchvision is built against CUDA. Beside a CPU build of torch its extension cannot be loaded, and
    the import then fails because operators that it registers shape functions for do not exist. Declaring those
    operators, which no model or reader here calls, lets the Python part be used. A matching pair is left alone.
    """
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is not None and spec.origin is not None and not _extension_loads(Path(spec.origin).parent):
        source = (Path(spec.origin).parent / "_meta_registrations.py").read_text(encoding="utf-8")
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in re.findall(r"register_fake\(\"torchvision::(\w+)\"\)", source):
            schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(schema)  # type: ignore[no-untyped-call]
        _LIBRARIES.append(library)
    for part in ("datasets", "models"):
        importlib.import_module(f"torchvision.{part}")
    return importlib.import_module("torchvision")


_LIBRARIES: list[object] = []
"""Operator declarations live as long as the object that made them."""


def _extension_loads(folder: Path) -> bool:
    import torch

    for path in folder.glob("_C*.so"):
        try:
            torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
        except OSError:
            return False
        return True
    return False
