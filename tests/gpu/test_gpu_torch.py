"""The installed ``sample_pkg`` as torch's operators on a GPU: streams, graphs, compiled programs."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

import tlaot  # noqa: E402
import tlaot.torch  # noqa: E402
from tlaot.manifest import Variant  # noqa: E402

NAMES = ["matmul", "softmax", "rms_norm"]


@pytest.fixture(scope="module")
def kernels() -> Any:
    try:
        found = tlaot.load("sample_pkg")
    except tlaot.PackageError as error:
        pytest.skip(f"sample_pkg is not installed with kernels: {error}")
    tlaot.torch.register("sample_pkg")
    return found


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    torch._dynamo.reset()


def operator(name: str) -> Any:
    return getattr(torch.ops.sample_pkg, name)


def arguments(kernel: Any, seed: int = 0, device: str = "cuda") -> list[Any]:
    """Inputs of the first variant that this device runs."""
    generator = torch.Generator(device).manual_seed(seed)
    for variant in kernel.variants:
        if not variant.target.startswith("cuda"):
            continue
        args = [_input(variant, i, generator, device) for i in range(len(variant.params)) if i not in variant.out_idx]
        try:
            if kernel.resolve(*args) == variant:
                return args
        except tlaot.DispatchError:
            continue
    pytest.skip(f"no CUDA variant of {kernel.name} runs on this device")


def _input(variant: Variant, position: int, generator: Any, device: str) -> Any:
    param = variant.params[position]
    return torch.randn(param.shape, generator=generator, device=device).to(getattr(torch, param.dtype))


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_a_plain_call(kernels: Any, name: str) -> None:
    args = arguments(kernels[name])
    expected = kernels[name](*args)
    assert torch.equal(operator(name)(*args), expected)
    out = torch.full_like(expected, float("nan"))
    operator(name).out(*args, out)
    assert torch.equal(out, expected)
    assert operator(name)(*(x.to("meta") for x in args)).shape == expected.shape


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(kernels: Any, name: str) -> None:
    args = tuple(arguments(kernels[name]))
    results = torch.library.opcheck(operator(name).default, args)
    assert set(results.values()) == {"SUCCESS"}, results


@pytest.mark.parametrize("name", NAMES)
def test_runs_on_the_current_stream(kernels: Any, name: str) -> None:
    """Behind a long wait on a side stream: on another one the kernel would read the inputs before they are there."""
    args = arguments(kernels[name])
    expected = operator(name)(*args)
    late = [torch.zeros_like(x) for x in args]
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        for to, x in zip(late, args, strict=True):
            to.copy_(x)
        out = operator(name)(*late)
        assert not stream.query(), "the wait is over before the call returned: nothing is shown"
    stream.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("name", NAMES)
def test_captured_in_a_graph(kernels: Any, name: str) -> None:
    args = arguments(kernels[name])
    operator(name)(*args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = operator(name)(*args)
    fresh = arguments(kernels[name], seed=1)
    for to, x in zip(args, fresh, strict=True):
        to.copy_(x)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, kernels[name](*fresh))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("name", NAMES)
def test_compiled_by_inductor(kernels: Any, name: str, mode: str) -> None:
    """Between operations that Inductor fuses; in CUDA graphs with reduce-overhead."""
    op = operator(name)

    def program(first: Any, *rest: Any) -> Any:
        return op(first * 1, *rest) + 1

    compiled = torch.compile(program, fullgraph=True, mode=mode)
    for seed in range(4):
        args = arguments(kernels[name], seed)
        torch.testing.assert_close(compiled(*args).clone(), program(*args))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", NAMES)
def test_second_device(kernels: Any, name: str) -> None:
    for current, device in ((0, 1), (1, 0)):
        with torch.cuda.device(current):
            args = arguments(kernels[name], device=f"cuda:{device}")
            out = operator(name)(*args)
            assert out.device.index == device
            assert torch.equal(out, kernels[name](*args))
            assert torch.cuda.current_device() == current


def test_two_devices_in_one_call(kernels: Any) -> None:
    a, b = arguments(kernels.matmul)
    with pytest.raises(tlaot.CallError, match="Move all tensors to one device"):
        torch.ops.sample_pkg.matmul(a, b.cpu())
    torch.cuda.synchronize()
