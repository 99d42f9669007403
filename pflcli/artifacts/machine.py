"""What a manifest says of the machine that made an artifact: versions, and the kind of its processor.

Sums of floating-point numbers may differ in their last digits between versions of libraries and kinds of processors.
Nothing here names the machine or its users.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = {"torch": "torch", "numpy": "numpy", "faiss": "faiss-cpu", "numba": "numba"}
"""The libraries that compute, and the package of each, whose version is read without importing it."""
_INSTRUCTIONS = {"avx512f": "avx512", "avx2": "avx2", "sve": "sve", "asimd": "neon"}
"""Vector instructions that libraries choose by, from the widest, as Linux lists them and as they are called."""


@cache
def describe() -> dict[str, Any]:
    """Return the versions of pfl, Python and the installed libraries, and the kind of the processor."""
    libraries = {}
    for name, package in _PACKAGES.items():
        with suppress(PackageNotFoundError):
            libraries[name] = version(package)
    return {
        "pfl": version("pflcli"),
        "python": platform.python_version(),
        "libraries": libraries,
        "processor": _describe_processor(),
    }


def _describe_processor() -> str:
    """Return architecture, widest vector instructions and model, such as ``x86_64, avx2, AMD EPYC 7B13``."""
    listed: dict[str, str] = {}
    with suppress(OSError, UnicodeDecodeError), Path("/proc/cpuinfo").open(encoding="utf-8") as file:
        for line in iter(file.readline, "\n"):  # the first processor
            if not line:
                break
            name, _, value = line.partition(":")
            listed[name.strip()] = value.strip()
    flags = {*f"{listed.get('flags', '')} {listed.get('Features', '')}".split()}
    widest = next((word for flag, word in _INSTRUCTIONS.items() if flag in flags), "")
    return ", ".join(filter(None, [platform.machine(), widest, listed.get("model name", "")]))


def list_differences(made: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return how this machine differs from those that made artifacts, such as ``torch 2.5.1 here, 2.4.0 there``.

    What a manifest does not record, as that of an earlier version, is not compared.
    """
    here = _flatten(describe())
    lines = dict.fromkeys(
        f"{name} {here.get(name, 'missing')} here, {value} there"
        for recorded in made
        for name, value in _flatten(recorded).items()
        if here.get(name) != value
    )
    return [*lines]


def _flatten(made: Mapping[str, Any]) -> dict[str, str]:
    libraries = made.get("libraries")
    own = {name: made[name] for name in ("pfl", "python", "processor") if name in made}
    return {
        name: str(value) for name, value in {**own, **(libraries if isinstance(libraries, Mapping) else {})}.items()
    }
