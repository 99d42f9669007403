"""``simulate`` gives the predictions of the command line for every method, and refuses wrong input with one error."""

from __future__ import annotations

import ast
import math
import subprocess
import sys
import types

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import pflcli
from helpers import CLASSIFYING, ROOT, files_of
from pflcli import Callback, EarlyStopping, Federation, compare, import_data, partition, simulate, table
from pflcli.artifacts.kinds import predictions, required_kinds
from pflcli.artifacts.open_by_path import open_one
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.extract import extract
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core import methods, models
from pflcli.core.engine.process_settings import intra_op
from pflcli.core.errors import InputError, UnsuitedError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.simulation import loop
from pflcli.core.simulation.progress import Progress
from pflcli.methods import fedavg

METHODS = CLASSIFYING
NAMES = ["amber", "birch", "cedar", "delta", "ember", "fjord"]
SETTINGS = {"model": "mlp", "rounds": 2, "participation": 0.5, "batch_size": 8, "lr": 0.1, "eval_every": 1}
ONE = Execution(threads=1)


def draw_arrays(seed=0, samples=150):
    """Return samples with three noisy classes, their labels as words, and their clients."""
    draw = np.random.default_rng(seed)
    place = draw.integers(0, 3, samples)
    x = (draw.normal(size=(samples, 5)) + 2 * np.eye(5)[place]).astype(np.float32)
    return x, np.asarray(["high", "low", "middle"])[place], np.asarray(NAMES)[draw.integers(0, 6, samples)]


@pytest.fixture(scope="module")
def small_federation():
    return Federation.from_arrays(*draw_arrays())


@pytest.fixture(scope="module")
def artifact_lineage(tmp_path_factory):
    """Return the artifacts of the same samples, by kind."""
    root, (x, y, client) = tmp_path_factory.mktemp("lineage"), draw_arrays()
    np.savez(root / "data.npz", x=x, y=y, client=client)
    import_data(root / "data.npz", root / "data")
    partition(root / "data", root / "p")
    train_global(root / "p", root / "b", settings=SETTINGS, execution=ONE)
    extract(root / "b", root / "e", execution=ONE)
    build_datastore(root / "e", root / "d")
    return {"partition": root / "p", "backbone": root / "b", "embeddings": root / "e", "datastore": root / "d"}


def find_source_kind(method):
    """Return the kind of artifact from which a method runs."""
    needs = required_kinds(methods.load(method).NEEDS)
    return [kind for kind in ("partition", "backbone", "embeddings", "datastore") if kind in {*needs, "partition"}][-1]


@pytest.mark.parametrize("method", METHODS)
def test_simulate_gives_the_predictions_of_personalize(method, small_federation, artifact_lineage, tmp_path):
    if method == "oracle":
        pytest.skip("needs true clusters, which natural clients do not have")
    personalize(method, artifact_lineage[find_source_kind(method)], tmp_path / "out", settings=SETTINGS, execution=ONE)
    stored, result = open_one(tmp_path / "out", "predictions"), simulate(method, small_federation, **SETTINGS)
    for split in ("validation", "test"):
        expected = predictions.read(stored, split)
        np.testing.assert_array_equal(result.predictions[split].y, expected.y)
        assert result.predictions[split].parts.keys() == expected.parts.keys()
        for name, p in expected.parts.items():
            np.testing.assert_array_equal(result.predictions[split].parts[name], p)
    summary = stored.manifest.summary
    assert result.bytes == {link: summary[f"bytes_{link}"] for link in ("up", "down", "peer")}
    right = (expected.parts["p"].argmax(axis=1) == expected.y).mean()
    assert result.accuracy() == right


