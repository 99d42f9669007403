"""fluke: its FedAVG with its own clients, server and FastDataLoader, one client after the other; no evaluation."""

# ruff: noqa: E402, fluke can be imported only after torchvision has been made to fit

from __future__ import annotations

import torch

from pflcli.core.vision import torchvision
from subjects import work

torchvision()

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver


class Rounds(FederationObserver):
    """Tells the clock when rounds begin and end."""

    def __init__(self) -> None:
        self.clock = work.Clock()

    def start_round(self, round: int, global_model: object) -> None:
        """Begin a round."""
        self.clock.begin()

    def end_round(self, round: int) -> None:
        """End a round."""
        self.clock.end()


def main() -> None:
    """Train and report."""
    task = work.Task.from_command_line()
    torch.set_num_threads(task.threads)
    setting, net = task.setting, work.net(task)
    if task.check:
        work.Steps.count(net)
    env = FlukeENV()
    env.set_seed(work.SEED)
    env.set_device("cpu")
    env.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    optimizer = OptimizerConfigurator(DDict(name="SGD", lr=work.LR))
    clients = [
        Client(
            index,
            FastDataLoader(x, y, num_labels=setting.classes, batch_size=setting.batch, shuffle=not task.check),
            None,
            optimizer,
            torch.nn.CrossEntropyLoss(),
            local_epochs=1,
        )
        for index, (x, y) in enumerate(work.tensors(task))
    ]
    server = Server(net, None, clients, weighted=True)
    algorithm = FedAVG(len(clients), None, DDict(), clients=clients, server=server)
    rounds = Rounds()
    algorithm.set_callbacks(rounds)
    algorithm.run(task.repeats, setting.cohort / task.clients)
    work.report(task, rounds.clock, server.model.state_dict(), work.Steps.batch_sizes)


if __name__ == "__main__":
    main()
