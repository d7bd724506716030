"""The direct way of a call, through ``direct.so``: taken for what was decided, never for anything else."""

from __future__ import annotations

import copy
import gc
import inspect
import os
import pickle
import struct
import subprocess
import sys
import sysconfig
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from fixtures_runtime import FLOAT32, compile_kernel, direct_way, scalar, tensor, variant, write_package  # noqa: F401

import tlaot
from tlaot.errors import CallError, DispatchError, PackageError, SpecError
from tlaot.manifest import digest_of
from tlaot.runtime import direct as direct_module
from tlaot.runtime import path as path_module
from tlaot.runtime import seen
from tlaot.runtime.kernel import Kernel
from tlaot.runtime.load import Kernels

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.usefixtures("direct_way"),
    pytest.mark.skipif(
        not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch has no DLPack exchange API"
    ),
]

PACKAGE = "pk_direct"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Have the library told at the first call, so that what is tested begins with the second."""
    if "deferred" not in request.fixturenames:
        monkeypatch.setattr(path_module, "_TOLD_FROM", 0)
        monkeypatch.setattr(path_module, "_KEPT_FROM", 0)


@pytest.fixture
def deferred() -> None:
    """Leave it as it is for users."""


def adding(*sizes: int | str, label: int = 0, **shape: Any) -> Any:
    params = [tensor(name, *sizes, written=name == "C") for name in "ABC"]
    binary = compile_kernel(3, 0b100, label=label, dtype=FLOAT32)
    return variant("k", params, [2], shape or {"n": sizes[-1]}), binary


def load(folder: Path, *built: Any) -> Kernel:
    return load_all(folder, k=built).k


def load_all(folder: Path, **kernels: Any) -> Kernels:
    write_package(folder, PACKAGE, {name: list(built) for name, built in kernels.items()})
    return tlaot.load(PACKAGE, folder)


def counts(kernel: Any) -> list[tuple[dict[str, Any], int]]:
    """Shapes of the variants that were run the direct way, and how often."""
    return [(dict(one.shape), count) for one, count in kernel._direct.calls()]


def ones(*sizes: int) -> Any:
    return torch.ones(sizes)


def test_from_the_second_call_on(tmp_path: Path) -> None:
    """Outputs given and left out, with weights that are Parameters, and scalars of each kind."""
    k = load(tmp_path, adding(4, 8))
    a, c = ones(4, 8), ones(4, 8)
    weight = torch.nn.Parameter(ones(4, 8), requires_grad=False)
    for _ in range(3):
        assert k(a, weight, c) is c
        assert k(a, weight).sum() == 64
    assert sorted(count for _, count in counts(k)) == [2, 2]
    assert isinstance(k, Kernel)
    assert type(k).__name__ == "Kernel"
    assert str(inspect.signature(k)) == "(*args: 'Any', **factory_args: 'Any') -> 'Any'"
    assert copy.deepcopy(k)(a, weight).sum() == 64


@pytest.mark.parametrize("factor", [2, 2.5, True])
def test_scalars(tmp_path: Path, factor: Any) -> None:
    dtype = {int: "int32", float: "float32", bool: "bool"}[type(factor)]
    params = [tensor("X", 4), scalar("s", dtype), tensor("Y", 4, written=True)]
    k = load(tmp_path, (variant("k", params, [2], {}), compile_kernel(3, 0b100)))
    for _ in range(3):
        assert k(ones(4), factor).tolist() == [1 * factor] * 4
    assert counts(k) == [({}, 2)]


def test_a_size_that_a_scalar_gives(tmp_path: Path) -> None:
    params = [tensor("X", 4), scalar("n", "int64"), tensor("Y", "n", written=True)]
    k = load(tmp_path, (variant("k", params, [2], {}), compile_kernel(3, 0b100)))
    for n in (4, 4, 4):
        assert k(ones(4), n).shape == (n,)
    assert counts(k) == [({}, 2)]


def test_several_outputs_in_their_order(tmp_path: Path) -> None:
    params = [tensor("Y", 4, written=True), tensor("X", 4), tensor("Z", 4, written=True)]
    k = load(tmp_path, (variant("k", params, [2, 0], {}), compile_kernel(3, 0b101)))
    x, y, z = ones(4), ones(4), ones(4)
    for _ in range(2):
        made = k(x)
        assert [one.tolist() for one in made] == [[1] * 4] * 2
        given = k(y, x, z)
        assert given[0] is z
        assert given[1] is y
    assert sum(count for _, count in counts(k)) == 2


def test_a_size_of_its_own_at_each_call(tmp_path: Path) -> None:
    """A dynamic variant is decided for once, not for the size that another variant is made for."""
    k = load(tmp_path, adding(4, "m", m="m"), adding(4, 7, label=100, m=7))
    for m in (3, 1, 2, 6, 7, 7, 8, 0, 1000, 9, 5):
        out = k(ones(4, m), ones(4, m))
        assert out.shape == (4, m)
        assert out.sum() == 4 * m * (102 if m == 7 else 2)
    assert sorted(counts(k), key=str) == [({"m": "m"}, 2), ({"m": "m"}, 5), ({"m": 7}, 1)]


def test_sizes_that_must_be_equal(tmp_path: Path) -> None:
    k = load(tmp_path, adding("m", "m"))
    for m in (3, 4, 5):
        assert k(ones(m, m), ones(m, m)).sum() == 2 * m * m
    with pytest.raises(DispatchError, match="has shape"):
        k(ones(4, 5), ones(4, 5))
    with pytest.raises(DispatchError, match="has shape"):
        k(ones(4, 4), ones(5, 5))
    assert counts(k) == [({"n": "m"}, 2)]


def test_strides_where_they_matter(tmp_path: Path) -> None:
    """A variant for a transposed argument, and one for a compact one: of equal sizes, and never taken for each other."""

    def build(strides: Any, label: int) -> Any:
        params = [tensor("X", 4, 8, strides=strides), tensor("Y", 4, 8, written=True)]
        return variant("k", params, [1], {"label": label}), compile_kernel(2, 0b10, label=label, loose=True)

    k = load(tmp_path, build((1, 4), 1), build((8, 1), 2))
    turned, compact = ones(8, 4).t(), ones(4, 8)
    for _ in range(3):
        assert k(turned).tolist() == [[2] * 8] * 4
        assert k(compact).tolist() == [[3] * 8] * 4
    assert counts(k) == [({"label": 1}, 2), ({"label": 2}, 2)]


def test_errors_are_worded_as_ever(tmp_path: Path) -> None:
    """After a call that went well: strides, dtype, shape, kind and number of arguments, gradients."""
    k = load(tmp_path, adding(4, 8))
    a = ones(4, 8)
    k(a, a)
    k(a, a)
    wrong = [
        ((ones(8, 4).t(), a), ValueError, "compact|contiguous"),
        ((a.double(), a), DispatchError, "has dtype float64"),
        ((ones(4, 9), a), DispatchError, r"has shape \(4, 9\)"),
        ((a, 1), DispatchError, "is a Python int"),
        ((a,), CallError, "got 1 arguments"),
        ((a, "b"), CallError, "neither a tensor"),
        ((a.clone().requires_grad_(), a), CallError, "requires a gradient"),
        ((a, torch.ones(4, 8, device="meta")), CallError, "meta"),
        ((), CallError, "no argument is a tensor"),
    ]
    for args, kind, text in wrong:
        with pytest.raises(kind, match=text):
            k(*args)
    with pytest.raises(CallError, match="unknown factory argument 'm'"):
        k(a, a, m=3)
    with torch.no_grad():
        assert k(a.clone().requires_grad_(), a).sum() == 64
    assert k(a, a).sum() == 64


def test_misaligned_and_empty(tmp_path: Path) -> None:
    params = [tensor(name, "m", align=16, written=name == "C") for name in "ABC"]
    k = load(tmp_path, (variant("k", params, [2], {}), compile_kernel(3, 0b100, align=16)))
    a = ones(8)
    k(a, a)
    assert k(ones(0), ones(0)).shape == (0,)
    with pytest.raises(ValueError, match="aligned"):
        k(a, ones(9)[1:])
    assert k(a, a).sum() == 16


def test_modes_that_make_other_tensors(tmp_path: Path) -> None:
    """Outputs are allocated under the caller's modes, and what then comes is refused as without the library."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    k = load(tmp_path, adding(4, 8))
    a = ones(4, 8)
    for _ in range(2):
        k(a, a)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises((ValueError, CallError)):
        k(a, a)
    assert k(a, a).sum() == 64
    with torch.device("meta"):
        assert k(a, a).sum() == 64


