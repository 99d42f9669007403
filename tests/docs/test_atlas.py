"""docs/atlas.md follows from stored scores, and examples/atlas.sh stores them."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from pflcli.core import registry

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def atlas():
    """docs/atlas.py as a module."""
    sys.path.insert(0, str(ROOT / "docs"))
    import atlas

    sys.path.remove(str(ROOT / "docs"))
    return atlas


# Statistics by hand.


def test_equal_methods_share_the_mean_of_their_ranks(atlas):
    assert atlas.rank(np.array([[50.0, 70, 60], [70, 70, 60]])).tolist() == [[3, 1, 2], [1.5, 1.5, 3]]


def test_interval_over_sources_of_one_federation_each_is_students(atlas):
    """1, 2 and 3 have the standard error 1 / sqrt(3); t is 4.303 at two degrees of freedom."""
    mean, (low, high) = atlas.mean_interval(np.array([1.0, 2, 3]), ["a", "b", "c"])
    assert [mean, low, high] == pytest.approx([2, 2 - 4.303 / math.sqrt(3), 2 + 4.303 / math.sqrt(3)], abs=1e-3)


def test_federations_of_one_source_count_as_one(atlas):
    """The sums of deviations are -2 and 2: the error is sqrt(2 (4 + 4)) / 4 = 1; t is 12.706 at one degree."""
    mean, (low, high) = atlas.mean_interval(np.array([1.0, 1, 3, 3]), ["a", "a", "b", "b"])
    assert [mean, low, high] == pytest.approx([2, 2 - 12.706, 2 + 12.706], abs=1e-3)
    assert atlas.mean_interval(np.array([1.0, 3]), ["a", "a"]) == (2, None)


@pytest.mark.parametrize(("methods", "quantile"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)])
def test_critical_difference_has_the_quantiles_of_demsar(atlas, methods, quantile):
    """Table 5a; with four methods on 14 data sets, as in his section 3.2.4, it is 1.25."""
    expected = quantile * math.sqrt(methods * (methods + 1) / (6 * 14))
    assert atlas.critical_difference(methods, 14) == pytest.approx(expected, abs=2e-3)
    assert atlas.critical_difference(4, 14) == pytest.approx(1.25, abs=0.01)


def test_friedman_permutes_methods_within_sources(atlas):
    """Two methods have 2^3 orders on three sources, of which two are all the same; on two sources two of 4."""
    ranks = np.array([[1.0, 2], [1, 2], [1, 2]])
    assert atlas.friedman(ranks, ["a", "b", "c"]) == pytest.approx(2 / 8, abs=0.02)
    assert atlas.friedman(ranks, ["a", "a", "b"]) == pytest.approx(2 / 4, abs=0.02)
    assert atlas.friedman(np.array([[1.5, 1.5], [1, 2], [2, 1]]), ["a", "b", "c"]) == 1


def test_bars_join_the_largest_groups_that_do_not_differ(atlas):
    assert atlas.list_cliques([1, 2, 2.5, 4], 1.2) == [(1, 2), (2, 2.5)]
    assert atlas.list_cliques([1, 2, 2.5, 4], 1.6) == [(1, 2.5), (2.5, 4)]
    assert atlas.list_cliques([1, 4], 1) == []


# A table of three federations and three methods.

_TABLE = {"one": (50.0, 70, 60), "two": (60.0, 80, 61), "three": (90.0, 50, 80)}
"""The accuracies of fedavg, alone and gaussian-head."""
_BEST = {"one": "alone", "two": "alone", "three": "fedavg"}
_SHIFT = {"one": (["labels"], "A", True), "two": (["labels"], "A", True), "three": (["features"], "B", False)}


def write_scores(folder, names):
    """Write a table of three federations, and the scores of some: two seeds, clients of 10 and of 30 test samples."""
    methods = ("fedavg", "alone", "gaussian-head")
    lines = ['methods = ["fedavg", "alone", "gaussian-head"]', 'own = ["gaussian-head"]', "beside = []"]
    (folder / "scores").mkdir()
    for name, (shift, source, shaped) in _SHIFT.items():
        facts = {"about": f"data {name}", "shift": shift, "source": source, "shaped": shaped}
        lines += [f"[federations.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in facts.items())]
        if name not in names:
            continue
        runs = [(m, s, a / 100) for m, a in zip(methods, _TABLE[name], strict=True) for s in (0, 1)]
        # The mean over clients is (10 (a - 0.03) + 30 (a + 0.01)) / 40 = a.
        clients = [(m, s, c, n, a + d) for m, s, a in runs for c, n, d in ((0, 10, -0.03), (1, 30, 0.01))]
        pd.DataFrame(runs, columns=["method", "seed", "accuracy"]).to_csv(
            folder / "scores" / f"atlas-{name}.runs.csv", index=False
        )
        pd.DataFrame(clients, columns=["method", "seed", "client", "n_test", "accuracy"]).to_csv(
            folder / "scores" / f"atlas-{name}.clients.csv", index=False
        )
    (folder / "atlas.toml").write_text("\n".join(lines), encoding="utf-8")
    return folder / "atlas.toml"


def test_ranks_and_regrets_of_a_small_table(atlas, tmp_path):
    found = atlas.Atlas.read(write_scores(tmp_path, _TABLE))
    assert found.ranks.tolist() == [[3, 1, 2], [3, 1, 2], [1, 3, 2]]
    assert found.regrets == pytest.approx(np.array([[20, 0, 10], [20, 0, 19], [0, 40, 10]]))
    assert found.by_rank == ["alone", "gaussian-head", "fedavg"]
    assert found.measured[0].gain("alone", "fedavg") == (pytest.approx(20), pytest.approx((20, 20)))
    lines = " ".join(atlas.answer(found))
    assert (
        "two of three are best somewhere. `alone` has the best mean rank over 3 federations, 1.7 of 3 [1.0, 3.0]. "
        in lines
    )
    assert "It is shown to be ahead of none of the 2 others." in lines
    assert (
        "`gaussian-head` (our own) costs least: 13.0 points behind the best method on average, and at worst 19.0 "
        "(two). Next is `fedavg`: 13.3 points behind the best method on average, and at worst 20.0 (one)."
    ) in lines
    assert "is ahead of FedAvg on 2 of 3 federations, shown on 2, and ahead of every method on 2." in lines
    assert "On 1 the best method is shown to be ahead of it (three)" in lines
    assert (
        "**Different classes** (two federations): `alone`, `gaussian-head`, `fedavg`; "
        "shown to be ahead of FedAvg: `alone` on 2, `gaussian-head` on 2."
    ) in lines
    assert "(one federation): `fedavg`, `gaussian-head`, `alone`; shown to be ahead of FedAvg: none." in lines
    assert (
        "**Our own methods on three**, which shaped no default, are in the places `gaussian-head` 2 of 3; "
        "shown to be ahead of FedAvg: none; behind it: `gaussian-head`."
    ) in lines
    page = atlas.write_page(found)
    assert "Measured so far" not in page
    assert "| `alone` | **70.0** | **80.0** | 50.0 |" in page
    assert "| method | one* | two* | three |" in page
    assert "| labels | one*, two* | `alone` 0.0 | `gaussian-head` 14.5 | `fedavg` 20.0 | 20.0 | 0.0 |" in page
    assert "| three | `gaussian-head` | 80.0 | 2 of 3 | -10.0 [-10.0, -10.0] | +30.0 [+30.0, +30.0] |" in page
    assert f"differ by less than {atlas.critical_difference(3, 2):.1f}" in page


def test_stack_is_compared_with_the_best_method_of_each_federation(atlas, tmp_path):
    """All clients gain alike, so that each difference is shown."""
    path = write_scores(tmp_path, _TABLE)
    for name, accuracy in (("one", 75.0), ("two", 80.0), ("three", 88.0)):
        for part in ("runs", "clients"):
            scores = pd.read_csv(file := tmp_path / "scores" / f"atlas-{name}.{part}.csv")
            best = scores[scores["method"] == _BEST[name]]
            more = (accuracy - max(_TABLE[name])) / 100
            stack = best.assign(method="stack", accuracy=best["accuracy"] + more)
            pd.concat([scores, stack]).to_csv(file, index=False)
    path.write_text(path.read_text(encoding="utf-8").replace("shaped = false", 'shaped = false\nvariants = ["stack"]'))
    found = atlas.Atlas.read(path)
    sentence = (
        "`stack` is ahead of the best single method by test on 1 of 3 federations, shown on 1 (one), and shown to be "
        "behind on 1 (three)"
    )
    assert atlas.compare_stack(found) == sentence
    page = atlas.write_page(found)
    assert f"**Several methods together**: {sentence}." in page
    assert page.count("(but variants of `stack` were compared on data like three)") == 2


def test_diagram_has_each_method_at_its_mean_rank_and_the_critical_difference(atlas, tmp_path):
    found = atlas.Atlas.read(write_scores(tmp_path, _TABLE))
    interval, point, bars = (layer["data"]["values"] for layer in atlas.draw_ranks(found)["layer"])
    assert [(row["method"], row["rank"]) for row in point] == [
        ("alone 1.7", pytest.approx(5 / 3, abs=1e-3)), ("gaussian-head 2.0", 2),
        ("fedavg 2.3", pytest.approx(7 / 3, abs=1e-3)),
    ]  # fmt: skip
    assert all(1 <= row["low"] <= row["rank"] <= row["high"] <= 3 for row in interval)
    difference = atlas.critical_difference(3, 2)
    assert [(bar["low"], bar["high"]) for bar in bars] == [
        (pytest.approx(5 / 3, abs=1e-3), pytest.approx(7 / 3, abs=1e-3)), (1, pytest.approx(1 + difference, abs=1e-3)),
    ]  # fmt: skip


@pytest.mark.parametrize("names", [(), ("one",), ("one", "two"), ("one", "three")])
def test_page_says_which_federations_are_missing(atlas, tmp_path, names):
    """Without two sources there are no ranks over them."""
    found = atlas.Atlas.read(write_scores(tmp_path, names))
    page = atlas.write_page(found)
    assert (
        f"**Measured so far: {len(names)} of 3**; missing: {', '.join(name for name in _TABLE if name not in names)}."
        in page
    )
    assert ("## Ranks" in page) is atlas.has_ranks(found) is ("three" in names)
    assert ("## Accuracy" in page) is bool(names)
    assert "What this cannot say" in page


def test_gain_is_over_the_seeds_that_both_methods_have(atlas, tmp_path):
    """Under seed 1, alone has no run; with one seed, a gain that all clients have has no error."""
    path = write_scores(tmp_path, ["one"])
    for part in ("runs", "clients"):
        file = tmp_path / "scores" / f"atlas-one.{part}.csv"
        text = file.read_text()
        file.write_text(re.sub(r"^alone,1,.*\n", "", text, flags=re.M).replace("alone,0,0.7\n", "alone,0,0.6\n"))
    found = atlas.Atlas.read(path).measured[0]
    assert found.accuracies["alone"] == pytest.approx(60)
    assert found.gain("alone", "fedavg") == (pytest.approx(20), pytest.approx((20, 20)))


def test_gains_are_those_of_the_tables_of_pfl_compare(atlas):
    """Tables have the intervals that hold for all methods together."""
    for federation in atlas.Atlas.read().measured:
        table = pd.read_csv(RESULTS / f"atlas-{federation.name}.csv").set_index("method")["gain (points)"]
        for name in {*table.index} & {*federation.accuracies} - {"fedavg"}:
            gain, interval = federation.gain(name, "fedavg", joint=True)
            shown = [float(number) for number in re.findall(r"[-+]?[\d.]+", table[name])]
            assert [gain, *interval] == pytest.approx(shown, abs=0.051), (federation.name, name)


def test_scores_without_a_method_are_refused(atlas, tmp_path):
    path = write_scores(tmp_path, ["one"])
    runs = tmp_path / "scores" / "atlas-one.runs.csv"
    runs.write_text(re.sub(r"^alone.*\n", "", runs.read_text(), flags=re.M))
    with pytest.raises(ValueError, match="atlas-one has no scores of alone"):
        atlas.Atlas.read(path)


# The page.


def test_page_and_table_are_up_to_date(atlas):
    files = atlas.write_files()
    for path in (atlas.PAGE, *({atlas.RANKS} & {*files})):
        assert path.read_text(encoding="utf-8") == files[path], "run python docs/reference.py"


def test_picture_shows_the_ranks_of_now(atlas):
    found = atlas.Atlas.read()
    assert atlas.PICTURE.exists() is atlas.has_ranks(found)
    if atlas.has_ranks(found):
        shown = atlas.PICTURE.read_text(encoding="utf-8")
        assert all(
            f"{name} {mean:.1f}<" in shown for name, mean in zip(found.methods, found.ranks.mean(axis=0), strict=True)
        )


# The script.


@pytest.fixture
def script(tmp_path):
    """Run examples/atlas.py, and return what it prints."""

    def run(*arguments, code=0):
        line = [sys.executable, str(ROOT / "examples" / "atlas.py"), *map(str, arguments)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout or done.stderr

    return run


def load_script():
    spec = importlib.util.spec_from_file_location("atlas_script", ROOT / "examples" / "atlas.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_estimate_counts_trials_and_seeds():
    """FedAvg's grid has 4 rates, of which 4 run a quarter and 2 all rounds: 3 runs, and one for each of 3 seeds."""
    table = {
        "methods": ["fedavg", "knn-per", "ditto", "local", "alone"], "beside": ["stack"], "trials": 8, "compare": "",
        "federations": {"x": {"compare": "--set ditto.lam=1 --set ditto.lr=0"}},
    }  # fmt: skip
    steps = {
        "backbone": 10.0,
        "embeddings": 1,
        "fedavg": 1,
        "knn-per": 2,
        "ditto": 40,
        "local": 1,
        "alone": 5,
        "stack": 3,
    }
    rows = [{"step": step, "processor_seconds": seconds} for step, seconds in steps.items()]
    found = load_script().estimate(table, "x", [*rows, {"step": "comparison"}], 3)
    assert found == {
        "backbone": 10 * (4 * 0.25 + 2 + 3), "embeddings": 3, "fedavg": 3, "knn-per": 2 * (8 + 3), "ditto": 40 * 6,
        "local": 10 * (4 + 3), "alone": 15, "stack": 9,
    }  # fmt: skip
    text = load_script().describe("x", found)
    assert text.startswith("x: at most 7 core-minutes; seconds: ditto 240, local 70, fedavg 66, knn-per 22")


