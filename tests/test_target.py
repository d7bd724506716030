"""Targets: how they are written, what runs them, which of them is best."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tlaot.target
from tlaot.errors import SpecError
from tlaot.target import CPU_LEVELS, DLPACK_CPU, DLPACK_CUDA, Target, parse_target, read_target


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("llvm", "llvm:x86-64-v3"),
        ("c", "c:x86-64-v3"),
        ("llvm:x86-64", "llvm:x86-64"),
        ("c:x86-64-v4", "c:x86-64-v4"),
        ("cuda:sm_80", "cuda:sm_80"),
        ("cuda:sm_90a", "cuda:sm_90a"),
        ("cuda:sm_100f", "cuda:sm_100f"),
    ],
)
def test_parse_and_spell(text: str, full: str) -> None:
    """What is read is spelt in full, and reads as the same again."""
    target = parse_target(text)
    assert str(target) == full
    assert parse_target(str(target)) == read_target(str(target)) == target
    assert target.slug == full.replace(":", "-")
    assert not target.is_virtual


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cuda", "names an architecture"),
        ("cuda:90", "names an architecture"),
        ("cuda:sm_9", "names an architecture"),
        ("cuda:sm_90x", "names an architecture"),
        ("cuda:sm_90a ", "names an architecture"),
        ("cuda:sm_80a", "there is no 'sm_80a': architectures have 'a' code from sm_90 on"),
        ("cuda:sm_90f", "there is no 'sm_90f': architectures have 'f' code from sm_100 on"),
        ("llvm:native", "must not depend on the machine"),
        ("llvm:x86-64-v5", "unknown CPU instruction level"),
        ("rocm:gfx942", "unknown target kind 'rocm'"),
        ("", "unknown target kind"),
    ],
)
def test_refuses(text: str, says: str) -> None:
    """A wrong target is an error that names the place, the text and the way to write it."""
    for read in (parse_target, read_target):
        with pytest.raises(SpecError, match=says) as caught:
            read(text, "tltune.toml: targets[0]")
        assert caught.value.where == "tltune.toml: targets[0]"
        assert caught.value.remedy


@pytest.mark.parametrize("arch", ["compute_80", "compute_90a", "compute_100f"])
def test_ptx_is_a_target_of_manifests_and_no_users(arch: str) -> None:
    """Whoever declares it is told how PTX is kept."""
    target = read_target(f"cuda:{arch}")
    real = arch.replace("compute", "sm")
    assert (target.is_virtual, target.sm, target.device_type) == (True, real, DLPACK_CUDA)
    assert (target.slug, parse_target(f"cuda:{real}").virtual) == (f"cuda-{arch}", target)
    assert target.virtual == target
    with pytest.raises(SpecError, match=f"Declare cuda:{real}, and write ptx = true"):
        parse_target(f"cuda:{arch}", "tltune.toml: targets[0]")


def test_the_run_time_reads_what_manifests_hold() -> None:
    """Nothing there refuses PTX by the function for what users write."""
    for path in (Path(tlaot.target.__file__).parent / "runtime").glob("*.py"):
        assert "parse_target" not in path.read_text(encoding="utf-8"), path


# What runs where: CUDA Programming Guide 13.3, "Binary Compatibility" (with its note on Tegra) and table 28, "Family-Specific
# Compatibility"; CUDA C++ Programming Guide 12.9 for 10.1; `ptxas --help`, "gpu-name", for PTX. Jetson and Drive: 7.2, 8.7, 8.8,
# 10.1, 11.0. 10.7 joins the family of 10.0 with CUDA 13.4.
DEVICES = [
    "7.0",
    "7.2",
    "7.5",
    "8.0",
    "8.6",
    "8.7",
    "8.8",
    "8.9",
    "9.0",
    "10.0",
    "10.1",
    "10.3",
    "10.7",
    "11.0",
    "12.0",
    "12.1",
]
RUNS = {
    "sm_70": "7.0 7.5",
    "sm_72": "7.2",
    "sm_75": "7.5",
    "sm_80": "8.0 8.6 8.9",
    "sm_86": "8.6 8.9",
    "sm_87": "8.7",
    "sm_88": "8.8",
    "sm_89": "8.9",
    "sm_90": "9.0",
    "sm_90a": "9.0",
    "sm_100": "10.0 10.3 10.7",
    "sm_100a": "10.0",
    "sm_100f": "10.0 10.3 10.7",
    "sm_101": "10.1",
    "sm_101a": "10.1",
    "sm_101f": "10.1",
    "sm_103": "10.3 10.7",
    "sm_103a": "10.3",
    "sm_103f": "10.3 10.7",
    "sm_110": "11.0",
    "sm_110a": "11.0",
    "sm_110f": "11.0",
    "sm_120": "12.0 12.1",
    "sm_120a": "12.0",
    "sm_120f": "12.0 12.1",
    "sm_121": "12.1",
    "sm_121a": "12.1",
    "sm_121f": "12.1",
    "compute_70": "7.0 7.2 7.5 8.0 8.6 8.7 8.8 8.9 9.0 10.0 10.1 10.3 10.7 11.0 12.0 12.1",
    "compute_75": "7.5 8.0 8.6 8.7 8.8 8.9 9.0 10.0 10.1 10.3 10.7 11.0 12.0 12.1",
    "compute_80": "8.0 8.6 8.7 8.8 8.9 9.0 10.0 10.1 10.3 10.7 11.0 12.0 12.1",
    "compute_89": "8.9 9.0 10.0 10.1 10.3 10.7 11.0 12.0 12.1",
    "compute_90": "9.0 10.0 10.1 10.3 10.7 11.0 12.0 12.1",
    "compute_90a": "9.0",
    "compute_100": "10.0 10.1 10.3 10.7 11.0 12.0 12.1",
    "compute_100a": "10.0",
    "compute_100f": "10.0 10.3 10.7",
    "compute_101f": "10.1",
    "compute_103": "10.3 10.7 11.0 12.0 12.1",
    "compute_103f": "10.3 10.7",
    "compute_110f": "11.0",
    "compute_120": "12.0 12.1",
    "compute_120f": "12.0 12.1",
    "compute_121a": "12.1",
}


def capability(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


@pytest.mark.parametrize("arch", RUNS)
def test_which_devices_run_it(arch: str) -> None:
    """NVIDIA's rules for plain, family and architecture-specific code, and for PTX."""
    target = read_target(f"cuda:{arch}")
    assert " ".join(device for device in DEVICES if target.runs_on(capability(device))) == RUNS[arch]


