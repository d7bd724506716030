"""Strikes from outside at random moments: processes killed, the disk full, the build interrupted and killed."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from faults.scene import FASTEST, PATIENCE, Config, Scene, bystanders, faults

TIMES = 20
SMALL = [{"work": FASTEST}, *bystanders(11)]
# Of the compiler of direct.so, which every kernel needs: it is started again ten times, and chance kills it more often.
MOST_OF_DIRECT = 8


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[float, dict[str, bytes]]:
    """How long a build of the small spec takes, and what it packages."""
    scene = Scene(tmp_path_factory.mktemp("undisturbed") / "project", 0)
    scene.write(SMALL)
    begin = time.monotonic()
    ended = scene.build()
    assert ended.status == 0, ended.said
    return time.monotonic() - begin, scene.steady_bytes()


def test_children_killed_from_outside(scene: Scene) -> None:
    """Each kill costs what the process was at, and the build goes on."""
    scene.write([{"work": FASTEST}, *bystanders(50)])
    killed: list[str] = []
    while len(killed) < TIMES:
        shutil.rmtree(scene.work, ignore_errors=True)
        build = scene.start(jobs=2)
        killed_now: list[str] = []
        while build.poll() is None and len(killed) + len(killed_now) < TIMES + 10:
            time.sleep(scene.random.uniform(0.05, 0.8))
            # A server is not killed again before it has had the time to import anything.
            spared = {"server"} & set(killed_now[-6:]) | (
                {"direct"} if killed_now.count("direct") >= MOST_OF_DIRECT else set()
            )
            pid, kind = choose_child(scene, build.pid, spared)
            if pid == 0:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed_now.append(kind)
        ended = scene.finish(build)
        killed += killed_now
        where = f"seed {scene.seed}: after {killed_now}:\n{ended.said}\n{scene.log[-6000:]}"
        assert ended.status == 0, where
        lost = scene.lost()
        # A server of forks takes along what its two workers were at.
        assert len(lost) <= len(killed_now) + killed_now.count("server"), (lost, where)
        scene.expect_best_of(lost)
        scene.expect_no_orphan()
        scene.expect_tidy()


def choose_child(scene: Scene, build: int, spared: set[str]) -> tuple[int, str]:
    """One of a build's processes with its kind, none of ``spared``: what forks others and has lived for a while, what compiles direct.so, or another."""
    parents, direct = {}, set()
    for pid in scene.processes():
        with contextlib.suppress(OSError):
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if Path(os.readlink(f"/proc/{pid}/cwd")).name.startswith("direct-"):
                direct.add(pid)
    parents.pop(build, None)
    servers = sorted(pid for pid, parent in parents.items() if parent == build and pid not in direct)
    others = sorted(set(parents) - set(servers) - (direct if "direct" in spared else set()))
    if servers and "server" not in spared and scene.random.random() < 0.2:
        return scene.random.choice(servers), "server"
    if not others:
        return 0, ""
    chosen = scene.random.choice(others)
    return chosen, "direct" if chosen in direct else "child"


def plant_remains(scene: Scene) -> None:
    """What a build leaves that is killed at a moment that chance seldom finds: while a record or the package is written."""
    for folder in (
        scene.work / "run-abcd1234",
        scene.output.with_name("._tlaot.abcd1234"),
        scene.work / "records" / "copy",
    ):
        folder.mkdir(parents=True)
        (folder / ".N512.json.abcd1234").write_text('{"key": ')


def interrupt(scene: Scene, how: signal.Signals, longest: float) -> None:
    """Interrupt builds until that happened often enough; what is kept is wiped only where a build got to its end."""
    struck = 0
    while struck < TIMES:
        build = scene.start(jobs=2)
        try:
            build.wait(scene.random.uniform(0.1, longest))
        except subprocess.TimeoutExpired:
            if how is signal.SIGINT:
                os.killpg(build.pid, how)  # as a terminal does
            else:
                build.send_signal(how)
            begin, struck = time.monotonic(), struck + 1
            ended = scene.finish(build, limit=30)
            where = f"seed {scene.seed}: strike {struck} with {how.name}:\n{ended.said}"
            assert time.monotonic() - begin < 5 * PATIENCE, where
            assert ended.status in (-how, 128 + how, 1) or "tlaot: packaged" in ended.said, (ended.status, where)
        else:
            ended = scene.finish(build)
            assert ended.status == 0, f"seed {scene.seed}:\n{ended.said}"
            shutil.rmtree(scene.work)
        scene.expect_no_orphan()
        scene.expect_whole_files(struck)
        scene.expect_nothing_measured_twice()


