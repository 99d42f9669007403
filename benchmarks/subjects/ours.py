"""pfl: rounds of its FedAvg, by the mode that the task names."""

from __future__ import annotations

import numpy as np

from pflcli.artifacts import client_blocks
from pflcli.artifacts.kinds.partition import Partition
from pflcli.core.execution import Execution
from pflcli.core.federation.run import Run
from pflcli.core.tasks import Labels
from pflcli.methods import fedavg
from pflcli.workflow.training import run_settings
from pflcli.workflow.training.run_spec import RunSpec
from subjects import work


def prepared(task: work.Task) -> Run:
    """Return pfl's run of the task, ready for its rounds."""
    setting = task.setting
    x, y = work.samples(task)
    world = Partition(
        x=x,
        y=y,
        sample=np.arange(len(y)),
        offsets=client_blocks.offsets(np.tile([setting.samples, 0, 0], task.clients)),
        names=[str(client) for client in range(task.clients)],
        labels=Labels(setting.classes),
    )
    plan = {
        "model": task.model,
        "participation": setting.cohort / task.clients,
        "batch_size": setting.batch,
        "epochs": 1,
        "lr": work.LR,
    }
    if task.mode == "ray":
        execution = Execution(device="cpu", threads=task.threads, executor="ray", jobs=task.workers)
    else:
        execution = Execution(device="cpu", engine=task.mode, threads=task.threads)
    settings = run_settings.resolve_settings({}, plan)
    spec = RunSpec(name="fedavg", method=fedavg, cfg=fedavg.Config(), settings=settings, seed=work.SEED)
    return spec.build(world, execution)


def main() -> None:
    """Train and report."""
    task = work.Task.from_command_line()
    run = prepared(task)
    state, clock = fedavg.setup(run), work.Clock()
    for t in range(task.repeats):
        clock.begin()
        state = fedavg.train_round(run, state, t)
        clock.end()
    work.report(task, clock, state["global"], [], mode=run.engine.mode)


if __name__ == "__main__":
    main()
