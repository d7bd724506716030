"""Misaligned views on a GPU: an error or a copy, on any stream and under capture, and the CUDA context lives on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

import tlaot  # noqa: E402
from tlaot.manifest import Kernel, read_manifest  # noqa: E402
from tlaot.runtime.load import open_manifest  # noqa: E402
from tlaot.runtime.locate import find_manifest  # noqa: E402


def kernels(**properties: Any) -> Any:
    """The sample's kernels, as if its ``tltune.toml`` had said more of them."""
    try:
        path = find_manifest("sample_pkg")
    except tlaot.PackageError as error:
        pytest.skip(f"sample_pkg is not installed with kernels: {error}")
    manifest = read_manifest(path)
    changed = {
        name: Kernel(
            name,
            tuple(dataclasses.replace(v, properties={**v.properties, **properties}) for v in kernel.variants),
        )
        for name, kernel in manifest.kernels.items()
    }
    return open_manifest(dataclasses.replace(manifest, kernels=changed), path.parent)


@pytest.fixture(autouse=True)
def alive() -> Iterator[None]:
    yield
    torch.cuda.synchronize()
    assert (torch.ones(8, device="cuda") + 1).sum().item() == 16


def softmax_case(loaded: Any) -> tuple[Any, Any, Any]:
    """The kernel, an aligned input, and a function that makes a view of a tensor's values offset by one element."""
    for variant in loaded.softmax.variants:
        if variant.target.startswith("cuda"):
            param = variant.params[0]
            x = torch.randn(param.shape, device="cuda").to(getattr(torch, param.dtype))
            try:
                loaded.softmax.resolve(x)
            except tlaot.DispatchError:
                continue
            if param.align <= x.element_size():
                continue

            def offset(values: Any) -> Any:
                flat = torch.empty(values.numel() + 1, dtype=values.dtype, device="cuda")[1:]
                return flat.view(values.shape).copy_(values)

            return loaded.softmax, x, offset
    pytest.skip("no softmax of this device assumes more than an element's alignment")


def right(out: Any, x: Any) -> None:
    torch.testing.assert_close(out.double(), x.double().softmax(-1), rtol=1e-2, atol=1e-3)


def test_a_misaligned_view_is_refused(alive: None) -> None:
    """As input and as output, many times; nothing is written, and aligned calls go on."""
    softmax, x, offset = softmax_case(kernels())
    out = torch.full_like(x, 7)
    for _ in range(100):
        for args in ((offset(x), out), (x, offset(out))):
            with pytest.raises(ValueError, match="misaligned data"):
                softmax(*args)
    assert (out == 7).all()
    right(softmax(x), x)


def test_a_misaligned_view_is_copied(alive: None) -> None:
    """Input and output, in the order of the stream that is current, behind work that is still running there."""
    softmax, x, offset = softmax_case(kernels(on_misaligned="copy"))
    right(softmax(offset(x)), x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        late, out = offset(torch.zeros_like(x)), offset(torch.zeros_like(x))
        torch.cuda._sleep(20_000_000)
        late.copy_(x)
        assert softmax(late, out) is out
        copied = out.clone()
        out.zero_()
    stream.synchronize()
    right(copied, x)
    assert (out == 0).all()


def test_a_copy_is_captured(alive: None) -> None:
    """The copies are nodes of the graph: it replays on new values."""
    softmax, x, offset = softmax_case(kernels(on_misaligned="copy"))
    held, out = offset(x), offset(torch.zeros_like(x))
    softmax(held, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        softmax(held, out)
    for seed in range(3):
        fresh = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).to(x)
        held.copy_(fresh)
        graph.replay()
        right(out, fresh)


def test_a_kernel_that_is_not_deterministic_refuses(alive: None) -> None:
    """While torch wants determinism, and no longer."""
    softmax, x, _ = softmax_case(kernels(deterministic=False))
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(tlaot.CallError, match="same bits twice"):
            softmax(x)
    finally:
        torch.use_deterministic_algorithms(False)
    right(softmax(x), x)
