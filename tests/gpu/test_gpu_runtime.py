"""The run-time side on a GPU, with the kernels of the installed ``sample_pkg``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

import tlaot  # noqa: E402
from tlaot.manifest import Variant  # noqa: E402

TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 4e-2, torch.float32: 1e-4}


@pytest.fixture(scope="module")
def kernels() -> Any:
    try:
        return tlaot.load("sample_pkg")
    except tlaot.PackageError as error:
        pytest.skip(f"sample_pkg is not installed with kernels: {error}")


def runnable(kernel: Any) -> list[Variant]:
    """The kernel's variants that this device runs, the best of each workload; those with open sizes last."""
    found = []
    for variant in kernel.variants:
        if variant.target.startswith("cuda"):
            try:
                chosen = kernel.resolve(*inputs(variant), **variant.shape)
            except tlaot.DispatchError:
                continue
            if chosen == variant:
                found.append(variant)
    if not found:
        pytest.skip(f"no CUDA variant of {kernel.name} runs on this device")
    return sorted(found, key=lambda variant: bool(variant.buckets))


def inputs(variant: Variant, seed: int = 0, device: str = "cuda") -> list[Any]:
    generator = torch.Generator(device).manual_seed(seed)
    open_sizes = {name: low for bucket in variant.buckets for name, (low, _) in bucket.sizes.items()}
    return [
        torch.randn([open_sizes.get(size, size) for size in p.shape], generator=generator, device=device).to(
            getattr(torch, p.dtype)
        )
        for i, p in enumerate(variant.params)
        if i not in variant.out_idx
    ]


