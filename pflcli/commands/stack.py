"""``pfl stack``: pool the stored predictions of several methods into one (logarithmic pool, in NumPy)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import backbone, predictions, read_labels
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.open_by_path import Chosen, open_all
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import sources as code
from pflcli.core.errors import GoneError, InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.evaluation import changed_options, stack_references
from pflcli.methods.parts import logarithmic_pool as pool
from pflcli.methods.parts.logarithmic_pool import BASE, GLOBAL, KEPT, POOL, STACK, VOTES
from pflcli.options.function import command
from pflcli.options.stack import Stack
from pflcli.workflow.training import state_files

_LINKS = ("bytes_up", "bytes_down", "bytes_peer")
_KEPT_AS = {GLOBAL: "the global model"}
_ONE_PARTITION = "stack predictions of one partition"


@command(Stack)
def stack(asked: Stack) -> Outcome:
    """Pool the predictions of several methods, with one exponent per method learned on validation samples.

    ``sources`` are predictions of one partition and seed. ``method`` and ``seed`` choose among the predictions in a
    folder of ``compare``. For kNN-Per, the votes of the neighbours are pooled, because the lambda of its predictions
    was tuned on the same validation samples. The global model is pooled too if an input stores its predictions. With
    ``gate``, a client keeps the global model, or the classifier of `alone` if this is pooled, unless the pool has a
    lower held-out log-loss for it. With ``own``, each client has its own exponents, shrunk towards the shared ones
    (``methods/parts/logarithmic_pool.py``). The predictions for validation samples use exponents that were learned
    without them.

    Raises UsageError for a repeated input or several seeds; InputError for inputs that learned from validation
    samples, inputs for different samples, and a ``gate`` without a global model and without `alone`.

    >>> from pflcli import partition, personalize, stack
    >>> runs = [
    ...     personalize(name, partition("writers", "runs/p", clients=6), f"runs/{name}", model="mlp", rounds=2)
    ...     for name in ("fedavg", "ditto")
    ... ]
    >>> stack(runs, "runs/stack").kind
    'predictions'
    """
    execution = asked.execution
    artifacts = sorted(
        (
            item
            for source in asked.sources
            for item in open_all(source, "predictions", chosen=Chosen(asked.method, asked.seed))
        ),
        key=_sort_key,
    )
    _check(artifacts)
    run_seed = int(artifacts[0].manifest.request["seed"])
    options = {"gate": asked.gate, "own": asked.own}
    draft = ArtifactSpec(
        "predictions",
        {"method": STACK, "options": options, "settings": {}, "seed": run_seed},
        tuple(artifact.as_input("pooled", Path(asked.out)) for artifact in artifacts),
        code={STACK: code.module_hash("methods.parts.logarithmic_pool")},
    )
    return make(
        asked.out,
        draft,
        execution,
        lambda work: _build(work, artifacts, run_seed, execution, gate=asked.gate, own=asked.own),
    )


def _build(
    work: ArtifactWriter, artifacts: Sequence[Artifact], seed: int, execution: Execution, *, gate: bool, own: bool
) -> Built:
    """Learn the pool and write its predictions."""
    names, labels = _distinct_names(artifacts), read_labels(artifacts[0].manifest, 0)
    rule = pool.choose_rule(labels.task())
    held_out = _pool_inputs(artifacts, names, "validation", rule)
    bases = _find_bases(artifacts, held_out)
    if gate and not bases:
        raise InputError(
            f"none of {', '.join(names)} stores predictions of the global model, which --gate needs for clients that "
            "do not use the pool",
            f"add predictions of {BASE} or {KEPT}, or use the pool for all clients: --no-gate",
        )
    if caution := stack_references.warn_few_samples(held_out.split.offsets):
        execution.reporter.say(f"stack: warning: {caution}")
    unseen, targets, gated = predictions.read_new_clients(artifacts[0]), held_out.split, bases if gate else {}
    kept_by = {"base": gated.get(GLOBAL), "alone": gated.get(KEPT)}
    learned = pool.fit_pool(
        held_out.logs, targets.y, targets.offsets, **kept_by, own=own, unseen=unseen, seed=seed, rule=rule
    )
    test = _pool_inputs(artifacts, names, "test", rule)
    client = np.repeat(np.arange(len(learned.kept)), np.diff(test.split.offsets))
    p, base = rule.predict(test.logs, learned.own[client]), bases.get(GLOBAL)
    answers = {
        "validation": _apply_gate(held_out, learned.held_out, learned.kept_held_out, base, rule),
        "test": _apply_gate(test, p, learned.kept[client], base, rule),
    }
    tuned = {"pooled": (learned.kept == POOL).astype(np.float64)} if gate else {}
    if KEPT in gated:
        tuned[KEPT] = (learned.kept == gated[KEPT]).astype(np.float64)
    if own:
        tuned |= {f"exponent {name}": learned.own[:, at].copy() for at, name in enumerate(held_out.names)}
    predictions.write(work, predictions.Predictions(answers, tuned, unseen, labels if labels.fields else None))
    codebook.write(work, codebook.read(artifacts[0]))
    state_files.write_state({"exponents": torch.from_numpy(learned.exponents)}, work)
    shared = dict(zip(held_out.names, map(float, learned.exponents), strict=True))
    _report(execution, shared, learned, gated if gate else None)
    losses = {"pool": learned.loss} | dict(zip(gated, learned.base_losses, strict=True))
    costs = _costs(artifacts)
    reported = {artifact.manifest.summary["reported"].partition(":")[0] for artifact in artifacts}
    summary = {
        "method": STACK,
        "clients": len(learned.kept),
        **_largest(artifacts, "participants", "model_bytes", "transductive", "foreign"),
        "reported": " or ".join(sorted(reported)),
        "rounds": 0,
        **{link: int(costs[link]) for link in _LINKS},
        "exponents": shared,
        "ridge": learned.ridge,
        **({"own_ridge": learned.pull if np.isfinite(learned.pull) else None} if own else {}),
        "validation_samples": len(targets.y),
        f"validation_{'loss' if labels.fields else 'log_loss'}": {
            name: round(each, 6) for name, each in losses.items()
        },
        **labels.facts(),
        "tuned": predictions.summarize_tuned(tuned),
    }
    return Built(summary, {key: value for key, value in costs.items() if key not in _LINKS})


def _report(execution: Execution, shared: dict[str, float], learned: pool.Pool, gated: dict[str, int] | None) -> None:
    """Print what was learned and, with ``--gate``, how many clients keep each of the models of ``gated``."""
    exponent_list = ", ".join(f"{name} {value:.2f}" for name, value in shared.items())
    execution.reporter.say(f"stack: exponents {exponent_list}; ridge {learned.ridge:g}")
    if gated is not None:
        keep = [f"{(learned.kept == at).sum()} keep {_KEPT_AS.get(name, name)}" for name, at in gated.items()]
        execution.reporter.say(f"stack: of {len(learned.kept)} clients {', '.join(keep)}")


def _sort_key(artifact: Artifact) -> tuple[str, str, str]:
    """Return the key by which inputs are sorted, so that the request does not depend on their order."""
    request = artifact.manifest.request
    return request["method"], json.dumps(request["options"], sort_keys=True), artifact.manifest.fingerprint


@dataclass(frozen=True)
class _PoolInputs:
    """The predictions of one split that are pooled: M inputs for n samples and C classes.

    ``logs`` (n, M, C) are the inputs of the pool, ``answers`` the M arrays of predictions (n, C), and
    ``split`` contains the samples, their labels and clients.
    """

    names: tuple[str, ...]
    logs: NDArray[np.floating[Any]]
    answers: tuple[NDArray[np.float32], ...]
    split: predictions.SplitPredictions


def _check(artifacts: Sequence[Artifact]) -> None:
    """Raise UsageError or InputError if the manifests show that the inputs cannot be pooled."""
    if not artifacts:
        raise UsageError("nothing to stack", "pfl stack PREDICTIONS... -o DIR")
    if len({artifact.manifest.fingerprint for artifact in artifacts}) < len(artifacts):
        raise UsageError("the same predictions are given twice")
    seeds = sorted({int(artifact.manifest.request["seed"]) for artifact in artifacts})
    if len(seeds) > 1:
        raise UsageError(
            f"the predictions have different seeds ({', '.join(map(str, seeds))}), and a stack needs a single one",
            f"--seed {seeds[0]} stacks those of one seed of a comparison; to compare a stack for every seed:"
            " pfl compare PARTITION -o DIR --methods METHOD,METHOD,stack",
        )
    for artifact in artifacts:
        if "validation" in predictions.learned_splits(artifact):
            raise InputError(
                f"{artifact.path} was run with --refit, so it has no predictions for validation samples, on which "
                "exponents are learned",
                "stack predictions that were made without --refit",
            )
    first, *rest = artifacts
    for other in rest:
        pair = _partition(first), _partition(other)
        if pair[0] and pair[1] and pair[0].manifest.fingerprint != pair[1].manifest.fingerprint:
            raise InputError(
                f"{first.path} was made on the partition {pair[0].path}, but {other.path} on {pair[1].path}",
                _ONE_PARTITION,
            )
        codebook.require_same(first, other, "classes")


def _partition(artifact: Artifact) -> Artifact | None:
    try:
        return ancestor(artifact, "partition")
    except GoneError:
        return None  # _pool_inputs compares the samples themselves


def _pool_inputs(artifacts: Sequence[Artifact], names: Sequence[str], split: str, rule: pool.Rule) -> _PoolInputs:
    """Read the predictions of one split that are pooled.

    Raises InputError if two inputs are for different samples, or if there are no validation samples to learn from.
    """
    stored = [predictions.read(artifact, split) for artifact in artifacts]
    first = stored[0]
    for artifact, other in zip(artifacts, stored, strict=True):
        pairs = zip((first.offsets, first.sample, first.y), (other.offsets, other.sample, other.y), strict=True)
        if not all(np.array_equal(a, b) for a, b in pairs) or first.parts["p"].shape != other.parts["p"].shape:
            raise InputError(
                f"{artifacts[0].path} and {artifact.path} are predictions for different {split} samples", _ONE_PARTITION
            )
    labels = [f"{name}, votes" if VOTES in item.parts else name for name, item in zip(names, stored, strict=True)]
    methods = [artifact.manifest.request["method"] for artifact in artifacts]
    answers = pool.select_members([item.parts for item in stored], methods)
    labels += [GLOBAL] * (len(answers) - len(labels))
    if split == "validation" and not len(first.y):
        raise InputError(
            f"{artifacts[0].path} has no validation samples to learn exponents on",
            "pfl partition DATASET -o DIR --fractions 0.6,0.2,0.2",
        )
    return _PoolInputs(tuple(labels), rule.read(answers), tuple(answers), first)


def _find_bases(artifacts: Sequence[Artifact], inputs: _PoolInputs) -> dict[str, int]:
    """Return the places among the pooled inputs of what a client may keep: the global model and `alone`."""
    methods = [artifact.manifest.request["method"] for artifact in artifacts]
    places = {}
    if BASE in methods:
        places[GLOBAL] = methods.index(BASE)
    elif len(inputs.names) > len(methods):
        places[GLOBAL] = inputs.names.index(GLOBAL)
    if KEPT in methods:
        places[KEPT] = methods.index(KEPT)
    return places


def _distinct_names(artifacts: Sequence[Artifact]) -> list[str]:
    """Return distinct names: the method, with the options in which inputs of that method differ, or with a number."""
    names = [label.replace("/", "|") for label in changed_options.label_by_options(artifacts)]
    count, numbers = Counter(names), Counter[str]()
    for index, name in enumerate(names):
        numbers[name] += 1
        names[index] = f"{name} #{numbers[name]}" if count[name] > 1 else name
    return names


def _apply_gate(
    inputs: _PoolInputs, pooled: NDArray[np.float64], kept: NDArray[np.int64], base: int | None, rule: pool.Rule
) -> predictions.SplitPredictions:
    """Return the predictions of a split: the pool's, or those of the input that a sample's client keeps, ``kept`` (n,).

    The global model is the input ``base``, if there is one. What another input predicts has a share of the uniform
    distribution, as in the pool: forests are often sure, and sometimes wrong.
    """
    p, split = pooled.astype(np.float32), inputs.split
    for number in np.unique(kept[kept != POOL]).tolist():
        own = inputs.answers[number] if number == base else rule.answer(inputs.logs[:, number])
        p = np.where((kept == number)[:, None], own, p)
    shared = {} if base is None else {GLOBAL: inputs.answers[base]}
    return predictions.SplitPredictions({"p": p, **shared}, split.y, split.sample, split.offsets)


def _largest(artifacts: Sequence[Artifact], *facts: str) -> dict[str, int]:
    """Return the largest value of each fact among the summaries that have it."""
    summaries = [artifact.manifest.summary for artifact in artifacts]
    shared = [fact for fact in facts if any(fact in summary for summary in summaries)]
    return {fact: max(summary[fact] for summary in summaries if fact in summary) for fact in shared}


def _costs(artifacts: Sequence[Artifact]) -> Mapping[str, float]:
    """Return the bytes and seconds of all inputs; a backbone that several inputs share counts once."""
    facts = [_cost(artifact.manifest.summary, artifact.manifest.made) for artifact in artifacts]
    names = [name for name in facts[0] if all(name in fact for fact in facts)]
    total = {name: sum(fact[name] for fact in facts) for name in names}
    backbones = [item for artifact in artifacts if (item := _backbone(artifact)) is not None]
    distinct = {item.manifest.fingerprint: item for item in backbones}
    repeated = Counter(item.manifest.fingerprint for item in backbones)
    for fingerprint, item in distinct.items():
        cost = _cost(item.manifest.summary, item.manifest.made)
        for name in names:
            total[name] -= (repeated[fingerprint] - 1) * cost.get(name, 0)
    return {name: value if name in _LINKS else round(max(value, 0.0), 3) for name, value in total.items()}


def _cost(summary: Mapping[str, Any], circumstances: Mapping[str, Any]) -> dict[str, float]:
    cost = {link: summary.get(link, 0) for link in _LINKS}
    for name in ("seconds", "processor_seconds"):
        if name in circumstances:
            cost[f"{name}_inputs"] = circumstances[name] + circumstances.get(f"{name}_inputs", 0)
    return cost


def _backbone(artifact: Artifact) -> Artifact | None:
    """Return the backbone whose costs are included in those of the predictions, or None."""
    if backbone.ROUNDS in artifact.manifest.files or not artifact.manifest.summary.get("rounds"):
        return None
    try:
        return ancestor(artifact, "backbone")
    except GoneError:
        return None
