"""``pfl verify`` from a file of claims to verdicts, with real runs that take seconds."""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pandas as pd
import pytest

from pflcli import import_predictions, verify
from pflcli.artifacts.reader import open_artifact
from pflcli.core.errors import ConflictError, InputError, UsageError
from pflcli.evaluation.metrics.gains import Estimate
from pflcli.evaluation.metrics.looks import Looks
from pflcli.methods import fedavg_plus
from pflcli.workflow.comparison.request import IncompleteError

CLAIMS = """
[experiments.writers]
dataset = "writers"
partition = { clients = 12 }
training = { model = "logistic", rounds = 3, participation = 1, lr = 0.1 }

[claims.fine-tuning-helps]
says = "Fine-tuning is more accurate than the global model"
where = "Table 1"
on = ["writers"]
method = "fedavg-plus"
direction = "higher"
against = ["fedavg"]
seeds = 2

[claims.fine-tuning-is-free]
says = "Fine-tuning sends no more than FedAvg"
on = ["writers"]
metric = "megabytes"
method = "fedavg-plus"
direction = "not-higher"
against = ["fedavg"]
seeds = 2
grid = { "fedavg-plus.epochs" = [1, 3] }
"""


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A folder with the file of claims and ``v``, the verdicts on them."""
    at = tmp_path_factory.mktemp("verify")
    (at / "claims.toml").write_text(CLAIMS)
    verify(at / "claims.toml", at / "v", threads=1)
    return at


@pytest.fixture
def copy(judged, tmp_path):
    shutil.copytree(judged, tmp_path / "at")
    return tmp_path / "at"


def read(folder):
    return json.loads((folder / "verdicts" / "verdicts.json").read_text())["claims"]


def fingerprints(folder):
    return {
        str(path.parent.relative_to(folder)): json.loads(path.read_text())["fingerprint"]
        for path in folder.rglob("manifest.json")
    }


def test_claims_are_judged_by_comparisons_that_are_made(judged):
    claims = read(judged / "v")
    table = open_artifact(judged / "v" / "writers" / "comparison").table("table.csv")
    value = {row["method"]: float(row["accuracy"]) for row in table}
    decided = claims["fine-tuning-helps"]["decided_by"]
    assert decided["difference"] == pytest.approx(value["fedavg-plus"] - value["fedavg"], abs=2e-6)
    assert decided["seeds"] == [0, 1]
    [row] = [row for row in table if row["method"] == "fedavg-plus"]
    gain, low, high = (float(row[name]) for name in ("gain", "gain_low", "gain_high"))
    assert decided["difference"] == pytest.approx(gain, abs=2e-6)
    [stored] = [
        entry["metrics"]["gain"]
        for entry in json.loads((judged / "v" / "writers" / "comparison" / "metrics.json").read_text())["methods"]
        if entry["label"] == "fedavg-plus"
    ]
    alone = Estimate.by_student(stored["value"], stored["standard_error"], stored["degrees_of_freedom"])
    assert decided["interval"] == pytest.approx(alone.interval, abs=2e-6)
    assert low <= max(-1, decided["interval"][0])  # the table corrects for its number of gains
    assert high >= min(1, decided["interval"][1])
    assert claims["fine-tuning-helps"]["verdict"] == ("confirmed" if low > 0 else "undecided")
    free = claims["fine-tuning-is-free"]
    assert (free["verdict"], free["holds"], free["settings"]) == ("confirmed", 2, 2)
    assert [cell["at"] for cell in free["cells"]] == [{"fedavg-plus.epochs": 1}, {"fedavg-plus.epochs": 3}]
    assert free["cells"][0]["size"]["clients"] == 12
    artifact = open_artifact(judged / "v" / "verdicts")
    assert [(item.role, item.path) for item in artifact.manifest.inputs] == [("writers", "../writers/comparison")]


# Tuning

AHEAD = """
[experiments.writers]
dataset = "writers"
partition = { clients = 4 }
training = { model = "logistic", rounds = 2, participation = 1 }
{tune}
[claims.ahead]
says = "Fine-tuning is ahead of all others"
on = ["writers"]
method = "fedavg-plus"
direction = "higher"
against = ["fedavg", "local"]
seeds = 2
"""


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A folder with the file of a claim and ``v``, the verdict on it by tuned methods; only to be read."""
    at = tmp_path_factory.mktemp("tuned")
    (at / "claims.toml").write_text(AHEAD.replace("{tune}", "tune = 2"))
    verify(at / "claims.toml", at / "v", threads=1)
    return at


