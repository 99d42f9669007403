"""FedHAM: each client learns by attention which other models to mix with its own and the global model.

Gao et al. (2023), "Configure Your Federation", https://doi.org/10.1145/3591362, Algorithms 1 and 2. ``parts/ham.py``
contains the network HAM. x_i is the last upload of client i, x^g the global model, and x^a the mean of the other
clients' uploads, weighted by attention.

After a warm-up of FedAvg, a client downloads x^g and the last uploads of its cluster. It trains HAM on its samples
through the hybrid model (Eq. 13), computes the hybrid (Eq. 14), trains it (Eq. 15) and uploads it. HAM never leaves the
client. Eq. 15 descends Eq. 1, F(x_i) + lambda F(hybrid of x_i), as far as client i can compute it; Eq. 11 and the
default ``lam=0`` minimize F(x_i) alone. Eq. 15 does not normalize an x_i that is near x^g to length 1, as its gradient
would then have no bound. Clusters are formed from sketches of the uploads, and limit how many models a
client receives. In the paper every client takes part in every round (``--participation 1``); here the last uploads of
absent clients are used.

As published (``form=faithful``), HAM learns from the samples on which x_i was just trained. It therefore prefers x_i to
all other models, and FedHAM becomes Local. The same holds for ``joint``, whose features are differences from x^g and
can distinguish models. The other clients' models were not trained on these samples. By default (``guarded``), HAM is
therefore trained without x_i. Then x_i enters the hybrid with the share that has the lowest validation loss, and layer
1 is kept near its initial attention. In the paper a client predicts with what it uploads. Because an epoch on few
samples can undo what the mixture gained, by default validation loss chooses among the upload, the hybrid and the global
model.

With ``--refit`` a client uses the share and the model for predictions that it chose last in the earlier run.
``attention`` in the state has an entry for each round after the warm-up, 0 for clients that did not take part:
``first`` (rounds, m, m), and ``second`` (rounds, m, 3) for x_i, x^a and x^g. ``history`` has the validation accuracy of
the hybrids before they are trained, -1 where it was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray
from torch import Tensor, nn

from pflcli.method import Mean, Packages, Params, Predictor, Run, Stacked, TrainedClients, on_cpu, parameters, repeat
from pflcli.methods.parts import ham, records
from pflcli.methods.parts.clustering import group_clients
from pflcli.methods.parts.folds import Folds
from pflcli.methods.parts.ham import CountSketch
from pflcli.methods.parts.records import AttentionRecord

KIND = "server"
NEEDS = ()
PERSONAL_MODELS = "models"
KEEPS = ("shares",)
PAIRS_SENT = "models"
SENDS_MORE = "models, which other clients receive"
PAPER = "FedHAM"
CHOOSES_IN_ROUNDS = "the share of its own model"
YEAR = 2023
TASKS = ("any",)
SERVES = ("sketches", "warmup")
RECORDS = ("attention", "history")
GRID = {"ham_lr": (0.003, 0.01, 0.03)}

_MAX_ROUNDS_WITHOUT_GAIN = 5
"""Number of rounds without a lower training loss that ends the warm-up, unless its length is given."""

_SHARES = (1 / 3, 0.0, 2 / 3, 1.0)
"""Shares of x_i in the hybrid that a client chooses from, if guarded; the first if it has no validation samples."""

_ON_CPU = ("sketches", "shares", "warmup", "attention", "history")
"""Keys of the state that stay on the CPU, whatever the device of the models."""

_BASIS = "basis."
"""The beginning of the names of the models that a client receives."""

State = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    form: Literal["guarded", "joint", "faithful"] = "guarded"
    """train HAM without x_i (guarded), with x_i (joint), or with x_i, raw models and random initial projections
    (faithful, the paper)"""
    variant: Literal["ham", "aml1", "aml2", "ftl"] = "ham"
    """use HAM, or one of the paper's ablations: aml1 starts from x^a, aml2 from x_i and x^g, ftl from x^g"""
    warmup: Annotated[int, Ge(0)] | None = None
    """run this many rounds of FedAvg first (p); none runs a fifth of all, or until the loss stops falling"""
    ham_epochs: Annotated[int, Ge(0)] = 2
    """train HAM for this many local epochs per round; 0 keeps it as initialised"""
    ham_lr: Annotated[float, Gt(0)] = 0.01
    """train HAM with this learning rate (Adam, reset in each round, so that lambda of Eq. 13 has no effect)"""
    ham_split: Literal["train", "validation"] = "train"
    """train HAM on these samples; validation samples then get no predictions"""
    lam: Annotated[float, Ge(0)] = 0.0
    """add the hybrid's loss with this weight while x_i is trained (lambda of Eq. 15); 0 trains x_i alone (Eq. 11)"""
    self_share: Annotated[float, Ge(0), Le(1)] | None = None
    """if guarded, give x_i this share of the hybrid; 1 is training alone; none chooses it by validation loss"""
    rho: Annotated[float, Ge(0)] = 0.5
    """if guarded, penalize KL(initial attention || attention) of layer 1 with this weight"""
    temperature: Annotated[float, Gt(0)] = 5.0
    """start layer 1 from softmax(temperature x cosine), unless faithful"""
    sketch: Annotated[int, Ge(2)] = 256
    """sketch each model to this many numbers; the error of cosines is about 1 / sqrt of it"""
    clustering: Literal["k-means", "mean-shift", "nearest"] = "k-means"
    """send a client the uploads of its cluster, or its own and the nearest 1/k of the others (by cosine)"""
    k: Annotated[int, Ge(1)] = 1
    """form this many clusters by k-means, or send 1/k of the others if nearest; 1 sends every upload to every client"""
    answer: Literal["final", "hybrid", "best"] | None = None
    """predict with a client's last upload (final, the paper), with the hybrid that it was trained from, or with
    whichever of them and the global model has the lowest validation loss (best; of equal ones, and without validation
    samples, the last upload); none is best if guarded, else final"""
    remember: Annotated[int, Ge(0)] = 100
    """keep the attention of every round for up to this many clients, and of the last round for up to 1,000"""

    def __post_init__(self) -> None:
        if self.ham_split == "validation" and choices(self):
            raise ValueError(
                "ham_split=validation leaves no samples to choose by: give answer=final and self_share=0.33"
            )

    @property
    def predicts_with(self) -> str:
        """Return ``answer``, or the default of the form: final, hybrid or best."""
        return self.answer or ("best" if self.form == "guarded" else "final")

    @property
    def chooses_share(self) -> bool:
        """Return whether each client chooses the share of x_i in its hybrid."""
        return self.form == "guarded" and self.self_share is None and self.variant in ("ham", "aml2")

    @property
    def slots(self) -> Tensor:
        """Return a mask (3,) of the models that layer 2 chooses among when HAM is trained."""
        return ham.allowed_slots(self.variant, guard=self.form == "guarded")

    @property
    def candidates(self) -> tuple[str, ...]:
        """Return the tables of models that a client may predict with, the last upload first: it wins ties."""
        tables = {"final": ("models",), "hybrid": ("hybrids",), "best": ("models", "hybrids")}[self.predicts_with]
        return tables if self.variant != "ftl" else ("models",)


