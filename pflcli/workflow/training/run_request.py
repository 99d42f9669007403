"""Check what a run needs before it starts: training settings that fit the samples, earlier choices, and its costs.

With ``--refit``, a run trains on validation samples and cannot choose on them. Marfoq et al. (2022),
https://arxiv.org/abs/2111.09360, section 6, tune kNN-Per on validation samples and then train on training and
validation samples. Every method can do this: a first run without ``--refit`` makes the choices, and a second run takes
them from it (``--choices``) and trains on all samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds.backbone import WEIGHTS
from pflcli.artifacts.open_by_path import open_one
from pflcli.artifacts.reader import Artifact, ancestor
from pflcli.core import config, methods, models, parameters, registry
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import InputError, UnsuitedError, UsageError
from pflcli.core.federation import uploads
from pflcli.core.federation.privacy import guarantee
from pflcli.core.federation.run import LINKS
from pflcli.core.methods import Method
from pflcli.core.settings import AUTO, TRAINING, Settings, changed, omitted
from pflcli.core.simulation import requirements
from pflcli.core.simulation.requirements import require_body, require_fit, resolve_names
from pflcli.core.wording import counted

_PRIVACY = ("dp_epsilon", "dp_delta", "dp_noise", "dp_clip", "dp_seed")


def load_method(artifact: Artifact) -> Method:
    """Return the method that made an artifact; raises UsageError if the run needs a user's file that is not used.

    Raises UnsuitedError for predictions of another tool.
    """
    if artifact.manifest.summary.get("foreign"):
        raise UnsuitedError(
            f"{artifact.path} has predictions of another tool alone: pfl has no model for them",
            "score them: pfl evaluate PREDICTIONS... -o DIR",
        )
    require_files(artifact)
    return methods.load(str(artifact.manifest.request["method"]))


def read_settings(artifact: Artifact) -> Settings:
    """Return the settings of an artifact's run; raises UsageError if the run needs a user's file that is not used."""
    require_files(artifact)
    return resolve_settings(artifact.manifest.request["settings"], {})


def require_files(artifact: Artifact) -> None:
    """Raise UsageError if an artifact was made with a user's file that is not used now."""
    for name, file in artifact.manifest.made.get("files", {}).items():
        group, _, member = name.partition("/")
        if not registry.exists(group, member):
            code = artifact.manifest.code
            digest = next(code[key] for key in code if key.partition(":")[0] == name)[:12]
            raise UsageError(
                f"{artifact.path} was made with the {registry.GROUPS[group]} in {file} (code {digest}), which is not"
                " part of pfl",
                f"pfl --use {member if '.' in member else f'PATH/{file}'} COMMAND ...",
                f"a copy to read, which is never run, is {artifact.path / file}",
            )


def require_suited(name: str, method: Method, settings: Settings, partition: Artifact | None) -> None:
    """Raise UnsuitedError if the method does not learn the labels of a partition, or divides a model without a body.

    It is also raised if differential privacy does not cover the method.
    """
    form = None if partition is None else partitions.read_form(partition)
    requirements.require_suited(name, method, settings, *(() if form is None else (form.kind, form.classes)))
    if method.DIVIDES and form is not None:
        require_body(name, method, settings, _outline(settings, form))


def _outline(settings: Settings, form: partitions.Form) -> nn.Module:
    """Return the network of the settings for samples of this form, without memory for its weights."""
    is_tokens = form.dtype == "int16"
    return models.outline(settings.model, form.input_shape, form.classes, tokens=is_tokens, adapter=settings.adapter)


def describe_seed(name: str, method: Method, cfg: Any, settings: Settings) -> Iterator[str]:
    """Yield a message on ``dp_seed`` in a run without differential privacy: a warning, or that it has no effect."""
    if settings.dp_seed is None or settings.dp:  # the guarantee of differential privacy has its own warning
        return
    uploads_noise = bool(LINKS[method.KIND]) and any(uploads.load(step).is_private for step in settings.upload)
    if uploads_noise or getattr(cfg, "vote", None) == "noisy" or registry.is_foreign("methods", name):
        yield guarantee.WARNING_OF_SEED
    else:
        yield f"--dp-seed {settings.dp_seed} has no effect: {name} draws no noise that protects clients"


def describe_few_to_choose(name: str, method: Method, cfg: Any, settings: Settings, partition: Artifact) -> list[str]:
    """Return a warning if clients that choose by validation samples have a single one; else nothing."""
    if settings.refit or not method.choices(cfg) or method.CHOOSES_IN_ROUNDS:
        return []
    single = int((partitions.read_sizes(partition)[:, SPLITS.index("validation")] == 1).sum())
    if not single:
        return []
    return [
        f"{name}: {counted(single, 'client')} with a single validation sample, for which nothing can be chosen without "
        "it: its score is that of a client without validation samples"
    ]


