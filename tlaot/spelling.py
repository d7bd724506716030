"""How tables, sizes and counts are spelt, in messages of a build and on the command line."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

__all__ = ["CANNOT_BE_TRUSTED", "counted", "spell_bytes", "spell_items", "spell_table"]

CANNOT_BE_TRUSTED = "; times cannot be trusted"
"""The end of notes that a log has by themselves; where doubts are listed as such it says nothing more."""

_GAP = "  "


def counted(number: int, what: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def spell_items(values: Mapping[str, Any]) -> str:
    """``M=64, N=128``, sorted; text with its quotes, since ``M='64'`` is another workload than ``M=64``."""
    return ", ".join(f"{name}={value!r}" for name, value in sorted(values.items()))


def spell_bytes(size: int) -> str:
    """A size with its unit, ``28.4 KiB``; three significant digits or more."""
    if size < 1000:
        return f"{size} B"
    for unit in ("KiB", "MiB"):
        size_of = size / 1024 if unit == "KiB" else size / 1024**2
        if size_of < 999.95:
            return f"{size_of:.1f} {unit}"
    return f"{size / 1024**3:.1f} GiB"


def spell_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str] = (),
    width: int | None = None,
    paint: Callable[[int, str, str, str], str] | None = None,
) -> list[str]:
    """Lines of a table: columns side by side, with a line of headings first.

    Args:
        header: Heading of each column.
        rows: Cells, one a column.
        right: Headings of the columns that are set flush right, as numbers are.
        width: Columns of the terminal: the widest cells are broken between words into several lines, to fit; None breaks none.
        paint: Given the row (0 has the headings), the column's heading, a line of a cell and the whole cell, the line in colour.
    """
    if not rows:
        return []
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    broken = [i for i, name in enumerate(header) if name not in right]
    words = [max(len(word) for row in cells for word in (row[i].split() or [""])) for i in range(len(header))]
    while width is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        narrower = [i for i in broken if widths[i] > words[i]]
        if not narrower:
            break
        widths[max(narrower, key=lambda i: widths[i])] -= 1
    lines = []
    for number, row in enumerate(cells):
        parts = [
            textwrap.wrap(cell, widths[i], break_on_hyphens=False) or [""] if i in broken else [cell]
            for i, cell in enumerate(row)
        ]
        for k in range(max(map(len, parts))):
            line = [part[k] if k < len(part) else "" for part in parts]
            last = max((i for i, text in enumerate(line) if text), default=0)  # nothing follows, and no blanks do
            set_ = []
            for i, (text, w, name) in enumerate(zip(line[: last + 1], widths, header, strict=False)):
                shown = text if paint is None or not text else paint(number, name, text, row[i])
                blanks = " " * (w - len(text))
                set_.append(blanks + shown if name in right else shown + (blanks if i < last else ""))
            lines.append(_GAP.join(set_).rstrip())
    return lines
