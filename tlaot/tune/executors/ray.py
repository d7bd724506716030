"""The Ray executor: the nodes of a cluster compile, and its GPUs measure.

It connects to a cluster that runs: the one of ``RAY_ADDRESS``, else the one that this machine belongs to. It never starts one.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ...errors import BuildError
from ...target import Target
from ..compiling.compile import Workshop
from ..machine import Gpu, Machine
from ..measuring.decide import Log
from .cluster import Cluster, on_node
from .crew import Crew, Unit
from .far import CompilingNode, MeasuringNode, Order
from .far_compilers import ClusterPool
from .far_devices import ClusterDevice
from .nodes import Node, compiles
from .pick import model_of, processor_of, quiet_node, rank_gpus
from .remote import Remote, Watch
from .seam import Device

__all__ = ["Ray"]

# Variables that change what is found, which processes on the nodes have as the driver has them. Ray sets the first by itself.
_TRAVELLING = ("OMP_NUM_THREADS", "TLAOT_NUM_THREADS", "TLAOT_NVRTC")

# s for an actor to say which GPU it was given.
_ANSWER_LIMIT = 120.0
# s for further devices once one is there, before the tuning begins with those that are; and between two lines about waiting.
_MORE_DEVICES, _SAY_WAITING = 10.0, 30.0
# s between two looks at which nodes there are.
_RESCAN = 10.0
# Calls that an actor answers beside its work.
_ASIDE = 8


class Ray:
    """Nodes of a Ray cluster.

    Args:
        pack: Writes an archive of the author's modules to a path, and returns a digest of them.
        say: Takes a line for the person who waits.

    Raises:
        BuildError: Ray is not installed, or no cluster can be reached.
    """

    def __init__(self, pack: Callable[[Path], str], say: Callable[[str], None]) -> None:
        self._say = say
        self._cluster = Cluster(pack, say)
        self._hands = ThreadPoolExecutor(16, thread_name_prefix="tlaot-cluster")
        self._guard = threading.Lock()
        self._pools: list[ClusterPool] = []
        self._measured: Counter[str] = Counter()
        self._order: Order | None = None
        self._kinds: list[tuple[str, Target]] = []
        self._scanned = time.monotonic()
        self._quiet: Node | None = None
        self._crew = Crew(self._make_unit, self._freed)
        self._watch = Watch(self._due)

    def survey(self, machine: Machine) -> Machine:
        """The cluster as one machine.

        Raises:
            BuildError: A node has other versions than the driver, or no node is of use.
        """
        self._cluster.survey()
        nodes = list(self._cluster.nodes.values())
        self._crew.add(node for node in nodes if node.cpus)
        self._quiet = quiet_node(nodes, self._cluster.own)
        for node in nodes:
            if node.cpus or node.gpus:  # a head often gives away nothing
                self._say(f"tlaot: ray: {node.facts.host}: {node.cpus} CPUs, {node.model}")
            if node.gpus and "torch" not in node.facts.machine.distributions:
                self._cluster.tell(
                    f"{node.facts.host} measures nothing: it has no torch, which checks and times kernels"
                )
        gpus = rank_gpus(nodes)
        facts = self._quiet.facts.machine
        # Whoever checks and times on a GPU needs torch there, and the driver does not.
        versions = [node.facts.machine.distributions.get("torch") for node in nodes if node.gpus]
        torch = next(filter(None, versions), None) if gpus else machine.distributions.get("torch")
        distributions = {name: version for name, version in machine.distributions.items() if name != "torch"}
        return Machine(facts.cpu, facts.cpu_count, gpus, {**distributions, **({"torch": torch} if torch else {})})

    def jobs(self, machine: Machine) -> int:
        return max(1, self._crew.slots(lambda node: True))

    def warm(self, frontend: str, target: Target, workshop: Workshop, measures: bool) -> None:
        self._set_order(workshop)
        self._kinds.append((frontend, target))
        ids = self._compiling_nodes(frontend, target)
        self._crew.open(lambda node: node.id in ids)

    def compilers(self, frontend: str, target: Target, workshop: Workshop) -> ClusterPool:
        """A pool on the nodes that can compile for the target.

        Raises:
            BuildError: No node can.
        """
        self._set_order(workshop)
        if not self._compiling_nodes(frontend, target):
            raise BuildError(
                f"executor ray, target {target}", "no node of the cluster can compile for it", "See the lines above."
            )
        pool = ClusterPool(
            frontend, workshop, self._crew, lambda node: node.id in self._compiling_nodes(frontend, target)
        )
        with self._guard:
            self._pools = [*self._pools, pool]
        return pool

    @contextmanager
    def devices(self, target: Target, workshop: Workshop, machine: Machine, log: Log) -> Iterator[Sequence[Device]]:
        self._set_order(workshop)
        compiling = {self._cluster.nodes[id].facts.boot for id in self._compiling_nodes(None, target)}
        with ExitStack() as stack:
            devices: list[ClusterDevice] = []
            for node, gpu in self._places(target, machine, log):
                apart = node.facts.boot not in compiling
                device = self._device(node, gpu, apart, log, len(devices))
                stack.callback(device.close)
                devices.append(device)
            if not target.is_cuda and not devices[0].apart:
                stack.callback(self._crew.pinned.clear)
                self._crew.pinned.add(devices[0].node.id)
            yield self._await_devices(devices, target, machine, log)

    def report(self) -> list[str]:
        """What each node has done, in a line."""
        lines = []
        nodes = [node for node in self._cluster.nodes.values() if node.cpus or node.gpus]
        for node in sorted(nodes, key=lambda node: (node.facts.host, node.id)):
            done = f"{self._crew.compiled[node.id]} compiled, {self._measured[node.id]} measured"
            lines.append(f"{node.facts.host} ({node.cpus} CPUs, {node.model}): {done}")
        return lines

    def close(self) -> None:
        self._cluster.stop_asking()
        for line in self.report():
            self._say(f"tlaot: ray: {line}")
        for pool in self._pools:
            pool.close()
        self._crew.close()
        self._watch.close()
        self._hands.shutdown(wait=False, cancel_futures=True)
        self._cluster.close()

    # -- the cluster

    def _due(self) -> None:
        """What the watch does from time to time."""
        for pool in self._pools:
            pool.rush()
        if self._cluster.nodes and time.monotonic() - self._scanned > _RESCAN:
            self._scanned = math.inf  # until that has ended: a node that says nothing may take its time
            self._hand(self._rescan)
        self._crew.mend()
        self._hand(self._crew.rest)  # which waits for what it closes

    def _rescan(self) -> None:
        try:
            for node in self._cluster.find_gone():
                self._say(f"tlaot: ray: {node.facts.host} is gone; what it did is done elsewhere")
                self._crew.remove(node.id)
                self._watch.lose(node.id, "its node is gone")  # Ray may leave calls of it open
            joined = self._cluster.find_joined()
        finally:
            self._scanned = time.monotonic()
        for node in joined:
            self._say(f"tlaot: ray: {node.facts.host} has joined: {node.cpus} CPUs, {node.model}")
        self._crew.add(node for node in joined if node.cpus)
        for pool in self._pools if joined else ():
            pool.welcome()

    # -- compiling

    def _compiling_nodes(self, frontend: str | None, target: Target) -> set[str]:
        """The nodes that compile for a target; not the one that measures, where that is a CPU and others compile."""
        found = set()
        for node in self._cluster.nodes.values():
            names = [frontend] if frontend else [name for name, other in self._kinds if other == target] or ["tvm"]
            why = next(
                (why for name in names if (why := compiles(node, self._cluster.own, name, target.is_cuda))), None
            )
            if why is None and node.cpus:
                found.add(node.id)
            elif why is not None and node.cpus:
                self._cluster.tell(f"{node.facts.host} does not compile for {target}: {why}")
        if not target.is_cuda and self._quiet is not None:
            others = {id for id in found if self._cluster.nodes[id].facts.boot != self._quiet.facts.boot}
            return others or found
        return found

    def _make_unit(self, unit: Unit) -> Remote:
        import ray

        actor = ray.remote(CompilingNode).options(
            num_cpus=unit.slots,
            max_concurrency=unit.slots + _ASIDE,
            max_restarts=0,
            scheduling_strategy=on_node(unit.node.id),
        )
        remote = self._remote(actor.remote(unit.slots, self._order), lambda told: None, unit.node)
        remote.up.add_done_callback(lambda up: self._warm_up(remote, up))
        return remote

    def _freed(self) -> None:
        for pool in self._pools:
            self._hand(pool.pump)

    # -- measuring

    def _places(self, target: Target, machine: Machine, log: Log) -> list[tuple[Node, Gpu | None]]:
        """Where a target is measured: a GPU of the chosen model for each item, or the one CPU."""
        nodes = sorted(self._cluster.nodes.values(), key=lambda node: (node.facts.host, node.id))
        if not target.is_cuda:
            assert self._quiet is not None
            quiet = self._quiet if self._quiet.id in self._cluster.nodes else quiet_node(nodes, self._cluster.own)
            return [(quiet, None)]
        chosen = machine.gpu_for(target)
        assert chosen is not None
        places: list[tuple[Node, Gpu | None]] = []
        others = Counter[str]()
        for node in nodes:
            if "torch" not in node.facts.machine.distributions:
                continue
            for gpu in node.facts.machine.gpus[: node.gpus]:
                if model_of(gpu) == model_of(chosen):
                    places.append((node, gpu))
                elif target.runs_on(gpu.capability):
                    others[gpu.name] += 1
        if others:
            left = ", ".join(f"{count} x {name}" for name, count in sorted(others.items()))
            log.say(f"tlaot: {target}: measuring on {chosen.name} only; times of other models are not compared: {left}")
        return places

    def _device(self, node: Node, gpu: Gpu | None, apart: bool, log: Log, number: int) -> ClusterDevice:
        import ray

        # A processor that is measured apart from what compiles is nobody else's meanwhile.
        whole = gpu is None and apart
        name = f"{node.facts.host}/{'cpu' if gpu is None else f'gpu {number}'}"

        def make(told: Callable[[Any], None]) -> tuple[Remote, Node] | None:
            at = self._alive(node, gpu)
            if at is None:
                return None
            actor = ray.remote(MeasuringNode).options(
                num_cpus=at.cpus if whole and at is node else 0,
                num_gpus=0 if gpu is None else 1,
                max_concurrency=_ASIDE,
                max_restarts=0,
                scheduling_strategy=on_node(at.id),
            )
            return self._remote(actor.remote("cpu" if gpu is None else "cuda:0", self._order), told, at), at

        return ClusterDevice(name, apart, make, log, self._count_measured)

    def _alive(self, node: Node, gpu: Gpu | None) -> Node | None:
        """The node, if it lives; in place of one whose CPU measured, another one of the same model."""
        alive = self._cluster.alive()
        if node.id in alive:
            return node
        if gpu is not None:
            return None
        same = [n for n in self._cluster.nodes.values() if n.id in alive and processor_of(n) == processor_of(node)]
        if not same:
            return None
        self._quiet = quiet_node(same, self._cluster.own)
        self._crew.pinned.add(self._quiet.id)
        return self._quiet

    def _count_measured(self, node: Node) -> None:
        with self._guard:
            self._measured[node.id] += 1

    def _await_devices(
        self, devices: list[ClusterDevice], target: Target, machine: Machine, log: Log
    ) -> list[ClusterDevice]:
        """Those that there is room for; others are taken by other jobs."""
        began = said = time.monotonic()
        first: float | None = None
        while True:
            up = [device for device in devices if device.remote.up.done() and not device.remote.lost]
            waiting = [device for device in devices if not device.remote.up.done()]
            now = time.monotonic()
            first = now if up and first is None else first
            if not waiting or (first is not None and now - first > _MORE_DEVICES):
                break
            if now - said > _SAY_WAITING:
                said = now
                log.say(
                    f"tlaot: ray: waiting for room on {len(waiting)} of {len(devices)} devices ({now - began:.0f} s)"
                )
            time.sleep(0.05)
        for device in waiting:
            device.close()
        if waiting:
            log.say(
                f"tlaot: ray: {len(waiting)} of {len(devices)} devices are taken by other jobs; measuring on {len(up)}"
            )
        if not target.is_cuda:
            return up or devices  # one whose node has just died goes to another
        up = self._of_model(up, target, machine, log)
        if not up:
            raise BuildError(
                f"executor ray, target {target}",
                "no device of the cluster could be had",
                "See the lines above and ray status; the nodes' logs say why an actor ends.",
            )
        return up

    def _of_model(
        self, devices: list[ClusterDevice], target: Target, machine: Machine, log: Log
    ) -> list[ClusterDevice]:
        """Those whose GPU is of the model that was chosen: a node may have several models."""
        chosen = machine.gpu_for(target)
        assert chosen is not None
        asked = [(device, device.remote.call("gpu")) for device in devices]
        kept = []
        for device, answer in asked:
            found = answer.result(timeout=_ANSWER_LIMIT) if answer.exception(timeout=_ANSWER_LIMIT) is None else None
            if found is not None and model_of(found) == model_of(chosen):
                kept.append(device)
                continue
            log.say(f"tlaot: ray: {device.name} was given {found.name if found else 'no GPU'}; it does not measure")
            device.close()
        return kept

    # -- both

    def _remote(self, actor: Any, told: Callable[[Any], None], node: Node) -> Remote:
        remote = Remote(actor, self._hands, told)
        self._watch.add(remote, node.id)
        return remote

    def _warm_up(self, remote: Remote, up: Future[None]) -> None:
        for kind in self._kinds if up.exception() is None else ():
            remote.call("warm", *kind)

    def _hand(self, work: Callable[[], None]) -> None:
        try:
            self._hands.submit(work)
        except RuntimeError:
            pass  # it is being closed

    def _set_order(self, workshop: Workshop) -> None:
        environ = {name: os.environ.get(name) for name in _TRAVELLING}
        self._order = Order(environ, workshop.devices, self._cluster.sources)
