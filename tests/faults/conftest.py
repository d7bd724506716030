"""Fault injection: real builds in real processes, for the CPU, through apache-tvm.

What strikes when is random with a printed seed; ``TLAOT_FAULTS_SEED`` repeats it.
"""

from __future__ import annotations

import importlib.util
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.scene import Scene


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    if importlib.util.find_spec("tvm") is not None and importlib.util.find_spec("numpy") is not None:
        return
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="needs apache-tvm"))


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("TLAOT_FAULTS_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"TLAOT_FAULTS_SEED={chosen}")
    return chosen


@pytest.fixture
def scenes(tmp_path: Path, seed: int) -> Iterator[Callable[[str], Scene]]:
    """Makes scenes; whatever runs of them at the end of the test is ended."""
    made: list[Scene] = []

    def make(name: str) -> Scene:
        made.append(Scene(tmp_path / name, seed + len(made)))
        return made[-1]

    yield make
    for scene in made:
        scene.expect_no_orphan()


@pytest.fixture
def scene(scenes: Callable[[str], Scene]) -> Scene:
    return scenes("project")
