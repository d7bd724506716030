"""Behaviours 53-61: measuring, failures, the log."""

from __future__ import annotations

import functools
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tlaot.autotuner import here, settings
from tlaot.autotuner.request import RunArgs
from tlaot.errors import TuningError
from tlaot.target import parse_target
from tlaot.tune.machine import Gpu, Machine
from tlaot.tune.measuring.timing import Timing, Visit, WallClock

np = pytest.importorskip("numpy")

TILES = [{"tile": 1}, {"tile": 2}]


@pytest.mark.usefixtures("processes")
def test_053_054_061_a_kernel_that_hangs_or_crashes_is_killed_alone(lab: Any, place: Path) -> None:
    """The original's timed-out thread goes on beside the next measurement; a crash ends the user's process."""
    crash: dict[str, Any] = {"mode": "segfault"}
    if lab.frontend == "tilelang":
        crash["pass_configs"] = {"tl.disable_safe_memory_legalize": True}  # which keeps it inside of its tensor
    configs = [{"mode": "hang"}, crash, {"mode": "right"}]
    kernel = lab.autotune(lab.scale, configs, ref_prog=lambda a: a * 2, timeout=6)(16)
    assert kernel.config == {"mode": "right"}
    log = (place / "autotuner.log").read_text()
    assert "mode='hang'}: check: timed out after 6 s and was killed" in log
    assert re.search(r"SIG(SEGV|ABRT|BUS)", log)
    running = {thread.name for thread in threading.enumerate()}
    assert not any(name.startswith(("tlaot-screen", "tlaot-compile")) for name in running)
    assert not _children()


def _children() -> list[str]:
    """Command lines of what this process's fork servers, which stay, have forked."""
    parents, commands = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(pid)] = int(Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[1])
            commands[int(pid)] = Path("/proc", pid, "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    mine = {pid for pid, parent in parents.items() if parent == os.getpid() and "tlaot.tune" in commands.get(pid, "")}
    assert mine and all("tlaot.tune.children.forking" in commands[pid] for pid in mine)
    return [commands.get(pid, "") for pid, parent in parents.items() if parent in mine]


def test_055_which_devices_measure(lab: Any, place: Path) -> None:
    def gpu(index: int, name: str, capability: tuple[int, int] = (9, 0)) -> Gpu:
        return Gpu(index, name, capability, 132, 13000)

    gpus = (gpu(0, "H200"), gpu(1, "H200"), gpu(2, "H100"), gpu(3, "A100", (8, 0)))
    machine = Machine("cpu", 1, gpus, {"tilelang": "0.1.15", "apache-tvm": "0.27"})
    said: list[str] = []
    journal: Any = SimpleNamespace(say=said.append)

    def devices(target: str, **run: Any) -> list[str]:
        request: Any = SimpleNamespace(run_args=RunArgs(**run), factory=SimpleNamespace(frontend=lab.frontend))
        return here.choose_devices(request, parse_target(target), machine, journal)

    assert devices("cuda:sm_90a") == ["cuda:0"]
    assert devices("cuda:sm_90a", benchmark_multi_gpu=True) == ["cuda:0", "cuda:1"]  # one model: times compare
    assert said.pop() == (
        "tlaot: cuda:sm_90a: measuring on H200 only; times of other models are not compared: cuda:2 (H100)"
    )
    assert devices("cuda:sm_90a", benchmark_devices=[1]) == ["cuda:1"]
    assert not said
    assert devices("cuda:sm_90a", benchmark_devices=[1, 7]) == ["cuda:1"]
    assert said.pop() == ("Ignoring invalid benchmark device ids [7]. Visible CUDA device ordinals are [0, 1, 2, 3].")
    assert devices("cuda:sm_90a", benchmark_devices=[9]) == ["cuda:0"]
    said.clear()
    assert devices("llvm", benchmark_multi_gpu=True) == ["cpu"]
    assert "for CUDA targets" in said.pop()


def test_055_the_cpu_measures_where_several_gpus_were_asked_for(lab: Any, place: Path) -> None:
    tuner = lab.tuner(functools.partial(lab.scale, 16), TILES)
    assert tuner.run(benchmark_multi_gpu=True, benchmark_devices=[0, 1]).config in TILES
    assert "benchmark_multi_gpu is for CUDA targets" in (place / "autotuner.log").read_text()


def test_056_early_stop(lab: Any, place: Path) -> None:
    """A candidate that cannot win is cut; theirs cuts all short ones, since its estimate has a memset in it."""
    with pytest.raises(ValueError, match=r"early_stop_factor must be >= 1\.0, got 0\.5"):
        lab.autotune(lab.scale, TILES, early_stop_factor=0.5)
    configs = [{"times": 1}, {"times": 3000}, {"times": 2}]
    kernel = lab.autotune(lab.repeated, configs, early_stop=True, ref_prog=lambda a: a * 1)(256)
    assert kernel.config != {"times": 3000}
    lines = [line for line in (place / "autotuner.log").read_text().splitlines() if "measured" in line]
    cut = next(line for line in lines if "times=3000" in line)
    assert cut.endswith("+- 0.0%")  # one estimate, no samples
    with pytest.raises(ValueError, match="early_stop_factor"):
        lab.tuner(lab.scale, TILES).run(early_stop_factor=0.9)


def test_057_clocks_of_the_cpu(lab: Any) -> None:
    for backend in ("auto", "wall"):
        result = lab.tuner(functools.partial(lab.scale, 16), TILES, backend=backend).run()
        assert 0 < result.latency < 10
        assert result.kernel.packed.variant.latency["spread"] >= 0  # kept beside the median
    for backend in ("event", "cudagraph", "cupti", "stopwatch"):
        with pytest.raises(ValueError, match=backend):
            lab.tuner(functools.partial(lab.scale, 16), TILES, backend=backend).run()


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["auto", "event", "cudagraph", "cupti"])
def test_057_clocks_of_the_gpu(backend: str) -> None:
    from behaviours import gpu_kernels

    result = gpu_kernels.tune_matmul(1024, backend=backend, warmup=5, rep=20)
    assert 0.002 < result.latency < 0.2