def test_calls_under_vmap_are_refused(tmp_path: Path) -> None:
    k = load(tmp_path, adding(8))
    a = ones(8)
    k(a, a)
    with pytest.raises((CallError, ValueError)):
        torch.func.vmap(k)(ones(3, 8), ones(3, 8))
    with pytest.raises(CallError, match=r"torch\.func"):
        torch.func.functionalize(k)(a, a)


def test_what_is_remembered_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_module, "_MOST_TOLD", 8)
    k = load(tmp_path, *(adding(n, label=n) for n in range(1, 21)))
    for _ in range(2):
        for n in range(1, 21):
            assert k(ones(n), ones(n)).sum() == n * (n + 2)
    assert len(counts(k)) <= 8


def test_ranges_are_told_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many other decisions that all are forgotten."""
    monkeypatch.setattr(direct_module, "_MOST_TOLD", 4)
    k = load(tmp_path, adding("m", m="m"), *(adding(n, label=n, m=n) for n in range(1, 9)))
    for _ in range(3):
        for n in (*range(1, 9), 10, 11):
            assert k(ones(n), ones(n)).sum() == n * (2 + (n if n < 9 else 0))
    assert any(shape == {"m": "m"} and count for shape, count in counts(k))


def test_a_file_that_is_not_the_one_that_was_packaged(tmp_path: Path) -> None:
    write_package(tmp_path, PACKAGE, {"k": [adding(4)]})
    file = next(tmp_path.rglob("direct.so"))
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(PackageError, match=r"direct\.so: the file is not the one"):
        tlaot.load(PACKAGE, tmp_path).k(ones(4), ones(4))


def test_a_library_of_another_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that does not load: the call goes the other way."""
    monkeypatch.setattr(direct_module, "DIRECT_TYPE", "tlaot_direct_type_0")
    k = load(tmp_path, adding(4))
    for _ in range(3):
        assert k(ones(4), ones(4)).sum() == 8
    assert k._direct is None


