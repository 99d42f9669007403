"""Logits are cosines times a scale that is learned."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

TAKES = ("features",)


class Net(nn.Module):
    def __init__(self, classes, in_features):
        super().__init__()
        self.a = nn.Linear(in_features, 16)
        self.prototypes = nn.Parameter(torch.randn(classes, 16))
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, x):
        z = functional.normalize(self.a(x.flatten(1)), dim=1)
        return self.scale * z @ functional.normalize(self.prototypes, dim=1).T
