"""What runs on the nodes of a cluster: a class whose objects compile there, and one whose objects measure there.

``ray`` makes actors of both; nothing here imports it. All that an object needs is in its node's own environment, or is sent to it as
plain data. Whatever ends the process of an object ends the processes that it started, and its scratch folder goes too.
"""

from __future__ import annotations

import os
import queue
import shutil
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...atomic import write_atomically
from ...errors import SpecError, TlaotError
from ...manifest import digest_of
from ...target import Target
from ..children.child import STOPPED, Child, Failed, Lost, stop_all
from ..children.forkserver import close_servers
from ..compiling.compile import EXECUTABLE, Built, CompilePool, Workshop, expand_kernel, warm
from ..compiling.toolchain import find_toolchain
from ..machine import Gpu, inspect_machine
from ..measuring.timing import Timing
from ..specs.plan import Candidate
from ..specs.spec import KernelSpec
from .freight import map_built
from .luggage import digest_tree
from .scratch import Scratch, end_with_parent

__all__ = ["Answer", "Compiled", "CompilingNode", "MeasuringNode", "Order"]

# Bytes of what a compiler printed that travel with a candidate.
_MOST_SAID = 64 << 10


@dataclass(frozen=True)
class Order:
    """What a driver tells every object on a node.

    Attributes:
        environ: Variables that its processes have as the driver has them; None for one that the driver does not have.
        devices: Overrides of the device table, by target.
        sources: Digest of the author's modules, which are in the working directory; None where a node has them otherwise.
    """

    environ: Mapping[str, str | None]
    devices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sources: str | None = None


@dataclass(frozen=True)
class Compiled:
    """What compiling a candidate on a node came to.

    Attributes:
        outcome: The result; the folder of a ``Built`` is of no meaning.
        files: What its folder holds, by name.
        said: What the compilers printed.
        unfit: Why this node cannot compile the candidate, and another one could; None where it can.
    """

    outcome: Built | Failed
    files: Mapping[str, bytes] = field(default_factory=dict)
    said: bytes = b""
    unfit: str | None = None


@dataclass(frozen=True)
class Answer:
    """What a piece of measuring came to.

    Attributes:
        value: What the function returned.
        error: What it raised.
        missing: Digests of binaries that are to be sent first; nothing was done then.
        told: What the log was told, as the names and arguments of its methods.
    """

    value: Any = None
    error: BaseException | None = None
    missing: tuple[str, ...] = ()
    told: tuple[tuple[str, tuple[Any, ...]], ...] = ()


class CompilingNode:
    """Compiles candidates for a driver elsewhere, several at a time.

    Args:
        slots: How many.
        order: What the driver says.
    """

    def __init__(self, slots: int, order: Order) -> None:
        end_with_parent()
        self._scratch = Scratch()
        self._idle: queue.LifoQueue[_Slot] = queue.LifoQueue()
        shops = [_workshop(self._scratch.path, order, f"slot-{number}.log") for number in range(slots)]
        self._slots = [_Slot(shop) for shop in shops]
        for slot in self._slots:
            self._idle.put(slot)
        self._checked: dict[tuple[Any, ...], str | None] = {}
        self._guard = threading.Lock()
        self._stopped: set[int] = set()

    def warm(self, frontend: str, target: Target) -> None:
        """Have what workers need imported while nobody waits for it."""
        shop = self._slots[0].shop(target)
        warm(frontend, target, shop.search_path, shop.environ, shop.device_of(target))

    def listen(self) -> tuple[Any, ...]:
        """Says that the process is alive."""
        return ()

    def compile(self, job: int, frontend: str, candidate: Candidate) -> Compiled:
        """Compile a candidate in a worker process of its own.

        Args:
            job: By what number :meth:`stop` knows it.
            frontend: Its frontend.
            candidate: The candidate.
        """
        slot = self._idle.get()
        try:
            with self._guard:
                if job in self._stopped:
                    return Compiled(Failed("start", f"{STOPPED} before it began"))
                slot.job = job
            unfit = self._check(frontend, candidate, slot)
            if unfit is not None:
                return Compiled(Failed("start", unfit), said=slot.drain(), unfit=unfit)
            outcome = slot.compile(frontend, candidate)
            files = {}
            if isinstance(outcome, Built):
                files = {path.name: path.read_bytes() for path in outcome.folder.iterdir() if path.is_file()}
                shutil.rmtree(outcome.folder, ignore_errors=True)
            return Compiled(outcome, files, slot.drain())
        finally:
            with self._guard:
                slot.job = None
                self._stopped.discard(job)
            self._idle.put(slot)

    def stop(self, job: int) -> None:
        """End a candidate's compilation, whose result nobody wants any more."""
        with self._guard:
            slot = next((slot for slot in self._slots if slot.job == job), None)
            if slot is None:
                self._stopped.add(job)
        if slot is not None:
            slot.stop(job)

    def close(self) -> None:
        """End all processes, and remove the scratch folder."""
        for slot in self._slots:
            slot.close()
        close_servers()
        self._scratch.close()

    def _check(self, frontend: str, candidate: Candidate, slot: _Slot) -> str | None:
        """Why the kernel's modules cannot be imported here, as they could by the driver; None where they can."""
        kernel, target = candidate.workload.kernel, candidate.workload.target
        key = (kernel.where, kernel.factory, frontend, str(target))
        with self._guard:
            if key in self._checked:
                return self._checked[key]
        unfit = _try_callables(kernel, frontend, target, slot.shop(target))
        with self._guard:
            self._checked[key] = unfit
        return unfit


