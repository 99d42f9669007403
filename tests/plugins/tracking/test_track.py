"""``pfl track`` sends the contents of artifacts to trackers, once."""

from __future__ import annotations

import csv
import json
import logging
import os
import resource
import shutil
import sys
import threading
import time
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest

from pflcli import Callback, Federation, Tracker, simulate
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.compare import compare
from pflcli.core.errors import ConflictError, InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.plugins import tracking
from pflcli.plugins.tracking import records
from pflcli.plugins.tracking.track import track

ROUNDS = 3


@pytest.fixture(scope="module")
def comparison_folder(small, tmp_path_factory):
    """The folder of a comparison of two methods under two seeds."""
    out = tmp_path_factory.mktemp("track") / "writers"
    settings = {"model": "logistic", "rounds": ROUNDS, "eval_every": 1}
    compare([small.p], out, methods=["fedavg", "ditto"], seeds=[0, 1], settings=settings, references=False)
    return out


def read_clients(compared, method, seed):
    rows = csv.DictReader((compared / "comparison" / "clients.csv").open())
    return [row for row in rows if (row["method"], row["seed"]) == (method, str(seed))]


def test_records_of_a_comparison_include_its_runs(comparison_folder):
    whole, *single = records.read(open_artifact(comparison_folder / "comparison"))
    assert [record.name for record in [whole, *single]] == [
        "comparison", *(f"{method}, seed {seed}" for method in ("ditto", "fedavg") for seed in (0, 1))
    ]  # fmt: skip
    assert {record.group for record in [whole, *single]} == {"writers"}
    metrics = json.loads((comparison_folder / "comparison" / "metrics.json").read_text())["methods"]
    for row in metrics:
        assert whole.scores[f"accuracy/{row['label']}"] == row["metrics"]["accuracy"]["value"]
    assert whole.pictures["accuracy.png"] == (comparison_folder / "comparison" / "accuracy.png").read_bytes()
    assert whole.texts["table"] == (comparison_folder / "comparison" / "table.md").read_text()
    assert "pfl compare" in whole.texts["commands"]
    assert whole.settings["settings.model"] == "logistic"
    assert whole.settings["seeds"] == "[0, 1]"


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_record_of_a_run_has_rounds_settings_and_scores(comparison_folder, method):
    run = next(
        one for one in records.read(open_artifact(comparison_folder / "comparison")) if one.name == f"{method}, seed 1"
    )
    stored = comparison_folder / "seed-1" / ("backbone" if method == "fedavg" else method)
    rows = list(csv.DictReader((stored / "rounds.csv").open()))
    assert sorted(run.rounds) == [1, 2, 3]
    for row in rows:
        assert run.rounds[int(row["round"])]["loss"] == float(row["loss"])
        assert run.rounds[int(row["round"])]["bytes_up"] == float(row["bytes_up"])
    clients = read_clients(comparison_folder, method, 1)
    accuracy = np.asarray([float(row["accuracy"]) for row in clients])
    counts = np.asarray([float(row["n_test"]) for row in clients])
    assert run.clients["accuracy"] == accuracy.tolist()
    assert run.scores["accuracy"] == pytest.approx((accuracy * counts).sum() / counts.sum())
    assert run.scores["accuracy_mean"] == pytest.approx(accuracy.mean())
    assert run.scores["worst"] == accuracy.min()
    assert run.settings["method"] == method
    assert run.settings["seed"] == 1
    assert run.settings["settings.rounds"] == ROUNDS
    assert run.settings["dataset"] == "writers"


def test_scores_of_runs_agree_with_the_table(comparison_folder):
    whole, *single = records.read(open_artifact(comparison_folder / "comparison"))
    for name in ("accuracy", "accuracy_mean", "bottom_decile", "worst"):
        values = [run.scores[name] for run in single if run.settings["method"] == "ditto"]
        assert whole.scores[f"{name}/ditto"] == pytest.approx(np.mean(values), abs=1e-6)


def test_records_of_deleted_runs_keep_their_scores(comparison_folder, tmp_path):
    before = records.read(open_artifact(comparison_folder / "comparison"))
    shutil.copytree(comparison_folder, tmp_path / "writers")
    shutil.rmtree(tmp_path / "writers" / "seed-1" / "ditto")
    after = records.read(open_artifact(tmp_path / "writers" / "comparison"))
    old, new = (next(run for run in found if run.name == "ditto, seed 1") for found in (before, after))
    assert (new.key, new.scores, new.clients) == (old.key, old.scores, old.clients)
    assert (new.rounds, new.settings) == ({}, {"method": "ditto", "seed": 1})
    assert [run.name for run in after] == [run.name for run in before]