def test_forbidden_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLAOT_DIRECT", "0")
    k = load(tmp_path, adding(4))
    for _ in range(2):
        assert k(ones(4), ones(4)).sum() == 8
    assert k._direct is None
    monkeypatch.setenv("TLAOT_DIRECT", "no")
    with pytest.raises(SpecError, match="TLAOT_DIRECT: expected 0 or 1, got 'no'"):
        load(tmp_path, adding(4))(ones(4), ones(4))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "int tlaot_direct_type_2(void) { return 0; } int other(void) { return 0; }",
            "exports other, tlaot_direct_type_2",
        ),
        (
            "int foreign(void); int tlaot_direct_type_2(void) { return foreign(); }",
            "calls foreign, which neither Python",
        ),
    ],
)
def test_the_audit_looks_at_it(tmp_path: Path, source: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import fixtures_runtime

    from tlaot.audit.audit import audit_folder

    def of_the_library(folder: Path) -> list[str]:
        return [
            f.what for f in audit_folder(folder / PACKAGE / "_tlaot", load=False).findings if "direct.so" in f.where
        ]

    write_package(tmp_path / "sound", PACKAGE, {"k": [adding(4)]})
    assert not of_the_library(tmp_path / "sound")
    (tmp_path / "x.c").write_text(source)
    made = tmp_path / "x.so"
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-s",
        "-nostartfiles",
        "-Wl,-z,nodelete",
        str(tmp_path / "x.c"),
        "-o",
        str(made),
    ]
    subprocess.run(command, check=True)
    monkeypatch.setattr(fixtures_runtime, "direct_library", made.read_bytes)
    write_package(tmp_path / "wrong", PACKAGE, {"k": [adding(4)]})
    assert [what for what in of_the_library(tmp_path / "wrong") if says in what]


