"""The nodes of a cluster: what is in each, and which of them fit a driver.

A node fits where what is installed there gives the same binaries as here: the same tlaot, frontends, C compiler and Python. One
that has no tlaot, or not the frontend, is nobody's mistake (clusters serve others, too) and is left out; one that has another version is.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import BuildError
from ..compiling.toolchain import find_toolchain
from ..machine import Machine, cpu_level, inspect_machine

__all__ = ["Facts", "Node", "describe", "judge", "make_probe", "refuse"]

# What must be alike; others of Machine.distributions differ without harm.
_FRONTENDS = ("apache-tvm", "tilelang")


@dataclass(frozen=True)
class Facts:
    """What a node has.

    Attributes:
        host: The name of its machine.
        boot: What tells running machines apart: nodes, or containers, of one machine share its processors.
        machine: Processor, GPUs, versions of distributions.
        cpu_level: Rank of the highest x86-64 level that its processor runs; None where that is not known.
        cc: First line of what its C compiler says of itself; "" where there is none.
        nvcc: nvcc's version; "" where there is none.
        nvrtc: Whether NVRTC of the same release is there.
    """

    host: str
    boot: str
    machine: Machine
    cpu_level: int | None
    cc: str
    nvcc: str
    nvrtc: bool


@dataclass(frozen=True)
class Node:
    """A node that fits.

    Attributes:
        id: Ray's name of it.
        facts: What it has.
        cpus, gpus: How many Ray may give away there.
    """

    id: str
    facts: Facts
    cpus: int
    gpus: int

    @property
    def model(self) -> str:
        """The GPUs in a line."""
        names = dict.fromkeys(gpu.name for gpu in self.facts.machine.gpus)
        return f"{self.gpus} x {', '.join(names)}" if self.gpus and names else "no GPU"


def make_probe() -> Callable[[], dict[str, Any]]:
    """A function that says what is installed where it runs; it travels whole, for nodes that have no tlaot, or another one."""

    def probe() -> dict[str, Any]:
        import hashlib
        import importlib.metadata
        import importlib.util
        import os
        import platform
        import socket
        import sys

        def version(name: str) -> str | None:
            try:
                return importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                return None

        found = importlib.util.find_spec("tlaot")
        digest = tlaot = None
        if found is not None and found.submodule_search_locations:
            root = next(iter(found.submodule_search_locations))
            tlaot = "?"
            sums = hashlib.sha256()
            for folder, names, files in os.walk(root):
                # The hooks lie elsewhere in a source tree, and no tuning needs them.
                names[:] = sorted(name for name in names if name not in ("__pycache__", "build_hooks"))
                for name in sorted(files):
                    if name.endswith((".py", ".c", ".h")):
                        path = os.path.join(folder, name)
                        with open(path, "rb") as file:
                            data = file.read()
                        sums.update(f"{os.path.relpath(path, root)}\0{len(data)}\0".encode() + data)
                        if name == "__init__.py" and folder == root:
                            lines = [line for line in data.decode().splitlines() if line.startswith("__version__")]
                            tlaot = lines[0].split('"')[1] if lines and '"' in lines[0] else "?"
            digest = sums.hexdigest()[:12]
        return {
            "host": socket.gethostname(),
            "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
            "machine": platform.machine(),
            "tlaot": tlaot,
            "digest": digest,
            "apache-tvm": version("apache-tvm"),
            "tilelang": version("tilelang"),
        }

    return probe


def describe() -> Facts:
    """What is in this machine."""
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if not environ.get("CUDA_VISIBLE_DEVICES", "-"):
        del environ["CUDA_VISIBLE_DEVICES"]  # Ray hides all GPUs from who asks for none
    search_path = [entry for entry in sys.path if entry]
    try:
        cc = find_toolchain(environ, cuda=False).host.version
    except BuildError:
        cc = ""
    nvcc, nvrtc = "", False
    if cc:
        try:
            cuda = find_toolchain(environ, cuda=True).cuda
            if cuda is not None:
                nvcc, nvrtc = cuda.build or cuda.version, bool(cuda.nvrtc)
        except BuildError:
            pass
    return Facts(socket.gethostname(), _boot(), inspect_machine(search_path, environ), cpu_level(), cc, nvcc, nvrtc)


def judge(name: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Whether a node can be of use.

    Args:
        name: What to call it.
        here, there: What the probe said in the driver, and on the node.

    Returns:
        Why it is left out, and what makes it wrong; None each where it is not.
    """
    if there["machine"] != here["machine"]:
        return f"{name} is left out: its processor is {there['machine']}, the driver's {here['machine']}", None
    if there["tlaot"] is None:
        return f"{name} is left out: it has no tlaot", None
    frontends = [frontend for frontend in _FRONTENDS if here[frontend]]
    if frontends and not any(there[frontend] for frontend in frontends):
        return f"{name} is left out: it has none of {', '.join(frontends)}", None
    wrong = [_differ("Python", here["python"], there["python"])]
    if there["digest"] != here["digest"]:
        same = f", the same number and other code ({there['digest']} and {here['digest']})"
        wrong.append(_differ("tlaot", here["tlaot"], there["tlaot"]) or f"tlaot {here['tlaot']}{same}")
    # One that is on one side only is missing where it is needed, and does no harm elsewhere.
    wrong += [_differ(f, here[f], there[f]) for f in frontends if there[f]]
    told = [what for what in wrong if what]
    return None, f"{name} has {'; '.join(told)}" if told else None


def refuse(wrong: Sequence[str], here: Mapping[str, Any]) -> BuildError:
    """The error about nodes that have other versions."""
    lines = "\n".join(f"  {line}" for line in wrong)
    wanted = [f"tlaot {here['tlaot']}"]
    wanted += [f"{frontend} {here[frontend]}" for frontend in _FRONTENDS if here[frontend]]
    return BuildError(
        "executor ray",
        f"what is installed on the cluster's nodes would not give what it gives here:\n{lines}",
        f"Install the same there, Python {here['python']} with {', '.join(wanted)}, from one wheel or image; or take the node out.",
    )


def _differ(what: str, here: str | None, there: str | None) -> str | None:
    return None if here == there else f"{what} {there or 'none'}, the driver {here or 'none'}"


def compiles(node: Node, here: Facts, frontend: str, cuda: bool) -> str | None:
    """Why a node cannot compile what this driver compiles; None where it can."""
    distribution = {"tvm": "apache-tvm"}.get(frontend, frontend)
    if distribution not in node.facts.machine.distributions:
        return f"has no {distribution}"
    if not node.facts.cc:
        return "has no C compiler"
    if node.facts.cc != here.cc:
        return f"has {node.facts.cc!r}, the driver {here.cc!r}"
    if cuda and not node.facts.nvcc:
        return "has no nvcc"
    if cuda and (node.facts.nvcc, node.facts.nvrtc) != (here.nvcc, here.nvrtc):
        ours, theirs = (f"nvcc {f.nvcc} {'with' if f.nvrtc else 'without'} NVRTC" for f in (here, node.facts))
        return f"has {theirs}, the driver {ours}"
    return None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return platform.node()
