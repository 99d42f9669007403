"""An encoder of one layer for tokens, with dropout."""

from __future__ import annotations

from torch import nn

TAKES = ("tokens",)


class Net(nn.Module):
    def __init__(self, classes, vocab_size):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.out = nn.Linear(16, classes)

    def forward(self, x):
        return self.out(self.layer(self.embed(x)).mean(dim=1))
