"""Open stored predictions together with everything that made them, so that they can predict further samples."""

from __future__ import annotations

import itertools
import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pflcli.artifacts import codebook, kept_columns
from pflcli.artifacts import initial_weights as initial
from pflcli.artifacts.codebook import Codebook
from pflcli.artifacts.kinds import LINEAGE, predictions
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds.partition import Form, Partition
from pflcli.artifacts.kinds.predictions import LaterClients
from pflcli.artifacts.reader import Artifact, ancestor, follow
from pflcli.core import config, sources
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import GoneError, InputError, UsageError
from pflcli.core.execution import Execution
from pflcli.core.federation.run import RunInputs
from pflcli.core.wording import counted, listed
from pflcli.data.formats.images import Decoding
from pflcli.data.preparation.preprocessing import Preprocessing
from pflcli.workflow.prediction.encoders import StoredEncoder
from pflcli.workflow.training import dp_secret, hardware, run_request, run_settings
from pflcli.workflow.training.run_spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class ReopenedRun(RunSpec):
    """The run that made the predictions ``artifact`` of one method."""

    artifact: Artifact
    first_fingerprint: str
    """the fingerprint of the predictions before clients were added to them"""
    later: LaterClients | None = None
    """clients that joined after the rounds; they follow the clients of the partition"""

    def read_inputs(self, data: Partition, execution: Execution) -> RunInputs:
        """Read what the run on the samples ``data`` needs, with the noise of the original run."""
        draws = dp_secret.stored_draws(self.artifact, self.settings, self.first_fingerprint, self.partition)
        return replace(super().read_inputs(data, execution), private_rng=draws)

    def execution(self, execution: Execution) -> Execution:
        """Use the engine of the original run unless another one is asked for, so that results match bit for bit."""
        mode = self.artifact.manifest.made.get("engine", "auto")
        return Execution(
            device=execution.device,
            engine=mode if execution.engine == "auto" else execution.engine,
            threads=execution.threads,
            reporter=execution.reporter,
        )


def reopen(artifact: Artifact, weights: Path | str | None) -> ReopenedRun:
    """Open predictions of one method and their lineage.

    Raises InputError if a part of the lineage is missing or the predictions were made by an incompatible version;
    UsageError if the run began with the weights of a file, and ``weights`` is not that file.
    """
    request = artifact.manifest.request
    name = str(request["method"])
    method = run_request.load_method(artifact)
    reference = next((item for item in artifact.manifest.inputs if item.role == "source"), None)
    if reference is None:
        raise InputError(f"{artifact.path} does not record the artifact it was made from", "run its method again")
    source = follow(artifact, reference)
    lineage = {kind: ancestor(source, kind) for kind in LINEAGE}
    if lineage["partition"] is None:
        raise InputError(f"{artifact.path} does not descend from a partition", "run its method again")
    choices = next((item for item in artifact.manifest.inputs if item.role == "choices"), None)
    try:
        cfg = config.build(method.Config, request["options"], name)
        settings = run_settings.resolve_settings(request["settings"], {})
    except UsageError as error:
        raise InputError(
            f"{artifact.path} was made by another version of pfl: {error.message}", "run its method again"
        ) from None
    return ReopenedRun(
        artifact=artifact,
        name=name,
        method=method,
        cfg=cfg,
        settings=settings,
        seed=int(request["seed"]),
        lineage=lineage,
        earlier_run=None if choices is None else follow(artifact, choices),
        weights=_read_weights(artifact, lineage["backbone"], weights),
        first_fingerprint=_find_first(artifact).manifest.fingerprint,
        later=_read_later_clients(artifact, lineage["partition"]),
    )


def _find_first(artifact: Artifact) -> Artifact:
    """Return the predictions to which ``pfl new-client`` has added clients one after the other."""
    while "later_clients" in artifact.manifest.request:
        artifact = follow(artifact, next(item for item in artifact.manifest.inputs if item.role == "source"))
    return artifact


def _read_later_clients(artifact: Artifact, partition: Artifact) -> LaterClients | None:
    """Return the clients that joined after the rounds; raises InputError if they do not fit the partition."""
    later, form = predictions.read_later_clients(artifact), partitions.read_form(partition)
    if later is None:
        return None
    known = int(partition.manifest.summary["clients"])
    is_alike = (later.x.shape[1:], str(later.x.dtype)) == (form.shape, form.dtype)
    if not is_alike or known + (len(later.offsets) - 1) // len(SPLITS) != artifact.manifest.summary["clients"]:
        raise InputError(
            f"{artifact.path / predictions.UNSEEN} is inconsistent: its samples or clients do not fit {partition.path}"
        )
    return later


def _read_weights(artifact: Artifact, backbone: Artifact | None, file: Path | str | None) -> initial.Weights | None:
    """Return the initial weights in a file, None if there is no file; raises UsageError if it is missing or wrong."""
    digest = artifact.manifest.request.get("weights")
    weights = None if file is None else initial.read(file)
    if weights is not None and weights.digest != digest:
        problem = f"was not trained from {weights.path}"
    elif weights is None and digest is not None and backbone is None:
        problem = "was trained from the weights in a file"
    else:
        return weights
    # A backbone contains the weights that it started from.
    is_needed = digest is not None and backbone is None
    raise UsageError(
        f"{artifact.path} {problem}", _name_weights(artifact, file) if is_needed else "leave out --weights"
    )


