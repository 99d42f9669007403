"""``compare --tune N``: choose the options and training settings of every method, with the same budget of trials.

FedAvg is tuned first, because it trains the backbone of other methods: its best training settings become those of the
comparison. Then each method is tuned, on the backbone if it needs one. All trials use one seed and validation samples,
and with many rounds only the best two run to the end, as in ``pfl tune``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.decision import Decision
from pflcli.artifacts.initial_weights import Weights
from pflcli.artifacts.kinds import LINEAGE, evaluation
from pflcli.artifacts.kinds import tuning as tunings
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.core import config, methods
from pflcli.core.errors import ComputationError, ConflictError, InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.federation.run import LINKS
from pflcli.core.settings import TRAINING, Settings, changed
from pflcli.core.wording import counted
from pflcli.workflow.comparison import extend
from pflcli.workflow.comparison.runs import Makers, shared_jobs
from pflcli.workflow.comparison.variants import Variant, method_name, split_options
from pflcli.workflow.jobs.graph import CHOOSING, Job, Plan, estimate_epochs
from pflcli.workflow.jobs.run import Results
from pflcli.workflow.training import run_settings
from pflcli.workflow.tuning.space import BACKBONE, default_grid, grid_size
from pflcli.workflow.tuning.trials import NAME as TUNING
from pflcli.workflow.tuning.trials import SPLIT

FOLDER = "tune"
"""The folder inside ``out`` with one tuning per method."""


@dataclass(frozen=True)
class Budget:
    """The budget of each method: at most ``trials`` trials with one ``seed``, ranked by one ``metric``."""

    trials: int
    seed: int
    metric: str


def budget(
    trials: int | None, table: Path, partitions: Mapping[int, Artifact], metric: str, *, force: bool
) -> Budget | None:
    """Return the budget of ``--tune``, or None without it.

    If the comparison ``table`` exists, its seed is kept. Raises UsageError for a budget without trials and for several
    partitions; InputError without validation samples; ConflictError, unless ``force``, if the comparison exists with
    another budget.
    """
    earlier: Mapping[str, Any] = {} if force else read_request(table)
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
    partition, *others = dict.fromkeys(partition.path for partition in partitions.values())
    if others:
        raise UsageError(
            f"--tune needs a single partition, on whose validation samples it chooses; got {1 + len(others)}",
            f"pfl compare {partition} -o DIR --seeds 0,1,2 --tune {trials}",
        )
    if not next(iter(partitions.values())).manifest.summary.get(SPLIT, 1):
        raise InputError(f"{partition} has no validation samples to choose on", "--fractions 0.6,0.2,0.2")
    seed = earlier.get("tune", {}).get("seed", next(iter(partitions)))
    return Budget(trials, seed, metric)


def earlier_variants(table: Path, training: Settings) -> list[Variant]:
    """Return the variants of an existing comparison ``table``, which a stack may pool; none if there is none."""
    return extend.earlier_variants(read_request(table).get("methods", {}), training)


def count_models(record: Mapping[str, Any], variants: Sequence[Variant]) -> dict[str, int]:
    """Return the number of models from which each variant was chosen, from the choices in ``metrics.json``.

    A method on the backbone also depends on the settings that were chosen for it.
    """
    chosen = record.get("tune", {}).get("methods", {})
    trials = {name: facts["trials"] for name, facts in chosen.items() if facts["values"]}
    return {
        variant.name: trials.get(variant.name, 1)
        * (1 if variant.name == BACKBONE or variant.source == "partition" else trials.get(BACKBONE, 1))
        for variant in variants
        if not variant.is_stack
    }


def read_request(table: Path) -> Mapping[str, Any]:
    """Return the request of an existing comparison, or an empty one."""
    try:
        return manifests.read(table).request if manifests.is_artifact(table) else {}
    except InputError:
        return {}  # it is damaged, which is reported when it is replaced


@dataclass(frozen=True)
class Choice:
    """The best trial of one method; ``values`` is None in a dry run if trials are still to be made."""

    values: Mapping[str, Any] | None
    trials: int
    """number of trials, or in a dry run of those that are still to be made"""
    grid: int
    """number of points of the grid; 0 if the method has nothing to tune"""
    problem: str = ""
    """why no trial has a score"""
    borders: Mapping[str, str] = field(default_factory=dict)
    """the keys whose value is the smallest or largest one tried"""


@dataclass(frozen=True)
class Tuned:
    """The options and settings of a comparison: the user's and, with a ``budget``, those that tuning chose."""

    options: Mapping[str, Mapping[str, Any]]
    """by method, options and training settings"""
    settings: Mapping[str, Any]
    """training settings of all methods"""
    budget: Budget | None = None
    choices: Mapping[str, Choice] = field(default_factory=dict)
    """by method"""

    @property
    def is_complete(self) -> bool:
        """Whether all values are chosen, which may be false in a dry run."""
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
                _, changes = split_options(name, {**self.options.get(name, {}), **(choice.values or {})})
                runs += choice.trials * [config.build(Settings, changed(config.plain(training), changes), name)]
        return runs

    @property
    def announcement(self) -> str:
        """A line for a dry run with the number of trials to be made."""
        unfinished = [choice.trials for choice in self.choices.values() if choice.values is None]
        return (
            f"tune: {counted(sum(unfinished), 'trial')} of {counted(len(unfinished), 'method')} to make, then the runs"
        )

    def record(self, table: Path, methods: Sequence[str]) -> dict[str, Any]:
        """Return the choices for ``metrics.json``, including those of an existing comparison at ``table``."""
        if self.budget is None:
            return {}
        earlier: Mapping[str, Any] = {}
        if read_request(table).get("tune") == self.request["tune"]:
            earlier = evaluation.read(open_artifact(table)).get("tune", {}).get("methods", {})
        now = {
            name: {
                "trials": choice.trials,
                "grid": choice.grid,
                "values": dict(choice.values or {}),
                **({"problem": choice.problem} if choice.problem else {}),
                **({"borders": dict(choice.borders)} if choice.borders else {}),
            }
            for name, choice in self.choices.items()
        }
        chosen = {name: facts for name, facts in {**earlier, **now}.items() if name in (BACKBONE, *methods)}
        return {"tune": {**self.request["tune"], "methods": chosen}}

    def list_decisions(self, out: Path) -> list[dict[str, Any]]:
        """Return one row per tuning in ``out``, for the table of a dry run."""
        if self.budget is None:
            return []
        return [
            {
                "seed": self.budget.seed,
                "step": f"tune {name}",
                "path": str(out / FOLDER / name),
                "decision": str(Decision.UP_TO_DATE) if choice.values is not None else counted(choice.trials, "trial"),
            }
            for name, choice in self.choices.items()
            if choice.grid
        ]


