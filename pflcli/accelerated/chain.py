"""What compiled steps of chains of linear layers take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pflcli.parameters import Stacked


@dataclass(frozen=True)
class Chain:
    """Models of clients whose network is a chain of linear layers, all of whose steps are taken in their place.

    For ``layers``, ``parameters`` and ``trained`` see ``chain_loops.steps``. ``models`` (m, ...) are all tensors of the
    clients; ``own`` (m, ...) and ``shared`` are constants.
    """

    layers: NDArray[np.int64]
    parameters: tuple[NDArray[np.float32], ...]
    trained: NDArray[np.bool_]
    models: Stacked
    own: Stacked
    shared: Mapping[str, Tensor]


@dataclass(frozen=True)
class Minibatches:
    """Samples ``x`` (t, n, d), ``y`` (t, n) of t steps, each of the client at ``place`` (t,) with a ``rate`` (t,).

    The ``weight`` (t, n) of samples is zero for padding, at the end.
    """

    place: NDArray[np.int64]
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    weight: NDArray[np.float32]
    rate: NDArray[np.float32]
