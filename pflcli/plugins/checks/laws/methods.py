"""The laws of methods."""

from __future__ import annotations

import copy
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save

from pflcli.core import config, methods, parameters, registry
from pflcli.core.datasets import SPLITS
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.process_settings import intra_op
from pflcli.core.errors import ComputationError, UnsuitedError, UsageError
from pflcli.core.federation.run import LINKS, Run, RunInputs
from pflcli.core.methods import Method, State
from pflcli.core.parameters.model_table import ModelTable
from pflcli.core.simulation import absences, loop
from pflcli.plugins.checks.laws import DoubtfulError, Subject, federations, law, needing, other_process
from pflcli.plugins.checks.laws.exchanges import Exchanges
from pflcli.workflow.admission import BrokenLawError, NotApplicable, describe_error, private_rounds, require
from pflcli.workflow.admission import small_federation as small
from pflcli.workflow.admission.own_samples import record_training, require_own_samples
from pflcli.workflow.training import state_files

_ROUNDING = 2e-7
"""Largest difference of two probabilities that are the same up to rounding."""

_OTHER_BATCHES = 1e-5
"""Largest difference of two probabilities that were computed in batches of other sizes."""

_RENAMED = 1e-4
"""Largest difference of parameters whose sum has another order, after two rounds."""

_SHIFT, _SCALE = -5000.0, 8.0
"""The other unit of a client's target: shift plus scale times the target."""

_OTHER_UNIT = 1e-4
"""Largest difference of two predictions that are the same in another unit, in sizes of the target."""

_ROUNDS = 4
"""Rounds of a run that is stopped and resumed."""

_LATER = 8
"""Rounds of runs in which a method may begin late to read what it must not."""

_LOW_LOSS = 0.1
"""A loss at which a method has learned classes that are easy to separate."""

_DIVERGING = 6
"""The client whose training diverges: it is drawn for the first and the last of three rounds."""


def _run(subject: Subject, **changes: Any) -> Run:
    _require_task(subject, changes.get("data"))
    return small.make_run(subject.name, options=subject.options, **changes)


def _require_task(subject: Subject, data: Federation | None = None) -> None:
    """Raise NotApplicable if the method does not learn the labels of ``data``, by default classes."""
    task = (data or small.make_federation()).task
    if not {task.kind, "any", "series" if task.past else "any"} & {*methods.load(subject.name).TASKS}:
        raise NotApplicable(f"the method does not learn {task.kind}")


def _play(subject: Subject, **changes: Any) -> tuple[Run, State]:
    """Return a run of the method and the state after its rounds.

    Without ``changes``, laws get copies of the same run; a law that compares two runs must change something.
    """
    if changes:
        run = _run(subject, **changes)
        return run, small.play_rounds(subject.name, run)
    key = registry.import_file("methods", subject.name), repr(subject.options)
    if key not in _unchanged:
        _unchanged.clear()
        run = _run(subject)
        _unchanged[key] = run, small.play_rounds(subject.name, run)
    run, state = _unchanged[key]
    return copy.deepcopy((run, state), {id(run.engine): run.engine})  # has threads, which cannot be copied


_unchanged: dict[tuple[ModuleType, str], tuple[Run, State]] = {}
"""The latest run without changes, by the module of its method and its options."""


def _predict(
    subject: Subject, run: Run, state: State, clients: NDArray[np.int64] | None = None
) -> dict[str, NDArray[np.float32]]:
    return small.predict(subject.name, run, state, clients)


def _choices(subject: Subject, **changes: Any) -> dict[str, NDArray[np.float64]]:
    """Return what clients chose on validation samples; empty if the method has nothing to choose."""
    return federations.choose(subject.name, *_play(subject, **changes)) if _choice_names(subject) else {}


def _choice_names(subject: Subject) -> tuple[str, ...]:
    """Return the names of what clients choose on validation samples."""
    return methods.load(subject.name).choices(_run(subject).cfg)


def _require_rounds(subject: Subject) -> Method:
    code = methods.load(subject.name)
    if not code.has_rounds:
        raise NotApplicable("the method has no rounds")
    return code


def _play_late(subject: Subject, run: Run) -> State:
    """Return the state after the rounds of a run and late ones, in which no warm-up hides what a method reads."""
    return federations.play_late_rounds(subject.name, run)


def _facts(subject: Subject) -> dict[str, Any]:
    return registry.card("methods", subject.name).facts


@law("methods")
def predictions_are_probabilities(subject: Subject) -> None:
    """Every client's predictions are rows of probabilities, also those of clients without samples.

    Metrics, calibration and prediction sets are defined for probabilities only.
    """
    run, state = _play(subject)
    answers = _predict(subject, run, state)
    require("test" in answers, "personalize predicts no test samples")
    for split, p in answers.items():
        shape = (int(run.federation.sizes(split).sum()), small.CLASSES)
        require(p.shape == shape, f"predictions of the {split} samples are {p.shape} instead of {shape}")
        require(p.dtype == np.float32, f"predictions are {p.dtype} instead of float32")
        require(bool(np.isfinite(p).all() and (p >= 0).all()), f"a {split} prediction is negative or not finite")
        worst = float(np.abs(p.sum(axis=1) - 1).max(initial=0))
        require(worst <= 1e-6, f"a row of probabilities differs from a sum of 1 by {worst:.1e}")


@law("methods")
def adapters_replace_the_body(subject: Subject) -> None:
    """With ``--adapter``, the method runs unchanged in both modes of the engine, and sends no more bytes than without.

    A model then consists of adapters and the head, so a method must not rely on the names or shapes of layers.
    """
    whole, _ = _play(subject)
    for mode in ("loop", "stacked"):
        run, state = _play(subject, adapter="lora:1", mode=mode)
        predicted = _predict(subject, run, state)["test"]
        require(bool(np.isfinite(predicted).all()), f"a prediction is not finite (engine {mode})")
        for link, sent in run.traffic.items():
            most = whole.traffic[link]
            require(sent <= most, f"with an adapter {sent} bytes go over the link '{link}', without one {most}")


@law("methods")
def the_same_seed_gives_the_same_bytes(subject: Subject) -> None:
    """The same seed gives the same state and predictions, bit for bit, with any number of threads, also of PyTorch's.

    Only a result that can be repeated can be checked. Draw random numbers with ``run.rng``, never with a global
    generator.
    """
    # Whether a product depends on the number of threads depends on its size.
    for mode, sizes, participation, many in (("loop", small.SIZES, 0.8, 2), ("stacked", 3 * small.SIZES, 1.0, 3)):
        data, states, answers = small.make_federation(client_sizes=sizes), list[State](), []
        for threads in (1, many):
            run = _run(subject, seed=3, data=data, participation=participation, threads=threads, mode=mode)
            with intra_op(threads):
                states.append(small.play_rounds(subject.name, run))
                answers.append(_predict(subject, run, states[-1]))
        seen = f"with {many} threads differ from those with 1 (engine {mode})"
        small.require_equal(states[0], states[1], f"the numbers of the state {seen}")
        small.require_equal(answers[0], answers[1], f"predictions {seen}")


