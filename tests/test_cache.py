"""The cache of tuned results: memory, disk, one tuning a key, and what happens when the disk does not do as it should."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from fixtures_runtime import tensor, variant

from tlaot.autotuner import cache as cache_module
from tlaot.autotuner.cache import Cache, Memory, clear_cache, clear_entries, list_cache, list_entries
from tlaot.cli import main
from tlaot.errors import LoadError, PackageError
from tlaot.manifest import digest_of, variant_dumps

KEYS = [f"{number:02x}" * 32 for number in range(1, 9)]


def write_text(value: str, path: Path) -> None:
    path.mkdir()
    (path / "value").write_text(value)


def read_text(path: Path) -> str | None:
    text = (path / "value").read_text()
    if text == "broken":
        raise PackageError(str(path / "value"), "is damaged")
    return text


def open_cache(root: Path, **rest: Any) -> Cache[str]:
    return Cache(root, **{"save": write_text, "read": read_text, "memory": Memory(limit=2), **rest})


def write_entry(cache: Cache[str], key: str, kernel: str, age: float = 0) -> Path:
    """An entry as a tuning leaves it."""
    path = cache.path_of(key)
    path.mkdir(parents=True)
    (path / "executable.so").write_bytes(b"binary")
    one = variant(kernel, [tensor("X", 8)], [0], {"N": 8}, files={"executable.so": digest_of(b"binary")})
    (path / "variant.json").write_text(variant_dumps(kernel, one))
    stored = time.time() - age
    os.utime(path, (stored, stored))
    return path


def test_values_are_kept_in_memory_and_on_disk(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    assert cache.load(KEYS[0]) is None
    cache.store(KEYS[0], "one")
    assert cache.load(KEYS[0]) == "one"
    assert open_cache(tmp_path).load(KEYS[0]) == "one"
    shutil.rmtree(tmp_path)
    assert cache.load(KEYS[0]) == "one"
    assert open_cache(tmp_path).load(KEYS[0]) is None


def test_nothing_else_is_left_on_disk(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    with cache.single_flight(KEYS[0]):
        cache.store(KEYS[0], "one")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [cache.path_of(KEYS[0]) / "value"]


def test_memory_forgets_what_was_used_least_lately(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    for key in KEYS[:2]:
        cache.store(key, key)
    cache.load(KEYS[0])
    cache.store(KEYS[2], KEYS[2])
    shutil.rmtree(tmp_path)
    assert [cache.load(key) is not None for key in KEYS[:3]] == [True, False, True]


def test_disabled(tmp_path: Path) -> None:
    cache = open_cache(tmp_path, enabled=False)
    with cache.single_flight(KEYS[0]):
        cache.store(KEYS[0], "one")
    assert cache.load(KEYS[0]) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["../../etc", "", "abc", "g" * 64, "A" * 64, "a" * 63 + "/"])
def test_a_key_names_no_other_place(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="digest"):
        open_cache(tmp_path).path_of(key)


def test_a_result_that_is_there_is_kept(tmp_path: Path) -> None:
    """Two processes that tuned the same all the same: the second takes nothing away under the first."""
    open_cache(tmp_path).store(KEYS[0], "first")
    open_cache(tmp_path).store(KEYS[0], "second")
    assert open_cache(tmp_path).load(KEYS[0]) == "first"


@pytest.mark.parametrize("damage", ["broken", None])
def test_a_broken_entry_is_reported_removed_and_made_again(tmp_path: Path, damage: str | None) -> None:
    open_cache(tmp_path).store(KEYS[0], "one")
    file = open_cache(tmp_path).path_of(KEYS[0]) / "value"
    file.write_text(damage) if damage else file.unlink()
    with pytest.warns(UserWarning, match=r"is broken and is made again: .*(damaged|No such file)"):
        assert open_cache(tmp_path).load(KEYS[0]) is None
    assert not file.parent.exists()
    open_cache(tmp_path).store(KEYS[0], "two")
    assert open_cache(tmp_path).load(KEYS[0]) == "two"


def test_an_entry_that_cannot_be_loaded_here_stays(tmp_path: Path) -> None:
    def refuse(path: Path) -> str:
        raise LoadError(str(path), "is for another machine")

    open_cache(tmp_path).store(KEYS[0], "one")
    with pytest.warns(UserWarning, match="cannot be loaded here"):
        assert open_cache(tmp_path, read=refuse).load(KEYS[0]) is None
    assert open_cache(tmp_path).load(KEYS[0]) == "one"


def _full(value: str, path: Path) -> None:
    write_text(value, path)
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_costs_one_warning(tmp_path: Path) -> None:
    cache = open_cache(tmp_path, save=_full)
    with pytest.warns(UserWarning, match="No space left on device.*\n?.*TLAOT_CACHE_DIR") as caught:
        for key in KEYS[:3]:
            cache.store(key, key)
    assert len(caught) == 1
    assert cache.load(KEYS[2]) == KEYS[2]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """A file is where the folder should be: neither locks nor values, one warning, and the block runs."""
    (tmp_path / "file").write_text("")
    cache = open_cache(tmp_path / "file" / "cache")
    with pytest.warns(UserWarning, match="cannot be written") as caught, cache.single_flight(KEYS[0]):
        assert cache.load(KEYS[0]) is None
        cache.store(KEYS[0], "one")
    assert len(caught) == 1
    assert cache.load(KEYS[0]) == "one"


def test_a_read_only_cache_serves(tmp_path: Path) -> None:
    """As another user, who may read all and write nothing: what is there is taken, without a word."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    shared = Path("/tmp") / f"tlaot-test-cache-{os.getpid()}"
    try:
        shared.mkdir(mode=0o755)
        open_cache(shared / "c").store(KEYS[0], "one")
        reader = os.fork()
        if reader == 0:
            status = 1
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                cache = open_cache(shared / "c")
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    with cache.single_flight(KEYS[0]):
                        assert cache.load(KEYS[0]) == "one"
                with pytest.warns(UserWarning, match="cannot be written"):
                    cache.store(KEYS[1], "two")
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]) == 0
    finally:
        shutil.rmtree(shared)


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    cache = open_cache(tmp_path)
    with pytest.warns(UserWarning, match="takes no lock") as caught:
        for _ in range(2):
            with cache.single_flight(KEYS[0]):
                cache.store(KEYS[0], "one")
    assert len(caught) == 1