class _Slot:
    """Room for one candidate: a pool of one worker, of the kind that was needed last."""

    def __init__(self, shop: Workshop) -> None:
        self._shop = shop
        self._pool: CompilePool | None = None
        self._kind: tuple[str, str] | None = None
        self._guard = threading.Lock()
        self.job: int | None = None

    def shop(self, target: Target) -> Workshop:
        if target.is_cuda and self._shop.toolchain.cuda is None:
            self._shop = replace(self._shop, toolchain=find_toolchain(self._shop.environ, cuda=True))
        return self._shop

    def compile(self, frontend: str, candidate: Candidate) -> Built | Failed:
        target = candidate.workload.target
        kind, shop = (frontend, str(target)), self.shop(target)
        with self._guard:
            if self._kind != kind:
                self._close()
            if self._pool is None:
                self._pool, self._kind = CompilePool(frontend, target, shop), kind
            future = self._pool.submit(candidate)
        try:
            return future.result()
        except CancelledError:
            return Failed("start", f"{STOPPED} before it began")

    def stop(self, job: int) -> None:
        with self._guard:
            if self.job == job:  # it may just have ended, and the next one begun
                self._close()

    def close(self) -> None:
        with self._guard:
            self._close()

    def _close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def drain(self) -> bytes:
        """What was printed since the last call; the end of it, where it is much."""
        try:
            said = self._shop.log.read_bytes()
            self._shop.log.unlink()
        except OSError:
            return b""
        return said[-_MOST_SAID:]


