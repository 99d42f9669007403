"""``pfl audit``: attackers with a known success rate, references, and what is left out or refused."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from helpers import error_text
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.import_data import import_data
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.stack import stack
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import InputError, PflError, UsageError
from pflcli.core.execution import Execution
from pflcli.plugins.audits import attacks, queries
from pflcli.plugins.audits import kind as audits
from pflcli.plugins.audits import presentation as presented
from pflcli.plugins.audits.audit import audit
from pflcli.workflow.prediction import stored_predictor

ONE = Execution(threads=1)
BRIEF = {"model": "logistic", "rounds": 1}


@pytest.fixture(scope="module")
def models_on_three_splits(tmp_path_factory):
    """Four writers under three splits, each with models that clients train alone."""
    at = tmp_path_factory.mktemp("splits")
    for number in range(3):
        partition("writers", at / f"p{number}", clients=4, split_seed=number)
        personalize("local", at / f"p{number}", at / f"local{number}", settings=BRIEF, execution=ONE)
    return at


def read_rows(folder, name="table.csv"):
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def read_attacks(folder):
    return {row["attack"]: row for row in audits.read(open_artifact(folder))["attacks"]}


def replace_predictions(monkeypatch, answer):
    """Let clients answer what ``answer`` says of each sample: whether it is a member, its label, and random numbers."""

    def predict_queries(predictor, sent_queries, execution):
        draw = np.random.default_rng(0)
        member = queries.find_members(predictor.artifact, sent_queries.data)[sent_queries.rows]
        right = answer(member, draw)
        p = np.full((len(right), sent_queries.data.classes), 0.0)
        p += ((1 - right) / (sent_queries.data.classes - 1))[:, None]
        p[np.arange(len(right)), sent_queries.y] = right
        return {"p": p.astype(np.float32)}, []

    monkeypatch.setattr(queries, "predict_queries", predict_queries)


def test_audit_reports_auc_1_when_predictions_reveal_membership(models_on_three_splits, tmp_path, monkeypatch):
    replace_predictions(monkeypatch, lambda member, draw: np.where(member, 0.9, 0.6))
    audit(models_on_three_splits / "local0", tmp_path / "a")
    row = read_attacks(tmp_path / "a")["confidence"]
    assert (row["auc"], row["auc_high"], row["worst_client_auc"]) == (1, 1, 1)
    assert row["auc_low"] < 1
    assert row["above_chance"] == row["clients"] > 0
    assert read_attacks(tmp_path / "a")["label"]["auc"] == 0.5  # all answers are right


def test_audit_reports_auc_near_one_half_when_predictions_are_random(models_on_three_splits, tmp_path, monkeypatch):
    replace_predictions(monkeypatch, lambda member, draw: draw.uniform(0.2, 0.9, len(member)))
    audit(models_on_three_splits / "local0", tmp_path / "a")
    row = read_attacks(tmp_path / "a")["confidence"]
    assert row["auc_low"] < 0.5 < row["auc_high"]
    assert abs(row["auc"] - 0.5) < 0.15


def test_audit_queries_get_the_same_predictions_as_pfl_predict(models_on_three_splits):
    artifact = open_artifact(models_on_three_splits / "local0")
    predictor = stored_predictor.open_predictor(artifact)
    data = partitions.read(predictor.partition)
    sent_queries = queries.select_queries(data, queries.split_numbers(data) == 0)
    parts, _ = queries.predict_queries(predictor, sent_queries, ONE)
    for client in range(4):
        own = slice(*sent_queries.offsets[client : client + 2])
        assert (sent_queries.client[own] == client).all()
        expected = predictor.predict(client, data.x[sent_queries.rows[own]], ONE).parts["p"]
        np.testing.assert_allclose(parts["p"][own], expected, rtol=0, atol=1e-6)


def test_audit_uses_equally_many_members_and_non_members_per_client(models_on_three_splits, tmp_path):
    audit(models_on_three_splits / "local0", tmp_path / "a")
    data = partitions.read(open_artifact(models_on_three_splits / "p0"))
    expected = np.minimum(data.sizes[:, 0], data.sizes[:, 2])
    own = [row for row in read_rows(tmp_path / "a", "clients.csv") if row["attack"] == "confidence"]
    assert {int(row["client"]): int(row["members"]) for row in own} == dict(enumerate(expected.tolist()))
    areas = [float(row["auc"]) for row in own if row["auc"]]
    strongest = max(read_attacks(tmp_path / "a").values(), key=lambda row: row["auc"])["attack"]
    assert strongest != "confidence" or areas == sorted(areas, reverse=True)


def test_audit_counts_clients_with_too_few_samples_for_an_auc(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    owner = np.repeat(["=few", "x\x1b[31m", "$\\alpha$", "many"], [3, 40, 40, 40])
    x, y = draw.normal(size=(123, 3)).astype(np.float32), np.arange(123) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y, owner=owner)
    import_data(tmp_path / "a.npz", tmp_path / "data", client="owner")
    partition(str(tmp_path / "data"), tmp_path / "p")
    personalize("local", tmp_path / "p", tmp_path / "m", settings=BRIEF, execution=ONE)
    audit(tmp_path / "m", tmp_path / "a")
    row = read_attacks(tmp_path / "a")["confidence"]
    assert (row["clients"], row["undefined"]) == (3, 1)
    few = [row for row in read_rows(tmp_path / "a", "clients.csv") if int(row["members"]) < attacks.MIN_MEMBERS]
    assert {row["name"] for row in few} == {"=few"}
    assert all(row["auc"] == "" for row in few)
    assert any("1 client with fewer than 5" in line for line in audits.read(open_artifact(tmp_path / "a"))["warnings"])


def test_audit_refuses_a_partition_without_test_samples(tmp_path):
    partition("writers", tmp_path / "p", clients=3, fractions=(0.8, 0.2, 0.0))
    personalize("local", tmp_path / "p", tmp_path / "m", settings=BRIEF, execution=ONE)
    with pytest.raises(InputError) as error:
        audit(tmp_path / "m", tmp_path / "a")
    assert "both training and test samples" in error_text(error)
    assert not (tmp_path / "a").exists()


def test_reference_models_add_the_likelihood_ratio_attack(models_on_three_splits, tmp_path):
    outcome = audit(
        models_on_three_splits / "local0",
        tmp_path / "a",
        references=[models_on_three_splits / "local1", models_on_three_splits / "local2"],
    )
    assert "likelihood-ratio" in outcome.table().index
    assert [item.role for item in open_artifact(tmp_path / "a").manifest.inputs] == [
        "predictions", "reference 0", "reference 1"
    ]  # fmt: skip


def test_split_seed_changes_only_the_splits(models_on_three_splits, tmp_path):
    first, second = (partitions.read(open_artifact(models_on_three_splits / name)) for name in ("p0", "p1"))
    assert first.names == second.names
    assert set(first.sample) == set(second.sample)
    assert not np.array_equal(first.sample, second.sample)
    for client in range(4):
        span = slice(first.offsets[3 * client], first.offsets[3 * client + 3])
        assert set(first.sample[span]) == set(second.sample[span])
    partition("writers", tmp_path / "p", clients=4, seed=0, split_seed=0)
    fingerprints = {
        open_artifact(path).manifest.fingerprint for path in (tmp_path / "p", models_on_three_splits / "p0")
    }
    assert len(fingerprints) == 1


def test_audit_refuses_unsuitable_reference_models(models_on_three_splits, tmp_path):
    personalize("local", models_on_three_splits / "p0", tmp_path / "seed", settings=BRIEF, seed=7, execution=ONE)
    personalize("local", models_on_three_splits / "p1", tmp_path / "lr", settings={**BRIEF, "lr": 0.5}, execution=ONE)
    partition("writers", tmp_path / "p", clients=3, seed=5)
    personalize("local", tmp_path / "p", tmp_path / "others", settings=BRIEF, execution=ONE)
    good = models_on_three_splits / "local1"
    cases = [
        (UsageError, [good], "need at least 2"),
        (UsageError, [good, good], "twice"),
        (UsageError, [good, models_on_three_splits / "local0"], "audited artifact itself"),
        (InputError, [good, tmp_path / "lr"], "another method, other options"),
        (InputError, [good, tmp_path / "seed"], "--split-seed"),
        (InputError, [good, tmp_path / "others"], "do not have the same samples"),
    ]
    for kind, references, words in cases:
        with pytest.raises(PflError) as error:
            audit(models_on_three_splits / "local0", tmp_path / "a", references=references)
        assert isinstance(error.value, kind)
        assert words in error_text(error)


def test_distance_attack_on_a_datastore_has_auc_1(small):
    attacked = read_attacks(small.au)
    assert [*attacked] == [name for name in attacks.SEES if name != "likelihood-ratio"]
    assert attacked["distance"]["auc"] == 1
    assert attacked["distance"]["tpr_at_0_1_percent"] is None  # six writers have fewer than 1000 test samples


def test_audit_leaves_out_unseen_clients(tmp_path):
    partition("writers", tmp_path / "p", clients=6, new_clients=0.3)
    personalize("fedavg", tmp_path / "p", tmp_path / "m", settings=BRIEF, execution=ONE)
    audit(tmp_path / "m", tmp_path / "a")
    content = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert (content["audited_clients"], content["unseen_clients"]) == (4, 2)
    data = partitions.read(open_artifact(tmp_path / "p"))
    members = {int(row["client"]): int(row["members"]) for row in read_rows(tmp_path / "a", "clients.csv")}
    assert {client for client, count in members.items() if count == 0} == set(np.flatnonzero(data.new))


def test_audit_warns_when_test_samples_were_given_and_not_drawn(tmp_path):
    x, y = np.random.default_rng(0).integers(0, 256, (240, 28, 28), dtype=np.uint8), np.arange(240) % 10
    np.savez(tmp_path / "fashion_mnist.npz", x_train=x[:180], y_train=y[:180], x_test=x[180:], y_test=y[180:])
    for name, is_given in (("given", True), ("drawn", False)):
        at = tmp_path / name
        partition("fashion-mnist", at / "p", scheme="iid", clients=2, keep_test=is_given, root=tmp_path)
        personalize("fedavg", at / "p", at / "m", settings=BRIEF, execution=ONE)
        audit(at / "m", at / "a")
        warnings = audits.read(open_artifact(at / "a"))["warnings"]
        assert any("test samples were given, not drawn" in line for line in warnings) == is_given


def test_audit_of_a_stack_uses_the_predictions_of_the_stack(small, tmp_path):
    audit(small.st, tmp_path / "a", execution=ONE)
    predictor = stored_predictor.open_predictor(open_artifact(small.st))
    data = partitions.read(predictor.partition)
    sent_queries = queries.select_queries(data, queries.split_numbers(data) == SPLITS.index("test"))
    parts, _ = queries.predict_queries(predictor, sent_queries, ONE)
    expected = predictor.predict(2, data.x[sent_queries.rows[slice(*sent_queries.offsets[2:4])]], ONE).parts["p"]
    np.testing.assert_allclose(parts["p"][slice(*sent_queries.offsets[2:4])], expected, atol=1e-6)


def test_audit_accepts_a_stack_of_a_single_client(tmp_path):
    partition("writers", tmp_path / "p", clients=1)
    for method in ("local", "fedavg"):
        personalize(method, tmp_path / "p", tmp_path / method, settings=BRIEF, execution=ONE)
    stack([tmp_path / "local", tmp_path / "fedavg"], tmp_path / "s")
    audit(tmp_path / "s", tmp_path / "a")
    assert {row["client"] for row in read_rows(tmp_path / "a", "clients.csv")} == {"0"}


def test_audit_prints_its_table_and_a_dry_run_writes_nothing(small, tmp_path, pfl):
    ran = pfl("audit", small.fedavg, "-o", tmp_path / "a", "--threads", 1)
    assert (ran.code, ran.out) == (0, f"{tmp_path / 'a'}\n")
    printed_table = [line for line in ran.err.splitlines() if "\t" in line]
    assert any(line.startswith("confidence") for line in printed_table)
    printed = pfl("show", tmp_path / "a")
    assert printed.code == 0
    assert printed.out.splitlines() == printed_table
    other_lines = [line for line in ran.err.splitlines() if "\t" not in line]
    assert sorted(printed.err.splitlines()) == sorted(other_lines)
    facts = json.loads(pfl("show", tmp_path / "a", "--json").out)
    assert len(facts["audit"]["attacks"]) == len(printed_table) - 1
    assert pfl("audit", small.fedavg, "-o", tmp_path / "b", "-n").code == 0
    assert not (tmp_path / "b").exists()


def test_answers_option_restricts_the_attacks_to_the_disclosed_output(small, tmp_path):
    for answers, attacked in (("full", ["label", "confidence", "calibrated"]), ("label", ["label", "calibrated"])):
        audit(small.knn, tmp_path / answers, answers=answers, execution=ONE)
        assert [*read_attacks(tmp_path / answers)] == attacked
        assert open_artifact(tmp_path / answers).manifest.request["answers"] == answers
    full = read_attacks(small.au)
    for name in ("label", "confidence", "calibrated"):
        assert read_attacks(tmp_path / "full")[name]["auc"] == pytest.approx(full[name]["auc"])


def test_rounded_answers_hide_membership_below_the_rounding_step(models_on_three_splits, tmp_path, monkeypatch):
    replace_predictions(monkeypatch, lambda member, draw: np.where(member, 0.94, 0.91))
    for answers, auc in (("full", 1.0), ("rounded:2", 1.0), ("rounded:1", 0.5), ("label", 0.5)):
        audit(models_on_three_splits / "local0", tmp_path / answers, answers=answers)
        assert read_attacks(tmp_path / answers)["label" if answers == "label" else "confidence"]["auc"] == auc
    references = [models_on_three_splits / "local1", models_on_three_splits / "local2"]
    audit(models_on_three_splits / "local0", tmp_path / "r", references=references, answers="label")
    assert [*read_attacks(tmp_path / "r")] == ["label", "likelihood-ratio"]


def test_audit_refuses_invalid_values_of_answers(small, tmp_path):
    for text in ("rounded", "rounded:0", "rounded:7", "rounded:x", "label:1", "none"):
        with pytest.raises(UsageError) as error:
            audit(small.knn, tmp_path / "a", answers=text)
        assert "--answers rounded:1" in error_text(error)


def test_audit_reports_the_epsilon_of_noisy_votes(small, tmp_path):
    personalize(
        "knn-per-extended", small.d, tmp_path / "m", options={"vote": "noisy", "vote_epsilon": 0.1}, execution=ONE
    )
    audit(tmp_path / "m", tmp_path / "a", answers="label", execution=ONE)
    content = audits.read(open_artifact(tmp_path / "a"))
    votes = content["noisy_votes"]
    most = max(int(row["members"]) for row in read_rows(tmp_path / "a", "clients.csv"))
    assert votes["queries"] == 2 * most
    assert votes["epsilon"] == pytest.approx(0.2 * most)
    assert votes["epsilon_at_delta"] <= votes["epsilon"]
    assert votes["random_numbers"].startswith("a secret of this run")
    assert "noisy_votes" not in audits.read(open_artifact(small.au))


def test_audit_warns_when_noisy_votes_use_a_dp_seed(small, tmp_path, pfl):
    options, settings = {"vote": "noisy", "vote_epsilon": 0.1}, {"dp_seed": 4}
    personalize("knn-per-extended", small.d, tmp_path / "m", options=options, settings=settings, execution=ONE)
    ran = pfl("audit", tmp_path / "m", "-o", tmp_path / "a", "--threads", 1)
    assert (ran.code, "WARNING: the noise follows from dp_seed" in ran.err) == (0, True), ran.err
    assert json.loads((tmp_path / "a" / "audit.json").read_text())["noisy_votes"]["random_numbers"].startswith(
        "dp_seed"
    )


def test_describe_access_says_what_each_kind_of_access_reveals():
    def row(attack, auc, low, share, above):
        rates = {"tpr_at_1_percent": share, "above_chance": above, "clients": 8}
        return {"attack": attack, "auc": auc, "auc_low": low, "auc_high": auc, **rates}

    rows = [row("label", 0.5, 0.4, 0.0, 0), row("confidence", 0.55, 0.48, 0.02, 1), row("distance", 1.0, 0.9, 1.0, 8)]
    alone, store = presented.describe_access({"attacks": rows})
    assert alone.startswith(
        "an attacker who sees only predictions recognizes training samples no better than by chance"
    )
    assert "(confidence: AUC 0.550 [0.480, 0.550], chance is 0.5)" in alone
    assert store.startswith(
        "anyone who has the client's store recognizes every training sample, with at most 1 % false"
    )
    (model,) = presented.describe_access({"attacks": [row("calibrated", 0.7, 0.6, 0.125, 5)]})
    assert model.startswith(
        "anyone who has the client's model recognizes training samples better than by chance for 5 of"
    )
    assert "and 12.5 % of them" in model


def test_show_prints_the_sentences_of_an_audit(small, pfl):
    expected = presented.describe_access(audits.read(open_artifact(small.au)))
    assert len(expected) == 2
    assert pfl("show", small.au).err.splitlines()[:2] == expected