def make_once(cache: Cache[str], key: str, make: Callable[[], str]) -> str:
    with cache.single_flight(key):
        found = cache.load(key)
        if found is None:
            found = make()
            cache.store(key, found)
        return found


def test_threads_make_a_value_once(tmp_path: Path) -> None:
    """Eight threads, two keys, each with a memory of its own: two values are made, at the same time."""
    made: list[str] = []
    together = threading.Barrier(2, timeout=30)

    def run(key: str) -> None:
        def make() -> str:
            together.wait()  # both keys are in the making: one does not wait for the other
            made.append(key)
            return key

        assert make_once(open_cache(tmp_path), key, make) == key

    threads = [threading.Thread(target=run, args=(key,)) for key in KEYS[:2] * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(made) == KEYS[:2]


PROGRAM = """
import os, sys, time
from pathlib import Path
sys.path[:0] = [{root!r}, {tests!r}]
from test_cache import KEYS, make_once, open_cache
folder = Path(sys.argv[1])

def make():
    (folder / f"made-{{os.getpid()}}").touch()
    time.sleep(float(sys.argv[2]))
    return "value"

print(make_once(open_cache(folder / "cache"), KEYS[0], make))
"""


def start(folder: Path, seconds: float) -> subprocess.Popen[str]:
    program = PROGRAM.format(root=str(ROOT), tests=str(ROOT / "tests"))
    return subprocess.Popen(
        [sys.executable, "-c", program, str(folder), str(seconds)], stdout=subprocess.PIPE, text=True
    )


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_processes_make_a_value_once(tmp_path: Path) -> None:
    processes = [start(tmp_path, 0.3) for _ in range(4)]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["value\n"] * 4
    assert len(list(tmp_path.glob("made-*"))) == 1
    assert list((tmp_path / "cache").rglob("*.lock")) == []


def test_a_dead_holder_frees_its_key(tmp_path: Path) -> None:
    holder = start(tmp_path, 600)
    wait_for(lambda: len(list(tmp_path.glob("made-*"))) == 1)
    waiter = start(tmp_path, 0)
    time.sleep(0.5)
    assert waiter.poll() is None
    holder.send_signal(signal.SIGKILL)
    assert waiter.communicate(timeout=60)[0] == "value\n"
    holder.communicate()
    assert len(list(tmp_path.glob("made-*"))) == 2
    assert list((tmp_path / "cache").rglob("*.lock")) == []


def test_a_forked_child_keeps_no_lock(tmp_path: Path) -> None:
    """A child of the holder that outlives it: the key is free, in the child too."""
    cache = open_cache(tmp_path)
    ready, go = os.pipe()
    middle = os.fork()
    if middle == 0:
        try:
            with cache.single_flight(KEYS[0]):
                child = os.fork()
                if child == 0:
                    with cache.single_flight(KEYS[1]):
                        os.write(go, b"x")
                        time.sleep(600)
                os.write(go, str(child).encode())
                time.sleep(600)
        finally:
            os._exit(0)
    text = b""
    while b"x" not in text or len(text) < 2:
        text += os.read(ready, 99)
    try:
        os.kill(middle, signal.SIGKILL)
        os.waitpid(middle, 0)
        with cache.single_flight(KEYS[0]):
            pass
    finally:
        os.kill(int(text.replace(b"x", b"")), signal.SIGKILL)


def test_an_error_in_the_block_frees_the_key(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    for _ in range(2):
        with pytest.raises(RuntimeError), cache.single_flight(KEYS[0]):
            raise RuntimeError


def test_list_and_clear(tmp_path: Path) -> None:
    """Entries of all versions; nothing that is not the cache's own is touched."""
    cache, older = open_cache(tmp_path), open_cache(tmp_path, namespace="tlaot-0.0.1")
    write_entry(older, KEYS[0], "gemm", age=7200)
    write_entry(cache, KEYS[1], "norm", age=3600)
    path = write_entry(cache, KEYS[2], "gemm")
    write_entry(cache, KEYS[3], "gemm", age=10)
    (cache.path_of(KEYS[3]) / "variant.json").write_text("{")
    strangers = [tmp_path / "notes.txt", tmp_path / "0.1.15" / "ab" / KEYS[0], path.parent.parent / "zz" / KEYS[5]]
    for stranger in strangers:
        stranger.parent.mkdir(parents=True, exist_ok=True)
        stranger.write_text("")

    entries = list_entries(tmp_path)
    assert [entry.key for entry in entries] == [KEYS[0], KEYS[1], KEYS[3], KEYS[2]]
    last = entries[-1]
    assert (last.kernel, last.target, dict(last.shape), last.latency) == ("gemm", "llvm:x86-64", {"N": 8}, 1.0)
    assert last.size == 6 + (path / "variant.json").stat().st_size and not last.broken
    assert "not valid JSON" in entries[2].broken

    assert [entry.key for entry in clear_entries(tmp_path, older_than=1800, kernel="norm")] == [KEYS[1]]
    assert [entry.key for entry in clear_entries(tmp_path, older_than=1800)] == [KEYS[0]]
    assert [entry.key for entry in clear_entries(tmp_path, kernel="gemm")] == [KEYS[2]]
    assert [entry.key for entry in clear_entries(tmp_path)] == [KEYS[3]]
    assert list_entries(tmp_path) == []
    assert all(stranger.exists() for stranger in strangers)
    assert list_entries(tmp_path / "nowhere") == clear_entries(tmp_path / "nowhere") == []


def test_clearing_leaves_keys_that_someone_tunes(tmp_path: Path) -> None:
    """Their lock stays, those of the dead go."""
    cache = open_cache(tmp_path)
    with cache.single_flight(KEYS[0]):
        locks = tmp_path / cache.namespace / "locks"
        (locks / f"{KEYS[1]}.lock").write_text("1")
        clear_entries(tmp_path)
        assert [path.stem for path in locks.iterdir()] == [KEYS[0]]
        cache.store(KEYS[0], "one")
    clear_entries(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_clear_cache_forgets_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLAOT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache_module, "_MEMORY", Memory(limit=2))
    cache = open_cache(tmp_path, memory=cache_module._MEMORY)
    write_entry(cache, KEYS[1], "norm")
    cache.store(KEYS[0], "one")
    assert {entry.key for entry in list_cache()} == set(KEYS[:2])
    assert clear_cache() == 2
    assert cache.load(KEYS[0]) is None


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TLAOT_CACHE_DIR", str(tmp_path))
    cache = open_cache(tmp_path)
    write_entry(cache, KEYS[0], "gemm", age=3 * 86400)
    write_entry(cache, KEYS[1], "norm")
    assert main(["cache", "path"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\n"
    assert main(["cache", "list"]) == 0
    first, second, total = capsys.readouterr().out.splitlines()
    assert first.startswith(KEYS[0][:12]) and first.endswith("gemm  llvm:x86-64  N=8  1 ms")
    assert "norm" in second and total.startswith("2 results, ")
    assert main(["cache", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["key"], row["kernel"], row["latency"]) for row in rows] == [
        (KEYS[0], "gemm", 1.0),
        (KEYS[1], "norm", 1.0),
    ]
    assert main(["cache", "clear", "--older-than", "2d"]) == 0
    assert capsys.readouterr().out.startswith("1 result removed")
    assert main(["cache", "clear", "--kernel", "norm"]) == 0
    assert list_entries(tmp_path) == []
    with pytest.raises(SystemExit):
        main(["cache", "clear", "--older-than", "soon"])
    assert "write 30d" in capsys.readouterr().err
    monkeypatch.setenv("TLAOT_VERBOSE", "maybe")
    assert main(["cache", "list"]) == 2
    assert "TLAOT_VERBOSE" in capsys.readouterr().err
