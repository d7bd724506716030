"""A workload whose candidates are hand-written libraries that go wrong when they are told to, and a measuring child for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fixtures_runtime import compile_source, tensor

from tlaot.manifest import digest_of
from tlaot.target import Target, parse_target
from tlaot.tune.children.child import Child, Failed
from tlaot.tune.compiling.compile import Built
from tlaot.tune.measuring.measure import Decision, Measured, decide, screen
from tlaot.tune.measuring.timing import Timing
from tlaot.tune.specs.plan import Candidate, Workload
from tlaot.tune.specs.spec import KernelSpec, Profile

__all__ = ["AUTHORS", "PROFILE", "Log", "Scene", "latency"]

PARAMS = (tensor("A", 64), tensor("B", 64, written=True))
# Nothing else is waited for here: these tests run where others run.
PROFILE = Profile(warmup=1.0, rep=10.0, timeout=20.0, decide_budget=0.5, quiet_timeout=0.0)

AUTHORS = """
def twice(a):
    import os, pathlib
    with open(os.environ["MISBEHAVE"] + "/reference", "a") as file:
        file.write("x")
    return a * 2


def hang(a):
    import time
    time.sleep(600)
"""


class Log:
    """Takes down what is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.failed: list[tuple[int, Failed]] = []
        self.again: list[tuple[int, Timing]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def write(self, text: str) -> None:
        pass

    def measured(self, candidate: Candidate, outcome: Timing | Failed) -> None:
        assert isinstance(outcome, Failed)
        self.failed.append((candidate.index, outcome))

    def timed_again(self, candidate: Candidate, timing: Timing) -> None:
        self.again.append((candidate.index, timing))


class Scene:
    """A workload whose candidates are hand-written libraries, and a measuring child."""

    target: Target = parse_target("llvm:x86-64")

    def __init__(self, folder: Path, child: Child, first: int) -> None:
        self.folder = folder
        self.child = child
        self.first = first  # the label of its first candidate: those of other tests are others
        self._referenced = self._count()
        self.log = Log()
        self.built: list[Built] = []
        self.kernel = KernelSpec(
            name="twice", frontend="tvm", factory="authors:factory", targets=(), shapes=(), configs=(), where="[kernel.twice]",
            reference="authors:twice", profile=PROFILE,
        )  # fmt: skip

    def add(self, spin: int, mode: str = "") -> int:
        """Build a candidate that takes so many microseconds and goes wrong in some mode."""
        index = len(self.built)
        content = self.build(spin, self.first + index, mode)
        place = self.folder / f"built-{self.first + index}"
        place.mkdir()
        (place / "executable.so").write_bytes(content)
        self.built.append(Built(place, digest_of(content), PARAMS, (1,), {}, {}))
        return index

    def build(self, spin: int, label: int, mode: str) -> bytes:
        """Bytes of a library."""
        return compile_source("misbehave.c", SPIN=spin, LABEL=label, **({"MODE": ord(mode)} if mode else {}))

    @property
    def workload(self) -> Workload:
        configs = tuple({"n": n} for n in range(len(self.built)))
        return Workload(self.kernel, self.target, {"N": 64}, configs)

    def screen(self) -> dict[int, Measured | Failed]:
        workload = self.workload
        return {c.index: screen(self.child, workload, c, self.built[c.index]) for c in workload.candidates()}

    def decide(self, results: dict[int, Measured | Failed], preferred: Sequence[int] = ()) -> Decision:
        configs = [{"n": index} for index in preferred]
        return decide(self.workload, results, self.child, preferred=configs, journal=self.log)

    def misbehave(self, index: int, mode: str) -> None:
        """From now on a candidate goes wrong."""
        (self.folder / str(self.first + index)).write_text(mode)

    def referenced(self) -> int:
        """How often the reference has run."""
        return self._count() - self._referenced

    def _count(self) -> int:
        path = self.folder / "reference"
        return len(path.read_text()) if path.exists() else 0


def latency(result: Measured | Failed) -> float:
    assert isinstance(result, Measured), result
    return result.timing.latency
