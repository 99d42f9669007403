"""``pfl audit --updates``: gradients worked out by hand, recovered samples, noise, and what is refused."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from helpers import error_text
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.stack import stack
from pflcli.core.errors import PflError
from pflcli.core.execution import Execution
from pflcli.plugins.audits import class_counts, leakage_kind, leakage_presentation, records
from pflcli.plugins.audits.audit import audit
from pflcli.plugins.audits.first_round import replay_first_round
from pflcli.workflow.prediction import stored_predictor

ONE = Execution(threads=1)
BRIEF = {"model": "mlp", "rounds": 1, "participation": 1.0, "lr": 0.1, "batch_size": 4}


def make_partition(at, rows, **options):
    """Import a table of rows (client, class, features...) and give all samples to training."""
    width = len(rows[0]) - 2
    lines = [",".join(["who", "ill", *(f"x{i}" for i in range(width))]), *(",".join(map(str, row)) for row in rows)]
    (at / "table.csv").write_text("\n".join(lines) + "\n")
    import_data(at / "table.csv", at / "data", client="who", label="ill", **options)
    partition(str(at / "data"), at / "p", fractions=(1.0, 0.0, 0.0))
    return at / "p"


def draw_patients(sizes, seed=0):
    """Return rows of clients with so many patients, six numbers and one mark each."""
    draw = np.random.default_rng(seed)
    return [
        [f"c{client}", "ny"[int(draw.random() < 0.3 + 0.1 * client)], *draw.normal(50, 9, 6).round(2), draw.integers(2)]
        for client, count in enumerate(sizes)
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    """Clients with 1, 3, 6 and 40 patients."""
    return make_partition(tmp_path_factory.mktemp("patients"), draw_patients([1, 3, 6, 40]), standardize="federation")


def attack(source, at, method="fedsgd", options=None, **settings):
    """Train a run and attack its updates; return the rows of the attackers, and of clients by name."""
    personalize(method, source, at / "run", settings={**BRIEF, **settings}, options=options or {}, execution=ONE)
    audit(at / "run", at / "leak", updates=True, execution=ONE)
    rows = leakage_kind.read(open_artifact(at / "leak"))["attackers"]
    with (at / "leak" / "clients.csv").open(newline="") as file:
        clients = {row["name"]: row for row in csv.DictReader(file)}
    return {row["attacker"]: row for row in rows}, clients


def read_columns(folder):
    with (folder / "columns.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def replay(run, weights=None):
    return replay_first_round(stored_predictor.open_predictor(open_artifact(run), weights).run, ONE)


def test_gradient_of_two_samples_gives_both_as_worked_out_by_hand(tmp_path):
    # Standardized by itself, the client has the samples (-1, -1) and (1, 1). With weights of 0 both classes have
    # p = 1/2, so that the gradient of class n is (-1/2 (-1, -1) + 1/2 (1, 1)) / 2 = (1/2, 1/2), that of y its negative.
    at = make_partition(tmp_path, [["a", "n", 0, 10], ["a", "y", 2, 30], ["b", "n", 1, 5]], standardize="client")
    save_file({"head.weight": torch.zeros(2, 2), "head.bias": torch.zeros(2)}, tmp_path / "zeros.safetensors")
    personalize(
        "fedsgd", at, tmp_path / "run", settings={**BRIEF, "model": "logistic"}, weights=tmp_path / "zeros.safetensors"
    )
    first = replay(tmp_path / "run", tmp_path / "zeros.safetensors")
    np.testing.assert_allclose(first.updates[0]["head.weight"], [[-0.05, -0.05], [0.05, 0.05]], atol=1e-7)
    np.testing.assert_allclose(first.updates[0]["head.bias"], [0, 0], atol=1e-8)
    assert class_counts.estimate_counts(first.updates[0]["head.bias"], np.full(2, 0.5), 0.1, 2).tolist() == [1, 1]
    lone = records.read_lone_samples(first.updates[0]["head.weight"], 0.1, np.asarray([1, 1]))
    np.testing.assert_allclose(lone, [[-1, -1], [1, 1]], atol=1e-5)
    audit(tmp_path / "run", tmp_path / "leak", updates=True, weights=tmp_path / "zeros.safetensors")
    row = leakage_kind.read(open_artifact(tmp_path / "leak"))["attackers"][0]
    assert (row["wrong_counts"], row["exact_clients"], row["records"]) == (0, 2, 3)


def test_units_that_one_sample_activates_give_this_sample():
    draw = torch.Generator().manual_seed(0)
    first, head = torch.nn.Linear(5, 60), torch.nn.Linear(60, 2)
    for value in (*first.parameters(), *head.parameters()):
        value.data = torch.randn(value.shape, generator=draw)
    x, y = torch.randn(4, 5, generator=draw), torch.tensor([0, 1, 1, 0])
    hidden = first(x)
    functional.cross_entropy(head(hidden.relu()), y).backward()
    is_active = (hidden > 0).numpy()
    alone = is_active.sum(axis=1), is_active.sum(axis=0) == 1
    quotients = records.divide_updates(first.weight.grad.double().numpy(), first.bias.grad.double().numpy())
    assert len(quotients) == (is_active.sum(axis=0) > 0).sum()  # units that no sample activates have no quotient
    place = np.cumsum(is_active.sum(axis=0) > 0) - 1
    for unit in np.flatnonzero(alone[1]):
        own = int(is_active[:, unit].argmax())
        np.testing.assert_allclose(quotients[place[unit]], x[own].numpy(), rtol=1e-3, atol=1e-4)
    owners = {int(is_active[:, unit].argmax()) for unit in np.flatnonzero(alone[1])}
    found = records.find_records(quotients, x.double().numpy(), np.ones(5))
    assert owners == set(np.flatnonzero(found >= 0))


def test_recovered_samples_are_the_true_ones_in_the_unit_of_columns(patients, tmp_path):
    rows, clients = attack(patients, tmp_path, "fedsgd")
    assert (clients["c0"]["records"], clients["c0"]["singled_out_right"]) == ("1", "1")
    assert int(clients["c1"]["records"]) == 3
    assert rows["server"]["records"] > 4 > rows["server"]["guessed_records"] == 0
    first = replay(tmp_path / "run")
    weight, bias = (first.updates[0][f"body.1.{name}"] for name in ("weight", "bias"))
    unit = np.abs(bias).argmax()
    own = first.run.federation.samples(first.run.federation.rows(0, "train"))[0]
    np.testing.assert_allclose(weight[unit] / bias[unit], own.numpy(), atol=1e-3)
    columns = read_columns(tmp_path / "leak")
    assert [row["column"] for row in columns] == [f"x{i}" for i in range(7)]
    assert all(float(row["largest_error"]) <= 0.01 * float(row["deviation"]) for row in columns)
    in_table = np.asarray([row[2:] for row in draw_patients([1, 3, 6, 40])], np.float64).std(axis=0)
    np.testing.assert_allclose([float(row["deviation"]) for row in columns], in_table, rtol=1e-4)


def test_several_local_steps_do_not_hide_samples(patients, tmp_path):
    rows, clients = attack(patients, tmp_path, "fedavg", epochs=5, momentum=0.5)
    assert clients["c0"]["records"] == "1"
    assert int(clients["c1"]["records"]) == 3
    assert rows["server"]["records"] > rows["server"]["guessed_records"] == 0


def test_one_gradient_gives_class_counts(patients, tmp_path):
    rows, _ = attack(patients, tmp_path)
    assert rows["server"]["exact_clients"] == 4
    assert rows["server"]["wrong_counts"] == 0 < rows["server"]["guessed_wrong_counts"]


def test_short_steps_from_equal_probabilities_give_exact_counts(patients, tmp_path):
    save_file({"head.weight": torch.zeros(2, 7), "head.bias": torch.zeros(2)}, tmp_path / "zeros.safetensors")
    settings = {**BRIEF, "model": "logistic", "epochs": 3, "momentum": 0.5, "lr": 0.001, "batch_size": 10}
    personalize("fedavg", patients, tmp_path / "run", settings=settings, weights=tmp_path / "zeros.safetensors")
    audit(tmp_path / "run", tmp_path / "leak", updates=True, weights=tmp_path / "zeros.safetensors")
    assert leakage_kind.read(open_artifact(tmp_path / "leak"))["attackers"][0]["exact_clients"] == 4
    # 12 steps for 40 patients: with momentum 1/2, the k-th last gradient counts 2 - 2^-k, 24 - (1 - 2^-12) in all.
    assert replay(tmp_path / "run", tmp_path / "zeros.safetensors").sum_rates(40) == pytest.approx(
        0.001 * (2 * 12 - 2 * (1 - 2**-12))
    )


def test_clipping_hides_no_sample_and_strong_noise_all(patients, tmp_path):
    plain, _ = attack(patients, tmp_path / "plain")
    clipped, _ = attack(patients, tmp_path / "clip", upload=("clip:0.01",))
    assert clipped["server"]["records"] == plain["server"]["records"] > 4
    noisy, clients = attack(patients, tmp_path / "noise", upload=("clip:0.01", "noise:1"), dp_seed=0)
    assert noisy["server"]["records"] <= noisy["server"]["guessed_records"] == 0
    assert noisy["server"]["singled_out_right"] == 0
    assert noisy["server"]["wrong_counts"] >= 5  # of 50: one class for all would do as well
    assert {row["records"] for row in clients.values()} == {"0"}


def test_differential_privacy_hides_nothing_from_the_server(patients, tmp_path):
    private = {"dp_noise": 5.0, "dp_delta": 1e-3, "dp_clip": "0.1", "dp_seed": 0}
    rows, _ = attack(patients, tmp_path, **private)
    assert rows["server"]["exact_clients"] == 4
    assert rows["server"]["records"] > 4
    assert rows["everybody"]["records"] == 0 < rows["everybody"]["wrong_counts"]
    said = leakage_kind.read(open_artifact(tmp_path / "leak"))["warnings"]
    assert any("at the server" in line for line in said)


def test_the_model_of_one_client_reveals_what_its_update_does(tmp_path):
    at = make_partition(tmp_path, draw_patients([5]), standardize="federation")
    rows, _ = attack(at, tmp_path)
    server, everybody = ({k: v for k, v in rows[who].items() if "records" in k} for who in ("server", "everybody"))
    assert server == everybody
    assert server["records"] >= 3


def test_labels_that_are_numbers_have_no_class_counts(tmp_path):
    rows = [[who, f"{value / 7:.2f}", *more] for value, (who, _, *more) in enumerate(draw_patients([2, 4]))]
    at = make_partition(tmp_path, rows, standardize="federation", task="quantity")
    rows, _ = attack(at, tmp_path)
    assert rows["server"]["wrong_counts"] is None
    assert rows["server"]["records"] >= 2


@pytest.mark.parametrize(
    ("expected", "samples", "counts"),
    [([1.2, 2.8], 4, [1, 3]), ([-1, 5], 4, [0, 4]), ([np.nan, 0], 3, [2, 1]), ([0.5, 0.5, 2], 3, [1, 0, 2])],
)
def test_rounded_counts_add_up(expected, samples, counts):
    assert class_counts.round_counts(np.asarray(expected, np.float64), samples).tolist() == counts


def test_wrong_counts_are_samples_in_a_wrong_class():
    assert class_counts.count_wrong(np.asarray([3, 1, 0]), np.asarray([1, 1, 2])) == 2


def test_guesses_have_the_values_of_each_column():
    known = np.asarray([[0.0, 10.0], [1.0, 20.0], [2.0, 30.0]])
    drawn = records.draw_guesses(known, 200, np.random.default_rng(0))
    assert [set(column) for column in drawn.T] == [{0, 1, 2}, {10, 20, 30}]
    assert len(np.unique(drawn, axis=0)) == 9  # also what does not occur together


@pytest.mark.parametrize(
    ("method", "settings", "problem"),
    [
        ("ditto", {}, "not ditto"),
        ("fedavg", {"optimizer": "adam"}, "SGD"),
        ("fedavg", {"weight_decay": 0.1}, "weight decay"),
        ("fedavg", {"rounds": 0}, "needs a round"),
    ],
)
def test_other_runs_are_refused(patients, tmp_path, method, settings, problem):
    personalize(method, patients, tmp_path / "run", settings={**BRIEF, **settings}, execution=ONE)
    with pytest.raises(PflError) as error:
        audit(tmp_path / "run", tmp_path / "leak", updates=True)
    assert problem in error_text(error)
    assert not (tmp_path / "leak").exists()


def test_servers_that_take_other_steps_and_images_are_refused(patients, tmp_path):
    personalize("fedavg", patients, tmp_path / "adam", settings=BRIEF, options={"server": "adam"}, execution=ONE)
    partition("writers", tmp_path / "w", clients=3)
    personalize("fedavg", tmp_path / "w", tmp_path / "images", settings=BRIEF, execution=ONE)
    personalize("fedavg", patients, tmp_path / "plain", settings=BRIEF, execution=ONE)
    for run, options, problem in (
        ("adam", {}, "the mean of updates"),
        ("images", {}, "rows of a table"),
        ("plain", {"answers": "label"}, "attacks on predictions"),
        ("plain", {"canaries": 50}, "attacks on predictions"),
    ):
        with pytest.raises(PflError) as error:
            audit(tmp_path / run, tmp_path / "leak", updates=True, **options)
        assert problem in error_text(error)
    assert not (tmp_path / "leak").exists()


def test_a_stack_is_refused(tmp_path):
    partition("writers", tmp_path / "p", clients=4)
    for method in ("local", "fedavg"):
        personalize(method, tmp_path / "p", tmp_path / method, settings=BRIEF, execution=ONE)
    stack([tmp_path / "local", tmp_path / "fedavg"], tmp_path / "stack")
    with pytest.raises(PflError) as error:
        audit(tmp_path / "stack", tmp_path / "leak", updates=True)
    assert "stack" in error_text(error)


def test_the_same_request_gives_the_same_bytes(patients, tmp_path):
    attack(patients, tmp_path)
    audit(tmp_path / "run", tmp_path / "again", updates=True, execution=Execution(threads=2))
    for name in ("leakage.json", "table.csv", "clients.csv", "columns.csv"):
        assert (tmp_path / "leak" / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_show_and_the_page_say_what_updates_reveal(patients, tmp_path, pfl):
    rows, _ = attack(patients, tmp_path)
    shown = pfl("show", tmp_path / "leak")
    assert "exact counts" in shown.out
    assert "From the update of each client" in shown.out + shown.err
    assert '"leakage"' in pfl("show", tmp_path / "leak", "--json").out
    section = leakage_presentation.section(open_artifact(tmp_path / "leak"))
    assert "the class counts of 4 of 4 clients exactly" in section.answer
    assert f"recovers {rows['server']['records']} of 50 training samples" in section.answer
    [(_, table)] = section.tables
    assert [line[0] for line in table.rows] == ["server", "everybody"]
