"""Published tables and verdicts follow from the scores stored beside them, by code that is not that of the package."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
import recomputed

from pflcli import compare, partition, verify

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
STORED = sorted({path.name.partition(".")[0] for path in (RESULTS / "scores").glob("*.runs.csv*")})
VERDICTS = [name for name in STORED if name.startswith("verdicts-")]
TABLES = [name for name in STORED if name not in VERDICTS]

WITHOUT_SCORES = {
    "adapters-head", "adapters-lora", "adapters-whole",
    "fedattn-collapse", "fedham-v-mnist", "frozen-cifar10", "frozen-cifar10-v2", "frozen-cifar100",
    "frozen-cifar100-v2", "verdicts-fedham",
    "verdicts-knn-per-pretrained",
}  # fmt: skip
"""Tables that were published before their scores were stored. Only take names away: a new table has its scores."""
CLAIMS_WITHOUT_SCORES = {
    "nothing-helps-equal-clients", "space-does-not-matter", "highest-accuracy", "highest-bottom-decile",
    "local-is-behind", "local-beats-fedavg-v2", "first-order-maml", "two-stages", "unseen-clients",
    "addresses-heterogeneity", "pfedgp-computes-more", "gradients-compute-less", "gradients-send-less", "mixing-gains",
    "matching-raises-recall", "matching-keeps-precision", "neighbours-do-not-matter", "candidates-do-not-matter",
    "interval-does-not-matter", "finds-clusters-by-losses", "finds-clusters-by-centred-gradients",
    "finds-clusters-as-printed", "as-accurate-as-the-oracle",
}  # fmt: skip
"""Claims in tables with scores that were judged before these were stored. Only take names away."""
BASELINES = {"rivals": "knn-per", "knn-peers": "knn-peers"}
"""The baseline of tables whose names begin so; that of others is fedavg."""
SHORT = {"quickstart", "fedham-trained"}
"""Tables at a short budget, which the page that shows them says."""

COLUMNS = {
    "accuracy": "accuracy", "plain mean": "accuracy_mean", "bottom decile": "bottom_decile", "worst": "worst",
    "std": "accuracy_std", "macro prec.": "macro_precision", "plain macro prec.": "macro_precision_mean",
    "ECE": "calibration_error", "gain": "gain", "better off (chance)": "better_off",
    "worse off (chance)": "worse_off", "MB sent": "megabytes", "MB per client": "megabytes_per_client",
    "RMSE": "rmse", "worst, of errors": "rmse_worst",
    "seconds": "seconds", "CPU seconds": "processor_seconds", "rounds": "reported_round",
}  # fmt: skip
"""The metric of each column of a table, without its unit."""
_NUMBER = r"[-+]?[\d,.]+"


def scores_of(name):
    folder = RESULTS / "scores"
    return recomputed.Scores(
        recomputed.find(folder, f"{name}.runs.csv"), recomputed.find(folder, f"{name}.clients.csv")
    )


def check_cell(scores, method, heading, cell, level, shared, baseline):
    """Compare a cell of a table in Markdown with what follows from the scores, up to its last digit."""
    name, _, unit = re.fullmatch(r"(.+?)( (%|\(points\)|\(µg/m³\)))?", heading).groups()
    of_errors = "rmse" in next(iter(scores.clients.values()))[0]
    metric = COLUMNS["worst, of errors" if of_errors and name == "worst" else name]
    scale = 100 if unit and unit != "(µg/m³)" else 1
    values = [scale * value for value in recomputed.score_runs(scores, method, metric)]
    number = re.match(_NUMBER, cell)
    if number is None:
        assert cell == "-"
        assert not values or metric in ("gain", "better_off", "worse_off")
        return
    rounded = 0.5 * 10 ** -len(number[0].partition(".")[2]) + 1e-4 + 1e-5 * abs(values[0])
    assert float(number[0].replace(",", "")) == pytest.approx(np.mean(values), abs=rounded), (method, heading)
    spread = re.search(rf"± ({_NUMBER})", cell)
    if spread is not None:
        assert float(spread[1]) == pytest.approx(np.std(values, ddof=1), abs=rounded)
    bounds = re.search(rf"\[({_NUMBER}), ({_NUMBER})\]", cell)
    if bounds is not None:
        low, high = recomputed.gain_interval(scores, method, baseline, level, shared, np.inf if of_errors else 1.0)
        assert [float(bounds[1]), float(bounds[2])] == pytest.approx([scale * low, scale * high], abs=rounded)
    elif metric == "gain" and method != baseline:
        pytest.fail(f"{method} has a gain without an interval")


def share(scores, baseline):
    """Return what methods share of the variance between seeds of their gains."""

    def gain(method, seed):
        return recomputed.weighted_mean(scores.values(method, seed, "gain"), scores.samples(method, seed))

    return recomputed.share_among(scores, gain, baseline)


def level_of(scores, baseline):
    """Return the level of an interval that is corrected for the number of gains in the table."""
    compared = [name for name in scores.methods if name != baseline and scores.is_ranked(name)]
    return 1 - 0.05 / max(1, len(compared))


def check_table(scores, heading, rows, baseline="fedavg"):
    """Compare the rows of a table with its scores."""
    named = {row[0].removesuffix(" (reference)"): row[1:] for row in rows}
    assert named.keys() == {*scores.methods}
    level, shared = level_of(scores, baseline), share(scores, baseline)
    for method, (seeds, *cells) in named.items():
        assert int(seeds) == len(scores.seeds(method))
        for title, cell in zip(heading[2:], cells, strict=True):
            check_cell(scores, method, title, cell, level, shared, baseline)


@pytest.mark.parametrize("name", TABLES)
def test_a_published_table_follows_from_its_scores(name):
    with (RESULTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        heading, *rows = csv.reader(file)
    check_table(scores_of(name), heading, rows, BASELINES.get(re.match(r"rivals|knn-peers|", name)[0], "fedavg"))


def check_verdicts(runs, clients, settings):
    """Compare differences, intervals and verdicts of the settings of claims with the scores; return the verdicts."""
    words = {}
    comparisons = {row["comparison"] for row in settings}
    scores = {
        name: recomputed.Scores(*([row for row in rows if row["comparison"] == name] for rows in (runs, clients)))
        for name in comparisons
    }
    for row in settings:
        held = {"holds": True, "does not hold": False, "undecided": None}[row["verdict"]]
        words.setdefault(row["claim"], {}).setdefault(row["setting"], []).append(held)
        if not row["low"]:
            assert held is None
            continue
        other, value = row["against"], None
        if other not in scores[row["comparison"]].methods:
            other, value = None, float(other)
        difference, interval = recomputed.difference_interval(
            scores[row["comparison"]],
            row["metric"],
            row["method"],
            other,
            float(row["level"]),
            value,
            bool(row["floor"]),
        )
        margin = 1e-5 * max(1.0, abs(difference))
        assert float(row["difference"]) == pytest.approx(difference, abs=margin), row
        assert [float(row["low"]), float(row["high"])] == pytest.approx([*interval], rel=1e-3, abs=margin), row
        if held is not None:
            assert recomputed.decide(interval, row["direction"], float(row["margin"])) is held, row
    return {claim: recomputed.judge(pairs) for claim, pairs in words.items()}


def read_verdicts(path):
    """Return the verdict on each claim of a table, without the remark that methods were not tuned."""
    return {row["claim"]: row["verdict"].removesuffix(", not tuned") for row in recomputed.read(path)}


@pytest.mark.parametrize("name", VERDICTS)
def test_published_verdicts_follow_from_their_scores(name):
    parts = (recomputed.find(RESULTS / "scores", f"{name}.{part}.csv") for part in ("runs", "clients", "settings"))
    found = check_verdicts(*parts)
    published = read_verdicts(RESULTS / f"{name}.csv")
    assert {*published} - {*found} <= CLAIMS_WITHOUT_SCORES
    assert found == {claim: published[claim] for claim in found}


def test_every_table_of_methods_or_claims_has_its_scores():
    named = {}
    for path in RESULTS.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            named[path.stem] = next(csv.reader(file))[:2]
    tables = {name for name, heading in named.items() if heading in (["method", "seeds"], ["claim", "says"])}
    assert tables - {*STORED} == WITHOUT_SCORES, "a new table needs its scores: python docs/fill.py"
    judged = {row["claim"] for name in VERDICTS for row in recomputed.find(RESULTS / "scores", f"{name}.settings.csv")}
    assert not judged & CLAIMS_WITHOUT_SCORES


@pytest.mark.parametrize("name", TABLES)
def test_no_published_table_carries_the_warning_of_unfinished_training(name):
    runs = recomputed.find(RESULTS / "scores", f"{name}.runs.csv")
    unfinished = {row["method"]: float(row["unfinished"]) for row in runs if row["unfinished"]}
    if name not in SHORT:
        assert not unfinished
        return
    assert unfinished, "its training is finished: take its name away"
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    showing = [page for page in (path.read_text(encoding="utf-8") for path in pages) if f"results/{name}.csv" in page]
    assert showing
    assert all("short budget" in page for page in showing)


@pytest.mark.parametrize("name", STORED)
def test_stored_scores_say_what_was_run_and_with_what(name):
    for row in recomputed.find(RESULTS / "scores", f"{name}.runs.csv"):
        assert row["federation"]
        assert re.fullmatch(r"[0-9a-f]{64}", row["partition"])
        assert int(row["rounds"]) >= 0
        assert re.match(r"pfl \S+, python \S+, torch \S+, numpy ", row["made_with"])


# The same on comparisons that are made here, which have what published tables may lack.


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Comparisons by name: of several seeds on one split or on several, with clients that have names or none."""
    at = tmp_path_factory.mktemp("scores")
    settings = {"model": "logistic", "rounds": 2, "participation": 1.0, "lr": 0.05}
    methods = ["fedavg", "fedavg-plus", "local", "ditto", "apfl"]
    parts = [partition("writers", at / f"p{s}", scheme="dirichlet", clients=5, seed=s).path for s in range(3)]
    named = partition("writers", at / "named", clients=12, new_clients=0.3).path
    two = {"methods": methods[:3], "seeds": [0, 1], "baseline": "local"}
    return {
        "several splits": compare(parts, at / "several", methods=methods, settings=settings).path,
        "one split": compare([named], at / "one", methods=methods, seeds=[0, 1, 2], settings=settings).path,
        "one seed": compare([named], at / "single", methods=methods[:2], settings=settings).path,
        "over local": compare([named], at / "local", settings=settings, **two).path,
    }


