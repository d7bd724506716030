"""Arrays beyond numpy's plain ones and torch's: each gives the right result or a clear error, and nothing read-only is written."""

from __future__ import annotations

import array
import ctypes
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from fixtures_runtime import FLOAT32, compile_kernel, scalar, tensor, variant
from test_call import Foreign, kernel

from tlaot.errors import CallError, DispatchError
from tlaot.manifest import Param
from tlaot.runtime.dlpack_arrays import CUPY
from tlaot.runtime.kernel import Kernel

np = pytest.importorskip("numpy")


def add(folder: Path, *sizes: int | str, dtype: str = "float32", in_place: bool = False, **rest: Any) -> Kernel:
    """C = A + B in float32; of another dtype C = A. ``in_place``: A is written as well, as the outputs are."""
    params = [tensor(name, *sizes, dtype=dtype, written=name == "C", **rest) for name in "ABC"]
    binary = compile_kernel(3, 0b100, dtype=FLOAT32 if dtype == "float32" else 0)
    if in_place:
        params[0] = tensor("A", *sizes, dtype=dtype, written=True)
    return kernel(folder, (variant("k", params, [2], {}), binary))


def ones(*sizes: int) -> Any:
    return np.ones(sizes, "f4")


def read_only(x: Any) -> Any:
    x.flags.writeable = False
    return x


# numpy


def test_what_numpy_calls_an_array(tmp_path: Path) -> None:
    """Subclasses, memory maps, views of a struct's field that are compact."""
    k, a = add(tmp_path, 4, 8), ones(4, 8)
    a.tofile(tmp_path / "file")
    for x in (
        a.view(np.recarray),
        type("Own", (np.ndarray,), {})((4, 8), "f4", a),
        np.memmap(tmp_path / "file", "f4", "r+", shape=(4, 8)),
        np.memmap(tmp_path / "file", "f4", "r", shape=(4, 8)),
        ones(4, 8).view([("x", "f4")])["x"],
        np.ones((8, 8), "f4")[2:6],
        np.lib.stride_tricks.sliding_window_view(ones(35), 8)[::8][:4],
        np.frombuffer(a.tobytes(), "f4").reshape(4, 8),
    ):
        for _ in range(2):
            assert k(x, a).sum() == 64


@pytest.mark.parametrize("first", [True, False])
def test_layouts_that_the_kernel_does_not_take(tmp_path: Path, first: bool) -> None:
    """Fortran order, a step, backwards, one row for all: also where a call of these shapes has worked before."""
    k, a = add(tmp_path, 4, 8), ones(4, 8)
    if not first:
        k(a, a)
    for x in (
        np.asfortranarray(a),
        np.ones((4, 16), "f4")[:, ::2],
        a[::-1],
        np.broadcast_to(np.ones(8, "f4"), (4, 8)),
        np.zeros((4, 8), [("x", "f4"), ("y", "f4")])["x"],
    ):
        with pytest.raises(ValueError, match=r"argument 0.*compact"):
            k(x, a)
        with pytest.raises((ValueError, CallError), match=r"argument 2.*compact|argument C: is read-only"):
            k(a, a, x)
    # The stride of a dimension of size one addresses nothing.
    one = add(tmp_path / "one", 1, 8)
    assert one(np.asfortranarray(ones(1, 8)), ones(4, 8)[::4]).sum() == 16


@pytest.mark.parametrize(
    "dtype", [">f4", [("x", "f4")], object, "M8[s]", "S4", "S0", "V4", "c8", "f2", "i4", "b1", np.longdouble]
)
def test_dtypes_that_the_kernel_does_not_take(tmp_path: Path, dtype: Any) -> None:
    """Named as numpy names them; before and after a call that worked, as input and as output, read-only or not."""
    k, a = add(tmp_path, 4, 8), ones(4, 8)
    for _ in range(2):
        for x in (np.zeros((4, 8), dtype), read_only(np.zeros((4, 8), dtype))):
            with pytest.raises(DispatchError, match=r"argument 1 \(B\) has dtype .*, expected float32"):
                k(a, x)
            with pytest.raises(DispatchError, match=r"argument 2 \(C\) has dtype .*, expected float32"):
                k(a, a, x)
        k(a, a)


