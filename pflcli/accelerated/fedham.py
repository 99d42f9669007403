"""HAM, the attention of FedHAM, in compiled loops: a client's attention, and its gradients by hand.

``methods/parts/ham.py`` is the reference. What a client gets depends on no other, to the bit.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from pflcli import parameters
from pflcli.accelerated.compiler import Array, Arrays, compiled, inlined
from pflcli.engine.gradients import Gradients, OuterProducts, StackedBatch, StackedNetwork
from pflcli.methods.parts.ham import unit
from pflcli.parameters import Stacked


@inlined
def _dot(a: Array, b: Array) -> float:
    total = a.dtype.type(0)
    for i in range(len(a)):
        total += a[i] * b[i]
    return float(total)


@inlined
def _add_scaled(to: Array, factor: float, values: Array) -> None:
    scale = to.dtype.type(factor)
    for i in range(len(to)):
        to[i] += scale * values[i]


@inlined
def _times(matrix: Array, vector: Array, out: Array) -> None:
    for i in range(len(out)):
        out[i] = _dot(matrix[i], vector)


@inlined
def _turned_times(matrix: Array, vector: Array, out: Array) -> None:
    out[:] = 0
    for i in range(len(matrix)):
        _add_scaled(out, vector[i], matrix[i])


@inlined
def _softmax(logits: Array, allowed: Array) -> None:
    """Replace logits by the softmax of those that are allowed, and the others by zero."""
    top, total = -np.inf, 0.0
    for j in range(len(logits)):
        top = max(top, logits[j]) if allowed[j] else top
    for j in range(len(logits)):
        logits[j] = math.exp(logits[j] - top) if allowed[j] else 0.0
        total += logits[j]
    for j in range(len(logits)):
        logits[j] /= max(total, 1e-30)


@inlined
def _softmax_backward(weights: Array, grads: Array) -> None:
    """Replace gradients by the weights of a softmax by those by its logits."""
    mean = _dot(weights, grads)
    for j in range(len(weights)):
        grads[j] = weights[j] * (grads[j] - mean)


@compiled
def attention_forward(
    theta: Arrays,
    sketches: Array,
    z: Array,
    me: Array,
    slots: Array,
    vectors: Array,
    length: Array,
    first: Array,
    second: Array,
    share: Array,
) -> None:
    """Write clients' attention ``first`` (a, n) and ``second`` (a, 3), and each model's ``share`` (a, n + 1).

    ``theta`` are q1, k1, q2 and k2 (a, r, r); ``sketches`` (n + 1, r), their directions ``z``, ``me`` (a, n) and
    ``slots`` (3,) are those of ``ham.scores``. ``vectors`` (a, 6, r) become the client's direction, that of x^a, whose
    sketch has the ``length`` (a,), and per layer q z and k^T q z.
    """
    n, scale = me.shape[1], 1 / math.sqrt(z.shape[1])
    for client in range(len(me)):
        own, enhanced = vectors[client, 0], vectors[client, 1]
        a, b, others = first[client], second[client], me[client] == 0
        own[:] = 0
        for j in range(n):
            _add_scaled(own, me[client, j], z[j])
        for layer in range(2):
            middle, query = vectors[client, 2 + 2 * layer], vectors[client, 3 + 2 * layer]
            _times(theta[2 * layer][client], own, middle)
            _turned_times(theta[2 * layer + 1][client], middle, query)
        for j in range(n):
            a[j] = scale * _dot(z[j], vectors[client, 3])
        _softmax(a, others)
        rest = 1.0
        for j in range(n):
            rest -= a[j]
        enhanced[:] = 0
        _add_scaled(enhanced, rest, sketches[n])
        for j in range(n):
            _add_scaled(enhanced, a[j], sketches[j])
        length[client] = max(math.sqrt(_dot(enhanced, enhanced)), 1e-12)
        for i in range(len(enhanced)):
            enhanced[i] /= length[client]
        for slot, key in enumerate((own, enhanced, z[n])):
            b[slot] = scale * _dot(key, vectors[client, 5])
        _softmax(b, slots > 0)
        for j in range(n):
            share[client, j] = b[0] * me[client, j] + b[1] * a[j]
        share[client, n] = b[2] + b[1] * rest


@compiled
def attention_backward(
    theta: Arrays,
    sketches: Array,
    z: Array,
    me: Array,
    prior: Array,
    rho: float,
    vectors: Array,
    length: Array,
    first: Array,
    second: Array,
    by_share: Array,
    by_vectors: Array,
    penalty: Array,
) -> None:
    """Write the gradients by q z and k^T q z, per layer, into ``by_vectors`` (a, 4, r), for those by the shares.

    ``penalty`` (a,) becomes rho KL(prior || first attention), whose gradients are among them; ``prior`` (a, n). The
    other arguments are those of ``attention_forward``.
    """
    n, scale, tiny = me.shape[1], 1 / math.sqrt(z.shape[1]), np.finfo(np.float32).tiny
    by_first, by_second, by_enhanced = np.empty(n, z.dtype), np.empty(3, z.dtype), np.empty(z.shape[1], z.dtype)
    for client in range(len(me)):
        a, b, by, enhanced = first[client], second[client], by_share[client], vectors[client, 1]
        by_second[0], by_second[1], by_second[2] = _dot(me[client], by[:n]), by[n], by[n]
        for j in range(n):
            by_second[1] += a[j] * (by[j] - by[n])
        _softmax_backward(b, by_second)
        by_query = by_vectors[client, 3]
        by_query[:] = 0
        for slot, key in enumerate((vectors[client, 0], enhanced, z[n])):
            _add_scaled(by_query, scale * by_second[slot], key)
        by_enhanced[:] = 0
        _add_scaled(by_enhanced, scale * by_second[1] / length[client], vectors[client, 5])
        _add_scaled(by_enhanced, -_dot(by_enhanced, enhanced), enhanced)  # only its direction counts
        penalty[client] = 0
        for j in range(n):
            by_first[j] = b[1] * (by[j] - by[n]) + _dot(by_enhanced, sketches[j]) - _dot(by_enhanced, sketches[n])
            if prior[client, j] > 0:
                penalty[client] += rho * prior[client, j] * math.log(prior[client, j] / max(a[j], tiny))
                by_first[j] -= rho * prior[client, j] / a[j] if a[j] >= tiny else 0
        _softmax_backward(a, by_first)
        by_query = by_vectors[client, 1]
        by_query[:] = 0
        for j in range(n):
            _add_scaled(by_query, scale * by_first[j], z[j])
        for layer in range(2):
            _times(theta[2 * layer + 1][client], by_vectors[client, 2 * layer + 1], by_vectors[client, 2 * layer])


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
    attention_forward(*read, shared["slots"].numpy(), *outputs, share.numpy())
    losses, by_share = network.mixture_gradient(share, parameters.unprefixed(shared, "basis."), batch)
    constants = prior.contiguous().numpy(), float(shared["rho"])
    attention_backward(*read, *constants, *outputs, by_share.numpy(), by_vectors.numpy(), penalty.numpy())
    own = vectors[:, 0]
    of_queries = (OuterProducts(by_vectors[:, 2 * layer], own) for layer in range(2))
    of_keys = (OuterProducts(vectors[:, 2 + 2 * layer], by_vectors[:, 2 * layer + 1]) for layer in range(2))
    by_theta = {f"q{layer}": value for layer, value in enumerate(of_queries, 1)}
    by_theta |= {f"k{layer}": value for layer, value in enumerate(of_keys, 1)}
    return losses + penalty, {name: by_theta[name] for name in params}
