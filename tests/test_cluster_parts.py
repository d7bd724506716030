"""The parts of the Ray executor that need no cluster: what travels, which nodes fit, which devices measure, what is lost."""

from __future__ import annotations

import fcntl
import os
import socket
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tlaot.errors import BuildError
from tlaot.manifest import digest_of
from tlaot.tune.children.child import Failed, Lost
from tlaot.tune.compiling.compile import Built
from tlaot.tune.executors import cluster, far, luggage, scratch
from tlaot.tune.executors.crew import Crew, Unit
from tlaot.tune.executors.luggage import digest_tree, pack_sources
from tlaot.tune.executors.nodes import Facts, Node, compiles, describe, judge, make_probe, refuse
from tlaot.tune.executors.pick import quiet_node, rank_gpus
from tlaot.tune.executors.remote import Gone, Remote
from tlaot.tune.machine import Gpu, Machine

HERE = {
    "host": "driver", "python": "3.11", "machine": "x86_64", "tlaot": "1.0", "digest": "abc", "apache-tvm": "0.27.0",
    "tilelang": None,
}  # fmt: skip


def project(root: Path) -> Path:
    for name in (
        "pkg/__init__.py", "pkg/kernels.py", "pkg/data.json", "pkg/build/inner.py", "pkg/_tlaot/manifest.json",
        "pkg/__pycache__/kernels.pyc", "pkg/.git/config", "other/__init__.py", "build/lib/pkg/__init__.py",
        "dist/pkg.whl", ".venv/lib/thing.py", "alone.py",
    ):  # fmt: skip
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


def test_the_packages_of_the_specs_modules_travel_and_nothing_beside_them(tmp_path: Path) -> None:
    root = project(tmp_path / "project")
    digest = pack_sources(root, ["pkg.kernels", "alone"], tmp_path / "one.zip")
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert sorted(archive.namelist()) == [
            "alone.py", "pkg/__init__.py", "pkg/build/inner.py", "pkg/data.json", "pkg/kernels.py",
        ]  # fmt: skip
        archive.extractall(tmp_path / "there")
    assert digest_tree(tmp_path / "there") == digest
    os.utime(root / "alone.py", (0, 0))
    assert pack_sources(root, ["alone", "pkg"], tmp_path / "two.zip") == digest
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    (tmp_path / "there" / "alone.py").write_text("torn")
    assert digest_tree(tmp_path / "there") != digest


def test_a_huge_file_is_refused_by_name_unless_it_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = project(tmp_path / "project")
    monkeypatch.setattr(luggage, "LARGEST", 1 << 20)
    (root / "pkg" / "weights.bin").write_bytes(bytes(2 << 20))
    with pytest.raises(
        BuildError, match=r"(?s)2\.0 MiB  pkg/weights\.bin\n.*\nName what is no source in project/\.rayignore"
    ):
        pack_sources(root, ["pkg"], tmp_path / "archive.zip")
    (root / ".rayignore").write_text("# large\n*.bin\npkg/build/\n")
    pack_sources(root, ["pkg"], tmp_path / "archive.zip")
    with zipfile.ZipFile(tmp_path / "archive.zip") as archive:
        assert sorted(archive.namelist()) == ["pkg/__init__.py", "pkg/data.json", "pkg/kernels.py"]


def test_links_that_lead_in_a_circle_end(tmp_path: Path) -> None:
    root = project(tmp_path / "project")
    (root / "pkg" / "again").symlink_to(root / "pkg")
    pack_sources(root, ["pkg"], tmp_path / "archive.zip")


@pytest.mark.parametrize(
    ("there", "left_out", "wrong"),
    [
        ({}, None, None),
        ({"machine": "aarch64"}, "its processor is aarch64, the driver's x86_64", None),
        ({"tlaot": None, "digest": None}, "it has no tlaot", None),
        ({"apache-tvm": None}, "it has none of apache-tvm", None),
        ({"tlaot": "0.9", "digest": "old"}, None, "tlaot 0.9, the driver 1.0"),
        ({"digest": "old"}, None, "tlaot 1.0, the same number and other code"),
        ({"apache-tvm": "0.26.0"}, None, "apache-tvm 0.26.0, the driver 0.27.0"),
        ({"python": "3.12"}, None, "Python 3.12, the driver 3.11"),
        ({"tilelang": "0.1.15"}, None, None),  # the driver has none, and asks nobody for it
    ],
)
def test_which_nodes_fit(there: dict[str, Any], left_out: str | None, wrong: str | None) -> None:
    why, what = judge("node-7", HERE, {**HERE, **there})
    assert (left_out is None) == (why is None) and (left_out or "") in (why or "")
    assert (wrong is None) == (what is None) and (wrong or "") in (what or "")
    for text in (why, what):
        assert text is None or text.startswith("node-7")
    if what is not None:
        assert "Install the same there, Python 3.11 with tlaot 1.0, apache-tvm 0.27.0" in str(refuse([what], HERE))


