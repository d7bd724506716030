"""The Ray executor on a cluster of this machine: what it finds, and what nodes, drivers and workers that die cost: nothing."""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable

from cluster_scene import Nodes, read_lock, start_tuning
from conftest import ROOT
from faults.scene import Scene, bystanders

Scenes = Callable[[str], Scene]
_LIMIT = 240.0


def test_the_sample_has_the_lock_of_the_local_executor(nodes: Nodes, scenes: Scenes) -> None:
    scene = scenes("sample")
    shutil.copytree(ROOT / "sample_pkg", scene.folder / "sample_pkg", ignore=shutil.ignore_patterns("_tlaot"))
    text = (ROOT / "tltune.toml").read_text()
    quick = "profile = { warmup = 1, rep = 5, decide-budget = 0.1, quiet-timeout = 0 }\n"
    text = text.replace('factory = "sample_pkg.cpu', f'{quick}factory = "sample_pkg.cpu')
    (scene.folder / "tltune.toml").write_text(text)
    found = {}
    for where in (nodes, None):
        options = ["--target", "llvm:x86-64-v3", "--kernel", "rms_norm", "--shape", "N=1024", "--force"]
        ended = scene.finish(start_tuning(scene, where, *options), _LIMIT)
        assert ended.status == 0, ended.said
        found[where is None] = read_lock(scene.folder)
        (scene.folder / "tltune.lock").unlink()
        if where is not None:
            assert sum("2 CPUs" in line and " compiled, " in line for line in ended.said.splitlines()) >= 2, ended.said
    assert found[True] == found[False]
    nodes.expect_nothing_left()


def test_a_driver_that_dies_leaves_nothing_and_the_next_one_goes_on(nodes: Nodes, scenes: Scenes) -> None:
    scene = scenes("driver")
    scene.write([*bystanders(14), {"work": 0}])
    driver = start_tuning(scene, nodes)
    _await(lambda: scene.log.count(" compiled copy") >= 4)
    assert nodes.ours()
    driver.kill()
    driver.communicate()
    nodes.expect_nothing_left()
    made = scene.log.count(" compiled copy")
    second = start_tuning(scene, nodes)
    _await(lambda: scene.log.count(" measured copy") >= 3)
    second.send_signal(signal.SIGINT)
    began = time.monotonic()
    scene.finish(second, 30)
    assert second.returncode == 130
    assert time.monotonic() - began < 15
    nodes.expect_nothing_left()
    scene.expect_no_orphan()
    ended = scene.finish(start_tuning(scene, nodes), _LIMIT)
    assert ended.status == 0, ended.said
    _expect_complete(scene, 15)
    assert scene.log.count(" compiled copy") <= 15 + 1, scene.log
    assert made >= 4
    nodes.expect_nothing_left()


def test_nodes_that_die_cost_nothing(nodes: Nodes, scenes: Scenes) -> None:
    scene = scenes("killed")
    nodes.add()
    count = 48
    # One takes a minute where it is compiled first, and no time elsewhere.
    scene.write([*bystanders(count - 2), {"work": 0}, {"work": 50, "fault": "late"}], profile={"decide-budget": 0.3})
    driver = start_tuning(scene, nodes)
    began = time.monotonic()
    # While it compiles, and while it measures.
    moments = sorted(
        [*scene.random.sample(range(2, count - 8), 3), *scene.random.sample(range(count, 2 * count - 16), 2)]
    )
    for moment in moments:
        _await(lambda moment=moment: _results(scene) >= moment or driver.poll() is not None)
        assert driver.poll() is None, driver.communicate()[0]
        nodes.kill(scene.random.choice(nodes.living))
        nodes.add()
    ended = scene.finish(driver, _LIMIT)
    assert ended.status == 0, ended.said
    print(f"seed {scene.seed}: killed at {moments} of {2 * count} results, {time.monotonic() - began:.0f} s")
    _expect_complete(scene, count)
    nodes.expect_nothing_left()
    scene.expect_no_orphan()
    scene.expect_tidy()


def _expect_complete(scene: Scene, count: int) -> None:
    """All candidates have a time, each was measured once, and the fastest won."""
    assert " failed " not in scene.log, scene.log
    entry = read_lock(scene.folder)["entries"][0]
    assert len(entry["candidates"]) == count
    assert not [tried for tried in entry["candidates"] if "failed" in tried]
    results = scene.results()
    assert min(results, key=lambda work: results[work]["latency"]) == 0, scene.log
    scene.expect_nothing_measured_twice()
    lines = [line.rpartition(": ")[0] for line in scene.log.splitlines() if " measured copy" in line]
    assert max(Counter(line.partition("#")[2] for line in lines).values()) == 1, lines


def _results(scene: Scene) -> int:
    return scene.log.count(" compiled copy") + scene.log.count(" measured copy")


def _await(done: Callable[[], bool], limit: float = 90) -> None:
    deadline = time.monotonic() + limit
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)
