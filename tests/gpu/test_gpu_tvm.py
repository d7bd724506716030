"""CUDA kernels of the TVM frontend on a real GPU.

They are compiled here where apache-tvm and nvcc are, or read from the folder that ``TLAOT_TEST_TVM_KERNELS`` names, which
``python tests/tvm_cases.py FOLDER`` has made where they are.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

from conftest import has_distribution  # noqa: E402
from tvm_cases import CASES, compile_case  # noqa: E402

import tlaot  # noqa: E402

ROWS = 37  # of the kernel with any number of rows

REFERENCES: dict[str, Callable[..., Any]] = {
    "matmul": lambda a, b: a @ b,
    "matmul_dynamic": lambda a, b: a @ b,
    "softmax": lambda x: x.softmax(-1),
    "row_sum": lambda x: x.sum(-1),
    "plus_one": lambda a: a + 1,
    "scale_shift": lambda a, factor, shift: a * factor + shift,
    "symbolic_rows": lambda a: a * 2 + torch.arange(a.shape[0], device=a.device)[:, None],
    "two_launches": lambda a: [a * a, (a * a).flip(0)],
}
SCALARS = {"factor": -1.5, "shift": 7}


@pytest.fixture(scope="module")
def load() -> Callable[[str], Any]:
    """A function from a case's name to its kernel."""
    folder, made = os.environ.get("TLAOT_TEST_TVM_KERNELS"), {}
    if not folder and not (has_distribution("apache-tvm") and shutil.which("nvcc")):
        pytest.skip("needs apache-tvm and nvcc, or TLAOT_TEST_TVM_KERNELS: a folder that tests/tvm_cases.py has filled")

    def get(name: str) -> Any:
        if name not in made:
            if folder:
                result = tlaot.AutotuneResult.load_from_disk(Path(folder) / name)
                assert result is not None, f"TLAOT_TEST_TVM_KERNELS has no folder {name}"
                assert "tvm" not in sys.modules
            else:
                major, minor = torch.cuda.get_device_capability()
                result = compile_case(name, f"cuda:sm_{major}{minor}{'a' if major >= 9 else ''}")
            made[name] = result.kernel
        return made[name]

    return get


def inputs(kernel: Any, seed: int = 0, rows: int = ROWS) -> list[Any]:
    generator = torch.Generator("cuda").manual_seed(seed)
    made: list[Any] = []
    for i, param in enumerate(kernel.params):
        if param.shape is None:
            made.append(SCALARS[param.name] + seed)
        elif i not in kernel.out_idx:
            shape = [rows if isinstance(size, str) else size for size in param.shape]
            made.append(torch.randn(shape, generator=generator, device="cuda"))
    return made


def check(name: str, out: Any, args: list[Any]) -> None:
    wide = [arg.double() if isinstance(arg, torch.Tensor) else arg for arg in args]
    wants = REFERENCES[name](*wide)
    for got, want in zip(*((x if isinstance(x, list) else [x]) for x in (out, wants)), strict=True):
        assert got.shape == want.shape
        assert got.dtype == torch.float32
        error = ((got.double() - want).abs() / (want.abs() + want.abs().mean())).max().item()
        # Not "error > tolerance": NaN must not pass.
        assert error <= 1e-4, error


def arranged(kernel: Any, args: list[Any], outs: list[Any]) -> list[Any]:
    """Inputs and outputs in the kernel's own order."""
    inputs_left, outs_left = iter(args), iter(outs)
    return [next(outs_left if i in kernel.out_idx else inputs_left) for i in range(len(kernel.params))]


def listed(out: Any) -> list[Any]:
    return out if isinstance(out, list) else [out]


