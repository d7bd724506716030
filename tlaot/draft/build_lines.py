"""The two lines of ``pyproject.toml`` that a package with kernels needs, put into the text as it is written."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["NEW_BUILD_SYSTEM", "add_build_lines"]

_NAME = re.compile(r"\s*([A-Za-z0-9._-]+)")
_OWN_BACKEND = "tlaot.build_hooks"

NEW_BUILD_SYSTEM = """\
[build-system]
requires = ["setuptools>=77", "tlaot[{extras}]"]
build-backend = "setuptools.build_meta"
"""


def add_build_lines(text: str, extras: str) -> tuple[str, list[str], list[str]]:
    """Have the build ask for tlaot, and the package depend on it; whatever is there stays, its formatting too.

    Args:
        text: The file; "" where there is none.
        extras: The frontends, ``"tilelang,tvm"``.

    Returns:
        The text; what was added; what the author has to add, since it cannot be told where.
    """
    if not text.strip():
        return NEW_BUILD_SYSTEM.format(extras=extras), ["[build-system] with tlaot"], []
    body = tomllib.loads(text)
    done: list[str] = []
    left: list[str] = []
    system = body.get("build-system")
    requirement = f"tlaot[{extras}]"
    if system is None:
        text = text.rstrip("\n") + "\n\n" + NEW_BUILD_SYSTEM.format(extras=extras)
        done.append("[build-system] with tlaot")
    elif not _names(system.get("requires"), "tlaot"):
        backend = str(system.get("build-backend", "setuptools.build_meta"))
        own = backend == _OWN_BACKEND
        if not own and not backend.startswith("setuptools."):
            left.append(
                f"[build-system] build-backend is {backend!r}: kernels are packaged by setuptools only (setuptools.build_meta, {_OWN_BACKEND})"
            )
        else:
            wanted = "tlaot" if own else requirement
            text, added = _append(text, "build-system", "requires", wanted)
            (done if added else left).append(f'"{wanted}" in [build-system] requires')
    project = body.get("project")
    if project is None or "dependencies" in project.get("dynamic", ()):
        left.append(
            '"tlaot" among what your package depends on at run time (install_requires, or the file that dependencies come from)'
        )
    elif project.get("name") != "tlaot" and not _names(project.get("dependencies"), "tlaot"):
        text, added = _append(text, "project", "dependencies", "tlaot")
        (done if added else left).append('"tlaot" in [project] dependencies')
    return text, done, left


def _names(requirements: Any, name: str) -> bool:
    texts = [text for text in requirements if isinstance(text, str)] if isinstance(requirements, list) else []
    return any(match[1].lower() == name for text in texts if (match := _NAME.match(text)))


def _append(text: str, table: str, key: str, value: str) -> tuple[str, bool]:
    """The text with a string more in a table's list; as it was, and False, where that cannot be done without a doubt."""
    before = tomllib.loads(text)
    wanted = copy.deepcopy(before)
    wanted[table].setdefault(key, []).append(value)
    for changed in (_into_list(text, table, key, value), _new_list(text, table, key, value, before)):
        try:
            if changed is not None and tomllib.loads(changed) == wanted:
                return changed, True
        except ValueError:
            continue
    return text, False


def _into_list(text: str, table: str, key: str, value: str) -> str | None:
    """Before the bracket that ends the list."""
    span = _table_span(text, table)
    start = (
        re.search(rf"^[ \t]*{re.escape(key)}[ \t]*=[ \t]*\[", text[span[0] : span[1]], re.MULTILINE) if span else None
    )
    if span is None or start is None:
        return None
    opened = span[0] + start.end()
    closed, last, comma = _end_of_list(text, opened)
    if closed is None:
        return None
    inside = text[opened:closed]
    if last is None:
        return text[:opened] + f'"{value}"' + text[opened:]
    if "\n" not in inside:
        return text[:last] + (f' "{value}"' if comma else f', "{value}"') + text[last:]
    # A line of its own, set like the last one, after that one's comment.
    line_start = text.rfind("\n", 0, last) + 1
    indent = re.match(r"[ \t]*", text[line_start:])
    line_end = text.find("\n", last)
    line_end = closed if line_end == -1 or line_end > closed else line_end
    head = text[:last] + ("" if comma else ",") + text[last:line_end]
    rest = text[line_end:]
    return f'{head.rstrip() if line_end == closed else head}\n{indent[0] if indent else ""}"{value}",' + (
        rest if rest.startswith("\n") else f"\n{rest}"
    )


def _end_of_list(text: str, opened: int) -> tuple[int | None, int | None, bool]:
    """Where a list ends, the end of its last item (with its comma), and whether that has a comma."""
    last, comma = None, False
    for start, end, kind in _tokens(text, opened):
        if kind == "]":
            return start, last, comma
        if kind == "string":
            last, comma = end, False
        elif kind == "," and last is not None:
            last, comma = end, True
        elif kind == "other":
            return None, None, False
    return None, None, False


def _tokens(text: str, at: int) -> Iterator[tuple[int, int, str]]:
    """Strings, commas and brackets; comments and blanks are passed over."""
    pattern = re.compile(
        r"""(?P<skip>\s+|\#[^\n]*)|(?P<string>"(?:[^"\\\n]|\\.)*"|'[^'\n]*')|(?P<comma>,)|(?P<end>\])|(?P<other>.)""",
        re.DOTALL,
    )
    names = {"string": "string", "comma": ",", "end": "]", "other": "other"}
    for match in pattern.finditer(text, at):
        if match.lastgroup != "skip":
            yield match.start(), match.end(), names[str(match.lastgroup)]


def _new_list(text: str, table: str, key: str, value: str, body: Mapping[str, Any]) -> str | None:
    """A line of its own below the table's ``name``, or its heading."""
    span = _table_span(text, table)
    if span is None or key in body.get(table, {}):
        return None
    lines = list(
        re.finditer(r"^(name|version|requires-python)[ \t]*=[^\n\[{]*$", text[span[0] : span[1]], re.MULTILINE)
    )
    place = span[0] + (lines[-1].end() if lines else 0)
    return text[:place] + f'\n{key} = ["{value}"]' + text[place:]


def _table_span(text: str, table: str) -> tuple[int, int] | None:
    """From the end of a table's heading to the next heading."""
    heading = re.search(rf"^[ \t]*\[[ \t]*{re.escape(table)}[ \t]*\][ \t]*(#[^\n]*)?$", text, re.MULTILINE)
    if heading is None:
        return None
    following = re.search(r"^[ \t]*\[\[?[^\]\n]+\]\]?[ \t]*(#[^\n]*)?$", text[heading.end() :], re.MULTILINE)
    return heading.end(), heading.end() + following.start() if following else len(text)
