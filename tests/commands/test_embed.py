"""``pfl embed``: features of images by a frozen network, with the encoder on record."""

from __future__ import annotations

import json
import os
import re
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers import error_text, listing
from originals import write_images, write_network, write_network_with_external_data
from pflcli import embed, import_data, partition, train_global
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.reader import open_artifact
from pflcli.commands import embed as command
from pflcli.core.errors import ConflictError, InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.vision import torchvision
from pflcli.data.datasets import cifar100
from pflcli.workflow.prediction import encoders
from pflcli.workflow.prediction.encoders import Choice, FrozenEncoder

NAME = "torchvision:shufflenet_v2_x0_5"
SIZE = 32


@pytest.fixture(scope="module")
def embed_inputs(tmp_path_factory):
    """Weights of a small network in two formats, and imported images of three clients."""
    root = tmp_path_factory.mktemp("images")
    net, x, y = write_images(root)
    import_data(root / "images.npz", root / "images")
    return SimpleNamespace(root=root, images=root / "images", weights=root / "weights.pt", net=net, x=x, y=y)


def run(at, out, **options):
    return embed(at.images, out, **{"encoder": NAME, "weights": at.weights, "size": SIZE, **options})


def read(path):
    return datasets.read(open_artifact(path))


def test_embed_features_are_the_input_of_the_last_layer(embed_inputs, tmp_path):
    run(embed_inputs, tmp_path / "data")
    stored = read(tmp_path / "data")
    x = torch.from_numpy(embed_inputs.x).permute(0, 3, 1, 2).float() / 255
    x = torch.nn.functional.interpolate(x, size=(SIZE, SIZE), mode="bilinear")
    x = (x - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    with torch.no_grad():
        logits = embed_inputs.net(x).numpy()
    weight, bias = (value.detach().numpy() for value in (embed_inputs.net.fc.weight, embed_inputs.net.fc.bias))
    np.testing.assert_allclose(stored.x @ weight.T + bias, logits, atol=1e-4 * np.abs(logits).max())
    np.testing.assert_array_equal(stored.y, embed_inputs.y)
    assert stored.owner.tolist() == ["ann"] * 50 + ["bob"] * 50 + ["eve"] * 50


def test_embed_downsizes_images_with_antialiasing(embed_inputs, tmp_path):
    run(
        embed_inputs,
        tmp_path / "data",
        size=8,
        encoder="torchvision:mobilenet_v2",
        weights=write_mobilenet_weights(tmp_path),
    )
    encoder = FrozenEncoder(torch.nn.Identity(), codebook.read(open_artifact(tmp_path / "data")).encoder)
    x = torch.from_numpy(embed_inputs.x[:5]).permute(0, 3, 1, 2).float() / 255
    x = torch.nn.functional.interpolate(x, size=(8, 8), mode="bilinear", antialias=True)
    x = (x - encoder.mean) / encoder.deviation
    np.testing.assert_allclose(encoder.embed(embed_inputs.x[:5]), x.flatten(1), atol=1e-5)


class Dropout(torch.nn.Module):
    """A network whose dropout was left on."""

    def forward(self, x):
        return torch.nn.functional.dropout(x, training=True)


def test_an_encoder_with_random_operators_is_refused(embed_inputs, tmp_path):
    weights = write_mobilenet_weights(tmp_path)
    run(embed_inputs, tmp_path / "data", size=8, encoder="torchvision:mobilenet_v2", weights=weights)
    facts = codebook.read(open_artifact(tmp_path / "data")).encoder
    with pytest.raises(InputError, match="random"):
        FrozenEncoder(Dropout(), facts).embed(embed_inputs.x[:5])


def write_mobilenet_weights(folder):
    torch.save(torchvision().models.mobilenet_v2().state_dict(), folder / "mobilenet.pth")
    return folder / "mobilenet.pth"


def test_embed_records_the_encoder_in_manifest_and_codebook(embed_inputs, tmp_path):
    outcome = run(embed_inputs, tmp_path / "data", normalize="none")
    manifest = open_artifact(tmp_path / "data").manifest
    encoder = manifest.request["encoder"]
    assert (encoder["name"], encoder["size"], encoder["shape"]) == (NAME, SIZE, [12, 12, 3])
    assert (encoder["mean"], encoder["deviation"]) == ([0.0] * 3, [1.0] * 3)
    assert len(encoder["weights"]) == 64
    assert (tmp_path / "data" / manifest.made["weights"]).resolve() == embed_inputs.weights
    recorded = json.loads((tmp_path / "data" / "codebook.json").read_text())["encoder"]
    assert recorded == encoder
    assert outcome.summary["shape"] == [1024]
    partition(tmp_path / "data", tmp_path / "p")
    assert codebook.read(open_artifact(tmp_path / "p")).encoder.weights == encoder["weights"]


def test_fingerprint_depends_on_encoder_weights_and_not_on_their_file_format(embed_inputs, tmp_path):
    from safetensors.torch import save_file

    save_file(
        {name: value.contiguous() for name, value in embed_inputs.net.state_dict().items()}, tmp_path / "w.safetensors"
    )
    first = run(embed_inputs, tmp_path / "one")
    assert run(embed_inputs, tmp_path / "one", weights=tmp_path / "w.safetensors").decision == "up to date"
    changed = {
        name: value * 1.5 if name == "conv5.0.weight" else value
        for name, value in embed_inputs.net.state_dict().items()
    }
    torch.save(changed, tmp_path / "w.pt")
    with pytest.raises(ConflictError) as error:
        run(embed_inputs, tmp_path / "one", weights=tmp_path / "w.pt")
    assert "encoder.weights" in error_text(error)
    assert run(embed_inputs, tmp_path / "two", weights=tmp_path / "w.pt").fingerprint != first.fingerprint


def test_embed_accepts_weights_without_a_head(embed_inputs, tmp_path):
    body = {name: value for name, value in embed_inputs.net.state_dict().items() if not name.startswith("fc.")}
    torch.save(body, tmp_path / "body.pt")
    run(embed_inputs, tmp_path / "one")
    run(embed_inputs, tmp_path / "two", weights=tmp_path / "body.pt")
    np.testing.assert_array_equal(read(tmp_path / "one").x, read(tmp_path / "two").x)


def test_interrupted_embed_resumes_with_the_same_bytes(embed_inputs, tmp_path, monkeypatch):
    run(embed_inputs, tmp_path / "whole")
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
        run(embed_inputs, tmp_path / "data")
    assert listing(tmp_path) == ["data.partial", "whole"]
    assert run(embed_inputs, tmp_path / "data").decision == "resume"
    assert embedded == [16] * 5 + [16] * 5 + [6]  # the fifth batch twice: 150 images in ten batches
    assert listing(tmp_path / "data") == ["codebook.json", "manifest.json", "samples.h5"]
    np.testing.assert_allclose(read(tmp_path / "data").x, read(tmp_path / "whole").x, atol=1e-5)


def test_embed_refuses_a_damaged_batch_of_an_interrupted_run(embed_inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "BATCH", 16)
    monkeypatch.setattr(command, "CHECKPOINT_SECONDS", 0)
    forward = FrozenEncoder.embed

    def interrupted(encoder, x, *threads):
        if (tmp_path / "data.partial" / "checkpoint" / "state.safetensors").is_file():
            raise KeyboardInterrupt
        return forward(encoder, x, *threads)

    monkeypatch.setattr(FrozenEncoder, "embed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(embed_inputs, tmp_path / "data")
    monkeypatch.setattr(FrozenEncoder, "embed", forward)
    rows = tmp_path / "data.partial" / "checkpoint" / "table-0.rows"
    rows.write_bytes(b"\1" + rows.read_bytes()[1:])
    with pytest.raises(InputError, match="is damaged: row 0"):
        run(embed_inputs, tmp_path / "data")


def test_embed_keeps_splits_and_clients_of_an_imported_dataset(embed_inputs, tmp_path):
    split = np.array(["train", "valid", "test"])[np.arange(150) % 3]
    np.savez(tmp_path / "images.npz", x=embed_inputs.x, y=embed_inputs.y, owner=["ann"] * 150, fold=split)
    import_data(tmp_path / "images.npz", tmp_path / "images", split_column="fold")
    embed(tmp_path / "images", tmp_path / "data", encoder=NAME, weights=embed_inputs.weights, size=SIZE)
    np.testing.assert_array_equal(read(tmp_path / "data").split, np.arange(150) % 3)


def test_embed_keep_test_keeps_the_published_test_split(embed_inputs, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"x_{part}": rng.integers(0, 256, (20, 32, 32, 3), np.uint8) for part in ("train", "test")}
    arrays |= {f"y_{part}": np.arange(20) * 5 for part in ("train", "test")}
    np.savez(tmp_path / "cifar100_12k.npz", **arrays, coarse_of_fine=cifar100.COARSE)
    options = {"encoder": NAME, "weights": embed_inputs.weights, "size": SIZE, "root": tmp_path}
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
        ({"size": 0}, "size=0 is not at least 1"),
        ({"normalize": "imagnet"}, "did you mean 'imagenet'?"),
        ({"keep_test": True}, "--keep-test is for built-in datasets"),
        ({"options": {"alpha": "1"}}, "--set has no effect"),
    ],
)
def test_embed_refuses_contradictory_options(embed_inputs, tmp_path, options, message):
    with pytest.raises(UsageError) as error:
        run(embed_inputs, tmp_path / "data", **options)
    assert message in error_text(error)
    assert listing(tmp_path) == []