def choices(cfg: Config) -> tuple[str, ...]:
    """Return what each client chooses by its validation samples."""
    return ("self_share",) * cfg.chooses_share + ("answer",) * (cfg.predicts_with == "best")


def setup(run: Run) -> State:
    """Return the common initial model and HAM, without uploads, and empty records."""
    cfg, start, m = run.cfg, run.initial_model(), len(run.clients)
    if cfg.form == "faithful":
        theta = ham.draw_projections(cfg.sketch, run.rng("ham"))
    else:
        theta = ham.initial_projections(cfg.sketch, cfg.temperature)
    return {
        "global": start,
        "models": run.table(run.initial_model()),
        "theta": run.table({name: value.to(run.federation.y.device) for name, value in theta.items()}),
        "sketches": torch.zeros(m, cfg.sketch, dtype=torch.float64),
        "shares": torch.full((m,), _SHARES[0], dtype=torch.float64),
        "warmup": {"best": torch.tensor(math.inf, dtype=torch.float64), "stale": torch.tensor(0)},
        "attention": {"first": torch.zeros(0, m, m), "second": torch.zeros(0, m, 3)},
        "history": {"hybrid": torch.zeros(0)},
        **({"hybrids": run.table(run.initial_model())} if "hybrids" in cfg.candidates else {}),
    }


