"""pFedGP: its sampler, posterior and tree against closed forms, dense algebra and hands; its rounds and answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

import worlds
from pflcli import parameters, rng
from pflcli.engine import backend
from pflcli.engine.gradients import StackedBatch
from pflcli.engine.networks import AutogradNetwork
from pflcli.errors import ComputationError, UsageError
from pflcli.methods import pfedgp
from pflcli.methods.parts import gaussian_process_tree as gp

compiled = pytest.importorskip("pflcli.accelerated.pfedgp", exc_type=ImportError)

PRIOR = gp.Prior()


def draw(seed=0):
    return rng.generator(seed, "test")


def sigmoid(f):
    return 1 / (1 + np.exp(-f))


def numpy_kernel(a, b):
    return 8 * np.exp(-np.square(a[:, None] - b).sum(axis=2) / 2)


def draws(rng):
    return gp.Draws(gp.draw_key(rng))


def dense(z, sign, omega, points):
    """Mean and variance of f at ``asked`` by the formulas as they are printed, with an inverse, in float64."""
    inverse = np.linalg.inv(numpy_kernel(z, z) + 1e-3 * np.eye(len(z)) + np.diag(1 / omega))
    cross = numpy_kernel(z, points)
    return cross.T @ inverse @ (sign / 2 / omega), 8 - np.diag(cross.T @ inverse @ cross)


def integral(mean, variance):
    """E[sigmoid(f)] on a fine grid."""
    at = np.linspace(-10, 10, 4001)
    weight = np.exp(-np.square(at) / 2)
    return (sigmoid(mean + np.sqrt(variance) * at) * weight).sum() / weight.sum()


def compiled_polya_gamma(c, g):
    omega = np.empty(len(c), np.float32)
    compiled.polya_gamma(c.numpy(), g.numpy(), omega)
    return torch.from_numpy(omega)


@pytest.mark.parametrize("form", [gp.draw_polya_gamma, compiled_polya_gamma])
@pytest.mark.parametrize("c", [0.0, 0.5, 2.0, 6.0, 20.0])
def test_polya_gamma_draws_have_the_known_moments_and_transform(c, form):
    n = 200_000
    g = torch.from_numpy(draw().standard_exponential((gp.TERMS + 1, n), dtype=np.float32))
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


def test_both_forms_of_polya_gamma_draw_the_same():
    c = torch.from_numpy(draw().normal(size=500) * 20).float()
    g = torch.from_numpy(draw(1).standard_exponential((gp.TERMS + 1, 500), dtype=np.float32))
    expected = gp.draw_polya_gamma(c.double(), g.double())
    torch.testing.assert_close(compiled_polya_gamma(c, g).double(), expected, rtol=1e-4, atol=1e-6)


def test_blocks_solve_for_all_chains_at_a_time():
    """U^-1 U'^-1 times columns is B^-1 times them; twenty rows are a block of 16 and one of 4."""
    n, others, chains = 20, 3, 3
    points = draw().normal(size=(n + others, 2))
    wide = numpy_kernel(points[:n], points).astype(np.float32)
    root, last = (draw(seed).random((n, chains)).astype(np.float32) for seed in (1, 2))
    u, inverses = compiled.new_factors(n, n + others + 1, chains)
    compiled.factor(wide, n + others, root, last, u, inverses, 0)
    compiled.back_substitute(n, u, inverses, n, others + 1)
    for c in range(chains):
        b = np.eye(n) + root[:, c, None] * wide[:, :n].astype(np.float64) * root[:, c]
        right = np.column_stack([root[:, c, None] * wide[:, n:], last[:, c]])
        np.testing.assert_allclose(u[c, :, n : n + others + 1], np.linalg.solve(b, right), rtol=1e-3, atol=1e-3)


def test_the_kernel_by_hand():
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    expected = 8 * torch.exp(-torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]]))
    torch.testing.assert_close(PRIOR.kernel(z, z), expected)
    torch.testing.assert_close(
        gp.Prior(scale=2.0, length=2.0).kernel(z[:1], z[2:]), torch.tensor([[2 * math.exp(-0.5)]])
    )