def test_simulate_on_clusters_gives_the_predictions_of_personalize(tmp_path):
    partition("writers", tmp_path / "p", scheme="clusters", clients=6)
    settings = {**SETTINGS, "participation": 1.0}
    personalize("oracle", tmp_path / "p", tmp_path / "out", settings=settings, execution=ONE)
    result = simulate("oracle", Federation.from_dataset("writers", "clusters", clients=6), **settings)
    expected = predictions.read(open_one(tmp_path / "out", "predictions"), "test")
    np.testing.assert_array_equal(result.predictions["test"].p, expected.parts["p"])


def test_result_has_rounds_accuracies_and_models(small_federation):
    result = simulate("ditto", small_federation, options={"lam": 0.5}, **SETTINGS)
    assert list(result.rounds.index) == [1, 2]
    assert {"loss", "validation_accuracy", "bytes_up"} <= {*result.rounds.columns}
    by_client = result.accuracies()
    sizes = small_federation.sizes("test")
    assert list(by_client.index) == NAMES
    assert (by_client * sizes).sum() / sizes.sum() == pytest.approx(result.accuracy())
    model = result.models["amber"]
    assert model is not None
    assert model.networks[0].keys() == result.run.init.keys()


@pytest.mark.parametrize("method", ["fedavg", "ditto", "local", "knn-per", "fedavg-plus"])
def test_rounds_have_the_same_columns_for_all_methods(method, small_federation):
    rounds = simulate(method, small_federation, **SETTINGS).rounds
    assert ("round", *rounds.columns) == loop.ROUND_COLUMNS
    assert rounds.index.name == "round"
    assert rounds["personal_accuracy"].notna().any() == (method == "ditto")


def test_simulate_predictions_depend_on_the_seed(small_federation):
    first, again, other = (simulate("fedavg", small_federation, seed=seed, **SETTINGS) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.predictions["test"].p, again.predictions["test"].p)
    assert not np.array_equal(first.predictions["test"].p, other.predictions["test"].p)


@pytest.mark.parametrize("method", ["fedamp", "gossip", "panm", "pens"])
def test_threads_change_no_byte_of_a_mixture_of_models(method, small_federation, artifact_lineage, tmp_path):
    settings = {**SETTINGS, "participation": 0.8}  # a product of five rows depends on the number of threads
    personalize(method, artifact_lineage["partition"], tmp_path, settings=settings, execution=Execution(threads=2))
    with intra_op(1):
        result = simulate(method, small_federation, **settings)
    expected = predictions.read(open_one(tmp_path, "predictions"), "test").parts["p"]
    np.testing.assert_array_equal(result.predictions["test"].p, expected)


class Mine:
    """FedAvg as an object."""

    KIND, NEEDS, PAPER, YEAR, Config = fedavg.KIND, fedavg.NEEDS, "Mine", 2026, fedavg.Config

    def setup(self, run):
        return fedavg.setup(run)

    def train_round(self, run, state, t):
        return fedavg.train_round(run, state, t)

    def personalize(self, run, state, clients):
        return fedavg.personalize(run, state, clients)


@pytest.mark.parametrize("method", [fedavg, Mine, Mine()], ids=["module", "class", "object"])
def test_simulate_accepts_a_method_as_module_class_or_object(method, small_federation):
    expected, result = (
        simulate(each, small_federation, **SETTINGS).predictions["test"].p for each in ("fedavg", method)
    )
    np.testing.assert_array_equal(result, expected)


class Counting(Mine):
    """FedAvg that notes with how many threads PyTorch would compute."""

    def __init__(self):
        self.threads = set()

    def setup(self, run):
        self.threads.add(torch.get_num_threads())
        return super().setup(run)

    def train_round(self, run, state, t):
        self.threads.add(torch.get_num_threads())
        return super().train_round(run, state, t)

    def personalize(self, run, state, clients):
        self.threads.add(torch.get_num_threads())
        return super().personalize(run, state, clients)


def test_methods_compute_with_one_thread_of_pytorch(small_federation):
    method = Counting()
    with intra_op(3):
        simulate(method, small_federation, **SETTINGS, threads=2)
        assert torch.get_num_threads() == 3
    assert method.threads == {1}


