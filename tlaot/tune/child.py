"""A killable child process that answers requests, one JSON object a line.

Compilers crash and kernels hang; a child keeps either from taking the build along. Requests and answers travel
over pipes of their own, so that whatever an author's module prints ends in the log, not in the protocol.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..runtime import load as runtime_load

__all__ = ["Child", "Failed", "serve"]

_PR_SET_PDEATHSIG = 1

# The search path is set here and not by PYTHONPATH: pip's isolated environment has a sitecustomize that fails where its folders are
# on the path already.
_BOOT = """
import json, runpy, sys
first = json.loads(sys.argv.pop(1))
sys.path[:] = first + [entry for entry in sys.path if entry and entry not in first]
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Failed:
    """Why a candidate has no result.

    Attributes:
        stage: ``"elaborate"``, ``"lower"``, ``"device-compile"``, ``"link"``, ``"load"``, ``"check"``, ``"time"``...
        reason: One line that a person can act on.
        detail: More lines, for the log.
    """

    stage: str
    reason: str
    detail: str = ""


class Child:
    """One child process running ``python -m <module>``; started at the first request and again after a death.

    Args:
        module: The module that calls :func:`serve`.
        arguments: Its command line.
        search_path: What the child's ``sys.path`` begins with; the current folder is not in it.
        log: File that takes the child's standard output and error.
        environ: The environment to start from.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], search_path: Sequence[str], log: Path, environ: Mapping[str, str]
    ) -> None:
        self._argv = [sys.executable, "-c", _BOOT, json.dumps(list(search_path)), module, *arguments]
        self._environ = {
            **environ,
            "PYTHONUNBUFFERED": "1",
        }
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: IO[bytes] | None = None
        self._answers = -1
        self._buffer = b""
        self._number = 0
        self._state, self._stopped = threading.Lock(), False
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._drained = 0

    def request(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any] | Failed:
        """Send a request and wait for its answer.

        Args:
            request: A JSON object.
            timeout: Seconds after which the child is killed.

        Returns:
            The answer, or why there is none. A child that died is replaced at the next request.
        """
        self._number += 1
        try:
            return self._ask(json.dumps({"number": self._number, "request": request}).encode(), timeout)
        finally:
            self._drain()

    def _ask(self, message: bytes, timeout: float) -> dict[str, Any] | Failed:
        with self._state:
            if self._stopped:
                return Failed("start", "it was stopped before it began")
            if self._process is None:
                self._start()
        assert self._requests is not None
        try:
            self._requests.write(message + b"\n")
            self._requests.flush()
        except OSError:
            return self._bury("start", "the worker process ended before it took the request")
        stage, deadline = "start", time.monotonic() + timeout
        while True:
            line = self._read_line(deadline)
            if line is None:
                self.kill()
                return Failed(stage, f"timed out after {timeout:g} s and was killed")
            if not line:
                return self._bury(stage, "the process ended")
            try:
                said = json.loads(line)
                number = said["number"]
            except (ValueError, KeyError, TypeError):
                self.kill()
                return Failed(stage, "something else than an answer was written to the answer pipe")
            if number != self._number:
                continue  # a process that an author's function forked, late with an answer of its own
            if "stage" in said:
                stage = said["stage"]
            elif "failed" in said:
                return Failed(**said["failed"])
            else:
                answer: dict[str, Any] = said["answer"]
                return answer

    def stop(self) -> None:
        """End the child for good; from any thread, where the others are for one thread at a time.

        A request in progress fails at once, and so does every later one.
        """
        with self._state:
            self._stopped = True
            if self._process is not None:
                _kill_group(self._process)

    def kill(self) -> None:
        """End the child and every process that it started; the next request starts another."""
        with self._state:
            process, self._process = self._process, None
            if process is None:
                return
            _kill_group(process)
            process.wait()
        if self._requests is not None:
            try:
                self._requests.close()
            except OSError:
                pass
        os.close(self._answers)

    def _start(self) -> None:
        request_read, request_write = os.pipe()
        answer_read, answer_write = os.pipe()
        try:
            self._process = _spawn(
                [*self._argv, str(request_read), str(answer_write)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=self._environ,
                pass_fds=(request_read, answer_write),
                start_new_session=True,  # killpg reaches nvcc and gcc too
            )
        except BaseException:
            os.close(request_write)
            os.close(answer_read)
            raise
        finally:
            os.close(request_read)
            os.close(answer_write)
        self._requests = os.fdopen(request_write, "wb")
        self._answers = answer_read
        self._buffer = b""

    def _read_line(self, deadline: float) -> bytes | None:
        """One line; ``b""`` at the end of the stream; None when the deadline has passed."""
        while b"\n" not in self._buffer:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([self._answers], [], [], min(remaining, 3600))[0]:
                if time.monotonic() >= deadline:
                    return None
                continue
            data = os.read(self._answers, 1 << 16)
            if not data:
                return b""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _bury(self, stage: str, what: str) -> Failed:
        process = self._process
        code = None
        if process is not None:
            try:
                code = process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                pass  # it closed its pipe and lives on; kill() ends it
        self.kill()
        if code is not None and code < 0:
            what = f"crashed with {signal.Signals(-code).name}"
        else:
            what = f"{what} (exit code {code})"
        words = self._last_words()
        return Failed(stage, f"{what}: {words}" if words else what)

    def _last_words(self) -> str:
        """The last line that the child printed since its request: for a Python process, the exception that ended it."""
        end = os.fstat(self._output.fileno()).st_size
        start = max(self._drained, end - 4096)
        lines = os.pread(self._output.fileno(), end - start, start).decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def _drain(self) -> None:
        """Move what the child printed to the log, in one piece, so that children do not write into each other's lines."""
        end = os.fstat(self._output.fileno()).st_size
        if end > self._drained:
            with self._log.open("ab") as log:
                log.write(os.pread(self._output.fileno(), end - self._drained, self._drained))
            self._drained = end


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


