"""Sites agree on targets that are quantities or counts: on the task, its unit, and the scale of training labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_columns import OPTIONS, SITES, make_summary, number, three
from test_without_pilot import COUNT, QUANTITY, SETTINGS, agree, read_school

import pflcli
from helpers import error_text
from pflcli import import_data
from pflcli.artifacts.kinds import read_labels
from pflcli.artifacts.reader import open_artifact
from pflcli.core import tasks
from pflcli.core.errors import InputError, UnsuitedError, UsageError
from pflcli.core.splits import split_clients
from pflcli.data.preparation import imported_dataset
from pflcli.plugins.sites.columns import measures, summary, table
from pflcli.plugins.sites.columns.agreement import agree as merge
from pflcli.plugins.sites.columns.commands import summarize_columns
from pflcli.plugins.sites.columns.summary import ColumnSummary
from pflcli.plugins.sites.federation import create_federation
from pflcli.plugins.sites.join import join_federation

NAMES = ("north", "south", "west")


def target(task="quantity", unit="points", mean=50.0, deviation=10.0):
    return ColumnSummary("ill", "target", unit, task, mean=mean, deviation=deviation)


def sites(**of_west):
    """Summaries of three sites that learn a quantity; ``west`` has other moments, or another task."""
    columns = [target(mean=40.0), target(mean=60.0), target(**of_west)]
    return [make_summary(name, columns={"ill": each}) for name, each in zip(NAMES, columns, strict=True)]


@pytest.fixture(scope="module")
def agreements(tmp_path_factory):
    """What four sites agree on for a quantity and for a count."""
    found = {}
    for name, options in (("quantity", QUANTITY), ("count", COUNT)):
        at = tmp_path_factory.mktemp(name)
        found[name] = agree(at, read_school, **options)
    return found


@pytest.mark.parametrize("name", ["quantity", "count"])
def test_the_agreed_scale_is_that_of_all_training_labels_up_to_rounding(agreements, name):
    """Each site's sum is rounded to its deviation: the mean of all moves by at most one by so many rows."""
    agreed, y = table.read(agreements[name]), []
    for place, site in enumerate(SITES):
        samples = imported_dataset.load_samples(open_artifact(agreements[name].parent / f"own {site}"), None)
        parts = [np.arange(len(samples.y)) if at == place else np.zeros(0, np.int64) for at in range(len(SITES))]
        y.append(samples.y[split_clients(samples, parts, agreed.fractions, agreed.seed)[3 * place]])
    assert {site: len(each) for site, each in zip(SITES, y, strict=True)} == agreed.sites
    pooled, labels = np.concatenate(y), agreed.labels
    (column,) = (each for each in agreed.columns.values() if each.kind == "target")
    error = len(SITES) * 1.25 * max(each.std() for each in y) / len(pooled)
    assert 0 < abs(column.mean - pooled.mean()) < error
    assert column.deviation == pytest.approx(pooled.std(), abs=error)
    exact = samples.task.fitted(pooled)
    fitted = {field: labels.fields[field] for field in exact.FITTED}
    assert labels.task() == replace(exact, names=(), past=(), **fitted)
    for field in exact.FITTED:  # the deviance of counts as small as these is a rough estimate
        assert labels.fields[field] == pytest.approx(getattr(exact, field), rel=0.4 if field == "deviance" else 5e-3)


def test_a_summary_shows_the_target_and_has_no_median_of_it(agreements, tmp_path, pfl):
    own = agreements["quantity"].parent / "own hungary"
    ran = pfl("site", "columns", own, "--client", "hungary", "--sites", ",".join(SITES), "-o", tmp_path / "s.json")
    (line,) = (line for line in ran.err.splitlines() if line.startswith("score "))
    assert line.split()[:3] == ["score", "target", "points"]
    assert "quantity:huber, mean 1" in line
    assert "median" not in line
    found = summary.read(tmp_path / "s.json").find("score")
    assert (found.task, found.unit, found.median, found.words) == ("quantity:huber", "points", None, ())
    step = measures.unit(found.deviation / summary.read(tmp_path / "s.json").train)[0]
    for value in (found.mean, found.deviation):
        assert value / step == pytest.approx(round(value / step), abs=1e-6)


def test_four_training_labels_tell_no_mean(tmp_path):
    """Six rows have four for training; the others' scale is then that of all."""
    rows = "\n".join(f"{n},{n / 7}" for n in range(6))
    (tmp_path / "own.csv").write_text(f"age,score\n{rows}\n")
    options = {**OPTIONS, "label": "score", "task": "quantity"}
    own = import_data(tmp_path / "own.csv", tmp_path / "own", **options)
    facts = summarize_columns(own, tmp_path / "s.json", client="a", sites=["a", "b"])
    (column,) = (each for each in facts["columns"] if each["kind"] == "target")
    assert (facts["train"], column) == (4, {"name": "score", "kind": "target", "task": "quantity"})
    assert any("'score' has a value in fewer than 5" in line for line in facts["remarks"])
    few = replace(make_summary("west", columns={"ill": replace(target(), mean=None, deviation=None)}), train=4)
    agreed, _ = merge([*sites()[:2], few])
    assert agreed.columns["ill"].mean == 50.0
    nobody = [replace(each, columns=few.columns) for each in sites()]
    with pytest.raises(InputError, match="do not fit") as error:
        merge(nobody)
    assert "column 'ill': has no deviation" in error_text(error)