def test_every_case_has_a_reference() -> None:
    assert set(REFERENCES) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_values(load: Callable[[str], Any], name: str) -> None:
    """Allocated and given outputs, several inputs; given outputs are poisoned first."""
    kernel = load(name)
    for seed in range(3):
        args = inputs(kernel, seed)
        out = kernel(*args)
        torch.cuda.synchronize()
        check(name, out, args)
        given = [torch.full_like(tensor, float("nan")) for tensor in listed(out)]
        kernel(*arranged(kernel, args, given))
        torch.cuda.synchronize()
        for one, other in zip(given, listed(out), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("name", CASES)
def test_side_stream(load: Callable[[str], Any], name: str) -> None:
    """Behind a long wait on a stream of its own: elsewhere the kernel would read its inputs before they are there."""
    kernel = load(name)
    args = inputs(kernel)
    kernel(*args)
    late = [torch.zeros_like(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        for to, arg in zip(late, args, strict=True):
            if isinstance(arg, torch.Tensor):
                to.copy_(arg)
        out = kernel(*late)
        assert not stream.query(), "the wait is over before the call returned: nothing is shown"
    stream.synchronize()
    check(name, out, args)


@pytest.mark.parametrize("name", CASES)
def test_graph_capture(load: Callable[[str], Any], name: str) -> None:
    """Captured with outputs given and allocated, and replayed with other values in the same memory."""
    kernel = load(name)
    args = inputs(kernel)
    out = kernel(*args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(*arranged(kernel, args, listed(out)))
        allocated = kernel(*args)
    for seed in (3, 4):
        for to, fresh in zip(args, inputs(kernel, seed), strict=True):
            if isinstance(fresh, torch.Tensor):
                to.copy_(fresh)
        for tensor in listed(out):
            tensor.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        check(name, out, args)
        check(name, allocated, args)


def refused(kernel: Any, args: list[Any], says: str) -> None:
    with pytest.raises((tlaot.TlaotError, ValueError, TypeError), match=says):
        kernel(*args)
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", CASES)
def test_what_is_refused(load: Callable[[str], Any], name: str) -> None:
    """Wrong shapes, dtypes, devices, layouts and kinds; the kernel works after all of them."""
    kernel = load(name)
    first, *rest = args = inputs(kernel)
    last_size = first.shape[-1]
    refused(kernel, [first[..., : last_size - 1].contiguous(), *rest], "shape")
    refused(kernel, [first[None], *rest], "dimensions|shape")
    refused(kernel, [first.double(), *rest], "dtype")
    refused(kernel, [first.cpu(), *rest], "cpu|device")
    refused(kernel, [first.repeat_interleave(2, -1)[..., ::2], *rest], "stride|contiguous|compact")
    refused(kernel, [*args, *args, *args, *args], "arguments")
    check(name, kernel(*args), args)


def test_vectors_need_aligned_addresses(load: Callable[[str], Any]) -> None:
    """Where the code loads four elements at once, a view that starts between them is refused; elsewhere it is taken."""
    block = torch.randn(4097, device="cuda")
    refused(load("plus_one"), [block[1:]], "align")
    wide = torch.randn(256 * 320 + 1, device="cuda")
    args = [wide[1:].view(256, 320), torch.randn(320, 192, device="cuda")]
    check("matmul", load("matmul")(*args), args)


@pytest.mark.parametrize("rows", [0, 1, 7, 1000, 100_000])
def test_any_number_of_rows(load: Callable[[str], Any], rows: int) -> None:
    kernel = load("symbolic_rows")
    args = inputs(kernel, rows=rows)
    out = kernel(*args)
    torch.cuda.synchronize()
    assert out.shape == (rows, 100)
    if rows:
        check("symbolic_rows", out, args)


def test_scalars_are_those_of_the_call(load: Callable[[str], Any]) -> None:
    kernel = load("scale_shift")
    a = torch.randn(4096, device="cuda")
    for factor, shift in ((0.1, -(2**20)), (1e-30, 0), (3, 1)):
        out = kernel(a, factor, shift)
        torch.cuda.synchronize()
        assert torch.allclose(out, a * factor + shift, rtol=1e-5, atol=0 if shift == 0 else 0.1)
    refused(kernel, [a, "x", 1], "argument 1|str")
    refused(kernel, [a, 0.5, 2**40], "range|int32")