def test_expected_sigmoid_by_a_fine_grid():
    mean, variance = np.asarray([[0.0, 3.0, -2.0], [1.0, -6.0, 0.5]]), np.asarray([[8.0, 4.0, 1e-6], [1.0, 8.0, 2.0]])
    sign = np.asarray([1, -1, 1])
    expected = [
        np.mean([integral(s * m, v) for m, v in zip(column, width, strict=True)])
        for column, width, s in zip(mean.T, variance.T, sign, strict=True)
    ]
    actual = gp.log_expected_sigmoid(torch.from_numpy(mean), torch.from_numpy(variance), torch.from_numpy(sign)).exp()
    np.testing.assert_allclose(actual, expected, atol=2e-4)
    turned = gp.log_expected_sigmoid(torch.from_numpy(mean), torch.from_numpy(variance), torch.from_numpy(-sign)).exp()
    torch.testing.assert_close(actual + turned, torch.ones(3, dtype=torch.float64))


def test_the_posterior_is_that_of_dense_algebra():
    z = normalize(torch.from_numpy(draw(1).normal(size=(30, 4))).float(), dim=1)
    sign = torch.where(z[:, 0] > 0, 1, -1)
    posterior = gp.Posterior(gp.Prior(chains=3), z[:20], sign[:20], draws(draw()))
    mean, variance = posterior.latent(z[20:])
    assert posterior.omega.shape == (3, 20)
    for chain in range(3):
        expected = dense(z[:20].numpy(), sign[:20].numpy(), posterior.omega[chain].double().numpy(), z[20:].numpy())
        np.testing.assert_allclose(mean[chain], expected[0], atol=1e-4)
        np.testing.assert_allclose(variance[chain], expected[1], atol=1e-4)


def test_gibbs_draws_the_true_posterior():
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
        exact.append(sum(w * integral(m, variance) for w, m in zip(weight[keep], mean, strict=True)))
    exact = np.asarray(exact) / weight[keep].sum()
    posterior = gp.Posterior(
        gp.Prior(chains=4000, sweeps=30), torch.tensor(z).float(), torch.tensor(sign), draws(draw())
    )
    actual = posterior.log_probability(torch.tensor(points).float(), torch.ones(3)).exp()
    np.testing.assert_allclose(actual, exact, atol=0.012)
    assert actual[0] > 0.55
    assert actual[1] < 0.45


def test_a_factor_that_does_not_exist_is_not_a_crash():
    z = torch.full((4, 2), torch.nan)
    assert (
        gp.Posterior(PRIOR, z, torch.tensor([1, 1, -1, -1]), draws(draw()))
        .log_probability(z, torch.ones(4))
        .isnan()
        .all()
    )


def test_the_tree_splits_near_classes_last():
    """Classes 1, 2 and 4 lie at 0, 1 and 10, class 6 at 12: {1, 2} | {4, 6}, then single ones."""
    y = np.asarray([1, 1, 2, 4, 6, 6])
    z = np.asarray([-1, 1, 1, 10, 11, 13], dtype=np.float32)[:, None]
    tree = gp.build_tree(z, y, 8, draw())
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
def test_a_tree_separates_all_classes_whatever_they_look_like(classes):
    for seed in range(5):
        y = np.repeat(np.arange(classes) * 2, 2)
        z = draw(seed).normal(size=(len(y), 3)).astype(np.float32) * (seed > 0)  # first all alike
        tree = gp.build_tree(z, y, 25, draw(seed))
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
            torch.from_numpy(draw(seed).random((4, 24))),
            torch.from_numpy(np.bincount(y, minlength=25)),
        )
        np.testing.assert_allclose(p.sum(dim=1), 1)
        assert (p > 0).all()


def test_two_means_finds_the_tightest_split():
    x = np.concatenate([draw().normal(size=(5, 3)), 4 + draw(1).normal(size=(3, 3))])
    part = compiled.split(x, np.arange(8), draw().random((10, 2)))
    np.testing.assert_array_equal(part != part[0], [False] * 5 + [True] * 3)