def test_records_of_single_runs_have_rounds_and_no_scores(small):
    (run,) = records.read(open_artifact(small.b))
    assert run.rounds
    assert run.settings["method"] == "fedavg"
    assert not run.scores
    assert len(records.read(open_artifact(small.knn))) == 1


class Memory:
    """A writer that keeps what it is given."""

    def __init__(self):
        self.runs, self.written = {}, []

    def contains(self, record):
        return self.runs.get(record.key) == record.digest

    def begin(self, record):
        self.written.append(record.name)
        self.runs[record.key] = record.digest
        self.rounds = {}
        return self

    def log(self, rounds):
        self.rounds |= rounds

    def finish(self, record):
        self.runs[record.key] = record.digest

    def close(self):
        self.closed = True

    def hint(self):
        return "look"


@pytest.fixture
def memory_writer(monkeypatch):
    """Write to memory instead of for a tool."""
    writer = Memory()
    monkeypatch.setattr("pflcli.plugins.tracking.track.open_writer", lambda tool, out: writer)
    monkeypatch.setattr("pflcli.plugins.tracking.track.require_tool", lambda tool: None)
    return writer


def test_track_writes_only_records_that_are_new(comparison_folder, small, tmp_path, memory_writer):
    first = track([comparison_folder], tmp_path / "deep" / "out", to="tensorboard")
    assert (first.written, first.unchanged, len(memory_writer.written)) == (5, 0, 5)
    again = track([comparison_folder, comparison_folder / "comparison"], tmp_path / "deep" / "out", to="tensorboard")
    assert (again.written, again.unchanged, len(memory_writer.written)) == (0, 5, 5)
    more = track([comparison_folder, small.ev], tmp_path / "deep" / "out", to="tensorboard")
    assert more.unchanged == 5
    assert more.written == len(memory_writer.written) - 5 > 0
    forced = track([comparison_folder], tmp_path / "deep" / "out", to="tensorboard", execution=Execution(force=True))
    assert (forced.written, forced.unchanged) == (5, 0)
    assert memory_writer.closed


def test_track_prints_its_folder_and_the_command_to_view_it(comparison_folder, tmp_path, memory_writer, pfl):
    ran = pfl("track", comparison_folder, "--to", "mlflow", "-o", tmp_path / "out")
    assert (ran.code, ran.out) == (0, f"{tmp_path / 'out'}\n")
    assert "5 runs written for mlflow: look" in ran.err
    ran = pfl("track", comparison_folder, "--to", "mlflow", "-o", tmp_path / "out", "--json")
    assert json.loads(ran.out) == {"path": str(tmp_path / "out"), "written": 0, "unchanged": 5, "command": "look"}


def test_track_refuses_wrong_inputs_and_outputs(comparison_folder, small, tmp_path, memory_writer):
    with pytest.raises(InputError, match="does not exist"):
        track([tmp_path / "nowhere"], tmp_path / "out", to="tensorboard")
    with pytest.raises(InputError, match="partition"):
        track([small.p], tmp_path / "out", to="tensorboard")
    with pytest.raises(ConflictError, match="is an artifact"):
        track([comparison_folder], comparison_folder / "comparison", to="tensorboard")
    with pytest.raises(ConflictError, match="or inside one"):
        track([comparison_folder], comparison_folder / "comparison" / "tracked", to="tensorboard")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConflictError, match="is a file"):
        track([comparison_folder], tmp_path / "file", to="tensorboard")
    assert not (tmp_path / "out").exists()


def test_track_prints_one_line_when_a_tool_fails(comparison_folder, tmp_path, memory_writer, monkeypatch, pfl):
    def fail(record):
        raise RuntimeError("the store is damaged\nat line 3")

    monkeypatch.setattr(memory_writer, "begin", fail)
    ran = pfl("track", comparison_folder, "--to", "mlflow", "-o", tmp_path / "out")
    assert ran.code == 3
    assert f"pfl: mlflow cannot write to {tmp_path / 'out'}: the store is damaged\n" in ran.err
    assert memory_writer.closed


