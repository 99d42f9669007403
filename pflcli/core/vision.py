"""Import torchvision and timm, which is done only here."""

from __future__ import annotations

import importlib
import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

from pflcli.core.errors import UsageError


@cache
def torchvision() -> ModuleType:
    """Import torchvision, even if its compiled extension does not match the installed torch.

    The torchvision of package registries is built for CUDA. With a CPU build of torch its extension cannot be loaded,
    and the import fails because it registers shape functions for operators that do not exist. Declaring these
    operators, which no model or reader of pfl calls, makes the Python part usable. Nothing is declared if the extension
    loads.
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
"""Keeps operator declarations alive, which end with the object that made them."""


def timm() -> ModuleType:
    """Import timm, which imports torchvision; raises UsageError if it is not installed."""
    if importlib.util.find_spec("timm") is None:
        raise UsageError("networks of timm need the package timm, which is not installed", "pip install 'pflcli[timm]'")
    torchvision()
    return importlib.import_module("timm")


def _extension_loads(folder: Path) -> bool:
    import torch

    for path in folder.glob("_C*.so"):
        try:
            torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
        except OSError:
            return False
        return True
    return False
