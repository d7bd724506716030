"""executable.so with PTX, against a fake driver: what the driver is given, when it compiles, what its errors become."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("tvm_ffi")
pytest.importorskip("numpy")

from native.programs import SET_DEVICE, build, drive, host_program, lowered, tensor

from tlaot.target import read_target
from tlaot.tune.frontends.lowered import DeviceKernel

GRID = ("blockIdx.x", "threadIdx.x")
PTX = b".version 9.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n"
LOG = "ptxas application ptx input, line 7; error   : Feature 'x' requires .target sm_90a or higher"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "driver.log"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two device functions, k and then j."""
    calls = [(name, ["PTR(DATA(0))", "INT(2)", "INT(32)"]) for name in "kj"]
    kernels = [DeviceKernel(name, ("ptr",), (1,), GRID) for name in "kj"]
    host = lowered(host_program([SET_DEVICE, *calls]), [tensor("A", 8, written=True)], kernels)
    return build(host, tmp_path_factory.mktemp("ptx"), "scale", read_target("cuda:compute_80"), PTX)


def checksum(data: bytes) -> int:
    total = 0
    for byte in data:
        total = (total * 31 + byte) & 0xFFFFFFFF
    return total


def test_the_driver_gets_the_ptx_and_compiles_it_once_a_device(program: Path, log: Path) -> None:
    """Up to its zero, byte by byte; before the launch, and not again."""
    script = """
f = open_call(sys.argv[1])
for device in (0, 0, 1, 1, 0):
    f(cuda(8, device=device))
"""
    lines, _ = drive(script, program, log=log)
    assert [line for line in lines if line.startswith("load")] == [
        f"load PTX {len(PTX)} bytes, sum {checksum(PTX):08x}, 2 0"
    ]
    told = [re.sub(r" grid.*", "", line) for line in lines if line.startswith(("function", "launch", "kernel"))]
    first = ["kernel k", "function k device 0", "launch k", "kernel j", "function j device 0", "launch j"]
    again = ["launch k", "launch j"]
    second = ["function k device 1", "launch k", "function j device 1", "launch j"]
    assert told == [*first, *again, *second, *again, *again]


def test_a_cubin_is_loaded_without_the_compiler(tmp_path: Path, log: Path) -> None:
    host = host_program([SET_DEVICE, ("k", ["PTR(DATA(0))", "INT(2)", "INT(32)"])])
    program = build(lowered(host, [tensor("A", 8, written=True)], [DeviceKernel("k", ("ptr",), (1,), GRID)]), tmp_path)
    lines, _ = drive("open_call(sys.argv[1])(cuda(8))", program, log=log)
    assert "load ELF  0 0" in lines
    assert not any(line.startswith("function") for line in lines)


@pytest.mark.parametrize("function", ["cuLibraryLoadData", "cuKernelGetFunction"])
@pytest.mark.parametrize(("code", "text"), [(218, LOG), (222, ""), (1, LOG + "\n"), (300, "x" * 5000)])
def test_an_error_of_the_compiler_carries_its_log(
    program: Path, log: Path, function: str, code: int, text: str
) -> None:
    """Whenever the driver compiles: as it is given the PTX, or when a function is first needed."""
    script = "f = open_call(sys.argv[1])\nsay(attempt(f, cuda(8, device=1)))\nsay(attempt(f, cuda(8, device=1)))"
    more = {"jit_log": text, "devices": "8.6:82 12.0:188", "version": "12080"}
    _, said = drive(script, program, fail=f"{function}:{code}", log=log, **more)
    assert said[0] == said[1]
    kind, message = said[0]
    assert kind == "RuntimeError"
    expected = [
        f"scale: {function} failed: FAKE_ERROR_{code} (made up)",
        "This variant is for cuda:compute_80, PTX that the driver compiles for the device; cuda:1 (Fake GPU) has compute "
        "capability 12.0, and its driver offers CUDA 12.8.",
        *([f"Its compiler says: {text.strip()[:600]}"] if text else []),
        "Build the package with the target cuda:sm_120, or update the NVIDIA driver.",
    ]
    for line, begins in zip(message.splitlines(), expected, strict=True):
        assert line.startswith(begins)


def test_a_compiler_that_is_switched_off_is_named(program: Path, log: Path) -> None:
    _, said = drive("say(attempt(open_call(sys.argv[1]), cuda(8)))", program, fail="cuKernelGetFunction:223", log=log)
    assert "Unset CUDA_DISABLE_PTX_JIT, or build the package with the target cuda:sm_86." in said[0][1]


def test_what_one_device_refuses_is_not_held_against_another(program: Path, log: Path) -> None:
    script = """
f = open_call(sys.argv[1])
os.environ["FAKE_CUDA_FAIL"] = "cuKernelGetFunction:218"
assert "Its compiler says: no" in attempt(f, cuda(8))[1]
os.environ["FAKE_CUDA_FAIL"] = ""
f(cuda(8, device=1))
f(cuda(8))
os.environ["FAKE_CUDA_FAIL"] = "cuLaunchKernelEx:719"
say(attempt(f, cuda(8, device=1)))
"""
    _, said = drive(script, program, jit_log="no", log=log)
    assert re.fullmatch(r"scale: launching k \(.*\) failed: FAKE_ERROR_719 \(made up\)", said[0][1])


def test_a_fork_while_the_driver_compiles_leaves_no_one_waiting(program: Path, log: Path, tmp_path: Path) -> None:
    """In the child nobody holds the lock that the compiling thread held: it is refused, as all CUDA after a fork."""
    script = """
f, log, gate = open_call(sys.argv[1]), sys.argv[2], sys.argv[3]
compiling = threading.Thread(target=lambda: f(cuda(8)))
compiling.start()
while not os.path.exists(log) or "load PTX" not in open(log).read():
    time.sleep(0.01)
pid = os.fork()
if pid == 0:
    say(attempt(f, cuda(8)))
    os._exit(0)
os.waitpid(pid, 0)
open(gate, "w").close()
compiling.join()
f(cuda(8))
"""
    gate = tmp_path / "gate"
    lines, said = drive(script, program, log, gate, log=log, stall=str(gate))
    assert "CUDA was used before this process was forked" in said[0][1]
    assert sum(line.startswith("launch k") for line in lines) == 2
    assert sum(line.startswith("load") for line in lines) == 1


def test_threads_compile_once(program: Path, log: Path) -> None:
    script = """
f, tensors = open_call(sys.argv[1]), [cuda(8, device=i % 2) for i in range(8)]
threads = [threading.Thread(target=lambda x=x: [f(x) for _ in range(20)]) for x in tensors]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    lines, _ = drive(script, program, log=log)
    assert sum(line.startswith("load") for line in lines) == 1
    assert sum(line.startswith("launch") for line in lines) == 320
    # Threads that come at once may each ask; the driver compiles once for a context.
    assert {line for line in lines if line.startswith("function")} == {
        f"function {name} device {device}" for name in "kj" for device in (0, 1)
    }
