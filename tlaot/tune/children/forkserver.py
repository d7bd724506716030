"""Processes that are forked, in milliseconds, from one that has imported what they need and does nothing else.

A fork server (:mod:`tlaot.tune.children.forking`) is a process for one kind of children: a module, what it is to prepare, a search path and an
environment. Here is its parent's side.
``multiprocessing.forkserver`` cannot serve: it is one per process, with one environment, and its children import the user's ``__main__``.

The parent sends each request with four file descriptors: requests, answers, output, and one end of a socket pair. Over that pair the
server says the child's number and, later, how it ended; the number stays taken until the parent has closed its end.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from .processes import Spawned, kill_trees, spawn

__all__ = ["BOOT", "CannotStart", "ForkServer", "Forked", "close_servers", "find_server"]

# The search path is set here and not by PYTHONPATH: pip's isolated environment has a sitecustomize that fails where its folders are
# on the path already.
BOOT = """
import json, runpy, sys
first = json.loads(sys.argv.pop(1))
sys.path[:] = first + [entry for entry in sys.path if entry and entry not in first]
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""

_SERVER = "tlaot.tune.children.forking"
# Importing TileLang takes 4 s on an idle processor, and a minute from a cold network disk.
_START_LIMIT = 300.0
_MESSAGE = 1 << 16
# Each keeps 200-400 MB; a process that tunes for more kinds than these in turns imports again.
_MOST_SERVERS = 4


# Also those that are no longer kept and that somebody still uses.
_everyone: weakref.WeakSet[ForkServer] = weakref.WeakSet()


class CannotStart(Exception):
    """No child can be had; the message says why."""


class Forked:
    """A child of a fork server, for the process that asked for it."""

    def __init__(self, pid: int, born: int, status: socket.socket, closed: Callable[[], None]) -> None:
        self.pid = pid
        self.born = born
        self.lost = False
        self._status = status
        self._closed = closed
        self._code: int | None = None

    def wait(self, timeout: float) -> int | None:
        if self._code is not None:
            return self._code
        self._status.settimeout(max(timeout, 0.001))
        try:
            said = self._status.recv(_MESSAGE)
        except TimeoutError:
            return None
        except OSError:
            said = b""
        # A server that is gone has taken its children along.
        self.lost = not said
        self._code = int(json.loads(said)["code"]) if said else -signal.SIGKILL
        return self._code

    def close(self) -> None:
        try:
            self._status.send(b"close")  # a copy of the socket may live on in a fork of this process
        except OSError:
            pass
        self._status.close()
        self._closed()


