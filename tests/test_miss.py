"""Calls that no packaged variant fits: the miss policies, what is told of them, what stands in for a variant."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import pickle
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures_runtime import compile_kernel, tensor, variant, write_package
from noise import BUT_NOISE

import tlaot
from tlaot.errors import CallError, DispatchError, LoadError, SpecError
from tlaot.runtime import saying, seen

np = pytest.importorskip("numpy")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing has been seen or said."""
    seen.forget()
    saying._said.clear()
    yield
    seen.forget()


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Loads a package with ``add`` for rows of 8 and of 16."""
    built = []
    for n in (8, 16):
        params = [tensor("A", 4, n), tensor("B", 4, n), tensor("C", 4, n, written=True)]
        built.append((variant("add", params, [2], {"N": n}), compile_kernel(3, 0b100)))
    write_package(tmp_path, "pk_miss", {"add": built})
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda **options: tlaot.load("pk_miss", **options)


def rows(n: int) -> Any:
    return np.ones((4, n), "f4")


def test_an_error_by_default(load: Callable[..., Any]) -> None:
    """It names the nearest variants and the line to add; every such call raises, and is counted."""
    kernels = load()
    for _ in range(2):
        with pytest.raises(DispatchError) as caught:
            kernels.add(rows(9), rows(9))
    assert caught.value.remedy.endswith("\n    [[kernel]] add: shapes = [{ N = 9 }]")
    (one,) = tlaot.coverage().misses
    assert (one.kernel, one.arguments, one.device) == ("pk_miss.add", "(float32[4, 9], float32[4, 9])", "cpu")
    assert (one.outcome, one.what, one.times) == ("miss", "shapes = [{ N = 9 }]", 2)


def test_a_function_is_told_and_may_stand_in(load: Callable[..., Any]) -> None:
    """It sees the call as plain data; what it returns is called with the call's arguments, and kept; None is an error."""
    told: list[tlaot.Miss] = []

    def on_miss(miss: tlaot.Miss) -> Any:
        told.append(miss)
        return None if miss.arguments[0].shape == (4, 3) else lambda a, b, c=None: a + b

    kernels = load(on_miss=on_miss)
    for _ in range(3):
        assert kernels.add(rows(9), rows(9)).shape == (4, 9)
    assert kernels.add(rows(8), rows(8)).shape == (4, 8)
    out = rows(9)
    assert kernels.add(rows(9), rows(9), out)[0, 0] == 2
    with pytest.raises(DispatchError):
        kernels.add(rows(3), rows(3))
    first, given, third = told
    assert (first.kernel, first.device, dict(first.factory_args)) == ("pk_miss.add", "cpu", {})
    assert [str(a) for a in first.arguments] == ["float32[4, 9]"] * 2
    assert first.workloads == ({"N": 9},)
    assert [v.shape["N"] for v in first.nearest] == [8, 16]
    assert isinstance(first.error, DispatchError)
    assert len(given.arguments) == 3
    assert third.workloads == ({"N": 3},)
    assert [(one.outcome, one.times) for one in tlaot.coverage("pk_miss").misses] == [
        ("callback", 1),
        ("callback", 1),
        ("miss", 1),
    ]
    assert not tlaot.coverage("another").seen


def test_a_function_may_raise_or_return_nonsense(load: Callable[..., Any]) -> None:
    """Its own error reaches the caller; what cannot be called is refused. What stands in fails with its own error, too."""

    def refuse(miss: tlaot.Miss) -> Any:
        raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        load(on_miss=refuse).add(rows(9), rows(9))
    with pytest.raises(CallError, match="on_miss returned 3, which cannot be called"):
        load(on_miss=lambda miss: 3).add(rows(9), rows(9))

    def fail(*args: Any) -> Any:
        raise ValueError("mine")

    kernels = load(on_miss=lambda miss: fail)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^mine$"):
            kernels.add(rows(9), rows(9))


def test_warn_says_it_once_and_falls_back(load: Callable[..., Any]) -> None:
    """Once a kernel, at the caller's line; the fallback is called as the kernel was; without one it is an error."""
    kernels = load(on_miss="warn", fallback={"add": np.add})
    with pytest.warns(RuntimeWarning, match=r"(?s)no packaged variant fits.*Its fallback is called") as told:
        assert kernels.add(rows(9), rows(9))[0, 0] == 2
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels.add(rows(10), rows(10))[0, 0] == 2
        assert kernels.add(rows(9), rows(9))[0, 0] == 2
    assert [one.outcome for one in tlaot.coverage().misses] == ["fallback", "fallback"]
    with pytest.raises(DispatchError, match=r'for it to go on, tlaot\.load\(\.\.\., fallback=\{"add": function\}\)'):
        load(on_miss="warn").add(rows(9), rows(9))