def test_no_dimensions(tmp_path: Path) -> None:
    """An array without dimensions is a tensor; numpy's scalar is a number, and no tensor."""
    k, x = add(tmp_path), np.array(2, "f4")
    assert float(k(x, x)) == 4
    assert k(x, x).shape == ()
    out = np.zeros((), "f4")
    assert k(x, x, out) is out
    assert float(out) == 4
    with pytest.raises(DispatchError, match=r"argument 0 \(A\) is a Python float, expected a tensor float32\[\]"):
        k(np.float32(2), x)
    scaled = kernel(
        tmp_path / "s",
        (
            variant("k", [tensor("X", 4), scalar("s"), tensor("Y", 4, written=True)], [2], {}),
            compile_kernel(3, 0b100),
        ),
    )
    with pytest.raises(DispatchError, match=r"argument 1 \(s\) is a tensor, expected a scalar"):
        scaled(ones(4), x)
    assert scaled(ones(4), x[()]).sum() == 8


def test_memory_that_is_no_array(tmp_path: Path) -> None:
    """What has a buffer is told how to become an array; a list is not."""
    k, a = add(tmp_path, 4, 8), ones(4, 8)
    for x in (memoryview(a), bytearray(128), bytes(128), array.array("f", [1] * 32), (ctypes.c_float * 32)()):
        with pytest.raises(CallError, match=r"is neither a tensor .* nor a number\nPass numpy\.asarray\(x\)"):
            k(x, a)
    for nothing in ([[1.0] * 8] * 4, (1.0,), "a"):
        with pytest.raises(CallError, match=r"nor a number\nPass tensors"):
            k(nothing, a)
    # Which some kernels take for a tensor that they never look at.
    with pytest.raises(DispatchError, match=r"argument 0 \(A\) is None, expected float32\[4, 8\]"):
        k(None, a)


