"""Models of features from a frozen encoder take images too: ``predict``, ``new-client`` and ``export``; and embeddings
that were computed elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from helpers import error_text, listing
from originals import write_images, write_network
from pflcli import (
    build_datastore,
    embed,
    export,
    extract,
    import_data,
    new_client,
    partition,
    personalize,
    train_global,
)
from pflcli import predict as predict_samples
from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import dataset as datasets
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.core.errors import InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.vision import timm, torchvision
from pflcli.plugins.export import reader

ONE = Execution(threads=1)
SETTINGS = {"model": "logistic", "rounds": 2}


@pytest.fixture(scope="module")
def embedded_models(tmp_path_factory):
    """Images of three clients, their features by two kinds of encoders, and a trained method on each."""
    root = tmp_path_factory.mktemp("embedded")
    _, x, y = write_images(root)
    write_network(root / "net.onnx")
    import_data(root / "images.npz", root / "images")
    kinds = {
        "torchvision": {"encoder": "torchvision:shufflenet_v2_x0_5", "weights": root / "weights.pt", "size": 32},
        "onnx": {"encoder": f"onnx:{root / 'net.onnx'}", "size": 32},
    }
    for kind, options in kinds.items():
        embed(root / "images", root / kind / "data", execution=ONE, **options)
        partition(root / kind / "data", root / kind / "p")
        train_global(root / kind / "p", root / kind / "g", settings=SETTINGS, execution=ONE)
        personalize("ditto", root / kind / "p", root / kind / "ditto", settings=SETTINGS, execution=ONE)
    extract(root / "onnx" / "g", root / "onnx" / "e", execution=ONE)
    build_datastore(root / "onnx" / "e", root / "onnx" / "d", execution=ONE)
    personalize("knn-per", root / "onnx" / "d", root / "onnx" / "knn", execution=ONE)
    features = {kind: datasets.read(open_artifact(root / kind / "data")).x for kind in kinds}
    return SimpleNamespace(root=root, x=x, y=y, features=features)


def read_stored_predictions(path: Path, client: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sample numbers of a client's test samples, and their stored probabilities."""
    split = predictions.read(open_artifact(path), "test")
    rows = slice(*split.offsets[client : client + 2])
    return split.sample[rows], split.parts["p"][rows]


def test_timm_encoder_uses_the_size_and_normalization_of_its_weights(embedded_models, tmp_path):
    net = timm().create_model("vit_tiny_patch16_224", num_classes=4).eval()
    save_file(net.state_dict(), tmp_path / "w.safetensors")
    embed(
        embedded_models.root / "images",
        tmp_path / "data",
        encoder="timm:vit_tiny_patch16_224",
        weights=tmp_path / "w.safetensors",
    )
    facts = codebook.read(open_artifact(tmp_path / "data")).encoder
    advice = timm().get_pretrained_cfg("vit_tiny_patch16_224")
    assert advice.mean == (0.5, 0.5, 0.5)  # not ImageNet's
    assert (facts.size, facts.mean, facts.deviation) == (advice.input_size[1], advice.mean, advice.std)
    x = torch.from_numpy(embedded_models.x[:4]).permute(0, 3, 1, 2).float() / 255
    x = torch.nn.functional.interpolate(x, size=(facts.size,) * 2, mode="bilinear")
    x = (x - torch.tensor(facts.mean)[:, None, None]) / torch.tensor(facts.deviation)[:, None, None]
    with torch.no_grad():
        expected = net.forward_head(net.forward_features(x), pre_logits=True)
    np.testing.assert_allclose(datasets.read(open_artifact(tmp_path / "data")).x[:4], expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["torchvision", "onnx"])
def test_predict_gives_the_stored_probabilities_for_images_and_for_features(embedded_models, tmp_path, kind):
    path = embedded_models.root / kind / "ditto"
    sample, p = read_stored_predictions(path, 1)
    np.savez(tmp_path / "images.npz", x=embedded_models.x[sample])
    np.savez(tmp_path / "features.npz", x=embedded_models.features[kind][sample])
    for file in ("images.npz", "features.npz"):
        predicted = predict_samples(path, tmp_path / file, client="bob", execution=ONE)
        np.testing.assert_allclose(predicted.parts["p"], p, atol=1e-5)


