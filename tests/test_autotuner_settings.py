"""The autotuner's environment variables: names, defaults, malformed values, and the processors that may be used."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from unittest import mock

import pytest
from conftest import ROOT

from tlaot.autotuner.settings import (
    VARIABLES,
    Settings,
    count_available_cpus,
    log_path,
    read_default_target,
    read_execution_backend,
    read_settings,
    resolve_num_workers,
)
from tlaot.errors import SpecError

HOME = {"HOME": "/home/someone"}


def test_defaults() -> None:
    assert read_settings(HOME) == Settings(Path("/home/someone/.cache/tlaot"))
    assert read_settings(HOME).use_cache


def test_cache_folder() -> None:
    assert read_settings({**HOME, "XDG_CACHE_HOME": "/var/cache"}).cache_dir == Path("/var/cache/tlaot")
    assert read_settings({**HOME, "XDG_CACHE_HOME": "relative"}).cache_dir == Path("/home/someone/.cache/tlaot")
    assert read_settings({"TLAOT_CACHE_DIR": "/c", "TILELANG_CACHE_DIR": "/t"}).cache_dir == Path("/c")
    # Beside TileLang's own entries, not among them.
    assert read_settings({"TILELANG_CACHE_DIR": "/t"}).cache_dir == Path("/t/tlaot")
    assert read_settings({"TLAOT_CACHE_DIR": "here"}).cache_dir == Path.cwd() / "here"


def test_ours_before_theirs() -> None:
    environ = {"TLAOT_VERBOSE": "no", "TILELANG_VERBOSE": "1", "TILELANG_AUTO_TUNING_CPU_COUNTS": "3"}
    found = read_settings({**HOME, **environ})
    assert (found.verbose, found.cpu_counts) == (False, 3)
    assert read_settings({**HOME, "TLAOT_VERBOSE": "", "TILELANG_VERBOSE": "1"}).verbose


@pytest.mark.parametrize("text", ["1", "true", "YES", "On"])
def test_true_words(text: str) -> None:
    assert not read_settings({**HOME, "TLAOT_DISABLE_CACHE": text}).use_cache
    assert not read_settings({**HOME, "TILELANG_AUTO_TUNING_DISABLE_CACHE": text}).use_cache


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TLAOT_DISABLE_CACHE", "maybe"),
        ("TILELANG_AUTO_TUNING_CPU_COUNTS", "abc"),
        ("TLAOT_AUTO_TUNING_MAX_CPU_COUNT", "1.5"),
        ("TLAOT_AUTO_TUNING_CPU_UTILITIES", "0"),
        ("TLAOT_AUTO_TUNING_CPU_UTILITIES", "nan"),
        ("TLAOT_DEFAULT_TARGET", '{"kind": "cuda"'),
    ],
)
def test_malformed(name: str, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_settings({**HOME, name: text})
    assert name in str(caught.value) and repr(text) in str(caught.value)


def test_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """A string or a JSON object; read at each call."""
    monkeypatch.setenv("TLAOT_DEFAULT_TARGET", "cuda:sm_90a")
    assert read_default_target() == "cuda:sm_90a"
    monkeypatch.setenv("TLAOT_DEFAULT_TARGET", '{"kind": "cuda", "arch": "sm_90a"}')
    assert read_default_target() == {"kind": "cuda", "arch": "sm_90a"}
    monkeypatch.delenv("TLAOT_DEFAULT_TARGET")
    monkeypatch.setenv("TILELANG_DEFAULT_TARGET", "c")
    monkeypatch.setenv("TILELANG_EXECUTION_BACKEND", "tvm_ffi")
    assert (read_default_target(), read_execution_backend()) == ("c", "tvm_ffi")


@pytest.mark.parametrize(
    ("settings", "available", "tasks", "expected"),
    [
        (Settings(Path()), 10, 99, 9),
        (Settings(Path()), 10, 4, 4),
        (Settings(Path()), 1, 99, 1),
        (Settings(Path()), 2, 99, 1),
        (Settings(Path()), 2, 0, 1),
        (Settings(Path(), cpu_utilities=0.5), 16, 99, 8),
        (Settings(Path(), cpu_counts=0), 10, 99, 9),
        (Settings(Path(), cpu_counts=4), 10, 99, 4),
        (Settings(Path(), cpu_counts=40), 10, 99, 10),
    ],
)
def test_workers(settings: Settings, available: int, tasks: int, expected: int) -> None:
    assert resolve_num_workers(tasks, settings, available) == expected


def test_upper_bound_of_workers() -> None:
    with pytest.warns(UserWarning, match="3 processors instead of 9"):
        assert resolve_num_workers(99, Settings(Path(), max_cpu_count=3), 10) == 3


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 64),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "350000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        # The least of a group and its ancestors counts.
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "800000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "400000 100000\n",
            },
            4,
        ),
        # Version 1 in a container: the path is the host's, the mount is the container's.
        (
            {
                "proc/self/cgroup": "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            64,
        ),
    ],
)
def test_available_processors(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    with mock.patch.object(os, "sched_getaffinity", lambda pid: set(range(64))):
        assert count_available_cpus(_tree(tmp_path, files)) == expected


def test_affinity_counts(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "800000 100000\n"}
    with mock.patch.object(os, "sched_getaffinity", lambda pid: {3}):
        assert count_available_cpus(_tree(tmp_path, files)) == 1


def test_log_is_where_one_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder; the cache's where that takes no file (here: a folder of that name is in the way)."""
    here, cache = tmp_path / "here", tmp_path / "cache"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("TLAOT_CACHE_DIR", str(cache))
    (here / "autotuner.log").write_text("kept\n")
    assert log_path() == here / "autotuner.log"
    assert (here / "autotuner.log").read_text() == "kept\n"
    (here / "autotuner.log").unlink()
    (here / "autotuner.log").mkdir()
    assert log_path() == cache / "autotuner.log"


def test_builds_know_the_variables() -> None:
    """A build refuses unknown TLAOT_ variables; these it leaves alone."""
    tree = ast.parse((ROOT / "build_hooks" / "settings.py").read_text())
    (known,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "RUN_TIME_VARIABLES"
    ]
    assert set(VARIABLES) <= set(known)
