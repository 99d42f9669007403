"""Scripts that make a comparison, or several, with many processes: a Makefile, Slurm arrays or a shell script.

Each job is the command of the comparison with ``--only``; the last one is the command itself, which makes the table. A
failed run (exit code 5) does not stop the others: the last command tries it again, and reports it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pflcli.core.errors import UsageError, closest

_SLURM = r"""#!/usr/bin/env bash
# Submits one array per level, then the table: bash FILE [OPTIONS OF SBATCH], such as --time=1:00:00 --mem=4G.
# To repeat what was lost, run it again. An array has at most PFL_TASKS tasks, which share the artifacts of a level.
set -euo pipefail
after=
submit() {
  after=$(sbatch --parsable --requeue --kill-on-invalid-dep=yes ${after:+"--dependency=afterok:$after"} "$@")
  after=${after%%;*}
}
tasks() { echo "--array=0-$(($1 < ${PFL_TASKS:-1000} ? $1 - 1 : ${PFL_TASKS:-1000} - 1))"; }
"""
_ARRAY = r"""
submit --job-name=pfl-LEVEL "$(tasks COUNT)" "$@" <<'JOB'
#!/usr/bin/env bash
paths=(PATHS) only=
for ((i = SLURM_ARRAY_TASK_ID; i < COUNT; i += SLURM_ARRAY_TASK_COUNT)); do
  [ -e OUT/"${paths[i]}"/manifest.json ] || only=${only:+$only,}${paths[i]}
done
[ -z "$only" ] || COMMAND --only "$only" || [ $? -eq 5 ]
JOB
"""
_TABLE = r"""
submit --job-name=pfl-table "$@" <<'JOB'
#!/usr/bin/env bash
COMMAND
JOB
echo "job $after makes the table in "OUT
"""


@dataclass(frozen=True)
class Plan:
    """The ``jobs`` of a comparison in ``out`` by path, each with the paths that it needs, and the command's ``words``.

    ``chooses_threads`` says whether the words set the number of threads; otherwise each job uses one.
    """

    out: Path
    sources: Sequence[Path]
    jobs: Mapping[str, Sequence[str]]
    words: Sequence[str]
    chooses_threads: bool
    table: str = "comparison"
    """the path of the artifact that the command itself makes"""

    def command(self, threads: str = "", dollar: str = "$") -> str:
        """Return the command quoted for a shell, with ``dollar`` for each $ and ``threads`` unless it sets them."""
        return shlex.join(self.words).replace("$", dollar) + ("" if self.chooses_threads else threads)

    @cached_property
    def levels(self) -> list[list[str]]:
        """The paths of jobs by level; a job needs only jobs of levels before its own."""
        depth: dict[str, int] = {}

        def level(path: str) -> int:
            if path not in depth:
                depth[path] = 1 + max(map(level, self.jobs[path]), default=-1)
            return depth[path]

        return [[path for path in self.jobs if level(path) == at] for at in sorted({*map(level, self.jobs)})]


def sh(plan: Plan) -> str:
    """Return a shell script with one command per line."""
    lines = ["#!/bin/sh", "set -e"]
    for paths in plan.levels:
        lines += ["", "# Any order, or at the same time:"]
        lines += [f"{plan.command()} --only {path} || [ $? -eq 5 ]" for path in paths]
    return "\n".join([*lines, "", "# Then the table:", plan.command(), ""])


def slurm(plan: Plan) -> str:
    """Return a bash script that submits one array for each level."""
    command, out = plan.command(' --threads "${SLURM_CPUS_PER_TASK:-1}"'), shlex.quote(str(plan.out))
    script = _SLURM
    for number, paths in enumerate(plan.levels, start=1):
        values = {"LEVEL": str(number), "COUNT": str(len(paths)), "PATHS": " ".join(paths)}
        script += _substitute(_ARRAY, {**values, "OUT": out, "COMMAND": command})
    return script + _substitute(_TABLE, {"OUT": out, "COMMAND": command})


def make(plan: Plan) -> str:
    """Return a Makefile whose targets are manifests; raises UsageError for paths that make cannot handle."""

    def target(path: Path) -> str:
        if unfit := re.search(r"[^\w\s/.,@^+'\"`!{}<>&$-]|[\t\r\f\v]", str(path)):
            raise UsageError(f"make cannot name {path}, because of the {unfit[0]!r} in it", "--plan sh")
        return str(path / "manifest.json").replace("$", "$$").replace(" ", r"\ ")

    targets = {path: target(plan.out / path) for path in plan.jobs}
    sources = " ".join(map(target, plan.sources))
    table, recipe = target(plan.out / plan.table), plan.command(" --threads $(THREADS)", "$$")
    file = shlex.quote(str(plan.out / plan.table / "manifest.json")).replace("$", "$$")
    lines = ["THREADS = 1", "", f"{table}: {' '.join(targets.values()) or sources}"]
    # If a run fails, the table contains the others. Its time is set back, so that the next make tries again.
    lines += [f"\t{recipe} || {{ touch -c -t 197001020000 {file}; exit 1; }}", ""]
    for path, before in plan.jobs.items():
        needs = " ".join(targets[each] for each in before) or sources
        lines += [f"{targets[path]}: {needs}", f"\t{recipe} --only {path} || [ $$? -eq 5 ]", ""]
    # Secondary targets that are missing are not made again: methods that do not suit the data have no artifact.
    return "\n".join([*lines, f".SECONDARY: {' '.join(targets.values())}", ""])


def _substitute(text: str, values: Mapping[str, str]) -> str:
    """Replace the keys of ``values``, in one pass, so that keys inside a value are not replaced."""
    return re.sub("|".join(rf"\b{key}\b" for key in values), lambda match: values[match[0]], text)


_FORMS: dict[str, Callable[[Plan], str]] = {"make": make, "slurm": slurm, "sh": sh}
FORMS = tuple(_FORMS)


def script(form: str, plan: Plan) -> str:
    """Return the script in a form; raises UsageError for an unknown form, and for control characters in the words."""
    if form not in _FORMS:
        raise UsageError(f"there is no --plan {form}", closest(form, FORMS))
    for word in plan.words:
        if re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", word):
            raise UsageError(f"a script cannot contain {word!r}", "choose names without control characters")
    return _FORMS[form](plan)
