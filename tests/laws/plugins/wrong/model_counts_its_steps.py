"""An attribute counts the passes, and dropout begins after some.

Breaks: random-numbers-are-seeded
"""

from __future__ import annotations

from torch import nn

TAKES = ("features",)


class Net(nn.Module):
    def __init__(self, classes, in_features):
        super().__init__()
        self.a, self.b = nn.Linear(in_features, 16), nn.Linear(16, classes)
        self.passes = 0

    def forward(self, x):
        if self.training:
            self.passes += 1
            x = x * min(1.0, self.passes / 10)
        return self.b(self.a(x.flatten(1)).relu())