def test_tracker_callback_writes_rounds_while_a_simulation_runs(tmp_path, memory_writer, monkeypatch):
    monkeypatch.setattr("pflcli.plugins.tracking.live.open_writer", lambda tool, out: memory_writer)
    monkeypatch.setattr("pflcli.plugins.tracking.live.require_tool", lambda tool: None)
    x, client = np.random.default_rng(0).normal(size=(60, 3)), np.repeat([0, 1, 2], 20)
    federation, seen = Federation.from_arrays(x, (x[:, 0] > 0).astype(int), client), []

    class Look(Callback):
        def after_round(self, run, progress):
            seen.append([*memory_writer.rounds])

    tracker = Tracker(tmp_path / "out", name="mine")
    result = simulate("fedavg", federation, model="logistic", rounds=3, eval_every=1, callbacks=[tracker, Look()])
    assert seen == [[1], [1, 2], [1, 2, 3]]
    assert memory_writer.written == ["mine"]
    assert memory_writer.closed
    assert [row["loss"] for row in memory_writer.rounds.values()] == result.rounds["loss"].tolist()
    assert memory_writer.rounds[2]["validation_accuracy"] == result.rounds["validation_accuracy"][2]


def test_track_names_unknown_and_missing_tools(comparison_folder, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="unknown --to 'tensorbord'") as caught:
        track([comparison_folder], tmp_path / "out", to="tensorbord")
    assert caught.value.fix == ("did you mean 'tensorboard'?",)
    for tool in tracking.TOOLS:
        monkeypatch.setitem(sys.modules, tool, None)
        with pytest.raises(UsageError, match=f"--to {tool} needs the package {tool}, which is not installed") as caught:
            track([comparison_folder], tmp_path / "out", to=tool)
        assert caught.value.fix == (f"pip install 'pflcli[{tool}]'",)
    assert not (tmp_path / "out").exists()


# The tools themselves


def test_track_writes_every_run_once_for_tensorboard(comparison_folder, tmp_path):
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
    )
    for _ in range(2):
        result = track([comparison_folder], tmp_path / "out", to="tensorboard", execution=Execution(force=True))
    assert result.written == 5
    assert track([comparison_folder], tmp_path / "out", to="tensorboard").written == 0
    for record in records.read(open_artifact(comparison_folder / "comparison")):
        events = reader.EventAccumulator(str(tmp_path / "out" / "writers" / record.folder)).Reload()
        tags = events.Tags()
        for number, row in record.rounds.items():
            for name, value in row.items():
                points = {point.step: point.value for point in events.Scalars(f"rounds/{name}")}
                assert len(events.Scalars(f"rounds/{name}")) == len(points)  # no step twice
                assert points[number] == pytest.approx(value, rel=1e-6)
        for name, value in record.scores.items():
            assert events.Scalars(f"scores/{name}")[-1].value == pytest.approx(value, rel=1e-6)
        for name, values in record.clients.items():
            (drawn,) = events.Histograms(f"clients/{name}")
            assert drawn.histogram_value.num == len(values)
        assert tags["images"] == sorted(record.pictures)
        assert "settings/text_summary" in tags["tensors"]


