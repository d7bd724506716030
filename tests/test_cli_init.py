"""``tlaot init``: what it finds in sources that it does not import, what it writes, and what it leaves alone."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from tlaot.cli import main
from tlaot.draft.build_lines import add_build_lines
from tlaot.draft.found import Factory, find_factories, read_modules
from tlaot.draft.project import look_at_project
from tlaot.draft.spec_text import left_to_fill_in, name_kernels
from tlaot.errors import SpecError
from tlaot.tune.specs.spec_file import read_spec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECTS = Path(__file__).parent / "projects"

# All the ways in which TileLang authors declare a kernel; the module cannot be imported.
KERNELS = """
import itertools
import tilelang
import tilelang as tl
import tilelang.language as T
from tilelang import jit
from tilelang.autotuner import autotune
import a_module_that_is_not_there

def get_configs():
    return [dict(block_M=64)]

def ref_program(a, b):
    return a @ b

@autotune(configs=get_configs(), warmup=3)
@jit(out_idx=[-1])
def matmul(M, N, K, block_M, num_stages, dtype="float16", eps=1e-6):
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype)):
        pass
    return main

@tilelang.autotune(configs=[{"threads": 128}, {"threads": 256}])
@tilelang.jit
def scan(N, threads=128):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32")):
        pass
    return main

@tl.jit
def eager(A, B, f: T.float32, dtype, threads: int = 64):
    M, N = T.const("M, N")
    A: T.Tensor[[M, N], dtype]
    B: T.Tensor[[M, N], dtype]
    with T.Kernel(M, threads=threads) as bx:
        pass

def _plain(N=1024, causal=False):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32")):
        pass
    return main

@T.prim_func
def alone(A: T.Tensor((4,), "float32")):
    pass

def wraps(n):
    return matmul(n, n, n)

try:
    import other
except ImportError:
    pass
else:
    @tilelang.jit
    def optional(N, *rest):
        @T.prim_func
        def main(A: T.Tensor((N,), "float32")):
            pass
        return main
"""
TVM = """
from tvm import te
from tvm.script import tirx as T

def add(N, lanes=1):
    @T.prim_func(s_tir=True)
    def add(A: T.Buffer((N,), "float32")):
        pass
    return add

def add_reference(a, b):
    return a + b

def expression(N):
    A = te.placeholder((N,))
    return te.create_prim_func([A])

def not_a_kernel(N):
    return N
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A flat project with both frontends, and what is beside a package in most repositories."""
    for name, text in {
        "pkg/__init__.py": "",
        "pkg/kernels.py": KERNELS,
        "pkg/cpu/__init__.py": TVM,
        "pkg/broken.py": "def (:",
        "tests/__init__.py": KERNELS,
        "examples/x.py": KERNELS,
        "pyproject.toml": '[project]\nname = "pkg"\nversion = "1"\n',
    }.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def factories_of(project: Path) -> dict[str, Factory]:
    return {factory.name: factory for factory in look_at_project(project, None).factories}


def test_what_is_found(project: Path) -> None:
    """Every way of declaring a kernel; nothing of tests and examples."""
    found = look_at_project(project, None)
    assert (found.package, found.packages, found.source_root) == ("pkg", ("pkg",), project)
    names = [(factory.name, factory.frontend) for factory in found.factories]
    assert names == [
        ("add", "tvm"), ("expression", "tvm"), ("matmul", "tilelang"), ("scan", "tilelang"), ("eager", "tilelang"),
        ("_plain", "tilelang"), ("optional", "tilelang"),
    ]  # fmt: skip
    assert any("broken.py: cannot be read" in trouble for trouble in found.troubles)
    assert any("alone is a PrimFunc, not a factory" in trouble for trouble in found.troubles)


def test_what_is_known_of_each(project: Path) -> None:
    found = factories_of(project)
    matmul = found["matmul"]
    assert [a.name for a in matmul.arguments if a.tunable] == ["block_M", "num_stages"]
    assert (matmul.configs, matmul.reference) == ("pkg.kernels:get_configs", "pkg.kernels:ref_program")
    assert found["scan"].literal == ({"threads": 128}, {"threads": 256})
    assert [a.name for a in found["eager"].arguments] == ["M", "N", "dtype", "threads"]
    assert found["add"].reference == "pkg.cpu:add_reference"
    assert found["optional"].remarks[0].startswith("takes *args")


@pytest.mark.parametrize(
    ("name", "tunable"),
    [
        ("block_M", True), ("BLOCK_N", True), ("num_stages", True), ("threads", True), ("bk", True), ("lanes", True),
        ("block_size", False), ("num_blocks", False), ("chunk_size", False), ("has_incomplete_tile", False),
        ("block_table", False), ("hidden", False), ("M", False), ("page_block_size", False),
    ],
)  # fmt: skip
def test_tunables_are_told_by_their_names(name: str, tunable: bool, tmp_path: Path) -> None:
    """What might be the workload's is."""
    (tmp_path / "m.py").write_text(f"import tilelang\n@tilelang.jit\ndef k({name}):\n    pass\n")
    modules, _ = read_modules(tmp_path, "m")
    [factory] = find_factories(modules)[0]
    assert factory.arguments[0].tunable is tunable


