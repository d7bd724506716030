"""The seam between a tuning and whatever does its work: what an executor offers, in plain terms.

The tuning loop (``searching/schedule.py``) submits plain functions on plain data and gets :class:`concurrent.futures.Future` objects back.
It does not know whether a process of this host or one of another answers. Two kinds of work:

*Compiling*: :meth:`Compilers.submit` takes a candidate, and its future has ``Built`` or ``Failed``. The folder of a ``Built`` is on the
driver's disk: whoever compiled elsewhere has brought the files, and has checked the digest of ``executable.so``, before the future is done.

*Measuring*: :meth:`Device.submit` takes one of the functions of ``measuring/tasks.py`` and its arguments. Where the device is, the function is
called with a measuring child (a ``Child`` of that host), a ``Log``, and the arguments, so that the lock on the device, the look at
who else uses the host and the many small requests of a decision are all local to the device. Arguments and results are plain
data that ``pickle`` takes. Every ``Built`` among the arguments (alone, in a ``Measured``, in a dict of those) names a folder of the driver's
disk; an executor whose device is elsewhere sends ``executable.so`` by the digest that the ``Built`` has (once a host, not once a call), and
hands the function a ``Built`` whose folder is there. A ``Built`` in a
result may name a folder of that host: whoever submitted has its own. What the log is told is told to the driver's, at
the latest before the future is done.

*Loss*: a worker, a process or a host may end for reasons that no candidate answers for. A future of :meth:`Device.submit` then raises
:class:`~tlaot.tune.children.child.Lost`, and the loop gives the work out again, to any device, a bounded number of times. A pool of
compilers gives it out again itself, up to :data:`~tlaot.tune.children.child.ATTEMPTS` times in all; then the future's result is the ``Failed`` that says so,
which the store does not keep. A device that will not come back says so by :attr:`Device.gone`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ...target import Target
from ..children.child import Failed
from ..compiling.compile import Built, Workshop
from ..machine import Machine
from ..measuring.decide import Log
from ..specs.plan import Candidate

__all__ = ["Compilers", "Device", "Executor"]


class Compilers(Protocol):
    """Compiles candidates of one frontend and one target."""

    @property
    def jobs(self) -> int:
        """How many candidates it compiles at the same time; may change while it runs."""

    def submit(self, candidate: Candidate) -> Future[Built | Failed]:
        """Compile a candidate as soon as there is room, in the order of the calls; any thread may call.

        The future has a result also when the candidate failed.
        """

    def close(self) -> None:
        """Stop at once: what compiles fails or is cancelled, what waits is cancelled."""


class Device(Protocol):
    """One device to measure on, one piece of work at a time, with a measuring child there.

    Attributes:
        name: What it is called in a line of the log: ``"cuda:1"``, or with the host's name before.
        apart: Whether nothing that this tuning compiles runs on its host, so that its times are undisturbed at any moment.
        gone: Whether it was lost for good; nothing more is submitted to it.
    """

    @property
    def name(self) -> str: ...
    @property
    def apart(self) -> bool: ...
    @property
    def gone(self) -> bool: ...

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Have ``function(child, log, *arguments)`` called where the device is.

        What the function raises the future raises; ``Lost`` where nobody can say what became of it.
        """

    def kill(self) -> None:
        """End what it does, from any thread, at once, and for good: its future is done soon, with whatever."""


class Executor(Protocol):
    """Processes that compile, and devices to measure on: of this host, or of several."""

    def survey(self, machine: Machine) -> Machine:
        """The machine as far as a tuning goes: with the devices that this executor reaches in place of the driver's own."""

    def jobs(self, machine: Machine) -> int:
        """How many candidates are compiled at once where nobody says."""

    def warm(self, frontend: str, target: Target, workshop: Workshop, measures: bool) -> None:
        """Have what workers, and where ``measures`` measuring children, need imported while the caller goes on."""

    def compilers(self, frontend: str, target: Target, workshop: Workshop) -> AbstractContextManager[Compilers]:
        """A pool; its end stops what it does at once."""

    def devices(
        self, target: Target, workshop: Workshop, machine: Machine, log: Log
    ) -> AbstractContextManager[Sequence[Device]]:
        """The devices that run a target, of one model only: times of different models are never compared.

        Args:
            target: The target; there is a device that runs it.
            workshop: Folders and environment.
            machine: What :meth:`survey` made; the model is that of its ``gpu_for(target)``.
            log: Is told of devices that are left out, and takes what is told while measuring.
        """

    def report(self) -> Sequence[str]:
        """What each host has done so far, in a line; nothing where there is one host."""

    def close(self) -> None:
        """Leave the executor; nothing of it is used any more."""
