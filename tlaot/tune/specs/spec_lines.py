"""Where in a TOML file an error lies: the line, and what of it, for the key that the error's ``where`` names.

``tomllib`` gives values without their places, so that the keys are looked for again once something is wrong. What is found is for
people to look at: a file that cannot be followed to the end gives the places before that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Place", "find_place"]

Path = tuple["str | int", ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_TOML_ERROR = re.compile(r"\(at line (\d+), column (\d+)\)")
_UNKNOWN = re.compile(r"unknown key '([^']+)'")
_QUOTED = re.compile(r"'([^']+)'")
_KERNEL = re.compile(r"\[\[kernel\]\] #(\d+)(?: \([^)]*\))?")
_TARGET = re.compile(r'\[target\."([^"]+)"\]')
_TABLE = re.compile(r"\[([A-Za-z][\w.-]*)\]")
_WORKLOAD = re.compile(r"(\w+) \[[^\]]+\]")


@dataclass(frozen=True)
class Place:
    """A stretch of one line.

    Attributes:
        line, column: Of its first character, counted from 1.
        length: Characters.
        text: The whole line.
    """

    line: int
    column: int
    length: int
    text: str


@dataclass(frozen=True)
class _Spot:
    """A key or the heading of a table: its path, where it is spelt, and where its value is; offsets in the text."""

    path: Path
    start: int
    end: int
    value: tuple[int, int] | None = None


def find_place(text: str, where: str, what: str) -> Place | None:
    """The place that an error of a TOML file is about.

    Args:
        text: The file.
        where: As errors have it: ``tltune.toml [[kernel]] #2 (softmax) supply ranges``, or a workload, ``softmax [llvm] (N=64)``.
        what: What is wrong, which may quote a part of the value, or name an unknown key.

    Returns:
        The key, its value or the part of it that is quoted; the table's heading where the key is missing; None where nothing fits.
    """
    found = _TOML_ERROR.search(what)
    if found is not None:
        return _at_line(text, int(found[1]), int(found[2]))
    spots = list(_spots(text))
    table, words = _read_where(where, spots, text)
    if table is None:
        return None
    unknown = _UNKNOWN.search(what)
    if unknown is not None:
        words = [*words, unknown[1]]
    spot, exact = _look_up(spots, table, words)
    if spot is None:
        return None
    if unknown is not None or not exact or spot.value is None:
        return _place(text, spot.start, spot.end)
    start, end = spot.value
    said = what.rpartition(" got ")[2].partition("did you mean")[0]
    for quoted in reversed(_QUOTED.findall(said)):
        at = text.find(quoted, start, end)
        if at >= 0:
            return _place(text, at, at + len(quoted))
    if "\n" in text[start:end]:
        return _place(text, spot.start, spot.end)
    return _place(text, start, end)


def _read_where(where: str, spots: Sequence[_Spot], text: str) -> tuple[Path | None, list[str]]:
    """The table that an error names, and the words after it."""
    for pattern in (_KERNEL, _TARGET, _TABLE):
        found = pattern.search(where)
        if found is None:
            continue
        words = where[found.end() :].split()
        if pattern is _KERNEL:
            return ("kernel", int(found[1]) - 1), words
        if pattern is _TARGET:
            return ("target", found[1]), words
        if not where[: found.start()].rstrip().endswith(".toml"):
            break
        return tuple(found[1].split(".")), words
    named = _WORKLOAD.match(where)
    if named is not None:
        for spot in spots:
            start, end = spot.value or (0, 0)
            is_name = spot.path[:1] == ("kernel",) and spot.path[2:] == ("name",)
            if is_name and text[start:end].strip("\"'") == named[1]:
                return spot.path[:2], ["name"]
    return ((), []) if where.endswith(".toml") else (None, [])


def _look_up(spots: Sequence[_Spot], table: Path, words: Sequence[str]) -> tuple[_Spot | None, bool]:
    """What the words name below a table, as far as there is such a key; and whether that is all of them."""
    for count in range(len(words), -1, -1):
        wanted = (*table, *words[:count])
        for spot in spots:
            # Which of several inline tables of a list is meant, an error does not say.
            path = spot.path if spot.path == wanted else (*spot.path[:2], *(p for p in spot.path[2:] if type(p) is str))
            if spot.path and tuple(map(_folded, path)) == tuple(map(_folded, wanted)):
                return spot, count == len(words) > 0
    return None, False


def _folded(part: str | int) -> str | int:
    return part.replace("-", "_") if isinstance(part, str) else part


def _place(text: str, start: int, end: int) -> Place:
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", start)
    line = text[first : len(text) if last < 0 else last]
    length = max(1, min(end, first + len(line)) - start)
    return Place(text.count("\n", 0, start) + 1, start - first + 1, length, line.rstrip("\r"))


def _at_line(text: str, line: int, column: int) -> Place | None:
    lines = text.split("\n")
    if not 0 < line <= len(lines):
        return None
    return Place(line, column, 1, lines[line - 1].rstrip("\r"))


def _spots(text: str) -> Iterator[_Spot]:
    """The keys and headings of a file, in order."""
    try:
        yield from _Scanner(text).document()
    except (IndexError, ValueError):
        return  # not TOML from here on


class _Scanner:
    """Walks over a TOML file that a parser has read, or stumbled over; IndexError or ValueError where it cannot go on."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.counts: dict[Path, int] = {}  # of arrays of tables

    def document(self) -> Iterator[_Spot]:
        table: Path = ()
        self._skip()
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                start = self.at
                table = self._heading()
                yield _Spot(table, start, self.at)
            else:
                yield from self._pair(table)
            self._skip()

    def _heading(self) -> Path:
        several = self.text.startswith("[[", self.at)
        self.at += 2 if several else 1
        path: Path = ()
        keys = self._keys()
        for number, key in enumerate(keys):
            path = (*path, key)
            if several and number == len(keys) - 1:
                self.counts[path] = self.counts.get(path, -1) + 1
            if path in self.counts:
                path = (*path, self.counts[path])
        self.at = self.text.index("]", self.at) + (2 if several else 1)
        return path

    def _pair(self, table: Path) -> Iterator[_Spot]:
        start = self.at
        path = (*table, *self._keys())
        end = self.at
        self._skip(" \t")
        if self.text[self.at] != "=":
            raise ValueError
        self.at += 1
        self._skip(" \t")
        begins = self.at
        inner = list(self._value(path))
        yield _Spot(path, start, end, (begins, self.at))
        yield from inner

    def _keys(self) -> list[str]:
        keys = []
        while True:
            self._skip(" \t")
            quote = self.text[self.at]
            if quote in "\"'":
                start = self.at + 1
                self._string()
                keys.append(self.text[start : self.at - 1])
            else:
                bare = _BARE.match(self.text, self.at)
                if bare is None:
                    raise ValueError
                keys.append(bare[0])
                self.at = bare.end()
            after = self.at
            self._skip(" \t")
            if self.text[self.at : self.at + 1] != ".":
                self.at = after
                return keys
            self.at += 1

    def _value(self, path: Path) -> Iterator[_Spot]:
        opening = self.text[self.at]
        if opening in "\"'":
            self._string()
        elif opening == "[":
            self.at += 1
            for number in range(len(self.text)):
                self._skip(" \t\r\n,")
                if self.text[self.at] == "]":
                    break
                yield from self._value((*path, number))
            self.at += 1
        elif opening == "{":
            self.at += 1
            self._skip(" \t\r\n,")
            while self.text[self.at] != "}":
                yield from self._pair(path)
                self._skip(" \t\r\n,")
            self.at += 1
        else:
            start = self.at
            while self.at < len(self.text) and self.text[self.at] not in ",]}#\r\n":
                self.at += 1
            while self.at > start and self.text[self.at - 1] in " \t":
                self.at -= 1
            if self.at == start:
                raise ValueError

    def _string(self) -> None:
        quote = self.text[self.at]
        closing = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(closing)
        while not self.text.startswith(closing, self.at):
            if self.text[self.at] == "\n" and len(closing) == 1:
                raise ValueError
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(closing)
        while (
            len(closing) == 3 and self.text[self.at : self.at + 1] == quote
        ):  # quotes that end a text before its closing ones
            self.at += 1

    def _skip(self, blanks: str = " \t\r\n") -> None:
        """Over blanks, and over comments where lines may end."""
        while self.at < len(self.text):
            if self.text[self.at] in blanks:
                self.at += 1
            elif self.text[self.at] == "#" and "\n" in blanks:
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return
