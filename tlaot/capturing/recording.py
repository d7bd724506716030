"""What all processes of a recorded command wrote, read and added up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import SpecError
from ..keys import key_of, spell_key
from .journal import COUNTS_SUFFIX, FORMAT, JOURNAL_SUFFIX, LOST, SLOTS

__all__ = ["Called", "Factory", "Launch", "Recording", "files_of", "read_recording"]


@dataclass(frozen=True)
class Factory:
    """Where a function that makes kernels is.

    Attributes:
        module, name: Import name and qualified name.
        file, line: Its place, as Python knows it.
        frontend: ``"tilelang"``.
    """

    module: str
    name: str
    file: str = ""
    line: int = 0
    frontend: str = "tilelang"

    @property
    def spelled(self) -> str:
        """As a spec names it, ``"module:function"``."""
        return f"{self.module}:{self.name}"


@dataclass(frozen=True)
class Launch:
    """Launches that look the same.

    Attributes:
        arguments: Of each a dict: ``dtype``, ``shape``, ``strides`` in elements where it is not dense, ``align`` in bytes (16 at
            most), ``device``; or ``scalar``, the type's name. None where new kinds of launches were no longer told apart.
        times: How often.
        failed: How many of these raised.
    """

    arguments: tuple[Mapping[str, Any], ...] | None
    times: int
    failed: int = 0


@dataclass(frozen=True)
class Called:
    """One key of a factory: calls with the same arguments.

    Attributes:
        factory: The function; None for kernels that no recorded factory made.
        arguments: By name, those left to their defaults too, with the config of a tuning, encoded (:mod:`tlaot.keys`).
        opaque: Arguments that have no spelling in a file, with what they are.
        symbols: Arguments that were given a symbolic size, with its name.
        defaults: Names of arguments that had the value of their default.
        tuned: Names of arguments that TileLang's autotuner chose.
        kernel: Name of the kernel that came of it; "" where none did.
        params: The kernel's parameters: ``name``, ``dtype``, and ``shape`` with names for sizes that the code leaves open.
        outputs: Positions of the outputs that a caller leaves out.
        launches: Kinds of launches, most frequent first.
        calls: How often the factory was called.
        failures: What calls of it raised.
        eager: Whether it is called with tensors.
    """

    factory: Factory | None
    arguments: Mapping[str, Any]
    opaque: Mapping[str, str] = field(default_factory=dict)
    symbols: Mapping[str, str] = field(default_factory=dict)
    defaults: tuple[str, ...] = ()
    tuned: tuple[str, ...] = ()
    kernel: str = ""
    params: tuple[Mapping[str, Any], ...] = ()
    outputs: tuple[int, ...] = ()
    launches: tuple[Launch, ...] = ()
    calls: int = 0
    failures: tuple[str, ...] = ()
    eager: bool = False

    @property
    def times(self) -> int:
        """Launches of its kernel that did not fail."""
        return sum(launch.times - launch.failed for launch in self.launches)

    @property
    def label(self) -> str:
        """The call in a message: ``{ M = 300, causal = true }``."""
        return spell_key(self.arguments)


@dataclass(frozen=True)
class Recording:
    """All that was recorded.

    Attributes:
        called: Keys of factories, most launched first.
        processes: What each process said of itself: ``pid``, ``host``, ``argv``, ``rank``...
        troubles: What could not be recorded, and why.
        lost: Launches that could not be recorded.
        dry: Whether nothing was compiled or run.
    """

    called: tuple[Called, ...]
    processes: tuple[Mapping[str, Any], ...] = ()
    troubles: tuple[str, ...] = ()
    lost: int = 0
    dry: bool = False

    @property
    def times(self) -> int:
        """Launches of all kernels whose factory is known."""
        return sum(one.times for one in self.called if one.factory is not None)


def files_of(folder: Path) -> list[Path]:
    """The files that recording wrote into a folder; others are none of ours."""
    return sorted(
        path for path in folder.glob("*") if path.suffix in (JOURNAL_SUFFIX, COUNTS_SUFFIX) and "-" in path.name
    )


def read_recording(folders: Sequence[Path]) -> Recording:
    """Add up what is in folders.

    Raises:
        SpecError: There is nothing, or a file is of another version of tlaot.
    """
    paths: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise SpecError(str(folder), "there is no such folder", "Name the folder that tlaot capture wrote into.")
        paths += [path for path in files_of(folder) if path.suffix == JOURNAL_SUFFIX]
    processes: list[Mapping[str, Any]] = []
    troubles: list[str] = []
    merged: dict[Any, Called] = {}
    lost, dry = 0, False
    for path in paths:
        if not path.stat().st_size:
            continue  # it was killed before its first line
        try:
            head, called, said, missed = _read_process(path)
        except (KeyError, TypeError, AttributeError) as error:
            raise SpecError(str(path), f"is damaged ({error!r})", "Remove it, or record again.") from None
        processes.append(head["process"])
        dry = dry or bool(head.get("dry"))
        troubles += said
        lost += missed
        for one in called:
            identity = _identity(one)
            merged[identity] = _joined(merged[identity], one) if identity in merged else one
    ordered = sorted(
        merged.values(), key=lambda one: (-one.times, one.factory.spelled if one.factory else "", one.label)
    )
    return Recording(tuple(ordered), tuple(processes), tuple(dict.fromkeys(troubles)), lost, dry)


def _identity(one: Called) -> Any:
    factory = ("", one.kernel) if one.factory is None else (one.factory.module, one.factory.name)
    return factory, key_of(one.arguments), key_of(dict(one.opaque)), key_of(dict(one.symbols))


def _joined(one: Called, other: Called) -> Called:
    """Two processes' records of the same calls."""
    launches: dict[Any, Launch] = {}
    for launch in (*one.launches, *other.launches):
        key = repr(launch.arguments)
        before = launches.get(key)
        launches[key] = (
            launch
            if before is None
            else Launch(launch.arguments, before.times + launch.times, before.failed + launch.failed)
        )
    known = one if one.params else other
    return replace(
        one,
        kernel=known.kernel,
        params=known.params,
        outputs=known.outputs,
        launches=_by_use(launches.values()),
        calls=one.calls + other.calls,
        failures=tuple(dict.fromkeys([*one.failures, *other.failures])),
        tuned=tuple(dict.fromkeys([*one.tuned, *other.tuned])),
    )


