"""Read and write ``tltune.lock``: JSON that is laid out for people and for merges.

    {
     "version": 1,
     "entries": [
      {
       "kernel": "matmul",
       "target": "cuda:sm_90a",
       ... one field a line
       "candidates": [
        {"backend": "cudagraph", "binary": "5d1f...", "config": {"block_M": 128}, "latency": 0.0214, ...},
        ... one candidate a line
       ],
       "digest": "0f4c..."
      },
    ...

Entries are sorted by kernel, target and shape, keys within a line by name. The same lock gives the same bytes. Each entry has a
digest of itself, so that one that was edited, or put together by a merge of lines, is known.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from ...atomic import write_atomically
from ...errors import BuildError, SpecError, did_you_mean
from .lock import LOCK_NAME, Entry, Key, Lock, digest_entry
from .lock_entry import ENTRY_FIELDS, entry_from_json, entry_to_json

__all__ = [
    "LOCK_VERSION",
    "dump_lock",
    "parse_lock",
    "parse_sides",
    "read_lock",
    "read_text",
    "replace_lock",
    "update_lock",
]

LOCK_VERSION = 1

# Fields of an entry whose items have a line each.
_ROWS = ("parts", "candidates", "sizes")

_MARKERS = ("<<<<<<<", "|||||||", "=======", ">>>>>>>")


def read_lock(path: Path) -> Lock:
    """Read a lock; one that does not exist is empty.

    Raises:
        SpecError: The file cannot be read, is malformed or of a newer version, or was left with a merge's conflict in it.
    """
    return parse_lock(read_text(path), path.name)


def parse_lock(text: str, name: str) -> Lock:
    """Read a lock from its text; :func:`read_lock` says more."""
    if not text.strip():
        return Lock()
    marked = next((number for number, line in enumerate(text.splitlines(), 1) if _is_marker(line)), None)
    if marked is not None:
        raise SpecError(
            f"{name} line {marked}",
            "has the conflict markers of a merge",
            f"Merge it by entries: tlaot lock merge {name}",
        )
    entries: dict[Key, Entry] = {}
    edited = set()
    for body in _entries_of(text, name):
        entry = entry_from_json(body, name)
        if entry.key in entries:
            raise SpecError(
                f"{name} {entry.label}",
                "is listed twice",
                "Two locks were put together by lines. Take both from version control and run: tlaot lock merge A B.",
            )
        entries[entry.key] = entry
        if body["digest"] != digest_entry(body):
            edited.add(entry.key)
    return Lock(entries, frozenset(edited))


def parse_sides(text: str, name: str) -> list[tuple[str, Lock]]:
    """The two locks of a text with conflict markers, ``ours`` and ``theirs``; of one without, that one under its name."""
    lines = text.splitlines()
    if not any(_is_marker(line) for line in lines):
        return [(name, parse_lock(text, name))]
    sides: dict[str, list[str]] = {"ours": [], "theirs": []}
    state = "both"
    for line in lines:
        if _is_marker(line):
            state = {"<<<<<<<": "ours", "|||||||": "base", "=======": "theirs", ">>>>>>>": "both"}[line[:7]]
        elif state == "both":
            sides["ours"].append(line)
            sides["theirs"].append(line)
        elif state != "base":
            sides[state].append(line)
    return [(side, parse_lock("\n".join(kept), f"{name} ({side})")) for side, kept in sides.items()]


def dump_lock(lock: Lock) -> str:
    """The text of a lock."""
    entries = ",\n".join(_lay_out(entry, entry.key in lock.edited) for entry in lock.ordered())
    body = f"[\n{entries}\n ]" if entries else "[]"
    return f'{{\n "version": {LOCK_VERSION},\n "entries": {body}\n}}\n'


def _dump_conflict(lock: Lock, undecided: Sequence[tuple[Entry, Entry]]) -> str:
    """The text of a lock with conflict markers about the entries of which somebody must choose one, ours and theirs."""
    pairs = {ours.key: (ours, theirs) for ours, theirs in undecided}
    whole = Lock({**lock.entries, **{key: ours for key, (ours, _) in pairs.items()}}).ordered()
    parts = []
    for number, entry in enumerate(whole, 1):
        comma = "," if number < len(whole) else ""
        sides = [f"{_lay_out(side, False)}{comma}" for side in pairs.get(entry.key, (entry,))]
        parts.append(sides[0] if len(sides) == 1 else f"<<<<<<< ours\n{sides[0]}\n=======\n{sides[1]}\n>>>>>>> theirs")
    entries = "\n".join(parts)
    return f'{{\n "version": {LOCK_VERSION},\n "entries": [\n{entries}\n ]\n}}\n'


def update_lock(path: Path, change: Callable[[Lock], Lock], must_write: bool = False) -> bool:
    """Change a lock on the disk, whatever other processes change in it meanwhile; it appears whole or not at all.

    A link is followed. A lock that stays as it is, is not written.

    Args:
        path: The lock, which may not exist.
        change: What to make of it.
        must_write: Find out whether it can be written, also where it stays as it is.

    Returns:
        Whether it was written.

    Raises:
        SpecError: The lock that is there cannot be read.
        BuildError: It cannot be written.
    """
    with _writing(path) as path:
        if must_write:
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        old = parse_lock(read_text(path), path.name)
        new = change(old)
        if new != old:
            write_atomically(path, dump_lock(new).encode())
        return new != old


def replace_lock(path: Path, lock: Lock, undecided: Sequence[tuple[Entry, Entry]] = ()) -> None:
    """Write a lock in place of whatever is there, with conflict markers about what is undecided.

    Raises:
        BuildError: It cannot be written.
    """
    text = _dump_conflict(lock, undecided) if undecided else dump_lock(lock)
    with _writing(path) as path:
        write_atomically(path, text.encode())


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """The file itself, which ``path`` may be a link to, while nobody else updates it."""
    path = path.resolve()
    try:
        with _held(path.parent):
            yield path
    except OSError as error:
        raise BuildError(
            str(path),
            f"cannot be written ({error.strerror or error})",
            "Run it where the project can be written, or build with TLAOT_LOCK=auto, which never writes.",
        ) from None


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Keep others that update a lock out of a folder, which itself is what is locked: no file is left behind."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for torn in folder.glob(f".{LOCK_NAME}.*"):  # write_atomically's, of a process that was killed
            torn.unlink(missing_ok=True)
        yield
    finally:
        os.close(handle)


def read_text(path: Path) -> str:
    """The text of a lock; none where there is no file."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise SpecError(path.name, f"is not UTF-8: {error}", "Take it back from version control.") from None
    except OSError as error:
        raise SpecError(path.name, f"cannot be read ({error.strerror})", "Make it readable, or remove it.") from None