class Clipping(Mine):
    """FedAvg that clips samples in place by NumPy, which does not tell PyTorch."""

    def train_round(self, run, state, t):
        run.federation.x.numpy().clip(-1, 1, out=run.federation.x.numpy())
        return super().train_round(run, state, t)


def test_simulate_refuses_a_method_that_changes_samples_in_place():
    with pytest.raises(InputError, match="Clipping changed samples") as error:
        simulate(Clipping(), Federation.from_arrays(*draw_arrays()), **SETTINGS)
    assert any("clone" in line for line in error.value.fix)


ODD = """
from pflcli.methods.fedavg import Config, KIND, NEEDS, PAPER, YEAR, personalize, setup as begin, train_round as play
import numpy as np, torch

def setup(run):
    return {**begin(run), "seen": torch.tensor(0)}

def train_round(run, state, t):
    return {**play(run, state, t), "seen": torch.tensor(t)}
"""


@pytest.mark.parametrize(
    ("line", "changed", "problem"),
    [
        ('{**begin(run), "seen": torch.tensor(0)}', '{**begin(run), "seen": 0}', r"setup: state\['seen'\] is int; a"),
        ('"seen": torch.tensor(t)', '"seen": {3: torch.ones(1)}', r"round 1: state\['seen'\] has the key 3; keys are"),
        ('"seen": torch.tensor(t)', '"a": {"seen": np.ones(1)}', r"round 1: state\['a/seen'\] is ndarray; a state has"),
        ('"seen": torch.tensor(t)', '"a/b": torch.ones(1)', "round 1: the state has the key 'a/b'; keys are words"),
        ('"seen": torch.tensor(t)', '"a-b": run.table({"w": torch.ones(1)})', r"the table state\['a-b'\] has a dash"),
        ("torch.tensor(t)", "torch.eye(2).to_sparse()", r"round 1: state\['seen'\] is not a dense tensor"),
        ("return {**play", "state = {**play", "round 1: the state is NoneType, not a dict of tensors and tables"),
    ],
)
def test_a_state_that_cannot_be_stored_is_refused_where_it_arises(
    line, changed, problem, small_federation, artifact_lineage, tmp_path
):
    file = tmp_path / "odd.py"
    file.write_text(ODD)
    simulate(file, small_federation, **SETTINGS)
    assert ODD.count(line) == 1
    file = tmp_path / "odder.py"
    file.write_text(ODD.replace(line, changed))
    for run in (
        lambda: simulate(file, small_federation, **SETTINGS),
        lambda: personalize(str(file), artifact_lineage["partition"], tmp_path / "out", settings=SETTINGS),
    ):
        with pytest.raises(InputError, match=f"^odder, .*{problem}") as error:
            run()
        assert not isinstance(error.value, UnsuitedError)  # which a comparison leaves out


@pytest.mark.parametrize(
    ("method", "changes", "options"),
    [
        ("fedavg", {"dp_noise": 1.0, "dp_delta": 1e-3, "dp_clip": "1"}, {}),
        ("fedavg", {"upload": ("noise:0.1",)}, {}),
        ("knn-per-extended", {}, {"vote": "noisy", "vote_epsilon": 0.5, "weight": 1.0}),
    ],
)
def test_noise_by_dp_seed_repeats_but_depends_on_options_and_samples(method, changes, options, small_federation):
    def run(federation=small_federation, **more):
        result = simulate(method, federation, options=options, **{**SETTINGS, **changes, **more})
        return result.run.private_rng("any").normal(), result.predictions["test"].p

    (noise, p), (again, same) = run(dp_seed=3), run(dp_seed=3)
    assert noise == again
    np.testing.assert_array_equal(p, same)
    other = Federation.from_arrays(*draw_arrays(seed=1))
    draws = {noise, run(dp_seed=4)[0], run(dp_seed=3, lr=0.2)[0], run(other, dp_seed=3)[0], run()[0], run()[0]}
    assert len(draws) == 6


