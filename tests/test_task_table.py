"""Every command with every task: a cell is a check whose numbers NumPy computes again, or the text of a refusal.

The table in docs/tasks.md has the same cells. A task of a user is that of ``pfl new task``.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest

from pflcli import (
    Federation,
    audit,
    build_datastore,
    evaluate,
    export,
    extract,
    import_data,
    import_predictions,
    new,
    new_client,
    partition,
    personalize,
    predict,
    replay,
    report,
    simulate,
    stack,
    sweep,
    table,
    track,
    train_global,
    tune,
    update_datastore,
)
from pflcli.artifacts.reader import open_artifact
from pflcli.core import registry, tasks
from pflcli.core.errors import PflError
from pflcli.core.tasks import Labels
from pflcli.evaluation import lineage
from pflcli.evaluation.stored_comparison import read_comparison
from pflcli.plugins.audits import attacks
from pflcli.plugins.page import charts as page_charts
from pflcli.plugins.page import runs as page_runs
from pflcli.plugins.sites.federation import create_federation, run_federation
from pflcli.plugins.sites.site import check_site, serve_site
from pflcli.plugins.tracking import records, tensorboard

SETTINGS = {"model": "mlp", "rounds": 2, "participation": 1.0, "batch_size": 10, "lr": 0.05, "eval_every": 1}
CLIENTS, SAMPLES, LEVELS = 4, 50, (0.1, 0.5, 0.9)
WORDS = {"quantity": "quantity", "count": "count", "quantile": "quantile:0.1,0.5,0.9", "grades": "grades:4"}
"""What ``--task`` says; the last task is that of a user."""
METRICS = {"quantity": "rmse", "count": "poisson_deviance", "quantile": "quantile_loss", "grades": "grades_steps_off"}
NAMES = {"quantile": [f"prediction({q})" for q in LEVELS], "grades": [f"prediction({n})" for n in range(4)]}
"""The columns of predictions, of tasks with several."""
HEADINGS = {"quantity": "RMSE", "count": "Poisson deviance", "quantile": "quantile loss", "grades": "steps off"}


def losses(task, p, y):
    """Return the errors of predictions (n, C), squared for a quantity, in the unit of labels, (n,)."""
    p, y = p.astype(np.float64), np.asarray(y, np.float64)
    if task == "quantity":
        return (p[:, 0] - y) ** 2
    if task == "count":
        known = [n * np.log(n / mu) if n else 0.0 for n, mu in zip(y, p[:, 0], strict=True)]
        return 2 * (np.asarray(known) - (y - p[:, 0]))
    if task == "grades":
        return np.abs((p > 0.5).sum(axis=1) - y)
    above = y[:, None] >= p
    return np.where(above, np.asarray(LEVELS) * (y[:, None] - p), (1 - np.asarray(LEVELS)) * (p - y[:, None])).mean(1)


def measure(task, p, y):
    """Return the first metric of a task."""
    return float(np.sqrt(losses(task, p, y).mean()) if task == "quantity" else losses(task, p, y).mean())


def scale(case):
    """Return the loss by which the scores of rounds are divided."""
    if case.task == "grades":
        return 4
    return (
        case.fields["deviation"] ** 2
        if case.task == "quantity"
        else case.fields[{"count": "deviance"}.get(case.task, "spread")]
    )


def weigh(task, stored):
    """Return the metric of a run: the mean over clients, weighted by samples."""
    p, y, offsets = stored
    spans = [slice(*offsets[client : client + 2]) for client in range(CLIENTS)]
    return np.average([measure(task, p[span], y[span]) for span in spans], weights=np.diff(offsets))


def read(run, split="test"):
    """Return the stored predictions (n, C), labels and offsets of a split."""
    with h5py.File(run / "predictions.h5") as file:
        return tuple(file[f"{split}/{name}"][...] for name in ("p", "y", "offsets"))


@dataclass(frozen=True)
class Case:
    """A task, and a folder with a table, a partition ``p``, runs ``f`` and ``d`` of it, and their scores ``e``."""

    task: str
    folder: Path
    x: Any
    y: Any
    client: Any

    @property
    def metric(self) -> str:
        return METRICS[self.task]

    @property
    def lines(self) -> list[str]:
        return (self.folder / "table.csv").read_text(encoding="utf-8").splitlines()

    @property
    def fields(self) -> dict[str, Any]:
        return json.loads((self.folder / "p" / "manifest.json").read_text())["summary"]["task"]["fields"]


def use(task, folder):
    if task == "grades":
        registry.use("tasks", str(folder / "grades.py"))
        tasks.add_used()


def build(task, folder):
    draw = np.random.default_rng(0)
    x, client = draw.normal(size=(CLIENTS * SAMPLES, 2)).round(4), np.repeat(np.arange(CLIENTS), SAMPLES)
    line = x[:, 0] + 0.3 * client
    y = {
        "quantity": lambda: np.round(1000 + 50 * line, 2),
        "count": lambda: draw.poisson(np.exp(line)),
        "quantile": lambda: np.round(1000 + 50 * line + 20 * draw.normal(size=len(line)), 2),
        "grades": lambda: np.digitize(line, [-1, 0, 1, 2]),
    }[task]()
    rows = [f"c{c},{a},{b},{label}" for c, (a, b), label in zip(client, x, y, strict=True)]
    (folder / "table.csv").write_text("\n".join(["who,a,b,y", *rows]) + "\n", encoding="utf-8")
    if task == "grades":
        new("task", folder / "grades.py")
    use(task, folder)
    import_data(folder / "table.csv", folder / "data", client="who", label="y", task=WORDS[task], unit="EUR")
    partition(folder / "data", folder / "p")
    for name, method in (("f", "fedavg"), ("d", "ditto")):
        personalize(method, folder / "p", folder / name, **SETTINGS)
    evaluate([folder / "f", folder / "d"], folder / "e")
    return Case(task, folder, x.astype(np.float32), y, client)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Return a function that returns the case of a task, which is made when a test first needs it."""
    made = {}

    def find(task):
        if task not in made:
            made[task] = build(task, tmp_path_factory.mktemp(task))
        use(task, made[task].folder)
        return made[task]

    return find