def test_the_probe_needs_no_tlaot() -> None:
    import pickle

    cloudpickle = pytest.importorskip("cloudpickle")
    probe = make_probe()
    assert b"tlaot.tune.executors.nodes" not in cloudpickle.dumps(probe) or "<locals>" in probe.__qualname__
    said = pickle.loads(cloudpickle.dumps(probe))()
    assert said == probe()
    assert said["tlaot"] is not None and said["digest"] is not None


def gpu(name: str, capability: tuple[int, int]) -> Gpu:
    return Gpu(0, name, capability, 132, 13000)


def node(host: str, cpu: str = "A", gpus: tuple[Gpu, ...] = (), torch: bool = True, **facts: Any) -> Node:
    versions = {"apache-tvm": "0.27.0", **({"torch": "2.13"} if torch else {})}
    own = Facts(host, host, Machine(cpu, 8, gpus, versions), 3, "gcc 12", "13.0.88", True)
    return Node(host, replace(own, **facts), 8, len(gpus))


H200, A100, A10 = gpu("H200", (9, 0)), gpu("A100", (8, 0)), gpu("A10", (8, 6))


def test_a_target_is_measured_on_the_nearest_capability_and_of_that_the_most_frequent_model() -> None:
    h100 = gpu("H100", (9, 0))
    nodes = [
        node("a", gpus=(H200, h100)),
        node("b", gpus=(A10, A100)),
        node("c", gpus=(h100,)),
        node("d", gpus=(H200,), torch=False),
    ]
    ranked = rank_gpus(nodes)
    assert [g.name for g in ranked] == ["A100", "A10", "H100", "H100", "H200"]
    assert [g.index for g in ranked] == [0, 1, 2, 3, 4]


def test_a_cpu_is_measured_on_the_drivers_model_and_not_on_its_machine() -> None:
    nodes = [node("driver"), node("x", cpu="B"), node("y", cpu="B"), node("twin")]
    assert quiet_node(nodes, nodes[0].facts).id == "twin"
    assert quiet_node(nodes[:3], nodes[0].facts).id == "driver"
    nodes.append(node("z", cpu="B"))
    assert quiet_node(nodes, replace(nodes[0].facts, machine=Machine("C", 8, (), {}))).id == "x"


def test_a_node_compiles_with_the_drivers_compilers_only() -> None:
    here = node("driver").facts
    assert compiles(node("a"), here, "tvm", cuda=True) is None
    assert compiles(node("a"), here, "tilelang", cuda=True) == "has no tilelang"
    assert compiles(node("a", cc=""), here, "tvm", cuda=False) == "has no C compiler"
    assert compiles(node("a", cc="gcc 13"), here, "tvm", cuda=False) == "has 'gcc 13', the driver 'gcc 12'"
    older = node("a", nvcc="12.8.93")
    assert compiles(older, here, "tvm", cuda=False) is None
    assert compiles(older, here, "tvm", cuda=True) == "has nvcc 12.8.93 with NVRTC, the driver nvcc 13.0.88 with NVRTC"


def test_this_machine_describes_itself() -> None:
    facts = describe()
    assert facts.machine.cpu_count >= 1 and facts.boot and facts.cc


def test_folders_of_the_dead_are_swept_and_those_of_the_living_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch.tempfile, "gettempdir", lambda: str(tmp_path))
    dead = tmp_path / "tlaot-node-dead"
    dead.mkdir()
    (dead / "lock").touch()
    living = scratch.Scratch()
    assert not dead.exists() and living.path.is_dir()
    handle = os.open(living.path / "lock", os.O_RDWR)
    with pytest.raises(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)
    scratch.Scratch().close()
    assert living.path.is_dir()
    living.close()
    assert not living.path.exists()


