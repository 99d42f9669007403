"""Compiled steps of single methods, by the module and the name of their gradient rule."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli import parameters
from pflcli.accelerated.chain import Chain, Minibatches


def name(rule: object) -> str:
    """Return the name under which a rule's steps are registered."""
    kind = type(rule)
    return f"{kind.__module__.rpartition('.')[2]}.{kind.__qualname__}"


def _pfedme(rule: Any, chain: Chain, batches: Minibatches) -> NDArray[np.float64]:
    """Take steps of plain SGD client by client, so that a client's models stay in the cache."""
    from pflcli.accelerated.rules import pfedme_loops

    losses, theta = np.empty(len(batches.place)), tuple(np.empty_like(value[:1]) for value in chain.parameters)
    none = (np.empty((1, 0), np.float32),) * len(theta)
    minibatches = batches.place, batches.x, batches.y, batches.weight, batches.rate
    options = rule.lam, rule.rate, rule.count
    pfedme_loops.steps(chain.layers, chain.parameters, theta, chain.trained, *minibatches, *options, none, losses)
    return losses


def _fedproto(rule: Any, chain: Chain, batches: Minibatches) -> NDArray[np.float64]:
    """Take steps of plain SGD in compiled loops."""
    from pflcli.accelerated.rules import fedproto_loops

    losses, none = np.empty(len(batches.place)), (np.empty((1, 0), np.float32),) * len(chain.parameters)
    heads = sum(name.startswith("head.") and value.ndim == 3 for name, value in chain.models.items())
    shared = chain.shared["mean"].numpy(), chain.shared["known"].numpy(), float(chain.shared["lam"])
    minibatches = batches.place, batches.x, batches.y, batches.weight, batches.rate
    models = chain.layers, chain.parameters, chain.trained, len(chain.layers) - heads
    fedproto_loops.steps(*models, *shared, *minibatches, none, losses)
    return losses


def _fedrod(rule: Any, chain: Chain, batches: Minibatches) -> NDArray[np.float64]:
    """Take steps of plain SGD in compiled loops."""
    from pflcli.accelerated.rules import fedrod_loops

    losses, none = np.empty(len(batches.place)), (np.empty((1, 0), np.float32),) * len(chain.parameters)
    own = parameters.unprefixed(chain.models, "own:")
    bias = own["head.bias"].numpy() if "head.bias" in own else none[0]
    heads = own["head.weight"].flatten(1).numpy(), bias, chain.own["offsets"].numpy()
    minibatches = batches.place, batches.x, batches.y, batches.weight, batches.rate
    fedrod_loops.steps(chain.layers, chain.parameters, chain.trained, *heads, *minibatches, none, losses)
    return losses


def _feddbe(rule: Any, chain: Chain, batches: Minibatches) -> NDArray[np.float64]:
    """Take steps of plain SGD in compiled loops."""
    from pflcli.accelerated.rules import feddbe_loops

    losses, none = np.empty(len(batches.place)), (np.empty((1, 0), np.float32),) * len(chain.parameters)
    own = chain.models["memory"].numpy(), chain.shared["consensus"].numpy(), float(chain.shared["kappa"])
    minibatches = batches.place, batches.x, batches.y, batches.weight, batches.rate
    feddbe_loops.steps(chain.layers, chain.parameters, chain.trained, *own, *minibatches, none, losses)
    return losses


STEPS = {"pfedme._Envelope": _pfedme, "fedproto._Rule": _fedproto, "fedrod._Rule": _fedrod, "feddbe._Rule": _feddbe}
"""Functions that take a rule's steps of plain SGD one after the other, and return their losses (t,)."""