def test_interrupted_tensorboard_run_is_written_again(comparison_folder, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    out = tmp_path / "out"
    track([comparison_folder], out, to="tensorboard")
    run = next((out / "writers").glob("ditto*"))
    mark = json.loads((run / "pfl.json").read_text())
    (run / "pfl.json").write_text(json.dumps({**mark, "content": ""}))
    files = len(list(run.iterdir()))
    result = track([comparison_folder], out, to="tensorboard")
    assert (result.written, len(list(run.iterdir()))) == (1, files)
    (run / "pfl.json").unlink()
    with pytest.raises(ConflictError, match="pfl track did not write it"):
        track([comparison_folder], out, to="tensorboard")


@pytest.mark.parametrize("tool", ["tensorboard", "mlflow", "wandb"])
def test_run_tracked_again_in_a_comparison_moves_to_its_group(comparison_folder, tmp_path, tool):
    pytest.importorskip(tool, reason=f"{tool} is not installed")
    out = tmp_path / "out"
    track([comparison_folder / "seed-0" / "ditto", comparison_folder / "seed-0" / "backbone"], out, to=tool)
    assert track([comparison_folder], out, to=tool).written == 5
    if tool == "tensorboard":
        assert len(list(out.glob("*/ditto*-seed-0-*"))) == 1
        assert not list(out.glob("seed-0/ditto*"))
    elif tool == "wandb":
        assert len(list((out / "wandb").glob("offline-run-*"))) == 6
    else:
        import mlflow

        client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{out / 'mlflow.db'}")
        experiments = [each.experiment_id for each in client.search_experiments()]
        assert len(client.search_runs(experiments)) == 6


def test_track_writes_every_run_once_for_mlflow(comparison_folder, tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    out = tmp_path / "out"
    track([comparison_folder], out, to="mlflow")
    assert track([comparison_folder], out, to="mlflow").written == 0
    assert track([comparison_folder], out, to="mlflow", execution=Execution(force=True)).written == 5
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{out / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("writers")
    shown = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert len(client.search_runs([experiment.experiment_id])) == 5
    for record in records.read(open_artifact(comparison_folder / "comparison")):
        run = shown[record.name]
        assert run.info.status == "FINISHED"
        for name, value in record.settings.items():
            assert run.data.params[name] == str(value)
        for name, value in record.scores.items():
            assert run.data.metrics[f"scores/{name}"] == pytest.approx(value)
        for name in {name for row in record.rounds.values() for name in row}:
            history = client.get_metric_history(run.info.run_id, name)
            assert {point.step: point.value for point in history} == {
                number: row[name] for number, row in record.rounds.items() if name in row
            }
        files = {item.path for item in client.list_artifacts(run.info.run_id)}
        assert files == {*record.pictures, *(f"{name}.md" for name in record.texts)} | (
            {"clients.csv"} if record.clients else set()
        )


def test_track_for_mlflow_refuses_a_folder_with_special_characters(comparison_folder, tmp_path):
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    with pytest.raises(UsageError, match=r"no store in a folder with \? or %"):
        track([comparison_folder], tmp_path / "a?b", to="mlflow")
    assert not list(tmp_path.glob("a*"))


def test_track_writes_every_run_once_for_wandb(comparison_folder, tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed")
    out = tmp_path / "out"
    track([comparison_folder], out, to="wandb")
    assert track([comparison_folder], out, to="wandb").written == 0
    shutil.rmtree(next((out / "wandb").glob("offline-run-*")))
    assert track([comparison_folder], out, to="wandb").written == 1
    for record in records.read(open_artifact(comparison_folder / "comparison")):
        (folder,) = (out / "wandb").glob(f"offline-run-*-{record.key[:16]}")
        (file,) = folder.glob("*.wandb")
        content = file.read_bytes()
        assert all(f"scores/{name}".encode() in content for name in record.scores)
        assert (b"rounds/loss" in content) == bool(record.rounds)
        assert len(list(folder.rglob("*.png"))) == len(record.pictures)


@contextmanager
def limit_file_size(size):
    """Let no file of this process become larger than so many bytes, as a quota does."""
    before, writes = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    sys.dont_write_bytecode = True  # what is imported meanwhile would leave compiled modules that are cut off
    try:
        with mock.patch.dict(os.environ, PYTHONDONTWRITEBYTECODE="1"):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = writes


@pytest.mark.parametrize(
    ("tool", "size"), [("tensorboard", 1), ("tensorboard", 1000), ("tensorboard", 8000), ("mlflow", 1000), ("wandb", 1)]
)
def test_full_disk_is_one_error_with_every_tracking_tool(comparison_folder, tmp_path, pfl, tool, size):
    pytest.importorskip(tool, reason=f"{tool} is not installed")
    line = ("track", comparison_folder, "--to", tool, "-o", tmp_path / "out")
    with limit_file_size(size):
        ran = pfl(*line)
    assert (ran.code, ran.err.count("pfl: "), "Traceback" in ran.err) == (3, 1, False), ran.err
    assert str(tmp_path / "out") in ran.err
    if tool == "tensorboard":
        assert (pfl(*line).code, track([comparison_folder], tmp_path / "out", to=tool).written) == (0, 0)


def test_errors_in_threads_of_a_tool_are_raised_and_not_printed(capsys):
    def fail():
        time.sleep(0.05)
        raise OSError("no room")

    hook, prints = threading.excepthook, logging.raiseExceptions
    with pytest.raises(OSError, match="no room"), tracking.raising_errors_of_threads():
        threading.Thread(target=fail).start()
    with pytest.raises(ZeroDivisionError), tracking.raising_errors_of_threads():
        print(threading.Thread(target=fail).start() or 1 / 0)
    assert (threading.excepthook, logging.raiseExceptions) == (hook, prints)
    assert capsys.readouterr().err == ""
