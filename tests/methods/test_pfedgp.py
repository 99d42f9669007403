"""pFedGP: its sampler, posterior and tree against closed forms, dense algebra and hands; its rounds and answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

import worlds
from pflcli.core import parameters, rng
from pflcli.core.engine import backend
from pflcli.core.engine.gradients import StackedBatch
from pflcli.core.engine.networks import AutogradNetwork
from pflcli.core.errors import ComputationError, UsageError
from pflcli.methods import pfedgp
from pflcli.methods.parts import gaussian_process_tree as gp

compiled = pytest.importorskip("pflcli.plugins.accelerated.pfedgp", exc_type=ImportError)

PRIOR = gp.Prior()


def make_rng(seed=0):
    return rng.generator(seed, "test")


def sigmoid(f):
    return 1 / (1 + np.exp(-f))


def numpy_kernel(a, b):
    return 8 * np.exp(-np.square(a[:, None] - b).sum(axis=2) / 2)


def make_draws(rng):
    return gp.Draws(gp.draw_key(rng))


def posterior_of(prior, z, sign, points, drawn):
    """The posterior of one Gaussian process given samples of labels ``sign``, asked for +1 at ``points``."""
    n, q = len(z), len(points)
    node = gp.Node(np.arange(n), n + np.arange(q), sign.numpy(), np.ones(q, np.int64), drawn)
    return gp.Posterior(prior, prior.kernel(z, torch.cat([z, points]))[None], [node])


def compute_dense_posterior(z, sign, omega, points):
    """Mean and variance of f at ``asked`` by the formulas as they are printed, with an inverse, in float64."""
    inverse = np.linalg.inv(numpy_kernel(z, z) + 1e-3 * np.eye(len(z)) + np.diag(1 / omega))
    cross = numpy_kernel(z, points)
    return cross.T @ inverse @ (sign / 2 / omega), 8 - np.diag(cross.T @ inverse @ cross)


def integrate_sigmoid(mean, variance):
    """E[sigmoid(f)] on a fine grid."""
    at = np.linspace(-10, 10, 4001)
    weight = np.exp(-np.square(at) / 2)
    return (sigmoid(mean + np.sqrt(variance) * at) * weight).sum() / weight.sum()


def draw_compiled_polya_gamma(c, g):
    omega = np.empty(len(c), np.float32)
    compiled.polya_gamma(c.numpy(), g.numpy(), omega)
    return torch.from_numpy(omega)


@pytest.mark.parametrize("form", [gp.draw_polya_gamma, draw_compiled_polya_gamma])
@pytest.mark.parametrize("c", [0.0, 0.5, 2.0, 6.0, 20.0])
def test_polya_gamma_draws_have_the_known_moments_and_transform(c, form):
    n = 200_000
    g = torch.from_numpy(make_rng().standard_exponential((gp.TERMS + 1, n), dtype=np.float32))
    for value in (c, -c):
        omega = form(torch.full((n,), value), g).double().numpy()
        mean = math.tanh(c / 2) / (2 * c) if c else 1 / 4
        variance = (math.sinh(c) - c) / (4 * c**3 * math.cosh(c / 2) ** 2) if c else 1 / 24
        assert (omega > 0).all()
        assert abs(omega.mean() - mean) < 5 * math.sqrt(variance / n)
        assert omega.var() == pytest.approx(variance, rel=0.03)
        for t in (1.0, 10.0):  # E exp(-t omega), Polson et al., Eq. 2 for b = 1
            known = math.cosh(c / 2) / math.cosh(math.sqrt((c**2 / 2 + t) / 2))
            assert np.exp(-t * omega).mean() == pytest.approx(known, rel=0.01)


def test_compiled_and_torch_polya_gamma_draw_the_same_values():
    c = torch.from_numpy(make_rng().normal(size=500) * 20).float()
    g = torch.from_numpy(make_rng(1).standard_exponential((gp.TERMS + 1, 500), dtype=np.float32))
    expected = gp.draw_polya_gamma(c.double(), g.double())
    torch.testing.assert_close(draw_compiled_polya_gamma(c, g).double(), expected, rtol=1e-4, atol=1e-6)


def test_kernel_matches_hand_computed_values():
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    expected = 8 * torch.exp(-torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]]))
    torch.testing.assert_close(PRIOR.kernel(z, z), expected)
    torch.testing.assert_close(
        gp.Prior(scale=2.0, length=2.0).kernel(z[:1], z[2:]), torch.tensor([[2 * math.exp(-0.5)]])
    )


def test_log_expected_sigmoid_matches_integration_on_a_fine_grid():
    mean, variance = np.asarray([[0.0, 3.0, -2.0], [1.0, -6.0, 0.5]]), np.asarray([[8.0, 4.0, 1e-6], [1.0, 8.0, 2.0]])
    sign = np.asarray([1, -1, 1])
    expected = [
        np.mean([integrate_sigmoid(s * m, v) for m, v in zip(column, width, strict=True)])
        for column, width, s in zip(mean.T, variance.T, sign, strict=True)
    ]
    moments, labels = (torch.from_numpy(mean)[None], torch.from_numpy(variance)[None]), torch.from_numpy(sign)[None]
    actual, turned = (gp.log_expected_sigmoid(*moments, own).exp()[0] for own in (labels, -labels))
    np.testing.assert_allclose(actual, expected, atol=2e-4)
    torch.testing.assert_close(actual + turned, torch.ones(3, dtype=torch.float64))


def test_posterior_matches_dense_algebra():
    z = normalize(torch.from_numpy(make_rng(1).normal(size=(30, 4))).float(), dim=1)
    sign = torch.where(z[:, 0] > 0, 1, -1)
    posterior = posterior_of(gp.Prior(chains=3), z[:20], sign[:20], z[20:], make_draws(make_rng()))
    mean, variance = (values[0] for values in posterior.latent(torch.arange(20, 30)[None]))
    assert posterior.omega.shape == (1, 3, 24)  # padded
    for chain in range(3):
        omega = posterior.omega[0, chain, :20].double().numpy()
        expected = compute_dense_posterior(z[:20].numpy(), sign[:20].numpy(), omega, z[20:].numpy())
        np.testing.assert_allclose(mean[chain], expected[0], atol=1e-4)
        np.testing.assert_allclose(variance[chain], expected[1], atol=1e-4)


def test_gibbs_sampling_matches_the_exact_posterior():
    """Two samples of either label and one between them: sums over a grid of their latent values are exact."""
    z, points = np.asarray([[0.0], [0.8]]), np.asarray([[0.1], [0.6], [3.0]])
    sign = np.asarray([1, -1])
    k = numpy_kernel(z, z) + 1e-3 * np.eye(2)
    f = np.stack(np.meshgrid(*[np.linspace(-14, 14, 113)] * 2), axis=-1).reshape(-1, 2)
    density = np.exp(-np.einsum("ni,ij,nj->n", f, np.linalg.inv(k), f) / 2) * sigmoid(sign * f).prod(axis=1)
    weight = density / density.sum()
    keep = weight > 1e-8
    exact = []
    for cross in numpy_kernel(z, points).T:
        mean, variance = f[keep] @ np.linalg.solve(k, cross), 8 - cross @ np.linalg.solve(k, cross)
        exact.append(sum(w * integrate_sigmoid(m, variance) for w, m in zip(weight[keep], mean, strict=True)))
    exact = np.asarray(exact) / weight[keep].sum()
    prior, rows = gp.Prior(chains=4000, sweeps=30), (torch.tensor(z).float(), torch.tensor(points).float())
    posterior = posterior_of(prior, rows[0], torch.tensor(sign), rows[1], make_draws(make_rng()))
    actual = posterior.log_probability()[0, :3].exp()
    np.testing.assert_allclose(actual, exact, atol=0.012)
    assert actual[0] > 0.55
    assert actual[1] < 0.45


def test_posterior_returns_nan_when_the_factorization_fails():
    z = torch.full((4, 2), torch.nan)
    assert (
        posterior_of(PRIOR, z, torch.tensor([1, 1, -1, -1]), z, make_draws(make_rng())).log_probability().isnan().all()
    )


def test_build_tree_splits_similar_classes_last():
    """Classes 1, 2 and 4 lie at 0, 1 and 10, class 6 at 12: {1, 2} | {4, 6}, then single ones."""
    y = np.asarray([1, 1, 2, 4, 6, 6])
    z = np.asarray([-1, 1, 1, 10, 11, 13], dtype=np.float32)[:, None]
    tree = gp.build_tree(z, y, 8, make_rng())
    assert tree.shape == (7, 8)
    np.testing.assert_array_equal(tree[0], [0, 1, 1, 0, -1, 0, -1, 0])
    np.testing.assert_array_equal(tree[1], [0, 1, -1, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(tree[2], [0, 0, 0, 0, 1, 0, -1, 0])
    assert not tree[3:].any()
    # Branches: 0.7 to {1, 2}, 0.9 of it to 1; 0.2 of the rest to 4. Six samples, eight classes: 1/14 for those unseen.
    positive = torch.tensor([[0.7, 0.9, 0.2, 0.5, 0.5, 0.5, 0.5]], dtype=torch.float64)
    p = gp.class_probabilities(torch.from_numpy(tree), positive, torch.from_numpy(np.bincount(y, minlength=8)))
    shared = np.asarray([0, 0.7 * 0.9, 0.7 * 0.1, 0, 0.3 * 0.2, 0, 0.3 * 0.8, 0]) * 10 / 14
    np.testing.assert_allclose(p[0], shared + np.asarray([1, 0, 0, 1, 0, 1, 0, 1]) / 14)
    assert float(p.sum()) == pytest.approx(1)


@pytest.mark.parametrize("classes", [0, 1, 2, 3, 12])
def test_build_tree_separates_all_classes(classes):
    for seed in range(5):
        y = np.repeat(np.arange(classes) * 2, 2)
        z = make_rng(seed).normal(size=(len(y), 3)).astype(np.float32) * (seed > 0)  # first all alike
        tree = gp.build_tree(z, y, 25, make_rng(seed))
        assert (tree != 0).any(axis=1).sum() == max(classes - 1, 0)
        parts = {tuple(np.unique(y))}
        for node in tree[: max(classes - 1, 0)]:
            left, right = (tuple(np.flatnonzero(node == sign)) for sign in (1, -1))
            parts.remove(tuple(sorted(left + right)))  # a part that a node above has made, and no other node takes
            parts |= {left, right}
            assert left
            assert right
            assert left[0] < right[0]
        assert all(len(part) <= 1 for part in parts)
        p = gp.class_probabilities(
            torch.from_numpy(tree),
            torch.from_numpy(make_rng(seed).random((4, 24))),
            torch.from_numpy(np.bincount(y, minlength=25)),
        )
        np.testing.assert_allclose(p.sum(dim=1), 1)
        assert (p > 0).all()


def split(x, draws):
    """The parts of the rows ``x``, padded because a node of more rows is split with them."""
    many = np.linspace(0, 1, len(x) + 3)[:, None]
    apart = [np.square(rows[:, None] - rows).sum(axis=2) for rows in (x, many)]
    return gp.split_in_two(apart, np.stack([draws, draws]))[0, : len(x)]


def test_two_means_finds_the_tightest_split():
    x = np.concatenate([make_rng().normal(size=(5, 3)), 4 + make_rng(1).normal(size=(3, 3))])
    part = split(x, make_rng().random((10, 2)))
    np.testing.assert_array_equal(part != part[0], [False] * 5 + [True] * 3)


def test_two_means_iterates_until_no_row_moves():
    # From 0 and 9, the first step assigns 5 to the part of 9; the second returns it to the part of 0.
    x = np.asarray([0, 4, 4, 4, 4, 5, 9], dtype=np.float32)[:, None]
    part = split(x, np.asarray([[0.0, 0.9]]))
    np.testing.assert_array_equal(part != part[0], [False] * 6 + [True])


def test_support_and_subsets_are_drawn_class_by_class():
    y = np.asarray([2, 0, 2, 2, 0, 1, 0, 0])
    halves = gp.mark_first_halves(y)
    np.testing.assert_array_equal(halves, [1, 1, 0, 1, 0, 1, 1, 0])
    y = np.repeat([0, 1, 3], [60, 30, 1])
    rows = gp.draw_stratified(y, 16, make_rng())
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(np.bincount(y[rows]), [10, 5, 0, 1])
    np.testing.assert_array_equal(gp.draw_stratified(y, 91, make_rng()), np.arange(91))
    assert not np.array_equal(rows, gp.draw_stratified(y, 16, make_rng(1)))


class Tiny(nn.Module):
    """Body of one layer, in float64 for a tight comparison."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 2, bias=False), nn.Linear(2, 2)