@pytest.mark.parametrize("name", ["several splits", "one split", "one seed", "over local"])
def test_a_table_follows_from_the_scores_beside_it(compared, name):
    folder, baseline = compared[name], "local" if name == "over local" else "fedavg"
    scores = recomputed.Scores(recomputed.read(folder / "runs.csv"), recomputed.read(folder / "clients.csv"))
    level, shared = level_of(scores, baseline), share(scores, baseline)
    assert (shared[1] is not None) is (name in ("several splits", "one split"))
    for row in recomputed.read(folder / "table.csv"):
        for metric in (*recomputed.OVER_CLIENTS, "gain", "better_off", "worse_off", "megabytes", "macro_precision"):
            values = recomputed.score_runs(scores, row["method"], metric)
            assert float(row[metric]) == pytest.approx(np.mean(values), rel=2e-5, abs=2e-6), (row["method"], metric)
            spread = row.get(f"{metric}_std_over_seeds", "")
            if spread:
                assert float(spread) == pytest.approx(np.std(values, ddof=1), rel=1e-3, abs=1e-5)
        if row["method"] != baseline:
            interval = recomputed.gain_interval(scores, row["method"], baseline, level, shared)
            assert [float(row["gain_low"]), float(row["gain_high"])] == pytest.approx([*interval], rel=1e-3, abs=1e-4)


