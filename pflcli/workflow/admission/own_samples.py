"""Whether what clients train and predict depends on their own samples, and on what they received, alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from pflcli.core import methods
from pflcli.core.datasets import SPLITS
from pflcli.core.federation.run import Run
from pflcli.core.parameters import TrainedClients
from pflcli.workflow.admission import small_federation as small

_CLIENTS = (0, 6)
"""The clients that are watched while the samples of all others are replaced."""


def require_own_samples(method: str, options: Mapping[str, Any], late: Sequence[int] = ()) -> None:
    """Raise BrokenLawError if what clients train and predict changes with the samples of all others.

    They train in the round after the last one, and in ``late`` ones.
    """
    data, code = small.make_federation(), methods.load(method)
    plan: dict[str, Any] = {"options": options, "participation": 1.0, "mode": "loop", "rounds": 2}
    state = small.play_rounds(method, small.make_run(method, data=data, **plan))
    for client in _CLIENTS:
        others = np.setdiff1d(data.clients, [client])
        replaced = small.replace_samples(data, *SPLITS, clients=others)
        seen: list[tuple[Any, Any]] = []
        for samples in (data, replaced):
            run = small.make_run(method, data=samples, **plan)
            trained = record_training(run, client)
            for t in (run.settings.rounds, *late) if code.has_rounds else ():
                code.train_round(run, copy.deepcopy(state), t)
            # Peers exchange models within a round: what follows the first training depends on what they sent.
            sent = trained[:1] if code.KIND == "peer" else [*trained]
            answers = small.predict(method, run, copy.deepcopy(state), np.asarray([client]))
            seen.append((sent, answers))
        (sent, answers), (other_sent, other_answers) = seen
        depends = "depends on other clients' samples"
        first, second = ({str(number): params for number, params in enumerate(each)} for each in (sent, other_sent))
        small.require_equal(first, second, f"what client {client} trains in a round {depends}")
        small.require_equal(answers, other_answers, f"what client {client} predicts {depends}")


def record_training(run: Run, client: int) -> list[dict[str, torch.Tensor]]:
    """Return a list that gets the parameters of a client each time that it has trained."""
    recorded: list[dict[str, torch.Tensor]] = []
    train = run.engine.local_sgd

    def watched(*args: Any, **kwargs: Any) -> Iterator[TrainedClients]:
        for part in train(*args, **kwargs):
            for place in np.flatnonzero(part.clients == client).tolist():
                recorded.append({name: value[place].clone() for name, value in part.params.items()})
            yield part

    run.engine.local_sgd = watched  # type: ignore[method-assign]
    return recorded