def test_simulate_refuses_a_method_without_a_required_member(small_federation):
    with pytest.raises(InputError, match="has no personalize"):
        simulate(
            types.SimpleNamespace(KIND="local", NEEDS=(), PAPER="", YEAR=1, Config=fedavg.Config), small_federation
        )


class Network(nn.Module):
    """Two layers with a width."""

    def __init__(self, in_features: int, classes: int, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(in_features, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, x):
        return self.layers(x)


def test_simulate_accepts_a_model_as_class_or_function(small_federation):
    settings = {**SETTINGS, "rounds": 3}
    del settings["model"]
    made = simulate("fedper", small_federation, model=Network, **settings)
    wide = simulate("fedper", small_federation, model=lambda classes: Network(5, classes, width=16), **settings)
    assert sum(value.numel() for value in made.run.init.values()) == 5 * 8 + 8 + 8 * 3 + 3
    assert sum(value.numel() for value in wide.run.init.values()) == 5 * 16 + 16 + 16 * 3 + 3
    before = torch.random.get_rng_state()
    again = simulate("fedper", small_federation, model=Network, **settings)
    assert torch.equal(before, torch.random.get_rng_state())
    np.testing.assert_array_equal(made.predictions["test"].p, again.predictions["test"].p)
    with pytest.raises(InputError, match="makes a int"):
        simulate("fedper", small_federation, model=lambda classes: classes, **settings)


def test_a_network_of_a_function_has_the_initial_weights_of_its_name(small_federation):
    """Those of the same name on the command line: only then does ``simulate`` give what ``personalize`` gives."""
    settings = {**SETTINGS, "seed": 3}
    named = simulate("fedavg", small_federation, **settings)
    del settings["model"]

    def mlp(in_shape, classes):
        return models.create("mlp", in_shape, classes, 0).apply(reset)

    def reset(layer):
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()

    drawn = simulate("fedavg", small_federation, model=mlp, **settings)
    np.testing.assert_array_equal(named.predictions["test"].p, drawn.predictions["test"].p)


class Recorder(Callback):
    """Records what it sees."""

    def __init__(self):
        self.seen = []

    def before_round(self, run, progress):
        self.seen.append(("before", len(progress.rows)))

    def after_round(self, run, progress):
        self.seen.append(("after", progress.rows[-1]["round"]))

    def after_prediction(self, run, progress):
        self.seen.append(("predicted", progress.predicted_clients))


def test_callbacks_are_called_around_rounds_and_predictions_in_order(small_federation):
    recorder = Recorder()
    simulate("fedavg", small_federation, callbacks=[recorder], **SETTINGS)
    assert recorder.seen == [("before", 0), ("after", 1), ("before", 1), ("after", 2), ("predicted", 6)]


def test_early_stopping_ends_training_after_patience_rounds_without_a_rise(small_federation, monkeypatch):
    accuracies = iter([0.5, 0.7, 0.6, 0.7, 0.65, 0.9, 0.9])
    monkeypatch.setattr("pflcli.core.federation.run.Run.accuracy", lambda self, params, split: next(accuracies))
    settings = {**SETTINGS, "rounds": 7}
    result = simulate("fedavg", small_federation, callbacks=[EarlyStopping(patience=3)], **settings)
    assert list(result.rounds["validation_accuracy"]) == [0.5, 0.7, 0.6, 0.7, 0.65]
    accuracies = iter([0.5, 0.7, 0.6, 0.7, 0.65, 0.9, 0.9])
    assert len(simulate("fedavg", small_federation, patience=4, **settings).rounds) == 7


def flat_after(start, gain, end, rounds):
    """Return accuracies that gain so much per doubling of the rounds up to round ``end``, and then nothing."""
    return [start + gain * math.log2(min(t, end)) for t in range(1, rounds + 1)]


def test_patience_flat_ends_training_when_a_doubling_gains_less_than_half_a_point(small_federation, monkeypatch):
    """Word by word: a line through accuracy over log2(round), from a quarter of the rounds on, by ``polyfit``."""
    settings, curve = {**SETTINGS, "rounds": 60, "lr": 1e-6}, flat_after(0.5, 0.05, 8, 60)
    monkeypatch.setattr("pflcli.core.federation.run.Run.accuracy", lambda self, params, split: next(accuracies))
    slopes = {
        t: np.polyfit(np.log2(np.arange(math.ceil(t / 4), t + 1)), curve[math.ceil(t / 4) - 1 : t], 1)[0]
        for t in range(8, 61)
        if t + 1 - math.ceil(t / 4) >= 8
    }
    expected = next(t for t, slope in slopes.items() if slope < 0.005)
    assert 10 < expected < 60
    accuracies = iter(curve)
    assert len(simulate("fedavg", small_federation, patience="flat", **settings).rounds) == expected
    accuracies = iter(curve)
    stopping = [EarlyStopping(patience="flat")]
    assert len(simulate("fedavg", small_federation, callbacks=stopping, **settings).rounds) == expected
    accuracies = iter(flat_after(0.3, 0.05, 60, 60))  # it rises to the end
    assert len(simulate("fedavg", small_federation, patience="flat", **settings).rounds) == 60
    with pytest.raises(UsageError, match="patience=flatt"):
        simulate("fedavg", small_federation, patience="flatt", **settings)


def test_patience_has_no_effect_without_validation_samples():
    federation = Federation.from_arrays(*draw_arrays(), fractions=(0.8, 0.0, 0.2))
    assert len(simulate("fedavg", federation, patience=1, **SETTINGS).rounds) == 2


def test_personalize_with_patience_stops_and_reports_its_rounds(artifact_lineage, tmp_path):
    settings = {**SETTINGS, "rounds": 30, "lr": 1e-6, "patience": 2}
    personalize("fedavg", artifact_lineage["partition"], tmp_path / "out", settings=settings, execution=ONE)
    assert open_one(tmp_path / "out", "predictions").manifest.summary["rounds"] == 3


def replace_value(values, row, value):
    changed = np.array(values, dtype=object if isinstance(value, str) or value is None else values.dtype)
    changed[row] = value
    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y, c: (x[:-1], y, c), "x has .* rows, but y has"),
        (lambda x, y, c: (x, y, c[:-1]), "x has .* rows, but client has"),
        (lambda x, y, c: (replace_value(x, (3, 1), np.nan), y, c), r"x is nan in row 3, column 1"),
        (lambda x, y, c: (x.astype(str), y, c), "not numbers"),
        (lambda x, y, c: (x[:, 0], y, c), "neither uint8 images"),
        (lambda x, y, c: (x, replace_value(y, 4, None), c), "y of row 4 is missing"),
        (lambda x, y, c: (x, x[:, 0], c), r"y of row 0 is .*, a number and not a class"),
        (lambda x, y, c: (x, np.eye(3)[:1].repeat(len(x), axis=0), c), r"y has shape \(150, 3\)"),
        (lambda x, y, c: (x, y, replace_value(c, 5, None)), "client of row 5 is missing"),
        (lambda x, y, c: (x[:0], y[:0], c[:0]), "has no samples"),
        (lambda x, y, c: (np.zeros((150, 4, 4, 3), np.int64), y, c), "images are uint8"),
    ],
)
def test_from_arrays_refuses_bad_arrays_and_names_the_row(change, message):
    with pytest.raises(InputError, match=message):
        Federation.from_arrays(*change(*draw_arrays()))


