"""Compiling candidates: pools, pruning, and equal device code."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tlaot.errors import BuildError
from tlaot.target import parse_target
from tlaot.tune.children.child import Failed
from tlaot.tune.children.forkserver import close_servers
from tlaot.tune.compiling import worker
from tlaot.tune.compiling.compile import Built, CompilePool, Workshop, compile_candidates, expand_kernel
from tlaot.tune.compiling.nvcc import DeviceCode
from tlaot.tune.compiling.toolchain import CudaCompiler, HostCompiler, Toolchain, find_toolchain
from tlaot.tune.frontends import Lowered
from tlaot.tune.specs.plan import Candidate, Workload
from tlaot.tune.specs.spec import KernelSpec, Profile

HERE = Path(__file__).parent
LLVM, HOPPER = parse_target("llvm:x86-64-v3"), parse_target("cuda:sm_90a")

needs_tvm = pytest.mark.skipif(importlib.util.find_spec("tvm") is None, reason="apache-tvm is not installed")
needs_tilelang = pytest.mark.skipif(importlib.util.find_spec("tilelang") is None, reason="tilelang is not installed")

KERNELS = """
import os, time
from tvm import te

def scale(N, mode="plain"):
    if mode == "hang":
        time.sleep(600)
    if mode == "crash":
        os.kill(os.getpid(), 11)
    if mode == "kill server" and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getppid(), 9)
        time.sleep(60)
    if mode == "raise":
        raise ValueError("no such mode")
    a = te.placeholder((N,), "float32", name="A")
    return te.create_prim_func([a, te.compute((N,), lambda i: a[i] * 2.0, name="B")])
"""


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    """Two workers for the module above, on the CPU."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    yield make_workshop(tmp_path, cuda=False)
    close_servers()


@pytest.fixture
def cuda_workshop(tmp_path: Path) -> Iterator[Workshop]:
    """Two workers for the CUDA kernels of these tests."""
    try:
        yield make_workshop(tmp_path, cuda=True)
    except BuildError:
        pytest.skip("there is no nvcc")
    close_servers()


def make_workshop(tmp_path: Path, cuda: bool) -> Workshop:
    search_path = (str(tmp_path), str(HERE), *filter(None, sys.path))
    toolchain = find_toolchain(os.environ, cuda)
    return Workshop(tmp_path / "scratch", search_path, os.environ, tmp_path / "log", 2, toolchain, {})


def candidates_of(
    factory: str,
    frontend: str,
    target: Any,
    shape: Mapping[str, Any],
    configs: list[dict[str, Any]],
    timeout: float = 300,
) -> tuple[Candidate, ...]:
    profile = Profile(compile_timeout=timeout)
    kernel = KernelSpec("k", frontend, factory, (target,), (shape,), tuple(configs), "here", profile=profile)
    return Workload(kernel, target, shape, kernel.configs).candidates()


def scale(*modes: str, timeout: float = 60) -> tuple[Candidate, ...]:
    return candidates_of("kernels:scale", "tvm", LLVM, {"N": 64}, [{"mode": mode} for mode in modes], timeout)


@needs_tvm
def test_candidates_are_compiled_as_they_are_submitted(workshop: Workshop) -> None:
    with CompilePool("tvm", LLVM, workshop) as pool:
        assert pool.jobs == 2
        futures = [pool.submit(candidate) for candidate in scale("plain", "raise", "plain")]
        first, failed, last = (future.result(120) for future in futures)
    assert isinstance(first, Built) and isinstance(last, Built)
    assert (first.folder / "executable.so").read_bytes() == (last.folder / "executable.so").read_bytes()
    assert first.folder != last.folder
    assert isinstance(failed, Failed) and "no such mode" in failed.reason


@needs_tvm
def test_a_hang_or_crash_costs_that_candidate(workshop: Workshop) -> None:
    workshop.warm("tvm", LLVM)
    done: list[tuple[int, float]] = []
    outcomes = compile_candidates(
        scale("plain", "hang", "crash", "plain", "plain", timeout=12),
        "tvm",
        workshop,
        lambda candidate, outcome: done.append((candidate.index, time.monotonic())),
    )
    assert [isinstance(outcome, Built) for outcome in outcomes] == [True, False, False, True, True]
    hung, crashed = (outcome for outcome in outcomes if isinstance(outcome, Failed))
    assert hung.reason == "timed out after 12 s and was killed"
    assert crashed.reason.startswith("crashed with SIGSEGV")
    assert sorted(index for index, _ in done) == [0, 1, 2, 3, 4]


@needs_tvm
def test_a_killed_fork_server_costs_no_candidate(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workshop.log.parent)
    outcomes = compile_candidates(scale("kill server", "plain", "plain"), "tvm", workshop, lambda *_: None)
    assert Path("killed").exists()
    assert all(isinstance(outcome, Built) for outcome in outcomes), outcomes


