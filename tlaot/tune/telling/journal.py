"""What a build tells: a line a kernel to the person who waits, everything to ``autotuner.log``."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...atomic import write_atomically
from ..children.child import Failed
from ..compiling.compile import Built
from ..measuring.timing import Timing
from ..specs.plan import Candidate
from .progress import Progress

__all__ = ["Journal"]

# A log that has grown above this many bytes loses its oldest half.
_LARGEST = 10 << 20


class Journal:
    """The log of one build or tuning; safe to use from several threads.

    Args:
        path: The log, which is appended to.
        say: Takes a line for the person who waits; None: lines are shown above a progress bar, and only if there is one.
        begin: A line of the log that says what begins.
        every_result: Say each candidate's result, too.

    Attributes:
        details: What there is to tell beside how far it is, see :class:`~tlaot.tune.telling.progress.Progress`.
    """

    def __init__(
        self, path: Path, say: Callable[[str], None] | None, begin: str = "", every_result: bool = False
    ) -> None:
        self.path = path
        self.details: Callable[[], Sequence[str]] = tuple
        self._every_result = every_result
        self._say = say
        self._lock = threading.Lock()
        self._file: int | None = None
        self._close: Callable[[], object] = lambda: None
        _cut(path)
        if begin:
            self.write(f"{time.strftime('%Y-%m-%d')} {begin}")
        else:
            path.open("a", encoding="utf-8").close()

    @contextmanager
    def show(self, total: int, label: str) -> Iterator[Progress]:
        """Show how far it is while in the block; lines go above the bar, if there is one."""
        say = self._say
        with Progress(say, sys.stderr, total, label, details=self.details) as progress:
            self._say = progress.say
            try:
                yield progress
            finally:
                self._say = say

    def say(self, text: str) -> None:
        """A line for the person who builds, and for the log."""
        if self._say is not None:
            self._say(text)
        self.write(text)

    def write(self, text: str) -> None:
        """A line for the log."""
        stamp = time.strftime("%H:%M:%S")
        with self._lock:
            os.write(self._open(), f"{stamp} {text}\n".encode(errors="backslashreplace"))

    def _open(self) -> int:
        """The file, which stays open; another one where what was there has been cut or removed."""
        try:
            there = self.path.stat()
        except OSError:
            there = None
        if self._file is None or there is None or not os.path.samestat(os.fstat(self._file), there):
            self._close()
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            self._close = weakref.finalize(self, os.close, self._file)
        return self._file

    def compiled(self, candidate: Candidate, outcome: Built | Failed) -> None:
        if isinstance(outcome, Failed):
            self._result(f"failed   {candidate.label}: {outcome.stage}: {outcome.reason}", outcome.detail)
        else:
            by = f" ({outcome.compiler})" if outcome.compiler else ""
            self._result(f"compiled {candidate.label}: {outcome.digest.size} bytes{by}")

    def restored(self, candidate: Candidate, outcome: Timing | Failed) -> None:
        """A candidate that an earlier, unfinished tuning has tried."""
        if isinstance(outcome, Failed):
            self._result(f"kept     {candidate.label}: {outcome.stage}: {outcome.reason}")
        else:
            self._result(f"kept     {candidate.label}: {outcome.latency:.5g} ms +- {outcome.spread:.1%}")

    def timed_again(self, candidate: Candidate, timing: Timing) -> None:
        self.write(f"again    {candidate.label}: {timing.latency:.5g} ms +- {timing.spread:.1%}")

    def measured(self, candidate: Candidate, outcome: Timing | Failed) -> None:
        if isinstance(outcome, Failed):
            self._result(f"failed   {candidate.label}: {outcome.stage}: {outcome.reason}", outcome.detail)
        else:
            self._result(f"measured {candidate.label}: {outcome.latency:.5g} ms +- {outcome.spread:.1%}")

    def _result(self, line: str, detail: str = "") -> None:
        if self._every_result and self._say is not None:
            self._say(line)
        self.write(f"{line}\n{detail}".rstrip())


def _cut(path: Path) -> None:
    """Drop the oldest of a log that is too large."""
    try:
        if not path.is_file() or path.stat().st_size <= _LARGEST:
            return
        with path.open("rb") as file:
            file.seek(-_LARGEST // 2, os.SEEK_END)
            kept = file.read()
        write_atomically(path, b"(what was here is cut off)\n" + kept.partition(b"\n")[2])
    except OSError:  # another build has just cut it, or it is not ours to cut
        pass
