"""Calls: who allocates outputs, what may be passed, and that nothing wrong gets through."""

from __future__ import annotations

import importlib.util
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from fixtures_runtime import FLOAT32, both_ways, compile_kernel, scalar, tensor, variant, write_variant  # noqa: F401

from tlaot.errors import CallError, DispatchError, PackageError
from tlaot.manifest import Kernel, Manifest, Param, Variant
from tlaot.runtime.kernel import Kernel as LoadedKernel
from tlaot.runtime.load import open_manifest

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.usefixtures("both_ways")

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")


def kernel(tmp_path: Path, *built: tuple[Variant, bytes]) -> LoadedKernel:
    """A kernel of the given variants, its files under the test's folder."""
    variants = [write_variant(tmp_path, one, binary) for one, binary in built]
    return open_manifest(Manifest("pkg", {"k": Kernel("k", tuple(variants))}, "0"), tmp_path).k


def add(tmp_path: Path, *sizes: int | str, align: int = 1, **shape: Any) -> LoadedKernel:
    params = [tensor(name, *sizes, align=align, written=name == "C") for name in "ABC"]
    return kernel(tmp_path, (variant("k", params, [2], shape), compile_kernel(3, 0b100, align=align, dtype=FLOAT32)))


FRAMEWORKS = ["numpy", pytest.param("torch", marks=needs_torch)]


def ones(framework: str, *sizes: int, value: float = 1) -> Any:
    array = np.full(sizes, value, "f4")
    if framework == "numpy":
        return array
    import torch

    return torch.from_numpy(array)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_outputs_left_out_are_allocated(tmp_path: Path, framework: str) -> None:
    """By the inputs' framework, with the dtype and the shape of the output; a new one each call."""
    k = add(tmp_path, 4, 8)
    a, b = ones(framework, 4, 8), ones(framework, 4, 8, value=2)
    first, second = k(a, b), k(b, b)
    assert type(first) is type(a)
    assert first.dtype == a.dtype
    assert tuple(first.shape) == (4, 8)
    assert float(first.sum()) == 3 * 32
    assert float(second.sum()) == 4 * 32


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_outputs_given_are_written_in_place_and_returned(tmp_path: Path, framework: str) -> None:
    """The very object that was passed comes back."""
    k = add(tmp_path, 4, 8)
    a, out = ones(framework, 4, 8), ones(framework, 4, 8, value=-1)
    assert k(a, a, out) is out
    assert float(out.sum()) == 2 * 32


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_several_outputs_anywhere(tmp_path: Path, framework: str) -> None:
    """An output before the inputs and one after: a list, in the order of out_idx, as TileLang returns it."""
    params = [tensor("Y", 4, written=True), tensor("X", 4), tensor("Z", 4, written=True)]
    k = kernel(tmp_path, (variant("k", params, [0, 2], {}), compile_kernel(3, 0b101)))
    outs = k(ones(framework, 4, value=3))
    assert isinstance(outs, list)
    assert [float(o.sum()) for o in outs] == [12, 12]
    y, z = ones(framework, 4), ones(framework, 4)
    given = k(y, ones(framework, 4, value=5), z)
    assert given[0] is y
    assert given[1] is z
    assert float(y.sum()) == float(z.sum()) == 20


def test_order_of_out_idx_is_kept(tmp_path: Path) -> None:
    """out_idx [2, 0] returns parameter 2 first."""
    params = [tensor("Y", 4, written=True), tensor("X", 4), tensor("Z", 5, written=True)]
    k = kernel(tmp_path, (variant("k", params, [2, 0], {}), compile_kernel(3, 0b101)))
    assert [o.shape for o in k(np.ones(4, "f4"))] == [(5,), (4,)]