def test_predict_gives_the_stored_probabilities_for_a_folder_of_images(embedded_models, tmp_path):
    sample, p = read_stored_predictions(embedded_models.root / "onnx" / "knn", 2)
    (tmp_path / "photos").mkdir()
    for number, row in enumerate(sample):
        Image.fromarray(embedded_models.x[row]).save(tmp_path / "photos" / f"{number:02}.png")
    predicted = predict_samples(embedded_models.root / "onnx" / "knn", tmp_path / "photos", client="eve", execution=ONE)
    np.testing.assert_allclose(predicted.parts["p"], p, atol=1e-5)


def test_predict_refuses_images_of_another_shape(embedded_models, tmp_path):
    np.savez(tmp_path / "images.npz", x=np.zeros((2, 9, 9, 3), np.uint8))
    with pytest.raises(InputError, match="takes images of 12x12x3, or their features; the samples have 9x9x3"):
        predict_samples(embedded_models.root / "onnx" / "ditto", tmp_path / "images.npz", client="ann", execution=ONE)


def test_predict_asks_for_encoder_weights_that_moved(embedded_models, tmp_path):
    shutil.copytree(
        embedded_models.root / "torchvision", tmp_path / "runs" / "torchvision"
    )  # without the weights beside it
    np.savez(tmp_path / "images.npz", x=embedded_models.x[:2])
    path = tmp_path / "runs" / "torchvision" / "ditto"
    with pytest.raises(InputError) as error:
        predict_samples(path, tmp_path / "images.npz", client="ann", execution=ONE)
    assert "--encoder-weights FILE" in error_text(error)
    assert "does not exist" in error_text(error)
    torch.save(torchvision().models.shufflenet_v2_x0_5().state_dict(), tmp_path / "other.pt")
    with pytest.raises(InputError, match="contains weights"):
        predict_samples(
            path, tmp_path / "images.npz", client="ann", encoder_weights=tmp_path / "other.pt", execution=ONE
        )
    known = predict_samples(
        path, tmp_path / "images.npz", client="ann", encoder_weights=embedded_models.root / "weights.pt", execution=ONE
    )
    again = predict_samples(
        embedded_models.root / "torchvision" / "ditto", tmp_path / "images.npz", client="ann", execution=ONE
    )
    assert np.array_equal(known.parts["p"], again.parts["p"])


def test_encoder_weights_are_refused_for_a_model_without_encoder(small, tmp_path):
    np.savez(tmp_path / "images.npz", x=np.zeros((2, 28, 28), np.uint8))
    with pytest.raises(UsageError, match="pfl embed"):
        predict_samples(small.fedavg, tmp_path / "images.npz", client="none", encoder_weights="w.pt", execution=ONE)


@pytest.mark.parametrize("method", ["ditto", "knn"])
def test_new_client_accepts_images_for_a_model_of_features(embedded_models, tmp_path, method):
    path = embedded_models.root / "onnx" / method
    np.savez(tmp_path / "images.npz", x=embedded_models.x[:30], y=embedded_models.y[:30])
    np.savez(tmp_path / "features.npz", x=embedded_models.features["onnx"][:30], y=embedded_models.y[:30])
    for name in ("images", "features"):
        new_client(path, tmp_path / f"{name}.npz", tmp_path / name, client="zoe", execution=ONE)
    (_, by_images), (_, by_features) = (read_stored_predictions(tmp_path / name, 3) for name in ("images", "features"))
    assert len(by_images) == 6
    np.testing.assert_allclose(by_images, by_features, atol=1e-5)