def test_read_only_numpy_arrays_that_a_kernel_writes(tmp_path: Path) -> None:
    """Inputs that it updates as well as outputs; what may be written is not copied."""
    k = add(tmp_path, 4, 8, in_place=True)
    fixed = read_only(ones(4, 8))
    for _ in range(2):
        with pytest.raises(CallError, match="argument A: is read-only, and the kernel writes it"):
            k(fixed, ones(4, 8))
        with pytest.raises(CallError, match="argument C: is read-only, and the kernel writes it"):
            k(ones(4, 8), ones(4, 8), fixed)
        assert k(ones(4, 8), fixed).sum() == 64
        out = ones(4, 8)
        assert k(ones(4, 8), fixed, out) is out
        assert out.sum() == 64
    assert fixed.sum() == 32


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "float4_e2m1fn"])
def test_what_numpy_does_not_pack(tmp_path: Path, dtype: str) -> None:
    """ml_dtypes gives an element of half a byte a whole one: with a kernel's packing that is another array."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    if not hasattr(ml_dtypes, dtype):
        pytest.skip(f"this ml_dtypes has no {dtype}")
    k, x = add(tmp_path, 4, 8, dtype=dtype), np.ones((4, 8), getattr(ml_dtypes, dtype))
    for _ in range(2):
        with pytest.raises(DispatchError, match=f"has dtype {dtype} of a byte each, expected {dtype}"):
            k(x, x)
    mixed = [tensor("A", 4), tensor("C", 4, dtype=dtype, written=True)]
    other = kernel(tmp_path / "out", (variant("k", mixed, [1], {}), compile_kernel(2, 0b10)))
    with pytest.raises(CallError, match=f"output C: numpy gives each {dtype} a byte, a kernel packs them"):
        other(ones(4))


# DLPack alone


class Bare:
    """No more than the protocol: no shape, no dtype. Exports of a version that was asked for, or, ``old``, knows none.

    ``flags`` are set in what it exports.
    """

    def __init__(self, data: Any, old: bool = False, flags: int | None = None) -> None:
        self.data, self.old, self.flags, self.asked = data, old, flags, []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        self.asked.append(options)
        if self.old and options:
            raise TypeError("unexpected keyword")
        capsule = self.data.__dlpack__(**options)
        if options and self.flags is not None:
            get = ctypes.pythonapi.PyCapsule_GetPointer
            get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            head = get(capsule, b"dltensor_versioned")
            ctypes.c_uint64.from_address(head + 24).value = self.flags
        return capsule


VERSIONED = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
needs_versioned = pytest.mark.skipif(not VERSIONED, reason="this numpy exports no DLPack 1.0")


@pytest.mark.parametrize("old", [False, True])
def test_no_more_than_the_protocol(tmp_path: Path, old: bool) -> None:
    """As input and as output; shapes and dtypes are dispatched on; outputs cannot be left out."""
    k = add(tmp_path, 4, 8)
    for _ in range(2):
        out = np.zeros((4, 8), "f4")
        given = Bare(out, old)
        assert k(Bare(ones(4, 8), old), Bare(ones(4, 8), old), given) is given
        assert out.sum() == 64
        with pytest.raises(DispatchError, match=r"\(B\) has shape \(4, 9\), expected \(4, 8\)"):
            k(Bare(ones(4, 8), old), Bare(ones(4, 9), old), out)
        with pytest.raises(DispatchError, match=r"\(A\) has dtype float64"):
            k(Bare(np.ones((4, 8)), old), Bare(ones(4, 8), old), out)
        with pytest.raises(CallError, match=r"output C: cannot be allocated beside a .*Bare\nPass the outputs too"):
            k(Bare(ones(4, 8), old), Bare(ones(4, 8), old))


def test_strides_of_what_has_no_strides(tmp_path: Path) -> None:
    """Where a kernel takes another layout than the compact one, the exported tensor says what it is."""
    turned = [Param("X", "float32", (4, 3), (1, 4), 4), tensor("Y", 4, 3, written=True)]
    k = kernel(tmp_path, (variant("k", turned, [1], {}), compile_kernel(2, 0b10)))
    for _ in range(2):
        with pytest.raises(DispatchError, match=r"\(X\) has strides \(3, 1\), expected \(1, 4\)"):
            k(Bare(ones(4, 3)), ones(4, 3))
        with pytest.raises(
            ValueError, match="is not compact"
        ):  # past dispatch: the stand-in binary takes no such layout
            k(Bare(ones(3, 4).T), ones(4, 3))


@needs_versioned
def test_the_read_only_flag_of_dlpack_1(tmp_path: Path) -> None:
    """A kernel that writes the array refuses, whatever an unversioned export would give; one that reads takes it."""
    k = add(tmp_path, 4, 8, in_place=True)
    fixed, out = ones(4, 8), np.zeros((4, 8), "f4")
    for _ in range(2):
        with pytest.raises(CallError, match="argument C: is read-only, and the kernel writes it"):
            k(Bare(ones(4, 8)), Bare(ones(4, 8)), Bare(fixed, flags=1))
        with pytest.raises(CallError, match="argument A: is read-only"):
            k(Bare(fixed, flags=1), Bare(ones(4, 8)), out)
        k(Bare(ones(4, 8)), Bare(fixed, flags=1), Bare(out))
        assert out.sum() == 64
        # Another flag of the standard: the producer made a copy.
        k(Bare(ones(4, 8)), Bare(fixed), Bare(out, flags=2))
    assert fixed.sum() == 32


@needs_versioned
def test_an_export_that_only_dlpack_1_has(tmp_path: Path) -> None:
    """numpy's read-only arrays behind the protocol: no capsule without a version."""
    k, fixed = add(tmp_path, 4, 8), read_only(ones(4, 8))
    out = np.zeros((4, 8), "f4")
    for _ in range(2):
        k(Bare(fixed), Foreign(fixed), Bare(out))
        assert out.sum() == 64
        with pytest.raises(CallError, match="argument C: is read-only, and the kernel writes it"):
            k(Bare(fixed), Foreign(fixed), Bare(fixed))
        with pytest.raises(CallError, match="argument C: is read-only, and the kernel writes it"):
            k(ones(4, 8), ones(4, 8), Foreign(fixed))
    assert fixed.sum() == 32


