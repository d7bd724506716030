"""``tlaot diff``: coverage, size and times of wheels, packages and locks."""

from __future__ import annotations

import dataclasses
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import locks
import pytest
from fixtures_runtime import tensor, variant, write_package

from tlaot.cli import main
from tlaot.manifest import Variant, dumps, read_manifest
from tlaot.tune.locks.lock_file import dump_lock

H200 = {"device": "NVIDIA H200", "sm_count": 132}
Row = tuple[str, str, int, float | None, Mapping[str, Any]]


def made(kernel: str, target: str, n: int, latency: float | None, **rest: Any) -> tuple[str, Variant]:
    """A variant that took so many ms; ``spread``, ``config``, ``tuned``, ``properties`` as they are named."""
    times = {"latency": latency, "spread": rest.pop("spread", 0.01), "ref_latency": None, "default_latency": None}
    config = rest.pop("config", {"block": 1})
    one = variant(kernel, [tensor("X", n)], [], {"N": n}, target, tuned=rest.pop("tuned", H200), **rest)
    return kernel, dataclasses.replace(one, latency=times, config=config)


def package(folder: Path, variants: Sequence[tuple[str, Variant]], size: int = 100, name: str = "pk") -> Path:
    kernels: dict[str, list[tuple[Variant, bytes]]] = {}
    for kernel, one in variants:
        kernels.setdefault(kernel, []).append((one, b"\x7fELF" + bytes(size - 4)))
    write_package(folder, name, kernels)
    return folder / name


def pack(folder: Path) -> Path:
    path = folder.parent / f"{folder.name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as out:
        for file in sorted(p for p in folder.rglob("*") if p.is_file()):
            out.write(file, file.relative_to(folder.parent))
    return path


@pytest.fixture
def before(tmp_path: Path) -> list[tuple[str, Variant]]:
    return [made("k", "cuda:sm_90a", 8, 1.0), made("k", "cuda:sm_90a", 16, 2.0), made("k", "llvm", 8, 5.0, tuned={})]


def diff(tmp_path: Path, old: Sequence[tuple[str, Variant]], new: Sequence[tuple[str, Variant]], *options: str) -> int:
    return main(["diff", str(package(tmp_path / "a", old)), str(package(tmp_path / "b", new)), *options])