def test_the_environment_says_what_the_program_leaves_open(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``TLAOT_ON_MISS`` for all loads that say nothing; a wrong word is met with the nearest."""
    monkeypatch.setenv("TLAOT_ON_MISS", "warn")
    with pytest.warns(RuntimeWarning, match="fallback"):
        load(fallback={"add": np.add}).add(rows(9), rows(9))
    with pytest.raises(DispatchError):
        load(on_miss="error", fallback={"add": np.add}).add(rows(9), rows(9))
    monkeypatch.setenv("TLAOT_ON_MISS", "eror")
    with pytest.raises(SpecError, match="TLAOT_ON_MISS: is no miss policy, got 'eror', did you mean 'error'"):
        load()
    monkeypatch.delenv("TLAOT_ON_MISS")
    with pytest.raises(CallError, match="did you mean 'warn'"):
        load(on_miss="warm")
    with pytest.raises(CallError, match="fallback of add cannot be called, got 3"):
        load(fallback={"add": 3})


def test_copies_keep_the_policy(load: Callable[..., Any]) -> None:
    """In this process and through pickle, of the set and of one kernel."""
    kernels = load(on_miss="warn", fallback={"add": np.add})
    for made in (copy.deepcopy(kernels), pickle.loads(pickle.dumps(kernels))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert made.add(rows(9), rows(9))[0, 0] == 2
    one = pickle.loads(pickle.dumps(kernels.add))
    assert one(rows(9), rows(9))[0, 0] == 2
    assert pickle.loads(pickle.dumps(load().add))(rows(8), rows(8))[0, 0] == 2


def test_coverage_is_of_kinds_of_calls(load: Callable[..., Any]) -> None:
    """What runs by an earlier decision is not counted again; the table begins with what missed."""
    kernels = load()
    for _ in range(5):
        kernels.add(rows(8), rows(8))
        kernels.add(rows(16), rows(16))
    with pytest.raises(DispatchError):
        kernels.add(rows(9), rows(9))
    found = tlaot.coverage()
    assert [(one.what, one.times) for one in found.hits] == [("llvm:x86-64 {N=8}", 1), ("llvm:x86-64 {N=16}", 1)]
    assert str(found).splitlines() == [
        "2 kinds of calls hit, 1 missed",
        "  miss     pk_miss.add(float32[4, 9], float32[4, 9]) on cpu: shapes = [{ N = 9 }]",
        "  hit      pk_miss.add(float32[4, 8], float32[4, 8]) on cpu: llvm:x86-64 {N=8}",
        "  hit      pk_miss.add(float32[4, 16], float32[4, 16]) on cpu: llvm:x86-64 {N=16}",
    ]


def test_coverage_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sees ever new sizes does not fill its memory with them."""
    monkeypatch.setattr(seen, "_MOST", 3)
    for i in range(5):
        seen.note("pk.k", [i], "cpu", "hit")
        seen.note("pk.k", [0], "cpu", "hit")
    found = tlaot.coverage()
    assert [(one.arguments, one.times) for one in found.seen] == [("(0)", 6), ("(1)", 1), ("(2)", 1)]
    assert found.left_out == 2
    assert str(found).endswith("and 2 more that were not kept")


# jit


@pytest.fixture
def jit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Loads a package whose kernel says how it is made, if at all: the sample's softmax. Its binary is made by hand."""
    pytest.importorskip("tvm")

    def make(name: str, **made_by: Any) -> Any:
        params = [tensor("X", 4, 8), tensor("Y", 4, 8, written=True)]
        properties = {"made_by": made_by} if made_by else {}
        one = variant(
            "softmax", params, [1], {"M": 4, "N": 8}, "llvm:x86-64-v2", properties=properties, frontend={"name": "tvm"}
        )
        one = dataclasses.replace(one, config={"rows": 1, "lanes": 4})
        write_package(tmp_path, name, {"softmax": [(one, compile_kernel(2, 0b10))]})
        return tlaot.load(name, on_miss="jit")

    monkeypatch.setenv("TLAOT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return make


SOFTMAX = {"factory": "sample_pkg.cpu:softmax", "reference": "sample_pkg.reference:softmax"}


def test_jit_makes_a_kernel_of_the_packaged_factory(jit: Callable[..., Any]) -> None:
    """For the workload that the arguments are of, with the configs that won for others; said once, kept for later calls."""
    kernels = jit("pk_jit_made", **SOFTMAX)
    x = np.arange(60, dtype="f4").reshape(6, 10) % 7
    right = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    with pytest.warns(RuntimeWarning, match="A kernel is tuned for it now"):
        out = kernels.softmax(x)
    assert np.allclose(out, right, atol=1e-5)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=BUT_NOISE)
        given = np.zeros_like(x)
        assert kernels.softmax(x, given, M=6) is given
    assert np.allclose(given, right, atol=1e-5)
    assert [one.outcome for one in tlaot.coverage().misses] == ["jit", "jit"]


def test_jit_says_what_it_lacks(jit: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that does not say how; a factory that is not there; another frontend in the process; no build side."""
    x = np.ones((6, 10), "f4")
    with pytest.warns(RuntimeWarning), pytest.raises(LoadError, match="does not say how its kernels are made"):
        jit("pk_jit_silent").softmax(x)
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(LoadError, match=r"needs pk_nothing:softmax, which cannot be imported.*\n.*tlaot\[tvm\]"),
    ):
        jit("pk_jit_gone", factory="pk_nothing:softmax").softmax(x)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tilelang", types.ModuleType("tilelang"))
        with pytest.warns(RuntimeWarning), pytest.raises(LoadError, match="has imported tilelang: both bring"):
            jit("pk_jit_other", **SOFTMAX).softmax(x)
    real = importlib.import_module

    def absent(name: str, *rest: Any) -> Any:
        if name == "tlaot.autotuner.missing":
            raise ModuleNotFoundError("No module named 'tlaot.tune'")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(
        LoadError, match=r"(?s)needs tlaot's build side, which is not installed here.*no packaged variant"
    ):
        jit("pk_jit_bare", **SOFTMAX).softmax(x)
