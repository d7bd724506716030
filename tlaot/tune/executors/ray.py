"""The Ray executor: the nodes of a cluster compile, and its GPUs measure.

It connects to a cluster that runs: the one of ``RAY_ADDRESS``, else the one that this machine belongs to. It never starts one.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import BuildError
from ...target import Target
from ..compiling.compile import Workshop
from ..machine import Gpu, Machine
from ..measuring.decide import Log
from .crew import Crew, Unit
from .far import CompilingNode, MeasuringNode, Order
from .far_compilers import ClusterPool
from .far_devices import ClusterDevice
from .nodes import Facts, Node, compiles, describe, judge, make_probe, refuse
from .remote import Remote, Watch
from .seam import Device

__all__ = ["Ray"]

# Variables that change what is found, which processes on the nodes have as the driver has them. Ray sets the first by itself.
_TRAVELLING = ("OMP_NUM_THREADS", "TLAOT_NUM_THREADS", "TLAOT_NVRTC")

# s for a node to say what it has; the first process there may have to import from a cold disk.
_PROBE_LIMIT = 120.0
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
        self._hands = ThreadPoolExecutor(16, thread_name_prefix="tlaot-cluster")
        self._guard = threading.Lock()
        self._nodes: dict[str, Node] = {}
        self._left_out: set[str] = set()
        self._told: set[str] = set()
        self._pools: list[ClusterPool] = []
        self._measured: Counter[str] = Counter()
        self._order: Order | None = None
        self._kinds: list[tuple[str, Target]] = []
        self._scanned = time.monotonic()
        self._quiet: Node | None = None
        self._here = make_probe()()
        self._own = describe()
        self._crew = Crew(self._make_unit, self._freed)
        self._sources: str | None = None
        self._disconnect = self._closing = False
        self._sigterm = signal.getsignal(signal.SIGTERM)
        self._connect(pack)
        self._watch = Watch(self._due)

    def survey(self, machine: Machine) -> Machine:
        """The cluster as one machine.

        Raises:
            BuildError: A node has other versions than the driver, or no node is of use.
        """
        for node in self._scan(strict=True):
            self._nodes[node.id] = node
        if not self._nodes:
            raise BuildError(
                "executor ray",
                "no node of the cluster can be of use",
                'See the lines above; a node needs "tlaot[tvm,ray]" or "tlaot[tilelang,ray]", the same as here.',
            )
        self._crew.add(node for node in self._nodes.values() if node.cpus)
        self._quiet = _quiet_node(list(self._nodes.values()), self._own)
        for node in self._nodes.values():
            if node.cpus or node.gpus:  # a head often gives away nothing
                self._say(f"tlaot: ray: {node.facts.host}: {node.cpus} CPUs, {node.model}")
        gpus = _rank_gpus(list(self._nodes.values()))
        facts = self._quiet.facts.machine
        torch = next((n.facts.machine.distributions.get("torch") for n in self._nodes.values() if n.gpus), None)
        distributions = {k: v for k, v in machine.distributions.items() if k != "torch"}
        # Whoever checks and times on a GPU needs torch there, and the driver does not.
        torch = torch if gpus else machine.distributions.get("torch")
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
        compiling = {self._nodes[id].facts.boot for id in self._compiling_nodes(None, target)}
        with ExitStack() as stack:
            devices: list[ClusterDevice] = []
            for node, gpu in self._places(target, machine, log):
                apart = node.facts.boot not in compiling
                device = self._device(node, gpu, apart, log, len(devices))
                stack.callback(device.close)
                devices.append(device)
            if not target.is_cuda:
                stack.callback(self._crew.pinned.clear)
                self._crew.pinned.add(devices[0].node.id)
            yield self._await_devices(devices, target, machine, log)

    def report(self) -> list[str]:
        """What each node has done, in a line."""
        lines = []
        nodes = [node for node in self._nodes.values() if node.cpus or node.gpus]
        for node in sorted(nodes, key=lambda node: (node.facts.host, node.id)):
            done = f"{self._crew.compiled[node.id]} compiled, {self._measured[node.id]} measured"
            lines.append(f"{node.facts.host} ({node.cpus} CPUs, {node.model}): {done}")
        return lines

    def close(self) -> None:
        self._closing = True
        for line in self.report():
            self._say(f"tlaot: ray: {line}")
        for pool in self._pools:
            pool.close()
        self._crew.close()
        self._watch.close()
        self._hands.shutdown(wait=False, cancel_futures=True)
        if self._disconnect:
            import ray

            ray.shutdown()
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, self._sigterm)

    # -- the cluster

    def _connect(self, pack: Callable[[Path], str]) -> None:
        try:
            import ray
        except ModuleNotFoundError:
            raise BuildError(
                "executor ray", "Ray is not installed", 'pip install "tlaot[ray]", the version that the cluster has.'
            ) from None
        if ray.is_initialized():
            return  # a program's own connection, with a runtime environment of its own
        address = os.environ.get("RAY_ADDRESS", "").strip() or "auto"
        with tempfile.TemporaryDirectory(prefix="tlaot-ray-") as folder:
            archive = Path(folder, "sources.zip")
            sources = pack(archive)
            environment: dict[str, Any] = {"working_dir": str(archive)}
            try:
                ray.init(
                    address,
                    runtime_env=environment,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    namespace="tlaot",
                )
            except (ConnectionError, RuntimeError, ValueError, TimeoutError, AssertionError) as error:
                raise _unreachable(address, error) from error
        self._sources, self._disconnect = sources, True

    def _scan(self, strict: bool) -> list[Node]:
        """The nodes that fit and that are not known yet."""
        import ray

        known = {*self._nodes, *self._left_out}
        new = {node["NodeID"]: node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in known}
        said = self._ask(new, make_probe())
        if not strict:  # one that has come and gone is no news
            alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
            said = {id: there for id, there in said.items() if id in alive}
        wrong, fit = [], {}
        for id, there in said.items():
            if isinstance(there, BaseException):
                self._leave_out(id, f"{_name(new[id])} is left out: it does not answer ({_first_line(there)})")
                continue
            why, what = judge(f"{there['host']} ({_name(new[id])})", self._here, there)
            if why is not None:
                self._leave_out(id, why)
            elif what is not None:
                wrong.append(what)
                if not strict:
                    self._leave_out(id, f"{what}; it is left out")
            else:
                fit[id] = new[id]
        if wrong and strict:
            raise refuse(wrong, self._here)
        found = []
        for id, facts in self._ask(fit, describe).items():
            if isinstance(facts, BaseException):
                self._leave_out(id, f"{_name(new[id])} is left out: it does not answer ({_first_line(facts)})")
                continue
            resources = new[id]["Resources"]
            found.append(Node(id, facts, int(resources.get("CPU", 0)), int(resources.get("GPU", 0))))
        return found

    def _ask(self, nodes: Mapping[str, Any], function: Callable[[], Any]) -> dict[str, Any]:
        """What a function returns, or raises, on each node."""
        import ray

        task = ray.remote(function)
        options = {"num_cpus": 0, "max_retries": 0}
        asked = {id: task.options(**options, scheduling_strategy=_on(id)).remote().future() for id in nodes}
        deadline = time.monotonic() + _PROBE_LIMIT
        while not self._closing and time.monotonic() < deadline and wait(asked.values(), timeout=0.5).not_done:
            pass
        answers: dict[str, Any] = {}
        for id, future in asked.items():
            if not future.done():
                answers[id] = TimeoutError(f"for {_PROBE_LIMIT:.0f} s")
            else:
                answers[id] = future.exception() or future.result()
        return answers

    def _leave_out(self, id: str, why: str) -> None:
        self._left_out.add(id)
        self._tell(f"tlaot: ray: {why}")

    def _tell(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._say(line)

    def _due(self) -> None:
        """What the watch does from time to time."""
        for pool in self._pools:
            pool.rush()
        if self._nodes and time.monotonic() - self._scanned > _RESCAN:
            self._scanned = math.inf  # until that has ended: a node that says nothing may take its time
            self._hand(self._rescan)
        self._crew.mend()
        self._crew.rest()

    def _rescan(self) -> None:
        try:
            self._look_for_nodes()
        finally:
            self._scanned = time.monotonic()

    def _look_for_nodes(self) -> None:
        import ray

        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for id in [id for id in self._nodes if id not in alive]:
            node = self._nodes[id]
            with self._guard:
                self._nodes = {other: found for other, found in self._nodes.items() if other != id}
            self._say(f"tlaot: ray: {node.facts.host} is gone; what it did is done elsewhere")
            self._crew.remove(id)
        for node in self._scan(strict=False):
            with self._guard:
                self._nodes = {**self._nodes, node.id: node}
            self._say(f"tlaot: ray: {node.facts.host} has joined: {node.cpus} CPUs, {node.model}")
            if node.cpus:
                self._crew.add([node])
                for pool in self._pools:
                    pool.welcome()

    # -- compiling

    def _compiling_nodes(self, frontend: str | None, target: Target) -> set[str]:
        """The nodes that compile for a target; not the one that measures, where that is a CPU and others compile."""
        found = set()
        for node in self._nodes.values():
            names = [frontend] if frontend else [name for name, other in self._kinds if other == target] or ["tvm"]
            why = next((why for name in names if (why := compiles(node, self._own, name, target.is_cuda))), None)
            if why is None and node.cpus:
                found.add(node.id)
            elif why is not None and node.cpus:
                self._tell(f"tlaot: ray: {node.facts.host} does not compile for {target}: {why}")
        if not target.is_cuda and self._quiet is not None:
            others = {id for id in found if self._nodes[id].facts.boot != self._quiet.facts.boot}
            return others or found
        return found

    def _make_unit(self, unit: Unit) -> Remote:
        import ray

        actor = ray.remote(CompilingNode).options(
            num_cpus=unit.slots,
            max_concurrency=unit.slots + _ASIDE,
            max_restarts=0,
            scheduling_strategy=_on(unit.node.id),
        )
        return self._remote(actor.remote(unit.slots, self._order), lambda told: None)

    def _freed(self) -> None:
        for pool in self._pools:
            self._hand(pool.pump)

    # -- measuring

    def _places(self, target: Target, machine: Machine, log: Log) -> list[tuple[Node, Gpu | None]]:
        """Where a target is measured: a GPU of the chosen model for each item, or the one CPU."""
        nodes = sorted(self._nodes.values(), key=lambda node: (node.facts.host, node.id))
        if not target.is_cuda:
            assert self._quiet is not None
            quiet = self._quiet if self._quiet.id in self._nodes else _quiet_node(nodes, self._own)
            return [(quiet, None)]
        chosen = machine.gpu_for(target)
        assert chosen is not None
        places: list[tuple[Node, Gpu | None]] = []
        others = Counter[str]()
        for node in nodes:
            for gpu in node.facts.machine.gpus[: node.gpus]:
                if _model(gpu) == _model(chosen):
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
                num_cpus=at.cpus if whole else 0,
                num_gpus=0 if gpu is None else 1,
                max_concurrency=_ASIDE,
                max_restarts=0,
                scheduling_strategy=_on(at.id),
            )
            return self._remote(actor.remote("cpu" if gpu is None else "cuda:0", self._order), told), at

        return ClusterDevice(name, apart, make, log, self._count_measured)

    def _alive(self, node: Node, gpu: Gpu | None) -> Node | None:
        """The node, if it lives; in place of one whose CPU measured, another one of the same model."""
        import ray

        alive = {item["NodeID"] for item in ray.nodes() if item["Alive"]}
        if node.id in alive:
            return node
        if gpu is not None:
            return None
        same = [n for n in self._nodes.values() if n.id in alive and _processor(n) == _processor(node)]
        if not same:
            return None
        self._quiet = _quiet_node(same, self._own)
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
        if target.is_cuda:
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
            found = answer.result(timeout=_PROBE_LIMIT) if answer.exception(timeout=_PROBE_LIMIT) is None else None
            if found is not None and _model(found) == _model(chosen):
                kept.append(device)
                continue
            log.say(f"tlaot: ray: {device.name} was given {found.name if found else 'no GPU'}; it does not measure")
            device.close()
        return kept

    # -- both

    def _remote(self, actor: Any, told: Callable[[Any], None]) -> Remote:
        remote = Remote(actor, self._hands, told)
        remote.up.add_done_callback(lambda up: self._warm_up(remote, up))
        self._watch.add(remote)
        return remote

    def _warm_up(self, remote: Remote, up: Future[None]) -> None:
        pass

    def _hand(self, work: Callable[[], None]) -> None:
        try:
            self._hands.submit(work)
        except RuntimeError:
            pass  # it is being closed

    def _set_order(self, workshop: Workshop) -> None:
        environ = {name: os.environ.get(name) for name in _TRAVELLING}
        self._order = Order(environ, workshop.devices, self._sources)


def _on(id: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(id, soft=False)


def _name(node: Mapping[str, Any]) -> str:
    return str(node.get("NodeManagerAddress") or node["NodeID"][:8])


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}"[:300] if lines else type(error).__name__


def _unreachable(address: str, error: BaseException) -> BuildError:
    """The error about a cluster that cannot be reached, or is of another version."""
    text = " ".join(str(error).split())
    if "mismatch" in text.lower():
        return BuildError(
            "executor ray",
            f"the cluster at {address} has another Ray or Python: {text[:500]}",
            "Use the same Ray version and the same minor version of Python in the driver and on every node.",
        )
    where = "no Ray cluster runs on this machine" if address == "auto" else f"no Ray cluster is reached at {address}"
    return BuildError(
        "executor ray",
        f"{where} ({text[:300]})",
        "Start one (ray start --head, and ray start --address=HEAD:6379 on the other machines), or set RAY_ADDRESS to one.",
    )


def _processor(node: Node) -> tuple[str, int]:
    return node.facts.machine.cpu, node.facts.machine.cpu_count


def _model(gpu: Gpu) -> tuple[str, int]:
    return gpu.name, gpu.sm_count


def _rank_gpus(nodes: Sequence[Node]) -> tuple[Gpu, ...]:
    """All GPUs, numbered anew. The first that runs a target is measured on: the nearest capability, of that the most frequent model."""
    gpus = [
        gpu
        for node in sorted(nodes, key=lambda node: (node.facts.host, node.id))
        if "torch" in node.facts.machine.distributions
        for gpu in node.facts.machine.gpus[: node.gpus]
    ]
    count = Counter(map(_model, gpus))
    gpus.sort(key=lambda gpu: (gpu.capability, -count[_model(gpu)], _model(gpu)))
    return tuple(replace(gpu, index=number) for number, gpu in enumerate(gpus))


def _quiet_node(nodes: Sequence[Node], own: Facts) -> Node:
    """The node that CPU targets are measured on: of the driver's model where there is one, so that locks stay comparable; then of the
    model that most have; not the driver's machine, where another will do."""
    models = Counter(node.facts.machine.cpu for node in nodes)

    def key(node: Node) -> tuple[Any, ...]:
        facts = node.facts
        return (
            node.cpus == 0,
            facts.machine.cpu != own.machine.cpu,
            -(facts.cpu_level or 0),
            -models[facts.machine.cpu],
            facts.boot == own.boot,
            -facts.machine.cpu_count,
            facts.host,
            node.id,
        )

    return min(nodes, key=key)
