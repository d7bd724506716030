"""Foreign load: whether others use the processor or the GPU that is to be measured on, and waiting until they do not.

Ours are this process and the measuring child; all others disturb, a compiler of the same build as well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .nvml import Nvml

__all__ = ["CpuWatch", "GpuWatch", "Watch", "stolen_share", "wait_until_quiet"]

# What others may use of the processor: this many CPUs, or this share of all.
_CPUS, _CPU_SHARE = 0.3, 0.05
_WINDOW = 0.1
# Ticks of the processor's clock are counted whole; a reading of so short a time is confirmed by a longer one.
_LONGER_WINDOW = 0.3
# Percent of the time, or share of it.
_GPU_PERCENT = 5
_STOLEN = 0.05
_PROBES = 3
# NVML's readings are of the past second, in which this build used the GPU itself.
_GPU_MEMORY = 1.2

_SAMPLE_PERIOD = 0.25

_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 4.0

# Seconds that this process has waited for each device.
_waited: dict[str, float] = {}


class Watch(Protocol):
    """Looks at one device."""

    def foreign(self) -> str | None:
        """What others do on it now, while this build does nothing; None where they do nothing that matters, or it is not known."""

    def since(self) -> str | None:
        """What others did on it since the last look, while this build measured."""


@dataclass(frozen=True)
class _Reading:
    """Seconds of processor time up to a moment: of all CPUs that this process may run on, and of each process that is ours."""

    moment: float
    busy: float
    ours: Mapping[int, float]
    throttled: int


class CpuWatch:
    """Looks at the CPUs that this process may run on.

    Args:
        ours: Says which processes are this build's own measuring; there may be others when a child was replaced.
        proc: The kernel's ``/proc``.
        cgroup: The file that counts how often a quota stopped this container, None where there is none.
    """

    def __init__(
        self, ours: Callable[[], Collection[int]], proc: Path = Path("/proc"), cgroup: Path | None = None
    ) -> None:
        self._ours = ours
        self._proc = proc
        self._cpus = sorted(os.sched_getaffinity(0))
        self._tick = 1.0 / os.sysconf("SC_CLK_TCK")
        self._cgroup = _find_cgroup() if cgroup is None else cgroup
        self._last = self._read()

    def foreign(self) -> str | None:
        for window in (_WINDOW, _LONGER_WINDOW):
            before = self._read()
            time.sleep(window)
            what = self._judge(before, self._read())
            if what is None:
                break
        self._last = self._read()
        return what

    def since(self) -> str | None:
        before, self._last = self._last, self._read()
        return self._judge(before, self._last)

    def _judge(self, before: _Reading | None, after: _Reading | None) -> str | None:
        if before is None or after is None:
            return None
        if after.throttled > before.throttled:
            return "this container's quota of processor time was used up"
        if set(before.ours) - set(after.ours):
            return None  # a child that died took what it used along
        seconds = max(after.moment - before.moment, self._tick)
        ours = sum(used - before.ours.get(pid, 0.0) for pid, used in after.ours.items())
        others = (after.busy - before.busy - ours) / seconds
        if others <= max(_CPUS, _CPU_SHARE * len(self._cpus)):
            return None
        return f"other processes kept {others:.1f} of {len(self._cpus)} CPUs busy"

    def _read(self) -> _Reading | None:
        try:
            lines = (self._proc / "stat").read_text().splitlines()
        except OSError:
            return None
        busy, seen = 0.0, 0
        names = {f"cpu{cpu}" for cpu in self._cpus}
        for line in lines:
            name, *rest = line.split()
            if name in names:
                # user, nice, system, idle, iowait, irq, softirq, steal; a guest's time is in the first two already
                ticks = [int(field) for field in rest[:8]]
                busy += (sum(ticks) - sum(ticks[3:5])) * self._tick
                seen += 1
        if seen == 0:
            return None
        ours = {pid: used for pid in self._ours() if (used := self._used(pid)) is not None}
        return _Reading(time.monotonic(), busy, ours, self._throttled())

    def _used(self, pid: int) -> float | None:
        try:
            text = (self._proc / str(pid) / "stat").read_text()
        except OSError:
            return None
        fields = text.rpartition(")")[2].split()  # the name before may have blanks and parentheses
        return sum(int(field) for field in fields[11:15]) * self._tick

    def _throttled(self) -> int:
        try:
            lines = self._cgroup.read_text().splitlines() if self._cgroup is not None else []
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("nr_throttled ")), 0)


class GpuWatch:
    """Looks at one GPU: at what the driver says, and at whether a probe of our own is interrupted.

    Args:
        ours: As for :class:`CpuWatch`.
        probe: Times of equal pieces of work in ms, one after the other, as the measuring child has them; empty where it has none.
        nvml: The driver's view, or None.
    """

    def __init__(
        self, ours: Callable[[], Collection[int]], probe: Callable[[], Sequence[float]], nvml: Nvml | None
    ) -> None:
        self._ours = ours
        self._probe = probe
        self._nvml = nvml
        self._last = time.time()

    def foreign(self) -> str | None:
        what = self._interrupted() or self._strangers_at_work()
        self._last = time.time() + _SAMPLE_PERIOD  # the driver's first sample after this is of the time before
        return what

    def since(self) -> str | None:
        start, self._last = self._last, time.time()
        if self._count_strangers():
            time.sleep(_SAMPLE_PERIOD)  # the driver's sample of what has just been measured is not taken yet
        used = self._nvml.uses(int(start * 1e6)) if self._nvml is not None else None
        ours = set(self._ours())
        if used is not None and ours & set(used):  # the numbers are of this container's processes
            strangers = {pid: share for pid, share in used.items() if pid not in ours}
            if max(strangers.values(), default=0) >= _GPU_PERCENT:
                return f"another process (pid {max(strangers, key=lambda pid: strangers[pid])}) used the GPU"
        return self._interrupted()

    def _interrupted(self) -> str | None:
        # One probe may be held up by a busy CPU that feeds it late; who shares the GPU holds up each.
        share = 1.0
        for _ in range(_PROBES):
            share = min(share, stolen_share(self._probe()))
            if share <= _STOLEN:
                return None
        return f"another process used the GPU for {share:.0%} of the time"

    def _strangers_at_work(self) -> str | None:
        """Other processes with a context, if the GPU is busy though this build lets it rest."""
        count = self._count_strangers()
        if self._nvml is None or count < 1:
            return None
        deadline = time.monotonic() + _GPU_MEMORY
        while (busy := self._nvml.utilization() or 0) >= _GPU_PERCENT:
            if time.monotonic() >= deadline:
                return f"{count} other process{'es' if count > 1 else ''} kept the GPU busy for {busy}% of the time"
            time.sleep(0.1)
        return None

    def _count_strangers(self) -> int:
        """How many other processes have a context on the GPU, as far as the driver says."""
        pids = (self._nvml.processes() if self._nvml is not None else None) or []
        # Numbers of another namespace: all that is known is that one of them is the child.
        ours = set(self._ours())
        return sum(pid not in ours for pid in pids) if ours & set(pids) else max(0, len(pids) - 1)


def stolen_share(times: Sequence[float]) -> float:
    """Which share of the time of equal pieces of work was not theirs: a GPU that two processes use serves them by turns."""
    if len(times) < 10:
        return 0.0
    usual = sorted(times)[len(times) // 4]
    lost = sum(took - usual for took in times if took > 3 * usual)
    return lost / sum(times)


def wait_until_quiet(
    watch: Watch,
    device: str,
    timeout: float,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Wait until others leave a device alone.

    Args:
        watch: Looks at the device.
        device: Its name. A process waits for it no longer than the timeout in all: load that did not end once goes on.
        timeout: Seconds after which it goes on anyway.
        say: Told once that there is something to wait for.
        sleep: Waits.

    Returns:
        What others do on it still; None where it is quiet.
    """
    pause, said = _FIRST_PAUSE, False
    while (what := watch.foreign()) is not None:
        left = timeout - _waited.get(device, 0.0)
        if left <= 0:
            return what
        if not said:
            say(f"tlaot: {what}; waiting up to {left:.0f} s for that to end")
            said = True
        sleep(min(pause, left))
        _waited[device] = _waited.get(device, 0.0) + min(pause, left)
        pause = min(pause * 1.6, _LONGEST_PAUSE)
    return None


def _find_cgroup() -> Path | None:
    """The ``cpu.stat`` of the control group that this process is in, as far as it can be seen from a container."""
    root = Path("/sys/fs/cgroup")
    try:
        own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    folders = [root]
    for _, names, path in own:
        if names == "":
            folders.insert(0, root / path.lstrip("/"))
        elif "cpu" in names.split(","):
            folders[:0] = [root / names / path.lstrip("/"), root / names, root / "cpu"]
    return next((folder / "cpu.stat" for folder in folders if (folder / "cpu.stat").is_file()), None)
