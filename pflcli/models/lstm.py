"""The character model of LEAF: embeddings of 8, then a stacked LSTM of 2 x 256.

Caldas et al. (2018), https://arxiv.org/abs/1812.01097. Representation as in kNN-Per (Marfoq et al., 2022, appendix B):
hidden and cell states of both layers after the last token, 1,024-d; the head reads only the upper hidden state. The
vocabulary is the classes: the next symbol is predicted. Series of numbers have no embedding.

On a CPU ``nn.LSTM`` uses oneDNN, which is twice as fast as its own loop; the order of the axes does not matter.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pflcli.core.models import Net
from pflcli.models._series import create_first_layer

REPRESENTATION = "1024"
TAKES = ("tokens", "series")

_UNITS = 256


def build(in_shape: tuple[int, ...], classes: int) -> Net:
    """Build for tokens (L,) out of ``classes`` symbols, or for series (L, d), of any length."""
    return Net(_Body(in_shape, classes), _UpperHidden(_UNITS, classes))


class _Body(nn.Module):
    """Tokens (n, L) or series (n, L, d) to the last states, those of the upper layer first."""

    def __init__(self, in_shape: tuple[int, ...], vocabulary: int) -> None:
        super().__init__()
        self.embedding, width = create_first_layer(in_shape, vocabulary)
        self.lstm = nn.LSTM(width, _UNITS, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, 1024): hidden and cell state of the upper layer, then those of the lower one."""
        _, (hidden, cell) = self.lstm(self.embedding(x))
        return torch.cat([hidden[1], cell[1], hidden[0], cell[0]], dim=1)


class _UpperHidden(nn.Linear):
    """A linear layer on the first 256 features, the hidden state of the upper layer."""

    def forward(self, z: Tensor) -> Tensor:
        """Return the logits (n, C)."""
        return super().forward(z[:, :_UNITS])
