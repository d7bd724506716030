"""TileLang packages without TileLang: one line in __init__, and a call of a factory is the packaged kernel of its key."""

from __future__ import annotations

import importlib
import json
import pickle
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fixtures_runtime import compile_kernel, tensor, variant, write_package

import tlaot
from tlaot.dropin import JITKernel
from tlaot.dropin.factory import PackagedFactory
from tlaot.errors import CallError, DispatchError, LoadError, PackageError, SpecError

np = pytest.importorskip("numpy")

INIT = "import tlaot; tilelang = tlaot.tilelang_for(__name__)\nfrom . import kernels\n"

# Written as for TileLang; each way to import it once.
KERNELS = """
import enum
import tilelang
import tilelang.language as T
from dataclasses import dataclass
from typing import Optional, Union
from tilelang import language as T2, JITKernel
from tilelang.contrib import nvcc
from tilelang.autotuner import autotune
from tvm import tirx

_PASSES = {tilelang.PassConfigKey.TL_DISABLE_WARP_SPECIALIZED: True}
m, n = T.dynamic("m, n")
VECTOR = T.ceildiv(100, 16)

class Mode(enum.IntEnum):
    FAST = 0
    EXACT = 1

@dataclass(frozen=True)
class Cast:
    dtype: T.dtype = T.float8_e4m3fn
    block: tuple = (1, 128)

@T.macro
def clamp(x: Union[T.float32, T.Tensor], amax: Optional[T.Ref] = None) -> T.float32:
    return T.max(x, amax)

@tilelang.jit(out_idx=[-1], pass_configs=_PASSES)
def scale(N: int, dtype: T.dtype = T.float32, block: int = 64, fast: bool = False) -> JITKernel:
    raise AssertionError("the body of a factory runs")

@autotune(configs=[{"threads": 64}])
@tilelang.jit
def cast(N, config: Cast, mode=Mode.FAST, threads=None):
    raise AssertionError("the body of a factory runs")

@tilelang.jit
def add(A, B, C, block=64):
    N = T.const("N")
    A: T.Tensor[[N], T.float32]

@tilelang.jit
def unpackaged(N, policy=T.GemmWarpPolicy.Square):
    raise AssertionError("the body of a factory runs")

@T.prim_func
def whole(A: T.Tensor((16,), "float32"), B: T.StridedTensor[(m, n), (n, 1), T.float16]) -> None:
    pass

def late():
    import tilelang.profiler
    return tilelang.profiler.do_bench(whole)
"""


def made_by(module: str, name: str) -> dict[str, Any]:
    return {"made_by": {"factory": f"{module}:{name}"}}


def write(root: Path, package: str, with_kernels: bool = True) -> None:
    """A package with ``scale`` (a sum with a label that tells its variants apart), ``cast`` and an eager ``add``."""
    module = f"{package}.kernels"

    def one(
        name: str, shape: Mapping[str, Any], label: int, size: Any, config: Mapping[str, Any], eager: bool = False
    ) -> Any:
        names = "ABC" if eager else "XY"
        params = [tensor(x, size, written=x == names[-1]) for x in names]
        found = variant(name, params, () if eager else (1,), shape, properties=made_by(module, name))
        path = f"{name}/llvm/{label}"
        return _with(found, config=config, path=path), compile_kernel(len(names), 1 << (len(names) - 1), label=label)

    kernels = {
        "scale": [
            one("scale", {"N": 4, "dtype": {"dtype": "float32"}}, 10, 4, {"block": 32}),
            one("scale", {"N": 8, "dtype": "float32"}, 20, 8, {"block": 32}),
            one("scale", {"N": "N", "dtype": "float16"}, 30, "N", {"block": 32}),
            one("scale", {"N": 1, "dtype": "float32", "fast": True}, 40, 1, {"block": 32}),
        ],
        "cast": [
            one("cast", {"N": 4, "config": {"make": f"{module}:Cast", "with": {
                "dtype": {"dtype": "float8_e4m3fn"}, "block": {"tuple": [1, n]}}}, "mode": mode}, n + label, 4, {"threads": 64})
            for n in (1, 128) for mode, label in (({"object": f"{module}:Mode.FAST"}, 0), (0, 500))
        ],
        "add": [one("add", {"N": n}, n, n, {}, eager=True) for n in (4, 8)],
    }  # fmt: skip
    write_package(root, package, kernels if with_kernels else {}, INIT)
    (root / package / "kernels.py").write_text(KERNELS)


