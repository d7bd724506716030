"""A throw-away project whose kernels go wrong on demand, builds of it, and what must hold after each."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import tlaot

HERE = Path(__file__).parent
MARKER = "FAULTY_SCENE"
# Candidates differ in their work, so that a bystander never beats the winner and no two give the same binary.
FASTEST, SLOWEST = 0, 1000

# Timeouts are for two quiet processors; a busy machine takes a multiple.
PATIENCE = float(os.environ.get("TLAOT_FAULTS_PATIENCE", "1"))

# What the log and the error say of each fault.
REASONS: Mapping[str, str] = {
    # SIGABRT where what catches a segmentation fault to print a trace meets another fault
    "kernel-segfault": "SIGSEGV|SIGBUS|SIGABRT|timed out",
    "kernel-abort": "SIGABRT",
    "kernel-exit": "ended",
    "kernel-overrun": "SIG|differ|changed|beyond|outside",
    "kernel-wrong": "differ from the reference",
    "kernel-hang": "timed out after",
    "kernel-spin": "timed out after",
    "raise": "ValueError: this config is refused",
    "recursion": "RecursionError",
    "exit": "exit code 3",
    "kill": "SIGKILL",
    "segfault": "SIGSEGV",
    "abort": "SIGABRT",
    "close": "ended|crashed",
    "children": "exit code 4|timed out",
    "memory": "MemoryError|bad_alloc|memory",
    "memory-at-once": "MemoryError",
    "memory-limit": "MemoryError|memory|ended|crashed",
    "spin": "timed out after",
    "hang": "timed out after",
    "stop": "timed out after|SIGSTOP",
    "blocked": "timed out after",
}

Config = dict[str, Any]


@dataclass(frozen=True)
class Ended:
    """How a build ended: its exit status, and what it said."""

    status: int
    said: str


@dataclass
class Scene:
    """A project in a folder of its own.

    Attributes:
        folder: The project.
        seed: Of everything that is random here.
    """

    folder: Path
    seed: int
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.marker = uuid.uuid4().hex
        self.notes, self.temporary = self.folder / "notes", self.folder / "tmp"
        for folder in (self.notes, self.temporary):
            folder.mkdir(parents=True)
        package = self.folder / "faulty"
        package.mkdir()
        (package / "__init__.py").write_text("")
        shutil.copyfile(HERE / "faulty_kernels.py", package / "kernels.py")

    @property
    def work(self) -> Path:
        """Where builds keep what they know."""
        return self.folder / "build" / "tlaot"

    @property
    def output(self) -> Path:
        """What a wheel would embed."""
        return self.folder / "lib" / "faulty" / "_tlaot"

    def write(
        self,
        configs: Sequence[Config],
        shapes: Sequence[int] = (512,),
        profile: Mapping[str, float] | None = None,
        lines: Sequence[str] = (),
    ) -> None:
        """Write the spec: one kernel over some sizes."""
        times = {
            "warmup": 0.2,
            "rep": 1,
            "timeout": 60,
            "compile-timeout": 60,
            "decide-budget": 0.05,
            "quiet-timeout": 0,
        }
        listed = ",\n    ".join(_toml(config) for config in configs)
        (self.folder / "tltune.toml").write_text(
            "\n".join(
                [
                    '[tlaot]\npackage = "faulty"\ntargets = ["llvm"]\n\n[[kernel]]\nname = "copy"\nfrontend = "tvm"',
                    'factory = "faulty.kernels:copy"\nreference = "faulty.kernels:reference"\nout-idx = [-1]',
                    f"shapes = [{', '.join(_toml({'N': size}) for size in shapes)}]",
                    f"configs = [\n    {listed},\n]",
                    f"profile = {_toml({**times, **(profile or {})})}",
                    *lines,
                ]
            )
            + "\n"
        )

    def start(self, jobs: int = 2, tune: str = "on", **environ: str) -> subprocess.Popen[str]:
        """Begin a build, in a session of its own as a terminal's job would be."""
        return subprocess.Popen(
            [sys.executable, str(HERE / "build_faulty.py"), str(self.folder), str(jobs), tune],
            cwd=self.folder,
            env={**self.environment(), **self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def build(self, jobs: int = 2, tune: str = "on", limit: float = 150, **environ: str) -> Ended:
        """Build to the end."""
        return self.finish(self.start(jobs, tune, **environ), limit)

    def finish(self, build: subprocess.Popen[str], limit: float = 100 * PATIENCE) -> Ended:
        try:
            said, _ = build.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            build.kill()
            said, _ = build.communicate()
            raise AssertionError(f"seed {self.seed}: a build took more than {limit:g} s:\n{said}\n{self.log}") from None
        return Ended(build.returncode, said)

    def environment(self) -> dict[str, str]:
        """What processes of this scene are started with."""
        keep = {key: value for key, value in os.environ.items() if not key.startswith(("TLAOT_", "FAULTY_"))}
        root = str(Path(tlaot.__file__).parents[1])
        path = os.pathsep.join(entry for entry in (root, os.environ.get("PYTHONPATH", "")) if entry)
        return {
            **keep,
            "PYTHONPATH": path,
            MARKER: self.marker,
            "FAULTY_NOTES": str(self.notes),
            "TMPDIR": str(self.temporary),
        }

    def processes(self) -> dict[int, str]:
        """Every living process of this scene's builds with its command line, by the mark in the environment it was started with."""
        mark, found = f"{MARKER}={self.marker}".encode(), {}
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if mark not in Path(entry.path, "environ").read_bytes():
                    continue
                command = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if Path(entry.path, "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                    continue
            except OSError:
                continue
            found[int(entry.name)] = command[:300]
        return found

    def expect_no_orphan(self, patience: float = 5) -> None:
        """Nothing that a build started is left once it has ended, but for what is just dying."""
        deadline = time.monotonic() + patience
        while left := self.processes():
            if time.monotonic() > deadline:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                raise AssertionError(f"seed {self.seed}: processes outlived their build: {left}")
            time.sleep(0.02)

    def expect_whole_files(self, strikes: int = 0) -> None:
        """Every file is whole or has not appeared; each strike may have torn a line that was just being appended."""
        torn = 0
        for path in self._kept_files():
            if path.suffix == ".json":
                json.loads(path.read_bytes())
            elif path.suffix == ".jsonl":
                torn += sum(map(_is_torn, path.read_bytes().splitlines()))
        assert torn <= strikes, f"seed {self.seed}: {torn} torn lines"
        if self.output.exists():
            self.check_package()

    def expect_tidy(self, strikes: int = 0) -> None:
        """After a build that ended by itself: no temporary file or folder, here or beside the package."""
        self.expect_whole_files(strikes)
        left = [path for path in self._kept_files() if path.name.startswith(".") or path.suffix == ".tmp"]
        left += [*self.work.glob("run-*"), *(self.folder / "lib" / "faulty").glob(".*")]
        left += [path for path in self.temporary.rglob("*") if path.is_file() and path.suffix != ".lock"]
        assert not left, f"seed {self.seed}: temporary files stayed behind: {left}"

    def check_package(self) -> Any:
        """Load the package's manifest and every file that it names, with their digests."""
        from tlaot.manifest import place_of, read_manifest, verify_file

        manifest = read_manifest(self.output / "manifest.json")
        for variant in manifest.kernels["copy"].variants:
            for name, digest in variant.files.items():
                verify_file(self.output / place_of(variant, name), digest)
        return manifest

    def package_bytes(self) -> dict[str, bytes]:
        """All files of the package."""
        return {
            path.relative_to(self.output).as_posix(): path.read_bytes()
            for path in sorted(self.output.rglob("*"))
            if path.is_file()
        }

    def steady_bytes(self) -> dict[str, bytes]:
        """Of the package, what does not hold a time: two undisturbed tunings agree in it too."""
        names = ("executable.so", "best_config.json", "out_idx.json", "params.json")
        return {path: data for path, data in self.package_bytes().items() if path.endswith(names)}

    def results(self, size: int = 512) -> dict[int, dict[str, Any]]:
        """What the record of a workload holds of each candidate, by its work."""
        (path,) = (self.work / "records").rglob(f"N{size}.json")
        found = json.loads(path.read_bytes())["candidates"]
        return {one["config"].get("work", 0): one for one in found}

    def winners(self) -> set[int]:
        """The work of the packaged configs."""
        return {variant.config.get("work", 0) for variant in self.check_package().kernels["copy"].variants}

    def lost(self) -> dict[int, str]:
        """Why candidates of the only workload failed, by their work."""
        return {work: one["failed"]["reason"] for work, one in self.results().items() if "failed" in one}

    def expect_nothing_measured_twice(self) -> None:
        """What one build has found no later one looks for."""
        path = self.work / "store" / "measurements.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        times = Counter(json.loads(line)["candidate"] for line in lines if line and not _is_torn(line))
        assert max(times.values(), default=0) <= 1, f"seed {self.seed}: {times}"

    def expect_best_of(self, lost: Iterable[int]) -> None:
        """The fastest won, unless it is among the lost; then any other, since they hardly differ."""
        left = set(self.results()) - set(lost)
        assert self.winners() <= ({FASTEST} if FASTEST in left else left), f"seed {self.seed}:\n{self.log[-4000:]}"

    def counts(self, name: str = "factory") -> Counter[str]:
        """How often what ran, by its arguments."""
        path = self.notes / name
        return Counter(path.read_text().splitlines()) if path.exists() else Counter()

    def count_calls(self, name: str) -> int:
        """How often what numbers its calls was called."""
        return len(list(self.notes.glob(f"{name}-*")))

    @property
    def log(self) -> str:
        path = self.work / "autotuner.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _kept_files(self) -> Iterator[Path]:
        for folder in (self.work, self.folder / "lib"):
            for path in folder.rglob("*"):
                if path.is_file() and not any(part.startswith("run-") for part in path.parts):
                    yield path


def bystanders(count: int, first: int = 100) -> list[Config]:
    """Candidates that are right, and slower than the fastest by far."""
    return [{"work": first + index} for index in range(count)]


def faults(*names: str, times: int, first: int = SLOWEST) -> list[Config]:
    """Candidates that go wrong, each fault so many times in all."""
    chosen = [names[index % len(names)] for index in range(times)]
    return [{"work": first + index, "fault": name} for index, name in enumerate(chosen)]


def expect_only_the_bad_lost(scene: Scene, ended: Ended) -> None:
    """Every bad candidate failed for its own reason, every other one was timed as if alone, and the fastest of them won."""
    where = f"seed {scene.seed}:\n{ended.said}\n{scene.log[-4000:]}"
    assert ended.status == 0, where
    times = []
    for work, result in scene.results().items():
        fault = result["config"].get("fault")
        failed = result.get("failed")
        if fault is None:
            assert failed is None, f"candidate {work} did nothing wrong and failed: {failed}; {where}"
            times += [result["latency"]] if work != FASTEST else []
        else:
            assert failed is not None, f"candidate {work} with {fault} passed; {where}"
            assert re.search(REASONS[fault], failed["reason"]), f"{fault}: {failed}"
    assert max(times) < 5 * median(times), f"a crash disturbed what was timed next: {sorted(times)}"
    assert scene.winners() == {FASTEST}
    scene.expect_no_orphan()
    scene.expect_tidy()


def _is_torn(line: bytes) -> bool:
    try:
        return line != b"" and not json.loads(line)["key"]
    except (ValueError, KeyError, TypeError):
        return True


def _toml(table: Mapping[str, Any]) -> str:
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in table.items()) + " }"
