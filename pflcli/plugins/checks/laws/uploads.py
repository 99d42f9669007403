"""The laws of upload steps."""

from __future__ import annotations

import hashlib
import math
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core import config
from pflcli.core.errors import UsageError
from pflcli.core.federation import uploads
from pflcli.core.federation.uploads import Step
from pflcli.core.parameters import Params, Stacked, pick, repeat
from pflcli.plugins.checks.laws import DoubtfulError, Subject, law, other_process
from pflcli.workflow.admission import NotApplicable, describe_error, require
from pflcli.workflow.admission import small_federation as small


def _step(subject: Subject) -> Step:
    step = uploads.load(subject.name)
    return step if not subject.options else uploads.load(":".join([subject.name, *map(str, subject.options.values())]))


def _models(clients: int = 4, rows: int = 6, columns: int = 5, counted: int = 1) -> tuple[Stacked, Stacked]:
    """Return trained models (clients, ...) and the model that the clients received, repeated.

    Updates are normally distributed, that of the integer tensor is ``counted``.
    """
    draw = torch.Generator().manual_seed(0)
    start: Params = {
        "weight": torch.randn(rows, columns, generator=draw),
        "bias": torch.randn(rows, generator=draw),
        "count": torch.tensor(7),
    }
    downloaded = repeat(start, clients)
    trained = {
        name: value + torch.randn(value.shape, generator=draw) if value.is_floating_point() else value + counted
        for name, value in downloaded.items()
    }
    return trained, downloaded


_CLIENTS = 64
"""Clients whose updates are compared with what arrives of them."""
_SIGNIFICANT = 6.0
"""Standard errors beyond which a mean differs from zero."""
_MAX_BITS = 24.0
"""Bits of a float32 number without its exponent."""


def _draw(client: int, seed: int = 1) -> np.random.Generator:
    return np.random.default_rng([seed, client])


def _updates() -> tuple[Stacked, Stacked]:
    """Return many trained models (64, ...), whose integers are unchanged, and the model they began with."""
    return _models(_CLIENTS, 40, 25, counted=0)


@dataclass(frozen=True)
class _Arrival:
    """The updates of one tensor (64, n) as they are ``sent``, and as they ``arrive``."""

    name: str
    sent: NDArray[np.float64]
    received: NDArray[np.float64]

    @property
    def is_exact(self) -> bool:
        """Whether updates arrive as they are, up to rounding."""
        return np.allclose(self.sent, self.received, rtol=1e-4, atol=1e-5)


def _deliver(step: Step) -> list[_Arrival]:
    """Return what the step makes of normally distributed updates."""
    trained, downloaded = _updates()
    received = step.apply(trained, downloaded, _draw)

    def update(models: Stacked, name: str) -> NDArray[np.float64]:
        return (models[name].double() - downloaded[name].double()).flatten(1).numpy()

    names = [name for name, value in trained.items() if value.is_floating_point()]
    return [_Arrival(name, update(trained, name), update(received, name)) for name in names]


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
def single_numbers_and_counts_arrive(subject: Subject) -> None:
    """Parameters that are single numbers, and integers, arrive too, with the same types (a warning otherwise).

    Networks with a learned temperature have the former, and batch normalization counts batches in the latter.
    """
    trained, downloaded = _models()
    trained |= {"temperature": torch.linspace(0.9, 1.1, 4), "seen": torch.arange(4) + 7}
    downloaded |= {"temperature": torch.ones(4), "seen": torch.full((4,), 7)}
    try:
        received = _step(subject).apply(trained, downloaded, _draw)
        size = _step(subject).size(pick(trained, 0), 200)
    except Exception as error:
        raise DoubtfulError(describe_error(error)) from None
    for name in ("temperature", "seen"):
        kept = received.get(name, torch.zeros(0))
        if kept.shape != (4,) or kept.dtype != trained[name].dtype or not torch.isfinite(kept.double()).all():
            raise DoubtfulError(
                f"{name}, a single number for each client, arrives as {tuple(kept.shape)}, {kept.dtype}"
            )
    if size <= 0:
        raise DoubtfulError(f"the size of a model with single numbers is {size}")


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
        difference = small.find_difference(pick(alone, 0), pick(together, client))
        require(same, f"the upload of client {client} depends on the others ({difference})")


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
    difference = small.find_difference(first, second)
    require(not difference, f"the same generators give other uploads ({difference})")
    require(step.is_random or not draws, "the step calls draw(i); the file has no RANDOM = True")
    foreign = sorted(set(draws) - set(range(4)))
    require(not foreign, f"the step draws from generators {foreign} for a stack of the clients 0 to 3")


