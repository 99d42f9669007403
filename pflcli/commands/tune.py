"""``pfl tune``: choose options of a method and training settings on validation samples, by running trials."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pflcli.artifacts import initial_weights as initial
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts import placement
from pflcli.artifacts.decision import Decision, require_folder, require_outside
from pflcli.artifacts.kinds import LINEAGE
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.open_by_path import Chosen, open_one
from pflcli.artifacts.reader import Artifact, ancestor, open_artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.extract import extract
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core import config, methods, sources, tasks
from pflcli.core.errors import InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.federation.privacy import guarantee
from pflcli.core.federation.run import LINKS
from pflcli.core.metrics import catalogue
from pflcli.core.reporter import SILENT
from pflcli.core.settings import TRAINING, Settings, changed
from pflcli.evaluation.presentation import notes
from pflcli.options.function import command
from pflcli.options.tune import Tune
from pflcli.workflow.admission import private_rounds
from pflcli.workflow.comparison.runs import Makers, shared_jobs
from pflcli.workflow.jobs.graph import Graph, estimate_epochs, make_unless_there, plan
from pflcli.workflow.training import more_rounds, run_request, run_settings
from pflcli.workflow.tuning import samplers, trials
from pflcli.workflow.tuning.samplers import Listed, Sampler
from pflcli.workflow.tuning.space import Point, Space, describe, folder_name, search_space

MAKERS: Makers = {"backbone": train_global, "embeddings": extract, "datastore": build_datastore}
"""The commands that make the artifacts that trials share, by kind."""

TRIALS, SHORT = "trials", "short"
"""The folders of trials that are run to the end, and of those that are not or not yet."""
MIN_HALVED = 20
"""The least number of rounds of which a quarter decides which trials are run to the end."""


@command(Tune)
def tune(asked: Tune) -> Outcome:
    """Try values of options and training settings, and write those of the best trial to ``out/tuning``.

    ``search`` contains the values to try by key, as a list or as typed (``0.01,0.1``, ``0.01..0.3``); without it, the
    method's own grid is searched. All trials share ``options`` and ``settings``. A trial is an artifact of
    ``personalize`` in ``out/trials``. With ``MIN_HALVED`` rounds or more, all trials first run a quarter of them, in
    ``out/short``, and only the best two are continued to the end. Artifacts that the method needs and that are not in
    the lineage of ``source``, such as a backbone, are made once in ``out``. At most ``trials`` trials are run, and none
    is started once one has a score and all together have taken ``minutes``. The best trial has the best ``metric``,
    averaged over clients and weighted by their validation samples; test samples are not used.

    Raises UsageError for an invalid search, InputError without validation samples, ConflictError before anything is
    made if an artifact of another request is in the way, ComputationError if all trials fail.

    >>> from pflcli import partition, tune
    >>> writers = partition("writers", "runs/p", clients=6)
    >>> made = tune("ditto", writers, "runs/tune", trials=2, model="logistic", rounds=1)
    >>> made.kind, len(made.table())
    ('tuning', 2)
    """
    execution = asked.execution
    out, options, settings = Path(asked.out), dict(asked.options or {}), dict(asked.settings or {})
    require_folder(out)
    if asked.minutes is not None and not asked.minutes > 0:
        raise UsageError(f"--minutes {asked.minutes:g} leaves no time for a trial", "--minutes 10")
    source = open_one(asked.source, *LINEAGE, chosen=Chosen(seed=asked.seed, draws=True))
    cfg = config.build(methods.load(asked.method).Config, options, asked.method)
    metric = _choose_metric(asked.metric, source)
    settings = run_settings.compare_rounds_by(metric, settings, asked.search or {})
    training = _training_settings(source, settings)
    private_rounds.require_checked(asked.method, methods.load(asked.method), cfg, training, source)
    space = search_space(asked.method, asked.search, options, settings, asked.sampler)
    seed = run_request.choose_seed(asked.seed, source)
    initial_weights = initial.read(asked.weights) if isinstance(asked.weights, Path | str) else asked.weights
    execution = execution.reading(None if initial_weights is None else initial_weights.path)
    trial_plan = _Trials(
        asked.method, source, out, cfg, training, options, settings, initial_weights, seed, space, metric
    )
    point_sampler = samplers.sampler(asked.sampler, space, asked.trials, trial_plan.default, seed)
    trial_plan = replace(trial_plan, halving=trial_plan.halve(point_sampler.count))
    base = trial_plan.make_base(replace(execution, dry_run=True, reporter=SILENT))
    planned = trial_plan.plan(point_sampler, base, execution) if isinstance(point_sampler, Listed) else []
    budget = {"trials": asked.trials, **({} if asked.minutes is None else {"minutes": asked.minutes})}
    spec = trial_plan.spec(base, {"sampler": asked.sampler, **budget})

    announcement = _announcement(asked.method, point_sampler.count, space, planned, trial_plan.halving)
    build = partial(trial_plan.build, point_sampler, asked.minutes, execution)
    privacy = trial_plan.privacy(base, point_sampler.count)
    remarks = [announcement, *([guarantee.describe_composition(privacy)] if privacy else [])]
    outcome = make(
        out / trials.NAME, spec, execution, build, extends=_describe_extension(out / trials.NAME, spec), remarks=remarks
    )
    facts = {"privacy": privacy} if privacy else {}
    return replace(outcome, summary={"plan": planned, **facts}) if execution.dry_run else outcome


def _training_settings(source: Artifact, settings: Mapping[str, Any]) -> Settings:
    """Return the training settings of all trials; raises UsageError or InputError without validation samples."""
    backbone, partition = ancestor(source, "backbone"), ancestor(source, "partition")
    backbone_settings = {} if backbone is None else backbone.manifest.request["settings"]
    training = run_settings.resolve_settings(backbone_settings, settings, partition if backbone is None else None)
    if training.refit:
        raise UsageError("--refit leaves no validation samples to choose on", "tune without --refit")
    if partition is not None and not partition.manifest.summary.get(trials.SPLIT, 1):
        raise InputError(f"{partition.path} has no validation samples to choose on", "--fractions 0.6,0.2,0.2")
    return training


def _choose_metric(name: str | None, source: Artifact) -> str:
    """Return the metric of this name, by default that of the task; raises UsageError if labels do not define it."""
    partition = ancestor(source, "partition")
    form = None if partition is None else partitions.read_form(partition)
    usual = tasks.find(tasks.CLASSES if form is None else form.labels.kind).metrics[0]
    metric = usual if name is None else catalogue.parse_names([name])[0]
    if form is not None:
        catalogue.require_defined([metric], form.labels)
    return metric


@dataclass(frozen=True)
class _Trials:
    """The trials of one search: the request that they share, and methods that plan and run them."""

    method: str
    source: Artifact
    out: Path
    cfg: Any
    training: Settings
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    weights: initial.Weights | None
    seed: int
    search_space: Space
    metric: str
    halving: trials.Halving | None = None

    def halve(self, count: int) -> trials.Halving | None:
        """Return how many rounds decide which of ``count`` trials are run to the end; None if all are.

        A quarter of the rounds has to be the beginning of all of them, with the same learning rates and noise.
        """
        rounds, early = self.training.rounds, replace(self.training, rounds=self.training.rounds // 4)
        searched = self.search_space.split({axis.key: None for axis in self.search_space.axes})[1]
        if (
            not methods.load(self.method).has_rounds
            or rounds < MIN_HALVED
            or count <= trials.FINALISTS
            or self.training.dp
            or {"rounds", "lr_schedule", "dp_epsilon", "dp_noise"} & {*searched}
            or any(early.lr_at(t) != self.training.lr_at(t) for t in range(early.rounds))
        ):
            return None
        return trials.Halving(early.rounds, rounds)

    @property
    def default(self) -> Point:
        """The point of the default values, which apply without a search."""
        training = config.plain(self.training)
        values = {
            **training,
            **{f"{TRAINING}{key}": value for key, value in training.items()},
            **config.plain(self.cfg),
        }
        return {axis.key: values[axis.key] for axis in self.search_space.axes}

    @property
    def fixed_values(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The user's options and settings, which all trials share, in the types of their fields."""
        cfg, training = config.plain(self.cfg), config.plain(self.training)
        return {key: cfg[key] for key in self.options}, {key: training[key] for key in self.settings}

    def privacy(self, base: Artifact, trials: int) -> dict[str, Any]:
        """Return the guarantee of ``trials`` trials, and of a backbone if one is made, together; empty without DP."""
        method = methods.load(self.method)
        own_rounds = method.has_rounds and not method.NEEDS and bool(LINKS[method.KIND])
        makes_backbone = ancestor(base, "backbone") is not None and ancestor(self.source, "backbone") is None
        return guarantee.compose_runs([self.training] * (trials * own_rounds + makes_backbone))

    def make_base(self, execution: Execution) -> Artifact:
        """Return the artifact that trials start from: ``source``, or what is made from it in ``out``."""
        needs = methods.load(self.method).NEEDS
        last = max([*needs, self.source.kind], key=LINEAGE.index)
        jobs = shared_jobs(
            MAKERS,
            self.source,
            self.out,
            last,
            lambda: (None, self.settings),
            self.weights,
            self.seed,
            work=estimate_epochs(self.training),
            is_result=True,
        )
        if not jobs:
            return self.source
        if execution.dry_run:
            planned = plan(jobs)
            Graph(self.out, planned, tuple(planned)).require_free(execution)
            artifact = planned[jobs[-1]].artifact
            assert artifact is not None
            return artifact
        for job in jobs:
            job.run(execution)
        return open_artifact(jobs[-1].out)

    def folder(self, point: Point, rounds: int | None) -> Path:
        """Return the folder of the trial of a point with so many rounds; None if it is run to the end."""
        return self.out / (TRIALS if rounds is None else SHORT) / folder_name(point)

    def make_trial(self, base: Artifact, point: Point, rounds: int | None, execution: Execution) -> Outcome:
        """Make the trial of a point with so many rounds; None continues the short one to the end, if there is one."""
        chosen, trained = self.search_space.split(point)
        settings = {**changed(self.settings, trained), **({} if rounds is None else {"rounds": rounds})}
        if rounds is None and self.halving is not None and not execution.dry_run:
            self._copy_short(point, run_settings.resolve_settings(config.plain(self.training), trained))
        return personalize(
            self.method,
            base,
            self.folder(point, rounds),
            options={**self.options, **chosen},
            settings=settings,
            weights=self.weights,
            seed=self.seed,
            execution=execution,
        )

    def _copy_short(self, point: Point, training: Settings) -> None:
        """Copy the short trial of a point to where it is continued, unless its rounds depend on how many there are."""
        assert self.halving is not None
        short, whole = open_artifact(self.folder(point, self.halving.short)), self.folder(point, None)
        if whole.exists() or any(more_rounds.find_obstacles(short, methods.load(self.method), training)):
            return
        draft = placement.partial_folder(whole.with_name(f"{whole.name}.copy"))
        whole.parent.mkdir(exist_ok=True)
        shutil.rmtree(draft, ignore_errors=True)  # of a copy that was interrupted
        shutil.copytree(short.path, draft)
        draft.rename(whole)

    def build(self, point_sampler: Sampler, minutes: float | None, execution: Execution, work: ArtifactWriter) -> Built:
        """Run all trials, choose the best, and write the files of the tuning."""
        base = self.make_base(execution)
        make_trial = partial(self.make_trial, base)
        done = trials.run(
            point_sampler,
            make_trial,
            self.folder,
            execution,
            self.seed,
            estimate_epochs(self.training),
            minutes,
            self.metric,
            self.halving,
        )
        best = trials.best(done, self.metric)
        assert best.score is not None
        trials.write(work, self.out / trials.NAME, self.search_space, done, best, self.metric, *self.fixed_values)
        execution.reporter.say(f"best: {describe(best.point)}, {trials.describe_score(self.metric, best.score)}")
        for key, side in trials.find_borders(self.search_space, done, best).items():
            execution.reporter.say(notes.describe_border(key, best.point[key], side))
        summary = {
            "trials": len(done),
            "failed": sum(item.score is None for item in done),
            "best": best.point,
            f"validation_{self.metric}": best.score,
            "validation_accuracy": best.accuracy,
            "bottom_decile": best.bottom_decile,
        }
        if privacy := self.privacy(base, len(done)):
            summary["privacy"] = privacy
        return Built(summary, {"seconds_trials": round(sum(item.seconds for item in done), 3)})

    def plan(self, point_sampler: Listed, base: Artifact, execution: Execution) -> list[dict[str, Any]]:
        """Return the decision for each trial whose point is known; raises ConflictError before anything is made."""
        planned, rounds = [], None if self.halving is None else self.halving.short
        for point in point_sampler.points:
            dry_run = replace(execution, dry_run=True, reporter=SILENT)
            outcome = make_unless_there(partial(self.make_trial, base, point, rounds), dry_run)
            decision = outcome.decision.removeprefix("dry run: ")
            if decision != Decision.UP_TO_DATE:
                require_outside(self.folder(point, rounds), execution.reads)
            planned.append({"values": point, "path": str(self.folder(point, rounds)), "decision": decision})
        return planned

    def spec(self, base: Artifact, request: Mapping[str, Any]) -> ArtifactSpec:
        """Return the spec of the tuning; ``request`` contains its sampler and budget."""
        code = [f"methods/{self.method}", *run_request.code_files(self.training)]
        code += ["methods/fedavg"] if base.path != self.source.path else []
        request = {
            "method": self.method,
            "options": config.plain(self.cfg),
            "settings": run_request.recorded_settings(self.training),
            "search": {axis.key: axis.plain() for axis in self.search_space.axes},
            **request,
            **({} if self.metric == trials.ACCURACY else {"metric": self.metric}),
            "seed": self.seed,
            **({} if self.weights is None else {"weights": self.weights.digest}),
        }
        hashes = {name: sources.code_hash(*name.split("/", 1)) for name in code}
        return ArtifactSpec(trials.NAME, request, (self.source.as_input("source", self.out / trials.NAME),), hashes)


