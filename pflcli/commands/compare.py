"""``pfl compare``: run several methods with several seeds, each as an ordinary artifact, and tabulate their scores."""

from __future__ import annotations

from pflcli.artifacts.make import Outcome
from pflcli.commands.personalize import personalize
from pflcli.commands.stack import stack
from pflcli.commands.tune import MAKERS as SHARED
from pflcli.commands.tune import tune
from pflcli.options.compare import Compare
from pflcli.options.function import command
from pflcli.workflow.comparison.request import Request
from pflcli.workflow.comparison.runs import Makers
from pflcli.workflow.comparison.until_decided import compare_until_decided

MAKERS: Makers = {**SHARED, "predictions": personalize, "stack": stack, "tuning": tune}
"""The commands that make the artifacts of a comparison, by kind; ``stack`` makes predictions too."""


@command(Compare)
def compare(asked: Compare) -> Outcome:
    """Run every method with every seed, as artifacts in ``out/seed-N``, and write the table ``out/comparison``.

    ``sources`` is one partition, used with each of ``seeds`` (default: the partition's own seed), or several
    partitions, each used with the seed that it was drawn with. ``options`` contains, by method, its options and the
    training settings that differ from ``settings``. Artifacts that are up to date are not made again; with ``force``,
    artifacts of other requests are replaced. If ``out`` already contains a comparison, methods and seeds are added to
    it, and its methods keep their options. All models start from the file ``weights``, or at random.

    With ``references``, ``constant``, ``pooled`` and ``local`` stand beside the methods, marked and not ranked, unless
    they are among ``methods``; one that does not suit the settings or samples is left out. They are not tuned.

    Gains are measured against the method ``baseline``. ``target`` is a validation accuracy from 0 to 1; the table says
    how long each method takes to reach it. ``link`` is the network for which the time of a round is simulated. The
    first of ``metrics`` (default: as in the existing comparison, else accuracy) ranks methods and is the metric of
    gains, conclusion and picture; the others are computed too. ``positive`` names the positive one of two classes for
    sensitivity, specificity and average precision, by default the last class. ``coverage`` adds prediction sets that
    contain the true class with this probability, calibrated on validation samples. ``group_scores`` are
    columns by whose values samples are scored in groups. With ``tune``, every method first
    has at most that many trials, which choose the values that ``options`` and ``settings`` leave open by that metric on
    validation samples.

    With ``until_decided``, a seed is added after each look at the table until the best method is shown to be better
    than every other one, or until there are that many seeds. The first look is after ``seeds``, those of an existing
    comparison, or three. Intervals and tests have the level of the last look, by alpha spending.

    With ``only``, only the artifacts in these folders of ``out`` (such as ``seed-0/ditto``) are made, and no table; the
    artifacts that they need must exist. A dry run lists all artifacts with those that each needs as
    ``summary["jobs"]``; if it has a reporter, it also estimates seconds and disk space as ``summary["needs"]``.

    Raises UsageError for an invalid request; ConflictError before anything is made if an artifact of another request
    exists; IncompleteError, with the comparison of the other runs, if a run fails.

    >>> from pflcli import compare, partition
    >>> writers = partition("writers", "runs/p", clients=6)
    >>> made = compare(writers, "runs/c", methods="fedavg,local", model="mlp", rounds=2)
    >>> sorted(made.table().index)  # constant and pooled are references
    ['constant', 'fedavg', 'local', 'pooled']
    """
    if asked.until_decided is not None:
        return compare_until_decided(asked, asked.until_decided, _compare)
    return _compare(asked)


def _compare(asked: Compare) -> Outcome:
    request = Request.read(asked, MAKERS)
    comparison = request.resolve(asked.only)
    if asked.execution.dry_run:
        return comparison.preview()
    if not comparison.tuned.is_complete:  # the requests of all runs depend on the chosen options and settings
        comparison = comparison.tune()
    return comparison.make()