def train_round(run: Run, state: State, t: int) -> State:
    """Train a cohort from the global model in the warm-up, then from hybrids; average the uploads."""
    here, models = run.cohort(t), state["models"]
    state = {**state, **on_cpu({name: state[name] for name in _ON_CPU}), "shares": state["shares"].cpu().clone()}
    plan = run.serve(lambda: _plan(run, state, t, run.everyone(here)))
    mean, sketches, losses = Mean(), state["sketches"].clone(), list[float]()
    received, measured = Params(), list[TrainedClients]()
    trained, senders = _train(run, state, t, here, plan, received, measured), run.serve(lambda: plan.senders)
    for part in run.collect(trained, run.init, senders, start=lambda _: received, is_averaged=False):
        mean.add(part.params, part.weights)
        models[part.clients] = part.params
        sketches[torch.from_numpy(part.clients)] = _sketch(run)(part.params)
        losses.append(float(part.loss @ part.weights))
    state = {**state, "sketches": sketches}
    attention = run.collect(measured, AttentionRecord.like(len(run.clients)), is_record=True)
    correct = run.collect(measured, records.CORRECT, is_record=True)
    return run.serve(lambda: _learn(run, {**state, "global": mean.value()}, plan, losses, attention, correct), state)


@dataclass(frozen=True)
class _Group:
    """Clients ``members`` (q,) that receive the last uploads of ``peers`` (n,), and their sketches (n + 1, r)."""

    members: NDArray[np.int64]
    peers: NDArray[np.int64]
    points: Tensor


@dataclass(frozen=True)
class _Plan:
    """Which clients train from the global model in a round, ``new`` (p,), and which from hybrids, in ``groups``."""

    is_warm_up: bool
    new: NDArray[np.int64]
    groups: Sequence[_Group]

    @property
    def senders(self) -> NDArray[np.int64]:
        """Return all clients of the round, in the order of their uploads."""
        return np.concatenate([self.new, *(group.members for group in self.groups)])


def _plan(run: Run, state: State, t: int, cohort: NDArray[np.int64]) -> _Plan:
    """Decide who trains from what in round ``t``; members of a group receive the same models."""
    cfg, start, uploaded = run.cfg, state["global"], state["models"].written
    is_warm_up = cfg.variant == "ftl" or _is_warm_up(run, state, t)
    run.send("down", start, copies=len(cohort))
    # A client's first upload is trained from the global model: before it there is no x_i.
    mixes = np.isin(cohort, uploaded) & (not is_warm_up)
    mixing, groups = cohort[mixes], list[_Group]()
    if len(mixing):
        centre = _sketch(run)({name: value[None] for name, value in start.items()})
        offsets = state["sketches"][torch.from_numpy(uploaded)] - centre
        positions, draw = np.searchsorted(uploaded, mixing), run.rng("clusters", t)
        for group, mask in group_clients(offsets.numpy(), positions, cfg.clustering, cfg.k, draw):
            points = torch.cat([offsets[torch.from_numpy(mask)], torch.zeros_like(centre)])
            points = (points + centre if cfg.form == "faithful" else points).float()
            groups.append(_Group(mixing[group], uploaded[mask], points.to(run.federation.y.device)))
    return _Plan(is_warm_up, cohort[~mixes], groups)


def _send_global(state: State, plan: _Plan) -> Packages:
    """Yield the new clients with x^g."""
    if len(plan.new):
        yield plan.new, state["global"]


def _send_places(plan: _Plan) -> Packages:
    """Yield members of groups with the place of their own upload among those that they receive."""
    for group in plan.groups:
        yield group.members, {"place": torch.from_numpy(np.searchsorted(group.peers, group.members))}


def _send_models(run: Run, state: State, plan: _Plan) -> Packages:
    """Yield members of groups with the last uploads of their group, x^g and the sketches of these."""
    # If groups overlap, all of them receive the uploads of the round before.
    overlap = run.cfg.clustering == "nearest" and len(plan.groups) > 0
    models = state["models"].snapshot() if overlap else state["models"]
    for group in plan.groups:
        basis = models.stack_with(group.peers, [state["global"]], padded=True)
        package = {**{f"{_BASIS}{name}": value for name, value in basis.items()}, "points": group.points}
        # Layer 1 takes a key of every upload for each client.
        for members in run.client_chunks(group.members, parameters.size({"points": group.points})):
            copies = 0 if run.cfg.variant == "aml2" else len(members) * len(group.peers)
            run.send("down", state["global"], copies=copies)
            yield members, package
    if overlap:
        models.release()


