"""``pfl new`` writes files that satisfy the laws, and ``pfl check`` says which laws a file breaks."""

from __future__ import annotations

import json

import pytest

from pflcli.core import registry
from pflcli.core.errors import ComputationError, ConflictError, InputError, UsageError
from pflcli.plugins.checks import laws
from pflcli.plugins.checks.check import check
from pflcli.plugins.checks.new import new

FOLDER = registry.ROOT / "plugins" / "checks" / "templates"
TEMPLATES = {kind: (FOLDER / f"{kind}.py").read_text() for kind in registry.KINDS}


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_and_list_failures(file, **kwargs):
    return {verdict.law.name: verdict.reason for verdict in check(str(file), **kwargs) if verdict.result == "failed"}


@pytest.mark.parametrize("kind", registry.KINDS)
def test_template_satisfies_all_laws(kind, working_folder):
    assert check_and_list_failures(new(kind, working_folder / f"my_{kind}.py")) == {}


NETWORKS = """
from torch import nn


class Wide(nn.Module):
    def __init__(self, classes, in_channels, width):
        super().__init__()
        self.conv, self.out = nn.Conv1d(in_channels, width, 31), nn.Linear(width, classes)

    def forward(self, x):
        return self.out(self.conv(x.transpose(1, 2)).amax(dim=2))


class Other(nn.Module):
    def __init__(self, classes, in_features):
        super().__init__()
        assert in_features == 784
        self.out = nn.Linear(in_features, classes)

    def forward(self, x):
        return self.out(x)
"""


def test_check_takes_the_class_name_when_a_file_has_several_networks(working_folder, pfl):
    (working_folder / "nets.py").write_text(NETWORKS)
    only = ("--only", "a-head-follows-a-body")
    assert pfl("check", "./nets.py:Wide", "--set", "width=4", *only).code == 0  # series of 64 steps, not of 12
    ran = pfl("check", "./nets.py:Wide")
    assert ran.code == UsageError.exit_code
    assert "Wide needs a value for 'width', which has no default" in ran.err
    assert "--set width=8" in ran.err
    assert "has several networks" in pfl("check", "./nets.py").err


def test_check_prints_a_shared_reason_once(working_folder, pfl):
    (working_folder / "nets.py").write_text(NETWORKS)
    ran = pfl("check", "./nets.py:Other")
    assert ran.code == ComputationError.exit_code
    assert ran.out.count("none of the shapes that were tried") == 1
    assert "for the same reason as a-head-follows-a-body" in ran.out


def test_check_like_takes_the_sample_shape_of_a_partition(working_folder, pfl, small):
    (working_folder / "nets.py").write_text(NETWORKS.replace("return self.out(x)", "return self.out(x.flatten(1))"))
    (working_folder / "nets.py").write_text(
        (working_folder / "nets.py")
        .read_text()
        .replace("in_features)", "in_shape)", 1)
        .replace("assert in_features == 784", "assert in_shape == (1, 28, 28)")
        .replace("nn.Linear(in_features,", "nn.Linear(784,")
    )
    only = ("--only", "a-head-follows-a-body,the-network-returns-logits")
    ran = pfl("check", "./nets.py:Other", "--like", small.p, *only)
    assert (ran.code, ran.err) == (0, "2 laws passed, none failed\n")
    assert "--like is for models" in pfl("check", "ditto", "--like", small.p).err


def test_check_warns_when_a_network_cannot_be_exported_to_onnx(working_folder, capfd):
    pooled = "nn.AdaptiveAvgPool1d(4)(self.conv(x.transpose(1, 2))).amax(dim=2)"
    (working_folder / "nets.py").write_text(NETWORKS.replace("self.conv(x.transpose(1, 2)).amax(dim=2)", pooled))
    (verdict,) = check("./nets.py:Wide", options={"width": 4}, only=["onnx-predicts-the-same"])
    assert verdict.result == "warning"
    why = "the network cannot be written as ONNX: Unsupported: ONNX export of operator adaptive_avg_pool1d"
    assert verdict.reason.startswith(why)
    assert capfd.readouterr() == ("", "")  # PyTorch would print its graph


