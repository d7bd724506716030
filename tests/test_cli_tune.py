"""What ``tlaot tune`` shows: on a terminal, and in a pipe."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tlaot.cli import main
from tlaot.cli.tune import _shown
from tlaot.paint import PLAIN, paint_for, plain_text
from tlaot.tune import pipeline

LINE = (
    "tlaot: norm [llvm:x86-64-v3] (M=1): 0.0028 ms with {lanes=16}; default 0.0028 ms; reference 0.0294 ms; 3 candidates; measured while "
    "other processes kept 2.0 of 2 CPUs busy; times cannot be trusted; another candidate may be faster by up to 2.2%"
)


def colours() -> object:
    return paint_for(io.StringIO(), {"FORCE_COLOR": "1"})


@pytest.mark.parametrize("line", [LINE, "tlaot: llvm: 6 candidates of 2 workloads", "  a reason", "", "tlaot: "])
def test_in_a_pipe_lines_are_as_they_were_said(line: str) -> None:
    assert _shown(line, PLAIN, None) == line
    assert plain_text(_shown(line, colours(), None)) == line  # type: ignore[arg-type]


def test_on_a_terminal_they_are_broken_between_what_they_say() -> None:
    shown = _shown(LINE, PLAIN, 80).split("\n")
    assert (
        shown[0].endswith("0.0028 ms with {lanes=16}")
        and shown[1] == "       default 0.0028 ms; reference 0.0294 ms; 3 candidates"
    )
    assert all(len(line) < 80 for line in shown)
    assert "; ".join(line.strip() for line in shown) == LINE
    coloured = _shown(LINE, colours(), 80)  # type: ignore[arg-type]
    assert plain_text(coloured).split("\n") == shown
    assert "\033[33mtimes cannot be trusted\033[0m" in coloured and "\033[33mdefault" not in coloured


def test_who_interrupts_is_told_that_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "tune_project", interrupted)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tltune.toml").write_text(
        '[tlaot]\npackage = "pkg"\ntargets = ["llvm"]\n[[kernel]]\nname = "k"\nfrontend = "tvm"\nfactory = "pkg.k:k"\n'
        "shapes = { N = 8 }\ncheck = false\n"
    )
    (tmp_path / "pkg").mkdir()
    assert main(["tune"]) == 130
    assert "what was compiled and measured so far is kept" in capsys.readouterr().out
