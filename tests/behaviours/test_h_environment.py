"""Behaviour 72: the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tlaot.autotuner.settings import Settings, log_path, read_settings
from tlaot.errors import SpecError


def test_072_defaults(tmp_path: Path) -> None:
    assert read_settings({"HOME": str(tmp_path)}) == Settings(tmp_path / ".cache" / "tlaot")


def test_072_every_variable_under_both_names(tmp_path: Path) -> None:
    given = {
        "CACHE_DIR": str(tmp_path),
        "DISABLE_CACHE": "1",
        "AUTO_TUNING_DISABLE_CACHE": "YES",
        "AUTO_TUNING_CPU_UTILITIES": "0.5",
        "AUTO_TUNING_CPU_COUNTS": "3",
        "AUTO_TUNING_MAX_CPU_COUNT": "2",
        "DEFAULT_TARGET": '{"kind": "cuda", "arch": "sm_90a"}',
        "EXECUTION_BACKEND": "tvm_ffi",
        "VERBOSE": "on",
    }
    target = {"kind": "cuda", "arch": "sm_90a"}
    for prefix, folder in (("TLAOT_", tmp_path), ("TILELANG_", tmp_path / "tlaot")):
        settings = read_settings({prefix + key: value for key, value in given.items()})
        assert settings == Settings(folder, True, True, 0.5, 3, 2, target, "tvm_ffi", True)
    both = {"TLAOT_AUTO_TUNING_CPU_COUNTS": "5", "TILELANG_AUTO_TUNING_CPU_COUNTS": "3"}
    assert read_settings(both).cpu_counts == 5


def test_072_what_is_malformed_is_named() -> None:
    for name, value, text in (
        ("TLAOT_DEFAULT_TARGET", "{kind", "looks like a dict but could not be parsed"),
        ("TILELANG_AUTO_TUNING_CPU_COUNTS", "abc", "expected a whole number, got 'abc'"),
        ("TLAOT_AUTO_TUNING_CPU_UTILITIES", "-1", "expected a number above 0"),
        ("TLAOT_DISABLE_CACHE", "maybe", "expected one of 1, true, yes, on"),
    ):
        with pytest.raises(SpecError, match=f"{name}: .*{text}"):
            read_settings({name: value})


def test_072_read_when_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_settings().cache_dir == place / "cache"
    monkeypatch.setenv("TLAOT_CACHE_DIR", str(place / "other"))
    assert read_settings().cache_dir == place / "other"
    assert log_path() == place / "autotuner.log"
