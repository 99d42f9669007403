"""The spaces in which neighbours are searched: a network's representations or its logits, by distance or by angle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pflcli.core.knn.embedded import Embedded

REPRESENTATIONS, DISTANCES = ("features", "logits"), ("euclidean", "cosine")
AUTO = "auto"

Samples = TypeVar("Samples", bound=Embedded)


@dataclass(frozen=True)
class Space:
    """What represents a sample, ``features`` or ``logits``, and how it is compared, ``euclidean`` or ``cosine``."""

    representation: str = REPRESENTATIONS[0]
    distance: str = DISTANCES[0]

    def embed(self, part: Samples) -> Samples:
        """Return the samples with their vectors in this space as ``z``, whose L2 distances are those of the space.

        For ``cosine`` these are unit vectors, at the distance sqrt(2 - 2 cos); a vector of zeros stays as it is.
        """
        vectors = part.z if self.representation == "features" else part.logits
        if self.distance == "cosine":
            norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
            vectors = np.divide(vectors, norms, out=np.zeros(vectors.shape), where=norms > 0).astype(np.float32)
        return replace(part, z=vectors)


def list_spaces(representation: str, distance: str) -> Sequence[Space]:
    """Return the spaces to choose from, the paper's first; one unless an option is ``auto``.

    >>> from pflcli.method import AUTO, list_spaces
    >>> list_spaces("features", "cosine")
    [Space(representation='features', distance='cosine')]
    >>> len(list_spaces(AUTO, AUTO))
    4
    """
    return [
        Space(*pair)
        for pair in product(
            REPRESENTATIONS if representation == AUTO else [representation],
            DISTANCES if distance == AUTO else [distance],
        )
    ]


def apply_head(
    z: NDArray[np.float32], weight: NDArray[np.float32], bias: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """Return the logits (n, C) of representations (n, d) by a linear head, ``weight`` (C, d) and ``bias`` (C,).

    >>> import numpy as np
    >>> from pflcli.method import apply_head
    >>> apply_head(np.ones((1, 2), "float32"), np.eye(2, dtype="float32"), np.float32([0, 1])).tolist()
    [[1.0, 2.0]]
    """
    logits = z @ weight.T
    return np.asarray(logits if bias is None else logits + bias, np.float32)
