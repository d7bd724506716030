"""How far a tuning is: a bar or a line that changes on a terminal, a line now and then elsewhere.

Nothing that goes wrong here, such as a stream that is closed, concerns the build.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

__all__ = ["Progress"]

# Seconds without a line after which one says that all is well.
_SILENCE = 30.0
# Seconds between two looks of a bar at the clock.
_TICK = 1.0
# Lines below a bar.
_MOST_ROWS = 10


class Progress:
    """Counts what is compiled and measured, and shows it; safe to use from several threads.

    On a terminal that is a bar, drawn by tqdm where it is installed; where it is not, a line such as ``tlaot: cuda:sm_90a: 210 of
    512 candidates compiled, 180 measured, about 40 s left``, written over itself. Elsewhere it is that line, said when nothing was
    said for 30 s.

    Args:
        say: Takes a line of text for the person who waits; None: lines go above the bar, and nowhere if there is none.
        stream: Where a bar is drawn if it is a terminal: standard error.
        total: How many candidates there are; None when :meth:`planned` says so.
        label: What is tuned: the target.
        silence: Seconds without a line after which one is said.
        clock: Seconds.
        details: What else there is to tell, a line each: what every node of a cluster has done. They are said with the line, and
            stand below a bar that tqdm draws.
    """

    def __init__(
        self,
        say: Callable[[str], None] | None,
        stream: IO[str] | None,
        total: int | None = None,
        label: str = "",
        silence: float = _SILENCE,
        clock: Callable[[], float] = time.monotonic,
        details: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._details = details
        self._rows: list[Any] = []
        self._say, self._clock, self._silence = say, clock, silence
        self._prefix = f"tlaot: {label}" if label else "tlaot"
        self._lock = threading.RLock()
        self._compiled, self._measured = _Count(clock), _Count(clock)
        self._total = total
        self._last_said = clock()
        self._stream = stream
        self._bar = _open_bar(stream, total, self._prefix, self.describe)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tlaot-progress", daemon=True)
        self._thread.start()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def skipped(self, count: int) -> None:
        """So many of those that were planned are not tried."""
        with self._lock:
            self._total = max(0, (self._total or 0) - count)
            self._draw()

    def compiled(self) -> None:
        """A candidate compiled, or failed to."""
        with self._lock:
            self._compiled.add()
            self._draw()

    def measured(self) -> None:
        """A candidate's outcome is known: it was measured, or failed before."""
        with self._lock:
            self._measured.add()
            self._draw()

    def say(self, text: str) -> None:
        """A line for the person who waits, above the bar if there is one."""
        with self._lock:
            self._last_said = self._clock()
            self._on_bar(self._clear)
            try:
                if self._say is not None:
                    self._say(text)
                elif self._bar is not None:
                    print(text, file=self._stream, flush=True)
            except (OSError, ValueError):  # closed, full, or of an encoding that lacks a character
                pass
            self._on_bar(lambda bar: bar.refresh())

    def close(self) -> None:
        """Take the bar away and say nothing more of progress."""
        self._closed.set()
        with self._lock:
            self._on_bar(lambda bar: [row.close() for row in [*reversed(self._rows), bar]])
            self._bar, self._rows = None, []
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=1)

    def describe(self) -> str:
        """How far it is, as a line."""
        with self._lock:
            total = "" if self._total is None else f" of {self._total}"
            parts = [
                f"{self._compiled.count}{total} {'candidate' if self._total == 1 else 'candidates'} compiled",
                f"{self._measured.count} measured",
                self._left(),
            ]
            return f"{self._prefix}: {', '.join(part for part in parts if part)}"

    def _left(self) -> str:
        """The time that is left if it goes on as it has: what compiles and what measures run side by side."""
        if self._total is None:
            return ""
        compile_s = self._compiled.seconds_for(self._total - max(self._compiled.count, self._measured.count))
        measure_s = self._measured.seconds_for(self._total - self._measured.count)
        known = [seconds for seconds in (compile_s, measure_s) if seconds is not None]
        return f"about {_duration(max(known))} left" if known and max(known) > 0 else ""

    def _watch(self) -> None:
        while not self._closed.wait(_TICK if self._bar is not None else min(_TICK, self._silence / 4)):
            with self._lock:
                if self._closed.is_set():
                    return
                if self._bar is not None:
                    self._draw()
                    self._on_bar(self._draw_rows)
                elif self._clock() - self._last_said >= self._silence:
                    for line in [self.describe(), *(f"{self._prefix}: {detail}" for detail in self._details())]:
                        self.say(line)

    def _draw(self) -> None:
        def draw(bar: Any) -> None:
            bar.total = self._total
            bar.n = self._measured.count
            bar.set_postfix_str(
                ", ".join(filter(None, (f"{self._compiled.count} compiled", self._left()))), refresh=False
            )
            now = time.monotonic()
            if now - bar.drawn_at >= bar.mininterval:
                bar.drawn_at = now
                bar.refresh()

        self._on_bar(draw)

    def _clear(self, bar: Any) -> None:
        for one in [*self._rows, bar]:
            one.clear()

    def _draw_rows(self, bar: Any) -> None:
        """The details below a bar, as far as a screen has room."""
        if isinstance(bar, _Line):
            return
        lines = list(self._details())
        if len(lines) > _MOST_ROWS:
            lines[_MOST_ROWS - 1 :] = [f"and {len(lines) - _MOST_ROWS + 1} more"]
        while len(self._rows) < len(lines):
            place = len(self._rows) + 1
            row = type(bar)(file=self._stream, position=place, leave=False, dynamic_ncols=True, bar_format="{desc}")
            self._rows.append(row)
        for row, line in zip(self._rows, [*lines, *[""] * len(self._rows)], strict=False):
            row.set_description_str(f"  {line}" if line else "")

    def _on_bar(self, change: Callable[[Any], object]) -> None:
        """Change the bar, if there is one; one that cannot be drawn is given up, and lines take its place."""
        if self._bar is None:
            return
        try:
            change(self._bar)
        except Exception:
            # tqdm closes what is left of it when it is collected, and would fail once more.
            for one in [*self._rows, self._bar]:
                one.disable = True
            self._bar, self._rows = None, []


