"""The layers of the body have normalized weights."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.parametrizations import weight_norm

TAKES = ("features",)


class Net(nn.Module):
    def __init__(self, classes, in_features):
        super().__init__()
        self.a, self.b = weight_norm(nn.Linear(in_features, 16)), nn.Linear(16, classes)

    def forward(self, x):
        return self.b(self.a(x.flatten(1)).relu())
