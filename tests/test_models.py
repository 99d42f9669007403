"""Backbones: parts, shapes, sizes, and that building one leaves the global generator alone."""

from __future__ import annotations

import pytest
import torch

from pflcli import models, registry
from pflcli.errors import UsageError

GREY, COLOUR = (1, 28, 28), (3, 32, 32)


@pytest.mark.parametrize("shape", [GREY, COLOUR])
@pytest.mark.parametrize("name", registry.names("models"))
def test_representation_and_logits(name, shape):
    net = models.create(name, shape, 7, seed=0).eval()
    x = torch.rand(2, *shape)
    with torch.no_grad():
        z = net.features(x)
        said = registry.card("models", name).facts["REPRESENTATION"]
        assert z.shape == (2, x[0].numel() if said == "the input" else int(said))
        torch.testing.assert_close(net(x), net.head(z))
    assert net(x).shape == (2, 7)
    assert all(key.split(".")[0] in ("body", "head") for key in net.state_dict())
    assert all(p.requires_grad for p in net.parameters())


def test_sizes_are_the_papers():
    count = {name: sum(p.numel() for p in models.create(name, GREY, 10, 0).parameters()) for name in ("cnn", "mlp")}
    assert count == {"cnn": 1_663_370, "mlp": 199_210}


@pytest.mark.parametrize("name", registry.names("models"))
def test_initial_weights_belong_to_the_seed(name):
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    a, b, c = (models.create(name, COLOUR, 3, seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert any(not torch.equal(a[key], c[key]) for key in a)


@pytest.mark.parametrize(("name", "shape"), [("cnn", (5,)), ("cnn", (1, 3, 3)), ("mobilenet-v2", (3, 8, 8))])
def test_what_does_not_fit_is_refused(name, shape):
    with pytest.raises(UsageError, match="takes images"):
        models.create(name, shape, 3, 0)
