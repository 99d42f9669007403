"""``pfl verify``: judge the claims in a file by comparisons, which are made or reused."""

from __future__ import annotations

import glob
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pflcli.artifacts import csv_file
from pflcli.artifacts import initial_weights as initial
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.decision import Decision, decide, require_folder, require_outside, require_place
from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.make import Built, Outcome, make
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import Artifact, ancestor, follow, open_artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.commands.compare import compare
from pflcli.commands.partition import partition
from pflcli.core import config, sources
from pflcli.core.errors import UsageError, closest
from pflcli.core.execution import Execution
from pflcli.core.foreign import size
from pflcli.core.reporter import SILENT, NullReporter
from pflcli.core.settings import Settings
from pflcli.core.wording import counted, duration
from pflcli.evaluation import stored_scores, summary
from pflcli.evaluation.metrics.looks import Looks
from pflcli.options.declaration import as_path
from pflcli.options.function import command
from pflcli.plugins.claims import claims_file, doubts, imported, presentation
from pflcli.plugins.claims import kind as verdicts
from pflcli.plugins.claims.claims_file import SIZES, Claim, ClaimsFile
from pflcli.plugins.claims.comparisons import Cell, PlannedComparison, plan
from pflcli.plugins.claims.judge import SPLIT, Runs, judge
from pflcli.plugins.claims.kind import CONFIRMED, UNDECIDED
from pflcli.plugins.claims.options import Verify
from pflcli.workflow.comparison.request import IncompleteError
from pflcli.workflow.comparison.until_decided import add_seeds, keep_looks
from pflcli.workflow.comparison.variants import resolve_variants

NAME = "verdicts"
"""The folder of the artifact inside ``out``; beside it is a folder per comparison."""
TABLE = "comparison"
AFTER = "after its partitions"
"""The decision for a comparison whose partitions do not exist yet."""


class UnconfirmedError(IncompleteError):
    """With ``strict``: at least one claim is not confirmed; ``outcome`` are the verdicts."""


@command(Verify)
def verify(asked: Verify) -> Outcome:
    """Make the comparisons that the ``claims`` in a file need, each in a subfolder of ``out``, and judge the claims.

    The verdicts are the artifact ``out/verdicts``. Artifacts that are up to date are not made again, and an interrupted
    run resumes. ``weights`` are for the experiments that start from given weights. ``only`` are names of claims; those
    that ``out/verdicts`` has are judged again, as long as the file states them as before. Paths in ``only`` make these
    artifacts alone. A dry run lists the decision for each partition and comparison as ``summary["plan"]``, and those
    still to be made, with what they need, as ``summary["jobs"]``. With a reporter, it also estimates the costs of the
    comparisons whose partitions exist, as ``summary["needs"]``.

    Raises UsageError for a file with unknown keys, names or values; InputError for data that are missing;
    IncompleteError, with the verdicts, if runs fail that a claim needs; with ``strict``, UnconfirmedError, also with
    the verdicts, unless all claims are confirmed.

    >>> from pathlib import Path
    >>> from pflcli import verify
    >>> _ = Path("claims.toml").write_text('''
    ... [experiments.writers]
    ... dataset = "writers"
    ... partition = { clients = 6 }
    ... training = { model = "logistic", rounds = 1 }
    ... [claims.personal]
    ... says = "Local models are better than the global one"
    ... on = ["writers"]
    ... method = "local"
    ... direction = "higher"
    ... against = ["fedavg"]
    ... seeds = 1
    ... ''')
    >>> verify("claims.toml", "runs/claims").kind
    'verdicts'
    """
    if asked.until_decided is None:
        return _verify(asked)
    if any("/" in word for word in asked.only or ()):
        raise UsageError(
            "--until-decided looks at the verdicts, which paths in --only do not make", "leave out one of them"
        )
    outcome = add_seeds(asked, sorted(asked.seeds or ()), asked.until_decided, _verify, _look)
    return outcome if asked.execution.dry_run else _require_confirmed(outcome, asked)


def _verify(asked: Verify) -> Outcome:
    verification = Verification.read(asked)
    if asked.execution.dry_run:
        return verification.preview()
    paths = [word for word in asked.only or () if "/" in word]
    if paths:
        return verification.make_parts(paths)
    outcome = verification.make()
    return outcome if asked.until_decided is not None else _require_confirmed(outcome, asked)


