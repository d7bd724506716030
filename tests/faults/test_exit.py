"""A process that has called packaged kernels ends with status 0: whatever holds them, whoever calls them last."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from faults.scene import FASTEST, Scene, bystanders

import tlaot


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to import the package from, whose kernels have been tuned."""
    scene = Scene(tmp_path_factory.mktemp("exit") / "project", 0)
    scene.write([{"work": FASTEST}, *bystanders(1)])
    ended = scene.build()
    assert ended.status == 0, ended.said
    return scene.folder / "lib"


BEGIN = """
import atexit, os, sys, threading, time
import numpy, tlaot
a = numpy.arange(512, dtype="float32")
kernels = tlaot.load("faulty")
def call():
    assert (kernels.copy(a) == a).all()
"""
WAYS = {
    "a call": "call()",
    "at exit": "call(); atexit.register(call)",
    "at exit for the first time": "atexit.register(call)",
    "in a destructor": "class Late:\n    def __del__(self): call()\nlate = Late(); late.itself = late; call()",
    "in a module that lives longest": "sys.kept = [kernels, kernels.copy, kernels.copy._modules]; call()",
    "in threads that have ended": "threads = [threading.Thread(target=call) for _ in range(8)]\n"
    "[t.start() for t in threads]; [t.join() for t in threads]",
    # Waiting, not calling: Python before 3.14 ends a thread that takes the interpreter's lock too late by unwinding its stack, which
    # the FFI's C++ frames answer with std::terminate.
    "in threads that are still there": "def wait():\n    call(); done.release(); threading.Event().wait()\n"
    "done = threading.Semaphore(0)\n"
    "[threading.Thread(target=wait, daemon=True).start() for _ in range(4)]; [done.acquire() for _ in range(4)]",
    "in a fork": "call()\nif os.fork() == 0:\n    call(); sys.exit(0)\nassert os.wait()[1] == 0",
    "with the compiler": "import tvm; call(); kept = tvm.runtime.tensor(a)",
    "with the compiler, loaded last": "call(); import tvm; kept = [tvm.IRModule({}), tvm.target.Target('llvm')]",
    "as results": "from tlaot import AutotuneResult\n"
    "folder = next(os.path.dirname(f) for f in __import__('glob').glob(sys.argv[1] + '/faulty/_tlaot/*/*/*/executable.so'))\n"
    "kept = [AutotuneResult.load_from_disk(folder) for _ in range(3)]; call()",
    # What rsync --inplace or cp do to a library that is mapped: its pages are the new file's. Nothing of it runs at exit.
    "overwritten in place": "call()\n"
    "for f in __import__('glob').glob(sys.argv[1] + '/faulty/_tlaot/*/*/*/executable.so'):\n"
    "    data = open(f, 'rb').read(); open(f, 'wb').write(data[:64])\n"
    "    atexit.register(lambda f=f, data=data: open(f, 'wb').write(data[:100]))",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_process_ends_well(site: Path, way: str, tmp_path: Path) -> None:
    place = shutil.copytree(site, tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", BEGIN + textwrap.dedent(WAYS[way]), str(place)],
        env={**Scene(tmp_path / "scene", 0).environment(), "PYTHONPATH": _path(place)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", done.stderr


def _path(place: Path) -> str:
    return f"{place}:{Path(tlaot.__file__).parents[1]}"
