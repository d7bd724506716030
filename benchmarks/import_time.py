"""What importing tlaot, loading a package and a kernel's first call cost, in milliseconds, in fresh interpreters.

Each figure is the least of several interpreters; "load" reads and checks a manifest of 100 variants, "first call"
verifies and loads an executable and describes the call.

    python benchmarks/import_time.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fixtures_runtime import compile_kernel, tensor, variant, write_package  # noqa: E402

RUNS = 9

CODE = """
import json, time
marks = [time.perf_counter()]
def mark(): marks.append(time.perf_counter())
import tvm_ffi; mark()
import tlaot; mark()
tlaot.load; mark()
kernels = tlaot.load("import_pkg"); mark()
import numpy
a = numpy.ones((4, 8), "f4")
marks.append(time.perf_counter())
kernels.add(a, a); mark()
kernels.add(a, a); mark()
print(json.dumps([(end - start) * 1e3 for start, end in zip(marks, marks[1:])]))
"""
NAMES = [
    "import tvm_ffi", "import tlaot", "the run-time modules (at the first tlaot.load)", "load, 100 variants",
    None, "first call", "second call",
]  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        binary = compile_kernel(3, 0b100)
        built = []
        for n in range(8, 108):
            params = [tensor(name, 4, n, written=name == "C") for name in "ABC"]
            built.append((variant("add", params, [2], {"N": n}), binary))
        write_package(Path(folder), "import_pkg", {"add": built})
        # With compiled bytecode, as an installed package has it.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), folder]), "PYTHONPYCACHEPREFIX": f"{folder}/pyc"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        subprocess.run([sys.executable, "-c", CODE], env=env, check=True, capture_output=True)
        runs = []
        for _ in range(RUNS):
            done = subprocess.run([sys.executable, "-c", CODE], env=env, check=True, capture_output=True, text=True)
            runs.append(json.loads(done.stdout))
    for name, times in zip(NAMES, zip(*runs, strict=True), strict=True):
        if name:
            print(f"{name:48}{min(times):9.3f} ms")


if __name__ == "__main__":
    main()