def test_check_names_the_file_and_line_of_an_exception(working_folder):
    (working_folder / "mine.py").write_text(
        TEMPLATES["method"].replace("cohort = run.cohort(t)", "cohort = run.cohrt(t)")
    )
    reason = check_and_list_failures("./mine.py", only=["predictions-are-probabilities"])[
        "predictions-are-probabilities"
    ]
    assert "mine.py, line " in reason
    assert "AttributeError" in reason


def test_check_prints_one_line_per_law_and_counts_the_results(working_folder, pfl):
    assert pfl("new", "scheme", "mine.py").out == "mine.py\n"
    ran = pfl("check", "./mine.py", "--set", "ratio=2")
    assert (ran.code, ran.err) == (0, "12 laws passed, none failed\n")
    assert ran.out.splitlines()[0] == "passed          no-sample-has-two-clients"
    verdicts = json.loads(pfl("check", "schemes/shards", "--json").out)
    assert {verdict["result"] for verdict in verdicts} == {"passed"}
    (working_folder / "other.py").write_text(
        (working_folder / "mine.py").read_text().replace("np.sort(part) for", "part // 2 for")
    )
    ran = pfl("check", "./other.py", "--quiet")
    assert ran.code == ComputationError.exit_code
    assert ran.out.startswith("failed          no-sample-has-two-clients\n")
    assert "rows are given twice" in ran.out
    assert "./other.py breaks 2 of 12 laws" in ran.err


def test_check_reports_a_doubtful_law_as_a_warning(working_folder, pfl, monkeypatch):
    def methods_are_young(subject):
        """A method is from this decade.

        Older ones are tested better.
        """
        raise laws.DoubtfulError("it is from 2017")

    monkeypatch.setattr(laws, "list_laws", lambda group: [laws.Law(group, methods_are_young)])
    ran = pfl("check", "fedavg")
    assert (ran.code, ran.err) == (0, "0 laws passed, none failed, 1 warning\n")
    assert ran.out.splitlines()[:2] == ["warning         methods-are-young", "                it is from 2017"]
    assert "warning" not in pfl("check", "fedavg", "--quiet").out


def test_check_reports_a_law_that_does_not_concern_a_file_as_not_applicable():
    (verdict,) = check("prior", only=["divergence-is-reported"])
    assert (verdict.result, verdict.reason) == ("not applicable", "the method has no rounds")


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (("check", "absent.py"), InputError, "absent.py does not exist"),
        (("check", "dito"), UsageError, "there is no 'dito'"),
        (("check", "schemes/idd"), UsageError, "unknown scheme 'idd'"),
        (("check", "ditto", "--only", "nothing"), UsageError, "there is no law 'nothing'"),
        (("check", "./empty.py"), InputError, "none of the functions"),
        (("check", "./syntax.py"), InputError, "syntax.py, line 1: SyntaxError"),
        (("new", "metod", "mine.py"), UsageError, "unknown kind 'metod'"),
        (("new", "method", "mine.txt"), UsageError, "not the name of a Python file"),
        (("new", "method", "ditto.py"), UsageError, "'ditto' is a method of pfl"),
        (("new", "method", "empty.py"), ConflictError, "empty.py exists"),
        (("new", "method", "no/mine.py"), InputError, "cannot write no/mine.py"),
    ],
)
def test_wrong_arguments_of_new_or_check_end_in_one_error(words, error, message, working_folder, pfl):
    (working_folder / "empty.py").touch()
    (working_folder / "syntax.py").write_text("def f(:\n")
    ran = pfl(*words)
    assert ran.code == error.exit_code
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_only_takes_several_laws(pfl):
    names = ["the-grid-has-valid-values", "zero-rounds-are-enough-to-predict"]
    ran = pfl("check", "fedavg", "--only", ",".join(names))
    assert "2 laws passed" in ran.out + ran.err
    assert "--only is given twice" in pfl("check", "fedavg", "--only", names[0], "--only", names[1]).err