def test_every_method_is_tuned_on_each_partition_before_a_claim_is_judged(tuned):
    [cell] = read(tuned / "v")["ahead"]["cells"]
    assert (cell["comparison"], cell["size"]["seeds"]) == ("writers", 2)
    assert [item["seeds"] for item in cell["differences"]] == [[0, 1], [0, 1]]
    assert cell["tuned"]["trials"] == 2
    for seed in (0, 1):
        folder = tuned / "v" / f"writers@seed-{seed}"
        chosen = cell["tuned"]["chosen"][str(seed)]
        assert {*chosen} == {"fedavg", "fedavg-plus", "local"}
        for method in chosen:
            tuning = open_artifact(folder / "tune" / method / "tuning")
            assert chosen[method]["values"] == tuning.manifest.summary["best"]
            [source] = {item.path for item in tuning.manifest.inputs}
            assert source == (
                f"../../../seed-{seed}/backbone" if method == "fedavg-plus" else f"../../../partition-{seed}"
            )
    rows = [open_artifact(tuned / "v" / f"writers@seed-{seed}" / "comparison").table("table.csv") for seed in (0, 1)]
    values = [{row["method"]: float(row["accuracy"]) for row in table} for table in rows]
    mean = sum(by_method["fedavg-plus"] - by_method["local"] for by_method in values) / 2
    assert cell["differences"][1]["difference"] == pytest.approx(mean, abs=2e-6)


def test_verdict_on_the_best_of_several_methods_says_whether_they_were_tuned(tuned, tmp_path, pfl):
    shown = pfl("show", tuned / "v" / "verdicts").out
    assert "each method tuned by 2 trials" in shown
    assert "not tuned" not in shown
    (tmp_path / "claims.toml").write_text(AHEAD.replace("{tune}", ""))
    verify(tmp_path / "claims.toml", tmp_path / "v", threads=1)
    [row] = [line.split("\t") for line in pfl("show", tmp_path / "v" / "verdicts").out.splitlines()[1:]]
    [claim] = read(tmp_path / "v").values()
    assert f"{claim['verdict']}, not tuned" in row


def test_parts_of_tuned_comparisons_are_previewed_and_made_one_by_one(tmp_path, pfl):
    (tmp_path / "claims.toml").write_text(AHEAD.replace("{tune}", "tune = 2"))
    line = ("verify", tmp_path / "claims.toml", "-o", tmp_path / "v")
    assert pfl(*line, "--only", "writers@seed-0/partition-0").code == 0
    ran = pfl(*line, "--only", "writers@seed-0/tune/fedavg/tuning")
    assert ran.code == 0, ran.err
    rows = dict(text.split("\t") for text in pfl(*line, "-n").err.splitlines() if text.count("\t") == 1)
    assert (
        rows["writers@seed-0/tune/fedavg/tuning"] == "up to date"
        if "writers@seed-0/tune/fedavg/tuning" in rows
        else True
    )
    assert rows["writers@seed-1/comparison"] == "after its partitions"


def test_a_repetition_is_up_to_date_and_makes_nothing(copy, pfl, tree):
    def contents():  # times of manifests are renewed, for make
        return {name: content for name, (content, _) in tree(copy).items()}

    before = contents()
    ran = pfl("verify", copy / "claims.toml", "-o", copy / "v", "--json", "--threads", 1)
    assert (ran.code, json.loads(ran.out)["decision"]) == (0, "up to date")
    assert contents() == before


