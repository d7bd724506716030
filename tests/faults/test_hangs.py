"""Whatever never ends is ended, with all that it started, and costs its candidate."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from faults.scene import FASTEST, HERE, PATIENCE, Ended, Scene, bystanders, expect_only_the_bad_lost, faults

PROFILE = {"timeout": PATIENCE, "compile-timeout": 5 * PATIENCE}


def test_kernels_and_factories_that_hang(scenes: Callable[[str], Scene]) -> None:
    """20 of either, in four builds at the same time."""
    made = [scenes(f"project{number}") for number in range(4)]
    for number, scene in enumerate(made):
        kernels = faults("kernel-hang", times=4) + faults("kernel-spin", times=1, first=2000)
        factories = faults("hang", "stop", "blocked", "children", times=4, first=3000)
        factories += faults("spin" if number % 2 else "hang", times=1, first=4000)
        chosen = [{"work": FASTEST}, *bystanders(4), *kernels, *factories]
        scene.random.shuffle(chosen)
        scene.write(chosen, profile=PROFILE)
    for scene, ended in zip(made, together(made, jobs=5), strict=True):
        expect_only_the_bad_lost(scene, ended)


def test_compilers_that_hang_or_crash(scenes: Callable[[str], Scene]) -> None:
    """At 20 random calls of cc one never ends, at 10 it crashes with half of its output written."""
    real = shutil.which("gcc") or shutil.which("cc")
    assert real is not None
    made = [scenes(f"project{number}") for number in range(2)]
    for scene in made:
        scene.write([{"work": FASTEST}, *bystanders(24)], profile=PROFILE)
        kinds = ["hang"] * 6 + ["brood"] * 3 + ["spin"] + ["crash"] * 5
        struck = zip(scene.random.sample(range(25), len(kinds)), kinds, strict=True)
        scene.environ = {
            "CC": str(HERE / "fake_cc.sh"),
            "FAULTY_CC": f" {' '.join(f'{at}:{kind}' for at, kind in struck)} ",
            "FAULTY_REAL_CC": real,
        }
    for scene, ended in zip(made, together(made, jobs=6), strict=True):
        where = f"seed {scene.seed}:\n{ended.said}\n{scene.log[-4000:]}"
        assert ended.status == 0, where
        lost = scene.lost()
        # Who waits for what another one makes for all may be lost with it, or be saved by it.
        assert 13 <= len(lost) <= 17, (lost, where)
        reasons = "timed out after|SIGSEGV|Segmentation fault|exit status -11"
        assert all(re.search(reasons, reason) for reason in lost.values()), (lost, where)
        scene.expect_best_of(lost)
        scene.expect_no_orphan()
        scene.expect_tidy()


def test_inputs_that_never_come_are_waited_for_once(scene: Scene) -> None:
    """They are the workload's: nothing of it can be measured, which is said; the next build is none the worse."""
    scene.write([{"work": FASTEST}, *bystanders(8)], profile=PROFILE, lines=['inputs = "faulty.kernels:inputs"'])
    ended = scene.build(FAULTY_INPUTS="hang:always")
    assert ended.status == 1, ended.said
    assert "refused" in ended.said and "prepare: timed out after" in ended.said, ended.said
    asked = len(list(scene.notes.glob("inputs-*")))
    assert asked <= 2, f"inputs were waited for {asked} times"
    scene.expect_no_orphan()
    scene.expect_tidy()
    assert not scene.output.exists()
    assert scene.build().status == 0
    scene.expect_best_of(scene.lost())


def together(scenes: list[Scene], jobs: int) -> list[Ended]:
    with ThreadPoolExecutor(len(scenes)) as pool:
        return list(pool.map(lambda scene: scene.build(jobs), scenes))
