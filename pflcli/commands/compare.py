"""``pfl compare``: run several methods with several seeds, each as an ordinary artifact, and tabulate their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pflcli import config, methods
from pflcli.artifacts import codebook
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.decision import Decision, require_folder
from pflcli.artifacts.kinds import partition as partition_kind
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.comparison import costs, selection, tunings
from pflcli.comparison.extend import ExistingComparison, find_comparison
from pflcli.comparison.runs import Comparison
from pflcli.comparison.tunings import Tuned
from pflcli.comparison.variants import (
    ALL,
    Variant,
    announce_stacks,
    leave_out_unsuited,
    references_beside,
    require_validation_samples,
    resolve_variants,
    stack_pools,
)
from pflcli.errors import ComputationError, InputError, PflError, UsageError, closest
from pflcli.evaluation import coverage, round_costs, scoring, stack_references, summary
from pflcli.evaluation.metrics import catalogue
from pflcli.execution import Execution
from pflcli.federation.privacy import guarantee
from pflcli.jobs.job import LATER, Job, Plan, Planned, list_decisions, list_unfinished, plan, require_free
from pflcli.jobs.run import Results, run, summarize
from pflcli.jobs.shared_artifacts import BACKBONE
from pflcli.options.compare import Compare
from pflcli.options.function import command
from pflcli.reporter import SILENT
from pflcli.settings import TRAINING, Settings
from pflcli.training import initial_weights as initial
from pflcli.training import run_request
from pflcli.wording import counted

SPLIT = "test"
"""The samples that are scored."""

_MIN_FOR_ALL_SPLITS = 3
"""Number of samples of which a client has one for training, one for validation and one for test."""

NAME = "comparison"
"""The folder of the artifact inside ``out``; beside it are the folders ``seed-N``."""


class IncompleteError(ComputationError):
    """At least one run failed; ``outcome`` is the comparison of the others."""

    def __init__(self, outcome: Outcome, message: str, *fix: str) -> None:
        super().__init__(message, *fix)
        self.outcome = outcome


@command(Compare)
def compare(asked: Compare) -> Outcome:
    """Run every method with every seed, as artifacts in ``out/seed-N``, and write the table ``out/comparison``.

    ``sources`` is one partition, used with each of ``seeds`` (default: the partition's own seed), or several
    partitions, each used with the seed that it was drawn with. ``options`` contains, by method, its options and the
    training settings that differ from ``settings``. Artifacts that are up to date are not made again; with ``force``,
    artifacts of other requests are replaced. If ``out`` already contains a comparison, methods and seeds are added to
    it, and its methods keep their options. All models start from the file ``weights``, or at random.

    With ``references``, ``constant``, ``pooled`` and ``local`` stand beside the methods, marked and not ranked, unless
    they are among ``methods``; one that does not suit the settings or samples is left out. They are not tuned.

    Gains are measured against the method ``baseline``. ``target`` is a validation accuracy from 0 to 1; the table says
    how long each method takes to reach it. ``link`` is the network for which the time of a round is simulated. The
    first of ``metrics`` (default: as in the existing comparison, else accuracy) ranks methods and is the metric of
    gains, conclusion and picture; the others are computed too. ``positive`` names the positive one of two classes for
    sensitivity, specificity and average precision, by default the last class. ``coverage`` adds prediction sets that
    contain the true class with this probability, calibrated on validation samples. With ``tune``, every method first
    has at most that many trials, which choose the values that ``options`` and ``settings`` leave open by that metric on
    validation samples.

    With ``only``, only the artifacts in these folders of ``out`` (such as ``seed-0/ditto``) are made, and no table; the
    artifacts that they need must exist. A dry run lists all artifacts with those that each needs as
    ``summary["jobs"]``; if it has a reporter, it also estimates seconds, memory and disk space as ``summary["needs"]``.

    Raises UsageError for an invalid request; ConflictError before anything is made if an artifact of another request
    exists; IncompleteError, with the comparison of the other runs, if a run fails.
    """
    execution, out = asked.execution, Path(asked.out)
    require_folder(out)
    table = TableOptions.read(asked)
    partitions = _partitions_by_seed(asked.sources, asked.seeds)
    table.require_tunable(asked.tune)
    weights = None if asked.weights is None else initial.read(asked.weights)
    execution = execution.reading(None if weights is None else weights.path)
    digest = None if weights is None else weights.digest
    skip_unsuited = ALL in asked.methods
    tuned, only = Tuned(asked.options or {}, asked.settings or {}), asked.only
    training = run_request.resolve_settings({}, tuned.settings, partition := next(iter(partitions.values())))
    initial.require_weights(training, digest)
    added = references_beside(asked.methods) if asked.references else []
    suited, options = leave_out_unsuited(asked.methods, added, tuned.options, training, partition, execution.reporter)
    asked, tuned = replace(asked, options=options), replace(tuned, options=options)

    # Tune first: the requests of all runs depend on the chosen options and settings.
    budget = tunings.budget(asked.tune, out / NAME, partitions, table.metrics, force=execution.force)
    if budget is not None:
        variants = tunings.requested_variants(suited, added, tuned.options, training, out / NAME)
        tunable = [variant for variant in variants if not variant.is_reference]
        table.request(asked.baseline, partitions)  # raises an error for invalid options before anything is made
        if not manifests.is_artifact(out / NAME):
            _require_baseline(asked.baseline, variants)
        tuner = tunings.Tuner(budget, partition, out, tuned.options, tuned.settings, weights)
        tuning = plan(tuner.jobs(tunable))
        if only is None:
            tuned = tuner.tune(tunable, tuning, execution, skip_unsuited=skip_unsuited)
            if not tuned.is_complete:
                untuned = Comparison(out, partitions, variants, training, weights)
                return _preview_tuning(untuned, tuned, tuning, tuner.jobs_by_variant(tuning), execution)
        else:
            tuned, only = selection.make_tunings(tuner, tunable, only, tuning, execution, skip_unsuited=skip_unsuited)
            if not only:
                return selection.last_made(out, asked.only or ())
        training = run_request.resolve_settings({}, tuned.settings, partition)

    # Plan the runs of the requested variants, and of those of an existing comparison.
    existing = find_comparison(out / NAME, NAME, training, digest)
    if existing is None:
        variants = resolve_variants(suited, tuned.options, training, added=added)
    else:
        variants = existing.join_variants(suited, added, tuned.options, training, force=execution.force)
        partitions, table = existing.partitions(partitions), table.fill_from(existing)
        existing.announce(variants, [*asked.methods, *added], partitions, execution.reporter)
    grows = existing is not None and existing.rounds < training.rounds
    _require_baseline(asked.baseline, variants)
    table.require_calibration(variants, training)
    require_validation_samples([variant.name for variant in variants], partitions.values())
    comparison = Comparison(out, partitions, variants, training, weights)
    if only is not None:
        comparison = replace(comparison, partitions=selection.partitions_of(partitions, only))
        planned = plan(comparison.jobs())
        selection.make_jobs(out, only, planned, execution, grows=grows, skip_unsuited=skip_unsuited)
        if execution.dry_run:
            return selection.preview(out, only, planned)
        return selection.last_made(out, asked.only or ())
    planned = plan(comparison.jobs())

    # Return if the table is up to date; in a dry run, with the plan and its costs.
    request = {
        "methods": {variant.name: variant.recorded() for variant in variants},
        "seeds": sorted(partitions),
        "settings": run_request.recorded_settings(training),
        **({} if digest is None else {"weights": digest}),
        **table.request(asked.baseline, partitions),
        **tuned.request,
    }
    if any(item.is_ahead for item in planned.values()):
        announce_stacks(variants, execution.reporter)
    spec = _spec(request, {job: item.artifact for job, item in planned.items() if job.is_result}, out)
    extends = "" if existing is None else existing.addition(spec)
    privacy = guarantee.compose_runs([*comparison.private_runs(planned), *tuned.private_trials(variants, training)])
    if privacy:
        execution.reporter.say(guarantee.describe_composition(privacy))
    require_free(planned.values(), execution, grows=grows)
    preview = make(out / NAME, spec, replace(execution, dry_run=True, reporter=SILENT), _never_built, extends=extends)
    if execution.dry_run or preview.decision == Decision.UP_TO_DATE:
        outcome = make(out / NAME, spec, execution, _never_built, extends=extends)
        summary = _preview(comparison, tuned, planned, privacy, execution) if execution.dry_run else outcome.summary
        return replace(outcome, summary=summary)

    # Run the jobs, and write the table of their results.
    typed = _complete_request(asked, comparison, tuned, table)
    execution = replace(execution, command=tuple(typed.words()))
    execution.reporter.say(summarize(planned))
    results = run(planned, execution, skip_unsuited=skip_unsuited)
    if all(job.is_reference for job in results.made):
        raise _nothing_to_compare(results)
    if asked.baseline == BACKBONE and all(variant.name != BACKBONE for variant in variants):
        execution.reporter.say(
            f"gains are measured against {BACKBONE}, which is not in the table; --methods {BACKBONE},... adds it"
        )
    outcome = _tabulate(request, comparison, tuned, results, extends, privacy, execution)
    if results.failed:
        raise IncompleteError(outcome, *results.report())
    return outcome


def _preview_tuning(
    comparison: Comparison, tuned: Tuned, tuning: Plan, tunings_by_variant: Mapping[str, Job], execution: Execution
) -> Outcome:
    """Return the plan of a dry run whose tunings are not made yet, so that the requests of the runs are unknown."""
    execution.reporter.say(tuned.announcement)
    runs = {job: Planned(job, LATER) for job in comparison.jobs(tunings_by_variant)}
    facts = {
        "plan": tuned.plan(comparison.out, comparison.variants, list(comparison.partitions)),
        "jobs": list_unfinished({**tuning, **runs}, comparison.out),
    }
    return Outcome(comparison.out / NAME, NAME, f"dry run: {Decision.NEW}", "", facts)


def _preview(
    comparison: Comparison, tuned: Tuned, planned: Plan, privacy: Mapping[str, Any], execution: Execution
) -> dict[str, Any]:
    """Return the summary of a dry run: the decision for each job, and estimated costs, which are also reported."""
    estimate = costs.estimate(comparison, planned, execution)
    estimate.announce(comparison.out, execution.reporter)
    rows = [*tuned.plan(comparison.out, comparison.variants, ()), *list_decisions(planned.values())]
    return {
        "plan": estimate.add_to_rows(rows),
        "jobs": list_unfinished(planned, comparison.out),
        **({"privacy": privacy} if privacy else {}),
        **estimate.facts(),
    }


def _complete_request(asked: Compare, comparison: Comparison, tuned: Tuned, table: TableOptions) -> Compare:
    """Return the options that make the whole comparison at once, including its earlier methods and seeds."""
    by_tuning = {
        name: {key.removeprefix(TRAINING) for key in item.values or ()} for name, item in tuned.choices.items()
    }
    options = {variant.name: _typed_options(variant) for variant in comparison.variants}
    for name, values in options.items():
        chosen = by_tuning.get(name, set()) | by_tuning.get(BACKBONE, set())
        options[name] = {key: value for key, value in values.items() if key.removeprefix(TRAINING) not in chosen}
    options |= {name: dict(values) for name, values in (asked.options or {}).items()}
    sources = list(dict.fromkeys(item.path for item in comparison.partitions.values()))
    return replace(
        asked,
        sources=sources,
        methods=[variant.name for variant in comparison.variants if not variant.is_added],
        references=asked.references or any(variant.is_added for variant in comparison.variants),
        seeds=list(comparison.partitions) if len(sources) == 1 else None,
        options={name: values for name, values in options.items() if values},
        **asdict(table),
    )


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


@dataclass(frozen=True)
class TableOptions:
    """Options of the table; None means the value of an existing comparison, or the default."""

    target: float | None
    link: str | None
    metrics: tuple[str, ...] | None
    positive: str | None
    coverage: float | None

    @classmethod
    def read(cls, asked: Compare) -> TableOptions:
        """Return the options that were given; raises UsageError for a target, metric or coverage that is invalid."""
        round_costs.check_target(asked.target)
        coverage.check_options(asked.coverage)
        metrics = None if asked.metrics is None else catalogue.parse_names(asked.metrics)
        return cls(asked.target, asked.link, metrics, asked.positive, asked.coverage)

    def require_tunable(self, trials: int | None) -> None:
        """Raise UsageError if tuning, whose positive class is always the last one, would rank by another one."""
        metric = (self.metrics or catalogue.DEFAULT)[0]
        if trials is not None and self.positive is not None and catalogue.METRICS[metric].binary_formula:
            raise UsageError(
                "--positive cannot be combined with --tune, which takes the last class as the positive one",
                "use another metric, such as --metric auroc, or leave out --positive",
            )

    def fill_from(self, existing: ExistingComparison) -> TableOptions:
        """Return these options, with None replaced by the value of an ``existing`` comparison."""
        request = existing.artifact.manifest.request
        return TableOptions(
            request.get("target") if self.target is None else self.target,
            self.link or request.get("link"),
            self.metrics or existing.metrics,
            self.positive or request.get("positive"),
            self.coverage or request.get("coverage"),
        )

    def request(self, baseline: str, partitions: Mapping[int, Artifact]) -> dict[str, Any]:
        """Return the table's part of the request.

        Raises UsageError for an invalid link, metric or positive class, InputError for a coverage without validation
        samples.
        """
        metrics = self.metrics or catalogue.DEFAULT
        if metrics != catalogue.DEFAULT or self.positive is not None:
            partition = next(iter(partitions.values()))
            classes = partition_kind.read_form(partition).classes
            catalogue.require_classes(metrics, classes)
            catalogue.positive_class(self.positive, codebook.read(partition).class_names(classes))
        for partition in partitions.values() if self.coverage is not None else ():
            if not partition.manifest.summary.get("validation", 1):
                raise InputError(
                    f"{partition.path} has no validation samples, which --coverage calibrates on",
                    "pfl partition DATASET -o DIR --fractions 0.6,0.2,0.2",
                )
        return {
            "split": SPLIT,
            "baseline": baseline,
            "statistics": summary.STATISTICS,
            **({} if self.target is None else {"target": self.target}),
            **({} if self.link is None else {"link": str(round_costs.Link.parse(self.link))}),
            **({} if metrics == catalogue.DEFAULT else {"metric": list(metrics)}),
            **({} if self.positive is None else {"positive": self.positive}),
            **({} if self.coverage is None else {"coverage": self.coverage}),
        }

    def require_calibration(self, variants: Sequence[Variant], training: Settings) -> None:
        """Raise UsageError if sets are asked for, and a variant learns from the samples that would calibrate them."""
        refitted = [item.name for item in variants if item.settings.get("refit", training.refit)]
        if self.coverage is not None and refitted:
            raise UsageError(
                f"with --refit, {', '.join(refitted)} learns from the validation samples that --coverage calibrates on",
                "leave out --refit or --coverage",
            )


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


def _spec(request: Mapping[str, Any], predictions: Mapping[Job, Artifact | None], out: Path) -> ArtifactSpec:
    """Return the spec of the comparison of ``predictions``, which does not depend on their order."""
    ordered = sorted(predictions.items(), key=lambda item: (item[0].name, item[0].seed))
    inputs = tuple(item.as_input(f"{job.name}, seed {job.seed}", out / NAME) for job, item in ordered if item)
    return ArtifactSpec(NAME, request, inputs)


def _never_built(work: ArtifactWriter) -> Built:
    raise AssertionError("a dry run builds nothing")


def _tabulate(
    request: Mapping[str, Any],
    comparison: Comparison,
    tuned: Tuned,
    results: Results,
    extends: str,
    privacy: Mapping[str, Any],
    execution: Execution,
) -> Outcome:
    """Write the comparison of all existing predictions."""
    out = comparison.out
    suitable = {name: value for name, value in request["methods"].items() if name not in results.unsuited}
    spec = _spec({**request, "methods": suitable}, results.made, out)
    runs = sorted(results.made.items(), key=lambda item: item[0].seed)
    artifacts, labels = [artifact for _, artifact in runs], [job.name for job, _ in runs]
    compared = {job.name for job in results.made}
    baseline = request["baseline"] if request["baseline"] in compared else BACKBONE
    failed_seeds: dict[str, list[int]] = {}
    for job in (*results.failed, *results.blocked):
        if job.is_result:
            failed_seeds.setdefault(job.name, []).append(job.seed)

    link = round_costs.Link.parse(request["link"]) if "link" in request else None
    metric_names = tuple(request.get("metric", catalogue.DEFAULT))

    def build(work: ArtifactWriter) -> Built:
        scores = scoring.score(
            artifacts,
            SPLIT,
            baseline,
            labels,
            metric_names,
            request.get("positive"),
            request.get("coverage"),
            references={variant.name for variant in comparison.variants if variant.is_reference},
        )
        record = tuned.record(out / NAME, labels)
        tried = tunings.count_models(record, comparison.variants)
        table = scoring.summarize(scores, SPLIT, baseline, request.get("target"), link, tried)
        metrics = {**table, "failed": failed_seeds}
        pooled = stack_pools(suitable)
        if beside := stack_references.score_references(scores, pooled):
            metrics |= {
                "stacks": beside,
                "warnings": [*metrics["warnings"], *stack_references.find_warnings(scores, pooled)],
            }
        metrics |= record
        remarks = [f"`{name}` failed under seed {', '.join(map(str, seeds))}." for name, seeds in failed_seeds.items()]
        scoring.write(work, scores, metrics, NAME, remarks)
        best = metrics["methods"][0]["label"]
        facts = {"methods": len(metrics["methods"]), "predictions": len(scores), "best": best, "failed": failed_seeds}
        return Built({**facts, **({"privacy": dict(privacy)} if privacy else {})}, {})

    if extends and manifests.is_artifact(out / NAME) and manifests.read(out / NAME).fingerprint == spec.fingerprint:
        extends = ""  # the added runs failed again, so the comparison is the same as before
    return make(out / NAME, spec, execution, build, extends=extends)
