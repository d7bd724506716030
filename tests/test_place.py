"""The build folder: held by one build at a time, and free of what a killed one left."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

# Holds the project in a process of its own, as a build does: a process holds what it held until it ends.
HOLD = "import sys; from pathlib import Path; from tlaot.tune.place import hold_project; hold_project(Path(sys.argv[1]), print)"

# Writes files, each as soon as it can, for half a second: a compiler whose build was killed.
WRITE = """
import itertools, sys, time
from pathlib import Path
folder, end = Path(sys.argv[1]), time.monotonic() + 0.5
for number in itertools.count():
    if time.monotonic() > end:
        break
    try:
        (folder / f"cc{number}.s").write_text("")
    except OSError:
        pass
"""


def hold(project: Path) -> None:
    subprocess.run([sys.executable, "-c", HOLD, str(project)], check=True, timeout=60)


def test_a_killed_builds_files_are_removed(tmp_path: Path) -> None:
    left = tmp_path / "build" / "tlaot" / "run-abcd1234" / "candidates"
    left.mkdir(parents=True)
    (left / "lib0.c").write_text("")
    hold(tmp_path)
    assert {path.name for path in (tmp_path / "build" / "tlaot").iterdir()} == {"lock"}


def test_also_while_its_compilers_are_still_dying(tmp_path: Path) -> None:
    left = tmp_path / "build" / "tlaot" / "run-abcd1234"
    for number in range(20):
        (left / str(number)).mkdir(parents=True)
    writers = [subprocess.Popen([sys.executable, "-c", WRITE, str(left / str(number))]) for number in range(4)]
    deadline = time.monotonic() + 30
    while not any(left.rglob("*.s")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    hold(tmp_path)
    assert all(writer.wait(30) == 0 for writer in writers)
    assert not left.exists()
