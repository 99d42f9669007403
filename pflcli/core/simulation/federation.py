"""A federation from arrays or from a dataset by name, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core import config, datasets, registry, rng, schemes, splits
from pflcli.core.datasets import SPLITS, Samples
from pflcli.core.engine import federation as engine
from pflcli.core.engine.tasks import Task
from pflcli.core.engine.tasks.classes import Classification
from pflcli.core.errors import InputError, UsageError, closest

if TYPE_CHECKING:
    import pandas as pd

Fractions = tuple[float, float, float]


@dataclass(frozen=True)
class Federation(engine.Federation):
    """The samples of all clients, as ``simulate`` takes them; make one by ``from_arrays`` or ``from_dataset``.

    ``names`` (m,) are the names of the clients, and ``sample`` (n,) the row of each sample in the arrays or dataset.

    >>> import numpy as np
    >>> from pflcli import Federation
    >>> x, y = np.random.default_rng(0).normal(size=(90, 4)), np.arange(90) % 2
    >>> Federation.from_arrays(x, y, client=np.repeat(["north", "south", "west"], 30))
    Federation(clients=3, samples=90, classes=2, in_shape=(4,))
    """

    names: tuple[str, ...] = ()
    sample: NDArray[np.int64] | None = None

    def __repr__(self) -> str:
        """Return a line without the arrays, which would fill a notebook."""
        sizes = f"clients={len(self.clients)}, samples={len(self.y)}, {self.task.kind}={self.task.outputs}"
        return f"Federation({sizes}, in_shape={self.in_shape})"

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes (C,), if they are known."""
        return self.task.names

    @property
    def client_names(self) -> list[str]:
        """The names of the clients (m,), or their numbers."""
        return list(self.names) or [str(client) for client in self.clients.tolist()]

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        client: Any,
        *,
        split: Any = None,
        fractions: Fractions | None = None,
        classes: Sequence[Any] | None = None,
        task: Task | str | None = None,
        unit: str = "",
        new_clients: Iterable[Any] = (),
        seed: int = 0,
        device: str = "cpu",
    ) -> Federation:
        """Return a federation of samples ``x`` (n, ...) with labels ``y`` (n,) and the ``client`` (n,) of each.

        ``x`` are uint8 images (n, H, W) or (n, H, W, C), numbers (n, d), series (n, length, d), or int16 tokens
        (n, length). Labels and clients are words or numbers; clients are sorted by name, and labels by value or by
        ``classes``. ``split`` (n,) is "train", "validation" or "test" for each sample; without it, each client's
        samples are split at random by ``fractions`` (0.6, 0.2, 0.2), drawn from ``seed`` as ``pfl partition`` does.
        ``task`` is what models learn to predict, by default the class of a sample; "quantity" and "count", with the
        ``unit`` of labels, are those of ``pfl import --task``, and "./grades.py:4" is one in a file of your own.
        ``new_clients`` are the names of the clients that take no part in rounds. Raises InputError for arrays that do
        not fit together and for invalid values, UsageError for fractions that do not add up to 1 and unknown clients.
        """
        if task is not None and classes is not None:
            raise UsageError("task and classes both say what models predict", "give one of them")
        if isinstance(task, str):
            from pflcli.core import tasks  # here, so that a simulation of classes does not load it

            task = tasks.parse(task, unit)
        if not isinstance(task, Task | None):
            raise UsageError(f"task is {task!r}, not a task", 'task="quantity", or an object of Task')
        if task is None:
            labels, names = _number_labels(_as_labels(y), classes)
            task = Classification(max(len(names), 2), tuple(names))
        else:
            labels = task.check("the arrays", _as_labels(y))
        samples = Samples(
            x=_as_samples(x),
            y=labels,
            classes=task.outputs,
            task=task,
            owner=_as_words(client, "client"),
            **_read_splits(split),
        )
        samples.check("the arrays")
        if split is not None and fractions is not None:
            raise UsageError("split and fractions both say how samples are split", "give one of them")
        fractions = fractions or splits.FRACTIONS
        splits.check_fractions(fractions)
        parts = schemes.load("natural").split(samples, None, None, rng.generator(seed, "partition", "natural"))
        federation = _arrange(samples, parts, fractions, seed, device)
        new = [new_clients] if isinstance(new_clients, str) else [str(name) for name in new_clients]
        for name in new:
            if name not in federation.names:
                raise UsageError(f"new_clients: there is no client '{name}'", closest(name, federation.names))
        federation = replace(federation, new=np.isin(federation.names, new)) if new else federation
        if not len(federation.participants):
            raise UsageError("no client has training samples and takes part in rounds", "fewer new_clients")
        return federation.fitted()

    @classmethod
    def from_dataset(
        cls,
        dataset: str | Path | ModuleType | Any,
        scheme: str | Path | ModuleType | Any = "natural",
        *,
        clients: int | None = None,
        options: Mapping[str, Any] | None = None,
        fractions: Fractions = splits.FRACTIONS,
        min_samples: int = 0,
        seed: int = 0,
        root: Path | str | None = None,
        device: str = "cpu",
    ) -> Federation:
        """Return a federation of a ``dataset`` (``pfl list datasets``), divided among clients by a ``scheme``.

        Either is a name, a file (``"./mine.py"``), a module, or a class or an object with the members of
        ``pflcli.core.datasets.Dataset`` or ``pflcli.core.schemes.Scheme``. The arguments are those of
        ``pfl partition``, which gives the same clients. Raises UsageError for unknown names and invalid options, and
        for a dataset whose features need a scale, which ``pfl partition`` computes; InputError for what breaks its
        interface.
        """
        dataset, source = _load("datasets", dataset, datasets.Dataset)
        scheme, splitter = _load("schemes", scheme, schemes.Scheme)
        for name, value in (("seed", seed), ("min_samples", min_samples)):
            config.require_whole(name, value)
        if clients is not None:
            config.require_whole("clients", clients, 1)
        splits.check_fractions(fractions)
        owners = {f"scheme {scheme}": splitter.Config, f"dataset {dataset}": source.Config}
        cfg, dataset_cfg = config.build_each(owners, options or {})
        more = {} if dataset_cfg is None else {"cfg": dataset_cfg}
        samples = source.load(None if root is None else Path(root), **more)
        samples.check(dataset)
        if samples.scaling is not None:
            raise UsageError(f"the features of {dataset} need a scale", f"pfl partition {dataset} -o DIR")
        if samples.task is not None:
            splits.require_task(scheme, splitter, samples.task.kind)
        samples = replace(samples, is_test=None)
        parts = splitter.split(samples, clients, cfg, rng.generator(seed, "partition", scheme))
        if min_samples:
            parts = schemes.redistribute(parts, min_samples, rng.generator(seed, "redistribute"))
        federation = _arrange(samples, parts, fractions, seed, device, splitter, cfg)
        names = () if splitter.permutes_labels(cfg) else samples.names
        return federation.fitted() if samples.task else replace(federation, task=Classification(samples.classes, names))

    def standardize_target(self) -> Self:
        """Return the federation whose labels are standardized by each client's own training labels during training.

        Predictions are in the unit of labels. Raises UsageError if labels are no quantity.
        """
        return replace(self, task=self.task.scaled_by_client()).fitted()

    def describe(self) -> pd.DataFrame:
        """Return a frame with a row per client: samples of each split, facts about labels, and their divergence.

        The divergence, of classes only, is that of Jensen and Shannon, in bits from 0 to 1, between the client's
        labels and all labels.
        """
        import pandas as pd

        from pflcli.core.simulation.heterogeneity import jensen_shannon

        labels = np.split(self.y.cpu().numpy(), self.offsets[len(SPLITS) :: len(SPLITS)][:-1])
        sizes = {split: self.sizes(split) for split in SPLITS}
        names = pd.Index(self.client_names, name="client")
        facts = pd.DataFrame({**sizes}, index=names).join(pd.DataFrame(map(self.task.describe, labels), index=names))
        if not isinstance(self.task, Classification):
            return facts
        counts = self.count_labels()
        total = counts.sum(axis=1, keepdims=True)
        overall = counts.sum(axis=0) / max(counts.sum(), 1)
        divergence = np.where(total[:, 0] > 0, jensen_shannon(counts / np.maximum(total, 1), overall), np.nan)
        return facts.assign(divergence=divergence)

    def count_labels(self) -> NDArray[np.int64]:
        """Return the number of samples of each client and class, (m, C)."""
        client = np.repeat(self.clients, self.sizes(*SPLITS))
        index = client * self.classes + self.y.cpu().numpy()
        return np.bincount(index, minlength=len(self.clients) * self.classes).reshape(-1, self.classes)