def loss_and_gradients(prior, net, x, y, tree, draws):
    """The loss of one client and its gradients by the body."""
    names = [name for name, _ in net.named_parameters() if name.startswith("body.")]
    weight = torch.full((1, len(y)), 1 / len(y))
    batch = StackedBatch(x[None], y[None], weight, {"tree": tree[None]}, {}, worlds.TASK, [draws])
    params = {name: value[None] for name, value in parameters.copy_params(net).items()}
    losses, grads = pfedgp.gradients(prior, AutogradNetwork(net, names, "float32"), params, batch)
    return float(losses[0]), parameters.pick(grads, 0)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_loss_and_gradient_match_dense_algebra_for_fixed_omega(is_compiled, monkeypatch):
    """Two classes: -log of the mean over chains of E[sigmoid], of every second sample given the others."""
    net = Tiny()
    x, y = torch.from_numpy(make_rng(3).normal(size=(12, 3))).float(), torch.tensor([0, 1, 1, 0, 0, 1] * 2)
    weight = net.body.weight.detach().clone()
    if not is_compiled:
        monkeypatch.setenv(backend.SWITCH, "0")
    loss, grads = loss_and_gradients(gp.Prior(chains=2), net, x, y, torch.tensor([[1, -1], [0, 0]]), make_rng())
    actual = grads["body.weight"]
    assert float(actual.norm()) > 1e-3

    with torch.no_grad():
        omega = draw_omega(gp.Prior(chains=2), normalize(x @ weight.T, dim=1), y, make_rng())
    exact = weight.detach().double().requires_grad_()
    expected = compute_dense_loss(PRIOR, x.double() @ exact.T, y, omega)
    (gradient,) = torch.autograd.grad(expected, exact)
    assert loss == pytest.approx(float(expected.detach()), abs=1e-3)
    torch.testing.assert_close(actual.double(), gradient, rtol=0.01, atol=1e-3)


