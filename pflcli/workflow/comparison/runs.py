"""The jobs of a comparison: for each seed the artifacts that methods share, a run of each method, and stacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pflcli.artifacts.initial_weights import Weights
from pflcli.artifacts.kinds import LINEAGE
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact
from pflcli.core import config, methods
from pflcli.core.execution import Execution
from pflcli.core.federation.run import LINKS
from pflcli.core.settings import Settings, changed
from pflcli.workflow.comparison.variants import Variant
from pflcli.workflow.jobs.graph import CHOOSING, Job, estimate_epochs
from pflcli.workflow.tuning.space import BACKBONE

Makers = Mapping[str, Callable[..., Outcome]]
"""The commands that make artifacts, by kind."""
Training = Callable[[], tuple[Mapping[str, Any] | None, Mapping[str, Any]]]
"""A function, called when the job begins, that returns the options of the backbone's method and the settings."""

_WORK = {"embeddings": 0.5, "datastore": 0.2}
"""Estimated work in epochs."""


def shared_jobs(
    makers: Makers,
    source: Artifact,
    folder: Path,
    last: str,
    training: Training,
    weights: Weights | None,
    seed: int,
    *,
    prefix: str = "",
    after: tuple[Job, ...] = (),
    work: float = 1.0,
    is_result: bool = False,
    existing: Mapping[Path, Job] | None = None,
) -> list[Job]:
    """Return the jobs that lead from ``source`` to an artifact of the kind ``last``, each made from the previous one.

    ``work`` is the estimated work of training a backbone. Jobs in ``existing``, by path, are not made anew.
    """

    def job(kind: str, made_from: Artifact | Job) -> Job:
        def call(inputs: Sequence[Artifact], execution: Execution) -> Outcome:
            asked: dict[str, Any] = {}
            if kind == "backbone":
                options, settings = training()
                asked = {"options": options, "settings": settings, "weights": weights, "seed": seed}
            return makers[kind](inputs[0], folder / kind, **asked, execution=execution)

        share = _WORK.get(kind, work)
        return Job(prefix + kind, folder / kind, call, (made_from,), after, seed, share, is_result=is_result)

    jobs: list[Job] = []
    for kind in LINEAGE[LINEAGE.index(source.kind) + 1 : LINEAGE.index(last) + 1]:
        jobs.append((existing or {}).get(folder / kind) or job(kind, jobs[-1] if jobs else source))
    return jobs


