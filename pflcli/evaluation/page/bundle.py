"""What the extra ``pflcli[report]`` adds: the JavaScript that draws charts, and a picture of each for paper."""

from __future__ import annotations

import base64
import copy
from functools import cache
from typing import Any

from pflcli.errors import UsageError

_WIDTH, _WIDE = 560, 1150
"""Pixels of a picture that stands in for a chart, and for one as wide as the page."""
_MOST = 100_000
"""Bytes of an SVG beyond which it becomes a PNG."""


def require() -> None:
    """Raise UsageError unless the extra is installed."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"pfl report needs {error.name}, which is not installed", "pip install 'pflcli[report]'"
        ) from None


@cache
def javascript() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, from the installed vl-convert; it fetches nothing."""
    import vl_convert

    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script.replace("</script", "<\\/script")


def still(spec: dict[str, Any], *, is_wide: bool = False) -> str:
    """Return a chart on white as a data URL: as SVG, or as PNG where an SVG would be large."""
    import vl_convert

    sized = copy.deepcopy(spec)
    sized["width"] = _WIDE if is_wide else _WIDTH
    sized["background"] = "white"
    svg: str = vl_convert.vegalite_to_svg(sized, allowed_base_urls=[])
    if len(svg) <= _MOST:
        return _url("image/svg+xml", svg.encode())
    return _url("image/png", vl_convert.vegalite_to_png(sized, scale=1, allowed_base_urls=[]))


def _url(form: str, content: bytes) -> str:
    return f"data:{form};base64,{base64.b64encode(content).decode()}"
