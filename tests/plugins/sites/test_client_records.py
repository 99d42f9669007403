"""The table of a comparison follows from records of clients that were written to files, and nothing else is read."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from pflcli.artifacts.client_blocks import offsets
from pflcli.artifacts.kinds.predictions import SplitPredictions
from pflcli.core.errors import InputError
from pflcli.core.tasks import Labels
from pflcli.evaluation import records, scoring
from pflcli.evaluation.summary import ScoredPredictions
from pflcli.plugins.sites import client_records

METHODS = ("fedavg", "ditto", "local", "alone")


def draw_runs(clients=4, seeds=3, metrics=("accuracy", "auroc", "brier_score"), with_global=False):
    """Runs of several methods and seeds without records, each with a function that returns its predictions."""
    rng, runs = np.random.default_rng(clients), []
    for seed in range(seeds):
        sizes = rng.integers(2, 30, clients)
        y = rng.integers(0, 2, sizes.sum())
        sample = np.concatenate([100 * client + rng.permutation(40)[:size] for client, size in enumerate(sizes)])
        for method in METHODS:
            parts = {name: draw(rng, y) for name in ("p", *["global"] * with_global)}
            answers = SplitPredictions(parts, y, sample, offsets(sizes.tolist()))
            item = ScoredPredictions(
                label=method, method=method, seed=seed, metric_names=metrics, labels=Labels(2), validation=0.5,
                names=[f"site {client}" for client in range(clients)], class_names=["no", "yes"],
                tuned={"lam": rng.random(clients)},
            )  # fmt: skip
            runs.append((item, lambda answers=answers: answers))
    return runs


def draw(rng, y):
    p = rng.dirichlet([1, 1], len(y)) + np.eye(2)[y] * 0.6
    return (p / p.sum(axis=1, keepdims=True)).astype(np.float32)


def build_table(items, baseline="fedavg"):
    """The content of ``metrics.json`` that follows from predictions, and ``clients.csv``."""
    from pflcli.evaluation import stored_scores, summary

    groups = {label: [item for item in items if item.label == label] for label in METHODS}
    names = {label: {item.seed: np.asarray(item.names) for item in own} for label, own in groups.items()}
    rows = [summary.summarize_scores(label, own, names[label]) for label, own in groups.items() if own]
    made = {"split": "test", "metric": [*items[0].metric_names], "baseline": baseline, "methods": rows}
    return scoring.judge(made, groups, names), stored_scores.render_clients({"": items}, "test")


def send(items, folder, fewest=0):
    """Write the records of runs, and read them back; returns the runs with what was read, and bytes a client."""
    received, size = [], 0
    for item in items:
        path = folder / f"{item.label}-{item.seed}.json"
        size += client_records.write(path, client_records.list_records(item, "test", item.names, fewest))
        known = {name: getattr(item, name) for name in ("label", "method", "seed", "metric_names", "labels", "names")}
        bare = ScoredPredictions(**known, class_names=item.class_names, validation=item.validation)
        received.append(replace(bare, **client_records.join(client_records.read(path))))
    return received, size / sum(len(item.n) for item in items)


@pytest.mark.parametrize(
    ("clients", "metrics", "with_global"),
    [
        (4, ("accuracy", "auroc", "brier_score"), False),
        (12, ("accuracy",), False),
        (12, ("log_loss", "f1"), False),
        (4, ("accuracy",), True),
    ],
)
def test_a_table_from_files_of_records_is_that_of_the_predictions(tmp_path, clients, metrics, with_global):
    runs = draw_runs(clients, metrics=metrics, with_global=with_global)
    runs = [run for run in runs if not with_global or run[0].label != "fedavg"]
    items = scoring.add_records(runs, "fedavg")
    received, size = send(items, tmp_path)
    received = scoring.pair_with_baseline(received, "fedavg")
    if with_global:
        received, items = ([each for each in own if each.label == "ditto"] for own in (received, items))
        assert items[0].baseline is not None
    else:
        table, of_clients = build_table(received)
        expected, expected_of_clients = build_table(items)
        assert json.dumps(scoring.replace_nonfinite(table)) == json.dumps(scoring.replace_nonfinite(expected))
        assert of_clients == expected_of_clients
        few = clients == 4 and metrics[0] == "accuracy"
        ditto = next(row for row in expected["methods"] if row["label"] == "ditto")
        assert ("standard_error" in ditto["metrics"]["gain"].get("these_clients", {})) == few
    for one, other in zip(received, items, strict=True):
        np.testing.assert_array_equal(one.gain, other.gain)
    assert size < (1000 if metrics == ("accuracy",) else 1300)


def test_few_samples_are_withheld_and_the_table_says_so(tmp_path):
    items = scoring.add_records(draw_runs(), "fedavg")
    fewest = int(np.median(items[0].n)) + 1
    received, _ = send(items, tmp_path, fewest)
    received = scoring.pair_with_baseline(received, "fedavg")
    for one, other in zip(received, items, strict=True):
        hidden = other.n < fewest
        assert one.withheld.tolist() == np.where(hidden, other.n, 0).tolist()
        assert np.isnan(one.score[hidden]).all()
        assert not one.counts[hidden].any()
        np.testing.assert_array_equal(one.score[~hidden], other.score[~hidden])
    table, _ = build_table(received)
    count = max(int((item.n < fewest).sum()) for item in items)
    (line,) = [line for line in table["definitions"] if "withhold" in line]
    assert line.startswith(f"{count} of 4 clients have few test samples")
    text = (tmp_path / "ditto-0.json").read_text()
    for client in np.flatnonzero(items[0].n < fewest):
        assert f'{{"name":"site {client}","n":{items[0].n[client]},"scores":null}}' in text


def test_no_number_of_a_single_sample_is_in_a_record():
    """The size of a record does not depend on the number of samples, but for its digits."""
    (item, read), *_ = draw_runs()
    answers = read()
    both = {name: np.concatenate([values, values]) for name, values in answers.parts.items()}
    many = SplitPredictions(both, np.tile(answers.y, 2), np.arange(2 * len(answers.y)), 2 * answers.offsets)
    made = [replace(item, **records.make(each, ("accuracy",), Labels(2), {})[0]) for each in (answers, many)]
    texts = [json.dumps(asdict(client_records.list_records(each, "test", item.names))) for each in made]
    shapes = ["".join(" " if sign in "0123456789.e-" else sign for sign in text) for text in texts]
    assert shapes[0].replace(" ", "") == "".join(shapes[1].split()) or len(texts[0]) == pytest.approx(
        len(texts[1]), rel=0.1
    )


def break_field(value, path, new):
    *way, last = path
    for key in way:
        value = value[key]
    value[last] = new


@pytest.mark.parametrize(
    ("path", "new", "words"),
    [
        (("extra",), 1, "extra"),
        (("version",), 2, "version"),
        (("clients", 1, "name"), "site 0", "twice"),
        (("clients", 0, "p"), [0.5], "p"),
        (("clients", 0, "n"), 1000, "add up"),
        (("clients", 0, "n"), "12", "n"),
        (("clients", 0, "scores", "client", "accuracy"), float("nan"), "finite"),
        (("clients", 0, "scores", "counts"), [[1], [1]], "counts"),
        (("clients", 0, "scores", "gaps"), [1e6] * 15, "exceed"),
        (("clients", 0, "scores", "gaps"), [0.0], "different things"),
        (("clients", 0, "scores", "discordant"), 1000, "discordant"),
        (("clients", 0, "scores", "pairs", ""), [[1000, 0, 0]] * 3, "exceed"),
        (("clients", 0, "scores", "tuned"), {}, "different things"),
    ],
)
def test_a_file_of_anything_else_is_refused(tmp_path, path, new, words):
    items = scoring.add_records(draw_runs(), "fedavg")
    item = next(item for item in items if item.label == "ditto")
    value = json.loads(json.dumps(asdict(client_records.list_records(item, "test", item.names))))
    file = tmp_path / "records.json"
    file.write_text(json.dumps(value))
    client_records.read(file)
    break_field(value, path, new)
    file.write_text(json.dumps(value))
    with pytest.raises(InputError, match=words) as failure:
        client_records.read(file)
    assert str(file) in str(failure.value)


def test_more_hits_than_labels_are_refused(tmp_path):
    items = scoring.add_records(draw_runs(), "fedavg")
    value = json.loads(json.dumps(asdict(client_records.list_records(items[0], "test", items[0].names))))
    labels, _, hits = value["clients"][0]["scores"]["counts"]
    hits[0] = labels[0] + 1
    (tmp_path / "records.json").write_text(json.dumps(value))
    with pytest.raises(InputError, match="more right predictions"):
        client_records.read(tmp_path / "records.json")


def test_digests_hide_labels_behind_a_secret():
    (_, read), *_ = draw_runs()
    answers = read()
    plain, hidden, other = (records.digest_samples(answers, secret) for secret in (b"", b"one", b"two"))
    assert not {*plain} & {*hidden}
    assert not {*hidden} & {*other}
    changed = replace(answers, y=1 - answers.y)
    assert not {*records.digest_samples(changed, b"one")} & {*hidden}
