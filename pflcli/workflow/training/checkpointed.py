"""Play the rounds of a run in an artifact: resume it, show its progress, and write checkpoints.

``train-global`` and ``personalize`` share it. A round is a transaction: an interruption or a failure restores the
state after the last complete round.
"""

from __future__ import annotations

from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core.execution import Execution
from pflcli.core.federation.run import Run
from pflcli.core.methods import Method
from pflcli.core.reporter import report_within
from pflcli.core.simulation import loop
from pflcli.core.simulation.callbacks import ProgressBar
from pflcli.core.simulation.progress import Progress, find_best
from pflcli.workflow.training import more_rounds
from pflcli.workflow.training.checkpoint import Checkpoints, unpack


def run_rounds(
    run: Run,
    name: str,
    method: Method,
    checkpoints: Checkpoints,
    execution: Execution,
    *,
    shared: bool = False,
) -> None:
    """Play the remaining rounds of a method, if it has any, with a progress bar and checkpoints.

    With ``shared``, only the global model is needed, and the best round is chosen by its score.
    """
    if not method.has_rounds:
        return
    progress, total, say = checkpoints.progress, run.settings.rounds, execution.reporter.say
    with (
        report_within(execution.reporter, run.engine, name, total, len(progress.rows)) as advance,
        checkpoints.on_interruption(),
    ):
        loop.run_rounds(run, name, method, progress, [ProgressBar(advance), checkpoints], shared=shared)
    by, score = run.settings.compares_rounds_by, run.settings.compares_rounds_by or run.task.score
    if run.settings.patience and find_best(progress.rows, by, shared=shared) is None:
        say(f"{name}: --patience {run.settings.patience} has no effect: no round has a validation {score}")
    elif run.settings.patience and len(progress.rows) < total:
        why = f"{score} had not {'risen' if by is None else 'improved'} for --patience rounds"
        if run.settings.patience == "flat":
            why = f"twice as many rounds would gain less than half a point of {run.task.score}"
        say(f"{name}: stopped after round {len(progress.rows)}: {why}")
    if progress.best is not None:
        say(f"{name}: {progress.best.describe()} ({progress.best.score:.4f})")
    elif run.settings.report == "best":
        say(f"{name}: no round has a validation {score}; the last one is reported")


def resume(
    run: Run, name: str, method: Method, work: ArtifactWriter, execution: Execution, continued: Artifact | None = None
) -> Progress:
    """Return the progress of an unfinished run of this request, else of the run ``continued``, else of a new run."""
    saved = work.read_checkpoint()
    if saved is None and continued is None:
        return loop.set_up(run, name, method)
    if saved is not None:
        progress, run.traffic, mode = unpack(saved, work.checkpoint, run)
    else:
        assert continued is not None
        progress, mode = more_rounds.restore(continued, run, method), continued.manifest.made["engine"]
    if run.privacy is not None and progress.rows:
        run.privacy.resume(len(progress.rows) - 1, progress.rows[-1])
    if mode != run.engine.mode:
        # The engine's modes agree only up to rounding: a resumed run keeps its mode, so that it gives the same bytes.
        run.engine.mode = mode
        execution.reporter.say(f"keeping the engine mode {mode}, in which this run began")
    if progress.predicted_clients:
        execution.reporter.say(f"resuming after {progress.predicted_clients} of {len(run.clients)} clients")
    else:
        word = "continuing" if saved is None else "resuming"
        execution.reporter.say(f"{word} after round {len(progress.rows)} of {run.settings.rounds}")
    return progress


def predict_all(run: Run, name: str, method: Method, checkpoints: Checkpoints, execution: Execution) -> None:
    """Predict for all clients that have not predicted yet, and add the predictions to the progress."""
    progress = checkpoints.progress
    with (
        report_within(execution.reporter, run.engine, name, len(run.clients), progress.predicted_clients) as advance,
        checkpoints.on_interruption(),
    ):
        loop.predict_all(run, name, method, progress, [ProgressBar(advance), checkpoints])
