"""This repository's own backend: the tool alone, the sdist and an editable install."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, clean_environ

pytest.importorskip("setuptools")

FILES = (
    "tlaot",
    "build_hooks",
    "sample_pkg",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs",
    "benchmarks",
    "LICENSE",
    "MANIFEST.in",
    "tltune.toml",
    "tltune.lock",
)


def _copy_tree(to: Path) -> Path:
    import shutil

    to.mkdir()
    for name in FILES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, to / name)
    return to


def _call(tree: Path, hook: str, out: Path, **environ: str) -> Any:
    """Call a hook in a process where tlaot, if installed at all, is not to be found first: the tree must be enough."""
    out.mkdir(exist_ok=True)
    body = f"""
import json, sys
sys.path.insert(0, "build_hooks/in_tree")
import tlaot_in_tree as backend
arguments = [] if {hook!r}.startswith("get_requires") else [{str(out)!r}]
result = backend.{hook}(*arguments, None)
import tlaot.build_hooks
assert tlaot.build_hooks.__file__.startswith({str(tree)!r}), tlaot.build_hooks.__file__
print("RESULT", json.dumps(result))
"""
    done = subprocess.run(
        [sys.executable, "-c", body],
        cwd=tree,
        env={**clean_environ(), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout.rpartition("RESULT ")[2])


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return _copy_tree(tmp_path / "tree")


def test_tool_alone(tree: Path, tmp_path: Path) -> None:
    # What an earlier build of everything left must not come along.
    stale = tree / "build" / "lib" / "sample_pkg" / "_tlaot"
    stale.mkdir(parents=True)
    (stale / "manifest.json").write_text("{}")
    assert _call(tree, "get_requires_for_build_wheel", tmp_path / "out", TLAOT_TUNE="off") == []
    wheel = tmp_path / "out" / _call(tree, "build_wheel", tmp_path / "out", TLAOT_TUNE="off")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = _names(wheel)
    assert {name.partition("/")[0] for name in names} == {"tlaot", "-".join(wheel.name.split("-")[:2]) + ".dist-info"}
    assert "tlaot/build_hooks/plugin.py" in names
    with zipfile.ZipFile(wheel) as archive:
        top_level = next(name for name in names if name.endswith("top_level.txt"))
        assert archive.read(top_level) == b"tlaot\n"


def test_requirements_of_the_main_job_are_free_of_torch(tree: Path, tmp_path: Path) -> None:
    requirements = _call(tree, "get_requires_for_build_wheel", tmp_path / "out")
    assert any(text.startswith("apache-tvm") for text in requirements)
    assert not [text for text in requirements if text.startswith(("tilelang", "torch", "nvidia"))]


def test_sdist_builds_the_same_wheel(tree: Path, tmp_path: Path) -> None:
    sdist = tmp_path / "out" / _call(tree, "build_sdist", tmp_path / "out")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert {"tltune.toml", "LICENSE", "README.md", "build_hooks", "sample_pkg", "tlaot"} <= set(os.listdir(unpacked))
    for page in ("README.md", "CONTRIBUTING.md", "docs/coming-from-tilelang.md"):
        links = re.findall(r"\]\(([^)#:]+)\)", (unpacked / page).read_text(encoding="utf-8"))
        assert [link for link in links if not (unpacked / page).parent.joinpath(link).exists()] == [], page
    first = tmp_path / "out" / _call(tree, "build_wheel", tmp_path / "out", TLAOT_TUNE="off")
    second = tmp_path / "again" / _call(unpacked, "build_wheel", tmp_path / "again", TLAOT_TUNE="off")
    assert first.read_bytes() == second.read_bytes()


def test_editable_install_tunes_nothing(tree: Path, tmp_path: Path) -> None:
    assert _call(tree, "get_requires_for_build_editable", tmp_path / "out") == []
    wheel = tmp_path / "out" / _call(tree, "build_editable", tmp_path / "out")
    assert not [name for name in _names(wheel) if "/_tlaot/" in name]
    assert not list(tree.rglob("_tlaot"))
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    body = f"""
import site, sys
site.addsitedir({str(site)!r})
sys.path[:0] = [path for path in sys.path if path.startswith({str(site)!r})]
sys.meta_path.sort(key=lambda finder: "editable" not in getattr(finder, "__module__", ""))
import sample_pkg, tlaot.build_hooks.plugin
assert tlaot.build_hooks.plugin.__file__ == {str(tree / "build_hooks" / "plugin.py")!r}, tlaot.build_hooks.plugin.__file__
try:
    tlaot.load("sample_pkg")
except tlaot.TlaotError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", body], cwd=tmp_path, env=clean_environ(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "sample_pkg" in done.stdout
