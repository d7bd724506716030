"""Targets: how they are written, what runs them, which of them is best."""

from __future__ import annotations

import pytest

from tlaot.errors import SpecError
from tlaot.target import CPU_LEVELS, DLPACK_CPU, DLPACK_CUDA, Target, parse_target


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
    assert parse_target(str(target)) == target
    assert target.slug == full.replace(":", "-")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cuda", "names an architecture"),
        ("cuda:90", "names an architecture"),
        ("cuda:sm_9", "names an architecture"),
        ("cuda:sm_90x", "names an architecture"),
        ("cuda:sm_90a ", "names an architecture"),
        ("llvm:native", "must not depend on the machine"),
        ("llvm:x86-64-v5", "unknown CPU instruction level"),
        ("rocm:gfx942", "unknown target kind 'rocm'"),
        ("", "unknown target kind"),
    ],
)
def test_refuses(text: str, says: str) -> None:
    """A wrong target is an error that names the place, the text and the way to write it."""
    with pytest.raises(SpecError, match=says) as caught:
        parse_target(text, "tltune.toml: targets[0]")
    assert caught.value.where == "tltune.toml: targets[0]"
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("arch", "runs", "refuses"),
    [
        ("sm_80", [(8, 0), (8, 6), (8, 9)], [(7, 5), (9, 0)]),
        ("sm_86", [(8, 6), (8, 9)], [(8, 0)]),
        ("sm_90", [(9, 0)], [(8, 9), (10, 0)]),
        ("sm_90a", [(9, 0)], [(8, 9), (9, 1), (10, 0)]),
        ("sm_100a", [(10, 0)], [(10, 3), (12, 0)]),
        ("sm_100f", [(10, 0), (10, 3)], [(9, 0), (12, 0), (11, 0)]),
        ("sm_120", [(12, 0), (12, 1)], [(10, 0)]),
    ],
)
def test_which_devices_run_it(arch: str, runs: list[tuple[int, int]], refuses: list[tuple[int, int]]) -> None:
    """NVIDIA's rule for plain, family and architecture-specific code."""
    target = Target("cuda", arch)
    assert [c for c in runs + refuses if target.runs_on(c)] == runs


def test_the_most_specific_target_is_preferred() -> None:
    """Newer architecture first, then a over f over plain; the higher CPU level first."""
    order = ["sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "sm_100f", "sm_100a"]
    assert sorted(reversed(order), key=lambda arch: Target("cuda", arch).preference()) == order
    assert sorted(reversed(CPU_LEVELS), key=lambda level: Target("llvm", level).preference()) == list(CPU_LEVELS)


def test_device_types_and_ranks() -> None:
    """DLPack's device types; CPU ranks as the native check answers."""
    assert parse_target("cuda:sm_80").device_type == DLPACK_CUDA
    assert parse_target("llvm").device_type == DLPACK_CPU
    assert [Target("c", level).cpu_rank for level in CPU_LEVELS] == [1, 2, 3, 4]