@law("methods")
def another_seed_gives_other_predictions(subject: Subject) -> None:
    """Another seed gives other predictions.

    Otherwise the standard deviation over seeds is meaningless. A file with ``DETERMINISTIC = True`` gives the same.
    """
    first, second = (_predict(subject, *_play(subject, seed=seed))["test"] for seed in (0, 1))
    same = np.array_equal(first, second)
    if methods.load(subject.name).DETERMINISTIC:
        require(same, "the file has DETERMINISTIC = True, but seeds 0 and 1 give other predictions")
    else:
        require(not same, "seeds 0 and 1 give the same predictions; the file has no DETERMINISTIC = True")


@law("methods")
def validation_samples_only_choose(subject: Subject) -> None:
    """Validation samples are only used to choose options, which the method declares; nothing is trained on them.

    Validation accuracy and early stopping mean nothing for a model that was trained on these samples.
    """
    data = small.make_federation()
    inputs = RunInputs(choices=_choices(subject, rounds=_LATER))
    others = small.replace_samples(data, "validation")
    runs = [_run(subject, data=each, inputs=inputs, rounds=_LATER) for each in (data, others)]
    states = [federations.drop_measurements(_play_late(subject, run)) for run in runs]
    otherwise = "on validation samples, although all choices are given"
    small.require_equal(states[0], states[1], f"the state depends {otherwise}")
    a, b = ({"test": _predict(subject, run, state)["test"]} for run, state in zip(runs, states, strict=True))
    small.require_equal(a, b, f"what clients predict depends {otherwise}")


@law("methods")
def refit_trains_on_validation_samples(subject: Subject) -> None:
    """With ``--refit``, validation samples are used exactly like training samples.

    The final model can then use all samples except the test samples.
    """
    inputs = RunInputs(choices=_choices(subject))
    moved = federations.move_validation_to_training(small.make_federation())
    runs = [_run(subject, inputs=inputs, refit=True), _run(subject, inputs=inputs, data=moved)]
    states = [small.play_rounds(subject.name, run) for run in runs]
    otherwise = "from that with validation samples moved to training"
    small.require_equal(states[0], states[1], f"the state differs {otherwise}")
    a, b = (_predict(subject, run, state)["test"] for run, state in zip(runs, states, strict=True))
    small.require_equal({"test": a}, {"test": b}, f"what clients predict differs {otherwise}")
    if not methods.load(subject.name).NEEDS:
        without = _predict(subject, *_play(subject))["test"]
        require(not np.array_equal(a, without), "predictions do not depend on the added validation samples")


@law("methods")
def nothing_is_learned_from_test_samples(subject: Subject) -> None:
    """The state does not depend on test samples, nor on any sample of clients that join after training.

    Test accuracy would otherwise be an optimistic estimate.
    """
    data = federations.add_new_clients(small.make_federation(), ((11, 3, 4), *((3, 1, 2),) * 15))
    new = data.clients[data.clients >= len(small.SIZES)]
    expected = _play_late(subject, _run(subject, data=data, rounds=_LATER))
    for other, what in (
        (small.replace_samples(data, "test"), "test samples"),
        (small.replace_samples(data, *SPLITS, clients=new), "samples of new clients"),
    ):
        state = _play_late(subject, _run(subject, data=other, rounds=_LATER))
        small.require_equal(expected, state, f"the state depends on {what}")


@law("methods")
def true_clusters_are_unknown(subject: Subject) -> None:
    """A method does not read the true clusters of clients, unless the file has ``REFERENCE = True``.

    Some schemes know which clients have the same distribution. Nobody else does: a method that reads it is an upper
    bound, no method, and tables mark it.
    """
    if methods.load(subject.name).REFERENCE:
        raise NotApplicable("the file has REFERENCE = True")
    run, expected = _play(subject)
    unknown = replace(run.federation, cluster=None)
    try:
        other, state = _play(subject, data=unknown)
        answers = _predict(subject, other, state)
    except Exception as error:
        reason = describe_error(error)
        raise BrokenLawError(f"without the true clusters, the run ends with an error: {reason}") from None
    small.require_equal(expected, state, "the state depends on the true clusters")
    small.require_equal(_predict(subject, run, expected), answers, "what clients predict depends on the true clusters")


@law("methods")
def samples_are_not_changed(subject: Subject) -> None:
    """A run changes neither samples and labels nor embeddings in place.

    All clients, splits and later runs share them: a method that clips its training samples in place would clip the
    test samples of others.
    """
    run = _run(subject, rounds=_LATER)

    def digest() -> tuple[str, ...]:
        embedded = run.embeddings or {}
        arrays = {f"{split} {part}": getattr(embedded[split], part) for split in embedded for part in ("z", "logits")}
        return run.federation.digest(), parameters.digest({n: torch.from_numpy(each) for n, each in arrays.items()})

    before = digest()
    state = small.play_rounds(subject.name, run)
    require(digest() == before, "rounds change samples or embeddings in place")
    _predict(subject, run, state)
    require(digest() == before, "personalize changes samples or embeddings in place")


@dataclass(frozen=True)
class _Answers:
    """The predictions of a run, and what its clients chose."""

    splits: dict[str, NDArray[np.float32]]
    chosen: dict[str, NDArray[np.float64]]


def _answer(subject: Subject, data: Federation, choices: Mapping[str, NDArray[np.float64]]) -> _Answers:
    """Return what a run on ``data`` predicts and chooses, with these ``choices`` of an earlier run."""
    run = _run(subject, data=data, inputs=RunInputs(choices=choices))
    state = small.play_rounds(subject.name, run)
    with run.personalizing():
        predictor = small.personalize(subject.name, run, state)
        answers = {split: predictor.answer(split)["p"] for split in predictor.splits}
        return _Answers(answers, {name: np.asarray(values) for name, values in predictor.tuned.items()})


