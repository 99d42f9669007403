"""A local store of MLflow: ``OUT/mlflow.db`` and files in ``OUT/artifacts``."""

from __future__ import annotations

import logging
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pflcli.artifacts import csv_file
from pflcli.core.errors import UsageError
from pflcli.plugins.tracking import Record, decode_picture, file_name

_KEY, _CONTENT = "pfl.fingerprint", "pfl.content"
_MAX_VALUES_PER_CALL = 100
"""Values per call: MLflow accepts at most 100 parameters, and 1,000 metrics."""
_MAX_PARAMETER_LENGTH = 5000
"""Characters of a parameter; MLflow accepts 6,000."""


def open_writer(out: Path) -> MLflow:
    """Return the writer for a folder."""
    import mlflow

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    if any(sign in str(out.absolute()) for sign in "?%"):  # they have another meaning in the address of a database
        raise UsageError(f"MLflow has no store in a folder with ? or % in its path: {out}", "choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    return MLflow(out, mlflow.MlflowClient(tracking_uri=_address(out)))


def _address(out: Path) -> str:
    return f"sqlite:///{out.absolute() / 'mlflow.db'}"


@dataclass(frozen=True)
class MLflow:
    """The folder ``out`` and a client of the store in it."""

    out: Path
    client: Any

    def contains(self, record: Record) -> bool:
        """Return whether this run was written completely, with the same content."""
        found = self._find(record)
        return len(found) == 1 and found[0].info.status == "FINISHED" and found[0].data.tags[_CONTENT] == record.digest

    def begin(self, record: Record) -> _Run:
        """Begin a run, in place of an earlier or unfinished one with the same fingerprint."""
        for old in self._find(record):
            self.client.delete_run(old.info.run_id)
        run = self.client.create_run(self._experiment(record.group), tags={_KEY: record.key}, run_name=record.name)
        return _Run(self.client, run.info.run_id)

    def close(self) -> None:
        """Do nothing: the store is written at once."""

    def hint(self) -> str:
        """Return the command that shows the runs."""
        return f"mlflow ui --backend-store-uri {shlex.quote(_address(self.out))}"

    def _find(self, record: Record) -> list[Any]:
        """Return the runs with the fingerprint of a record, in all experiments."""
        experiments = [experiment.experiment_id for experiment in self.client.search_experiments()]
        return list(self.client.search_runs(experiments, f"tags.`{_KEY}` = '{record.key}'"))

    def _experiment(self, group: str) -> str:
        known = self.client.get_experiment_by_name(group)
        if known is not None:
            return str(known.experiment_id)
        place = (self.out / "artifacts" / file_name(group)).absolute().as_uri()
        return str(self.client.create_experiment(group, artifact_location=place))


@dataclass(frozen=True)
class _Run:
    """A run of the store of ``client`` with the number ``run``."""

    client: Any
    run: str

    def log(self, rounds: Mapping[int, Mapping[str, float]]) -> None:
        """Write measurements by round."""
        self._log_metrics([(name, value, step) for step, row in rounds.items() for name, value in row.items()])

    def _log_metrics(self, values: Sequence[tuple[str, float, int]]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._log_batches("metrics", [Metric(_key(name), value, now, step) for name, value, step in values])

    def _log_batches(self, kind: str, items: Sequence[Any]) -> None:
        for first in range(0, len(items), _MAX_VALUES_PER_CALL):
            self.client.log_batch(self.run, **{kind: items[first : first + _MAX_VALUES_PER_CALL]})

    def finish(self, record: Record) -> None:
        """Write everything but the rounds, and mark the run as complete."""
        from mlflow.entities import Param

        run = self.run
        self._log_metrics([(f"scores/{name}", value, record.last_round) for name, value in record.scores.items()])
        params = [Param(_key(name), str(value)[:_MAX_PARAMETER_LENGTH]) for name, value in record.settings.items()]
        self._log_batches("params", params)
        for name, content in record.pictures.items():
            self.client.log_image(run, decode_picture(content), name)
        for name, text in record.texts.items():
            self.client.log_text(run, text, f"{name}.md")
        if record.clients:
            scores = ((name, value) for name, values in record.clients.items() for value in values)
            self.client.log_text(run, csv_file.encode(["metric", "score"], scores).decode(), "clients.csv")
        self.client.set_tag(run, _CONTENT, record.digest)
        self.client.set_terminated(run, "FINISHED")

    def close(self) -> None:
        """Do nothing: the store is written at once."""


def _key(name: str) -> str:
    """Return a name with the signs that MLflow accepts."""
    return re.sub(r"[^\w\-. /:]", "_", name)