@dataclass(frozen=True)
class Runs:
    """The variants that are compared, and the partition on which they run with each seed.

    Runs with seed N are written to ``out/seed-N``. All models start from ``weights``, or at random if it is None.
    """

    makers: Makers
    out: Path
    partitions: Mapping[int, Artifact]
    """by seed"""
    variants: Sequence[Variant]
    training: Settings
    weights: Weights | None

    def jobs(self, tunings: Sequence[Job] = ()) -> list[Job]:
        """Return the jobs of all seeds, in an order in which they can run.

        ``tunings`` are the jobs that choose the options of variants, and of FedAvg, which chooses the training
        settings; and those of the artifacts that methods are tuned on, which the runs share.
        """
        return [job for seed in self.partitions for job in self._seed_jobs(seed, tunings)]

    def private_runs(self, jobs: Iterable[Job]) -> list[Settings]:
        """Return the settings of each job that runs differentially private rounds itself.

        A method that only adapts a private backbone is not included: it reveals nothing more about a client to others.
        """
        by_name = {variant.name: variant for variant in self.variants}
        runs = []
        for job in jobs:
            name = job.name.removeprefix(f"{CHOOSING} ")
            if name == "backbone":  # also one that was removed since: its results are still released
                runs.append(self.training)
            elif name in by_name and job.has_rounds and LINKS[methods.load(by_name[name].method).KIND]:
                runs.append(self.settings_of(by_name[name]))
        return [settings for settings in runs if settings.dp]

    def settings_of(self, variant: Variant) -> Settings:
        """Return the training settings of a variant."""
        settings: Settings = config.build(
            Settings, changed(config.plain(self.training), variant.settings), variant.name
        )
        return settings

    def _seed_jobs(self, seed: int, tunings: Sequence[Job]) -> list[Job]:
        folder = self.out / f"seed-{seed}"
        compared = [variant for variant in self.variants if not variant.is_stack]
        choosing = [
            replace(variant, chooses=False, settings={**variant.settings, "refit": False})
            for variant in compared
            if variant.chooses
        ]
        before = _Folder(self, seed, folder / CHOOSING, replace(self.training, refit=False), tunings, f"{CHOOSING} ")
        parts = before.jobs(choosing, {})
        choices = {job.out.name: job for job in parts}
        runs = _Folder(self, seed, folder, self.training, tunings).jobs(compared, choices)
        by_name = {job.name: job for job in runs}
        stacks = [self._stack(folder, item, by_name, seed, tunings) for item in self.variants if item.is_stack]
        return [*parts, *runs, *stacks]

    def _stack(self, folder: Path, variant: Variant, runs: Mapping[str, Job], seed: int, tunings: Sequence[Job]) -> Job:
        def call(inputs: Sequence[Artifact], execution: Execution) -> Outcome:
            gate, own = variant.options["gate"], variant.options["own"]
            return self.makers["stack"](inputs, folder / variant.name, gate=gate, own=own, execution=execution)

        pool: Sequence[str] = variant.options["pool"]
        pooled = tuple(runs[name] for name in pool if name in runs)
        # Until the methods are tuned, it is not known whether the other ones of an existing comparison are kept.
        after = tuple(tunings) if len(pooled) < len(pool) else ()
        return Job(variant.name, folder / variant.name, call, pooled, after, seed, variant.epochs)


@dataclass(frozen=True)
class _Folder:
    """The folder of the runs with one seed. Those with a ``prefix`` are parts of the runs with ``refit``."""

    whole: Runs
    seed: int
    folder: Path
    training: Settings
    tunings: Sequence[Job]
    prefix: str = ""

    def jobs(self, variants: Sequence[Variant], choices: Mapping[str, Job]) -> list[Job]:
        """Return the jobs of the ``variants``, which take their ``choices``, and of the artifacts that they share."""
        whole, settings = self.whole, config.plain(self.training)
        partition = whole.partitions[self.seed]
        options = next((variant.options for variant in whole.variants if variant.name == BACKBONE), {})
        shared = shared_jobs(
            whole.makers,
            partition,
            self.folder,
            max((variant.source for variant in variants), key=LINEAGE.index, default="partition"),
            lambda: (options, settings),
            whole.weights,
            self.seed,
            prefix=self.prefix,
            after=self._tunings_of(BACKBONE),
            work=estimate_epochs(self.training),
            existing={job.out: job for job in self.tunings},
        )
        sources: dict[str, Artifact | Job] = {"partition": partition, **{job.out.name: job for job in shared}}
        return [*shared, *(self._run(item, sources[item.source], choices.get(item.name)) for item in variants)]

    def _tunings_of(self, *names: str) -> tuple[Job, ...]:
        return tuple(job for job in self.tunings if job.name in [f"tune {name}" for name in names])

    def _run(self, variant: Variant, source: Artifact | Job, chosen_by: Job | None) -> Job:
        out = self.folder / variant.name

        def call(inputs: Sequence[Artifact], execution: Execution) -> Outcome:
            return self.whole.makers["predictions"](
                variant.method,
                inputs[0],
                out,
                options=variant.options,
                settings={**config.plain(self.training), **variant.settings},
                weights=self.whole.weights,
                choices=inputs[1] if variant.chooses else None,
                seed=self.seed,
                execution=execution,
            )

        return Job(
            self.prefix + variant.name,
            out,
            call,
            (source, *([chosen_by] if variant.chooses and chosen_by else [])),
            self._tunings_of(BACKBONE, variant.name),
            self.seed,
            variant.epochs,
            has_rounds=methods.load(variant.method).has_rounds and variant.source == "partition",
            is_result=not self.prefix,
            is_part=bool(self.prefix),
            is_reference=variant.is_added,
        )
