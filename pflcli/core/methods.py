"""Personalization methods, one file each, and what such a file must have: ``Method``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pflcli.core import registry
from pflcli.core.federation.run import Predictor, Run

State = dict[str, Any]
"""What a method remembers from round to round: tensors, tables of models, and dicts of these, by name."""

LEARNING_RATES = (0.01, 0.03, 0.1, 0.3)
"""Learning rates that ``pfl tune`` tries for every method that trains: about half powers of ten, as in kNN-Per."""


class Method(Protocol):
    """A file of this folder: state in, state out. It opens no file, prints nothing and seeds nothing.

    ``Config``, ``KIND``, ``NEEDS``, ``PAPER``, ``YEAR`` and ``personalize`` are required. The rest has the defaults
    below.
    """

    KIND: Literal["local", "posthoc", "server", "peer"]
    """which links may carry bytes: none for local and posthoc, up and down for server, peer for peer"""
    NEEDS: tuple[str, ...]
    """kinds of artifacts that it needs: backbone, embeddings, datastore; empty if it only needs a partition"""
    PAPER: str
    """its name in the paper's own spelling"""
    YEAR: int
    """the paper's year"""
    Config: type[Any]
    """its options: a frozen dataclass with a default for each, and a line of explanation under each"""

    TASKS: tuple[str, ...] = ("classes",)
    """the kinds of tasks that it learns: ``classes``, ``any`` if of a task it uses only the loss, the predictions and
    their scores, or ``series`` if a sample must have the past of its label, ``Task.past``"""

    PERSONAL_MODELS: str = ""
    """the key of the clients' own models in the state after each round; empty if clients have none"""
    ADAPTS: bool = False
    """whether clients adapt after the rounds, so that predictions after any round need all of ``personalize``"""

    IGNORES: tuple[str, ...] = ()
    """training settings without effect on the method; a run in which they differ from their defaults says so"""

    DIVIDES: bool = False
    """whether it treats a model's body apart from its head, so that it needs a model with both"""

    TRANSDUCTIVE: bool = False
    """whether a prediction depends on other samples, without their labels, that the client predicts"""

    DETERMINISTIC: bool = False
    """whether it draws no random numbers, so that every seed gives the same predictions on a partition"""

    EXTENDS: str = ""
    """the method that it is without options of its own; `all` methods are those that extend none"""

    REFERENCE: bool = False
    """whether it is no method to use, but what methods are judged by; tables mark its row and do not rank it"""

    RECORDS: tuple[Literal["graph", "attention", "history", "cluster"], ...] = ()
    """what the state records under these keys, for charts and tables: ``graph`` the packed neighbours of each round,
    ``attention`` the weights ``first`` (r, m, m) and ``second`` (r, m, layers), ``history`` numbers (r,) by name,
    ``cluster`` the cluster of each client (m,), -1 for none"""

    KEEPS: tuple[str, ...] = ()
    """keys of the state whose values clients keep, such as a row each (m, ...); so they do with their tables.
    Everything else is the server's, and clients read of it only what ``run.deliver`` or ``run.download`` yields"""

    SERVES: tuple[str, ...] = ()
    """keys of the state that clients do not read: tables with a row for each client, and what grows in the rounds"""

    PAIRS_KEPT: float = 0
    """bytes of the state per pair of clients, if memory grows with the square of the number of clients"""
    PAIRS_SENT: str = ""
    """what is sent for each pair of clients; empty if traffic only grows with the number of clients"""

    SENDS_MORE: str = ""
    """what clients send besides updates of which the server takes one mean per round, for ``--dp-epsilon`` to refuse"""

    NO_EFFECT: str = ""
    """the condition under which it is FedAvg, which a table gives as the reason for equal predictions"""

    CHOOSES_IN_ROUNDS: str = ""
    """what clients choose by validation samples while they train; for later choices, see ``methods/parts/folds.py``"""

    GRID: Mapping[str, tuple[Any, ...]] = MappingProxyType({})
    """values that ``pfl tune`` tries beside learning rates, by option; those of its paper where it names some"""

    def setup(self, run: Run) -> State:
        """Return the state before the first round; by default it is empty."""
        return {}

    def train_round(self, run: Run, state: State, t: int) -> State:
        """Return the state after round ``t``, from 0. A method without this function has no rounds."""
        return state

    @abstractmethod
    def personalize(self, run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
        """Return the predictor of the clients (n,). Communication is no longer allowed."""

    def choices(self, cfg: Any) -> tuple[str, ...]:
        """Return the names of the values that each client chooses by validation samples under these options."""
        return ()

    @property
    def has_rounds(self) -> bool:
        """Whether the file has ``train_round``."""
        return type(self).train_round is not Method.train_round


def load(name: str) -> Method:
    """Return the method of this name; raises UsageError with the nearest name, InputError for an invalid file."""
    method: Method = registry.load("methods", name, Method)
    return method