def test_numpy(tmp_path: Path) -> None:
    """Outputs given and left out, mixed with torch's tensors, of other sizes, read-only, strided, of foreign byte order."""
    np = pytest.importorskip("numpy")
    k = load(tmp_path, adding(4, "m", m="m"))
    a, c = np.ones((4, 8), "f4"), np.ones((4, 8), "f4")
    for _ in range(3):
        assert type(k(a, a)) is np.ndarray
        assert k(a, a).sum() == 64
        assert k(a, a, c) is c
        assert k(ones(4, 8), a).sum() == 64
        assert type(k(a, ones(4, 8))) is np.ndarray
    assert [count for _, count in counts(k)] == [5, 2, 2, 2]
    for m in (0, 3, 9):
        assert k(np.ones((4, m), "f4"), np.ones((4, m), "f4")).shape == (4, m)
    assert [count for _, count in counts(k)] == [8, 2, 2, 2]
    fixed = np.ones((4, 8), "f4")
    fixed.flags.writeable = False
    assert k(fixed, a).sum() == 64
    for _ in range(2):
        with pytest.raises(CallError, match=r"is read-only, and the kernel writes it"):
            k(a, a, fixed)
    assert (fixed == 1).all()
    with pytest.raises(ValueError, match=r"compact|contiguous"):
        k(np.ones((8, 4), "f4").T, a)
    with pytest.raises(DispatchError, match="foreign byte order"):
        k(a.astype(">f4"), a)
    with pytest.raises(DispatchError, match="has dtype float64"):
        k(a.astype("f8"), a)
    with pytest.raises(CallError, match="masked"):
        k(np.ma.masked_array(a), a)
    assert k(a, a).sum() == 64


