"""``pfl new`` writes files that satisfy the laws, and ``pfl check`` finds each law broken in a file that breaks it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pflcli import laws, registry
from pflcli.commands.check import check
from pflcli.commands.new import new
from pflcli.errors import ComputationError, ConflictError, InputError, UsageError
from pflcli.laws import list_laws

WRONG = [*(Path(__file__).parents[1] / "laws" / "plugins" / "wrong").glob("*.py")]
TEMPLATES = {kind: (registry.ROOT / "templates" / f"{kind}.py").read_text() for kind in registry.KINDS}


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


AVERAGE = 'return {"global": run.average(trained, downloaded)}'
TUNED = "run.predictor(clients, tuned)"
BROKEN = {
    "predictions-are-probabilities": (
        "return " + TUNED,
        f"made = {TUNED}\n    return type(made)(lambda split: {{'p': 2 * made.answer(split)['p']}})",
    ),
    "adapters-replace-the-body": (
        "    cohort = run.cohort(t)\n",
        "    cohort = run.cohort(t)\n    assert 'body.1.weight' in state['global']\n",
    ),
    "the-same-seed-gives-the-same-bytes": (
        AVERAGE,
        AVERAGE.replace("}", ', "noise": __import__("torch").rand(3)}'),
    ),
    "another-seed-gives-other-predictions": (
        "return " + TUNED,
        "same = {n: v.sin() for n, v in run.table(start).default.items()}\n"
        "    same = {n: v * 0 + 0.1 for n, v in same.items()}\n    return run.predictor(clients, same)",
    ),
    "validation-samples-only-choose": ("t=t)  # trains", 't=t, splits=("train", "validation"))  # trains'),
    "refit-trains-on-validation-samples": ("epochs=run.cfg.epochs,", "epochs=run.cfg.epochs + run.settings.refit,"),
    "nothing-is-learned-from-test-samples": ("t=t)  # trains", 't=t, splits=("train", "test"))  # trains'),
    "labels-of-predicted-samples-change-no-prediction": ('t="tune",', 't="tune", splits=("train", "test"),'),
    "each-sample-is-predicted-on-its-own": (
        "return " + TUNED,
        f"made = {TUNED}\n\n    def answer(split):\n        p = made.answer(split)['p']\n"
        "        p = p / p.mean(axis=0)\n        return {'p': p / p.sum(axis=1, keepdims=True)}\n\n"
        "    return type(made)(answer)",
    ),
    "another-process-gives-the-same-bytes": ('t="tune",', 't=f"tune {hash(str(clients))}",'),
    "bytes-are-counted-once-for-each-client": (
        'run.download(state["global"], cohort)',
        'run.download(state["global"], cohort[:1])',
    ),
    "uploads-have-the-weights-of-their-own-clients": (
        AVERAGE,
        "mean = run.averaging(downloaded)\n    for part in trained:\n"
        "        mean.add(part.params, part.weights[::-1].copy(), part.clients)\n    return {'global': mean.value()}",
    ),
    "clients-use-only-their-own-samples": (
        "    downloaded = run.download",
        "    state = {'global': {n: v + 1e-3 * run.federation.x.mean() for n, v in state['global'].items()}}\n"
        "    downloaded = run.download",
    ),
    "differential-privacy-bounds-each-client": (
        AVERAGE,
        AVERAGE.replace("run.average", "averaged")
        .replace("return", "averaged = run.average(trained, downloaded)\n    return")
        .replace(
            "averaged(trained, downloaded)}", "{n: v + 1e-2 * run.federation.x.mean() for n, v in averaged.items()}}"
        ),
    ),
    "a-resumed-run-gives-the-same-bytes": (
        "    cohort = run.cohort(t)\n",
        "    cohort = run.cohort(t)\n    run.count = getattr(run, 'count', 0) + 1\n"
        "    state = {'global': {n: v + 0.01 * run.count for n, v in state['global'].items()}}\n",
    ),
    "zero-rounds-are-enough-to-predict": ('state["global"]\n    tuned', 'state["trained"]\n    tuned'),
    "every-choice-uses-samples-alike": (
        "    epochs: Annotated[int, Ge(0)] = 1\n",
        '    calibrated: bool = False\n    """read test samples"""\n    epochs: Annotated[int, Ge(0)] = 1\n',
    ),
    "clients-are-trained-in-any-number-at-once": (
        AVERAGE,
        "mean = run.averaging(downloaded)\n    for part in trained:\n"
        "        mean.add({n: v * len(v) for n, v in part.params.items()}, part.weights, part.clients)\n"
        "    return {'global': mean.value()}",
    ),
    "the-order-of-clients-does-not-matter": (
        "return " + TUNED,
        "first = int(clients[0])\n    return run.predictor(clients, {n: v + first for n, v in start.items()})",
    ),
    "a-client-predicts-the-same-alone": (
        "return " + TUNED,
        "return run.predictor(clients, {n: v + len(clients) for n, v in start.items()})",
    ),
    "only-links-of-its-kind-carry-bytes": ('run.download(state["global"], cohort)', 'state["global"]'),
    "personalize-does-not-change-the-state": (
        '    start = state["global"]\n',
        '    start = state["global"]\n    for value in start.values():\n        value.add_(0.01)\n',
    ),
    "clients-predict-with-the-global-model-unless-declared": ("ADAPTS = True\n", ""),
    "steps-of-an-epoch-are-an-epoch": ("downloaded, t=t)", "downloaded, t=t, epochs=run.settings.epochs, steps=None)"),
    "absent-clients-change-no-other-draw": ("downloaded, t=t)", "downloaded, t=t, lr=0.01 * len(cohort))"),
    "a-round-without-uploads-changes-nothing": (
        "    cohort = run.cohort(t)\n",
        "    cohort = run.cohort(t)\n    state['global']['head.bias'].add_(1)\n",
    ),
    "a-client-that-diverges-is-left-out": (
        "    cohort = run.cohort(t)\n",
        "    cohort = run.cohort(t)\n    assert not run.attendance.diverged\n",
    ),
    "divergence-is-reported": ("downloaded, t=t)", "downloaded, t=t, lr=min(run.settings.lr, 0.1))"),
    "extreme-options-work-or-are-refused": (
        '    start = state["global"]\n',
        '    start = state["global"]\n    if run.cfg.lam > 1e9:\n        raise IndexError\n',
    ),
    "the-grid-has-valid-values": ("(0.0, 0.1, 1.0)", "(-1.0, 0.1, 1.0)"),
    "clients-read-only-what-they-download": (
        "run.local_sgd(cohort, downloaded,",
        'run.local_sgd(cohort, state["global"],',
    ),
    "costs-that-grow-with-pairs-are-declared": (
        "    downloaded = run.download",
        '    run.send("down", state["global"], copies=len(cohort) ** 2)\n    downloaded = run.download',
    ),
}
"""A change of the template by which a law does not hold any more."""


@pytest.mark.parametrize("law", [law.name for law in list_laws("methods")])
def test_changed_method_template_breaks_the_law(law, working_folder):
    old, other = BROKEN[law]
    assert old in TEMPLATES["method"]
    text = TEMPLATES["method"].replace(old, other)
    if "calibrated" in other:
        splits = "('train', 'test') if run.cfg.calibrated else ('train',)"
        text = text.replace('t="tune",', f'splits={splits}, t="tune",')
    (working_folder / "broken.py").write_text(text)
    assert law in check_and_list_failures("./broken.py", only=[law])


ODD = """

