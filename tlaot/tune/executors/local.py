"""The local executor: processes of this host compile, and every visible GPU that runs the target measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ...target import Target
from ..children.child import Child, stop_all
from ..compiling.compile import CompilePool, Workshop, warm
from ..machine import Gpu, Machine
from ..measuring.decide import Log
from .seam import Device

__all__ = ["Local", "LocalDevice", "fitting_gpus", "open_devices"]


class LocalDevice:
    """A device of this host: a measuring child, and a thread that asks it."""

    apart = False  # compilers run beside it
    gone = False

    def __init__(self, name: str, child: Child, log: Log) -> None:
        self.name = name
        self._child = child
        self._log = log
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"tlaot-screen-{name}")

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self._thread.submit(function, self._child, self._log, *arguments)

    def kill(self) -> None:
        stop_all([self._child])

    def close(self) -> None:
        """End the child, then the thread that may wait for it."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.kill()
        self._thread.shutdown()
        self._child.kill()


@contextmanager
def open_devices(names: Sequence[str], workshop: Workshop, log: Log) -> Iterator[Sequence[Device]]:
    """Devices of this host by name, ``"cpu"`` or ``"cuda:0"``; their children go with the block."""
    devices = [LocalDevice(name, workshop.measurer(name), log) for name in names]
    try:
        yield devices
    finally:
        for device in devices:  # one may be in a thread's hands for long; all end now
            device.kill()
        for device in devices:
            device.close()


class Local:
    """Processes of this host.

    Args:
        wanted: Numbers of the GPUs to measure on; None for every visible one.
        say: Takes a line for the person who waits.
    """

    def __init__(self, wanted: Sequence[int] | None, say: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._say = say

    def survey(self, machine: Machine) -> Machine:
        if self._wanted is None or not machine.gpus:
            return machine
        chosen = _wanted_gpus(machine.gpus, self._wanted, machine.gpus, self._say)
        return replace(machine, gpus=tuple(chosen or machine.gpus[:1]))

    def jobs(self, machine: Machine) -> int:
        return machine.cpu_count

    def warm(self, frontend: str, target: Target, workshop: Workshop, measures: bool) -> None:
        if measures:
            workshop.warm(frontend, target)
        else:
            warm(frontend, target, workshop.search_path, workshop.environ, workshop.device_of(target))

    def compilers(self, frontend: str, target: Target, workshop: Workshop) -> CompilePool:
        return CompilePool(frontend, target, workshop)

    @contextmanager
    def devices(self, target: Target, workshop: Workshop, machine: Machine, log: Log) -> Iterator[Sequence[Device]]:
        names = ["cpu"]  # times of several children would be times of half a processor each
        if target.is_cuda:
            names = [f"cuda:{gpu.index}" for gpu in fitting_gpus(target, machine, None, log.say)]
        with open_devices(names, workshop, log) as devices:
            yield devices

    def report(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        """Nothing is left: pools and devices go with their blocks."""


def fitting_gpus(
    target: Target, machine: Machine, wanted: Sequence[int] | None, say: Callable[[str], None]
) -> list[Gpu]:
    """The GPUs that run a target, of the first one's model only.

    Args:
        target: A CUDA target.
        machine: What is here.
        wanted: Numbers of those to take; others are told of and ignored, and where none is left it is the first that runs the target.
        say: Is told what is left out.
    """
    fitting = [gpu for gpu in machine.gpus if target.runs_on(gpu.capability)]
    if wanted is not None:
        fitting = _wanted_gpus(fitting, wanted, machine.gpus, say) or fitting[:1]
    return _of_one_model(fitting, target, say)


def _wanted_gpus(
    gpus: Sequence[Gpu], wanted: Sequence[int], visible: Sequence[Gpu], say: Callable[[str], None]
) -> list[Gpu]:
    invalid = [index for index in wanted if index not in {gpu.index for gpu in gpus}]
    if invalid:
        ordinals = [gpu.index for gpu in visible]
        say(f"Ignoring invalid benchmark device ids {invalid}. Visible CUDA device ordinals are {ordinals}.")
    return [gpu for gpu in gpus if gpu.index in wanted]


def _of_one_model(gpus: Sequence[Gpu], target: Target, say: Callable[[str], None]) -> list[Gpu]:
    """Times of different models say nothing about each other."""
    chosen = [gpu for gpu in gpus if _model(gpu) == _model(gpus[0])]
    others = [f"cuda:{gpu.index} ({gpu.name})" for gpu in gpus if gpu not in chosen]
    if others:
        say(
            f"tlaot: {target}: measuring on {gpus[0].name} only; times of other models are not compared: {', '.join(others)}"
        )
    return chosen


def _model(gpu: Gpu) -> tuple[str, int]:
    # A slice of a GPU has fewer multiprocessors than another one of the same name.
    return gpu.name, gpu.sm_count
