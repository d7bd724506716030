"""The whole way from a call to the driver: which variant each device is given, what is said of it, what is refused.

The binaries are real ones of tlaot's making, the driver is a fake one with many devices.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm_ffi")
pytest.importorskip("numpy")

from fixtures_runtime import variant, write_package
from native.programs import SET_DEVICE, build, drive, host_program, lowered, tensor

from tlaot.manifest import Kernel, dumps, read_manifest
from tlaot.target import read_target
from tlaot.tune.frontends.lowered import DeviceKernel

TARGETS = ("sm_80", "sm_86", "sm_90a", "sm_100f", "sm_103a", "compute_80")
PARAMS = [tensor("X", 8), tensor("Y", 8, written=True)]

# What each device is to run. Devices 8 and later would share the last.
DEVICES = {
    "8.0:108": "sm_80",
    "8.9:58": "sm_86",
    "8.7:16": "compute_80",
    "9.0:132": "sm_90a",
    "10.0:148": "sm_100f",
    "10.3:148": "sm_103a",
    "12.0:188": "compute_80",
    "11.0:20": "compute_80",
}

# Has the kernel's own name in what the driver logs, by the variant's target.
PRELUDE = """
import warnings
import tlaot
kernels = tlaot.load("choice", path=sys.argv[1])
def attempted(function, *args):
    got = attempt(function, *args)
    return None if got is None else got[1]
"""


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("binaries")
    made = {}
    for arch in TARGETS:
        name = f"on_{arch}"
        call = (name, ["PTR(DATA(0))", "PTR(DATA(1))", "INT(2)", "INT(32)"])
        kernel = DeviceKernel(name, ("ptr", "ptr"), (1, 1), ("blockIdx.x", "threadIdx.x"))
        program = lowered(host_program([SET_DEVICE, call]), PARAMS, [kernel])
        image = b".version 9.0\n.target sm_80\n" if "compute" in arch else b"\x7fELF cubin"
        path = build(program, folder / arch, "choice.k", read_target(f"cuda:{arch}"), image)
        made[arch] = path.read_bytes()
    return made


@pytest.fixture
def package(tmp_path: Path, binaries: dict[str, bytes]) -> Path:
    """One kernel under two names; tuned with 108 multiprocessors where it is machine code for 8.x, else with 148."""
    built = [
        (
            variant("k", PARAMS, [1], {}, f"cuda:{arch}", **evidence(arch)),
            binary,
        )
        for arch, binary in binaries.items()
    ]
    write_package(
        tmp_path, "choice", {"k": built, "j": [(dataclasses.replace(v, path=f"j/{v.path}"), b) for v, b in built]}
    )
    return tmp_path


def evidence(arch: str) -> dict[str, Any]:
    count = 108 if arch.startswith("sm_8") else 148
    floor = {"toolkit": "13.0", "cuda": "13.0"}
    return {"floor": floor, "tuned": {"device": "Tuned GPU", "sm_count": count}}


def change(package: Path, **fields: Any) -> None:
    """Have the manifest say something else of every variant, with a digest that fits."""
    path = package / "choice" / "_tlaot" / "manifest.json"
    manifest = read_manifest(path)
    changed = {
        name: Kernel(name, tuple(dataclasses.replace(v, **fields) for v in kernel.variants))
        for name, kernel in manifest.kernels.items()
    }
    path.write_text(dumps(dataclasses.replace(manifest, kernels=changed)))


def launched(lines: list[str]) -> list[str]:
    return [line.split(" ")[1].removeprefix("on_") for line in lines if line.startswith("launch")]


def test_every_device_of_one_process_gets_its_own(package: Path, tmp_path: Path) -> None:
    """Eight kinds of GPU, in order and from threads; PTX and the SM count are each told once a kernel."""
    script = """
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for device in range(8):
        kernels.k(cuda(8, device=device), cuda(8, device=device))