class ForkServer:
    """A fork server as its parent sees it; started at the first request, and again when it has died.

    Args:
        module: A module with ``preload(arguments)``, called once in the server, and ``make(arguments)``, called in each child, whose
            result answers requests.
        arguments: For ``preload``.
        search_path: What the server's ``sys.path`` begins with.
        environ: The server's environment.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], search_path: Sequence[str], environ: Mapping[str, str]
    ) -> None:
        self._name = f"{module} {' '.join(arguments)}".strip()
        self._argv = [sys.executable, "-c", BOOT, json.dumps(list(search_path)), _SERVER, module]
        self._argv.append(json.dumps(list(arguments)))
        self._environ = {**environ, "PYTHONUNBUFFERED": "1"}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self._drained = 0
        self._children = 0
        _everyone.add(self)

    @property
    def busy(self) -> bool:
        """Whether it has children."""
        return self._children > 0

    def warm(self) -> None:
        """Start the server if it does not run; it imports while the caller goes on."""
        with self._lock:
            self._connect()

    def fork(
        self, arguments: Sequence[str], descriptors: Sequence[int], log: Path, stopped: Callable[[], bool]
    ) -> Forked:
        """Start a child.

        Args:
            arguments: For ``make``.
            descriptors: Of the pipe of requests, the pipe of answers, and the output.
            log: Takes what the imports printed.
            stopped: Asked while the server imports; true gives up.

        Raises:
            CannotStart: The server cannot import, or this machine has no process left.
        """
        order = json.dumps({"arguments": list(arguments), "cwd": os.getcwd(), "umask": _umask()}).encode()
        for _ in range(3):
            with self._lock:
                process, control = self._connect()
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    try:
                        socket.send_fds(control, [order], [*descriptors, theirs.fileno()])
                    except OSError:
                        pass  # it has just died; the end of the pair says so
            said = self._await(ours, stopped)
            self._drain(log)
            if said is not None and "pid" in said:
                self._count(1)
                return Forked(said["pid"], said["born"], ours, lambda: self._count(-1))
            ours.close()
            if said is not None:
                raise CannotStart(said["error"])
            self._judge(process)
        raise CannotStart(f"the process that forks ({self._name}) was killed again and again")

    def close(self) -> None:
        """End the server and all its children."""
        with self._lock:
            self._end()

    def forget(self) -> None:
        """In a fork of the process that started it: leave the server to that process."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.returncode = 0  # no child of this process: nothing to wait for
        self._process, self._control, self._lock = None, None, threading.Lock()

    def _count(self, change: int) -> None:
        with self._lock:
            self._children += change

    def _connect(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None or self._control is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                try:
                    self._process = spawn(
                        [*self._argv, str(theirs.fileno()), str(os.getpid())],
                        stdin=subprocess.DEVNULL,
                        stdout=self._output,
                        stderr=self._output,
                        env=self._environ,
                        pass_fds=(theirs.fileno(),),
                        start_new_session=True,  # Ctrl-C is for the parent
                    )
                except OSError as error:
                    ours.close()
                    raise CannotStart(f"{sys.executable} cannot be run ({error.strerror})") from None
            self._control = ours
        return self._process, self._control

    def _await(self, status: socket.socket, stopped: Callable[[], bool]) -> dict[str, Any] | None:
        """What the server says of a request; None when it is dead."""
        deadline = time.monotonic() + _START_LIMIT
        status.settimeout(0.1)
        while not stopped():
            try:
                said = status.recv(_MESSAGE)
            except TimeoutError:
                if time.monotonic() > deadline:
                    self.close()
                    return {"error": f"{self._name}: importing took more than {_START_LIMIT:g} s and was ended"}
                continue
            except OSError:
                return None
            return json.loads(said) if said else None
        return {"error": "it was stopped before it began"}

    def _judge(self, process: subprocess.Popen[bytes]) -> None:
        """Raise what a server died of, unless it was killed from outside: then another one is worth starting."""
        try:
            code = process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return  # it lives, and dropped the request
        if code in (-signal.SIGKILL, -signal.SIGTERM, 0):
            return
        how = f"crashed with {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise CannotStart(f"{self._name}: importing {how}{self._last_words()}")

    def _last_words(self) -> str:
        end = os.fstat(self._output.fileno()).st_size
        text = os.pread(self._output.fileno(), 4096, max(0, end - 4096)).decode(errors="replace")
        lines = text.strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""

    def _drain(self, log: Path) -> None:
        with self._lock:
            end = os.fstat(self._output.fileno()).st_size
            if end > self._drained:
                with log.open("ab") as file:
                    file.write(os.pread(self._output.fileno(), end - self._drained, self._drained))
                self._drained = end

    def _end(self) -> None:
        process, self._process = self._process, None
        control, self._control = self._control, None
        if control is not None:
            control.close()
        if process is not None:
            kill_trees([Spawned(process)])
            process.wait()


def _umask() -> int:
    """The mask of this process, from a place where reading it changes nothing."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            return next(int(line.split()[1], 8) for line in file if line.startswith("Umask:"))
    except (OSError, StopIteration):
        return 0o022


_servers: dict[tuple[str, ...], ForkServer] = {}
_servers_lock = threading.Lock()


def find_server(
    module: str, arguments: Sequence[str], search_path: Sequence[str], environ: Mapping[str, str]
) -> ForkServer:
    """This process's fork server of a kind.

    Servers are kept until this process ends, since a Python process tunes again and again: each keeps what it imported in memory,
    200 MB for TVM and 330 MB for TileLang, for a quarter of an hour after its last child.
    """
    key = (module, *arguments, "\0", *search_path, "\0", *(f"{name}={environ[name]}" for name in sorted(environ)))
    with _servers_lock:
        server = _servers.pop(key, None)
        if server is None:
            server = ForkServer(module, arguments, search_path, environ)
        _servers[key] = server  # the last is the one used last
        surplus = [_servers.pop(old) for old in list(_servers)[:-_MOST_SERVERS] if not _servers[old].busy]
    for old in surplus:
        old.close()
    return server


def close_servers() -> None:
    """End this process's fork servers and all their children, at once."""
    with _servers_lock:
        _servers.clear()
    for server in list(_everyone):
        server.close()


atexit.register(close_servers)


def _forget_servers() -> None:
    global _servers_lock
    for server in list(_everyone):
        server.forget()
    _servers.clear()
    _servers_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_servers)
