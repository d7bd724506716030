"""Tuning on several GPUs against one: wall time where measuring is the limit, and whether the winners are the same.

A throw-away project with one TileLang kernel that takes long (--ms), 4 shapes x 16 configs, is tuned by ``tlaot tune`` in new processes with an empty
build folder each: on the first GPU, then on the first two, and so on (--devices). Configs differ in the work that they do, by 4 % from one to the next, so
that who wins is known. The wall time is that of the command, compilers included; "measuring" is from the log: from the first
candidate that was measured to the last decision.

    PYTHONPATH=. python benchmarks/fleet.py
    PYTHONPATH=. python benchmarks/fleet.py --devices 0 0,1 0,1,2,3 --executor local --ms 200

It prints the ratio of the first run's time to each other's. Without a GPU, ``--target c --ms 20 --devices 0`` tries the command out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
SHAPES, CONFIGS = 4, 16

KERNELS = '''
import tilelang.language as T


def spin(N, work, dtype="float32"):
    """Each of N threads adds up as many numbers as ``work`` says; a chain, which no compiler can shorten."""

    @T.prim_func
    def main(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
            total = T.alloc_fragment((128,), dtype)
            for i in T.Parallel(128):
                total[i] = A[bx * 128 + i]
            for _ in T.serial(work):
                for i in T.Parallel(128):
                    total[i] = total[i] * 0.999999 + 0.000001
            for i in T.Parallel(128):
                B[bx * 128 + i] = total[i]

    return main


def configs(N):
    return [{"work": %(work)d + %(work)d * at // 25} for at in range(%(configs)d)]
'''

SPEC = """
[tlaot]
package = "fleet"
targets = ["%(target)s"]

[[kernel]]
name = "spin"
frontend = "tilelang"
factory = "fleet.kernels:spin"
shapes = [%(shapes)s]
configs = "fleet.kernels:configs"
check = false
search = "exhaustive"
"""

# Iterations of the chain, two dependent operations of about 4 cycles each, that take a millisecond at 1.7 GHz.
_PER_MS = 210_000


@dataclass(frozen=True)
class Run:
    """What a tuning came to: seconds, seconds from the first measurement to the last decision, the winners, and a line on the devices."""

    wall: float
    measuring: float
    winners: dict[str, int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--devices", nargs="+", default=["0", "0,1"], help="GPUs of each run")
    parser.add_argument("--executor", default="local")
    parser.add_argument("--ms", type=float, default=200.0, help="what the fastest config takes")
    parser.add_argument("--target", help="by default the first GPU's")
    options = parser.parse_args()
    target = options.target or _target()
    first: Run | None = None
    print(f"{target}: {SHAPES} shapes x {CONFIGS} configs of {options.ms:g} ms and more, executor {options.executor}")
    print(f"{'devices':>10} {'wall s':>8} {'ratio':>6} {'measuring s':>12} {'ratio':>6}  winners")
    for devices in options.devices:
        run = tune(target, devices, options.executor, options.ms)
        first = first or run
        same = "same" if run.winners == first.winners else f"differ: {run.winners} and {first.winners}"
        print(
            f"{devices:>10} {run.wall:>8.1f} {first.wall / run.wall:>6.2f} {run.measuring:>12.1f} "
            f"{first.measuring / run.measuring:>6.2f}  {same}",
            flush=True,
        )


def _target() -> str:
    from tlaot.tune.machine import inspect_machine

    gpus = inspect_machine([str(HERE), *filter(None, sys.path)], os.environ).gpus
    if not gpus:
        sys.exit("there is no GPU; --target c tries the command out on the processor")
    major, minor = gpus[0].capability
    return f"cuda:sm_{major}{minor}{'a' if major >= 9 else ''}"


def tune(target: str, devices: str, executor: str, ms: float) -> Run:
    """Tune a project of its own with an empty build folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "fleet").mkdir()
        (folder / "fleet" / "__init__.py").touch()
        work = max(1, int(ms * _PER_MS))
        (folder / "fleet" / "kernels.py").write_text(KERNELS % {"work": work, "configs": CONFIGS})
        shapes = ", ".join(f"{{ N = {128 * (1 + at)} }}" for at in range(SHAPES))
        (folder / "tltune.toml").write_text(SPEC % {"target": target, "shapes": shapes})
        (folder / "pyproject.toml").write_text('[project]\nname = "fleet"\nversion = "0"\n')
        command = [sys.executable, "-m", "tlaot", "tune", "--target", target, "--executor", executor]
        command += ["--devices", devices] if target.startswith("cuda") else []
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
        start = time.monotonic()
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
        wall = time.monotonic() - start
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}:\n{done.stdout}\n{done.stderr}")
        lock = json.loads((folder / "tltune.lock").read_text())
        winners = {
            json.dumps(entry["shape"]): (entry["ships"]["work"] - work) * 25 // work for entry in lock["entries"]
        }
        return Run(wall, _measuring((folder / "build" / "tlaot" / "autotuner.log").read_text()), winners)


def _measuring(log: str) -> float:
    """Seconds from the first candidate that was measured to the last decision, by the log's stamps."""
    found = re.findall(r"^(\d\d):(\d\d):(\d\d) (?:measured|again|tlaot: spin)", log, re.MULTILINE)
    stamps = [int(h) * 3600 + int(m) * 60 + int(s) for h, m, s in found]
    return max(1.0, (stamps[-1] - stamps[0]) % 86400)


if __name__ == "__main__":
    main()
