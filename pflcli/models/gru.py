"""A stacked GRU of 2 x 128 for series, the base network of FedHAM on weather and air quality.

Gao et al. (2023), section 6: two layers of 128 units and a linear one. The GRU is that of Cho et al. (2014),
https://arxiv.org/abs/1406.1078. Representation: the upper hidden state after the last step, 128-d. Tokens are embedded
in 8 dimensions first.
"""

from __future__ import annotations

from torch import Tensor, nn

from pflcli.core.models import Net
from pflcli.models._series import create_first_layer

REPRESENTATION = "128"
TAKES = ("series", "tokens")

_UNITS = 128


def build(in_shape: tuple[int, ...], classes: int) -> Net:
    """Build for series (L, d), or for tokens (L,) out of ``classes`` symbols, of any length."""
    return Net(_Body(in_shape, classes), nn.Linear(_UNITS, classes))


class _Body(nn.Module):
    """Series (n, L, d) or tokens (n, L) to the last hidden state of the upper layer."""

    def __init__(self, in_shape: tuple[int, ...], vocabulary: int) -> None:
        super().__init__()
        self.embedding, width = create_first_layer(in_shape, vocabulary)
        self.gru = nn.GRU(width, _UNITS, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, 128)."""
        _, hidden = self.gru(self.embedding(x))
        upper: Tensor = hidden[1]
        return upper
