"""Extend an existing comparison: its methods and seeds are kept, and the requested ones are added."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pflcli.artifacts import manifest as manifests
from pflcli.artifacts import placement
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import Artifact, ancestor, follow
from pflcli.core.errors import ConflictError, InputError, UsageError
from pflcli.core.metrics import catalogue
from pflcli.core.reporter import Reporter
from pflcli.core.settings import TRAINING, Settings
from pflcli.core.wording import as_typed
from pflcli.evaluation import summary
from pflcli.workflow.comparison.variants import ALL, Variant, assign_options, method_name, resolve_variants
from pflcli.workflow.training import run_request

Options = dict[str, Mapping[str, Any]]

_ADDED = {
    "target": "target",
    "link": "link",
    "metric": "metric",
    "positive": "positive class",
    "coverage": "coverage",
    "group_scores": "scores by",
    "looks": "looks from and up to these numbers of seeds:",
}
"""Parts of a request that may be added to an existing comparison, in words."""


@dataclass(frozen=True)
class ExistingComparison:
    """A finished comparison with the requested training settings and weights; methods and seeds may be added to it."""

    artifact: Artifact
    methods: Mapping[str, Mapping[str, Any]]
    """options and training settings of each method, by its name"""

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.artifact.path

    @property
    def rounds(self) -> int:
        """The number of rounds of its runs."""
        return int(self.artifact.manifest.request["settings"]["rounds"])

    @property
    def references(self) -> set[str]:
        """The names of its references that were not named by the user."""
        return marked_references(self.methods)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that were given by ``--metric``."""
        return catalogue.parse_names(self.artifact.manifest.request.get("metric", catalogue.DEFAULT))

    def join_variants(
        self,
        methods: Sequence[str],
        added: Collection[str],
        options: Mapping[str, Mapping[str, Any]],
        training: Settings,
        *,
        force: bool,
    ) -> list[Variant]:
        """Return the requested methods and those of this comparison, each once.

        The methods in ``added`` are references, unless this comparison ranks them. A reference of this comparison that
        is now among the other methods is ranked. A method of this comparison keeps its options unless ``options``
        contains it. If its options then differ, the requested ones apply with ``force``, and without it ConflictError
        is raised.
        """
        options = assign_options(methods, options)
        existing = earlier_variants(self.methods, training)
        kept: Options = {name: option_values(earlier) for name, earlier in self.methods.items()}
        named = {name for name in methods if name not in added}
        added = {*added, *self.references} - named - {variant.name for variant in existing if not variant.is_reference}
        # A reference of this comparison is kept as it is, also with ``force``.
        methods = [name for name in methods if name in named or name not in self.methods or name in options]
        requested = resolve_variants(methods, options, training, existing, added)
        lines = []
        for variant in requested:
            earlier = self.methods.get(variant.name)
            if earlier is None or (variant.name not in options and not force):
                continue
            before = {key: earlier[key] for key in ("options", "settings")}
            after = {"options": dict(variant.options), "settings": dict(variant.settings)}
            lines += [f"{variant.name}: {line}" for line in _differences(before, after)]
            kept.pop(variant.name)
        if lines and not force:
            name = lines[0].split(":")[0]
            other = f"{method_name(name)}@other"
            way = "and the same options" if name == method_name(name) else f"--set {other}.KEY=VALUE"
            raise ConflictError(
                f"{self.path} compares these methods with other options",
                *lines,
                f"--methods {other} {way} add a variant; --force replaces these methods",
            )
        names = [variant.name for variant in requested]
        names += [name for name in self.methods if name not in names]
        return resolve_variants(names, {**options, **kept}, training, added=added)

    def partitions(self, requested: Mapping[int, Artifact]) -> dict[int, Artifact]:
        """Return the partition of each requested seed and of each seed of this comparison.

        Raises ConflictError if partitions differ in more than their seed, InputError if one no longer exists.
        """
        existing: dict[int, Artifact] = {}
        missing: dict[int, InputError] = {}
        for reference in self.artifact.manifest.inputs:
            seed = int(reference.role.rsplit(" ", 1)[1])
            if seed in existing or seed in requested:
                continue
            try:
                partition = ancestor(follow(self.artifact, reference), "partition")
                assert partition is not None  # all predictions descend from one
                existing[seed] = partition
            except InputError as error:
                missing[seed] = error
        for seed in missing.keys() - existing.keys():
            raise missing[seed]
        for old in existing.values():
            for new in requested.values():
                before, after = ({**item.manifest.request, "seed": None} for item in (old, new))
                if before != after:
                    raise ConflictError(
                        f"{self.path} was made on {old.path}, and {new.path} is another partition",
                        *manifests.differences(before, after),
                        "choose another folder for --out",
                    )
        return dict(sorted({**existing, **requested}.items()))

    def announce(
        self,
        variants: Sequence[Variant],
        methods: Sequence[str],
        partitions: Mapping[int, Artifact],
        reporter: Reporter,
    ) -> None:
        """If methods or seeds are added, report the methods of this comparison that were not requested and are kept."""
        added = {variant.name for variant in variants} - {*self.methods}
        grows = added or {*partitions} - {*self.artifact.manifest.request["seeds"]}
        unrequested = [name for name in self.methods if name not in methods and ALL not in methods]
        if grows and unrequested:
            reporter.say(f"{self.path} keeps its other methods: {', '.join(unrequested)}")

    def addition(self, draft: ArtifactSpec) -> str:
        """Describe how ``draft`` extends this comparison; empty if it adds nothing or omits results.

        Methods that failed have no results and may be left out.
        """
        old = self.artifact.manifest
        may_change = {"methods", "seeds"}
        grows = self.rounds < draft.request["settings"]["rounds"]
        if grows:
            may_change.add("settings")  # which differ in nothing else
        new_statistics = old.request.get("statistics") != summary.STATISTICS
        if new_statistics:
            may_change.add("statistics")
        may_change |= {key for key in _ADDED if key in draft.request and key not in old.request}
        before, after = (
            {key: value for key, value in request.items() if key not in may_change}
            for request in (old.request, draft.request)
        )
        old_inputs, new_inputs = (
            {item.role: item.fingerprint for item in inputs} for inputs in (old.inputs, draft.inputs)
        )
        # Without a failed method, which has no results, the table has the same inputs.
        leaving = [name for name in old.request["methods"] if name not in draft.request["methods"]]
        remarked = marked_references(old.request["methods"]) - marked_references(draft.request["methods"])
        ranked = sorted(remarked & {*draft.request["methods"]})
        adds = (
            old_inputs.keys() <= new_inputs.keys()
            if grows
            else old_inputs.items() < new_inputs.items()
            or (old_inputs == new_inputs and bool(_ADDED.keys() & may_change or new_statistics or leaving or ranked))
        )
        if before != after or not adds:
            return ""
        added = [name for name in draft.request["methods"] if name not in old.request["methods"]]
        added += [f"rounds up to {draft.request['settings']['rounds']}"] if grows else []
        added += [f"seed {seed}" for seed in draft.request["seeds"] if seed not in old.request["seeds"]]
        added += [f"{words} {as_typed(draft.request[key])}" for key, words in _ADDED.items() if key in may_change]
        added = added or sorted(new_inputs.keys() - old_inputs.keys())
        changes = [f"adds {', '.join(added)}"] if added else []
        changes += [f"ranks {', '.join(ranked)}"] if ranked else []
        changes += [f"leaves out {', '.join(leaving)}, without results"] if leaving else []
        return " and ".join(changes) or "computes the intervals as this version of pfl does"


