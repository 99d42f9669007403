"""The search space of ``pfl tune``: options of a method and training settings, as lists or as ranges of values."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pflcli.artifacts.kinds import required_kinds
from pflcli.artifacts.manifest import digest
from pflcli.core import config, methods, registry
from pflcli.core.errors import UsageError, closest
from pflcli.core.methods import Method
from pflcli.core.settings import TRAINING, Settings, changed
from pflcli.core.wording import as_typed

Point = dict[str, Any]
"""A value for each searched key."""

BACKBONE = "fedavg"
"""The method that trains the backbone. In a comparison it has its options there, and predicts with the backbone."""
_RANGE = re.compile(r"(?P<low>[^,]+?)\.\.(?P<high>[^,]+)")
MAX_NAME_LENGTH = 100
"""Maximum characters in the name of a trial's folder; a longer name is replaced by a hash."""


@dataclass(frozen=True)
class Axis:
    """The values of one searched key: a list of ``values``, or all numbers between two ``bounds``."""

    key: str
    values: tuple[Any, ...] = ()
    bounds: tuple[float, float] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the axis is a range of integers."""
        return self.bounds is not None and all(isinstance(bound, int) for bound in self.bounds)

    @property
    def is_ratio(self) -> bool:
        """Whether the range is searched on a log scale: it lies above 0 and spans at least a factor of ten."""
        return self.bounds is not None and self.bounds[0] > 0 and self.bounds[1] / self.bounds[0] >= 10

    def holds(self, value: Any) -> bool:
        """Whether the axis contains a value."""
        if self.bounds is None:
            return any(value == other and type(value) is type(other) for other in self.values)
        return isinstance(value, int | float) and self.bounds[0] <= value <= self.bounds[1]

    def as_range(self) -> Axis:
        """Return the range that a list of numbers spans; any other axis is returned unchanged."""
        kinds = {type(value) for value in self.values}
        if self.bounds is not None or len(self.values) < 2 or len(kinds) > 1 or not kinds <= {int, float}:
            return self
        return Axis(self.key, (), (min(self.values), max(self.values)))

    def plain(self) -> Any:
        """Return the axis as JSON values for a request."""
        return list(self.values) if self.bounds is None else {"low": self.bounds[0], "high": self.bounds[1]}


@dataclass(frozen=True)
class Space:
    """The search space of one method: the product of its axes."""

    method: str
    axes: tuple[Axis, ...]

    @property
    def is_finite(self) -> bool:
        """Whether no axis is a range."""
        return all(axis.bounds is None for axis in self.axes)

    @property
    def size(self) -> int:
        """The number of points of a finite space."""
        return math.prod(len(axis.values) for axis in self.axes)

    def points(self) -> list[Point]:
        """Return all points of a finite space; the last axis varies fastest."""
        keys = [axis.key for axis in self.axes]
        return [
            dict(zip(keys, values, strict=True)) for values in itertools.product(*(axis.values for axis in self.axes))
        ]

    def holds(self, point: Point) -> bool:
        """Whether the space contains a point."""
        return all(axis.holds(point[axis.key]) for axis in self.axes)

    def accepts(self, point: Point) -> bool:
        """Whether the method and the training settings accept a point, in the space or beside it."""
        try:
            options, settings = self.split(point)
            config.build(methods.load(self.method).Config, options, self.method)
            config.build(Settings, settings, self.method)
        except UsageError:
            return False
        return True

    def split(self, point: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the method's options and the training settings of a point."""
        entries = [(*_owner(self.method, key), value) for key, value in point.items()]
        options = {name: value for cls, name, value in entries if cls is not Settings}
        return options, {name: value for cls, name, value in entries if cls is Settings}


def search_space(
    method: str,
    search: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
    sampler: str,
) -> Space:
    """Return the search space: ``search`` contains lists or typed text by key; without it, the method's own grid.

    A key names an option of the method or, if the method has no such option, a training setting; with the prefix
    ``training.`` it always names the setting. ``options`` and ``settings`` have fixed values. Raises UsageError for an
    unknown key, an invalid value, or a key that is fixed or cannot be searched.
    """
    fixed = _fixed_keys(options, settings)

    def axis(key: str, values: Any) -> Axis:
        cls, name = _owner(method, key)
        listed = values if isinstance(values, str) else ["none" if value is None else value for value in values]
        return _axis(cls, settings if cls is Settings else options, method, key, name, listed)

    if search:
        axes = [axis(key, values) for key, values in search.items()]
        names = [_full_key(method, axis.key) for axis in axes]
        for name in names:
            if name in fixed or names.count(name) > 1:
                raise UsageError(f"{name} is both set and searched, or searched twice", "give it once")
    else:
        axes = [axis(key, values) for key, values in _own_grid(method, fixed).items()]
        if sampler != "grid":
            axes = [axis.as_range() for axis in axes]
    if not axes:
        raise UsageError(f"{method} has nothing to search", "--search KEY=VALUE,VALUE")
    ranges = [axis.key for axis in axes if axis.bounds is not None]
    if ranges and sampler == "grid":
        raise UsageError(f"{ranges[0]} is a range, but a grid needs a list of values", "a list, or --sampler random")
    return Space(method, tuple(axes))