def test_no_declared_output_returns_none(tmp_path: Path) -> None:
    """All parameters are passed; what the kernel writes is in them."""
    params = [tensor("X", 4), tensor("Y", 4, written=True)]
    k = kernel(tmp_path, (variant("k", params, [], {}), compile_kernel(2, 0b10)))
    y = np.zeros(4, "f4")
    assert k(np.ones(4, "f4"), y) is None
    assert y.sum() == 4


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_symbolic_sizes_of_outputs(tmp_path: Path, framework: str) -> None:
    """Bound from the inputs, for each shape anew; zero rows give an empty output."""
    k = add(tmp_path, "m", 8)
    for m in (3, 5, 0, 1, 3):
        out = k(ones(framework, m, 8), ones(framework, m, 8))
        assert tuple(out.shape) == (m, 8)
        assert float(out.sum()) == 2 * 8 * m


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_scalar_may_be_the_size_of_an_output(tmp_path: Path, framework: str) -> None:
    """The size is taken anew on each call, though the tensors look the same."""
    params = [tensor("X", 4), scalar("n", "int32"), tensor("Y", "n", written=True)]
    k = kernel(tmp_path, (variant("k", params, [2], {}), compile_kernel(3, 0b100)))
    for n in (4, 2, 7, 0):
        out = k(ones(framework, 4), n)
        assert tuple(out.shape) == (n,)
        assert float(out.sum()) == n * n


def test_an_output_size_that_is_computed_from_others(tmp_path: Path) -> None:
    """Such a size has the text of its expression for a name."""
    params = [tensor("X", "m"), tensor("Y", "m*2", written=True)]
    k = kernel(tmp_path, (variant("k", params, [1], {}), compile_kernel(2, 0b10)))
    with pytest.raises(
        CallError, match=r"Y has the size m\*2, computed from others, which tlaot does not do\nPass the"
    ):
        k(np.ones(4, "f4"))
    assert k(np.ones(4, "f4"), np.zeros(8, "f4")).shape == (8,)


def test_an_output_size_that_nothing_gives(tmp_path: Path) -> None:
    """Not to be guessed: the outputs must be passed, and then it works."""
    params = [tensor("X", 4), tensor("Y", "n", written=True)]
    k = kernel(tmp_path, (variant("k", params, [1], {}), compile_kernel(2, 0b10)))
    with pytest.raises(CallError, match=r"do not give the size n of the output Y\nPass the outputs"):
        k(np.ones(4, "f4"))
    assert k(np.ones(4, "f4"), np.zeros(6, "f4")).sum() == 6


def test_scalars(tmp_path: Path) -> None:
    """int, float, bool and numpy's numbers; other kinds are refused."""
    params = [tensor("X", 4), scalar("s"), tensor("Y", 4, written=True)]
    k = kernel(tmp_path, (variant("k", params, [2], {}), compile_kernel(3, 0b100)))
    x = np.ones(4, "f4")
    for value in (2, 2.5, np.float32(0.5), np.float64(0.25), np.int64(3)):
        assert k(x, value).sum() == 4 * float(value)
    for value in (True, x, None):
        with pytest.raises(DispatchError):
            k(x, value)
    for value in ("2", 1j, np.bool_(True), [1.0]):
        with pytest.raises(CallError, match="neither a tensor"):
            k(x, value)


def test_factory_arguments_choose(tmp_path: Path) -> None:
    """Two workloads that take the same tensors are told apart by keyword, on every call."""
    params = [tensor("X", 4), tensor("Y", 4, written=True)]
    built = [(variant("k", params, [1], {"causal": flag}), compile_kernel(2, 0b10, label=10 * flag)) for flag in (0, 1)]
    k = kernel(tmp_path, *built)
    x = np.ones(4, "f4")
    with pytest.raises(CallError, match="differ in causal"):
        k(x)
    for _ in range(3):
        assert k(x, causal=0).sum() == 4
        assert k(x, causal=1).sum() == 44
    with pytest.raises(CallError, match="did you mean 'causal'"):
        k(x, casual=1)
    with pytest.raises(CallError, match="differ in causal"):
        k(x)


def test_tensors_by_keyword_are_told_to_be_positional(tmp_path: Path) -> None:
    k = add(tmp_path, 4, 8)
    a = ones("numpy", 4, 8)
    for args, named in (((), {"A": a, "B": a}), ((a,), {"B": a})):
        with pytest.raises(CallError, match=r"pkg\.k: tensors are positional, got [AB] by keyword"):
            k(*args, **named)


