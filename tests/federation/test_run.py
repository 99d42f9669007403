"""What a run offers to methods: initial models, and the training of clients."""

from __future__ import annotations

import numpy as np
import pytest

import worlds
from pflcli import parameters
from pflcli.errors import ComputationError
from pflcli.federation.attendance import Attendance, Unanswered


def test_a_run_without_further_models_has_the_common_one():
    run = worlds.run()
    run.draw_model = None
    assert worlds.same(run.initial_models(1), parameters.stack([run.init]))
    with pytest.raises(ComputationError, match="only one initial model"):
        run.initial_models(2)


def test_no_sum_is_computed_in_a_round_that_nobody_answers():
    run = worlds.run()
    run.attendance = Attendance(selected=np.asarray([0, 2]), dropped=np.asarray([0, 2]))
    with pytest.raises(Unanswered):
        run.local_sgd([], run.init, t=0).total(lambda models: models)


def test_clients_that_have_trained_are_recorded():
    run = worlds.run()
    for part in run.local_sgd([6, 0, 3], run.init, t=0):
        assert run.trained.issuperset(part.clients.tolist())
    assert run.trained == {0, 3, 6}