def expected(kernel: Any, args: list[Any]) -> Any:
    wide = [a.double() for a in args]
    if kernel.name == "matmul":
        return wide[0] @ wide[1]
    if kernel.name == "softmax":
        return wide[0].softmax(-1)
    return wide[0] / (wide[0].pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * wide[1]


def check(out: Any, want: Any) -> None:
    error = ((out.double() - want).abs() / (want.abs() + want.abs().mean())).max().item()
    # Not "error > tolerance": NaN must not pass.
    assert error <= TOLERANCE[out.dtype], error


NAMES = ["matmul", "softmax", "rms_norm"]


@pytest.mark.parametrize("name", NAMES)
def test_values_of_every_variant(kernels: Any, name: str) -> None:
    """All shapes and dtypes, in turn, twice, with fresh values: at least two shapes of each kernel."""
    kernel = kernels[name]
    variants = runnable(kernel)
    assert len({str(v.shape) for v in variants}) >= 2
    for seed in (0, 1):
        for variant in variants:
            args = inputs(variant, seed)
            out = kernel(*args)
            assert out.device == args[0].device
            check(out, expected(kernel, args))
            given = torch.full_like(out, float("nan"))
            assert kernel(*args, given) is given
            assert torch.equal(given, out)


@pytest.mark.parametrize("name", NAMES)
def test_runs_on_the_current_stream(kernels: Any, name: str) -> None:
    """On a side stream, behind a long wait: without it the kernel would read the inputs before they are there."""
    kernel = kernels[name]
    variant = runnable(kernel)[0]
    args = inputs(variant)
    kernel(*args)
    stream = torch.cuda.Stream()
    late = [torch.zeros_like(a) for a in args]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        for to, a in zip(late, args, strict=True):
            to.copy_(a)
        out = kernel(*late)
        assert not stream.query(), "the wait is over before the call returned: nothing is shown"
    stream.synchronize()
    check(out, expected(kernel, args))


@pytest.mark.parametrize("name", NAMES)
def test_graph_capture(kernels: Any, name: str) -> None:
    """Captured, and replayed with other values in the same memory."""
    kernel = kernels[name]
    variant = runnable(kernel)[0]
    args = inputs(variant)
    out = kernel(*args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(*args, out)
        allocated = kernel(*args)
    for seed in (3, 4):
        fresh = inputs(variant, seed)
        for to, a in zip(args, fresh, strict=True):
            to.copy_(a)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        check(out, expected(kernel, fresh))
        check(allocated, expected(kernel, fresh))


def test_first_call_under_graph_capture(kernels: Any) -> None:
    """Even a kernel that was never called before can be captured."""
    fresh = tlaot.load("sample_pkg")
    variant = runnable(fresh.softmax)[-1]
    args = inputs(variant)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = fresh.softmax(*args)
    graph.replay()
    torch.cuda.synchronize()
    check(out, expected(fresh.softmax, args))


def refused(kernel: Any, args: list[Any], kinds: Any, says: str) -> None:
    with pytest.raises(kinds, match=says):
        kernel(*args)
    torch.cuda.synchronize()


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_refused(kernels: Any, name: str, warm: bool) -> None:
    """Wrong shape, dtype, device, layout and alignment, before and after a good call; the context survives all of them."""
    kernel = tlaot.load("sample_pkg")[name]
    variant = runnable(kernel)[0]
    good = inputs(variant)
    if warm:
        kernel(*good)
    first, rest = good[0], good[1:]
    missed = tlaot.DispatchError
    refused(kernel, [first[:-1], *rest], missed, "has shape")
    refused(kernel, [first.double(), *rest], missed, "has dtype float64")
    on_cpu = [a.cpu() for a in good]
    refused(kernel, on_cpu, missed, "cpu")
    if rest:
        refused(kernel, [first, *on_cpu[1:]], tlaot.CallError, "Move all tensors to one device")
    strided = torch.empty(first.shape[0], first.shape[1] * 2, dtype=first.dtype, device="cuda")[:, ::2]
    refused(kernel, [strided, *rest], (ValueError, tlaot.DispatchError), "stride|compact|contiguous")
    block = torch.empty(first.numel() + 1, dtype=first.dtype, device="cuda")
    refused(kernel, [block[1:].view(first.shape), *rest], ValueError, "align")
    with torch.enable_grad():
        refused(kernel, [first.requires_grad_(), *rest], tlaot.CallError, "requires a gradient")
    check(kernel(first.detach(), *rest), expected(kernel, [first.detach(), *rest]))


def test_empty_tensors(kernels: Any) -> None:
    """Dispatched by shape as any other: a miss that says so, unless a dynamic variant takes them; never a crash."""
    kernel = kernels.softmax
    args = [torch.empty(0, *p.shape[1:], dtype=torch.float16, device="cuda") for p in kernel.variants[0].params[:1]]
    try:
        out = kernel(*args)
    except tlaot.DispatchError as error:
        assert "[0, " in str(error)
    else:
        assert out.numel() == 0
    torch.cuda.synchronize()


def test_threads_with_streams_of_their_own(kernels: Any) -> None:
    """Four threads, each on its own stream, all kernels, none disturbs another."""
    jobs = [(kernels[name], runnable(kernels[name])[0]) for name in NAMES]
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    for kernel, variant in jobs:
                        args = inputs(variant, seed)
                        check(kernel(*args), expected(kernel, args))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", NAMES)
def test_second_device(kernels: Any, name: str) -> None:
    """On the inputs' device, whichever is current; the current one is left as it was."""
    kernel = kernels[name]
    variant = runnable(kernel)[0]
    for current, device in ((0, 1), (1, 0), (1, 1)):
        with torch.cuda.device(current):
            args = inputs(variant, device=f"cuda:{device}")
            out = kernel(*args)
            assert out.device.index == device
            assert torch.cuda.current_device() == current
            check(out, expected(kernel, args))


def test_no_gpu_memory_is_kept(kernels: Any) -> None:
    """Described calls hold no tensors."""
    kernel = kernels.softmax
    variant = runnable(kernel)[0]
    run: Callable[[], Any] = lambda: kernel(*inputs(variant))  # noqa: E731
    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(10):
        run()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
