"""``pfl embed``: features of images by a frozen network, with the encoder on record."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch

from helpers import error_text, listing
from originals import write_images, write_network
from pflcli import embed, import_data, partition, train_global
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.reader import open_artifact
from pflcli.commands import embed as command
from pflcli.data.datasets import cifar100
from pflcli.encoders import FrozenEncoder
from pflcli.errors import ConflictError, InputError, UsageError
from pflcli.execution import Execution
from pflcli.vision import torchvision

NAME = "torchvision:shufflenet_v2_x0_5"
SIZE = 32


@pytest.fixture(scope="module")
def at(tmp_path_factory):
    """Weights of a small network in two formats, and imported images of three clients."""
    root = tmp_path_factory.mktemp("images")
    net, x, y = write_images(root)
    import_data(root / "images.npz", root / "images")
    return SimpleNamespace(root=root, images=root / "images", weights=root / "weights.pt", net=net, x=x, y=y)


def run(at, out, **options):
    return embed(at.images, out, **{"encoder": NAME, "weights": at.weights, "size": SIZE, **options})


def read(path):
    return datasets.read(open_artifact(path))


def test_features_are_the_input_of_the_last_layer(at, tmp_path):
    run(at, tmp_path / "data")
    stored = read(tmp_path / "data")
    x = torch.from_numpy(at.x).permute(0, 3, 1, 2).float() / 255
    x = torch.nn.functional.interpolate(x, size=(SIZE, SIZE), mode="bilinear")
    x = (x - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    with torch.no_grad():
        logits = at.net(x).numpy()
    weight, bias = (value.detach().numpy() for value in (at.net.fc.weight, at.net.fc.bias))
    np.testing.assert_allclose(stored.x @ weight.T + bias, logits, atol=1e-4 * np.abs(logits).max())
    np.testing.assert_array_equal(stored.y, at.y)
    assert stored.owner.tolist() == ["ann"] * 50 + ["bob"] * 50 + ["eve"] * 50


def test_images_are_reduced_with_antialiasing(at, tmp_path):
    run(at, tmp_path / "data", size=8, encoder="torchvision:mobilenet_v2", weights=mobilenet(tmp_path))
    encoder = FrozenEncoder(torch.nn.Identity(), codebook.read(open_artifact(tmp_path / "data")).encoder)
    x = torch.from_numpy(at.x[:5]).permute(0, 3, 1, 2).float() / 255
    x = torch.nn.functional.interpolate(x, size=(8, 8), mode="bilinear", antialias=True)
    x = (x - encoder.mean) / encoder.deviation
    np.testing.assert_allclose(encoder.embed(at.x[:5]), x.flatten(1), atol=1e-5)


def mobilenet(folder):
    torch.save(torchvision().models.mobilenet_v2().state_dict(), folder / "mobilenet.pth")
    return folder / "mobilenet.pth"


def test_the_manifest_and_the_codebook_record_the_encoder(at, tmp_path):
    outcome = run(at, tmp_path / "data", normalize="none")
    manifest = open_artifact(tmp_path / "data").manifest
    encoder = manifest.request["encoder"]
    assert (encoder["name"], encoder["size"], encoder["shape"]) == (NAME, SIZE, [12, 12, 3])
    assert (encoder["mean"], encoder["deviation"]) == ([0.0] * 3, [1.0] * 3)
    assert len(encoder["weights"]) == 64
    assert (tmp_path / "data" / manifest.made["weights"]).resolve() == at.weights
    recorded = json.loads((tmp_path / "data" / "codebook.json").read_text())["encoder"]
    assert recorded == encoder
    assert outcome.summary["shape"] == [1024]
    partition(tmp_path / "data", tmp_path / "p")
    assert codebook.read(open_artifact(tmp_path / "p")).encoder.weights == encoder["weights"]


def test_the_format_of_the_weights_does_not_matter_and_their_values_do(at, tmp_path):
    from safetensors.torch import save_file

    save_file({name: value.contiguous() for name, value in at.net.state_dict().items()}, tmp_path / "w.safetensors")
    first = run(at, tmp_path / "one")
    assert run(at, tmp_path / "one", weights=tmp_path / "w.safetensors").decision == "up to date"
    changed = {name: value * 1.5 if name == "conv5.0.weight" else value for name, value in at.net.state_dict().items()}
    torch.save(changed, tmp_path / "w.pt")
    with pytest.raises(ConflictError) as error:
        run(at, tmp_path / "one", weights=tmp_path / "w.pt")
    assert "encoder.weights" in error_text(error)
    assert run(at, tmp_path / "two", weights=tmp_path / "w.pt").fingerprint != first.fingerprint


def test_a_head_in_the_file_is_not_needed(at, tmp_path):
    body = {name: value for name, value in at.net.state_dict().items() if not name.startswith("fc.")}
    torch.save(body, tmp_path / "body.pt")
    run(at, tmp_path / "one")
    run(at, tmp_path / "two", weights=tmp_path / "body.pt")
    np.testing.assert_array_equal(read(tmp_path / "one").x, read(tmp_path / "two").x)


def test_an_interrupted_run_continues_and_gives_the_same_bytes(at, tmp_path, monkeypatch):
    run(at, tmp_path / "whole")
    monkeypatch.setattr(command, "BATCH", 16)
    monkeypatch.setattr(command, "CHECKPOINT_SECONDS", 0)
    embedded, forward = [], FrozenEncoder.embed

    def counted(encoder, x, *threads):
        if len(x) > 1:  # one image is embedded to learn the number of features
            embedded.append(len(x))
            if len(embedded) == 5:
                raise KeyboardInterrupt
        return forward(encoder, x, *threads)

    monkeypatch.setattr(FrozenEncoder, "embed", counted)
    with pytest.raises(KeyboardInterrupt):
        run(at, tmp_path / "data")
    assert listing(tmp_path) == ["data.partial", "whole"]
    assert run(at, tmp_path / "data").decision == "resume"
    assert embedded == [16] * 5 + [16] * 5 + [6]  # the fifth batch twice: 150 images in ten batches
    assert listing(tmp_path / "data") == ["codebook.json", "manifest.json", "samples.h5"]
    np.testing.assert_allclose(read(tmp_path / "data").x, read(tmp_path / "whole").x, atol=1e-5)


def test_a_damaged_batch_of_an_interrupted_run_is_refused(at, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "BATCH", 16)
    monkeypatch.setattr(command, "CHECKPOINT_SECONDS", 0)
    forward = FrozenEncoder.embed

    def interrupted(encoder, x, *threads):
        if (tmp_path / "data.partial" / "checkpoint" / "state.safetensors").is_file():
            raise KeyboardInterrupt
        return forward(encoder, x, *threads)

    monkeypatch.setattr(FrozenEncoder, "embed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(at, tmp_path / "data")
    monkeypatch.setattr(FrozenEncoder, "embed", forward)
    rows = tmp_path / "data.partial" / "checkpoint" / "table-0.rows"
    rows.write_bytes(b"\1" + rows.read_bytes()[1:])
    with pytest.raises(InputError, match="is damaged: row 0"):
        run(at, tmp_path / "data")


def test_splits_and_clients_of_an_imported_dataset_are_kept(at, tmp_path):
    split = np.array(["train", "valid", "test"])[np.arange(150) % 3]
    np.savez(tmp_path / "images.npz", x=at.x, y=at.y, owner=["ann"] * 150, fold=split)
    import_data(tmp_path / "images.npz", tmp_path / "images", split_column="fold")
    embed(tmp_path / "images", tmp_path / "data", encoder=NAME, weights=at.weights, size=SIZE)
    np.testing.assert_array_equal(read(tmp_path / "data").split, np.arange(150) % 3)


def test_published_test_samples_of_a_builtin_dataset_are_kept_on_request(at, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"x_{part}": rng.integers(0, 256, (20, 32, 32, 3), np.uint8) for part in ("train", "test")}
    arrays |= {f"y_{part}": np.arange(20) * 5 for part in ("train", "test")}
    np.savez(tmp_path / "cifar100_12k.npz", **arrays, coarse_of_fine=cifar100.COARSE)
    options = {"encoder": NAME, "weights": at.weights, "size": SIZE, "root": tmp_path}
    embed("cifar100", tmp_path / "plain", **options)
    embed("cifar100", tmp_path / "kept", keep_test=True, **options)
    assert read(tmp_path / "plain").split is None
    assert read(tmp_path / "kept").split.tolist() == [0] * 20 + [2] * 20
    assert read(tmp_path / "plain").coarse.tolist() == [cifar100.COARSE[5 * number] for number in range(20)] * 2
    train = partition(tmp_path / "plain", tmp_path / "p", scheme="pachinko", clients=2)
    assert train.summary["samples"] == 40
    assert codebook.read(open_artifact(tmp_path / "p")).classes[0] == "apple"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": "resnet18"}, "--encoder resnet18 is not torchvision:NAME, timm:NAME or onnx:FILE"),
        ({"encoder": "torchvisoin:resnet18"}, "did you mean 'torchvision'?"),
        ({"encoder": "torchvision:shufflenet_v2_x0"}, "did you mean 'shufflenet_v2_x"),
        ({"weights": None}, "needs its weights"),
        ({"encoder": "onnx:net.onnx"}, "an ONNX file contains its weights"),
        ({"output": "z"}, "--output names a tensor of an ONNX file"),
        ({"size": 0}, "--size 0 is not between 1 and 4096"),
        ({"normalize": "imagnet"}, "did you mean 'imagenet'?"),
        ({"keep_test": True}, "--keep-test is for built-in datasets"),
        ({"options": {"alpha": "1"}}, "--set has no effect"),
    ],
)
def test_contradictory_options_are_refused(at, tmp_path, options, message):
    with pytest.raises(UsageError) as error:
        run(at, tmp_path / "data", **options)
    assert message in error_text(error)
    assert listing(tmp_path) == []


def test_weights_of_another_network_are_refused(at, tmp_path):
    with pytest.raises(InputError, match=r"contains .* names that torchvision:resnet18 lacks"):
        run(at, tmp_path / "data", encoder="torchvision:resnet18")
    with pytest.raises(InputError, match=r"gone\.pt does not exist"):
        run(at, tmp_path / "data", weights=tmp_path / "gone.pt")


def test_a_dataset_without_images_is_refused(at, tmp_path):
    np.savez(tmp_path / "features.npz", x=np.random.default_rng(0).normal(size=(30, 4)), y=np.arange(30) % 2)
    import_data(tmp_path / "features.npz", tmp_path / "features", client="none")
    with pytest.raises(InputError, match="contains features, and encoders take images"):
        embed(tmp_path / "features", tmp_path / "data", encoder=NAME, weights=at.weights)
    with pytest.raises(UsageError, match="dataset writers has no options"):
        embed("writers", tmp_path / "data", encoder=NAME, weights=at.weights, options={"a": "1"})


def test_grey_images_are_embedded_as_colour_images_of_three_equal_channels(at, tmp_path):
    for name, x in {"grey": at.x[..., 0], "colour": np.repeat(at.x[..., :1], 3, axis=3)}.items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=at.y)
        import_data(tmp_path / f"{name}.npz", tmp_path / name, client="none")
        embed(tmp_path / name, tmp_path / f"{name}-data", encoder=NAME, weights=at.weights, size=SIZE)
    grey, colour = (read(tmp_path / f"{name}-data").x for name in ("grey", "colour"))
    np.testing.assert_allclose(grey, colour, rtol=1e-3, atol=1e-5)


def test_a_dry_run_writes_nothing(at, tmp_path):
    assert run(at, tmp_path / "data", execution=Execution(dry_run=True)).decision == "dry run: new"
    assert listing(tmp_path) == []


def test_backbones_of_features_by_different_encoders_are_not_mixed(at, tmp_path):
    from pflcli import extract

    run(at, tmp_path / "one")
    run(at, tmp_path / "two", normalize="none")
    for name in ("one", "two"):
        partition(tmp_path / name, tmp_path / f"p-{name}")
    train_global(tmp_path / "p-one", tmp_path / "b", settings={"model": "logistic", "rounds": 1})
    with pytest.raises(InputError, match="differ in their encoder"):
        extract(tmp_path / "b", tmp_path / "e", partition=tmp_path / "p-two")


def test_an_onnx_file_computes_what_its_network_does(at, tmp_path):
    write_network(tmp_path / "net.onnx")
    embed(at.images, tmp_path / "data", encoder=f"onnx:{tmp_path / 'net.onnx'}", size=SIZE)
    session = onnxruntime.InferenceSession((tmp_path / "net.onnx").read_bytes(), providers=["CPUExecutionProvider"])
    x = torch.from_numpy(at.x).permute(0, 3, 1, 2).float() / 255
    x = torch.nn.functional.interpolate(x, size=(SIZE, SIZE), mode="bilinear")
    x = (x - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    (expected,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_allclose(read(tmp_path / "data").x, expected, atol=1e-5)
    assert open_artifact(tmp_path / "data").manifest.request["encoder"]["name"] == "onnx:net.onnx"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [(b"", {}, "net.onnx"), (None, {"output": "nothing"}, "has no tensor 'nothing'")],
)
def test_a_wrong_onnx_file_is_refused(at, tmp_path, content, options, message):
    write_network(tmp_path / "net.onnx")
    if content is not None:
        (tmp_path / "net.onnx").write_bytes(content)
    with pytest.raises((InputError, UsageError), match=message):
        embed(at.images, tmp_path / "data", encoder=f"onnx:{tmp_path / 'net.onnx'}", **options)