def _load(group: str, given: Any, contract: type) -> tuple[str, Any]:
    """Return the name and the content of a dataset or a scheme, given by its name, as a file or as an object."""
    if not isinstance(given, str | Path):
        return registry.complete_object(group, given, contract)
    name = registry.use(group, str(given))
    if group == "datasets" and not registry.exists(group, name) and Path(name).is_dir():
        raise UsageError(
            f"{name} is a folder; from_dataset takes datasets by name",
            "pflcli.partition and pflcli.compare take folders",
        )
    return name, registry.load(group, name, contract)


def _arrange(
    samples: Samples,
    parts: list[NDArray[np.int64]],
    fractions: Fractions,
    seed: int,
    device: str,
    splitter: schemes.Scheme | None = None,
    cfg: Any = None,
) -> Federation:
    """Return the federation of clients with these ``parts`` of the rows, split and transformed."""
    try:
        torch.device(device)
    except (RuntimeError, TypeError):
        raise UsageError(
            f"device is {device!r}, which PyTorch does not know", 'device="cpu", or device="cuda"'
        ) from None
    blocks = splits.split_clients(samples, parts, fractions, seed)
    rows, sizes = np.concatenate(blocks), [len(block) for block in blocks]
    x, y = samples.x[rows], samples.y[rows]
    cluster = None if splitter is None else splitter.cluster(len(parts), cfg)
    if cluster is not None:
        assert splitter is not None
        totals = np.reshape(sizes, (-1, len(SPLITS))).sum(axis=1)
        x, y = splits.transform_clusters(x, y, totals, cluster, splitter, cfg, samples.classes, seed)
    x = x.astype(np.float32, copy=False) if np.issubdtype(x.dtype, np.floating) else x
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    made = Federation.from_blocks(x, y, offsets, samples.task or samples.classes, device, None, cluster)
    return replace(made, names=tuple(splits.name_clients(samples, parts)), sample=rows)


