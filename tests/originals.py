"""Where the real data is, and tiny files in the formats that datasets are given out in."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest

SHARED = Path(__file__).parents[2] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of real data is not beside the project")

X = np.random.default_rng(0).integers(0, 256, (9, 28, 28), dtype=np.uint8)
Y = np.asarray([3, 1, 4, 1, 5, 9, 2, 6, 5], dtype=np.uint8)


def idx(path, array):
    """Write the IDX format: magic with type and rank, sizes, bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())


def write_images(root):
    """Write weights of a small network of torchvision, and images of three clients; return the network, x and y."""
    import torch

    from pflcli.core.vision import torchvision

    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(0)
        net = torchvision().models.shufflenet_v2_x0_5()
        net.train()(torch.randn(8, 3, 32, 32))  # statistics of batch normalization that are not 0 and 1
    torch.save(net.state_dict(), root / "weights.pt")
    rng = np.random.default_rng(0)
    y = np.arange(150) % 3
    x = (rng.integers(0, 80, (150, 12, 12, 3)) + 60 * y[:, None, None, None]).astype(np.uint8)
    np.savez(root / "images.npz", x=x, y=y, owner=np.repeat(["ann", "bob", "eve"], 50))
    return net.eval(), x, y


def write_network_with_external_data(path):
    """Write the encoder of ``write_network`` with its tensors in other files of the folder; return their paths.

    They are a weight, a bias that starts at byte 8 of a file in a folder inside, and a constant in both branches of an
    inner graph.
    """
    import onnx
    from onnx import helper, numpy_helper

    write_network(path)
    model = onnx.load(path)

    def branch(name):
        constant = numpy_helper.from_array(np.full(4, 0.5, np.float32), name)
        node = helper.make_node("Constant", [], [f"{name}.out"], value=constant)
        out = helper.make_tensor_value_info(f"{name}.out", onnx.TensorProto.FLOAT, [4])
        return helper.make_graph([node], name, [], [out])

    last = model.graph.node[-1]
    last.output[0] = "flat"
    is_true = numpy_helper.from_array(np.asarray(True), "is_true")
    model.graph.node.extend(
        [
            helper.make_node("Constant", [], ["is_true"], value=is_true),
            helper.make_node("If", ["is_true"], ["added"], then_branch=branch("then"), else_branch=branch("else")),
            helper.make_node("Add", ["flat", "added"], ["features"]),
        ]
    )
    weight, bias = sorted(model.graph.initializer, key=lambda tensor: -len(tensor.raw_data))
    branches = [attribute.g.node[0].attribute[0].t for attribute in model.graph.node[-2].attribute]
    files = [path.parent / "weight.data", path.parent / "inside" / "bias.data", path.parent / "constant.data"]
    files[1].parent.mkdir()
    contents = [weight.raw_data, bytes(8) + bias.raw_data, branches[0].raw_data]
    for file, content, tensors in zip(files, contents, ([weight], [bias], branches), strict=True):
        file.write_bytes(content)
        for tensor in tensors:
            first = 8 if tensor is bias else None
            onnx.external_data_helper.set_external_data(tensor, str(file.relative_to(path.parent)), offset=first)
            tensor.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    return files


def write_idx(folder, train, test, x=X, y=Y, *, zipped=False):
    """Write the four files of nine images, six for training, with the stems ``train`` and ``test``."""
    for stem, rows in ((train, slice(0, 6)), (test, slice(6, 9))):
        for kind, array in (("images-idx3-ubyte", x[rows]), ("labels-idx1-ubyte", y[rows])):
            path = folder / f"{stem}-{kind}"
            idx(path, array)
            if zipped:
                path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
                path.unlink()


def leaf(path, data, **changes):
    """Write LEAF's layout for {user: (x, y)}."""
    content = {
        "users": list(data),
        "num_samples": [len(y) for _, y in data.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in data.items()},
        **changes,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def write_weights(path):
    """Write the weights of torchvision's MobileNet-v2, at random."""
    import torch
    from safetensors.torch import save_file

    from pflcli.core.vision import torchvision

    state = torchvision().models.mobilenet_v2().state_dict()
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)


def write_network(path):
    """Write a small encoder of images of any size as an ONNX file."""
    import torch
    from torch import nn

    from pflcli.plugins.export.onnx_network import trace

    net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    path.write_bytes(trace(net.eval(), torch.rand(2, 3, 32, 32), ["features"]))
