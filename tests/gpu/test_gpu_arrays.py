"""Arrays of CuPy and JAX, and calls from C++, on a GPU, with the softmax of the installed ``sample_pkg``."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

import tlaot  # noqa: E402


@pytest.fixture(scope="module")
def softmax() -> Any:
    try:
        return tlaot.load("sample_pkg").softmax
    except tlaot.PackageError as error:
        pytest.skip(f"sample_pkg is not installed with kernels: {error}")


def example(softmax: Any) -> Any:
    """An input on the GPU for one of the variants that run there, made by torch."""
    for variant in softmax.variants:
        if variant.target.startswith("cuda"):
            x = torch.randn(variant.params[0].shape, device="cuda").to(getattr(torch, variant.params[0].dtype))
            try:
                softmax.resolve(x)
            except tlaot.DispatchError:
                continue
            return x
    pytest.skip("no CUDA variant runs on this device")


def close(found: Any, x: Any) -> bool:
    return bool(torch.allclose(found.double(), x.double().softmax(-1), rtol=1e-2, atol=1e-6))


def test_cupy_in_and_out(softmax: Any) -> None:
    cupy = pytest.importorskip("cupy")
    x = example(softmax)
    mine = cupy.from_dlpack(x)
    for _ in range(2):
        made = softmax(mine)
        assert isinstance(made, cupy.ndarray)
        assert close(torch.from_dlpack(made), x)
        given = cupy.zeros_like(mine)
        assert softmax(mine, given) is given
        assert bool((given == made).all())


@pytest.mark.parametrize("non_blocking", [False, True])
def test_cupy_on_a_stream(softmax: Any, non_blocking: bool) -> None:
    """Behind a long wait on CuPy's stream: elsewhere the kernel would read the input before it is there."""
    cupy = pytest.importorskip("cupy")
    x = example(softmax)
    mine = cupy.from_dlpack(x)
    softmax(mine)
    late = cupy.zeros_like(mine)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=non_blocking)
    with stream, torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        torch.cuda._sleep(200_000_000)
        late[...] = mine
        out = softmax(late)
        twice = out + out  # on the same stream, after it
    stream.synchronize()
    assert close(torch.from_dlpack(out), x)
    assert bool((twice == out + out).all())


def test_jax_in_and_another_framework_out(softmax: Any) -> None:
    """JAX's arrays are read; a result is an array that may be written."""
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU here")
    x = example(softmax)
    theirs = jax.numpy.from_dlpack(x)
    out = torch.empty_like(x)
    softmax(theirs, out)
    assert close(out, x)
    with pytest.raises(tlaot.CallError, match="cannot be allocated by JAX on this device"):
        softmax(theirs)
    with pytest.raises(tlaot.CallError, match="is immutable"):
        softmax(theirs, theirs)


def test_cpp_on_a_stream(softmax: Any, tmp_path: Path) -> None:
    """The C++ headers pick the variant of the device and run on the stream of their scope."""
    if not shutil.which("g++"):
        pytest.skip("needs g++")
    from cpp_programs import build_embedded

    import sample_pkg

    x = example(softmax)
    out, stream = torch.zeros_like(x), torch.cuda.Stream()
    call = build_embedded(tmp_path)
    dtype = str(x.dtype).removeprefix("torch.")
    folder = Path(sample_pkg.__file__).parent
    where = "softmax", x.data_ptr(), out.data_ptr(), dtype, *x.shape, x.device.index
    torch.cuda.synchronize()
    assert call(folder, *where, stream=stream.cuda_stream) == ""
    stream.synchronize()
    assert close(out, x)
    assert call(folder, *where[:4], 1, 3, x.device.index).startswith("DispatchError")