def test_the_draft(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Valid TOML; every gap is named with its line; filled in, tlaot accepts it."""
    assert main(["init", str(project), "--target", "cuda:sm_90a"]) == 0
    said = capsys.readouterr().out
    text = (project / "tltune.toml").read_text()
    body = tomllib.loads(text)
    assert body["tlaot"] == {"package": "pkg", "targets": ["llvm:x86-64-v3", "cuda:sm_90a"]}
    assert [kernel["name"] for kernel in body["kernel"]] == [
        "add",
        "expression",
        "matmul",
        "scan",
        "eager",
        "plain",
        "optional",
    ]
    gaps = left_to_fill_in(text)
    for gap in gaps:
        assert "FILL IN" in text.splitlines()[gap.line - 1]
        assert gap.kernel in said
    assert [gap.key for gap in gaps if gap.kernel == "matmul"] == ["shapes"]
    assert "pyproject.toml: added" in said
    with pytest.raises(SpecError, match="add"):
        read_spec(project / "tltune.toml")
    filled = text.replace("= []", "= [64]").replace('# reference = "pkg.reference', 'reference = "pkg.reference')
    (project / "tltune.toml").write_text(filled)
    spec = read_spec(project / "tltune.toml")
    assert len(spec.kernels) == 7
    capsys.readouterr()
    assert main(["init", str(project)]) == 0
    assert "can be read; nothing is left to fill in" in capsys.readouterr().out
    plain = next(kernel for kernel in spec.kernels if kernel.name == "plain")
    assert plain.shapes == ({"N": 1024, "causal": False},) and plain.out_idx == (-1,)
    # A function of TVM's that binds no threads is no kernel of a GPU's, whatever the package's other targets.
    targets = {kernel.frontend: [str(target) for target in kernel.targets] for kernel in spec.kernels}
    assert targets == {"tvm": ["llvm:x86-64-v3"], "tilelang": ["cuda:sm_90a"]}
    scan = next(kernel for kernel in spec.kernels if kernel.name == "scan")
    assert scan.configs == ({"threads": 128}, {"threads": 256})


def test_again_changes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(project)]) == 0
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["init", str(project)]) == 0
    said = capsys.readouterr().out
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before
    assert "is there, and stays as it is" in said and "left to fill in" in said


def test_a_spec_that_lacks_a_kernel(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named; --print drafts its entry."""
    (project / "tltune.toml").write_text(
        '[tlaot]\npackage = "pkg"\ntargets = ["llvm"]\n[[kernel]]\nname = "add"\nfrontend = "tvm"\n'
        'factory = "pkg.cpu:add"\nreference = "pkg.cpu:add_reference"\nshapes = { N = 64 }\n'
    )
    assert main(["init", str(project)]) == 0
    said = capsys.readouterr().out
    assert "pkg.kernels:matmul (line" in said and "pkg.cpu:add (" not in said
    assert "can be read; nothing is left to fill in" in said
    assert main(["init", str(project), "--print"]) == 0
    assert 'factory = "pkg.kernels:matmul"' in capsys.readouterr().out


def test_print_writes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(project.rglob("*"))
    text = (project / "pyproject.toml").read_text()
    assert main(["init", str(project), "--print"]) == 0
    assert sorted(project.rglob("*")) == before and (project / "pyproject.toml").read_text() == text
    said = capsys.readouterr().out
    assert "[[kernel]]" in said and "tlaot[tilelang,tvm]" in said


@pytest.mark.parametrize("name", ["flat_plugin", "src_backend", "mixed"])
def test_projects_of_other_tests(name: str, tmp_path: Path) -> None:
    """Their specs taken away: flat and src layouts, and a factory outside of the package, are found again; the rest of a project is as it was."""
    project = tmp_path / name
    shutil.copytree(
        PROJECTS / name, project, ignore=shutil.ignore_patterns("build", "tltune.toml", "tuning", "__pycache__")
    )
    pyproject = project / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('[tool.tlaot]\nspec = "tuning/kernels.toml"\n', ""))
    before = pyproject.read_text()
    assert main(["init", str(project)]) == 0
    text = (project / "tltune.toml").read_text()
    assert [gap.key for gap in left_to_fill_in(text)] == ["shapes"]
    (project / "tltune.toml").write_text(text.replace("N = []", "N = [1024]"))
    spec = read_spec(project / "tltune.toml")
    assert [kernel.name for kernel in spec.kernels] == ["add"]
    assert spec.kernels[0].reference == spec.kernels[0].factory + "_reference"
    assert pyproject.read_text() == before, "it asked for tlaot already"


def test_no_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "__init__.py").touch()
    assert main(["init", str(tmp_path)]) == 2
    assert "has no kernel that tlaot init can see (looked in plain)" in capsys.readouterr().err
    assert not (tmp_path / "tltune.toml").exists()


def test_no_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path)]) == 2
    assert "has no package" in capsys.readouterr().err