def test_an_array_over_several_devices(tmp_path: Path) -> None:
    class Sharded(Bare):
        def __dlpack_device__(self) -> tuple[int, int]:
            raise BufferError("only supported for unsharded arrays")

    k = add(tmp_path, 4, 8)
    for _ in range(2):
        with pytest.raises(
            CallError, match=r"cannot be exported \(only supported for unsharded arrays\)\nPass an array"
        ):
            k(Sharded(ones(4, 8)), ones(4, 8))
        k(ones(4, 8), ones(4, 8))


def test_the_standard_array_namespace(tmp_path: Path) -> None:
    """array-api-strict has what the standard has and nothing else."""
    xp = pytest.importorskip("array_api_strict")
    k, x = add(tmp_path, 4, 8), xp.ones((4, 8), dtype=xp.float32)
    for _ in range(2):
        made = k(x, x)
        assert type(made) is type(x)
        assert float(xp.sum(made)) == 64
        out = xp.zeros((4, 8), dtype=xp.float32)
        assert k(x, x, out) is out
        assert float(xp.sum(out)) == 64
        with pytest.raises(DispatchError, match="dtype float64"):
            k(x, xp.ones((4, 8), dtype=xp.float64))


# JAX

needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")


@needs_jax
def test_jax_on_the_cpu(tmp_path: Path) -> None:
    """Inputs as they are, results as new JAX arrays, bfloat16 too; an array is waited for."""
    import jax
    import jax.numpy as jnp

    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        k = add(tmp_path, 4, 8)
        x = jnp.ones((4, 8), jnp.float32)
        for _ in range(2):
            made = k(x, x + 1)
            assert isinstance(made, jax.Array)
            assert made.dtype == jnp.float32
            assert float(made.sum()) == 96
            assert float((made * 2).sum()) == 192
        out = np.zeros((4, 8), "f4")
        assert k(x, np.asarray(x), out) is out
        assert out.sum() == 64
        half = add(tmp_path / "half", 4, 8, dtype="bfloat16")
        for _ in range(2):
            made = half(jnp.ones((4, 8), jnp.bfloat16), jnp.ones((4, 8), jnp.bfloat16))
            assert made.dtype == jnp.bfloat16
            assert float(made.astype(jnp.float32).sum()) == 32
        several = [tensor("X", "m"), tensor("Y", "m", written=True), tensor("Z", "m", written=True)]
        two = kernel(tmp_path / "two", (variant("k", several, [1, 2], {}), compile_kernel(3, 0b110)))
        for m in (3, 5, 3):
            assert [type(one) is type(x) and float(one.sum()) for one in two(jnp.ones(m))] == [m, m]


@needs_jax
def test_jax_arrays_are_not_written(tmp_path: Path) -> None:
    """They are immutable, and JAX may have given the same memory to others; its DLPack export does not say so."""
    import jax.numpy as jnp

    k = add(tmp_path, 4, 8, in_place=True)
    x = jnp.ones((4, 8), jnp.float32)
    for _ in range(2):
        with pytest.raises(
            CallError, match=r"argument C: is a jaxlib.*, which is immutable, and the kernel writes it\nL"
        ):
            k(ones(4, 8), x, x)
        with pytest.raises(CallError, match=r"argument A: is a jaxlib.*, which is immutable"):
            k(x, x)
    assert float(x.sum()) == 32


