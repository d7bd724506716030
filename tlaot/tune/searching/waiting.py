"""What waits for a device: one queue for all devices, from which each takes what it is the best at.

A workload's inputs and the reference's outputs are made on every device that has a candidate of it, so a workload has a home: the device that took
its first candidate. A device that has nothing of its own to do takes a workload that nobody has begun, and then helps whoever has
the most left.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping

from ..compiling.compile import Built
from ..specs.plan import Candidate, Workload

__all__ = ["Waiting"]


class Waiting:
    """Binaries that wait to be screened, and workloads that wait to be decided; devices go by numbers.

    Args:
        order: Place of each workload in the spec, by path: of several to decide the first is the next.
    """

    def __init__(self, order: Mapping[str, int]) -> None:
        self._order = order
        self._home: dict[str, int] = {}
        self._last: dict[int, str] = {}
        self._binaries: dict[str, deque[tuple[Candidate, Built]]] = {}
        self._count = 0
        # By home: those to be decided there, as a heap by their places. -1 is the home of those that have none.
        self._screened: dict[int, list[tuple[int, str, Workload]]] = {}

    @property
    def binaries(self) -> int:
        """How many wait to be screened."""
        return self._count

    def put(self, candidate: Candidate, built: Built) -> None:
        """A binary is to be screened."""
        self._binaries.setdefault(candidate.workload.path, deque()).append((candidate, built))
        self._count += 1

    def put_screened(self, workload: Workload) -> None:
        """A workload is to be decided."""
        entry = self._order[workload.path], workload.path, workload
        heapq.heappush(self._screened.setdefault(self._home.get(workload.path, -1), []), entry)

    def settle_in(self, device: int, workload: Workload) -> None:
        """A device makes a workload's inputs before it has a binary of it."""
        self._last[device] = workload.path
        self._home.setdefault(workload.path, device)

    def take(self, device: int) -> tuple[Candidate, Built]:
        """The next binary for a device; there is one."""
        path = self._last.get(device, "")
        if path not in self._binaries:
            path = min(self._binaries, key=lambda path: self._preference(path, device))
        self._last[device] = path
        self._home.setdefault(path, device)
        waiting = self._binaries[path]
        found = waiting.popleft()
        self._count -= 1
        if not waiting:
            del self._binaries[path]
        return found

    def take_screened(self, device: int) -> Workload | None:
        """The next workload to be decided on a device; None where there is none."""
        homes = [home for home in (device, -1) if self._screened.get(home)]
        if not homes:
            homes = sorted((home for home, own in self._screened.items() if own), key=lambda h: -len(self._screened[h]))
        return heapq.heappop(self._screened[homes[0]])[2] if homes else None

    def leave(self, device: int) -> None:
        """A device is gone: others take what was at home there."""
        self._home = {path: home for path, home in self._home.items() if home != device}
        for entry in self._screened.pop(device, ()):
            heapq.heappush(self._screened.setdefault(-1, []), entry)

    def _preference(self, path: str, device: int) -> tuple[int, int]:
        home = self._home.get(path)
        if home == device:
            return 0, 0
        return (1, 0) if home is None else (2, -len(self._binaries[path]))
