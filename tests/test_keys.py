"""Keys: one for every spelling of a call, written as data, and read back."""

from __future__ import annotations

import enum
import inspect
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from tlaot.errors import SpecError
from tlaot.keys import KeyValueError, bind_call, decode, encode, encode_key, key_of, spell_key, spell_value

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]


class Scoring(enum.IntEnum):
    SIGMOID = 0
    SOFTMAX = 1


@dataclass(frozen=True)
class Cast:
    dtype: str = "float32"
    block: tuple[int, int] = (1, 128)
    clamp: float | None = None


class Pair(NamedTuple):
    left: int
    right: Any


def activation(x: float) -> float:
    return x


def factory(M: int, N: int, causal: bool = False, *, dtype: Any = "float16", **more: Any) -> None: ...


def test_positions_and_keywords_and_defaults_are_one_key() -> None:
    signature = inspect.signature(factory)
    spelled = [((1, 2), {}), ((1,), {"N": 2}), ((), {"N": 2, "M": 1, "causal": False, "dtype": "float16"})]
    keys = {key_of(encode_key(bind_call(signature, *call), "factory")) for call in spelled}
    assert len(keys) == 1
    assert bind_call(signature, (1, 2), {"extra": 3}) == {
        "M": 1,
        "N": 2,
        "causal": False,
        "dtype": "float16",
        "extra": 3,
    }
    with pytest.raises(TypeError, match="missing a required argument"):
        bind_call(signature, (1,), {})


@pytest.mark.parametrize(
    "value",
    [3, 2.5, True, None, "text", "", (1, 128), (1, (2, None)), [1, 2], {"a": (1,)}, float("inf"), float("-inf"),
     Scoring.SOFTMAX, Cast(), Cast("int8", (32, 32), 0.5), Pair(1, (2, 3)), activation, Scoring],
)  # fmt: skip
def test_a_value_goes_through_json_and_toml_and_comes_back(value: Any) -> None:
    written = encode(value)
    assert decode(json.loads(json.dumps(written, allow_nan=False))) == value
    read = decode(tomllib.loads(f"x = {spell_value(written)}")["x"])
    assert read == value
    assert type(read) is type(value)
    assert key_of(tomllib.loads(f"x = {spell_value(written)}")["x"]) == key_of(written)


def test_true_one_and_one_point_nought_are_three_keys() -> None:
    assert len({key_of(encode(value)) for value in (True, 1, 1.0, "1")}) == 4
    assert len({key_of(encode((value, 2))) for value in (True, 1, 1.0)}) == 3
    assert key_of(encode(Scoring.SIGMOID)) != key_of(0)


def test_an_element_type_is_one_key_however_it_is_spelled() -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    numpy = pytest.importorskip("numpy")
    same = [tvm_ffi.dtype("float16"), numpy.dtype("float16"), numpy.float16, "float16"]
    assert {key_of(encode(value)) for value in same} == {("str", "float16")}
    assert encode(numpy.float16) == encode(numpy.dtype("float16")) == {"dtype": "numpy.float16"}
    assert encode(same[0]) == {"dtype": "float16"}
    assert isinstance(decode({"dtype": "float16"}), tvm_ffi.dtype)
    assert decode({"dtype": "numpy.float16"}) == numpy.dtype("float16")
    assert encode(numpy.int64(3)) == 3 and type(encode(numpy.bool_(True))) is bool


def test_torchs_element_types_come_back_as_torchs() -> None:
    torch = pytest.importorskip("torch")
    assert encode(torch.float8_e4m3fn) == {"dtype": "torch.float8_e4m3fn"}
    assert decode({"dtype": "torch.bfloat16"}) is torch.bfloat16
    assert key_of(encode(torch.bfloat16)) == key_of("bfloat16")


def test_what_has_no_name_outside_is_refused_with_where_it_is() -> None:
    with pytest.raises(KeyValueError, match=r"k fn: .*<lambda> is not found by its name"):
        encode_key({"fn": lambda: None}, "k")
    with pytest.raises(KeyValueError, match=r"k x: a builtins\.object cannot be told from others"):
        encode_key({"x": object()}, "k")


def test_a_name_that_is_not_there_is_said() -> None:
    with pytest.raises(SpecError, match=r'shapes\.x: \{ object = "no.such:thing" \} cannot be had'):
        decode({"x": {"object": "no.such:thing"}}, "shapes")


def test_a_table_of_a_callers_own_is_no_tag() -> None:
    own = {"none": 1, "dtype": 3}
    assert decode(encode(own)) == own
    assert spell_key({"M": 3, "a b": None}) == '{ M = 3, "a b" = { none = true } }'
