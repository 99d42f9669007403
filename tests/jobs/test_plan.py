"""Plans of jobs: artifacts that a job replaces, and conflicts of jobs that are not needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pflcli.artifacts.decision import Decision
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import open_artifact
from pflcli.core.errors import ConflictError
from pflcli.core.execution import Execution
from pflcli.core.reporter import NullReporter
from pflcli.workflow.jobs.graph import NOT_NEEDED, Graph, Job, Planned, plan
from pflcli.workflow.jobs.progress import OverallProgress
from pflcli.workflow.jobs.run import attempt


@pytest.mark.parametrize("conflict", [None, ConflictError("it was made by another request")])
def test_job_replaces_an_artifact_only_if_the_plan_found_a_conflict(conflict):
    """Otherwise it would replace what another process has put there since, and discard what it has begun."""
    forced = []
    job = Job("fedavg", Path("x"), lambda inputs, execution: forced.append(execution.force), ())
    planned = Planned(job, Decision.NEW, conflict=conflict)
    assert attempt(planned, Execution(), OverallProgress(NullReporter(), [job])) is None
    assert forced == [conflict is not None]


def test_plan_ignores_a_conflicting_artifact_that_no_job_needs(small, tmp_path):
    def conflict(inputs, execution):
        if not execution.force:
            raise ConflictError("it was made by another request")
        return Outcome(tmp_path / "b", "backbone", f"dry run: {Decision.REPLACE}", "0" * 64)

    def done(inputs, execution):
        return Outcome(tmp_path / "m", "predictions", Decision.UP_TO_DATE, "1" * 64)

    def new(inputs, execution):
        return Outcome(tmp_path / "n", "predictions", f"dry run: {Decision.NEW}", "2" * 64)

    backbone = Job("backbone", tmp_path / "b", conflict, (open_artifact(small.p),), is_result=False)
    finished = Job("fedavg", tmp_path / "m", done, (backbone,))
    graph = Graph.create(tmp_path, plan([backbone, finished]))
    assert [item.decision for item in graph.items] == [NOT_NEEDED, Decision.UP_TO_DATE]
    graph.require_free(Execution())
    more = plan([Job("prior", tmp_path / "n", new, (backbone,))], plan([backbone, finished]))
    with pytest.raises(ConflictError, match="another request"):
        Graph.create(tmp_path, more).require_free(Execution())


def test_plan_refuses_to_replace_a_folder_that_contains_an_input_file(tmp_path):
    job = Job("fedavg", tmp_path / "x", lambda inputs, execution: None, ())
    reading = Execution().reading(tmp_path / "x" / "weights.pt")
    done, new = (
        Graph.create(tmp_path, {job: Planned(job, decision)}) for decision in (Decision.UP_TO_DATE, Decision.NEW)
    )
    done.require_free(reading)
    new.require_free(Execution().reading(tmp_path / "weights.pt"))
    with pytest.raises(ConflictError, match=r"weights\.pt is an input inside"):
        new.require_free(reading)
