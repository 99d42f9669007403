"""``pfl doctor``: check the installation, and report its versions and devices."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pflcli.workflow.training import hardware

_PACKAGES = (
    "torch",
    "torchvision",
    "faiss-cpu",
    "numpy",
    "pandas",
    "pillow",
    "h5py",
    "safetensors",
    "scikit-learn",
    "typer",
    "rich",
)
_OPTIONAL = {
    "numba": "PyTorch and NumPy compute without it, more slowly",
    "vl-convert-python": "tables and pages have no pictures; pip install 'pflcli[pictures]'",
}
"""Packages that may be missing, and the consequence."""


def doctor() -> list[dict[str, Any]]:
    """Return one entry per check: its name, the result as text, and whether it passed."""
    checks: list[dict[str, Any]] = [
        {"check": "pfl", "found": version("pflcli"), "ok": True},
        {"check": "python", "found": f"{platform.python_version()} on {platform.platform()}", "ok": True},
        {"check": "threads", "found": str(hardware.threads(0)), "ok": True},
    ]
    for package in _PACKAGES:
        try:
            checks.append({"check": package, "found": version(package), "ok": True})
        except PackageNotFoundError:
            checks.append({"check": package, "found": "not installed", "ok": False})
    for package, consequence in _OPTIONAL.items():
        try:
            checks.append({"check": package, "found": version(package), "ok": True})
        except PackageNotFoundError:
            checks.append({"check": package, "found": f"not installed: {consequence}", "ok": True})
    for name, probe in {
        "device": _device,
        "models": _vision,
        "acceleration": _kernels,
        "FAISS beside torch": _faiss,
        "HDF5": _hdf5,
        "charts": _charts,
    }.items():
        try:
            checks.append({"check": name, "found": probe(), "ok": True})
        except Exception as error:  # a broken installation may raise anything; the error is the result
            checks.append({"check": name, "found": f"{type(error).__name__}: {error}", "ok": False})
    return checks


def _device() -> str:
    import torch

    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return ", ".join(names) or "cpu only"


def _vision() -> str:
    from pflcli.core import models

    net = models.create("mobilenet-v2", (3, 32, 32), 10, 0)
    return f"mobilenet-v2 builds, {sum(p.numel() for p in net.parameters()):,} parameters"


def _kernels() -> str:
    from pflcli.core.engine import backend

    off = backend.why_off()
    return f"off, as {off}: PyTorch and NumPy compute instead" if off else f"on, with {backend.describe_products()}"


def _faiss() -> str:
    import numpy as np

    from pflcli.core.knn.indexes import flat_indexes
    from pflcli.core.knn.stores import Stores

    points = np.eye(3, dtype=np.float32)
    blob, ends = flat_indexes([points])
    rows = np.asarray([0, 3])
    stores = Stores(blob, ends, np.arange(3), rows)
    nearest = stores.search([0], points, rows, 1).label[:, 0].tolist()
    if nearest != [0, 1, 2]:
        raise RuntimeError(f"the nearest of three points are wrong: {nearest} instead of [0, 1, 2]")
    return "search is exact"


def _charts() -> str:
    from pflcli.core.errors import UsageError
    from pflcli.evaluation.charts import vega

    try:
        png = vega.render(vega.figure({**vega.data([{"x": 1.0}]), "mark": "point"}, "a title"))
    except UsageError:
        return "no pictures are drawn"
    if not png.startswith(b"\x89PNG"):
        raise RuntimeError("vl-convert has not drawn a PNG")
    return "are drawn without a display"


def _hdf5() -> str:
    import tempfile

    import h5py
    import numpy as np

    from pflcli.artifacts import h5_file

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.h5")
        with h5_file.create(path) as file:
            h5_file.fill(file, {"a": np.arange(3)})
        with h5py.File(path, "r", locking=False) as file:
            return f"reads what it writes ({file['a'].shape[0]} of 3 values)"
