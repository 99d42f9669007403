"""A federation of several methods and seeds: its runs, and the scores that sites send of them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pflcli.artifacts.codebook import Codebook
from pflcli.artifacts.open_by_path import Chosen, open_all, open_one
from pflcli.artifacts.reader import Artifact
from pflcli.core import config, methods, rng, tasks
from pflcli.core.errors import InputError, UnsuitedError, UsageError
from pflcli.core.metrics import catalogue
from pflcli.core.reporter import Reporter
from pflcli.core.settings import TRAINING, Settings
from pflcli.core.tasks import Labels
from pflcli.core.wording import listed
from pflcli.plugins.sites.federation_options import CreateFederation
from pflcli.plugins.sites.transport import POLL_SECONDS
from pflcli.workflow.comparison.extend import marked_references
from pflcli.workflow.comparison.until_decided import FIRST, MAX_SEEDS
from pflcli.workflow.comparison.variants import ALL, Variant, method_name, resolve_variants
from pflcli.workflow.training import run_settings
from pflcli.workflow.tuning.space import default_grid

SERVER = "server"
"""The folder of the server's states beside the results of several runs."""

Result = TypeVar("Result")


def state_folder(out: Path, name: str) -> Path:
    """Return the folder with the server's state of a run; that of a single one is ``out``."""
    return out / SERVER / name if name else out


@dataclass(frozen=True)
class Start:
    """What a run of a federation is made of: the part of its ``request`` that says it, and the ``code`` of that.

    ``partition`` has the form and split of samples, and no samples if sites agreed on them without a run. ``train`` is
    the number of training samples of each client (m,), and ``imported`` the options by which sites import theirs.
    """

    request: dict[str, Any]
    code: dict[str, str]
    partition: Artifact
    train: list[int]
    imported: dict[str, Any]
    book: Codebook


FromTable = Callable[[CreateFederation], Start]
FromRun = Callable[[Artifact, Reporter], Start]


def list_starts(asked: CreateFederation, from_table: FromTable, from_run: FromRun) -> dict[str, Start]:
    """Return the start of each run by its name, ``seed-N/METHOD``; without ``methods``, that of a single one by "".

    ``from_table`` returns the start of a method among the sites of a table, ``from_run`` that of stored predictions.
    """
    is_table = not isinstance(asked.source, Artifact) and Path(asked.source).suffix == ".toml"
    if asked.methods is None:
        for name in ("seeds", "metrics", "positive", "tune", "until_decided"):
            if getattr(asked, name) is not None:
                word = {"metrics": "metric"}.get(name, name).replace("_", "-")
                raise UsageError(f"--{word} has no effect without --methods", "--methods fedavg,ditto")
        if is_table:
            return {"": from_table(asked)}
        predictions = open_one(asked.source, "predictions", chosen=Chosen(asked.method, asked.seed))
        _require_untouched(asked, predictions.path)
        return {"": from_run(predictions, asked.execution.reporter)}
    if asked.method is not None:
        raise UsageError("--method and --methods name what sites run", "leave out one of them")
    starts = _start_methods(asked, from_table) if is_table else _start_pilot(asked, from_run)
    if len({each.partition.manifest.fingerprint for each in starts.values()}) > 1:
        raise UsageError(
            f"the runs of {asked.source} have different partitions, and sites have one each",
            "pfl compare PARTITION --seeds 0,1,2 -o DIR, with a single one",
        )
    return starts


def _require_untouched(asked: CreateFederation, source: Path | str) -> None:
    """Raise UsageError for settings and options of runs that have their own."""
    if extra := [f"--{name.replace('_', '-')}" for name in asked.settings or {}] or ["--set"] * bool(asked.options):
        raise UsageError(
            f"{extra[0]} has no effect on {source}, whose settings and options sites take over",
            f"leave out {extra[0]}",
        )


def _start_methods(asked: CreateFederation, from_table: FromTable) -> dict[str, Start]:
    """Return the starts of methods among the sites of a table."""
    assert asked.methods is not None
    training = run_settings.resolve_settings({}, asked.settings or {})
    given = asked.options or {}
    nested = {name: dict(values) for name, values in given.items() if isinstance(values, Mapping)}
    dotted = config.group_by_owner({key: value for key, value in given.items() if key not in nested})
    found, options = dict[str, Start](), {**dotted, **nested}
    for variant in resolve_variants(asked.methods, options, training):
        trials = {variant.name: variant} if asked.tune is None else _list_trials(asked, variant, options, training)
        for seed in _choose_seeds(asked):
            try:
                for name, trial in trials.items():
                    start = from_table(_ask_for(asked, trial, seed))
                    request = {**start.request, **({} if asked.tune is None else {"label": variant.name})}
                    found[f"seed-{start.request['seed']}/{name}"] = replace(start, request=request)
            except UnsuitedError as error:
                _leave_out(asked, variant.name, error)
                break
    return _require_some(asked, found)


