"""Behaviours 1-14: the decorator."""

from __future__ import annotations

import importlib.util
import inspect
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from noise import BUT_NOISE

import tlaot
from tlaot.errors import TuningError

np = pytest.importorskip("numpy")

TILES = [{"tile": 1}, {"tile": 2}]

needs_tilelang = pytest.mark.skipif(importlib.util.find_spec("tilelang") is None, reason="needs TileLang")


def check_scale(kernel: Any, size: int, factor: float = 2.0) -> None:
    a = np.arange(size, dtype="float32")
    assert np.array_equal(np.asarray(kernel(a)), a * np.float32(factor))


def test_001_decorates_a_factory_and_refuses_everything_else(lab: Any) -> None:
    with pytest.raises(ValueError, match=r"without arguments is not supported yet"):
        tlaot.autotune(lab.scale)
    with pytest.raises(ValueError, match="not a PrimFunc"):
        tlaot.autotune(lab.scale(16))
    with pytest.raises(ValueError, match="PrimFunc is a finished kernel"):
        tlaot.autotune(configs=TILES)(lab.scale(16))
    with pytest.raises(TypeError, match="missing the argument configs"):
        tlaot.autotune()
    for wrong in (42, int, "scale"):
        with pytest.raises(TypeError, match="expected a function that makes a kernel"):
            tlaot.autotune(configs=TILES)(wrong)
    with pytest.raises(TypeError):
        tlaot.autotune(None, TILES)  # keyword-only, as the original
    tuned = lab.autotune(lab.scale, TILES)
    assert tuned.__name__ == "scale"
    assert tuned.__doc__ == lab.scale.__doc__


@needs_tilelang
def test_001_stacks_on_a_jit_function_and_on_tilelangs_own_tuner(lab: Any, tunings: Any) -> None:
    import tilelang

    for below in (lab.kernels.jitted, tilelang.autotune(configs=[{"tile": 8}])(lab.kernels.jitted)):
        check_scale(tlaot.autotune(configs=TILES, warmup=0.1, rep=0.2)(below)(16), 16)
        assert tunings.configs == TILES


def test_002_tunables_override_defaults_and_need_none(lab: Any, tunings: Any) -> None:
    def required(N: int, tile: int) -> Any:
        return scale(N, tile=tile)

    def none(N: int, tile: Any = None) -> Any:
        return scale(N, tile=tile)

    scale = lab.scale
    for factory in (required, none):
        kernel = lab.autotune(factory, [{"tile": 2}])(16)
        check_scale(kernel, 16)
        assert kernel.config == {"tile": 2}
    with pytest.raises(TypeError, match="missing the arguments N"):
        lab.autotune(required, TILES)()
    assert len(tunings) == 2


def test_003_configs_as_a_list_and_as_one_dict(lab: Any, tunings: Any) -> None:
    assert lab.autotune(lab.scale, TILES)(16).config in TILES
    assert tunings.configs == TILES
    assert lab.autotune(lab.scale, {"tile": 2})(16).config == {"tile": 2}
    for wrong in ("tile", 3, [3]):
        with pytest.raises(TypeError, match="must be a"):
            lab.autotune(lab.scale, wrong)(16)