def draw_omega(prior, unit, y, rng):
    """Omega (chains, n) of the first half of samples of two classes, as the loss of a tree with one node draws it."""
    first_half = torch.from_numpy(gp.mark_first_halves(y.numpy()))
    k = prior.kernel(unit[first_half], unit[first_half]) + prior.jitter * torch.eye(int(first_half.sum()))
    return gp.run_gibbs(prior, k[None], 1 - 2 * y[None, first_half], [len(k)], [make_draws(rng)])[0].double()


def compute_dense_loss(prior, z, y, omega):
    """-log of the mean over chains of E[sigmoid] of the other half, by inverses and a fine grid, in float64."""
    first_half = torch.from_numpy(gp.mark_first_halves(y.numpy()))
    z = normalize(z, dim=1)
    apart = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist").square()
    k = prior.scale * torch.exp(-apart / (2 * prior.length**2))
    cross, s = k[first_half][:, ~first_half], 1.0 - 2 * y
    p = 0
    at = torch.linspace(-8, 8, 1601, dtype=torch.float64)
    density = torch.exp(-at.square() / 2)
    noise = prior.jitter * torch.eye(int(first_half.sum()))
    for chain in omega:
        inverse = torch.linalg.inv(k[first_half][:, first_half] + noise + torch.diag(1 / chain))
        mean = cross.T @ inverse @ (s[first_half] / 2 / chain)
        spread = (prior.scale - (cross.T @ inverse @ cross).diag()).sqrt()
        values = torch.sigmoid(s[~first_half, None] * (mean[:, None] + spread[:, None] * at))
        p = p + (values * density).sum(dim=1) / density.sum() / len(omega)
    return -p.log().mean()