def test_from_arrays_and_simulate_refuse_wrong_options(small_federation):
    x, y, client = draw_arrays()
    with pytest.raises(UsageError, match="add up to 1"):
        Federation.from_arrays(x, y, client, fractions=(0.5, 0.1, 0.1))
    with pytest.raises(UsageError, match="no client 'zebra'"):
        Federation.from_arrays(x, y, client, new_clients=["zebra"])
    with pytest.raises(InputError, match="is 'rest', which is none of train, validation, test"):
        Federation.from_arrays(x, y, client, split=np.where(np.arange(150) == 7, "rest", "train"))
    with pytest.raises(InputError, match=r"y of row .* is middle, which is not among classes"):
        Federation.from_arrays(x, y, client, classes=["high", "low"])
    for arguments, message in [({"rouds": 2}, "rounds"), ({"model": "mpl"}, "mlp"), ({"options": {"x": 1}}, "option")]:
        with pytest.raises(UsageError) as raised:
            simulate("ditto", small_federation, **arguments)
        assert message in str([raised.value.message, *raised.value.fix])
    with pytest.raises(UsageError, match="unknown method 'dito'"):
        simulate("dito", small_federation)


def test_from_arrays_keeps_given_splits_classes_and_new_clients():
    x, y, client = draw_arrays()
    split = np.asarray(["train", "validation", "test"])[np.arange(150) % 3]
    made = Federation.from_arrays(x, y, client, split=split, classes=["low", "middle", "high"], new_clients=["cedar"])
    assert made.class_names == ("low", "middle", "high")
    assert list(made.seen_clients) == [0, 1, 3, 4, 5]
    for index, name in enumerate(NAMES):
        for word in ("train", "validation", "test"):
            rows = (client == name) & (split == word)
            np.testing.assert_array_equal(made.x[made.block(index, word)].numpy(), x[rows])
            names = [made.class_names[label] for label in made.y[made.block(index, word)]]
            assert names == list(y[rows])