def _list_trials(
    asked: CreateFederation, variant: Variant, options: Mapping[str, Mapping[str, Any]], training: Settings
) -> dict[str, Variant]:
    """Return the trials of a variant by the names of their runs: at most ``tune`` points of its own grid.

    Those of a larger grid are drawn at random; the first trial has what was asked for.
    """
    assert asked.tune is not None
    method = method_name(variant.name)
    fixed = {key.removeprefix(TRAINING) for key in options.get(variant.name, options.get(method, {}))}
    grid = {key: values for key, values in default_grid(methods.load(method)).items() if key not in fixed}
    if methods.load(method).NEEDS:  # its trials train a backbone each
        grid = {f"{TRAINING}lr": methods.LEARNING_RATES, **grid}
    grid = {key: values for key, values in grid.items() if key.removeprefix(TRAINING) not in {*(asked.settings or {})}}
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    base = {**variant.options, **{f"{TRAINING}{key}": value for key, value in config.plain(training).items()}}
    usual = {key: base[key] for key in grid}
    others = [point for point in points if point != usual]
    drawn = rng.generator(0, "trials", variant.name).permutation(len(others))[: asked.tune - 1]
    found = {}
    for number, point in enumerate([usual, *(others[place] for place in sorted(drawn.tolist()))] if grid else [{}], 1):
        own = {key: value for key, value in point.items() if not key.startswith(TRAINING)}
        settings = {key.removeprefix(TRAINING): value for key, value in point.items() if key.startswith(TRAINING)}
        name = f"{variant.name}{'-' if '@' in variant.name else '@'}{number}"
        found[name] = replace(variant, options={**variant.options, **own}, settings={**variant.settings, **settings})
    return found


def _choose_seeds(asked: CreateFederation) -> Sequence[int | None]:
    if asked.seed is not None and asked.seeds is not None:
        raise UsageError("--seed and --seeds say the same", "leave out one of them")
    seeds = [asked.seed] if asked.seeds is None else [*asked.seeds]
    if not seeds or len({*seeds}) < len(seeds):
        raise UsageError("--seeds are not different numbers", "--seeds 0,1,2")
    if asked.until_decided is None:
        return seeds
    first = _first_seeds(asked)
    return [*first, *range(first[-1] + 1, first[-1] + 1 + asked.until_decided - len(first))]


def _ask_for(asked: CreateFederation, variant: Variant, seed: int | None) -> CreateFederation:
    """Return what would be asked for a single variant."""
    if variant.is_stack:
        raise UsageError("a stack pools predictions, which do not leave sites", "leave out stack")
    settings = {**(asked.settings or {}), **variant.settings}
    return replace(asked, method=method_name(variant.name), options=variant.options, settings=settings, seed=seed)


def _start_pilot(asked: CreateFederation, from_run: FromRun) -> dict[str, Start]:
    """Return the starts of the runs of a comparison: those of the methods and seeds that are asked for."""
    assert asked.methods is not None
    _require_untouched(asked, str(asked.source))
    if asked.until_decided is not None:
        raise UsageError(
            f"--until-decided has no effect on {asked.source}, whose runs have their seeds",
            "pfl federation create TABLE --methods NAME,NAME --until-decided N -o DIR",
        )
    if asked.tune is not None:
        raise UsageError(
            f"--tune has no effect on {asked.source}, whose methods have their options",
            "pfl compare --tune N tunes them on the pilot",
        )
    runs = {
        f"seed-{each.manifest.request['seed']}/{each.path.name}": each for each in open_all(asked.source, "predictions")
    }
    known = [*dict.fromkeys(each.path.name for each in runs.values())]
    marked = set[str]()
    with suppress(InputError):
        compared = open_one(asked.source, "comparison").manifest.request["methods"]
        order, marked = [*compared], marked_references(compared)
        # Methods that tie keep the order in which they were asked for.
        runs = {name: runs[name] for name in sorted(runs, key=lambda name: order.index(runs[name].path.name))}
    wanted = known if ALL in asked.methods else [*asked.methods]
    if missing := [name for name in wanted if name not in known]:
        raise UsageError(f"{asked.source} has no run of {missing[0]}", f"--methods {','.join(known)}")
    seeds = [*_choose_seeds(asked)]
    found, reporter = dict[str, Start](), asked.execution.reporter
    for name, each in runs.items():
        seed = each.manifest.request["seed"]
        if each.path.name in wanted and (seeds == [None] or seed in seeds):
            try:
                start = from_run(each, reporter)
                mark = {"reference": True} if each.path.name in marked else {}
                found[name] = replace(start, request={**start.request, **mark})
            except UnsuitedError as error:
                wanted = [other for other in wanted if other != each.path.name]
                _leave_out(asked, each.path.name, error)
    if seeds != [None] and (gone := [seed for seed in seeds if not any(f"seed-{seed}/" in name for name in found)]):
        raise UsageError(f"{asked.source} has no run with seed {gone[0]}", "leave out --seeds")
    return _require_some(asked, found)