def test_two_means_goes_on_until_no_row_moves_even_if_one_row_is_left_alone():
    # From 0 and 9, the first step assigns 5 to the part of 9; the second returns it to the part of 0.
    x = np.asarray([0, 4, 4, 4, 4, 5, 9], dtype=np.float32)[:, None]
    part = compiled.split(x, np.arange(7), np.asarray([[0.0, 0.9]]))
    np.testing.assert_array_equal(part != part[0], [False] * 6 + [True])


def test_samples_are_halved_and_cut_class_by_class():
    y = np.asarray([2, 0, 2, 2, 0, 1, 0, 0])
    halves = compiled.mark_support(y)
    np.testing.assert_array_equal(halves, [1, 1, 0, 1, 0, 1, 1, 0])
    y = np.repeat([0, 1, 3], [60, 30, 1])
    rows = gp.draw_stratified(y, 16, draw())
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(np.bincount(y[rows]), [10, 5, 0, 1])
    np.testing.assert_array_equal(gp.draw_stratified(y, 91, draw()), np.arange(91))
    assert not np.array_equal(rows, gp.draw_stratified(y, 16, draw(1)))


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


@pytest.mark.parametrize("few", [compiled.MAX_LANE_SAMPLES, 0, None])
def test_the_loss_and_its_gradient_are_those_of_dense_algebra_with_omega_held(few, monkeypatch):
    """Two classes: -log of the mean over chains of E[sigmoid], of every second sample given the others.

    By compiled loops in lanes and in blocks, and by PyTorch.
    """
    net = Tiny()
    x, y = torch.from_numpy(draw(3).normal(size=(12, 3))).float(), torch.tensor([0, 1, 1, 0, 0, 1] * 2)
    weight = net.body.weight.detach().clone()
    if few is None:
        monkeypatch.setenv(backend.SWITCH, "0")
    else:
        for name in ("MAX_LANE_SAMPLES", "MAX_LANE_PREDICTIONS"):
            monkeypatch.setattr(compiled, name, few)
    loss, grads = loss_and_gradients(gp.Prior(chains=2), net, x, y, torch.tensor([[1, -1], [0, 0]]), draw())
    actual = grads["body.weight"]
    assert float(actual.norm()) > 1e-3

    with torch.no_grad():
        omega = omega_of(gp.Prior(chains=2), normalize(x @ weight.T, dim=1), y, draw())
    exact = weight.detach().double().requires_grad_()
    expected = dense_loss(PRIOR, x.double() @ exact.T, y, omega)
    (gradient,) = torch.autograd.grad(expected, exact)
    assert loss == pytest.approx(float(expected.detach()), abs=1e-3)
    torch.testing.assert_close(actual.double(), gradient, rtol=0.01, atol=1e-3)


def omega_of(prior, unit, y, rng):
    """Omega (chains, n) of the first half of samples of two classes, as the loss of a tree with one node draws it."""
    first_half = torch.from_numpy(compiled.mark_support(y.numpy())).bool()
    k = prior.kernel(unit[first_half], unit[first_half]) + prior.jitter * torch.eye(int(first_half.sum()))
    return gp.run_gibbs(k, 1 - 2 * y[first_half], prior.chains, prior.sweeps, draws(rng)).double()


def dense_loss(prior, z, y, omega):
    """-log of the mean over chains of E[sigmoid] of the other half, by inverses and a fine grid, in float64."""
    first_half = torch.from_numpy(compiled.mark_support(y.numpy())).bool()
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