@law("methods")
def labels_of_predicted_samples_change_no_prediction(subject: Subject) -> None:
    """Predictions do not depend on the labels of the samples that are predicted, except by declared choices.

    The labels of test samples are unknown where a model is used; a method that reads them is judged by what it read.
    Clients may choose options by the labels of validation samples, which the method declares by ``choices``.
    """
    data, has_choices = small.make_federation(client_sizes=federations.MANY_PREDICTED), bool(_choice_names(subject))
    # Other processes, since a module variable could remember the first labels.
    expected = other_process.call(_answer, subject, data, {})
    for index in (np.argmin, np.argmax):  # labels by which all predictions are wrong, or right
        other = data
        for split in ("test",) if has_choices else expected.splits:
            other = federations.replace_labels(other, split, index(expected.splits[split], axis=1))
        _require_same(expected, other_process.call(_answer, subject, other, {}))
    if has_choices:  # once choices are given, nothing needs the labels of validation samples
        other = small.replace_samples(data, "validation", inputs=False)
        given = [other_process.call(_answer, subject, each, expected.chosen) for each in (data, other)]
        _require_same(*given)


def _require_same(expected: _Answers, answers: _Answers) -> None:
    small.require_equal(expected.splits, answers.splits, "predictions depend on labels of samples to predict")
    small.require_equal(expected.chosen, answers.chosen, "what clients choose depends on labels of test samples")


@law("methods")
def each_sample_is_predicted_on_its_own(subject: Subject) -> None:
    """A prediction does not depend on other samples that are predicted, nor on their number, unless the file has
    ``TRANSDUCTIVE = True``.

    A transductive method learns from unlabelled test samples. Its accuracy depends on how many there are, and does not
    hold for a sample that arrives alone, so tables mark it.
    """
    is_declared = methods.load(subject.name).TRANSDUCTIVE
    moved = _move_by_others(subject, small.make_federation(client_sizes=federations.MANY_PREDICTED))
    with suppress(Exception):  # a method for networks without BatchNorm
        sizes = (12, 6, 10), (8, 4, 9), (0, 4, 8), (6, 2, 1), (9, 6, 12)  # BatchNorm cannot train on one sample
        data = small.make_federation(client_sizes=sizes)
        moved = max(moved, _move_by_others(subject, data, normalizes=True, batch_size=64))
    seen = f"probabilities move by {moved:.1e} if other samples to predict are replaced or removed"
    depends = moved > _OTHER_BATCHES
    require(is_declared or not depends, f"{seen}; the file has no TRANSDUCTIVE = True")
    if _choice_names(subject) and not is_declared:
        data = small.make_federation(client_sizes=federations.MANY_PREDICTED)
        others = federations.replace_inputs(data, data.rows_of(data.clients, "test"))
        first, second = (_choices(subject, data=each) for each in (data, others))
        small.require_equal(
            first, second, "what clients choose depends on test samples; the file has no TRANSDUCTIVE = True"
        )
    if is_declared and not depends:
        raise DoubtfulError("the file has TRANSDUCTIVE = True, but no prediction depends on other samples")


@law("methods")
def validation_samples_are_predicted_like_test_samples(subject: Subject) -> None:
    """A sample has the same prediction as a validation sample and as a test sample, up to rounding.

    Validation accuracy, early stopping, tuning and prediction sets would otherwise describe another model than the one
    that is tested.
    """
    data = federations.copy_validation_to_test(small.make_federation(client_sizes=federations.MANY_PREDICTED))
    choices = RunInputs(choices=_choices(subject, data=data))  # each sample would be predicted by choices without it
    answers = _predict(subject, *_play(subject, data=data, inputs=choices))
    require("validation" in answers, "personalize predicts no validation samples")
    moved = float(np.abs(answers["validation"] - answers["test"]).max())
    require(
        moved <= _OTHER_BATCHES,
        f"the same samples have other predictions for validation than for testing: probabilities differ by {moved:.1e}",
    )


@law("methods")
def a_validation_sample_is_predicted_by_choices_without_it(subject: Subject) -> None:
    """The label of a validation sample does not change its own prediction, unless the file has ``CHOOSES_IN_ROUNDS``.

    A client that chooses by validation samples predicts these better than others. Where scores on them compare methods,
    options or rounds, such a method would always win.
    """
    if not _choice_names(subject):
        raise NotApplicable("clients choose nothing by validation samples")
    if methods.load(subject.name).CHOOSES_IN_ROUNDS:
        raise NotApplicable("clients choose while they train, which the file declares")
    data = small.make_federation(client_sizes=federations.MANY_PREDICTED)
    sizes = data.sizes("validation")
    first = (np.cumsum(sizes) - sizes)[sizes > 0]
    before = _predict(subject, *_play(subject, data=data))["validation"]
    for label in range(small.CLASSES):
        labels = data.labels_of(data.clients, "validation")
        labels[first] = label
        other = federations.replace_labels(data, "validation", labels)
        after = _predict(subject, *_play(subject, data=other))["validation"]
        require(
            before[first].tobytes() == after[first].tobytes(),
            "the prediction of a validation sample depends on its own label: choose without it "
            "(methods/parts/folds.py), or declare CHOOSES_IN_ROUNDS",
        )


def _move_by_others(subject: Subject, data: Federation, **network: Any) -> float:
    """Return how far a probability moves if two thirds of the other samples to predict get other inputs.

    Then those for testing are removed. Fewer validation samples would change choices.
    """
    inputs = RunInputs(choices=_choices(subject, data=data, **network))

    def answer(samples: Federation) -> dict[str, NDArray[np.float32]]:
        run = _run(subject, data=samples, inputs=inputs, **network)
        return _predict(subject, run, small.play_rounds(subject.name, run))

    expected, furthest = answer(data), 0.0
    rows = {split: data.rows_of(data.clients, split) for split in expected}
    for kept in (0, 1):
        is_kept = {split: np.arange(len(each)) % 3 == kept for split, each in rows.items()}
        others = np.concatenate([each[~is_kept[split]] for split, each in rows.items()])
        fewer = {**{split: np.ones(len(each), bool) for split, each in rows.items()}, "test": is_kept["test"]}
        for changed, compared in (
            (federations.replace_inputs(data, others), is_kept),
            (federations.remove_samples(data, rows["test"][~is_kept["test"]]), fewer),
        ):
            answers = answer(changed)
            for split, p in expected.items():
                same_rows = compared[split] if len(answers[split]) == len(p) else slice(None)
                moves = np.abs(answers[split][same_rows] - p[compared[split]])
                furthest = max(furthest, float(moves.max(initial=0)))
    return furthest


@law("methods")
def clients_use_only_their_own_samples(subject: Subject) -> None:
    """What a client trains, uploads and predicts depends only on its own samples and on what it received.

    The law of locality: with the same state, a round and the predictions of a client are the same, bit for bit, if the
    samples of all other clients are replaced. In a simulation it is easy to read other clients' samples by mistake; in
    a real federation it is impossible.
    """
    if "samples" in _facts(subject).get("SENDS_MORE", ""):
        raise NotApplicable("SENDS_MORE declares that clients send samples")
    _require_task(subject)
    require_own_samples(subject.name, subject.options, (small.LATE,))