def test_the_command_prints_a_table_and_show_and_report_know_it(judged, tmp_path, pfl):
    ran = pfl("verify", judged / "claims.toml", "-o", judged / "v", "--threads", 1)
    assert ran.out == f"{judged / 'v' / 'verdicts'}\n"
    shown = pfl("show", judged / "v" / "verdicts").out
    assert shown in ran.err
    heading, *rows = [line.split("\t") for line in shown.splitlines()]
    assert heading[0] == "claim"
    assert [row[0] for row in rows] == ["fine-tuning-helps", "fine-tuning-is-free"]
    assert "2 of 2 settings" in rows[1]
    assert json.loads(pfl("show", judged / "v" / "verdicts", "--json").out)["claims"] == read(judged / "v")
    assert "2 claims" in pfl("show", judged / "v" / "verdicts", "--lineage").out
    page = tmp_path / "page.html"
    assert pfl("report", judged / "v" / "writers" / "comparison", judged / "v" / "verdicts", "-o", page).code == 0
    text = page.read_text()
    assert "Which claims are confirmed" in text
    assert "Fine-tuning sends no more than FedAvg" in text
    index = json.loads((tmp_path / "page_data" / "report.json").read_text())
    assert index["claims"] == [read(judged / "v")]
    assert "verdicts-1-settings.csv" in index["files"]


def test_a_dry_run_says_what_would_run_and_makes_nothing(judged, tmp_path, pfl):
    ran = pfl("verify", judged / "claims.toml", "-o", tmp_path / "new", "-n")
    assert ran.code == 0
    assert not (tmp_path / "new").exists()
    assert "needs about" not in ran.err
    rows = dict(line.split("\t") for line in ran.err.splitlines())
    assert rows["writers/partition-0"] == "new"
    assert rows["writers/comparison"] == "after its partitions"
    again = pfl("verify", judged / "claims.toml", "-o", judged / "v", "-n", "--seeds", "0,1,2").err
    rows = dict(line.split("\t") for line in again.splitlines())
    assert (rows["writers/partition-1"], rows["writers/partition-2"]) == ("up to date", "new")
    done = pfl("verify", judged / "claims.toml", "-o", judged / "v", "-n").err
    assert {line.split("\t")[1] for line in done.splitlines()[1:]} == {"up to date"}


def test_a_dry_run_estimates_comparisons_whose_partitions_are_there(copy, pfl):
    (copy / "claims.toml").write_text(CLAIMS.replace('"fedavg-plus.epochs" = [1, 3]', '"fedavg-plus.epochs" = [1, 2]'))
    ran = pfl("verify", copy / "claims.toml", "-o", copy / "v", "-n", "--json")
    assert json.loads(ran.out)["summary"]["needs"]["processor_seconds"] > 0
    assert "writers: needs about" in ran.err
    assert not (copy / "v" / "writers" / "seed-0" / "fedavg-plus@epochs-2").exists()


def test_further_seeds_and_changed_claims_extend_what_is_there(copy, pfl):
    before = fingerprints(copy / "v")
    changed = CLAIMS.replace("seeds = 2", "seeds = 3", 1).replace('says = "Fine-tuning is', 'says = "It is', 1)
    (copy / "claims.toml").write_text(changed)
    assert pfl("verify", copy / "claims.toml", "-o", copy / "v", "--threads", 1).code == 0
    after = fingerprints(copy / "v")
    kept = {path for path in before if "comparison" not in path and path != "verdicts"}
    assert {path: after[path] for path in kept} == {path: before[path] for path in kept}
    assert after["verdicts"] != before["verdicts"]
    claims = read(copy / "v")
    assert claims["fine-tuning-helps"]["decided_by"]["seeds"] == [0, 1, 2]
    assert claims["fine-tuning-helps"]["says"].startswith("It is")


def test_only_judges_the_named_claims_and_keeps_those_that_are_judged(copy, tmp_path, pfl):
    line = ("verify", copy / "claims.toml", "-o", tmp_path / "w", "--threads", 1, "--only")
    assert pfl(*line, "fine-tuning-helps").code == 0
    assert [*read(tmp_path / "w")] == ["fine-tuning-helps"]
    assert not (tmp_path / "w" / "writers" / "seed-0" / "fedavg-plus@epochs-3").exists()
    assert pfl(*line, "fine-tuning-is-free").code == 0
    assert [*read(tmp_path / "w")] == ["fine-tuning-helps", "fine-tuning-is-free"]
    (copy / "claims.toml").write_text(CLAIMS.replace("Table 1", "Table 2"))
    assert pfl(*line, "fine-tuning-is-free").code == 0
    assert [*read(tmp_path / "w")] == ["fine-tuning-is-free"]  # the other one is a new claim now