def test_004_configs_as_a_function_of_the_call(lab: Any, tunings: Any) -> None:
    """By name, by position, whichever it is written for; and through from_kernel."""
    seen: list[Any] = []

    def by_name(N: int, factor: float = 9.0) -> list[dict[str, Any]]:
        seen.append((N, factor))
        return [{"tile": N // 16}]

    assert lab.autotune(lab.scale, by_name)(16, factor=3.0).config == {"tile": 1}
    assert lab.autotune(lab.scale, by_name)(N=32).config == {"tile": 2}
    assert seen == [(16, 3.0), (32, 9.0)]
    assert lab.autotune(lab.scale, lambda *args, **kwargs: seen.append((args, kwargs)) or TILES)(16).config in TILES
    assert seen[-1] in (((16,), {}), ((), {"N": 16}))
    assert lab.autotune(lab.scale, lambda size: [{"tile": size}])(16).config == {"tile": 16}
    assert lab.autotune(lab.scale, lambda **kwargs: [{"tile": kwargs["N"]}])(16).config == {"tile": 16}
    assert lab.autotune(lab.scale, lambda: TILES)(16).config in TILES
    assert lab.tuner(_partial(lab.scale, 16), lambda N: [{"tile": N}]).run().config == {"tile": 16}


def _partial(function: Any, *args: Any) -> Any:
    import functools

    return functools.partial(function, *args)


def test_005_configs_as_a_generator(lab: Any, tunings: Any) -> None:
    """A generator function, and a generator already made, which lasts for more than one call."""

    def space(N: int) -> Any:
        for tile in (1, 2, 64):
            if tile <= N:
                yield {"tile": tile}

    tuned = lab.autotune(lab.scale, space)
    assert tuned(16).config in TILES
    assert tunings.configs == TILES
    with tlaot.set_autotune_inputs(np.ones(64, "float32")):
        assert tuned(64).config in [*TILES, {"tile": 64}]
    assert len(tunings.configs) == 3
    tuned = lab.autotune(lab.scale, ({"tile": tile} for tile in (1, 2)))
    for size in (32, 128):
        tuned(size)
        assert tunings.configs == TILES
    made = lab.tuner(_partial(lab.scale, 256), ({"tile": tile} for tile in (1, 2)))
    assert made.run().config == made.run().config


def test_006_unused_keys_are_an_error_before_anything_else(lab: Any, tunings: Any) -> None:
    for tune in (
        lambda: lab.autotune(lab.scale, [{"tile": 1}, {"tiel": 2}])(16),
        lambda: lab.tuner(_partial(lab.scale, 16), [{"tiel": 2}]).run(),
    ):
        with pytest.raises(ValueError, match=r"Unused keys in config: \{'tiel'\}"):
            tune()
    assert len(tunings) == 0


def test_007_pass_configs_of_one_config(lab: Any, tunings: Any, place: Path) -> None:
    """Reserved: compiler options of one candidate, over those for all; in the config that is returned; no parameter."""
    broken = {"no.such.option": True}
    good = {"tile": 2, "pass_configs": {}}
    kernel = lab.autotune(lab.scale, [{"tile": 1, "pass_configs": broken}, good])(16)
    assert kernel.config == good
    assert "no.such.option" in (place / "autotuner.log").read_text()
    with pytest.raises(TuningError, match=r"no\.such\.option"):
        lab.autotune(lab.scale, TILES, pass_configs=broken)(16)
    option = {"tilelang": "tl.disable_safe_memory_legalize", "tvm": "tirx.disable_vectorize"}[lab.frontend]
    both = lab.autotune(lab.scale, [{"tile": 4, "pass_configs": {option: True}}], pass_configs={option: "no bool"})
    assert both(16).config == {"tile": 4, "pass_configs": {option: True}}


def test_008_an_empty_space_is_an_error(lab: Any) -> None:
    for empty in ([], lambda: [], iter(())):
        with pytest.raises(ValueError, match=r"No configurations to tune, please check your `@autotune` decorator"):
            lab.autotune(lab.scale, empty)(16)


def test_009_one_tuning_a_key_however_it_is_called(lab: Any, tunings: Any) -> None:
    """The original's keys tell positions from names, forget the device, and do not hold back other threads."""
    tuned = lab.autotune(lab.scale, TILES)
    kernel = tuned(16, 3.0)
    assert tuned(N=16, factor=3.0) is kernel
    assert tuned(16, factor=3.0) is kernel
    assert len(tunings) == 1
    assert tuned(16, 4.0) is not kernel
    assert len(tunings) == 2

    def listed(N: int, sizes: Any, tile: int = 1) -> Any:
        return scale(N, tile=tile)

    scale = lab.scale
    unhashable = lab.autotune(listed, [{"tile": 1}])
    assert unhashable(16, [1, {"a": {2}}]) is unhashable(16, sizes=[1, {"a": {2}}])
    assert len(tunings) == 3


def test_009_the_device_is_in_the_key(lab: Any) -> None:
    class Tensor:
        dtype, shape = "float16", (4,)

        def __init__(self, device: str) -> None:
            self.device = device

        def stride(self) -> tuple[int, ...]:
            return (1,)

    tuned = lab.autotune(lab.scale, TILES)
    keys = [tuned._key({"A": Tensor(device)}) for device in ("cuda:0", "cuda:1", "cuda:0")]
    assert keys[0] == keys[2] != keys[1]


def test_009_threads_that_ask_for_the_same_wait_for_one_tuning(lab: Any, tunings: Any) -> None:
    tunings.before = lambda: time.sleep(0.3)
    tuned = [lab.autotune(lab.scale, TILES) for _ in range(2)]  # two decorators of one factory: the same key on disk
    kernels: list[Any] = []
    threads = [threading.Thread(target=lambda i=i: kernels.append(tuned[i % 2](16))) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tunings) == 1
    assert len(kernels) == 4
    assert len({kernel.latency for kernel in kernels}) == 1


def test_010_the_decorators_defaults(lab: Any) -> None:
    found = {name: p.default for name, p in inspect.signature(tlaot.autotune).parameters.items()}
    theirs = {
        "warmup": 25, "rep": 100, "timeout": 100, "supply_type": tlaot.TensorSupplyType.Auto, "ref_prog": None,
        "supply_prog": None, "manual_check_prog": None, "max_mismatched_ratio": 0.01, "skip_check": False,
        "cache_input_tensors": False, "do_not_specialize": None, "early_stop": False, "early_stop_factor": 2.0,
    }  # fmt: skip
    assert {name: found[name] for name in theirs} == theirs
    assert found["rtol"] is None and found["atol"] is None  # by dtype, where the original has 1e-2 for all
    assert found.keys() >= {"backend", "target", "use_pipeline", "devices"}  # what the original has no way to set


def test_010_what_the_decorator_is_told_is_what_is_done(lab: Any, tunings: Any) -> None:
    lab.autotune(
        lab.scale, TILES, warmup=0.3, rep=0.4, timeout=7, backend="wall", early_stop=True, early_stop_factor=3.0,
        use_pipeline=True, rtol=0.5, atol=0.25, seed=5, index_ranges={"A": (0, 4)}, cache_input_tensors=True,
    )(16)  # fmt: skip
    request = tunings.requests[-1]
    profile, run = request.profile_args, request.run_args
    assert (profile.warmup, profile.rep, profile.timeout, profile.backend) == (0.3, 0.4, 7, "wall")
    assert (profile.rtol, profile.atol, profile.seed, profile.index_ranges) == (0.5, 0.25, 5, {"A": (0, 4)})
    assert profile.cache_input_tensors
    assert (run.early_stop, run.early_stop_factor, run.use_pipeline) == (True, 3.0, True)


def test_011_a_given_tunable_is_fixed_and_the_rest_tuned(lab: Any, tunings: Any) -> None:
    """The original gives up tuning as soon as one of them is given."""

    def two(N: int, tile: int = 1, factor: float = 2.0) -> Any:
        return scale(N, factor, tile)

    scale = lab.scale
    tuned = lab.autotune(two, [{"tile": 1, "factor": 2.0}, {"tile": 2, "factor": 2.0}, {"tile": 2, "factor": 3.0}])
    result = tuned.tune(16, factor=3.0)
    assert tunings.configs == [{"tile": 1, "factor": 3.0}, {"tile": 2, "factor": 3.0}]
    assert result.latency is not None
    check_scale(result.kernel, 16, 3.0)
    assert tuned.tune(16, 4).config["tile"] == 4
    with pytest.warns(UserWarning, match=r"Tunable parameters \['tile', 'factor'\] already provided"):
        kernel = tuned(16, 8, 5.0)
    check_scale(kernel, 16, 5.0)


def test_012_do_not_specialize_takes_the_config_and_compiles_again(lab: Any, tunings: Any, compiled: Any) -> None:
    """The original never tunes then, and gives out the first size's kernel for every other size."""
    tuned = lab.autotune(lab.scale, TILES, do_not_specialize=["N"])
    first = tuned(16)
    check_scale(first, 16)
    assert (len(tunings), len(compiled)) == (1, 0)
    second = tuned(N=64)
    check_scale(second, 64)
    assert (len(tunings), len(compiled)) == (1, 1)
    assert dict(compiled[0].configs[0]) == first.config
    assert tuned(64) is second
    tuned(64, factor=3.0)  # everything else still counts
    assert len(tunings) == 2
    with pytest.raises(ValueError, match="do_not_specialize names"):
        lab.autotune(lab.scale, TILES, do_not_specialize=["M"])


def test_013_a_lazy_factory_gives_its_kernel(lab: Any) -> None:
    tuned = lab.autotune(lab.scale, TILES)
    kernel = tuned(16)
    assert type(kernel).__name__ == "TunedKernel"
    assert tuned.compile(16) is kernel is tuned(16, __return_kernel=True)


@needs_tilelang
def test_013_an_eager_function_gives_its_outputs(lab: Any, tunings: Any) -> None:
    tuned = tlaot.autotune(configs=[{"tile": 1}, {"tile": 2}], warmup=0.1, rep=0.2)(lab.kernels.eager)
    a = np.arange(32, dtype="float32").reshape(4, 8)
    assert np.array_equal(np.asarray(tuned(a)), a * 2)
    assert np.array_equal(np.asarray(tuned(a + 1)), (a + 1) * 2)
    assert len(tunings) == 1
    for kernel in (tuned.compile(a), tuned(a, __return_kernel=True)):
        assert np.array_equal(np.asarray(kernel(a)), a * 2)
    assert np.array_equal(np.asarray(tuned(a[:2])), a[:2] * 2)
    assert len(tunings) == 2


def test_014_a_call_inside_set_autotune_inputs_is_tuned_with_them(lab: Any, tunings: Any) -> None:
    a = np.full(16, 7, "float32")

    def reference(given: Any) -> Any:
        if not (given == 7).all():
            raise ValueError("not the caller's tensor")
        return given * 2

    tuned = lab.autotune(lab.scale, TILES, ref_prog=reference)
    with tlaot.set_autotune_inputs(a), warnings.catch_warnings():
        warnings.filterwarnings("error", message=BUT_NOISE)
        kernel = tuned(16)
    assert tunings.requests[-1].captured[0] is a
    check_scale(kernel, 16)
    with pytest.raises((TuningError, ValueError), match="not the caller's tensor"):
        tuned(32)
