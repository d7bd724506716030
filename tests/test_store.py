"""The tuning store: what is kept survives a killed process, and nothing else is taken for it."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tlaot.manifest import digest_of
from tlaot.target import parse_target
from tlaot.tune.children.child import STOPPED, Failed
from tlaot.tune.compiling.compile import Built
from tlaot.tune.locks.record import candidate_keys
from tlaot.tune.measuring.timing import Timing
from tlaot.tune.searching.store import Keys, Store
from tlaot.tune.specs.plan import Candidate, Workload
from tlaot.tune.specs.spec import KernelSpec

TARGET = parse_target("llvm")
KERNEL = KernelSpec("k", "tvm", "m:f", (TARGET,), ({"N": 8},), ({"t": 1}, {"t": 2}), "tltune.toml")
CANDIDATES = Workload(KERNEL, TARGET, {"N": 8}, ({"t": 1}, {"t": 2})).candidates()
TIMING = Timing(0.5, 0.01, 20, "wall")


def keys(candidate: Candidate) -> Keys:
    return candidate_keys(candidate, "sources", {"cc": "12"}, "device")


def open_store(folder: Path | None, fresh: bool = False) -> tuple[Store, list[str]]:
    said: list[str] = []
    return Store(folder, keys, said.append, fresh), said


def make_built(folder: Path, data: bytes = b"elf") -> Built:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "executable.so").write_bytes(data)
    (folder / "host_kernel.c").write_text("int x;")
    return Built(folder, digest_of(data), (), (1,), {"name": "tvm"}, {"sm_count": 132}, "nvrtc 13.0", {}, 65536)


def test_what_was_kept_is_there_for_the_next_process(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path / "store")
    built = store.keep_built(CANDIDATES[0], make_built(tmp_path / "scratch"))
    store.keep_measurement(CANDIDATES[0], TIMING)
    store.keep_measurement(CANDIDATES[1], Failed("check", "wrong", "a long story"))
    again, said = open_store(tmp_path / "store")
    assert again.built(CANDIDATES[0]) == built and built.folder.is_relative_to(tmp_path / "store")
    assert again.built(CANDIDATES[1]) is None
    assert again.measurement(CANDIDATES[0]) == TIMING
    assert again.measurement(CANDIDATES[1]) == Failed("check", "wrong")
    assert said == [] and not (tmp_path / "scratch").exists()


def test_a_binary_of_a_time_when_compilers_were_not_noted_is_taken(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path / "store")
    built = store.keep_built(CANDIDATES[0], make_built(tmp_path / "scratch"))
    path = built.folder / "built.json"
    body = json.loads(path.read_bytes())
    assert body.pop("compiler") == "nvrtc 13.0"
    path.write_text(json.dumps(body))
    again, _ = open_store(tmp_path / "store")
    assert again.built(CANDIDATES[0]) == replace(built, compiler="")


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_line_costs_its_own_candidate_only(tmp_path: Path, cut: int) -> None:
    store, _ = open_store(tmp_path)
    store.keep_measurement(CANDIDATES[0], TIMING)
    store.keep_measurement(CANDIDATES[1], TIMING)
    path = tmp_path / "measurements.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    again, _ = open_store(tmp_path)
    assert again.measurement(CANDIDATES[0]) == TIMING
    assert again.measurement(CANDIDATES[1]) == (TIMING if cut == 1 else None)
    again.keep_measurement(CANDIDATES[1], TIMING)
    last, _ = open_store(tmp_path)
    assert last.measurement(CANDIDATES[0]) == TIMING and last.measurement(CANDIDATES[1]) == TIMING


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no description", "half a description", "another format"])
def test_a_damaged_binary_counts_as_none_and_is_replaced(tmp_path: Path, damage: str) -> None:
    store, _ = open_store(tmp_path / "store")
    folder = store.keep_built(CANDIDATES[0], make_built(tmp_path / "a")).folder
    if damage in ("truncated", "flipped"):
        (folder / "executable.so").write_bytes(b"el" if damage == "truncated" else b"elg")
    elif damage == "no description":
        (folder / "built.json").unlink()
    elif damage == "half a description":
        (folder / "built.json").write_bytes((folder / "built.json").read_bytes()[:30])
    else:
        (folder / "built.json").write_text(json.dumps({"digest": 3}))
    assert store.built(CANDIDATES[0]) is None
    store.keep_built(CANDIDATES[0], make_built(tmp_path / "b"))
    found = store.built(CANDIDATES[0])
    assert found is not None and (found.folder / "executable.so").read_bytes() == b"elf"


@pytest.mark.parametrize(
    "failed",
    [
        Failed("start", "the process ended (exit code 1)"),
        Failed("prepare", "the reference raised"),
        Failed("check", "crashed with SIGKILL"),
        Failed("link", STOPPED),
        Failed("time", "RuntimeError: CUDA out of memory"),
    ],
)
def test_a_failure_that_is_not_the_candidate_s_own_is_tried_again(tmp_path: Path, failed: Failed) -> None:
    store, _ = open_store(tmp_path)
    store.keep_measurement(CANDIDATES[0], failed)
    assert open_store(tmp_path)[0].measurement(CANDIDATES[0]) is None


def test_fresh_reads_nothing_and_still_keeps(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path / "store")
    store.keep_built(CANDIDATES[0], make_built(tmp_path / "a"))
    store.keep_measurement(CANDIDATES[0], TIMING)
    fresh, _ = open_store(tmp_path / "store", fresh=True)
    assert fresh.built(CANDIDATES[0]) is None and fresh.measurement(CANDIDATES[0]) is None
    fresh.keep_built(CANDIDATES[0], make_built(tmp_path / "b", b"other"))
    found = fresh.built(CANDIDATES[0])
    assert found is not None and found.digest == digest_of(b"other")


def test_losers_keep_their_binary_and_lose_their_sources(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path / "store")
    folder = store.keep_built(CANDIDATES[0], make_built(tmp_path / "a")).folder
    store.drop_sources(CANDIDATES[0])
    store.drop_sources(CANDIDATES[1])  # never built
    assert sorted(path.name for path in folder.iterdir()) == ["built.json", "executable.so"]
    assert store.built(CANDIDATES[0]) is not None


def test_a_folder_that_cannot_be_written_is_said_once_and_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store, said = open_store(tmp_path / "file" / "store")
    built = make_built(tmp_path / "a")
    assert store.keep_built(CANDIDATES[0], built) == built
    store.keep_measurement(CANDIDATES[0], TIMING)
    store.keep_measurement(CANDIDATES[1], TIMING)
    assert len(said) == 1 and "cannot be written" in said[0]
    assert store.built(CANDIDATES[0]) is None and store.measurement(CANDIDATES[0]) is None


def test_no_folder_keeps_nothing(tmp_path: Path) -> None:
    store, said = open_store(None)
    built = make_built(tmp_path / "a")
    assert store.keep_built(CANDIDATES[0], built) == built
    store.keep_measurement(CANDIDATES[0], TIMING)
    assert store.built(CANDIDATES[0]) is None and store.measurement(CANDIDATES[0]) is None and said == []


def _write_many(folder: Path, number: int) -> None:
    configs = tuple({"t": index} for index in range(200))
    workload = Workload(KERNEL, TARGET, {"N": number}, configs)
    store, _ = open_store(folder)
    for candidate in workload.candidates():
        store.keep_measurement(candidate, TIMING)


def test_processes_do_not_write_into_each_other_s_lines(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(tmp_path, number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines = (tmp_path / "measurements.jsonl").read_bytes().splitlines()
    assert len(lines) == 800 and len({json.loads(line)["key"] for line in lines}) == 800


def test_two_processes_that_built_the_same_both_have_it(tmp_path: Path) -> None:
    one, _ = open_store(tmp_path / "store")
    other, _ = open_store(tmp_path / "store")
    first = one.keep_built(CANDIDATES[0], make_built(tmp_path / "a"))
    inode = os.stat(first.folder).st_ino
    second = other.keep_built(CANDIDATES[0], make_built(tmp_path / "b"))
    assert first == second and os.stat(second.folder).st_ino == inode  # not replaced under the first one's feet


def test_keys_hold_what_matters_and_nothing_else() -> None:
    from dataclasses import replace

    from tlaot.tune.specs.spec import Profile

    def of(**changes: object) -> Keys:
        kernel = replace(KERNEL, **changes)
        return keys(Workload(kernel, TARGET, {"N": 8}, ({"t": 1},)).candidates()[0])

    same = of()
    assert of(where="elsewhere", configs=(), shapes=(), search="optuna", profile=Profile(rep=7)) == same
    assert of(reference="m:g").build == same.build and of(reference="m:g").measure != same.measure
    assert of(profile=Profile(backend="event")).measure != same.measure
    assert of(compile_flags=("-O1",)).build != same.build
    assert len({keys(candidate).build for candidate in CANDIDATES}) == 2
