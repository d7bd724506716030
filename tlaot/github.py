"""What GitHub Actions shows beside a change: annotations of files and lines, and a job's summary.

Annotations are lines on standard error, which its runner reads as it does standard output; the summary is a file that it names.
Where ``GITHUB_ACTIONS`` is not set nothing is written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import TlaotError
from .explain import place_of
from .spelling import counted, spell_items

__all__ = [
    "Shipped",
    "annotate",
    "annotate_all",
    "annotate_error",
    "annotation",
    "on_github",
    "summarise",
    "summary",
    "warn_of_doubts",
]

# GitHub keeps a step's first ten annotations of a kind, and a mebibyte of its summary.
_MOST = 10
_MOST_ROWS = 500


@dataclass(frozen=True)
class Shipped:
    """A row of the summary.

    Attributes:
        kernel, target, shape: The workload.
        config: What ships for it.
        latency: ``latency``, ``default_latency`` and ``ref_latency`` in ms, each None or missing where it was not measured.
        doubts: Why its times are not to be trusted; empty where they are.
        origin: Where the config comes from: the device's name, or what it stands in for.
    """

    kernel: str
    target: str
    shape: Mapping[str, Any]
    config: Mapping[str, Any]
    latency: Mapping[str, float | None]
    doubts: str = ""
    origin: str = ""


def annotation(level: str, message: str, *, file: str = "", line: int = 0, column: int = 0, title: str = "") -> str:
    """A workflow command, ``::error file=tltune.toml,line=9,title=tlaot::...``, with all that could end it early escaped."""
    values = {"file": file, "line": line or "", "col": column or "", "title": title}
    properties = ",".join(f"{name}={_escape(str(value), property=True)}" for name, value in values.items() if value)
    return f"::{level}{' ' if properties else ''}{properties}::{_escape(message)}"


def on_github() -> bool:
    """Whether GitHub Actions runs this."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def annotate(level: str, message: str, **place: Any) -> None:
    """Write an annotation, where somebody reads it; ``place`` as of :func:`annotation`."""
    if on_github():
        print(annotation(level, message, **place), file=sys.stderr, flush=True)


def annotate_error(error: TlaotError, folder: Path) -> None:
    """Write an error's annotation, at its line of ``tltune.toml`` where that can be told."""
    if not on_github():
        return
    found = place_of(error, folder)
    place: dict[str, Any] = {}
    if found is not None:
        path, spot = found
        place = {"file": _in_repository(path), "line": spot.line, "column": spot.column}
    annotate("error", f"{error.what}\n{error.remedy}".rstrip(), title=error.where, **place)


def annotate_all(level: str, messages: Iterable[tuple[str, str]], file: Path | None = None) -> None:
    """Write an annotation for each title and message; of many the first, and how many there are."""
    every = list(messages)
    place = {} if file is None else {"file": _in_repository(file)}
    for title, message in every[: _MOST - (len(every) > _MOST)]:
        annotate(level, message, title=title, **place)
    if len(every) > _MOST:
        annotate(level, f"and {len(every) - _MOST + 1} more, in this step's log", title="tlaot", **place)


def warn_of_doubts(rows: Sequence[Shipped]) -> None:
    """A warning for each workload whose times are not to be trusted."""
    annotate_all(
        "warning",
        (
            (f"{row.kernel} [{row.target}] ({spell_items(row.shape)})", f"times not to be trusted: {row.doubts}")
            for row in rows
            if row.doubts
        ),
    )


def summarise(title: str, rows: Sequence[Shipped]) -> None:
    """Append a table of what ships to the job's summary, where there is one."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not on_github() or not path:
        return
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(summary(title, rows))
    except OSError as error:
        annotate("warning", f"the job's summary cannot be written: {error.strerror}", title="tlaot")


def summary(title: str, rows: Sequence[Shipped]) -> str:
    """The table, in Markdown."""
    lines = [
        f"### {_cell(title)}",
        "",
        "| kernel | target | shape | ships | time | default takes | reference takes | measured on |",
        "|---|---|---|---|--:|--:|--:|---|",
    ]
    for row in rows[:_MOST_ROWS]:
        own = row.latency.get("latency")
        cells = (
            row.kernel,
            row.target,
            spell_items(row.shape),
            spell_items(row.config) or "(the factory's own)",
            f"{own:.4g} ms" if own else "-",
            _times(row.latency.get("default_latency"), own),
            _times(row.latency.get("ref_latency"), own),
            row.origin + (f" (not to be trusted: {row.doubts})" if row.doubts else ""),
        )
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    if len(rows) > _MOST_ROWS:
        lines += ["", f"and {counted(len(rows) - _MOST_ROWS, 'workload')} more: `tlaot inspect` shows all."]
    return "\n".join([*lines, "", ""])


def _times(other: float | None, own: float | None) -> str:
    return f"{other / own:.2f}x" if other and own else ""


def _cell(text: str) -> str:
    """Text that stays what it is in a cell of a Markdown table."""
    text = " ".join(text.split())
    for char in "\\`*_[]<>|#~":
        text = text.replace(char, f"\\{char}")
    return text


def _escape(text: str, property: bool = False) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if property else text


def _in_repository(path: Path) -> str:
    """The path as annotations have it: from the checkout's root."""
    root = os.environ.get("GITHUB_WORKSPACE")
    try:
        return path.resolve().relative_to(Path(root).resolve()).as_posix() if root else path.name
    except ValueError:
        return path.name
