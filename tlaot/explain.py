"""An error as a person is shown it: what is wrong where, the line of the file with the place marked, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .errors import TlaotError
from .paint import PLAIN, Paint

if TYPE_CHECKING:
    from .tune.specs.spec_lines import Place

__all__ = ["explain", "place_of"]

# Characters of a line that are shown; a longer one is cut about the mark.
_WIDEST = 120


def explain(error: TlaotError, folder: Path, paint: Paint = PLAIN) -> str:
    """The error's text; where it is about a line of ``tltune.toml``, with that line.

        tltune.toml [[kernel]] #1 (scale): unknown key 'shape', did you mean 'shapes'?
          tltune.toml:9
          | shape = { N = [65536] }
          | ^^^^^
        Known keys: name, frontend, ...

    Args:
        error: What was raised.
        folder: Where the project's files lie.
        paint: Colours, for a terminal.
    """
    lines = [f"{paint(error.where, 'where')}: {error.what}"]
    found = place_of(error, folder)
    if found is not None:
        lines += _excerpt(*found, paint)
    lines += [paint(line, "remedy") for line in error.remedy.splitlines()]
    return "\n".join(lines)


def place_of(error: TlaotError, folder: Path) -> tuple[Path, Place] | None:
    """The file and the place in it that an error is about, where both can be told."""
    # Imported here: it belongs to the build side, and an error of run time has no use for it.
    from .tune.specs.spec_lines import find_place

    word = error.where.partition(" ")[0]
    name = word if word.endswith(".toml") else "tltune.toml"
    if Path(name).name != name:
        return None
    try:
        path = _spec_in(folder) if name == word == "tltune.toml" or name != word else folder / name
        place = find_place(path.read_text(encoding="utf-8"), error.where, error.what)
    except (OSError, UnicodeDecodeError, ValueError):
        return None
    return None if place is None else (path, place)


def _spec_in(folder: Path) -> Path:
    from .tune.specs.spec_file import find_spec

    try:
        return find_spec(folder) or folder / "tltune.toml"
    except TlaotError:
        return folder / "tltune.toml"


def _excerpt(path: Path, place: Place, paint: Paint) -> list[str]:
    text = "".join(
        char if char.isprintable() else " " for char in place.text
    )  # tabs, so that the mark stands where it should
    first = max(0, min(place.column - 1 - _WIDEST // 3, len(text) - _WIDEST))
    start = place.column - 1 - first
    length = max(1, min(place.length, _WIDEST - start))
    bar = paint("|", "dim")
    return [
        paint(f"  {path.name}:{place.line}", "dim"),
        f"  {bar} {text[first : first + _WIDEST].rstrip()}",
        f"  {bar} {' ' * start}{paint('^' * length, 'bad')}",
    ]