def _with(one: Any, **changes: Any) -> Any:
    import dataclasses

    return dataclasses.replace(one, **changes)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The kernels' module of a fresh package."""
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, "pk_dropin")
    yield importlib.import_module("pk_dropin.kernels")
    _forget("pk_dropin")


def _forget(package: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "package", None) != package]


def ones(n: int) -> Any:
    return np.ones(n, "float32")


def test_a_package_written_for_tilelang_is_imported_and_called_without(package: Any) -> None:
    kernel = package.scale(4)
    assert kernel(ones(4)).tolist() == [11.0] * 4
    out = np.zeros(4, "float32")
    assert kernel(ones(4), out) is out and out.tolist() == [11.0] * 4
    assert isinstance(kernel, package.JITKernel) and package.JITKernel is JITKernel
    assert (kernel.out_idx, [p.name for p in kernel.params], kernel.config) == ([1], ["X", "Y"], {"block": 32})
    assert (kernel.latency, kernel.ref_latency) == (1.0, 2.0)


def test_no_one_else_sees_what_stands_in(package: Any, tmp_path: Path) -> None:
    """An import of TileLang by another package is what it was; nothing is left under its name."""
    assert type(package.tilelang).__name__ == "StandIn"
    assert not any(module is package.tilelang for module in list(sys.modules.values()))
    text = "try:\n    import tilelang as seen\nexcept ImportError:\n    seen = None\n"
    (tmp_path / "pk_dropin_other.py").write_text(text)
    seen = importlib.import_module("pk_dropin_other").seen
    assert seen is sys.modules.get("tilelang") and seen is not package.tilelang
    del sys.modules["pk_dropin_other"]
    assert "__import__" in package.__builtins__ and package.__builtins__["__import__"] is not __import__
    assert type(package.__loader__).__name__ == "SourceFileLoader" == type(package.__spec__.loader).__name__


def test_every_spelling_of_a_key_is_one_kernel(package: Any) -> None:
    scale, kernel = package.scale, package.scale(4)
    same = [
        scale(N=4), scale(4, "float32"), scale(4, dtype=np.float32), scale(dtype=np.dtype("float32"), N=4),
        scale(4, package.T.float32), scale(4, package.T.dtype("float")), scale(np.int64(4)), scale(4, "float32", 64, False),
        scale.compile(4), scale.compile(N=4), *scale.par_compile([(4,), {"N": 4}], num_workers=8),
    ]  # fmt: skip
    assert {id(one) for one in same} == {id(kernel)}
    assert scale(8) is not kernel
    assert scale(8)(ones(8)).tolist() == [21.0] * 8


def test_what_the_build_chose_is_served_whatever_a_call_says_of_it(package: Any) -> None:
    """``block`` is in the configs: any value of it means the winner. ``fast`` is not: another than its default is another kernel."""
    assert package.scale(4, block=128) is package.scale(4)
    with pytest.raises(DispatchError, match=r"no kernel of pk_dropin was packaged for \{ N = 4"):
        package.scale(4, fast=True)


def test_true_is_not_one_not_even_inside_of_a_tuple(package: Any) -> None:
    assert package.scale(1, fast=True)(ones(1)).tolist() == [41.0]
    with pytest.raises(DispatchError):
        package.scale(True, fast=True)
    with pytest.raises(DispatchError):
        package.scale(1.0, fast=True)
    first = package.cast(4, package.Cast(block=(1, 1)))
    assert first(ones(4)).tolist() == [2.0] * 4
    with pytest.raises(DispatchError):
        package.cast(4, package.Cast(block=(True, 1)))
    assert package.cast(4, package.Cast(block=(1, 1))) is first


