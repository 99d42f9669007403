"""No command states an epsilon for code of the user that breaks the law of differential privacy."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from test_plugins import write_patched

from pflcli.artifacts.reader import open_artifact
from pflcli.core.registry import files

pytest.importorskip("dp_accounting")

PLUGINS = Path(__file__).parent / "plugins"
WRONG, RIGHT = (PLUGINS / folder for folder in ("wrong", "right"))
CORRECT = RIGHT / "method_private_feddyn.py"
PRIVATE = ("--dp-noise", 2, "--dp-delta", "1e-3", "--rounds", 1, "--model", "mlp", "--threads", 1)
MIXING = '''"""Every client uploads the mean update of all clients that train at the same time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """No options."""


def apply(params, downloaded, cfg, draw):
    return {name: value.mean(dim=0, keepdim=True).expand_as(value).clone() for name, value in params.items()}
'''
COMMANDS = {
    "personalize": ("personalize", "METHOD", "SOURCE"),
    "train-global": ("train-global", "SOURCE", "--method", "METHOD"),
    "compare": ("compare", "SOURCE", "--methods", "fedavg,METHOD"),
    "tune": ("tune", "METHOD", "SOURCE", "--search", "lr=0.1,0.2"),
}


@pytest.fixture
def leaky(tmp_path):
    return write_patched("method_private_feddyn_raw_sum", tmp_path)


def make_command_line(command, method, source, out):
    words = [word.replace("METHOD", str(method)).replace("SOURCE", str(source)) for word in COMMANDS[command]]
    return [*words, "-o", out, *PRIVATE]


@pytest.mark.parametrize("command", COMMANDS)
def test_method_that_breaks_privacy_is_refused_before_its_first_private_round(command, leaky, small, tmp_path, pfl):
    refused = pfl(*make_command_line(command, leaky, small.p, tmp_path / "out"))
    assert refused.code == 2, refused.err
    assert "no epsilon can be stated for method-private-feddyn-raw-sum" in refused.err
    assert f"pfl check {leaky}" in refused.err
    assert "differential privacy: epsilon" not in refused.err.replace("personalize fedavg", "")
    assert not (tmp_path / "out").exists()


def test_method_that_breaks_privacy_runs_without_it_and_a_correct_one_runs_with_it(leaky, small, tmp_path, pfl):
    plain = pfl("personalize", leaky, small.p, "-o", tmp_path / "plain", *PRIVATE[4:], "-q")
    assert plain.code == 0, plain.err
    private = pfl(*make_command_line("personalize", CORRECT, small.p, tmp_path / "private"), "-q")
    assert private.code == 0, private.err
    assert open_artifact(tmp_path / "private").manifest.summary["privacy"]["epsilon"] > 0


def test_method_that_leaks_in_a_late_round_is_refused_for_runs_that_reach_it(small, tmp_path, pfl):
    file = tmp_path / "late.py"
    file.write_text((WRONG / "method_private_sum_every_fifth_round.py").read_text().replace("t % 5 == 4", "t == 14"))
    assert "t == 14" in file.read_text()

    def run(rounds):
        words = make_command_line("personalize", file, small.p, tmp_path / f"{rounds}")
        words[words.index("--rounds") + 1] = rounds
        return pfl(*words)

    refused = run(15)
    assert refused.code == 2, refused.err
    assert "in round 15" in refused.err
    assert run(14).code == 0


@pytest.fixture
def installed_leaky(leaky, monkeypatch):
    """The name of a method that an installed package offers."""
    point = EntryPoint("leaky", leaky.stem, "pflcli.methods")
    monkeypatch.syspath_prepend(str(leaky.parent))
    monkeypatch.setattr(files, "entry_points", lambda group: [point] if group == point.group else [])
    files.installed.cache_clear()
    yield "leaky"
    files.installed.cache_clear()


def test_method_of_an_installed_package_is_refused_when_it_breaks_privacy(installed_leaky, small, tmp_path, pfl):
    refused = pfl(*make_command_line("personalize", installed_leaky, small.p, tmp_path / "out"))
    assert (refused.code, "no epsilon can be stated for leaky" in refused.err) == (2, True), refused.err


def test_upload_step_that_mixes_clients_is_refused_with_privacy(small, tmp_path, pfl):
    file = tmp_path / "mixing.py"
    file.write_text(MIXING)
    refused = pfl(*make_command_line("personalize", "fedavg", small.p, tmp_path / "out"), "--upload", file)
    assert refused.code == 2, refused.err
    assert "uploads something else" in refused.err
    assert f"pfl check {file}" in refused.err


def test_private_run_refuses_a_method_that_fails_inside_the_check(small, tmp_path, pfl):
    file = tmp_path / "needs_images.py"
    broken = CORRECT.read_text().replace("    cohort, dual", "    assert run.federation.x.ndim == 4\n    cohort, dual")
    file.write_text(broken)
    refused = pfl(*make_command_line("personalize", file, small.p, tmp_path / "out"))
    assert refused.code == 2, refused.err
    assert "line" in refused.err


REMEMBERS = '''"""A network that adds the mean of the samples that it has seen before."""

from torch import nn

TAKES = ("images",)


class Net(nn.Module):
    def __init__(self, classes, in_channels):
        super().__init__()
        self.hidden, self.out = nn.Conv2d(in_channels, 2, 5, 4), nn.Linear(72, classes)
        self.seen = 0

    def forward(self, x):
        if self.training:
            x, self.seen = x + 0.1 * self.seen, x.detach().mean(dim=0)
        return self.out(self.hidden(x).relu().flatten(1))
'''


@pytest.mark.parametrize("command", COMMANDS)
def test_network_that_stores_samples_is_refused_before_its_first_private_round(command, small, tmp_path, pfl):
    net = tmp_path / "net.py"
    net.write_text(REMEMBERS)
    words = [*make_command_line(command, "fedprox", small.p, tmp_path / "out")]
    words[words.index("--model") + 1] = net
    refused = pfl(*words)
    assert refused.code == 2, refused.err
    assert "no epsilon can be stated for net" in refused.err
    assert f"pfl check {net}" in refused.err
    assert not (tmp_path / "out").exists()


def test_user_network_that_stores_no_samples_runs_with_privacy(small, tmp_path, pfl):
    net = tmp_path / "net.py"
    net.write_text(REMEMBERS.replace("x + 0.1 * self.seen, x.detach().mean(dim=0)", "x, 0"))
    words = [*make_command_line("personalize", "fedavg", small.p, tmp_path / "out"), "-q"]
    words[words.index("--model") + 1] = net
    private = pfl(*words)
    assert private.code == 0, private.err
    assert open_artifact(tmp_path / "out").manifest.summary["privacy"]["epsilon"] > 0