def test_numpy_s_other_dtypes(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    for dtype in ("int8", "uint16", "float16", "float64", "bool", "complex64"):
        params = [tensor("X", 4, dtype=dtype), tensor("Y", 4, dtype=dtype, written=True)]
        k = load(tmp_path / dtype, (variant("k", params, [1], {}), compile_kernel(2, 0b10)))
        x = np.array([1, 0, 1, 1], dtype)
        for _ in range(3):
            assert k(x).dtype == x.dtype
        assert counts(k) == [({}, 2)]
    params = [tensor("X", 4, dtype="bfloat16"), tensor("Y", 4, dtype="bfloat16", written=True)]
    k = load(tmp_path / "other", (variant("k", params, [1], {}), compile_kernel(2, 0b10)))
    x = np.ones(4, pytest.importorskip("ml_dtypes").bfloat16)
    for _ in range(3):
        assert k(x).dtype == x.dtype


def test_other_arrays_go_the_other_way(tmp_path: Path) -> None:
    import tvm_ffi

    k = load(tmp_path, adding(4))
    x, y, z = (tvm_ffi.from_dlpack(ones(4)) for _ in range(3))
    for _ in range(3):
        k(x, y, z)
    assert z.__dlpack_device__()[0] == 1
    assert k._direct is None or not counts(k)


class Named(torch.Tensor):
    """A subclass of the common kind."""


def test_a_subclass(tmp_path: Path) -> None:
    k = load(tmp_path, adding(4))
    a = ones(4).as_subclass(Named)
    for _ in range(3):
        assert k(a, ones(4)).sum() == 8


def test_the_current_stream_of_another_device(tmp_path: Path) -> None:
    """Asked of the framework at each call, set while the function runs, and put back: with a framework that claims a GPU."""
    import ctypes

    import tvm_ffi

    class Tensor(ctypes.Structure):
        _fields_ = (
            *(
                (name, kind)
                for name, kind in (("data", ctypes.c_void_p), ("type", ctypes.c_int32), ("id", ctypes.c_int32))
            ),
            *(
                (name, kind)
                for name, kind in (("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8))
            ),
            ("lanes", ctypes.c_uint16),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)),
            ("byte_offset", ctypes.c_uint64),
        )

    class Api(ctypes.Structure):
        _fields_ = (
            *((name, ctypes.c_uint32) for name in ("major", "minor")),
            *((name, ctypes.c_void_p) for name in ("previous", "allocator", "from_py", "to_py", "dltensor", "stream")),
        )

    class Array:
        """On the second GPU, of 3 numbers."""

    sizes, steps, current = (ctypes.c_int64 * 1)(3), (ctypes.c_int64 * 1)(1), [0x1000]

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Tensor))
    def export(x: int, out: Any) -> int:
        one = out[0]
        one.data, one.type, one.id, one.ndim, one.code, one.bits, one.lanes = 64, 2, 1, 1, 2, 32, 1
        one.shape, one.strides, one.byte_offset = sizes, steps, 0
        return 0

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
    def stream(device_type: int, device_id: int, out: Any) -> int:
        assert (device_type, device_id) == (2, 1)
        out[0] = current[0]
        return 0

    api = Api(1, 3, dltensor=ctypes.cast(export, ctypes.c_void_p), stream=ctypes.cast(stream, ctypes.c_void_p))
    get_stream = ctypes.CDLL(None).TVMFFIEnvGetStream
    get_stream.restype = ctypes.c_void_p
    seen = []

    def run(x: Any) -> None:
        seen.append((get_stream(2, 1), tuple(x.shape)))

    write_package(tmp_path, PACKAGE, {"k": [adding(4)]})
    file = next(tmp_path.rglob("direct.so"))
    kind = direct_module.direct_type(file, digest_of(file.read_bytes()))
    assert kind is not None
    call = kind(lambda args, kwargs: "slow", lambda args, kind, message: message)
    assert call.know(Array, 0, ctypes.addressof(api), False) == 0
    function = tvm_ffi.convert(run)
    array = Array()
    assert call(array) == "slow"
    text = struct.pack("10q", 0, 7, 1, 0, 1, 0, 0, 0, 1, 0)
    assert call.add((array,), text, function, function.__chandle__(), ())
    for current[0] in (0x1000, 0x2000):
        assert call(array) is array
    assert seen == [(0x1000, (3,)), (0x2000, (3,))]
    assert not get_stream(2, 1)
    assert call.calls() == [(7, 2)]
    assert call(array, array) == "slow"


# Named factory arguments


def attention(folder: Path) -> Kernel:
    built = [
        adding(4, label=10 * heads + causal, causal=causal, heads=heads) for causal in (True, False) for heads in (1, 2)
    ]
    return load(folder, *built)


def test_factory_arguments_by_keyword(tmp_path: Path) -> None:
    k, a = attention(tmp_path), ones(4)
    for _ in range(3):
        assert k(a, a, causal=True, heads=2).tolist() == [23] * 4
        assert k(a, a, heads=1, causal=False).tolist() == [12] * 4
    with pytest.raises(CallError, match="heads"):
        k(a, a, causal=True)
    with pytest.raises(DispatchError, match="causal is True, asked for 1"):
        k(a, a, causal=1, heads=1)
    with pytest.raises(DispatchError, match="has no factory argument causal of this kind"):
        k(a, a, causal=[], heads=1)


def test_bound(tmp_path: Path) -> None:
    k, a = attention(tmp_path), ones(4)
    causal = k.bind(causal=True)
    both = causal.bind(heads=2)
    assert [len(one.variants) for one in (k, causal, both)] == [4, 2, 1]
    assert "causal=True; heads=2" in repr(both)
    assert both.factory_args == {"causal": True, "heads": 2}
    for _ in range(3):
        assert both(a, a).tolist() == [23] * 4
        assert causal(a, a, heads=1).tolist() == [13] * 4
        assert both(a, a, heads=2).tolist() == [23] * 4
    assert counts(both) == [({"causal": True, "heads": 2}, 2)]
    assert causal.resolve(a, a, heads=2) is both.variants[0]
    with pytest.raises(CallError, match="heads"):
        causal(a, a)


