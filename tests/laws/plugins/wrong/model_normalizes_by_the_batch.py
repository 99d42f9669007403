"""Samples are standardized by their batch, also in evaluation.

Breaks: samples-are-predicted-one-by-one
"""

from __future__ import annotations

from torch import nn

TAKES = ("features",)


class Net(nn.Module):
    def __init__(self, classes, in_features):
        super().__init__()
        self.a, self.b = nn.Linear(in_features, 16), nn.Linear(16, classes)

    def forward(self, x):
        x = (x - x.mean(dim=0)) / (x.std(dim=0, correction=0) + 1e-5)
        return self.b(self.a(x.flatten(1)).relu())