def test_describe_counts_samples_and_measures_divergence():
    x, y, client = draw_arrays()
    shown = Federation.from_arrays(x, np.where(client == "amber", "low", y), client).describe()
    assert shown.loc["amber", "classes"] == 1
    assert shown[["train", "validation", "test"]].sum().sum() == 150
    assert shown["divergence"].idxmax() == "amber"


KERNEL = 64
"""A bound on the modules that a simulation loads: a new one is a reason to look at what it imports."""
ABOVE = ("artifacts", "commands", "cli", "options", "workflow", "evaluation", "data", "plugins")


def test_simulate_loads_no_modules_of_artifacts_or_commands():
    code = (
        "import sys, numpy as np; from pflcli import Federation, simulate\n"
        "draw = np.random.default_rng(0); x, y = draw.normal(size=(90, 4)), draw.integers(0, 2, 90)\n"
        "simulate('ditto', Federation.from_arrays(x, y, np.arange(90) % 3), rounds=1, model='mlp')\n"
        "print(*(name for name in sys.modules if name.startswith('pflcli.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    accelerated = ("pflcli.plugins", "pflcli.plugins.accelerated")
    loaded = {name for name in done.stdout.split() if not f"{name}.".startswith(f"{accelerated[1]}.")} - {*accelerated}
    assert not [name for name in loaded if name.split(".")[1] in ABOVE or name == "pflcli.core.execution"]
    assert all((ROOT / name).is_dir() for name in ABOVE)
    assert len(loaded) <= KERNEL


def test_kernel_packages_do_not_open_files_or_print():
    for file in files_of(
        "methods", *(f"core/{name}" for name in ("simulation", "federation", "engine", "parameters", "knn"))
    ):
        if file.name != "shared_memory.py":  # memory that processes share: nothing of it reaches a disk
            calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
            assert not {ast.unparse(call) for call in calls} & {"open", "print", "input"}, file


def test_public_names_are_listed():
    assert {"simulate", "Federation", "Callback", "EarlyStopping"} <= {*pflcli.__all__}


def test_table_of_results_equals_the_table_of_compare(artifact_lineage, tmp_path):
    asked = {"methods": "fedavg,ditto,local", "seeds": "0,1", **SETTINGS, "threads": 1}
    expected = compare(artifact_lineage["partition"], tmp_path / "c", references=False, **asked).table()
    made = Federation.from_arrays(*draw_arrays())
    results = {name: [simulate(name, made, seed=seed, **SETTINGS) for seed in (0, 1)] for name in expected.index}
    stored = {name: [next((tmp_path / "c").glob(f"seed-{seed}/{name}")) for seed in (0, 1)] for name in expected.index}
    for shown in (table(results), table(stored)):
        assert [*shown.index] == [*expected.index]
        assert {"accuracy", "gain", "gain_low", "gain_high", "gain_p_corrected", "better_off"} <= {*shown.columns}
        common = [name for name in shown.columns if name in expected.columns]
        assert len(common) == len(shown.columns)
        pd.testing.assert_frame_equal(shown[common], expected[common], check_dtype=False, rtol=1e-5, atol=1e-6)


def test_results_and_federations_print_in_a_line(small_federation):
    result = simulate("constant", small_federation, **SETTINGS)
    count = len(small_federation.clients)
    assert repr(result).startswith(f"Result(method='constant', clients={count}, rounds=0, seed=0, accuracy=0.")
    assert repr(small_federation).startswith(f"Federation(clients={count}, samples={len(small_federation.y)}, classes=")
    assert repr(result.predictions["test"]).startswith(f"Predictions(samples={len(result.predictions['test'].y)}, ")
    assert all("\n" not in repr(each) for each in (result, small_federation, result.predictions["test"]))


def test_table_counts_seeds_in_whole_numbers(small_federation):
    results = [simulate("constant", small_federation, seed=seed, **SETTINGS) for seed in (0, 1)]
    assert table({"constant": results}, baseline="constant")["seeds"].tolist() == [2]
    assert "2.0" not in str(table({"constant": results}, baseline="constant")["seeds"])


def test_table_refuses_to_compare_nothing():
    with pytest.raises(UsageError, match="there is no result to compare"):
        table({})


@pytest.mark.parametrize(("given", "fix"), [("writers", "from_dataset('writers')"), (None, "from_arrays")])
def test_simulate_refuses_what_is_no_federation_and_says_how_to_make_one(given, fix):
    with pytest.raises(UsageError, match="not a Federation") as raised:
        simulate("fedavg", given)
    assert fix in raised.value.fix[0]


def test_table_refuses_an_unknown_baseline_and_missing_predictions(small_federation):
    with pytest.raises(UsageError, match="ditto is 3, which has no predictions"):
        table({"ditto": 3})
    result = simulate("constant", small_federation, **SETTINGS)
    with pytest.raises(UsageError, match="baseline 'ditto' is not among"):
        table({"constant": result}, baseline="ditto")
    with pytest.raises(InputError, match="no train predictions"):
        table({"constant": result}, split="train")


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("fedper", {"model": "logistic"}, "is all head"),
        ("knn-per", {"refit": True}, "refit takes the choices"),
        ("fedavg", {"adapter": "lora:8"}, "adapter freezes"),
        ("fedavg", {"engine": "stack"}, "unknown engine"),
        ("fedavg", {"augment": ("flip",)}, "is for images"),
        ("fedavg", {"aggregator": "medain"}, "unknown aggregator"),
        ("fedproto", {"dp_noise": 1.0, "dp_delta": 0.1}, "does not cover fedproto"),
    ],
)
def test_simulate_refuses_what_personalize_refuses(method, arguments, message, small_federation):
    with pytest.raises((UsageError, UnsuitedError), match=message):
        simulate(method, small_federation, **{**SETTINGS, **arguments})


