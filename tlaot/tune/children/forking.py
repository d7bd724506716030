"""The fork server itself: imports once, then only forks, and tells how its children ended.

Run as ``python -m tlaot.tune.children.forking MODULE ARGUMENTS SOCKET PARENT`` by :mod:`tlaot.tune.children.forkserver`. It has one thread, and no author's
code runs in it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from .child import serve
from .processes import die_with_parent, kill_trees, started_at

__all__: list[str] = []

_MESSAGE = 1 << 16
# A server without children ends after so many seconds: it keeps hundreds of megabytes.
_IDLE_LIMIT = 900.0
_BARE = "bare"


class _Child:
    """A child that was forked and that whoever asked for it has not released yet."""

    def __init__(self, pid: int, status: socket.socket) -> None:
        self.pid = pid
        self.born = started_at(pid)
        self.status = status
        self.told = False

    def tell(self, message: Mapping[str, Any]) -> None:
        try:
            self.status.send(json.dumps(message).encode())
        except OSError:
            pass  # whoever asked is gone; the end of the pair says so


class _Forking:
    """The state of the server: its parent's socket and its children."""

    def __init__(self, control: socket.socket, module: ModuleType, started: Sequence[int]) -> None:
        self._control = control
        self._module = module
        self._children: dict[int, _Child] = {}  # by the number of the status socket
        # Nobody waits for these: what the module started, and what the kernel had not ended when it was released (a driver can hold
        # one for long).
        self._others = set(started)
        self._ended = False
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._end)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        self._selector = selectors.DefaultSelector()
        for source in (control.fileno(), self._woken):
            self._selector.register(source, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the parent has closed its end or is dead; then no child is left."""
        while not self._ended:
            ready = self._selector.select(None if self._children else _IDLE_LIMIT)
            if not ready and not self._children:
                return
            for key, _ in ready:
                source = key.fd
                if source == self._woken:
                    self._notice_deaths()
                elif source == self._control.fileno():
                    self._take_order()
                elif source in self._children:
                    self._release(self._children[source])
        kill_trees(list(self._children.values()))

    def _end(self, *_: Any) -> None:
        self._ended = True

    def _take_order(self) -> None:
        # Descriptors must not reach what a child runs.
        try:
            order, descriptors, _, _ = socket.recv_fds(self._control, _MESSAGE, 4, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            order = b""
        if not order:
            self._ended = True
            return
        requests, answers, output, end = descriptors
        status = socket.socket(fileno=end)
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            with status:
                status.send(json.dumps({"error": f"no process can be started ({error.strerror})"}).encode())
        else:
            if pid == 0:
                try:
                    self._become_child(json.loads(order), requests, answers, output, status, server)
                finally:
                    os._exit(1)
            child = _Child(pid, status)
            self._children[end] = child
            self._selector.register(end, selectors.EVENT_READ)
            child.tell({"pid": pid, "born": child.born})
        finally:
            for descriptor in (requests, answers, output):
                os.close(descriptor)

    def _notice_deaths(self) -> None:
        try:
            os.read(self._woken, 4096)
        except BlockingIOError:
            pass
        for child in self._children.values():
            # Not reaped: as long as somebody may kill it, nobody else is to get its number.
            ended = None if child.told else os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                child.told = True
                exited = ended.si_code == os.CLD_EXITED
                child.tell({"code": ended.si_status if exited else -ended.si_status})
        self._reap()

    def _release(self, child: _Child) -> None:
        try:
            killed = child.status.recv(_MESSAGE)
        except OSError:
            killed = b""
        if not killed:
            kill_trees([child])  # nobody has done it: whoever asked is gone
        self._selector.unregister(child.status)
        del self._children[child.status.fileno()]
        child.status.close()
        self._others.add(child.pid)
        self._reap()

    def _reap(self) -> None:
        self._others -= {pid for pid in self._others if os.waitpid(pid, os.WNOHANG)[0]}

    def _become_child(
        self, order: Mapping[str, Any], requests: int, answers: int, output: int, status: socket.socket, server: int
    ) -> None:
        """What a process of its own would be after its imports."""
        os.setsid()  # which is killed whole: nvcc and gcc too
        die_with_parent(server)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        self._selector.close()
        for end in (self._control, status, *(child.status for child in self._children.values())):
            end.close()
        os.dup2(output, 1)
        os.dup2(output, 2)
        for descriptor in (output, self._woken, self._wake):
            os.close(descriptor)
        os.umask(order["umask"])
        code = 1
        try:
            os.chdir(order["cwd"])
            _reseed()
            sys.argv[:] = [str(self._module.__file__), *order["arguments"], str(requests), str(answers)]
            serve(self._module.make(order["arguments"]), sys.argv)
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _reseed() -> None:
    """Python's own random numbers differ in each fork; numpy's would be the same ones in all children."""
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


def _preload(module: ModuleType, arguments: Sequence[str]) -> list[int]:
    """Import; where that fails, start over without, so that each child meets the failure and reports it as its own.

    Returns:
        Processes that the module has started, and that nobody waits for.
    """
    try:
        return list(module.preload(arguments) or ())
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [*sys.orig_argv, _BARE])


def main() -> None:
    name, arguments, number, parent = sys.argv[1:5]
    die_with_parent(int(parent))  # nothing has to be tidied while it imports
    control = socket.socket(fileno=int(number))
    # numpy's BLAS has threads, which it stops before a fork and starts again.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    module = importlib.import_module(name)
    started: list[int] = []
    if _BARE not in sys.argv[5:]:
        os.set_inheritable(control.fileno(), True)
        started = _preload(module, json.loads(arguments))
    os.set_inheritable(control.fileno(), False)
    forking = _Forking(control, module, started)
    die_with_parent(int(parent), signal.SIGTERM)
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)  # what C libraries have not written yet would be written by every child
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that it looks at
    forking.run()


if __name__ == "__main__":
    main()