def _announcement(
    method: str, count: int, search_space: Space, planned: list[dict[str, Any]], halving: trials.Halving | None
) -> str:
    """Return a line with the numbers of trials, of points of the grid, and of trials that are up to date."""
    existing = sum(step["decision"] == Decision.UP_TO_DATE for step in planned)
    size = f" of a grid of {search_space.size}" if search_space.is_finite else ""
    status = f": {existing} up to date, {count - existing} to make" if planned else ""
    rounds = f"; the best {trials.FINALISTS} after {halving.short} rounds run {halving.whole}" if halving else ""
    return f"{count} trials of {method}{size}{status}{rounds}"


def _describe_extension(out: Path, spec: ArtifactSpec) -> str:
    """Return a description if ``spec`` only adds trials or minutes to the tuning at ``out``, otherwise ""."""
    if not manifests.is_artifact(out):
        return ""
    try:
        old = manifests.read(out)
    except InputError:
        return ""
    budget = ("trials", "minutes")
    before, after = ({k: v for k, v in request.items() if k not in budget} for request in (old.request, spec.request))
    inputs = [[item.fingerprint for item in inputs] for inputs in (old.inputs, spec.inputs)]
    if before != after or inputs[0] != inputs[1] or old.code != spec.code or old.fingerprint == spec.fingerprint:
        return ""
    endless = float("inf")
    limits = [(old.request.get(name, endless), spec.request.get(name, endless)) for name in budget]
    return "adds trials to the existing ones" if all(old_limit <= new_limit for old_limit, new_limit in limits) else ""
