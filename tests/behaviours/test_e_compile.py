"""Behaviours 44-52: compiling candidates, many at a time, and whatever they do."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest

import tlaot
from tlaot.autotuner import workload
from tlaot.autotuner.settings import Settings, resolve_num_workers
from tlaot.errors import BuildError, TuningError

np = pytest.importorskip("numpy")

TILES = [{"tile": 1}, {"tile": 2}]


def test_045_how_many_compile_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def workers(tasks: int = 100, available: int = 16, **settings: Any) -> int:
        return resolve_num_workers(tasks, Settings(tmp_path, **settings), available)

    assert workers() == 14  # 0.9 of 16
    assert workers(cpu_utilities=0.5) == 8
    assert workers(cpu_counts=3) == 3 and workers(cpu_counts=99) == 16 and workers(cpu_counts=0) == 14
    with pytest.warns(UserWarning, match="4 processors instead of 14"):
        assert workers(max_cpu_count=4) == 4
    assert workers(tasks=2) == 2 and workers(available=1) == 1
    monkeypatch.setenv("TLAOT_AUTO_TUNING_CPU_COUNTS", "abc")
    with pytest.raises(ValueError, match=r"TLAOT_AUTO_TUNING_CPU_COUNTS: expected a whole number, got 'abc'"):
        resolve_num_workers(2)


@pytest.mark.usefixtures("processes")
def test_046_the_decorator_compiles_candidates_at_the_same_time(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original's decorator holds a lock around each compilation."""
    monkeypatch.setenv("TLAOT_AUTO_TUNING_CPU_COUNTS", "2")
    monkeypatch.setattr("tlaot.autotuner.settings.count_available_cpus", lambda: 2)
    factory = functools.partial(lab.kernels.sleep_then_scale, folder=str(tmp_path), seconds=5.0)
    kernel = lab.autotune(factory, TILES)(16)
    assert kernel.config in TILES
    (begin, end), (other_begin, other_end) = (
        [float(time) for time in (tmp_path / f"{config['tile']}").read_text().split()] for config in TILES
    )
    assert begin < other_end and other_begin < end


@pytest.mark.usefixtures("processes")
def test_047_a_compiler_that_dies_or_hangs_takes_one_candidate_along(
    lab: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original compiles in its own process, and has no limit of time."""
    profile = workload._profile
    monkeypatch.setattr(workload, "_profile", lambda given: dataclasses.replace(profile(given), compile_timeout=15))
    factory = functools.partial(lab.kernels.sleep_then_scale, folder=str(place))
    configs = [{"seconds": 1e6}, {"tile": 2}, {"dies": True}]
    assert lab.autotune(factory, configs)(16).config == {"tile": 2}
    log = (place / "autotuner.log").read_text()
    assert "timed out after 15 s and was killed" in log
    assert "lower: the process ended" in log


def test_048_an_illegal_config_is_skipped_the_first_one_too(lab: Any, place: Path) -> None:
    """In the original an illegal first config ends the search, and the reasons are in a log at DEBUG only."""
    for size, configs in (16, [{"mode": "raise"}, {"mode": "right"}]), (8, [{"mode": "right"}, {"mode": "raise"}]):
        assert lab.autotune(lab.scale, configs)(size).config == {"mode": "right"}
    log = (place / "autotuner.log").read_text()
    assert all(log.count(f"ValueError: mode raise refuses N={size}\n") == 2 for size in (8, 16))
    with pytest.raises(TuningError, match="2 x lower: ValueError: mode raise refuses N=16"):
        lab.autotune(lab.scale, [{"mode": "raise", "tile": tile} for tile in (1, 2)])(16)


def test_049_equal_configs_and_equal_binaries_are_measured_once(
    lab: Any, tunings: Any, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    def ignoring(N: int, label: str = "") -> Any:
        return scale(N)

    from tlaot.tune.measuring import measurer

    scale, checked = lab.scale, []
    check = measurer._check
    monkeypatch.setattr(measurer, "_check", lambda *args: checked.append(args) or check(*args))
    assert lab.autotune(lab.scale, [{"tile": 1}] * 3, skip_check=False, ref_prog=lambda a: a * 2)(16)
    assert tunings.configs == [{"tile": 1}]
    checked.clear()
    labels = [{"label": label} for label in "abc"]
    kernel = lab.autotune(ignoring, labels, ref_prog=lambda a: a * 2)(16)
    assert kernel.config == {"label": "a"}
    assert len(checked) <= 2  # one check, and one for the winner's determinism
    measured = [line for line in (place / "autotuner.log").read_text().splitlines() if "measured ignoring" in line]
    assert len(measured) == 3 and len({line.split(": ")[1] for line in measured[1:]}) == 1


def test_050_grouped_compilation_ships_one_kernel_only(lab: Any) -> None:
    """Accepted; candidates share nothing in the result. The original ships the whole group."""
    tuner = lab.tuner(functools.partial(lab.scale, 16), TILES)
    result = tuner.run(enable_grouped_compile=True, group_compile_size=2)
    alone = lab.tuner(functools.partial(lab.scale, 16), [result.config]).run()
    assert result.kernel.packed.contents["executable.so"] == alone.kernel.packed.contents["executable.so"]


def test_051_measuring_while_others_compile(lab: Any, place: Path) -> None:
    kernel = lab.autotune(lab.scale, [*TILES, {"mode": "raise"}], use_pipeline=True, ref_prog=lambda a: a * 2)(16)
    assert kernel.config in TILES
    log = (place / "autotuner.log").read_text()
    assert log.count("compiled scale") == log.count("measured scale") == 2
    with pytest.raises(TuningError, match="1 x lower"):
        lab.autotune(lab.scale, [{"mode": "raise"}], use_pipeline=True)(16)


def test_052_par_compile(lab: Any) -> None:
    arguments = tlaot.CompileArgs(target=lab.target, out_idx=[-1])
    compiled = functools.partial(tlaot.par_compile, frontend=lab.frontend, compile_args=arguments)
    kernels = compiled(lab.scale, [{"N": 16}, (16, 3.0), {"N": 16, "tile": 2}], num_workers=2)
    ones = np.ones(16, "float32")
    assert [float(np.asarray(kernel(ones))[0]) for kernel in kernels] == [2.0, 3.0, 2.0]
    assert [kernel.latency for kernel in kernels] == [None] * 3
    with pytest.raises(ValueError, match="Invalid config type"):
        compiled(lab.scale, ["N"])
    bad = [{"N": 16, "mode": "raise"}, {"N": 16}]
    with pytest.raises(BuildError, match="mode raise refuses N=16"):
        compiled(lab.scale, bad)
    # The original elaborates outside of ignore_error.
    with pytest.warns(UserWarning, match="mode raise refuses"):
        first, second = compiled(lab.scale, bad, ignore_error=True)
    assert first is None and second is not None
    tuned = lab.autotune(lab.scale, TILES)
    (kernel,) = tuned.par_compile([{"N": 16, "tile": 2}])
    assert float(np.asarray(kernel(ones))[0]) == 2.0