class _Count:
    """How many there are, and how fast they come: from when the first was awaited."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.count = 0
        self._clock = clock
        self._began = clock()
        self._last = self._began

    def add(self) -> None:
        self.count += 1
        self._last = self._clock()

    def seconds_for(self, more: int) -> float | None:
        """Seconds until so many more have come; None when nothing has."""
        if self.count == 0:
            return None
        each = (self._last - self._began) / self.count
        return max(0.0, each * more - (self._clock() - self._last))


class _Line:
    """Stands for a bar where there is no tqdm: how far it is, on one line of a terminal."""

    mininterval = 0.5

    def __init__(self, stream: IO[str], describe: Callable[[], str]) -> None:
        self._stream, self._describe = stream, describe
        self._width = 0  # of what stands there
        self.drawn_at = 0.0

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """A bar's; the line says it itself."""

    def refresh(self) -> None:
        columns = os.get_terminal_size(self._stream.fileno()).columns or 80
        encoding: str = getattr(self._stream, "encoding", None) or "ascii"
        text = self._describe().encode(encoding, "replace").decode(encoding)[: columns - 1]
        self._stream.write(f"\r{text.ljust(self._width)}")
        self._stream.flush()
        self._width = len(text)

    def clear(self) -> None:
        self._stream.write(f"\r{' ' * self._width}\r")
        self._stream.flush()
        self._width = 0

    def close(self) -> None:
        self.clear()


def _open_bar(stream: IO[str] | None, total: int | None, label: str, describe: Callable[[], str]) -> Any:
    """A bar on a terminal, a line without tqdm, None elsewhere."""
    try:
        if stream is None or not stream.isatty():
            return None
        try:
            tqdm = importlib.import_module("tqdm").tqdm
        except ImportError:
            return _Line(stream, describe)
        # A class of its own, with a thread's lock: tqdm's default takes one from multiprocessing, and that may start a process.
        bar_class: Any = type("_Bar", (tqdm,), {"monitor_interval": 0, "drawn_at": 0.0})
        bar_class.set_lock(threading.RLock())
        return bar_class(
            total=total,
            desc=label,
            file=stream,
            leave=False,
            dynamic_ncols=True,
            bar_format="{desc}: |{bar}| {n_fmt}/{total_fmt} measured{postfix}",
        )
    except Exception:
        return None


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s" if seconds < 20 else f"{round(seconds, -1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
