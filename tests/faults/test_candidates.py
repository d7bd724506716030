"""Candidates that take their process along: each costs itself, and nothing else."""

from __future__ import annotations

from faults.scene import FASTEST, Config, Scene, bystanders, expect_only_the_bad_lost, faults


def candidates(scene: Scene, bad: list[Config], good: int) -> None:
    """Write a spec in which bad and good candidates come in random order."""
    chosen: list[Config] = [{"work": FASTEST}, *bystanders(good), *bad]
    scene.random.shuffle(chosen)
    scene.write(chosen)


def expect_nothing_repeated(scene: Scene) -> None:
    """The next build finds all of it in what the first one kept, and packages the same bytes."""
    before, made = scene.package_bytes(), scene.counts()
    again = scene.build()
    assert again.status == 0, again.said
    assert scene.package_bytes() == before, f"seed {scene.seed}"
    repeated = scene.counts() - made
    assert set(repeated) <= {f"512 {FASTEST}"}, f"seed {scene.seed}: made again: {repeated}"


def test_kernels_that_crash(scene: Scene) -> None:
    bad = faults("kernel-segfault", "kernel-abort", times=40)
    others = faults("kernel-exit", "kernel-overrun", "kernel-wrong", times=12, first=2000)
    candidates(scene, [*bad, *others], good=10)
    expect_only_the_bad_lost(scene, scene.build())
    expect_nothing_repeated(scene)


def test_kernels_that_write_a_little_beyond(scene: Scene) -> None:
    """Few bytes past an array's end may go unnoticed; they must not become another candidate's failure."""
    candidates(scene, faults("kernel-nudge", times=10), good=10)
    ended = scene.build()
    assert ended.status == 0, ended.said
    lost = {work: r["failed"] for work, r in scene.results().items() if "failed" in r and "fault" not in r["config"]}
    assert not lost, f"seed {scene.seed}"


def test_factories_that_crash(scene: Scene) -> None:
    others = faults("abort", "exit", "close", "raise", "recursion", times=20, first=2000)
    candidates(scene, [*faults("segfault", "kill", times=40), *others], good=10)
    expect_only_the_bad_lost(scene, scene.build())
    expect_nothing_repeated(scene)


def test_factories_that_take_all_memory(scene: Scene) -> None:
    candidates(scene, faults("memory", "memory-at-once", "memory-limit", times=21), good=10)
    expect_only_the_bad_lost(scene, scene.build(FAULTY_MEMORY=str(8 << 30)))
