"""This project's own sample, built for three architectures from the lock that was tuned on a GPU, on a machine that has none."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, clean_environ, has_nvcc

from tlaot.cli import main
from tlaot.elf import device_image
from tlaot.image import read_image
from tlaot.manifest import MANIFEST_NAME, Variant, place_of, read_manifest
from tlaot.tune.locks.lock_file import read_lock

if importlib.util.find_spec("tilelang") is None or not has_nvcc():
    pytest.skip("needs tilelang and nvcc", allow_module_level=True)

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "cuda:sm_100a")
LARGEST = 30 * 1024  # of a variant in the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree, out = tmp_path_factory.mktemp("tree") / "tlaot", tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns(".*", "build", "dist", "tests", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, tree, ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-build-isolation", "--no-deps", "-v", "-w", str(out)]
    settings = ["-C", "lock=frozen", "-C", f"targets={','.join(TARGETS)}"]
    environ = {**clean_environ(), "CUDA_VISIBLE_DEVICES": "", "TLAOT_CACHE_DIR": str(out / "cache")}
    done = subprocess.run([*command, *settings], cwd=tree, env=environ, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    assert not re.search(r"\d+ candidates? of \d+ workload", done.stdout), "something was tuned"
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def variants(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Variant]:
    """The wheel's variants, by the folder of each."""
    content = tmp_path_factory.mktemp("content")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(content)
    (path,) = content.rglob(MANIFEST_NAME)
    kernels = read_manifest(path).kernels.values()
    return {path.parent / place_of(v, "executable.so"): v for kernel in kernels for v in kernel.variants}


def test_every_workload_has_machine_code_for_each_architecture(variants: dict[Path, Variant]) -> None:
    by_target: dict[str, set[str]] = {target: set() for target in TARGETS}
    for executable, variant in variants.items():
        image = device_image(executable.read_bytes(), str(executable))
        assert image is not None
        found = read_image(image, str(executable))
        assert found.is_for(variant.target.removeprefix("cuda:")) and not found.is_ptx
        if not variant.buckets:  # dynamic ones are for the one that was measured on
            by_target[variant.target].add(f"{executable.parents[2].name} {sorted(variant.shape.items())}")
    assert by_target[TARGETS[0]] and by_target[TARGETS[0]] == by_target[TARGETS[1]] == by_target[TARGETS[2]]


def test_what_ships_is_what_the_lock_says(variants: dict[Path, Variant]) -> None:
    entries = read_lock(ROOT / "tltune.lock").entries.values()
    promised = {(entry.target, str(sorted(entry.shape.items()))) for entry in entries if entry.target in TARGETS}
    assert promised == {(v.target, str(sorted(v.shape.items()))) for v in variants.values()}
    for variant in variants.values():
        measured = variant.target == "cuda:sm_90a"
        assert variant.tuned["device"] == "NVIDIA H200" and variant.tuned["sm_count"] == 132
        assert variant.tuned.get("as") == (None if measured else "cuda:sm_90a")
        assert (variant.latency["latency"] is not None) is measured
        for bucket in variant.buckets:
            assert (None not in bucket.ms and bucket.regret is not None) is measured


def test_the_audit_has_nothing_to_say(wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["check", str(wheel)])
    assert status == 0, capsys.readouterr().out


def test_a_variant_is_small_in_the_wheel(wheel: Path, variants: dict[Path, Variant]) -> None:
    with zipfile.ZipFile(wheel) as file:
        sizes = {info.filename: info.compress_size for info in file.infolist()}
    for executable in variants:
        (size,) = (size for name, size in sizes.items() if str(executable).endswith(name))
        assert size < LARGEST, f"{executable} takes {size} bytes"