@law("methods")
def every_choice_uses_samples_alike(subject: Subject) -> None:
    """With every choice of every option too, nothing is learned from test samples, their labels change no prediction,
    clients use only their own samples, and differential privacy bounds each client.

    An option that is off by default, such as a calibration, is on when it is compared.
    """
    choices = _list_choices(subject)
    if not choices:
        raise NotApplicable("no option has choices")
    data = small.make_federation()
    for choice in choices:
        chosen, with_ = replace(subject, options={**subject.options, **choice}), _format_options(choice)
        try:
            run, expected = _play(chosen, rounds=2)
        except (UsageError, ComputationError, UnsuitedError):
            continue  # a choice that goes with other options
        _, state = _play(chosen, data=small.replace_samples(data, "test"), rounds=2)
        small.require_equal(expected, state, f"with {with_}, the state depends on test samples")
        labels = replace(data, y=small.replace_samples(data, "test", inputs=False).y)
        before, after = (
            {"test": _predict(chosen, each, expected)["test"]} for each in (run, _run(chosen, data=labels, rounds=2))
        )
        small.require_equal(before, after, f"with {with_}, predictions depend on labels of test samples")
        sent = _facts(subject).get("SENDS_MORE", "")
        try:
            if "samples" not in sent:
                require_own_samples(chosen.name, chosen.options)
            if methods.load(subject.name).has_rounds and "up" in LINKS[methods.load(subject.name).KIND] and not sent:
                private_rounds.require_bounded(chosen.name, chosen.options)
        except UnsuitedError:
            continue
        except BrokenLawError as broken:
            raise BrokenLawError(f"with {with_}, {broken}") from None


def _list_choices(subject: Subject) -> list[dict[str, str]]:
    """Return every value of an option that has a few, words or truth values, other than the one that is judged."""
    code = methods.load(subject.name)
    given = config.plain(config.build(code.Config, dict(subject.options), subject.name))
    hints = typing.get_type_hints(code.Config, include_extras=True)
    choices = []
    for name, hint in hints.items():
        parts = _parts_of_hint(hint)
        values = [part for part in parts if isinstance(part, str)] + [True, False] * (bool in parts)
        choices += [{name: str(value).lower()} for value in values if value != given[name]]
    return choices


def _format_options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


@law("methods")
def differential_privacy_bounds_each_client(subject: Subject) -> None:
    """With differential privacy, a client changes the noisy mean of a round by its one clipped update, and nothing else
    that the server sends or by which other clients predict.

    The noise is calibrated to one update per client. If samples reach the server in another way, an epsilon would be
    stated that does not hold; such a method declares ``SENDS_MORE`` and is refused.
    """
    code = _require_rounds(subject)
    if "up" not in LINKS[code.KIND]:
        raise NotApplicable("clients send nothing to a server")
    if "SENDS_MORE" in _facts(subject):
        raise NotApplicable("SENDS_MORE declares that clients send more than updates")
    try:
        private_rounds.require_bounded(subject.name, subject.options)
    except UnsuitedError as error:
        raise NotApplicable(error.message) from None
    except BrokenLawError as broken:
        declare = 'SENDS_MORE = "numbers of samples", for example'
        message = f"{broken}; a method that needs this declares it ({declare}), and is refused with --dp-epsilon"
        raise BrokenLawError(message) from None


@law("methods")
def a_resumed_run_gives_the_same_bytes(subject: Subject) -> None:
    """A run that is stopped after a round, stored and resumed ends with the same state and predictions.

    The state must contain everything that later rounds read, as tensors, so that a long run survives a crash.
    """
    run, expected = _play(subject, rounds=4)
    stopped = small.play_rounds(subject.name, _run(subject, rounds=4), last=2)
    resumed_run = _run(subject, rounds=4)
    resumed = small.play_rounds(subject.name, resumed_run, first=2, state=_restore(*_store(stopped), resumed_run))
    small.require_equal(expected, resumed, "the state after resuming differs")
    a, b = _predict(subject, run, expected), _predict(subject, resumed_run, resumed)
    small.require_equal(a, b, "predictions after resuming differ")


def _store(state: State) -> tuple[bytes, list[str]]:
    """Return a state as a checkpoint has it: its bytes, and the order of its names, which they do not keep."""
    flat = state_files.flatten(state)
    return save(flat), [*flat]


def _restore(stored: bytes, names: Sequence[str], run: Run) -> State:
    """Undo ``_store``."""
    flat = load(stored)
    return state_files.nest({name: flat[name] for name in names}, run)


