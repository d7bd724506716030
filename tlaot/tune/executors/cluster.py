"""The connection to a Ray cluster: made, and asked which nodes there are and what is in them."""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from ...errors import BuildError
from .nodes import Node, describe, judge, make_probe, refuse

__all__ = ["Cluster", "on_node"]

# s for a node to say what it has; the first process there may have to import from a cold disk.
_PROBE_LIMIT = 120.0
# s for a cluster's head to take a connection.
_KNOCK_LIMIT = 15.0


class Cluster:
    """A cluster that runs: the one of ``RAY_ADDRESS``, else the one that this machine belongs to. None is ever started.

    Args:
        pack: Writes an archive of the author's modules to a path, and returns a digest of them.
        say: Takes a line for the person who waits.

    Attributes:
        nodes: The nodes that fit, by Ray's names of them. It is replaced and never changed.
        own: What the driver's machine has.
        sources: The digest of the modules that travel; None where the connection is that of a program which has its own.

    Raises:
        BuildError: Ray is not installed, or no cluster can be reached.
    """

    def __init__(self, pack: Callable[[Path], str], say: Callable[[str], None]) -> None:
        self._say = say
        self._here = make_probe()()
        self._left_out: set[str] = set()
        self._told: set[str] = set()
        self._disconnect = self._closing = False
        self._sigterm = signal.getsignal(signal.SIGTERM)
        self.own = describe()
        self.nodes: Mapping[str, Node] = {}
        self.sources: str | None = None
        self._connect(pack)

    def survey(self) -> None:
        """Look at all nodes.

        Raises:
            BuildError: A node has other versions than the driver, or no node is of use.
        """
        self.nodes = {node.id: node for node in self._scan(strict=True)}
        if not self.nodes:
            raise BuildError(
                "executor ray",
                "no node of the cluster can be of use",
                'See the lines above; a node needs "tlaot[tvm,ray]" or "tlaot[tilelang,ray]", the same as here.',
            )

    def find_gone(self) -> list[Node]:
        """Look which nodes have gone."""
        alive = self.alive()
        gone = [node for id, node in self.nodes.items() if id not in alive]
        self.nodes = {id: node for id, node in self.nodes.items() if id in alive}
        return gone

    def find_joined(self) -> list[Node]:
        """Look which nodes have joined; asks each, and waits for it."""
        joined = self._scan(strict=False)
        self.nodes = {**self.nodes, **{node.id: node for node in joined}}
        return joined

    def alive(self) -> set[str]:
        """Ray's names of the nodes that live, as far as it knows."""
        import ray

        return {node["NodeID"] for node in ray.nodes() if node["Alive"]}

    def tell(self, line: str) -> None:
        """Say a line once."""
        if line not in self._told:
            self._told.add(line)
            self._say(f"tlaot: ray: {line}")

    def stop_asking(self) -> None:
        """Wait for no node any more."""
        self._closing = True

    def close(self) -> None:
        """Disconnect; from a program's own connection nothing is taken."""
        if not self._disconnect:
            return
        import ray

        ray.shutdown()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._sigterm)

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
        _knock(address)
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
        self.sources, self._disconnect = sources, True

    def _scan(self, strict: bool) -> list[Node]:
        """The nodes that fit and that are not known yet."""
        import ray

        known = {*self.nodes, *self._left_out}
        new = {node["NodeID"]: node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in known}
        said = self._ask(new, make_probe())
        if not strict:  # one that has come and gone is no news
            alive = self.alive()
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
        asked = {id: task.options(**options, scheduling_strategy=on_node(id)).remote().future() for id in nodes}
        deadline = time.monotonic() + _PROBE_LIMIT
        while not self._closing and time.monotonic() < deadline and wait(asked.values(), timeout=0.5).not_done:
            alive = self.alive()  # what is asked of a node that died meanwhile may never fail
            if all(future.done() or id not in alive for id, future in asked.items()):
                break
        answers: dict[str, Any] = {}
        for id, future in asked.items():
            if not future.done():
                answers[id] = TimeoutError(f"for {_PROBE_LIMIT:.0f} s")
            else:
                answers[id] = future.exception() or future.result()
        return answers

    def _leave_out(self, id: str, why: str) -> None:
        self._left_out.add(id)
        self.tell(why)


def on_node(id: str) -> Any:
    """Where an actor or a task is to run: on a node, and nowhere else."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(id, soft=False)


def _name(node: Mapping[str, Any]) -> str:
    return str(node.get("NodeManagerAddress") or node["NodeID"][:8])


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}"[:300] if lines else type(error).__name__


def _knock(address: str) -> None:
    """See whether anybody listens at an address: Ray itself tries for minutes.

    Raises:
        BuildError: Nobody does.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # a name that Ray knows
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_LIMIT).close()
    except OSError as error:
        raise _unreachable(address, error) from None


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
