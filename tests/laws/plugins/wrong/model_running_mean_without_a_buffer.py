"""A running mean is an attribute, not a buffer.

Breaks: random-numbers-are-seeded
"""

from __future__ import annotations

import torch
from torch import nn

TAKES = ("features",)


class Net(nn.Module):
    def __init__(self, classes, in_features):
        super().__init__()
        self.a, self.b = nn.Linear(in_features, 16), nn.Linear(16, classes)
        self.mean = torch.zeros(1)

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean().detach()
        return self.b(self.a((x - self.mean).flatten(1)).relu())