def test_dataclasses_and_enumerations_are_keys(package: Any) -> None:
    cast, Cast, Mode = package.cast, package.Cast, package.Mode
    assert cast(4, Cast())(ones(4)).tolist()[0] == 129.0
    assert cast(4, Cast(), Mode.FAST) is cast(4, Cast(package.T.float8_e4m3fn, (1, 128)))
    assert cast(4, Cast(), 0)(ones(4)).tolist()[0] == 629.0
    with pytest.raises(DispatchError) as raised:
        cast(4, Cast(), Mode.EXACT)
    assert 'mode = { object = "pk_dropin.kernels:Mode.EXACT" }' in str(raised.value)


def test_an_open_size_is_served_by_one_kernel_for_all(package: Any) -> None:
    kernel = package.scale(100, "float16")
    assert kernel is package.scale(7, dtype="float16")
    assert kernel(ones(5)).tolist() == [31.0] * 5


def test_an_eager_function_runs(package: Any) -> None:
    out = np.zeros(4, "float32")
    package.add(ones(4), ones(4), out)
    assert out.tolist() == [6.0] * 4
    out = np.zeros(8, "float32")
    package.add(ones(8), B=ones(8), C=out, block=64)
    assert out.tolist() == [10.0] * 8
    assert (package.add.mode, package.scale.mode) == ("eager", "lazy")
    assert package.add.compile(N=8).variants[0].shape == {"N": 8}
    with pytest.raises(DispatchError, match="block = 128"):
        package.add(ones(8), ones(8), out, block=128)
    with pytest.raises(DispatchError, match="no packaged variant fits"):
        package.add(ones(5), ones(5), ones(5))


def test_a_key_that_is_not_packaged_is_named_with_the_line_to_add(package: Any) -> None:
    with pytest.raises(DispatchError) as raised:
        package.scale(6)
    text = str(raised.value)
    assert text.startswith("pk_dropin.kernels:scale: no kernel of pk_dropin was packaged for { N = 6, dtype = ")
    assert "differs in N" in text
    assert '[[kernel]] scale: shapes = [{ N = 6, dtype = { dtype = "float32" } }]' in text
    with pytest.raises(DispatchError, match=r'factory = "pk_dropin.kernels:unpackaged", shapes = \[{ N = 3'):
        package.unpackaged(3)
    assert package.scale.par_compile([(6,), (4,)], ignore_error=True) == [None, package.scale(4)]
    assert "shapes = [{ N = 6, dtype" in str(tlaot.coverage())


def test_a_call_that_the_function_does_not_take(package: Any) -> None:
    for wrong in (lambda: package.scale(), lambda: package.scale(4, blok=3), lambda: package.cast(4)):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(DispatchError):
        package.scale([4])


def test_the_miss_policy_is_the_load_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, "pk_dropin_miss")
    init = INIT.replace("(__name__)", "(__name__, on_miss=answer)")
    init = (
        "told = []\ndef answer(miss):\n    told.append(miss)\n    return lambda x: x * 3 if dict(miss.factory_args)['N'] == 6 else None\n"
        + init
    )
    (tmp_path / "pk_dropin_miss" / "__init__.py").write_text(init)
    module = importlib.import_module("pk_dropin_miss")
    try:
        assert module.kernels.scale(6)(2) == 6
        told = module.told
        assert told[0].workloads == ({"N": 6, "dtype": {"dtype": "float32"}, "block": 64, "fast": False},)
        assert told[0].kernel == "pk_dropin_miss.kernels:scale"
    finally:
        _forget("pk_dropin_miss")