class Odd(nn.ReLU):
    def forward(self, x):
        import torch

        odd = torch.jit.is_tracing() or torch._C._functorch.is_functorch_wrapped_tensor(x)
        return super().forward(x) * (2 if odd else 1)


class OddInTraining(nn.ReLU):
    def forward(self, x):
        return super().forward(x) * (2 if self.training else 1)
"""
"""Layers that compute something else in stacks and in exported graphs, or in training."""

OTHERS = {
    "no-sample-has-two-clients": ("scheme", "np.sort(part) for part", "np.sort(part) // 2 for part"),
    "there-are-as-many-clients-as-asked-for": ("scheme", "np.linspace(1, cfg.ratio, count)", "np.ones(5)"),
    "the-same-seed-gives-the-same-split": ("scheme", "rng.permutation", "np.random.default_rng().permutation"),
    "impossible-requests-are-refused": ("scheme", 'require_clients("TITLE", clients, len(samples.y))', "clients"),
    "transforms-keep-samples-valid": (
        "scheme",
        "def split(",
        "def cluster(clients, cfg):\n    return np.arange(clients) % 2\n\n\n"
        "def transform(x, y, group, classes, cfg, rng):\n    return x, y + group\n\n\ndef split(",
    ),
    "uploads-keep-their-form": ("upload", "return received\n", "return {n: v.double() for n, v in received.items()}\n"),
    "models-are-not-changed-in-place": (
        "upload",
        "received = dict(params)",
        "params['bias'] += 1\n    received = dict(params)",
    ),
    "each-upload-stands-alone": (
        "upload",
        "kept.view_as(value)",
        "kept.mean(dim=0).view_as(value[0])",
    ),
    "random-steps-are-declared": ("upload", "received = dict(params)", "draw(0).random()\n    received = dict(params)"),
    "bytes-are-whole-numbers": ("upload", "min(size, 8 * sent)", "size / 2"),
    "the-model-has-the-form-of-uploads": (
        "aggregator",
        "return self._mean.value()",
        "return {n: v.double() for n, v in self._mean.value().items()}",
    ),
    "equal-uploads-are-their-own-aggregate": (
        "aggregator",
        "return self._mean.value()",
        "return {n: 0.9 * v for n, v in self._mean.value().items()}",
    ),
    "the-order-of-uploads-does-not-matter": (
        "aggregator",
        "(weights > 0).astype(np.float64)",
        "np.arange(len(weights)) + 1.0",
    ),
    "uploads-may-arrive-in-parts": ("aggregator", "self._mean.add(", "self._mean = Mean()\n        self._mean.add("),
    "uploads-of-weight-zero-are-ignored": ("aggregator", "(weights > 0)", "(weights > -1)"),
    "a-round-gives-the-same-bytes-whatever-came-before": (
        "aggregator",
        "self._mean.add(",
        "stacked = {n: v * (1 + 1e-3 * (hash(n) % 100)) for n, v in stacked.items()}\n        self._mean.add(",
    ),
    "an-upload-has-its-own-weight": ("aggregator", "(weights > 0).astype(np.float64)", "weights[::-1].copy()"),
    "arguments-are-not-changed": ("aggregator", "self._mean.add(", "stacked['bias'].add_(1)\n        self._mean.add("),
    "no-uploads-raise-an-error": (
        "aggregator",
        "return self._mean.value()",
        "try:\n            return self._mean.value()\n        except ValueError:\n            return {}",
    ),
    "a-head-follows-a-body": (
        "model",
        "return Net(",
        "class Shifted(Net):\n        def forward(self, x):\n            return 1 + super().forward(x)\n\n"
        "    return Shifted(",
    ),
    "initial-weights-depend-on-the-seed-alone": (
        "model",
        "return Net(body, nn.Linear(64, classes))",
        "net = Net(body, nn.Linear(64, classes))\n    for value in net.parameters():\n"
        "        nn.init.constant_(value, 0.01)\n    return net",
    ),
    "samples-are-predicted-one-by-one": ("model", "nn.ReLU())", "nn.Softmax(dim=0))"),
    "every-parameter-is-trained": (
        "model",
        "return Net(body,",
        "body.register_parameter('extra', nn.Parameter(body[1].bias.detach().clone()))\n    return Net(body,",
    ),
    "an-adapter-changes-nothing-at-first": ("model", "nn.ReLU())", "OddInTraining())"),
    "a-stack-of-clients-trains-as-a-loop": ("model", "nn.ReLU())", "Odd())"),
    "onnx-predicts-the-same": ("model", "nn.ReLU())", "Odd())"),
    "samples-are-valid": ("dataset", "x = np.stack", "y = y + 1\n    x = np.stack"),
    "the-description-fits-the-samples": ("dataset", "CLASSES = 2", "CLASSES = 3"),
    "loading-again-gives-the-same-samples": ("dataset", "default_rng(0)", "default_rng()"),
}


@pytest.mark.parametrize("law", OTHERS)
def test_changed_template_of_another_group_breaks_the_law(law, working_folder):
    kind, old, other = OTHERS[law]
    assert old in TEMPLATES[kind]
    (working_folder / "broken.py").write_text(TEMPLATES[kind].replace(old, other) + ODD * ("Odd" in other))
    assert law in check_and_list_failures("./broken.py", only=[law])


def test_every_law_has_a_file_or_a_case_that_breaks_it():
    named = re.findall(r"^(?:Breaks|Warns): (.+)$", "\n".join(file.read_text() for file in WRONG), re.MULTILINE)
    broken = {name.strip() for line in named for name in line.split(",")}
    laws = {law.name for group in registry.KINDS.values() for law in list_laws(group)}
    assert laws == BROKEN.keys() | OTHERS.keys() | (broken & laws)


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
    assert (ran.code, ran.err) == (0, "11 laws passed, none failed\n")
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
    assert "./other.py breaks 2 of 11 laws" in ran.err


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


def test_only_may_be_repeated(pfl):
    """Of two options with one law each, the first would otherwise be ignored."""
    ran = pfl("check", "fedavg", "--only", "the-grid-has-valid-values", "--only", "zero-rounds-are-enough-to-predict")
    assert "2 laws passed" in ran.out + ran.err
