"""Fixtures and options that several test files share."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tlaot.errors import BuildError
from tlaot.tune.compiling.toolchain import find_nvcc

ROOT = Path(__file__).resolve().parents[1]


def has_nvcc() -> bool:
    """Whether tlaot finds nvcc here: on PATH, or PyPI's."""
    try:
        find_nvcc(os.environ)
    except BuildError:
        return False
    return True


def has_distribution(name: str) -> bool:
    """Whether a distribution is installed: apache-tvm and TileLang both bring a module ``tvm``."""
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def pytest_configure() -> None:
    # A shell that starts pytest with & has it ignore interrupts, and so would all that the tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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


@dataclass(frozen=True)
class Environment:
    """A virtual environment for tests, where everybody can read it."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return Path(
            sysconfig.get_path(
                "purelib",
                "venv" if "venv" in sysconfig.get_scheme_names() else "posix_prefix",
                {"base": str(self.folder)},
            )
        )

    def install(self, *arguments: str | Path) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", *map(str, arguments)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, arguments: Sequence[str], **environ: str) -> str:
        """Run its Python where there is no compiler, no source tree and no variable of the build; give its standard output."""
        done = subprocess.run(
            [str(self.python), *arguments],
            cwd=self.folder,
            env={"PATH": str(self.folder / "bin"), "HOME": str(self.folder), **environ},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def clean_environment(tlaot_wheel: Path) -> Iterator[Environment]:
    """The wheel, what it requires, and numpy; nothing else."""
    folder = Path(tempfile.mkdtemp(prefix="tlaot-clean-"))
    folder.chmod(0o755)  # another user reads it in a test
    try:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        environment = Environment(folder)
        environment.install(tlaot_wheel, "numpy")
        yield environment
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_project(name: str, to: Path) -> Path:
    """A copy of a consumer project of tests/projects, for a test to build in."""
    return shutil.copytree(ROOT / "tests" / "projects" / name, to)


def clean_environ() -> dict[str, str]:
    """This environment less what would change a build."""
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("TLAOT_") and key not in ("PYTHONPATH", "SOURCE_DATE_EPOCH")
    }