@law("uploads")
def another_seed_gives_other_uploads(subject: Subject) -> None:
    """A random step draws other numbers from other generators, and other numbers for each client.

    Noise that all clients share does not average out, and noise that every round repeats can be subtracted.
    """
    step = _step(subject)
    if not step.is_random:
        raise NotApplicable("the step is not random")
    trained, downloaded = _models()
    trained = repeat(pick(trained, 0), 4)
    one, other = (step.apply(trained, downloaded, lambda i, seed=seed: _draw(i, seed)) for seed in (1, 2))  # type: ignore[misc]
    if small.are_equal(one, trained) and small.are_equal(other, trained):
        raise NotApplicable("the step changes nothing")
    require(not small.are_equal(one, other), "other generators give the same uploads")
    for client in range(1, 4):
        same = small.are_equal(pick(one, 0), pick(one, client))
        require(not same, f"clients 0 and {client}, with the same model, have the same upload: draw(i) is client i's")


@law("uploads")
def another_process_gives_the_same_uploads(subject: Subject) -> None:
    """Another process, in which Python orders sets and hashes words otherwise, gives the same uploads.

    Workers and resumed runs are other processes.
    """
    same = other_process.call(digest_uploads, subject) == digest_uploads(subject)
    require(same, "another process gives other uploads: is something in the order of a set, or of hashes?")


def digest_uploads(subject: Subject) -> str:
    """Return a hash of what the server receives of models with many tensors."""
    trained, downloaded = ({f"layer{place}.weight": model["weight"] for place in range(8)} for model in _models())
    received = _step(subject).apply(trained, downloaded, _draw)
    return hashlib.sha256(b"".join(received[name].numpy().tobytes() for name in sorted(received))).hexdigest()


@law("uploads")
def noise_is_on_every_tensor(subject: Subject) -> None:
    """A random step changes every tensor of the update at random (a warning).

    Noise that should hide an update hides nothing of a tensor that is sent as it is.
    """
    step = _step(subject)
    if not step.is_random:
        raise NotApplicable("the step is not random")
    trained, downloaded = _models(2, 300, 400)  # steps may treat large tensors and small ones differently
    one, other = (step.apply(trained, downloaded, lambda i, seed=seed: _draw(i, seed)) for seed in (1, 2))  # type: ignore[misc]
    fixed = [name for name, value in one.items() if torch.equal(value, other[name]) and value.is_floating_point()]
    if 0 < len(fixed) < sum(value.is_floating_point() for value in one.values()):
        raise DoubtfulError(f"there is no randomness in {', '.join(fixed)}")


@law("uploads")
def no_change_is_sent_as_no_change(subject: Subject) -> None:
    """A client whose training changes nothing uploads what it received, up to the noise or rounding of the step.

    A step that clips or sparsifies the model instead of its update pulls the global model towards zero.
    """
    _, downloaded = _updates()
    received = _step(subject).apply(dict(downloaded), downloaded, _draw)
    for name, value in downloaded.items():
        if value.is_floating_point():
            difference = (received[name] - value).double().mean(dim=0)  # noise of 64 clients is an eighth of one's
            share = float(difference.norm() / value[0].double().norm())
            require(share < 0.1 or _step(subject).is_random, f"{name} arrives changed by {100 * share:.0f} %")


