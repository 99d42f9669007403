"""The request of a run: its training settings, checked against the samples, its seed, and its code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pflcli import config, methods, models, parameters, registry
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds.backbone import WEIGHTS
from pflcli.artifacts.reader import Artifact
from pflcli.engine import normalization
from pflcli.engine.loop import has_batch_norm
from pflcli.errors import UnsuitedError, UsageError
from pflcli.federation import aggregators, uploads
from pflcli.methods import Method
from pflcli.settings import AUTO, Settings, changed

_PRIVACY = ("dp_epsilon", "dp_delta", "dp_noise", "dp_clip", "dp_seed")


def method_of(artifact: Artifact) -> Method:
    """Return the method that made an artifact; raises UsageError if the run needs a user's file that is not used."""
    require_files(artifact)
    return methods.load(str(artifact.manifest.request["method"]))


def settings_of(artifact: Artifact) -> Settings:
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


def require_private(name: str, method: Method, settings: Settings) -> None:
    """Raise UnsuitedError if differential privacy would not cover everything that the method sends."""
    if settings.dp and method.SENDS_MORE:
        raise UnsuitedError(
            f"differential privacy does not cover {name}: its clients send {method.SENDS_MORE}",
            "leave out --dp-epsilon and --dp-noise, or use a method that only averages updates, such as fedavg",
        )


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
    if built.model != AUTO:
        built = replace(built, model=models.check(built.model))
    built = replace(built, upload=tuple(str(uploads.load(step)) for step in built.upload))
    built = replace(built, aggregator=str(aggregators.load(built.aggregator)))
    if partition is None:
        return built
    form = partitions.read_form(partition)
    shape, tokens = _model_shape(form), form.dtype == "int16"
    if built.model == AUTO:
        built = replace(built, model=models.default(shape, tokens=tokens))
    net = models.outline(built.model, shape, form.classes, tokens=tokens, adapter=built.adapter)
    if built.batch_size == 1 and has_batch_norm(net):
        raise UsageError(
            f"{built.model} has batch normalization, which needs more than one sample", "--batch-size 2 or more"
        )
    normalization.check(built.normalize, shape[0] if form.dtype == "uint8" else None)
    if built.augment and form.dtype != "uint8":
        raise UsageError("--augment is for images, which these samples are not", "leave it out")
    return built


def model_bytes(training: Settings, partition: Artifact) -> int:
    """Return the bytes of one model with these settings for the samples of a partition."""
    form = partitions.read_form(partition)
    shape, tokens = _model_shape(form), form.dtype == "int16"
    net = models.outline(training.model, shape, form.classes, tokens=tokens, adapter=training.adapter)
    return parameters.size(parameters.state(net))


def _model_shape(form: partitions.Form) -> tuple[int, ...]:
    """Return the shape of a sample as a model's input: images have channels first."""
    if form.dtype != "uint8":
        return form.shape
    return (1, *form.shape) if len(form.shape) == 2 else (form.shape[2], *form.shape[:2])


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
    require_private(name, method, resolved)
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
    private = [name for name in _PRIVACY if getattr(resolved, name) != base.get(name)]
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


_ADDED_LATER = {
    **{"report": "last", "normalize": "none", "personal_every": 0, "dropout": 0.0, "upload": [], "steps": 0},
    **{"optimizer": "sgd", "clip_gradients": None, "lr_schedule": None, "lr_warmup": 0, "augment": []},
    **{"adapter": None},
    **{"aggregator": "mean", **dict.fromkeys(("dp_epsilon", "dp_delta", "dp_noise", "dp_clip", "dp_seed"))},
}
"""Settings that were added later, with their defaults. Requests omit the defaults, so that older requests match."""


def recorded_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings as a request records them: without those that were added later and have their default."""
    return {
        key: value
        for key, value in config.plain(settings).items()
        if key not in _ADDED_LATER or value != _ADDED_LATER[key]
    }


def code_files(settings: Settings) -> list[str]:
    """Return the files of the registry, such as models/mlp, on which training with these settings depends."""
    steps = [f"uploads/{step.partition(':')[0]}" for step in settings.upload]
    rule = settings.aggregator.partition(":")[0]
    return [f"models/{settings.model}", *steps, *([f"aggregators/{rule}"] if rule != "mean" else [])]


def reported_round(artifact: Artifact) -> dict[str, Any]:
    """Return the reported round of an artifact from its summary."""
    summary = artifact.manifest.summary
    return {"reported": "last round", **{key: summary[key] for key in ("reported", "reported_round") if key in summary}}


def seed_of(seed: int | None, source: Artifact) -> int:
    """Return ``seed``, or the seed of the source if it is None, so that all artifacts of a lineage share a seed."""
    return int(source.manifest.request.get("seed", 0)) if seed is None else seed
