"""How commands spell what they print."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Mapping, Sequence

from ..paint import paint_for
from ..spelling import counted, spell_bytes, spell_items, spell_table

__all__ = ["columns", "counted", "headline", "painted", "show_table", "spell_bytes", "spell_items", "spell_table"]


def columns() -> int | None:
    """Columns of the terminal; None where the output goes to a file or a pipe, whose lines are not broken."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def headline(text: str) -> str:
    """Bold on a terminal; plain in a file or a pipe."""
    return painted(text, "heading")


def painted(text: str, role: str) -> str:
    """The text in a role's colour where standard output takes colours."""
    return paint_for(sys.stdout)(text, role)


def show_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str] = (),
    roles: Mapping[str, str] | None = None,
    indent: str = "",
) -> list[str]:
    """A table for standard output: as wide as the terminal is, its headings set apart there, and cells with a role in its colour.

    Args:
        header: Heading of each column.
        rows: Cells, one a column.
        right: Headings of the columns that are set flush right.
        roles: The role of cells that are exactly this text.
        indent: Before each line.
    """
    paint, known = paint_for(sys.stdout), roles or {}

    def of_cell(row: int, heading: str, piece: str, cell: str) -> str:
        role = "columns" if row == 0 else known.get(cell)
        return paint(piece, role) if role else piece

    width = columns()
    lines = spell_table(header, rows, right, None if width is None else width - len(indent), of_cell)
    return [f"{indent}{line}".rstrip() for line in lines]
