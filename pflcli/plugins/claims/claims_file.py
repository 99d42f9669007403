"""The file of claims that ``pfl verify`` reads: experiments, and claims about the methods that are compared in them.

    settings = "settings.toml"                   # optional: experiments that this file builds on

    [set."fedattn@faithful"]                     # options and training settings of a method, or of a variant of it
    form = "faithful"

    [experiments.writers]
    like = "knn-per.writers"                     # of the settings; what follows differs
    partition = { new-clients = 0.2 }            # options of pfl partition
    training = { rounds = 50 }                   # training settings
    tune = 8                                     # trials that choose the options of every method
    predictions = { theirs = ["runs/theirs"] }   # of another tool: artifacts of pfl import-predictions

    [claims.beats-fine-tuning]
    says = "kNN-Per is more accurate than fine-tuning"
    where = "Table 2"
    on = ["writers"]
    method = "knn-per"
    direction = "higher"
    against = ["fedavg-plus"]
    margin = 0.01
    grid = { "knn-per.k" = [5, 10] }             # what the claim leaves open; it is judged for each value

Paths in the file that begin with ``./`` or ``../`` are relative to its folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Len

from pflcli.core import config, registry
from pflcli.core.errors import InputError, UsageError, closest
from pflcli.core.metrics import catalogue
from pflcli.core.settings import Settings
from pflcli.evaluation.stored_scores import NEIGHBOURS
from pflcli.options.declaration import declared_options
from pflcli.options.partition import Partition
from pflcli.plugins.claims.experiments import merge, resolve_experiments

Options = Mapping[str, Any]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_NOT_JUDGED = {"gain", "better_off", "worse_off", "validation_accuracy", "reported_round"}
"""Metrics that depend on a baseline, or that are not comparable between methods."""
METRICS = [*(name for name in catalogue.METRICS if name not in _NOT_JUDGED), *NEIGHBOURS]
"""The metrics that a claim can be about."""
SIZES = ("small", "paper")
_PARTS = ("partition", "training")


@dataclass(frozen=True)
class Experiment:
    """A dataset, how it is divided among clients, and how models are trained on it."""

    dataset: str = ""
    """a name of ``pfl list datasets``, or the folder of an imported one"""
    like: str = ""
    """an experiment of the settings, ``paper.name``, with which it agrees where it says nothing else"""
    partition: Options = field(default_factory=dict)
    """options of ``pfl partition`` by name; ``set`` has those of the scheme"""
    training: Options = field(default_factory=dict)
    """training settings"""
    set: Mapping[str, Options] = field(default_factory=dict)
    """options and training settings by method, besides those of the file"""
    target: float | None = None
    """the validation accuracy of metrics such as ``rounds_to_target``"""
    link: str | None = None
    """the speed of the links of ``simulated_seconds`` in Mbit/s, ``UP:DOWN``"""
    weights: bool | None = None
    """whether networks start from the weights that the command is given, not from random ones"""
    tune: Annotated[int, Ge(1)] | None = None
    """tune every method on each partition with at most this many trials, as ``pfl compare --tune`` does; learning
    rates are among what is tuned, also if ``training`` has one, unless it is in a claim's grid"""
    predictions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """the predictions of other tools by the name that claims give them: folders of ``pfl import-predictions``, of
    which each is about one partition of the experiment"""
    papers: Options = field(default_factory=dict)
    """what the paper has instead, of the options and settings that differ and that the settings cite (``cited``)"""


