"""Scores that plug-ins add to those of an evaluation: ``SCORES`` of ``core.plugins``, each asked for by an option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pflcli.artifacts.reader import Artifact
from pflcli.core import plugins
from pflcli.core.errors import UsageError
from pflcli.evaluation.summary import Scored


def parse(asked: Any) -> dict[str, Any]:
    """Return the options of ``asked`` that are given, by name, as requests record them; UsageError for invalid ones."""
    given = {name: value for name in plugins.SCORE_OPTIONS if (value := getattr(asked, name)) is not None}
    for name in given:
        if name not in plugins.added("SCORES"):
            raise UsageError(f"--{name.replace('_', '-')} is not available: {plugins.why_missing(name)}")
    return {name: plugins.load("SCORES", name, "parse")(value) for name, value in given.items()}


def require(given: Mapping[str, Any], partition: Artifact) -> None:
    """Raise the error of an option that does not suit the samples of a partition."""
    for name, value in given.items():
        plugins.load("SCORES", name, "require")(partition, value)


def summarize(request: Mapping[str, Any], scored: Sequence[Scored], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the options in a request add to the ``metrics`` of a table."""
    added: dict[str, Any] = {}
    for name in plugins.SCORE_OPTIONS:
        if name in request:
            added |= plugins.load("SCORES", name, "summarize")(scored, metrics, request[name])
    return added