def test_without_tilelang_there_is_nothing_to_compile_with(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLAOT_ON_MISS", "jit")
    with pytest.raises(LoadError, match="needs TileLang"):
        package.scale(6)


def test_what_stands_in_gives_no_results(package: Any) -> None:
    """A program that goes on with what a stand-in returned is told, and not given a number."""
    found = package.late()
    for use in (bool, int, float, len, list, lambda x: f"{x:.3f}", lambda x: x > 1):
        with pytest.raises(LoadError, match=r"tilelang.profiler.do_bench\(\): .* stands in for TileLang's"):
            use(found)
    assert not isinstance(3, package.T.Tensor)
    with pytest.raises(LoadError, match="Decorate the function that makes it"):
        package.tilelang.compile(package.whole)
    with pytest.raises(LoadError, match="has no TIR"):
        package.scale.get_tir(4)
    with pytest.raises(LoadError, match="has no profiler"):
        package.scale(4).get_profiler()
    with pytest.raises(PackageError, match="built without sources"):
        package.scale(4).get_kernel_source()
    assert (package.VECTOR, package.T.dtype("bfloat16").bytes, package.T.float16.bits) == (7, 2, 16)


def test_names_that_are_taken_all_at_once_are_refused(package: Any, tmp_path: Path) -> None:
    (tmp_path / "pk_dropin" / "stars.py").write_text("from tilelang.language import *\n")
    with pytest.raises(ImportError, match="name what is imported"):
        importlib.import_module("pk_dropin.stars")


def test_a_kernel_goes_to_another_process_and_a_factory_by_its_name(package: Any) -> None:
    kernel = pickle.loads(pickle.dumps(package.scale(4)))
    assert type(kernel) is JITKernel and kernel(ones(4)).tolist() == [11.0] * 4 and len(kernel.variants) == 1
    assert pickle.loads(pickle.dumps(package.scale)) is package.scale


def test_threads_get_one_kernel(package: Any) -> None:
    found: list[Any] = []
    gate = threading.Barrier(8)

    def call() -> None:
        gate.wait()
        found.append(package.scale(8))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len({id(kernel) for kernel in found}) == 1


def test_a_manifest_of_an_older_tlaot_says_it_in_its_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tlaot import layout

    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, "pk_dropin_old")
    path = tmp_path / "pk_dropin_old" / "_tlaot" / "manifest.json"
    body = json.loads(path.read_text())
    assert body["factories"]["pk_dropin_old.kernels:scale"] == ["scale"]
    kernels = body.pop("kernels")
    path.write_text(
        layout.lay_out({k: v for k, v in body.items() if k not in ("factories", "digest", "index")}, kernels)
    )
    try:
        module = importlib.import_module("pk_dropin_old.kernels")
        assert module.scale(4)(ones(4)).tolist() == [11.0] * 4
    finally:
        _forget("pk_dropin_old")


def test_two_kernels_of_one_key_are_not_chosen_between(package: Any) -> None:
    factory = package.scale
    factory._open()
    choices = factory._choices
    twice = [*choices.packaged, *(_with(one, kernel="other") for one in choices.packaged)]
    again = type(choices)(twice, ["N", "dtype", "block", "fast"], choices._defaults)
    with pytest.raises(CallError, match="several kernels are packaged with this key: other, scale"):
        again.find("k", {"N": 4, "dtype": "float32", "block": 1, "fast": False})


def test_the_variable_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLAOT_DROPIN", "packed")
    with pytest.raises(SpecError, match="did you mean 'packaged'"):
        tlaot.tilelang_for("pk_dropin_nowhere")


def test_a_package_without_kernels_says_so_at_the_first_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLAOT_DROPIN", "packaged")
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, "pk_dropin_bare")
    import shutil

    shutil.rmtree(tmp_path / "pk_dropin_bare" / "_tlaot")
    try:
        module = importlib.import_module("pk_dropin_bare.kernels")
        with pytest.raises(PackageError, match="package pk_dropin_bare: has no packaged kernels"):
            module.scale(4)
    finally:
        _forget("pk_dropin_bare")


def test_the_decorator_of_modules_that_import_no_tilelang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, "pk_dropin_kernel")
    (tmp_path / "pk_dropin_kernel" / "__init__.py").write_text("")
    text = "import tlaot\n@tlaot.kernel(out_idx=[-1])\ndef scale(N, dtype='float32', block=1, fast=False): ...\n"
    (tmp_path / "pk_dropin_kernel" / "kernels.py").write_text(text)
    try:
        module = importlib.import_module("pk_dropin_kernel.kernels")
        assert type(module.scale) is PackagedFactory
        assert module.scale(8)(ones(8)).tolist() == [21.0] * 8
        assert module.scale.out_idx == [-1]
    finally:
        _forget("pk_dropin_kernel")
