"""Comparing outputs: what passes, and that nothing wrong does."""

from __future__ import annotations

import numpy as np
import pytest

from tlaot.errors import SpecError
from tlaot.manifest import Param
from tlaot.tune.measuring.arrays import NumpyArrays, Supply, TorchArrays, bind_sizes
from tlaot.tune.measuring.check import Tolerance, compare, default_tolerance

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
    assert "the worst, at [3], is 1.5 for 1 and misses by" in (verdict(x, np.ones(1000)) or "")


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_worst_element_is_named_by_its_indices(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever chunk it is, and a NaN of the reference, an infinity and a large integer before any finite miss."""
    monkeypatch.setattr("tlaot.tune.measuring.check._CHUNK", 100)

    def said(actual: np.ndarray, expected: np.ndarray) -> str:
        if library == "numpy":
            return verdict(actual, expected) or ""
        torch = pytest.importorskip("torch")
        found, wanted = torch.from_numpy(actual), torch.from_numpy(expected)
        return compare(TorchArrays("cpu"), "C", str(actual.dtype), found, wanted, LOOSE) or ""

    x = np.ones((10, 4, 20), np.float32)
    x[2, 1, 7], x[9, 3, 19] = 1.25, 1.5
    assert "at [9, 3, 19], is 1.5 for 1 and" in said(x, np.ones_like(x))
    x[5, 0, 0] = np.inf
    assert "at [5, 0, 0], is inf for 1 and" in said(x, np.ones_like(x))
    unknown = np.ones((10, 4, 20), np.float32)
    unknown[1, 2, 3] = np.nan
    assert "at [1, 2, 3], is 1 for nan and" in said(np.ones_like(unknown), unknown)
    large = np.full((30, 10), 1 << 62, np.int64)
    large[25, 9] += 1
    assert "at [25, 9], is 4.61169e+18 for" in said(large, np.full((30, 10), 1 << 62, np.int64))


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


def test_large_outputs_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from tlaot.tune.measuring import check

    x = np.ones(1000, np.float32)
    wrong, unwritten = x.copy(), x.copy()
    wrong[[5, 995]] += 4e-4  # the tolerance is 2e-4 here
    unwritten[[3, 500, 999]] = np.nan
    whole = [verdict(a, x, Tolerance(None, None, ratio)) for a in (x, wrong, unwritten) for ratio in (0.0, 0.01)]
    assert [w is None for w in whole] == [True, True, False, True, False, False]
    for part in (1, 7, 999, 1000):
        monkeypatch.setattr(check, "_CHUNK", part)
        assert [verdict(a, x, Tolerance(None, None, r)) for a in (x, wrong, unwritten) for r in (0.0, 0.01)] == whole


def test_references_of_other_libraries_are_compared() -> None:
    torch = pytest.importorskip("torch")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    arrays = TorchArrays("cpu")
    for wanted in (x, x.astype(np.float64), torch.tensor(x), torch.tensor(x).bfloat16(), x.tolist()):
        assert verdict(x, wanted) is None
        assert compare(arrays, "C", "float32", torch.tensor(x), wanted, LOOSE) is None
        assert compare(arrays, "C", "float32", torch.tensor(x + 1), wanted, LOOSE) is not None
    big = torch.full((4,), 2**60, dtype=torch.int64)
    assert compare(arrays, "C", "int64", big, big.clone(), LOOSE) is None
    assert compare(arrays, "C", "int64", big, big + 1, LOOSE) is not None
    unsigned = big.to(torch.uint64)
    assert compare(arrays, "C", "uint64", unsigned, unsigned.clone(), LOOSE) is None
    assert compare(arrays, "C", "uint64", unsigned, (big + 1).to(torch.uint64), LOOSE) is not None


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