def _leave_out(asked: CreateFederation, name: str, error: UnsuitedError) -> None:
    """Report that a method of ``all`` cannot run among sites; raises the error of a method that was named."""
    assert asked.methods is not None
    if ALL not in asked.methods:
        raise error
    asked.execution.reporter.say(f"{name} is left out: {error.message}")


def _require_some(asked: CreateFederation, found: dict[str, Start]) -> dict[str, Start]:
    if not found:
        raise UsageError(f"none of the methods of {asked.source} can run among real sites", "--methods fedavg,ditto")
    return found


def agree_on_scores(
    asked: CreateFederation, runs: Mapping[str, Mapping[str, Any]], labels: Labels, book: Codebook
) -> dict[str, Any]:
    """Return which scores sites send of the ``runs``: the metrics, the positive class, and the baseline of gains.

    Raises UsageError for metrics that the labels do not have, and for a baseline that does not run.
    """
    metrics = catalogue.parse_names(asked.metrics) if asked.metrics else tasks.find(labels.kind).metrics[:1]
    catalogue.require_defined(metrics, labels)
    if asked.positive is not None:
        catalogue.positive_class(asked.positive, book.class_names(labels.outputs))
    rows = [*dict.fromkeys(run.get("label", name.partition("/")[2]) for name, run in runs.items())]
    if asked.baseline not in rows:
        raise UsageError(f"the baseline '{asked.baseline}' is not among {listed(rows)}", f"--baseline {rows[0]}")
    looks = {}
    if asked.until_decided is not None:
        looks = {"looks": [len(_first_seeds(asked)), asked.until_decided]}
    return {"metric": [*metrics], "positive": asked.positive, "baseline": asked.baseline, **looks}


def _first_seeds(asked: CreateFederation) -> list[int]:
    """Return the seeds before the first look at the scores; raises UsageError if they leave none to add."""
    assert asked.until_decided is not None
    first = sorted(asked.seeds) if asked.seeds else [(asked.seed or 0) + number for number in range(FIRST)]
    if asked.until_decided > MAX_SEEDS:
        raise UsageError(
            f"--until-decided {asked.until_decided} is above the maximum of {MAX_SEEDS}", "--until-decided 10"
        )
    if len(first) >= asked.until_decided:
        raise UsageError(
            f"--until-decided {asked.until_decided} leaves no seed to add: there are {len(first)}",
            f"--until-decided {len(first) + 1}",
        )
    return first


@dataclass(frozen=True)
class RunName:
    """The ``name`` of a run of several: its ``seed``, its ``label`` in the table, and which ``trial`` of it it is.

    A run without trials has its label as the trial.
    """

    name: str
    seed: int
    label: str
    trial: str


def read_names(request: Mapping[str, Any]) -> list[RunName]:
    """Return the names of the runs in the request of a federation of several."""
    found = []
    for name, run in request["runs"].items():
        folder, _, trial = name.partition("/")
        found.append(RunName(name, int(folder.removeprefix("seed-")), str(run.get("label", trial)), trial))
    return found


def list_first(names: Sequence[RunName]) -> list[str]:
    """Return the runs of the first seed, among which trials are chosen; empty if there is nothing to choose."""
    return [each.name for each in names if each.seed == names[0].seed] if has_trials(names) else []


def list_looks(request: Mapping[str, Any], names: Sequence[RunName], chosen: Sequence[str]) -> list[list[str]]:
    """Return the ``chosen`` runs that are compared at each look at the scores: all, unless seeds are added."""
    seeds = [*dict.fromkeys(each.seed for each in names)]
    looks = request["scores"].get("looks")
    counts = [len(seeds)] if looks is None else range(looks[0], len(seeds) + 1)
    return [[run.name for run in names if run.name in chosen and run.seed in seeds[:count]] for count in counts]


def has_trials(names: Sequence[RunName]) -> bool:
    """Return whether runs are trials, of which one by label is chosen."""
    return any(each.trial != each.label for each in names)


def list_chosen(names: Sequence[RunName], trials: Mapping[str, str]) -> list[str]:
    """Return the runs, of all seeds, of the trials that were chosen by label; raises InputError for other trials."""
    if {(each.label, each.trial) for each in names if trials.get(each.label) == each.trial} != {*trials.items()}:
        raise InputError("the choice names a trial that the federation does not have")
    if {*trials} != {each.label for each in names}:
        raise InputError("the choice does not name a trial of each method")
    return [each.name for each in names if trials[each.label] == each.trial]


def take_turns(plays: Mapping[str, Generator[bool, None, Result]]) -> dict[str, Result]:
    """Play all generators to their ends, in turns, and return what each has returned.

    Each yields whether it has done anything; while none has, this process sleeps.
    """
    playing, ended = dict(plays), dict[str, Result]()
    while playing:
        is_idle = True
        for name, play in [*playing.items()]:
            try:
                is_idle &= not next(play)
            except StopIteration as stop:
                ended[name], is_idle = stop.value, False
                del playing[name]
        if is_idle:
            time.sleep(POLL_SECONDS)
    return {name: ended[name] for name in plays}