def test_too_few_seeds_leave_claims_undecided(copy, tmp_path):
    verify(copy / "claims.toml", tmp_path / "w", seeds=[4], threads=1, only=["fine-tuning-helps"])
    claim = read(tmp_path / "w")["fine-tuning-helps"]
    assert (claim["verdict"], claim["decided_by"]["reason"]) == ("undecided", "1 of 2 seeds")
    assert (tmp_path / "w" / "writers" / "seed-4").is_dir()


def test_strict_ends_with_5_unless_all_claims_are_confirmed(copy, pfl):
    line = ("verify", copy / "claims.toml", "-o", copy / "v", "--threads", 1, "--strict")
    verdicts = {name: claim["verdict"] for name, claim in read(copy / "v").items()}
    assert verdicts["fine-tuning-is-free"] == "confirmed"
    (copy / "claims.toml").write_text(CLAIMS.replace('direction = "not-higher"', 'direction = "higher"'))
    ran = pfl(*line)
    assert ran.code == 5
    assert "fine-tuning-is-free: not confirmed" in ran.err
    assert "2 of 2 settings" not in ran.err
    assert ran.out == f"{copy / 'v' / 'verdicts'}\n"
    assert pfl(*line[:-1]).code == 0  # without --strict
    helps, free = (CLAIMS.index(f"[claims.fine-tuning-{name}]") for name in ("helps", "is-free"))
    (copy / "claims.toml").write_text(CLAIMS[:helps] + CLAIMS[free:])
    assert pfl(*line).code == 0


def test_other_data_under_the_same_name_are_a_conflict(copy, pfl, tree):
    (copy / "claims.toml").write_text(CLAIMS.replace("clients = 12", "clients = 10"))
    before = tree(copy)
    ran = pfl("verify", copy / "claims.toml", "-o", copy / "v", "--threads", 1)
    assert ran.code == ConflictError.exit_code
    assert "clients: 12 -> 10" in ran.err
    assert tree(copy) == before


def test_a_failed_run_leaves_its_claims_undecided_and_the_same_command_tries_again(copy, tmp_path, monkeypatch):
    def fail(run, state, clients):
        raise RuntimeError("no")

    with monkeypatch.context() as broken:
        broken.setattr(fedavg_plus, "personalize", fail)
        with pytest.raises(IncompleteError, match="some runs failed") as raised:
            verify(copy / "claims.toml", tmp_path / "w", threads=1, only=["fine-tuning-helps"])
    assert "fedavg-plus" in " ".join(raised.value.fix)
    claim = read(tmp_path / "w")["fine-tuning-helps"]
    assert (claim["verdict"], claim["decided_by"]["reason"]) == ("undecided", "fedavg-plus failed with seeds 0, 1")
    verify(copy / "claims.toml", tmp_path / "w", threads=1, only=["fine-tuning-helps"])
    assert read(tmp_path / "w")["fine-tuning-helps"]["decided_by"]["difference"] is not None


def test_a_killed_run_resumes_and_ends_with_the_same_verdicts(judged, tmp_path, pfl):
    line = ["verify", judged / "claims.toml", "-o", tmp_path / "v", "--threads", "1"]
    process = subprocess.Popen([sys.executable, "-m", "pflcli", *map(str, line)], stderr=subprocess.DEVNULL)
    early = tmp_path / "v" / "writers" / "seed-0" / "backbone" / "manifest.json"
    patience = time.monotonic() + 60
    while not early.exists() and process.poll() is None and time.monotonic() < patience:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert early.exists()
    assert not (tmp_path / "v" / "verdicts").exists()
    made = early.stat().st_ino
    assert pfl(*line).code == 0
    assert early.stat().st_ino == made
    assert fingerprints(tmp_path / "v") == fingerprints(judged / "v")
    assert read(tmp_path / "v") == read(judged / "v")


