"""Errors as people see them: the line, colours on a terminal only, annotations and a summary for GitHub Actions."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest

from tlaot import github
from tlaot.cli import main
from tlaot.errors import BuildError, LoadError, SpecError, TlaotError
from tlaot.explain import explain
from tlaot.github import Shipped, annotate, annotate_all, annotate_error, annotation, summarise, summary
from tlaot.paint import PLAIN, is_coloured, paint_for, plain_text
from tlaot.spelling import spell_table

SPEC = """\
[tlaot]
package = "pkg"
targets = ["llvm"]

[[kernel]]
name = "add"
frontend = "tvm"
factory = "pkg.kernels:add"
\tshapes = [{ N = 1024 }]  # \u200b
reference = "pkg.kernels:reference"
colour = "red"
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tltune.toml").write_text(SPEC, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_line_and_the_place_in_it(project: Path) -> None:
    error = SpecError("tltune.toml [[kernel]] #1 (add)", "unknown key 'colour'", "Known keys: name.")
    assert explain(error, project).split("\n") == [
        "tltune.toml [[kernel]] #1 (add): unknown key 'colour'",
        "  tltune.toml:11",
        '  | colour = "red"',
        "  | ^^^^^^",
        "Known keys: name.",
    ]
    error = SpecError("tltune.toml [[kernel]] #1 (add) shapes N", "is not a number", "")
    assert explain(error, project).split("\n")[1:] == [
        "  tltune.toml:9",
        "  |  shapes = [{ N = 1024 }]  #",
        f"  |{' ' * 18}^^^^",
    ]


def test_a_long_line_is_cut_about_the_mark(project: Path) -> None:
    (project / "tltune.toml").write_text(f"[tlaot]\ntargets = [{'1, ' * 300}'rocm']\n")
    _, _, line, mark, _ = explain(SpecError("tltune.toml [tlaot] targets", "unknown kind 'rocm'", "-"), project).split(
        "\n"
    )
    assert len(line) <= 124 and line[mark.index("^") : mark.rindex("^") + 1] == "rocm"


@pytest.mark.parametrize(
    "error",
    [
        SpecError("tltune.toml", "declares no kernel", "Add a [[kernel]] table."),
        LoadError("matmul", "needs CUDA", "Install it."),
        SpecError("other.toml [tlaot] package", "is wrong", ""),
        SpecError("../up.toml [tlaot] package", "is wrong", ""),
        SpecError("pyproject.toml [tool.tlaot]", "is wrong", ""),
        BuildError("", "", ""),
    ],
)
def test_without_a_place_the_text_is_the_error_s(error: TlaotError, project: Path) -> None:
    assert explain(error, project) == str(error)


def test_another_file_of_the_spec(project: Path) -> None:
    """``[tool.tlaot] spec`` names it; errors of pyproject.toml itself have their line, too."""
    (project / "tltune.toml").rename(project / "kernels.toml")
    (project / "pyproject.toml").write_text('[tool.tlaot]\nspec = "kernels.toml"\nspce = 1\n')
    assert "kernels.toml:11" in explain(SpecError("kernels.toml [[kernel]] #1", "unknown key 'colour'"), project)
    assert "pyproject.toml:3" in explain(SpecError("pyproject.toml [tool.tlaot]", "unknown key 'spce'"), project)


def test_a_failed_tuning_names_the_kernel_s_line(project: Path) -> None:
    assert "tltune.toml:6" in explain(BuildError("add [llvm:x86-64-v3] (N=1024)", "no candidate is left"), project)


