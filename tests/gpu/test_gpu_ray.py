"""Tuning on a Ray cluster with two real GPUs: both measure, and what wins is what wins on one of them."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ray")
pytest.importorskip("tilelang")
pytestmark = pytest.mark.gpu

if torch.cuda.device_count() < 2:
    pytest.skip("there are not two CUDA devices", allow_module_level=True)
if torch.cuda.get_device_name(0) != torch.cuda.get_device_name(1):
    pytest.skip("the two CUDA devices are of different models", allow_module_level=True)

from cluster_scene import Nodes, start_tuning  # noqa: E402
from conftest import ROOT  # noqa: E402
from faults.scene import Scene  # noqa: E402

MAJOR, MINOR = torch.cuda.get_device_capability(0)
TARGET = f"cuda:sm_{MAJOR}{MINOR}{'a' if MAJOR >= 9 else ''}"
SPEC = f"""
[tlaot]
package = "sample_pkg"
targets = ["{TARGET}"]

[[kernel]]
name = "matmul"
frontend = "tilelang"
factory = "sample_pkg.cuda:matmul"
shapes = [{{ M = 1024, N = 1024, K = 1024 }}, {{ M = 2048, N = 2048, K = 1024 }}]
configs = "sample_pkg.cuda:matmul_configs"
out-idx = [-1]
reference = "sample_pkg.reference:matmul"
"""
# Winners whose times are within this are as good as each other.
TIE = 1.05


@pytest.fixture
def folder() -> Iterator[Path]:
    # Sockets' paths are short, and Ray puts them below the folder for temporary files.
    path = Path(tempfile.mkdtemp(prefix="tg-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def entries(scene: Scene) -> dict[str, Any]:
    body = json.loads((scene.folder / "tltune.lock").read_bytes())
    return {json.dumps(entry["shape"]): entry for entry in body["entries"]}


def project(path: Path) -> Scene:
    scene = Scene(path, 0)
    shutil.copytree(ROOT / "sample_pkg", path / "sample_pkg", ignore=shutil.ignore_patterns("_tlaot"))
    (path / "tltune.toml").write_text(SPEC)
    return scene


def test_two_gpus_of_a_cluster_find_what_one_finds(folder: Path) -> None:
    alone = project(folder / "one")
    ended = alone.finish(start_tuning(alone, None, "--devices", "0"), 900)
    assert ended.status == 0, ended.said
    nodes = Nodes(Scene(folder / "n", 0), count=1, cpus=8, gpus=2)
    try:
        both = project(folder / "two")
        ended = both.finish(start_tuning(both, nodes), 900)
        assert ended.status == 0, ended.said
        nodes.expect_nothing_left()
    finally:
        nodes.close()
    name = re.escape(torch.cuda.get_device_name(0))
    assert re.search(rf"2 x {name}\): [1-9]\d* compiled, [1-9]\d* measured", ended.said), ended.said
    assert len(set(re.findall(r"/gpu \d", both.log))) == 0, both.log  # no device was lost
    one, two = entries(alone), entries(both)
    assert one.keys() == two.keys()
    for shape, entry in one.items():
        times = {json.dumps(tried["config"]): tried.get("latency") for tried in entry["candidates"]}
        assert [tried["config"] for tried in entry["candidates"]] == [
            tried["config"] for tried in two[shape]["candidates"]
        ]
        assert [tried.get("binary") for tried in entry["candidates"]] == [
            tried.get("binary") for tried in two[shape]["candidates"]
        ]
        best = min(latency for latency in times.values() if latency is not None)
        assert times[json.dumps(two[shape]["winner"])] <= TIE * best, (shape, entry["winner"], two[shape]["winner"])


def test_a_gpu_that_nobody_has_is_told_of(folder: Path) -> None:
    nodes = Nodes(Scene(folder / "n", 0), count=1, cpus=4, gpus=0)
    try:
        scene = project(folder / "none")
        ended = scene.finish(start_tuning(scene, nodes, "--target", TARGET), 300)
    finally:
        nodes.close()
    assert ended.status == 2
    assert f"there is no GPU to tune {TARGET} on" in ended.said