def test_a_place_where_verdicts_cannot_be_written_is_named_before_anything_runs(judged, tmp_path, pfl, tree):
    (tmp_path / "v" / "verdicts").mkdir(parents=True)
    (tmp_path / "v" / "verdicts" / "mine.txt").touch()
    before = tree(tmp_path)
    for options in ((), ("--force",)):
        ran = pfl("verify", judged / "claims.toml", "-o", tmp_path / "v", *options)
        assert ran.code == ConflictError.exit_code
        assert "verdicts exists and is not a pfl artifact" in ran.err
        assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--only", "fine-tuning-help"), "did you mean 'fine-tuning-helps'?"),
        (("--only", ""), "--only names no claim"),
        (("--only", "writer/comparison"), "did you mean 'writers'?"),
        (("--only", "writers/partition-7"), "is no partition of these claims"),
        (("--only", "writers/seed-0/fedavg-pls"), "did you mean 'seed-0/fedavg-plus'?"),
        (("--seeds", "0,0"), "--seeds 0,1,2"),
        (("--plan", "make", "--only", "fine-tuning-helps"), "--plan cannot be combined with --only"),
    ],
)
def test_bad_options_are_one_clear_error(judged, pfl, options, message, tree):
    before = tree(judged)
    ran = pfl("verify", judged / "claims.toml", "-o", judged / "v", *options)
    assert (ran.code, ran.out) == (UsageError.exit_code, "")
    assert message in ran.err
    assert tree(judged) == before


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ("metrics", "metric", "did you mean 'metric'?"),
        ('"fedavg-pls"', '"fedavg-plus"', "did you mean 'fedavg-plus'?"),
        ('"fedavg-plus.epoch"', '"fedavg-plus.epochs"', "did you mean 'epochs'?"),
        ("client =", "clients =", "did you mean 'clients'?"),
        ("rnds =", "rounds =", "did you mean 'rounds'?"),
    ],
)
def test_a_wrong_file_is_one_clear_error_and_nothing_is_made(tmp_path, pfl, wrong, right, message):
    assert right in CLAIMS
    (tmp_path / "claims.toml").write_text(CLAIMS.replace(right, wrong))
    ran = pfl("verify", tmp_path / "claims.toml", "-o", tmp_path / "v")
    assert (ran.code, ran.out) == (UsageError.exit_code, "")
    assert message in ran.err
    assert not (tmp_path / "v").exists()


def test_a_plan_makes_the_same_verdicts_by_make(judged, tmp_path, monkeypatch, pfl):
    """A ``pfl`` that records its words tells the order of make; the same words then run in this process."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pfl").write_text('#!/bin/sh\necho "$*" >> log\n')
    (tmp_path / "bin" / "pfl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    line = ("verify", judged / "claims.toml", "-o", "v", "--plan", "make")
    script = pfl(*line).out
    assert "--only writers/partition-1" in script
    assert "--only writers/comparison" in script
    for seed in (0, 1):  # once partitions exist, every run is a job
        assert pfl("verify", judged / "claims.toml", "-o", "v", "--only", f"writers/partition-{seed}").code == 0
    (tmp_path / "Makefile").write_text(pfl(*line).out)
    assert "--only writers/seed-1/fedavg-plus@epochs-3" in (tmp_path / "Makefile").read_text()
    subprocess.run(["make", "-s"], check=True, capture_output=True)
    jobs = [shlex.split(words) for words in (tmp_path / "log").read_text().splitlines()]
    assert [pfl(*words).code for words in jobs] == [0] * len(jobs)
    assert read(tmp_path / "v") == read(judged / "v")
    assert subprocess.run(["make", "-q"], check=False, capture_output=True).returncode == 0


def test_size_of_a_claim_is_the_mean_over_partitions(tmp_path):
    (tmp_path / "claims.toml").write_text(CLAIMS.partition("[claims.fine-tuning-is-free]")[0])
    verify(tmp_path / "claims.toml", tmp_path / "v", seeds=[0, 1], threads=1)
    samples = [open_artifact(tmp_path / f"v/writers/partition-{seed}").manifest.summary["samples"] for seed in (0, 1)]
    assert samples[0] != samples[1]
    table = (tmp_path / "v" / "verdicts" / "table.md").read_text()
    assert f"12 clients, {round(sum(samples) / 2)} samples" in table


GIVEN = """
[experiments.given]
dataset = "writers"
partition = { clients = 12 }
training = { model = "logistic", rounds = 1 }
weights = true

