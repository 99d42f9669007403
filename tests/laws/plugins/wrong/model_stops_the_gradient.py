"""The gradient of the body is always zero.

Breaks: every-parameter-is-trained
"""

from __future__ import annotations

from torch import nn

TAKES = ("features",)


class Net(nn.Module):
    def __init__(self, classes, in_features):
        super().__init__()
        self.a, self.b = nn.Linear(in_features, 16), nn.Linear(16, classes)

    def forward(self, x):
        z = self.a(x.flatten(1)).relu()
        return self.b(z.detach() + 0 * z)