@dataclass(frozen=True)
class Claim:
    """A statement about methods, and the condition under which it is confirmed.

    The condition is on the difference of a metric, ``method`` minus each of ``against`` (or minus the number
    ``value``). With ``order``, each method is compared with the next one.
    """

    says: str
    """the claim, in a sentence"""
    on: Annotated[tuple[str, ...], Len(1)]
    """the experiments in which it is judged"""
    direction: Literal["higher", "lower", "level", "not-lower", "not-higher"]
    """higher or lower: by more than ``margin``; level, not-lower or not-higher: up to ``margin``"""
    where: str = ""
    """the place of the claim in the paper"""
    metric: str = "accuracy"
    """a metric of ``metrics.json``, or the precision or recall of neighbours in the last round"""
    method: str = ""
    """the method that the claim is about"""
    against: tuple[str, ...] = ()
    """the methods with which it is compared; the condition has to hold for each"""
    value: float | None = None
    """the number with which it is compared, instead of methods"""
    order: tuple[str, ...] = ()
    """methods of which each is compared with the next one, instead of ``method`` and ``against``"""
    margin: Annotated[float, Ge(0)] = 0.0
    """the tolerance, in the unit of the metric: 0.01 is one percentage point of accuracy"""
    seeds: Annotated[int, Ge(1)] = 3
    """with fewer seeds, the claim stays undecided"""
    grid: Mapping[str, list[Any]] = field(default_factory=dict)
    """values to try for what the claim leaves open: METHOD.OPTION, ``training.NAME`` or ``partition.NAME``"""

    @property
    def pairs(self) -> list[tuple[str, str | None]]:
        """The methods that are compared; None stands for ``value``."""
        if self.order:
            return list(zip(self.order, self.order[1:], strict=False))
        return [(self.method, other) for other in self.against or (None,)]

    @property
    def methods(self) -> list[str]:
        """The methods that it needs, each once."""
        return list(dict.fromkeys(name for pair in self.pairs for name in pair if name is not None))

    @property
    def ranks_first(self) -> bool:
        """Whether it says that a method scores higher than two or more others, its own variants not counted.

        Such a verdict depends on how well each of them is tuned.
        """
        entry = catalogue.METRICS.get(self.metric.removesuffix("_seen").removesuffix("_unseen"))
        is_score = entry is not None and not entry.lower_is_better and (entry.ranks or entry.unit == "fraction")
        rivals = {_family(name) for name in self.against} - {_family(name) for name in (self.method,) if name}
        return self.direction == "higher" and is_score and len(rivals) > 1


def _family(name: str) -> str:
    """Return the name of a method without that of the variant, or of the method that it extends."""
    method = name.partition("@")[0]
    if not registry.exists("methods", method):  # predictions of another tool
        return method
    return str(registry.card("methods", method).facts.get("EXTENDS", method))


@dataclass(frozen=True)
class ClaimsFile:
    """The content of a file: claims and experiments by name, and the options of methods in all experiments."""

    claims: Mapping[str, Claim]
    experiments: Mapping[str, Experiment]
    options: Mapping[str, Options]


@dataclass(frozen=True)
class _Tables:
    """The keys of a file, unchecked below."""

    settings: str = ""
    set: Mapping[str, Options] = field(default_factory=dict)
    experiments: Mapping[str, Options] = field(default_factory=dict)
    claims: Mapping[str, Options] = field(default_factory=dict)


def read(path: Path, size: str = SIZES[0]) -> ClaimsFile:
    """Read a file of claims, with the tables of this ``size`` in the settings that it names.

    Methods in files are used from now on, by their names. Raises InputError for a file that is missing or no TOML,
    UsageError for keys, names and values that do not exist or contradict each other.
    """
    tables: _Tables = config.build(_Tables, config.read_toml(path), str(path))
    folder = path.parent
    known = _read_settings(folder / tables.settings) if tables.settings else {}
    for group, entries in (("claims", tables.claims), ("experiments", tables.experiments)):
        if not entries:
            raise UsageError(f"{path} has no {group}", f"[{group}.NAME]")
        for name in entries:
            if not _NAME.fullmatch(name):
                raise UsageError(
                    f"{path}: '{name}' is no name of {group}: it consists of letters, digits, ., - and _",
                    f"[{group}.{re.sub(r'[^A-Za-z0-9_.-]+', '-', name).strip('-.') or 'NAME'}]",
                )
    if "verdicts" in tables.experiments:
        raise UsageError(
            f"{path}: an experiment cannot be called verdicts, as the verdicts' folder is", "[experiments.other]"
        )
    experiments = {
        name: _read_experiment(entry, f"[experiments.{name}] in {path}", folder, known, size)
        for name, entry in tables.experiments.items()
    }
    claims = {
        name: _read_claim(entry, f"[claims.{name}] in {path}", folder, experiments)
        for name, entry in tables.claims.items()
    }
    imported = {name for experiment in experiments.values() for name in experiment.predictions}
    used = {method for claim in claims.values() for method in claim.methods} - imported
    for owner, options in [(str(path), tables.set), *((name, each.set) for name, each in experiments.items())]:
        for method in options:
            if method not in used:
                raise UsageError(
                    f"{owner}: options are set for {method}, which no claim is about", closest(method, used)
                )
    return ClaimsFile(claims, experiments, tables.set)