def test_losses_of_a_stack_are_those_of_dense_algebra_client_by_client():
    """Embeddings of any length, one of them zero; another kernel; clients of 12 and 7 samples, of one, and of none."""
    prior, sizes = gp.Prior(scale=3.0, length=0.7, chains=3), [12, 7, 1, 0]
    z = torch.from_numpy(draw(5).normal(size=(4, 13, 4)) * 10.0 ** draw(6).integers(-3, 4, size=(4, 13, 1))).float()
    z[0, 5] = 0
    y = torch.from_numpy(draw(7).integers(0, 2, size=(4, 13)))
    trees = torch.tensor([[1, -1]]).expand(4, 1, 2)
    losses, grads = gp.losses_and_gradients(prior, trees, z, y, sizes, [draw(c) for c in range(4)])
    for client, size in enumerate(sizes[:2]):
        own_y = y[client, :size]
        omega = omega_of(prior, normalize(z[client, :size], dim=1), own_y, draw(client))
        exact = z[client, :size].double().requires_grad_()
        expected = dense_loss(prior, exact, own_y, omega)
        expected.backward()
        assert float(losses[client]) == pytest.approx(float(expected.detach()), abs=1e-3)
        length = z[client, :size].norm(dim=1, keepdim=True).clamp_min(1e-12)  # gradients by directions
        assert float((exact.grad * length).norm()) > 1e-2
        torch.testing.assert_close(grads[client, :size] * length, (exact.grad * length).float(), rtol=0.01, atol=1e-3)
    assert not losses[2:].any()
    assert not grads[2:].any()
    assert not grads[0, 12:].any()
    assert not grads[1, 7:].any()


def test_a_path_of_nodes_adds_up_to_the_class():
    """Three classes: the sum over nodes is that of the two-class losses, each on the samples below its node."""
    torch.manual_seed(0)
    net, x, y = Tiny(), torch.from_numpy(draw(3).normal(size=(12, 3))).float(), torch.tensor([0, 1, 2] * 4)
    tree = torch.tensor([[1, -1, -1], [0, 1, -1]])

    def of(nodes, rows):
        loss, grads = loss_and_gradients(gp.Prior(chains=4000), net, x[rows], y[rows], nodes, draw())
        return torch.cat([torch.tensor([loss]), grads["body.weight"].flatten()])

    every = torch.ones(12, dtype=torch.bool)
    torch.testing.assert_close(of(tree, every), of(tree[:1], every) + of(tree[1:], every), rtol=0, atol=0.015)
    torch.testing.assert_close(of(tree[1:], every), of(tree[1:], y > 0) * 2 / 3, rtol=0, atol=0.015)


def test_each_node_has_draws_of_its_own():
    """Twice the same node: by the same draws its loss would be twice that of one, to rounding."""
    net, x, y = Tiny(), torch.from_numpy(draw(3).normal(size=(12, 3))).float(), torch.tensor([0, 1] * 6)
    once, twice = (
        loss_and_gradients(gp.Prior(chains=4), net, x, y, torch.tensor([[1, -1]] * nodes), draw())[0]
        for nodes in (1, 2)
    )
    assert abs(twice - 2 * once) > 1e-4
    assert twice == pytest.approx(2 * once, rel=0.2)


def test_few_samples_and_many_take_one_loss():
    """80 samples of two classes, in lanes and in blocks, from the same draws."""
    z = torch.from_numpy(draw(1).normal(size=(2, 80, 5))).float()
    y = torch.arange(80).expand(2, 80) % 2
    trees = torch.tensor([[[1, -1]], [[-1, 1]]])

    def result(few):
        with pytest.MonkeyPatch.context() as patch:
            for name in ("MAX_LANE_SAMPLES", "MAX_LANE_PREDICTIONS"):
                patch.setattr(compiled, name, few)
            return gp.losses_and_gradients(PRIOR, trees, z, y, [80, 65], [draw(2), draw(3)])

    for in_lanes, in_blocks in zip(result(100), result(0), strict=True):
        assert float(in_lanes.norm()) > 0.1
        torch.testing.assert_close(in_lanes, in_blocks, rtol=1e-3, atol=1e-4)
    assert not result(0)[1][1, 65:].any()


@pytest.mark.compiled
def test_sampling_in_lanes_and_in_blocks_is_that_by_lapack():
    z = normalize(torch.from_numpy(draw(1).normal(size=(70, 5))).float(), dim=1)
    k, sign = PRIOR.kernel(z, z) + 1e-3 * torch.eye(70), torch.where(z[:, 0] > 0, 1, -1)
    expected = gp.run_gibbs(k, sign, 20, 5, draws(draw(2))).T.numpy()
    for few in (0, 100):
        key = gp.draw_key(draw(2))
        omega, drawn = compiled.gibbs(k.numpy(), sign.numpy(), key, 0, 20, 5, few)
        np.testing.assert_allclose(omega, expected, rtol=2e-3)
        assert drawn == 5 * 2 * 70 * 20