@dataclass(frozen=True)
class Tuner:
    """Tunes the methods of one comparison in ``out``; the user's ``options`` and ``settings`` are fixed.

    ``problems`` are the reasons why methods could not be tuned; these keep the user's options, and have no job.
    """

    makers: Makers
    budget: Budget
    partition: Artifact
    out: Path
    options: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, Any]
    weights: Weights | None
    problems: Mapping[str, str]

    def jobs(self, variants: Sequence[Variant]) -> list[Job]:
        """Return the jobs that tune FedAvg and the ``variants``, and those that make the artifacts they are tuned on.

        A method whose grid is empty, because all keys are fixed, has no job.
        """
        first = self._jobs([(BACKBONE, self.partition, ())])
        others = [item for item in variants if not item.is_stack and item.name != BACKBONE]
        tunable = [item for item in others if self._grid(item.name)]
        shared = self._shared_jobs(
            max((item.source for item in tunable), key=LINEAGE.index, default="partition"), first
        )
        sources: dict[str, Artifact | Job] = {job.out.name: job for job in shared}
        return [
            *first,
            *shared,
            *self._jobs(
                (item.name, self.partition, ())
                if item.source == "partition"
                else (item.name, sources[item.source], tuple(first))
                for item in tunable
            ),
        ]

    def collect(self, variants: Sequence[Variant], planned: Plan) -> Tuned:
        """Collect the options and settings of the comparison, from the tunings of the ``variants`` that exist.

        A method whose tuning is still to be made, or has a problem, keeps the user's options.
        """
        jobs = {job.name: job for job in planned}
        names = dict.fromkeys([BACKBONE, *(variant.name for variant in variants)])
        choices = {name: self._choice(name, jobs.get(f"tune {name}"), planned) for name in names}
        best_options, best_settings = self._best(BACKBONE, choices[BACKBONE].values)
        settings = changed(self.settings, best_settings)
        before, after = (self._training(each) for each in (self.settings, settings))
        # A method that does not use the backbone is tuned, and therefore compared, without FedAvg's settings.
        user_settings = {key: value for key, value in before.items() if after[key] != value}
        options = {**self.options}
        for variant in variants:
            if variant.name == BACKBONE:
                options[BACKBONE] = best_options
            elif not variant.is_stack:
                base = user_settings if variant.source == "partition" else {}
                own_options, own_settings = self._best(variant.name, choices[variant.name].values)
                trained = {f"{TRAINING}{key}": value for key, value in changed(base, own_settings).items()}
                options[variant.name] = {**own_options, **trained}
        return Tuned(options, settings, self.budget, choices)

    def _choice(self, name: str, job: Job | None, planned: Plan) -> Choice:
        if name in self.problems:
            grid = self._grid(name)
            return Choice({}, min(self.budget.trials, grid), grid, self.problems[name])
        if job is None:
            return Choice({}, 0, 0)  # there is nothing to tune: all keys are fixed, or it is a stack
        item, grid = planned[job], self._grid(name)
        if item.is_done:
            record = tunings.read(open_artifact(job.out))
            return Choice(_best_values(record), len(record["trials"]), grid, borders=record.get("borders", {}))
        if item.outcome is None:
            return Choice(None, min(self.budget.trials, grid), grid)
        return Choice(None, sum(row["decision"] != Decision.UP_TO_DATE for row in item.outcome.summary["plan"]), grid)

    def _best(self, name: str, values: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options and the training settings of a method: the user's and the chosen ``values``."""
        user_options, user_settings = split_options(name, self.options.get(name, {}))
        options, settings = split_options(name, values or {})
        return {**user_options, **options}, changed(user_settings, settings)

    def _training(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return config.plain(run_settings.resolve_settings({}, settings, self.partition))

    def _backbone(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return FedAvg's options from its tuning, or the user's if all its trials failed; and the settings with it."""
        path = self.out / FOLDER / BACKBONE / TUNING
        values = _best_values(tunings.read(open_artifact(path))) if manifests.is_artifact(path) else {}
        options, settings = self._best(BACKBONE, values)
        return options, changed(self.settings, settings)

    def _shared_jobs(self, last: str, after: Sequence[Job]) -> list[Job]:
        """Return the jobs of the artifacts on which methods are tuned; the comparison uses these artifacts too."""
        training = run_settings.resolve_settings(
            {}, changed(self.settings, self._best(BACKBONE, {})[1]), self.partition
        )
        folder = self.out / f"seed-{self.budget.seed}"

        def chosen() -> tuple[dict[str, Any], dict[str, Any]]:
            options, settings = self._backbone()
            return options, {**self._training(settings), "refit": False}

        return shared_jobs(
            self.makers,
            self.partition,
            folder / CHOOSING if training.refit else folder,
            last,
            chosen,
            self.weights,
            self.budget.seed,
            prefix=f"{CHOOSING} " if training.refit else "",
            after=tuple(after),
            work=estimate_epochs(training),
        )

    def _fixed_settings(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the training settings that all trials of a method share: ``settings`` and the user's own for it."""
        _, own_settings = split_options(name, self.options.get(name, {}))
        return {key: value for key, value in changed(settings, own_settings).items() if key != "refit"}

    def _grid(self, name: str) -> int:
        """Return the number of points of a method's grid without keys that are fixed or tuned for the backbone."""
        settings = dict(self.settings)
        method = methods.load(method_name(name))
        if name != BACKBONE and method.NEEDS:
            _, backbone_settings = split_options(BACKBONE, self.options.get(BACKBONE, {}))
            _, searched = split_options(BACKBONE, default_grid(methods.load(BACKBONE)))
            settings |= {key: None for key in (*backbone_settings, *searched)}
        options, _ = split_options(name, self.options.get(name, {}))
        return grid_size(method_name(name), options, self._fixed_settings(name, settings))

    def _jobs(self, tuned: Iterable[tuple[str, Artifact | Job, tuple[Job, ...]]]) -> list[Job]:
        """Return the jobs that tune methods, each on an artifact after other jobs."""
        return [
            Job(
                f"tune {name}",
                self.out / FOLDER / name / TUNING,
                partial(self._tune, name, on_backbone=isinstance(source, Job)),
                (source,),
                after,
                self.budget.seed,
                float(min(self.budget.trials, self._grid(name))),
            )
            for name, source, after in tuned
            if name not in self.problems and self._grid(name)
        ]

    def _tune(self, name: str, inputs: Sequence[Artifact], execution: Execution, *, on_backbone: bool) -> Outcome:
        return self.makers["tuning"](
            method_name(name),
            inputs[0],
            self.out / FOLDER / name,
            options=split_options(name, self.options.get(name, {}))[0],
            settings=self._fixed_settings(name, self._backbone()[1] if on_backbone else self.settings),
            weights=self.weights,
            trials=self.budget.trials,
            metric=self.budget.metric,
            seed=self.budget.seed,
            execution=execution,
        )


def is_tuning(job: Job) -> bool:
    """Return whether a job tunes a method."""
    return job.out.name == TUNING


def find_problems(results: Results) -> dict[str, str]:
    """Return the reasons why methods could not be tuned, by method; an error that no trial explains is raised."""
    for error in results.failed.values():
        if not isinstance(error, InputError | ComputationError):
            raise error
    failed = {job: results.failed[results.blocked.get(job, job)].message for job in (*results.failed, *results.blocked)}
    reasons = {**{job.name: message for job, message in failed.items()}, **results.unsuited}
    return {name.removeprefix("tune "): message for name, message in reasons.items()}


def _best_values(record: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = record["trials"][record["best"] - 1]["values"]
    return values