def _train(
    run: Run,
    state: State,
    t: int,
    here: NDArray[np.int64],
    plan: _Plan,
    received: Params,
    measured: list[TrainedClients],
) -> Iterator[TrainedClients]:
    """Train the clients that are here from x^g, which is added to ``received``, or from the hybrids that they build.

    Adds what clients report of their hybrids to ``measured``.
    """
    for ids, start in run.deliver(lambda: _send_global(state, plan), here, run.init, counted=False):
        received.update(start)
        yield from run.local_sgd(ids, start, t=t)
    place = torch.full((len(run.clients),), -1)
    for ids, own in run.deliver(lambda: _send_places(plan), here, {"place": place[0]}, rows=True, counted=False):
        place[torch.from_numpy(ids)] = own["place"]
    like = {**{f"{_BASIS}{name}": value for name, value in run.init.items()}, "points": state["sketches"][0].float()}
    most = len(run.clients) + 1
    for members, package in run.deliver(lambda: _send_models(run, state, plan), here, like, most=most, counted=False):
        # In the network's order, as gradients are sums over layers; a resumed state has its names in another order.
        basis, points = {name: package[f"{_BASIS}{name}"] for name in run.init}, package["points"]
        received.update(parameters.pick(basis, -1))
        me = place[torch.from_numpy(members), None] == torch.arange(len(points) - 1)
        models = ham.ReceivedModels(basis, points, me.to(points), run.cfg.slots.to(points))
        hybrids, report, options = _build_hybrids(run, state, t, members, models)
        measured.append(TrainedClients.untrained(members, report))
        yield from run.local_sgd(members, hybrids, t=t, **options)  # Eq. 15


def _learn(
    run: Run,
    state: State,
    plan: _Plan,
    losses: Sequence[float],
    attention: Iterable[TrainedClients],
    correct: Iterable[TrainedClients],
) -> State:
    """Record the losses of the warm-up, and the attention and accuracy of hybrids after it."""
    if plan.is_warm_up:
        best, stale = state["warmup"]["best"], state["warmup"]["stale"]
        mean_loss = torch.tensor(sum(losses) / run.declared[plan.senders].sum())
        stale = torch.where(mean_loss < best, 0, stale + 1)
        return {**state, "warmup": {"best": mean_loss.minimum(best), "stale": stale}}
    record = AttentionRecord(len(run.clients), run.cfg.remember)
    peers = {client: group.peers for group in plan.groups for client in group.members.tolist()}
    for part in attention:
        record.add(part, peers[int(part.clients[0])])
    history = records.extend_history(state["history"], {"hybrid": records.share_of_correct(correct)})
    return {**state, "attention": record.extend(state["attention"]), "history": history}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with each client's own model; with the global one for clients that never took part."""
    cfg, best = run.cfg, run.cfg.predicts_with == "best" and len(clients) > 0
    stacked = {name: value.expand(len(clients), *value.shape).clone() for name, value in state["global"].items()}
    earlier, answer = run.read_choices("answer", clients), np.zeros(len(clients))
    least = run.client_losses(clients, stacked, "validation") if best else np.zeros(len(clients))
    for number, table in enumerate(cfg.candidates, 1):
        own = state[table][clients]
        losses = run.client_losses(clients, own, "validation") if best else least
        better = (losses < least) | ((number == 1) & (losses == least)) if earlier is None else earlier == number
        better &= np.isin(clients, state[table].written)
        least, answer = np.where(better, losses, least), np.where(better, number, answer)
        chosen = torch.from_numpy(better)
        for name, value in stacked.items():
            value[chosen.to(value.device)] = own[name][chosen.to(value.device)]
    tuned = {"answer": answer, "self_share": state["shares"].cpu().numpy()[clients]}
    predictor = run.predictor(clients, stacked, ("test",) if cfg.ham_split == "validation" else None)
    predictor = replace(predictor, tuned={name: tuned[name] for name in choices(cfg)})
    if not best or earlier is not None:
        return predictor

    def answer_split(split: str) -> Mapping[str, NDArray[np.float32]]:
        return {"p": _predict_held_out(run, state, clients)} if split == "validation" else predictor.answer(split)

    return replace(predictor, answer=answer_split)