class MeasuringNode:
    """Measures for a driver elsewhere, with one measuring child.

    Args:
        device: ``"cpu"`` or ``"cuda:0"``, as this process sees it.
        order: What the driver says.
    """

    def __init__(self, device: str, order: Order) -> None:
        end_with_parent()
        self._scratch = Scratch()
        self._shop = _workshop(self._scratch.path, order, "measuring.log")
        self._device = device
        self._child: Child = self._shop.measurer(device)
        self._binaries = self._scratch.path / "binaries"
        self._log = _Recorder()
        self._stops = 0

    def gpu(self) -> Gpu | None:
        """The GPU that this process was given."""
        if self._device == "cpu":
            return None
        gpus = inspect_machine(self._shop.search_path, self._shop.environ).gpus
        return gpus[0] if gpus else None

    def listen(self) -> tuple[tuple[str, tuple[Any, ...]], ...]:
        """What the log was told since the last time."""
        return self._log.drain()

    def run(self, function: Callable[..., Any], arguments: Sequence[Any], binaries: Mapping[str, bytes]) -> Answer:
        """Call a function of ``measuring/tasks.py``.

        Args:
            function: The function.
            arguments: Its arguments after the child and the log.
            binaries: Those that it needs and that were not sent before, by their SHA-256.
        """
        try:
            for sha256, data in binaries.items():
                self._keep(sha256, data)
            missing: set[str] = set()
            here = map_built(list(arguments), lambda built: self._place(built, missing))
            if missing:
                return Answer(missing=tuple(sorted(missing)), told=self._log.drain())
            stops = self._stops
            value = function(self._child, self._log, *here)
            if stops != self._stops:  # what it says of a child that was taken away is no verdict
                raise Lost(Failed("start", STOPPED))
            return Answer(value, told=self._log.drain())
        except OSError as error:  # a full disk, say
            return Answer(error=Lost(Failed("start", str(error))), told=self._log.drain())
        except (TlaotError, Lost, RuntimeError) as error:
            return Answer(error=_plain(error), told=self._log.drain())

    def stop(self) -> None:
        """End what the child does, at once."""
        self._stops += 1
        self._child.end()

    def close(self) -> None:
        """End all processes, and remove the scratch folder."""
        self._stops += 1
        stop_all([self._child])
        close_servers()
        self._scratch.close()

    def _keep(self, sha256: str, data: bytes) -> None:
        found = digest_of(data)
        if found.sha256 != sha256:
            raise RuntimeError(f"a binary arrived as {found.sha256}, and was sent as {sha256}")
        folder = self._binaries / sha256
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / EXECUTABLE, data)

    def _place(self, built: Built, missing: set[str]) -> Built:
        folder = self._binaries / built.digest.sha256
        if not (folder / EXECUTABLE).is_file():
            missing.add(built.digest.sha256)
        return replace(built, folder=folder)


class _Recorder:
    """A log that remembers what it is told, to be told to the driver's."""

    def __init__(self) -> None:
        self._told: deque[tuple[str, tuple[Any, ...]]] = deque()

    def say(self, text: str) -> None:
        self._told.append(("say", (text,)))

    def write(self, text: str) -> None:
        self._told.append(("write", (text,)))

    def measured(self, candidate: Candidate, outcome: Timing | Failed) -> None:
        self._told.append(("measured", (candidate, outcome)))

    def timed_again(self, candidate: Candidate, timing: Timing) -> None:
        self._told.append(("timed_again", (candidate, timing)))

    def drain(self) -> tuple[tuple[str, tuple[Any, ...]], ...]:
        told = []
        while self._told:
            told.append(self._told.popleft())
        return tuple(told)


def _workshop(scratch: Path, order: Order, log: str) -> Workshop:
    """What a local build has, made of what is on this node."""
    here = [] if order.sources is None else [_keep_sources(scratch / "sources", order.sources)]
    search_path = tuple(dict.fromkeys([*here, *(entry for entry in sys.path if entry)]))
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for key, value in order.environ.items():
        environ.pop(key, None)
        if value is not None:
            environ[key] = value
    toolchain = find_toolchain(environ, cuda=False)
    return Workshop(scratch, search_path, environ, scratch / log, 1, toolchain, order.devices)


def _keep_sources(folder: Path, digest: str) -> str:
    """Copy the author's modules out of the working directory, which Ray may remove while this process lives, once they are whole."""
    if not folder.exists():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(os.getcwd(), folder, ignore=ignored)
        if digest_tree(folder) != digest:
            shutil.rmtree(folder)
            raise OSError(f"{os.getcwd()} does not hold the modules that were sent")
        os.chdir(folder)
    return str(folder)


def _try_callables(kernel: KernelSpec, frontend: str, target: Target, shop: Workshop) -> str | None:
    """Import what a kernel names, which the driver has imported before."""
    bare = replace(kernel, shapes=({},), configs=({},), dynamic={})
    child = shop.worker(frontend, target)
    try:
        found = expand_kernel(bare, target, child, shop)
    except SpecError as error:
        return f"{error.where}: {error.what}"
    finally:
        child.kill()
    return f"{found.stage}: {found.reason}" if isinstance(found, Failed) else None


def _plain(error: BaseException) -> BaseException:
    """An error that can be sent: without its cause, which may be an object of a library that the driver does not have."""
    if isinstance(error, (TlaotError, Lost)):
        return error.with_traceback(None)
    return RuntimeError(f"{type(error).__name__}: {error}")
