"""Keys of a factory's calls: one for every spelling."""

from __future__ import annotations

import enum
import inspect
from typing import Any

import pytest

from tlaot.keys import NOT_PLAIN, bind_call, dtype_name, plain_value


def factory(M: int, N: int = 64, *, dtype: Any = "float16", **options: Any) -> None:
    """A factory's signature."""


def test_positions_keywords_and_defaults_give_one_key() -> None:
    signature = inspect.signature(factory)
    wanted = {"M": 8, "N": 64, "dtype": "float16"}
    assert bind_call(signature, (8,), {}) == wanted
    assert bind_call(signature, (8, 64), {"dtype": "float16"}) == wanted
    assert list(bind_call(signature, (), {"N": 64, "M": 8})) == ["M", "N", "dtype"]
    assert bind_call(signature, (8,), {"stages": 2}) == {**wanted, "stages": 2}
    with pytest.raises(TypeError, match="missing"):
        bind_call(signature, (), {"N": 1})


def test_plain_values_are_themselves() -> None:
    for value in (True, 1, 1.5, None, "relu"):
        assert plain_value(value) is value


def test_what_is_no_plain_data_is_told() -> None:
    class Layout(enum.IntEnum):
        ROWS = 1

    for value in (Layout.ROWS, [1], (1, 2), {"a": 1}, len, object(), int, 1j):
        assert plain_value(value) is NOT_PLAIN, value


def test_numpy_scalars_and_dtypes() -> None:
    np = pytest.importorskip("numpy")
    assert plain_value(np.int64(3)) == 3 and type(plain_value(np.int64(3))) is int
    assert plain_value(np.float32(0.5)) == 0.5
    assert plain_value(np.dtype("float16")) == plain_value(np.float16) == "float16"
    assert plain_value(np.zeros(2)) is NOT_PLAIN
    assert dtype_name("float16") is None  # text is text, whatever it says


def test_dtypes_of_torch() -> None:
    torch = pytest.importorskip("torch")
    assert plain_value(torch.bfloat16) == "bfloat16"
    assert plain_value(torch.zeros(())) is NOT_PLAIN


def test_dtypes_of_tvm() -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    assert plain_value(tvm_ffi.dtype("float16")) == "float16" and type(plain_value(tvm_ffi.dtype("float16"))) is str