def resolve_settings(
    base: Mapping[str, Any], changes: Mapping[str, Any], partition: Artifact | None = None
) -> Settings:
    """Return the training settings ``base`` with ``changes``, and with a model in place of ``auto``.

    With a ``partition``, ``auto`` becomes a model that fits its samples. Raises UsageError for an unknown setting, and
    for a model, a batch size or a normalization that does not fit.
    """
    built: Settings = config.build(Settings, changed(base, changes), "the training settings")
    if built.model == AUTO and "model" in base:
        built = replace(built, model=base["model"])
    built = resolve_names(built)
    if partition is None:
        return built
    form = partitions.read_form(partition)
    if built.model == AUTO:
        built = replace(built, model=models.default(form.input_shape, tokens=form.dtype == "int16"))
    require_fit(built, _outline(built, form), form.input_shape[0] if form.dtype == "uint8" else None)
    return built


def compare_rounds_by(metric: str, settings: Mapping[str, Any], further: Iterable[str] = ()) -> dict[str, Any]:
    """Return training settings that compare rounds by a metric, if any are compared and no other metric is given.

    ``further`` are names of settings and options that single runs have beside these.
    """
    names = {"report", "patience"} & {*settings, *(key.removeprefix(TRAINING) for key in further)}
    is_usual = metric == "accuracy" or not names
    return {**settings} if is_usual else {"round_metric": metric, **settings}


def settings_on_lineage(
    name: str,
    method: Method,
    lineage: Mapping[str, Artifact | None],
    changes: Mapping[str, Any],
    out: Path | str,
) -> Settings:
    """Return the settings of the backbone with ``changes``; raises UsageError if they contradict the backbone."""
    backbone, partition = lineage["backbone"], lineage["partition"]
    if backbone is not None:
        require_files(backbone)
    base = backbone.manifest.request["settings"] if backbone is not None else {}
    resolved = resolve_settings(base, changes, partition if backbone is None else None)
    require_suited(name, method, resolved, partition)
    if backbone is None:
        return resolved
    if resolved.model != base["model"]:
        path = partition.path if partition else "PARTITION"
        raise UsageError(
            f"{backbone.path} has the model {base['model']}, not {resolved.model}",
            f"pfl personalize {name} {path} --model {resolved.model} -o {out}",
        )
    if resolved.adapter != (adapter := base.get("adapter")):
        use = f"--weights {backbone.path / WEIGHTS} --adapter {resolved.adapter}"
        raise UsageError(
            f"{backbone.path} was trained with --adapter {adapter or 'none'}, not {resolved.adapter or 'none'}",
            f"pfl personalize {name} PARTITION {use} -o {out}" if adapter is None else "leave out --adapter",
        )
    normalize = base.get("normalize", "none")
    if resolved.normalize != normalize:
        raise UsageError(
            f"{backbone.path} was trained on images with --normalize {normalize}, not {resolved.normalize}",
            f"pfl train-global PARTITION --normalize {resolved.normalize} -o DIR, then {name} on DIR",
        )
    # Without differential privacy of the backbone, dp_seed is for noise that the method itself draws.
    own = {"dp_seed"} if not resolved.dp else set()
    private = [name for name in _PRIVACY if name not in own and getattr(resolved, name) != base.get(name)]
    if method.NEEDS and private:
        raise UsageError(
            f"{name} uses the models of {backbone.path}, which were trained with another --{private[0]}".replace(
                "_", "-"
            ),
            "set the options of differential privacy in pfl train-global",
        )
    refit = base.get("refit", False)
    if method.NEEDS and resolved.refit != refit:
        raise UsageError(
            f"{backbone.path} was trained with{'' if refit else 'out'} --refit, and {name} depends on it",
            f"pfl train-global PARTITION{' --refit' if resolved.refit else ''} -o DIR, then {name} on DIR",
        )
    return resolved


