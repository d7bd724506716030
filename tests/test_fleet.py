"""Many devices: the real tuning loop on a simulated clock. Who wins, how long it takes, what a lost device costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

simulated = pytest.importorskip("simulated", reason="the tests run without the repository around them")

from simulated import Clock, SimulatedDevice, SimulatedPool  # noqa: E402

from tlaot.errors import BuildError  # noqa: E402
from tlaot.target import parse_target  # noqa: E402
from tlaot.tune.children.child import Failed, Lost  # noqa: E402
from tlaot.tune.measuring.measure import Measured  # noqa: E402
from tlaot.tune.searching.schedule import Stand, Tuned, tune_workloads  # noqa: E402
from tlaot.tune.searching.search import make_search  # noqa: E402
from tlaot.tune.searching.store import Store  # noqa: E402
from tlaot.tune.specs.plan import Workload  # noqa: E402
from tlaot.tune.specs.spec import KernelSpec  # noqa: E402
from tlaot.tune.telling.journal import Journal  # noqa: E402
from tlaot.tune.telling.progress import Progress  # noqa: E402

TARGET = parse_target("cuda:sm_90a")
CONFIGS = tuple({"t": index} for index in range(16))
SHAPES = tuple({"N": 2**at} for at in range(6, 14))

Seconds = Callable[[str, Workload, int], float]


class Fleet:
    """A clock, a pool and devices that pass its time."""

    def __init__(self, folder: Path, devices: int, seconds: Seconds, compile_s: float, apart: bool = False) -> None:
        self.clock = Clock()
        self.pool = SimulatedPool(self.clock, 16 * devices, lambda candidate: compile_s)
        self.devices = [SimulatedDevice(self.clock, f"gpu:{n}", seconds, apart) for n in range(devices)]
        self.folder = folder
        self.found: dict[str, Tuned] = {}
        self.said: list[str] = []

    def tune(self, overlap: bool = True) -> dict[str, int | None]:
        kernels = [KernelSpec(name, "tvm", "m:f", (TARGET,), SHAPES, CONFIGS, "t") for name in "ab"]
        plans = []
        for kernel in kernels:
            workloads = [Workload(kernel, TARGET, shape, CONFIGS) for shape in SHAPES]
            plans.append((workloads, make_search(kernel, workloads)))
        with Progress(None, None) as progress:
            stand = Stand(
                pool=self.pool,
                devices=self.devices,
                store=Store(None, lambda candidate: pytest.fail("a store without a folder asks for no keys"), print),
                journal=Journal(self.folder / "autotuner.log", self.said.append),
                progress=progress,
                overlap=overlap,
                events=lambda: self.clock,
            )
            tune_workloads(plans, stand, lambda tuned: self.found.__setitem__(tuned.workload.path, tuned))
        return {path: tuned.decision.winner_index for path, tuned in self.found.items()}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    def make(devices: int, seconds: Seconds = lambda *what: 1.0, compile_s: float = 0.1, **rest: Any) -> Fleet:
        return Fleet(tmp_path, devices, seconds, compile_s, **rest)

    yield make


def long_ones(kind: str, workload: Workload, index: int) -> float:
    """What is measured takes long; a workload's finalists take more or less."""
    return {"prepare": 0.1, "screen": 1.0}.get(kind, 2.0 + 4.0 * (workload.shape["N"] == 64))


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("overlap", [True, False])
def test_the_winners_are_the_same_on_any_number_of_devices(fleet: Any, apart: bool, overlap: bool) -> None:
    alone = fleet(1, long_ones)
    winners = alone.tune()
    assert len(winners) == 2 * len(SHAPES) and None not in winners.values()
    for devices in (2, 8):
        several = fleet(devices, long_ones, apart=apart)
        assert several.tune(overlap) == winners
        assert all(device.busy_s["screen"] and device.busy_s["decide"] for device in several.devices)
        assert {p: t.decision for p, t in several.found.items()} == {p: t.decision for p, t in alone.found.items()}


