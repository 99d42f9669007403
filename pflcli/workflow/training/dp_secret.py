"""The random numbers of noise that protects clients: from a secret of the run, or from ``--dp-seed``.

Composition of guarantees assumes that the noise of two runs is independent. Anything that two runs can share, such as
``--seed``, must therefore not determine the noise. A run draws a secret from the operating system when it first needs
noise. The secret is stored with the unfinished run, so that a resumed run gives the same bytes, and then in the
artifact, so that repeating a query to noisy votes repeats the answer.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from pflcli.artifacts import disk
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import rng
from pflcli.core.errors import InputError
from pflcli.core.settings import Settings

FILE = "dp_secret.txt"
"""The file of an artifact that contains the secret of its noise. It must not be released."""
_TEXT = "The noise of this run can be computed from this secret and subtracted. Never release this file.\n"


@dataclass
class NoiseDraws:
    """Returns the generator for a key, as ``rng.generator`` does; ``read_seed`` is called for the first one."""

    read_seed: Callable[[], int]

    @cached_property
    def seed(self) -> int:
        """The seed of all noise of the run."""
        return self.read_seed()

    def __call__(self, *key: str | int) -> np.random.Generator:
        """Return the generator for ``key``."""
        return rng.generator(self.seed, *key)


def noise_draws(
    settings: Settings,
    spec: ArtifactSpec,
    partition: Artifact,
    writer: ArtifactWriter,
    continued: Artifact | None = None,
) -> NoiseDraws:
    """Return the draws of noise of the run that ``writer`` writes; raises InputError if its secret is damaged.

    A run that continues another one has its secret: noise is drawn by round, so that no noise is drawn twice.
    With ``dp_seed``, the seed also depends on the request and on the samples of the ``partition``, so that two runs
    with different options or data have independent noise even then.
    """
    if settings.dp_seed is not None:
        seed = _derive_seed(settings.dp_seed, spec.fingerprint, partition)
        return NoiseDraws(lambda: seed)

    has_secret = continued is not None and FILE in continued.manifest.files

    def make() -> bytes:
        return continued.read(FILE) if continued and has_secret else f"{_TEXT}{secrets.token_hex(32)}\n".encode()

    def read_or_make() -> int:
        content = writer.read_or_make(FILE, make)
        secret = _parse(content)
        if secret is None:
            raise InputError(
                f"{writer.folder / FILE} is damaged", f"remove it (rm -r {writer.folder}), and start again"
            )
        return secret

    draws = NoiseDraws(read_or_make)
    if has_secret or (writer.folder / FILE).is_file():  # a part of the artifact, even if no more noise is drawn
        _ = draws.seed
    return draws


def folder_draws(folder: Path) -> NoiseDraws:
    """Return the draws of noise of a server with its state in ``folder``, where it makes its secret when needed."""

    def read_or_make() -> int:
        path = folder / FILE
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".tmp")
            disk.write(temporary, [f"{_TEXT}{secrets.token_hex(32)}\n".encode()])
            temporary.replace(path)
        secret = _parse(path.read_bytes())
        if secret is None:
            raise InputError(f"{path} is damaged, and with it the privacy of this federation", "restore it from a copy")
        return secret

    return NoiseDraws(read_or_make)


def stored_draws(artifact: Artifact, settings: Settings, fingerprint: str, partition: Artifact) -> NoiseDraws:
    """Return the draws of noise of the run that made predictions, so that the same query gets the same noise.

    ``fingerprint`` is that of the predictions before clients were added. Drawing raises InputError if the artifact has
    no secret or a damaged one.
    """

    def read() -> int:
        if settings.dp_seed is not None:
            return _derive_seed(settings.dp_seed, fingerprint, partition)
        secret = _parse(artifact.read(FILE)) if FILE in artifact.manifest.files else None
        if secret is None:
            raise InputError(
                f"{artifact.path} does not contain the secret of its noise ({FILE}): the same query would get other "
                "noise than before, which a mean over answers removes",
                "run its method again",
            )
        return secret

    return NoiseDraws(read)


def _derive_seed(dp_seed: int, fingerprint: str, partition: Artifact) -> int:
    samples = sorted((name, facts["sha256"]) for name, facts in partition.manifest.files.items())
    return int.from_bytes(hashlib.sha256(json.dumps([dp_seed, fingerprint, samples]).encode()).digest())


def _parse(content: bytes) -> int | None:
    """Return the secret in the content of ``FILE``, None if it is damaged."""
    match = re.fullmatch(rf"{re.escape(_TEXT)}([0-9a-f]{{64}})\n", content.decode("utf-8", "replace"))
    return None if match is None else int(match[1], 16)