def find_comparison(target: Path, kind: str, training: Settings, weights: str | None) -> ExistingComparison | None:
    """Return the comparison at ``target`` if it has these settings, or fewer rounds, and the hash ``weights``.

    Otherwise return None. If a writer was killed after it had moved the comparison aside and before it wrote the new
    one, the comparison that was moved aside is returned.
    """
    target = placement.find_interrupted(target)[0] or target
    if not manifests.is_artifact(target):
        return None
    try:
        manifest = manifests.read(target)
    except InputError:
        return None
    request = manifest.request
    if (
        manifest.kind != kind
        or request["settings"]["rounds"] > training.rounds
        or {**request["settings"], "rounds": training.rounds} != run_request.recorded_settings(training)
        or request.get("weights") != weights
    ):
        return None
    # A method that failed has no results, so it may be requested with other options.
    scored = {reference.role.rsplit(",", 1)[0] for reference in manifest.inputs}
    methods = {name: earlier for name, earlier in request["methods"].items() if name in scored}
    return ExistingComparison(Artifact(target, manifest), methods) if earlier_variants(methods, training) else None


def earlier_variants(methods: Mapping[str, Mapping[str, Any]], training: Settings) -> list[Variant]:
    """Return the variants of the ``methods`` in the request of a comparison.

    There are none if another version of pfl had other methods and options.
    """
    values = {name: option_values(earlier) for name, earlier in methods.items()}
    try:
        return resolve_variants([*values], values, training, added=marked_references(methods)) if values else []
    except UsageError:
        return []


def marked_references(methods: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the names of the references among the ``methods`` in the request of a comparison that it marks itself."""
    return {name for name, facts in methods.items() if facts.get("reference")}


def option_values(earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's options and its training settings, the latter with the prefix ``training.``."""
    return {**earlier["options"], **{f"{TRAINING}{key}": value for key, value in earlier["settings"].items()}}


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [line.removeprefix("options.").removeprefix("settings.") for line in manifests.differences(before, after)]
