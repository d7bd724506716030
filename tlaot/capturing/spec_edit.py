"""Changes in the text of a ``tltune.toml``: values are put in where they belong, and every other character stays.

The text is not written anew from what it means: places are found in it, and what comes out is parsed and held against what was meant.
What cannot be placed without a doubt is an error, and the author is told the line to write.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..draft.spec_text import FILL_IN
from ..errors import SpecError
from ..keys import spell_key

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["add_shapes", "append_entry", "is_filled", "repeat_entry", "set_dynamic", "shape_tables"]

_WIDTH = 120
_HEADING = re.compile(r"^[ \t]*\[(\[?)[ \t]*([^\]\n]+?)[ \t]*\]?\][ \t]*(#[^\n]*)?$", re.MULTILINE)
# Keys of a table that say which shapes it serves.
_OF_SHAPES = ("shapes", "dynamic", "outside", "probes")
_CLOSERS = {"[": "]", "{": "}"}


@dataclass(frozen=True)
class _Value:
    """Where a key's value lies in the text."""

    start: int
    end: int


def shape_tables(table: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """The tables of a kernel's ``shapes``; None where a function gives them."""
    shapes = table.get("shapes")
    if isinstance(shapes, str):
        return None
    return [shapes] if isinstance(shapes, dict) else list(shapes or [])


def is_filled(table: Mapping[str, Any]) -> bool:
    """Whether shapes say something: ``{ M = [] }``, as a draft has them, multiplies out to nothing."""
    return any(all(value != [] for value in shape.values()) for shape in shape_tables(table) or [])


def add_shapes(text: str, kernel: int, shapes: Sequence[Mapping[str, Any]], file: str) -> str:
    """The text with more shapes in a kernel's table; in place of a draft's empty ones.

    Args:
        text: The file's.
        kernel: Position of the ``[[kernel]]`` table in the file.
        shapes: Keys as :mod:`tlaot.keys` encodes them.
        file: Its name, for messages.

    Raises:
        SpecError: The place cannot be told.
    """
    body = tomllib.loads(text)
    table = body["kernel"][kernel]
    wanted = copy.deepcopy(body)
    filled = is_filled(table)
    own = shape_tables(table) or []
    added = [tomllib.loads(f"shape = {spell_key(shape)}")["shape"] for shape in shapes]
    wanted["kernel"][kernel]["shapes"] = [*(own if filled else []), *added]
    lines = [spell_key(shape) for shape in shapes]
    span = _table_span(text, kernel)
    value = None if span is None else _value_of(text, span, "shapes")
    if span is None:
        changed = None
    elif value is None:
        changed = None if "shapes" in table else _insert_line(text, span, "factory", f"shapes = {_list_of(lines)}")
    elif not filled:
        changed = _replace_draft(text, value, _list_of(lines))
    elif isinstance(table["shapes"], dict):
        inner = text[value.start : value.end]
        changed = text[: value.start] + _list_of([inner, *lines]) + text[value.end :]
    else:
        changed = _append(text, value, lines)
    return _checked(changed, wanted, table, file, f"shapes = {_list_of(lines)}")


def set_dynamic(text: str, kernel: int, dynamic: Mapping[str, Sequence[int]], file: str) -> str:
    """The text with a kernel's ``dynamic`` key, new or in place of another one.

    Args:
        text, kernel, file: As of :func:`add_shapes`.
        dynamic: Sizes by dimension.

    Raises:
        SpecError: The place cannot be told.
    """
    body = tomllib.loads(text)
    wanted = copy.deepcopy(body)
    table = body["kernel"][kernel]
    wanted["kernel"][kernel]["dynamic"] = {name: list(sizes) for name, sizes in dynamic.items()}
    spelled = spell_key({name: list(sizes) for name, sizes in dynamic.items()})
    span = _table_span(text, kernel)
    value = None if span is None else _value_of(text, span, "dynamic")
    if span is None:
        changed = None
    elif value is not None:
        changed = text[: value.start] + spelled + text[value.end :]
    else:
        after = "shapes" if "shapes" in table else "factory"
        changed = None if "dynamic" in table else _insert_line(text, span, after, f"dynamic = {spelled}")
    return _checked(changed, wanted, table, file, f"dynamic = {spelled}")


def append_entry(text: str, entry: str) -> str:
    """The text with a ``[[kernel]]`` table more at its end."""
    return f"{text.rstrip()}\n\n{entry.strip()}\n"


def repeat_entry(text: str, kernel: int, file: str) -> str:
    """The text with a kernel's table a second time at its end, without shapes: for others that it is to serve.

    Raises:
        SpecError: The place cannot be told.
    """
    body = tomllib.loads(text)
    table = body["kernel"][kernel]
    wanted = copy.deepcopy(body)
    more = {key: value for key, value in copy.deepcopy(table).items() if key not in _OF_SHAPES}
    wanted["kernel"].append(more)
    span = _table_span(text, kernel)
    changed = None
    if span is not None:
        start = text.rfind("\n", 0, span[0]) + 1
        end = next(
            (at for at, _, _, name in _headings(text) if at > start and not name.startswith("kernel.")), len(text)
        )
        # Comments above the next heading are of that.
        own = re.sub(r"(\n[ \t]*(#[^\n]*)?)*\Z", "", text[start:end])
        for key in _OF_SHAPES:
            inner = _table_span(own, 0)
            value = None if inner is None else _value_of(own, inner, key)
            if value is not None:
                own = own[: own.rfind("\n", 0, value.start)] + own[_line_end(own, value.end) :]
        changed = append_entry(text, own)
    return _checked(changed, wanted, table, file, "a [[kernel]] table of its own")


def _checked(changed: str | None, wanted: Any, table: Mapping[str, Any], file: str, line: str) -> str:
    try:
        if changed is not None and tomllib.loads(changed) == wanted:
            return changed
    except tomllib.TOMLDecodeError:
        pass
    raise SpecError(
        f"{file} [[kernel]] ({table.get('name')})",
        "is written in a way that tlaot capture does not edit",
        f"Write {line}",
    )


def _list_of(items: Sequence[str]) -> str:
    if len(items) == 1 and len(items[0]) < _WIDTH - len("shapes = []"):
        return f"[{items[0]}]"
    return "[\n" + "".join(f"    {item},\n" for item in items) + "]"


def _replace_draft(text: str, value: _Value, spelled: str) -> str:
    """With a draft's value replaced, and its comment that asks for one."""
    end = _line_end(text, value.end)
    rest = text[value.end : end]
    return text[: value.start] + spelled + text[end if FILL_IN in rest else value.end :]


def _append(text: str, value: _Value, items: Sequence[str]) -> str:
    """Before the bracket that ends a list, set like what is in it."""
    closing = value.end - 1
    last, comma = _last_item(text, value)
    inside = text[value.start : value.end]
    if last is None:
        return text[: value.start] + _list_of(items) + text[value.end :]
    if "\n" not in inside:
        line = ("" if comma else ",") + " " + ", ".join(items)
        start = text.rfind("\n", 0, value.start) + 1
        if _line_end(text, value.end) - start + len(line) <= _WIDTH:
            return text[:last] + line + text[last:]
        return text[: value.start] + _list_of([inside[1:-1].strip().rstrip(","), *items]) + text[value.end :]
    indent = re.match(r"[ \t]*", text[text.rfind("\n", 0, last) + 1 :])
    lead = indent[0] if indent and indent[0] else "    "
    # After the comment that the last item has on its line.
    end = min(_line_end(text, last), closing)
    rest = text[end:]
    head = text[:last] + ("" if comma else ",") + text[last:end]
    return (
        head.rstrip(" \t")
        + "".join(f"\n{lead}{item}," for item in items)
        + (rest if rest.startswith("\n") else "\n" + rest)
    )


def _last_item(text: str, value: _Value) -> tuple[int | None, bool]:
    """The end of a list's last item, with its comma, and whether it has one."""
    at, last, comma = value.start + 1, None, False
    while at < value.end - 1:
        char = text[at]
        if char in " \t\r\n":
            at += 1
        elif char == "#":
            at = _line_end(text, at)
        elif char == ",":
            at += 1
            last, comma = at, True
        else:
            at = _end_of_value(text, at)
            last, comma = at, False
    return last, comma


def _insert_line(text: str, span: tuple[int, int], after: str, line: str) -> str | None:
    """With a line below that of a key."""
    value = _value_of(text, span, after)
    if value is None:
        return None
    end = _line_end(text, value.end)
    return f"{text[:end]}\n{line}{text[end:]}"


def _table_span(text: str, kernel: int) -> tuple[int, int] | None:
    """From the end of a kernel's heading to the next heading: its own keys, without those of tables below it."""
    headings = _headings(text)
    own = [i for i, (_, _, double, name) in enumerate(headings) if double and name == "kernel"]
    if kernel >= len(own):
        return None  # written as kernel = [{...}]
    here = own[kernel]
    return headings[here][1], headings[here + 1][0] if here + 1 < len(headings) else len(text)


def _headings(text: str) -> list[tuple[int, int, bool, str]]:
    """Start, end, whether it has two pairs of brackets, and name; what looks like one within a value is none."""
    found = []
    at = 0
    while at < len(text):
        match = _HEADING.match(text, at)
        if match is not None:
            found.append((match.start(), match.end(), bool(match[1]), match[2].strip().strip("\"'")))
            at = match.end() + 1
            continue
        key = _KEY.match(text, at)
        at = _line_end(text, _end_of_value(text, key.end()) if key is not None else at) + 1
    return found


_KEY = re.compile(r"""[ \t]*((?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')(?:[ \t]*\.[ \t]*[A-Za-z0-9_-]+)*)[ \t]*=[ \t]*""")


def _value_of(text: str, span: tuple[int, int], name: str) -> _Value | None:
    at = span[0]
    while at < span[1]:
        key = _KEY.match(text, at)
        if key is None:
            at = _line_end(text, at) + 1
            continue
        end = _end_of_value(text, key.end())
        if key[1].strip("\"'").replace("_", "-") == name.replace("_", "-"):
            return _Value(key.end(), end)
        at = _line_end(text, end) + 1
    return None


def _end_of_value(text: str, at: int) -> int:
    """Where the value that begins here ends."""
    for quote in ('"""', "'''"):
        if text.startswith(quote, at):
            end = text.find(quote, at + 3)
            while quote == '"""' and end > 0 and text[end - 1] == "\\":
                end = text.find(quote, end + 1)
            return len(text) if end < 0 else end + 3
    char = text[at : at + 1]
    if char in ("'", '"'):
        at += 1
        while at < len(text) and text[at] not in (char, "\n"):
            at += 2 if char == '"' and text[at] == "\\" else 1
        return at + 1
    if char in _CLOSERS:
        at += 1
        while at < len(text) and text[at] != _CLOSERS[char]:
            if text[at] == "#":
                at = _line_end(text, at)
            elif text[at] in "\"'[{":
                at = _end_of_value(text, at)
            else:
                at += 1
        return at + 1
    while at < len(text) and text[at] not in ",]}#\n \t":
        at += 1
    return at


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end
