"""Before serving, on a GPU: what preloading takes of the device's memory, and first calls inside a graph capture.

Each test has a process of its own: what it is about happens once a process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

PRELUDE = """
import json, threading
import torch, tlaot
kernels = tlaot.load("sample_pkg")
def arguments(name):
    capability = torch.cuda.get_device_capability()
    for variant in kernels[name].variants:
        if variant.target.startswith("cuda"):
            made = [torch.randn(p.shape, device="cuda").to(getattr(torch, p.dtype))
                    for i, p in enumerate(variant.params) if i not in variant.out_idx]
            try:
                if kernels[name].resolve(*made, **variant.shape) == variant:
                    return made, variant.shape
            except tlaot.DispatchError:
                pass
    return None
calls = {name: found for name in kernels if (found := arguments(name))}
def run(): return {name: kernels[name](*args, **shape) for name, (args, shape) in calls.items()}
def right(outs):
    torch.cuda.synchronize()
    for name, out in outs.items():
        args = [a.double() for a in calls[name][0]]
        if name == "matmul": want = args[0] @ args[1]
        elif name == "softmax": want = args[0].softmax(-1)
        else: want = args[0] / (args[0].pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * args[1]
        assert ((out.double() - want).abs().max() <= 4e-2 * want.abs().max()).item(), name
torch.cuda.synchronize()
"""


def run(script: str) -> Any:
    done = subprocess.run([sys.executable, "-c", PRELUDE + script], capture_output=True, text=True, timeout=300)
    if "PackageError" in done.stderr and "has no packaged kernels" in done.stderr:
        pytest.skip("sample_pkg is not installed with kernels")
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("preload", [False, True])
def test_a_first_call_inside_a_capture(mode: str, preload: bool) -> None:
    """In each of CUDA's modes, preloaded or not: it is captured, replays on new values, and gives what is right."""
    script = f"""
if {preload}: kernels.preload()
graph = torch.cuda.CUDAGraph()
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.graph(graph, stream=stream, capture_error_mode={mode!r}):
    outs = run()
for _ in range(2):
    for args, _ in calls.values():
        for a in args: a.copy_(torch.randn_like(a))
    for out in outs.values(): out.fill_(float("nan"))
    graph.replay()
    right(outs)
print(json.dumps(len(calls)))
"""
    assert run(script) >= 1


def test_preloading_inside_a_capture_and_from_threads() -> None:
    """It is no more forbidden than a first call; and another thread may preload while this one captures."""
    script = """
graph = torch.cuda.CUDAGraph()
failed = []
def work():
    try: kernels.preload(0)
    except BaseException as error: failed.append(repr(error))
with torch.cuda.graph(graph):
    kernels.preload(0)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    outs = run()
graph.replay()
right(outs)
print(json.dumps(failed))
"""
    assert run(script) == []


def test_memory_is_taken_ahead() -> None:
    """After preloading, first calls take none of the device's memory but for their outputs, which torch has in its cache."""
    script = """
done = kernels.preload()
for name, (args, shape) in calls.items():  # torch's own kernels and cache
    outs = [torch.empty_like(args[0]) for _ in range(4)]
del outs
torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
before = torch.cuda.mem_get_info()[0]
outs = run()
torch.cuda.synchronize()
after = torch.cuda.mem_get_info()[0]
right(outs)
again = str(kernels.preload()) == str(done)
print(json.dumps([before - after, again, done.code, len(done.binaries)]))
"""
    taken, again, code, count = run(script)
    assert taken <= 0
    assert again is True
    assert code > 0
    assert count >= 1
