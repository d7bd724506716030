"""Colour on a terminal, and none elsewhere: in files, pipes and pip's output every byte is the text's own.

Eight sequences of ECMA-48 are all that is used, so that no library is asked for: what shows errors must work where nothing but tlaot is
installed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import IO, Any

__all__ = ["PLAIN", "Paint", "is_coloured", "paint_for", "plain_text"]

Paint = Callable[[str, str], str]
"""Gives a text a role: ``paint("MISSING", "bad")``."""

_CODES = {
    "heading": "1",
    "columns": "1;2",  # headings of a table
    "good": "32",
    "bad": "1;31",
    "doubtful": "33",
    "where": "1",
    "remedy": "36",
    "dim": "2",
}
_SEQUENCE = re.compile(r"\033\[[0-9;]*m")


def is_coloured(stream: IO[Any] | None, environ: Mapping[str, str]) -> bool:
    """Whether a stream takes colours: ``NO_COLOR`` forbids them, ``FORCE_COLOR`` asks for them, a dumb terminal has none."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "").lower() not in ("", "0", "false"):
        return True
    try:
        return stream is not None and stream.isatty() and environ.get("TERM", "dumb") != "dumb"
    except ValueError:  # closed
        return False


def paint_for(stream: IO[Any] | None, environ: Mapping[str, str] | None = None) -> Paint:
    """What paints for a stream."""
    return _paint if is_coloured(stream, os.environ if environ is None else environ) else PLAIN


def plain_text(text: str) -> str:
    """The text without colours."""
    return _SEQUENCE.sub("", text)


def PLAIN(text: str, role: str) -> str:  # noqa: N802 - a value of the type Paint
    """Paints nothing."""
    return text


def _paint(text: str, role: str) -> str:
    return f"\033[{_CODES[role]}m{text}\033[0m" if text else text