def _predict_held_out(run: Run, state: State, clients: NDArray[np.int64]) -> NDArray[np.float32]:
    """Predict validation samples (n, C), each with the model that its client chooses without it."""
    folds = Folds.divide(np.cumsum([0, *run.federation.sizes("validation")[clients]]))
    p, y = run.answers(clients, state["global"], "validation")
    _, least = folds.sum(run.task.bounded_losses(p, y))
    for number, table in enumerate(run.cfg.candidates, 1):
        own, _ = run.answers(clients, state[table], "validation")
        _, losses = folds.sum(run.task.bounded_losses(own, y))
        better = (losses < least) | ((number == 1) & (losses == least))
        better &= np.isin(clients, state[table].written)[:, None]
        least = np.where(better, losses, least)
        p = np.where(folds.pick(better)[:, None], own, p)
    return p


def _is_warm_up(run: Run, state: State, t: int) -> bool:
    if run.cfg.warmup is not None:
        return bool(t < run.cfg.warmup)
    return t < math.ceil(run.settings.rounds / 5) and int(state["warmup"]["stale"]) < _MAX_ROUNDS_WITHOUT_GAIN


def _sketch(run: Run) -> CountSketch:
    return run.once("sketch", lambda: CountSketch(run.init, run.engine.parameters, run.cfg.sketch, run.rng("sketch")))


def _build_hybrids(
    run: Run, state: State, t: int, members: NDArray[np.int64], received: ham.ReceivedModels
) -> tuple[Stacked, Stacked, dict[str, Any]]:
    """Train the HAM of ``members``; return their hybrids (q, ...), what they report, and options of training."""
    cfg, sketch = run.cfg, _sketch(run)
    _train_ham(run, state, t, members, received)  # Eq. 13
    theta = state["theta"][members]
    a, b = received.attend(theta)
    hybrids = received.mix(a, b)
    share = _choose_own_share(run, members, hybrids, received).to(b)
    hybrids = received.add_own(hybrids, share)  # Eq. 14
    state["shares"][torch.from_numpy(members)] = share[:, 0].double().cpu()
    if "hybrids" in state:
        state["hybrids"][members] = hybrids
    report = AttentionRecord.report(len(run.clients), a, ham.add_own_share(b, share))
    is_measured = (t + 1) % run.settings.eval_every == 0
    report |= records.count_correct(run, members, hybrids) if is_measured else repeat(records.CORRECT, len(members))
    options = received.hybrid_plan(theta, share, sketch, cfg.lam, centred=cfg.form != "faithful") if cfg.lam else {}
    return hybrids, report, options


def _choose_own_share(run: Run, members: NDArray[np.int64], hybrids: Stacked, received: ham.ReceivedModels) -> Tensor:
    """Return the share (q, 1) of each member's own model in its hybrid: that with the least validation loss.

    It is 0 if layer 2 chooses x_i itself, as then it is in the ``hybrids`` (q, ...), or if the variant has no x_i.
    """
    if run.cfg.form != "guarded" or run.cfg.variant == "aml1":
        return torch.zeros(len(members), 1)
    if run.cfg.self_share is not None:
        return torch.full((len(members), 1), run.cfg.self_share)
    earlier = run.read_choices("self_share", members)
    if earlier is not None:
        return torch.from_numpy(earlier)[:, None]
    candidates = torch.tensor(_SHARES)
    mixed = (received.add_own(hybrids, share.expand(len(members))) for share in candidates)
    losses = [run.client_losses(members, models, "validation") for models in mixed]
    return candidates[np.argmin(losses, axis=0)][:, None]


def _list_norms(run: Run) -> dict[str, float]:
    """Return the names of the layers of BatchNorm with a weight and a bias, and their epsilon."""
    assert run.network is not None
    norms = [
        (n, module) for n, module in run.network.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)
    ]
    return {name: module.eps for name, module in norms if {f"{name}.running_mean", f"{name}.bias"} <= run.init.keys()}


def _train_ham(run: Run, state: State, t: int, members: NDArray[np.int64], received: ham.ReceivedModels) -> None:
    """Train the members' HAM, in place in its table (Eq. 13)."""
    cfg, theta, slots = run.cfg, state["theta"], run.cfg.slots
    if not cfg.ham_epochs or slots.sum() == slots[2]:  # nothing to choose
        return
    for part in run.descend(
        members,
        theta,
        t=t,
        name="ham",
        epochs=cfg.ham_epochs,
        lr=cfg.ham_lr,
        optimizer="adam",
        splits=(cfg.ham_split,),
        frozen_norm=True,
        **received.ham_plan(
            theta.default, cfg.rho if cfg.form == "guarded" else 0.0, run.once("norms", lambda: _list_norms(run))
        ),
    ):
        theta[part.clients] = part.params
