"""Compile candidates in parallel: each becomes the very ``executable.so`` that would ship, or a reason."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...errors import SpecError
from ...manifest import FileDigest, Param, digest_of, param_from_json
from ...target import Target
from ..children.child import ATTEMPTS, Child, Failed, stop_all
from ..children.forkserver import CannotStart, find_server
from ..specs.plan import Candidate, Workload, canonical
from ..specs.spec import KernelSpec
from .toolchain import Toolchain

__all__ = ["Built", "CompilePool", "Workshop", "compile_candidates", "expand_kernel", "warm"]

EXECUTABLE = "executable.so"

_WORKER, _MEASURER = "tlaot.tune.compiling.worker", "tlaot.tune.measuring.measurer"


@dataclass(frozen=True)
class Built:
    """A candidate that compiled and linked.

    Attributes:
        folder: Where its files are.
        digest: Of ``executable.so``.
        params, out_idx: The kernel's signature.
        frontend: What lowered it.
        asked: Device properties that the factory asked for.
        compiler: What compiled its device code, ``"nvrtc 13.0"``; "" for none, or where that is not known.
        code: SHA-256 of what was generated: ``source``, and ``cubin`` or ``ptx``; empty where that is not known.
        shared_memory: Bytes of dynamic shared memory per block that its launches need, as far as that is known.
    """

    folder: Path
    digest: FileDigest
    params: tuple[Param, ...]
    out_idx: tuple[int, ...]
    frontend: Mapping[str, str]
    asked: Mapping[str, Any]
    compiler: str = ""
    code: Mapping[str, str] = field(default_factory=dict)
    shared_memory: int = 0


@dataclass(frozen=True)
class Workshop:
    """What compiling needs of the machine, read once at the edge.

    Attributes:
        scratch: Folder for intermediate files; one build's own.
        search_path: ``sys.path`` of the worker processes.
        environ: Environment of the worker processes.
        log: File that takes what compilers and authors' modules print.
        jobs: Candidates that are compiled at the same time.
        toolchain: Compilers.
        devices: Overrides of the device table by target.
    """

    scratch: Path
    search_path: tuple[str, ...]
    environ: Mapping[str, str]
    log: Path
    jobs: int
    toolchain: Toolchain
    devices: Mapping[str, Mapping[str, Any]]

    def device_of(self, target: Target) -> Mapping[str, Any]:
        """Overrides of a target's device; PTX is for the device of the target that it is made of."""
        return self.devices.get(f"cuda:{target.sm}" if target.is_virtual else str(target), {})

    def worker(self, frontend: str, target: Target) -> Child:
        """A worker of one frontend that takes a target's device for the one in the machine."""
        arguments, path = _kind(frontend, target, self.device_of(target), self.search_path)
        server = find_server(_WORKER, arguments, path, self.environ)
        return Child(_WORKER, arguments, path, self.log, self.environ, server)

    def warm(self, frontend: str, target: Target) -> None:
        """Have what workers and measuring children need imported while the caller goes on."""
        warm(frontend, target, self.search_path, self.environ, self.device_of(target))
        try:
            find_server(_MEASURER, ["cuda" if target.is_cuda else "cpu"], self.search_path, self.environ).warm()
        except CannotStart:
            pass  # likewise

    def measurer(self, device: str) -> Child:
        """A measuring child for ``"cpu"`` or ``"cuda:0"``..."""
        server = find_server(_MEASURER, [device.partition(":")[0]], self.search_path, self.environ)
        return Child(_MEASURER, [device], self.search_path, self.log, self.environ, server)


def warm(
    frontend: str,
    target: Target,
    search_path: Sequence[str],
    environ: Mapping[str, str],
    device: Mapping[str, Any] | None = None,
) -> None:
    """Have what workers need imported while the caller goes on; cheap, and free where it was done before.

    Args:
        frontend: The frontend.
        target: The target, whose device is answered for.
        search_path, environ: As in the :class:`Workshop` to come.
        device: Overrides of the target's device, likewise.
    """
    arguments, path = _kind(frontend, target, device or {}, search_path)
    try:
        find_server(_WORKER, arguments, path, environ).warm()
    except CannotStart:
        pass  # whoever needs a worker will hear why there is none


def _kind(
    frontend: str, target: Target, device: Mapping[str, Any], search_path: Sequence[str]
) -> tuple[list[str], tuple[str, ...]]:
    """What tells one kind of worker from another: the arguments and the search path of its fork server."""
    path = tuple(search_path)
    if frontend != "tilelang":
        # A process that has imported TileLang has TileLang's own TVM on its path, under the name of Apache's.
        path = tuple(entry for entry in path if "/tilelang/3rdparty/" not in f"{entry}/")
    return [frontend, *((str(target), canonical(device)) if target.is_cuda else ())], path


