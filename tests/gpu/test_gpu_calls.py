"""Calls on a GPU the direct way: streams, threads, devices, captures, forks; every result right, and memory flat."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

PROGRAM = Path(__file__).with_name("call_program.py")


@pytest.fixture(scope="module")
def kernels() -> Any:
    sample = pytest.importorskip("sample_pkg")
    return sample.kernels()


def inputs(size: int = 1024, device: Any = "cuda") -> tuple[Any, Any]:
    return tuple(torch.randn(size, size, dtype=torch.float16, device=device) for _ in range(2))  # type: ignore[return-value]


def close(found: Any, a: Any, b: Any) -> bool:
    return torch.allclose(found.float(), a.float() @ b.float(), rtol=2e-2, atol=2e-1)


def direct_calls(kernel: Any) -> int:
    return sum(count for _, count in kernel._direct.calls()) if kernel._direct is not None else 0


def test_the_direct_way_is_taken(kernels: Any) -> None:
    a, b = inputs()
    matmul = kernels.matmul
    c = torch.empty_like(a)
    assert close(matmul(a, b), a, b)
    matmul(a, b, c)
    before = direct_calls(matmul)
    for _ in range(5):
        assert close(matmul(a, b), a, b)
        assert matmul(a, b, c) is c
    assert direct_calls(matmul) == before + 10
    assert close(c, a, b)


def test_the_current_stream(kernels: Any) -> None:
    """A call waits for what its stream was told before, and for nothing else: the input is written late on a side stream."""
    a, b = inputs()
    matmul, side = kernels.matmul, torch.cuda.Stream()
    matmul(a, b)
    late = torch.zeros_like(a)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        late.copy_(a)
        out = matmul(late, b)
    side.synchronize()
    assert close(out, a, b)
    assert torch.cuda.current_stream() != side


def test_a_capture_and_its_replays(kernels: Any) -> None:
    a, b = inputs()
    matmul, c = kernels.matmul, torch.empty_like(a)
    matmul(a, b, c)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        matmul(a, b, c)
        made = matmul(c, b)
    a.copy_(torch.randn_like(a) / 32)
    graph.replay()
    torch.cuda.synchronize()
    assert close(c, a, b)
    assert close(made, c, b)


def test_refused_and_alive(kernels: Any) -> None:
    """Misaligned, strided, on another device, with a gradient; the context is alive afterwards."""
    a, b = inputs()
    matmul = kernels.matmul
    matmul(a, b)
    block = torch.empty(1024 * 1024 + 8, dtype=torch.float16, device="cuda")
    skewed = block[1 : 1 + 1024 * 1024].view(1024, 1024)
    for wrong in ((skewed, b), (a.t(), b), (a.cpu(), b), (a.float(), b), (a.clone().requires_grad_(), b)):
        with pytest.raises((ValueError, RuntimeError, TypeError, LookupError)):
            matmul(*wrong)
    torch.cuda.synchronize()
    assert close(matmul(a, b), a, b)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_two_devices_in_turn(kernels: Any) -> None:
    pairs = [inputs(device=f"cuda:{i}") for i in range(2)]
    for _ in range(3):
        for a, b in pairs:
            out = kernels.matmul(a, b)
            assert out.device == a.device
            assert close(out, a, b)
    with pytest.raises(Exception, match="device"):
        kernels.matmul(pairs[0][0], pairs[1][1])


def test_threads_with_streams_of_their_own(kernels: Any) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        torch.manual_seed(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            a, b = inputs()
            expected = kernels.matmul(a, b).clone()
            for i in range(200):
                out = kernels.matmul(a, b)
                if i % 50 == 0 and not torch.equal(out, expected):
                    wrong.append(seed)
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_8_threads_of_100_000_calls(kernels: Any) -> None:
    """Two streams, a fork in between; no wrong result, and the memory of host and device flat (call_program.py)."""
    calls = os.environ.get("TLAOT_TEST_CALLS", "100000")
    done = subprocess.run([sys.executable, str(PROGRAM), "--calls", calls], capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every result is right" in done.stdout


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer(kernels: Any, tool: str) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    command = [sanitizer, "--tool", tool, "--error-exitcode", "99", sys.executable, str(PROGRAM), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
