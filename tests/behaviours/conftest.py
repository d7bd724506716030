"""What the tests of the 77 behaviours share: a small set of kernels, and tunings that take milliseconds.

Compiling and measuring run in this process here, by the same code that the child processes run, so that a tuning costs no
interpreter starts. Tests that take the fixture ``processes`` have the real ones: those of isolation, and the article's first example.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import tlaot
from tlaot.autotuner import cache, decorator, session, tuner
from tlaot.tune.children.child import Failed, one_line
from tlaot.tune.compiling import compile as compiling
from tlaot.tune.compiling import link, worker
from tlaot.tune.compiling.link import _compile as compile_object
from tlaot.tune.compiling.link import link_executable
from tlaot.tune.measuring.quiet import CpuWatch

_HEADER = "tl_templates/cpp/common.h"

HAS_TILELANG = importlib.util.find_spec("tilelang") is not None
HAS_TVM = importlib.util.find_spec("tvm") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("gpu") is not None and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, torch and TileLang"))


def _has_gpu() -> bool:
    if not HAS_TILELANG or importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


class Inline:
    """A child that is no process: requests and answers pass through JSON all the same."""

    lost = False

    def __init__(self, module: str, arguments: Sequence[str], *rest: Any) -> None:
        if module == "tlaot.tune.compiling.worker":
            from tlaot.tune.compiling.worker import Worker

            self._answer: Callable[..., Mapping[str, Any]] = Worker(arguments[0]).answer
        else:
            from tlaot.tune.measuring.measurer import Measurer

            self._answer = Measurer(arguments[0]).answer

    def request(self, request: Mapping[str, Any], timeout: float, again: int = 0) -> dict[str, Any] | Failed:
        stages = ["start"]
        try:
            return _through_json(self._answer(_through_json(request), stages.append))
        except (Exception, SystemExit) as error:
            return Failed(stages[-1], one_line(error), traceback.format_exc())

    def kill(self) -> None:
        pass

    def refuse(self) -> None:
        return None


_linked: dict[str, bytes] = {}
_headers = Path(tempfile.mkdtemp(prefix="tlaot-behaviours-"))
atexit.register(shutil.rmtree, _headers, ignore_errors=True)


def _compile_with_read_headers(compiler: tuple[str, ...], flags: list[str], source: str, where: str, cwd: Path) -> str:
    """With TileLang's header for the CPU compiled once: reading it takes g++ far longer than any kernel here."""
    includes = [Path(flag[2:]) for flag in flags if flag.startswith("-I")]
    found = [folder / _HEADER for folder in includes if (folder / _HEADER).is_file()]
    if not source.endswith(".cc") or not found:
        return compile_object(compiler, flags, source, where, cwd)
    folder = _headers / hashlib.sha256(repr((compiler, flags)).encode()).hexdigest()
    ready = folder / f"{_HEADER}.gch"
    if not ready.exists():
        ready.parent.mkdir(parents=True)
        header = cwd / "header.hh"
        header.write_text(f'#include "{found[0]}"\n')
        made = compile_object(compiler, [*flags, "-x", "c++-header"], "header.hh", where, cwd)
        shutil.move(cwd / made, ready)
    return compile_object(compiler, [f"-I{folder}", *flags], source, where, cwd)


def _link_once(lowered: Any, cubin: Any, target: Any, name: str, scratch: Path, out: Path, toolchain: Any) -> None:
    """Link what no test before has linked: gcc takes most of the time of a small tuning."""
    key = repr((lowered, target, name))
    if key not in _linked:
        link_executable(lowered, cubin, target, name, scratch, out, toolchain)
        _linked[key] = (out / "executable.so").read_bytes()
    (out / "executable.so").write_bytes(_linked[key])


def _through_json(value: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(value))
    return made


