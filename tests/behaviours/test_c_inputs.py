"""Behaviours 24-36: inputs."""

from __future__ import annotations

import functools
import importlib.util
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from noise import BUT_NOISE

import tlaot
from tlaot.errors import SpecError, TuningError

np = pytest.importorskip("numpy")

TILES = [{"tile": 1}, {"tile": 2}, {"tile": 4}]
ANY_ERROR = (SpecError, TuningError)

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


def sees(check: Any) -> Any:
    """A reference for ``scale`` that looks at its input."""

    def reference(a: Any) -> Any:
        if not check(a):
            raise ValueError(f"the input is {a}")
        return a * 2

    return reference


def constant(value: float) -> Any:
    return sees(lambda a: bool((np.asarray(a) == value).all()))


def test_024_captured_inputs_before_a_function_before_a_distribution(lab: Any) -> None:
    def supply(params: Any) -> Any:
        return [np.full(params[0].shape, 5, "float32")]

    one = tlaot.TensorSupplyType.One
    lab.autotune(lab.scale, TILES, ref_prog=constant(1), supply_type=one)(16)
    lab.autotune(lab.scale, TILES, ref_prog=constant(5), supply_type=one, supply_prog=supply)(16)
    with tlaot.set_autotune_inputs(np.full(16, 7, "float32")), pytest.warns(UserWarning, match="will be ignored"):
        lab.autotune(lab.scale, TILES, ref_prog=constant(7), supply_type=one, supply_prog=supply)(16)


def test_025_the_context_nests_and_belongs_to_its_thread() -> None:
    get = tlaot.autotuner.get_autotune_inputs
    a, b = np.zeros(1), np.ones(1)
    elsewhere: list[Any] = []
    assert get() is None
    with tlaot.set_autotune_inputs(a, 3):
        assert get() == (a, 3)
        with tlaot.set_autotune_inputs([b]):
            assert get() == (b,)
            thread = threading.Thread(target=lambda: elsewhere.append(get()))
            thread.start()
            thread.join()
        with pytest.raises(KeyError), tlaot.set_autotune_inputs((b, a)):
            assert get() == (b, a)
            raise KeyError
        assert get() == (a, 3)
    assert get() is None
    assert elsewhere == [None]


def test_025_scalars_are_accepted(lab: Any) -> None:
    def reference(a: Any, s: float) -> Any:
        assert s == 3.0
        return a * np.float32(s)

    with tlaot.set_autotune_inputs(np.ones(16, "float32"), 3.0):
        kernel = lab.autotune(lab.mixed, TILES, ref_prog=reference)(16)
    assert np.array_equal(np.asarray(kernel(np.ones(16, "float32"), 5.0)), np.full(16, 5, "float32"))


def test_026_every_candidate_sees_the_same_data_in_place_kernels_included(lab: Any, place: Path) -> None:
    """In the original the second candidate sees what the first has written."""
    a = np.full(16, 1, "float32")
    for reuse in (False, True):
        with tlaot.set_autotune_inputs(a):
            kernel = lab.autotune(
                lab.increment, TILES, out_idx=None, ref_prog=constant_plus_one, cache_input_tensors=reuse
            )(16)
        assert kernel.config in TILES
    assert (place / "autotuner.log").read_text().count("measured") == 2 * len(TILES)
    assert (a == 1).all()  # the caller's own tensor is as it was


def constant_plus_one(a: Any) -> Any:
    assert (a == 1).all()
    return a + 1


def test_027_supply_prog_is_ignored_inside_the_context(lab: Any) -> None:
    message = r"`supply_prog` will be ignored as this program is under `with set_autotune_inputs` context\."
    options = {"supply_prog": lambda params: 1 / 0, "ref_prog": constant(7)}
    with tlaot.set_autotune_inputs(np.full(16, 7, "float32")), pytest.warns(UserWarning, match=message):
        tuner = lab.tuner(functools.partial(lab.scale, 16), TILES, **options)
    assert tuner.run().config in TILES  # what set_profile_args has seen there is kept


