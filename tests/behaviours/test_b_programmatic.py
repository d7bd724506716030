"""Behaviours 15-23: AutoTuner, its arguments and its result."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import linecache
import sys
import warnings
from typing import Any

import pytest
from conftest import has_nvcc
from noise import BUT_NOISE

import tlaot
from tlaot.autotuner.keys import identify
from tlaot.errors import BuildError
from tlaot.tune.measuring.timing import time_wall

np = pytest.importorskip("numpy")

TILES = [{"tile": 1}, {"tile": 2}]

needs_tilelang = pytest.mark.skipif(importlib.util.find_spec("tilelang") is None, reason="needs TileLang")


def test_015_from_kernel_with_a_chain_of_settings(lab: Any) -> None:
    def kernel_factory(N: int) -> Any:
        def kernel(tile: Any = None) -> Any:
            return scale(N, tile=tile)

        return kernel

    scale = lab.scale
    tuner = tlaot.AutoTuner.from_kernel(kernel_factory(16), configs=TILES, frontend=lab.frontend)
    assert tuner.set_profile_args(warmup=0.1, rep=0.2) is tuner
    assert tuner.set_compile_args(out_idx=[-1], target=lab.target) is tuner
    result = tuner.run()
    assert result.config in TILES
    assert np.array_equal(np.asarray(result.kernel(np.ones(16, "float32"))), np.full(16, 2, "float32"))
    assert tuner().config == result.config  # tuner() is tuner.run()
    partial = lab.tuner(functools.partial(lab.scale, 16), TILES)
    assert partial.run().config in TILES
    with pytest.raises(ValueError, match=r"finished kernel.*\n?.*functools\.partial\(factory"):
        tlaot.AutoTuner.from_kernel(result.kernel, TILES)


@needs_tilelang
def test_015_from_kernel_takes_jit_factories(lab: Any) -> None:
    """Where the original fails with "no attribute '__closure__'"."""
    made = tlaot.AutoTuner.from_kernel(functools.partial(lab.kernels.jitted, 16), TILES).set_profile_args(0.1, 0.2)
    kernel = made.run().kernel
    assert np.array_equal(np.asarray(kernel(np.ones(16, "float32"))), np.full(16, 2, "float32"))


def test_016_closures_over_any_value(lab: Any, tunings: Any) -> None:
    """A type, a function, a tuple, a dtype: they travel, and they are in the key."""

    def make(sizes: Any, dtype: Any, helper: Any) -> Any:
        def kernel(tile: int = 1) -> Any:
            assert np.dtype(dtype) == np.float32
            return scale(sizes[0], helper(sizes), tile)

        return kernel

    scale = lab.scale
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is not cached")
        results = [
            lab.tuner(make((16, {"of": 2}), np.float32, helper), TILES).run()
            for helper in (lambda sizes: 2.0 + sizes[0] * 0, lambda sizes: 3.0, lambda sizes: 2.0 + sizes[0] * 0)
        ]
    assert len(tunings) == 2
    ones = np.ones(16, "float32")
    assert [float(np.asarray(result.kernel(ones))[0]) for result in results] == [2.0, 3.0, 2.0]


def test_017_functions_without_a_file(lab: Any) -> None:
    """Of an interactive session, whose source only linecache has; and of exec, which has no source at all."""
    source = "def factory(N, tile=1):\n    return scale(N, tile=tile)\n"
    for name, known in (("<cell 1>", True), ("<nowhere>", False)):
        namespace: dict[str, Any] = {"scale": lab.scale, "__name__": "__main__"}
        exec(compile(source, name, "exec"), namespace)
        if known:
            linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        kernel = lab.autotune(namespace["factory"], TILES)(16)
        assert np.array_equal(np.asarray(kernel(np.ones(16, "float32"))), np.full(16, 2, "float32"))


def test_018_run_without_settings(lab: Any, tunings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLAOT_DEFAULT_TARGET", lab.target)
    tuner = tlaot.AutoTuner.from_kernel(functools.partial(lab.increment, 16), TILES, frontend=lab.frontend)
    tuner.run(warmup=0.1, rep=0.2)
    request = tunings.requests[-1]
    assert request.compile_args == tlaot.CompileArgs()
    assert dataclasses.replace(request.profile_args, warmup=25, rep=100) == tlaot.ProfileArgs()


def test_019_arguments_set_are_arguments_used(lab: Any, tunings: Any) -> None:
    """The original's run() forgets warmup, rep and timeout of set_profile_args."""
    tuner = lab.tuner(functools.partial(lab.scale, 16), TILES).set_profile_args(warmup=0.2, rep=0.3, timeout=9)
    tuner.run()
    profile = tunings.requests[-1].profile_args
    assert (profile.warmup, profile.rep, profile.timeout) == (0.2, 0.3, 9)
    tuner.run(rep=0.4)
    profile = tunings.requests[-1].profile_args
    assert (profile.warmup, profile.rep, profile.timeout) == (0.2, 0.4, 9)
    assert len(tunings) == 2  # another rep is another key
    parameters = inspect.signature(tlaot.AutoTuner.run).parameters
    theirs = [
        "self", "warmup", "rep", "timeout", "use_pipeline", "enable_grouped_compile", "group_compile_size",
        "benchmark_devices", "benchmark_multi_gpu", "early_stop", "early_stop_factor",
    ]  # fmt: skip
    assert list(parameters) == [*theirs, "search", "trials", "seconds"]


