"""Kernels loaded ahead of their first calls: which, on which device, what the driver is asked, what is told of it."""

from __future__ import annotations

import dataclasses
import multiprocessing
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from fixtures_runtime import compile_kernel, variant, write_package
from native.programs import SET_DEVICE, build, drive, host_program, lowered, tensor

import tlaot
from tlaot.errors import CallError, LoadError
from tlaot.manifest import Bucket
from tlaot.runtime import binary
from tlaot.target import read_target
from tlaot.tune.frontends.lowered import DeviceKernel

pytest.importorskip("tvm_ffi")
np = pytest.importorskip("numpy")

PRELUDE = """
import tlaot
kernels = tlaot.load("pre", path=sys.argv[1])
def mark(text):
    open(os.environ["FAKE_CUDA_LOG"], "a").write(text + "\\n")
"""
CUDA_DEVICES = "9.0:132 8.6:82:101376"


def cuda_kernel(folder: Path, name: str, target: str, n: int | str, shared: int | None) -> bytes:
    """A binary of two device functions, of which one has dynamic shared memory."""
    params = [tensor("X", n), tensor("Y", n, written=True)]
    calls = [
        (f"{name}_a", ["PTR(DATA(0))", "PTR(DATA(1))", "INT(2)", "INT(32)"]),
        (f"{name}_b", ["PTR(DATA(0))", "PTR(DATA(1))", "INT(2)", "INT(32)", "INT(4096)"]),
    ]
    launch = ("blockIdx.x", "threadIdx.x")
    kernels = [
        DeviceKernel(f"{name}_a", ("ptr", "ptr"), (1, 1), launch, 0),
        DeviceKernel(f"{name}_b", ("ptr", "ptr"), (1, 1), (*launch, "dyn_shared"), shared),
    ]
    image = b".version 9.0\n.target sm_80\n" if "compute" in target else b"\x7fELF cubin"
    program = lowered(host_program([SET_DEVICE, *calls]), params, kernels)
    return build(program, folder, f"pre.{name}", read_target(target), image).read_bytes()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``k`` for two architectures and as PTX, at two sizes; ``d``, whose shared memory depends on a size."""
    folder = tmp_path_factory.mktemp("preload")
    k = []
    for target in ("cuda:sm_80", "cuda:sm_90a", "cuda:compute_80"):
        for n in (8, 16):
            name = f"k_{target[5:]}_{n}"
            params = [tensor("X", n), tensor("Y", n, written=True)]
            k.append((variant("k", params, [1], {"N": n}, target), cuda_kernel(folder / name, name, target, n, 4096)))
    params = [tensor("X", "n"), tensor("Y", "n", written=True)]
    d = [
        (variant("d", params, [1], {"N": "n"}, "cuda:sm_90a"), cuda_kernel(folder / "d", "d", "cuda:sm_90a", "n", None))
    ]
    write_package(folder, "pre", {"d": d, "k": k})
    return folder


def test_what_a_device_may_run_is_made_ready_there(package: Path, tmp_path: Path) -> None:
    """The best target of each workload; functions, shared memory; no launch. The first call has then only to launch."""
    script = """
done = kernels.preload(0)
say([[b.kernel, b.target, [dict(s) for s in b.shapes], b.size, b.code] for b in done.binaries])
say([done.device, done.size, done.code, str(done)])
mark("ready")
kernels.k(cuda(8), cuda(8))
mark("called")
say(str(kernels.preload("cuda:0")) == str(done))
"""
    lines, said = drive(PRELUDE + script, package, log=tmp_path / "log", devices=CUDA_DEVICES)
    binaries, (device, size, code, text), again = said
    assert [row[:3] for row in binaries] == [
        ["d", "cuda:sm_90a", [{"N": "n"}]],
        ["k", "cuda:sm_90a", [{"N": 8}]],
        ["k", "cuda:sm_90a", [{"N": 16}]],
    ]
    assert all(row[4] == len(b"\x7fELF cubin") for row in binaries)
    assert (device, size, code) == ("cuda:0", sum(row[3] for row in binaries), 30)
    assert text.splitlines()[0] == f"cuda:0: 3 binaries, {size / 1024:.0f} KiB, 0 KiB of them device code"
    assert re.fullmatch(r"  k cuda:sm_90a \(N=16\): \d+ KiB", text.splitlines()[3])
    assert again is True
    before, after = lines[: lines.index("ready")], lines[lines.index("ready") + 1 : lines.index("called")]
    assert sum(line.startswith("load ") for line in before) == 3
    # Dynamic shared memory is allowed where it is known.
    assert [line for line in before if line.startswith("attribute")] == [
        f"attribute 8 4096 k_sm_90a_{n}_b device 0" for n in (8, 16)
    ]
    for name in ("d_a", "d_b", "k_sm_90a_8_a", "k_sm_90a_16_b"):
        assert f"function {name} device 0" in before
        assert f"func load {name}" in before
    assert not any(line.startswith("launch") for line in before)
    assert {line.partition(" ")[0] for line in after} <= {"launch", "push", "pop"}
    assert not [line for line in lines[lines.index("called") :] if line.startswith(("load", "function", "attribute"))]


def test_another_device_and_a_choice(package: Path, tmp_path: Path) -> None:
    """A GPU of another architecture has its own; only some kernels, some sizes, or what a function says."""
    script = """
