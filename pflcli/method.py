"""What files of methods, models, datasets, schemes, upload steps and aggregators import.

A file writes ``from pflcli.method import Predictor, Run``, wherever pfl defines these names. A name is imported when a
file asks for it, so that a method loads only what it uses.

>>> from dataclasses import dataclass
>>> from pflcli import Federation, simulate
>>> from pflcli.method import Predictor, Run
>>> class Mine:
...     KIND, NEEDS, PAPER, YEAR = "server", (), "Mine", 2026
...     @dataclass(frozen=True)
...     class Config:
...         pass
...     @staticmethod
...     def setup(run):
...         return {"global": run.initial_model()}
...     @staticmethod
...     def train_round(run, state, t):
...         cohort = run.cohort(t)
...         sent = run.download(state["global"], cohort)
...         return {"global": run.average(run.local_sgd(cohort, sent, t=t), sent)}
...     @staticmethod
...     def personalize(run, state, clients):
...         return run.predictor(clients, state["global"])
>>> simulate(Mine, Federation.from_dataset("writers", clients=6), model="logistic", rounds=2, quiet=True).method
'Mine'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pflcli.core import registry

if TYPE_CHECKING:
    from pflcli.core import parameters as parameters
    from pflcli.core import rng as rng
    from pflcli.core.datasets import Samples as Samples
    from pflcli.core.engine import backend as backend
    from pflcli.core.engine import model_algebra as model_algebra
    from pflcli.core.engine.engine import ServerDiverged as ServerDiverged
    from pflcli.core.engine.gradients import Pass as Pass
    from pflcli.core.engine.gradients import StackedBatch as StackedBatch
    from pflcli.core.engine.gradients import StackedNetwork as StackedNetwork
    from pflcli.core.engine.local_sgd import Batch as Batch
    from pflcli.core.engine.local_sgd import Model as Model
    from pflcli.core.engine.local_sgd import steps_per_epoch as steps_per_epoch
    from pflcli.core.errors import UnsuitedError as UnsuitedError
    from pflcli.core.errors import UsageError as UsageError
    from pflcli.core.federation.aggregators import Uploads as Uploads
    from pflcli.core.federation.attendance import Diverged as Diverged
    from pflcli.core.federation.predictor import ClientModel as ClientModel
    from pflcli.core.federation.run import Package as Package
    from pflcli.core.federation.run import Packages as Packages
    from pflcli.core.federation.run import Predictor as Predictor
    from pflcli.core.federation.run import Run as Run
    from pflcli.core.knn import voting as voting
    from pflcli.core.knn.embedded import Embedded as Embedded
    from pflcli.core.knn.indexes import find_nearest as find_nearest
    from pflcli.core.knn.indexes import flat_indexes as flat_indexes
    from pflcli.core.knn.spaces import AUTO as AUTO
    from pflcli.core.knn.spaces import Space as Space
    from pflcli.core.knn.spaces import apply_head as apply_head
    from pflcli.core.knn.spaces import list_spaces as list_spaces
    from pflcli.core.knn.stores import ClientStore as ClientStore
    from pflcli.core.knn.stores import Neighbours as Neighbours
    from pflcli.core.knn.stores import NeighbourVote as NeighbourVote
    from pflcli.core.knn.stores import Stores as Stores
    from pflcli.core.knn.stores import leave_out as leave_out
    from pflcli.core.knn.stores import select_client as select_client
    from pflcli.core.methods import Method as Method
    from pflcli.core.models import Net as Net
    from pflcli.core.parameters import Mean as Mean
    from pflcli.core.parameters import Params as Params
    from pflcli.core.parameters import Stacked as Stacked
    from pflcli.core.parameters import TrainedClients as TrainedClients
    from pflcli.core.parameters import on_cpu as on_cpu
    from pflcli.core.parameters import repeat as repeat
    from pflcli.core.parameters import similarity as similarity
    from pflcli.core.parameters.model_table import ModelTable as ModelTable
    from pflcli.core.schemes import Indices as Indices
    from pflcli.core.schemes import require_clients as require_clients


def __getattr__(name: str) -> Any:
    """Import one of the names above; raises AttributeError for every other name."""
    homes = registry.read_homes()
    if name not in homes:
        raise AttributeError(f"module 'pflcli.method' has no attribute '{name}'")
    value = getattr(__import__(homes[name], fromlist=[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *registry.read_homes()})