def test_builds_interrupted(scenes: Callable[[str], Scene], undisturbed: tuple[float, dict[str, bytes]]) -> None:
    """The build that is let to its end gives what an undisturbed one gives, and leaves nothing of its forerunners."""
    longest, expected = undisturbed

    def interrupt_and_resume(how: signal.Signals) -> None:
        scene = made[how]
        scene.write(SMALL)
        plant_remains(scene)
        interrupt(scene, how, longest)
        ended = scene.build()
        assert ended.status == 0, f"seed {scene.seed}:\n{ended.said}"
        assert scene.winners() == {FASTEST}
        assert scene.steady_bytes() == expected
        scene.expect_no_orphan()
        scene.expect_tidy(TIMES)
        scene.expect_nothing_measured_twice()
        # The same evidence gives the same bytes, in another place as well.
        twin = Scene(scene.folder.with_name(f"twin-{how.name}"), scene.seed)
        twin.write(SMALL)
        shutil.copytree(scene.work, twin.work)
        assert twin.build().status == 0
        assert twin.package_bytes() == scene.package_bytes(), f"seed {scene.seed}"
        twin.expect_no_orphan()

    made = {how: scenes(how.name) for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)}
    with ThreadPoolExecutor(len(made)) as pool:
        list(pool.map(interrupt_and_resume, made))


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[Scene, float], None]]:
    """A file system of 24 MB, and a function that fills it for a while."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        raise PermissionError(mounted.stderr)

    def fill(scene: Scene, seconds: float) -> None:
        filler = folder / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        time.sleep(seconds)
        filler.unlink()

    try:
        yield fill
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def small_files(folder: Path) -> Iterator[Callable[[Scene, float], None]]:
    """No file system; a function that allows a build's processes no file above some size, for a while."""

    def limit(scene: Scene, seconds: float) -> None:
        size = scene.random.choice([0, 100, 4096, 12000])
        with contextlib.ExitStack() as undo:
            for pid in scene.processes():
                with contextlib.suppress(OSError):
                    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
            undo.callback(lambda: [_unlimit(pid) for pid in scene.processes()])
            time.sleep(seconds)

    yield limit


def _unlimit(pid: int) -> None:
    with contextlib.suppress(OSError):
        hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


def test_a_full_disk(tmp_path: Path, seed: int, undisturbed: tuple[float, dict[str, bytes]]) -> None:
    """Full for moments: a build loses candidates or ends with the reason, and the next one is whole."""
    longest, expected = undisturbed
    with contextlib.ExitStack() as stack:
        try:
            fill = stack.enter_context(small_disk(tmp_path / "disk"))
        except PermissionError:
            fill = stack.enter_context(small_files(tmp_path / "disk"))
        scene = Scene(tmp_path / "disk" / "project", seed)
        scene.write(SMALL)
        struck = 0
        while struck < TIMES:
            build = scene.start(jobs=2)
            while build.poll() is None and struck < TIMES:
                time.sleep(scene.random.uniform(0.05, longest / 4))
                if build.poll() is None:
                    fill(scene, scene.random.uniform(0.02, 0.3))
                    struck += 1
            ended = scene.finish(build)
            where = f"seed {scene.seed}: strike {struck}:\n{ended.said}\n{scene.log[-3000:]}"
            scene.expect_no_orphan()
            scene.expect_whole_files(struck)
            if ended.status == 0:
                scene.expect_best_of(scene.lost())
            else:
                assert "No space left" in ended.said or "too large" in ended.said or "refused" in ended.said, where
            shutil.rmtree(scene.work)
        ended = scene.build()
        assert ended.status == 0, f"seed {scene.seed}:\n{ended.said}"
        assert scene.winners() == {FASTEST}
        assert scene.steady_bytes() == expected
        scene.expect_no_orphan()
        scene.expect_tidy()


def test_inputs_killed_for_their_memory(scene: Scene) -> None:
    """As the kernel kills who took too much: the candidate whose turn it was is lost. Between the kills, a kernel crashes."""
    crashes = faults("kernel-abort", times=TIMES // 2)
    good = bystanders(TIMES // 2 + 6)
    chosen: list[Config] = [{"work": FASTEST}]
    for pair in zip(crashes, good, strict=False):
        chosen += pair
    scene.write([*chosen, *good[len(crashes) :]], lines=['inputs = "faulty.kernels:inputs"'])
    killed = 0
    # How many kills a build meets depends on the order in which its candidates come from the compilers.
    while killed < TIMES:
        shutil.rmtree(scene.work, ignore_errors=True)
        before = scene.count_calls("inputs")
        ended = scene.build(FAULTY_INPUTS="kill:every-other")
        where = f"seed {scene.seed}: after {killed}:\n{ended.said}\n{scene.log[-6000:]}"
        assert ended.status == 0, where
        turns = range(before, scene.count_calls("inputs"))
        killed_now = sum(turn % 2 for turn in turns)
        assert killed_now > 0, where
        killed += killed_now
        lost = scene.lost()
        assert len(lost) <= len(crashes) + killed_now, (lost, where)
        assert all("SIGKILL" in reason or "SIGABRT" in reason for reason in lost.values()), (lost, where)
        scene.expect_best_of(lost)
        scene.expect_no_orphan()
        scene.expect_tidy()


def test_inputs_that_do_not_fit_in_memory(scene: Scene) -> None:
    """Nothing can be measured without them: said so, with their name, and the next build is none the worse."""
    scene.write(SMALL, lines=['inputs = "faulty.kernels:inputs"'])
    ended = scene.build(FAULTY_INPUTS="memory:always")
    assert ended.status == 1, ended.said
    assert "refused" in ended.said and "MemoryError" in ended.said and "inputs" in ended.said, ended.said
    scene.expect_no_orphan()
    scene.expect_tidy()
    assert not scene.output.exists()
    ended = scene.build()
    assert ended.status == 0, ended.said
    assert scene.winners() == {FASTEST}


def test_two_builds_of_one_project_at_once(scene: Scene, undisturbed: tuple[float, dict[str, bytes]]) -> None:
    """One waits for the other, which is killed."""
    scene.write(SMALL)
    first, second = scene.start(), scene.start()
    time.sleep(scene.random.uniform(0.5, undisturbed[0]))
    first.send_signal(signal.SIGKILL)
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(scene.finish, (first, second)))
    assert [one.status for one in ended] in ([0, 0], [-signal.SIGKILL, 0]), ended
    scene.expect_no_orphan()
    scene.expect_tidy(1)
    assert scene.winners() == {FASTEST}
    assert scene.steady_bytes() == undisturbed[1]
