"""The laws of upload steps."""

from __future__ import annotations

import numpy as np
import torch

from pflcli.federation import uploads
from pflcli.federation.uploads import Step
from pflcli.laws import Subject, law, require
from pflcli.laws import small_federation as small
from pflcli.parameters import Params, Stacked, pick, repeat


def _step(subject: Subject) -> Step:
    step = uploads.load(subject.name)
    return step if not subject.options else uploads.load(":".join([subject.name, *map(str, subject.options.values())]))


def _models() -> tuple[Stacked, Stacked]:
    """Return four trained models (4, ...) and the model that the clients received, repeated."""
    draw = torch.Generator().manual_seed(0)
    start: Params = {
        "weight": torch.randn(6, 5, generator=draw),
        "bias": torch.randn(6, generator=draw),
        "count": torch.tensor(7),
    }
    downloaded = repeat(start, 4)
    trained = {
        name: value + torch.randn(value.shape, generator=draw) if value.is_floating_point() else value + 1
        for name, value in downloaded.items()
    }
    return trained, downloaded


def _draw(client: int) -> np.random.Generator:
    return np.random.default_rng([1, client])


@law("uploads")
def uploads_keep_their_form(subject: Subject) -> None:
    """The server receives tensors with the names, shapes and types that clients send, all finite.

    Further steps and the aggregator read these tensors.
    """
    trained, downloaded = _models()
    received = _step(subject).apply(trained, downloaded, _draw)
    require(received.keys() == trained.keys(), f"names change to {', '.join(received)}")
    for name, value in received.items():
        like = trained[name]
        require(value.shape == like.shape and value.dtype == like.dtype, f"{name} changes its shape or type")
        require(bool(torch.isfinite(value.double()).all()), f"{name} is not finite")


@law("uploads")
def models_are_not_changed_in_place(subject: Subject) -> None:
    """The step does not change its arguments in place.

    Clients keep using the models that they trained.
    """
    trained, downloaded = _models()
    before = [{name: value.clone() for name, value in stack.items()} for stack in (trained, downloaded)]
    _step(subject).apply(trained, downloaded, _draw)
    require(small.are_equal(before[0], trained) and small.are_equal(before[1], downloaded), "an argument was changed")


@law("uploads")
def each_upload_stands_alone(subject: Subject) -> None:
    """What the server receives from a client does not depend on the other clients in the stack.

    In a real federation the step runs on the client.
    """
    trained, downloaded = _models()
    step = _step(subject)
    together = step.apply(trained, downloaded, _draw)
    for client in range(4):
        rows = slice(client, client + 1)
        alone = step.apply(
            {name: value[rows] for name, value in trained.items()},
            {name: value[rows] for name, value in downloaded.items()},
            lambda i, client=client: _draw(client + i),  # type: ignore[misc]
        )
        same = all(torch.allclose(alone[name][0], value[client]) for name, value in together.items())
        require(same, f"the upload of client {client} depends on the others")


@law("uploads")
def random_steps_are_declared(subject: Subject) -> None:
    """A step that draws random numbers has ``RANDOM = True``, and draws only from ``draw(i)``.

    A resumed run then draws the same numbers. Workers add up uploads only if no step is random.
    """
    trained, downloaded = _models()
    step, draws = _step(subject), list[int]()

    def draw(client: int) -> np.random.Generator:
        draws.append(client)
        return _draw(client)

    first, second = (step.apply(trained, downloaded, draw) for _ in range(2))
    require(small.are_equal(first, second), "the same generators give other uploads")
    require(step.is_random or not draws, "the step calls draw(i); the file has no RANDOM = True")


@law("uploads")
def bytes_are_whole_numbers(subject: Subject) -> None:
    """``size`` returns a positive whole number of bytes.

    The byte columns of tables are sums of these numbers.
    """
    trained, _ = _models()
    one = pick(trained, 0)
    size = _step(subject).size(one, sum(value.numel() * value.element_size() for value in one.values()))
    require(isinstance(size, int) and size > 0, f"size returns {size!r}")
