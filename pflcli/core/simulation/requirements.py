"""Check that settings, method, network and samples fit together, before a run begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from pflcli.core import models
from pflcli.core.engine import normalization
from pflcli.core.engine.networks import has_batch_norm
from pflcli.core.errors import UnsuitedError, UsageError
from pflcli.core.federation import aggregators, uploads
from pflcli.core.methods import Method
from pflcli.core.settings import AUTO, Settings
from pflcli.core.wording import as_typed

if TYPE_CHECKING:
    from pflcli.core.engine.tasks import Task
    from pflcli.core.tasks import Labels


def resolve_names(settings: Settings) -> Settings:
    """Return the settings with full names; raises UsageError for an unknown model, upload, aggregator or metric."""
    return replace(
        settings,
        round_metric=None if settings.round_metric is None else _parse_metric(settings.round_metric),
        model=settings.model if settings.model == AUTO else models.check(settings.model),
        upload=tuple(str(uploads.load(step)) for step in settings.upload),
        aggregator=str(aggregators.load(settings.aggregator)),
    )


def _parse_metric(name: str) -> str:
    from pflcli.core.metrics import catalogue  # here, because few runs need it

    return catalogue.parse_names([name])[0]


def require_fit(settings: Settings, net: nn.Module, channels: int | None) -> None:
    """Raise UsageError for a batch size, a normalization or an augmentation that does not fit network or samples.

    ``channels`` is the number of channels of images; None for other samples.
    """
    if settings.batch_size == 1 and has_batch_norm(net):
        raise UsageError(
            f"{settings.model} has batch normalization, which needs more than one sample", "--batch-size 2 or more"
        )
    normalization.check(settings.normalize, channels)
    if settings.augment and channels is None:
        raise UsageError("--augment is for images, which these samples are not", "leave it out")


def require_suited(name: str, method: Method, settings: Settings, task: Task | Labels | None = None) -> None:
    """Raise UnsuitedError for labels that a method does not learn, and for privacy that does not cover what it sends.

    ``task`` is what labels are, None if that is not known. Raises UsageError if the metric that compares rounds is not
    defined for them.
    """
    learns = {*method.TASKS}
    if task is not None and not ({task.kind, "any"} & learns or ("series" in learns and task.past)):
        raise UnsuitedError(
            f"{name} learns {' and '.join(method.TASKS)}, and the task is {task.kind}",
            "a method whose file has TASKS = ('any',), such as fedavg",
            *(["pfl import --window makes series"] if "series" in method.TASKS else []),
        )
    if task is not None and settings.round_metric is not None:
        from pflcli.core.metrics import catalogue
        from pflcli.core.tasks import Labels

        catalogue.require_defined([settings.round_metric], task if isinstance(task, Labels) else Labels.of(task))
    if settings.dp and method.SENDS_MORE:
        raise UnsuitedError(
            f"differential privacy does not cover {name}: its clients send {method.SENDS_MORE}",
            "leave out --dp-epsilon and --dp-noise, or use a method that only averages updates, such as fedavg",
        )


def require_body(name: str, method: Method, settings: Settings, net: nn.Module) -> None:
    """Raise UnsuitedError if the method divides a model into body and head, and the model ``net`` is all head."""
    if method.DIVIDES and not any(key.startswith("body.") for key in net.state_dict()):
        raise UnsuitedError(
            f"{name} divides a model into its body and its head, but {settings.model} is all head",
            f"use --model mlp, or leave out {name}",
        )


def describe_ignored(name: str, method: Method, settings: Settings) -> Iterator[str]:
    """Yield a message for each setting that differs from its default and has no effect on the method."""
    if settings.round_metric is not None and not settings.compares_rounds:
        yield f"--round-metric {settings.round_metric} has no effect without --report best or --patience"
    for setting in method.IGNORES:
        value = getattr(settings, setting)
        if value != getattr(Settings(), setting):
            yield f"--{setting.replace('_', '-')} {as_typed(value)} has no effect on {name}"
