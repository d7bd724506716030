"""Foreign load: what counts as such on a CPU and on a GPU, and waiting until it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tlaot.tune.measuring import quiet
from tlaot.tune.measuring.nvml import Nvml, open_nvml
from tlaot.tune.measuring.quiet import CpuWatch, GpuWatch, stolen_share, wait_until_quiet

US = 100
QUIET, STOLEN = [0.01] * 200, [0.01] * 180 + [2.0] * 20


class Proc:
    """A ``/proc`` whose processors do as they are told."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, cpus: int) -> None:
        self.folder = folder
        self.seconds = 0.0
        self.busy = [0] * 64
        self.used = {US: 0}
        self.rates: tuple[float, float] = (0.0, 0.0)
        self.throttled = 0
        self.cgroup = folder / "cpu.stat"
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)))
        monkeypatch.setattr(quiet.time, "sleep", self.sleep)
        monkeypatch.setattr(quiet.time, "monotonic", lambda: self.seconds)
        self.cpus = cpus
        self.write()

    def sleep(self, seconds: float) -> None:
        """Time passes: so many CPUs are busy, of which so many are ours."""
        ticks = seconds * os.sysconf("SC_CLK_TCK")
        self.seconds += seconds
        all_busy, ours = self.rates
        for cpu in range(self.cpus):
            self.busy[cpu] += round(ticks * all_busy / self.cpus)
        self.used[US] += round(ticks * ours)
        self.write()

    def write(self) -> None:
        lines = ["cpu 1 2 3"]
        for cpu, busy in enumerate(self.busy):
            lines.append(f"cpu{cpu} {busy} 0 0 999 7 0 0 0 50 0")
        (self.folder / "stat").write_text("\n".join([*lines, "intr 1 2", "ctxt 3"]))
        for pid, used in self.used.items():
            (self.folder / str(pid)).mkdir(exist_ok=True)
            fields = [
                "S",
                "1",
                "1",
                "1",
                "0",
                "-1",
                "0",
                "0",
                "0",
                "0",
                "0",
                str(used // 2),
                str(used - used // 2),
                "0",
                "0",
            ]
            (self.folder / str(pid) / "stat").write_text(f"{pid} (a (strange) name) {' '.join(fields)} 20 0")
        self.cgroup.write_text(f"usage_usec 1\nnr_periods 9\nnr_throttled {self.throttled}\n")

    def watch(self) -> CpuWatch:
        return CpuWatch(lambda: {US}, self.folder, self.cgroup)


@pytest.mark.parametrize(
    ("cpus", "busy", "ours", "foreign"),
    [
        (2, 0.0, 0.0, None),
        (2, 1.0, 1.0, None),
        (2, 2.0, 1.0, "other processes kept 1.0 of 2 CPUs busy"),
        (16, 16.0, 0.0, "other processes kept 16.0 of 16 CPUs busy"),
        (16, 16.0, 15.6, None),
        (64, 2.0, 0.0, None),  # a big machine is never quite idle
    ],
)
def test_what_others_use_of_the_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: int, busy: float, ours: float, foreign: str | None
) -> None:
    proc = Proc(tmp_path, monkeypatch, cpus)
    proc.rates = busy, ours
    watch = proc.watch()
    assert watch.foreign() == foreign
    proc.sleep(2.0)
    assert watch.since() == foreign
    proc.rates = 0.0, 0.0
    proc.sleep(2.0)
    assert watch.since() is None


def test_a_short_burst_is_no_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = Proc(tmp_path, monkeypatch, 2)
    proc.rates = 2.0, 0.0
    asleep = proc.sleep

    def burst(seconds: float) -> None:
        asleep(seconds)
        proc.rates = 0.0, 0.0

    monkeypatch.setattr(quiet.time, "sleep", burst)
    assert proc.watch().foreign() is None


def test_a_quota_that_is_used_up_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = Proc(tmp_path, monkeypatch, 4)
    watch = proc.watch()
    proc.throttled = 3
    proc.sleep(1.0)
    assert watch.since() == "this container's quota of processor time was used up"


def test_what_a_dead_child_used_is_not_held_against_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = Proc(tmp_path, monkeypatch, 2)
    proc.rates = 1.0, 1.0
    watch = proc.watch()
    proc.sleep(1.0)
    (tmp_path / str(US) / "stat").unlink()
    assert watch.since() is None


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    watch = CpuWatch(lambda: {US}, tmp_path / "nowhere", tmp_path / "nothing")
    assert watch.foreign() is None and watch.since() is None


def test_on_this_machine_ours_is_not_foreign() -> None:
    """Our own load is taken off whatever others do: with it there is no more foreign load than without."""
    watch = CpuWatch(lambda: {os.getpid()})
    before = watch._read()
    sum(n * n for n in range(2_000_000))
    after = watch._read()
    if before is None or after is None:
        pytest.skip("no /proc/stat here")
    ours = after.ours[os.getpid()] - before.ours[os.getpid()]
    assert 0 < ours <= after.busy - before.busy + 0.05


# --- the GPU ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).parent / "native_fixture" / "libnvidia-ml.c"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(out), str(source)], check=True)
    return str(out)


@pytest.fixture
def nvml(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvml]:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "says"))
    says("0")
    opened = open_nvml("GPU-1", library)
    assert opened is not None
    yield opened


