"""Train a partition of pfl with Flower, and write what clients predict for `pfl import-predictions`.

    python examples/other-tools/flower.py PARTITION OUT.csv --rounds 60 --lr 0.1 --fine-tune 5

A ServerApp with Flower's FedAvg and a ClientApp, in Flower's simulation. ``PARTITION`` is one of images. Each client
reads its own samples, and trains two hidden layers of 200 units by SGD. After the last round the server sends its model
to all clients; with ``--fine-tune``, each trains it further on its own training samples. Then each client returns its
probabilities for its validation and test samples. Needs ``flwr[simulation]``, torch and h5py.
"""

from __future__ import annotations

import argparse
import csv
import logging
import os
from collections.abc import Iterator
from pathlib import Path

# Nothing is sent anywhere.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import h5py
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch.nn import functional

SPLITS = ("train", "validation", "test")

client_app = ClientApp()


def read(partition: str, client: int) -> dict[str, tuple[Tensor, Tensor, list[int]]]:
    """Return the samples, labels and numbers of samples of one client by split."""
    with h5py.File(Path(partition, "samples.h5")) as file:
        ends = file["offsets"][3 * client : 3 * client + 4]
        blocks = {split: slice(*ends[i : i + 2]) for i, split in enumerate(SPLITS)}
        return {
            split: (
                torch.from_numpy(file["x"][rows].astype(np.float32) / 255),
                torch.from_numpy(file["y"][rows].astype(np.int64)),
                file["sample"][rows].tolist(),
            )
            for split, rows in blocks.items()
        }


def describe(partition: Path) -> tuple[list[str], int, int]:
    """Return the names of clients, the number of pixels and of classes."""
    with h5py.File(partition / "samples.h5") as file:
        return list(file["names"].asstr()[...]), int(np.prod(file["x"].shape[1:])), int(file.attrs["classes"])


def build(pixels: int, classes: int) -> nn.Module:
    """Return a network with two hidden layers of 200 units."""
    hidden = [nn.Linear(pixels, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(200, classes))


def train(net: nn.Module, x: Tensor, y: Tensor, config: ConfigRecord, epochs: int) -> None:
    """Train a network by SGD on the samples of a client."""
    optimizer = torch.optim.SGD(net.parameters(), lr=float(config["lr"]))
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(y)), int(config["batch_size"])):
            optimizer.zero_grad()
            functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()


def receive(message: Message, context: Context) -> tuple[nn.Module, dict[str, tuple[Tensor, Tensor, list[int]]]]:
    """Return the server's model, and the samples of the client that received it."""
    config, client = message.content["config"], int(context.node_config["partition-id"])
    torch.set_num_threads(1)
    torch.manual_seed(1_000_003 * int(config["seed"]) + 1_009 * int(config.get("server-round", 0)) + client)
    net = build(int(config["pixels"]), int(config["classes"]))
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net, read(str(config["partition"]), client)


@client_app.train()
def train_client(message: Message, context: Context) -> Message:
    """Train the server's model on the client's training samples, and return it."""
    net, samples = receive(message, context)
    x, y, _ = samples["train"]
    config = message.content["config"]
    train(net, x, y, config, int(config["epochs"]))
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@client_app.query()
def predict(message: Message, context: Context) -> Message:
    """Fine-tune the last model if asked, and return probabilities for the client's validation and test samples."""
    net, samples = receive(message, context)
    config = message.content["config"]
    train(net, *samples["train"][:2], config, int(config["fine_tune"]))
    with torch.no_grad():
        answers = {split: torch.softmax(net(samples[split][0]).double(), dim=1) for split in SPLITS[1:]}
    record = ArrayRecord({split: Array(p.numpy()) for split, p in answers.items()})
    client = MetricRecord({"client": int(context.node_config["partition-id"])})
    return Message(RecordDict({"p": record, "client": client}), reply_to=message)


def ask(grid: Grid, arrays: ArrayRecord, config: ConfigRecord) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Send the last model to all clients; yield the number of each and its probabilities by split."""
    content = RecordDict({"arrays": arrays, "config": config})
    messages = [Message(content, dst_node_id=node, message_type="query") for node in grid.get_node_ids()]
    for reply in grid.send_and_receive(messages):
        if reply.has_error():
            raise RuntimeError(f"a client failed: {reply.error.reason}")
        yield int(reply.content["client"]["client"]), {name: a.numpy() for name, a in reply.content["p"].items()}


def main() -> None:
    """Simulate, and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("partition", type=Path)
    parser.add_argument("out", type=Path)
    for name, default in (("rounds", 60), ("epochs", 1), ("batch-size", 32), ("seed", 0), ("fine-tune", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("participation", 0.2), ("lr", 0.1)):
        parser.add_argument(f"--{name}", type=float, default=default)
    asked = parser.parse_args()
    partition = asked.partition.resolve()
    names, pixels, classes = describe(partition)
    options = {name: getattr(asked, name) for name in ("epochs", "batch_size", "lr", "seed", "fine_tune")}
    config = ConfigRecord({"partition": str(partition), "pixels": pixels, "classes": classes, **options})
    server_app = ServerApp()
    done = []

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        torch.manual_seed(asked.seed)
        start = ArrayRecord(build(pixels, classes).state_dict())
        strategy = FedAvg(fraction_train=asked.participation, fraction_evaluate=0.0)
        result = strategy.start(grid=grid, initial_arrays=start, num_rounds=asked.rounds, train_config=config)
        with asked.out.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["client", "sample", "split", *(f"p({label})" for label in range(classes))])
            for client, answers in ask(grid, result.arrays, config):
                samples = read(str(partition), client)
                for split, p in answers.items():
                    for sample, probabilities in zip(samples[split][2], p.tolist(), strict=True):
                        table.writerow([names[client], sample, split, *probabilities])
        done.append(True)

    logging.getLogger("flwr").setLevel(logging.WARNING)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"log_to_driver": False}}
    run_simulation(server_app, client_app, num_supernodes=len(names), backend_config=resources)
    if not done:
        raise SystemExit("Flower's server stopped before the end; see its log")


if __name__ == "__main__":
    main()