def test_stacked_losses_match_dense_algebra_for_each_client():
    """Embeddings of any length, one of them zero; another kernel; clients of 12 and 7 samples, of one, and of none."""
    prior, sizes = gp.Prior(scale=3.0, length=0.7, chains=3), [12, 7, 1, 0]
    z = torch.from_numpy(
        make_rng(5).normal(size=(4, 13, 4)) * 10.0 ** make_rng(6).integers(-3, 4, size=(4, 13, 1))
    ).float()
    z[0, 5] = 0
    y = torch.from_numpy(make_rng(7).integers(0, 2, size=(4, 13)))
    trees = torch.tensor([[1, -1]]).expand(4, 1, 2)
    losses, grads = gp.losses_and_gradients(prior, trees, z, y, sizes, [make_rng(c) for c in range(4)])
    for client, size in enumerate(sizes[:2]):
        own_y = y[client, :size]
        omega = draw_omega(prior, normalize(z[client, :size], dim=1), own_y, make_rng(client))
        exact = z[client, :size].double().requires_grad_()
        expected = compute_dense_loss(prior, exact, own_y, omega)
        expected.backward()
        assert float(losses[client]) == pytest.approx(float(expected.detach()), abs=1e-3)
        length = z[client, :size].norm(dim=1, keepdim=True).clamp_min(1e-12)  # gradients by directions
        assert float((exact.grad * length).norm()) > 1e-2
        torch.testing.assert_close(grads[client, :size] * length, (exact.grad * length).float(), rtol=0.01, atol=1e-3)
    assert not losses[2:].any()
    assert not grads[2:].any()
    assert not grads[0, 12:].any()
    assert not grads[1, 7:].any()