def _by_use(launches: Any) -> tuple[Launch, ...]:
    return tuple(sorted(launches, key=lambda launch: (-launch.times, repr(launch.arguments))))


def _read_process(path: Path) -> tuple[dict[str, Any], list[Called], list[str], int]:
    """One process's head, calls, troubles and lost launches."""
    lines = list(_lines(path))
    if not lines or lines[0].get("format") != FORMAT:
        said = lines[0].get("format") if lines else None
        raise SpecError(
            str(path), f"is not of this version of tlaot (format {said!r}, expected {FORMAT})", "Record it again."
        )
    counts = _counts_of(path)
    calls: dict[int, Called] = {}
    launches: dict[int, list[Launch]] = {}
    troubles: list[str] = []
    for line in lines[1:]:
        if "call" in line:
            calls[line["call"]] = _call(line, counts(line["slot"]))
        elif "of" in line:
            calls[line["of"]] = replace(
                calls[line["of"]], kernel=line["kernel"], params=tuple(line["params"]), outputs=tuple(line["outputs"])
            )
        elif "launch" in line:
            given = None if line.get("more") else tuple(line["arguments"])
            times, failed = counts(line["slot"]), counts(line["slot"] + 1)
            if times:  # a forked process knows its parent's, and may have none of its own
                launches.setdefault(line["launch"], []).append(Launch(given, times, failed))
        elif "failed" in line:
            one = calls[line["failed"]]
            if counts(line["slot"]):
                calls[line["failed"]] = replace(one, failures=(*one.failures, line["why"]))
        elif "trouble" in line:
            troubles.append(line["trouble"])
    found = [replace(one, launches=_by_use(launches.get(number, ()))) for number, one in calls.items()]
    return lines[0], [one for one in found if one.launches or one.calls or one.failures], troubles, counts(LOST[0])


def _call(line: Mapping[str, Any], calls: int) -> Called:
    if "stranger" in line:
        return Called(None, {}, kernel=line["stranger"], calls=calls)
    return Called(
        Factory(**line["factory"]),
        line["arguments"],
        line.get("opaque", {}),
        line.get("symbols", {}),
        tuple(line["defaults"]),
        tuple(line.get("tuned", ())),
        calls=calls,
        eager=line["mode"] == "eager",
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().split(b"\n"):
        try:
            if line:
                yield json.loads(line)
        except ValueError:
            return  # the process was killed in the middle of its last line


def _counts_of(path: Path) -> Any:
    """What a counter stands at."""
    segments: dict[int, memoryview] = {}

    def count(slot: int) -> int:
        number, place = divmod(slot, SLOTS)
        if number not in segments:
            try:
                data = path.with_name(f"{path.stem}.{number}{COUNTS_SUFFIX}").read_bytes()
            except FileNotFoundError:
                data = b""
            segments[number] = memoryview(data.ljust(SLOTS * 8, b"\0")).cast("Q")
        return int(segments[number][place])

    return count
