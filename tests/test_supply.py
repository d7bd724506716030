"""Generated inputs: distributions by element type, seeds, ranges; and what cannot be generated, told up front."""

from __future__ import annotations

from typing import Any

import pytest

from tlaot.errors import SpecError
from tlaot.manifest import Param
from tlaot.tune.measuring.arrays import Arrays, NumpyArrays, TorchArrays
from tlaot.tune.specs.supply import SUPPLY_TYPES, InputParam, Supply, supply_from_json, validate_supply

np = pytest.importorskip("numpy")

PLAIN = (
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
)
SHORT = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
LIBRARIES = ("numpy", "torch", pytest.param("cuda", marks=pytest.mark.gpu))


def library(name: str) -> Arrays:
    if name == "numpy":
        pytest.importorskip("ml_dtypes")
        return NumpyArrays()
    torch = pytest.importorskip("torch")
    if name == "torch":
        return TorchArrays("cpu")
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return TorchArrays("cuda:0")


def numbers(arrays: Arrays, array: Any) -> Any:
    """The values as a numpy array of float64."""
    found = arrays.float64(array)
    return found if isinstance(found, np.ndarray) else found.cpu().numpy()


def values(arrays: Arrays, dtype: str, supply: Supply, shape: tuple[int, ...] = (64, 512)) -> Any:
    return numbers(arrays, arrays.supply(Param("A", dtype, shape), {}, 0, supply))


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("kind", SUPPLY_TYPES)
@pytest.mark.parametrize("dtype", PLAIN + SHORT)
def test_every_type_is_filled_with_finite_numbers_that_a_seed_decides(name: str, kind: str, dtype: str) -> None:
    arrays, param = library(name), Param("A", dtype, (33, 65))
    if dtype == "float8_e8m0fnu" and kind == "zero":
        with pytest.raises(SpecError, match="has no zero"):
            arrays.supply(param, {}, 0, Supply(kind))
        return
    first, again = (arrays.supply(param, {}, 0, Supply(kind, seed=5)) for _ in range(2))
    assert arrays.check_kind(first, param) is None
    assert tuple(first.shape) == (33, 65)
    assert arrays.same_bits(first, again)
    found = numbers(arrays, first)
    assert np.isfinite(found).all()
    if kind in ("zero", "one"):
        assert (found == (kind == "one")).all()
        return
    assert len(np.unique(found)) > 1
    assert not arrays.same_bits(first, arrays.supply(param, {}, 0, Supply(kind, seed=6)))
    assert not arrays.same_bits(first, arrays.supply(param, {}, 1, Supply(kind, seed=5)))


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_normal_has_mean_0_and_deviation_1_and_uniform_fills_its_range(name: str, dtype: str) -> None:
    arrays = library(name)
    for kind in ("normal", "randn"):
        found = values(arrays, dtype, Supply(kind))
        assert abs(found.mean()) < 0.03 and abs(found.std() - 1) < 0.03
    for kind in ("uniform", "auto"):
        found = values(arrays, dtype, Supply(kind))
        assert abs(found.mean()) < 0.02 and abs(found.std() - 3**-0.5) < 0.02
        assert -1 <= found.min() < -0.99 and 0.99 < found.max() <= 1
    found = values(arrays, dtype, Supply("integer"))
    assert sorted(np.unique(found)) == [-2, -1, 0, 1, 2]


@pytest.mark.parametrize("name", LIBRARIES)
def test_double_precision_is_used(name: str) -> None:
    found = values(library(name), "float64", Supply())
    assert (found != found.astype(np.float32)).mean() > 0.9


@pytest.mark.parametrize("name", LIBRARIES)
def test_integers_by_type(name: str) -> None:
    arrays = library(name)
    for dtype in ("int8", "int32", "int64"):
        assert sorted(np.unique(values(arrays, dtype, Supply()))) == [-2, -1, 0, 1, 2]
        wide = values(arrays, dtype, Supply("uniform"))
        assert (wide.min(), wide.max()) == (-128, 127)
        normal = values(arrays, dtype, Supply("normal"))
        assert (normal == np.rint(normal)).all() and normal.min() < -1 and normal.max() > 1
        assert abs(normal.mean()) < 0.03
    for dtype in ("uint8", "uint32"):
        assert sorted(np.unique(values(arrays, dtype, Supply("integer")))) == [0, 1, 2]
        assert values(arrays, dtype, Supply("uniform")).max() == 255
        assert values(arrays, dtype, Supply("normal")).max() < 8  # the sign is left out, not wrapped around
    assert sorted(np.unique(values(arrays, "bool", Supply()))) == [0, 1]


@pytest.mark.parametrize("name", LIBRARIES)
def test_index_tensors_take_a_range(name: str) -> None:
    arrays, supply = library(name), Supply(ranges={"A": (10, 13), "F": (0, 4)})
    for dtype in ("int32", "int64", "uint8"):
        assert sorted(np.unique(values(arrays, dtype, supply))) == [10, 11, 12]
    other = arrays.supply(Param("B", "int32", (64, 64)), {}, 0, supply)
    assert numbers(arrays, other).max() == 2
    whole = arrays.supply(Param("F", "float16", (64, 64)), {}, 0, supply)
    assert sorted(np.unique(numbers(arrays, whole))) == [0, 1, 2, 3]
    whole_type = {"A": (-(1 << 63), 1 << 63)} if name == "numpy" else {"A": (0, 1 << 62)}
    assert values(arrays, "int64", Supply(ranges=whole_type)).max() > 1 << 61


