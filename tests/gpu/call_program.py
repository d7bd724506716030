"""Calls of the installed sample's kernels from many threads, for test_gpu_calls.py: exit status 1 where a result is wrong or memory grows.

python tests/gpu/call_program.py [--calls 100000] [--threads 8]      threads, two streams each in turn, a fork in between
python tests/gpu/call_program.py --once                              each kernel once in each way, under compute-sanitizer
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sample_pkg import kernels

# What Python's allocator, the driver and the threads' arenas may move between two looks.
MOST_HOST, MOST_DEVICE = 24 << 20, 8 << 20
CHECK_EACH = 5000


def matmul_inputs(seed: int) -> tuple[Any, Any]:
    made = torch.Generator("cuda").manual_seed(seed)
    return tuple(torch.randn(1024, 1024, dtype=torch.float16, device="cuda", generator=made) for _ in range(2))  # type: ignore[return-value]


def look() -> tuple[int, int]:
    """Bytes of memory: the process's, and the device's that is in use."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), total - free


def work(seed: int, calls: int, streams: Sequence[Any], wrong: list[str]) -> None:
    a, b = matmul_inputs(seed)
    c = torch.empty_like(a)
    torch.cuda.synchronize()
    matmul = kernels().matmul
    with torch.cuda.stream(streams[0]):
        expected = matmul(a, b).clone()
    torch.cuda.synchronize()
    for i in range(calls):
        with torch.cuda.stream(streams[i // 64 % 2]):
            out = matmul(a, b) if i % 2 else matmul(a, b, c)
            if i % CHECK_EACH == 0:
                torch.cuda.current_stream().synchronize()
                if not torch.equal(out, expected):
                    wrong.append(f"thread {seed}, call {i}")
            elif i % 64 == 63:  # of another stream's memory nothing is in use when the streams change
                torch.cuda.current_stream().synchronize()


def run_threads(streams: Sequence[Sequence[Any]], calls: int) -> list[str]:
    wrong: list[str] = []
    started = [threading.Thread(target=work, args=(seed, calls, own, wrong)) for seed, own in enumerate(streams)]
    for one in started:
        one.start()
    for one in started:
        one.join()
    return wrong


def fork_once() -> str:
    """A child that calls a CUDA kernel after its parent did: the error of that, and no hang; the parent goes on."""
    a, b = matmul_inputs(0)
    c = torch.empty_like(a)
    child = os.fork()
    if child == 0:
        try:
            kernels().matmul(a, b, c)
        except Exception as error:
            os._exit(0 if "fork" in str(error).lower() else 3)
        os._exit(4)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "" if status == 0 else f"the forked child ended with {status}"


def once() -> list[str]:
    for name in ("matmul", "softmax", "rms_norm"):
        for variant in kernels()[name].variants:
            if variant.target.startswith("cuda"):
                run_variant(kernels()[name], variant)
    torch.cuda.synchronize()
    return []


def run_variant(kernel: Any, variant: Any) -> None:
    """A call of a variant, with random tensors of its parameters' sizes."""
    given = [p for i, p in enumerate(variant.params) if i not in variant.out_idx]
    if any(not isinstance(size, int) or size > 1024 for p in given for size in p.shape or ("scalar",)):
        return  # under a sanitizer large ones take minutes
    args = [torch.randn(p.shape, device="cuda").to(getattr(torch, p.dtype)) for p in given]
    for _ in range(2):
        kernel(*args)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=100_000, help="of each thread")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    if options.once:
        wrong = once()
    else:
        # Made once: torch keeps memory for each stream that it has allocated on.
        streams = [[torch.cuda.Stream() for _ in range(2)] for _ in range(options.threads)]
        wrong = run_threads(streams, min(options.calls, 2000))
        before = look()
        wrong += run_threads(streams, options.calls // 2)
        wrong += filter(None, [fork_once()])
        wrong += run_threads(streams, options.calls - options.calls // 2)
        after = look()
        host, device = after[0] - before[0], after[1] - before[1]
        print(f"memory grew by {host >> 10} KiB of the host, {device >> 10} KiB of the device")
        if host > MOST_HOST or device > MOST_DEVICE:
            wrong.append("memory grew")
    print("\n".join(wrong) if wrong else "every result is right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
