"""A network that predicts the next character from the last eight, after Bengio et al. (2003), section 2.

https://www.jmlr.org/papers/v3/bengio03a.html: embeddings of eight numbers, side by side, then two hidden layers of 200
units like those of ``mlp``. It takes a thousandth of the time of ``lstm``: ``pfl compare ... --model
examples/characters.py``.
"""

from __future__ import annotations

from torch import Tensor, nn

TAKES = ("tokens",)


class Characters(nn.Module):
    """Tokens (n, L), of which the last ``context`` are read, to logits (n, classes)."""

    def __init__(self, vocab_size: int, classes: int, context: int = 8, width: int = 200) -> None:
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(vocab_size, 8)
        self.first = nn.Linear(8 * context, width)
        self.second = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        z = self.embedding(x[:, -self.context :]).flatten(1)
        return self.head(self.second(self.first(z).relu()).relu())
