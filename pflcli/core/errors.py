"""Errors, each with a message for people and an exit code for scripts.

The message is one sentence that says what is wrong; ``fix`` says what to type instead, if there is a remedy. A
traceback, and ``str``, show both.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PflError(Exception):
    """An error that a user can act on; ``fix`` contains the lines to show below the message."""

    exit_code = 1

    def __init__(self, message: str, *fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = tuple(line for line in fix if line)

    def __str__(self) -> str:
        """Return the message, and what to type on lines below it."""
        return "\n".join([self.message, *self.fix])

    def describe(self) -> str:
        """Return what is wrong and what to type in one line."""
        return "; ".join((self.message, *self.fix))


class UsageError(PflError):
    """An option or argument is invalid."""

    exit_code = 2


class InputError(PflError):
    """An input is missing, corrupt, or of the wrong kind."""

    exit_code = 3


class GoneError(InputError):
    """An input of an artifact no longer exists, or was replaced."""


class UnsuitedError(InputError):
    """A method cannot run on the data, because they lack information that it needs, such as true clusters."""


class ConflictError(PflError):
    """The output exists and was made by another request."""

    exit_code = 4


class OutgrownError(ConflictError):
    """The output was made by the same request for fewer rounds or from other inputs."""


class ComputationError(PflError):
    """The computation failed; the message names method, round and client."""

    exit_code = 5


class NotDrawnError(PflError):
    """The process that draws pictures has ended. Tables and pages are complete without them."""

    exit_code = 5


class LostWorkerError(PflError):
    """A worker process was killed. The progress so far is intact, and the same command resumes from it."""

    exit_code = 5


def closest(word: str, known: Iterable[str]) -> str:
    """Return a hint for a misspelt ``word``: the nearest known name, else all known names."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"choose from: {', '.join(names)}" if names else "there is none to choose from"


def out_of_memory(error: BaseException) -> ComputationError | None:
    """Return the error to show if ``error`` means that memory ran out, on any device; otherwise None."""
    # RuntimeErrors are PyTorch's of a CPU and of a GPU, and Python's for a thread whose stack does not fit.
    text, words = str(error), ("allocate memory", "out of memory", "can't start new thread")
    if isinstance(error, MemoryError) or any(each in text for each in words):
        return ComputationError("out of memory", "fewer --threads, a smaller --batch-size or a smaller --model")
    # Libraries that do not fit into the address space cannot be loaded.
    if isinstance(error, OSError | ImportError) and ("shared object" in text or "failed to map segment" in text):
        return ComputationError(f"cannot load a library: {text}", "allow more memory, such as by: ulimit -v unlimited")
    return None