def test_loss_of_a_tree_is_the_sum_of_the_losses_of_its_nodes():
    """Three classes: the sum over nodes is that of the two-class losses, each on the samples below its node."""
    torch.manual_seed(0)
    net, x, y = Tiny(), torch.from_numpy(make_rng(3).normal(size=(12, 3))).float(), torch.tensor([0, 1, 2] * 4)
    tree = torch.tensor([[1, -1, -1], [0, 1, -1]])

    def of(nodes, rows):
        loss, grads = loss_and_gradients(gp.Prior(chains=4000), net, x[rows], y[rows], nodes, make_rng())
        return torch.cat([torch.tensor([loss]), grads["body.weight"].flatten()])

    every = torch.ones(12, dtype=torch.bool)
    torch.testing.assert_close(of(tree, every), of(tree[:1], every) + of(tree[1:], every), rtol=0, atol=0.015)
    torch.testing.assert_close(of(tree[1:], every), of(tree[1:], y > 0) * 2 / 3, rtol=0, atol=0.015)


def test_tree_nodes_use_different_random_draws():
    """Twice the same node: by the same draws its loss would be twice that of one, to rounding."""
    net, x, y = Tiny(), torch.from_numpy(make_rng(3).normal(size=(12, 3))).float(), torch.tensor([0, 1] * 6)
    once, twice = (
        loss_and_gradients(gp.Prior(chains=4), net, x, y, torch.tensor([[1, -1]] * nodes), make_rng())[0]
        for nodes in (1, 2)
    )
    assert abs(twice - 2 * once) > 1e-4
    assert twice == pytest.approx(2 * once, rel=0.2)


@pytest.mark.compiled
def test_compiled_sampling_is_that_by_lapack(monkeypatch):
    """Two Gaussian processes of 70 and 33 samples, the second from its second draws on."""
    z = normalize(torch.from_numpy(make_rng(1).normal(size=(2, 70, 5))).float(), dim=2)
    sizes, exists = [70, 33], torch.arange(70) < torch.tensor([[70], [33]])
    k, sign = (
        PRIOR.kernel(z, z) * (exists[:, None] & exists[..., None]) + torch.eye(70) / 1000,
        torch.where(z[..., 0] > 0, 1, -1),
    )

    def sample():
        key = gp.draw_key(make_rng(2))
        return gp.run_gibbs(PRIOR, k, sign, sizes, [gp.Draws(key), gp.Draws(key, 5)])

    actual = sample()
    monkeypatch.setenv(backend.SWITCH, "0")
    for own, expected, size in zip(actual, sample(), sizes, strict=True):
        torch.testing.assert_close(own[:, :size], expected[:, :size], rtol=2e-3, atol=0)


def test_a_node_gives_the_same_whatever_is_computed_with_it(monkeypatch):
    """Nodes of 3 to 41 samples, and more queries than are predicted at a time; in one part and one by one."""
    z = normalize(torch.from_numpy(make_rng(1).normal(size=(400, 4))).float(), dim=1)
    sizes = [(41, 300), (3, 5), (40, 297), (9, 1), (12, 6)]

    def found(chosen):
        rows = [(np.arange(n), 400 - q + np.arange(q)) for n, q in chosen]
        sign = np.where(z[:, 0] > 0, 1, -1)
        nodes = [gp.Node(a, b, sign[a], sign[b], make_draws(make_rng(len(a)))) for a, b in rows]
        return gp.log_probabilities(gp.Prior(chains=4), PRIOR.kernel(z, z)[None], nodes)

    together = found(sizes)
    assert [len(values) for values in together] == [300, 5, 297, 1, 6]
    for size, values in zip(sizes, together, strict=True):
        assert torch.equal(found([size])[0], values)
    monkeypatch.setattr(gp, "_MAX_NUMBERS", 1)
    assert all(map(torch.equal, found(sizes), together))


