"""The plan of a comparison: its methods, and for each seed the steps that make the artifacts of these methods.

Every step runs an ordinary command: ``pfl train-global``, ``extract``, ``build-datastore`` or ``personalize``. All
steps are planned by dry runs, with expected artifacts in place of those that do not exist yet. So ``compare`` reports
its decisions and all conflicts before it trains anything.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pflcli import config, methods, registry
from pflcli.artifacts import chain
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact, expected_artifact
from pflcli.commands.comparison import stacking
from pflcli.commands.comparison.chain_steps import Act, shared_artifacts
from pflcli.commands.comparison.steps import CHOOSING, NOT_NEEDED, Step, Variant, is_stack, method_name
from pflcli.commands.personalize import personalize
from pflcli.errors import ConflictError, UsageError, closest
from pflcli.execution import Execution
from pflcli.federation.channel import LINKS
from pflcli.reporter import SILENT
from pflcli.settings import Settings, changed
from pflcli.training.initial_weights import Weights

ALL = "all"
TRAINING = "training."
"""Prefix of a training setting, which tells it from an option of the method with the same name."""

BACKBONE = "fedavg"
"""The method that trains the backbone, with its options in the comparison; it also personalizes from the backbone."""


def resolve_variants(
    methods: Sequence[str],
    options: Mapping[str, Mapping[str, Any]],
    training: Settings,
    existing: Sequence[Variant] = (),
) -> list[Variant]:
    """Return a variant for each name in ``methods``, stacks last; ``all`` stands for every method.

    ``options`` holds, by variant, options of the method and training settings. A stack may also pool ``existing``
    variants. Raises UsageError for a name that is unknown or occurs twice, or a stack of fewer than two methods.
    """
    names = [name for word in methods for name in (registry.names("methods") if word == ALL else [word])]
    if not names:
        raise UsageError("no methods to compare", "--methods fedavg,local")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"method {name} is named twice", f"variants have names of their own: {name},{name}@other")
        if not is_stack(name):
            registry.card("methods", method_name(name))
        if name != method_name(name) and not re.fullmatch(r"[A-Za-z0-9_-]+", name.split("@", 1)[1]):
            raise UsageError(f"{name}: a variant is named by letters, digits, - and _", f"{method_name(name)}@other")
    for name in options:
        if name not in names:
            raise UsageError(f"options are set for {name}, which is not compared", closest(name, names))
    variants = [_variant(name, options.get(name, {}), training) for name in names if not is_stack(name)]
    return [*variants, *stacking.variants(names, options, [*existing, *variants], training)]


def divided(name: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a method and the training settings among ``values``, these without the prefix."""
    own = {field.name for field in dataclasses.fields(methods.load(method_name(name)).Config)}
    options = {key: value for key, value in values.items() if key in own}
    return options, {key.removeprefix(TRAINING): value for key, value in values.items() if key not in own}


def _variant(name: str, options: Mapping[str, Any], training: Settings) -> Variant:
    method = methods.load(method_name(name))
    own = {field.name for field in dataclasses.fields(method.Config)}
    shared = {field.name for field in dataclasses.fields(Settings)}
    for key in options:
        if key not in own | shared and key.removeprefix(TRAINING) not in shared:
            raise UsageError(f"unknown option '{key}' for {name}", closest(key, own | shared))
    own_options, settings = divided(name, options)
    cfg = config.build(method.Config, own_options, name)
    resolved: Settings = config.build(Settings, changed(config.plain(training), settings), f"the training of {name}")
    changes = {key: value for key, value in config.plain(resolved).items() if value != config.plain(training)[key]}
    trains = method.has_rounds or not method.NEEDS
    order = list(chain.KINDS)
    source = max(method.NEEDS, key=order.index, default="partition")
    if name == BACKBONE and not changes:
        source, trains = "backbone", False
    chooses = resolved.refit and bool(method.choices(cfg))
    return Variant(name, config.plain(cfg), changes, source, epochs(resolved) if trains else 2.0, chooses)


def epochs(training: Settings) -> float:
    """Return the estimated work of a run: epochs over all clients' samples, or steps if the settings count steps."""
    return max(1.0, training.rounds * training.participation * (training.steps or training.epochs))


def require_folder(out: Path) -> None:
    """Raise ConflictError if ``out`` cannot be a folder of artifacts."""
    if manifests.is_artifact(out):
        raise ConflictError(f"{out} is a pfl artifact itself", "choose another folder for --out")
    if out.exists() and not out.is_dir():
        raise ConflictError(f"{out} exists and is not a folder", "choose another folder for --out")