@pytest.mark.parametrize("name", LIBRARIES)
def test_strided_parameters_get_strided_tensors(name: str) -> None:
    arrays = library(name)
    for strides, expected in [((1, 4), (1, 4)), ((16, 1), (16, 1)), (("s", 2), (12, 2))]:
        param = Param("A", "int16", (4, 6), strides)
        for made in (arrays.supply(param, {}, 0, Supply()), arrays.poisoned(param, {})):
            found = tuple(s // 2 for s in made.strides) if name == "numpy" else tuple(made.stride())
            assert found == expected and tuple(made.shape) == (4, 6)
            copy = arrays.clone(made)
            again = tuple(s // 2 for s in copy.strides) if name == "numpy" else tuple(copy.stride())
            assert again == expected and arrays.same_bits(made, copy)


@pytest.mark.parametrize("name", LIBRARIES[1:])
def test_float4_is_packed_by_torch(name: str) -> None:
    arrays = library(name)
    if not hasattr(pytest.importorskip("torch"), "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4")
    magnitudes = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0}
    for dtype, shape in [("float4_e2m1fn", (8, 4096)), ("float4_e2m1fnx2", (8, 2048))]:
        param = Param("A", dtype, shape)
        made = arrays.supply(param, {}, 0, Supply())
        assert tuple(made.shape) == (8, 2048) and arrays.check_kind(made, param) is None
        assert set(np.unique(np.abs(values(arrays, dtype, Supply(), shape)))) == magnitudes
        assert set(np.unique(values(arrays, dtype, Supply("integer"), shape))) == {-2, -1, 0, 1, 2}
        normal = values(arrays, dtype, Supply("normal"), shape)
        assert abs(normal.mean()) < 0.05 and abs(normal.std() - 1) < 0.05
        assert (values(arrays, dtype, Supply("one"), shape) == 1).all()
        assert (values(arrays, dtype, Supply("zero"), shape) == 0).all()
        assert not arrays.same_bits(made, arrays.poisoned(param, {}))
    with pytest.raises(SpecError, match="even"):
        arrays.supply(Param("A", "float4_e2m1fn", (8, 3)), {}, 0, Supply())


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("dtype", PLAIN + SHORT)
def test_poison_is_unlike_inputs(name: str, dtype: str) -> None:
    arrays = library(name)
    poisoned = arrays.float64(arrays.poisoned(Param("A", dtype, (5, 7)), {}))
    poisoned = np.asarray(poisoned.cpu() if hasattr(poisoned, "cpu") else poisoned)
    if "float" in dtype:
        assert np.isnan(poisoned).all()
    elif dtype != "bool":
        assert (poisoned > values(arrays, dtype, Supply("normal")).max()).all()


A, S, C = Param("A", "float32", (4, 4)), Param("s", "float32", None), Param("C", "float32", ("m", 4), written=True)


def test_what_cannot_be_generated_is_told_before_anything_is_measured() -> None:
    validate_supply((A, C), (1,), "k")
    with pytest.raises(ValueError, match=r"auto-generated scalar inputs.*scalar input parameter 's'") as error:
        validate_supply((A, S, C), (2,), "gemm")
    assert str(error.value).startswith("gemm: ") and "set_autotune_inputs" in str(error.value)
    with pytest.raises(ValueError, match=r"static shape, but got m.*dynamic symbolic shape"):
        validate_supply((A, C), (), "k")
    for dtype in ("int4", "uint2", "float6_e2m3fn", "complex64", "handle"):
        with pytest.raises(SpecError, match=f"{dtype}, which cannot be generated"):
            validate_supply((Param("A", dtype, (4,)),), (), "k")


@pytest.mark.parametrize(
    ("supply", "message"),
    [
        (Supply("norml"), "did you mean 'normal'"),
        (Supply(ranges={"indx": (0, 4)}), "did you mean 'index'"),
        (Supply(ranges={"index": (4, 4)}), "is empty"),
        (Supply(ranges={"index": (0, 257)}), "exceeds uint8"),
        (Supply(ranges={"flag": (0, 1)}), "takes no integer range"),
    ],
)
def test_a_wrong_supply_is_told(supply: Supply, message: str) -> None:
    params = (Param("index", "uint8", (4,)), Param("flag", "bool", (4,)))
    with pytest.raises(SpecError, match=message):
        validate_supply(params, (), "k", supply)


def test_supply_from_json() -> None:
    assert supply_from_json(None) == supply_from_json({}) == Supply()
    body = {"type": "zero", "seed": 0, "ranges": {"A": [0, 3]}}
    assert supply_from_json(body) == Supply("zero", 0, {"A": (0, 3)})


def test_a_parameter_as_a_supply_function_sees_it() -> None:
    seen = InputParam.of(Param("A", "float16", ("m", 8)))
    assert seen.dtype == "float16" and seen.dtype == np.float16 and seen.dtype == np.dtype("float16")
    assert seen.dtype != "float32" and seen.shape == ["m", 8] and {seen.dtype: 1}["float16"] == 1
    assert InputParam.of(S).is_scalar() and not seen.is_scalar()
    torch = pytest.importorskip("torch")
    assert seen.dtype == torch.float16 and torch.float16 == seen.dtype and seen.dtype != torch.float32
    assert seen.torch_dtype() is torch.float16
