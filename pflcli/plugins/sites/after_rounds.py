"""The rounds of a backbone, and what clients exchange after them for a method on its representations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pflcli.core.datasets import SPLITS
from pflcli.core.federation.layers import represent_by_layer
from pflcli.core.federation.predictor import Predictor
from pflcli.core.federation.run import LINKS, Run, RunInputs
from pflcli.core.knn.embedded import Embedded
from pflcli.core.methods import Method, State
from pflcli.core.parameters import Params
from pflcli.core.simulation import loop
from pflcli.core.simulation.simulate import embed
from pflcli.plugins.sites.places import AtServer


@dataclass(frozen=True)
class Rest:
    """The method that follows the rounds, how to ``build`` its run, and the ``layer`` that represents samples."""

    name: str
    method: Method
    build: Callable[[RunInputs], Run]
    layer: str | None = None


class AfterRounds(Method):
    """A backbone whose clients exchange, before they predict, what the setup of another method sends."""

    KIND, NEEDS, PAPER, YEAR, Config = "server", (), "", 0, object  # those of the backbone take their place

    def __init__(self, backbone: Method, rest: Rest) -> None:
        """Take over what the file of the ``backbone`` says."""
        vars(self).update({name: getattr(backbone, name) for name in Method.__annotations__})
        self._backbone, self._rest = backbone, rest

    def setup(self, run: Run) -> State:
        """Return the state of the backbone before the first round."""
        return self._backbone.setup(run)

    def train_round(self, run: Run, state: State, t: int) -> State:
        """Return the state of the backbone after a round."""
        return self._backbone.train_round(run, state, t)

    def personalize(self, run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
        """Exchange what the other method needs, and return its predictor."""
        rest, model = self._rest, state["global"]
        inputs = replace(run.inputs, backbone=model, embeddings=embed_by_layer(run, model, rest.layer))
        follows = rest.build(inputs)
        follows.traffic = run.traffic
        after = loop.set_up(follows, rest.name, rest.method).state
        with follows.personalizing():
            return rest.method.personalize(follows, after, clients)


def sends_after_rounds(method: Method) -> bool:
    """Return whether clients exchange something before they predict by a method on a backbone."""
    return bool(method.NEEDS) and not method.has_rounds and bool(LINKS[method.KIND])


def embed_by_layer(run: Run, model: Params, layer: str | None) -> Mapping[str, Embedded]:
    """Return the embeddings of a run's samples by a backbone, of the input of the head or the output of a ``layer``.

    At the server of a deployment there are none.
    """
    run = replace(run, inputs=replace(run.inputs, backbone=model))
    if isinstance(run.inputs.place, AtServer):
        nothing = np.zeros(0, dtype=np.int64)
        logits, z = (value.numpy() for value in run.engine.infer(model, nothing, features=True))
        if layer is not None:
            z = represent_by_layer(run, nothing, layer).numpy()
        offsets = np.zeros(len(run.clients) + 1, dtype=np.int64)
        return dict.fromkeys(SPLITS, Embedded(z, logits, run.federation.y[:0].numpy(), offsets))
    embedded = embed(run, model)
    if layer is None:
        return embedded
    rows = {split: run.federation.rows_of(run.clients, split) for split in SPLITS}
    return {
        split: replace(each, z=represent_by_layer(run, rows[split], layer).numpy()) for split, each in embedded.items()
    }
