"""A device on a node of a cluster, as the tuning loop sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ..children.child import Failed, Lost
from ..compiling.compile import EXECUTABLE, Built
from ..measuring import tasks
from ..measuring.decide import Log
from ..specs.plan import Candidate
from .far import Answer
from .freight import map_built
from .nodes import Node
from .remote import Gone, Remote

__all__ = ["ClusterDevice"]

# How often its actor is made, in a row without an answer.
_MOST_STARTS = 5


class ClusterDevice:
    """A device, with an actor that measures there.

    Args:
        name: What to call it.
        apart: Whether nothing that this tuning compiles runs on its machine.
        make: Makes the actor, and says on which node, which may be another one each time, of the same model; None where there is none.
            It is given what takes what the actor's log was told.
        log: The driver's.
        measured: Called with the node at each candidate.
    """

    def __init__(
        self,
        name: str,
        apart: bool,
        make: Callable[[Callable[[Any], None]], tuple[Remote, Node] | None],
        log: Log,
        measured: Callable[[Node], None],
    ) -> None:
        self.name = name
        self.apart = apart
        self.gone = False
        self._make = make
        self._log = log
        self._measured = measured
        self._guard = threading.Lock()
        self._sent: set[str] = set()
        self._starts = 0
        self._closed = False
        made = make(self._tell)
        assert made is not None
        self.remote, self.node = made

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        outer: Future[Any] = Future()
        builts: dict[str, Built] = {}

        def note(built: Built) -> Built:
            builts[built.digest.sha256] = built
            return built

        bare = [map_built(_bare(argument), note) for argument in arguments]
        with self._guard:
            if self.remote.lost and not self._closed:  # since it was used last
                self._mend()
            remote = self.remote
        # An actor that was made again answers once before it is given work: if its node is gone, that shows here, and costs nothing.
        remote.up.add_done_callback(lambda up: self._when_up(outer, remote, up, function, bare, builts))
        return outer

    def kill(self) -> None:
        with self._guard:
            remote = self.remote
        if remote.up.done() and not remote.lost:
            remote.call("stop")

    def close(self) -> None:
        """End the actor."""
        with self._guard:
            self._closed, remote = True, self.remote
        remote.close(patience=5.0)

    def _mend(self) -> None:
        """Make the actor again; where that cannot be, or has been done too often, the device is gone."""
        self._starts += 1
        self._sent.clear()
        made = self._make(self._tell) if self._starts < _MOST_STARTS else None
        if made is None:
            self.gone = True
        else:
            self.remote, self.node = made

    def _when_up(
        self,
        outer: Future[Any],
        remote: Remote,
        up: Future[None],
        function: Callable[..., Any],
        bare: list[Any],
        builts: dict[str, Built],
    ) -> None:
        if up.exception() is not None:
            self._lose(remote, outer, begun=False)
        else:
            self._send(outer, remote, function, bare, builts)

    def _send(
        self,
        outer: Future[Any],
        remote: Remote,
        function: Callable[..., Any],
        bare: list[Any],
        builts: dict[str, Built],
    ) -> None:
        wanted = {sha256: built for sha256, built in builts.items() if sha256 not in self._sent}
        try:
            binaries = {sha256: (built.folder / EXECUTABLE).read_bytes() for sha256, built in wanted.items()}
        except OSError as error:
            outer.set_exception(Lost(Failed("load", f"its binary cannot be read ({error.strerror})")))
            return
        call = remote.call("run", function, bare, binaries)
        call.add_done_callback(lambda done: self._answered(outer, remote, function, bare, builts, done))

    def _answered(
        self,
        outer: Future[Any],
        remote: Remote,
        function: Callable[..., Any],
        bare: list[Any],
        builts: dict[str, Built],
        done: Future[Any],
    ) -> None:
        error = done.exception()
        if isinstance(error, Gone):
            self._lose(remote, outer, begun=True)
            return
        if error is not None:
            outer.set_exception(error)
            return
        answer: Answer = done.result()
        self._starts = 0
        self._tell(answer.told)
        if answer.missing:
            self._sent.difference_update(answer.missing)
            self._send(outer, remote, function, bare, builts)
            return
        self._sent.update(builts)
        if function is tasks.screen and answer.error is None:
            self._measured(self.node)
        if answer.error is not None:
            outer.set_exception(answer.error)
        else:
            outer.set_result(map_built(answer.value, lambda built: builts.get(built.digest.sha256, built)))

    def _lose(self, remote: Remote, outer: Future[Any], begun: bool) -> None:
        with self._guard:
            if self.remote is remote and not self._closed and not self.gone:
                self._mend()
        what = "its node, or what measured there, was lost" if begun else "its node is gone"
        outer.set_exception(Lost(Failed("start", f"{self.name}: {what}")))

    def _tell(self, told: Any) -> None:
        for name, arguments in told or ():
            getattr(self._log, name)(*arguments)


def _bare(argument: Any) -> Any:
    """A candidate without the other configs of its workload: it travels for each measurement."""
    if isinstance(argument, Candidate):
        return replace(argument, workload=replace(argument.workload, configs=()))
    return argument