def test_nothing_changed(tmp_path: Path, before: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff(tmp_path, before, before) == 0
    shown = capsys.readouterr().out
    assert shown == (
        f"{tmp_path}/a/pk -> {tmp_path}/b/pk\ncoverage: 3 workloads in both, 0 gained, 0 lost\nsize: 300 B -> 300 B (+0.0%)\n"
    )


def test_the_whole_of_it(tmp_path: Path, before: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Golden: one lost, one gained, one slower, one faster, one on another device."""
    before = [*before, made("k", "cuda:sm_90a", 32, 4.0), made("k", "cuda:sm_90a", 64, 4.0)]
    after = [
        made("k", "cuda:sm_90a", 8, 1.25, config={"block": 2}),
        made("k", "cuda:sm_90a", 32, 3.0),
        made("k", "cuda:sm_90a", 64, 4.0, tuned={"device": "NVIDIA H100"}),
        made("k", "llvm", 8, 5.0, tuned={}),
        made("new", "llvm", 8, 5.0, tuned={}),
    ]
    assert diff(tmp_path, before, after, "--max-slowdown", "1.1") == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:]] == [
        line.split()
        for line in """\
coverage: 4 workloads in both, 1 gained, 1 lost
size: 500 B -> 500 B (+0.0%)

lost
  k [cuda:sm_90a] (N=16)

gained
  new [llvm] (N=8)

slower: 1 workload, 1 past --max-slowdown 1.1
kernel  target       shape   old      new  ratio            config
k       cuda:sm_90a  N=8    1 ms  1.25 ms  1.250  too slow  block=1 -> block=2

faster: 1 workload
kernel  target       shape   old   new  ratio  config
k       cuda:sm_90a  N=32   4 ms  3 ms  0.750  as before

times not compared: 1 workload
  k [cuda:sm_90a] (N=64): was measured on NVIDIA H200, now on NVIDIA H100
""".splitlines()
    ]


@pytest.mark.parametrize(
    ("new", "spread", "limit", "status"),
    [
        (1.04, 0.01, "1.05", 0),  # within the limit
        (1.06, 0.01, "1.05", 1),
        (1.06, 0.01, None, 0),  # nobody asked
        (1.06, 0.10, "1.05", 0),  # within what the times spread
        (0.50, 0.01, "1.05", 0),
    ],
)
def test_slower_is_an_error_past_the_limit(
    tmp_path: Path, new: float, spread: float, limit: str | None, status: int
) -> None:
    old = [made("k", "llvm", 8, 1.0, spread=spread)]
    options = [] if limit is None else ["--max-slowdown", limit]
    assert diff(tmp_path, old, [made("k", "llvm", 8, new, spread=spread)], *options) == status


def test_lost_coverage_is_an_error(tmp_path: Path, before: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff(tmp_path, before, before[1:]) == 1
    assert diff(tmp_path, before[1:], before) == 0
    assert diff(tmp_path, before, []) == 1
    assert "NEW has no variants at all" in capsys.readouterr().out
    assert diff(tmp_path, [], []) == 1, "an emptied table is one even where it was empty before"


def test_times_that_cannot_be_compared_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doubts = {"trusted": False, "notes": ["busy"]}
    old = [made("k", "llvm", n, t) for n, t in ((1, 1.0), (2, None), (3, 1.0), (4, None))]
    new = [
        made("k", "llvm", 1, None),
        made("k", "llvm", 2, 1.0),
        made("k", "llvm", 3, 9.0, properties=doubts),
        made("k", "llvm", 4, None),
    ]
    assert diff(tmp_path, old, new) == 0
    out = capsys.readouterr().out
    assert re.search(r"N=3 +1 ms +9 ms +9.000 +not to be trusted", out), out
    assert "of 1 workload a time is not to be trusted: the device was not quiet; tlaot tune --force" in out
    assert diff(tmp_path, old, new, "--max-slowdown", "1") == 1, "on a machine that is always busy it would never fail"
    out = capsys.readouterr().out
    assert re.search(r"9.000 +too slow, not to be trusted", out), out
    shown = out.partition("times not compared: 2 workloads\n")[2].splitlines()
    assert [line.partition(": ")[2] for line in shown] == [
        "is not measured any more",
        "was not measured before",
    ]


def test_json(tmp_path: Path, before: Any, capsys: pytest.CaptureFixture[str]) -> None:
    after = [made("k", "cuda:sm_90a", 8, 1.5), *before[2:]]
    assert diff(tmp_path, before, after, "--json", "--max-slowdown", "1.2") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["lost"] == [{"package": "pk", "kernel": "k", "target": "cuda:sm_90a", "shape": {"N": 16}}]
    assert (found["gained"], found["emptied"], found["old_bytes"], found["new_bytes"]) == ([], False, 300, 200)
    assert found["workloads"][0] == {
        "package": "pk",
        "kernel": "k",
        "target": "cuda:sm_90a",
        "shape": {"N": 8},
        "old_latency": 1.0,
        "new_latency": 1.5,
        "ratio": 1.5,
        "slower": True,
        "too_slow": True,
        "not_compared": None,
        "trusted": True,
        "old_config": {"block": 1},
        "new_config": {"block": 1},
    }


def test_wheels_are_compared_by_their_own_sizes(
    tmp_path: Path, before: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = pack(package(tmp_path / "a", before)), pack(package(tmp_path / "b", before, size=1000))
    assert main(["diff", str(old), str(new), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["old_bytes"], found["new_bytes"]) == (old.stat().st_size, new.stat().st_size)
    assert main(["diff", str(old), str(tmp_path / "b" / "pk"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["old_bytes"], found["new_bytes"]) == (300, 3000), "a wheel and a folder: what is installed"


def test_a_package_that_was_renamed_has_the_same_kernels(tmp_path: Path, before: Any) -> None:
    """A package alone is compared by its kernels, whatever it is called; of several in a wheel, each with its own."""
    old, new = package(tmp_path / "a", before, name="old_name"), package(tmp_path / "b", before, name="new_name")
    assert main(["diff", str(old), str(new)]) == 0
    package(tmp_path / "a", before, name="second")
    package(tmp_path / "b", before[1:], name="second")
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1


def test_shapes_are_compared_as_values(tmp_path: Path) -> None:
    """M=64 and M="64" are two workloads; the order of names is none."""
    one = dataclasses.replace(made("k", "llvm", 8, 1.0)[1], shape={"M": 64, "N": 1})
    for shape, status in (({"N": 1, "M": 64}, 0), ({"M": "64", "N": 1}, 1), ({"M": 64, "N": True}, 1)):
        assert diff(tmp_path, [("k", one)], [("k", dataclasses.replace(one, shape=shape))]) == status


def test_locks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of what ships; a stand-in was never measured; sizes are none of a lock's."""
    old, new = tmp_path / "old.lock", tmp_path / "tltune.lock"
    derived = locks.entry(64, target="cuda:sm_100a", tuned_as="cuda:sm_90a", candidates=(), winner={}, device={})
    old.write_text(dump_lock(locks.lock(locks.entry(64), locks.entry(128), derived)))
    slower = locks.entry(64, candidates=locks.tried((0.25, 0.15, None)))
    new.write_text(dump_lock(locks.lock(slower, locks.entry(256), derived)))
    assert main(["diff", str(old), str(new), "--json", "--max-slowdown", "1.1"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [row["shape"] for row in (*found["lost"], *found["gained"])] == [{"N": 128}, {"N": 256}]
    assert (found["old_bytes"], found["new_bytes"]) == (None, None)
    assert {(w["target"], w["ratio"], w["too_slow"], w["not_compared"]) for w in found["workloads"]} == {
        ("cuda:sm_90a", 1.2, True, None),
        ("cuda:sm_100a", None, False, "was never measured"),
    }
    assert main(["diff", str(old), str(old)]) == 0


def test_a_lock_and_the_package_built_from_it(tmp_path: Path) -> None:
    lock = tmp_path / "tltune.lock"
    lock.write_text(dump_lock(locks.lock(locks.entry(64), locks.entry(128))))
    full = [made("add", "cuda:sm_90a", n, 0.125, config={"block": 128}) for n in (64, 128)]
    assert main(["diff", str(lock), str(package(tmp_path / "a", full))]) == 0
    assert main(["diff", str(lock), str(package(tmp_path / "b", full[:1]))]) == 1


def test_a_lock_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = tmp_path / "good.lock"
    good.write_text(dump_lock(locks.lock(locks.entry(64))))
    (tmp_path / "bad.lock").write_text("<<<<<<< HEAD\n{}\n")
    for name, says in (("bad.lock", "has the conflict markers of a merge"), ("none.lock", "there is no such file")):
        assert main(["diff", str(good), str(tmp_path / name)]) == 2
        assert says in capsys.readouterr().err


def test_a_package_that_was_split(tmp_path: Path, before: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """What a companion has is not lost: it is looked into where a folder with all the wheels is named."""
    whole = pack(package(tmp_path / "old", before))
    folder = package(tmp_path / "new", before[2:])
    manifest = read_manifest(folder / "_tlaot" / "manifest.json")
    split = dataclasses.replace(manifest, companions={"pk-cuda-sm-90a": ("cuda:sm_90a",)})
    (folder / "_tlaot" / "manifest.json").write_text(dumps(split))
    main_wheel = pack(folder)
    assert main(["diff", str(whole), str(main_wheel)]) == 0
    shown = capsys.readouterr().out
    assert "0 gained, 0 lost" in shown
    assert "now in companions, which were not looked into" in shown and "k [cuda:sm_90a] (N=16)" in shown
    assert main(["inspect", str(main_wheel)]) == 0
    assert "companion pk-cuda-sm-90a: cuda:sm_90a" in capsys.readouterr().out

    companion = pack(package(tmp_path / "companion", before[:1]))
    companion.rename(main_wheel.parent / "pk_cuda_sm_90a-1.0-py3-none-any.whl")
    (main_wheel.parent / "dist").mkdir()
    for wheel in main_wheel.parent.glob("*.whl"):
        wheel.rename(wheel.parent / "dist" / wheel.name)
    dist = main_wheel.parent / "dist"
    assert main(["diff", str(whole), str(dist), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert ([row["shape"] for row in found["lost"]], found["moved"]) == ([{"N": 16}], [])
    assert len(found["workloads"]) == 2
    assert found["new_bytes"] == sum(wheel.stat().st_size for wheel in dist.glob("*.whl"))