def test_two_shapes_and_two_dtypes_in_turn(tmp_path: Path) -> None:
    """A later call never runs what an earlier one chose, whichever way they alternate."""

    def build(n: int, dtype: str, label: int) -> tuple[Variant, bytes]:
        params = [tensor("X", n, dtype=dtype), tensor("Y", n, written=True)]
        return variant("k", params, [1], {"n": n, "dtype": dtype}), compile_kernel(2, 0b10, label=label)

    k = kernel(tmp_path, build(4, "float32", 1), build(5, "float32", 2), build(4, "int32", 3))
    for _ in range(3):
        assert k(np.zeros(4, "f4")).tolist() == [1] * 4
        assert k(np.zeros(5, "f4")).tolist() == [2] * 5
        assert k(np.zeros(4, "i4")).tolist() == [3] * 4
    with pytest.raises(DispatchError):
        k(np.zeros(5, "i4"))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_refused_after_a_call_that_worked(tmp_path: Path, framework: str) -> None:
    """With the call's shapes already known: wrong dtype, wrong layout, wrong place are still errors, in our words."""
    k = add(tmp_path, 4, 8)
    good = ones(framework, 4, 8)
    k(good, good)
    with pytest.raises(DispatchError, match="has dtype float64, expected float32"):
        k(good, ones(framework, 4, 8).astype("f8") if framework == "numpy" else good.double())
    with pytest.raises((DispatchError, ValueError), match="compact"):
        k(good, ones(framework, 4, 16)[:, ::2])
    with pytest.raises(DispatchError, match=r"has shape \(8, 4\), expected \(4, 8\)"):
        k(good, good.T)
    with pytest.raises(CallError, match="got 1 arguments"):
        k(good)
    assert float(k(good, good).sum()) == 64


def test_numpy_read_only_inputs(tmp_path: Path) -> None:
    """Accepted as inputs, without a copy being kept; refused where the kernel writes."""
    k = add(tmp_path, 4, 8)
    a = np.ones((4, 8), "f4")
    a.flags.writeable = False
    assert k(a, a).sum() == 64
    with pytest.raises(CallError, match=r"argument C: is read-only, and the kernel writes it"):
        k(a, a, a)
    assert (a == 1).all()
    mapped = np.broadcast_to(np.ones(8, "f4"), (4, 8))
    with pytest.raises(ValueError, match="compact"):
        k(mapped, mapped)


def test_numpy_of_foreign_byte_order_and_masked(tmp_path: Path) -> None:
    """Both look like float32 of the right shape; both would compute nonsense."""
    k = add(tmp_path, 4, 8)
    a = np.ones((4, 8), "f4")
    k(a, a)
    for read_only in (False, True):
        swapped = np.ones((4, 8), ">f4")
        swapped.flags.writeable = not read_only
        with pytest.raises(DispatchError, match="float32 of foreign byte order"):
            k(a, swapped)
    with pytest.raises(CallError, match="masked"):
        k(a, np.ma.masked_array(a, a > 0))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_numpy_with_ml_dtypes(tmp_path: Path, dtype: str) -> None:
    """numpy cannot export these through DLPack itself; inputs, given outputs and allocated ones all work."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    params = [tensor("X", 4, dtype=dtype), tensor("Y", 4, dtype=dtype, written=True)]
    k = kernel(tmp_path, (variant("k", params, [1], {}), compile_kernel(2, 0b10)))
    x = np.arange(4).astype(getattr(ml_dtypes, dtype))
    out = k(x)
    assert out.dtype == x.dtype
    assert out.astype("f4").tolist() == [0, 1, 2, 3]
    given = np.zeros_like(x)
    assert k(x, given) is given
    assert given.astype("f4").tolist() == [0, 1, 2, 3]
    x.flags.writeable = False
    assert k(x).astype("f4").tolist() == [0, 1, 2, 3]


def test_numpy_without_the_dtype_of_an_output(tmp_path: Path) -> None:
    """An output of a type that numpy does not have must be passed."""
    params = [tensor("X", 4), tensor("Y", 4, dtype="float5_unheard_of", written=True)]
    k = kernel(tmp_path, (variant("k", params, [1], {}), compile_kernel(2, 0b10)))
    with pytest.raises(CallError, match="numpy has no dtype float5_unheard_of"):
        k(np.ones(4, "f4"))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("align", [64, 4096])
def test_allocated_outputs_are_as_aligned_as_the_kernel_assumes(tmp_path: Path, framework: str, align: int) -> None:
    """More than malloc gives; the kernel itself refuses anything less."""
    if framework == "torch" and align > 64:
        pytest.skip("torch's allocator on the CPU aligns to 64 bytes")
    params = [tensor("X", 4), tensor("Y", 3, 5, align=align, written=True)]
    k = kernel(tmp_path, (variant("k", params, [1], {}), compile_kernel(2, 0b10)))
    keep = [k(ones(framework, 4)) for _ in range(20)]
    for out in keep:
        address = out.ctypes.data if framework == "numpy" else out.data_ptr()
        assert address % align == 0
        assert tuple(out.shape) == (3, 5)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_output_with_strides_of_its_own(tmp_path: Path, framework: str) -> None:
    """Allocated in the kernel's layout, not in the framework's."""
    params = [tensor("X", "m", 3), Param("Y", "int32", ("m", 3), (1, "m"), 4, True)]
    k = kernel(tmp_path, (variant("k", params, [1], {}), compile_kernel(2, 0b10)))
    with pytest.raises(ValueError, match="compact"):
        k(ones(framework, 4, 3))
    params = [tensor("X", 4, 3), Param("Y", "float32", (4, 3), (3, 1), 4, True)]
    k = kernel(tmp_path / "compact", (variant("k", params, [1], {}), compile_kernel(2, 0b10)))
    assert float(k(ones(framework, 4, 3)).sum()) == 12


def test_tvm_ffi_tensors(tmp_path: Path) -> None:
    """Taken as they are; they cannot allocate, so outputs are passed."""
    import tvm_ffi

    k = add(tmp_path, 4, 8)
    a, out = np.ones((4, 8), "f4"), np.zeros((4, 8), "f4")
    x = tvm_ffi.from_dlpack(a)
    k(x, x, tvm_ffi.from_dlpack(out))
    assert out.sum() == 64
    with pytest.raises(CallError, match="Pass the outputs"):
        k(x, x)


class Foreign:
    """An array of a framework that is known by the DLPack and array API protocols only."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape, self.dtype, self.device = array.shape, array.dtype, "cpu"

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.array.__dlpack_device__()
        return device

    def __array_namespace__(self) -> Any:
        return ForeignNamespace


