"""The process that renders Vega-Lite specifications with ``vl-convert``, and contains the JavaScript of the page.

The engine of vl-convert reserves gigabytes of address space, and ends its process where these are not to be had. Run
as a module, this file is a server, which starts when the first picture is drawn and draws all pictures of a command:
if it ends, pictures are lost and nothing else.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import weakref
from multiprocessing import connection

from pflcli.core.errors import NotDrawnError, UsageError
from pflcli.core.foreign import read_address_limit, size

PACKAGE = "vl_convert"
BUNDLE = "bundle"
"""The request for Vega, Vega-Lite and Vega-Embed as one script."""


def request(form: str, source: str = "", scale: float = 1.0) -> bytes:
    """Return a specification as ``png``, ``svg`` or ``pdf``, or the ``BUNDLE``.

    Raises UsageError if vl-convert is not installed, NotDrawnError if its process ends, and ValueError for a wrong
    specification.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise UsageError("pictures need vl-convert, which is not installed", "pip install 'pflcli[pictures]'")
    renderer = _start(os.getpid())
    try:
        succeeds, result = renderer.ask(form, source, scale)
    except (EOFError, OSError):
        _start.cache_clear()
        raise renderer.describe_end() from None
    if not succeeds:
        raise ValueError(result.decode())
    return result


class _Renderer:
    """The process; it ends when the other end of its pipe is closed, as it is when this process ends."""

    def __init__(self) -> None:
        self._pipe, other = connection.Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pflcli.evaluation.charts.renderer", str(other.fileno())],
            pass_fds=(other.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # a stack of the engine, which says nothing to a user
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        other.close()
        weakref.finalize(self, _end, self._process, self._pipe)

    def ask(self, form: str, source: str, scale: float) -> tuple[bool, bytes]:
        self._pipe.send((form, source, scale))
        succeeds, result = self._pipe.recv()
        return bool(succeeds), bytes(result)

    def describe_end(self) -> NotDrawnError:
        """Return the error for a process that has ended."""
        code = self._process.wait()
        why = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        limit = read_address_limit()
        limited = f"; the address space is limited to {size(limit)}, and vl-convert reserves more" if limit else ""
        return NotDrawnError(f"the process that draws pictures {why}{limited}", "ulimit -v unlimited" if limit else "")


@functools.cache
def _start(process: int) -> _Renderer:
    """Start the renderer of this process; a forked one cannot use that of its parent."""
    return _Renderer()


def _end(process: subprocess.Popen[bytes], pipe: connection.Connection) -> None:
    pipe.close()
    process.wait()


def _render(form: str, source: str, scale: float) -> bytes:
    import vl_convert

    if form == BUNDLE:
        script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
        return script.encode()
    if form == "svg":
        svg: str = vl_convert.vegalite_to_svg(source, allowed_base_urls=[])
        return svg.encode()
    if form == "pdf":
        pdf: bytes = vl_convert.vegalite_to_pdf(source, allowed_base_urls=[])
        return pdf
    png: bytes = vl_convert.vegalite_to_png(source, scale=scale, allowed_base_urls=[])
    return png


def _serve(pipe: connection.Connection) -> None:
    """Answer requests until the other end of the pipe is closed."""
    while True:
        try:
            form, source, scale = pipe.recv()
        except EOFError:
            return
        try:
            answer = True, _render(form, source, scale)
        except ValueError as error:
            answer = False, str(error).encode()
        pipe.send(answer)


if __name__ == "__main__":
    _serve(connection.Connection(int(sys.argv[1])))
