"""How tuning scales from 1 to 256 GPUs: a simulation of compiling and measuring around the real tuning loop.

The loop, the search, what waits for a device, ties and verdicts are tlaot's own (``tune_workloads``); the pool and the devices pass simulated
time (``simulated.py``). 100 kernels x 50 shapes x 32 configs, 16 cores for each GPU. What a candidate takes, in seconds, drawn evenly from a range:

    lower, host code    0.2-0.4  core s    benchmarks/RESULTS.md, TileLang on one core: lowering 0.16-0.19, gcc of the host code 0.2
    nvcc                1.9-2.4  core s    the same; --nvrtc: 0.6-0.75, NVRTC with precompiled headers (RESULTS.md: 0.67)
    screen              0.05-0.12          10 ms of samples (measuring/timing.py) beside a check, a load and a graph's capture
    inputs, reference   0.1-0.5            once a workload on each device that has a candidate of it
    decide              0.4-2.0            up to decide-budget = 2; 32 configs of a GEMM took 4.7-6.5 in all (RESULTS.md, tuning on a GPU)
    --long              screen 1-3, decide 6-20: heavy kernels, where measuring is the limit
    submit              0.2 ms of driver   what a distributed executor takes for each call, assumed (--submit)

The loop's own processor time is counted on the simulated clock, times --driver for a faster or slower processor; what it takes to keep results (store and
journal) is measured on a smaller run with real files and added to each candidate. Efficiency is the wall time on one
GPU over the number of GPUs times the wall time; "limit" says what of driver, compiling, measuring and the tail was busy for most of the wall time.

    PYTHONPATH=. python benchmarks/cluster.py
    PYTHONPATH=. python benchmarks/cluster.py --gpus 1 64 --apart --nvrtc
    PYTHONPATH=. python benchmarks/cluster.py --cost                        only what the driver takes for a candidate, by part

A build works on one frontend and target after the other: with two of these the numbers are of each. Planning (a worker evaluates each kernel's shapes and
configs, one after the other) and packaging come before and after, and are not in it.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import io
import os
import pstats
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulated import Clock, SimulatedDevice, SimulatedPool, draw

from tlaot.manifest import digest_of
from tlaot.target import parse_target
from tlaot.tune.compiling.compile import Built
from tlaot.tune.locks.record import Circumstances, candidate_keys, make_entry, save_record
from tlaot.tune.searching.schedule import Stand, Tuned, tune_workloads
from tlaot.tune.searching.search import make_search
from tlaot.tune.searching.store import Store
from tlaot.tune.specs.plan import Candidate, Workload
from tlaot.tune.specs.spec import KernelSpec
from tlaot.tune.telling.journal import Journal
from tlaot.tune.telling.progress import Progress

TARGET = parse_target("cuda:sm_90a")
GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Work:
    """Sizes of the problem."""

    kernels: int
    shapes: int
    configs: int
    search: str

    @property
    def candidates(self) -> int:
        return self.kernels * self.shapes * self.configs

    def plans(self) -> list[tuple[list[Workload], Any]]:
        shapes = tuple({"M": 128 << at % 8, "N": 256 * (1 + at)} for at in range(self.shapes))
        keys = ("block_M", "block_N", "num_stages")
        configs = tuple(
            dict(zip(keys, (32 << at % 4, 32 << at // 4 % 4, at // 16), strict=True)) for at in range(self.configs)
        )
        plans = []
        for number in range(self.kernels):
            kernel = KernelSpec(
                f"k{number}", "tilelang", f"m:k{number}", (TARGET,), shapes, configs, "t", search=self.search
            )
            workloads = [Workload(kernel, TARGET, shape, configs) for shape in shapes]
            plans.append((workloads, make_search(kernel, workloads)))
        return plans


@dataclass(frozen=True)
class Costs:
    """Seconds that things take."""

    lower: tuple[float, float] = (0.2, 0.4)
    device: tuple[float, float] = (1.9, 2.4)
    screen: tuple[float, float] = (0.05, 0.12)
    prepare: tuple[float, float] = (0.1, 0.5)
    decide: tuple[float, float] = (0.4, 2.0)

    def compile(self, candidate: Candidate) -> float:
        name = candidate.binary
        return draw(*self.lower, "lower", name) + draw(*self.device, "device", name)

    def measure(self, kind: str, workload: Workload, index: int) -> float:
        return draw(*getattr(self, kind), kind, workload.path, index)


@dataclass
class Run:
    """What a simulated tuning came to; seconds."""

    wall: float
    driver: float
    compile: float
    measure: dict[str, float]
    compiled_at: float
    tried: int
    winners: dict[str, int | None]


def simulate(work: Work, costs: Costs, gpus: int, options: argparse.Namespace, extra: float) -> Run:
    """Tune on so many GPUs; ``extra`` are seconds of the driver for each thing that it submits."""
    clock = Clock(options.driver, extra + options.submit / 1e3)
    pool = SimulatedPool(clock, options.cores * gpus, costs.compile)
    devices = [SimulatedDevice(clock, f"gpu:{n}", costs.measure, options.apart) for n in range(gpus)]
    winners: dict[str, int | None] = {}
    with _stand(clock, pool, devices, None) as stand:
        tune_workloads(work.plans(), stand, lambda t: winners.__setitem__(t.workload.path, t.decision.winner_index))
    measured = {kind: sum(device.busy_s[kind] for device in devices) for kind in ("prepare", "screen", "decide")}
    tried = sum(done.startswith("screen") for device in devices for done in device.did)
    return Run(clock.now, clock.driver_s, pool.busy_s, measured, pool.last, tried, winners)


@contextlib.contextmanager
def _stand(clock: Clock, pool: Any, devices: list[SimulatedDevice], folder: Path | None) -> Iterator[Stand]:
    """With a store and a journal in a folder; without one nothing is kept."""
    keys = lambda candidate: candidate_keys(candidate, "sources", {}, "device")  # noqa: E731
    journal = Journal((folder / "autotuner.log") if folder else Path(os.devnull), None)
    with Progress(None, None) as progress:
        yield Stand(
            pool=pool,
            devices=devices,
            store=Store(folder / "store" if folder else None, keys, print),
            journal=journal if folder else _Silent(journal.path, None),
            progress=progress,
            overlap=True,
            events=lambda: clock,
        )


class _Silent(Journal):
    """Writes nothing: what that takes is measured apart."""

    def write(self, text: str) -> None:
        pass


class _FilePool(SimulatedPool):
    """Gives binaries that are files, for the store to move."""

    def __init__(self, clock: Clock, folder: Path) -> None:
        super().__init__(clock, 64, lambda candidate: 1.0)
        self._folder = folder
        self._made: dict[str, Built] = {}

    def submit(self, candidate: Candidate) -> Any:
        with self._clock.submitting():
            folder = self._folder / candidate.workload.path / str(candidate.index)
            folder.mkdir(parents=True)
            content = candidate.binary.encode() * 100
            (folder / "executable.so").write_bytes(content)
            (folder / "device_kernel.cu").write_bytes(content)
            self._made[candidate.binary] = Built(folder, digest_of(content), (), (), {}, {})
        return super().submit(candidate)

    def _built(self, candidate: Candidate) -> Built:
        return self._made.pop(candidate.binary)


def measure_cost(work: Work, keep: bool, profile: bool = False) -> tuple[float, float]:
    """Processor seconds of the loop for a candidate, and for a workload's record, with or without files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clock = Clock(driver=1.0)
        pool = _FilePool(clock, folder / "made") if keep else SimulatedPool(clock, 64, lambda candidate: 1.0)
        devices = [SimulatedDevice(clock, f"gpu:{n}", lambda *what: 0.1) for n in range(8)]
        recorded = 0.0
        facts = Circumstances({}, {}, {}, {}, ())

        def decided(tuned: Tuned) -> None:
            nonlocal recorded
            start = time.perf_counter()
            if keep:
                entry = make_entry(tuned.workload, tuned.outcomes, tuned.decision, facts)
                save_record(folder / "records", tuned.workload, "key", entry)
            recorded += time.perf_counter() - start

        plans = work.plans()
        profiler = cProfile.Profile()
        with _stand(clock, pool, devices, folder if keep else None) as stand:
            if profile:
                profiler.enable()
            tune_workloads(plans, stand, decided)
            profiler.disable()
        if profile:
            text = io.StringIO()
            pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(22)
            print(text.getvalue())
        return (clock.driver_s - recorded) / work.candidates, recorded / (work.kernels * work.shapes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gpus", type=int, nargs="+", default=GPUS)
    parser.add_argument("--cores", type=int, default=16, help="processors that compile, for each GPU")
    parser.add_argument("--kernels", type=int, default=100)
    parser.add_argument("--shapes", type=int, default=50)
    parser.add_argument("--configs", type=int, default=32)
    parser.add_argument("--search", default="exhaustive", choices=("exhaustive", "guided"))
    parser.add_argument("--nvrtc", action="store_true", help="compile as NVRTC with precompiled headers does")
    parser.add_argument("--long", action="store_true", help="kernels that take long to measure")
    parser.add_argument("--apart", action="store_true", help="compile on other hosts than those that measure")
    parser.add_argument("--driver", type=float, default=1.0, help="how many times as long the driver's processor takes")
    parser.add_argument("--submit", type=float, default=0.2, help="ms of the driver for a call of the executor")
    parser.add_argument("--cost", action="store_true", help="only what the driver takes")
    parser.add_argument("--profile", action="store_true", help="with --cost: where")
    options = parser.parse_args()
    costs = Costs()
    if options.nvrtc:
        costs = Costs(device=(0.6, 0.75), lower=(0.2, 0.4))
    if options.long:
        costs = Costs(costs.lower, costs.device, screen=(1.0, 3.0), decide=(6.0, 20.0))
    kept = report_costs(options)
    if options.cost:
        return
    work = Work(options.kernels, options.shapes, options.configs, options.search)
    report(work, costs, options, kept)


def report_costs(options: argparse.Namespace) -> float:
    """Print what the driver takes; return what keeping results adds for each thing that is submitted."""
    print("what the driver takes, us of a processor a candidate; ms a workload's record")
    print(f"{'kernels x shapes x configs':>30} {'loop':>8} {'with files':>11} {'record':>8}")
    added = 0.0
    for kernels in (2, 8, 24) if options.cost else (8,):
        work = Work(kernels, options.shapes, options.configs, options.search)
        bare, _ = measure_cost(work, keep=False, profile=options.profile)
        full, record = measure_cost(work, keep=True, profile=options.profile)
        print(
            f"{work.kernels:>12} x {work.shapes} x {work.configs} {bare * 1e6:>18.0f} {full * 1e6:>11.0f} {record * 1e3:>8.2f}",
            flush=True,
        )
        # A candidate is submitted twice, a workload once.
        added = max(0.0, full - bare) / (2 + 1 / work.configs)
    print()
    return added


def report(work: Work, costs: Costs, options: argparse.Namespace, kept: float) -> None:
    print(
        f"{work.kernels} kernels x {work.shapes} shapes x {work.configs} configs, {options.search}, {options.cores} cores a GPU"
    )
    print(
        f"{'GPUs':>5} {'wall s':>9} {'efficiency':>10} {'driver':>7} {'compile':>8} {'measure':>8} {'decide':>7} {'limit':>9}  winners"
    )
    one: Run | None = None
    for gpus in options.gpus:
        start = time.time()
        run = simulate(work, costs, gpus, options, kept)
        one = one or run
        efficiency = one.wall * options.gpus[0] / (gpus * run.wall)
        busy = {
            "driver": run.driver / run.wall,
            "compile": run.compile / (options.cores * gpus * run.wall),
            "measure": (run.measure["prepare"] + run.measure["screen"]) / (gpus * run.wall),
            "decide": run.measure["decide"] / (gpus * run.wall),
        }
        alike = (
            "same"
            if run.winners == one.winners
            else f"{sum(run.winners[p] != w for p, w in one.winners.items())} differ"
        )
        shares = f"{busy['driver']:>7.0%} {busy['compile']:>8.0%} {busy['measure']:>8.0%} {busy['decide']:>7.0%}"
        print(
            f"{gpus:>5} {run.wall:>9.0f} {efficiency:>10.2f} {shares} {_limit(busy):>9}  {alike}"
            f"  ({run.tried} tried, {time.time() - start:.0f} s to simulate)",
            flush=True,
        )


def _limit(busy: dict[str, float]) -> str:
    """What was busy for most of the time; compiling and deciding follow each other where devices are not apart."""
    both = {
        "driver": busy["driver"],
        "compile": busy["compile"] + busy["decide"],
        "measure": busy["measure"] + busy["decide"],
    }
    name = max(both, key=lambda what: both[what])
    return name if both[name] > 0.7 else "tail"


if __name__ == "__main__":
    main()