@pytest.mark.parametrize(("kind", "method"), [("torchvision", "ditto"), ("onnx", "ditto"), ("onnx", "knn")])
def test_exported_model_of_features_accepts_images(embedded_models, tmp_path, kind, method):
    path = embedded_models.root / kind / method
    sample, p = read_stored_predictions(path, 1)
    written = export(path, tmp_path / "model", client="bob", execution=ONE)
    assert {"images.onnx", "encoder.onnx", "network.onnx"} <= set(listing(tmp_path / "model"))
    assert written.model["input"] == {"dtype": "uint8", "shape": [12, 12, 3], "layout": "channels-last", "resize": None}
    assert written.model["agreement"]["samples"] == len(sample) + 8
    assert written.model["agreement"]["largest_difference"] < 1e-4
    answer = reader.predict(
        tmp_path / "model", json.loads((tmp_path / "model" / "model.json").read_text()), embedded_models.x[sample]
    )
    np.testing.assert_allclose(answer, p, atol=1e-4)


def test_exported_model_accepts_features_when_the_encoder_weights_are_missing(embedded_models, tmp_path, pfl):
    shutil.copytree(embedded_models.root / "torchvision", tmp_path / "runs" / "torchvision")
    path = tmp_path / "runs" / "torchvision" / "ditto"
    ran = pfl("export", path, "-o", tmp_path / "model", "--client", "bob")
    assert ran.code == 0
    assert "features instead of images" in ran.err
    assert "encoder.onnx" not in listing(tmp_path / "model")
    ran = pfl("export", path, "-o", tmp_path / "other", "--client", "bob", "--encoder-weights", tmp_path / "none.pt")
    assert (ran.code, "none.pt does not exist" in ran.err) == (3, True)
    assert not (tmp_path / "other").exists()


def test_imported_embeddings_record_the_name_of_their_encoder(embedded_models, tmp_path):
    owner = np.repeat(["ann", "bob", "eve"], 50)
    np.savez(tmp_path / "f.npz", x=embedded_models.features["onnx"], y=embedded_models.y, owner=owner)
    import_data(tmp_path / "f.npz", tmp_path / "a", embeddings=True, encoder_name="clip-vit-b32")
    import_data(tmp_path / "f.npz", tmp_path / "b", embeddings=True)
    import_data(tmp_path / "f.npz", tmp_path / "like", like=tmp_path / "a")
    names = [codebook.read(open_artifact(tmp_path / name)).encoder.name for name in ("a", "b", "like")]
    assert names == ["clip-vit-b32", "an encoder without a name", "clip-vit-b32"]
    for name in ("a", "b"):
        partition(tmp_path / name, tmp_path / f"p-{name}")
        personalize("local", tmp_path / f"p-{name}", tmp_path / f"m-{name}", settings=SETTINGS, execution=ONE)
    plain = partition(embedded_models.root / "onnx" / "data", tmp_path / "p")
    assert plain.summary["shape"] == [embedded_models.features["onnx"].shape[1]]
    np.savez(tmp_path / "images.npz", x=embedded_models.x[:2])
    with pytest.raises(InputError, match="takes features"):  # pfl does not have that encoder
        predict_samples(tmp_path / "m-a", tmp_path / "images.npz", client="ann", execution=ONE)


@pytest.mark.parametrize(
    ("samples", "options", "fact"),
    [
        ({"x": np.zeros((6, 4, 4), np.uint8)}, {"embeddings": True}, "does not contain embeddings"),
        ({"x": np.zeros((6, 4, 4), np.float32)}, {"embeddings": True}, "does not contain embeddings"),
        ({"x": np.zeros((6, 4), np.float32)}, {"encoder_name": "clip"}, "only with --embeddings"),
    ],
)
def test_import_refuses_samples_that_are_not_embeddings(tmp_path, samples, options, fact):
    np.savez(tmp_path / "f.npz", y=np.arange(6) % 2, owner=np.repeat(["a", "b"], 3), **samples)
    with pytest.raises((InputError, UsageError), match=fact):
        import_data(tmp_path / "f.npz", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
