"""What a build tells: a line a kernel to the person who waits, everything to ``autotuner.log``."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .child import Failed
from .compile import Built
from .plan import Candidate
from .progress import Progress
from .timing import Timing

__all__ = ["Journal"]


class Journal:
    """The log of one build; safe to use from several threads."""

    def __init__(
        self, path: Path, say: Callable[[str], None], append: bool = False, every_result: bool = False
    ) -> None:
        self.path = path
        self._every_result = every_result
        self._say = say
        self._lock = threading.Lock()
        with path.open("a" if append else "w", encoding="utf-8"):
            pass

    @contextmanager
    def show(self, total: int, label: str) -> Iterator[Progress]:
        """Show how far it is while in the block; lines go above the bar, if there is one."""
        say = self._say
        with Progress(say, sys.stderr, total, label) as progress:
            self._say = progress.say
            try:
                yield progress
            finally:
                self._say = say

    def say(self, text: str) -> None:
        """A line for the person who builds, and for the log."""
        self._say(text)
        self.write(text)

    def write(self, text: str) -> None:
        """A line for the log."""
        stamp = time.strftime("%H:%M:%S")
        with self._lock, self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{stamp} {text}\n")

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
        if self._every_result:
            self._say(line)
        self.write(f"{line}\n{detail}".rstrip())
