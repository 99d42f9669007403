"""With ``--apart`` no bit of a client depends on other clients, and results are the usual ones up to rounding."""

from __future__ import annotations

import numpy as np
import pytest

from pflcli.core import registry
from pflcli.workflow.admission import small_federation as small

WITHOUT_PRODUCTS = {"alone", "alone-pooled", "constant", "persistence"}
CLIENTS = np.asarray([0, 2, 3, 4, 6])


def make_run(method="fedavg", *, apart, **settings):
    return small.make_run(method, apart=apart, participation=1.0, **settings)


def compute(run, clients):
    """Return what the engine and the run compute for clients, by name, with a row or an array for each client."""
    with run.engine.training():
        parts = list(run.local_sgd(clients, run.init, t=0))
        rows = [run.federation.rows(int(client), "train") for client in clients]
        loss = run.loss_per_group(run.backbone, rows)
    trained = {name: np.concatenate([part.params[name].numpy() for part in parts]) for name in run.init}
    sizes = np.cumsum(run.federation.sizes("train")[clients])[:-1]
    logits = run.engine.infer(run.backbone, np.concatenate(rows))[0].numpy()
    return {**trained, "loss": loss, "logits": np.split(logits, sizes)}


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_no_bit_of_a_client_depends_on_other_clients(mode):
    run = make_run(apart=True, mode=mode)
    together = compute(run, CLIENTS)
    for place in range(len(CLIENTS)):
        alone = compute(run, CLIENTS[place : place + 1])
        for name, values in together.items():
            assert np.asarray(values[place]).tobytes() == np.asarray(alone[name][0]).tobytes(), name


def test_clients_predict_by_their_own_models():
    models = make_run(apart=True).initial_models(len(CLIENTS))
    apart, usual = (make_run(apart=each).engine.represent(CLIENTS, models, "train") for each in (True, False))
    assert np.allclose(apart, usual, atol=1e-6)
    assert len({row.tobytes() for row in apart.numpy()}) == len(CLIENTS)


def test_stacks_have_one_client():
    run = make_run(apart=True)
    assert [len(part.clients) for part in run.local_sgd(CLIENTS, run.init, t=0)] == [1] * len(CLIENTS)
    assert [len(chunk) for chunk in run.client_chunks(CLIENTS)] == [1] * len(CLIENTS)


@pytest.mark.parametrize("method", sorted(set(registry.names("methods")) - WITHOUT_PRODUCTS))
def test_results_are_the_usual_ones_up_to_rounding(method):
    predicted = []
    for apart in (True, False):
        run = make_run(method, apart=apart)
        predicted.append(small.predict(method, run, small.play_rounds(method, run)))
    for split, p in predicted[0].items():
        assert np.allclose(p, predicted[1][split], atol=2e-3), method
