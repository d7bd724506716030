"""Fixtures and options that several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--wheel", type=Path, help="the tlaot wheel to test; the newest in dist/ by default")


@pytest.fixture(scope="session")
def tlaot_wheel(request: pytest.FixtureRequest) -> Path:
    """The wheel that ``pip wheel . -w dist`` made."""
    given: Path | None = request.config.getoption("--wheel")
    if given is not None:
        assert given.is_file(), f"--wheel: there is no file {given}"
        return given.resolve()
    wheels = sorted((ROOT / "dist").glob("tlaot-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        pytest.skip("no wheel to test: run pip wheel . -w dist, or name one with --wheel")
    return wheels[-1]


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the consumer project in tests/projects that the test's parameter names."""
    return copy_project(request.param, tmp_path / "project")


def copy_project(name: str, to: Path) -> Path:
    import shutil

    return shutil.copytree(ROOT / "tests" / "projects" / name, to)
