"""What a site measures of a column: counts and moments, rounded so that no row can be computed from them.

Counts are rounded to multiples of ``BASE``. The mean, deviation and median of a number with ``n`` known values are
rounded to a unit of at least the deviation divided by ``n``. The sum of the values is then known to about one
deviation, so that the difference between the sums of ``n`` and ``n - 1`` rows does not tell the row between them, as it
does with all digits. The mean of all sites moves by at most 1.25 deviations times the number of sites, divided by the
number of all rows, which is far below its standard error. A number that has two values is a count, and rounded as one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

BASE = 5
"""Counts are multiples of this, and fewer rows do not count."""
_STEPS = (1, 2, 5, 10)
"""The units of rounding are these times a power of ten."""
FACTORS = {
    2.2046: ("kg", "lb"), 2.54: ("inch", "cm"), 7.5006: ("kPa", "mmHg"), 10.0: ("cm", "mm"), 12.0: ("years", "months"),
    18.016: ("mmol/l", "mg/dl"), 25.4: ("inch", "mm"), 38.67: ("mmol/l", "mg/dl"), 60.0: ("minutes", "seconds"),
    88.42: ("mg/dl", "µmol/l"), 100.0: ("fractions", "percent"), 365.25: ("years", "days"), 1000.0: ("kg", "g"),
}  # fmt: skip
"""How many of the second unit are one of the first; 18, 38.67 and 88.42 are for glucose, cholesterol and creatinine."""
_BISECTIONS = 60
"""Halvings of an interval, after which its ends agree up to rounding."""
_FAR = 3.0
"""Means are far apart if they are more deviations apart."""
_RATIO, _DEVIATION_RATIO, _DEGREES_RATIO = 1.25, 1.5, 1.03
"""The largest ratio between a mean, a deviation, and a temperature, and what a conversion would give."""


@dataclass(frozen=True)
class Moments:
    """The ``mean``, standard ``deviation`` (divided by n) and ``median`` of ``known`` values."""

    known: int
    mean: float
    deviation: float
    median: float


def count(rows: int) -> int:
    """Return a number of rows as it leaves a site: the nearest multiple of ``BASE``; halves cannot occur."""
    return BASE * round(rows / BASE)


def measure(values: NDArray[np.float64]) -> Moments:
    """Return the moments of known values (n,), n > 0, with all digits."""
    mean, deviation = float(values.mean()), float(values.std())
    constant = values.max() == values.min()
    return Moments(len(values), mean, 0.0 if constant else deviation, float(np.median(values)))


def measure_rounded(values: NDArray[np.float64], known: int) -> Moments | None:
    """Return the moments of known values (n,) as they leave a site; None if there are fewer than ``BASE``.

    ``known`` is how many there are as the server knows it, to within ``BASE``.
    """
    if min(len(values), known) < BASE:
        return None
    low, high = float(values.min()), float(values.max())
    if low < high and np.isin(values, (low, high)).all():
        share = min(count(int((values == high).sum())), known) / known
        exact = Moments(
            known,
            low + share * (high - low),
            (high - low) * math.sqrt(share * (1 - share)),
            low if share < 0.5 else high if share > 0.5 else (low + high) / 2,
        )
        return _round(exact, unit((high - low) / 10_000))
    exact = replace(measure(values), known=known)
    return _round(exact, unit(exact.deviation / known)) if exact.deviation else exact


def unit(least: float) -> tuple[float, int]:
    """Return the smallest unit of rounding of at least ``least`` > 0, and the number of its decimals."""
    power = math.floor(math.log10(least))
    step = next(step for step in (*_STEPS, 20) if step * 10.0**power >= least)
    return step * 10.0**power, max(0, -power)


def _round(exact: Moments, unit: tuple[float, int]) -> Moments:
    size, decimals = unit

    def rounded(value: float) -> float:
        return round(round(value / size) * size, decimals)

    return Moments(exact.known, rounded(exact.mean), rounded(exact.deviation), rounded(exact.median))


def pool_medians(parts: Sequence[Moments]) -> float:
    """Return an estimate of the median of all values from the moments of ``parts``; 0 without any.

    Half of all values would be below it if those of each site were normal, with their median and deviation. The median
    of all values lies between the least and the largest of these medians, as this one does. Where all moments are those
    of two values, it is the more frequent one.
    """
    known = [part for part in parts if part.known]
    total = sum(part.known for part in known)
    low, high = (pick((part.median for part in known), default=0.0) for pick in (min, max))
    if low < high and all(_has_two_values(part, low, high) for part in known):
        return low if 2 * math.fsum(part.known * (part.mean - low) for part in known) < total * (high - low) else high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if 2 * math.fsum(part.known * _share_below(middle, part) for part in known) < total:
            low = middle
        else:
            high = middle
    return high


def _has_two_values(part: Moments, low: float, high: float) -> bool:
    """Return whether the deviation is that of values ``low`` and ``high`` with this mean, as they leave a site."""
    expected = math.sqrt(max((part.mean - low) * (high - part.mean), 0.0))
    return low <= part.mean <= high and abs(part.deviation - expected) < 1e-3 * (high - low)


def _share_below(value: float, part: Moments) -> float:
    """Return the share of values at most ``value``, if they are normal around the median; a constant is a step."""
    if not part.deviation:
        return float(value >= part.median)
    return 0.5 * (1 + math.erf((value - part.median) / (part.deviation * math.sqrt(2))))


def pool(parts: Sequence[Moments], lacking: int = 0, fill: float = 0.0) -> tuple[float, float]:
    """Return the mean and the deviation of all values of ``parts``, and of ``lacking`` ones that are ``fill``.

    They are those of the pooled values, up to rounding; both are 0 without values.
    """
    filled = [*parts, Moments(lacking, fill, 0.0, fill)]
    total = sum(part.known for part in filled)
    if not total:
        return 0.0, 0.0
    mean = math.fsum(part.known * part.mean for part in filled) / total
    squares = [part.known * (part.deviation**2 + (part.mean - mean) ** 2) for part in filled]
    deviation = math.sqrt(math.fsum(squares) / total)
    # Rounding can leave a constant with a deviation that is not 0.
    is_constant = len({(part.mean, part.deviation) for part in filled if part.known}) == 1 and not parts[0].deviation
    return mean, 0.0 if is_constant else deviation


def describe_outliers(parts: Mapping[str, Moments]) -> dict[str, str]:
    """Return why the moments of some sites may be in another unit than those of others, by site, with both means.

    Two sites are far apart if their means are more than 3 deviations apart, or if a known factor lies both between
    their means and between their deviations. A site is described if those near it, and it itself, have at most half of
    all known values.
    """
    found, total = {}, sum(part.known for part in parts.values())
    for site, own in parts.items():
        others = [part for other, part in parts.items() if other != site]
        near = sum(part.known for part in others if not _is_far(own, part))
        if others and 2 * (own.known + near) <= total and any(_is_far(own, part) for part in others):
            usual = _find_usual(others)
            found[site] = f"has mean {own.mean:.6g}, and {usual.mean:.6g} is usual at the others{_suggest(own, usual)}"
    return found


def _find_usual(parts: Sequence[Moments]) -> Moments:
    """Return those moments whose mean is the median of all, weighted by known values."""
    ordered, below = sorted(parts, key=lambda part: part.mean), 0
    total = sum(part.known for part in ordered)
    for part in ordered:
        below += part.known
        if 2 * below >= total:
            return part
    raise ValueError("there are no moments")


def _is_far(one: Moments, other: Moments) -> bool:
    """Return whether two sites may use different units."""
    distance, deviations = abs(one.mean - other.mean), (one.deviation, other.deviation)
    if distance > _FAR * max(deviations):
        return True
    return distance > min(deviations) and any(
        _is_near(one.deviation, other.deviation * slope, _DEVIATION_RATIO)
        for slope, _ in _find_conversions(one.mean, other.mean)
    )


def _suggest(own: Moments, usual: Moments) -> str:
    """Return the units that may be meant, if a known factor lies between medians or means, and what to ask."""
    # Medians first, as a zero that marks a missing value moves means.
    pairs = ((own.median, usual.median), (own.mean, usual.mean))
    found = next((found for pair in pairs if (found := _find_conversions(*pair))), [])
    units = " or ".join(words for _, words in found[:2])
    return f", as if in {units}: convert it, if so" if units else ": is it in the same unit?"


def _find_conversions(own: float, usual: float) -> list[tuple[float, str]]:
    """Return the factors by which ``own`` may be in another unit than ``usual``, with both units, the nearest first."""
    found = [
        (abs(math.log(own / usual / ratio)), ratio, f"{units[at]} and not {units[1 - at]} (a factor of {factor:g})")
        for factor, units in FACTORS.items()
        for at, ratio in ((1, factor), (0, 1 / factor))
        if _is_near(own, usual * ratio, _RATIO)
    ]
    for ratio, expected, words in (
        (1.8, 1.8 * usual + 32, "°F and not °C"),
        (1 / 1.8, (usual - 32) / 1.8, "°C and not °F"),
    ):
        if _is_near(own, expected, _DEGREES_RATIO):
            found.append((abs(math.log(own / expected)), ratio, words))
    return [(ratio, words) for _, ratio, words in sorted(found)]


def _is_near(value: float, other: float, ratio: float) -> bool:
    """Return whether two numbers of the same sign differ by at most a ``ratio``."""
    return value * other > 0 and 1 / ratio <= value / other <= ratio