@law("methods")
def another_process_gives_the_same_bytes(subject: Subject) -> None:
    """A run gives the same state and predictions in another process, also if it is stopped here and resumed there.

    A run that is killed continues in a new process, where module variables have their first values and Python orders
    sets of strings in another way. So do ``pfl predict`` and ``pfl export``, which read the final state.
    """
    run, state = _run(subject, rounds=_ROUNDS), None
    stored: dict[int, tuple[bytes, list[str]]] = {}
    for last in (0, _ROUNDS // 2, _ROUNDS) if methods.load(subject.name).has_rounds else (0,):
        state = small.play_rounds(subject.name, run, max(stored, default=0), last, state)
        stored[last] = _store(state)
    assert state is not None
    expected = _predict(subject, run, state)
    starts: list[tuple[int | None, tuple[bytes, list[str]]]] = [(None, (b"", []))]
    for first, content in starts + list(stored.items()):
        if first == 0 and len(stored) > 1:
            continue  # a run that begins there has the same rounds
        resumed, answers = other_process.call(_resume, subject, first, content)
        where = "begun" if first is None else f"resumed after round {first} of {_ROUNDS}"
        other = _restore(*resumed, _run(subject))
        small.require_equal(state, other, f"the state of a run that is {where} in another process differs")
        small.require_equal(expected, answers, f"predictions of a run that is {where} in another process differ")


def _resume(
    subject: Subject, first: int | None, stored: tuple[bytes, list[str]]
) -> tuple[tuple[bytes, list[str]], dict[str, NDArray[np.float32]]]:
    """Return the state and the predictions of a run that is resumed after ``first`` rounds, or begun."""
    run = _run(subject, rounds=_ROUNDS)
    state = None if first is None else _restore(*stored, run)
    state = small.play_rounds(subject.name, run, first or 0, state=state)
    return _store(state), _predict(subject, run, state)


@law("methods")
def zero_rounds_are_enough_to_predict(subject: Subject) -> None:
    """With zero rounds, the state can be stored and clients predict.

    The start of a learning curve is a run without rounds.
    """
    run, state = _play(subject, rounds=0)
    save(state_files.flatten(state))
    require("test" in _predict(subject, run, state), "personalize predicts no test samples")


@law("methods")
def the_order_of_clients_does_not_matter(subject: Subject) -> None:
    """``personalize`` gives a client the same predictions whatever the order of the clients.

    Clients are personalized in batches that fit into memory.
    """
    run, state = _play(subject)
    forward = _predict(subject, run, state)
    backward = _predict(subject, run, state, run.clients[::-1].copy())
    for split in forward:
        sizes = run.federation.sizes(split)
        ends = np.cumsum(sizes)[:-1], np.cumsum(sizes[::-1])[:-1]
        parts = np.split(forward[split], ends[0]), np.split(backward[split], ends[1])[::-1]
        first, second = ({split: np.concatenate(each)} for each in parts)
        small.require_equal(first, second, "predictions change when clients are passed in reverse order")


@law("methods")
def clients_are_trained_in_any_number_at_once(subject: Subject) -> None:
    """The state is the same, up to rounding, if the clients of a round are trained two at a time.

    Clients are trained in parts that fit into memory. What belongs to a client, such as its noise, must depend on its
    id and not on its place in a part.
    """
    _require_rounds(subject)
    _, expected = _play(subject, participation=1.0)
    run = _run(subject, participation=1.0)
    run.engine.clients_that_fit = lambda size: 2  # type: ignore[method-assign]
    state = small.play_rounds(subject.name, run)
    first, second = (state_files.flatten(federations.drop_measurements(each)) for each in (expected, state))
    for name, value in first.items():
        other = second.get(name)
        require(other is not None and other.shape == value.shape, f"{name} of the state has another shape")
        if other is None or not value.is_floating_point():
            continue
        moved = float((value - other).abs().nan_to_num(0, 0, 0).max()) if value.numel() else 0.0
        require(moved <= _RENAMED, f"training the clients two at a time moves {name} of the state by {moved:.1e}")


@law("methods")
def a_client_predicts_the_same_alone(subject: Subject) -> None:
    """``personalize`` gives a client the same predictions alone and together with others, up to rounding.

    ``pfl predict`` and ``pfl export`` personalize one client.
    """
    run, state = _play(subject)
    together = _predict(subject, run, state)["test"]
    ends = np.concatenate([[0], np.cumsum(run.federation.sizes("test"))])
    for client in run.clients:
        alone = _predict(subject, run, state, np.asarray([client]))["test"]
        difference = float(np.abs(alone - together[ends[client] : ends[client + 1]]).max(initial=0))
        require(
            difference <= _ROUNDING,
            f"client {client} predicts otherwise alone: probabilities differ by {difference:.1e}",
        )


@law("methods")
def only_links_of_its_kind_carry_bytes(subject: Subject) -> None:
    """Only the links of the method's KIND carry bytes, and none while clients personalize.

    Bytes are counted where models are sent: ``run.download``, ``run.average``, ``run.send``.
    """
    run, state = _play(subject)
    before = dict(run.traffic)
    _predict(subject, run, state)
    require(run.traffic == before, "bytes were sent while clients personalized")
    kind = _facts(subject)["KIND"]
    used = {link for link, sent_bytes in run.traffic.items() if sent_bytes}
    require(used <= set(LINKS[kind]), f"a method of kind {kind} sent over {', '.join(sorted(used))}")
    if methods.load(subject.name).has_rounds and kind == "server":
        require(used == {"up", "down"}, f"bytes were sent {' and '.join(sorted(used)) or 'nowhere'}, not up and down")


@law("methods")
def bytes_are_counted_once_for_each_client(subject: Subject) -> None:
    """Bytes are counted once for each client that sends or receives them.

    Costs are compared in bytes. A method that counts a model once for all clients of a round seems to cost a tenth. The
    law compares what is counted with what clients train from and upload, and rounds of two and of six clients.
    """
    code = methods.load(subject.name)
    if not LINKS[code.KIND]:
        raise NotApplicable("clients send and receive nothing")
    run = _run(subject)
    exchanges = Exchanges(run)
    state = code.setup(run)
    for t in range(run.settings.rounds if code.has_rounds else 0):
        exchanges.begin_round()
        state = code.train_round(run, state, t)
        exchanges.end_round()
        faults = exchanges.faults + ([] if "SENDS_MORE" in _facts(subject) else exchanges.excess)
        require(not faults, f"round {t + 1}: {next(iter(faults), '')}")
        seen = f"by round {t + 1} clients trained from {exchanges.needed} bytes that they did not have"
        require(exchanges.needed <= exchanges.sent, f"{seen}; {exchanges.sent} bytes were sent beside run.download")
        if exchanges.averaged_up and "SENDS_MORE" not in _facts(subject):
            more = exchanges.raw_up
            require(not more, f"round {t + 1} uploads {more} bytes besides averaged uploads; there is no SENDS_MORE")
    _require_no_unsent_models(subject, run, state, exchanges)
    few, many = (_count_bytes(subject, share) for share in (1 / 6, 1 / 2))
    for link in LINKS[code.KIND]:
        seen = f"{few[link]} bytes go {link} in rounds of two clients, {many[link]} in rounds of six"
        require(many[link] >= 2 * few[link], seen)


def _require_no_unsent_models(subject: Subject, run: Run, state: State, exchanges: Exchanges) -> None:
    """Require that no client predicts by what another one keeps in a table of the state and has never sent."""
    for key, table in state.items():
        kept = table.written if isinstance(table, ModelTable) else ()
        for client in [int(each) for each in kept if len(kept)][:2]:
            row = table[[client]]
            secret = [name for name, value in row.items() if not exchanges.has_sent(client, value[0])]
            if not secret or not all(row[name].is_floating_point() for name in secret):
                continue
            others = run.clients[run.clients != client]
            expected = _predict(subject, run, copy.deepcopy(state), others)
            changed = copy.deepcopy(state)
            changed[key][[client]] = {name: value + 1 if name in secret else value for name, value in row.items()}
            seen = f"others predict by {', '.join(secret[:2])} in '{key}' of client {client}"
            moved = _predict(subject, run, changed, others)
            small.require_equal(expected, moved, f"{seen}, which it has never sent")


def _count_bytes(subject: Subject, participation: float) -> dict[str, int]:
    """Return the bytes that two rounds of twelve clients send over each link; without rounds, the setup."""
    code, share = methods.load(subject.name), participation if methods.load(subject.name).has_rounds else 1
    data = federations.make_tiny_clients(12 if code.has_rounds else round(12 * participation))
    run = _run(subject, data=data, participation=share, rounds=2, epochs=1)
    state = code.setup(run)
    before = dict(run.traffic) if code.has_rounds else dict.fromkeys(run.traffic, 0)
    small.play_rounds(subject.name, run, state=state)
    return {link: sent - before[link] for link, sent in run.traffic.items()}


@law("methods")
def uploads_have_the_weights_of_their_own_clients(subject: Subject) -> None:
    """The server weights each upload by its own client: renaming the clients does not change what the server computes.

    Uploads arrive in parts, in which places are not client ids. Weights that change places give a wrong mean without
    any error. A warning says that weights are neither equal nor numbers of samples.
    """
    code = methods.load(subject.name)
    if "up" not in LINKS[code.KIND]:
        raise NotApplicable("clients send nothing to a server")
    if "samples" in _facts(subject).get("SENDS_MORE", ""):
        raise NotApplicable("SENDS_MORE declares that clients send samples, from which the server draws")
    data, order = federations.make_repetitive_clients(), np.asarray([3, 6, 0, 5, 1, 2, 4])
    states, followed = [], []
    for samples in (data, federations.reorder_clients(data, order)):
        # One minibatch of equal samples: no draw changes what a client trains.
        run = _run(subject, data=samples, participation=1.0, batch_size=64, rounds=2, epochs=1)
        followed.append(Exchanges(run))
        states.append(state_files.flatten(federations.drop_records(code, small.play_rounds(subject.name, run))))
    sizes = data.sizes("train").astype(np.float64)
    for clients, weights in followed[0].weights:
        swapped = np.allclose(np.sort(weights / weights.sum()), np.sort(sizes[clients] / sizes[clients].sum()))
        own = np.allclose(weights / weights.sum(), sizes[clients] / sizes[clients].sum())
        require(own or not swapped, f"clients with {_list(sizes[clients])} samples have weights {_list(weights)}")
    # A method that draws may draw other clients after they are renamed.
    if not set(followed[0].draws) - {"cohort", "dropout", "upload"}:
        for name, value in states[0].items():
            other = states[1].get(name, value)
            if value.shape != other.shape or value.shape[:1] == sizes.shape or not value.is_floating_point():
                continue
            moved = float((value - other).abs().max()) if value.numel() else 0.0
            require(moved <= _RENAMED, f"renaming the clients moves {name} of the state by {moved:.1e}")
    for clients, weights in followed[0].weights:
        if len(clients) > 3 and (weights > 0).all() and _grow_otherwise(weights, sizes[clients]):
            seen = f"clients with {_list(sizes[clients])} samples have weights {_list(weights)}"
            raise DoubtfulError(f"{seen}, which are neither equal nor numbers of samples")


def _grow_otherwise(weights: NDArray[np.float64], sizes: NDArray[np.float64]) -> bool:
    """Return whether weights are a power of sizes, but neither equal nor proportional to them."""
    (power, _), (residual, *_), *_ = np.polyfit(np.log(sizes), np.log(weights), 1, full=True)
    return bool(residual < 1e-6 and min(abs(power), abs(power - 1)) > 0.01)


def _list(numbers: NDArray[np.float64]) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers)


