"""Room to compile on the nodes of a cluster: actors that hold some processors each, taken while there is work and given back."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from .nodes import Node
from .remote import Remote

__all__ = ["Crew", "Unit"]

# Processors of one actor: its workers are forked from one process, which keeps what they import; smaller ones are shared sooner
# with other jobs of the cluster.
_MOST_SLOTS = 16
# s without work after which processors are given back: another job may wait for them, and have a GPU that this one waits for.
IDLE = 15.0
# How often an actor is made again on a node that lives, in a row without a result.
_MOST_STARTS = 5


@dataclass
class Unit:
    """An actor that compiles.

    Attributes:
        node: Where it is.
        slots: How many candidates it takes at once.
        free: How many more it takes now.
        remote: The actor; None while it is not wanted.
        starts: How often it was made since it last gave a result.
    """

    node: Node
    slots: int
    free: int = 0
    remote: Remote | None = None
    starts: int = 0


@dataclass
class Crew:
    """All actors that compile.

    Args:
        make: Makes the actor of a unit.
        freed: Called when there is room, from any thread.
        pinned: Nodes whose processors are kept while a CPU is measured there, also without work: nobody else gets them meanwhile.
    """

    make: Callable[[Unit], Remote]
    freed: Callable[[], None]
    pinned: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._guard = threading.RLock()
        self._units: list[Unit] = []
        self._last_used = time.monotonic()
        self._closed = False
        self.compiled: Counter[str] = Counter()

    def add(self, nodes: Iterable[Node]) -> None:
        """Take nodes, which are asked for room as soon as there is work."""
        with self._guard:
            for node in nodes:
                count = -(-node.cpus // _MOST_SLOTS)
                for number in range(count):
                    self._units.append(Unit(node, node.cpus // count + (number < node.cpus % count)))

    def remove(self, node_id: str) -> None:
        with self._guard:
            gone = [unit for unit in self._units if unit.node.id == node_id]
            self._units = [unit for unit in self._units if unit.node.id != node_id]
        for unit in gone:
            if unit.remote is not None:
                unit.remote.lose("its node is gone")

    def slots(self, fits: Callable[[Node], bool]) -> int:
        """How many candidates can be compiled at once, where there is room already or may be."""
        with self._guard:
            return sum(unit.slots for unit in self._units if fits(unit.node))

    def open(self, fits: Callable[[Node], bool]) -> None:
        """Ask for room on all nodes that fit, as far as that was not done."""
        with self._guard:
            self._last_used = time.monotonic()
            wanted = [] if self._closed else [u for u in self._units if u.remote is None and fits(u.node)]
            for unit in wanted:
                self._start(unit)

    def take(self, fits: Callable[[Node], bool], avoid: Sequence[Unit] = ()) -> Unit | None:
        """A place in the unit that has most of them free; None where there is none.

        Args:
            fits: Says whether a node will do.
            avoid: Units that will not do; others on their nodes do where there is no other.
        """
        with self._guard:
            nodes = {unit.node.id for unit in avoid}
            free = [unit for unit in self._units if unit.free > 0 and unit not in avoid and fits(unit.node)]
            free.sort(key=lambda unit: (unit.node.id in nodes, -unit.free / unit.slots))
            if not free:
                return None
            free[0].free -= 1
            self._last_used = time.monotonic()
            return free[0]

    def give_back(self, unit: Unit, remote: Remote, compiled: bool) -> None:
        """Leave a place."""
        with self._guard:
            self._last_used = time.monotonic()
            if compiled:
                self.compiled[unit.node.id] += 1
                unit.starts = 0
            if unit.remote is remote and not remote.lost:
                unit.free += 1

    def rest(self) -> None:
        """Give processors back that nobody has used for a while."""
        with self._guard:
            if time.monotonic() - self._last_used < IDLE:
                return
            idle = [
                u for u in self._units if u.remote is not None and u.free == u.slots and u.node.id not in self.pinned
            ]
            remotes = [(unit, unit.remote) for unit in idle]
            for unit in idle:
                unit.remote, unit.free, unit.starts = None, 0, 0
        for _, remote in remotes:
            assert remote is not None
            remote.close(patience=5.0)

    def close(self) -> None:
        """End all of them at once."""
        with self._guard:
            self._closed = True
            remotes = [unit.remote for unit in self._units if unit.remote is not None]
            self._units = []
        calls = [remote.call("close") for remote in remotes if not remote.lost and remote.up.done()]
        deadline = time.monotonic() + 5.0
        for call in calls:
            try:
                call.result(timeout=max(0.0, deadline - time.monotonic()))
            except Exception:  # it is ended all the same
                pass
        for remote in remotes:
            remote.lose("it was closed")

    @property
    def waiting(self) -> list[Unit]:
        """Units that have asked for room and have none yet."""
        with self._guard:
            return [unit for unit in self._units if unit.remote is not None and not unit.remote.up.done()]

    def _start(self, unit: Unit) -> None:
        unit.starts += 1
        remote = self.make(unit)
        unit.remote, unit.free = remote, 0
        remote.up.add_done_callback(lambda up: self._is_up(unit, remote, up))

    def _is_up(self, unit: Unit, remote: Remote, up: Future[None]) -> None:
        with self._guard:
            if up.exception() is None and unit.remote is remote:
                unit.free = unit.slots
        if up.exception() is None:
            self.freed()

    def mend(self) -> None:
        """Make actors again that ended; a node whose actors end at once is left alone."""
        with self._guard:
            ended = [unit for unit in self._units if unit.remote is not None and unit.remote.lost]
            for unit in ended:
                unit.remote, unit.free = None, 0
                if unit.starts < _MOST_STARTS and not self._closed:
                    self._start(unit)
