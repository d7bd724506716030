"""Comparing outputs: what passes, and that nothing wrong does."""

from __future__ import annotations

import numpy as np
import pytest

from tlaot.errors import SpecError
from tlaot.manifest import Param
from tlaot.tune.arrays import NumpyArrays, Supply, bind_sizes
from tlaot.tune.check import Tolerance, compare, default_tolerance

ARRAYS = NumpyArrays()
LOOSE = Tolerance(None, None, 0.01)


def verdict(actual: np.ndarray, expected: np.ndarray, tolerance: Tolerance = LOOSE) -> str | None:
    return compare(ARRAYS, "C", str(actual.dtype), actual, expected, tolerance)


def test_equal_passes() -> None:
    x = np.linspace(-3, 3, 1000, dtype=np.float32)
    assert verdict(x, x.astype(np.float64)) is None


def test_nan_never_passes_even_where_the_reference_has_one() -> None:
    x = np.zeros(1000, np.float32)
    x[7] = np.nan
    assert "1 NaN" in (verdict(x, np.zeros(1000)) or "")
    assert "1 NaN" in (verdict(x, x.astype(np.float64)) or "")


def test_a_nan_in_the_reference_is_no_excuse() -> None:
    expected = np.zeros(10)
    expected[0] = np.nan
    assert verdict(np.zeros(10, np.float32), expected) is not None


def test_infinities_must_agree() -> None:
    x = np.array([np.inf, -np.inf, 1.0] * 100, np.float32)
    assert verdict(x, x.astype(np.float64)) is None
    assert verdict(-x, x.astype(np.float64)) is not None
    assert verdict(np.where(np.isinf(x), np.float32(3e38), x), x.astype(np.float64)) is not None


def test_a_few_elements_may_miss_by_a_little() -> None:
    x = np.ones(1000, np.float32)
    x[:10] += 5e-4  # the tolerance is 2e-4 here
    assert verdict(x, np.ones(1000)) is None
    x[10] += 5e-4
    assert "11 of 1000" in (verdict(x, np.ones(1000)) or "")


def test_one_plainly_wrong_element_in_a_thousand_fails() -> None:
    x = np.ones(1000, np.float32)
    x[3] = 1.5
    assert "the worst misses" in (verdict(x, np.ones(1000)) or "")


def test_integers_are_exact() -> None:
    x = np.arange(1000, dtype=np.int32)
    assert verdict(x, x.copy()) is None
    x[0] = 1
    assert verdict(x, np.arange(1000)) is not None


def test_large_integers_are_exact_too() -> None:
    x = np.full(1000, 2**60, np.int64)
    wrong = x.copy()
    wrong[5] += 1
    assert verdict(x, x.copy()) is None
    assert "1 of 1000" in (verdict(wrong, x) or "")


def test_shapes_must_agree() -> None:
    assert "shape" in (verdict(np.zeros((2, 3), np.float32), np.zeros((3, 2))) or "")


def test_empty_passes() -> None:
    assert verdict(np.zeros((0, 3), np.float32), np.zeros((0, 3))) is None


def test_the_shorter_the_type_the_looser() -> None:
    values = [default_tolerance(d) for d in ("int32", "float64", "float32", "float16", "bfloat16", "float8_e4m3fn")]
    assert values == sorted(values) and values[0] == 0


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16", "int8", "int64", "uint8", "bool"])
def test_inputs_come_from_a_seed_and_poison_is_unlike_them(dtype: str) -> None:
    param = Param("A", dtype, (64, 3))
    first, again = ARRAYS.supply(param, {}, 0, Supply()), ARRAYS.supply(param, {}, 0, Supply())
    other = ARRAYS.supply(param, {}, 1, Supply())
    assert ARRAYS.same_bits(first, again)
    assert not ARRAYS.same_bits(first, other)
    poisoned = ARRAYS.float64(ARRAYS.poisoned(param, {}))
    if dtype.startswith(("float", "bfloat")):
        assert np.isnan(poisoned).all()
        assert abs(ARRAYS.float64(first).mean()) < 0.2
    elif dtype != "bool":
        assert (poisoned > ARRAYS.float64(first).max()).all()


def test_symbolic_sizes_are_bound_from_the_tensors_that_are_there() -> None:
    params = (Param("A", "float32", ("m", 4)), Param("B", "float32", ("m",)), Param("C", "float32", ("m", "m")))
    assert bind_sizes(params, [np.zeros((3, 4)), np.zeros(3), None], "x") == {"m": 3}
    with pytest.raises(SpecError, match="tensor B has shape"):
        bind_sizes(params, [np.zeros((3, 4)), np.zeros(5), None], "x")
    with pytest.raises(SpecError, match="inputs"):
        ARRAYS.supply(params[0], {}, 0, Supply())
    with pytest.raises(SpecError, match="inputs"):
        ARRAYS.supply(Param("s", "float32", None), {}, 0, Supply())
