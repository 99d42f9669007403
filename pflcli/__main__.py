"""The console script: run a command, turn whatever goes wrong into one clear error and an exit code."""

from __future__ import annotations

import gc
import os
import shlex
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from pflcli.errors import PflError, closest, out_of_memory

if TYPE_CHECKING:
    from typer import TyperException

_INTERRUPTED = 130
"""Exit code, as of a shell's child that SIGINT ends."""

_OBJECTS = 500_000
"""Objects between searches for unreachable ones: more than imports leave, none of which a search could free."""


def run() -> None:
    """Run as the process ``pfl``: an interruption ends it at once, without waiting for threads that train clients."""
    _open_closed_streams()
    sys.unraisablehook = _raise_again
    gc.set_threshold(_OBJECTS)  # by default these searches take a third of the time that PyTorch takes to import
    try:
        main()
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            os._exit(_INTERRUPTED)
        # The work is done. An interruption while Python shuts down would show a traceback.
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        gc.freeze()  # or Python searches all objects several times while it ends, for half a second
        raise
    except KeyboardInterrupt:  # before the command began, while Python read its modules, or just after its end
        os._exit(_INTERRUPTED)


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that is closed, as daemons close them.

    Python has None in place of such a stream, and the next file that is opened would get its number.
    """
    for number, (name, mode) in enumerate([("stdin", "r"), ("stdout", "w"), ("stderr", "w")]):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def main(args: list[str] | None = None) -> None:
    """Run ``pfl``; never returns."""
    if sys.platform == "win32":
        sys.stderr.write("pfl: Windows is not supported\n     run pfl in WSL, the Windows Subsystem for Linux\n")
        sys.exit(3)
    # Imported here, because it takes long enough to be interrupted.
    from typer import Abort, TyperException

    from pflcli.cli import app, console
    from pflcli.options import completion

    if args is None and completion.VARIABLE in os.environ:
        sys.exit(completion.print_completions(app))
    try:
        Path.cwd()
    except OSError:  # libraries of PyTorch end the process without a message
        console.fail("the current folder no longer exists", "cd to another folder")
        sys.exit(3)
    # Idle OpenMP threads that spin slow down small FAISS searches beside torch; read when either is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants SIGHUP to be
            signal.signal(number, _interrupt)
    arguments = sys.argv[1:] if args is None else args
    try:
        code = app(arguments, prog_name="pfl", standalone_mode=False)
        if code == _INTERRUPTED:  # what Typer makes of KeyboardInterrupt
            raise KeyboardInterrupt
        sys.stdout.flush()
    except PflError as error:
        console.fail(error.message, *error.fix)
        code = error.exit_code
    except (KeyboardInterrupt, Abort):
        code = _interrupted(arguments)
    except TyperException as error:
        # Without arguments Typer has printed the help, and there is nothing to add.
        if error.format_message():
            console.fail(*_usage(error))
        code = error.exit_code
    except (BrokenPipeError, SystemExit) as end:
        # Typer exits by itself on a broken pipe, and when it has completed a word for the shell.
        if BrokenPipeError not in (type(end), type(end.__context__)):
            raise
        # The reader of our output has gone.
        _mute()
        code = 0
    except Exception as error:
        code = _interrupted(arguments) if _was_interrupted(error) else _unexpected(error, arguments)
    try:
        sys.stdout.flush()
    except OSError:
        _mute()
    sys.exit(code or 0)


def _mute() -> None:
    """Send the rest of stdout nowhere, so that Python's last flush does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _raise_again(ignored: sys.UnraisableHookArgs) -> None:
    """Raise an interruption a moment later that came where Python ignores errors, as in the callback of a weakref."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        sys.__unraisablehook__(ignored)


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether an interruption led to an error.

    A progress bar fails that ends on a terminal that has gone, and so does the import of a module within another.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _interrupted(arguments: list[str]) -> int:
    """Print how to resume, and return the exit code; a terminal that has gone is ignored."""
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
        known = [name for param in context.command.params for name in param.opts if name.startswith("--")]
        if option.startswith("-") and option not in known:
            near = closest(option, known)
            return [f"unknown option '{option}'", near if near.startswith("did") else "", f"{path} --help"]
    words = error.format_message().replace("\n", " ").strip()
    return [words[:1].lower() + words[1:].rstrip("."), f"{path} --help"]


def _unexpected(error: Exception, arguments: list[str]) -> int:
    from pflcli.cli import console

    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename else ""
        console.fail(f"{name}{error.strerror}")
        return 3
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # of pathlib, until Python 3.12
        console.fail(f"a link leads back to itself: {str(error).partition(' from ')[2]}", "choose another path")
        return 3
    lack = out_of_memory(error)
    if lack is not None:
        console.fail(lack.message, *lack.fix)
        return lack.exit_code
    if {"-v", "--verbose"} & set(arguments):
        import traceback

        traceback.print_exc()
    console.fail(f"a bug in pfl: {type(error).__name__}: {error}", "the same command with -v shows where")
    return 1


if __name__ == "__main__":
    run()
