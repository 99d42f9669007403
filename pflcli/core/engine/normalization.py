"""Normalizes images channel by channel, by ImageNet's or the training samples' mean and standard deviation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from pflcli.core.engine.federation import Federation
from pflcli.core.errors import UsageError

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Means and standard deviations of red, green and blue that torchvision's weights expect: https://docs.pytorch.org/vision/stable/models.html"""


def check(how: str, channels: int | None) -> None:
    """Raise UsageError unless samples with this number of channels can be normalized; None says they are not images."""
    if how != "none" and channels is None:
        raise UsageError(f"--normalize {how} is for images, which these samples are not", "--normalize none")
    if how == "imagenet" and channels not in (1, 3):
        raise UsageError(
            f"--normalize imagenet is for images of three channels, or of one, not of {channels}", "--normalize dataset"
        )


def normalized(data: Federation, how: str, measured_on: Federation | None = None) -> Federation:
    """Return the federation with its images normalized ``how``: ``none``, ``imagenet`` or ``dataset``.

    ``dataset`` measures the training samples of the seen clients of ``measured_on``, such as the federation on which a
    network was trained; by default of ``data``. Raises UsageError for samples that are not images, and for
    ``imagenet`` if images have neither one nor three channels.
    """
    if how == "none":
        return data
    check(how, data.in_shape[0] if data.x.dtype == torch.uint8 else None)
    mean, deviation = _imagenet(data.in_shape[0]) if how == "imagenet" else _measure(measured_on or data)
    scale = [torch.tensor(values, dtype=torch.float32).view(-1, 1, 1).to(data.x.device) for values in (mean, deviation)]
    return replace(data, scale=(scale[0], scale[1]))


def _imagenet(channels: int) -> tuple[list[float], list[float]]:
    if channels == 3:
        return list(_IMAGENET[0]), list(_IMAGENET[1])
    return [float(np.mean(_IMAGENET[0]))], [float(np.mean(_IMAGENET[1]))]


def _measure(data: Federation) -> tuple[list[float], list[float]]:
    """Return the mean and standard deviation of each channel, in [0, 1]; the deviation of a constant channel is 1."""
    counts = np.zeros((data.in_shape[0], 256))
    for client in data.seen_clients:
        pixels = data.samples(data.block(int(client), "train")).cpu().numpy()
        for channel in range(len(counts)):
            counts[channel] += np.bincount(pixels[:, channel].ravel(), minlength=256)
    shares, values = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1), np.arange(256) / 255
    mean = shares @ values
    variance = (shares * (values - mean[:, None]) ** 2).sum(axis=1)
    return mean.tolist(), np.where(variance > 0, np.sqrt(variance), 1.0).tolist()