def test_028_the_context_does_not_switch_the_cache_off(lab: Any, tunings: Any) -> None:
    for value in (1.0, 2.0):  # the values are the caller's business; shape, type and layout are the key's
        with tlaot.set_autotune_inputs(np.full(16, value, "float32")):
            lab.autotune(lab.scale, TILES, ref_prog=lambda a: a * 2)(16)
    assert len(tunings) == 1
    with tlaot.set_autotune_inputs(np.full((16, 2), 1, "float32")[:, 0]):
        try:
            lab.autotune(lab.scale, TILES, ref_prog=lambda a: a * 2)(16)
        except ANY_ERROR:
            pass  # strides are not what this kernel takes; it was asked to tune, not to take the other's result
    assert len(tunings) == 2


def test_029_captured_with_or_without_the_outputs(lab: Any) -> None:
    """The article's own ``set_autotune_inputs(A, B, C)`` fails in the original where C is an output."""
    a, b = np.full(16, 7, "float32"), np.empty(16, "float32")
    for given in ((a,), (a, b), ([a, b],)):
        with tlaot.set_autotune_inputs(*given):
            kernel = lab.autotune(lab.scale, [*TILES, {"tile": 8 if len(given) > 1 else 16}], ref_prog=constant(7))(16)
        assert np.array_equal(np.asarray(kernel(a)), a * 2)
        assert kernel(a, b) is b
        assert np.array_equal(b, a * 2)
    with tlaot.set_autotune_inputs(a, b, a), pytest.raises(ANY_ERROR, match=r"takes 1 \(A\), or 2 with its outputs"):
        lab.autotune(lab.scale, TILES)(16)


def test_030_supply_prog_gets_the_parameters_that_are_no_outputs(lab: Any) -> None:
    def supply(params: Any) -> Any:
        (param,) = params
        assert (param.name, param.shape, param.is_scalar()) == ("A", [16], False)
        assert param.dtype == "float32"
        kernels.CALLS.append("supply")
        return [np.full(param.shape, 5, "float32")]

    kernels = lab.kernels
    kernels.CALLS.clear()
    lab.autotune(lab.scale, TILES, ref_prog=constant(5), supply_prog=supply)(16)
    assert kernels.CALLS == ["supply"]
    with pytest.raises(ANY_ERROR, match="ZeroDivisionError"):
        lab.autotune(lab.scale, TILES, supply_prog=lambda params: 1 / 0)(16)


def test_031_supply_type_is_ignored_beside_supply_prog(lab: Any) -> None:
    message = r"Ignoring `supply_type` passed to `set_profile_args` because `supply_prog` is not None\."
    with pytest.warns(UserWarning, match=message):
        lab.tuner(lab.scale, TILES, supply_type=tlaot.TensorSupplyType.One, supply_prog=lambda params: [])


def test_032_supply_types_have_the_right_distributions(lab: Any) -> None:
    names = {member.name: member.value for member in tlaot.TensorSupplyType}
    assert names == {"Integer": 1, "Uniform": 2, "Normal": 3, "Randn": 4, "Zero": 5, "One": 6, "Auto": 7}
    checks = {
        "Integer": lambda a: set(np.unique(a)) == {-2, -1, 0, 1, 2},
        "Uniform": lambda a: -1 <= a.min() < -0.9 and 0.9 < a.max() < 1,
        "Normal": lambda a: abs(a.mean()) < 0.15 and 0.9 < a.std() < 1.1,  # theirs has a mean of -1
        "Randn": lambda a: abs(a.mean()) < 0.15 and 0.9 < a.std() < 1.1,
        "Zero": lambda a: (a == 0).all(),
        "One": lambda a: (a == 1).all(),
        "Auto": lambda a: -1 <= a.min() < -0.9 and 0.9 < a.max() < 1,
    }
    for name, check in checks.items():
        lab.autotune(lab.scale, [{"tile": 4}], ref_prog=sees(check), supply_type=tlaot.TensorSupplyType[name])(1024)


