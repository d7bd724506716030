"""How commands spell what they print."""

from __future__ import annotations

import os
import shutil
import sys

from ..spelling import counted, spell_bytes, spell_items, spell_table

__all__ = ["columns", "counted", "headline", "spell_bytes", "spell_items", "spell_table"]


def columns() -> int | None:
    """Columns of the terminal; None where the output goes to a file or a pipe, whose lines are not broken."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def headline(text: str) -> str:
    """Bold on a terminal; plain in a file or a pipe, and where NO_COLOR says so (no-color.org)."""
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return text if plain else f"\033[1m{text}\033[0m"
