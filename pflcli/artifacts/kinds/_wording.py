"""Formats facts of a manifest. A fact that is missing, as in a manifest of another version, gives empty text."""

from __future__ import annotations

from typing import Any

from pflcli.wording import counted


def count(number: Any, noun: str) -> str:
    """Return text such as ``8 clients``, empty if the number is unknown."""
    return counted(number, noun) if isinstance(number, int) else ""


def percent(label: str, fraction: Any) -> str:
    """Return text such as ``accuracy 91.4 %``, empty if the fraction is unknown."""
    return f"{label} {100 * fraction:.1f} %" if isinstance(fraction, float) else ""


def word(value: Any, label: str = "") -> str:
    """Return a label and a name, such as ``model mlp``, empty if the name is unknown."""
    return f"{label} {value}".strip() if isinstance(value, str) else ""
