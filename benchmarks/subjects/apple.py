"""Apple's pfl (pfl-research): FederatedAveraging on its SimulatedBackend; with several workers, under torchrun.

Users hold tensors, batched by its own ``Dataset``, and are shuffled as they are made. Its evaluation of every client
before and after training is off but in the first round, which is not counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional

from subjects import work


class Classifier(nn.Module):
    """The model with the two functions that PyTorchModel asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a training batch."""
        self.train()
        return functional.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Return the loss of an evaluation batch."""
        self.eval()
        return {"loss": Weighted(functional.cross_entropy(self.net(x), y, reduction="sum").item(), len(y))}


class Rounds(TrainingProcessCallback):
    """Tells the clock when rounds end, and the next begin."""

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Begin the first round."""
        self.clock = work.Clock()
        self.clock.begin()
        return Metrics()

    def after_central_iteration(self, *args: Any, **kwargs: Any) -> tuple[bool, Metrics]:
        """End a round."""
        self.clock.end()
        self.clock.begin()
        return False, Metrics()


def main() -> None:
    """Train and report."""
    task = work.Task.from_command_line()
    torch.set_num_threads(task.threads)
    np.random.seed(work.SEED)  # noqa: NPY002, the library draws from it
    setting, net = task.setting, work.net(task)
    if task.check:
        work.Steps.count(net)
    clients = work.tensors(task)

    def user(client: int) -> Dataset:
        x, y = clients[client]
        order = slice(None) if task.check else torch.randperm(len(y))
        return Dataset([x[order], y[order]])

    data = FederatedDataset(user, get_user_sampler("minimize_reuse", list(range(task.clients))))
    classifier = Classifier(net)
    model = PyTorchModel(classifier, torch.optim.SGD, torch.optim.SGD(classifier.parameters(), lr=1.0))
    rounds = Rounds()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=task.repeats,
            evaluation_frequency=task.repeats + 1,
            train_cohort_size=setting.cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.LR, local_batch_size=setting.batch),
        callbacks=[rounds],
        send_metrics_to_platform=False,
    )
    work.report(task, rounds.clock, net.state_dict(), work.Steps.batch_sizes)


if __name__ == "__main__":
    main()
