"""``TLAOT_PIN``: a variant by hand."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures_runtime import compile_kernel, tensor, variant, write_package

import tlaot
from tlaot.errors import CallError, DispatchError, SpecError
from tlaot.manifest import Bucket
from tlaot.runtime import saying
from tlaot.runtime.pin import read_pins

np = pytest.importorskip("numpy")


@pytest.fixture(autouse=True)
def unsaid() -> Iterator[None]:
    saying._said.clear()
    yield


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Loads ``add`` with a pin: for 8 columns of two levels and configs, for any number of columns of two; labels tell them apart."""
    exact = [tensor(name, 4, 8, written=name == "C") for name in "ABC"]
    dynamic = [tensor(name, 4, "n", written=name == "C") for name in "ABC"]
    made = []
    for label, (params, target, config) in enumerate(
        [
            (exact, "llvm:x86-64", {"block_M": 64, "fast": True}),
            (exact, "llvm:x86-64-v2", {"block_M": 128, "fast": True}),
            (dynamic, "llvm:x86-64", {"block_M": 64, "fast": False}),
            (dynamic, "llvm:x86-64-v2", {"block_M": 64, "fast": False}),
        ]
    ):
        shape = {"N": 8 if params is exact else "n", "mode": "a b"}
        one = dataclasses.replace(variant("add", params, [2], shape, target), config=config)
        made.append((one, compile_kernel(3, 0b100, level=2, label=label * 100)))
    write_package(tmp_path, "pk_pin", {"add": made})
    monkeypatch.syspath_prepend(str(tmp_path))

    def loading(pin: str) -> Any:
        monkeypatch.setenv("TLAOT_PIN", pin)
        return tlaot.load("pk_pin")

    return loading


def ran(kernels: Any, n: int = 8) -> int:
    """Which of the variants, by the label that its binary adds."""
    a = np.zeros((4, n), "f4")
    return int(kernels.add(a, a)[0, 0]) // 100


@pytest.mark.parametrize(
    ("pin", "which"),
    [
        ("", 1),
        ("other=block_M:64; elsewhere.add = block_M:64", 1),
        ("add=target:llvm:x86-64,N:8", 0),
        ("pk_pin.add=block_M:128", 1),
        # Of one config and workload for several targets the best.
        (" add = fast : false ; ", 3),
        ("add=N:n,target:llvm:x86-64", 2),
        ("add=mode:a b,block_M:64,fast:True", 0),
    ],
)
def test_what_a_pin_has_run(load: Callable[..., Any], pin: str, which: int) -> None:
    """By items of the config, of the workload, by target; for one package or all. It is said once, whatever is called."""
    kernels = load(pin)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert ran(kernels) == which
        assert ran(kernels) == which
        assert ran(tlaot.load("pk_pin")) == which
    if which == 1 and "128" not in pin:
        assert not told
        return
    (one,) = told
    assert one.filename == __file__
    assert str(one.message).startswith("pk_pin.add: TLAOT_PIN has calls run llvm:x86-64")


def test_a_pin_that_fits_none_or_several(load: Callable[..., Any]) -> None:
    """Both are errors that list what is there; a call that no variant fits misses as ever."""
    with pytest.raises(
        CallError, match=r"(?s)TLAOT_PIN pk_pin\.add: no variant that fits .* has block_M:256; those that fit:.*v2 {N=8"
    ):
        ran(load("add=block_M:256"))
    with pytest.raises(CallError, match=r"(?s)several variants that fit .* have block_M:64:.*Say more"):
        ran(load("add=block_M:64"))
    with pytest.raises(CallError, match="has block_M:128"):
        ran(load("add=block_M:128"), 9)
    with pytest.raises(DispatchError, match="no packaged variant fits"):
        load("add=block_M:128").add(np.zeros(3, "f4"), np.zeros(3, "f4"))


@pytest.mark.parametrize("text", ["add", "add=", "add=x", "add=x:", "=x:1", "add=:1", "a d=x:1", "add=x:1,y"])
def test_what_is_no_pin(load: Callable[..., Any], text: str) -> None:
    """Said when the package is loaded, with the form that is right."""
    with pytest.raises(SpecError, match=r"TLAOT_PIN: expected .*\nWrite TLAOT_PIN="):
        load(text)
    with pytest.raises(SpecError, match="names add twice"):
        read_pins("pk", {"TLAOT_PIN": "add=x:1;pk.add=y:2"})


def test_a_variant_of_a_dynamic_kernel_is_pinned_beyond_its_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is what is to be compared; sizes that no variant serves are the pin's, too."""
    params = [tensor(name, 4, "n", written=name == "C") for name in "ABC"]
    built = []
    for label, (ends, block) in enumerate((((1, 8), 64), ((9, 32), 128))):
        one = variant("add", params, [2], {"N": "n"}, buckets=(Bucket({"n": ends}),))
        one = dataclasses.replace(one, config={"block": block}, path=f"add/{block}")
        built.append((one, compile_kernel(3, 0b100, label=label * 100)))
    write_package(tmp_path, "pk_pin_dynamic", {"add": built})
    monkeypatch.delenv("TLAOT_PIN", raising=False)
    free = tlaot.load("pk_pin_dynamic", path=tmp_path)
    assert [ran(free, n) for n in (4, 16)] == [0, 1]
    monkeypatch.setenv("TLAOT_PIN", "add=block:128")
    with pytest.warns(RuntimeWarning, match="has calls run llvm:x86-64 .* with block:128"):
        assert [ran(tlaot.load("pk_pin_dynamic", path=tmp_path), n) for n in (4, 16, 64)] == [1, 1, 1]
