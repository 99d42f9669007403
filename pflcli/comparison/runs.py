"""The jobs of a comparison: for each seed the artifacts that methods share, a run of each method, and stacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pflcli import config, methods
from pflcli.artifacts.kinds import LINEAGE
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact
from pflcli.commands.personalize import personalize
from pflcli.commands.stack import stack
from pflcli.comparison.variants import Variant
from pflcli.execution import Execution
from pflcli.federation.run import LINKS
from pflcli.jobs.job import Job, Plan
from pflcli.jobs.shared_artifacts import BACKBONE, estimate_epochs, shared_jobs
from pflcli.settings import Settings, changed
from pflcli.training.initial_weights import Weights

CHOOSING = "choosing"
"""Subfolder of a seed for the runs without ``refit`` that make the choices; also the prefix of their jobs' names."""


@dataclass(frozen=True)
class Comparison:
    """The variants that are compared, and the partition on which they run with each seed.

    Runs with seed N are written to ``out/seed-N``. All models start from ``weights``, or at random if it is None.
    """

    out: Path
    partitions: Mapping[int, Artifact]
    """by seed"""
    variants: Sequence[Variant]
    training: Settings
    weights: Weights | None

    def jobs(self, tunings: Mapping[str, Job] | None = None) -> list[Job]:
        """Return the jobs of all seeds, in an order in which they can run.

        ``tunings`` are the jobs that choose the options of a variant, by its name; the job of FedAvg chooses the
        training settings.
        """
        return [job for seed in self.partitions for job in self._seed_jobs(seed, tunings or {})]

    def private_runs(self, planned: Plan) -> list[Settings]:
        """Return the settings of each job that runs differentially private rounds itself.

        A method that only adapts a private backbone is not included: it reveals nothing more about a client to others.
        """
        by_name = {variant.name: variant for variant in self.variants}
        runs = []
        for job in planned:
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

    def _seed_jobs(self, seed: int, tunings: Mapping[str, Job]) -> list[Job]:
        folder = self.out / f"seed-{seed}"
        compared = [variant for variant in self.variants if not variant.is_stack]
        choosing = [
            replace(variant, chooses=False, settings={**variant.settings, "refit": False})
            for variant in compared
            if variant.chooses
        ]
        parts = self._runs(
            seed, folder / CHOOSING, choosing, replace(self.training, refit=False), tunings, prefix=f"{CHOOSING} "
        )
        choices = {job.name.removeprefix(f"{CHOOSING} "): job for job in parts}
        runs = self._runs(seed, folder, compared, self.training, tunings, choices=choices)
        by_name = {job.name: job for job in runs}
        return [*parts, *runs, *(_stack(folder, item, by_name, seed) for item in self.variants if item.is_stack)]

    def _runs(
        self,
        seed: int,
        folder: Path,
        variants: Sequence[Variant],
        training: Settings,
        tunings: Mapping[str, Job],
        *,
        prefix: str = "",
        choices: Mapping[str, Job] | None = None,
    ) -> list[Job]:
        """Return the jobs of the ``variants`` and of the artifacts that they share, which all write into ``folder``.

        Jobs with a ``prefix`` are parts of the runs with ``refit``, which take their ``choices``, by variant.
        """
        partition, settings = self.partitions[seed], config.plain(training)
        options = next((variant.options for variant in self.variants if variant.name == BACKBONE), {})
        last = max((variant.source for variant in variants), key=LINEAGE.index, default="partition")
        after = (tunings[BACKBONE],) if BACKBONE in tunings else ()
        shared = shared_jobs(
            partition,
            folder,
            last,
            lambda: (options, settings),
            self.weights,
            seed,
            prefix=prefix,
            after=after,
            work=estimate_epochs(training),
        )
        sources: dict[str, Artifact | Job] = {"partition": partition}
        sources |= {job.name.removeprefix(prefix): job for job in shared}

        def run(variant: Variant) -> Job:
            def call(inputs: Sequence[Artifact], execution: Execution) -> Outcome:
                return personalize(
                    variant.method,
                    inputs[0],
                    folder / variant.name,
                    options=variant.options,
                    settings={**settings, **variant.settings},
                    weights=self.weights,
                    choices=inputs[1] if variant.chooses else None,
                    seed=seed,
                    execution=execution,
                )

            chosen_by = (choices[variant.name],) if variant.chooses and choices else ()
            own_tuning = (tunings[variant.name],) if variant.name in tunings else ()
            return Job(
                prefix + variant.name,
                folder / variant.name,
                call,
                (sources[variant.source], *chosen_by),
                tuple(dict.fromkeys((*after, *own_tuning))),
                seed,
                variant.epochs,
                has_rounds=methods.load(variant.method).has_rounds and variant.source == "partition",
                is_result=not prefix,
                is_part=bool(prefix),
                is_reference=variant.is_added,
            )

        return [*shared, *map(run, variants)]


def _stack(folder: Path, variant: Variant, runs: Mapping[str, Job], seed: int) -> Job:
    def call(inputs: Sequence[Artifact], execution: Execution) -> Outcome:
        gate, own = variant.options["gate"], variant.options["own"]
        return stack(inputs, folder / variant.name, gate=gate, own=own, execution=execution)

    pooled = tuple(runs[name] for name in variant.options["pool"])
    return Job(variant.name, folder / variant.name, call, pooled, seed=seed, work=variant.epochs)
