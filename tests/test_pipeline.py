"""From a spec to packaged kernels, with real kernels through apache-tvm, and every way to go wrong."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
from build_settings import Settings
from conftest import has_distribution

from tlaot.errors import BuildError, SpecError, TuningError
from tlaot.manifest import read_manifest
from tlaot.runtime.load import open_manifest
from tlaot.spelling import CANNOT_BE_TRUSTED
from tlaot.tune.locks.record import digest_sources
from tlaot.tune.pipeline import build_package

np = pytest.importorskip("numpy")


pytestmark = pytest.mark.skipif(not has_distribution("apache-tvm"), reason="needs apache-tvm")

KERNELS = '''
import os, signal, time

def scale(N, factor=2.0, tile=1, mode="right"):
    """B = factor * A; `mode` says how a candidate goes wrong."""
    if mode == "raise":
        raise ValueError(f"mode {mode} refuses N={N}")
    if mode == "exit":
        os._exit(3)
    if mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "compile-hang":
        while True:
            time.sleep(1)
    if mode == "nonsense":
        return 42
    from tvm.script import tirx as T

    if mode == "hang":
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
            for i in T.serial(T.int64(1) << T.int64(60)):
                B[0] = B[0] + A[0]
        return main
    if mode == "segfault":
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
            for i in T.serial(N):
                B[T.int64(i) + T.int64(1 << 44)] = A[i]
        return main
    if mode == "partial":
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
            for i in T.serial(N - 1):
                B[i] = A[i] * T.float32(factor)
        return main
    if mode == "input":
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
            for i in T.serial(N):
                B[i] = A[i] * T.float32(factor)
                A[i] = T.float32(0)
        return main
    wrong = 1.01 if mode == "wrong" else 1.0

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
        for i in T.serial(N):
            B[i] = A[i] * T.float32(factor * wrong)
    return main

def reference(a):
    return a * 2.0

def configs(N):
    for tile in (1, 2):
        yield {"tile": tile}

def shapes():
    return [{"N": 64}, {"N": 128}]

def nothing(N):
    return []

def broken(N):
    raise RuntimeError("the space cannot be made")

def judge(a, b):
    return bool((b == 2 * a).all())

def in_place(a):
    a *= 2.0

def inputs(N):
    import numpy
    return [numpy.full(N, 3.0, "float32")]

def wrong_inputs(N):
    import numpy
    return [numpy.full(N, 3.0, "float64")]

NOT_CALLABLE = [{"tile": 1}, {"tile": 2}]

def torn_shapes():
    return [{"N": 64 + "torn"}]

def torn_reference(a):
    return a[[999]]

def torn_inputs(N):
    return N // 0
'''
LINE_OF_TORN = KERNELS.splitlines().index("def torn_shapes():") + 1
TORN = "SIZES = {}\n\nN = SIZES['a']\n"  # a module that fails when it is imported


@dataclass
class Project:
    folder: Path
    lines: list[str]

    def write(self, kernel: str = "", head: str = "") -> None:
        text = f'[tlaot]\npackage = "tinypkg"\ntargets = ["llvm"]\n{head}\n[[kernel]]\n' + textwrap.dedent(kernel)
        (self.folder / "tltune.toml").write_text(text, encoding="utf-8")

    def build(self, settings: Settings | None = None) -> Path:
        self.lines.clear()
        output = self.folder / "out" / "_tlaot"
        build_package(self.folder / "tltune.toml", self.folder, output, settings or Settings(), self.lines.append)
        return output

    @property
    def said(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    package = tmp_path / "tinypkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "kernels.py").write_text(KERNELS)
    (package / "torn.py").write_text(TORN)
    return Project(tmp_path, [])


GOOD = """
name = "scale"
frontend = "tvm"
factory = "tinypkg.kernels:scale"
shapes = "tinypkg.kernels:shapes"
configs = "tinypkg.kernels:configs"
reference = "tinypkg.kernels:reference"
out-idx = [-1]
profile = { warmup = 1, rep = 5, timeout = 20, compile-timeout = 60, decide-budget = 0.2, quiet-timeout = 0 }
"""


def with_modes(*modes: str) -> str:
    quoted = ", ".join(f'"{mode}"' for mode in modes)
    return GOOD.replace('configs = "tinypkg.kernels:configs"', f"space = {{ mode = [{quoted}] }}").replace(
        'shapes = "tinypkg.kernels:shapes"', "shapes = [{ N = 64 }]"
    )


def test_a_spec_becomes_kernels_that_run(project: Project) -> None:
    project.write(GOOD)
    output = project.build()
    kernels = open_manifest(read_manifest(output / "manifest.json"), output)
    for n in (64, 128):
        a = np.arange(n, dtype=np.float32)
        assert (kernels.scale(a) == 2 * a).all()
    with pytest.raises(ValueError, match=r"must be contiguous.*\nPass a compact copy: np\.ascontiguousarray\(x\)"):
        kernels.scale(np.zeros(128, np.float32)[::2])
    folder = output / "scale" / "llvm-x86-64-v3" / "N64"
    assert json.loads((folder / "best_config.json").read_text())["shape"] == {"N": 64}
    assert json.loads((folder / "out_idx.json").read_text()) == [1]
    latency = json.loads((folder / "latency.json").read_text())
    assert latency["latency"] > 0 and latency["ref_latency"] > 0 and latency["default_latency"] > 0
    assert [p["name"] for p in json.loads((folder / "params.json").read_text())] == ["A", "B"]
    shipped = sorted(path.name for path in folder.iterdir())
    listed = ["best_config.json", "executable.so", "latency.json", "out_idx.json", "params.json", "variant.json"]
    assert shipped == listed
    for path in output.rglob("*"):
        assert path.stat().st_mode & 0o044, f"{path} is not for other users to read"
    assert not list((project.folder / "build" / "tlaot").glob("run-*")), "intermediate files stayed behind"


def test_a_build_ends_with_the_audit(project: Project) -> None:
    """A floor of the C library that no binary keeps, and a config that names a place: the table says what, and nothing is left."""
    project.write(with_modes("right"), 'min-glibc = "2.1"')
    with pytest.raises(BuildError, match="the audit of what was built has 1 finding") as caught:
        project.build()
    assert re.search(
        r"scale/llvm-x86-64-v3/N64/executable\.so +needs \w+@GLIBC_2\.2\.5, glibc 2\.2, which is newer than",
        str(caught.value),
    )
    assert "min-glibc = '2.1'" in str(caught.value)
    assert not (project.folder / "out" / "_tlaot").exists()
    project.write(
        GOOD.replace('shapes = "tinypkg.kernels:shapes"', "shapes = [{ N = 64 }]").replace(
            'configs = "tinypkg.kernels:configs"', f'configs = [{{ mode = "{project.folder}/right" }}]'
        )
    )
    with pytest.raises(BuildError, match=r"traces +scale/.*/best_config\.json +names the absolute path") as caught:
        project.build()
    assert not (project.folder / "out" / "_tlaot").exists()


def test_a_package_may_load_its_kernels_when_it_is_imported(project: Project) -> None:
    """The build imports the package before there are any."""
    (project.folder / "tinypkg" / "__init__.py").write_text('import tlaot\nkernels = tlaot.load("tinypkg")\n')
    project.write(with_modes("right"))
    assert read_manifest(project.build() / "manifest.json").kernels["scale"].variants


def test_the_same_records_give_the_same_bytes_anywhere(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import shutil

    project.write(GOOD)
    first = project.build()
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "project"
    shutil.copytree(project.folder, elsewhere, ignore=shutil.ignore_patterns("out"))
    other = Project(elsewhere, [])
    second = other.build()
    assert "the record of an earlier build holds" in other.said
    files = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(second) for path in second.rglob("*") if path.is_file())
    for file in files:
        assert (first / file).read_bytes() == (second / file).read_bytes(), file


def test_a_record_is_not_used_when_its_source_changed_or_tuning_is_forced(project: Project) -> None:
    project.write(with_modes("right"))
    project.build()
    project.build(Settings(tune="force"))
    assert "the record" not in project.said
    kernels = project.folder / "tinypkg" / "kernels.py"
    kernels.write_text(kernels.read_text() + "\n# changed\n")
    project.build()
    assert "the record" not in project.said
    (record,) = (project.folder / "build" / "tlaot" / "records").rglob("*.json")
    record.write_text("{")
    project.build()
    assert "the record" not in project.said
    project.build()
    assert "the record" in project.said


def test_a_record_is_not_used_when_a_file_of_the_package_changed(project: Project) -> None:
    """A factory may read any of them; what Python and builds leave there is none."""
    folder = project.folder / "tinypkg"
    (folder / "table.json").write_text("[2.0]")
    before = digest_sources(project.folder, ["tinypkg.kernels"])
    for made in ("__pycache__/kernels.pyc", "_tlaot/manifest.json", "fast.so", ".hidden"):
        (folder / made).parent.mkdir(exist_ok=True)
        (folder / made).write_text("made")
    assert digest_sources(project.folder, ["tinypkg.kernels"]) == before
    (folder / "table.json").write_text("[4.0]")
    assert digest_sources(project.folder, ["tinypkg.kernels"]) != before


def test_what_was_measured_on_a_busy_machine_is_said_again_and_ships_with_it(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tlaot.cli import main

    note = "measured while 3.1 processors were busy; times cannot be trusted"
    project.write(with_modes("right"))
    project.build()
    (path,) = (project.folder / "build" / "tlaot" / "records").rglob("*.json")
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "trusted": True, "notes": ["meanwhile, nothing"]}))
    (variant,) = read_manifest(project.build() / "manifest.json").kernels["scale"].variants
    assert "trusted" not in variant.properties and "nothing" not in project.said
    path.write_text(json.dumps({**record, "trusted": False, "notes": [note]}))
    (variant,) = read_manifest(project.build() / "manifest.json").kernels["scale"].variants
    assert variant.properties["trusted"] is False and variant.properties["notes"] == [note]
    lines = [line for line in project.lines if "(N=64)" in line]
    assert len(lines) == 1, "one line a workload"
    assert "the record of an earlier build holds" in lines[0]
    assert lines[0].endswith(f"; {note}; TLAOT_TUNE=force on a quiet machine tunes again")
    (project.folder / "out" / "_tlaot").rename(project.folder / "tinypkg" / "_tlaot")
    monkeypatch.syspath_prepend(str(project.folder))
    assert main(["inspect", "tinypkg"]) == 0
    out = capsys.readouterr().out
    assert "times not to be trusted" in out and note.removesuffix(CANNOT_BE_TRUSTED) in " ".join(out.split())


FAILURES = [
    ("raise", "mode raise refuses N=64"),
    ("exit", "exit code 3"),
    ("killed", "SIGKILL"),
    ("nonsense", "must return a PrimFunc"),
    ("wrong", "differ from the reference"),
    ("partial", "1 NaN among 64 elements"),
    ("input", "differ from the reference|was changed|NaN"),
    ("segfault", "SIGSEGV|Segmentation fault|address space"),
]


@pytest.mark.parametrize("mode", [mode for mode, _ in FAILURES if mode != "input"])
def test_a_bad_candidate_is_skipped_with_its_reason(project: Project, mode: str) -> None:
    import re

    project.write(with_modes(mode, "right"))
    output = project.build()
    (variant,) = read_manifest(output / "manifest.json").kernels["scale"].variants
    assert variant.config == {"mode": "right"}
    assert "the default failed" in project.said and "1 failed" in project.said
    (record,) = (project.folder / "build" / "tlaot" / "records").rglob("*.json")
    failed = json.loads(record.read_text())["candidates"][0]["failed"]
    assert re.search(dict(FAILURES)[mode], failed["reason"]), failed
    assert failed["stage"] in {"elaborate", "lower", "link", "load", "check", "time"}


@pytest.mark.parametrize("mode", ["hang", "compile-hang"])
def test_a_hang_is_killed_and_costs_one_candidate(project: Project, mode: str) -> None:
    text = with_modes(mode, "right").replace("timeout = 20, compile-timeout = 60", "timeout = 5, compile-timeout = 15")
    project.write(text)
    output = project.build()
    (variant,) = read_manifest(output / "manifest.json").kernels["scale"].variants
    assert variant.config == {"mode": "right"}
    log = (project.folder / "build" / "tlaot" / "autotuner.log").read_text()
    assert "timed out after" in log and "was killed" in log


def test_none_left_lists_every_reason_by_count(project: Project) -> None:
    modes = ('mode = "wrong"', 'mode = "raise"', 'mode = "raise", tile = 2', 'mode = "nonsense"', 'mode = "killed"')
    configs = ", ".join(f"{{ {mode} }}" for mode in modes)
    lines = [line for line in with_modes("right").splitlines() if not line.startswith("space")]
    project.write("\n".join([*lines, f"configs = [{configs}]"]))
    with pytest.raises(TuningError) as caught:
        project.build()
    message = str(caught.value)
    assert "scale [llvm:x86-64-v3] (N=64)" in message and "none of 5 candidates" in message
    assert "2 x lower: ValueError: mode raise refuses N=64" in message
    for reason in ("differ from the reference", "must return a PrimFunc", "SIGKILL"):
        assert reason in message
    assert not (project.folder / "out").exists(), "a failed build left something to package"


MISTAKES = [
    (
        "factory",
        '"tinypkg.kernels:sclae"',
        SpecError,
        "(scale) factory: module 'tinypkg.kernels' has no 'sclae', did you mean 'scale'",
    ),
    ("factory", '"tinypkg.kernel:scale"', SpecError, "(scale) factory: there is no module 'tinypkg.kernel'"),
    (
        "factory",
        '"tinypkg.kernels:NOT_CALLABLE"',
        SpecError,
        "(scale) factory: tinypkg.kernels:NOT_CALLABLE is not callable, but a list",
    ),
    ("factory", '"tinypkg.torn:scale"', SpecError, "raised KeyError: 'a' (TREE/tinypkg/torn.py:3)"),
    (
        "inputs",
        '"tinypkg.kernels:input"',
        SpecError,
        "(scale) inputs: module 'tinypkg.kernels' has no 'input', did you mean 'inputs'",
    ),
    ("manual-check", '"tinypkg.checks:judge"', SpecError, "(scale) manual check: there is no module 'tinypkg.checks'"),
    ("shapes", '"tinypkg.kernels:shape"', SpecError, "did you mean 'shapes'"),
    ("shapes", '"tinypkg.kernels:nothing"', SpecError, "raised TypeError"),
    ("shapes", "[{ M = 64 }]", SpecError, "raised TypeError"),
    ("configs", '"tinypkg.kernels:nothing"', SpecError, "gives nothing for"),
    ("configs", '"tinypkg.kernels:broken"', SpecError, "the space cannot be made"),
    (
        "configs",
        "[{ tiel = 1 }]",
        TuningError,
        "unused config key 'tiel': the factory takes (N, factor, tile, mode), did you mean 'tile'?",
    ),
    ("shapes", '"tinypkg.kernels:torn_shapes"', SpecError, "raised TypeError: unsupported operand type(s)"),
    ("shapes", '"tinypkg.kernels:torn_shapes"', SpecError, f"(TREE/tinypkg/kernels.py:{LINE_OF_TORN + 1})"),
    (
        "reference",
        '"tinypkg.kernels:refrence"',
        SpecError,
        "(scale) reference: module 'tinypkg.kernels' has no 'refrence', did you mean",
    ),
    ("reference", '"tinypkg.kernels:torn_reference"', SpecError, "raised IndexError: index 999 is out of bounds"),
    ("reference", '"tinypkg.kernels:torn_reference"', SpecError, f"(TREE/tinypkg/kernels.py:{LINE_OF_TORN + 4})"),
    (
        "inputs",
        '"tinypkg.kernels:torn_inputs"',
        SpecError,
        f"by zero (TREE/tinypkg/kernels.py:{LINE_OF_TORN + 7})",
    ),
    ("inputs", '"tinypkg.kernels:wrong_inputs"', TuningError, "has dtype float64, the kernel takes float32"),
    ("out-idx", "[5]", TuningError, "out_idx 5 is outside the kernel's 2 parameters"),
]


@pytest.mark.parametrize(("key", "value", "error", "what"), MISTAKES, ids=[f"{k}-{w[:18]}" for k, _, _, w in MISTAKES])
def test_a_mistake_in_the_spec_says_what_and_where(
    project: Project, key: str, value: str, error: type[Exception], what: str
) -> None:
    lines = [line for line in GOOD.splitlines() if not line.startswith(f"{key} ")]
    project.write("\n".join([*lines, f"{key} = {value}"]))
    with pytest.raises(error) as caught:
        project.build()
    message = str(caught.value)
    assert what in message.replace(str(project.folder), "TREE")
    assert "scale" in message
    assert message.count("SpecError") == 0 or error is TuningError


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("configs", '"tinypkg.kernels:NOT_CALLABLE"'),
        ("reference", '"tinypkg.kernels:judge"'),
        ("inputs", '"tinypkg.kernels:inputs"'),
    ],
)
def test_callables_come_in_several_forms(project: Project, key: str, value: str) -> None:
    lines = [line for line in GOOD.splitlines() if not line.startswith(f"{key} ")]
    project.write("\n".join([*lines, f"{key} = {value}"]))
    assert read_manifest(project.build() / "manifest.json").kernels["scale"].variants


def test_a_reference_that_works_in_place(project: Project) -> None:
    text = """