[claims.given-weights-help]
says = "Given weights are better than none"
on = ["given"]
method = "local"
direction = "lower"
against = ["fedavg"]
"""


def test_weights_start_the_experiments_that_need_them_and_no_others(copy):
    (copy / "claims.toml").write_text(CLAIMS + GIVEN)
    with pytest.raises(UsageError, match=r"\[experiments.given\] starts from given weights") as error:
        verify(copy / "claims.toml", copy / "v", seeds=[0])
    assert error.value.fix == ("--weights FILE",)
    weights = copy / "v" / "writers" / "seed-1" / "backbone" / "weights.safetensors"
    with pytest.raises(UsageError, match="no experiment of these claims starts from given weights"):
        verify(copy / "claims.toml", copy / "new", seeds=[0], only=["fine-tuning-helps"], weights=weights)
    with pytest.raises(InputError, match=r"missing\.pt does not exist"):
        verify(copy / "claims.toml", copy / "new", seeds=[0], weights=copy / "missing.pt")
    assert not (copy / "new").exists()
    verify(copy / "claims.toml", copy / "v", seeds=[0], weights=weights, threads=1)
    requests = {
        name: open_artifact(copy / "v" / name / "seed-0" / "backbone").manifest.request for name in ("writers", "given")
    }
    assert ["weights" in request for request in requests.values()] == [False, True]


def test_the_table_names_seeds_options_and_what_weakens_a_verdict(judged):
    rows = {row["claim"]: row for row in open_artifact(judged / "v" / "verdicts").table("table.csv")}
    free = rows["fine-tuning-is-free"]
    assert free["seeds"] == "0, 1"
    assert free["options"] == "fedavg-plus@epochs-1 epochs=1; fedavg-plus@epochs-3 epochs=3"
    assert free["warnings"] == "only 2 seeds"
    assert rows["fine-tuning-helps"]["warnings"].startswith("only 2 seeds")


UNTIL = """
[set.fedprox]
mu = 0.0
[experiments.tie]
dataset = "writers"
partition = { clients = 4 }
training = { model = "logistic", rounds = 1, participation = 1 }
[claims.tie]
says = "FedProx without its term is better"
on = ["tie"]
method = "fedprox"
direction = "higher"
against = ["fedavg"]
[claims.bytes]
says = "FedProx sends no more"
on = ["tie"]
metric = "megabytes"
method = "fedprox"
direction = "not-higher"
against = ["fedavg"]
"""


def test_seeds_are_added_until_claims_are_decided_at_levels_of_alpha_spending(tmp_path, pfl):
    (tmp_path / "claims.toml").write_text(UNTIL)
    command = ("verify", tmp_path / "claims.toml", "-o", tmp_path / "v", "--threads", 1, "--until-decided")
    decided = pfl(*command, 5, "--only", "bytes")
    assert "look after 3 of at most 5 seeds: all claims are decided" in decided.err
    assert read(tmp_path / "v")["bytes"]["decided_by"]["seeds"] == [0, 1, 2]
    shutil.rmtree(tmp_path / "v" / "verdicts")
    tied = pfl(*command, 4)
    assert "look after 3 of at most 4 seeds: tie undecided" in tied.err
    assert "look after 4 of at most 4 seeds: tie undecided" in tied.err
    claims = read(tmp_path / "v")
    assert claims["tie"]["decided_by"]["seeds"] == [0, 1, 2, 3]
    assert claims["bytes"]["decided_by"]["level"] == pytest.approx(Looks(3, 4).level(4))
    assert open_artifact(tmp_path / "v" / "verdicts").manifest.request["looks"] == [3, 4]
    kept = pfl("verify", tmp_path / "claims.toml", "-o", tmp_path / "v", "--threads", 1, "--seeds", "0,1,2,3", "--json")
    assert json.loads(kept.out)["decision"] == "up to date"
    other = pfl(*command, 6)
    assert (other.code, other.out) == (2, "")
    assert "was made with --until-decided 4" in other.err
    many = pfl(*command, 4, "--seeds", "0,1,2,3,4")
    assert (many.code, "--until-decided 4 leaves no seed to add: there are 5" in many.err) == (2, True)
    parts = pfl(*command, 4, "--only", "tie/comparison")
    assert (parts.code, "which paths in --only do not make" in parts.err) == (2, True)


IMPORTED = """
[experiments.writers]
dataset = "writers"
partition = { clients = 6 }
training = { model = "logistic", rounds = 2, participation = 1, lr = 0.1 }
predictions = { theirs = ["./theirs-0", "./theirs-1"] }