def names(done):
    return [done.device, *(f"{b.kernel} {b.target} {dict(b.shapes[0])['N']}" for b in done.binaries)]
say(names(kernels.preload(1)))
say(names(kernels.preload("cuda:0", only="d")))
say(names(kernels.preload(0, only=["k"])))
say(names(kernels.preload(0, only={"k": {"N": 16}})))
say(names(kernels.preload(0, only={"d": {}, "k": {"N": [8, 16]}})))
say(names(kernels.preload(0, only=lambda name, v: v.shape["N"] == 8)))
say(names(kernels.preload("cuda")))
say(names(kernels.preload()))
say([attempt(kernels.preload, *a) for a in (("tpu",), (-1,), (True,), (0, "kk"), (9,))])
"""
    _, said = drive(PRELUDE + script, package, log=tmp_path / "log", devices=CUDA_DEVICES)
    every = ["cuda:0", "d cuda:sm_90a n", "k cuda:sm_90a 8", "k cuda:sm_90a 16"]
    # d runs on 9.0 alone, and 8.6 runs the code for 8.0.
    assert said[0] == ["cuda:1", "k cuda:sm_80 8", "k cuda:sm_80 16"]
    assert said[1] == every[:2]
    assert said[2] == [every[0], *every[2:]]
    assert said[3] == [every[0], every[3]]
    assert said[4] == every
    assert said[5] == [every[0], every[2]]
    assert said[6] == said[7] == every
    *devices, kernel, absent = said[8]
    for kind, text in devices:
        assert kind == "CallError"
        assert "preload(device=...): is no device, got" in text
    assert kernel[0] == "CallError"
    assert "there is no kernel 'kk', did you mean 'k'?\nKernels of the package: d, k." in kernel[1]
    assert absent[0] == "LoadError"


def test_what_the_driver_refuses_is_told_in_its_words(package: Path, tmp_path: Path) -> None:
    """As a first call would: which kernel, which device, which of the driver's functions."""
    script = "say(attempt(kernels.preload, 0, 'k'))"
    for function, words in (
        ("cuLibraryLoadData", "k on cuda:0: pre.k_sm_90a_8: cuLibraryLoadData failed: FAKE_ERROR_2"),
        ("cuFuncLoad", "cuKernelGetFunction failed: FAKE_ERROR_2"),
        ("cuKernelSetAttribute", "dynamic shared memory"),
    ):
        _, (said,) = drive(PRELUDE + script, package, log=tmp_path / "log", fail=f"{function}:2", devices=CUDA_DEVICES)
        assert said[0] == "LoadError"
        assert words in said[1]


@pytest.mark.parametrize("function", ["cuLibraryLoadData", "cuKernelSetAttribute"])
def test_a_first_call_that_a_capture_forbids_says_to_preload(package: Path, tmp_path: Path, function: str) -> None:
    """Whatever the driver's reason is: the way out is the same."""
    script = "say(attempt(kernels.k, cuda(8), cuda(8)))"
    _, (said,) = drive(PRELUDE + script, package, log=tmp_path / "log", fail=f"{function}:900", devices=CUDA_DEVICES)
    assert said[0] == "RuntimeError"
    assert "failed while a CUDA graph was captured: FAKE_ERROR_900" in said[1]
    assert said[1].endswith("\nLoad the kernel before the capture: kernels.preload(), or a call.")