@pytest.mark.parametrize(("n", "m"), [(1, 3), (16, 1), (17, 40), (70, 33), (130, 1), (400, 2)])
def test_blocks_are_dense_algebra(n, m):
    """Means, variances and the gradient of a sum of them by the covariances, in float64."""
    chains = 6
    z = torch.from_numpy(draw(n).normal(size=(n + m, 6)))
    z /= z.norm(dim=1, keepdim=True)
    wide = PRIOR.kernel(z[:n], z)
    wide[:, :n] += 1e-3 * torch.eye(n)
    omega = draw(1).uniform(0.01, 0.3, size=(n, chains)).astype(np.float32)
    labels = draw(2).choice([-1, 1], size=n + m)
    by_mean, by_variance = draw(3).normal(size=(2, m, chains)).astype(np.float32)

    exact, objective = wide.clone().requires_grad_(), 0
    k, cross = exact[:, :n], exact[:, n:]
    moments = []
    for c in range(chains):
        w = torch.from_numpy(omega[:, c]).double()
        inverse = torch.linalg.inv(k + torch.diag(1 / w))
        mean = cross.T @ inverse @ (torch.from_numpy(labels[:n]) / 2 / w)
        variance = 8 - (cross * (inverse @ cross)).sum(dim=0)
        moments.append(torch.stack([mean, variance]))
        objective += (torch.from_numpy(by_mean[:, c]) * mean + torch.from_numpy(by_variance[:, c]) * variance).sum()
    (gradient,) = torch.autograd.grad(objective, exact)
    gradient[:, :n] = (gradient[:, :n] + gradient[:, :n].T) / 2

    actual = wide.float().numpy()
    *factors, mean, variance = compiled.factor_and_predict(actual, labels, omega, 8.0, True)
    for name, value, expected in zip(("mean", "variance"), (mean, variance), torch.stack(moments, dim=2), strict=True):
        np.testing.assert_allclose(value, expected.detach(), atol=2e-4, err_msg=name)
    *_, again, _ = compiled.factor_and_predict(actual, labels, omega, 8.0, False)
    np.testing.assert_array_equal(again, mean)
    compiled.gradient(*factors, omega, by_mean, by_variance, actual)
    np.testing.assert_allclose(actual, gradient, rtol=1e-3, atol=1e-3)


def test_answers_are_those_of_the_posterior(monkeypatch):
    """More samples than lanes take, and more queries than one part has; by LAPACK, from the same draws."""
    z = normalize(torch.from_numpy(draw(1).normal(size=(390, 4))).float(), dim=1)
    sign = torch.where(z[:70, 0] > 0, 1, -1)
    actual = gp.predict_positive(gp.Prior(chains=30), z[:70], sign, z[70:], draw(2))
    posterior = gp.Posterior(gp.Prior(chains=30), z[:70], sign, draws(draw(2)))
    expected = posterior.log_probability(z[70:], torch.ones(320)).double().exp()
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-3)
    assert float(actual.std()) > 0.1


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_a_round_by_hand(mode):
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


def test_rounds_bring_the_loss_down():
    run = worlds.run("pfedgp", participation=1.0, rounds=12, lr=0.05)
    worlds.play("pfedgp", run)
    first, last = (np.mean([loss for loss, _ in losses]) for losses in (run.notes.losses[:12], run.notes.losses[-12:]))
    assert last < first - 0.1


