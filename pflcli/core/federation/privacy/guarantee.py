"""The guarantee of a run with differential privacy, for its summary and as sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Any

from pflcli.core.federation.privacy import accounting
from pflcli.core.settings import Settings

NOT_COVERED = (
    "what clients keep and answer: personal models and layers, stores, lambdas and other choices of their own",
    "what is measured: accuracies, losses, the best round, the share of updates that were clipped",
    "tuning: options and learning rates that were chosen on these clients, and other runs on them",
    "the number of clients, and how pixels and features were standardized",
)
"""What epsilon does not cover."""
_FROM_SECRET = "a secret of this run, drawn from the operating system; the file that holds it must not be released"
_FROM_SEED = "dp_seed: anyone who knows the seed can subtract the noise, so this run must not be released"
WARNING_OF_SEED = f"WARNING: the noise follows from {_FROM_SEED}"
"""What is said of a run whose noise is drawn from ``dp_seed``."""


def describe_random_numbers(settings: Settings) -> str:
    """Return where the noise of a run comes from."""
    return _FROM_SECRET if settings.dp_seed is None else _FROM_SEED


def plan_noise(settings: Settings) -> tuple[float, float]:
    """Return the noise multiplier and epsilon of a run with differential privacy; raises InputError, UsageError.

    Epsilon is infinite without noise. If ``dp_epsilon`` is set, the noise is computed from it.
    """
    rate, rounds, delta = settings.participation, settings.rounds, settings.dp_delta
    if settings.dp_epsilon is None:
        noise = settings.dp_noise or 0.0
    else:
        assert delta is not None  # which ``Settings`` requires
        noise = accounting.find_noise(settings.dp_epsilon, rate, rounds, delta)
    return noise, math.inf if delta is None or not noise else accounting.compute_epsilon(noise, rate, rounds, delta)


def compose_runs(runs: Sequence[Settings]) -> dict[str, Any]:
    """Return the privacy cost of several private ``runs`` on the same clients; empty for fewer than two.

    Epsilons and deltas add up (basic composition), also if later runs depend on the results of earlier ones. Epsilon is
    None if a run has no noise.
    """
    private = [settings for settings in runs if settings.dp]
    if len(private) < 2:
        return {}
    epsilon = sum(plan_noise(settings)[1] for settings in private)
    delta = sum(settings.dp_delta or 0.0 for settings in private)
    return {"runs": len(private), "epsilon": None if math.isinf(epsilon) else epsilon, "delta": delta}


def describe_composition(total: Mapping[str, Any]) -> str:
    """Return the result of ``compose_runs`` as a sentence."""
    if total["epsilon"] is None:
        return f"differential privacy: {total['runs']} runs on the same clients, some of them without noise"
    return (
        f"differential privacy: {total['runs']} private runs on the same clients spend together at most epsilon "
        f"{_format_epsilon(total['epsilon'])} at delta {total['delta']:g}, if all of their models are released"
    )


def describe_plan(settings: Settings, participants: Callable[[], Sized]) -> Iterator[str]:
    """Yield messages on the guarantee that a run with differential privacy will have.

    ``participants`` returns the clients; it is called only with differential privacy.
    """
    if not settings.dp:
        return
    clients = len(participants())
    noise, epsilon = plan_noise(settings)
    clip = "adaptive" if settings.dp_clip in (None, "adaptive") else settings.dp_clip
    yield (
        f"differential privacy: epsilon {_format_epsilon(epsilon)}"
        + (f" at delta {settings.dp_delta:g}" if settings.dp_delta else "")
        + f" with noise multiplier {noise:g} and clip {clip}, over {settings.rounds} rounds in which each of {clients} "
        f"clients takes part with probability {settings.participation:g}"
    )
    if settings.dp_delta is not None and settings.dp_delta * clients >= 1:
        yield f"delta {settings.dp_delta:g} is not below 1 / {clients} clients: it permits revealing one of them"


def record_guarantee(settings: Settings, clients: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the guarantee of a run for its summary; ``rows`` are the rows of its rounds."""
    noise, epsilon = plan_noise(settings)
    clipped, uploads = (sum(int(row[key]) for row in rows) for key in ("clipped", "uploads"))
    return {
        "unit": "client (user level): all samples of a client",
        "adjacency": "one client is added or removed",
        "sampling": f"Poisson: each of {clients} clients takes part in a round with probability "
        f"{settings.participation:g}",
        "rounds": settings.rounds,
        "clip": "adaptive" if settings.dp_clip in (None, "adaptive") else settings.dp_clip,
        "last_clip": rows[-1]["clip"] if rows else None,
        "share_clipped": clipped / uploads if uploads else None,
        "noise": noise,
        "epsilon": None if math.isinf(epsilon) else epsilon,
        "delta": settings.dp_delta,
        "accountant": accounting.NAME if noise else None,
        "accountant_version": accounting.accountant_version() if noise else None,
        "random_numbers": describe_random_numbers(settings),
        "not_covered": list(NOT_COVERED),
    }


def summarize_guarantee(
    settings: Settings, clients: int, rows: Sequence[Mapping[str, Any]], say: Callable[[str], None]
) -> dict[str, Any]:
    """Return the entry ``privacy`` of a run's summary, and ``say`` it; empty without differential privacy."""
    if not settings.dp:
        return {}
    guarantee = record_guarantee(settings, clients, rows)
    say(describe_guarantee(guarantee))
    return {"privacy": guarantee}


def describe_guarantee(guarantee: Mapping[str, Any]) -> str:
    """Return the result of ``record_guarantee`` as a sentence."""
    if guarantee["epsilon"] is None:
        return "no privacy is guaranteed: updates were clipped and clients sampled, but there was no noise"
    return (
        f"differential privacy at user level: epsilon {_format_epsilon(guarantee['epsilon'])} "
        f"at delta {guarantee['delta']:g} for the models that the server sends (noise multiplier "
        f"{guarantee['noise']:g}, {guarantee['rounds']} rounds, "
        "Poisson sampling, one client added or removed); it does not cover clients' own models and predictions, "
        "measurements, or tuning" + (f". {WARNING_OF_SEED}" if guarantee["random_numbers"] == _FROM_SEED else "")
    )


def _format_epsilon(epsilon: float) -> str:
    return "infinite" if math.isinf(epsilon) else f"{epsilon:.2f}"