def _entries_of(text: str, name: str) -> list[Any]:
    """The entries as JSON, of a version that is known."""

    def refuse_constant(word: str) -> NoReturn:
        raise SpecError(name, f"has {word}, which is no number of JSON", "Take the file back from version control.")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
            raise SpecError(name, f"has {twice!r} twice in one table", "Take the file back from version control.")
        return found

    try:
        body = json.loads(text, parse_constant=refuse_constant, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise SpecError(
            f"{name} line {error.lineno}",
            f"is not valid JSON: {error.msg}",
            "Take the file back from version control, or remove it and run: tlaot tune.",
        ) from None
    except RecursionError:
        raise SpecError(name, "is nested too deeply", "Take the file back from version control.") from None
    version = body.get("version") if isinstance(body, dict) else None
    if type(version) is not int or version < 1:
        raise SpecError(
            name,
            "is no lock of tlaot: it has no version",
            "Remove it and run tlaot tune, or take it from version control.",
        )
    if version > LOCK_VERSION:
        raise SpecError(
            name,
            f"was written by a newer tlaot: version {version}, this one reads up to {LOCK_VERSION}",
            "Install that tlaot (pip install --upgrade tlaot), or build with TLAOT_LOCK=ignore.",
        )
    for key in body:
        if key not in ("version", "entries"):
            hint = did_you_mean(key, ("version", "entries"))
            raise SpecError(name, f"has an unknown key {key!r}{hint}", "Known: version, entries.")
    entries = body.get("entries")
    if not isinstance(entries, list):
        raise SpecError(name, "has no list of entries", "Take the file back from version control.")
    return entries


def _lay_out(entry: Entry, edited: bool) -> str:
    body = entry_to_json(entry)
    # What was edited stays known as such, whatever else is written.
    body["digest"] = "edited" if edited else digest_entry(body)
    lines = []
    for name in ENTRY_FIELDS:
        if name in _ROWS and body.get(name):
            rows = ",\n".join(f"    {_line(row)}" for row in body[name])
            lines.append(f'   "{name}": [\n{rows}\n   ]')
        elif name in body:
            lines.append(f'   "{name}": {_line(body[name])}')
    return "  {\n" + ",\n".join(lines) + "\n  }"


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _is_marker(line: str) -> bool:
    return line[:7] in _MARKERS and (len(line) == 7 or line[7] == " ")
