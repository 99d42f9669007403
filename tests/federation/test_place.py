"""What a simulation delivers, collects, relays and serves, and the bytes that it counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pflcli.core import parameters
from pflcli.core.errors import ComputationError, UnsuitedError
from pflcli.core.federation.run import Package
from pflcli.core.parameters import TrainedClients
from pflcli.workflow.admission import small_federation as small

SOME = np.asarray([0, 2])
BYTES = 8
"""The bytes of ``ONE``."""
ONE = {"v": torch.zeros(2)}


def deliver(run, make, clients=SOME, like=ONE, **options):
    """Return what clients receive, by client, with how many share a package."""
    return [(ids.tolist(), package) for ids, package in run.deliver(make, clients, like, **options)]


def test_a_package_for_all_reaches_the_clients_and_counts_once_for_each():
    run = small.make_run("fedavg")
    package = {"v": torch.tensor([1.0, 2.0])}
    assert deliver(run, lambda: [(None, package)]) == [([0, 2], package)]
    assert run.traffic == {"up": 0, "down": 2 * BYTES, "peer": 0}


def test_packages_are_made_one_after_the_other_as_clients_receive_them():
    run, made = small.make_run("fedavg"), []

    def make():
        for client in SOME:
            made.append(int(client))
            yield np.asarray([client]), {"v": torch.full((2,), float(client))}

    received = run.deliver(make, SOME, ONE)
    assert made == []
    ids, package = next(received)
    assert (ids.tolist(), package["v"].tolist(), made) == ([0], [0.0, 0.0], [0])
    assert [int(ids[0]) for ids, _ in received] == [2]
    assert run.traffic["down"] == 2 * BYTES


def test_rows_count_as_many_bytes_as_they_have():
    run = small.make_run("fedavg")
    rows: Package = (SOME, {"v": torch.arange(4.0).reshape(2, 2)})
    ((ids, package),) = deliver(run, lambda: [rows], rows=True)
    assert ids == [0, 2]
    assert package["v"].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert run.traffic["down"] == 2 * BYTES


def test_a_delivery_that_does_not_count_is_allowed_while_clients_personalize():
    run = small.make_run("fedavg")
    with run.personalizing():
        assert deliver(run, lambda: [(None, ONE)], counted=False) == [([0, 2], ONE)]
        with pytest.raises(ComputationError, match="while personalizing"):
            deliver(run, lambda: [(None, ONE)])
    assert sum(run.traffic.values()) == 0


def test_the_server_receives_what_clients_send_in_their_order():
    run = small.make_run("fedavg")
    parts = [
        TrainedClients.untrained(np.asarray([client]), {"v": torch.full((1, 2), float(client)), "more": torch.ones(1)})
        for client in (2, 0)
    ]
    received = [*run.collect(iter(parts), ONE)]
    assert [(part.clients.tolist(), sorted(part.params)) for part in received] == [([2], ["v"]), ([0], ["v"])]
    assert run.traffic["up"] == 2 * BYTES
    (part, _) = run.collect(iter(parts), ONE, also={"more": torch.tensor(0.0)}, counted=False)
    assert sorted(part.params) == ["more", "v"]
    assert run.traffic["up"] == 2 * BYTES


def test_an_update_goes_through_the_upload_steps_from_the_model_that_its_client_received():
    """Clients move by (3, 4), of length 5; clip:1.0 makes it (0.6, 0.8)."""
    run = small.make_run("fedavg", upload=("clip:1.0",))
    start = {"v": torch.tensor([10.0, 20.0])}
    part = TrainedClients.untrained(SOME, {"v": torch.tensor([[13.0, 24.0], [13.0, 24.0]]), "note": torch.ones(2)})
    for given in (start, lambda part: parameters.repeat(start, len(part.clients))):
        before = run.traffic["up"]
        (received,) = run.collect([part], ONE, start=given, also={"note": torch.tensor(0.0)})
        assert torch.allclose(received.params["v"], torch.tensor([[10.6, 20.8]] * 2))
        assert received.params["note"].tolist() == [1.0, 1.0]
        assert run.traffic["up"] - before == 2 * BYTES
    with pytest.raises(UnsuitedError, match=r"--upload clip:1\.0 does not apply"):
        next(run.collect([part], ONE))


def test_a_record_is_received_without_bytes():
    run = small.make_run("fedavg")
    (received,) = run.collect([TrainedClients.untrained(SOME, {"v": torch.ones(2, 2)})], ONE, is_record=True)
    assert received.params["v"].tolist() == [[1, 1], [1, 1]]
    assert run.traffic["up"] == 0


def test_a_simulation_knows_all_clients_serves_and_has_all_rows():
    run = small.make_run("gossip")
    table = run.table(ONE)
    run.relay(table, {0: np.asarray([2, 3]), 4: np.asarray([0])})
    assert len(table.written) == 0
    assert run.traffic["peer"] == 3 * BYTES
    assert run.participants().tolist() == small.PARTICIPANTS
    assert run.everyone(SOME) is SOME
    assert run.declared.tolist() == [train for train, _, _ in small.SIZES]
    assert run.serve(lambda: 1, 2) == 1


def test_a_download_is_a_delivery_to_all():
    run = small.make_run("fedavg")
    assert run.download(ONE, SOME) is ONE
    assert run.traffic["down"] == 2 * BYTES
    assert run.download(ONE, SOME[:0]) is ONE
    assert run.traffic["down"] == 2 * BYTES
