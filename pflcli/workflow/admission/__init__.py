"""Whether code that nobody has checked may run as asked, found out by running it on a small federation in memory.

An epsilon is stated for a user's method and network only if rounds reveal a client by its noisy mean alone. Laws
rest on the same checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pflcli.core import registry
from pflcli.core.errors import PflError

if TYPE_CHECKING:
    from pflcli.artifacts.kinds.partition import Form


@dataclass(frozen=True)
class Shape:
    """The shape of a sample as a network takes it, whether samples are ``tokens``, and the number of ``classes``."""

    sizes: tuple[int, ...]
    tokens: bool
    classes: int

    @classmethod
    def of_form(cls, form: Form) -> Shape:
        """Return the shape of the samples of a partition."""
        return cls(form.input_shape, form.dtype == "int16", form.labels.outputs)


class BrokenLawError(Exception):
    """Raised if code does not have a property that was tested; the message says what was observed."""


class NotApplicable(Exception):
    """Raised if a property has no meaning for some code; the message says why."""


def require(holds: bool, otherwise: str) -> None:
    """Raise BrokenLawError with the message ``otherwise`` unless a property ``holds``."""
    if not holds:
        raise BrokenLawError(otherwise)


def find_obstacle(test: Callable[[], None]) -> str:
    """Return why a test of code fails, with the file and line of any error in the code; empty if it passes."""
    try:
        test()
    except (BrokenLawError, NotApplicable) as reason:
        return " ".join(str(reason).split())
    except (Exception, SystemExit) as error:
        return " ".join(describe_error(error).split())
    return ""


def describe_error(error: BaseException) -> str:
    """Return the reason for which code fails by an error, with the file and line where it was raised."""
    if isinstance(error, PflError):
        return error.message
    place = registry.place_of_failure(error)
    return f"{f'{place}: ' if place else ''}{type(error).__name__}: {error}"