def test_padding_reaches_no_other_client():
    """The second client overflows: the loss and the gradient of the first one stay as they are."""
    z = torch.from_numpy(make_rng(1).normal(size=(2, 12, 3))).float()
    y, trees = torch.arange(12).expand(2, 12) % 2, torch.tensor([[1, -1]]).expand(2, 1, 2)
    rngs = [make_rng(2), make_rng(3)]
    expected = gp.losses_and_gradients(PRIOR, trees[:1], z[:1], y[:1], [10], [make_rng(2)])
    z[1] = torch.nan
    losses, grads = gp.losses_and_gradients(PRIOR, trees, z, y, [10, 12], rngs)
    assert torch.equal(losses[:1], expected[0])
    assert torch.equal(grads[:1], expected[1])
    assert losses[1].isnan()


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_pfedgp_round_matches_a_hand_computed_body(mode):
    """Full batches, three steps with momentum, and the plain mean of those that hold two classes."""
    run = worlds.run("pfedgp", participation=1.0, lr=0.05, momentum=0.9, weight_decay=0.01, mode=mode)
    after = worlds.play("pfedgp", run, last=1)
    assert set(after) == {"body"}
    assert all(name.startswith("body.") for name in after["body"])
    data, models = run.federation, []
    able = [c for c in run.clients if len(np.unique(data.y[data.rows(c, "train")])) > 1]
    assert able == [0, 2, 3, 6]  # of the others one has a single sample, one a single class, one nothing
    for client in able:
        rows = data.rows(client, "train")
        net = nn.Module()
        net.body = nn.Sequential(
            nn.Flatten(), nn.Linear(worlds.FEATURES, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU()
        )
        net.head = nn.Linear(200, worlds.CLASSES)
        net.load_state_dict(run.init)
        with torch.no_grad():
            z = normalize(net.body(data.x[rows]), dim=1).numpy()
        tree = gp.build_tree(z, data.y[rows].numpy(), worlds.CLASSES, rng.generator(0, "tree", 0, client))
        optimizer = torch.optim.SGD(net.body.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
        steps = rng.generator(0, "sgd", 0, client)
        for order in [rows[steps.permutation(len(rows))] for _ in range(3)]:
            _, grads = loss_and_gradients(gp.Prior(), net, data.x[order], data.y[order], torch.from_numpy(tree), steps)
            for name, value in net.named_parameters():
                value.grad = grads.get(name)
            optimizer.step()
        models.append(parameters.copy_params(net))
    for name, value in after["body"].items():
        torch.testing.assert_close(value, sum(m[name] for m in models) / 4, rtol=1e-3, atol=1e-4)
        assert not torch.equal(value, run.init[name])
    size = parameters.size(after["body"])
    assert run.traffic == {"down": 6 * size, "up": 4 * size, "peer": 0}


def test_pfedgp_loss_falls_over_rounds():
    run = worlds.run("pfedgp", participation=1.0, rounds=12, lr=0.05)
    worlds.play("pfedgp", run)
    first, last = (np.mean([loss for loss, _ in losses]) for losses in (run.notes.losses[:12], run.notes.losses[-12:]))
    assert last < first - 0.1


def test_pfedgp_without_rounds_predicts_by_gps_on_the_initial_embeddings():
    run = worlds.run("pfedgp")
    actual = worlds.answers("pfedgp", run, worlds.play("pfedgp", run, last=0))
    assert set(actual) == {"validation", "test"}
    data, client = run.federation, 0  # who holds all classes
    z = {
        split: normalize(run.engine.infer(run.init, data.rows(client, split), features=True)[1], dim=1)
        for split in ("train", "test")
    }
    y = data.y[data.block(client, "train")]
    generator = rng.generator(0, "answer", client)
    tree = gp.build_tree(z["train"].numpy(), y.numpy(), 3, generator)
    positive = []
    for node in torch.from_numpy(tree):
        sign = node[y]
        own, labels = z["train"][sign != 0], sign[sign != 0]
        posterior = posterior_of(gp.Prior(chains=30), own, labels, z["test"], make_draws(generator))
        chains = [
            compute_dense_posterior(own.numpy(), labels.numpy(), omega.double().numpy(), z["test"].numpy())
            for omega in posterior.omega[0, :, : len(own)]
        ]
        positive.append(
            np.mean([[integrate_sigmoid(m, v) for m, v in zip(*chain, strict=True)] for chain in chains], axis=0)
        )
    expected = np.ones((5, 3))
    for node, p in zip(tree, positive, strict=True):
        expected *= np.where(node > 0, p[:, None], np.where(node < 0, 1 - p[:, None], 1))
    np.testing.assert_allclose(actual["test"][:5], expected, atol=1e-3)


def test_clients_with_one_class_or_no_samples_predict_by_the_rule_of_succession():
    data = worlds.federation()
    run = worlds.run("pfedgp")
    p = np.split(
        worlds.answers("pfedgp", run, worlds.play("pfedgp", run, last=0))["test"], np.cumsum(data.sizes("test"))[:-1]
    )
    # Client 4 trains on 8 samples of class 1 among three classes.
    np.testing.assert_allclose(p[4], np.tile([1 / 11, 9 / 11, 1 / 11], (3, 1)), rtol=1e-6)
    nothing = torch.empty(0, 200), torch.empty(0, dtype=torch.int64)
    empty = gp.predict_classes(PRIOR, *nothing, torch.ones(2, 200), 3, 1000, make_rng())
    np.testing.assert_allclose(empty, 1 / 3)
    sample = torch.ones(1, 200), torch.tensor([2])
    one = gp.predict_classes(PRIOR, *sample, torch.ones(2, 200), 3, 1000, make_rng())
    np.testing.assert_allclose(one, [[1 / 4, 1 / 4, 2 / 4]] * 2)


def test_capacity_limits_the_samples_a_gp_is_conditioned_on(monkeypatch):
    sizes = []

    def watched(prior, k, sign, of_nodes, *rest, sample=gp.run_gibbs):
        sizes.extend(of_nodes)
        return sample(prior, k, sign, of_nodes, *rest)

    monkeypatch.setattr(gp, "run_gibbs", watched)
    run = worlds.run("pfedgp", options={"capacity": 5})
    worlds.answers("pfedgp", run, {"body": parameters.part(run.init, "body.")})
    assert max(sizes) == 5


def test_pfedgp_error_names_the_clients_that_diverge():
    run = worlds.run("pfedgp", participation=1.0, lr=1e38)
    with pytest.raises(ComputationError, match="clients 0, 2, 3, 6 became non-finite"):
        worlds.play("pfedgp", run)


def test_pfedgp_refuses_a_model_without_a_body():
    run = worlds.run("pfedgp")
    run.init = {"head.weight": torch.zeros(3, 5)}
    with pytest.raises(UsageError, match="body"):
        worlds.play("pfedgp", run)


def test_a_tree_is_the_same_whatever_trees_are_built_with_it(monkeypatch):
    """Clients of 1, 2, 9 and 60 classes, all rows of one alike; in one part and one by one."""
    counts = (9, 60, 1, 2, 9)
    z = [(make_rng(n).normal(size=(2 * n, 4)) * (i < 4)).astype(np.float32) for i, n in enumerate(counts)]
    y = [np.arange(2 * n) % n for n in counts]

    def build():
        return gp.build_trees(z, y, 60, [make_rng(n) for n in counts])

    together = build()
    assert [(tree != 0).any(axis=1).sum() for tree in together] == [8, 59, 0, 1, 8]
    for own, rows, labels, n in zip(together, z, y, counts, strict=True):
        np.testing.assert_array_equal(gp.build_tree(rows, labels, 60, make_rng(n)), own)
    monkeypatch.setattr(gp, "_MAX_NUMBERS", 1)
    np.testing.assert_array_equal(build(), together)


@pytest.mark.compiled
def test_losses_agree_with_and_without_compiled_loops(monkeypatch):
    z = torch.from_numpy(make_rng(7).normal(size=(2, 14, 3))).float()
    y = torch.from_numpy(make_rng(8).integers(0, 2, size=(2, 14)))
    trees, sizes = torch.tensor([[1, -1]]).expand(2, 1, 2), [14, 9]
    expected = gp.losses_and_gradients(PRIOR, trees, z, y, sizes, [make_rng(c) for c in range(2)])
    with monkeypatch.context() as patch:
        patch.setenv(backend.SWITCH, "0")
        actual = gp.losses_and_gradients(PRIOR, trees, z, y, sizes, [make_rng(c) for c in range(2)])
    for own, other in zip(actual, expected, strict=True):
        assert float(other.norm()) > 0.1
        torch.testing.assert_close(own, other, rtol=0.01, atol=1e-3)
