"""Random features are parameters without a gradient, which are sent in every round.

Breaks: every-parameter-is-trained
"""

from __future__ import annotations

from torch import nn

TAKES = ("features",)


class Net(nn.Module):
    def __init__(self, classes, in_features):
        super().__init__()
        self.a, self.b = nn.Linear(in_features, 16).requires_grad_(False), nn.Linear(16, classes)

    def forward(self, x):
        return self.b(self.a(x.flatten(1)).relu())
