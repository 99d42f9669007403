"""What a stack answers for further samples: the pool of its sources' answers, by the exponents that it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import Artifact
from pflcli.evaluation import pool
from pflcli.evaluation.learners import BASE, GLOBAL, pooled_answers
from pflcli.prediction.answering import Answer
from pflcli.training.stored_state import STATE


def pooled(artifact: Artifact, methods: Sequence[str], answers: Sequence[Answer], client: int | None) -> Answer:
    """Return what a stack answers, from the ``answers`` of its sources, of these ``methods``, in their order.

    ``client`` is the client's number; one that is not known (None) keeps the global model or, where the stack has none,
    has the common exponents.
    """
    known = pooled_answers([answer.parts for answer in answers], methods)
    names = [*artifact.manifest.summary["exponents"]]
    content = artifact.read(STATE)
    with artifact.parsing(STATE):
        exponents = load(content)["exponents"].astype(np.float64)
        if exponents.shape != (len(known),) or len(names) != len(known):
            raise ValueError(f"{exponents.shape[0]} exponents for {len(known)} learners")
    tuned = {} if client is None else {key: float(value[client]) for key, value in predictions.tuned(artifact).items()}
    own = np.asarray([tuned.get(f"exponent {name}", value) for name, value in zip(names, exponents, strict=True)])
    p = pool.answer(pool.logarithms(known), own).astype(np.float32)
    base = _base(methods, names, known)
    remarks = tuple(dict.fromkeys(remark for answer in answers for remark in answer.remarks))
    if base is None:
        return Answer({"p": p}, tuned, remarks)
    keeps_global = client is None or not tuned.get("pooled", 1.0)
    return Answer({"p": base if keeps_global else p, GLOBAL: base}, tuned, remarks)


def _base(methods: Sequence[str], names: Sequence[str], known: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    """Return the answers of the global model, None if no learner is it."""
    if BASE in methods:
        return known[methods.index(BASE)]
    by_name: Mapping[str, NDArray[Any]] = dict(zip(names, known, strict=True))
    return by_name.get(GLOBAL)