def _read_settings(path: Path) -> Mapping[str, Any]:
    """Return the experiments of a settings file; raises InputError if it is not one."""
    content = config.read_toml(path)
    try:
        return resolve_experiments(content)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise InputError(
            f"{path} has no experiments: tables [PAPER.NAME], of which one may be `like` another"
        ) from None


def _read_claim(entry: Options, owner: str, folder: Path, experiments: Mapping[str, Experiment]) -> Claim:
    for key, example in (("says", '"mine beats fedavg"'), ("on", '["writers"]'), ("direction", '"higher"')):
        if key not in entry:
            raise UsageError(f"{owner} has no '{key}'", f"{key} = {example}")
    claim: Claim = config.build(Claim, entry, owner)
    used = {
        "method": _use_method(claim.method, folder),
        "against": tuple(_use_method(name, folder) for name in claim.against),
        "order": tuple(_use_method(name, folder) for name in claim.order),
    }
    claim = Claim(**{**vars(claim), **used})
    _require_one_form(claim, owner)
    for name in claim.on:
        if name not in experiments:
            raise UsageError(f"{owner} is judged on '{name}', which is no experiment", closest(name, experiments))
    if claim.metric not in METRICS:
        raise UsageError(f"{owner}: unknown metric '{claim.metric}'", closest(claim.metric, METRICS))
    owners = _require_methods(claim, owner, experiments)
    if claim.direction == "level" and not claim.margin:
        raise UsageError(f"{owner}: level needs a margin, as no two methods are equal", "margin = 0.01")
    for key, values in claim.grid.items():
        place, dot, option = key.partition(".")
        if not (dot and option and values):
            raise UsageError(f"{owner}: '{key}' in grid is not OWNER.KEY with a list", '"training.lr" = [0.1, 0.3]')
        if place not in owners:
            raise UsageError(f"{owner}: '{key}' in grid belongs to none of its methods", closest(place, owners))
    return claim


def _require_methods(claim: Claim, owner: str, experiments: Mapping[str, Experiment]) -> list[str]:
    """Return what has options that a grid may try: methods, but not the predictions of other tools.

    Raises UsageError for a name that is neither that of a method nor that of predictions of every experiment.
    """
    imported = {name: [on for on in claim.on if name in experiments[on].predictions] for name in claim.methods}
    for name, found in imported.items():
        if not found:
            registry.card("methods", name.partition("@")[0])
        elif len(found) < len(claim.on):
            other = next(on for on in claim.on if on not in found)
            raise UsageError(f"{owner} compares predictions '{name}', which [experiments.{other}] does not have")
    return ["training", "partition", *(name for name, found in imported.items() if not found)]


def _require_one_form(claim: Claim, owner: str) -> None:
    """Raise UsageError unless a claim compares a method with others, a method with a number, or methods in order."""
    compared = [bool(claim.against), claim.value is not None, bool(claim.order)]
    if sum(compared) != 1:
        raise UsageError(
            f"{owner} needs one of 'against', 'value' and 'order', and has {sum(compared)}", 'against = ["fedavg"]'
        )
    if bool(claim.method) == bool(claim.order):
        raise UsageError(
            f"{owner} names {'a method beside order' if claim.order else 'no method'}",
            "leave out method" if claim.order else 'method = "knn-per"',
        )
    if len(claim.order) == 1:
        raise UsageError(f"{owner}: order has one method, and needs two", 'order = ["fedham", "fedavg"]')
    for name, other in claim.pairs:
        if name == other:
            raise UsageError(f"{owner} compares {name} with itself", f'to add a variant: "{name}@other"')


