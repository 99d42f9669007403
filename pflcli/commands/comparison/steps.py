"""Variants and steps: what is compared, and what makes each artifact of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pflcli.artifacts import chain
from pflcli.artifacts.decision import Decision
from pflcli.artifacts.reader import Artifact
from pflcli.commands.comparison.chain_steps import Act
from pflcli.errors import ConflictError
from pflcli.evaluation.learners import STACK

NOT_NEEDED = "not needed"
"""The decision for a step that no unfinished step depends on."""


@dataclass(frozen=True)
class Variant:
    """A method of a comparison: its options, its own training settings, and the kind of artifact that it takes.

    ``name`` is the method's name, followed by ``@`` and a word if the method is compared in several variants. The
    ``source`` of a stack is empty: it takes the predictions of the variants in its option ``pool``.
    """

    name: str
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    source: str
    epochs: float
    """estimated work: epochs over all clients' samples, or local steps if the settings count steps"""
    chooses: bool = False
    """whether its clients choose by validation samples: with ``refit``, an earlier run without it must choose"""

    @property
    def method(self) -> str:
        """The method's name, without the variant's."""
        return method_name(self.name)

    @property
    def is_stack(self) -> bool:
        """Whether it pools the predictions of other variants."""
        return is_stack(self.name)


def is_stack(name: str) -> bool:
    """Return whether a variant of this name, such as ``stack@own``, is a stack."""
    return method_name(name) == STACK


def method_name(name: str) -> str:
    """Return the method of a name such as ``panm@grad``."""
    return name.split("@", maxsplit=1)[0]


CHOOSING = "choosing"
"""Subfolder of a seed for the runs without ``refit`` that choose; also the prefix of the names of their steps."""


@dataclass(frozen=True, eq=False)
class Step:
    """A step makes one artifact of a comparison; ``decision`` and ``conflict`` are the results of a dry run.

    ``name`` is the artifact's kind, or the variant's name for predictions. ``sources`` are the names of the steps that
    it needs; the artifact of the first is its main input.
    """

    seed: int
    name: str
    sources: tuple[str, ...]
    act: Act
    epochs: float
    rounds: bool = False
    """whether it has rounds before its clients predict"""
    inputs: tuple[Artifact, ...] = ()
    """the artifacts of ``sources``, existing or expected"""
    expected: Artifact | None = None
    decision: str = ""
    conflict: ConflictError | None = None

    @property
    def label(self) -> str:
        """The step's name in messages and progress."""
        return f"seed {self.seed}, {self.name}"

    @property
    def is_method(self) -> bool:
        """Whether the step makes predictions that are compared."""
        return self.name not in chain.KINDS and not self.name.startswith(f"{CHOOSING} ")

    @property
    def is_done(self) -> bool:
        """Whether the artifact exists and is up to date."""
        return self.decision == Decision.UP_TO_DATE

    @property
    def is_ahead(self) -> bool:
        """Whether the artifact is still to be made."""
        return self.decision not in (Decision.UP_TO_DATE, NOT_NEEDED)

    @property
    def artifact(self) -> Artifact:
        """The artifact, existing or expected."""
        assert self.expected is not None
        return self.expected
