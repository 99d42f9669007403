"""Layers are made in the order of a set of words, so that they draw each other's weights.

Breaks: another-process-builds-the-same-network
"""

from __future__ import annotations

import torch
from torch import nn

TAKES = ("features",)
NAMES = ("query", "key", "value", "gate", "left", "right", "up", "down", "near", "far")


class Net(nn.Module):
    def __init__(self, classes, in_features):
        super().__init__()
        for name in set(NAMES):
            setattr(self, name, nn.Linear(in_features, 16))
        self.out = nn.Linear(16 * len(NAMES), classes)

    def forward(self, x):
        return self.out(torch.cat([getattr(self, name)(x).relu() for name in NAMES], dim=1))
