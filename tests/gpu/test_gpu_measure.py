"""Measuring on a real GPU: what it costs, who wins, and that a kernel that loses its context costs itself only."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numpy")
pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

from launch_programs import compile_source  # noqa: E402
from measuring import AUTHORS, PROFILE, Scene, latency  # noqa: E402
from native.programs import SET_DEVICE, build, host_program, lowered, scratch, tensor  # noqa: E402

from tlaot.errors import BuildError  # noqa: E402
from tlaot.target import parse_target  # noqa: E402
from tlaot.tune.children.child import Child, Failed  # noqa: E402
from tlaot.tune.children.forkserver import ForkServer  # noqa: E402
from tlaot.tune.compiling.compile import Built  # noqa: E402
from tlaot.tune.frontends.lowered import DeviceKernel  # noqa: E402
from tlaot.tune.measuring import device_lock, quiet  # noqa: E402
from tlaot.tune.measuring.measure import Measured, screen  # noqa: E402

CAPABILITY = torch.cuda.get_device_capability()
ARCH = f"sm_{CAPABILITY[0]}{CAPABILITY[1]}" + ("a" if CAPABILITY[0] >= 9 else "")
TARGET = parse_target(f"cuda:{ARCH}")
UUID = f"GPU-{torch.cuda.get_device_properties(0).uuid}"

# B = 2 A after some ns of the GPU's global timer, unless the mode says what is to go wrong.
DEVICE = r"""
#include <cassert>
__device__ unsigned turn;
extern "C" __global__ void twice(const float *a, float *b, int n, int ns, int mode) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  float factor = 2.0f;
  if (mode == 'i') *(volatile int *)64 = 1;
  if (mode == 'u') *(volatile int *)((char *)b + 1) = 1;
  if (mode == 't') __trap();
  if (mode == 'd') assert(n < 0);
  if (mode == 'w') factor = 3.0f;
  if (mode == 'n' && threadIdx.x == 0) factor += (atomicAdd(&turn, 1u) % 16) * 1e-6f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) b[i] = factor * a[i];
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < ns || mode == 'h');
}
"""
KERNEL = DeviceKernel(
    "twice", ("ptr", "ptr", "int32", "int32", "int32"), (4, 4, 0, 0, 0), ("blockIdx.x", "threadIdx.x")
)
# The host reads what is to go wrong at each call; a graph keeps what it was captured with.
HOST = """
  extern char *getenv(const char *); extern int open(const char *, int, ...); extern long read(int, void *, unsigned long);
  extern int close(int); extern int snprintf(char *, unsigned long, const char *, ...);
  char path[4096]; int mode = {mode}; unsigned char first = 0;
  snprintf(path, sizeof path, "%s/%d", getenv("MISBEHAVE"), {label});
  int file = open(path, 0);
  if (file >= 0) {{ if (read(file, &first, 1) == 1) mode = first; close(file); }}