def _name_weights(artifact: Artifact, wrong: Path | str | None) -> str:
    """Return the option with the file in the command of the predictions, if it is there and not the ``wrong`` one."""
    words = shlex.split(str(artifact.manifest.made.get("command", "")))
    for option, word in itertools.pairwise(words):
        # The command is recorded for the parent folder of the artifact.
        file = Path(os.path.normpath(artifact.path.parent / word))
        if option == "--weights" and file.is_file() and (wrong is None or not file.samefile(wrong)):
            return f"--weights {shlex.quote(str(file))}"
    return "--weights FILE, with the weights that it was trained from"


def find_changed_code(artifact: Artifact) -> list[str]:
    """Return the methods and models, such as ``methods/ditto``, that changed since the predictions were made."""
    changed = []
    for name, digest in artifact.manifest.code.items():
        group, slash, file = name.partition("/")
        if slash and group in ("methods", "models") and sources.code_hash(group, file) != digest:
            changed.append(name)
    return changed


def read_preprocessing(
    artifact: Artifact,
    partition: Artifact,
    book: Codebook,
    client: str | None,
    execution: Execution,
    encoder_weights: Path | str | None = None,
) -> Preprocessing:
    """Return the preprocessing of a client's samples; see ``Preprocessing.from_codebook``.

    If ``pfl embed`` computed the features, samples may also be images. ``encoder_weights`` is then the file with the
    weights of the encoder, by default the one that ``pfl embed`` read. Raises UsageError if it is given, but the
    features are not from ``pfl embed``.
    """
    try:
        dataset = ancestor(partition, "dataset")
    except GoneError:
        dataset = None
    request = {} if dataset is None else dataset.manifest.request
    decoding = Decoding(*(request.get(name) for name in ("resize", "convert", "frame")))
    encoder = None
    if book.encoder is not None and book.encoder.weights:
        recorded = None if dataset is None else dataset.manifest.made.get("weights")
        file = None if dataset is None or recorded is None else Path(os.path.normpath(dataset.path / str(recorded)))
        file = file if encoder_weights is None else Path(encoder_weights)
        encoder = StoredEncoder(book.encoder, file, str(artifact.path), hardware.threads(execution.threads))
    elif encoder_weights is not None:
        raise UsageError(
            f"the samples of {artifact.path} are not features from pfl embed", "leave out --encoder-weights"
        )
    form: Form = partitions.read_form(partition)
    return Preprocessing.from_codebook(str(artifact.path), book, form, client, decoding, encoder)


def client_names(artifact: Artifact) -> list[str]:
    """Return the names of the clients (m,); clients without names are numbered."""
    return codebook.read(artifact).client_names(int(artifact.manifest.summary["clients"]))


def choose_client(artifact: Artifact, partition: Artifact, asked: str | None) -> str:
    """Return the client whose model is used: the one that is ``asked`` for, by default the one of a site.

    Its name is not checked against the clients of a simulation. Raises UsageError if a simulation has to choose among
    its clients; InputError for a client that is neither the site's own nor joined it later.
    """
    names, request = client_names(artifact), partition.manifest.request
    if "federation" not in request:
        if asked is None:
            raise UsageError(
                f"{artifact.path} has {counted(len(names), 'client')}, and each has its own model",
                f"--client NAME, one of {listed(names)}",
            )
        return asked
    own, later = str(request["client"]), names[int(partition.manifest.summary["clients"]) :]
    if asked in (None, own, *later):
        return own if asked is None else asked
    raise InputError(
        f"{artifact.path} has the model of its site's client '{own}', and none of '{asked}'",
        f"--client {shlex.quote(own)}",
    )


def append_clients(data: Partition, later: LaterClients, count: int) -> Partition:
    """Return the partition with later clients appended, as unseen ones, up to ``count`` clients in all.

    True clusters are left out, as they are unknown for later clients.
    """
    more = count - len(data.names)
    offsets = later.offsets[: len(SPLITS) * more + 1]
    rows = slice(0, int(offsets[-1]))
    known = np.zeros(len(data.names), np.bool_) if data.new is None else data.new
    return replace(
        data,
        x=np.concatenate([data.x, later.x[rows]]),
        y=np.concatenate([data.y, later.y[rows]]),
        sample=np.concatenate([data.sample, later.sample[rows]]),
        offsets=np.concatenate([data.offsets, data.offsets[-1] + offsets[1:]]),
        names=[*data.names, *(f"later {number}" for number in range(more))],
        cluster=None,
        poisoned=None,
        update_factor=None,
        update_noise=None,
        kept={},
        new=np.concatenate([known, np.ones(more, np.bool_)]),
    )


def join_later_clients(first: LaterClients | None, second: LaterClients) -> LaterClients:
    """Return the later clients ``first``, if any, followed by the later clients ``second``."""
    if first is None:
        return second
    return LaterClients(
        np.concatenate([first.x, second.x]),
        np.concatenate([first.y, second.y]),
        np.concatenate([first.sample, second.sample]),
        np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]]),
        kept_columns.join((first.kept, len(first.y)), (second.kept, len(second.y))),
    )
