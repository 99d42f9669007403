"""``compare --tune N``: choose the options and training settings of every method, each with the same budget of trials.

FedAvg is tuned first, as it trains the backbone of other methods: its best training settings become those of the
comparison. Then each method is tuned, on the backbone if it needs one; all under one seed, by validation samples alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pflcli import config, methods
from pflcli.artifacts import chain
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.decision import Decision
from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.kinds import tuning as tunings
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.commands.comparison.chain_steps import shared_artifacts
from pflcli.commands.comparison.existing import option_values
from pflcli.commands.comparison.plan import BACKBONE, TRAINING, divided, resolve_variants
from pflcli.commands.comparison.steps import CHOOSING, Variant, method_name
from pflcli.commands.tune import tune
from pflcli.commands.tuning import running
from pflcli.commands.tuning.space import grid_size
from pflcli.errors import ComputationError, ConflictError, InputError, UsageError
from pflcli.execution import Execution
from pflcli.federation.channel import LINKS
from pflcli.settings import Settings, changed
from pflcli.training import run_request
from pflcli.training.initial_weights import Weights
from pflcli.wording import counted

FOLDER = "tune"
"""The folder inside ``out`` with one tuning per method."""

_LATER = "after tuning"
"""The decision of a dry run for a method whose options are not chosen yet."""


@dataclass(frozen=True)
class Budget:
    """What each method may spend: ``trials`` at most, under one ``seed``, ranked by one ``metric``."""

    trials: int
    seed: int
    metric: str


def budget(
    trials: int | None, table: Path, partitions: Mapping[int, Artifact], metrics: Sequence[str] | None, *, force: bool
) -> Budget | None:
    """Return the budget of ``--tune``, or None without it.

    ``metrics`` are those of ``--metric``. If the comparison ``table`` exists, its seed and by default its metric stay.
    Raises UsageError for a budget without trials and for several partitions, InputError without validation samples,
    and ConflictError, unless ``force``, if the comparison exists with another budget.
    """
    earlier: Mapping[str, Any] = {} if force else _request(table)
    if earlier:
        before = earlier.get("tune", {}).get("trials")
        if before != trials:
            budgets = [f"with --tune {number}" if number else "without --tune" for number in (before, trials)]
            remedy = f"--tune {before}" if before else "leave out --tune"
            raise ConflictError(f"{table} was made {budgets[0]}, not {budgets[1]}", f"{remedy}, or another --out")
    if trials is None:
        return None
    if not (force or earlier or (table.parent / FOLDER).exists()) and any(table.parent.glob("seed-*/*")):
        raise ConflictError(f"{table.parent} has runs without --tune", "leave out --tune, or choose another --out")
    if trials < 1:
        raise UsageError(f"--tune {trials} leaves no trial to choose from", "--tune 8")
    partition, *others = dict.fromkeys(partition.path for partition in partitions.values())
    if others:
        raise UsageError(
            f"--tune chooses on the validation samples of one partition, and there are {1 + len(others)}",
            f"pfl compare {partition} -o DIR --seeds 0,1,2 --tune {trials}",
        )
    if not next(iter(partitions.values())).manifest.summary.get(running.SPLIT, 1):
        raise InputError(f"{partition} has no validation samples to choose by", "--fractions 0.6,0.2,0.2")
    seed = earlier.get("tune", {}).get("seed", next(iter(partitions)))
    return Budget(trials, seed, (metrics or earlier.get("metric") or ["accuracy"])[0])


def requested_variants(
    methods: Sequence[str], options: Mapping[str, Mapping[str, Any]], training: Settings, table: Path
) -> list[Variant]:
    """Return the requested variants before tuning; a stack may pool methods of the existing comparison ``table``."""
    values = {name: option_values(facts) for name, facts in _request(table).get("methods", {}).items()}
    try:
        existing = resolve_variants([*values], values, training) if values else []
    except UsageError:
        existing = []  # another version of pfl had other methods and options
    return resolve_variants(methods, options, training, existing)


def _request(table: Path) -> Mapping[str, Any]:
    """Return the request of an existing comparison, or nothing."""
    try:
        return manifests.read(table).request if manifests.is_artifact(table) else {}
    except InputError:
        return {}  # it is damaged, which is reported where it is replaced


@dataclass(frozen=True)
class Choice:
    """The best trial of one method; ``values`` is None if a dry run finds that trials are still to be made."""

    values: Mapping[str, Any] | None
    trials: int
    """number of trials, or in a dry run of those still to be made"""
    grid: int
    """number of points of the grid; 0 if the method has nothing to tune"""
    problem: str = ""
    """why no trial has a score"""


@dataclass(frozen=True)
class Tuned:
    """The options and settings of a comparison: those of the user, and with a ``budget`` the chosen ones."""

    options: Mapping[str, Mapping[str, Any]]
    """by method, options and training settings"""
    settings: Mapping[str, Any]
    """training settings of all methods"""
    budget: Budget | None = None
    choices: Mapping[str, Choice] = field(default_factory=dict)
    """by method"""

    @property
    def is_complete(self) -> bool:
        """Whether everything is chosen; in a dry run it may not be."""
        return all(choice.values is not None for choice in self.choices.values())

    @property
    def request(self) -> dict[str, Any]:
        """The budget's part of the request of the comparison."""
        return {} if self.budget is None else {"tune": {"trials": self.budget.trials, "seed": self.budget.seed}}

    def private_trials(self, variants: Sequence[Variant], training: Settings) -> list[Settings]:
        """Return the settings of each trial with differentially private rounds of its own."""
        own_rounds = {variant.name for variant in variants if variant.source == "partition"} | {BACKBONE}
        runs: list[Settings] = []
        for name, choice in self.choices.items():
            method = methods.load(method_name(name)) if name in own_rounds else None
            if method is not None and method.has_rounds and LINKS[method.KIND]:
                _, changes = divided(name, {**self.options.get(name, {}), **(choice.values or {})})
                runs += choice.trials * [config.build(Settings, changed(config.plain(training), changes), name)]
        return runs

    @property
    def announcement(self) -> str:
        """A line for a dry run that says how many trials are to be made."""
        unfinished = [choice.trials for choice in self.choices.values() if choice.values is None]
        return (
            f"tune: {counted(sum(unfinished), 'trial')} of {counted(len(unfinished), 'method')} to make, then the runs"
        )

    def record(self, table: Path, methods: Sequence[str]) -> dict[str, Any]:
        """Return the choices for ``metrics.json``, those of an existing comparison at ``table`` included."""
        if self.budget is None:
            return {}
        earlier: Mapping[str, Any] = {}
        if _request(table).get("tune") == self.request["tune"]:
            earlier = evaluation.read(open_artifact(table)).get("tune", {}).get("methods", {})
        now = {
            name: {
                "trials": choice.trials,
                "grid": choice.grid,
                "values": dict(choice.values or {}),
                **({"problem": choice.problem} if choice.problem else {}),
            }
            for name, choice in self.choices.items()
        }
        chosen = {name: facts for name, facts in {**earlier, **now}.items() if name in (BACKBONE, *methods)}
        return {"tune": {**self.request["tune"], "methods": chosen}}

    def plan(self, out: Path, variants: Sequence[Variant], seeds: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows of a dry run: one per tuning, and unless all is chosen one per method and seed."""
        rows = []
        for name, choice in self.choices.items():
            if choice.grid and self.budget is not None:
                decision = Decision.UP_TO_DATE if choice.values is not None else counted(choice.trials, "trial")
                path = str(out / FOLDER / name)
                rows.append({"seed": self.budget.seed, "step": f"tune {name}", "path": path, "decision": str(decision)})
        for variant in () if self.is_complete else variants:
            rows += [
                {
                    "seed": seed,
                    "step": variant.name,
                    "path": str(out / f"seed-{seed}" / variant.name),
                    "decision": _LATER,
                }
                for seed in seeds
            ]
        return rows


@dataclass(frozen=True)
class Tuner:
    """Tunes the methods of one comparison in ``out``; ``options`` and ``settings`` of the user stay fixed."""

    budget: Budget
    partition: Artifact
    out: Path
    options: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, Any]
    weights: Weights | None
    execution: Execution

    def tuned(self, variants: Sequence[Variant]) -> Tuned:
        """Tune FedAvg and then the ``variants``.

        A method whose trials all fail, or that does not suit the data, keeps the options of the user; the comparison
        then reports it. Raises any other error of ``tune``.
        """
        backbone = self.choice(BACKBONE, lambda: self.partition, self.settings)
        best_options, best_settings = self._best(BACKBONE, backbone)
        settings = changed(self.settings, best_settings)
        before, after = (self._training(each) for each in (self.settings, settings))
        # A method that trains by itself has trials without FedAvg's settings, and is compared without them.
        user_settings = {key: value for key, value in before.items() if after[key] != value}
        options, choices = {**self.options}, {BACKBONE: backbone}
        for variant in variants:
            name = variant.name
            if name == BACKBONE:
                options[name] = best_options
            elif variant.is_stack:
                choices[name] = Choice({}, 0, 0)  # its exponents are learned, and nothing else of it is tuned
            elif variant.source == "partition":
                choices[name] = self.choice(name, lambda: self.partition, self.settings)
                options[name] = self._prefixed(name, choices[name], user_settings)
            else:
                source = partial(self._source, variant.source, after, best_options)
                choices[name] = self.choice(name, source, settings, is_known=backbone.values is not None)
                options[name] = self._prefixed(name, choices[name], {})
        return Tuned(options, settings, self.budget, choices)

    def _prefixed(self, name: str, choice: Choice, base: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a method and, with their prefix, its training settings, beside those of ``base``."""
        options, settings = self._best(name, choice)
        return {**options, **{f"{TRAINING}{key}": value for key, value in changed(base, settings).items()}}

    def _best(self, name: str, choice: Choice) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options and the training settings of a method: those of the user, and the chosen ones."""
        user_options, user_settings = divided(name, self.options.get(name, {}))
        options, settings = divided(name, choice.values or {})
        return {**user_options, **options}, changed(user_settings, settings)

    def _training(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return config.plain(run_request.resolve_settings({}, settings, self.partition))

    def _source(self, kind: str, training: Mapping[str, Any], options: Mapping[str, Any]) -> Artifact:
        """Return the artifact of this ``kind`` that methods are tuned on, which the comparison then uses too."""
        folder = self.out / f"seed-{self.budget.seed}"
        folder = folder / CHOOSING if training["refit"] else folder
        settings = {**training, "refit": False}
        actions = shared_artifacts(folder, settings, self.weights, self.budget.seed, options)
        needed = chain.closure((kind,))
        return running.last_artifact(
            self.partition, {name: act for name, act in actions.items() if name in needed}, self.execution
        )

    def choice(
        self, name: str, source: Callable[[], Artifact], settings: Mapping[str, Any], *, is_known: bool = True
    ) -> Choice:
        """Tune one method on ``source()``, which ``is_known`` unless a dry run cannot tell what it will be."""
        method, trials = method_name(name), self.budget.trials
        options, own_settings = divided(name, self.options.get(name, {}))
        fixed = {key: value for key, value in changed(settings, own_settings).items() if key != "refit"}
        grid = grid_size(method, options, fixed)
        if not grid:
            return Choice({}, 0, 0)
        if not is_known:
            return Choice(None, min(trials, grid), grid)

        self.execution.reporter.say(f"tune {name}")
        try:
            act = partial(
                _tune,
                method=method,
                source=source(),
                out=self.out / FOLDER / name,
                options=options,
                settings=fixed,
                weights=self.weights,
                trials=trials,
                metric=self.budget.metric,
                seed=self.budget.seed,
            )
            outcome = running.unless_conflict(act, self.execution)
        except (InputError, ComputationError) as error:
            return Choice({}, min(trials, grid), grid, error.message)
        if outcome.decision != Decision.UP_TO_DATE and self.execution.dry_run:
            to_make = [step for step in outcome.summary["plan"] if step["decision"] != Decision.UP_TO_DATE]
            return Choice(None, len(to_make), grid)
        record = tunings.read(open_artifact(outcome.path))
        return Choice(record["trials"][record["best"] - 1]["values"], len(record["trials"]), grid)


def _tune(execution: Execution, **request: Any) -> Outcome:
    return tune(**request, execution=execution)