def grid_size(method: str, options: Mapping[str, Any], settings: Mapping[str, Any]) -> int:
    """Return the number of points of the method's own grid with fixed options and settings; 0 if all are fixed."""
    grid = _own_grid(method, _fixed_keys(options, settings))
    return math.prod(map(len, grid.values())) if grid else 0


def _fixed_keys(options: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    return [*options, *(f"{TRAINING}{key}" for key in settings)]


def _own_grid(method: str, fixed: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Return the default search of a method without the keys that are fixed."""
    grid = default_grid(methods.load(method))
    return {key: values for key, values in grid.items() if _full_key(method, key) not in fixed}


def default_grid(method: Method) -> dict[str, tuple[Any, ...]]:
    """Return the default search of a method: learning rates, if it trains, and its own grid."""
    trains = method.has_rounds or not method.NEEDS
    return {**({f"{TRAINING}lr": methods.LEARNING_RATES} if trains else {}), **method.GRID}


def folder_name(point: Point) -> str:
    """Return the name of a trial's folder: its values, or a hash of them if they are too long or not a file name."""
    name = ",".join(f"{key}={as_typed(value)}" for key, value in point.items())
    return name if re.fullmatch(r"[\w.=,+-]+", name) and len(name) <= MAX_NAME_LENGTH else digest(point)[:16]


def describe(point: Mapping[str, Any]) -> str:
    """Return a point as a user types it."""
    return ", ".join(f"{key}={as_typed(value)}" for key, value in point.items())


def _owner(method: str, key: str) -> tuple[type[Any], str]:
    """Return the config class that a key belongs to, and the name of its field."""
    loaded = methods.load(method)
    options, shared = ({field.name for field in dataclasses.fields(cls)} for cls in (loaded.Config, Settings))
    name = key.removeprefix(TRAINING)
    if name != key or (key not in options and key in shared):
        if name not in shared:
            raise UsageError(f"unknown training setting '{name}'", closest(name, shared))
        if "embeddings" in required_kinds(loaded.NEEDS):
            raise UsageError(
                f"{method} trains no model, so {name} has no effect",
                f"tune the method that trains the backbone: pfl tune fedavg PARTITION --search {name}=...",
            )
        if name == "refit":
            raise UsageError("refit leaves no validation samples to choose on", "leave refit out of the search")
        return Settings, name
    if key not in options:
        hint = registry.suggest_option(key, method, options | shared)
        raise UsageError(f"unknown option '{key}' for {method}", hint)
    return loaded.Config, key


def _full_key(method: str, key: str) -> str:
    cls, name = _owner(method, key)
    return f"{TRAINING}{name}" if cls is Settings else name


def _axis(cls: type[Any], base: Mapping[str, Any], method: str, key: str, name: str, values: str | list[Any]) -> Axis:
    """Return an axis with values of the type of the field, each checked together with the values of ``base``."""
    owner = "the training settings" if cls is Settings else method
    ranged = _RANGE.fullmatch(values.strip()) if isinstance(values, str) else None
    if isinstance(values, str):
        values = [*ranged.groups()] if ranged else [part.strip() for part in values.split(",") if part.strip()]
    typed = [getattr(config.build(cls, changed(base, {name: value}), owner), name) for value in values]
    if not typed or any(isinstance(value, tuple) for value in typed):
        problem = "has no values" if not typed else "is itself a list, and lists cannot be searched"
        raise UsageError(f"--search {key}: {key} {problem}", "--search lr=0.01,0.03,0.1")
    if len({as_typed(value) for value in typed}) < len(typed):
        raise UsageError(f"--search {key}: a value occurs twice", f"--search {key}=" + ",".join(map(as_typed, typed)))
    if not ranged:
        return Axis(key, tuple(typed))
    low, high = typed
    if not all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in typed) or low >= high:
        raise UsageError(f"--search {key}={low}..{high} is not a range of numbers", f"--search {key}=0.01..0.3")
    return Axis(key, (), (low, high))