def test_bound_wrongly(tmp_path: Path) -> None:
    k, a = attention(tmp_path), ones(4)
    with pytest.raises(CallError, match=r"unknown factory argument 'casual'.*causal"):
        k.bind(casual=True)
    with pytest.raises(CallError, match=r"no variant was packaged with heads=3\nPackaged are: heads=1; heads=2"):
        k.bind(heads=3)
    with pytest.raises(CallError, match="no variant was packaged with causal=1"):
        k.bind(causal=1)
    with pytest.raises(CallError, match="tensors are positional"):
        k.bind(A=a)
    with pytest.raises(CallError, match="heads is bound to 1, asked for 2"):
        k.bind(heads=1).bind(heads=2)
    with pytest.raises(CallError, match="heads is bound to 1, asked for 2"):
        k.bind(heads=1)(a, a, heads=2)


def test_bound_and_pickled(tmp_path: Path) -> None:
    k, a = attention(tmp_path), ones(4)
    both = k.bind(causal=True, heads=2)
    both(a, a)
    for copied in (pickle.loads(pickle.dumps(both)), pickle.loads(pickle.dumps(k)).bind(causal=True, heads=2)):
        assert copied.factory_args == both.factory_args
        assert copied(a, a).tolist() == [23] * 4


# Life


def test_threads(tmp_path: Path) -> None:
    """Each with sizes and devices' memory of its own, while others forget: every result is its call's."""
    k = load(tmp_path, adding(4, "m", m="m"), *(adding(4, n, label=n, m=n) for n in (3, 5)))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for i in range(1500):
            m = (i * 7 + seed) % 9
            out = k(ones(4, m), ones(4, m))
            if out.shape != (4, m) or out.sum() != 4 * m * (2 + (m if m in (3, 5) else 0)):
                wrong.append((seed, i, out))
            if seed == 0 and i % 100 == 0:
                k._direct.forget()  # type: ignore[union-attr]

    k(ones(4, 1), ones(4, 1))
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_calls_leak_nothing(tmp_path: Path) -> None:
    """Neither objects nor memory: good calls, refused ones, and kernels that are dropped."""
    k = load(tmp_path, adding(4, "m"))
    a, bad = ones(4, 8), ones(8, 4).t()

    def work(rounds: int) -> None:
        for _ in range(rounds):
            k(a, a)
            k(a, a, a)
            with pytest.raises(ValueError, match=r"contiguous|compact"):
                k(bad, bad)

    work(300)
    gc.collect()
    references = [sys.getrefcount(one) for one in (a, torch.Tensor, k)]
    before = resident()
    work(3000)
    gc.collect()
    assert [sys.getrefcount(one) for one in (a, torch.Tensor, k)] == references
    assert resident() - before < 4 << 20


def test_a_dropped_kernel_is_collected(tmp_path: Path) -> None:
    kernels = load_all(tmp_path, k=[adding(4, causal=True), adding(4, causal=False)])
    for _ in range(2):
        kernels.k(ones(4), ones(4), causal=True)
    bound = kernels.k.bind(causal=False)
    bound(ones(4), ones(4))
    bound(ones(4), ones(4))
    gone = weakref.ref(kernels.k), weakref.ref(bound)
    del kernels, bound
    gc.collect()
    assert gone[0]() is None
    assert gone[1]() is None


def test_the_callable_alone_outlives_the_kernels(tmp_path: Path) -> None:
    k = load(tmp_path, adding(4))
    k(ones(4), ones(4))
    call = k.__call__
    del k
    gc.collect()
    assert call(ones(4), ones(4)).sum() == 8
    with pytest.raises(DispatchError):
        call(ones(5), ones(5))


def test_fork_between_calls(tmp_path: Path) -> None:
    """The child calls on with what the parent knew, and with what it did not."""
    program = """
import os, sys, torch, tlaot
torch.set_num_threads(1)
k = tlaot.load("pk_direct", sys.argv[1]).k
a = torch.ones(4)
for _ in range(3):
    k(a, a)
child = os.fork()
if child == 0:
    ok = all(k(a, a).tolist() == [2.0] * 4 for _ in range(100)) and k(torch.ones(5), torch.ones(5)).tolist() == [2.0] * 5
    os._exit(0 if ok else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert k(a, a).tolist() == [2.0] * 4
"""
    write_package(tmp_path, PACKAGE, {"k": [adding(4), adding(5)]})
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)