@law("methods")
def clients_read_only_what_they_download(subject: Subject) -> None:
    """Clients train and upload the same if every number of the server that they did not download is nan.

    Among real sites, a client has of the server only what ``run.download`` returned. What clients keep is declared by
    ``KEEPS``, unless it is a table.
    """
    with needing("sites"):
        from pflcli.plugins.sites.admission import require_same_elsewhere
    require_same_elsewhere(subject.name, subject.options)


@law("methods")
def personalize_does_not_change_the_state(subject: Subject) -> None:
    """``personalize`` changes neither the state nor the backbone.

    It is called during training to measure accuracy, and again for each batch of clients.
    """
    run, state = _play(subject)
    before, backbone = copy.deepcopy(state), copy.deepcopy(run.backbone)
    _predict(subject, run, state)
    small.require_equal(before, state, "personalize changed the state")
    small.require_equal(backbone, run.backbone, "personalize changed the backbone")


@law("methods")
def clients_predict_with_the_global_model_unless_declared(subject: Subject) -> None:
    """Clients predict with ``state["global"]``, unless the file has ``PERSONAL_MODELS`` or ``ADAPTS`` (not both).

    The accuracies in ``rounds.csv`` are measured with the models that these declare.
    """
    facts = _facts(subject)
    declared = {"PERSONAL_MODELS", "ADAPTS"} & set(facts)
    require(len(declared) < 2, "the file has both PERSONAL_MODELS and ADAPTS")
    if declared or facts["KIND"] in ("posthoc", "local"):
        return
    run, state = _play(subject)
    require("global" in state, 'the state has no "global" model, and the file no PERSONAL_MODELS or ADAPTS')
    expected = run.predictor(run.clients, state["global"]).answer("validation")["p"]
    same = np.array_equal(_predict(subject, run, state)["validation"], expected)
    require(same, 'clients do not predict with state["global"]: the file must have PERSONAL_MODELS or ADAPTS')


@law("methods")
def clients_train_for_the_epochs_of_the_settings(subject: Subject) -> None:
    """Three local epochs give another state than one, unless the file has ``IGNORES = ("epochs",)``.

    Methods are compared at equal local work. A method whose clients train for a number of epochs of its own, whatever
    ``--epochs`` and ``--steps`` say, does more or less of it.
    """
    _require_rounds(subject)
    if "epochs" in methods.load(subject.name).IGNORES:
        raise NotApplicable("IGNORES declares that --epochs has no effect")
    data = federations.make_equal_clients()
    one, three = (federations.drop_measurements(_play(subject, data=data, epochs=epochs)[1]) for epochs in (1, 3))
    require(
        bool(small.find_difference(one, three)),
        "the state after 3 local epochs is the same as after 1, so --epochs has no effect",
    )


@law("methods")
def steps_of_an_epoch_are_an_epoch(subject: Subject) -> None:
    """For clients of equal size, training for the ``--steps`` of an epoch gives the same bytes as ``--epochs``.

    Methods are compared at equal local work; a method that counts its own steps does more or less of it.
    """
    data = federations.make_equal_clients()
    run, expected = _play(subject, data=data, epochs=2)
    answers = _predict(subject, run, expected)["test"]
    for steps in (4, 2):  # 2 for methods whose minibatches are twice as large, such as Per-FedAvg's
        other, state = _play(subject, data=data, steps=steps)
        equal = small.are_equal(*map(federations.drop_measurements, (expected, state)))
        if equal and answers.tobytes() == _predict(subject, other, state)["test"].tobytes():
            return
    raise BrokenLawError("neither 4 steps nor 2 of double size equal 2 epochs of 2 minibatches")