[claims.theirs-leads]
says = "The tool is more accurate than FedAvg"
on = ["writers"]
method = "theirs"
direction = "higher"
against = ["fedavg"]
seeds = 2
"""


def import_labels(partition, out, **options):
    """Import predictions that give each test sample its own label."""
    with h5py.File(partition / "samples.h5") as file:
        y, sample, offsets = (file[name][...] for name in ("y", "sample", "offsets"))
        names, classes = file["names"].asstr()[...], int(file.attrs["classes"])
    block = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    test = block % 3 == 2
    table = pd.DataFrame({"client": names[block[test] // 3], "sample": sample[test], "split": "test"})
    p = pd.DataFrame(np.eye(classes)[y[test]], columns=[f"p({label})" for label in range(classes)])
    table.join(p).to_csv(out.with_suffix(".csv"), index=False)
    import_predictions(out.with_suffix(".csv"), like=partition, name="theirs", out=out, **options)


@pytest.fixture(scope="module")
def with_theirs(tmp_path_factory):
    """A folder with claims about another tool, the partitions in ``v``, and the tool's predictions."""
    at = tmp_path_factory.mktemp("theirs")
    (at / "claims.toml").write_text(IMPORTED)
    verify(at / "claims.toml", at / "v", only=["writers/partition-0", "writers/partition-1"], threads=1)
    for seed in (0, 1):
        import_labels(at / "v" / "writers" / f"partition-{seed}", at / f"theirs-{seed}")
    return at


def test_predictions_of_another_tool_are_judged_beside_methods(with_theirs, tmp_path):
    shutil.copytree(with_theirs, tmp_path / "at")
    claims, out = tmp_path / "at" / "claims.toml", tmp_path / "at" / "v"
    outcome = verify(claims, out, threads=1)
    difference = read(out)["theirs-leads"]["decided_by"]
    with (out / "verdicts" / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    accuracy = {
        name: [float(row["accuracy"]) for row in rows if row["method"] == name] for name in ("theirs", "fedavg")
    }
    assert accuracy["theirs"] == [1, 1]
    assert difference["difference"] == pytest.approx(1 - np.mean(accuracy["fedavg"]), abs=1e-4)
    assert difference["seeds"] == [0, 1]
    assert verify(claims, out, threads=1).decision == "up to date"
    roles = [item.role for item in open_artifact(outcome.path).manifest.inputs]
    assert roles == ["writers", "writers, theirs, seed 0", "writers, theirs, seed 1"]


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ('"./theirs-1"', '"./v/writers"', "has predictions of a method of pfl"),
        ('"./theirs-1"', '"./theirs-0"', "are about one partition"),
        ("clients = 6", "clients = 5", "is about another partition than those of the experiment"),
        ("{ theirs", "{ thiers", "unknown method 'theirs'"),
        ("{ theirs", "{ ditto", "'ditto' is a method of pfl"),
        ("seeds = 2\n", 'seeds = 2\ngrid = { "theirs.k" = [1] }\n', "belongs to none of its methods"),
        ('against = ["fedavg"]', "value = 0.9", "no claim on writers is about a method of pfl"),
    ],
    ids=["own predictions", "twice", "another partition", "no such name", "name of a method", "options", "alone"],
)
def test_predictions_of_another_tool_that_do_not_fit_are_one_clear_error(
    with_theirs, tmp_path, pfl, wrong, right, message
):
    assert wrong in IMPORTED
    shutil.copytree(with_theirs, tmp_path / "at")
    at = tmp_path / "at"
    (at / "claims.toml").write_text(IMPORTED.replace(wrong, right))
    if "v/writers" in right:
        verify(at / "claims.toml", at / "v", only=["writers/seed-0/backbone", "writers/seed-0/fedavg"], threads=1)
        (at / "claims.toml").write_text(IMPORTED.replace(wrong, '"./v/writers/seed-0/fedavg"'))
    ran = pfl("verify", at / "claims.toml", "-o", at / ("v" if right != "clients = 5" else "other"))
    assert ran.code == UsageError.exit_code
    assert message in ran.err
    assert not (at / "v" / "verdicts").exists()