def test_declarations_are_python_s(tmp_path: Path) -> None:
    """What the library declares of the stable ABI is what this Python's own headers say."""
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        pytest.skip("Python's headers are not installed")
    ours = Path(tlaot.__file__).parent / "tune" / "native" / "direct" / "python_api.h"
    text = ours.read_text()
    functions = [
        line for line in text.splitlines() if line.endswith(");") and not line.startswith(("typedef", "#", " "))
    ]
    assert len(functions) > 30
    slots = [line.strip().rstrip(",") for line in text.splitlines() if line.startswith("  Py_tp_")]
    checks = "".join(
        f"_Static_assert({name.strip()} == {value}, {name.strip()!r});\n".replace("'", '"')
        for name, value in (slot.split("=") for slot in slots)
    )
    source = tmp_path / "check.c"
    source.write_text(
        "#define Py_LIMITED_API 0x030a0000\n#include <Python.h>\n#include <stddef.h>\n"
        + "\n".join(functions)
        + f"\n{checks}"
        + '_Static_assert(Py_TPFLAGS_HAVE_GC == 1u << 14 && METH_VARARGS == 1 && METH_NOARGS == 4, "flags");\n'
        '_Static_assert(sizeof(PyObject) == 16 && sizeof(PyType_Spec) == 32 && sizeof(PyMethodDef) == 32, "sizes");\n'
        '_Static_assert(offsetof(PyObject, ob_type) == 8, "head");\n'
    )
    subprocess.run(["gcc", "-fsyntax-only", f"-I{headers}", str(source)], check=True)


def test_what_makes_calls_fast_comes_when_there_are_any(tmp_path: Path, deferred: None) -> None:
    """A first call makes nothing for others; the second has the library told; what it hands back is found in Python from the third on."""
    seen.forget()
    k = load(tmp_path, adding(4, 8))
    a = ones(4, 8)
    assert k(a, a).sum() == 64
    assert k._direct is None
    assert k(a, a).sum() == 64
    assert counts(k) == [({"n": 8}, 0)]
    assert k(a, a).sum() == 64
    assert counts(k) == [({"n": 8}, 1)]
    assert not k._callers
    assert [one.times for one in tlaot.coverage(PACKAGE).seen if one.outcome == "hit"] == [1]
    learning = torch.nn.Parameter(ones(4, 8))  # which the library hands back, for the error to be worded
    for _ in range(4):
        with pytest.raises(CallError, match="requires a gradient"):
            k(a, learning)
    assert k(a, a).sum() == 64


def test_sizes_of_an_open_dimension_are_told_once(tmp_path: Path, deferred: None) -> None:
    k = load(tmp_path, adding("m"))
    for size in range(1, 9):
        assert k(ones(size), ones(size)).sum() == 2 * size
    assert counts(k) == [({"n": "m"}, 6)]


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("direct", ["0", "1"])
def test_no_argument_outlives_its_call(
    tmp_path: Path, deferred: None, monkeypatch: pytest.MonkeyPatch, kind: str, direct: str
) -> None:
    """What is kept of a call is what was decided, not what it was called with."""
    monkeypatch.setenv("TLAOT_DIRECT", direct)
    numpy = pytest.importorskip("numpy")
    kernels = load_all(tmp_path, k=[adding(4), adding("m")])
    gone = []
    for size in (4, 5, 4, 5, 6, 4, 6):
        arrays = [ones(size) if kind == "torch" else numpy.ones(size, "f4") for _ in range(2)]
        out = kernels.k(*arrays)
        assert float(out.sum()) == 2 * size
        gone += [weakref.ref(one) for one in (*arrays, out)]
        del arrays, out
    gc.collect()
    assert [one() for one in gone] == [None] * len(gone)
