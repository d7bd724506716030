"""Behaviours 37-43: is a candidate right?"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

import tlaot
from tlaot.errors import SpecError, TuningError

np = pytest.importorskip("numpy")

TILES = [{"tile": 1}, {"tile": 2}]
# The second candidate's output is 1 % off: the tolerance of float32 is 1e-4.
ONE_WRONG = [{"mode": "wrong"}, {"mode": "right"}]
ANY_ERROR = (SpecError, TuningError)


def twice(a: Any) -> Any:
    return a * 2


def test_037_a_wrong_candidate_is_left_out(lab: Any, place: Path) -> None:
    kernel = lab.autotune(lab.scale, ONE_WRONG, ref_prog=twice)(16)
    assert kernel.config == {"mode": "right"}
    assert "output B: 16 of 16 elements differ from the reference" in (place / "autotuner.log").read_text()
    with pytest.raises(TuningError, match="2 x check: WrongResult: output B"):
        lab.autotune(lab.scale, [{"mode": "wrong", "tile": tile} for tile in (1, 2)], ref_prog=twice)(16)
    with pytest.raises(ANY_ERROR, match="returned 2 values for 1 outputs"):
        lab.autotune(lab.scale, TILES, ref_prog=lambda a: (a, a))(16)
    with pytest.raises(ANY_ERROR, match="None for every output"):
        lab.autotune(lab.scale, TILES, ref_prog=lambda a: (None,))(16)


def test_037_nan_is_right_only_where_the_reference_says_so() -> None:
    pytest.importorskip("numpy")
    from tlaot.tune.measuring.arrays import NumpyArrays
    from tlaot.tune.measuring.check import Tolerance, compare

    nan, one = np.full(4, np.nan, "float32"), np.ones(4, "float32")
    tolerance = Tolerance(None, None, 0.01)
    assert compare(NumpyArrays(), "B", "float32", one, one, tolerance) is None
    for found, wanted in ((nan, one), (one, nan)):
        assert compare(NumpyArrays(), "B", "float32", found, wanted, tolerance) is not None


def test_038_a_reference_may_judge(lab: Any) -> None:
    """By a bool or by raising, as the documentation says; it gets the outputs if it takes them."""

    def judges(a: Any, b: Any) -> bool:
        return bool(np.allclose(b, a * 2))

    def raises(a: Any, b: Any) -> None:
        np.testing.assert_allclose(b, a * 2)

    for reference in (judges, raises):
        assert lab.autotune(lab.scale, ONE_WRONG, ref_prog=reference)(16).config == {"mode": "right"}
    with pytest.raises(TuningError, match="the reference says that the outputs are wrong"):
        lab.autotune(lab.scale, [{"mode": "wrong"}], ref_prog=judges)(16)
    with pytest.raises(ANY_ERROR, match="bool without having been given the outputs"):
        lab.autotune(lab.scale, TILES, ref_prog=lambda a: True)(16)
    with pytest.raises(ANY_ERROR, match="finds outputs right that were never written"):
        lab.autotune(lab.scale, TILES, ref_prog=lambda a, b: True)(16)


def test_039_the_manual_check_is_called_with_and_without_a_reference(lab: Any) -> None:
    """The original does not call it without one: a check of 1 / 0 passes there."""

    def with_reference(found: Any, wanted: Any) -> None:
        np.testing.assert_allclose(found[0], wanted[0])

    def alone(found: Any, wanted: Any) -> bool:
        assert wanted is None
        return bool(np.allclose(found[0], 2.0))

    one = {"supply_type": tlaot.TensorSupplyType.One}
    assert (
        lab.autotune(lab.scale, ONE_WRONG, ref_prog=twice, manual_check_prog=with_reference)(16).config == ONE_WRONG[1]
    )
    assert lab.autotune(lab.scale, ONE_WRONG, manual_check_prog=alone, **one)(16).config == ONE_WRONG[1]
    assert (
        lab.autotune(lab.scale, ONE_WRONG, manual_check_prog=lambda found: (found[0] == 2).all(), **one)(16).config
        == ONE_WRONG[1]
    )
    with pytest.raises(ANY_ERROR, match="manual check"):
        lab.autotune(lab.scale, TILES, manual_check_prog=lambda found, wanted: 1 / 0)(16)
    before = np.get_printoptions()
    assert np.get_printoptions() == before


def test_040_kernels_that_return_nothing_are_compared_too(lab: Any) -> None:
    """In the original no output of theirs is looked at, so any wrong kernel passes."""

    def plus_one(a: Any) -> Any:
        return a + 1

    def in_place(a: Any) -> None:
        a += 1

    def wrong(a: Any) -> Any:
        return a + 2

    def wrong_in_place(a: Any) -> None:
        a += 2

    for reference in (plus_one, in_place):
        assert lab.autotune(lab.increment, TILES, out_idx=None, ref_prog=reference)(16).config in TILES
    for reference in (wrong, wrong_in_place):
        with pytest.raises(TuningError, match="output A"):
            lab.autotune(lab.increment, TILES, out_idx=None, ref_prog=reference)(16)
    # No out_idx: the output is a parameter like the others, and is still the output.
    assert lab.autotune(lab.scale, ONE_WRONG, out_idx=None, ref_prog=twice)(16).config == ONE_WRONG[1]


def test_041_the_reference_runs_once_and_on_the_cpu_too(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the original: once a candidate; and on the CPU every candidate fails with one."""
    from tlaot.tune.measuring.timing import Timing, WallClock

    def reference(a: Any) -> Any:
        kernels.CALLS.append("reference")
        return a * 2

    def once(clock: WallClock, call: Any, *rest: Any) -> Timing:
        call()
        return Timing(0.5, 0.0, 1, "wall")

    kernels = lab.kernels
    kernels.CALLS.clear()
    monkeypatch.setattr(WallClock, "screen", once)
    result = lab.tuner(functools.partial(lab.scale, 16), [*TILES, {"tile": 4}], ref_prog=reference).run()
    assert result.ref_latency == 0.5
    assert kernels.CALLS == ["reference"] * 2  # to compare with, and to be timed


