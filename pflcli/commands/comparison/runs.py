"""The jobs of a comparison with one seed: artifacts that methods share, a run of each method, and stacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pflcli import config, methods
from pflcli.artifacts.kinds import LINEAGE
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.comparison.variants import BACKBONE, Variant, epochs
from pflcli.commands.extract import extract
from pflcli.commands.personalize import personalize
from pflcli.commands.stack import stack
from pflcli.commands.train_global import train_global
from pflcli.execution import Execution
from pflcli.federation.run import LINKS
from pflcli.jobs.job import NOT_NEEDED, Call, Job, Plan
from pflcli.settings import Settings, changed
from pflcli.training.initial_weights import Weights

CHOOSING = "choosing"
"""Subfolder of a seed for the runs without ``refit`` that make the choices; also the prefix of their jobs' names."""

Training = Callable[[], tuple[Mapping[str, Any] | None, Mapping[str, Any]]]
"""A function, called when the job begins, that returns the options of the backbone's method and the settings."""


def shared_jobs(
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
) -> list[Job]:
    """Return the jobs that lead from ``source`` to an artifact of the kind ``last``, each made from the previous one.

    ``work`` is the estimated work of training a backbone.
    """

    def backbone(inputs: Sequence[Artifact], execution: Execution) -> Outcome:
        options, settings = training()
        return train_global(
            inputs[0],
            folder / "backbone",
            options=options,
            settings=settings,
            weights=weights,
            seed=seed,
            execution=execution,
        )

    def embeddings(inputs: Sequence[Artifact], execution: Execution) -> Outcome:
        return extract(inputs[0], folder / "embeddings", execution=execution)

    def datastore(inputs: Sequence[Artifact], execution: Execution) -> Outcome:
        return build_datastore(inputs[0], folder / "datastore", execution=execution)

    calls: dict[str, tuple[Call, float]] = {
        "backbone": (backbone, work),
        "embeddings": (embeddings, 0.5),
        "datastore": (datastore, 0.2),
    }
    jobs: list[Job] = []
    for kind in LINEAGE[LINEAGE.index(source.kind) + 1 : LINEAGE.index(last) + 1]:
        call, share = calls[kind]
        inputs: tuple[Artifact | Job] = (jobs[-1] if jobs else source,)
        jobs.append(Job(prefix + kind, folder / kind, call, inputs, after, seed, share, is_result=is_result))
    return jobs


def seed_jobs(
    partition: Artifact,
    seed: int,
    root: Path,
    variants: Sequence[Variant],
    training: Settings,
    weights: Weights | None = None,
    tunings: Mapping[str, Job] | None = None,
) -> list[Job]:
    """Return the jobs of one seed, in an order in which they can run; they write into ``root/seed-N``.

    All models start from ``weights``, or at random if None. ``tunings`` are the jobs that choose the options of a
    variant, by its name; the job of FedAvg chooses the training settings.
    """
    folder = root / f"seed-{seed}"
    compared = [variant for variant in variants if not variant.is_stack]
    choosing = [replace(variant, chooses=False) for variant in compared if variant.chooses]
    options = next((variant.options for variant in compared if variant.name == BACKBONE), {})
    common = (partition, seed, options, weights, tunings or {})
    parts = _runs(folder / CHOOSING, choosing, replace(training, refit=False), *common, prefix=f"{CHOOSING} ")
    runs = _runs(folder, compared, training, *common, choices={job.name: job for job in parts})
    by_name = {job.name: job for job in runs}
    stacks = [_stack(folder, variant, by_name, seed) for variant in variants if variant.is_stack]
    return [*parts, *runs, *stacks]


def _runs(
    folder: Path,
    variants: Sequence[Variant],
    training: Settings,
    partition: Artifact,
    seed: int,
    options: Mapping[str, Any],
    weights: Weights | None,
    tunings: Mapping[str, Job],
    *,
    prefix: str = "",
    choices: Mapping[str, Job] | None = None,
) -> list[Job]:
    """Return the jobs of the ``variants`` and of the artifacts that they share, which all write into ``folder``.

    ``options`` are those of the method that trains the backbone. Jobs with a ``prefix`` run without ``refit``; runs
    with ``refit`` take the choices of the jobs ``choices``.
    """
    settings = config.plain(training)
    last = max((variant.source for variant in variants), key=LINEAGE.index, default="partition")
    after = (tunings[BACKBONE],) if BACKBONE in tunings else ()
    shared = shared_jobs(
        partition,
        folder,
        last,
        lambda: (options, settings),
        weights,
        seed,
        prefix=prefix,
        after=after,
        work=epochs(training),
    )
    sources: dict[str, Artifact | Job] = {"partition": partition}
    sources |= {job.name.removeprefix(prefix): job for job in shared}

    def run(variant: Variant) -> Job:
        own_settings = {**settings, **variant.settings, **({"refit": False} if prefix else {})}

        def call(inputs: Sequence[Artifact], execution: Execution) -> Outcome:
            return personalize(
                variant.method,
                inputs[0],
                folder / variant.name,
                options=variant.options,
                settings=own_settings,
                weights=weights,
                choices=inputs[1] if variant.chooses else None,
                seed=seed,
                execution=execution,
            )

        chosen_by = (choices[f"{CHOOSING} {variant.name}"],) if variant.chooses and choices else ()
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
        )

    return [*shared, *map(run, variants)]


def _stack(folder: Path, variant: Variant, runs: Mapping[str, Job], seed: int) -> Job:
    def call(inputs: Sequence[Artifact], execution: Execution) -> Outcome:
        gate, own = variant.options["gate"], variant.options["own"]
        return stack(inputs, folder / variant.name, gate=gate, own=own, execution=execution)

    pooled = tuple(runs[name] for name in variant.options["pool"])
    return Job(variant.name, folder / variant.name, call, pooled, seed=seed, work=variant.epochs)


def private_runs(planned: Plan, variants: Sequence[Variant], training: Settings) -> list[Settings]:
    """Return the settings of each job that runs differentially private rounds itself.

    A method that only adapts a private backbone is not included: it reveals nothing more about a client to others.
    """
    by_name = {variant.name: variant for variant in variants}
    runs = []
    for job, item in planned.items():
        name = job.name.removeprefix(f"{CHOOSING} ")
        if name == "backbone" and item.decision != NOT_NEEDED:
            runs.append(training)
        elif name in by_name and job.has_rounds and LINKS[methods.load(by_name[name].method).KIND]:
            runs.append(config.build(Settings, changed(config.plain(training), by_name[name].settings), name))
    return [settings for settings in runs if settings.dp]
