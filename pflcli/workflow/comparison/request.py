"""What ``pfl compare`` was asked for, and the comparison that follows from it and from what tunings have chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from pflcli.artifacts import codebook
from pflcli.artifacts import initial_weights as initial
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.decision import Decision, require_folder
from pflcli.artifacts.initial_weights import Weights
from pflcli.artifacts.kinds import partition as partition_kind
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.core import config, methods
from pflcli.core.errors import ComputationError, InputError, PflError, UsageError, closest
from pflcli.core.federation.privacy import guarantee
from pflcli.core.settings import TRAINING, Settings
from pflcli.core.wording import counted
from pflcli.options.compare import Compare
from pflcli.workflow.comparison import costs, tunings
from pflcli.workflow.comparison.extend import ExistingComparison, find_comparison
from pflcli.workflow.comparison.runs import Makers, Runs
from pflcli.workflow.comparison.table import NAME, SPLIT, Table, TableOptions
from pflcli.workflow.comparison.tunings import Budget, Tuned, Tuner
from pflcli.workflow.comparison.until_decided import keep_looks
from pflcli.workflow.comparison.variants import (
    ALL,
    Variant,
    announce_stacks,
    leave_out_unsuited,
    references_beside,
    require_validation_samples,
    resolve_variants,
)
from pflcli.workflow.jobs.graph import NOT_NEEDED, Graph, Job, Plan, plan
from pflcli.workflow.jobs.run import Results, run, run_selected, summarize
from pflcli.workflow.training import run_request, run_settings
from pflcli.workflow.tuning.space import BACKBONE

_MIN_FOR_ALL_SPLITS = 3
"""Number of samples of which a client has one for training, one for validation and one for test."""


class IncompleteError(ComputationError):
    """At least one run failed; ``outcome`` is the comparison of the others."""

    def __init__(self, outcome: Outcome, message: str, *fix: str) -> None:
        super().__init__(message, *fix)
        self.outcome = outcome


@dataclass(frozen=True)
class Request:
    """What was asked for, checked as far as that does not depend on tunings; ``makers`` are the commands that run."""

    asked: Compare
    """with the options of the methods that suit"""
    makers: Makers
    partitions: Mapping[int, Artifact]
    """by seed"""
    weights: Weights | None
    table: TableOptions
    methods: Sequence[str]
    """names of the methods that suit the settings and samples, with the references in ``added``"""
    added: Sequence[str]
    budget: Budget | None
    left_out: Mapping[str, str]
    """by method of ``all`` that does not suit the settings or samples, why"""

    @classmethod
    def read(cls, asked: Compare, makers: Makers) -> Request:
        """Read the inputs; raises UsageError, InputError or ConflictError for what cannot be compared."""
        out = Path(asked.out)
        require_folder(out)
        table = TableOptions.read(asked)
        partitions = _partitions_by_seed(asked.sources, asked.seeds)
        weights = None if asked.weights is None else initial.read(asked.weights)
        execution = asked.execution.reading(None if weights is None else weights.path)
        partition = next(iter(partitions.values()))
        metric = table.metric(out / NAME, partition, force=execution.force)
        settings = run_settings.compare_rounds_by(metric, asked.settings or {}, chain(*(asked.options or {}).values()))
        table.require_positive(metric, "--tune" if asked.tune is not None else "")
        table.require_positive(metric, "--report best or --patience" if "round_metric" in settings else "")
        training = run_settings.resolve_settings({}, settings, partition)
        initial.require_weights(training, None if weights is None else weights.digest)
        is_series = bool(partition_kind.read_form(partition).labels.past)
        added = references_beside(asked.methods, is_series=is_series) if asked.references else []
        suited, options, left_out = leave_out_unsuited(
            asked.methods, added, asked.options or {}, training, partition, execution.reporter
        )
        budget = tunings.budget(asked.tune, out / NAME, partitions, metric, force=execution.force)
        asked = replace(asked, options=options, settings=settings, execution=execution)
        return cls(asked, makers, partitions, weights, table, suited, added, budget, left_out)

    @property
    def options(self) -> Mapping[str, Mapping[str, Any]]:
        """By method, its options and training settings."""
        return self.asked.options or {}

    @property
    def skips_unsuited(self) -> bool:
        """Whether methods that do not suit the data are left out."""
        return ALL in self.asked.methods

    @property
    def out(self) -> Path:
        """The folder of all artifacts."""
        return Path(self.asked.out)

    def resolve(self, only: Sequence[str] | None, tried: Results | None = None) -> Comparison:
        """Return the comparison by the values that tunings have chosen so far; some were ``tried`` before.

        The jobs at the paths ``only`` are chosen, and without these all of them and the table.
        """
        partition, digest = next(iter(self.partitions.values())), None if self.weights is None else self.weights.digest
        tuned, planned = self._tune({} if tried is None else tunings.find_problems(tried))
        training = run_settings.resolve_settings({}, tuned.settings, partition)
        existing = find_comparison(self.out / NAME, NAME, training, digest) if tuned.is_complete else None
        partitions, options, variants = self._join(existing, tuned, training)
        if tuned.is_complete or not manifests.is_artifact(self.out / NAME):
            _require_baseline(self.asked.baseline, variants)
        options.require_calibration(variants, training)
        require_validation_samples([variant.name for variant in variants], partitions.values())
        earlier = {} if existing is None else existing.artifact.manifest.request
        looks = keep_looks(earlier.get("looks"), self.asked.until_decided, len(partitions), self.out / NAME)
        request = {
            "methods": {variant.name: variant.recorded() for variant in variants},
            "seeds": sorted(partitions),
            "settings": run_request.recorded_settings(training),
            **({} if digest is None else {"weights": digest}),
            **options.request(self.asked.baseline, partitions),
            **({} if looks is None else {"looks": looks}),
            **tuned.request,
        }
        if only is not None:
            folders = {path.split("/")[0] for path in only}
            seeds = [seed for seed in partitions if f"seed-{seed}" in folders] or [*partitions][:1]
            partitions = {seed: partitions[seed] for seed in seeds}
        runs = Runs(self.makers, self.out, partitions, variants, training, self.weights)
        jobs, tuning = runs.jobs([*planned]), [*planned]
        planned = plan(jobs, planned)
        table = Table(runs, [job for job in jobs if job.is_result], tuned, request, left_out=self.left_out)
        if only is None:
            table = table.extending(existing, planned)
            planned = plan([table.job], planned)
        grows = existing is not None and existing.rounds < training.rounds
        graph = Graph.create(self.out, planned, grows=grows).select(only)
        return Comparison(self, runs, tuned, options, table, graph, tuning, jobs)

    def _tune(self, problems: Mapping[str, str]) -> tuple[Tuned, Plan]:
        """Return the values that tunings have chosen so far, and the plan of the tunings."""
        settings, partition = self.asked.settings or {}, next(iter(self.partitions.values()))
        if self.budget is None:
            return Tuned(self.options, settings), {}
        training = run_settings.resolve_settings({}, settings, partition)
        earlier = tunings.earlier_variants(self.out / NAME, training)
        variants = resolve_variants(self.methods, self.options, training, earlier, self.added)
        tunable = [variant for variant in variants if not variant.is_reference]
        tuner = Tuner(self.makers, self.budget, partition, self.out, self.options, settings, self.weights, problems)
        planned = plan(tuner.jobs(tunable))
        return tuner.collect(tunable, planned), planned

    def _join(
        self, existing: ExistingComparison | None, tuned: Tuned, training: Settings
    ) -> tuple[Mapping[int, Artifact], TableOptions, list[Variant]]:
        """Return the partitions, the options of the table and the variants: those asked for and the existing ones."""
        if existing is None:
            earlier = [] if tuned.is_complete else tunings.earlier_variants(self.out / NAME, training)
            variants = resolve_variants(self.methods, tuned.options, training, earlier, self.added)
            return self.partitions, self.table, variants
        execution = self.asked.execution
        variants = existing.join_variants(self.methods, self.added, tuned.options, training, force=execution.force)
        partitions = existing.partitions(self.partitions)
        existing.announce(variants, [*self.asked.methods, *self.added], partitions, execution.reporter)
        return partitions, self.table.fill_from(existing), variants


@dataclass(frozen=True)
class Comparison:
    """A comparison whose jobs are planned: ``tunings`` and what they need, ``jobs`` with each seed, and the table."""

    request: Request
    runs: Runs
    tuned: Tuned
    options: TableOptions
    table: Table
    graph: Graph
    tunings: Sequence[Job]
    jobs: Sequence[Job]

    @property
    def _rest(self) -> Graph:
        """The chosen jobs that tune nothing, and what they need."""
        return self.graph.part({*self.graph.chosen} & {*self.jobs})

    def announce(self) -> dict[str, Any]:
        """Report what stacks pool, and return the privacy guarantee of all runs together, which is reported too."""
        reporter, runs = self.request.asked.execution.reporter, self.runs
        if any(item.is_ahead for item in self._rest.items):
            announce_stacks(runs.variants, reporter)
        private = [*runs.private_runs(self.graph.planned), *self.tuned.private_trials(runs.variants, runs.training)]
        privacy = guarantee.compose_runs(private)
        if privacy:
            reporter.say(guarantee.describe_composition(privacy))
        return {"privacy": privacy} if privacy else {}

    def preview(self) -> Outcome:
        """Return what a dry run tells: the decision for each job and, unless tunings come first, estimated costs."""
        execution, out = self.request.asked.execution, self.runs.out
        decision = f"dry run: {Decision.NEW}"
        if self.request.asked.only is not None:
            self.graph.require_free(execution)
            return Outcome(out, NAME, decision, "", {"plan": self.graph.list_decisions(), "jobs": []})
        facts = self.announce() if self.tuned.is_complete else {}
        self.graph.require_free(execution)
        rows = self.tuned.list_decisions(out)
        jobs = {"jobs": self.graph.list_unfinished()}
        if not self.tuned.is_complete:
            execution.reporter.say(self.tuned.announcement)
            rows += self.graph.part(self.table.jobs).list_decisions()
            return Outcome(out / NAME, NAME, decision, "", {"plan": rows, **jobs})
        outcome = self.table.make(self.table.expected(self.graph.planned), execution)
        estimate = costs.estimate(self.runs, self._rest, execution)
        for line in estimate.lines(out):
            execution.reporter.say(line)
        rows = estimate.add_to_rows([*rows, *self._rest.list_decisions()])
        return replace(outcome, summary={"plan": rows, **jobs, **facts, **estimate.facts()})

    def tune(self) -> Comparison:
        """Make the chosen tunings and what they need, and return the comparison that they decide.

        A method whose trials all fail, or that does not suit the data, keeps the user's options.
        """
        request, only, execution = self.request, self.request.asked.only, self.request.asked.execution
        self.graph.require_free(execution)
        first = self.graph.part({*self.graph.chosen} & {*self.tunings})
        if only is None:
            return request.resolve(None, run(first, execution, skip_unsuited=self.request.skips_unsuited))
        if first.chosen:
            run_selected(first, execution, tunings.is_tuning, skip_unsuited=self.request.skips_unsuited)
        made = [self.graph.path(job) for job in first.chosen]
        rest = [path for path in only if path not in made]
        return request.resolve(rest) if rest else replace(self, graph=self.graph.part(()))

    def make(self) -> Outcome:
        """Run the chosen jobs, and make the table of their results; with ``only``, no table."""
        asked, execution, graph = self.request.asked, self.request.asked.execution, self.graph
        if asked.only is not None:
            graph.require_free(execution)
            if graph.chosen:
                run_selected(graph, execution, tunings.is_tuning, skip_unsuited=self.request.skips_unsuited)
            return _last_made(self.runs.out, asked.only)
        table = replace(self.table, privacy=self.announce().get("privacy", {}))
        graph.require_free(execution)
        if graph.items[-1].is_done and not execution.force:
            return table.make(table.expected(graph.planned), execution)
        execution = replace(execution, command=tuple(self._complete_request().words()))
        execution.reporter.say(summarize(self._rest))
        results = run(self._rest, execution, skip_unsuited=self.request.skips_unsuited)
        if all(job.is_reference for job in results.made):
            raise _nothing_to_compare(results)
        if asked.baseline == BACKBONE and all(variant.name != BACKBONE for variant in self.runs.variants):
            execution.reporter.say(
                f"gains are measured against {BACKBONE}, which is not in the table; --methods {BACKBONE},... adds it"
            )
        outcome = table.make(results, execution)
        if results.failed:
            raise IncompleteError(outcome, *results.report())
        return outcome

    def _complete_request(self) -> Compare:
        """Return the options that make the whole comparison at once, including its earlier methods and seeds."""
        asked, variants, partitions = self.request.asked, self.runs.variants, self.runs.partitions
        looks = self.table.request.get("looks")
        by_tuning = {
            name: {key.removeprefix(TRAINING) for key in item.values or ()} for name, item in self.tuned.choices.items()
        }
        options = {variant.name: _typed_options(variant) for variant in variants}
        for name, values in options.items():
            chosen = by_tuning.get(name, set()) | by_tuning.get(BACKBONE, set())
            options[name] = {key: value for key, value in values.items() if key.removeprefix(TRAINING) not in chosen}
        options |= {name: dict(values) for name, values in (asked.options or {}).items()}
        sources = list(dict.fromkeys(item.path for item in partitions.values()))
        return replace(
            asked,
            sources=sources,
            methods=[variant.name for variant in variants if not variant.is_added],
            references=asked.references or any(variant.is_added for variant in variants),
            seeds=list(partitions)[: looks[0] if looks else None] if len(sources) == 1 else None,
            until_decided=looks[1] if looks else None,
            options={name: values for name, values in options.items() if values},
            **asdict(self.options),
        )


def _last_made(out: Path, paths: Sequence[str]) -> Outcome:
    """Return the last existing artifact at ``paths`` in ``out``; if there is none, ``out`` itself."""
    for path in reversed(paths):
        if manifests.is_artifact(out / path):
            manifest = open_artifact(out / path).manifest
            facts = (manifest.fingerprint, manifest.summary, dict(manifest.request))
            return Outcome(out / path, manifest.kind, Decision.UP_TO_DATE, *facts)
    return Outcome(out, NAME, NOT_NEEDED, "")


def _typed_options(variant: Variant) -> dict[str, Any]:
    """Return the options and training settings of a variant that differ from the defaults."""
    if variant.is_stack:
        return dict(variant.options)
    usual = config.plain(methods.load(variant.method).Config())
    values = {key: value for key, value in variant.options.items() if value != usual[key]}
    return values | {f"{TRAINING}{key}" if key in usual else key: value for key, value in variant.settings.items()}


def _partitions_by_seed(sources: Sequence[Path | str | Artifact], seeds: Sequence[int] | None) -> dict[int, Artifact]:
    """Return the partition of each seed; raises UsageError if two partitions or two seeds are the same."""
    artifacts = [open_one(source, "partition") for source in sources]
    if not artifacts:
        raise UsageError("no partition to compare on", "pfl compare PARTITION -o DIR")
    for artifact in artifacts:
        if not artifact.manifest.summary.get(SPLIT, 1):
            largest = artifact.manifest.summary.get("largest", _MIN_FOR_ALL_SPLITS)
            raise InputError(
                f"{artifact.path} has no {SPLIT} samples to score",
                "--fractions 0.6,0.2,0.2"
                if largest >= _MIN_FOR_ALL_SPLITS
                else f"no client has more than {counted(largest, 'sample')}, too few for three splits: is the client"
                " the right column?",
            )
    if len(artifacts) == 1:
        run_seeds = [run_request.choose_seed(None, artifacts[0])] if seeds is None else list(seeds)
        if len({*run_seeds}) < len(run_seeds) or not run_seeds or min(run_seeds) < 0:
            raise UsageError(
                f"--seeds {','.join(map(str, run_seeds))} is not a list of different numbers from 0 up",
                "--seeds 0,1,2",
            )
        return dict.fromkeys(run_seeds, artifacts[0])
    if seeds is not None:
        raise UsageError(
            "--seeds needs a single partition: each of several partitions is used with the seed that it was drawn with",
            "give one partition, or leave out --seeds",
        )
    partitions: dict[int, Artifact] = {}
    for artifact in artifacts:
        seed = run_request.choose_seed(None, artifact)
        codebook.require_same(artifacts[0], artifact, "classes", "features")
        if seed in partitions:
            raise UsageError(
                f"{partitions[seed].path} and {artifact.path} were both drawn with seed {seed}",
                "draw each partition with another seed: pfl partition DATASET -o DIR --seed 1",
            )
        partitions[seed] = artifact
    return partitions


def _require_baseline(baseline: str, variants: Sequence[Variant]) -> None:
    """Raise UsageError if the baseline is neither among the variants nor the backbone, whose predictions are stored."""
    names = [variant.name for variant in variants]
    if baseline not in (BACKBONE, *names):
        raise UsageError(f"the baseline '{baseline}' is not among the compared methods", closest(baseline, names))


def _nothing_to_compare(results: Results) -> PflError:
    """Return the error for a comparison without results: the input error that all runs share, or a summary."""
    errors = [error for job, error in results.failed.items() if not job.is_reference]
    if not errors:
        return InputError("none of the methods suits the data")
    if len({error.message for error in errors}) == 1 and isinstance(errors[0], InputError):
        return errors[0]
    _, *lines = results.report()
    return ComputationError("all runs failed", *lines)