class ForeignNamespace:
    float32 = "float32"

    @staticmethod
    def empty(sizes: tuple[int, ...], dtype: str, device: str) -> Foreign:
        assert device == "cpu"
        return Foreign(np.empty(sizes, dtype))


def test_any_dlpack_array(tmp_path: Path) -> None:
    """Described, passed and allocated through the standards alone."""
    k = add(tmp_path, 4, 8)
    x = Foreign(np.ones((4, 8), "f4"))
    for _ in range(2):
        out = k(x, x)
        assert isinstance(out, Foreign)
        assert out.array.sum() == 64
    with pytest.raises(DispatchError, match="dtype float64"):
        k(x, Foreign(np.ones((4, 8))))


def test_a_cuda_only_kernel_given_cpu_tensors(tmp_path: Path) -> None:
    """No device is asked for anything: the tensors say where they are."""
    one = variant("k", [tensor("X", 4), tensor("Y", 4, written=True)], [1], {}, "cuda:sm_90a")
    k = kernel(tmp_path, (one, b"not loaded"))
    with pytest.raises(DispatchError, match=r"is for CUDA, the tensors are on cpu\n.*\.cuda\(\)"):
        k(np.ones(4, "f4"))


def test_the_best_level_is_asked_of_the_binary(tmp_path: Path) -> None:
    """On a processor whose level is 2 the v2 binary runs, and a v3 one does not."""
    params = [tensor("X", 4), tensor("Y", 4, written=True)]
    levels = {"x86-64": 1, "x86-64-v2": 2, "x86-64-v3": 3}
    built = [
        (variant("k", params, [1], {}, f"llvm:{level}"), compile_kernel(2, 0b10, level=2, label=label))
        for level, label in levels.items()
    ]
    assert kernel(tmp_path / "all", *built)(np.zeros(4, "f4")).tolist() == [2] * 4
    with pytest.raises(DispatchError, match="needs x86-64-v3, this processor has x86-64-v2"):
        kernel(tmp_path / "high", built[2])(np.zeros(4, "f4"))


def test_resolve_says_which_variant_would_run(tmp_path: Path) -> None:
    """The variant as data, without running it."""
    k = add(tmp_path, 4, 8, N=8)
    assert k.resolve(np.ones((4, 8), "f4"), np.ones((4, 8), "f4")) is k.variants[0]
    with pytest.raises(DispatchError):
        k.resolve(np.ones((4, 9), "f4"), np.ones((4, 8), "f4"))