def test_what_a_search_lacks_is_said_in_the_caller_s_words(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = lab.tuner(functools.partial(lab.scale, 16), TILES)
    with pytest.raises(ValueError, match="trials must be 1 or more, got 0"):
        tuner.run(trials=0)
    with pytest.raises(ValueError, match="seconds must be above 0, got -1"):
        tuner.run(seconds=-1)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(BuildError, match=r'search="optuna": optuna is not installed\npip install "tlaot\[search\]"'):
        tuner.run(search="optuna")


def test_020_warmup_and_rep_are_milliseconds_everywhere() -> None:
    import time

    calls = []

    def call() -> None:
        calls.append(None)
        time.sleep(0.002)

    timing = time_wall(call, warmup=20, rep=40)
    assert 5 <= timing.samples <= 20
    assert timing.samples + 4 <= len(calls) <= timing.samples + 3 + 10
    assert 2 <= timing.latency < 20


def test_021_arguments_are_frozen_with_the_documented_fields() -> None:
    compile_fields = {field.name: field.default for field in dataclasses.fields(tlaot.CompileArgs)}
    theirs = {
        "out_idx": None, "execution_backend": "auto", "target": "auto", "target_host": None, "verbose": False,
        "pass_configs": None,
    }  # fmt: skip
    assert compile_fields == {**theirs, "compile_flags": None}
    profile = tlaot.ProfileArgs()
    expected = {
        "warmup": 25, "rep": 100, "timeout": 30, "supply_type": tlaot.TensorSupplyType.Auto, "ref_prog": None,
        "supply_prog": None, "manual_check_prog": None, "max_mismatched_ratio": 0.01, "skip_check": False,
        "cache_input_tensors": True,
    }  # fmt: skip
    assert {name: getattr(profile, name) for name in expected} == expected
    with pytest.raises(dataclasses.FrozenInstanceError):
        profile.rep = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        tlaot.CompileArgs().target = "c"  # type: ignore[misc]
    defaults = inspect.signature(tlaot.AutoTuner.set_profile_args).parameters
    assert {name: defaults[name].default for name in expected} == expected  # theirs differ between the two


def test_021_compile_flags_are_used_and_in_the_key(lab: Any, tunings: Any) -> None:
    """Theirs are not in the key, and lost when a result is loaded."""
    keys = []
    for flags in (None, "-lineinfo", ["-DTWO=2", "-DONE"]):
        tuner = lab.tuner(functools.partial(lab.scale, 16), TILES)
        tuner.set_compile_args(out_idx=[-1], target=lab.target, compile_flags=flags).run()
        keys.append(identify(tunings.requests[-1]).result)
    assert len(set(keys)) == len(tunings) == 3


def test_022_the_result(lab: Any) -> None:
    result = lab.tuner(functools.partial(lab.scale, 16), TILES, ref_prog=lambda a: a * 2).run()
    assert [field.name for field in dataclasses.fields(result)] == [
        "latency", "config", "ref_latency", "libcode", "func", "kernel",
    ]  # fmt: skip
    assert 0 < result.latency < 10 and 0 < result.ref_latency < 10
    kernel = result.kernel
    assert (kernel.latency, kernel.config, kernel.ref_latency) == (result.latency, result.config, result.ref_latency)
    assert kernel.get_tuner_result() == {
        "latency": result.latency, "config": result.config, "ref_latency": result.ref_latency,
    }  # fmt: skip
    if lab.frontend == "tilelang":
        assert "scale" in result.libcode and kernel.get_kernel_source() == result.libcode
    (untuned,) = tlaot.par_compile(
        lab.scale, [{"N": 16}], frontend=lab.frontend, compile_args=tlaot.CompileArgs(target=lab.target, out_idx=[-1])
    )
    with pytest.raises(ValueError, match="Tuning results are not available"):
        untuned.get_tuner_result()


def test_022_results_share_nothing_that_changes(lab: Any) -> None:
    first, second = (lab.tuner(functools.partial(lab.scale, 16), TILES).run() for _ in range(2))
    first.config["tile"] = "changed"
    assert second.config in TILES
    assert lab.tuner(functools.partial(lab.scale, 16), TILES).run().config in TILES


def test_023_a_second_run_takes_the_result_from_memory(lab: Any, tunings: Any) -> None:
    """At no cost that would need the original's warning."""
    results = []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=BUT_NOISE)
        for _ in range(2):
            results.append(lab.tuner(functools.partial(lab.scale, 16), TILES).run())
    assert len(tunings) == 1
    assert results[0].latency == results[1].latency


@needs_tilelang
def test_021_compile_flags_reach_nvcc(lab: Any) -> None:
    from tlaot.errors import BuildError

    if not has_nvcc():
        pytest.skip("needs nvcc")
    for flags in ("--no-such-flag", ["-DONE", "--no-such-flag"]):
        arguments = tlaot.CompileArgs(target="cuda:sm_90a", out_idx=[-1], compile_flags=flags)
        with pytest.raises(BuildError, match="no-such-flag"):
            tlaot.par_compile(lab.scale, [{"N": 16}], compile_args=arguments, frontend="tilelang")