def double(N):
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((N,), "float32")):
        for i in T.serial(N):
            A[i] = A[i] * T.float32(2)
    return main
"""
    kernels = project.folder / "tinypkg" / "kernels.py"
    kernels.write_text(KERNELS + text)
    good = with_modes("right").replace(":scale", ":double").replace(":reference", ":in_place")
    project.write("\n".join(line for line in good.splitlines() if not line.startswith(("space", "out-idx"))))
    output = project.build()
    kernel = open_manifest(read_manifest(output / "manifest.json"), output).scale
    a = np.ones(64, np.float32)
    kernel(a)
    assert (a == 2).all()


def test_a_winner_must_give_the_same_bits_twice(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself is measured in test_measurer; here, that what fails it does not win."""
    from tlaot.tune.measuring import measure

    asked = []

    def answer(child: object, request: dict[str, object], timeout: float, again: int = 0) -> object:
        if request["op"] == "check":
            asked.append(request["deterministic"])
            if len(asked) == 1:
                return measure.Failed("check", "not deterministic")
        return ask(child, request, timeout, again)

    ask = measure.Child.request
    monkeypatch.setattr(measure.Child, "request", answer)
    # Two binaries: a config that gives the same one as another is not measured again.
    spec = GOOD.replace('"tinypkg.kernels:shapes"', "[{ N = 64 }]")
    spec = spec.replace('"tinypkg.kernels:configs"', "[{ factor = 2.0 }, { factor = 2.00001 }]")
    project.write(spec)
    project.build()
    (record,) = (project.folder / "build" / "tlaot" / "records").rglob("*.json")
    candidates = json.loads(record.read_text())["candidates"]
    assert asked == [True, True]
    assert sorted("failed" in candidate for candidate in candidates) == [False, True]
    asked[:] = []
    project.write(spec + "deterministic = false\n")
    project.build()
    assert not asked