def test_058_the_fastest_of_a_second_round_and_of_equals_the_first(
    lab: Any, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    """The original takes the smallest mean of a single pass, and of equals the one that ended first."""
    # In screening the second is faster, by noise; in turns it is not, and the third is equal but for noise.
    screened, visits = iter([1.0, 0.95, 1.1] * 2), iter([1.0, 1.05, 1.0] * 2)

    def prepare(clock: WallClock, *rest: Any) -> tuple[Visit, str]:
        latency = next(visits)
        return (lambda: [latency * 0.99, latency, latency * 1.01]), "wall"

    monkeypatch.setattr(WallClock, "screen", lambda *rest: Timing(next(screened), 0.125, 9, "wall"))
    monkeypatch.setattr(WallClock, "prepare", prepare)
    configs = [{"factor": 2.0}, {"factor": 2.5}, {"factor": 3.0}]
    assert lab.autotune(lab.scale, configs, rep=10)(16).config == configs[0]
    log = (place / "autotuner.log").read_text()
    # Every candidate's time and spread are kept, of the rounds too.
    assert log.count(" ms +- 12.5%") == 3
    assert sorted(line.split()[-4] for line in log.splitlines() if " again " in line) == ["1", "1", "1.05"]


def test_059_the_final_error_has_every_reason(lab: Any, place: Path) -> None:
    configs = [{"mode": "raise"}, {"mode": "raise", "tile": 2}, {"mode": "wrong"}]
    with pytest.raises(RuntimeError) as caught:
        lab.autotune(lab.scale, configs, ref_prog=lambda a: a * 2)(16)
    assert isinstance(caught.value, TuningError)
    text = str(caught.value)
    assert "none of 3 candidates" in text
    assert "2 x lower: ValueError: mode raise refuses N=16" in text
    assert "1 x check: WrongResult: output B: 16 of 16 elements differ" in text
    assert str(place / "autotuner.log") in text


def test_060_the_log_is_appended_and_never_in_the_way(
    lab: Any, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The original overwrites it, crashes where it cannot, and prints into the user's output."""
    for size in (16, 32):
        lab.autotune(lab.scale, TILES)(size)
    log = (place / "autotuner.log").read_text()
    assert "N=16" in log and "N=32" in log
    assert capsys.readouterr().out == ""
    lab.autotune(lab.scale, TILES, verbose=True)(64)

    monkeypatch.setattr(settings.Path, "cwd", lambda: Path("/proc/self/no/such/folder"))
    assert lab.autotune(lab.scale, TILES)(16).config in TILES
    assert settings.log_path().parent != place