def planned_steps(
    partition: Artifact,
    seed: int,
    root: Path,
    variants: Sequence[Variant],
    training: Settings,
    weights: Weights | None = None,
) -> list[Step]:
    """Return the steps of one seed in the order in which they run, planned by dry runs.

    All models start from ``weights``, or at random if None.
    """
    folder = root / f"seed-{seed}"
    stack_steps = stacking.steps(seed, folder, variants)
    variants = [variant for variant in variants if not variant.is_stack]
    options = next((variant.options for variant in variants if variant.name == BACKBONE), {})
    choosing_variants = [replace(variant, chooses=False) for variant in variants if variant.chooses]
    without_refit = replace(training, refit=False)
    choosing_steps = (
        _steps(seed, folder / CHOOSING, choosing_variants, without_refit, weights, options, f"{CHOOSING} ")
        if choosing_variants
        else []
    )
    method_steps = _steps(seed, folder, variants, training, weights, options)
    return _planned(partition, [*choosing_steps, *method_steps, *stack_steps])


def _steps(
    seed: int,
    folder: Path,
    variants: Sequence[Variant],
    training: Settings,
    weights: Weights | None,
    options: Mapping[str, Any],
    prefix: str = "",
) -> list[Step]:
    """Return the shared steps that the variants need, and one step per variant; all write into ``folder``.

    ``options`` are those of the method that trains the backbone. ``prefix`` precedes the names of all steps; unless it
    is empty, they run without ``refit``, to choose.
    """
    settings = config.plain(training)
    order = list(chain.KINDS)
    last = max((order.index(variant.source) for variant in variants), default=0)

    def predictions(variant: Variant) -> Act:
        own_settings = {**settings, **variant.settings, **({"refit": False} if prefix else {})}

        def act(sources: Sequence[Artifact], execution: Execution) -> Outcome:
            return personalize(
                variant.method,
                sources[0],
                folder / variant.name,
                options=variant.options,
                settings=own_settings,
                weights=weights,
                choices=sources[1] if variant.chooses else None,
                seed=seed,
                execution=execution,
            )

        return act

    def step_name(source: str) -> str:
        return source if source == "partition" else prefix + source

    work = {"backbone": epochs(training), "embeddings": 0.5, "datastore": 0.2}
    shared_steps = [
        Step(seed, prefix + kind, (step_name(source),), act, work[kind])
        for (kind, act), source in zip(
            shared_artifacts(folder, settings, weights, seed, options).items(), order, strict=False
        )
    ]
    method_steps = [
        Step(
            seed,
            prefix + variant.name,
            (step_name(variant.source), *([f"{CHOOSING} {variant.name}"] if variant.chooses else [])),
            predictions(variant),
            variant.epochs,
            rounds=methods.load(variant.method).has_rounds and variant.source == "partition",
        )
        for variant in variants
    ]
    return [*shared_steps[:last], *method_steps]


def private_runs(steps: Sequence[Step], variants: Sequence[Variant], training: Settings) -> list[Settings]:
    """Return the settings of each step whose own rounds are differentially private.

    A method that adapts a private backbone releases nothing more about its clients to others, and is not among them.
    """
    by_name = {variant.name: variant for variant in variants}
    runs = []
    for step in steps:
        name = step.name.removeprefix(f"{CHOOSING} ")
        if name == "backbone" and step.decision != NOT_NEEDED:
            runs.append(training)
        elif name in by_name and step.rounds and LINKS[methods.load(by_name[name].method).KIND]:
            runs.append(config.build(Settings, changed(config.plain(training), by_name[name].settings), name))
    return [settings for settings in runs if settings.dp]


def _planned(partition: Artifact, steps: Sequence[Step]) -> list[Step]:
    """Return the steps with the results of their dry runs; a step that no unfinished method needs is not needed."""
    artifacts = {"partition": partition}
    by_name: dict[str, Step] = {}
    for step in steps:
        sources, conflict = tuple(artifacts[name] for name in step.sources), None
        try:
            outcome = step.act(sources, Execution(dry_run=True, reporter=SILENT))
        except ConflictError as error:
            conflict = error
            outcome = step.act(sources, Execution(dry_run=True, force=True, reporter=SILENT))
        artifact = expected_artifact(outcome.path, outcome.kind, outcome.fingerprint, outcome.request, sources[0])
        artifacts[step.name] = artifact
        decision = outcome.decision.removeprefix("dry run: ")
        by_name[step.name] = replace(step, inputs=sources, expected=artifact, decision=decision, conflict=conflict)
    needed: set[str] = set()
    for step in reversed(by_name.values()):
        if step.name in needed or (step.is_method and not step.is_done):
            needed.update(step.sources)
    unneeded = {name for name, step in by_name.items() if not (step.is_method or step.is_done or name in needed)}
    return [
        replace(step, decision=NOT_NEEDED, conflict=None) if step.name in unneeded else step
        for step in by_name.values()
    ]