@law("methods")
def absent_clients_change_no_other_draw(subject: Subject) -> None:
    """With ``--dropout``, the clients that complete the first round train as they do without dropout.

    Random numbers depend on the client and the round, not on which other clients take part.
    """
    code = _require_rounds(subject)
    trained: list[dict[int, dict[str, torch.Tensor]]] = []
    for rate in (0.0, 0.4):
        run = _run(subject, rounds=1, mode="loop", participation=1.0, dropout=rate)
        recorded = {client: record_training(run, client) for client in small.PARTICIPANTS}
        state = loop.set_up(run, subject.name, code).state
        for calls in recorded.values():
            calls.clear()  # clients do not drop out of the setup
        loop.play_round(run, subject.name, code, state, 0)
        trained.append({client: calls[0] for client, calls in recorded.items() if calls})
    missing = set(run.attendance.dropped.tolist())
    require(bool(missing), "no client dropped out of the round")
    require(trained[1].keys() == trained[0].keys() - missing, "clients trained that had dropped out, or others did not")
    for client, params in trained[1].items():
        small.require_equal(trained[0][client], params, f"client {client} trains otherwise if others drop out")


@law("methods")
def a_round_is_that_of_the_clients_that_complete_it(subject: Subject) -> None:
    """A round in which clients drop out gives the same state as one for which only the others were selected.

    A server that divides a sum by the number of selected clients moves less far whenever one of them drops out.
    """
    code = _require_rounds(subject)
    run = _run(subject, rounds=1, participation=1.0, dropout=0.4)
    state, _ = _play_recorded(code, subject.name, run)
    present, selected = run.attendance.present, len(run.attendance.selected)
    other = _run(subject, rounds=1, participation=len(present) / selected)
    select = other.cohort

    def cohort(t: int) -> NDArray[np.int64]:
        select(t)
        other.attendance.selected = present
        return other.attendance.present

    other.cohort = cohort  # type: ignore[method-assign]
    expected, _ = _play_recorded(code, subject.name, other)
    first, second = federations.drop_measurements(expected), federations.drop_measurements(state)
    seen = f"{selected} clients are selected, and {len(present)} complete the round"
    small.require_equal(first, second, f"{seen}: the state differs from that of a round of these {len(present)}")


@law("methods")
def a_round_without_uploads_changes_nothing(subject: Subject) -> None:
    """A round that no client completes leaves the state unchanged and uploads nothing.

    In real federations all clients may be offline for a while.
    """
    code = _require_rounds(subject)
    run = _run(subject, rounds=2, dropout=1 - 1e-9)
    begun = code.setup(_run(subject, rounds=2))
    state, rows = _play_recorded(code, subject.name, run)
    small.require_equal(begun, state, "the state changed")
    written = [name for name, table in state.items() if isinstance(table, ModelTable) and len(table.written)]
    require(not written, f"the table {', '.join(written)} was written")
    for row in rows[-2:]:
        sent = row["bytes_up"] + row["bytes_peer"]
        require(row["clients"] == sent == 0, f"round {row['round']} has {row['clients']} clients and {sent} bytes sent")
    require(bool(np.isfinite(_predict(subject, run, state)["test"]).all()), "predictions are not finite")


def _play_recorded(
    code: Method, name: str, run: Run, before_round: Callable[[int], None] = lambda t: None
) -> tuple[State, list[dict[str, Any]]]:
    """Return the state after all rounds and the rows of ``rounds.csv``, as ``pfl personalize`` runs them."""
    progress = loop.set_up(run, name, code)
    state, rows = progress.state, progress.before
    for t in range(run.settings.rounds if code.has_rounds else 0):
        before_round(t)
        state, row = loop.play_round(run, name, code, state, t)
        rows.append(row)
    return state, rows


@law("methods")
def a_client_that_diverges_is_left_out(subject: Subject) -> None:
    """If a client's training diverges, the others continue as if it had dropped out, and the divergence is recorded.

    One client with damaged samples must not end the run of all.
    """
    code = _require_rounds(subject)
    run = _run(subject)

    def damage(t: int) -> None:
        if t == 1:
            run.federation.x[run.federation.rows(_DIVERGING, "train")] = 3e38

    state, rows = _play_recorded(code, subject.name, run, damage)
    left_out = {client for row in rows for client in row["diverged"]}
    require(left_out <= {_DIVERGING}, f"clients {sorted(left_out - {_DIVERGING})} were left out too")
    with run.personalizing():
        predictor = code.personalize(run, state, run.clients)
        parts = {split: predictor.answer(split) for split in predictor.splits}
        answers, _ = absences.replace_nonfinite(run, run.clients, parts)
    require(all(np.isfinite(each["p"]).all() for each in answers.values()), "predictions are not finite")
    other = _run(subject)
    _drop_out(other, _DIVERGING, first=1)
    expected, _ = _play_recorded(code, subject.name, other)
    if left_out:
        first, second = federations.drop_measurements(expected), federations.drop_measurements(state)
        small.require_equal(first, second, "the state differs from that of a run in which the client dropped out")


def _drop_out(run: Run, client: int, first: int) -> None:
    """Let a client drop out of all rounds from ``first``."""
    select = run.cohort

    def cohort(t: int) -> NDArray[np.int64]:
        selected = select(t)
        if t < first:
            return selected
        run.attendance.dropped = run.attendance.selected[run.attendance.selected == client]
        return run.attendance.present

    run.cohort = cohort  # type: ignore[method-assign]


@law("methods")
def divergence_is_reported(subject: Subject) -> None:
    """If the training of all clients diverges, the run ends with one error that suggests a smaller ``--lr``.

    Predictions of non-finite models look like chance and hide the cause.
    """
    code = _require_rounds(subject)
    try:
        _play_recorded(code, subject.name, _run(subject, lr=1e37))
    except ComputationError as error:
        require("non-finite" in error.message, f"the error is: {error.message}")
        require(any("--lr" in line for line in error.fix), "the error does not suggest a smaller --lr")
    else:
        raise BrokenLawError("a run at a learning rate of 1e37 ends without an error")


@law("methods")
def rounds_lower_the_loss(subject: Subject) -> None:
    """For clients whose classes are easy to separate, eight rounds lower the loss of the global model and of
    predictions (a warning).

    A step in the wrong direction gives no error. Its result looks like that of a hard dataset.
    """
    _require_rounds(subject)
    data = federations.make_separable_clients()
    y, losses = data.labels_of(data.clients, "test"), dict[str, list[float]]()
    for rounds in (0, _LATER):
        run, state = _play(subject, data=data, rounds=rounds, participation=1.0)
        measured = {"predictions": _predict(subject, run, state)["test"]}
        model = state.get("global")
        if isinstance(model, dict) and parameters.outline(model) == parameters.outline(run.init):
            measured["the global model"] = run.predictor(run.clients, model).answer("test")["p"]
        for name, p in measured.items():
            losses.setdefault(name, []).append(float(run.task.bounded_losses(p, y).mean()))
    for name, (start, end) in losses.items():
        if end > max(start, _LOW_LOSS):
            raise DoubtfulError(f"the loss of {name} is {start:.2f} at the start and {end:.2f} after {_LATER} rounds")