def test_two_names_for_one_shape_are_refused(project: Project) -> None:
    project.write(GOOD.replace('"tinypkg.kernels:shapes"', "[{ N = 64 }, { N = [64, 128] }]"))
    with pytest.raises(SpecError, match=r"listed twice|declared already"):
        project.build()


def test_a_cuda_target_with_no_gpu(project: Project) -> None:
    if _gpu_here():
        pytest.skip("this machine has a GPU")
    project.write(GOOD + 'targets = ["cuda:sm_90a"]\n')
    with pytest.raises(BuildError) as caught:
        project.build()
    assert "cuda:sm_90a" in str(caught.value) and ("no GPU" in str(caught.value) or "no nvcc" in str(caught.value))
    assert caught.value.remedy


def test_a_cuda_target_that_may_be_skipped(project: Project) -> None:
    if _gpu_here():
        pytest.skip("this machine has a GPU")
    project.write(GOOD + 'targets = ["llvm", "cuda:sm_90a"]\n', head='when-available = ["cuda:sm_90a"]')
    output = project.build()
    assert "skipped cuda:sm_90a of scale" in project.said
    assert {v.target for v in read_manifest(output / "manifest.json").kernels["scale"].variants} == {"llvm:x86-64-v3"}
    with pytest.raises(BuildError, match=r"cuda:sm_90a"):  # asked for by name, it is no longer optional
        project.build(Settings(targets=("cuda:sm_90a",)))