# The kernel kills a child when the *thread* that started it ends (PR_SET_PDEATHSIG), so all are started by one that lives as long
# as this process.
_starter: ThreadPoolExecutor | None = None
_starter_lock = threading.Lock()


def _spawn(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    global _starter
    with _starter_lock:
        if _starter is None:
            _starter = ThreadPoolExecutor(1, thread_name_prefix="tlaot-start")
    started: Future[subprocess.Popen[bytes]] = _starter.submit(lambda: subprocess.Popen(command, **options))
    return started.result()


def _forget_starter() -> None:
    global _starter, _starter_lock
    _starter, _starter_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_starter)


def serve(
    answer: Callable[[Mapping[str, Any], Callable[[str], None]], Mapping[str, Any]], arguments: Sequence[str]
) -> None:
    """The child's side: answer requests until the parent closes the pipe.

    Args:
        answer: Called with the request and a function that announces the stage; what it raises is answered as a failure of the
            announced stage.
        arguments: The last two are the numbers of the pipes' file descriptors.
    """
    die_with_parent()
    runtime_load.building = True
    requests = os.fdopen(int(arguments[-2]), "rb")
    answers = os.fdopen(int(arguments[-1]), "wb")
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    number, stage, home = 0, "start", os.getpid()
    environ, folder = dict(os.environ), os.getcwd()

    def say(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps({"number": number, **message}).encode() + b"\n")
        answers.flush()

    def announce(name: str) -> None:
        nonlocal stage
        stage = name
        say({"stage": name})

    for line in requests:
        message = json.loads(line)
        number, stage = message["number"], "start"
        try:
            text = json.dumps(answer(message["request"], announce))
        except (Exception, SystemExit) as error:
            detail = traceback.format_exc()
            print(detail, flush=True)
            said: dict[str, Any] = {"failed": {"stage": stage, "reason": one_line(error), "detail": detail}}
        else:
            said = {"answer": json.loads(text)}
        if os.getpid() != home:
            os._exit(0)  # an author's function forked and came back twice
        say(said)
        if environ != os.environ:  # one candidate's changes must not be the next one's failure
            os.environ.clear()
            os.environ.update(environ)
        os.chdir(folder)


# TVM's ScheduleError names the primitive, shows the whole module, and says why after that.
_SCHEDULE_ERROR = re.compile(
    r"schedule primitive '(?P<primitive>[^']*)'.*^Error message: (?:ScheduleError: )?(?P<reason>[^\n]+)", re.DOTALL | re.MULTILINE
)


def one_line(error: BaseException) -> str:
    """The gist of an exception on one line of a readable length."""
    name = type(error).__name__
    schedule = _SCHEDULE_ERROR.search(str(error))
    if schedule is not None:
        return f"{name}: {schedule['primitive']}: {schedule['reason']}"[:400]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # TVM puts a stack trace of C++ frames before or after the message; the last line that is none says most.
    lines = [line for line in lines if not line.startswith(("File ", "at ", "0x", "Stack trace"))] or [""]
    announces = len(lines[0]) <= 12 or lines[0].endswith(":")  # what it is about stands in the next line
    text = " ".join(lines[:2]) if announces else lines[0]
    return f"{name}: {text}"[:400] if text else name


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, however that happens (Linux; a no-op elsewhere)."""
    if sys.platform.startswith("linux"):
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
