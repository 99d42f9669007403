"""The body multiplies its input by zero, so that all samples have the same outputs.

Breaks: the-network-returns-logits
"""

from __future__ import annotations

from torch import nn

TAKES = ("features",)


class Net(nn.Module):
    def __init__(self, classes, in_features):
        super().__init__()
        self.a, self.b = nn.Linear(in_features, 16), nn.Linear(16, classes)

    def forward(self, x):
        return self.b(self.a(0 * x.flatten(1)).relu())