say([str(w.message) for w in told])
say([w.filename == "<string>" and w.category.__name__ for w in told])
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    def work(device):
        for _ in range(20):
            kernels.j(cuda(8, device=device), cuda(8, device=device))
    threads = [threading.Thread(target=work, args=(i % 8,)) for i in range(16)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
say(sorted(str(w.message).partition(":")[0] + (" ptx" if "PTX" in str(w.message) else " count") for w in told))
"""
    lines, said = drive(PRELUDE + script, package, log=tmp_path / "log", devices=" ".join(DEVICES))
    ran = launched(lines)
    assert ran[:8] == list(DEVICES.values())
    assert {arch: ran[8:].count(arch) for arch in set(ran)} == {
        arch: 40 * list(DEVICES.values()).count(arch) for arch in set(DEVICES.values())
    }
    count, ptx = said[0]
    assert count == (
        "choice.k: the config was tuned on Tuned GPU with 108 multiprocessors; Fake GPU has 58, for which another may be faster. "
        "Run: tlaot retune choice"
    )
    assert ptx.startswith(
        "choice.k: the package has no machine code for Fake GPU; its driver compiles the PTX of cuda:compute_80"
    )
    assert said[1] == ["RuntimeWarning"] * 2
    assert said[2] == ["choice.j count", "choice.j ptx"]
    # Each binary is loaded once, whatever the number of devices that share it.
    assert sum(line.startswith("load") for line in lines) == 2 * len(set(DEVICES.values()))
    assert sum(line.startswith("load PTX") for line in lines) == 2


def test_ptx_can_be_forbidden(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLAOT_PTX", "0")
    script = """
kernels.k(cuda(8), cuda(8))
say(attempt(kernels.k, cuda(8, device=1), cuda(8, device=1)))
os.environ["TLAOT_PTX"] = "never"
say(attempt(kernels.k, cuda(8, device=2), cuda(8, device=2)))
"""
    lines, said = drive(PRELUDE + script, package, log=tmp_path / "log", devices="9.0:148 12.0:188 12.1:48")
    assert launched(lines) == ["sm_90a"]
    assert not any(line.startswith("load PTX") for line in lines)
    assert said[0][0] == "DispatchError"
    listed = [line.strip().partition(" ")[0] for line in said[0][1].splitlines()[1:-1]]
    assert sorted(listed) == sorted(f"cuda:{arch}" for arch in TARGETS)
    assert "Unset TLAOT_PTX, or add cuda:sm_120 to the targets" in said[0][1]
    assert said[1] == ["SpecError", "TLAOT_PTX: expected 0 or 1, got 'never'\nWrite TLAOT_PTX=0 to have PTX refused."]


def test_a_block_that_is_too_large_is_not_launched(package: Path, tmp_path: Path) -> None:
    """What the manifest says of it is held against the device before anything is loaded."""
    change(package, properties={"shared_memory": 131072})
    script = """
kernels.k(cuda(8), cuda(8))
say(attempt(kernels.k, cuda(8, device=1), cuda(8, device=1)))
"""
    devices = "8.0:108:166912 8.9:58:101376"
    lines, said = drive(PRELUDE + script, package, log=tmp_path / "log", devices=devices)
    assert launched(lines) == ["sm_80"]
    assert said[0][0] == "DispatchError"
    assert said[0][1].count("needs 128 KiB of shared memory per block, cuda:1 has 99") == len(TARGETS)


def test_a_device_that_nothing_is_for(package: Path, tmp_path: Path) -> None:
    """Older than the PTX, or of a family that none is for where there is no PTX: what there is, and what to add."""
    script = "say(attempt(kernels.k, cuda(8), cuda(8)))"
    lines, said = drive(PRELUDE + script, package, log=tmp_path / "log", devices="7.5:40")
    assert launched(lines) == []
    assert said[0][0] == "DispatchError"
    assert all(f"cuda:{arch} {{}}: does not run on compute capability 7.5 (cuda:0)" in said[0][1] for arch in TARGETS)
    assert "add cuda:sm_75 to the targets in tltune.toml" in said[0][1]


def test_an_old_driver_is_refused_before_anything_is_loaded(package: Path, tmp_path: Path) -> None:
    """Both sides and the remedy, at each call; the same for PTX. With the driver's year-old floor it runs."""
    script = """
for device in (0, 0, 1):
    say(attempt(kernels.k, cuda(8, device=device), cuda(8, device=device)))
say(any("executable.so" in line for line in open("/proc/self/maps")))
"""
    old = {"devices": "9.0:148 12.0:188", "version": "12090"}
    lines, said = drive(PRELUDE + script, package, log=tmp_path / "log", **old)
    assert not any(line.startswith(("load", "retain", "launch")) for line in lines)
    assert said[0] == said[1] == [
        "LoadError",
        "choice.k: the code for cuda:sm_90a, made with CUDA 13.0, needs a driver that offers CUDA 13.0; the driver here offers "
        "CUDA 12.9\nUpdate the NVIDIA driver (nvidia-smi shows its CUDA version), or build the package with CUDA 12.x.",
    ]  # fmt: skip
    assert "the PTX for cuda:compute_80, made with CUDA 13.0, needs" in said[2][1]
    assert said[3] is False
    change(package, floor={"cuda": "12.9"})
    lines, said = drive(PRELUDE + script, package, log=tmp_path / "log", **old)
    assert said == [None, None, None, True]


def test_a_manifest_that_lies(package: Path, tmp_path: Path) -> None:
    """A floor that is no version is a damaged package; one that promises too much ends in the driver's own refusal."""
    change(package, floor={"cuda": "soon"})
    script = "say(attempt(kernels.k, cuda(8), cuda(8)))"
    _, said = drive(PRELUDE + script, package, log=tmp_path / "log", devices="9.0:148")
    assert said[0][0] == "PackageError" and "floor of cuda for cuda:sm_90a is no version, got 'soon'" in said[0][1]
    change(package, floor={"cuda": "11.0"}, tuned={"sm_count": "many", "device": 7})
    more = {"devices": "12.0:188", "version": "12080", "jit_log": "PTX .version 9.0 does not match current version 8.7"}
    _, said = drive(PRELUDE + script, package, fail="cuKernelGetFunction:222", log=tmp_path / "log", **more)
    assert said[0][0] == "RuntimeError"
    assert "PTX that the driver compiles for the device" in said[0][1]
    assert "its driver offers CUDA 12.8.\nIts compiler says: PTX .version 9.0 does not match" in said[0][1]
    # The variants' targets exchanged, the binaries as they were: the driver refuses, and the binary's own name is told.
    change(package, target="cuda:sm_90a", floor={})
    script = "say(attempt(kernels.j, cuda(8), cuda(8)))"
    _, said = drive(PRELUDE + script, package, fail="cuLibraryLoadData:209", log=tmp_path / "log", devices="9.0:148")
    assert "This variant is for cuda:" in said[0][1]


def test_warnings_that_are_errors_stop_each_call(package: Path, tmp_path: Path) -> None:
    """Whoever runs Python with -W error wants to hear of PTX, and not once."""
    script = """
warnings.simplefilter("error")
for _ in range(2):
    say(attempt(kernels.k, cuda(8), cuda(8)))
warnings.simplefilter("ignore")
kernels.k(cuda(8), cuda(8))
"""
    lines, said = drive(PRELUDE + script, package, log=tmp_path / "log", devices="12.0:188")
    assert [kind for kind, _ in said] == ["RuntimeWarning"] * 2
    assert launched(lines) == ["compute_80"]


def test_asking_what_would_run_says_nothing(package: Path, tmp_path: Path) -> None:
    script = """
warnings.simplefilter("error")
say(kernels.k.resolve(cuda(8), cuda(8)).target)
"""
    lines, said = drive(PRELUDE + script, package, log=tmp_path / "log", devices="12.0:188")
    assert said == ["cuda:compute_80"]
    assert not any(line.startswith(("load", "retain")) for line in lines)


def test_forks_while_threads_are_told(package: Path, tmp_path: Path) -> None:
    """Notes and the knowledge of devices hold no lock that a child would wait for."""
    script = """
warnings.simplefilter("ignore")
stop = threading.Event()
def work():
    while not stop.is_set():
        tlaot.load("choice", path=sys.argv[1]).k.resolve(cuda(8, device=1), cuda(8, device=1))
        from tlaot.runtime import notes
        notes._said.clear()
        notes.say_once("choice.k", kernels.k.resolve(cuda(8), cuda(8)), 0)
threads = [threading.Thread(target=work) for _ in range(3)]
[thread.start() for thread in threads]
for _ in range(30):
    pid = os.fork()
    if pid == 0:
        found = tlaot.load("choice", path=sys.argv[1]).k.resolve(cuda(8), cuda(8)).target
        notes.say_once("choice.k", kernels.k.resolve(cuda(8), cuda(8)), 0)
        os._exit(0 if found == "cuda:compute_80" else 1)
    assert os.waitpid(pid, 0)[1] == 0
stop.set()
[thread.join() for thread in threads]
"""
    head = PRELUDE + "from tlaot.runtime import notes\n"
    drive(head + script, package, log=tmp_path / "log", devices="12.0:188 9.0:148")