def test_the_scale_of_three_sites_by_hand():
    """Means 40, 60 and 50 of 60 samples each, deviations of 10: variance 100 + (100 + 100 + 0) / 3."""
    agreed, remarks = merge(sites())
    column = agreed.columns["ill"]
    assert (column.mean, column.deviation, column.median) == (50.0, pytest.approx(np.sqrt(100 + 200 / 3)), None)
    assert (column.task, column.unit, agreed.classes, remarks) == ("quantity", "points", (), [])
    assert any("'ill' of 'west'" in line for line in merge(sites(mean=500.0, deviation=100.0))[1])


@pytest.mark.parametrize(
    ("of_west", "words"),
    [
        ({"task": "count"}, ["'west', column 'ill'", "task count, and quantity at the others", "--task quantity"]),
        ({"task": "", "mean": None, "deviation": None}, ["task classes, and quantity at the others"]),
        ({"unit": "percent"}, ["is in percent, and in points at the others"]),
    ],
)  # fmt: skip
def test_another_task_or_unit_is_an_error_at_the_site(of_west, words):
    with pytest.raises(InputError) as error:
        merge(sites(**of_west))
    assert all(word in error_text(error) for word in words), error_text(error)


def test_the_table_of_a_coordinator_says_the_task(tmp_path):
    given = tmp_path / "table.toml"
    given.write_text(
        '[columns.age]\n[columns.sex]\nkind = "words"\n[columns.ill]\nkind = "target"\ntask = "quantity"\n'
    )
    assert table.read(given).labels.kind == "quantity"
    plain = table.Table({"age": number("age")}) if False else table.read(given)
    agreed, _ = merge(
        [replace(each, reading=replace(each.reading, missing="error", standardize="none")) for each in sites()], plain
    )
    assert agreed.columns["ill"].mean == 50.0
    with pytest.raises(InputError, match="do not fit") as error:
        merge(three(), plain)
    assert "is a target of the task classes, and quantity at the others: --task quantity" in error_text(error)
    for text, message in {
        'kind = "target"\ntask = "quantiti"': "did you mean 'quantity'",
        'kind = "number"\ntask = "quantity"\n[columns.dead]\nkind = "target"': 'only the column of kind = "target"',
    }.items():
        given.write_text(f"[columns.age]\n[columns.ill]\n{text}\n")
        with pytest.raises((InputError, UsageError)) as error:
            table.read(given)
        assert message in error_text(error)


def test_a_summary_that_contradicts_itself_is_refused(tmp_path):
    for wrong in (
        replace(target(), median=1.0),
        replace(target(), deviation=None),
        replace(number("ill"), task="quantity", kind="number"),
    ):
        columns = {"ill": wrong, **({"dead": target()} if wrong.kind == "number" else {})}
        if wrong.kind == "number":
            columns["dead"] = replace(target(), name="dead")
        (tmp_path / "s.json").write_bytes(make_summary("north", columns=columns).encode())
        with pytest.raises(InputError):
            summary.read(tmp_path / "s.json")


def test_quantiles_are_refused_with_the_reason(tmp_path, agreements):
    source = agreements["quantity"].parent / "hungary.csv"
    own = import_data(source, tmp_path / "own", **{**OPTIONS, **QUANTITY, "task": "quantile:0.1,0.9"})
    with pytest.raises(UnsuitedError, match="cannot agree on labels of the task quantile") as error:
        summarize_columns(own, tmp_path / "s.json", client="hungary", sites=SITES)
    assert "--task quantity" in error_text(error)
    assert not (tmp_path / "s.json").exists()


def test_a_site_joins_with_a_quantity_and_predicts_in_its_unit(agreements, tmp_path):
    at = agreements["quantity"].parent
    fed = create_federation(agreements["quantity"], tmp_path / "fed", method="fedavg", **SETTINGS).path
    assert join_federation(fed, tmp_path / "site", data=at / "hungary.csv")["client"] == "hungary"
    for made in (fed, tmp_path / "site/partition"):
        task = read_labels(open_artifact(made).manifest, 0).task()
        assert replace(task, names=(), past=()) == table.read(agreements["quantity"]).labels.task()


@pytest.mark.parametrize("word", ["quantity", "quantity:huber", "quantity:absolute", "quantile:0.1,0.9", "count"])
def test_a_task_is_fitted_by_moments_as_by_labels(word):
    task = tasks.parse(word, "EUR")
    y = np.random.default_rng(0).poisson(40, 500).astype(np.float64)
    assert not task.is_fitted
    assert task.fitted(y).is_fitted
    if task.kind == "quantile":
        with pytest.raises(UnsuitedError):
            task.fitted_to_moments(0.0, 1.0)
        return
    assert task.word == word
    known = task.fitted_to_moments(y.mean(), y.std())
    assert known.is_fitted
    if task.kind == "count":
        assert known.deviance == pytest.approx(task.fitted(y).deviance, rel=0.05)
        known = replace(known, deviance=task.fitted(y).deviance)
    assert known == task.fitted(y)


def test_new_data_like_a_partition_keep_the_scale_of_its_labels(tmp_path, agreements):
    """As they keep the means and deviations of its features."""
    at, parts = agreements["quantity"].parent, []
    for name, like in (("hungary", None), ("cleveland", "first")):
        options = {**OPTIONS, **QUANTITY} if like is None else {"like": tmp_path / like, "client": "none"}
        made = import_data(at / f"{name}.csv", tmp_path / name, **options)
        parts.append(
            pflcli.partition(made, tmp_path / "first" if like is None else tmp_path / "second", scheme="iid", clients=2)
        )
    first, second = (open_artifact(each.path).manifest.summary["task"]["fields"] for each in parts)
    assert first == second
    assert first["deviation"] != 1