def test_embed_refuses_weights_of_another_network(embed_inputs, tmp_path):
    with pytest.raises(InputError, match=r"contains .* names that torchvision:resnet18 lacks"):
        run(embed_inputs, tmp_path / "data", encoder="torchvision:resnet18")
    with pytest.raises(InputError, match=r"gone\.pt does not exist"):
        run(embed_inputs, tmp_path / "data", weights=tmp_path / "gone.pt")


def test_embed_refuses_a_dataset_without_images(embed_inputs, tmp_path):
    np.savez(tmp_path / "features.npz", x=np.random.default_rng(0).normal(size=(30, 4)), y=np.arange(30) % 2)
    import_data(tmp_path / "features.npz", tmp_path / "features", client="none")
    with pytest.raises(InputError, match="contains features, and encoders take images"):
        embed(tmp_path / "features", tmp_path / "data", encoder=NAME, weights=embed_inputs.weights)
    with pytest.raises(UsageError, match="dataset writers has no options"):
        embed("writers", tmp_path / "data", encoder=NAME, weights=embed_inputs.weights, options={"a": "1"})


def test_embed_repeats_the_channel_of_grey_images(embed_inputs, tmp_path):
    for name, x in {"grey": embed_inputs.x[..., 0], "colour": np.repeat(embed_inputs.x[..., :1], 3, axis=3)}.items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=embed_inputs.y)
        import_data(tmp_path / f"{name}.npz", tmp_path / name, client="none")
        embed(tmp_path / name, tmp_path / f"{name}-data", encoder=NAME, weights=embed_inputs.weights, size=SIZE)
    grey, colour = (read(tmp_path / f"{name}-data").x for name in ("grey", "colour"))
    np.testing.assert_allclose(grey, colour, rtol=1e-3, atol=1e-5)