def test_several_packages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The one with the kernels; of equals the author says which."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(TVM)
    assert main(["init", str(tmp_path)]) == 2
    assert "Name one with --package: one, two." in capsys.readouterr().err
    assert main(["init", str(tmp_path), "--package", "two"]) == 0
    (tmp_path / "one" / "__init__.py").write_text("")
    assert look_at_project(tmp_path, None).package == "two"


def test_names_tell_equal_functions_apart() -> None:
    modules = ("pkg.hopper.gemm", "pkg.ada.gemm", "pkg.other")
    factories = [Factory(module, "_gemm", 1, "tilelang") for module in modules[:2]] + [
        Factory(modules[2], "lambda", 1, "tvm")
    ]
    assert name_kernels(factories) == ["hopper_gemm", "ada_gemm", "lambda_kernel"]


PYPROJECTS = {
    "one line": ('[build-system]\nrequires = ["setuptools>=61"]  # why\n[project]\nname = "x"\n', 2, 0),
    "many lines": (
        '[build-system]\nrequires = [\n    "setuptools>=61", # a ] in a comment\n    "wheel"\n]\n\n[project]\nname = "x"\n'
        "dependencies = [\n  'torch',\n]\n[tool.x]\nrequires = []\n",
        2,
        0,
    ),
    "empty list": ('[build-system]\nrequires = []\n[project]\nname = "x"\ndependencies = [ ]\n', 2, 0),
    "no build system": ('[project]\nname = "x"\nversion = "1"\n\n[project.scripts]\na = "b"\n', 2, 0),
    "own backend": ('[build-system]\nrequires = ["setuptools"]\nbuild-backend = "tlaot.build_hooks"\n', 1, 1),
    "there already": (
        '[build-system]\nrequires = ["tlaot[tvm]"]\n[project]\nname = "x"\ndependencies = ["tlaot>=0.1"]\n',
        0,
        0,
    ),
    "dynamic": ('[build-system]\nrequires = ["setuptools"]\n[project]\nname = "x"\ndynamic = ["dependencies"]\n', 1, 1),
    "another backend": (
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n[project]\nname="x"\n',
        1,
        1,
    ),
    "inline": ('build-system = { requires = ["setuptools"] }\nproject = { name = "x" }\n', 0, 2),
    "commas": ('[build-system]\nrequires = ["a,]#", \'b\', ]\n[project]\nname = "x"\n', 2, 0),
    "no newline": ('[project]\nname = "x"', 2, 0),
}


@pytest.mark.parametrize("case", PYPROJECTS)
def test_the_lines_of_pyproject(case: str) -> None:
    """All that was there is there, every line of it; what was added means what it should; again adds nothing."""
    text, added, left = PYPROJECTS[case]
    after, done, undone = add_build_lines(text, "tilelang")
    assert (len(done), len(undone)) == (added, left)
    before_body, body = tomllib.loads(text), tomllib.loads(after)
    for table, key in (("build-system", "requires"), ("project", "dependencies")):
        old, new = before_body.get(table, {}).get(key, []), body.get(table, {}).get(key, [])
        assert new[: len(old)] == old or "build-system" not in before_body
    remaining = iter(after)
    assert all(character in remaining for character in text.rstrip("\n")), "characters only came in between"
    again = add_build_lines(after, "tilelang")
    assert again[0] == after and again[1] == []


def test_a_project_without_pyproject() -> None:
    after, done, _ = add_build_lines("", "tvm")
    assert tomllib.loads(after)["build-system"]["requires"] == ["setuptools>=77", "tlaot[tvm]"]
    assert done


def test_a_list_of_many_lines_keeps_its_shape() -> None:
    after, _, _ = add_build_lines(PYPROJECTS["many lines"][0], "tilelang")
    assert after.startswith(
        textwrap.dedent(
            """\
            [build-system]
            requires = [
                "setuptools>=61", # a ] in a comment
                "wheel",
                "tlaot[tilelang]",
            ]
            """
        )
    )
    assert "dependencies = [\n  'torch',\n  \"tlaot\",\n]\n" in after


def test_modules_that_take_tilelang_from_tlaot(tmp_path: Path) -> None:
    """``tilelang = tlaot.tilelang_for(__name__)`` is TileLang, and ``@tlaot.kernel`` decorates as its jit does."""
    package = tmp_path / "pk"
    package.mkdir()
    (package / "__init__.py").write_text("import tlaot; tilelang = tlaot.tilelang_for(__name__)\n")
    text = """
    import tlaot
    tilelang = tlaot.tilelang_for(__name__)
    T = tilelang.language

    @tilelang.jit(out_idx=[-1])
    def first(N, block=64):
        @T.prim_func
        def main(A: T.Tensor((N,), "float32")):
            pass
        return main

    @tlaot.kernel
    def second(N, M):
        @T.prim_func
        def main(A: T.Tensor((N, M), "float32")):
            pass
        return main
    """
    (package / "kernels.py").write_text(textwrap.dedent(text))
    found, troubles = find_factories(read_modules(tmp_path, "pk")[0])
    assert not troubles
    assert [(one.name, one.frontend, one.decorated) for one in found] == [
        ("first", "tilelang", True),
        ("second", "tilelang", True),
    ]
    assert [argument.tunable for argument in found[0].arguments] == [False, True]
