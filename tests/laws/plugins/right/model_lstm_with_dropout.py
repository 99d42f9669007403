"""Two layers of an LSTM with dropout between them."""

from __future__ import annotations

from torch import nn

TAKES = ("tokens",)


class Net(nn.Module):
    def __init__(self, classes, vocab_size):
        super().__init__()
        self.e = nn.Embedding(vocab_size, 8)
        self.l = nn.LSTM(8, 8, 2, batch_first=True, dropout=0.2)
        self.fc = nn.Linear(8, classes)

    def forward(self, x):
        return self.fc(self.l(self.e(x))[0].mean(1))
