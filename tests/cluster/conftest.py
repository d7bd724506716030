"""Tunings on a Ray cluster: skipped where Ray, or apache-tvm, is not installed.

What strikes when is random with a printed seed; ``TLAOT_FAULTS_SEED`` repeats it.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_scene import Nodes
from faults.scene import Scene


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    missing = [name for name in ("ray", "tvm", "numpy") if importlib.util.find_spec(name) is None]
    for item in items:
        if missing and here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(missing)}"))


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("TLAOT_FAULTS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"TLAOT_FAULTS_SEED={chosen}")
    return chosen


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A cluster of two nodes; others take their places in the last test."""
    # Sockets' paths are short, and Ray puts them below the folder for temporary files.
    folder = Path(tempfile.mkdtemp(prefix="tc-", dir="/tmp"))
    cluster = Nodes(Scene(folder / "n", 0), count=2)
    try:
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def scenes(tmp_path: Path, seed: int) -> Iterator[Callable[[str], Scene]]:
    """Makes scenes; whatever runs of them at the end of the test is ended."""
    made: list[Scene] = []

    def make(name: str) -> Scene:
        made.append(Scene(tmp_path / name, seed + len(made)))
        return made[-1]

    yield make
    for scene in made:
        for pid in scene.processes():
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
