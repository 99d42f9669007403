"""Ray actors train with the bytes of threads, however many they are and whoever of them is lost."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys

import pytest

import worlds
from helpers import CLASSIFYING
from pflcli.core import models, parameters, registry, sources
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.executors import ray_runtime
from pflcli.core.engine.executors.ray_runtime import RayCluster
from pflcli.core.errors import LostWorkerError, UsageError
from pflcli.core.federation import uploads

CLIENTS, GROUPS = 24, 3


@pytest.fixture
def ray():
    """Ray on this machine with two CPUs; a test that uses it has seconds to start it."""
    module = ray_runtime.connect(RayCluster(), 2)
    yield module
    ray_runtime.disconnect()
    assert not module.is_initialized()


def train_on_ray(run, workers):
    """Let Ray train the clients of a run."""
    net = models.create("mlp", run.federation.in_shape, worlds.CLASSES, run.seed)
    run.engine = Engine(net, run.federation, seed=run.seed, mode=run.engine.mode, jobs=workers, ray=RayCluster())
    return run


def play_with_losses(method, run):
    state = worlds.play(method, run)
    return {**state, "losses": run.notes.losses, "traffic": run.traffic}


def make_run(method, steps=(), **settings):
    data = worlds.clustered(GROUPS, CLIENTS // GROUPS)
    run = worlds.run(method, data=data, rounds=2, participation=1.0, **settings)
    run.uploads = tuple(uploads.load(step) for step in steps)
    return run


def test_ray_gives_the_same_bytes_as_threads_and_returns_one_sum(ray, capfd):
    steps = ("clip:0.5", "int8")
    expected = play_with_losses("fedavg", make_run("fedavg", steps))
    run = train_on_ray(make_run("fedavg", steps), 2)
    engine, notes, warnings = run.engine, [], []
    engine.detail, engine.warn = notes.append, warnings.append
    assert worlds.same(play_with_losses("fedavg", run), expected)
    assert len(notes) == 1
    assert "sum of models" in notes[0]
    # In float64, the sum of a round takes twice the bytes of a model in float32, whatever the number of clients.
    assert engine.executor.received_bytes == 2 * run.settings.rounds * parameters.size(run.init)

    run = make_run("apfl")
    run.engine, before = engine, engine.executor.received_bytes
    assert worlds.same(play_with_losses("apfl", run), play_with_losses("apfl", make_run("apfl")))
    assert len(notes) == 2
    assert "model of each client" in notes[1]
    assert engine.executor.received_bytes - before >= run.settings.rounds * CLIENTS * parameters.size(run.init)

    first, last = engine.executor._workers
    os.kill(ray.get(first.actor.process.remote()), signal.SIGKILL)
    run = make_run("fedavg", steps)
    run.engine = engine
    assert worlds.same(play_with_losses("fedavg", run), expected)  # by one worker
    assert len(warnings) == 1
    assert "the others do their work" in warnings[0]
    ray.kill(last.actor)
    with pytest.raises(LostWorkerError, match="last Ray worker"):
        play_with_losses("fedavg", run)
    with pytest.raises(UsageError, match="room for 0 workers with 1 CPU and 1 GPU each"):
        Engine(*engine_inputs(run), seed=0, ray=RayCluster(gpus_per_worker=1))
    with pytest.raises(UsageError, match="room for 2 workers"):
        Engine(*engine_inputs(run), seed=0, jobs=3, ray=RayCluster("auto"))
    assert capfd.readouterr() == ("", "")


def engine_inputs(run):
    return models.create("mlp", run.federation.in_shape, worlds.CLASSES, 0), run.federation


def test_missing_ray_is_named_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="Ray, which is not installed") as error:
        ray_runtime.connect(RayCluster(), 1)
    assert error.value.fix == ("pip install 'pflcli[ray]'",)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["auto", "loop"])
def test_methods_give_the_same_bytes_on_ray(ray, mode):
    for method in CLASSIFYING:
        plain = worlds.run(method, rounds=2, participation=1.0, mode=mode)
        other = train_on_ray(worlds.run(method, rounds=2, participation=1.0, mode=mode), 2)
        state, others = worlds.play(method, plain), worlds.play(method, other)
        assert worlds.same(state, others), method
        assert plain.losses == other.losses, method
        assert plain.traffic == other.traffic, method
        other.engine.close()


@pytest.mark.long
def test_killed_ray_node_changes_no_byte(capfd):
    ray_runtime.configure(RayCluster())
    from ray.cluster_utils import Cluster

    steps, store = ("clip:0.5", "int8"), 100 << 20
    expected = play_with_losses("fedavg", make_run("fedavg", steps))
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": store, "include_dashboard": False}
    )
    for last_result in range(20):
        node = cluster.add_node(num_cpus=1, object_store_memory=store)
        run, warnings = make_run("fedavg", steps), []
        run.engine = Engine(*engine_inputs(run), seed=0, jobs=2, ray=RayCluster(cluster.address))
        run.engine.warn = warnings.append
        results = run.engine.executor._results

        counts = itertools.count()

        def until_killed(queue, *, results=results, counts=counts, last_result=last_result, node=node):
            for result in results(queue):
                if next(counts) == last_result:
                    cluster.remove_node(node, allow_graceful=False)
                yield result

        run.engine.executor._results = until_killed
        assert worlds.same(play_with_losses("fedavg", run), expected), last_result
        assert len(warnings) == 1
        run.engine.close()
    ray_runtime.disconnect()
    cluster.shutdown()
    assert "Traceback" not in "".join(capfd.readouterr())


NETWORK = """from torch import nn
from user_layers.width import WIDTH


class Net(nn.Module):
    def __init__(self, in_shape, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(in_shape[0], WIDTH), nn.ReLU())
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x):
        return self.head(self.body(x))
"""


def test_ray_workers_receive_user_files(ray, tmp_path, monkeypatch):
    monkeypatch.setenv(registry.USED, "")
    file, package = tmp_path / "user_net.py", tmp_path / "user_layers"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "width.py").write_text("WIDTH = 7")
    file.write_text(NETWORK)
    name, plain, other = registry.use("models", str(file)), make_run("fedavg"), make_run("fedavg")
    nets = [models.create(name, plain.federation.in_shape, worlds.CLASSES, 0) for _ in range(2)]
    plain.engine = Engine(nets[0], plain.federation, seed=0)
    plain.init = other.init = parameters.copy_params(nets[0])
    expected = play_with_losses("fedavg", plain)
    sent = sources.read_used_files()
    found = [sorted(each.contents) for each in sent]
    assert found == [["user_layers/__init__.py", "user_layers/width.py", "user_net.py"]]
    monkeypatch.setattr(sources, "read_used_files", lambda: sent)
    file.unlink()
    shutil.rmtree(package)  # now this machine is like another one
    other.engine = Engine(nets[1], other.federation, seed=0, jobs=2, ray=RayCluster())
    assert worlds.same(play_with_losses("fedavg", other), expected)
    other.engine.close()