def test_what_is_measured_takes_as_many_times_less_as_there_are_devices(fleet: Any) -> None:
    walls = {}
    for devices in (1, 2, 4, 8):
        one = fleet(devices, long_ones)
        one.tune()
        walls[devices] = one.clock.now
        # A workload's inputs are made where its candidates are, and not on every device.
        assert sum(device.busy_s["prepare"] for device in one.devices) < 0.1 * 2 * len(SHAPES) * 2.5
    for devices in (2, 4, 8):
        assert walls[1] / devices <= walls[devices] < 1.25 * walls[1] / devices, walls


def test_one_long_decision_leaves_no_other_device_idle(fleet: Any) -> None:
    """There are no fixed blocks: the device that has it does nothing else, and the others do the rest."""

    def seconds(kind: str, workload: Workload, index: int) -> float:
        return 40.0 if kind == "decide" and workload.path.startswith("a/") and workload.shape["N"] == 64 else 1.0

    one = fleet(4, seconds)
    one.tune()
    decided = sorted(sum("decide" in what for what in device.did) for device in one.devices)
    assert decided[0] <= 2 and decided[1] >= 4


def test_devices_that_are_apart_decide_while_others_compile(fleet: Any) -> None:
    both = {}
    for apart in (False, True):
        one = fleet(2, long_ones, compile_s=30.0, apart=apart)
        one.tune()
        orders = [[what.partition(" ")[0] for what in device.did] for device in one.devices]
        early = any(
            "decide" in order[: len(order) - order[::-1].index("screen")] for order in orders if "screen" in order
        )
        assert early == apart
        both[apart] = one.clock.now
    assert both[True] < both[False]


class Losing(SimulatedDevice):
    """A device whose host goes away in the middle of something."""

    def lose(self, after: int, kinds: tuple[str, ...], gone: bool) -> None:
        self.after, self.kinds, self.ends = after, kinds, gone

    def submit(self, function: Any, *arguments: Any) -> Future[Any]:
        future = super().submit(function, *arguments)
        if function.__name__ in self.kinds:
            self.after -= 1
            if self.after == 0 or (self.after < 0 and self.ends):
                lost: Future[Any] = Future()

                def end() -> None:
                    self.gone = self.ends
                    lost.set_exception(Lost(Failed("start", "the host is gone")))

                self._clock.at(self._clock.now + 0.5, end)
                return lost
        return future


@pytest.mark.parametrize("kind", ["screen", "decide"])
@pytest.mark.parametrize("gone", [True, False])
def test_a_host_that_is_lost_costs_time_and_nothing_else(fleet: Any, kind: str, gone: bool) -> None:
    winners = fleet(1, long_ones).tune()
    several = fleet(3, long_ones)
    losing = Losing(several.clock, "gpu:x", long_ones)
    losing.lose(3, (kind,), gone)
    several.devices.append(losing)
    assert several.tune() == winners
    for tuned in several.found.values():
        assert all(isinstance(outcome, Measured) for outcome in tuned.outcomes) and tuned.decision.trusted
    assert several.said == (["tlaot: gpu:x is lost, and measures no more"] if gone else [])
    if gone:
        assert sum(what.startswith(kind) for what in losing.did) == 3


def test_where_every_device_is_lost_it_says_so(fleet: Any) -> None:
    one = fleet(0)
    one.pool.jobs = one.pool._free = 4
    for name in ("gpu:x", "gpu:y"):
        device = Losing(one.clock, name, long_ones)
        device.lose(2, ("screen",), True)
        one.devices.append(device)
    with pytest.raises(BuildError, match="every device to measure on is lost"):
        one.tune()


def test_who_is_lost_at_each_decision_leaves_what_screening_said(fleet: Any) -> None:
    one = fleet(1, long_ones)

    class Always(Losing):
        def submit(self, function: Any, *arguments: Any) -> Future[Any]:
            self.after = 1
            return super().submit(function, *arguments)

    one.devices[0] = Always(one.clock, "gpu:x", long_ones)
    one.devices[0].lose(1, ("decide",), False)
    one.tune()
    for tuned in one.found.values():
        assert not tuned.decision.trusted and "the host is gone" in tuned.decision.notes[0]
        times = {i: o.timing.latency for i, o in enumerate(tuned.outcomes) if isinstance(o, Measured)}
        assert times[tuned.decision.winner_index] == min(times.values())
