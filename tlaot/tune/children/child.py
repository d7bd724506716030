"""A killable child process that answers requests, one JSON object a line.

Compilers crash and kernels hang; a child keeps either from taking the build along. Requests and answers travel
over pipes of their own, so that whatever an author's module prints ends in the log, not in the protocol.
"""

from __future__ import annotations

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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ...errors import TlaotError
from ...runtime import load as runtime_load
from .forkserver import BOOT, CannotStart, ForkServer
from .processes import Process, Spawned, die_with_parent, kill_trees, spawn

__all__ = ["ATTEMPTS", "STOPPED", "Child", "Failed", "Lost", "Rejected", "one_line", "serve", "stop_all"]

# How often work is given out in all whose process was killed from outside; after that it may be what kills it.
ATTEMPTS = 3

# Why what was at work has no result when its tuning ends early.
STOPPED = "it was stopped"

# What others end processes with; a crash of its own has other signals.
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
_PATIENCE = 10.0  # s for a process that was killed, or has closed its pipe, to be gone


@dataclass(frozen=True)
class Failed:
    """Why a candidate has no result.

    Attributes:
        stage: ``"elaborate"``, ``"lower"``, ``"prune"`` (no device of the target can run it), ``"device-compile"``, ``"link"``,
            ``"load"``, ``"check"``, ``"time"``...
        reason: One line that a person can act on.
        detail: More lines, for the log.
    """

    stage: str
    reason: str
    detail: str = ""


class Lost(Exception):
    """Work whose process, worker or host was lost for reasons that it does not answer for: it is to be given out again.

    Attributes:
        failed: What it comes to where it is lost each time.
        begun: Whether it may have begun: work that was not cannot be what took its process or host down.
    """

    def __init__(self, failed: Failed, begun: bool = True) -> None:
        super().__init__(f"{failed.stage}: {failed.reason}")
        self.failed = failed
        self.begun = begun

    def __reduce__(self) -> tuple[Any, ...]:
        return Lost, (self.failed, self.begun)


class Rejected(Exception):
    """What a child raises to refuse a request; its text is the whole reason."""


class Child:
    """One child process that answers requests; started at the first one and again after a death.

    Attributes:
        lost: Whether the last request has no answer because somebody else killed the child, or the fork server that it came from: the
            out-of-memory killer, an operator. A request that does it itself looks the same, so that it is asked again only so often.

    Args:
        module: The module that calls :func:`serve`, run as ``python -m``; or that a fork server has prepared.
        arguments: Its command line, or what it is made with.
        search_path: What the child's ``sys.path`` begins with; the current folder is not in it.
        log: File that takes the child's standard output and error.
        environ: The environment to start from.
        server: What forks the child, of the same module, search path and environment; without one Python is started anew.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        search_path: Sequence[str],
        log: Path,
        environ: Mapping[str, str],
        server: ForkServer | None = None,
    ) -> None:
        self._arguments = list(arguments)
        self._argv = [sys.executable, "-c", BOOT, json.dumps(list(search_path)), module, *arguments]
        self._environ = {**environ, "PYTHONUNBUFFERED": "1"}
        self._log = log
        self._server = server
        self._process: Process | None = None
        self._requests: IO[bytes] | None = None
        self._answers = -1
        self._buffer = b""
        self._number = 0
        self._state, self._stopped = threading.Lock(), False
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._drained = 0
        self.lost = False

    def request(self, request: Mapping[str, Any], timeout: float, again: int = 0) -> dict[str, Any] | Failed:
        """Send a request and wait for its answer.

        Args:
            request: A JSON object.
            timeout: Seconds after which the child is killed.
            again: How often to ask another child when this one was lost; for what no candidate answers for.

        Returns:
            The answer, or why there is none. A child that died is replaced at the next request.
        """
        self._number += 1
        self.lost = False
        try:
            answer = self._ask(json.dumps({"number": self._number, "request": request}).encode(), timeout)
        finally:
            self._drain()
        return self.request(request, timeout, again - 1) if self.lost and again > 0 else answer

    def _ask(self, message: bytes, timeout: float) -> dict[str, Any] | Failed:
        if self._stopped:
            return Failed("start", f"{STOPPED} before it began")
        if self._process is None:
            try:
                self._start()
            except (CannotStart, OSError) as error:
                return Failed("start", f"no process can be had: {error}")
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

    def refuse(self) -> Process | None:
        """Start no process any more; from any thread.

        Returns:
            The one that runs, to be killed.
        """
        with self._state:
            self._stopped = True
            return self._process

    def end(self) -> None:
        """End the process that answers, and every process that it started, from any thread; who waits for its answer finds it gone, and its next
        request starts another."""
        with self._state:
            process = self._process
        if process is not None:
            kill_trees([process])

    def kill(self) -> None:
        """End the child and every process that it started, and close what leads to it; the next request starts another.

        For who asks it: from another thread the pipes would be closed under a reader, and their numbers be those of other files by then.
        """
        with self._state:
            process, self._process = self._process, None
        if process is None:
            return
        kill_trees([process])
        process.wait(_PATIENCE)
        process.close()
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
            process = self._launch(request_read, answer_write)
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
        with self._state:
            self._process = process
            stopped = self._stopped
        if stopped:
            kill_trees([process])

    def _launch(self, requests: int, answers: int) -> Process:
        if self._server is not None:
            descriptors = (requests, answers, self._output.fileno())
            return self._server.fork(self._arguments, descriptors, self._log, lambda: self._stopped)
        return Spawned(
            spawn(
                [*self._argv, str(requests), str(answers)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=self._environ,
                pass_fds=(requests, answers),
                start_new_session=True,  # which is killed whole: nvcc and gcc too
            )
        )

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
        # Where there is no status it closed its pipe and lives on; kill() ends it.
        process = self._process
        code = None if process is None else process.wait(_PATIENCE)
        orphaned = process is not None and process.lost
        self.kill()
        if self._stopped:
            return Failed(stage, STOPPED)
        self.lost = orphaned or code in _FROM_OUTSIDE
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
        lines = os.pread(self._output.fileno(), end - start, start).decode(errors="replace").splitlines()
        lines = [line.strip() for line in lines[start > self._drained :] if line.strip()]
        lines = [line for line in lines if not _OF_TRACE.match(line)]
        return lines[-1][:300] if lines else ""

    def _drain(self) -> None:
        """Move what the child printed to the log, in one piece, so that children do not write into each other's lines."""
        end = os.fstat(self._output.fileno()).st_size
        if end > self._drained:
            with self._log.open("ab") as log:
                log.write(os.pread(self._output.fileno(), end - self._drained, self._drained))
            self._drained = end