def expand_kernel(
    kernel: KernelSpec, target: Target, child: Child, workshop: Workshop
) -> tuple[list[Workload], dict[str, str]] | Failed:
    """Have a worker evaluate the shapes and configs of a kernel.

    Returns:
        The workloads, and the frontend's name and version; or why there are none.

    Raises:
        SpecError: What the entry names is missing or not callable, or its shapes or configs are none.
    """
    request = {
        "op": "expand",
        "target": str(target),
        "device": workshop.device_of(target),
        "shapes": kernel.shapes if isinstance(kernel.shapes, str) else [dict(shape) for shape in kernel.shapes],
        "configs": kernel.configs if isinstance(kernel.configs, str) else [dict(config) for config in kernel.configs],
        "callables": {
            "factory": kernel.factory,
            "inputs": kernel.inputs,
            "reference": kernel.reference,
            "manual check": kernel.manual_check,
        },
        "dynamic": {name: list(sizes) for name, sizes in kernel.dynamic.items()},
        "where": kernel.where,
    }
    answer = child.request(request, kernel.profile.compile_timeout, again=2)
    if isinstance(answer, Failed):
        return answer
    if "wrong" in answer:
        raise SpecError(*answer["wrong"])
    workloads = [Workload(kernel, target, item["shape"], tuple(item["configs"])) for item in answer["workloads"]]
    return workloads, answer["frontend"]


class CompilePool:
    """Compiles candidates of one frontend and one target at the same time, each in a worker process that it has to itself.

    A context manager; its end stops the workers at once, whatever they do.

    Args:
        frontend: The frontend of every candidate.
        target: The target of every candidate.
        workshop: Compilers, folders, number of workers.
    """

    def __init__(self, frontend: str, target: Target, workshop: Workshop) -> None:
        self.jobs = max(1, workshop.jobs)
        self._workshop = workshop
        self._everyone = [workshop.worker(frontend, target) for _ in range(self.jobs)]
        self._idle: queue.LifoQueue[Child] = queue.LifoQueue()
        for child in self._everyone:
            self._idle.put(child)
        self._threads = ThreadPoolExecutor(self.jobs, thread_name_prefix="tlaot-compile")

    def submit(self, candidate: Candidate) -> Future[Built | Failed]:
        """Compile a candidate as soon as a worker is free, in the order of the calls; any thread may call.

        The future's result is there also when the candidate failed. :meth:`close` cancels what has not begun, and what has
        fails.
        """
        return self._threads.submit(self._compile, candidate)

    def close(self) -> None:
        """Stop all workers at once; what they compile fails, what waits is cancelled."""
        # First: a worker that is stopped would take the next one in the queue.
        self._threads.shutdown(wait=False, cancel_futures=True)
        stop_all(self._everyone)
        self._threads.shutdown()
        for child in self._everyone:
            child.kill()

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _compile(self, candidate: Candidate) -> Built | Failed:
        child = self._idle.get()
        try:
            for _ in range(ATTEMPTS):
                outcome = _compile(candidate, child, self._workshop)
                if not child.lost:
                    break
            if isinstance(outcome, Failed) and outcome.stage != "prune":
                # What its factory left behind (a limit, half of a change) must not be the next one's failure; another worker is
                # forked in milliseconds.
                child.kill()
            return outcome
        except OSError as error:  # a full disk costs one candidate
            return Failed("start", f"its folder cannot be used ({error.strerror})")
        finally:
            self._idle.put(child)


def compile_candidates(
    candidates: Sequence[Candidate],
    frontend: str,
    workshop: Workshop,
    progress: Callable[[Candidate, Built | Failed], None],
) -> list[Built | Failed]:
    """Compile candidates of one frontend and one target in parallel, all of them.

    Args:
        candidates: What to compile.
        frontend: The frontend that all of them use.
        workshop: Compilers, folders, number of jobs.
        progress: Called with each result as it comes.

    Returns:
        One result a candidate, in order.
    """
    if not candidates:
        return []
    with CompilePool(frontend, candidates[0].workload.target, workshop) as pool:
        waiting = {pool.submit(candidate): index for index, candidate in enumerate(candidates)}
        results: dict[int, Built | Failed] = {}
        for future in as_completed(waiting):
            index = waiting[future]
            results[index] = future.result()
            progress(candidates[index], results[index])
    return [results[index] for index in range(len(candidates))]


def _compile(candidate: Candidate, child: Child, workshop: Workshop) -> Built | Failed:
    workload, kernel = candidate.workload, candidate.workload.kernel
    folder = workshop.scratch / "candidates" / workload.path / str(candidate.index)
    folder.mkdir(parents=True, exist_ok=True)
    request = {
        "op": "build",
        "target": str(workload.target),
        "device": workshop.device_of(workload.target),
        "toolchain": asdict(workshop.toolchain),
        "name": kernel.name,
        "factory": kernel.factory,
        "where": kernel.where,
        "shape": dict(workload.shape),
        "config": dict(candidate.config),
        "pass_configs": dict(kernel.pass_configs),
        "compile_flags": list(kernel.compile_flags),
        "out_idx": None if kernel.out_idx is None else list(kernel.out_idx),
        "scratch": str(workshop.scratch),
        "out": str(folder),
        "timeout": kernel.profile.compile_timeout,
    }
    answer = child.request(request, kernel.profile.compile_timeout)
    if isinstance(answer, Failed):
        return answer
    try:
        library = (folder / EXECUTABLE).read_bytes()
    except OSError as error:
        return Failed("link", f"the worker answered, but {EXECUTABLE} cannot be read ({error.strerror})")
    return Built(
        folder=folder,
        digest=digest_of(library),
        params=tuple(param_from_json(param) for param in answer["params"]),
        out_idx=tuple(answer["out_idx"]),
        frontend=answer["frontend"],
        asked=answer["asked"],
        compiler=answer["compiler"] or "",
        code=answer["code"],
        shared_memory=answer["shared_memory"],
    )
