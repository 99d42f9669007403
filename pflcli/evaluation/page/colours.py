"""Colours and dashes of methods, on white and on dark, at least 3 to 1 against either background."""

from __future__ import annotations

from collections.abc import Sequence

LIGHT = ("#0072B2", "#C04F00", "#00805E", "#A8487F", "#8F6A00", "#5B4FBF", "#3A7D1F", "#B3344C")
DARK = ("#56B4E9", "#FF9142", "#2BC79A", "#E79BC4", "#F0C14B", "#A99BFF", "#8FD16B", "#FF8A9B")
"""The same eight on dark, in the same order."""

GREY, GREY_ON_DARK = "#666666", "#A6A6A6"
"""The baseline's."""

PAPER, NIGHT = "#ffffff", "#15181d"
"""The two backgrounds."""

DASHES = ((), (6, 3), (2, 2), (8, 2, 2, 2), (12, 4))
"""How the first eight methods are dashed, the second eight, and so on."""


def style(methods: Sequence[str], baseline: str | None) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the colour on white and the dashes of each method; the baseline is grey and dashed."""
    compared = [label for label in methods if label != baseline]
    styles = {
        label: (LIGHT[place % len(LIGHT)], DASHES[place // len(LIGHT) % len(DASHES)])
        for place, label in enumerate(compared)
    }
    return {label: styles.get(label, (GREY, (8, 3))) for label in methods}


def on_dark() -> dict[str, str]:
    """Return the colour that takes the place of each on dark."""
    return {**dict(zip(LIGHT, DARK, strict=True)), GREY: GREY_ON_DARK}