def _use_method(word: str, folder: Path) -> str:
    return registry.use("methods", _resolve_path(word, folder))


def _resolve_path(word: str, folder: Path) -> str:
    """Return a path that begins with a dot relative to the working directory; other words stay as they are."""
    if not word.startswith(("./", "../")):
        return word
    path = str(folder / word)
    return path if "/" in path else f"./{path}"  # not to be taken for the name of a dataset


def _read_experiment(entry: Options, owner: str, folder: Path, known: Mapping[str, Any], size: str) -> Experiment:
    if "papers" in entry:
        raise UsageError(f"unknown option 'papers' for {owner}", "leave it out")
    own: Experiment = config.build(Experiment, entry, owner)
    base: Mapping[str, Any] = {}
    if own.like:
        if own.like not in known:
            raise UsageError(f"{owner} is like '{own.like}', which the settings do not have", closest(own.like, known))
        base = known[own.like]
    elif not own.dataset:
        raise UsageError(f"{owner} has no 'dataset'", 'dataset = "writers"')
    dataset = own.dataset or base.get("dataset", "")
    if not dataset:
        raise UsageError(f"{owner} is like {own.like}, which names no dataset", 'dataset = "mnist"')
    known_parts = {key: {part: base.get(key, {}).get(part, {}) for part in _PARTS} for key in SIZES}
    merged = {part: merge(known_parts[size][part], getattr(own, part)) for part in _PARTS}
    chosen = {part: {_underscored(key): value for key, value in table.items()} for part, table in merged.items()}
    weights = bool(base.get(size, {}).get("weights") if own.weights is None else own.weights)
    # What the settings do not cite was chosen here, and is no setting of the paper.
    cited = {_underscored(key) for key, place in base.get("cited", {}).items() if place}
    papers = {key: value for key, value in _differences(known_parts, merged).items() if key in cited}
    if "weights" in cited and base["paper"]["weights"] != weights:
        papers["weights"] = not weights
    for name in own.predictions:
        if registry.exists("methods", name):
            raise UsageError(
                f"{owner}: '{name}' is a method of pfl, and its rows would be mixed", f"{name}-theirs = []"
            )
    experiment = Experiment(
        dataset=_resolve_path(dataset, folder),
        like=own.like,
        **chosen,
        set=own.set,
        target=base.get(size, {}).get("target") if own.target is None else own.target,
        link=base.get(size, {}).get("link") if own.link is None else own.link,
        weights=weights,
        tune=base.get(size, {}).get("tune") if own.tune is None else own.tune,
        predictions={
            name: tuple(_resolve_path(path, folder) for path in own.predictions[name]) for name in own.predictions
        },
        papers=papers,
    )
    check_options(experiment, owner)
    return experiment


def check_options(experiment: Experiment, owner: str) -> None:
    """Raise UsageError for a partition option or a training setting that does not exist or is invalid."""
    own = {"dataset", "out", "root", "download", "seed", "like", "client"}
    known = {option.name for option in declared_options(Partition)} - own - {"options"} | {"set"}
    for key in experiment.partition:
        if key not in known:
            raise UsageError(f"unknown option '{key}' for the partition of {owner}", closest(key, known))
    config.build(Settings, experiment.training, f"the training of {owner}")


def _differences(known: Mapping[str, Options], used: Options) -> dict[str, Any]:
    """Return what the paper has instead of what is ``used``, None for a default, of the keys ``known`` at any size."""
    paper, small, chosen = _flat(known["paper"]), _flat(known["small"]), _flat(used)
    return {key: paper.get(key) for key in {**paper, **small} if paper.get(key) != chosen.get(key)}


def _flat(table: Options) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value) if isinstance(value, Mapping) else {_underscored(key): value}
    return flat


def _underscored(key: str) -> str:
    return key.replace("-", "_")