"""
LOST = {"i": "illegal memory access", "u": "misaligned address", "t": "unspecified launch failure", "d": "assert"}


class GpuScene(Scene):
    """The kernels are of CUDA; one that spins takes so many us."""

    target = TARGET
    cubin = b""

    def build(self, spin: int, label: int, mode: str) -> bytes:
        values = ["PTR(DATA(0))", "PTR(DATA(1))", "INT(64)", f"INT({spin * 1000})", "INT(mode)", "INT(1)"]
        values.append("INT(4096)" if mode == "l" else "INT(64)")  # l: it cannot be launched
        before = HOST.format(mode=ord(mode) if mode else 0, label=label)
        program = lowered(
            host_program([SET_DEVICE, ("twice", values)], before=before),
            [tensor("A", 64), tensor("B", 64, written=True)],
            [KERNEL],
        )
        return build(program, scratch() / f"measured-{label}", "twice", TARGET, self.cubin).read_bytes()

    def pid(self) -> int:
        """The measuring process."""
        answer = self.child.request({"op": "wake"}, 180)
        assert not isinstance(answer, Failed), answer
        assert answer["device"] == UUID
        return int(answer["pid"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ForkServer, bytes]]:
    try:
        cubin = compile_source(DEVICE, ("-std=c++17",), ARCH)
    except BuildError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("measure")
    (folder / "authors.py").write_text(AUTHORS)
    environ = {**os.environ, "MISBEHAVE": str(folder)}
    server = ForkServer("tlaot.tune.measuring.measurer", ["cuda"], [str(folder), *filter(None, sys.path)], environ)
    try:
        yield folder, server, cubin
    finally:
        server.close()


@pytest.fixture
def scene(place: tuple[Path, ForkServer, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuScene]:
    monkeypatch.setattr(device_lock, "lock_folder", lambda: tmp_path)
    monkeypatch.setattr(quiet, "_waited", {})
    folder, server, cubin = place
    child = Child("tlaot.tune.measuring.measurer", ["cuda:0"], [], tmp_path / "log", {}, server)
    made = GpuScene(folder, child, len(list(folder.glob("built-*"))))
    made.cubin = cubin
    try:
        yield made
    finally:
        child.kill()


def test_the_fastest_wins(scene: GpuScene) -> None:
    for spin in (60, 50, 54, 51, 200):
        scene.add(spin)
    results = scene.screen()
    assert scene.referenced() == 1
    assert [latency(results[n]) for n in range(5)] == pytest.approx([0.060, 0.050, 0.054, 0.051, 0.200], rel=0.1)
    decision = scene.decide(results)
    assert decision.winner_index == 1
    assert latency(decision.results[1]) == pytest.approx(0.05, rel=0.1)
    winner = decision.results[1]
    assert isinstance(winner, Measured) and winner.timing.backend == "cudagraph" and winner.timing.samples >= 12
    assert {index for index, _ in scene.log.again} == {1, 3} or {1, 3} < {index for index, _ in scene.log.again}
    assert decision.reference is not None and 0 < decision.reference.latency < 0.1


@pytest.mark.parametrize(("spin", "most"), [(10, 40), (100, 40), (1000, 60), (10000, 160)])
def test_screening_is_short(scene: GpuScene, spin: int, most: float) -> None:
    for _ in range(4):
        scene.add(spin)
    first, *rest = scene.workload.candidates()
    latency(screen(scene.child, scene.workload, first, scene.built[0]))
    took, found = [], []
    for candidate in rest:
        start = time.perf_counter()
        found.append(latency(screen(scene.child, scene.workload, candidate, scene.built[candidate.index])))
        took.append((time.perf_counter() - start) * 1e3)
    print(f"{spin} us: screening took {took} ms, found {found} ms")
    assert found == pytest.approx([spin / 1e3] * 3, rel=0.1, abs=0.004)
    assert min(took) < most


@pytest.mark.parametrize("backend", ["auto", "event", "cudagraph", "cupti"])
def test_clocks_agree(scene: GpuScene, backend: str) -> None:
    scene.add(100)
    scene.kernel = replace(scene.kernel, profile=replace(PROFILE, backend=backend))
    decision = scene.decide(scene.screen())
    winner = decision.results[0]
    assert latency(winner) == pytest.approx(0.1, rel=0.1)
    assert isinstance(winner, Measured) and winner.timing.backend == ("cudagraph" if backend == "auto" else backend)


@pytest.mark.parametrize("mode", ["i", "u", "t", "d"])
def test_a_lost_context_is_never_used_again(scene: GpuScene, mode: str) -> None:
    scene.add(50)
    bad = scene.add(40, mode)
    scene.add(60)
    workload = scene.workload
    results: dict[int, Measured | Failed] = {}
    pids = [scene.pid()]
    for candidate in workload.candidates():
        results[candidate.index] = screen(scene.child, workload, candidate, scene.built[candidate.index])
        pids.append(scene.pid())
    failure = results[bad]
    assert isinstance(failure, Failed) and failure.stage == "check" and LOST[mode] in failure.reason, failure
    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert latency(results[0]) == pytest.approx(0.05, rel=0.1) and latency(results[2]) == pytest.approx(0.06, rel=0.1)
    assert scene.decide(results).winner_index == 0


@pytest.mark.parametrize(("mode", "reason"), [("w", "differ from the reference"), ("l", "")])
def test_what_leaves_the_context_whole_leaves_the_child(scene: GpuScene, mode: str, reason: str) -> None:
    scene.add(50)
    bad = scene.add(40, mode)
    pid = scene.pid()
    results = scene.screen()
    failure = results[bad]
    assert isinstance(failure, Failed) and failure.stage == "check" and reason in failure.reason
    assert scene.pid() == pid
    assert latency(results[0]) == pytest.approx(0.05, rel=0.1)


def test_an_endless_kernel_is_killed_alone(scene: GpuScene) -> None:
    bad = scene.add(40, "h")
    scene.add(50)
    scene.pid()  # what starting takes is no candidate's
    scene.kernel = replace(scene.kernel, profile=replace(PROFILE, timeout=5.0))
    results = scene.screen()
    failure = results[bad]
    assert isinstance(failure, Failed) and "timed out after 5 s" in failure.reason
    assert latency(results[1]) == pytest.approx(0.05, rel=0.1)
    assert scene.decide(results).winner_index == 1


@pytest.mark.parametrize("mode", ["i", "t", "h"])
def test_one_that_goes_wrong_in_a_round_costs_itself_only(scene: GpuScene, mode: str) -> None:
    bad, good = scene.add(50), scene.add(52)
    scene.add(500)
    results = scene.screen()
    scene.kernel = replace(scene.kernel, profile=replace(PROFILE, timeout=5.0))
    scene.misbehave(bad, mode)
    decision = scene.decide(results)
    failure = decision.results[bad]
    assert isinstance(failure, Failed) and failure.stage == "time", failure
    assert decision.winner_index == good
    assert latency(decision.results[good]) == pytest.approx(0.052, rel=0.1)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_winner_gives_the_same_bits_twice_unless_it_need_not(scene: GpuScene, deterministic: bool) -> None:
    shaky, steady = scene.add(40, "n"), scene.add(60)
    scene.kernel = replace(scene.kernel, deterministic=deterministic)
    decision = scene.decide(scene.screen())
    assert decision.winner_index == (steady if deterministic else shaky)
    failure = decision.results[shaky]
    if deterministic:
        assert isinstance(failure, Failed) and failure.reason.startswith("WrongResult: not deterministic")


def test_out_of_memory_replaces_the_child(scene: GpuScene) -> None:
    scene.add(50)
    workload, candidate = scene.workload, scene.workload.candidates()[0]
    latency(screen(scene.child, workload, candidate, scene.built[0]))
    pid = scene.pid()
    built = scene.built[0]
    huge = Built(built.folder, built.digest, (tensor("A", 1 << 42), tensor("B", 1 << 42, written=True)), (1,), {}, {})
    failure = screen(scene.child, workload, candidate, huge)
    assert isinstance(failure, Failed) and failure.stage == "prepare" and "out of memory" in failure.reason
    assert scene.pid() != pid
    assert latency(screen(scene.child, workload, candidate, built)) == pytest.approx(0.05, rel=0.1)


def spawn(script: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(1.5)  # NVML's samples are of up to a second
    return process


GPU_HOG = """
import torch
a = torch.randn(4096, 4096, device="cuda")
torch.cuda.synchronize()
print("ready", flush=True)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
"""
CPU_HOG = "print('ready', flush=True)\nwhile True: pass"


@pytest.mark.parametrize(("script", "count", "trusted"), [(GPU_HOG, 1, False), (CPU_HOG, 0, True)])
def test_what_others_do_is_told(scene: GpuScene, script: str, count: int, trusted: bool) -> None:
    for spin in (60, 50):
        scene.add(spin)
    results = scene.screen()
    quiet_first = scene.decide(results)
    print("alone:", quiet_first.trusted, quiet_first.notes)
    hogs = [spawn(script) for _ in range(count or len(os.sched_getaffinity(0)))]
    try:
        decision = scene.decide(results)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    print("beside others:", decision.trusted, decision.notes, decision.winner_index)
    assert quiet_first.trusted
    assert decision.trusted is trusted
    word = "GPU" if not trusted else "CPUs busy"
    assert any(word in note for note in decision.notes), decision.notes
    if trusted:
        assert decision.winner_index == 1
        assert latency(decision.results[1]) == pytest.approx(0.05, rel=0.1)


def test_deciding_32_candidates_is_short(scene: GpuScene) -> None:
    spins = [20 + n % 8 for n in range(16)] + [40 + 10 * n for n in range(16)]
    for spin in spins:
        scene.add(spin)
    scene.kernel = replace(scene.kernel, profile=replace(PROFILE, warmup=25.0, rep=100.0, decide_budget=2.0))
    latency(screen(scene.child, scene.workload, scene.workload.candidates()[0], scene.built[0]))
    start = time.perf_counter()
    results = scene.screen()
    screened = time.perf_counter() - start
    start = time.perf_counter()
    decision = scene.decide(results)
    decided = time.perf_counter() - start
    print(f"32 candidates: screened in {screened:.2f} s, decided in {decided:.2f} s, {len(scene.log.again)} finalists")
    assert decision.winner_index in (0, 8)
    assert screened < 2.0 and decided < 3.5


def test_the_lock_is_the_gpus(scene: GpuScene, tmp_path: Path) -> None:
    scene.add(50)
    said: list[str] = []
    say: Callable[[str], None] = said.append
    candidate = scene.workload.candidates()[0]
    latency(screen(scene.child, scene.workload, candidate, scene.built[0], say=say))
    assert (tmp_path / f"tlaot-{UUID}.lock").is_file() and not said