class Actor:
    """Stands for Ray's handle: its answers are futures that the test completes."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Future[Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Any:
            future: Future[Any] = Future()
            self.asked.append((name, future))
            return type("Ref", (), {"future": lambda _: future})()

        return type("Method", (), {"remote": staticmethod(remote)})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[Remote, Actor]]:
    monkeypatch.setattr("tlaot.tune.executors.remote._end", lambda actor: None)
    monkeypatch.setattr("tlaot.tune.executors.remote._is_raised_there", lambda error: isinstance(error, KeyError))
    hands = ThreadPoolExecutor(2)

    def make() -> tuple[Remote, Actor]:
        actor = Actor()
        return Remote(actor, hands), actor

    return make


def test_all_calls_of_a_lost_actor_are_lost(made: Callable[[], tuple[Remote, Actor]]) -> None:
    remote, actor = made()
    first, second = remote.call("run"), remote.call("run")
    actor.asked[0][1].set_exception(OSError("socket closed"))
    for call in (first, second, remote.call("run")):
        assert isinstance(call.exception(timeout=5), Gone)
    assert remote.lost and isinstance(remote.up.exception(timeout=5), Gone)
    actor.asked[1][1].set_result(3)  # too late


def test_what_a_method_raises_is_no_loss(made: Callable[[], tuple[Remote, Actor]]) -> None:
    remote, actor = made()
    call = remote.call("run")
    actor.asked[0][1].set_exception(KeyError("x"))
    assert isinstance(call.exception(timeout=5), KeyError)
    assert not remote.lost


def test_an_actor_that_stands_still_is_lost(
    made: Callable[[], tuple[Remote, Actor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tlaot.tune.executors.remote.PATIENCE", 0.05)
    remote, actor = made()
    call = remote.call("run")
    remote.look()
    time.sleep(0.1)
    remote.look()
    assert not remote.lost  # it may wait for room on its node as long as it takes
    actor.asked[-1][1].set_result(())
    remote.up.result(timeout=5)
    remote.look()
    time.sleep(0.1)
    remote.look()
    assert remote.lost and "not answered" in str(call.exception(timeout=5))


def test_processors_are_given_back_and_taken_again(
    made: Callable[[], tuple[Remote, Actor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    actors: list[Actor] = []

    def make(unit: Unit) -> Remote:
        remote, actor = made()
        actors.append(actor)
        remote.look()
        actor.asked[-1][1].set_result(())
        remote.up.result(timeout=5)
        return remote

    crew = Crew(make, lambda: None)
    crew.add([node("a"), replace(node("b"), cpus=40)])
    everywhere = lambda n: True  # noqa: E731
    assert crew.slots(everywhere) == 48
    crew.open(everywhere)
    assert len(actors) == 4  # 8 processors; and 40 as 14, 13 and 13
    unit = crew.take(everywhere)
    assert unit is not None and unit.remote is not None
    other = crew.take(everywhere, [unit])
    assert other is not None and other.node.id != unit.node.id
    crew.give_back(unit, unit.remote, compiled=True)
    assert other.remote is not None
    crew.give_back(other, other.remote, compiled=False)
    assert crew.compiled == {unit.node.id: 1}
    monkeypatch.setattr("tlaot.tune.executors.crew.IDLE", 0.0)
    monkeypatch.setattr(Remote, "close", lambda self, patience: self.lose("closed"))
    crew.pinned.add("a")
    crew.rest()
    assert [u.remote is None for u in crew._units] == [False, True, True, True]
    crew.open(everywhere)
    assert len(actors) == 7
    crew.remove("b")
    assert crew.slots(everywhere) == 8


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_an_address_at_which_nobody_listens_is_refused_at_once(form: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = form.format(taken.getsockname()[1])
        with pytest.raises(
            BuildError, match=rf"no Ray cluster is reached at {address}.*\nStart one \(ray start --head"
        ):
            cluster._knock(address)
    cluster._knock("auto")


def test_what_is_said_of_a_child_that_was_taken_away_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far, "end_with_parent", lambda: None)  # this process has tests to run
    monkeypatch.setattr(scratch.tempfile, "gettempdir", lambda: str(tmp_path))
    there = far.MeasuringNode("cpu", far.Order({}))
    try:

        def screen(child: Any, log: Any) -> Failed:
            log.say("begun")
            there.stop()
            return Failed("time", "the process ended")

        answer = there.run(screen, [], {})
        assert isinstance(answer.error, Lost) and answer.told == (("say", ("begun",)),)
        assert there.run(lambda child, log: 3, [], {}).value == 3
        built = Built(tmp_path, digest_of(b"binary"), (), (), {}, {})
        assert there.run(lambda child, log, built: 0, [built], {}).missing == (built.digest.sha256,)
        found = there.run(lambda child, log, built: built.folder, [built], {built.digest.sha256: b"binary"}).value
        assert (found / "executable.so").read_bytes() == b"binary"
        assert "arrived as" in str(there.run(lambda child, log: 0, [], {"0" * 64: b"other"}).error)
    finally:
        there.close()
    assert not list(tmp_path.glob("tlaot-node-*"))