CLAIMS = """
[set."ditto@weak"]
lam = 0.1
[experiments.unseen]
dataset = "writers"
partition = { clients = 12, new-clients = 0.3 }
training = { model = "logistic", rounds = 3, participation = 1, lr = 0.1 }
[experiments.split]
dataset = "writers"
partition = { clients = 5, scheme = "dirichlet" }
training = { model = "logistic", rounds = 3, participation = 1, lr = 0.1 }

[claims.accuracy]
says = "It is more accurate than three others"
on = ["unseen", "split"]
method = "fedavg-plus"
direction = "higher"
against = ["fedavg", "local", "ditto@weak"]
[claims.unseen]
says = "It is level for new clients"
on = ["unseen"]
metric = "accuracy_unseen"
method = "fedavg-plus"
direction = "level"
against = ["fedavg"]
margin = 0.5
[claims.worst]
says = "The bottom decile is no lower, however long it is tuned"
on = ["split"]
metric = "bottom_decile"
method = "fedavg-plus"
direction = "not-lower"
against = ["fedavg"]
margin = 0.05
grid = { "fedavg-plus.epochs" = [1, 3] }
[claims.bytes]
says = "It sends next to nothing"
on = ["split"]
metric = "megabytes"
method = "fedavg-plus"
direction = "lower"
value = 0.001
[claims.order]
says = "Each is better than the next one by the log-loss"
on = ["unseen"]
metric = "log_loss"
direction = "lower"
order = ["fedavg-plus", "fedavg", "local"]
"""


def test_verdicts_follow_from_the_scores_beside_them(tmp_path):
    (tmp_path / "claims.toml").write_text(CLAIMS)
    folder = verify(tmp_path / "claims.toml", tmp_path / "v", threads=1).path
    parts = [recomputed.read(folder / f"{name}.csv") for name in ("runs", "clients", "settings")]
    published = read_verdicts(folder / "table.csv")
    assert check_verdicts(*parts) == published
    assert {"confirmed", "not confirmed"} <= {*published.values()}
    assert {row["options"] for row in parts[0] if row["method"] == "ditto@weak"} == {"lam=0.1"}