def test_embed_dry_run_writes_nothing(embed_inputs, tmp_path):
    assert run(embed_inputs, tmp_path / "data", execution=Execution(dry_run=True)).decision == "dry run: new"
    assert listing(tmp_path) == []


def test_extract_refuses_features_of_another_encoder(embed_inputs, tmp_path):
    from pflcli import extract

    run(embed_inputs, tmp_path / "one")
    run(embed_inputs, tmp_path / "two", normalize="none")
    for name in ("one", "two"):
        partition(tmp_path / name, tmp_path / f"p-{name}")
    train_global(tmp_path / "p-one", tmp_path / "b", settings={"model": "logistic", "rounds": 1})
    with pytest.raises(InputError, match="differ in their encoder"):
        extract(tmp_path / "b", tmp_path / "e", partition=tmp_path / "p-two")


def test_embed_with_an_onnx_file_equals_onnxruntime(embed_inputs, tmp_path):
    write_network(tmp_path / "net.onnx")
    embed(embed_inputs.images, tmp_path / "data", encoder=f"onnx:{tmp_path / 'net.onnx'}", size=SIZE)
    session = onnxruntime.InferenceSession((tmp_path / "net.onnx").read_bytes(), providers=["CPUExecutionProvider"])
    x = torch.from_numpy(embed_inputs.x).permute(0, 3, 1, 2).float() / 255
    x = torch.nn.functional.interpolate(x, size=(SIZE, SIZE), mode="bilinear")
    x = (x - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    (expected,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_allclose(read(tmp_path / "data").x, expected, atol=1e-5)
    assert open_artifact(tmp_path / "data").manifest.request["encoder"]["name"] == "onnx:net.onnx"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [(b"", {}, "net.onnx"), (None, {"output": "nothing"}, "has no tensor 'nothing'")],
)
def test_embed_refuses_an_invalid_onnx_file_or_output(embed_inputs, tmp_path, content, options, message):
    write_network(tmp_path / "net.onnx")
    if content is not None:
        (tmp_path / "net.onnx").write_bytes(content)
    with pytest.raises((InputError, UsageError), match=message):
        embed(embed_inputs.images, tmp_path / "data", encoder=f"onnx:{tmp_path / 'net.onnx'}", **options)


def write_average(path, shape, function="Identity"):
    """Write an ONNX file that takes images of a shape and returns a function of the mean of each channel."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["mean"]), helper.make_node(function, ["mean"], ["z"])]
    values = helper.make_tensor_value_info("x", kind, shape), helper.make_tensor_value_info("z", kind, None)
    graph = helper.make_graph(nodes, "average", *([value] for value in values))
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]), path)


@pytest.mark.parametrize(
    ("shape", "size", "message"),
    [
        (("n", 3, 24, 24), None, ""),
        (("n", 3, 24, 24), 24, ""),
        (("n", 3, "h", "w"), 24, ""),
        (("n", 3, 24, 24), 32, "takes images of 24 pixels only\n--size 24"),
        (("n", 3, 24, 32), None, "takes images of 24x32, and pfl resizes to squares"),
        ((1, 3, 24, 24), None, "takes exactly 1 image at a time"),
        (("n", 1, 24, 24), None, "takes images with 1 channels, and encoders need 3"),
        (("n", 3, 24), None, "must have one input, float32 images"),
    ],
)
def test_onnx_encoder_is_accepted_only_when_its_image_size_fits(embed_inputs, tmp_path, shape, size, message):
    write_average(tmp_path / "net.onnx", shape)
    choice = Choice(f"onnx:{tmp_path / 'net.onnx'}", None, size)
    if message:
        with pytest.raises((InputError, UsageError)) as error:
            choice.open(embed_inputs.x.shape[1:])
        assert message in error_text(error)
    else:
        assert choice.open(embed_inputs.x.shape[1:]).embed(embed_inputs.x).shape == (150, 3)


@pytest.mark.parametrize("channels", [2, 4])
def test_embed_refuses_images_without_one_or_three_channels(embed_inputs, channels):
    with pytest.raises(InputError, match=f"1 or 3 channels; these have {channels}"):
        Choice(NAME, embed_inputs.weights, SIZE).open((12, 12, channels))


def test_embed_refuses_non_finite_features(embed_inputs, tmp_path, pfl):
    write_average(tmp_path / "net.onnx", ("n", 3, 24, 24), "Log")  # black images are negative when normalized
    ran = pfl("embed", embed_inputs.images, "--encoder", f"onnx:{tmp_path / 'net.onnx'}", "-o", tmp_path / "data")
    assert (ran.code, "that onnx:net.onnx computes are not finite" in ran.err) == (5, True), ran.err
    assert not (tmp_path / "data").exists()


def scale_floats(file):
    """Multiply the numbers in a file of an encoder by 3."""
    if file.suffix == ".pt":
        torch.save({name: 3 * value for name, value in torch.load(file).items()}, file)
    elif file.suffix == ".safetensors":
        save_file({name: 3 * value for name, value in load_file(file).items()}, file)
    elif file.suffix == ".onnx":
        model = onnx.load(file, load_external_data=False)
        for tensor in model.graph.initializer:
            if tensor.data_location != tensor.EXTERNAL:
                tensor.raw_data = (3 * onnx.numpy_helper.to_array(tensor)).tobytes()
        model.graph.node[0].name += "again"  # a model without weights of its own changes, too
        file.write_bytes(model.SerializeToString())
    else:
        file.write_bytes((3 * np.frombuffer(file.read_bytes(), np.float32)).tobytes())


@pytest.mark.parametrize("form", [".pt", ".safetensors", ".onnx", "external"])
def test_encoder_hash_changes_with_every_file_it_reads(embed_inputs, tmp_path, form, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (folder := tmp_path / "encoder").mkdir()
    file = folder / ("net.onnx" if form == "external" else f"net{form}")
    if form == "external":
        write_network_with_external_data(file)
    elif form == ".onnx":
        write_network(file)
    elif form == ".pt":
        torch.save(embed_inputs.net.state_dict(), file)
    else:
        save_file(embed_inputs.net.state_dict(), file)
    choice = Choice(f"onnx:{file}", None, SIZE) if file.suffix == ".onnx" else Choice(NAME, file, SIZE)
    first = choice.open(embed_inputs.x.shape[1:])
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert len(files) == (4 if form == "external" else 1)
    hashes = {first.facts.weights}
    for changed in files:
        content = changed.read_bytes()
        scale_floats(changed)
        other = choice.open(embed_inputs.x.shape[1:])
        hashes.add(other.facts.weights)
        if not (form == "external" and changed == file):
            assert not np.allclose(other.embed(embed_inputs.x[:4]), first.embed(embed_inputs.x[:4])), changed
        changed.write_bytes(content)
    assert len(hashes) == 1 + len(files)
    assert choice.open(embed_inputs.x.shape[1:]).facts.weights == first.facts.weights
    for missing in files:
        moved = missing.rename(tmp_path / "elsewhere")
        with pytest.raises(InputError, match=re.escape(str(missing))):
            choice.open(embed_inputs.x.shape[1:])
        moved.rename(missing)


def test_onnx_encoder_reads_external_data_from_its_own_folder(embed_inputs, tmp_path, monkeypatch):
    """A single file and one with external data compute the same, from any working directory."""
    (tmp_path / "two").mkdir()
    write_network_with_external_data(tmp_path / "two" / "net.onnx")
    whole = onnx.load(tmp_path / "two" / "net.onnx")
    constants = whole.graph.node[-2].attribute
    for attribute in constants:  # the helper of onnx does not look into inner graphs of old versions
        assert attribute.g.node[0].attribute[0].t.raw_data
    onnx.save(whole, tmp_path / "one.onnx")
    features = []
    for place, name in (("", "one.onnx"), ("", "two/net.onnx"), ("two", "net.onnx"), ("two/inside", "../net.onnx")):
        monkeypatch.chdir(tmp_path / place)
        features.append(Choice(f"onnx:{name}", None, SIZE).open(embed_inputs.x.shape[1:]).embed(embed_inputs.x[:4]))
    assert all(np.array_equal(value, features[0]) for value in features)


@pytest.mark.parametrize(
    ("location", "more", "message"),
    [
        ("../secret.bin", {}, "outside its folder"),
        ("inside/../../secret.bin", {}, "outside its folder"),
        ("{folder}/secret.bin", {}, "outside its folder"),
        ("link.bin", {}, "outside its folder"),
        ("inside", {}, "is a folder"),
        ("", {}, "is a folder"),
        ("pipe", {}, "is a pipe"),
        ("*/_ORT_MEM_ADDR_/*", {"offset": 4096}, "does not exist"),
        ("nothing.data", {}, "nothing.data does not exist"),
        ("a\0b", {}, "net.onnx"),
        ("short.data", {}, "net.onnx"),
        ("short.data", {"length": 432}, "short.data has 100 bytes"),
        ("short.data", {"offset": 101}, "short.data has 100 bytes"),
        ("weight.data", {"offset": -4}, "weight.data has 432 bytes"),
        ("weight.data", {"length": -4}, "weight.data has 432 bytes"),
        ("weight.data", {"offset": "x"}, "cannot be read as ONNX"),
        ("weight.data", {"length": 10**30}, "weight.data has 432 bytes"),
    ],
)
def test_unreadable_external_data_of_an_encoder_end_in_one_error(embed_inputs, tmp_path, location, more, message, pfl):
    (folder := tmp_path / "encoder").mkdir()
    write_network_with_external_data(folder / "net.onnx")
    (tmp_path / "secret.bin").write_bytes((folder / "weight.data").read_bytes())
    (folder / "short.data").write_bytes(bytes(100))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    os.mkfifo(folder / "pipe")
    model = onnx.load(folder / "net.onnx", load_external_data=False)
    weight = max(model.graph.initializer, key=lambda tensor: np.prod(tensor.dims))
    del weight.external_data[:]
    for key, value in {"location": location.format(folder=tmp_path), **more}.items():
        weight.external_data.add(key=key, value=str(value))
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    ran = pfl(
        "embed",
        embed_inputs.images,
        "--encoder",
        f"onnx:{folder / 'net.onnx'}",
        "--size",
        SIZE,
        "-o",
        tmp_path / "data",
    )
    assert (ran.code, message in ran.err, ran.err.count("pfl: ")) == (3, True, 1), ran.err
    assert not (tmp_path / "data").exists()


def test_changed_external_data_of_an_encoder_are_a_conflict(embed_inputs, tmp_path, pfl):
    (folder := tmp_path / "encoder").mkdir()
    write_network_with_external_data(folder / "net.onnx")
    line = (
        "embed",
        embed_inputs.images,
        "--encoder",
        f"onnx:{folder / 'net.onnx'}",
        "--size",
        SIZE,
        "-o",
        tmp_path / "data",
    )
    assert pfl(*line).code == 0
    ran = pfl(*line)
    assert (ran.code, "up to date" in ran.err) == (0, True)
    scale_floats(folder / "weight.data")
    ran = pfl(*line)
    assert (ran.code, "encoder" in ran.err) == (4, True)


def test_onnx_encoder_is_refused_when_repeated_external_data_exceed_the_limit(embed_inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(encoders, "_MAX_ONNX_BYTES", 1000)
    files = write_network_with_external_data(tmp_path / "net.onnx")
    assert sum(file.stat().st_size for file in files) < 1000
    with pytest.raises(InputError, match="the maximum is 1000"):
        Choice(f"onnx:{tmp_path / 'net.onnx'}", None, SIZE).open(embed_inputs.x.shape[1:])


def test_labels_that_are_numbers_stay_numbers_in_their_unit(embed_inputs, tmp_path):
    x = np.random.default_rng(0).integers(0, 255, (12, 12, 12, 3)).astype(np.uint8)
    y = np.arange(12) / 4
    np.savez(tmp_path / "photos.npz", x=x, y=y, owner=np.arange(12) % 2)
    import_data(tmp_path / "photos.npz", tmp_path / "photos", task="quantity", unit="kg", samples="images")
    embed(tmp_path / "photos", tmp_path / "made", encoder=NAME, weights=embed_inputs.weights, size=SIZE)
    made = open_artifact(tmp_path / "made")
    stored = datasets.read(made)
    assert (stored.y.tolist(), stored.classes, stored.labels.kind) == (y.tolist(), [], "quantity")
    assert codebook.read(made).unit == "kg"