class Lab:
    """Kernels of the frontend that is installed here, and tunings of them that end at once."""

    def __init__(self) -> None:
        if HAS_TILELANG:
            from behaviours import tilelang_kernels as kernels

            self.frontend, self.target = "tilelang", "c"
        else:
            from behaviours import tvm_kernels as kernels  # type: ignore[no-redef]

            self.frontend, self.target = "tvm", "llvm"
        self.kernels = kernels
        self.scale: Callable[..., Any] = kernels.scale
        self.increment: Callable[..., Any] = kernels.increment
        self.repeated: Callable[..., Any] = kernels.repeated
        self.mixed: Callable[..., Any] = kernels.mixed
        self.dynamic: Callable[..., Any] = kernels.dynamic

    @property
    def options(self) -> dict[str, Any]:
        """For a decorator: enough samples to tell that something ran."""
        return {"warmup": 0.1, "rep": 0.2, "frontend": self.frontend, "target": self.target}

    def autotune(self, factory: Callable[..., Any], configs: Any, **options: Any) -> Any:
        return tlaot.autotune(configs=configs, **{**self.options, "out_idx": [-1], **options})(factory)

    def tuner(self, factory: Callable[..., Any], configs: Any, **options: Any) -> tlaot.AutoTuner:
        made = tlaot.AutoTuner.from_kernel(factory, configs, frontend=self.frontend)
        made.set_compile_args(out_idx=[-1], target=self.target)
        return made.set_profile_args(**{"warmup": 0.1, "rep": 0.2, **options})


@pytest.fixture(scope="session")
def lab() -> Lab:
    if not HAS_TILELANG and not HAS_TVM:
        pytest.skip("needs TileLang or apache-tvm")
    pytest.importorskip("numpy")
    return Lab()


@pytest.fixture
def processes() -> None:
    """Compile and measure in child processes, as users do."""


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def article(request: pytest.FixtureRequest) -> Any:
    """The article's GEMM: as it is there on a GPU, and in a form that TileLang compiles for the CPU."""
    if not HAS_TILELANG:
        pytest.skip("needs TileLang")
    if request.param == "cuda":
        from behaviours import gpu_kernels

        return gpu_kernels.Article()
    from behaviours import tilelang_kernels

    return tilelang_kernels.Article()


@pytest.fixture(autouse=True)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder of the test's own for the cache and the log."""
    for name in [name for name in os.environ if name.startswith(("TLAOT_", "TILELANG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TLAOT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    # Which of two configs is a little faster is no matter here, nor who else uses the machine.
    if "processes" not in request.fixturenames and request.node.get_closest_marker("gpu") is None:
        monkeypatch.setenv("TLAOT_AUTO_TUNING_CPU_COUNTS", "1")
        monkeypatch.setattr(
            compiling.Workshop, "measurer", lambda self, device: Inline("tlaot.tune.measuring.measurer", [device])
        )
        monkeypatch.setattr(CpuWatch, "foreign", lambda self: None)  # tests run beside others
        monkeypatch.setattr(CpuWatch, "since", lambda self: None)
        # Workers are threads here, which have one folder for temporary files in common.
        monkeypatch.setattr(worker, "_temporary_files", lambda scratch: nullcontext())
        monkeypatch.setattr(worker, "link_executable", _link_once)
        monkeypatch.setattr(link, "_compile", _compile_with_read_headers)
        monkeypatch.setattr(
            compiling.Workshop,
            "worker",
            lambda self, frontend, target: Inline("tlaot.tune.compiling.worker", [frontend]),
        )
    yield tmp_path
    cache._MEMORY.clear()


class Tunings:
    """Counts the tunings that really run, and keeps what each was asked for."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.before: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def configs(self) -> list[dict[str, Any]]:
        """Of the last one."""
        return [dict(config) for config in self.requests[-1].configs]


@pytest.fixture
def tunings(monkeypatch: pytest.MonkeyPatch) -> Tunings:
    counted, tune = Tunings(), session.tune

    def counting(request: Any, *rest: Any) -> Any:
        counted.requests.append(request)
        counted.before()
        return tune(request, *rest)

    monkeypatch.setattr(tuner, "tune", counting)
    return counted


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Requests that were compiled and not tuned."""
    requests: list[Any] = []
    compile_only = session.compile_only

    def counting(request: Any, *rest: Any, **options: Any) -> Any:
        requests.append(request)
        return compile_only(request, *rest, **options)

    for module in (decorator, tuner):
        monkeypatch.setattr(module, "compile_only", counting)
    return requests
