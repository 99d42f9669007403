"""``pfl track``: write runs of stored comparisons for experiment trackers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pflcli.artifacts import disk, locks
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.open_by_path import open_all
from pflcli.core.errors import ConflictError, InputError, PflError, UsageError
from pflcli.core.wording import counted
from pflcli.options.function import command
from pflcli.plugins.tracking import open_writer, raising_errors_of_threads, records, require_tool, write
from pflcli.plugins.tracking.options import Track


@dataclass(frozen=True)
class Tracked:
    """The folder ``path``, the numbers of runs ``written`` and ``unchanged``, and the command that shows them."""

    path: Path
    written: int
    unchanged: int
    command: str


@command(Track)
def track(asked: Track) -> Tracked:
    """Write the rounds, settings, scores and pictures of ``sources`` to the folder ``out``, for the tool ``to``.

    ``sources`` are comparisons, evaluations, predictions or backbones, and ``to`` is "tensorboard", "mlflow" or
    "wandb". A comparison gives one run for its table and one for each method and seed. Runs that ``out`` already
    contains are not written again, and changed ones are replaced; ``execution.force`` replaces all.

    Raises UsageError for an unknown tool, and for one that is not installed; InputError for damaged artifacts;
    ConflictError if ``out`` is an artifact, or contains other files in place of a run.

    >>> from pflcli import partition, personalize, track
    >>> trained = personalize("ditto", partition("writers", "runs/p", clients=6), "runs/ditto", model="mlp", rounds=2)
    >>> track(trained, "tracked", to="tensorboard").written
    1
    """
    execution, out = asked.execution, Path(asked.out)
    require_tool(asked.to)
    artifacts = [item for source in asked.sources for item in open_all(source, *records.KINDS)]
    if not artifacts:
        raise UsageError("nothing to track", "pfl track COMPARISON... --to tensorboard -o DIR")
    _require_folder(out, [artifact.path for artifact in artifacts])
    found = {record.key: record for artifact in artifacts for record in records.read(artifact)}
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with locks.acquire(out), raising_errors_of_threads(), closing(open_writer(asked.to, out)) as writer:
            stale = [record for record in found.values() if execution.force or not writer.contains(record)]
            with execution.reporter.progress("track", len(stale)) as advance:
                for record in stale:
                    write(writer, record)
                    advance(1, record.name)
    except PflError:
        raise
    except OSError as error:
        raise disk.write_error(f"cannot write {out}", out.parent, error) from None
    except Exception as error:  # each tool raises its own errors, for example for a damaged store
        reason = (str(error).strip() or type(error).__name__).partition("\n")[0]
        raise InputError(f"{asked.to} cannot write to {out}: {reason[:300]}", "choose another --out") from error
    unchanged = len(found) - len(stale)
    same = f", {unchanged} unchanged" if unchanged else ""
    execution.reporter.say(f"{counted(len(stale), 'run')} written for {asked.to}{same}: {writer.hint()}")
    return Tracked(out, len(stale), unchanged, writer.hint())


def _require_folder(out: Path, reads: list[Path]) -> None:
    """Raise ConflictError if ``out`` is not a folder for runs."""
    if (out.exists() and not out.is_dir()) or manifests.is_artifact(out) or manifests.is_artifact(out.parent):
        what = "a file" if out.is_file() else "an artifact, or inside one"
        raise ConflictError(f"{out} is {what}", "choose another --out")
    for path in reads:
        if out.resolve() == path.resolve():
            raise ConflictError(f"{out} is an input", "choose another --out")