def _look(outcome: Outcome) -> tuple[bool, str]:
    """Return whether all claims are decided, and say so."""
    judged = verdicts.read(open_artifact(outcome.path))
    open_claims = [name for name, claim in judged.items() if claim["verdict"] == UNDECIDED]
    return not open_claims, f"{', '.join(open_claims)} undecided" if open_claims else "all claims are decided"


def _require_confirmed(outcome: Outcome, asked: Verify) -> Outcome:
    """Return the verdicts; with ``strict``, raises UnconfirmedError unless all claims are confirmed."""
    judged = verdicts.read(open_artifact(outcome.path)) if asked.strict else {}
    missed = [f"{name}: {claim['verdict']}" for name, claim in judged.items() if claim["verdict"] != CONFIRMED]
    if missed:
        raise UnconfirmedError(outcome, f"{len(missed)} of {counted(len(judged), 'claim')} not confirmed", *missed)
    return outcome


@dataclass(frozen=True)
class Verification:
    """The claims to judge, and what decides them."""

    asked: Verify
    file: ClaimsFile
    names: Sequence[str]
    """the names of the claims to judge"""
    comparisons: Mapping[str, PlannedComparison]
    cells: Mapping[str, Sequence[Cell]]
    looks: list[int] | None = None
    """the first and the largest number of seeds with a look, with ``until_decided``"""

    @classmethod
    def read(cls, asked: Verify) -> Verification:
        """Read the file of claims, and plan the comparisons; raises UsageError for names that it does not have."""
        path, out = Path(asked.claims), Path(asked.out)
        require_folder(out)
        weights = None if asked.weights is None else as_path(asked.weights)
        asked = replace(asked, execution=asked.execution.reading(path, asked.root, weights))
        # Before the comparisons, which may take long: the verdicts can be written.
        require_outside(out / NAME, asked.execution.reads)
        old = manifests.read(out / NAME) if manifests.is_artifact(out / NAME) else None
        is_verdicts = old is not None and old.kind == NAME
        spec = ArtifactSpec(NAME, {})
        require_place(out / NAME, spec)
        decide(out / NAME, spec, force=asked.execution.force or is_verdicts)
        file = claims_file.read(path, SIZES[asked.paper])
        if asked.seeds is not None and (
            not asked.seeds or len({*asked.seeds}) < len(asked.seeds) or min(asked.seeds) < 0
        ):
            raise UsageError(
                f"--seeds {','.join(map(str, asked.seeds))} is not a list of different numbers from 0 up",
                "--seeds 0,1,2",
            )
        only = [word for word in asked.only or () if "/" not in word]
        if asked.only is not None and not asked.only:
            raise UsageError("--only names no claim", closest("", file.claims))
        for name in only:
            if name not in file.claims:
                raise UsageError(f"{path} has no claim '{name}'", closest(name, file.claims))
        kept = old.request.get("claims", {}) if old is not None and is_verdicts else {}
        names = [
            name
            for name, claim in file.claims.items()
            if not only or name in only or kept.get(name) == _recorded(claim)
        ]
        comparisons, cells = plan(file, names, asked.seeds)
        started = [name for name, comparison in comparisons.items() if comparison.experiment.weights]
        if started and weights is None:
            raise UsageError(
                f"[experiments.{started[0].partition('@')[0]}] starts from given weights", "--weights FILE"
            )
        if weights is not None and not started:
            raise UsageError(
                "--weights: no experiment of these claims starts from given weights",
                "in the table of the experiment: weights = true",
            )
        if asked.weights is not None:
            asked = replace(asked, weights=initial.read(asked.weights))
        for comparison in comparisons.values():  # before the first one runs, which may take long
            if not comparison.methods:
                raise UsageError(f"no claim on {comparison.name} is about a method of pfl", 'against = ["fedavg"]')
            training = config.build(Settings, comparison.experiment.training, comparison.name)
            resolve_variants([*comparison.methods], comparison.methods, training)
        drawn = Counter[str]()
        for comparison in comparisons.values():
            drawn[comparison.group] += len(comparison.seeds)
        earlier = old.request if old is not None and is_verdicts and not asked.execution.force else {}
        looks = keep_looks(earlier.get("looks"), asked.until_decided, max(drawn.values()), out / NAME)
        return cls(asked, file, names, comparisons, cells, looks)

    @property
    def out(self) -> Path:
        """The folder of all artifacts."""
        return Path(self.asked.out)

    def preview(self) -> Outcome:
        """Return what a dry run tells: the decision for each partition and comparison, and what is still to be made."""
        rows, jobs, needs = list[dict[str, Any]](), list[dict[str, Any]](), dict[str, Mapping[str, float]]()
        reporter = self.asked.execution.reporter
        execution = replace(self.asked.execution, reporter=SILENT)
        # A dry run estimates costs unless its reporter is SILENT; what else it says is in the rows.
        estimating = replace(execution, reporter=SILENT if reporter is SILENT else NullReporter())
        for name, comparison in self.comparisons.items():
            made = [self._partition(comparison, seed, execution) for seed in comparison.seeds]
            paths = [f"{name}/partition-{seed}" for seed in comparison.seeds]
            rows += [_row(path, outcome.decision) for path, outcome in zip(paths, made, strict=True)]
            missing = [
                path for path, outcome in zip(paths, made, strict=True) if outcome.decision != Decision.UP_TO_DATE
            ]
            jobs += [{"path": path, "needs": []} for path in missing]
            own: list[dict[str, Any]] = []
            if missing:
                decision = AFTER
            else:
                outcome = self._compare(comparison, estimating)
                decision = outcome.decision
                if "needs" in outcome.summary:
                    needs[name] = outcome.summary["needs"]
                listed = outcome.summary.get("jobs", [])
                own = [
                    {"path": f"{name}/{job['path']}", "needs": [f"{name}/{need}" for need in job["needs"]]}
                    for job in listed
                ]
                rows += [
                    _row(f"{name}/{Path(step['path']).relative_to(self.out / name)}", step["decision"])
                    for step in outcome.summary.get("plan", [])
                ]
            rows.append(_row(f"{name}/{TABLE}", decision))
            if decision != Decision.UP_TO_DATE:
                jobs += [*own, {"path": f"{name}/{TABLE}", "needs": [*missing, *(job["path"] for job in own)]}]
        for name, costs in needs.items():
            reporter.say(f"{name}: {_describe_needs(costs)}")
        total = {key: sum(costs[key] for costs in needs.values()) for key in next(iter(needs.values()), {})}
        if len(needs) > 1:
            reporter.say(f"in all: {_describe_needs(total)}")
        facts = {"needs": total} if needs else {}
        return Outcome(self.out / NAME, NAME, f"dry run: {Decision.NEW}", "", {"plan": rows, "jobs": jobs, **facts})

    def make_parts(self, paths: Sequence[str]) -> Outcome:
        """Make the artifacts at these paths alone, and return the last one."""
        folders = {path.split("/")[0]: list[str]() for path in paths}
        for path in paths:
            folder, _, part = path.partition("/")
            if folder not in self.comparisons:
                raise UsageError(f"{path} belongs to no comparison of these claims", closest(folder, self.comparisons))
            folders[folder].append(part)
        outcome = Outcome(self.out, NAME, Decision.UP_TO_DATE, "")
        for folder, parts in folders.items():
            comparison = self.comparisons[folder]
            runs = [part for part in parts if part != TABLE and not part.startswith("partition-")]
            seeds = {f"partition-{seed}": seed for seed in comparison.seeds}
            for part in parts:
                if part.startswith("partition-") and part not in seeds:
                    raise UsageError(f"{folder}/{part} is no partition of these claims", closest(part, seeds))
                if part in seeds:
                    outcome = self._partition(comparison, seeds[part], self.asked.execution)
            if runs:
                outcome = self._compare(comparison, self.asked.execution, only=runs)
            if TABLE in parts:
                outcome = self._make_comparison(comparison)
        return outcome

    def make(self) -> Outcome:
        """Make all comparisons, and judge the claims by them."""
        execution, failures = self.asked.execution, list[str]()
        for comparison in self.comparisons.values():  # first all partitions: missing data end the command at once
            for seed in comparison.seeds:
                self._partition(comparison, seed, execution)
        theirs = self._open_imported()
        made = dict[str, Artifact]()
        for number, (name, comparison) in enumerate(self.comparisons.items(), 1):
            execution.reporter.say(f"comparison {number} of {len(self.comparisons)}: {name}")
            try:
                outcome = self._compare(comparison, execution)
            except IncompleteError as error:
                outcome = error.outcome
                failures += [f"{name}: {line}" for line in (error.message, *error.fix)]
            made[name] = open_artifact(outcome.path)
        outcome = self._judge(made, theirs)
        if failures:
            raise IncompleteError(outcome, "some runs failed, and claims that need them are undecided", *failures)
        return outcome

    def _open_imported(self) -> dict[str, imported.Imported]:
        """Return the predictions of other tools, by name, for each group of comparisons whose claims need them."""
        found: dict[str, imported.Imported] = {}
        for group in dict.fromkeys(comparison.group for comparison in self.comparisons.values()):
            members = [comparison for comparison in self.comparisons.values() if comparison.group == group]
            needed = {
                name for claim in self.names if self._needs(claim, group) for name in self.file.claims[claim].methods
            }
            named = {name: paths for name, paths in members[0].experiment.predictions.items() if name in needed}
            folders = {seed: self._partition_path(each, seed) for each in members for seed in each.seeds}
            found[group] = imported.read(named, folders)
        return found

    def _make_comparison(self, comparison: PlannedComparison) -> Outcome:
        for seed in comparison.seeds:
            self._partition(comparison, seed, self.asked.execution)
        return self._compare(comparison, self.asked.execution)

    def _partition(self, comparison: PlannedComparison, seed: int, execution: Execution) -> Outcome:
        options = dict(comparison.experiment.partition)
        return partition(
            comparison.experiment.dataset,
            self._partition_path(comparison, seed),
            **{("options" if key == "set" else key): value for key, value in options.items()},
            root=self.asked.root,
            download=self.asked.download,
            seed=seed,
            execution=execution,
        )

    def _partition_path(self, comparison: PlannedComparison, seed: int) -> Path:
        return self.out / comparison.name / f"partition-{seed}"

    def _compare(
        self, comparison: PlannedComparison, execution: Execution, only: Sequence[str] | None = None
    ) -> Outcome:
        experiment = comparison.experiment
        return compare(
            [self._partition_path(comparison, seed) for seed in comparison.seeds],
            self.out / comparison.name,
            methods=list(comparison.methods),
            options={name: options for name, options in comparison.methods.items() if options},
            references=False,
            settings=dict(experiment.training),
            weights=self.asked.weights if experiment.weights else None,
            tune=experiment.tune,
            only=only,
            execution=execution,
        )

    def _judge(self, made: Mapping[str, Artifact], theirs: Mapping[str, imported.Imported]) -> Outcome:
        out = self.out / NAME
        inputs = tuple(artifact.as_input(name, out) for name, artifact in made.items())
        inputs += tuple(
            artifact.as_input(f"{group}, {name}, seed {artifact.manifest.request['seed']}", out)
            for group, by_name in theirs.items()
            for name, artifacts in by_name.items()
            for artifact in artifacts
        )
        request = {
            "claims": {name: _recorded(self.file.claims[name]) for name in self.names},
            "experiments": {
                name: {key: getattr(planned.experiment, key) for key in ("target", "link", "papers")}
                for name, planned in self.comparisons.items()
            },
            "paper": self.asked.paper,
            "statistics": summary.STATISTICS,
            **({} if self.looks is None else {"looks": self.looks}),
        }
        spec = ArtifactSpec(NAME, request, inputs, code={"judge": sources.module_hash("plugins.claims.judge")})
        old = manifests.read(out) if manifests.is_artifact(out) else None
        is_other = old is not None and old.kind == NAME and old.fingerprint != spec.fingerprint
        # Comparisons keep all that verdicts were derived from, so that nothing is lost.
        extends = "the claims or the comparisons have changed" if is_other else ""
        return make(out, spec, self.asked.execution, lambda work: self._write(work, made, theirs), extends=extends)

    def _write(
        self, work: ArtifactWriter, made: Mapping[str, Artifact], theirs: Mapping[str, imported.Imported]
    ) -> Built:
        groups: dict[str, list[Artifact]] = {}
        for name, artifact in made.items():
            groups.setdefault(self.comparisons[name].group, []).append(artifact)
        experiments = {planned.group: planned.experiment for planned in self.comparisons.values()}
        metrics = {
            name: [self.file.claims[claim].metric for claim in self.names if self._needs(claim, name)]
            for name in groups
        }
        runs = {
            name: Runs.read(artifacts, metrics[name], experiments[name].target, experiments[name].link, theirs[name])
            for name, artifacts in groups.items()
        }
        if self.looks is not None:
            looks = Looks(*self.looks)
            runs = {name: replace(each, level=looks.level(len(each.seeds))) for name, each in runs.items()}
        sizes = {name: _measure(artifacts) for name, artifacts in groups.items()}
        tuned = {name: _read_tuning(artifacts) for name, artifacts in groups.items()}
        judged: dict[str, Any] = {}
        for name in self.names:
            claim = self.file.claims[name]
            record = judge(claim, self.cells[name], runs)
            for cell in record["cells"]:
                cell["size"] = sizes[cell["comparison"]]
                cell["paper"] = dict(experiments[cell["comparison"]].papers)
                cell.update(tuned[cell["comparison"]])
            for cell, found in zip(self.cells[name], record["cells"], strict=True):
                scored = runs[cell.comparison]
                found["options"] = doubts.list_options(cell, scored)
                found["warnings"] = doubts.find(claim, cell, found, scored, self._existing_seeds(cell.comparison))
            facts = {"direction": claim.direction, "margin": claim.margin, "ranks_first": claim.ranks_first}
            judged[name] = {**record, **facts}
        work.write(verdicts.VERDICTS, (json.dumps({"claims": judged}, indent=1, default=list) + "\n").encode())
        table = presentation.build_table(judged)
        work.write("table.md", table.markdown().encode())
        work.write(verdicts.TABLE, csv_file.encode(table.heading, table.rows))
        work.write(verdicts.SETTINGS, csv_file.encode_rounded(*presentation.list_settings(judged)))
        every = {
            name: [item for by_seed in each.scored.values() for item in by_seed.values()] for name, each in runs.items()
        }
        stored_scores.write(work, every, {name: (each.target, each.link) for name, each in runs.items()}, SPLIT)
        found = [record["verdict"] for record in judged.values()]
        return Built(
            {"claims": len(judged), "verdicts": {name: found.count(name) for name in dict.fromkeys(found)}}, {}
        )

    def _existing_seeds(self, group: str) -> set[int]:
        """Return the seeds of the partitions that the folder has for the comparisons of a group."""
        folders = [self.out / group, *self.out.glob(f"{glob.escape(group)}[@+]seed-*")]
        names = [path.name for folder in folders for path in folder.glob("partition-*") if manifests.is_artifact(path)]
        return {int(name.removeprefix("partition-")) for name in names if name.removeprefix("partition-").isdecimal()}

    def _needs(self, claim: str, comparison: str) -> bool:
        return any(cell.comparison == comparison for cell in self.cells[claim])