def test_targets_can_be_narrowed_but_not_invented(project: Project) -> None:
    project.write(GOOD + 'targets = ["llvm:x86-64-v2", "llvm:x86-64-v3"]\n')
    output = project.build(Settings(targets=("llvm:x86-64-v2",)))
    assert {v.target for v in read_manifest(output / "manifest.json").kernels["scale"].variants} == {"llvm:x86-64-v2"}
    with pytest.raises(SpecError, match=r"no kernel is declared for llvm:x86-64-v4"):
        project.build(Settings(targets=("llvm:x86-64-v4",)))


def test_no_compiler(project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    project.write(GOOD)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(BuildError, match="no C compiler"):
        project.build()


def test_a_frontend_that_is_not_installed(project: Project) -> None:
    import importlib.util

    if importlib.util.find_spec("tilelang") is not None:
        pytest.skip("TileLang is installed")
    project.write(GOOD.replace('"tvm"', '"tilelang"') + 'targets = ["c"]\n')
    with pytest.raises(BuildError, match="tilelang is not installed"):
        project.build()


def test_sources_are_kept_on_request(project: Project) -> None:
    project.write(with_modes("right"))
    output = project.build(Settings(keep=True))
    assert (
        output / "scale" / "llvm-x86-64-v3" / "N64" / "executable.so"
    ).is_file()  # an LLVM host has no source to keep


def test_several_levels_sit_in_one_package_and_the_best_that_runs_is_taken(project: Project) -> None:
    project.write(with_modes("right") + 'targets = ["llvm:x86-64", "llvm:x86-64-v2", "llvm:x86-64-v3"]\n')
    output = project.build()
    kernel = open_manifest(read_manifest(output / "manifest.json"), output).scale
    a = np.ones(64, np.float32)
    assert (kernel(a) == 2).all()
    assert kernel.resolve(a).target == "llvm:x86-64-v3"


def test_an_interrupt_leaves_no_process_and_no_file(project: Project) -> None:
    import signal
    import subprocess
    import time

    project.write(with_modes("compile-hang", "compile-hang"))
    code = (
        "import sys; from pathlib import Path; from types import SimpleNamespace as S\n"
        "from tlaot.tune.pipeline import build_package\n"
        "p = Path(sys.argv[1])\n"
        "build_package(p / 'tltune.toml', p, p / 'out' / '_tlaot', S(tune='on', targets=None, jobs=2, keep=False, lock='auto', executor=None, devices=None), print)\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(project.folder)], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert b"1 candidate of 1 workload" in process.stdout.readline()
    time.sleep(2)
    before = _descendants(process.pid)
    assert len(before) > 1  # what forks workers, and a worker
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode != 0
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in before if Path(f"/proc/{pid}").exists()]
    assert not list((project.folder / "build" / "tlaot").glob("run-*"))


def _descendants(pid: int) -> list[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def _gpu_here() -> bool:
    import ctypes

    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return bool(cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value)