def test_without_rounds_the_answers_are_those_of_gps_on_the_first_embeddings():
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
        posterior = gp.Posterior(gp.Prior(chains=30), z["train"][sign != 0], sign[sign != 0], draws(generator))
        chains = [
            dense(z["train"][sign != 0].numpy(), sign[sign != 0].numpy(), omega.double().numpy(), z["test"].numpy())
            for omega in posterior.omega
        ]
        positive.append(np.mean([[integral(m, v) for m, v in zip(*chain, strict=True)] for chain in chains], axis=0))
    expected = np.ones((5, 3))
    for node, p in zip(tree, positive, strict=True):
        expected *= np.where(node > 0, p[:, None], np.where(node < 0, 1 - p[:, None], 1))
    np.testing.assert_allclose(actual["test"][:5], expected, atol=1e-3)


def test_clients_with_little_answer_by_the_rule_of_succession():
    data = worlds.federation()
    run = worlds.run("pfedgp")
    p = np.split(
        worlds.answers("pfedgp", run, worlds.play("pfedgp", run, last=0))["test"], np.cumsum(data.sizes("test"))[:-1]
    )
    # Client 4 trains on 8 samples of class 1 among three classes.
    np.testing.assert_allclose(p[4], np.tile([1 / 11, 9 / 11, 1 / 11], (3, 1)), rtol=1e-6)
    nothing = torch.empty(0, 200), torch.empty(0, dtype=torch.int64)
    empty = gp.predict_classes(PRIOR, *nothing, torch.ones(2, 200), 3, 1000, draw())
    np.testing.assert_allclose(empty, 1 / 3)
    sample = torch.ones(1, 200), torch.tensor([2])
    one = gp.predict_classes(PRIOR, *sample, torch.ones(2, 200), 3, 1000, draw())
    np.testing.assert_allclose(one, [[1 / 4, 1 / 4, 2 / 4]] * 2)


def test_capacity_bounds_what_is_conditioned_on(monkeypatch):
    sizes = []

    def watched(prior, z, *rest, predict=gp.predict_positive):
        sizes.append(len(z))
        return predict(prior, z, *rest)

    monkeypatch.setattr(gp, "predict_positive", watched)
    run = worlds.run("pfedgp", options={"capacity": 5})
    worlds.answers("pfedgp", run, {"body": parameters.part(run.init, "body.")})
    assert max(sizes) == 5


def test_divergence_names_the_client():
    run = worlds.run("pfedgp", participation=1.0, lr=1e38)
    with pytest.raises(ComputationError, match="clients 0, 2, 3, 6 became non-finite"):
        worlds.play("pfedgp", run)


def test_a_model_without_a_body_is_refused():
    run = worlds.run("pfedgp")
    run.init = {"head.weight": torch.zeros(3, 5)}
    with pytest.raises(UsageError, match="body"):
        worlds.play("pfedgp", run)


@pytest.mark.compiled
def test_trees_and_losses_without_acceleration_are_those_of_compiled_loops(monkeypatch):
    x, starts = draw(5).normal(size=(9, 4)), draw(6).random((8, 10, 2))
    for rows in (x, 0 * x, x[[0] * 5 + [1] * 4]):  # rows that are alike are cut in the middle
        np.testing.assert_array_equal(gp.split_classes.__wrapped__(rows, starts), compiled.split_classes(rows, starts))
    many, starts = draw(9).random((60, 1)), draw(10).random((59, 1, 2))  # it takes several steps from a single start
    np.testing.assert_array_equal(gp.split_classes.__wrapped__(many, starts), compiled.split_classes(many, starts))
    z = torch.from_numpy(draw(7).normal(size=(2, 14, 3))).float()
    y = torch.from_numpy(draw(8).integers(0, 2, size=(2, 14)))
    trees, sizes = torch.tensor([[1, -1]]).expand(2, 1, 2), [14, 9]
    expected = gp.losses_and_gradients(PRIOR, trees, z, y, sizes, [draw(c) for c in range(2)])
    with monkeypatch.context() as patch:
        patch.setenv(backend.SWITCH, "0")
        actual = gp.losses_and_gradients(PRIOR, trees, z, y, sizes, [draw(c) for c in range(2)])
    for own, other in zip(actual, expected, strict=True):
        assert float(other.norm()) > 0.1
        torch.testing.assert_close(own, other, rtol=0.01, atol=1e-3)
