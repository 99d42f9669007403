"""Laws: properties of every method, model, scheme, upload step, aggregator and dataset, each tested by a function.

``pfl check`` tests a file by the laws of its group, and the tests of the package do so for the built-in files. Each
group has a module here. Its laws run on a small federation in memory and need no artifact. Those that also decide
whether a run may begin call ``workflow.admission``.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pflcli.workflow.admission import BrokenLawError, NotApplicable, Shape, describe_error


@dataclass(frozen=True)
class Subject:
    """What is judged: a file of the registry with its options.

    ``root`` is the folder of a dataset's files, and ``like`` the only shape of samples for which a model is judged.
    """

    group: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    root: Path | None = None
    like: Shape | None = None


class DoubtfulError(Exception):
    """Raised if a subject deviates from what is usual without being wrong; the message says what was observed."""


@dataclass(frozen=True)
class Law:
    """A property of every file of a group.

    ``test(subject)`` raises BrokenLawError if it does not hold, DoubtfulError for a warning. The docstring of ``test``
    begins with the property; its second paragraph says why it matters.
    """

    group: str
    test: Callable[[Subject], None]

    @property
    def name(self) -> str:
        """The name by which ``pfl check --only`` selects the law."""
        return self.test.__name__.replace("_", "-")

    @property
    def statement(self) -> str:
        """The property in one sentence."""
        return " ".join(self._paragraphs[0].split())

    @property
    def reason(self) -> str:
        """Why the property matters."""
        return " ".join(self._paragraphs[1].split())

    @property
    def _paragraphs(self) -> list[str]:
        return (self.test.__doc__ or "").strip().split("\n\n")


@dataclass(frozen=True)
class Verdict:
    """The result of judging a subject by a law, with the reason unless it passed."""

    law: Law
    result: Literal["passed", "warning", "failed", "not applicable"]
    reason: str
    seconds: float


_LAWS: dict[str, list[Law]] = {}


def law(group: str) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    """Return a decorator that makes a function a law of a group."""

    def declare(test: Callable[[Subject], None]) -> Callable[[Subject], None]:
        _LAWS.setdefault(group, []).append(Law(group, test))
        return test

    return declare


def list_laws(group: str) -> list[Law]:
    """Return the laws of a group, in the order of its module."""
    importlib.import_module(f"pflcli.plugins.checks.laws.{group}")
    return _LAWS[group]


@contextmanager
def needing(plug: str) -> Iterator[None]:
    """Import from another plug-in in the block; raises NotApplicable if it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith(f"pflcli.plugins.{plug}"):
            raise NotApplicable(f"it needs the plug-in {plug}, which is not installed") from None
        raise


def judge(law: Law, subject: Subject) -> Verdict:
    """Judge a subject by a law. Any error in the subject breaks the law; the reason then names its file and line."""
    began = time.monotonic()

    def verdict(result: Literal["passed", "warning", "failed", "not applicable"], reason: str = "") -> Verdict:
        return Verdict(law, result, " ".join(reason.split()), time.monotonic() - began)

    try:
        law.test(subject)
    except NotApplicable as reason:
        return verdict("not applicable", str(reason))
    except DoubtfulError as doubt:
        return verdict("warning", str(doubt))
    except BrokenLawError as broken:
        return verdict("failed", str(broken))
    except Exception as error:
        return verdict("failed", describe_error(error))
    return verdict("passed")
