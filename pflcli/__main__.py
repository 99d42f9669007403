"""The console script: run a command, and turn any failure into one clear error and an exit code."""

from __future__ import annotations

import gc
import io
import os
import shlex
import signal
import sys
from contextlib import redirect_stderr, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from pflcli.core import plugins, registry
from pflcli.core.errors import PflError, closest, out_of_memory

if TYPE_CHECKING:
    from typer import TyperException

_INTERRUPTED = 130
"""The exit code of a process that SIGINT ends, as shells report it."""


def run() -> None:
    """Run the process ``pfl``: an interruption ends it at once, without waiting for threads that train clients."""
    _open_closed_streams()
    sys.unraisablehook = _raise_again
    gc.set_threshold(500_000)  # more than imports create: collections would take a third of the time to import PyTorch
    try:
        main()
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            os._exit(_INTERRUPTED)
        # The work is done: ignore interruptions while Python shuts down, which would show a traceback.
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        gc.freeze()  # without it, Python traverses all objects several times at exit, which takes half a second
        raise
    except KeyboardInterrupt:  # during imports, before the command began, or just after its end
        os._exit(_INTERRUPTED)


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that is closed, as for daemons.

    Python sets such a stream to None, and the next file that is opened would get its number.
    """
    for number, (name, mode) in enumerate([("stdin", "r"), ("stdout", "w"), ("stderr", "w")]):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number, which is ``number``
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def main(args: list[str] | None = None) -> None:
    """Run ``pfl``; never returns."""
    if sys.platform == "win32":
        sys.stderr.write("pfl: Windows is not supported\n     run pfl in WSL, the Windows Subsystem for Linux\n")
        sys.exit(3)
    # Imported here, because imports take long enough to be interrupted, which ``run`` handles.
    from typer import Abort, BadParameter

    from pflcli.cli import app, console
    from pflcli.options import completion

    if args is None and completion.VARIABLE in os.environ:
        with suppress(Exception), redirect_stderr(io.StringIO()):  # a shell has no place for errors
            app([], prog_name="pfl")
        sys.exit(1)
    try:
        Path.cwd()
    except OSError:  # libraries of PyTorch would abort the process without a message
        console.fail("the current folder no longer exists", "cd to another folder")
        sys.exit(3)
    # Idle OpenMP threads that spin slow down small FAISS searches beside torch; read when either is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _interrupt)
    arguments = sys.argv[1:] if args is None else args
    # The base of Typer's errors, just below Exception: TyperException, or ClickException before Typer 0.28.
    typer_exception: type[TyperException] = BadParameter.__mro__[-4]
    try:
        code = app(arguments, prog_name="pfl", standalone_mode=False)
        if code == _INTERRUPTED:  # Typer returns this code after a KeyboardInterrupt
            raise KeyboardInterrupt
        sys.stdout.flush()
    except PflError as error:
        console.fail(error.message, *error.fix)
        code = error.exit_code
    except (KeyboardInterrupt, Abort):
        code = _report_interruption(arguments)
    except typer_exception as error:
        if error.format_message():  # empty without arguments, where Typer has printed the help
            console.fail(*_usage(error))
        code = error.exit_code
    except (BrokenPipeError, SystemExit) as end:
        # Typer raises SystemExit for a broken pipe, and also after a completion.
        if BrokenPipeError not in (type(end), type(end.__context__)):
            raise
        _mute()
        code = 0
    except Exception as error:
        code = _report_interruption(arguments) if _was_interrupted(error) else _report_unexpected(error, arguments)
    with suppress(OSError):
        for problem in plugins.problems:  # after the command, which may have found some
            console.sentence(f"WARNING: {problem}")
    try:
        sys.stdout.flush()
    except OSError:
        _mute()
    sys.exit(code or 0)


def _mute() -> None:
    """Redirect stdout to /dev/null, so that Python's last flush does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _raise_again(ignored: sys.UnraisableHookArgs) -> None:
    """Raise an interruption again a moment later if Python ignored it, as in the callback of a weakref."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        sys.__unraisablehook__(ignored)


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether an interruption caused an error.

    For example, a progress bar raises another error if its terminal was closed, and so does an interrupted import.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _report_interruption(arguments: list[str]) -> int:
    """Print how to resume, and return the exit code; a closed terminal is ignored."""
    from pflcli.cli import console

    with suppress(OSError):
        console.fail("interrupted; to resume, run again:", shlex.join(["pfl", *arguments]))
    return _INTERRUPTED


def _usage(error: TyperException) -> list[str]:
    """Return the lines for a command line that cannot be parsed."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "pfl"
    option = getattr(error, "option_name", None)
    if option is not None and context is not None:
        params = {*context.command.params, *context.find_root().command.params}  # those of pfl itself may follow too
        known = [name for param in params for name in param.opts if name.startswith("--")]
        if option.startswith("-") and option not in known:
            near = closest(option, known)
            return [f"unknown option '{option}'", near if near.startswith("did") else "", f"{path} --help"]
    words = error.format_message().replace("\n", " ").strip()
    return [words[:1].lower() + words[1:].rstrip("."), f"{path} --help"]


def _report_unexpected(error: Exception, arguments: list[str]) -> int:
    from pflcli.cli import console

    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename else ""
        console.fail(f"{name}{error.strerror}")
        return 3
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # of pathlib, until Python 3.12
        console.fail(f"a symbolic link points to itself: {str(error).partition(' from ')[2]}", "choose another path")
        return 3
    lack = out_of_memory(error)
    if lack is not None:
        console.fail(lack.message, *lack.fix)
        return lack.exit_code
    others = [plug.folder for plug in plugins.found() if not plug.package.startswith(f"{plugins.GROUP}.")]
    place = registry.place_of_failure(error, others)
    if {"-v", "--verbose"} & set(arguments):
        import traceback

        traceback.print_exc()
    if place:
        console.fail(f"{place}: {type(error).__name__}: {error}")
        return 5
    console.fail(f"a bug in pfl: {type(error).__name__}: {error}", "run the command with -v to see the traceback")
    return 1


if __name__ == "__main__":
    run()