def build_embeddings(case, out):
    train_global(case.folder / "p", out / "g", **SETTINGS)
    return extract(out / "g", out / "em")


def check_simulate(case, out, pfl):
    word = f"{case.folder / 'grades.py'}:4" if case.task == "grades" else WORDS[case.task]
    federation = Federation.from_arrays(case.x, case.y, case.client, task=word, unit="EUR")
    result = simulate("ditto", federation, quiet=True, **SETTINGS)
    found = result.predictions["test"]
    by_client = [measure(case.task, found.p[found.client == c], found.y[found.client == c]) for c in range(CLIENTS)]
    assert table({"ditto": result}).loc["ditto", case.metric] == pytest.approx(np.mean(by_client), rel=1e-5)
    assert federation.task.unit == "EUR"


def check_import(case, out, pfl):
    with h5py.File(case.folder / "p" / "samples.h5") as file:
        stored, sample = file["y"][...], file["sample"][...]
    assert np.array_equal(stored, case.y[sample])
    assert case.fields["unit"] == "EUR"
    (out / "bad.csv").write_text("who,a,b,y\nc0,1,2,often\nc1,1,2,3\n", encoding="utf-8")
    with pytest.raises(PflError, match="'often' is not a number"):
        import_data(out / "bad.csv", out / "x", client="who", label="y", task=WORDS[case.task])
    wrong = {"count": "-1", "grades": "5"}.get(case.task, "inf")
    words = {"count": "is not a whole number from 0", "grades": "is no grade from 0 to 4"}
    (out / "bad.csv").write_text(f"who,a,b,y\nc0,1,2,{wrong}\nc1,1,2,3\n", encoding="utf-8")
    with pytest.raises(PflError, match=words.get(case.task, "is not a finite number")):
        import_data(out / "bad.csv", out / "x", client="who", label="y", task=WORDS[case.task])
    assert not (out / "x").exists()