def test_042_one_bad_element_is_a_wrong_kernel(lab: Any) -> None:
    """The original lets 40 of 4096 elements be off by 1e9."""
    from tlaot.tune.measuring.arrays import NumpyArrays
    from tlaot.tune.measuring.check import Tolerance, compare, default_tolerance

    wanted = np.ones(4096, "float32")
    for count, by, right in ((40, 1e9, False), (1, 1e9, False), (40, 5e-4, True), (41, 5e-4, False), (40, 5e-3, False)):
        found = wanted.copy()
        found[:count] += np.float32(by)
        assert (compare(NumpyArrays(), "B", "float32", found, wanted, Tolerance(None, None, 0.01)) is None) is right
    names = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn")
    tolerances = [default_tolerance(name) for name in names]
    assert tolerances == sorted(tolerances) and len(set(tolerances)) == len(names)
    assert default_tolerance("int32") == 0


def test_042_tolerances_and_skip_check(lab: Any) -> None:
    wrong = [{"mode": "wrong"}]
    assert lab.autotune(lab.scale, wrong, ref_prog=twice, rtol=0.02, atol=0.02)(16).config == wrong[0]
    assert lab.autotune(lab.scale, wrong, ref_prog=twice, skip_check=True)(16).config == wrong[0]
    with pytest.raises(TuningError):
        lab.autotune(lab.scale, wrong, ref_prog=twice, rtol=0.001, atol=0.001)(16)


def test_043_callbacks_have_an_identity(lab: Any, tunings: Any) -> None:
    """The original switches its caches off as soon as there is one."""

    def tune(**callbacks: Any) -> None:
        lab.autotune(lab.scale, TILES, **callbacks)(16)

    def reference(factor: float) -> Any:
        return lambda a: a * np.float32(factor)

    tune(ref_prog=reference(2.0))
    tune(ref_prog=reference(2.0))
    assert len(tunings) == 1
    with pytest.raises(TuningError):
        tune(ref_prog=reference(3.0))
    assert len(tunings) == 2
    for _ in range(2):
        tune(supply_prog=lambda params: [np.ones(16, "float32")])
        tune(manual_check_prog=lambda found, wanted: None)
    assert len(tunings) == 4


@pytest.mark.gpu
def test_041_the_reference_is_timed_on_the_gpu() -> None:
    import torch
    from behaviours import gpu_kernels

    result = gpu_kernels.tune_matmul(256, ref_prog=torch.matmul)
    assert 0 < result.ref_latency < 1
    a, b = (torch.randn(256, 256, device="cuda", dtype=torch.float16) for _ in range(2))
    torch.testing.assert_close(result.kernel(a, b), a @ b, rtol=1e-2, atol=1e-1)
