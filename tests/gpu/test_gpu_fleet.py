"""Tuning on two real GPUs: both measure and decide, and the winners are those of one. benchmarks/fleet.py has the times."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numpy")
pytestmark = pytest.mark.gpu

if torch.cuda.device_count() < 2:
    pytest.skip("there are not two CUDA devices", allow_module_level=True)
if torch.cuda.get_device_name(0) != torch.cuda.get_device_name(1):
    pytest.skip("the two CUDA devices are of different models", allow_module_level=True)

from gpu.test_gpu_measure import ARCH, DEVICE, HOST, KERNEL, TARGET  # noqa: E402
from launch_programs import compile_source  # noqa: E402
from measuring import AUTHORS, PROFILE  # noqa: E402
from native.programs import SET_DEVICE, build, host_program, lowered, scratch, tensor  # noqa: E402

from tlaot.errors import BuildError  # noqa: E402
from tlaot.manifest import digest_of  # noqa: E402
from tlaot.tune.children.child import Failed  # noqa: E402
from tlaot.tune.compiling.compile import Built, Workshop  # noqa: E402
from tlaot.tune.compiling.toolchain import find_toolchain  # noqa: E402
from tlaot.tune.executors.local import open_devices  # noqa: E402
from tlaot.tune.measuring.measure import Measured  # noqa: E402
from tlaot.tune.searching.schedule import Stand, Tuned, tune_workloads  # noqa: E402
from tlaot.tune.searching.search import make_search  # noqa: E402
from tlaot.tune.searching.store import Store  # noqa: E402
from tlaot.tune.specs.plan import Candidate, Workload  # noqa: E402
from tlaot.tune.specs.spec import KernelSpec  # noqa: E402
from tlaot.tune.telling.journal import Journal  # noqa: E402
from tlaot.tune.telling.progress import Progress  # noqa: E402

PARAMS = (tensor("A", 64), tensor("B", 64, written=True))
CONFIGS = tuple({"n": n} for n in range(6))
SHAPES = tuple({"at": at} for at in range(4))


class Made:
    """A pool of binaries that were made before."""

    jobs = 4

    def __init__(self, built: dict[str, Built]) -> None:
        self._built = built

    def submit(self, candidate: Candidate) -> Future[Built | Failed]:
        future: Future[Built | Failed] = Future()
        future.set_result(self._built[f"{candidate.workload.path} {candidate.index}"])
        return future

    def close(self) -> None:
        """There is nothing to stop."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Workload], dict[str, Built]]:
    """Workloads whose candidates take 200 us and more, in another order for each; the fastest is told by its place."""
    try:
        cubin = compile_source(DEVICE, ("-std=c++17",), ARCH)
    except BuildError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "authors.py").write_text(AUTHORS)
    kernel = KernelSpec(
        name="twice", frontend="tvm", factory="authors:factory", targets=(TARGET,), shapes=SHAPES, configs=CONFIGS,
        where="[kernel.twice]", reference="authors:twice", profile=PROFILE,
    )  # fmt: skip
    workloads = [Workload(kernel, TARGET, shape, CONFIGS) for shape in SHAPES]
    built = {}
    for workload in workloads:
        for index in range(len(CONFIGS)):
            spin = 200 + 40 * ((index - workload.shape["at"]) % len(CONFIGS))
            label = 100 * workload.shape["at"] + index
            values = [
                "PTR(DATA(0))",
                "PTR(DATA(1))",
                "INT(64)",
                f"INT({spin * 1000})",
                "INT(mode)",
                "INT(1)",
                "INT(64)",
            ]
            before = HOST.format(mode=0, label=label)
            program = lowered(host_program([SET_DEVICE, ("twice", values)], before=before), list(PARAMS), [KERNEL])
            content = build(program, scratch() / f"fleet-{label}", "twice", TARGET, cubin).read_bytes()
            place = folder / f"built-{label}"
            place.mkdir()
            (place / "executable.so").write_bytes(content)
            built[f"{workload.path} {index}"] = Built(place, digest_of(content), PARAMS, (1,), {}, {})
    return folder, workloads, built


@contextmanager
def counted(devices: Any) -> Any:
    """Devices that say what each was given."""
    did: dict[str, list[str]] = {device.name: [] for device in devices}
    for device in devices:

        def submit(function: Callable[..., Any], *rest: Any, device: Any = device, honest: Any = device.submit) -> Any:
            did[device.name].append(function.__name__)
            return honest(function, *rest)

        device.submit = submit
    yield did


def tune(made: Any, tmp_path: Path, names: list[str]) -> tuple[list[Tuned], dict[str, list[str]]]:
    folder, workloads, built = made
    path = (str(folder), *filter(None, sys.path))
    environ = {**os.environ, "MISBEHAVE": str(folder)}
    shop = Workshop(tmp_path, path, environ, tmp_path / "log", 1, find_toolchain(environ, cuda=False), {})
    journal = Journal(tmp_path / "autotuner.log", None)
    found: list[Tuned] = []
    with open_devices(names, shop, journal) as devices, counted(devices) as did, Progress(None, None) as progress:
        store = Store(None, lambda candidate: pytest.fail("no keys"), print)
        stand = Stand(Made(built), devices, store, journal, progress, overlap=True)
        tune_workloads([(workloads, make_search(workloads[0].kernel, workloads))], stand, found.append)
    return found, did


def test_two_gpus_measure_and_decide_and_the_winners_are_those_of_one(made: Any, tmp_path: Path) -> None:
    for names in (["cuda:0"], ["cuda:0", "cuda:1"]):
        found, did = tune(made, tmp_path, names)
        assert [tuned.decision.winner_index for tuned in found] == [0, 1, 2, 3]
        assert all(isinstance(outcome, Measured) for tuned in found for outcome in tuned.outcomes)
        assert all(tuned.decision.reference is not None for tuned in found)
        for name in names:
            assert "screen" in did[name] and "decide" in did[name], did
        assert sum(done.count("screen") for done in did.values()) == len(SHAPES) * len(CONFIGS)
        assert sum(done.count("decide") for done in did.values()) == len(SHAPES)