def recorded_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings as a request records them."""
    defaults, names = config.plain(Settings()), omitted()
    values = config.plain(settings)
    if settings.round_metric is not None:
        values["round_metric"] = settings.compares_rounds_by
    return {key: value for key, value in values.items() if key not in names or value != defaults[key]}


def describe_run(method: str, cfg: Any, settings: Settings, seed: int) -> dict[str, Any]:
    """Return the part of a request that says which run it is."""
    return {"method": method, "options": config.plain(cfg), "settings": recorded_settings(settings), "seed": seed}


def code_files(settings: Settings) -> list[str]:
    """Return the files of the registry, such as models/mlp, on which training with these settings depends."""
    steps = [f"uploads/{step.partition(':')[0]}" for step in settings.upload]
    rule = settings.aggregator.partition(":")[0]
    return [f"models/{settings.model}", *steps, *([f"aggregators/{rule}"] if rule != "mean" else [])]


def reported_round(artifact: Artifact) -> dict[str, Any]:
    """Return the reported round of an artifact from its summary."""
    summary = artifact.manifest.summary
    return {"reported": "last round", **{key: summary[key] for key in ("reported", "reported_round") if key in summary}}


def choose_seed(seed: int | None, source: Artifact) -> int:
    """Return ``seed``, or the seed of the source if it is None, so that all artifacts of a lineage share a seed."""
    return int(source.manifest.request.get("seed", 0)) if seed is None else seed


def open_earlier_run(
    names: tuple[str, ...],
    request: Mapping[str, Any],
    choices: Path | str | Artifact | None,
    partition: Artifact | None,
) -> Artifact | None:
    """Return the predictions from which a run takes its choices, or None if it makes its own or has nothing to choose.

    ``names`` are the options that clients choose on validation samples, ``request`` is the request of the run, and
    ``choices`` are the predictions that the user gave. Raises UsageError if they are missing or have no effect,
    InputError if they were made by another request or on another partition.
    """
    method = request["method"]
    if not (request["settings"]["refit"] and names):
        if choices is not None:
            reason = "has nothing to choose" if request["settings"]["refit"] else "chooses itself without --refit"
            raise UsageError(f"--choices has no effect on this run: {method} {reason}")
        return None
    if choices is None:
        raise UsageError(
            f"{method} chooses {' and '.join(names)} on validation samples, and --refit leaves none to choose on",
            f"run it without --refit first, then: pfl personalize {method} SOURCE --refit --choices PREDICTIONS",
        )
    artifact = open_one(choices, "predictions")
    earlier = {**artifact.manifest.request, "settings": {**artifact.manifest.request["settings"], "refit": True}}
    if artifact.manifest.request["settings"].get("refit"):
        raise InputError(f"{artifact.path} was run with --refit itself and chose nothing", "give a run without --refit")
    differing = [key for key in ("method", "options", "settings", "seed") if earlier[key] != request[key]]
    if differing:
        raise InputError(
            f"{artifact.path} was run with another {' and another '.join(differing)}: its choices do not fit this run"
        )
    before = ancestor(artifact, "partition")
    if before is None or partition is None or before.manifest.fingerprint != partition.manifest.fingerprint:
        raise InputError(
            f"{artifact.path} was made on the partition {before.path if before else '(unknown)'}, not on "
            f"{partition.path if partition else '(unknown)'}"
        )
    return artifact


MIN_CLIENTS_FOR_PAIR_COSTS = 1000
"""Costs that grow with the number of pairs of clients are reported from this number of clients."""


def describe_pair_costs(name: str, method: Method, cfg: Any, settings: Settings, partition: Artifact) -> list[str]:
    """Return one line per cost of a method that grows with the square of the number of clients; none for few clients.

    A method's file declares these costs. ``PAIRS_SENT`` is "models" if each participant of a round may download the
    models of all clients, or "public samples" if each client downloads the public samples of all clients once.
    ``PAIRS_KEPT`` is the number of bytes per pair in its largest table.
    """
    clients = int(partition.manifest.summary["clients"])
    if clients < MIN_CLIENTS_FOR_PAIR_COSTS or not (method.PAIRS_SENT or method.PAIRS_KEPT):
        return []
    lines, pair_content, participants = [], method.PAIRS_SENT, len(partitions.read_able_clients(partition))
    if pair_content == "models":
        cohort = max(1, round(settings.participation * participants))
        gigabytes = cohort * participants * _model_bytes(settings, partition) / 1e9
        lines.append(
            f"{name}: {cohort:,} of {participants:,} clients a round are sent up to {participants:,} models each, "
            f"{gigabytes:,.1f} GB"
        )
    if pair_content == "public samples":
        form, samples = partitions.read_form(partition), math.ceil(cfg.public * partition.manifest.summary["train"])
        gigabytes = participants * samples * math.prod(form.shape) * np.dtype(form.dtype).itemsize / 1e9
        lines.append(
            f"{name}: {participants:,} clients are sent {samples:,} or more samples each, {gigabytes:,.1f} GB, once"
        )
    if pair_bytes := method.PAIRS_KEPT:
        gigabytes = clients**2 * pair_bytes / 1e9
        lines.append(
            f"{name}: a table of all {clients**2:,} pairs of clients may be kept in memory, {gigabytes:,.2f} GB"
        )
    return [f"{line}; it grows with the square of the clients" for line in lines]


def _model_bytes(settings: Settings, partition: Artifact) -> int:
    """Return the bytes of one model with these settings for the samples of a partition."""
    net = _outline(settings, partitions.read_form(partition))
    return parameters.size(parameters.state(net))
