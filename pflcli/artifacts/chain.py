"""The chain of artifacts from a partition to a datastore, and what is missing for a method in it."""

from __future__ import annotations

from pflcli.artifacts.reader import Artifact
from pflcli.errors import InputError

KINDS = {
    "partition": "",
    "backbone": "pfl train-global {} -o {}",
    "embeddings": "pfl extract {} -o {}",
    "datastore": "pfl build-datastore {} -o {}",
}
"""Kinds in order: each is made from the one before it, by this command."""


def closure(needs: tuple[str, ...]) -> set[str]:
    """Return the kinds in ``needs`` and all that they depend on: a datastore on embeddings, these on a backbone."""
    order = list(KINDS)
    deepest = max((order.index(need) for need in needs), default=0)
    return set(order[1 : deepest + 1])


def missing(method: str, need: str, source: Artifact) -> InputError:
    """Return the error for a ``source`` that lacks what the method needs, with the commands that make it."""
    order = list(KINDS)
    path, commands = source.path, []
    for kind in order[order.index(source.kind) + 1 : order.index(need) + 1]:
        target = source.path.parent / kind
        commands.append(KINDS[kind].format(path, target))
        path = target
    needed, actual = ("embeddings" if kind == "embeddings" else f"a {kind}" for kind in (need, source.kind))
    return InputError(f"{method} needs {needed}; {source.path} is {actual}", " && ".join(commands))
