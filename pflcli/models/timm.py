"""Any classifier of timm (PyTorch Image Models) by its name there, from scratch: ``timm:vit_tiny_patch16_224``.

The names: https://huggingface.co/docs/timm, or ``timm.list_models()``. Needs the package ``timm``. The body is the
network without its last linear layer, which is the head. Networks with positions of patches are built for the size of
the images. No dropout and no stochastic depth. Weights are read from a file (``--weights``); nothing is downloaded.
"""

from __future__ import annotations

from torch import nn

from pflcli.core.models import Net
from pflcli.core.vision import timm
from pflcli.models import _classifiers

REPRESENTATION = "the last layer's input"
TAKES = ("images",)


def members() -> list[str]:
    """Return the names of timm's classifiers; raises UsageError if timm is not installed."""
    return list(timm().list_models())


def build(in_shape: tuple[int, ...], classes: int, member: str) -> Net:
    """Build for images (channels, height, width) of any size that the network can reduce."""
    library = timm()

    def construct(shape: tuple[int, ...], count: int) -> nn.Module:
        size = {"img_size": shape[1:]} if library.get_pretrained_cfg(member).fixed_input_size else {}
        options = {"in_chans": shape[0], "num_classes": count, **size}
        classifier: nn.Module = library.create_model(member, pretrained=False, **options)
        return classifier

    return _classifiers.build(f"timm:{member}", in_shape, classes, construct)