def test_032_a_seed_gives_the_same_inputs_and_indices_stay_in_range(lab: Any) -> None:
    def reference(a: Any) -> Any:
        kernels.CALLS.append(np.array(a))
        return a * 2

    kernels = lab.kernels
    seen = []
    for rep, seed, ranges in ((0.2, 1, None), (0.3, 1, None), (0.2, 2, None), (0.2, 1, {"A": (3, 7)})):
        kernels.CALLS.clear()
        lab.autotune(lab.scale, {"tile": 4}, ref_prog=reference, seed=seed, index_ranges=ranges, rep=rep)(64)
        seen.append(kernels.CALLS[0])
    assert np.array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[0], seen[2])
    assert set(np.unique(seen[3])) == {3, 4, 5, 6}
    with pytest.raises(ANY_ERROR, match=r"'B2', which is no parameter, did you mean 'B'"):
        lab.autotune(lab.scale, TILES, index_ranges={"B2": (0, 4)})(16)


def test_032_every_element_type_can_be_made() -> None:
    """Also those that fail in the original: float4, float64 with fractions, int8 with Uniform."""
    from tlaot.manifest import Param
    from tlaot.tune.measuring.arrays import NumpyArrays, TorchArrays
    from tlaot.tune.specs.supply import Supply

    arrays = NumpyArrays()
    double = arrays.supply(Param("A", "float64", (256,)), {}, 0, Supply())
    assert (double != double.astype("int64")).any()
    short = arrays.supply(Param("A", "int8", (256,)), {}, 0, Supply("uniform"))
    assert len(np.unique(short)) > 50
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    for dtype in ("float8_e4m3fn", "float8_e5m2", "bfloat16"):
        made = TorchArrays("cpu").supply(Param("A", dtype, (256,)), {}, 0, Supply())
        assert not torch.isnan(made.float()).any()
    if hasattr(torch, "float4_e2m1fn_x2"):
        TorchArrays("cpu").supply(Param("A", "float4_e2m1fn", (256,)), {}, 0, Supply())


def test_033_symbolic_sizes_are_refused_once_and_up_front(lab: Any) -> None:
    """The original counts an error for every candidate, and hides the reason in its log."""
    with pytest.raises(SpecError, match="must have a static shape, but got m") as error:
        lab.autotune(lab.dynamic, [{"tile": 1}, {"tile": 2}])()
    assert "set_autotune_inputs" in str(error.value)
    with tlaot.set_autotune_inputs(np.ones(12, "float32")):
        kernel = lab.autotune(lab.dynamic, [{"tile": 1}, {"tile": 2}], ref_prog=lambda a: a * 2)()
    for size in (3, 12, 100):
        assert np.array_equal(np.asarray(kernel(np.ones(size, "float32"))), np.full(size, 2, "float32"))


def test_034_scalars_are_refused_once_and_up_front(lab: Any) -> None:
    with pytest.raises(SpecError, match="auto-generated scalar inputs, found scalar input parameter 's'") as error:
        lab.autotune(lab.mixed, TILES)(16)
    assert "set_autotune_inputs" in str(error.value)


def test_035_the_inputs_are_made_once(lab: Any) -> None:
    """In the original a comparison of dtypes is never true, and every candidate makes them anew, with a warning."""

    def supply(params: Any) -> Any:
        kernels.CALLS.append("supply")
        return [np.full(16, 5, "float32")]

    kernels = lab.kernels
    for reuse in (True, False):  # the values are the same either way; True uses the same memory again, too
        kernels.CALLS.clear()
        options = {"supply_prog": supply, "cache_input_tensors": reuse, "ref_prog": constant(5)}
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=BUT_NOISE)
            lab.tuner(functools.partial(lab.scale, 16), TILES, **options).run()
        assert kernels.CALLS == ["supply"]
    with pytest.raises(ANY_ERROR, match="takes 1"):
        lab.autotune(lab.scale, TILES, supply_prog=lambda params: [1, 2, 3], cache_input_tensors=True)(16)


@needs_torch
def test_036_float8_has_what_torch_it_needs() -> None:
    import torch

    assert hasattr(torch, "float8_e4m3fn")  # pyproject.toml asks for torch >= 2.4; float8 came with 2.1