def test_table_of_federations_has_existing_methods_and_words(script):
    names = script(RESULTS / "atlas.toml", "names").split()
    assert len(names) == 11
    words = script(RESULTS / "atlas.toml", "compare", "writers").split()
    assert {*words[-1].split(",")} <= {*registry.names("methods"), "stack"}
    assert len(words[-1].split(",")) == 16
    files = [
        word for name in names for word in script(RESULTS / "atlas.toml", "compare", name).split() if word[0] == "."
    ]
    assert files == ["./examples/characters.py"]
    assert (ROOT / files[0]).exists()
    assert "has hospitals, few-samples" in script(RESULTS / "atlas.toml", "compare", "writer", code=2)


def test_network_of_characters_reads_the_last_eight():
    """Its parameters: 80 embeddings of 8, layers from 64 to 200, to 200 and to 80, with their biases."""
    spec = importlib.util.spec_from_file_location("characters", ROOT / "examples" / "characters.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    net = module.Characters(80, 80)
    x = torch.arange(40).reshape(2, 20)
    changed = x.clone()
    changed[:, :12] = 0
    assert torch.equal(net(x), net(changed))
    changed[:, 12] = 0
    assert not torch.equal(net(x), net(changed))
    assert net(x).shape == (2, 80)
    assert sum(p.numel() for p in net.parameters()) == 80 * 8 + 65 * 200 + 201 * 200 + 201 * 80


def test_unfinished_training_is_not_stored(script, tmp_path):
    shutil.copy(RESULTS / "atlas.toml", tmp_path)
    (tmp_path / "comparison").mkdir()
    (tmp_path / "comparison" / "runs.csv").write_text("method,unfinished\nfedavg,\nditto,0.03\n")
    message = script(tmp_path / "atlas.toml", "store", "writers", tmp_path / "comparison", code=1)
    assert "ditto is not finished: raise --set ditto.training.rounds=N in the table" in message
    assert (
        f"rm -r {tmp_path}/comparison {tmp_path}/tune/ditto {tmp_path}/seed-*/ditto and this command again" in message
    )
    assert not [*tmp_path.glob("atlas-*")]


TINY = """
methods = ["fedavg", "fedavg-plus"]
beside = []
own = []
trials = 2
compare = "--model logistic --rounds 2 --participation 1 --no-references --set fedavg.training.lr=0.1"
[federations.one]
packaged = true
partition = "writers --clients 4"
compare = "--batch-size 50"
[federations.two]
packaged = true
partition = "writers --scheme iid --clients 3 --part 1/9"
compare = "--batch-size 50"
"""


def prepare_script(folder, pfl):
    """Return a function that runs examples/atlas.sh with a command ``pfl`` of these lines, and what it prints."""
    (folder / "atlas.toml").write_text(TINY)
    (folder / "bin").mkdir()
    for name, lines in (("pfl", pfl), ("python", f'exec {sys.executable} "$@"')):
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{lines}\n")
        (folder / "bin" / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    options = ["--settings", str(folder / "atlas.toml"), "--out", str(folder / "runs"), "--seeds", "0"]

    def run(*words, code=0):
        line = ["bash", str(ROOT / "examples" / "atlas.sh"), *words, *options]
        done = subprocess.run(line, capture_output=True, text=True, env=env, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    return run


_FAKE = """case "$*" in
  *{part}*) echo run >> {runs}; exit {code} ;;
  partition*) while [ "$1" != -o ]; do shift; done; mkdir -p "$2" ;;
  *" -n "*) echo '{{"summary": {{"plan": []}}}}' ;;
esac"""


@pytest.mark.parametrize("part", ["partition", '" -n "', "--tune"])
@pytest.mark.parametrize(("code", "begun"), [(130, 1), (5, 2)])
def test_script_ends_when_interrupted_and_else_goes_on_with_the_next_federation(tmp_path, part, code, begun):
    run = prepare_script(tmp_path, _FAKE.format(part=part, runs=tmp_path / "runs.txt", code=code))
    run(code=130 if code == 130 else 1)
    assert len((tmp_path / "runs.txt").read_text().split()) == begun


def test_script_trains_nothing_if_a_name_is_wrong(tmp_path):
    run = prepare_script(tmp_path, _FAKE.format(part="--tune", runs=tmp_path / "runs.txt", code=0))
    assert "no federation 'three'" in run("one", "three", code=1)
    assert not (tmp_path / "runs.txt").exists()
    assert "bash examples/atlas.sh NAME..." in run("--help")


def test_script_estimates_stores_and_goes_on_where_it_stopped(tmp_path):
    run = prepare_script(tmp_path, f'exec {sys.executable} -m pflcli "$@"')
    assert "no federation 'three'" in run("three", code=2)
    assert re.findall(r"^(\w+): at most \d+ core-minutes; seconds: ", run("estimate"), flags=re.M) == ["one", "two"]
    assert not [*tmp_path.glob("atlas-*.csv")]
    assert "one: stored" in run("one")
    made = tmp_path / "runs" / "one" / "seed-0"
    before = {path: path.stat().st_mtime_ns for path in made.rglob("manifest.json")}
    stored = (tmp_path / "scores" / "atlas-one.runs.csv").read_text()
    # As if it had been stopped before the table: what was made stays.
    shutil.rmtree(tmp_path / "runs" / "one" / "comparison")
    (tmp_path / "scores" / "atlas-one.runs.csv").unlink()
    assert "one: stored" in run("one")
    assert {path: path.stat().st_mtime_ns for path in made.rglob("manifest.json")} == before
    assert (tmp_path / "scores" / "atlas-one.runs.csv").read_text() == stored
    assert not (tmp_path / "scores" / "atlas-two.runs.csv").exists()