def test_ptx_is_compiled_where_nothing_else_runs(package: Path, tmp_path: Path) -> None:
    """A device that has no machine code in the package: the driver's compiler runs ahead of the first call."""
    script = "say([b.target for b in kernels.preload(0).binaries])"
    lines, said = drive(PRELUDE + script, package, log=tmp_path / "log", devices="12.0:188")
    assert said == [["cuda:compute_80"] * 2]
    assert sum(line.startswith("load PTX") for line in lines) == 2
    assert "function k_compute_80_8_a device 0" in lines
    assert not any(line.startswith("func load") for line in lines)


def test_threads_load_each_binary_once(package: Path, tmp_path: Path) -> None:
    """Preloading from many threads beside calls: one load a binary, one attribute a function and device."""
    script = """
def work(i):
    kernels.preload(i % 2)
    kernels.k(cuda(8, device=i % 2), cuda(8, device=i % 2))
threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    lines, _ = drive(PRELUDE + script, package, log=tmp_path / "log", devices="9.0:132 9.0:132")
    assert sum(line.startswith("load ") for line in lines) == 3
    for device in (0, 1):
        assert lines.count(f"attribute 8 4096 k_sm_90a_8_b device {device}") == 1
        assert lines.count(f"function k_sm_90a_8_b device {device}") == 1
    assert sum(line.startswith("launch") for line in lines) == 32


@pytest.fixture
def cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package for two CPU levels, of which one is beyond every processor's reach."""
    params = [tensor("A", 4), tensor("B", 4), tensor("C", 4, written=True)]
    one, twin = variant("add", params, [2], {"N": 4}), variant("add", params, [2], {"N": 4, "twin": True})
    best = variant("add", params, [2], {"N": 4}, "llvm:x86-64-v4")
    plain = compile_kernel(3, 0b100, level=2)
    write_package(
        tmp_path, "pre_cpu", {"add": [(one, plain), (best, plain), (twin, compile_kernel(3, 0b100, level=2, label=1))]}
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tlaot.load("pre_cpu")


def test_the_cpu(cpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CUDA in the package the CPU is meant; what its processor does not run is left; the same again costs nothing."""
    done = cpu.preload()
    assert done.device == "cpu"
    assert [(one.target, one.code) for one in done.binaries] == [("llvm:x86-64", None)] * 2
    assert str(done).startswith("cpu: 2 binaries, ")
    monkeypatch.setattr(binary, "load_binary", None)
    assert cpu.preload("cpu") == done
    a = np.ones(4, "f4")
    assert cpu.add(a, a, N=4, twin=True)[0] == 3
    with pytest.raises(LoadError, match="cuda:0"):
        cpu.preload("cuda:0")


def test_every_variant_of_a_dynamic_kernel(tmp_path: Path) -> None:
    """Each serves sizes of its own; of two targets those of the better one."""
    params = [tensor(name, 4, "n", written=name == "C") for name in "ABC"]
    built = []
    for target in ("llvm:x86-64", "llvm:x86-64-v2"):
        for first in (1, 9):
            one = variant("add", params, [2], {"N": "n"}, target, buckets=(Bucket({"n": (first, first + 7)}),))
            one = dataclasses.replace(one, path=f"{one.path}/{first}")
            built.append((one, compile_kernel(3, 0b100, level=2, label=len(built))))
    write_package(tmp_path, "pre_dynamic", {"add": built})
    done = tlaot.load("pre_dynamic", path=tmp_path).preload()
    assert [one.target for one in done.binaries] == ["llvm:x86-64-v2"] * 2


def _preload_in_child(kernels: Any, queue: Any) -> None:
    queue.put(str(kernels.preload()))


def test_after_a_fork_while_threads_load(cpu: Any) -> None:
    """The lock of a thread that was loading is not the child's."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with binary.loading():
        child = context.Process(target=_preload_in_child, args=(cpu, queue))
        child.start()
        assert queue.get(timeout=60).startswith("cpu: 2 binaries")
        child.join(60)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(str(cpu.preload()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1


def test_wrong_names(cpu: Any) -> None:
    """A kernel that is not there is no silent nothing."""
    for only in ("sub", ["add", "sub"], {"sub": {}}):
        with pytest.raises(CallError, match="there is no kernel 'sub'"):
            cpu.preload(only=only)
