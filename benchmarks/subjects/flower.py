"""Flower: ``run_simulation`` of a ServerApp and a ClientApp, with Ray actors as workers.

The local loop is ours, as Flower leaves it to its user: batches by index, no DataLoader, and a model that each actor
keeps. A round lasts from ``configure_train`` to the end of ``aggregate_train`` on the server; nothing is evaluated.
"""

from __future__ import annotations

import json
import logging
import os
from functools import lru_cache
from typing import Any

# Nothing is sent anywhere.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch.nn import functional

from subjects import work

client_app, server_app = ClientApp(), ServerApp()


@lru_cache(maxsize=1)
def _actor_state(text: str) -> tuple[work.Task, nn.Module, list[tuple[Tensor, Tensor]]]:
    """Return what an actor keeps from client to client."""
    task = work.Task(**json.loads(text))
    torch.set_num_threads(task.threads)
    return task, work.net(task).train(), work.tensors(task)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client for one local epoch."""
    task, net, clients = _actor_state(str(message.content["config"]["task"]))
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = clients[int(context.node_config["partition-id"])]
    optimizer = torch.optim.SGD(net.parameters(), lr=work.LR)
    order = torch.arange(len(y)) if task.check else torch.randperm(len(y))
    sizes = []
    for batch in torch.split(order, task.setting.batch):
        optimizer.zero_grad()
        functional.cross_entropy(net(x[batch]), y[batch]).backward()
        optimizer.step()
        sizes.append(len(batch))
    metrics = MetricRecord({"num-examples": len(y), "sizes": sizes})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    """Flower's FedAvg, which notes when its rounds begin and end."""

    def __init__(self, fraction: float) -> None:
        super().__init__(fraction_train=fraction, fraction_evaluate=0.0)
        self.clock = work.Clock()
        self.sizes: list[int] = []

    def configure_train(self, *args: Any, **kwargs: Any) -> Any:
        """Begin a round."""
        self.clock.begin()
        return super().configure_train(*args, **kwargs)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """End a round."""
        replies = list(replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.clock.end()
        if any(reply.has_error() for reply in replies):
            raise RuntimeError("a client failed")
        self.sizes = [size for reply in replies for size in reply.content["metrics"]["sizes"]]
        return arrays, metrics


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run all rounds and report."""
    task = work.Task.from_command_line()
    strategy = Timed(task.setting.cohort / task.clients)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(work.net(task).state_dict()),
        num_rounds=task.repeats,
        train_config=ConfigRecord({"task": task.json}),
    )
    work.report(task, strategy.clock, result.arrays.to_torch_state_dict(), strategy.sizes)


def main() -> None:
    """Simulate; the actors import this file by its name, so that they keep what ``_actor_state`` returns."""
    from subjects import flower  # noqa: PLW0406

    task = work.Task.from_command_line()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    run_simulation(
        server_app=flower.server_app,
        client_app=flower.client_app,
        num_supernodes=task.clients,
        backend_config={
            "client_resources": {"num_cpus": task.threads, "num_gpus": 0.0},
            "init_args": {"num_cpus": task.workers * task.threads, "log_to_driver": False},
        },
    )


if __name__ == "__main__":
    main()