@needs_jax
def test_jax_while_it_traces_and_without_64_bits(tmp_path: Path) -> None:
    import jax
    import jax.numpy as jnp

    k = add(tmp_path, 4, 8)
    x = jnp.ones((4, 8), jnp.float32)
    k(x, x)
    for transform in (jax.jit, jax.vmap, jax.grad):
        with pytest.raises(CallError, match=r"Tracer: stands for an array while JAX traces.*\n.*pure_callback"):
            transform(lambda x: k(x, x))(x)
    wanted = jax.ShapeDtypeStruct((4, 8), jnp.float32)
    called = jax.jit(lambda x: jax.pure_callback(k, wanted, x, x))
    assert float(called(x).sum()) == 64
    if not jax.config.jax_enable_x64:
        params = [tensor("X", 4), tensor("Y", 4, dtype="float64", written=True)]
        wide = kernel(tmp_path / "wide", (variant("k", params, [1], {}), compile_kernel(2, 0b10)))
        with pytest.raises(CallError, match="JAX has float64 only with jax_enable_x64"):
            wide(jnp.ones(4))


def test_jax_arrays_on_a_gpu_do_not_allocate() -> None:
    """Its streams are its own: a result would be read before it is written."""
    from tlaot.runtime.dlpack_arrays import JAX

    like = types.SimpleNamespace(__dlpack_device__=lambda: (2, 0))
    with pytest.raises(CallError, match=r"output C: cannot be allocated by JAX on this device.*\n.*CuPy or torch"):
        JAX.allocator(tensor("C", 4, written=True), like, (4,))


# CuPy: what can be told without a GPU; tests/gpu/test_gpu_arrays.py has the rest


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A module of that name with a current stream and a current device."""
    module = types.SimpleNamespace(stream=0, current=0, seen=[], float32="float32")

    class Device:
        def __init__(self, ordinal: int) -> None:
            self.ordinal = ordinal

        def __enter__(self) -> None:
            self.former, module.current = module.current, self.ordinal

        def __exit__(self, *error: object) -> None:
            module.current = self.former

    def current_stream(ordinal: int) -> Any:
        module.seen.append(ordinal)
        return types.SimpleNamespace(ptr=module.stream)

    module.cuda = types.SimpleNamespace(Device=Device, get_current_stream=current_stream)
    module.empty = lambda sizes, dtype: (sizes, dtype, module.current)
    monkeypatch.setitem(sys.modules, "cupy", module)  # type: ignore[arg-type]
    return module


def test_cupy_calls_run_on_its_current_stream(cupy: types.SimpleNamespace) -> None:
    """Of the arrays' device, asked at each call; the stream of before is there afterwards, also after an error."""
    import tvm_ffi

    device, found = tvm_ffi.device("cuda:1"), []
    x = types.SimpleNamespace(__dlpack_device__=lambda: (2, 1))

    def function(*args: Any) -> None:
        found.append(tvm_ffi.get_raw_stream(device))
        if args[0] == "fail":
            raise ValueError("no")

    before = tvm_ffi.get_raw_stream(device)
    run = CUPY.protect(function, [(0, tensor("A", 4), x)])
    for stream in (0, 4096, 8192, 0):
        cupy.stream = stream
        run("go")
    cupy.stream = 12288
    with pytest.raises(ValueError, match="no"):
        run("fail")
    assert found == [before, 4096, 8192, before, 12288]
    assert cupy.seen == [1] * 5
    assert tvm_ffi.get_raw_stream(device) == before


def test_cupy_allocates_on_the_arrays_device(cupy: types.SimpleNamespace) -> None:
    like = types.SimpleNamespace(device=cupy.cuda.Device(3))
    make = CUPY.allocator(tensor("C", 4, 8, written=True), like, (4, 8))
    assert make(None) == ((4, 8), "float32", 3)
    assert cupy.current == 0
    with pytest.raises(CallError, match="output C: cannot be allocated"):
        CUPY.allocator(tensor("C", 4, dtype="bfloat16", written=True), like, (4,))