def check_table(case, out, pfl):
    rows = json.loads((case.folder / "e" / "metrics.json").read_text())["methods"]
    known = {row["label"]: row["metrics"][case.metric]["value"] for row in rows}
    assert known == {
        label: pytest.approx(weigh(case.task, read(case.folder / name)), rel=1e-5)
        for label, name in (("fedavg", "f"), ("ditto", "d"))
    }
    shown = (case.folder / "e" / "table.md").read_text(encoding="utf-8")
    assert HEADINGS[case.task] in shown
    assert "accuracy" not in shown.lower()
    with pytest.raises(PflError, match="accuracy is a metric of classes"):
        evaluate([case.folder / "f"], out / "x", metrics=["accuracy"])


def check_page(case, out, pfl):
    artifact = open_artifact(case.folder / "e")
    comparison = read_comparison(artifact)
    drawn = {
        chart.key: chart.spec
        for chart in page_charts.draw(comparison, page_runs.read(comparison, lineage.trace(artifact)))
    }
    p, y, _ = read(case.folder / {"fedavg": "f", "ditto": "d"}[comparison.chosen])
    assert {"ranked", "labels"} <= {*drawn}
    report([case.folder / "e"], out / "page.html")
    assert HEADINGS[case.task] in (out / "page.html").read_text(encoding="utf-8")
    if case.task == "grades":  # probabilities, which no axis compares with labels
        assert "predicted" not in drawn
        return
    rows = drawn["predicted"]["layer"][1]["data"]["values"]
    assert [row["true"] for row in rows] == pytest.approx(y, rel=1e-4)
    assert [row["predicted"] for row in rows] == pytest.approx(
        p[:, LEVELS.index(0.5) * (case.task == "quantile")], rel=1e-4, abs=1e-4
    )


def check_show(case, out, pfl):
    shown = pfl("show", case.folder / "d")
    value = float(re.search(rf"test {re.escape(HEADINGS[case.task])}: ([\d.]+)", shown.out)[1])
    assert value == pytest.approx(weigh(case.task, read(case.folder / "d")), rel=1e-2)
    assert "verified" in pfl("show", case.folder / "d", "--verify").out


def check_predict(case, out, pfl):
    with h5py.File(case.folder / "d" / "predictions.h5") as file:
        sample, (first, last) = file["test/sample"][...], file["test/offsets"][1:3]
    lines = case.lines
    (out / "x.csv").write_text("\n".join([lines[0], *(lines[at + 1] for at in sample[first:last])]) + "\n")
    p = read(case.folder / "d")[0][first:last]
    assert predict(case.folder / "d", out / "x.csv", client="c1").p == pytest.approx(p, rel=1e-6)
    words = ["--use", case.folder / "grades.py"] * (case.task == "grades")
    heading, row, *_ = pfl(*words, "predict", case.folder / "d", out / "x.csv", "--client", "c1").out.splitlines()
    assert heading.split(",")[1:] == NAMES.get(case.task, ["prediction"])
    assert [float(word) for word in row.split(",")[1:]] == pytest.approx(p[0], rel=1e-4)


