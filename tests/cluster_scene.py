"""A Ray cluster on this machine, nodes of it that die, and tunings on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.scene import Scene

from tlaot.tune.children.processes import kill_trees, started_at

# Nodes that stand still are noticed after this, in place of 15 s and more.
_QUICK = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1500,
    "health_check_failure_threshold": 4,
}
# What runs on nodes for a tuning, by their command lines: not Ray's own processes.
_OURS = ("tlaot.tune", "ray::CompilingNode", "ray::MeasuringNode")


@dataclass(frozen=True)
class Root:
    """A process at the head of others."""

    pid: int
    born: int


class Nodes:
    """A cluster whose head gives away no processors, and nodes that come and go.

    Args:
        scene: Whose environment the nodes have, its mark with it.
        count: Nodes at the beginning.
        cpus, gpus: That each of them gives away, whatever the machine has.
    """

    def __init__(self, scene: Scene, count: int, cpus: int = 2, gpus: int = 0) -> None:
        from ray.cluster_utils import Cluster

        self.scene, self._gives = scene, {"num_cpus": cpus, "num_gpus": gpus}
        with _environment(scene.environment()):
            self._cluster = Cluster(
                initialize_head=True,
                head_node_args={"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, "_system_config": _QUICK},
            )
        self.address: str = self._cluster.address
        self.living: list[Any] = []
        for _ in range(count):
            self.add()

    def add(self, **environ: str) -> Any:
        """Start a node, which takes a second or two."""
        with _environment({**self.scene.environment(), **environ}):
            node = self._cluster.add_node(wait=False, **self._gives)
        self.living.append(node)
        return node

    def kill(self, node: Any) -> None:
        """End all that runs on a node at once, as when its machine is switched off."""
        kill_trees([_root(node)])
        self.living.remove(node)

    def kill_raylet(self, node: Any) -> None:
        """End the process that the cluster sees the node by, and leave its workers to notice."""
        os.kill(_root(node).pid, signal.SIGKILL)
        self.living.remove(node)

    def ours(self) -> dict[int, str]:
        """The processes that run on nodes for tunings."""
        return {pid: said for pid, said in self.scene.processes().items() if any(part in said for part in _OURS)}

    def expect_nothing_left(self, patience: float = 15) -> None:
        """No process and no folder of a tuning is left on any node."""
        deadline = time.monotonic() + patience
        while left := [*self.ours().items(), *self.scene.temporary.glob("tlaot-node-*")]:
            assert time.monotonic() < deadline, f"left on the nodes: {left}"
            time.sleep(0.1)

    def close(self) -> None:
        self._cluster.shutdown()


def _root(node: Any) -> Root:
    pid = node.all_processes["raylet"][0].process.pid
    return Root(pid, started_at(pid))


@contextmanager
def _environment(environ: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def start_tuning(scene: Scene, nodes: Nodes | None, *options: str, **environ: str) -> subprocess.Popen[str]:
    """Begin ``tlaot tune`` in a scene's folder, on the nodes or on this machine."""
    name = "local" if nodes is None else "ray"
    address = {} if nodes is None else {"RAY_ADDRESS": nodes.address}
    return subprocess.Popen(
        [sys.executable, "-m", "tlaot.cli", "tune", "--executor", name, *options],
        cwd=scene.folder,
        env={**scene.environment(), **address, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def read_lock(folder: Path) -> dict[str, Any]:
    """A project's lock less what is a time, or was chosen by one."""
    body = json.loads((folder / "tltune.lock").read_bytes())
    timed = ("reference", "trusted", "notes", "winner", "ships", "code", "parts", "digest")
    entries = []
    for entry in body["entries"]:
        kept = {key: value for key, value in entry.items() if key not in (*timed, "sizes")}
        kept["candidates"] = [_untimed(tried) for tried in entry["candidates"]]
        entries.append(kept)
    return {**{key: value for key, value in body.items() if key not in ("entries", "digest")}, "entries": entries}


def _untimed(tried: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tried.items() if key not in ("latency", "low", "samples", "spread")}