def test_simulate_says_what_to_type_in_python(small_federation):
    with pytest.raises(UsageError) as raised:
        simulate("scaffold", small_federation, optimizer="adam", **SETTINGS)
    assert raised.value.fix == ("leave out optimizer and clip_gradients",)
    assert "--" not in str(raised.value)


def test_simulate_checks_a_user_network_like_a_named_model(small_federation):
    settings = {name: value for name, value in SETTINGS.items() if name != "model"}
    with pytest.raises(UsageError, match="is for images"):
        simulate("fedavg", small_federation, model=Network, augment=("flip",), **settings)


def test_simulate_warns_of_diverged_clients_and_settings_without_effect(small_federation):
    with pytest.warns(UserWarning, match="^momentum=0.5 has no effect on scaffold"):
        simulate("scaffold", small_federation, momentum=0.5, **SETTINGS)
    x, y, client = draw_arrays()
    x[client == "amber"] = 3e38
    with pytest.warns(UserWarning, match="became non-finite: .*amber"):
        simulate("fedavg", Federation.from_arrays(x, y, client), **{**SETTINGS, "participation": 1.0})


def test_patience_shorter_than_eval_every_waits_for_the_next_evaluation(small_federation, monkeypatch):
    accuracies = iter([0.5, 0.7, 0.8, 0.8, 0.9])
    monkeypatch.setattr("pflcli.core.federation.run.Run.accuracy", lambda self, params, split: next(accuracies))
    settings = {**SETTINGS, "rounds": 10, "eval_every": 2, "patience": 1}
    assert len(simulate("fedavg", small_federation, **settings).rounds) == 8


