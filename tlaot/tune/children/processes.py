"""Starting processes that end with this one, and ending processes with all that they started."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

__all__ = ["Process", "Spawned", "die_with_parent", "fork_quietly", "kill_trees", "spawn", "started_at"]

_PR_SET_PDEATHSIG = 1
_PATIENCE = 3.0  # s for killed processes to be gone


class Root(Protocol):
    """A process at the head of a session of its own."""

    @property
    def pid(self) -> int: ...

    @property
    def born(self) -> int:
        """When it started, in clock ticks since the machine did: another one with its number has another time."""


class Process(Root, Protocol):
    """A process that this one started.

    Attributes:
        lost: Whether it went with the process that it was forked from, through no fault of its own.
    """

    lost: bool

    def wait(self, timeout: float) -> int | None:
        """Its exit status, a signal's number negated; None when it still runs after so many seconds."""

    def close(self) -> None:
        """Give up its number; after it was killed."""


class Spawned:
    """A process that runs a program of its own."""

    def __init__(self, process: subprocess.Popen[Any]) -> None:
        self._process = process
        self.pid = process.pid
        self.born = started_at(process.pid)
        self.lost = False

    def wait(self, timeout: float) -> int | None:
        try:
            return self._process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        self._process.poll()  # one that the kernel cannot end yet is left to it


@dataclass(frozen=True)
class _Entry:
    """A line of the table of processes."""

    parent: int
    session: int
    born: int
    dead: bool


def kill_trees(roots: Sequence[Root]) -> None:
    """Kill processes with all that they started: their sessions, and their descendants in sessions of their own."""
    known = {root.pid: root.born for root in roots}
    for pid, born in list(known.items()):
        entry = _entry(pid)
        if entry is not None and entry.born != born:
            del known[pid]  # it has long ended, and another process has its number
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:  # what was just being started shows in the next round
        table = _table()
        # All are found before the first is killed: nobody says whose child an orphan was.
        living = [pid for pid in _below(known, table) if not table[pid].dead]
        if not living:
            return
        for pid in living:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        time.sleep(0.002)


def _below(roots: Mapping[int, int], table: Mapping[int, _Entry]) -> set[int]:
    found = {pid for pid, entry in table.items() if pid in roots or entry.session in roots}
    children: dict[int, list[int]] = {}
    for pid, entry in table.items():
        children.setdefault(entry.parent, []).append(pid)
    waiting = list(found)
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in found:
                found.add(pid)
                waiting.append(pid)
    return found - {os.getpid()}


def _table() -> dict[int, _Entry]:
    found = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    for name in names:
        if name.isdigit():
            entry = _entry(int(name))
            if entry is not None:
                found[int(name)] = entry
    return found


def _entry(pid: int) -> _Entry | None:
    try:
        handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        line = os.read(handle, 4096)
    except OSError:
        return None
    finally:
        os.close(handle)
    fields = line[line.rindex(b")") + 2 :].split()  # a program's name may hold anything
    return _Entry(int(fields[1]), int(fields[3]), int(fields[19]), fields[0] in (b"Z", b"X"))


def started_at(pid: int) -> int:
    """When a process started, in clock ticks since the machine did; 0 where it is gone."""
    entry = _entry(pid)
    return 0 if entry is None else entry.born


class _Starter:
    """A thread that starts programs.

    The kernel kills a child when the *thread* that started it ends (PR_SET_PDEATHSIG), so all are started by one that lives as long as
    this process. It is no executor's: one whose start Ctrl-C interrupts is known to nobody, and would be waited for when the
    interpreter ends.
    """

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Future[subprocess.Popen[bytes]], Callable[[], subprocess.Popen[bytes]]]]
        self._asked = SimpleQueue()
        threading.Thread(target=self._run, name="tlaot-start", daemon=True).start()

    def start(self, make: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        started: Future[subprocess.Popen[bytes]] = Future()
        self._asked.put((started, make))
        return started.result()

    def _run(self) -> None:
        while True:
            started, make = self._asked.get()
            try:
                started.set_result(make())
            except BaseException as error:
                started.set_exception(error)


_starter: _Starter | None = None
_starter_lock = threading.Lock()


def spawn(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program that may call :func:`die_with_parent`; any thread may call, and may end before the program."""
    global _starter
    with _starter_lock:
        if _starter is None:
            _starter = _Starter()
        starter = _starter
    return starter.start(lambda: subprocess.Popen(command, **options))


def _forget_starter() -> None:
    global _starter, _starter_lock
    _starter, _starter_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_starter)


def die_with_parent(parent: int | None = None, how: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel signal this process when its parent dies, however that happens (Linux; a no-op elsewhere).

    Args:
        parent: The parent, where it is known: one that is dead already is noticed.
        how: The signal.
    """
    if sys.platform.startswith("linux"):
        parent = os.getppid() if parent is None else parent
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, how, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def fork_quietly(work: Callable[[], None], descriptor: int) -> int:
    """Do work in a fork of this process, which must have one thread; it dies with this one.

    Args:
        work: What to do; an exception ends it.
        descriptor: The one file that the fork keeps besides the standard ones; closed here.

    Returns:
        The fork's number, for a wait.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent(parent)
            os.closerange(3, descriptor)
            os.closerange(descriptor + 1, 1 << 16)
            work()
        finally:
            os._exit(0)
    os.close(descriptor)
    return pid