@law("uploads")
def updates_arrive_unbiased_or_it_is_declared(subject: Subject) -> None:
    """On average, the update that arrives is the one that was sent, unless the file has ``BIASED = True`` (a warning).

    Errors of an unbiased step average out over clients; those of a biased one, such as rounding downwards, add up.
    """
    step = _step(subject)
    if step.is_biased:
        raise NotApplicable("the file has BIASED = True")
    for each in _deliver(step):
        error = each.received - each.sent
        spread = float(error.std()) / math.sqrt(error.size)
        drift = float(error.mean())
        if abs(drift) > max(_SIGNIFICANT * spread, 1e-5):
            raise DoubtfulError(
                f"{each.name} arrives {abs(drift):.1e} too {'large' if drift > 0 else 'small'} on average"
            )
        slope = float((error * each.sent).mean() / np.square(each.sent).mean())
        if abs(slope) > max(_SIGNIFICANT * spread, 2e-3):
            raise DoubtfulError(f"{each.name} arrives {100 * abs(slope):.1f} % {'longer' if slope > 0 else 'shorter'}")


@law("uploads")
def tensors_are_shortened_together(subject: Subject) -> None:
    """A step that shortens updates multiplies all tensors of one update by the same factor (a warning).

    The norm of an update is that of all its tensors together: clipping each of them leaves a longer update, which
    points elsewhere.
    """
    step = _step(subject)
    arrivals = _deliver(step)
    factors = np.asarray([(each.received * each.sent).sum(1) / np.square(each.sent).sum(1) for each in arrivals])
    aligned = [
        np.abs(each.received - factor[:, None] * each.sent).max() < 1e-4
        for each, factor in zip(arrivals, factors, strict=True)
    ]
    if not all(aligned) or step.is_random:
        raise NotApplicable("the step changes the direction of tensors")
    if (np.ptp(factors, axis=0) > 1e-3).any():
        listed = ", ".join(f"{each.name} by {factor[0]:.3f}" for each, factor in zip(arrivals, factors, strict=True))
        raise DoubtfulError(f"tensors of one update are multiplied by different factors: {listed}")


@law("uploads")
def bytes_are_whole_numbers(subject: Subject) -> None:
    """``size`` returns a positive whole number of bytes.

    The byte columns of tables are sums of these numbers.
    """
    trained, _ = _models()
    one = pick(trained, 0)
    size = _step(subject).size(one, _count_bytes(one))
    require(isinstance(size, int) and size > 0, f"size returns {size!r}")


@law("uploads")
def size_has_room_for_what_arrives(subject: Subject) -> None:
    """``size`` has at least the bytes that an update needs to arrive as exactly as it does, whatever the encoding.

    By Shannon's rate-distortion theorem, n normally distributed numbers that arrive with correlation r need
    n / 2 log2(1 / (1 - r^2)) bits. A smaller size makes a method look cheaper than it can be.
    """
    for step in _steps(subject):
        _require_room(step)


def _require_room(step: Step) -> None:
    """Require that ``size`` has room for what arrives, and grows with the number of tensors."""
    trained, _ = _updates()
    one = pick(trained, 0)
    before = _count_bytes(one)
    size, bits = step.size(one, before), 0.0
    for each in _deliver(step):
        power = np.square(each.sent).mean() * np.square(each.received).mean()
        unexplained = 1 - float(np.square((each.sent * each.received).mean()) / power) if power else 1.0
        bits += each.sent.shape[1] * min(_MAX_BITS, 0.5 * math.log2(1 / max(unexplained, 2 ** (-2 * _MAX_BITS))))
    needed = math.floor(0.9 * bits / 8)
    require(
        size >= needed, f"{step}: size returns {size} bytes of {before}; what arrives needs {needed} bytes at least"
    )
    twice = {f"{name}{copy}": value for name, value in one.items() for copy in (1, 2)}
    larger = step.size(twice, 2 * before)
    require(larger >= 1.5 * size, f"{step}: size returns {size} bytes for a model, and {larger} for two in one upload")
    if size > before:
        raise DoubtfulError(f"size returns {size} bytes, more than the {before} of the model")


def _count_bytes(params: Params) -> int:
    return sum(value.numel() * value.element_size() for value in params.values())


def _steps(subject: Subject) -> list[Step]:
    """Return the step with its option as it is, and with a tenth and ten times the number that it has."""
    step = _step(subject)
    steps, plain = [step], config.plain(step.cfg)
    for value in plain.values():
        if not isinstance(value, bool) and isinstance(value, (int, float)):
            for other in (value / 10, 10 * value):
                with suppress(UsageError):
                    steps.append(uploads.load(f"{step.name}:{other:.6g}"))
    return steps
