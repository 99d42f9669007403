"""The laws of aggregators."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core.federation import aggregators
from pflcli.core.parameters import Params, Stacked, pick, repeat
from pflcli.plugins.checks.laws import DoubtfulError, Subject, law, other_process
from pflcli.workflow.admission import BrokenLawError, describe_error, require
from pflcli.workflow.admission import small_federation as small

_CLIENTS = 9
_MANY_CLIENTS = 1200
"""More clients than those of which an aggregator may look at the first only, or at ten at a time."""
_WEIGHTS = np.asarray([3.0, 1.0, 5.0, 2.0, 8.0, 4.0, 1.0, 6.0, 2.0])


def _models(seed: int = 0, clients: int = _CLIENTS) -> tuple[Stacked, Params]:
    """Return the uploads of clients (m, ...), by default of nine, and the model that they received."""
    draw = torch.Generator().manual_seed(seed)
    start: Params = {"weight": torch.randn(6, 5, generator=draw), "bias": torch.randn(6, generator=draw)}
    uploads = {
        name: value + 0.1 * torch.randn(value.shape, generator=draw) for name, value in repeat(start, clients).items()
    }
    return uploads, start


def _combine(subject: Subject, start: Params, *parts: tuple[Stacked, NDArray[np.float64]]) -> Params:
    """Return the model that the aggregator makes of parts of uploads."""
    text = ":".join([subject.name, *map(str, subject.options.values())])
    collection = aggregators.load(text).begin(start)
    for stacked, weights in parts:
        collection.add(stacked, weights)
    return collection.value()


def _rows(stacked: Stacked, rows: NDArray[np.int64]) -> Stacked:
    return {name: value[torch.from_numpy(rows)] for name, value in stacked.items()}


def _require_close(actual: Params, expected: Params, otherwise: str) -> None:
    close = actual.keys() == expected.keys() and all(
        torch.allclose(value, expected[name], rtol=1e-4, atol=1e-5) for name, value in actual.items()
    )
    require(close, f"{otherwise} ({small.find_difference(actual, expected)})")


@law("aggregators")
def the_model_has_the_form_of_uploads(subject: Subject) -> None:
    """The model has the names, shapes and types of an upload, and is finite, for one upload as for many.

    It is sent to clients in the next round, and most clients of a round may drop out.
    """
    uploads, start = _models()
    for count in (_CLIENTS, 3, 2, 1):
        _require_form(_combine(subject, start, (_rows(uploads, np.arange(count)), _WEIGHTS[:count])), start, count)


def _require_form(model: Params, start: Params, count: int) -> None:
    require(model.keys() == start.keys(), f"names change to {', '.join(model)}")
    for name, value in model.items():
        seen = f"{name} of the model of {count} uploads is"
        require(value.shape == start[name].shape, f"{seen} {tuple(value.shape)}")
        require(value.dtype == start[name].dtype, f"{seen} {value.dtype}")
        require(bool(torch.isfinite(value).all()), f"{seen} not finite")


@law("aggregators")
def single_numbers_and_counts_are_combined(subject: Subject) -> None:
    """Parameters that are single numbers, and integers, are combined too, with the same types (a warning otherwise).

    Networks with a learned temperature have the former, and batch normalization counts batches in the latter.
    """
    uploads, start = _models()
    start |= {"temperature": torch.tensor(1.0), "count": torch.tensor(7)}
    uploads |= {"temperature": torch.linspace(0.9, 1.1, _CLIENTS), "count": torch.arange(_CLIENTS) + 7}
    try:
        _require_form(_combine(subject, start, (uploads, _WEIGHTS)), start, _CLIENTS)
    except BrokenLawError as error:
        raise DoubtfulError(str(error)) from None
    except Exception as error:
        raise DoubtfulError(describe_error(error)) from None


@law("aggregators")
def equal_uploads_are_their_own_aggregate(subject: Subject) -> None:
    """If all clients upload the same model, it is the result.

    An aggregator that moves a model that everyone agrees on never converges.
    """
    uploads, start = _models()
    one = pick(uploads, 0)
    model = _combine(subject, start, (repeat(one, _CLIENTS), _WEIGHTS))
    _require_close(model, one, "nine equal uploads give another model")


@law("aggregators")
def the_order_of_uploads_does_not_matter(subject: Subject) -> None:
    """The order in which uploads arrive does not change the result, up to rounding.

    Clients finish in any order.
    """
    for clients in (_CLIENTS, _MANY_CLIENTS):
        uploads, start = _models(clients=clients)
        weights = np.resize(_WEIGHTS, clients)
        order = np.random.default_rng(0).permutation(clients)
        expected = _combine(subject, start, (uploads, weights))
        actual = _combine(subject, start, (_rows(uploads, order), weights[order]))
        _require_close(actual, expected, f"another order of {clients} uploads gives another model")


@law("aggregators")
def uploads_may_arrive_in_parts(subject: Subject) -> None:
    """Adding uploads in several parts gives the same model as adding them at once.

    The clients of a round are trained in groups that fit into memory.
    """
    uploads, start = _models()
    first, second = np.arange(4), np.arange(4, _CLIENTS)
    parts = [(_rows(uploads, rows), _WEIGHTS[rows]) for rows in (first, second)]
    expected = _combine(subject, start, (uploads, _WEIGHTS))
    _require_close(_combine(subject, start, *parts), expected, "two parts give another model")


@law("aggregators")
def uploads_of_weight_zero_are_ignored(subject: Subject) -> None:
    """An upload of weight 0 does not change the model.

    Clients without samples have weight 0.
    """
    uploads, start = _models()
    wrong = {name: torch.cat([value, 1e3 + value[:1]]) for name, value in uploads.items()}
    expected = _combine(subject, start, (uploads, _WEIGHTS))
    model = _combine(subject, start, (wrong, np.append(_WEIGHTS, 0.0)))
    _require_close(model, expected, "an upload of weight 0 changes the model")


def _combine_parts(subject: Subject, seed: int = 0) -> Params:
    """Return the model of uploads that arrive in two parts."""
    uploads, start = _models(seed)
    first, second = np.arange(4), np.arange(4, _CLIENTS)
    return _combine(subject, start, *((_rows(uploads, rows), _WEIGHTS[rows]) for rows in (first, second)))


@law("aggregators")
def a_round_gives_the_same_bytes_whatever_came_before(subject: Subject) -> None:
    """The same uploads give the same model, bit for bit, after other rounds and in another process.

    A run that is killed continues in a new process, where module variables have their first values and Python orders
    sets of strings in another way. What a server remembers belongs into the state of a method.
    """
    expected = _combine_parts(subject)
    _combine_parts(subject, seed=1)
    others = {
        "after other ones": _combine_parts(subject),
        "in another process": other_process.call(_combine_parts, subject),
    }
    for when, model in others.items():
        difference = small.find_difference(expected, model)
        require(not difference, f"the same uploads give another model {when} ({difference})")


@law("aggregators")
def an_upload_has_its_own_weight(subject: Subject) -> None:
    """The influence of an upload on the model does not decrease with its own weight.

    Weights are numbers of samples. Weights that change places give a wrong mean without any error. A warning says that
    influence is neither equal nor proportional to weights.
    """
    uploads, start = _models()
    same = repeat(pick(uploads, 0), _CLIENTS)
    before = _combine(subject, start, (same, _WEIGHTS))
    influences = []
    for client in range(_CLIENTS):
        moved = {name: value.clone() for name, value in same.items()}
        for value in moved.values():
            value[client] += 1e-2
        after = _combine(subject, start, (moved, _WEIGHTS))
        influences.append(float(np.mean([float((after[name] - before[name]).mean()) for name in before])))
    influence = np.asarray(influences)
    if (influence < 1e-6).any():
        return  # such as the median, which one upload does not move
    order = np.argsort(_WEIGHTS, kind="stable")
    falls = np.diff(influence[order]) < -0.05 * influence.max()
    seen = f"uploads of weights {_WEIGHTS.tolist()} have influences {np.round(influence / influence.sum(), 3).tolist()}"
    require(not falls.any(), seen)
    power = np.polyfit(np.log(_WEIGHTS), np.log(influence), 1)[0]
    if min(abs(power), abs(power - 1)) > 0.1:
        raise DoubtfulError(f"{seen}, which are neither equal nor proportional")


@law("aggregators")
def arguments_are_not_changed(subject: Subject) -> None:
    """Aggregating does not change uploads or the downloaded model in place.

    Methods use both afterwards.
    """
    uploads, start = _models()
    before = [{name: value.clone() for name, value in model.items()} for model in (uploads, start)]
    _combine(subject, start, (uploads, _WEIGHTS))
    require(small.are_equal(before[0], uploads) and small.are_equal(before[1], start), "an argument was changed")


@law("aggregators")
def no_uploads_raise_an_error(subject: Subject) -> None:
    """Without any upload, ``value`` raises ValueError.

    The mean of no models is not defined, and no default would be right for every method.
    """
    _, start = _models()
    try:
        _combine(subject, start)
    except ValueError:
        return
    raise BrokenLawError("no uploads give a model")