def stop_all(children: Sequence[Child]) -> None:
    """End children for good, from any thread: requests in progress fail at once, and so does every later one."""
    processes = [process for child in children if (process := child.refuse()) is not None]
    if processes:
        kill_trees(processes)


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
        except Rejected as error:
            said: dict[str, Any] = {"failed": {"stage": stage, "reason": str(error), "detail": ""}}
        except (Exception, SystemExit) as error:
            detail = traceback.format_exc()
            print(detail, flush=True)
            said = {"failed": {"stage": stage, "reason": one_line(error), "detail": detail}}
        else:
            said = {"answer": json.loads(text)}
        if os.getpid() != home:
            os._exit(0)  # an author's function forked and came back twice
        say(said)
        if environ != os.environ:  # one candidate's changes must not be the next one's failure
            os.environ.clear()
            os.environ.update(environ)
        os.chdir(folder)


# What TVM prints when it crashes: a heading, then a line a C++ frame, mostly unknown.
_OF_TRACE = re.compile(r'!!!+ |File "[^"]*", line \d+(, in |$)')

# TVM's ScheduleError names the primitive, shows the whole module, and says why after that.
_SCHEDULE_ERROR = re.compile(
    r"schedule primitive '(?P<primitive>[^']*)'.*^Error message: (?:ScheduleError: )?(?P<reason>[^\n]+)",
    re.DOTALL | re.MULTILINE,
)


def one_line(error: BaseException) -> str:
    """The gist of an exception on one line of a readable length."""
    name = type(error).__name__
    if isinstance(error, TlaotError) and error.remedy:
        return f"{name}: {error.where}: {error.what}. {error.remedy}".replace("\n", " ")[:400]
    schedule = _SCHEDULE_ERROR.search(str(error))
    if schedule is not None:
        return f"{name}: {schedule['primitive']}: {schedule['reason']}"[:400]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # TVM puts a stack trace of C++ frames before or after the message; the last line that is none says most.
    lines = [line for line in lines if not line.startswith(("File ", "at ", "0x", "Stack trace"))] or [""]
    announces = len(lines[0]) <= 12 or lines[0].endswith(":")  # what it is about stands in the next line
    text = " ".join(lines[:2]) if announces else lines[0]
    return f"{name}: {text}"[:400] if text else name
