"""The training settings of a run: those asked for, changed and checked by its samples, method and backbone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds.backbone import WEIGHTS
from pflcli.artifacts.reader import Artifact
from pflcli.core import config, models
from pflcli.core.errors import UsageError
from pflcli.core.methods import Method
from pflcli.core.settings import AUTO, TRAINING, Settings, changed
from pflcli.core.simulation import requirements
from pflcli.core.simulation.requirements import require_body, require_fit, resolve_names
from pflcli.workflow.training.run_request import require_files

_PRIVACY = ("dp_epsilon", "dp_delta", "dp_noise", "dp_clip", "dp_seed")


def read_settings(artifact: Artifact) -> Settings:
    """Return the settings of an artifact's run; raises UsageError if the run needs a user's file that is not used."""
    require_files(artifact)
    return resolve_settings(artifact.manifest.request["settings"], {})


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
    require_fit(built, outline(built, form), form.input_shape[0] if form.dtype == "uint8" else None)
    return built


def compare_rounds_by(metric: str, settings: Mapping[str, Any], further: Iterable[str] = ()) -> dict[str, Any]:
    """Return training settings that compare rounds by a metric, if any are compared and no other metric is given.

    ``further`` are names of settings and options that single runs have beside these.
    """
    choosing = {"report"} if settings.get("patience") == "flat" else {"report", "patience"}  # flat goes by accuracy
    names = choosing & {*settings, *(key.removeprefix(TRAINING) for key in further)}
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


def require_suited(name: str, method: Method, settings: Settings, partition: Artifact | None) -> None:
    """Raise UnsuitedError if the method does not learn the labels of a partition, or divides a model without a body.

    It is also raised if differential privacy does not cover the method.
    """
    form = None if partition is None else partitions.read_form(partition)
    requirements.require_suited(name, method, settings, None if form is None else form.labels)
    if method.DIVIDES and form is not None:
        require_body(name, method, settings, outline(settings, form))


def outline(settings: Settings, form: partitions.Form) -> nn.Module:
    """Return the network of the settings for samples of this form, without memory for its weights."""
    is_tokens = form.dtype == "int16"
    return models.outline(
        settings.model, form.input_shape, form.labels.outputs, tokens=is_tokens, adapter=settings.adapter
    )