@pytest.mark.parametrize(
    ("environ", "terminal", "coloured"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm"}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({}, True, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_when_there_are_colours(environ: dict[str, str], terminal: bool, coloured: bool) -> None:
    assert is_coloured(Terminal() if terminal else io.StringIO(), environ) is coloured


def test_colours_change_no_word(project: Path) -> None:
    closed = io.StringIO()
    closed.close()
    assert not is_coloured(closed, {"TERM": "xterm"}) and not is_coloured(None, {"TERM": "xterm"})
    error = SpecError("tltune.toml [[kernel]] #1 (add)", "unknown key 'colour'", "Known keys: name.\nNo others.")
    shown = explain(error, project, paint_for(Terminal(), {"TERM": "xterm"}))
    assert "\033[1;31m^^^^^^\033[0m" in shown and plain_text(shown) == explain(error, project)
    rows = [["a b c d e f g", "1"], ["h", "22"]]
    for width in (None, 12):
        coloured = spell_table(
            ["x", "n"], rows, ("n",), width, lambda row, heading, piece, cell: f"\033[1m{piece}\033[0m"
        )
        assert [plain_text(line) for line in coloured] == spell_table(["x", "n"], rows, ("n",), width)


def read_as_the_runner_does(line: str) -> tuple[str, dict[str, str], str]:
    """What actions/runner makes of a line (ActionCommand.TryParseV2)."""
    line = line.lstrip()
    assert line.startswith("::")
    info, data = line[2:].split("::", 1)
    level, _, rest = info.partition(" ")
    pairs = [part.split("=", 1) for part in rest.strip().split(",") if part]

    def undo(text: str, more: bool) -> str:
        for code, char in [("%0D", "\r"), ("%0A", "\n"), *([("%3A", ":"), ("%2C", ",")] if more else []), ("%25", "%")]:
            text = text.replace(code, char)
        return text

    return level, {name: undo(value, True) for name, value in pairs}, undo(data, False)


@pytest.mark.parametrize(
    "text", ["plain", "a::b, c: d=e", "100 %, 5%25", "two\nlines\r\n", "::error::x", "%0A", "[[kernel]] #1"]
)
def test_annotations_arrive_as_they_were_said(text: str) -> None:
    line = annotation("error", text, file="a,b:c.toml", line=9, column=2, title=text)
    assert "\n" not in line and "\r" not in line
    level, properties, data = read_as_the_runner_does("      " + line)  # as pip sets a build's output in
    assert (level, data) == ("error", text)
    assert properties == {"file": "a,b:c.toml", "line": "9", "col": "2", "title": text}
    assert annotation("notice", "x") == "::notice::x"


def test_an_error_is_annotated_at_its_line(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, with the path from the checkout's root; nothing without GITHUB_ACTIONS."""
    assert main(["lock", "check"]) == 2
    quiet = capsys.readouterr()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.parent))
    assert main(["lock", "check", "--json"]) == 2
    told = capsys.readouterr()
    assert quiet.out == told.out == ""
    *before, line = told.err.splitlines()
    assert before == quiet.err.splitlines()
    level, properties, data = read_as_the_runner_does(line)
    assert (level, properties["file"], properties["line"]) == ("error", f"{project.name}/tltune.toml", "11")
    assert data.startswith("unknown key 'colour'\nKnown keys: ")
    annotate_error(LoadError("matmul", "needs CUDA", "Install it."), project)
    assert capsys.readouterr().err == "::error title=matmul::needs CUDA%0AInstall it.\n"
    monkeypatch.setenv("GITHUB_WORKSPACE", "/elsewhere")
    annotate_all("warning", [(f"t{i}", "m") for i in range(30)], project / "tltune.lock")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10 and lines[0] == "::warning file=tltune.lock,title=t0::m" and "and 21 more" in lines[-1]
    monkeypatch.setenv("GITHUB_ACTIONS", "")
    annotate("error", "x")
    assert capsys.readouterr().err == ""


ROWS = [
    Shipped("k", "cuda:sm_90a", {"M": 64, "mode": "a|b"}, {"block": 64}, {"latency": 0.5, "default_latency": 1.0, "ref_latency": 0.6}, "", "H200"),
    Shipped("k_2", "llvm", {}, {}, {"latency": None}, "it was *busy*\nvery", "CPU <x>"),
]  # fmt: skip


def test_the_summary_is_a_table(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = summary("my|wheel", ROWS).splitlines()
    assert lines[0] == r"### my\|wheel"
    table = [line for line in lines if line.startswith("|")]
    # What stands between bars that are not escaped.
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table]
    assert {len(row) for row in cells} == {8}
    assert [cell.strip() for cell in cells[2]] == [
        "k", "cuda:sm\\_90a", "M=64, mode='a\\|b'", "block=64", "0.5 ms", "2.00x", "1.20x", "H200",
    ]  # fmt: skip
    assert cells[3][3:6] == [" (the factory's own) ", " - ", "  "]
    assert cells[3][7].strip() == r"CPU \<x\> (not to be trusted: it was \*busy\* very)"
    monkeypatch.setattr(github, "_MOST_ROWS", 1)
    assert "and 1 workload more" in summary("t", ROWS)


def test_the_summary_is_appended_where_github_runs_this(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    summarise("t", ROWS)
    assert not path.exists()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    summarise("t", ROWS)
    summarise("t", ROWS)
    assert path.read_text() == summary("t", ROWS) * 2
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project))
    summarise("t", ROWS)
    assert capsys.readouterr().err.startswith("::warning title=tlaot::the job's summary cannot be written")
    github.warn_of_doubts(ROWS)
    assert capsys.readouterr().err == "::warning title=k_2 [llvm] ()::times not to be trusted: it was *busy*%0Avery\n"


def test_nothing_is_painted_in_a_pipe() -> None:
    assert paint_for(io.StringIO(), {"TERM": "xterm"}) is PLAIN and PLAIN("x", "bad") == "x"


def test_a_bug_is_told_from_what_a_command_finds(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("tlaot.cli.inspect.list_what", fail)
    assert main(["inspect", "x"]) == 70
    told = capsys.readouterr()
    assert "Traceback" in told.err and "ZeroDivisionError: oh" in told.err and "please report it" in told.err
    monkeypatch.setattr("tlaot.cli.inspect.list_what", lambda what: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main(["inspect", "x"]) == 130
