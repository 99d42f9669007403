"""Noise is drawn from a generator that goes on from client to client.

Breaks: random-numbers-are-seeded
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

TAKES = ("features",)


class Net(nn.Module):
    def __init__(self, classes, in_features):
        super().__init__()
        self.a, self.b = nn.Linear(in_features, 16), nn.Linear(16, classes)
        self.draw = np.random.default_rng(0)

    def forward(self, x):
        if self.training:
            x = x + 0.1 * torch.from_numpy(self.draw.normal(size=tuple(x.shape)).astype(np.float32))
        return self.b(self.a(x.flatten(1)).relu())
