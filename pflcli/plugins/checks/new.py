"""``pfl new``: write a commented example of a method, model, dataset, scheme, upload step or aggregator."""

from __future__ import annotations

from pathlib import Path

from pflcli.core import registry
from pflcli.core.errors import ConflictError, InputError, UsageError, closest
from pflcli.options.function import command
from pflcli.plugins.checks.new_options import New


@command(New)
def new(asked: New) -> Path:
    """Write an example of a ``kind`` to a new Python file, and return its path.

    Raises UsageError for an unknown kind or a name that is taken, ConflictError if the file exists, InputError if it
    cannot be written.

    >>> from pflcli import new
    >>> new("method", "my_method.py").name
    'my_method.py'
    """
    kind, path = asked.kind, Path(asked.file)
    if kind not in registry.KINDS:
        raise UsageError(f"unknown kind '{kind}'", closest(kind, registry.KINDS))
    if path.suffix != ".py":
        raise UsageError(f"{path} is not the name of a Python file", f"pfl new {kind} {path.with_suffix('.py')}")
    name = registry.name_of_file(registry.KINDS[kind], path)
    template = (Path(__file__).with_name("templates") / f"{kind}.py").read_text(encoding="utf-8")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template.replace("TITLE", name).replace("FILE_NAME", path.name).replace("STEM", path.stem))
    except FileExistsError:
        raise ConflictError(f"{path} exists", "choose another name") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    return path
