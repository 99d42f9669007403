"""The table of a comparison: its options, its request, and the job that makes it from all predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pflcli.artifacts import codebook
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.kinds import partition as partition_kind
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import tasks
from pflcli.core.errors import InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.metrics import catalogue
from pflcli.core.settings import Settings
from pflcli.evaluation import added_scores, coverage, round_costs, scoring, stack_references, summary
from pflcli.evaluation.metrics.looks import Looks
from pflcli.options.compare import Compare
from pflcli.workflow.comparison import tunings
from pflcli.workflow.comparison.extend import ExistingComparison
from pflcli.workflow.comparison.runs import Runs
from pflcli.workflow.comparison.tunings import Tuned
from pflcli.workflow.comparison.variants import Variant, stack_pools
from pflcli.workflow.jobs.graph import Job, Plan
from pflcli.workflow.jobs.run import Results
from pflcli.workflow.tuning.space import BACKBONE

SPLIT = "test"
"""The samples that are scored."""
NAME = "comparison"
"""The folder of the artifact inside ``out``; beside it are the folders ``seed-N``."""


@dataclass(frozen=True)
class TableOptions:
    """Options of the table; None means the value of an existing comparison, or the default."""

    target: float | None
    link: str | None
    metrics: tuple[str, ...] | None
    positive: str | None
    coverage: float | None
    group_scores: Sequence[str] | None = None

    @classmethod
    def read(cls, asked: Compare) -> TableOptions:
        """Return the options that were given; raises UsageError for a target, metric or coverage that is invalid."""
        coverage.check_options(asked.coverage)
        metrics = None if asked.metrics is None else catalogue.parse_names(asked.metrics)
        added = added_scores.parse(asked)
        return cls(asked.target, asked.link, metrics, asked.positive, asked.coverage, **added)

    def metric(self, table: Path, partition: Artifact, *, force: bool) -> str:
        """Return the metric that ranks methods: the first given, that of an existing ``table``, or that of the task."""
        earlier = {} if force else tunings.read_request(table)
        usual = tasks.find(partition_kind.read_form(partition).labels.kind).metrics
        return str((self.metrics or earlier.get("metric") or usual)[0])

    def require_positive(self, metric: str, chooser: str) -> None:
        """Raise UsageError if what chooses by a metric, with the last class as the positive one, needs another one."""
        if chooser and self.positive is not None and catalogue.METRICS[metric].binary_formula:
            raise UsageError(
                f"--positive cannot be combined with {chooser}, which takes the last class as the positive one",
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
            self.group_scores or request.get("group_scores"),
        )

    def request(self, baseline: str, partitions: Mapping[int, Artifact]) -> dict[str, Any]:
        """Return the table's part of the request.

        Raises UsageError for an invalid link, metric or positive class, InputError for a coverage without validation
        samples.
        """
        partition = next(iter(partitions.values()))
        form = partition_kind.read_form(partition)
        metrics = self.metrics or tasks.find(form.labels.kind).metrics[:1]
        catalogue.require_defined(metrics, form.labels)
        scoring.require_suited(form.labels, self.target, self.coverage)
        if self.positive is not None:
            catalogue.positive_class(self.positive, codebook.read(partition).class_names(form.labels.outputs))
        for partition in partitions.values() if self.coverage is not None else ():
            if not partition.manifest.summary.get("validation", 1):
                raise InputError(
                    f"{partition.path} has no validation samples, which --coverage calibrates on",
                    "pfl partition DATASET -o DIR --fractions 0.6,0.2,0.2",
                )
        added = {} if self.group_scores is None else {"group_scores": self.group_scores}
        added_scores.require(added, partition)
        return {
            "split": SPLIT,
            "baseline": baseline,
            "statistics": summary.STATISTICS,
            **({} if self.target is None else {"target": self.target}),
            **({} if self.link is None else {"link": str(round_costs.Link.parse(self.link))}),
            **({} if metrics == catalogue.DEFAULT else {"metric": list(metrics)}),
            **({} if self.positive is None else {"positive": self.positive}),
            **({} if self.coverage is None else {"coverage": self.coverage}),
            **added,
        }

    def require_calibration(self, variants: Sequence[Variant], training: Settings) -> None:
        """Raise UsageError if sets are asked for, and a variant learns from the samples that would calibrate them."""
        refitted = [item.name for item in variants if item.settings.get("refit", training.refit)]
        if self.coverage is not None and refitted:
            raise UsageError(
                f"with --refit, {', '.join(refitted)} learns from the validation samples that --coverage calibrates on",
                "leave out --refit or --coverage",
            )


@dataclass(frozen=True)
class Table:
    """The table of the results of ``jobs``, which are all ``runs`` with each seed, described by ``request``.

    ``extends`` says what it adds to an existing comparison, ``left_out`` why methods of ``all`` do not suit the data.
    """

    runs: Runs
    jobs: Sequence[Job]
    tuned: Tuned
    request: Mapping[str, Any]
    privacy: Mapping[str, Any] = field(default_factory=dict)
    extends: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)

    def extending(self, existing: ExistingComparison | None, planned: Plan) -> Table:
        """Return this table, which extends an ``existing`` one by what is ``planned``."""
        if existing is None:
            return self
        return replace(self, extends=existing.addition(self.spec(self.expected(planned).made, {})))

    def expected(self, planned: Plan) -> Results:
        """Return the results if all jobs are made as ``planned``."""
        return Results({job: artifact for job in self.jobs if (artifact := planned[job].artifact)})

    def spec(self, predictions: Mapping[Job, Artifact], unsuited: Mapping[str, str]) -> ArtifactSpec:
        """Return the spec of the table without ``unsuited`` methods, which does not depend on the order of jobs."""
        suited = {name: value for name, value in self.request["methods"].items() if name not in unsuited}
        ordered = sorted(predictions.items(), key=lambda item: (item[0].name, item[0].seed))
        out = self.runs.out / NAME
        inputs = tuple(item.as_input(f"{job.name}, seed {job.seed}", out) for job, item in ordered)
        return ArtifactSpec(NAME, {**self.request, "methods": suited}, inputs)

    @property
    def job(self) -> Job:
        """The job that makes the table."""

        def call(inputs: Sequence[Artifact], execution: Execution) -> Outcome:
            return self.make(Results(dict(zip(self.jobs, inputs, strict=True))), execution)

        return Job(NAME, self.runs.out / NAME, call, tuple(self.jobs), gathers=True)

    def make(self, results: Results, execution: Execution) -> Outcome:
        """Make the table of the predictions that were made."""
        out, extends = self.runs.out / NAME, self.extends
        spec = self.spec(results.made, results.unsuited)
        if extends and manifests.is_artifact(out) and manifests.read(out).fingerprint == spec.fingerprint:
            extends = ""  # the added runs failed again, so the comparison is the same as before
        return make(out, spec, execution, lambda work: self._build(work, spec.request, results), extends=extends)

    def _build(self, work: ArtifactWriter, request: Mapping[str, Any], results: Results) -> Built:
        runs = sorted(results.made.items(), key=lambda item: item[0].seed)
        artifacts, labels = [artifact for _, artifact in runs], [job.name for job, _ in runs]
        baseline = request["baseline"] if request["baseline"] in labels else BACKBONE
        failed: dict[str, list[int]] = {}
        for job in (*results.failed, *results.blocked):
            if job.is_result:
                failed.setdefault(job.name, []).append(job.seed)
        scores = scoring.score(
            artifacts,
            SPLIT,
            baseline,
            labels,
            tuple(request.get("metric", catalogue.DEFAULT)),
            request.get("positive"),
            request.get("coverage"),
            references={variant.name for variant in self.runs.variants if variant.is_reference},
        )
        left_out = {**self.left_out, **results.unsuited}
        looks = Looks(*request["looks"]) if "looks" in request else None
        if looks is not None:
            level = looks.level(len(request["seeds"]))
            scores = [replace(item, level=level) for item in scores]
        record = self.tuned.record(self.runs.out / NAME, labels)
        tried = tunings.count_models(record, self.runs.variants)
        link = round_costs.Link.parse(request["link"]) if "link" in request else None
        metrics = {
            **scoring.summarize(scores, SPLIT, baseline, request.get("target"), link, tried),
            "failed": failed,
            **({"left_out": left_out} if left_out else {}),
            **({} if looks is None else {"looks": {"first": looks.first, "most": looks.most}}),
        }
        pooled = stack_pools(request["methods"])
        if beside := stack_references.score_references(scores, pooled):
            warnings = [*metrics["warnings"], *stack_references.find_warnings(scores, pooled)]
            metrics |= {"stacks": beside, "warnings": warnings}
        metrics |= record
        metrics |= added_scores.summarize(request, scores, metrics)
        scoring.write(work, scores, metrics, NAME)
        best = metrics["methods"][0]["label"]
        facts = {"methods": len(metrics["methods"]), "predictions": len(scores), "best": best, "failed": failed}
        return Built({**facts, **({"privacy": dict(self.privacy)} if self.privacy else {})}, {})