def _as_array(values: Any) -> NDArray[Any]:
    """Return a NumPy array of a tensor, a frame, a list or an array."""
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def _as_samples(x: Any) -> NDArray[Any]:
    """Return samples as a type that models take; raises InputError for words, and for images of another type."""
    array = _as_array(x)
    if array.dtype == np.uint8 and array.ndim >= 3:
        return array
    if array.dtype == np.int16 and array.ndim == 2:
        return array
    if array.dtype.kind in "biu" and array.ndim >= 3:
        raise InputError(f"x is {array.dtype} {array.shape}: images are uint8, from 0 to 255", 'x.astype("uint8")')
    if array.dtype.kind not in "biuf":
        raise InputError(f"x is {array.dtype} {array.shape}, not numbers", "encode words, or use pfl import")
    return array if array.dtype.kind == "f" else array.astype(np.float32)


def _is_missing(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values (n,) are missing."""
    from pandas import isna  # here, so that commands do not import it

    return np.asarray(isna(array))


def _as_words(values: Any, what: str) -> NDArray[np.str_]:
    """Return names as words; raises InputError for a missing one."""
    array = _as_array(values).ravel()
    missing = np.flatnonzero(_is_missing(array))
    if len(missing):
        raise InputError(f"{what} of row {missing[0]} is missing")
    if array.dtype.kind == "f" and (array == np.floor(array)).all():
        array = array.astype(np.int64)
    return array.astype(np.str_)


def _as_labels(y: Any) -> NDArray[Any]:
    """Return labels as an array (n,); raises InputError for another shape, and for a missing label."""
    array = _as_array(y)
    if array.ndim != 1:
        raise InputError(f"y has shape {array.shape}, not (n,): one label for each sample")
    if len(missing := np.flatnonzero(_is_missing(array))):
        raise InputError(f"y of row {missing[0]} is missing")
    return array


def _number_labels(array: NDArray[Any], classes: Sequence[Any] | None) -> tuple[NDArray[np.int64], list[str]]:
    """Return labels from 0 and the names of the classes; raises InputError for a label that is no class."""
    if array.dtype.kind == "f" and not (array == np.floor(array)).all():
        row = int(np.flatnonzero(array != np.floor(array))[0])
        raise InputError(f"y of row {row} is {array[row]}, a number and not a class", 'task="quantity"')
    if array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.dtype.kind == "O":
        array = array.astype(np.str_)
    known = np.unique(array) if classes is None else np.asarray(list(classes))
    if known.dtype.kind != array.dtype.kind:
        known, array = known.astype(np.str_), array.astype(np.str_)
    if len(np.unique(known)) < len(known):
        raise UsageError("classes has a class twice", "list each class once")
    order = np.argsort(known, kind="stable")
    place = np.minimum(np.searchsorted(known, array, sorter=order), len(known) - 1)
    labels = order[place].astype(np.int64)
    wrong = np.flatnonzero(known[labels] != array)
    if len(wrong):
        raise InputError(f"y of row {wrong[0]} is {array[wrong[0]]}, which is not among classes")
    return labels, [str(name) for name in known.tolist()]


def _read_splits(split: Any) -> dict[str, Any]:
    """Return the marks of test and validation samples; raises InputError for another word."""
    if split is None:
        return {}
    words = _as_words(split, "split")
    wrong = np.flatnonzero(~np.isin(words, SPLITS))
    if len(wrong):
        listed = ", ".join(SPLITS)
        raise InputError(f"split of row {wrong[0]} is '{words[wrong[0]]}', which is none of {listed}")
    return {"is_test": words == "test", "is_validation": words == "validation"}
