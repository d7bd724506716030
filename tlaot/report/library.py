"""The script that draws in the page, from vl-convert, which has Vega, Vega-Lite and Vega-Embed in it.

0.9 MB of the page; Plotly's would be 4.8. Bundling takes some seconds, so one that was made is kept beside the cache of results.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

from ..atomic import write_atomically
from ..errors import BuildError

__all__ = ["find_library"]

_DISTRIBUTION = "vl-convert-python"


def find_library(cache: Path) -> str:
    """The script.

    Args:
        cache: Folder where it is kept; one that cannot be written costs the time.

    Raises:
        BuildError: vl-convert is not installed.
    """
    try:
        version = importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise BuildError(
            "report", f"{_DISTRIBUTION}, which has the plots' script, is not installed", 'pip install "tlaot[report]"'
        ) from None
    kept = cache / "report" / f"vega-{version}.js"
    try:
        return kept.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        pass
    import vl_convert

    bundle: Callable[..., str] = vl_convert.javascript_bundle  # its annotations know no default of its first argument
    script = bundle()
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, script.encode())
    except OSError:
        pass
    return script
