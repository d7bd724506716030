"""``tlaot clean``: what builds leave goes, nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tlaot.cli import main
from tlaot.tune.place import hold_project


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project after a build, with a neighbour in build/."""
    work = tmp_path / "build" / "tlaot"
    for name in (
        "records/k/llvm/N8.json",
        "store/measurements.jsonl",
        "store/built/ab/abc/executable.so",
        "run-x/a/b",
        "wheels/x",
    ):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("12345")
    (work / "autotuner.log").write_text("log")
    (work / "lock").touch()
    (tmp_path / "build" / "lib").mkdir()
    (tmp_path / "build" / "lib" / "mine.py").write_text("")
    (tmp_path / "pyproject.toml").write_text("")
    return tmp_path


def test_all_of_it_goes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", str(project)]) == 0
    assert capsys.readouterr().out == f"{project}/build/tlaot: removed 6 files, 28 B\n"
    assert not (project / "build" / "tlaot").exists()
    assert (project / "build" / "lib" / "mine.py").exists()
    assert main(["clean", str(project)]) == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_of_the_project_in_this_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    assert main(["clean"]) == 0
    assert not (project / "build" / "tlaot").exists()


def test_a_dry_run_removes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(project.rglob("*"))
    assert main(["clean", str(project), "--dry-run"]) == 0
    assert "would remove 6 files, 28 B" in capsys.readouterr().out
    assert sorted(project.rglob("*")) == before


def test_what_was_measured_can_stay(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", str(project), "--keep-records"]) == 0
    assert "removed 4 files" in capsys.readouterr().out
    work = project / "build" / "tlaot"
    left = sorted(path.relative_to(work).as_posix() for path in work.rglob("*") if path.is_file())
    assert left == ["lock", "records/k/llvm/N8.json", "store/measurements.jsonl"]
    assert not (work / "store" / "built").exists()


def test_what_is_no_work_folder_is_refused(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "build" / "tlaot" / "thesis.tex").write_text("")
    assert main(["clean", str(project)]) == 2
    assert "is no work folder of tlaot alone: it has 'thesis.tex'" in capsys.readouterr().err
    assert (project / "build" / "tlaot" / "autotuner.log").exists()
    for place, says in (("nowhere", "there is no such folder"), ("build", "is no project")):
        assert main(["clean", str(tmp_path / place)]) == 2
        assert says in capsys.readouterr().err


def test_links_are_not_followed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outside = project / "outside"
    (outside / "records").mkdir(parents=True)
    (outside / "records" / "precious").write_text("")
    (project / "build" / "tlaot" / "store" / "link").symlink_to(outside, target_is_directory=True)
    (project / "build" / "tlaot" / "run-x" / "file").symlink_to(outside / "records" / "precious")
    assert main(["clean", str(project), "--keep-records"]) == 0
    assert not (project / "build" / "tlaot" / "store" / "link").is_symlink()
    assert main(["clean", str(project)]) == 0
    assert (outside / "records" / "precious").exists()
    (project / "build" / "tlaot").symlink_to(outside, target_is_directory=True)
    assert main(["clean", str(project)]) == 2
    assert "is a link" in capsys.readouterr().err
    assert (outside / "records" / "precious").exists()


def test_a_build_that_runs_keeps_its_folder(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another process that builds; here it is a child that holds the project."""
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        hold_project(project, print)
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        assert main(["clean", str(project)]) == 2
        assert "a build works in it" in capsys.readouterr().err
    finally:
        os.write(done[1], b"x")
        os.waitpid(child, 0)
    assert main(["clean", str(project)]) == 0


@pytest.mark.skipif(os.getuid() == 0, reason="root may remove everything")
def test_what_cannot_be_removed_is_told(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = project / "build" / "tlaot" / "records" / "k"
    folder.chmod(0o555)
    try:
        assert main(["clean", str(project)]) == 2
        assert "cannot be removed" in capsys.readouterr().err
    finally:
        folder.chmod(0o755)
