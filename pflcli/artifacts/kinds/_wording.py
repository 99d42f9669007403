"""Facts of a manifest in words. A manifest that another version wrote may lack a fact, which is then left out."""

from __future__ import annotations

from typing import Any

from pflcli.wording import counted


def count(number: Any, noun: str) -> str:
    """Return ``8 clients``, or nothing if the number is not known."""
    return counted(number, noun) if isinstance(number, int) else ""


def percent(label: str, fraction: Any) -> str:
    """Return ``accuracy 91.4 %``, or nothing if the fraction is not known."""
    return f"{label} {100 * fraction:.1f} %" if isinstance(fraction, float) else ""


def word(value: Any, label: str = "") -> str:
    """Return ``model mlp``, a name behind its label, or nothing if the name is not known."""
    return f"{label} {value}".strip() if isinstance(value, str) else ""