@needs_tvm
def test_closing_a_pool_does_not_wait(workshop: Workshop) -> None:
    pool = CompilePool("tvm", LLVM, workshop)
    pool.submit(scale("plain")[0]).result(120)
    hanging = [pool.submit(candidate) for candidate in scale("hang", "hang", "plain", "plain", timeout=600)]
    time.sleep(0.5)
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 60, "it waited for a compiler that hangs for 600 s"
    outcomes = [future.result(0) for future in hanging[:2]]
    assert all(isinstance(outcome, Failed) and outcome.reason == "it was stopped" for outcome in outcomes)
    for future in hanging[2:]:
        with pytest.raises(CancelledError):
            future.result(0)


@needs_tvm
def test_a_disk_that_takes_no_file_costs_the_candidate(workshop: Workshop) -> None:
    (workshop.scratch / "candidates").mkdir(parents=True)
    (workshop.scratch / "candidates" / "k").write_text("a file where a folder should be")
    outcome = compile_candidates(scale("plain"), "tvm", workshop, lambda *_: None)[0]
    assert isinstance(outcome, Failed) and "cannot be used" in outcome.reason


@needs_tvm
def test_a_worker_expands_and_then_compiles(workshop: Workshop) -> None:
    candidate = scale("plain")[0]
    child = workshop.worker("tvm", LLVM)
    try:
        expanded = expand_kernel(candidate.workload.kernel, LLVM, child, workshop)
    finally:
        child.kill()
    assert not isinstance(expanded, Failed)
    assert [workload.shape for workload in expanded[0]] == [{"N": 64}]
    assert expanded[1]["name"] == "tvm"


@needs_tvm
def test_tvm_kernels_that_fit_no_device_are_pruned(cuda_workshop: Workshop) -> None:
    configs = [
        {"tile": 64, "depth": 16, "scope": "shared.dyn"},
        {"tile": 256, "depth": 128, "scope": "shared.dyn"},
        {"tile": 256, "depth": 128, "scope": "shared"},
    ]
    candidates = candidates_of("tvm_cases:matmul", "tvm", HOPPER, {"M": 256, "N": 256, "K": 256}, configs)
    fits, dynamic, static = compile_candidates(candidates, "tvm", cuda_workshop, lambda *_: None)
    assert isinstance(fits, Built), fits
    assert dynamic == Failed("prune", "needs 256.0 KiB of shared memory per block, cuda:sm_90a has 227 KiB")
    assert isinstance(static, Failed) and static.stage == "prune" and static.reason.startswith("needs 256.0 KiB of")


@needs_tilelang
def test_tilelang_kernels_that_fit_no_device_are_pruned(cuda_workshop: Workshop) -> None:
    configs = [
        {"block_M": 128, "block_N": 128, "block_K": 64, "num_stages": 3, "threads": 128},
        {"block_M": 128, "block_N": 256, "block_K": 128, "num_stages": 3, "threads": 256},
    ]
    shape = {"M": 1024, "N": 1024, "K": 1024}
    candidates = candidates_of("sample_pkg.cuda:matmul", "tilelang", HOPPER, shape, configs)
    workshop = Workshop(**{**vars(cuda_workshop), "search_path": (*cuda_workshop.search_path, str(HERE.parent))})
    fits, too_large = compile_candidates(candidates, "tilelang", workshop, lambda *_: None)
    assert isinstance(fits, Built), fits
    assert too_large == Failed("prune", "needs 288.0 KiB of shared memory per block, cuda:sm_90a has 227 KiB")


LOWERED = Lowered("entry", "packed", (), device_source="same", device_flags=("-std=c++17",))
TOOLCHAIN = Toolchain(HostCompiler(("cc",), (), ("strip",), "1"), CudaCompiler("nvcc", (), "13.0"))


def test_equal_device_code_is_compiled_once_by_all_who_come_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Path] = []

    def compile_slowly(source: str, target: Any, flags: Any, out: Path, *rest: Any, **more: Any) -> DeviceCode:
        compiled.append(out)
        time.sleep(0.3)
        return DeviceCode(b"\x7fELF" + source.encode(), 32, 0, 128, "log")

    monkeypatch.setattr(worker, "compile_cuda", compile_slowly)
    with ThreadPoolExecutor(6) as pool:
        made = [
            pool.submit(worker._compile_device, LOWERED, HOPPER, TOOLCHAIN, tmp_path, tmp_path / str(shape), 10)
            for shape in range(6)
        ]
    assert len(compiled) == 1
    assert {future.result() for future in made} == {DeviceCode(b"\x7fELFsame", 32, 0, 128, "log")}


def test_whoever_is_killed_while_compiling_blocks_nobody(tmp_path: Path) -> None:
    lock = tmp_path / "key.lock"
    held, holding = os.pipe()
    pid = os.fork()
    if pid == 0:
        with worker._locked(lock):
            os.write(holding, b"x")
            time.sleep(600)
        os._exit(0)
    assert os.read(held, 1) == b"x"
    got = threading.Event()

    def wait() -> None:
        with worker._locked(lock):
            got.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not got.wait(0.3)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    assert got.wait(5)
    thread.join()
    os.close(held)
    os.close(holding)