def _recorded(claim: Claim) -> dict[str, Any]:
    """Return a claim as the request of verdicts records it."""
    return config.plain(claim)


def _row(path: str, decision: str) -> dict[str, str]:
    return {"path": path, "decision": str(decision).removeprefix("dry run: ")}


def _describe_needs(costs: Mapping[str, float]) -> str:
    seconds, processor = duration(costs["seconds"]), duration(costs["processor_seconds"])
    return f"needs about {seconds} ({processor} of one core) and {size(costs['disk_bytes'])} of disk"


def _read_tuning(comparisons: Sequence[Artifact]) -> dict[str, Any]:
    """Return the number of trials and what they chose for each method, with each seed; empty without tuning."""
    records = [record for each in comparisons if (record := evaluation.read(each).get("tune"))]
    chosen = {str(record["seed"]): record["methods"] for record in records}
    return {"tuned": {"trials": records[0]["trials"], "chosen": chosen}} if records else {}


def _measure(comparisons: Sequence[Artifact]) -> dict[str, Any]:
    """Return the size of comparisons: clients and samples, on average over partitions, rounds, and number of seeds."""
    requests = [comparison.manifest.request for comparison in comparisons]
    seeds = sum(len(request["seeds"]) for request in requests)
    size: dict[str, Any] = {"rounds": requests[0]["settings"]["rounds"], "seeds": seeds}
    parents = (
        ancestor(follow(comparison, reference), "partition")
        for comparison in comparisons
        for reference in comparison.manifest.inputs
    )
    partitions = {parent.manifest.fingerprint: parent.manifest.summary for parent in parents if parent is not None}
    for key in ("clients", "samples") if partitions else ():
        size[key] = round(sum(summary[key] for summary in partitions.values()) / len(partitions))
    return size
