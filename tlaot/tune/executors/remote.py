"""An object on a node, as the driver sees it: it is called, and it is watched.

An actor that died fails its calls by itself, sooner or later; one whose process, node or network stands still does not. So each is asked
every few seconds whether it lives, and taken for lost when it has not said so for long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

__all__ = ["Gone", "Remote", "Watch"]

# s between two questions, and without an answer before an object is taken for lost.
PERIOD, PATIENCE = 2.0, 90.0


class Gone(Exception):
    """The process of an object on a node has ended, or does not answer any more; what it did is to be done again."""


class Remote:
    """An actor.

    Args:
        actor: Ray's handle.
        hands: Threads in which callers are told of results; Ray's own must not be kept.
        told: Called with what the actor says when it is asked whether it lives.

    Attributes:
        up: Done as soon as the actor has answered once: until then it may wait for room on its node.
    """

    def __init__(self, actor: Any, hands: ThreadPoolExecutor, told: Callable[[Any], None] = lambda said: None) -> None:
        self._actor = actor
        self._hands = hands
        self._told = told
        self._guard = threading.Lock()
        self._open: set[Future[Any]] = set()
        self._lost: str | None = None
        self._asked_at: float | None = None
        self.up: Future[None] = Future()

    @property
    def lost(self) -> bool:
        return self._lost is not None

    def call(self, name: str, *arguments: Any) -> Future[Any]:
        """Call a method.

        Returns:
            Its result, or what it raised; :class:`Gone` where nobody can say whether it was called.
        """
        outer: Future[Any] = Future()
        with self._guard:
            lost = self._lost
            if lost is None:
                self._open.add(outer)
        if lost is not None:
            outer.set_exception(Gone(lost))
            return outer
        try:
            inner = getattr(self._actor, name).remote(*arguments).future()
        except Exception as error:  # the driver's own connection is lost
            self.lose(f"{type(error).__name__}: {error}")
            return outer
        inner.add_done_callback(lambda done: self._hand_over(outer, done))
        return outer

    def look(self) -> None:
        """Ask whether it lives, or see for how long it has not said so."""
        if self.lost:
            return
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self.call("listen").add_done_callback(self._answered)
        elif self.up.done() and time.monotonic() - self._asked_at > PATIENCE:
            self.lose(f"it has not answered for {PATIENCE:.0f} s")

    def lose(self, why: str) -> None:
        """Take it for lost: every call fails, and its process is ended if it still runs."""
        with self._guard:
            if self._lost is not None:
                return
            self._lost = why
            waiting, self._open = self._open, set()
        _end(self._actor)
        for future in waiting:
            future.set_exception(Gone(why))
        if not self.up.done():
            self.up.set_exception(Gone(why))

    def close(self, patience: float) -> None:
        """Have it clean up, then end it."""
        if not self.lost and self.up.done():
            try:
                self.call("close").result(timeout=patience)
            except Exception:  # its end does the same, a little later
                pass
        self.lose("it was closed")

    def _answered(self, done: Future[Any]) -> None:
        self._asked_at = None
        if done.exception() is not None:
            return
        if not self.up.done():
            self.up.set_result(None)
        self._told(done.result())

    def _hand_over(self, outer: Future[Any], inner: Future[Any]) -> None:
        try:
            self._hands.submit(self._settle, outer, inner)
        except RuntimeError:
            self._settle(outer, inner)  # the executor is being closed

    def _settle(self, outer: Future[Any], inner: Future[Any]) -> None:
        error = inner.exception()
        if error is not None and not _is_raised_there(error):
            self.lose(_say(error))
            return
        with self._guard:
            if outer not in self._open:
                return  # it was given up
            self._open.discard(outer)
        if error is not None:
            outer.set_exception(error)
        else:
            outer.set_result(inner.result())


class Watch:
    """A thread that looks at everything there is on the nodes, and does what else is due.

    Args:
        due: Called every period.
    """

    def __init__(self, due: Callable[[], None]) -> None:
        self._due = due
        self._guard = threading.Lock()
        self._remotes: list[tuple[Remote, str]] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tlaot-watch", daemon=True)
        self._thread.start()

    def add(self, remote: Remote, node: str) -> None:
        with self._guard:
            self._remotes.append((remote, node))
        remote.look()

    def lose(self, node: str, why: str) -> None:
        """Take all that is on a node for lost."""
        with self._guard:
            there = [remote for remote, own in self._remotes if own == node]
        for remote in there:
            remote.lose(why)

    def close(self) -> None:
        self._closed.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._closed.wait(PERIOD):
            with self._guard:
                self._remotes = [(remote, node) for remote, node in self._remotes if not remote.lost]
                remotes = [remote for remote, _ in self._remotes]
            for remote in remotes:
                remote.look()
            self._due()


def _is_raised_there(error: BaseException) -> bool:
    """Whether a method raised, and its process lives."""
    from ray.exceptions import RayTaskError

    return isinstance(error, RayTaskError)


def _say(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}"[:300] if lines else type(error).__name__


def _end(actor: Any) -> None:
    import ray

    try:
        ray.kill(actor, no_restart=True)
    except Exception:  # it has ended, or the cluster has
        pass