def check_new_client(case, out, pfl):
    later = np.resize(["train", "train", "train", "validation", "test"], SAMPLES)
    lines = case.lines
    rows = [f"{line},{word}" for line, word in zip([lines[0], *lines[-SAMPLES:]], ["use", *later], strict=True)]
    (out / "later.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    new_client(case.folder / "d", out / "later.csv", out / "new", client="later", split_column="use")
    p, y, offsets = read(out / "new")
    assert np.array_equal(y[offsets[-2] :], case.y[-SAMPLES:][4::5])
    evaluate([out / "new"], out / "e")
    with (out / "e" / "clients.csv").open(newline="", encoding="utf-8") as file:
        scored = {row["name"]: float(row[case.metric]) for row in csv.DictReader(file)}
    assert scored["later"] == pytest.approx(measure(case.task, p[offsets[-2] :], y[offsets[-2] :]), rel=1e-4)


def check_export(case, out, pfl):
    export(case.folder / "d", out / "model", client="c1")
    words = [sys.executable, out / "model" / "reader.py", out / "model", case.folder / "table.csv"]
    _, *rows = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    shown = np.array([[float(word) for word in row.split(",")[1:]] for row in rows])
    expected = predict(case.folder / "d", case.folder / "table.csv", client="c1").p
    assert shown == pytest.approx(expected, rel=1e-4, abs=1e-5)


def check_coverage(case, out, pfl):
    evaluate([case.folder / "d"], out / "x", coverage=0.8)
    known, tested = (read(case.folder / "d", split) for split in ("validation", "test"))
    ends = (0, 2) if case.task == "quantile" else (0, 0)
    covered, n = [], []
    for c in range(CLIENTS):
        (low, high, y), (new_low, new_high, label) = (
            (*(p[slice(*offsets[c : c + 2])][:, end].astype(float) for end in ends), y[slice(*offsets[c : c + 2])])
            for p, y, offsets in (known, tested)
        )
        distance = np.sort(np.maximum(low - y, y - high))
        moved = distance[int(np.ceil((len(y) + 1) * 0.8)) - 1]
        covered.append(np.mean((new_low - moved <= label) & (label <= new_high + moved)))
        n.append(len(label))
    own = json.loads((out / "x" / "metrics.json").read_text())["sets"]["methods"]["ditto"]["thresholds"]["own"]
    assert own["coverage"]["value"] == pytest.approx(np.average(covered, weights=n), rel=1e-9)


def check_tune(case, out, pfl):
    tune(
        "ditto",
        case.folder / "p",
        out / "t",
        search={"training.lr": [0.05, 1e-4]},
        **{k: v for k, v in SETTINGS.items() if k != "lr"},
    )
    made = json.loads((out / "t" / "tuning" / "manifest.json").read_text())
    assert made["request"]["metric"] == case.metric
    trials = json.loads((out / "t" / "tuning" / "trials.json").read_text())["trials"]
    by_hand = [weigh(case.task, read(out / "t" / "tuning" / trial["path"], "validation")) for trial in trials]
    assert [trial[f"validation_{case.metric}"] for trial in trials] == pytest.approx(by_hand, rel=1e-5)
    best = trials[int(np.argmin(by_hand))]["values"]["training.lr"]
    assert f"lr = {best}" in (out / "t" / "tuning" / "best.toml").read_text(encoding="utf-8")


def check_audit(case, out, pfl):
    made = audit(case.folder / "d", out / "a")
    rows = {row["attack"]: row for row in json.loads((made.path / "audit.json").read_text())["attacks"]}
    assert {*rows} == {"confidence"}
    assert 0 < rows["confidence"]["auc"] < 1
    p, y, _ = read(case.folder / "d")
    scored = attacks.score_samples({"p": p}, y, None, Labels(p.shape[1], case.task, case.fields))["confidence"]
    loss = losses(case.task, p, y) / scale(case)
    assert scored == pytest.approx(-np.log(np.maximum(loss, attacks.membership.LEAST_LOSS)), rel=1e-4, abs=1e-4)
    with pytest.raises(PflError, match=f"the task is {case.task}"):
        audit(case.folder / "d", out / "b", answers="label")


def check_track(case, out, pfl):
    whole, *single = records.read(open_artifact(case.folder / "e"))
    expected = {name: weigh(case.task, read(case.folder / name)) for name in "fd"}
    assert whole.scores[f"{case.metric}/ditto"] == pytest.approx(expected["d"], rel=1e-5)
    by_name = {record.settings["method"]: record for record in single}
    assert by_name["fedavg"].scores[case.metric] == pytest.approx(expected["f"], rel=1e-4)
    assert len(by_name["fedavg"].clients[case.metric]) == CLIENTS
    score = 1 - losses(case.task, *read(case.folder / "f", "validation")[:2]).mean() / scale(case)
    assert by_name["fedavg"].rounds[2]["validation_accuracy"] == pytest.approx(score, rel=1e-3)
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with mock.patch.object(tensorboard, "decode_picture", return_value=np.zeros((2, 2, 3), np.uint8)):
        track([case.folder / "e"], out / "tracked", to="tensorboard")
    (folder,) = (out / "tracked").glob(f"*/{by_name['fedavg'].folder}")
    written = reader.EventAccumulator(str(folder)).Reload().Scalars(f"scores/{case.metric}")
    assert written[-1].value == pytest.approx(expected["f"], rel=1e-4)


def check_sites(case, out, pfl):
    agreed = create_federation(case.folder / "f", out / "fed")
    header, *rows = case.lines
    for c in range(CLIENTS):
        own = [row for row in rows if row.startswith(f"c{c},")]
        (out / f"c{c}.csv").write_text("\n".join([header, *own]) + "\n", encoding="utf-8")
        import_data(out / f"c{c}.csv", out / f"d{c}", like=agreed)
        made = partition(out / f"d{c}", out / f"p{c}", like=agreed, client=f"c{c}")
        assert made.summary["task"]["fields"] == case.fields  # the scale is that of all clients
        check_site(made, agreed, out / f"s{c}")
    with ThreadPoolExecutor() as pool:
        sites = [pool.submit(serve_site, out / f"s{c}", out / "exchange") for c in range(CLIENTS)]
        run_federation(agreed, out / "exchange", out / "server")
    p, y, offsets = read(case.folder / "f")
    for c, site in enumerate(sites):
        predicted, label, _ = read(site.result().path)
        span = slice(*offsets[c : c + 2])
        assert np.array_equal(label, y[span])
        assert predicted == pytest.approx(p[span], rel=1e-4)


def check_update_datastore(case, out, pfl):
    embedded = build_embeddings(case, out)
    build_datastore(embedded, out / "ds", capacity=0.5)
    update_datastore(out / "ds", embedded, out / "newer", policy="concatenate")
    with h5py.File(out / "newer" / "labels.h5") as file, h5py.File(case.folder / "p" / "samples.h5") as samples:
        stored, sample, offsets = (file[name][...] for name in ("y", "sample", "offsets"))
        all_sizes = np.diff(samples["offsets"][...])[::3]
    assert np.array_equal(stored, case.y[sample])
    assert np.array_equal(np.diff(offsets), all_sizes)
    if case.task != "grades":
        run = personalize("knn-per", out / "newer", out / "knn", options={"k": 5}).path
        same = personalize("knn-per", build_datastore(embedded, out / "whole"), out / "again", options={"k": 5}).path
        assert read(run)[0] == pytest.approx(read(same)[0], rel=1e-5)


def check_sweep(case, out, pfl):
    embedded = build_embeddings(case, out)
    sweep(embedded, out / "s", capacity=[0.0, 1.0], k=[1, 5], sigma=[0.5], weight=[0.0, 0.7])
    with (out / "s" / "table.csv").open(newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == 2 * 2 * 3
    build_datastore(embedded, out / "ds")
    by_point = {(row["capacity"], row["k"], row["lambda"]): row for row in rows}
    for number, (word, options) in enumerate({"0.7": {"weight": 0.7}, "tuned": {}, "0": {"weight": 0.0}}.items()):
        how = {"k": 5, "sigma": 0.5, "cross_validate": 0, **options}
        run = personalize("knn-per", out / "ds", out / f"knn{number}", options=how).path
        row, stored = by_point["1", "5", word], read(run)
        assert float(row[case.metric]) == pytest.approx(weigh(case.task, stored), rel=1e-5)
        by_client = [
            measure(case.task, *(part[slice(*stored[2][c : c + 2])] for part in stored[:2])) for c in range(CLIENTS)
        ]
        assert float(row[f"{case.metric}_worst"]) == pytest.approx(max(by_client), rel=1e-5)
        if word != "tuned":  # stored validation predictions have the lambda that is tuned without them
            known = weigh(case.task, read(run, "validation"))
            assert float(row[f"validation_{case.metric}"]) == pytest.approx(known, rel=1e-5)
    # Without stored samples, and with lambda = 0, the global model predicts.
    assert by_point["0", "1", "0.7"][case.metric] == by_point["1", "5", "0"][case.metric]
    best = json.loads((out / "s" / "manifest.json").read_text())["summary"]["best_on_validation"]
    tuned = [row for row in rows if row["lambda"] == "tuned"]
    least = min(tuned, key=lambda row: float(row[f"validation_{case.metric}"]))
    assert {name: f"{value:g}" for name, value in best.items()} == {name: least[name] for name in best}


def check_stack(case, out, pfl):
    made = stack([case.folder / "f", case.folder / "d"], out / "s", gate=False)
    parts = np.stack([read(case.folder / name)[0][:, 0].astype(float) for name in "df"], axis=1)
    exponents = np.array([made.summary["exponents"][name] for name in ("ditto", "fedavg")])
    if case.task == "quantity":
        shift, scale = case.fields["mean"], case.fields["deviation"]
        p = ((parts - shift) / scale) @ exponents * scale + shift
    else:
        p = np.exp(np.log((parts / case.fields["mean"] + 0.01) / 1.01) @ exponents) * case.fields["mean"]
    assert read(out / "s")[0][:, 0] == pytest.approx(p, rel=1e-3)


def check_replay(case, out, pfl):
    again = replay(case.folder / "d", out / "again")
    assert [item.verdict for item in again.artifacts] == ["same"] * 3
    assert np.array_equal(read(again.artifacts[-1].path)[0], read(case.folder / "d")[0])


def check_import_predictions(case, out, pfl):
    p = read(case.folder / "f")[0]
    with h5py.File(case.folder / "f" / "predictions.h5") as file:
        names = ["client", "sample", "split", *NAMES.get(case.task, ["prediction"])]
        rows = []
        for split in ("validation", "test"):
            owner = np.repeat(np.arange(CLIENTS), np.diff(file[f"{split}/offsets"][...]))
            values = zip(owner, file[f"{split}/sample"][...], file[f"{split}/p"][...], strict=True)
            rows += [f"c{c},{sample},{split},{','.join(map(str, numbers))}" for c, sample, numbers in values]
    (out / "p.csv").write_text("\n".join([",".join(names), *rows[::-1]]) + "\n", encoding="utf-8")
    made = import_predictions(out / "p.csv", out / "theirs", like=case.folder / "p", name="theirs")
    assert read(made.path)[0] == pytest.approx(p, rel=1e-6)


def check_prototypes(case, out, pfl):
    build_datastore(build_embeddings(case, out), out / "x", prototypes=5)


def check_answers(case, out, pfl):
    predict(case.folder / "d", case.folder / "table.csv", client="c1", answers="label")


def refuse(text, *names):
    return {task: text.replace("{task}", task) for task in names or WORDS}


CELLS: dict[str, tuple[Callable[..., None], dict[str, str]]] = {
    "simulate": (check_simulate, {}),
    "import": (check_import, {}),
    "evaluate": (check_table, {}),
    "report": (check_page, {}),
    "show": (check_show, {}),
    "predict": (check_predict, {}),
    "new-client": (check_new_client, {}),
    "export": (check_export, {}),
    "evaluate --coverage": (
        check_coverage,
        refuse("--coverage is for classes and numbers, and the task is {task}", "grades"),
    ),
    "tune": (check_tune, {}),
    "audit": (check_audit, {}),
    "track": (check_track, {}),
    "site": (check_sites, {}),
    "update-datastore": (check_update_datastore, {}),
    "sweep": (
        check_sweep,
        refuse("knn-per learns classes and quantity and quantile and count, and the task is {task}", "grades"),
    ),
    "stack": (
        check_stack,
        refuse("pfl stack has no rule that pools predictions of the task {task}", "quantile", "grades"),
    ),
    "replay": (check_replay, {}),
    "import-predictions": (check_import_predictions, {}),
    "build-datastore --prototypes": (check_prototypes, refuse("--prototypes reads classes, and the task is {task}")),
    "predict --answers label": (check_answers, refuse("--answers label reveals classes alone, and the task is {task}")),
}
"""The check of each command, and the tasks that it refuses with the text of the refusal."""
WRONG = {
    "import": ("import table.csv --client who --label z --task {word} -o x", "no column 'z'"),
    "evaluate": ("evaluate d -o x --metric accuracy", "accuracy is a metric of classes, and the task is {task}"),
    "evaluate --coverage": ("evaluate d -o x --coverage 1.5", "coverage"),
    "report": ("report nowhere -o x", "nowhere does not exist"),
    "show": ("show d --plot x.gif", "x.gif"),
    "predict": ("predict d short.csv --client c1", "no column 'b'"),
    "new-client": ("new-client d bad.csv --client later --label y -o x", "is not a number"),
    "export": ("export d --client nobody -o x", "nobody"),
    "tune": ("tune ditto p -o x --metric f1", "f1 is a metric of classes, and the task is {task}"),
    "audit": ("audit d -o x --answers label", "reveals classes alone, and the task is {task}"),
    "track": ("track e --to tensorbord -o x", "tensorbord"),
    "federation create": ("federation create e -o x", "evaluation"),
    "compare": ("compare p -o x --methods fedproto", "fedproto learns classes, and the task is {task}"),
}
"""A wrong line of each command, and what its error must say."""


@pytest.mark.parametrize("task", WORDS)
@pytest.mark.parametrize("command", CELLS)
@pytest.mark.usefixtures("without_vega")
def test_a_command_follows_a_task_or_says_why_not(command, task, cases, pfl, tmp_path):
    check, refused = CELLS[command]
    case = cases(task)
    if task not in refused:
        check(case, tmp_path, pfl)
        return
    with pytest.raises(PflError) as error:
        check(case, tmp_path, pfl)
    assert refused[task] in error.value.message


@pytest.mark.parametrize("task", WORDS)
@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_line_gives_one_sentence(command, task, cases, pfl, monkeypatch):
    case = cases(task)
    monkeypatch.chdir(case.folder)
    (case.folder / "short.csv").write_text("a\n1\n", encoding="utf-8")
    (case.folder / "bad.csv").write_text("a,b,y\n1,2,3\n1,2,often\n", encoding="utf-8")
    line, words = (text.replace("{task}", task).replace("{word}", WORDS[task]) for text in WRONG[command])
    ran = pfl(*["--use", "grades.py"] * (task == "grades"), *line.split())
    assert (ran.code in (2, 3), words in ran.err) == (True, True), ran.err
    assert [text.startswith("pfl: ") for text in ran.err.splitlines()].count(True) == 1, ran.err
    assert not (case.folder / "x").exists()


def test_the_page_of_tasks_lists_every_refusal():
    page = (Path(__file__).parents[1] / "docs" / "tasks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^  \| `([^`]+)` \| ([^|]+) \|", page.partition("but for these:")[2], re.MULTILINE)
    names = {"all": {*WORDS}, "your own": {"grades"}}
    shown = {
        command: set().union(*(names.get(word.strip(" `"), {word.strip(" `")}) for word in words.split(",")))
        for command, words in rows
    }
    assert shown == {command: {*refused} for command, (_, refused) in CELLS.items() if refused}