@law("methods")
def declared_tasks_are_learned(subject: Subject) -> None:
    """The method learns quantities, quantiles, counts and series, if ``TASKS`` declares them, better than their mean.

    Code that counts on classes fails, or learns nothing, when labels are something else. With ``any``, it learns all.
    """
    code = methods.load(subject.name)
    kinds = [kind for kind in ("quantity", "quantile", "count", "series") if {kind, "any"} & {*code.TASKS}]
    if not kinds:
        raise NotApplicable("the method learns classes only")
    for kind in kinds:
        data = federations.make_numbers(kind)
        lr = 0.2 if kind == "quantile" else 0.02  # whose gradients are shorter: at most 1 over the number of quantiles
        run, state = _play(subject, data=data, rounds=_LATER, participation=1.0, batch_size=8, lr=lr)
        p, y = _predict(subject, run, state)["test"], data.labels_of(data.clients, "test")
        shape = (len(y), data.task.outputs)
        require(p.shape == shape, f"predictions of {len(y)} labels ({kind}) are {p.shape}, not {shape}")
        require(bool(np.isfinite(p).all()), f"a prediction of a {kind} is not finite")
        if code.has_rounds:
            score = float(data.task.scores(p, y).mean())
            require(score > 0, f"after {_LATER} rounds, the {data.task.score} is {score:.2f}, and that of the mean 0")


@law("methods")
def predictions_follow_the_unit_of_a_client(subject: Subject) -> None:
    """With targets standardized by client, changing the unit of a client's target changes its predictions alike, and
    those of no other client.

    A method that reads a target in its unit where models learn standardized ones gives no error.
    """
    learns = {*methods.load(subject.name).TASKS}
    kinds = [kind for kind in ("quantity", "quantile") if {kind, "any"} & learns] or [*({"series"} & learns)]
    if not kinds:
        raise NotApplicable("the method learns no quantities")
    for kind in kinds:
        made = federations.make_numbers(kind)
        data = replace(made, task=made.task.scaled_by_client()).fitted()
        found = list[NDArray[np.float32]]()
        for each in (data, federations.change_unit(data, 1, _SHIFT, _SCALE)):
            run, state = _play(subject, data=each, rounds=2, participation=1.0, batch_size=8, lr=0.02)
            found.append(run.restore(_predict(subject, run, state)["test"], run.clients, "test"))
        before, after = found
        scale = np.repeat(np.where(data.clients == 1, _SCALE, 1.0), data.sizes("test"))[:, None]
        expected = scale * before + np.where(scale == _SCALE, _SHIFT, 0.0)
        apart = float((np.abs(after - expected) / scale).max() / data.task.size)
        require(apart < _OTHER_UNIT, f"with a {kind} of another unit, predictions differ by {apart:.2g} of the target")


@law("methods")
def extreme_options_work_or_are_refused(subject: Subject) -> None:
    """With any number as an option, and each choice of another, the run works or ends with an error that names the
    cause.

    Tuning tries extreme values, and users mistype numbers.
    """
    hints = typing.get_type_hints(methods.load(subject.name).Config, include_extras=True)
    parts = {name: _parts_of_hint(hint) for name, hint in hints.items()}
    numeric = [name for name, own in parts.items() if float in own]
    choices = [{name: part} for name, own in parts.items() for part in own if isinstance(part, str)]
    trials: list[dict[str, Any]] = [{name: value} for name in numeric for value in ("1e30", "1e-30")]
    trials += [{**choice, name: "1e30"} for choice in choices for name in numeric if name not in choice]
    for options in ({}, *choices, *trials):
        extreme = replace(subject, options={**subject.options, **options})
        with suppress(UsageError, ComputationError):
            run, state = _play(extreme, rounds=1, **({} if options else {"lr": 1e38}))
            tried = _format_options(options) or "lr=1e38"
            require("test" in _predict(extreme, run, state), f"no predictions with {tried}")


def _parts_of_hint(hint: Any) -> list[Any]:
    """Return the types and the words of choices that an annotation consists of."""
    return [part for arg in typing.get_args(hint) for part in _parts_of_hint(arg)] or [hint]


@law("methods")
def the_grid_has_valid_values(subject: Subject) -> None:
    """``GRID`` names options of the method, with values that they accept.

    ``pfl tune`` tries them by default.
    """
    code = methods.load(subject.name)
    known = config.plain(code.Config())
    for name, values in code.GRID.items():
        require(name in known, f"GRID names '{name}', which is not an option")
        for value in values:
            config.build(code.Config, {name: value}, subject.name)


@law("methods")
def no_name_continues_one_of_a_method(subject: Subject) -> None:
    """No name of the file continues one that a method may have, such as ``GRID_T`` for ``GRID`` (a warning).

    ``pfl`` ignores such a name: what it should declare is not declared.
    """
    if found := registry.find_longer_name(registry.import_file("methods", subject.name), Method):
        raise DoubtfulError(f"the file has '{found[0]}' and no '{found[1]}': only the latter has a meaning for pfl")


@law("methods")
def costs_that_grow_with_pairs_are_declared(subject: Subject) -> None:
    """Costs that grow with the square of the number of clients are declared by ``PAIRS_SENT`` and ``PAIRS_KEPT``.

    ``pfl`` reports before a run how many bytes 10,000 clients would send and store.
    """
    _require_rounds(subject)
    sent_bytes, kept_bytes = list[int](), list[int]()
    for clients in (48, 96, 192):  # more than the neighbours that any client has by default
        run, state = _play(subject, data=federations.make_tiny_clients(clients), participation=1.0, rounds=2, epochs=1)
        sent_bytes.append(sum(run.traffic.values()))
        kept_bytes.append(state_files.size_without_tables(state))
    facts = _facts(subject)
    if is_quadratic(sent_bytes):
        require("PAIRS_SENT" in facts, f"48, 96 and 192 clients send {sent_bytes} bytes; the file has no PAIRS_SENT")
    if is_quadratic(kept_bytes):
        declared = {"PAIRS_SENT", "PAIRS_KEPT"} & set(facts)
        require(bool(declared), f"the state of 48, 96 and 192 clients has {kept_bytes} bytes; there is no PAIRS_KEPT")


def is_quadratic(values: list[int]) -> bool:
    """Return whether a quadratic through the values at n, 2n and 4n clients has a square term that matters."""
    first, second = np.diff(values)
    return bool(second - 2 * first > 0.1 * second)
