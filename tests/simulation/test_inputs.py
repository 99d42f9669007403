"""What ``simulate``, ``from_dataset`` and ``check`` take, and clear errors for what they do not take."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

import pflcli
from pflcli import Callback, Federation, simulate
from pflcli.core import reporter
from pflcli.core.errors import PflError
from pflcli.methods import fedavg

SETTINGS = {"rounds": 1, "model": "logistic"}


@pytest.fixture(scope="module")
def federation():
    draw = np.random.default_rng(0)
    return Federation.from_arrays(draw.normal(size=(90, 4)), draw.integers(0, 2, 90), np.arange(90) % 3)


class NoDataclass:
    """A method whose Config is an ordinary class."""

    class Config:
        lr = 1


class WithoutMembers:
    pass


SCHEME = """
from dataclasses import dataclass
import numpy as np

@dataclass(frozen=True)
class Config:
    \"\"\"None.\"\"\"

def split(samples, clients, cfg, rng):
    \"\"\"Deal samples in turn.\"\"\"
    return [np.arange(client, len(samples.y), clients) for client in range(clients)]
"""


def test_simulate_takes_a_file_as_the_commands_do(federation, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(Path(fedavg.__file__).read_text())
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Sequential):\n"
        "    def __init__(self, in_shape, classes):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(in_shape[0], classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PFL_USED_FILES", "")
    expected = simulate("fedavg", federation, **SETTINGS).predictions["test"].p
    for given in ("./mine.py", Path("mine.py").absolute()):
        result = simulate(given, federation, **SETTINGS)
        assert result.method == "mine"
        np.testing.assert_array_equal(result.predictions["test"].p, expected)
    assert simulate("fedavg", federation, rounds=1, model="./net.py:Net").run.settings.model == "net:Net"


def test_from_dataset_takes_a_file_a_module_and_a_class(tmp_path, monkeypatch):
    (tmp_path / "deal.py").write_text(SCHEME)
    monkeypatch.chdir(tmp_path)
    by_file = Federation.from_dataset("writers", "./deal.py", clients=7)
    module = types.ModuleType("deal")
    exec(compile(SCHEME, "deal", "exec"), module.__dict__)
    by_module = Federation.from_dataset("writers", module, clients=7)
    by_class = Federation.from_dataset(
        "writers", type("Deal", (), {"Config": module.Config, "split": staticmethod(module.split)}), clients=7
    )
    assert len(by_file.clients) == 7
    for other in (by_module, by_class):
        np.testing.assert_array_equal(other.sample, by_file.sample)


def test_check_takes_a_module_a_path_and_a_class_of_a_file(tmp_path, monkeypatch):
    (tmp_path / "small_net.py").write_text(
        "import math\nfrom torch import nn\n\n\nclass Small(nn.Module):\n"
        "    def __init__(self, in_shape, classes):\n"
        "        super().__init__()\n        self.head = nn.Linear(math.prod(in_shape), classes)\n\n"
        "    def forward(self, x):\n        return self.head(x.flatten(1))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import small_net

    for given in (tmp_path / "small_net.py", small_net, small_net.Small):
        assert len([*pflcli.check(given, only="initial-weights-depend-on-the-seed-alone")]) == 1


WRONG = {
    "method number": lambda given: simulate(5, given, **SETTINGS),
    "method none": lambda given: simulate(None, given, **SETTINGS),
    "method file": lambda given: simulate("./nothing.py", given, **SETTINGS),
    "config": lambda given: simulate(NoDataclass, given, **SETTINGS),
    "members": lambda given: simulate(WithoutMembers, given, **SETTINGS),
    "network object": lambda given: simulate("fedavg", given, rounds=1, model=torch.nn.Linear(4, 2)),
    "network number": lambda given: simulate("fedavg", given, rounds=1, model=3),
    "options": lambda given: simulate("ditto", given, options="lam=1", **SETTINGS),
    "callback": lambda given: simulate("ditto", given, callbacks=[3], **SETTINGS),
    "callback class": lambda given: simulate("ditto", given, callbacks=Callback, **SETTINGS),
    "seed": lambda given: simulate("ditto", given, seed="a", **SETTINGS),
    "threads": lambda given: simulate("ditto", given, threads=0, **SETTINGS),
    "engine": lambda given: simulate("ditto", given, engine=3, **SETTINGS),
    "dataset number": lambda given: Federation.from_dataset(4),
    "dataset folder": lambda given: Federation.from_dataset("/"),
    "scheme class": lambda given: Federation.from_dataset("writers", WithoutMembers),
    "clients": lambda given: Federation.from_dataset("writers", "iid", clients="5"),
    "no clients": lambda given: Federation.from_dataset("writers", "iid", clients=0),
    "scheme options": lambda given: Federation.from_dataset("writers", "dirichlet", clients=4, options=[1]),
    "fractions": lambda given: Federation.from_dataset("writers", fractions="0.6"),
    "partition seed": lambda given: Federation.from_dataset("writers", seed="x"),
    "device": lambda given: Federation.from_dataset("writers", device="gpu"),
    "check class": lambda given: pflcli.check(WithoutMembers),
    "check number": lambda given: pflcli.check(4),
    "check network of nowhere": lambda given: pflcli.check(type("Net", (torch.nn.Module,), {"__module__": "gone"})),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_wrong_values_are_errors_of_pfl_with_a_remedy(call, federation):
    with pytest.raises(PflError) as raised:
        call(federation)
    assert raised.value.exit_code in (2, 3)
    assert raised.value.fix or "exist" in raised.value.message


def test_simulate_shows_its_rounds_unless_it_is_quiet(federation, monkeypatch, capsys):
    monkeypatch.setattr(reporter, "_is_notebook", lambda: True)
    simulate("fedavg-plus", federation, quiet=True, **SETTINGS)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(reporter.time, "monotonic", iter(range(10**6)).__next__)
    simulate("fedavg-plus", federation, **{**SETTINGS, "rounds": 5})
    shown = capsys.readouterr().err
    assert "\rfedavg: 5/5" in shown  # the backbone
    assert "\rfedavg-plus, clients: 3/3" in shown
    assert shown.endswith("\n")


def test_progress_is_lines_where_nobody_watches(capsys, monkeypatch):
    clock = iter(range(0, 10**6, 2))
    monkeypatch.setattr(reporter.time, "monotonic", clock.__next__)
    with reporter.StderrReporter().progress("ditto", 20) as advance:
        for _ in range(20):
            advance(1, "loss 0.5")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "ditto: 2/20, 36 s left, loss 0.5"


def test_a_notebook_is_recognized_by_its_kernel(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not reporter._is_notebook()
    for shell, expected in ((None, False), (object(), False), (types.SimpleNamespace(kernel=1), True)):
        monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda shell=shell: shell))
        assert reporter._is_notebook() is expected