def test_an_error_of_the_kernel_itself_is_passed_on(tmp_path: Path) -> None:
    """What only the executable can see (alignment) comes through as it says it."""
    k = add(tmp_path, 4, 8, align=16)
    block = np.zeros(4 * 8 * 4 + 64, "u1")
    start = -block.ctypes.data % 16 + 4
    a = np.ones((4, 8), "f4")
    skewed = block[start : start + 128].view("f4").reshape(4, 8)
    for _ in range(2):
        with pytest.raises(ValueError, match="is not aligned"):
            k(a, skewed)


def test_callers_do_not_grow_without_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ever new sizes of a dynamic kernel."""
    from tlaot.runtime import path

    monkeypatch.setattr(path, "_MOST_CALLERS", 16)
    k = add(tmp_path, "m")
    for m in range(100):
        assert k(np.ones(m, "f4"), np.ones(m, "f4")).sum() == 2 * m
    assert all(len(callers) <= 4 for _, callers in k._callers.values())


def test_threads_that_forget_each_others_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More sizes than are remembered, in several threads and with several types at once: every result is its call's."""
    from tlaot.runtime import path

    monkeypatch.setattr(path, "_MOST_CALLERS", 2)
    k, wrong = add(tmp_path, "m"), []

    def work(seed: int) -> None:
        for i in range(400):
            m = (i * 7 + seed) % 5 + 1
            x = np.full(m, seed, "f4")
            try:
                out = k(x, x) if i % 2 else k(x, Foreign(x))
            except BaseException as error:
                wrong.append(error)
                return
            if out.tolist() != [2 * seed] * m:
                wrong.append((m, out))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong


def test_a_missing_binary_is_reported_by_the_call(tmp_path: Path) -> None:
    """Only the call that needs it fails."""
    k = add(tmp_path, 4, 8)
    (tmp_path / k.variants[0].path / "executable.so").unlink()
    with pytest.raises(PackageError, match="cannot be read"):
        k(np.ones((4, 8), "f4"), np.ones((4, 8), "f4"))


@needs_torch
def test_torch_tensors_that_would_be_silently_wrong(tmp_path: Path) -> None:
    """A gradient that would be lost, a lazy negation that DLPack does not see, and tensors without memory."""
    import torch

    k = add(tmp_path, 4, 8)
    a = torch.ones(4, 8)
    k(a, a)
    wants = torch.ones(4, 8, requires_grad=True)
    with pytest.raises(CallError, match=r"argument B: requires a gradient.*\n.*no_grad"):
        k(a, wants)
    with torch.no_grad():
        assert float(k(a, wants).sum()) == 64
    with pytest.raises(CallError, match="requires a gradient"):
        k(a, wants)
    assert float(k(a, wants.detach()).sum()) == 64
    assert float(k(a, torch.nn.Parameter(wants.detach(), requires_grad=False)).sum()) == 64
    with pytest.raises(CallError, match="lazily negated"):
        k(a, torch.complex(a, a).conj().imag)
    for bad in (torch.ones(4, 8, device="meta"), torch.ones(4, 8).to_sparse()):
        with pytest.raises(CallError, match="Pass a dense tensor on cpu or cuda"):
            k(a, bad)


@needs_torch
def test_torch_and_numpy_together(tmp_path: Path) -> None:
    """The first tensor's framework allocates."""
    import torch

    k = add(tmp_path, 4, 8)
    a, b = torch.ones(4, 8), np.ones((4, 8), "f4")
    for _ in range(2):
        assert isinstance(k(a, b), torch.Tensor)
        assert isinstance(k(b, a), np.ndarray)
    b.flags.writeable = False
    assert float(k(a, b).sum()) == 64


@needs_torch
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "bool", "float64"])
def test_torch_dtypes(tmp_path: Path, dtype: str) -> None:
    """Described by DLPack's names, and allocated."""
    import torch

    params = [tensor("X", 4, dtype=dtype), tensor("Y", 4, dtype=dtype, written=True)]
    k = kernel(tmp_path, (variant("k", params, [1], {}), compile_kernel(2, 0b10)))
    x = torch.tensor([0, 1, 1, 0]).to(getattr(torch, dtype))
    assert k(x).float().tolist() == [0, 1, 1, 0]
    assert k(x).dtype == x.dtype
