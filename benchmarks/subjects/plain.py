"""A loop as most repositories write it: deepcopy of the global model, DataLoader, optimizer, mean of state_dicts."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from subjects import work


def main() -> None:
    """Train and report."""
    task = work.Task.from_command_line()
    torch.set_num_threads(task.threads)
    net, setting = work.net(task), task.setting
    if task.check:
        work.Steps.count(net)
    sets = [TensorDataset(x, y) for x, y in work.tensors(task)]
    draw, clock = np.random.default_rng(1), work.Clock()
    for _ in range(task.repeats):
        clock.begin()
        cohort = draw.choice(task.clients, setting.cohort, replace=False)
        total: dict[str, torch.Tensor] = {}
        for client in cohort:
            local = copy.deepcopy(net).train()
            optimizer = torch.optim.SGD(local.parameters(), lr=work.LR)
            for x, y in DataLoader(sets[client], batch_size=setting.batch, shuffle=not task.check):
                optimizer.zero_grad()
                functional.cross_entropy(local(x), y).backward()
                optimizer.step()
            for name, value in local.state_dict().items():
                total[name] = total.get(name, 0) + value / len(cohort)
        net.load_state_dict(total)
        clock.end()
    work.report(task, clock, net.state_dict(), work.Steps.batch_sizes)


if __name__ == "__main__":
    main()
