"""The gradients of HAM by compiled loops."""

from __future__ import annotations

from torch import Tensor

from pflcli import parameters
from pflcli.accelerated.rules import ham_loops
from pflcli.engine.gradients import Gradients, OuterProducts, StackedBatch, StackedNetwork, mixture_gradient
from pflcli.methods.parts.ham import unit
from pflcli.parameters import Stacked


def gradients(network: StackedNetwork, params: Stacked, batch: StackedBatch) -> tuple[Tensor, Gradients]:
    """Do as ``gradients`` by compiled loops, so that a client's last bits depend on no other in the stack."""
    shared, names = batch.shared, ("q1", "k1", "q2", "k2")
    theta = tuple(params[name].contiguous().numpy() for name in names)
    points, me, prior = shared["points"], batch.own["me"], batch.own["prior"]
    (a, n), r = me.shape, points.shape[1]
    vectors, length, first, second = (points.new_empty(a, *shape) for shape in ((6, r), (), (n,), (3,)))
    share, by_vectors, penalty = (points.new_empty(a, *shape) for shape in ((n + 1,), (4, r), ()))
    read = theta, *(value.contiguous().numpy() for value in (points, unit(points), me))
    outputs = [value.numpy() for value in (vectors, length, first, second)]
    ham_loops.forward(*read, shared["slots"].numpy(), *outputs, share.numpy())
    losses, by_share = mixture_gradient(network, share, parameters.unprefixed(shared, "basis."), batch)
    constants = prior.contiguous().numpy(), float(shared["rho"])
    ham_loops.backward(*read, *constants, *outputs, by_share.numpy(), by_vectors.numpy(), penalty.numpy())
    own = vectors[:, 0]
    of_queries = (OuterProducts(by_vectors[:, 2 * layer], own) for layer in range(2))
    of_keys = (OuterProducts(vectors[:, 2 + 2 * layer], by_vectors[:, 2 * layer + 1]) for layer in range(2))
    by_theta = {f"q{layer}": value for layer, value in enumerate(of_queries, 1)}
    by_theta |= {f"k{layer}": value for layer, value in enumerate(of_keys, 1)}
    return losses + penalty, {name: by_theta[name] for name in params}