def test_resumed_run_with_patience_stops_at_the_same_round(artifact_lineage, tmp_path, monkeypatch):
    settings = {**SETTINGS, "rounds": 30, "lr": 1e-6, "patience": 4}
    personalize("fedavg", artifact_lineage["partition"], tmp_path / "whole", settings=settings, execution=ONE)
    play = loop.play_round

    def interrupt(run, name, method, state, t):
        if t == 2:
            raise KeyboardInterrupt
        return play(run, name, method, state, t)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "play_round", interrupt)
        with pytest.raises(KeyboardInterrupt):
            personalize("fedavg", artifact_lineage["partition"], tmp_path / "cut", settings=settings, execution=ONE)
    personalize("fedavg", artifact_lineage["partition"], tmp_path / "cut", settings=settings, execution=ONE)
    whole, cut = (open_one(tmp_path / name, "predictions") for name in ("whole", "cut"))
    assert whole.manifest.summary["rounds"] == cut.manifest.summary["rounds"] == 5
    assert whole.read("state.safetensors") == cut.read("state.safetensors")


def test_from_arrays_refuses_contradictory_arguments():
    x, y, client = draw_arrays()
    with pytest.raises(UsageError, match="split and fractions"):
        Federation.from_arrays(x, y, client, split=["train"] * 150, fractions=(0.6, 0.2, 0.2))
    with pytest.raises(UsageError, match="a class twice"):
        Federation.from_arrays(x, y, client, classes=["low", "low", "middle", "high"])
    with pytest.raises(UsageError, match="no client has training samples"):
        Federation.from_arrays(x, y, client, new_clients=NAMES)
    with pytest.raises(InputError, match="images are uint8"):
        Federation.from_arrays(np.zeros((150, 8, 8), np.int64), y, client)
    longer = Federation.from_arrays(x, y, client, classes=["low", "middle", "high", "unheard of"])
    assert longer.class_names[-1] == "unheard of"


def test_failed_round_restores_the_progress(small_federation):
    run = simulate("ditto", small_federation, **SETTINGS).run
    progress = Progress({"global": run.initial_model()})
    state, traffic = progress.state, dict(run.traffic)

    def fail():
        with progress.round(run):
            progress.state, run.traffic["up"] = {}, 0
            progress.rows.append({"round": 1})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (progress.state, progress.rows, run.traffic, progress.is_whole) == (state, [], traffic, True)