# Everything of the table above that a device runs, the best first.
ORDER = {
    "7.0": "sm_70 compute_70",
    "7.2": "sm_72 compute_70",
    "7.5": "sm_75 sm_70 compute_75 compute_70",
    "8.0": "sm_80 compute_80 compute_75 compute_70",
    "8.6": "sm_86 sm_80 compute_80 compute_75 compute_70",
    "8.7": "sm_87 compute_80 compute_75 compute_70",
    "8.8": "sm_88 compute_80 compute_75 compute_70",
    "8.9": "sm_89 sm_86 sm_80 compute_89 compute_80 compute_75 compute_70",
    "9.0": "sm_90a sm_90 compute_90a compute_90 compute_89 compute_80 compute_75 compute_70",
    "10.0": "sm_100a sm_100f sm_100 compute_100a compute_100f compute_100 compute_90 compute_89 compute_80 compute_75 compute_70",
    "10.1": "sm_101a sm_101f sm_101 compute_101f compute_100 compute_90 compute_89 compute_80 compute_75 compute_70",
    "10.3": "sm_103a sm_103f sm_103 sm_100f sm_100 compute_103f compute_103 compute_100f compute_100 compute_90 compute_89 "
    "compute_80 compute_75 compute_70",
    "10.7": "sm_103f sm_100f sm_103 sm_100 compute_103f compute_100f compute_103 compute_100 compute_90 compute_89 compute_80 "
    "compute_75 compute_70",
    "11.0": "sm_110a sm_110f sm_110 compute_110f compute_103 compute_100 compute_90 compute_89 compute_80 compute_75 compute_70",
    "12.0": "sm_120a sm_120f sm_120 compute_120f compute_120 compute_103 compute_100 compute_90 compute_89 compute_80 "
    "compute_75 compute_70",
    "12.1": "sm_121a sm_121f sm_121 sm_120f sm_120 compute_121a compute_120f compute_120 compute_103 compute_100 compute_90 "
    "compute_89 compute_80 compute_75 compute_70",
}


@pytest.mark.parametrize("device", DEVICES)
def test_the_order_of_choice(device: str) -> None:
    """The very architecture, then the family, then what else runs there, then PTX; of each the newest first."""
    here = capability(device)
    found = [target for arch in sorted(RUNS) if (target := read_target(f"cuda:{arch}")).runs_on(here)]
    found.sort(key=lambda target: target.preference(here), reverse=True)
    assert " ".join(target.arch for target in found) == ORDER[device]
    assert len({target.preference(here) for target in found}) == len(found)


def test_family_code_goes_before_plain_code_of_a_later_architecture() -> None:
    """Of a major version with more members than there are today."""
    order = [Target("cuda", arch) for arch in ("sm_104", "sm_103f", "sm_100f", "sm_103", "sm_100")]
    assert sorted(order, key=lambda target: target.preference((10, 4)), reverse=True) == order


def test_the_order_without_a_device() -> None:
    """Newer and more specific first; the higher CPU level first."""
    order = ["sm_80", "sm_86", "sm_90", "sm_100", "sm_90a", "sm_100f", "sm_100a"]
    assert sorted(reversed(order), key=lambda arch: Target("cuda", arch).preference()) == order
    assert sorted(reversed(CPU_LEVELS), key=lambda level: Target("llvm", level).preference()) == list(CPU_LEVELS)


def test_the_table_has_what_nvcc_13_compiles_for() -> None:
    """``nvcc --list-gpu-code`` of 13.0, with each suffix."""
    plain = "sm_75 sm_80 sm_86 sm_87 sm_88 sm_89 sm_90 sm_100 sm_110 sm_103 sm_120 sm_121"
    for arch in plain.split():
        suffixes = ["", "a", "f"] if int(re.sub(r"\D", "", arch)) >= 100 else ["", "a"] if arch == "sm_90" else [""]
        for suffix in suffixes:
            assert arch + suffix in RUNS


def test_device_types_and_ranks() -> None:
    """DLPack's device types; CPU ranks as the native check answers."""
    assert parse_target("cuda:sm_80").device_type == DLPACK_CUDA
    assert parse_target("llvm").device_type == DLPACK_CPU
    assert [Target("c", level).cpu_rank for level in CPU_LEVELS] == [1, 2, 3, 4]