def says(utilisation: str, *processes: tuple[int, int]) -> None:
    lines = [utilisation, *(f"{pid} {share}" for pid, share in processes)]
    Path(os.environ["FAKE_NVML"]).write_text("\n".join(lines))


def test_what_the_driver_says_is_read(nvml: Nvml, library: str) -> None:
    says("37", (11, 5), (12, 90))
    assert nvml.utilization() == 37
    assert nvml.processes() == [11, 12]
    assert nvml.uses(1_000_000) == {11: 5, 12: 90}
    says("-")
    assert nvml.utilization() is None and nvml.uses(0) is None and nvml.processes() == []
    assert open_nvml("GPU-2", library) is None
    assert open_nvml("GPU-1", "libno-such-library.so") is None
    assert open_nvml("GPU-1", "libc.so.6") is None


def gpu(nvml: Nvml | None, probes: Sequence[float] = QUIET) -> GpuWatch:
    return GpuWatch(lambda: {US}, lambda: probes, nvml)


@pytest.mark.parametrize(
    ("busy", "processes", "foreign"),
    [
        ("0", [(US, 0)], None),
        ("99", [(US, 99)], None),  # that was ours, a moment ago
        ("0", [(US, 0), (7, 0)], None),  # a notebook that is open
        ("99", [(US, 0), (7, 99)], "1 other process kept the GPU busy for 99% of the time"),
        ("40", [(US, 0), (7, 20), (8, 20)], "2 other processes kept the GPU busy for 40% of the time"),
        ("99", [(70, 0)], None),  # numbers of another namespace: the one is the child
        ("99", [(70, 0), (71, 99)], "1 other process kept the GPU busy for 99% of the time"),
        ("99", [], None),  # a container that sees no process
        ("-", [(US, 0), (7, 0)], None),
    ],
)
def test_other_processes_that_use_the_gpu(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch, busy: str, processes: list[tuple[int, int]], foreign: str | None
) -> None:
    monkeypatch.setattr(quiet, "_GPU_MEMORY", 0.15)
    says(busy, *processes)
    assert gpu(nvml).foreign() == foreign


def test_own_load_of_a_moment_ago_fades(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    says("80", (US, 0), (7, 0))
    monkeypatch.setattr(quiet.time, "sleep", lambda seconds: says("0", (US, 0), (7, 0)))
    assert gpu(nvml).foreign() is None


def test_a_probe_that_is_interrupted_tells_without_the_driver() -> None:
    assert gpu(None).foreign() is None and gpu(None).since() is None
    assert gpu(None, []).foreign() is None
    told = "another process used the GPU for 95% of the time"
    assert gpu(None, STOLEN).foreign() == told and gpu(None, STOLEN).since() == told


def test_who_used_the_gpu_meanwhile(nvml: Nvml) -> None:
    says("99", (US, 90), (7, 2))
    assert gpu(nvml).since() is None
    says("99", (US, 50), (7, 45))
    assert gpu(nvml).since() == "another process (pid 7) used the GPU"
    says("99", (70, 45), (71, 45))  # whose these are is not known
    assert gpu(nvml).since() is None


def test_what_was_stolen() -> None:
    assert stolen_share(QUIET) == 0
    assert stolen_share([0.01] * 199 + [0.029]) == 0  # a hiccup
    assert stolen_share(STOLEN) == pytest.approx(0.95, abs=0.01)
    assert stolen_share([1.0, 9.0]) == 0


# --- waiting -----------------------------------------------------------------------------------------------------------


class Told:
    """A watch that says what it is told to."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)

    def foreign(self) -> str | None:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    since = foreign


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    monkeypatch.setattr(quiet, "_waited", {})
    return []


def test_it_waits_until_load_ends_and_says_so_once(waits: list[float]) -> None:
    said: list[str] = []
    assert wait_until_quiet(Told("a lot", "a lot", "a lot", None), "cpu", 30, said.append, waits.append) is None
    assert said == ["tlaot: a lot; waiting up to 30 s for that to end"]
    assert len(waits) == 3 and waits == sorted(waits) and sum(waits) < 3


def test_it_goes_on_after_the_timeout_and_does_not_wait_anew_for_each_workload(waits: list[float]) -> None:
    said: list[str] = []
    assert wait_until_quiet(Told("a lot"), "cpu", 10, said.append, waits.append) == "a lot"
    assert sum(waits) == pytest.approx(10)
    assert wait_until_quiet(Told("a lot"), "cpu", 10, said.append, waits.append) == "a lot"
    assert sum(waits) == pytest.approx(10) and len(said) == 1
    assert wait_until_quiet(Told("a lot"), "GPU-1", 0, said.append, waits.append) == "a lot"
    assert sum(waits) == pytest.approx(10) and len(said) == 1


def test_a_hog_on_this_machine_is_seen() -> None:
    if CpuWatch(lambda: {os.getpid()})._read() is None:
        pytest.skip("no /proc/stat here")
    count = len(os.sched_getaffinity(0))
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        watch = CpuWatch(lambda: {os.getpid()})
        said: list[str] = []
        what = wait_until_quiet(watch, "cpu of a test", 0.5, said.append)
        assert what is not None and what.startswith("other processes kept ") and said
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
