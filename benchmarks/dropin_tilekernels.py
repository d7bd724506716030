"""A public TileLang package as a drop-in: DeepSeek's TileKernels 1.0.0 from PyPI, recorded, packaged, and judged by its own tests.

Nothing of the package is in this repository: its source distribution is downloaded, and two of its lines are changed.

    python benchmarks/dropin_tilekernels.py prepare WORK          # download, unpack, change the lines
    python benchmarks/dropin_tilekernels.py record WORK           # needs TileLang, and a GPU that the package runs on
    python benchmarks/dropin_tilekernels.py build WORK            # needs TileLang and nvcc, and no GPU
    python benchmarks/dropin_tilekernels.py judge WORK            # a clean environment without TileLang; needs the GPU

``record`` and ``judge`` run the same share of the package's tests (``--each``, of every test function so many cases): with all of its
eleven thousand there would be thousands of kernels. Each key becomes a kernel that is compiled as it is (``measure = false``): the package
has no configs to choose among. In the end it prints how many factories have kernels, and what the tests say.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tlaot.keys import spell_key

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME, VERSION = "tile_kernels", "1.0.0"
LINE = "import tlaot; tilelang = tlaot.tilelang_for(__name__)"
# File, what it says, what it is made to say. The second is of TileLang 0.1.15, which has moved the function.
CHANGES = (
    ("tile_kernels/__init__.py", "import tilelang\n", f"{LINE}\n"),
    (
        "tile_kernels/quant/common.py",
        "from tilelang.utils.target import determine_target",
        "from tilelang.backend.target import determine_target",
    ),
)

# A pytest plugin: of each test function so many cases, evenly spread; no benchmarks.
SAMPLE = """
import os

def pytest_collection_modifyitems(items):
    each, functions = int(os.environ["EACH"]), {}
    for item in items:
        if "benchmark" not in item.name:
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    items[:] = [one for cases in functions.values() for one in cases[:: max(1, len(cases) // each)][:each]]
"""


def prepare(work: Path) -> None:
    work.mkdir(parents=True, exist_ok=True)
    command = ["download", "--no-deps", "--no-binary", ":all:", f"{NAME.replace('_', '-')}=={VERSION}", "-d", str(work)]
    _run([sys.executable, "-m", "pip", *command], work)
    with tarfile.open(next(work.glob("*.tar.gz"))) as archive:
        archive.extractall(work, filter="data")
    project = _project(work)
    for file, old, new in CHANGES:
        path = project / file
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise SystemExit(f"{file} does not say {old!r} once: this is for {NAME} {VERSION}")
        path.write_text(text.replace(old, new), encoding="utf-8")
    (work / "sample_items.py").write_text(SAMPLE)
    print(f"{project}: {len(CHANGES)} lines changed")


def record(work: Path, each: int, no_launch: str | None) -> None:
    project = _project(work)
    (project / "tltune.toml").write_text(f'[tlaot]\npackage = "{NAME}"\ntargets = ["cuda:sm_90a"]\n')
    launch = ["--no-launch", no_launch] if no_launch else []
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "sample_items", "tests"]
    command = [sys.executable, "-m", "tlaot", "capture", "--recording", str(work / "recording")]
    _run([*command, *launch, "--", *tests], project, check=False, **_test_environ(work, each))
    # Where some test failed nothing is written by itself.
    _run([*command[:-2], "--from", str(work / "recording")], project)
    spec = project / "tltune.toml"
    spec.write_text(as_it_is(tomllib.loads(spec.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"{spec}: {spec.read_text(encoding='utf-8').count('[[kernel]]')} factories")


def as_it_is(found: Mapping[str, Any]) -> str:
    """What was recorded, with each key a kernel that is compiled as it is; sizes that the code leaves open stay open."""
    head = f"[tlaot]\npackage = {json.dumps(found['tlaot']['package'])}\ntargets = {json.dumps(found['tlaot']['targets'])}\n"
    parts = [head]
    for kernel in found.get("kernel", ()):
        shapes = kernel.get("shapes", [{}])
        lines = [
            "[[kernel]]",
            *(f"{key} = {json.dumps(kernel[key])}" for key in ("name", "frontend", "factory")),
            "measure = false",
            "check = false",
            f"shapes = [{', '.join(map(spell_key, [shapes] if isinstance(shapes, dict) else shapes))}]",
        ]
        parts.append("\n".join([*lines, ""]))
    return "\n".join(parts)


def build(work: Path) -> None:
    command = ["wheel", ".", "--no-build-isolation", "--no-deps", "-w", str(work / "dist"), "-v"]
    _run([sys.executable, "-m", "pip", *command], _project(work), SETUPTOOLS_SCM_PRETEND_VERSION=VERSION)
    _run([sys.executable, "-m", "tlaot", "inspect", str(next((work / "dist").glob("*.whl")))], work)


def judge(work: Path, each: int, python: str) -> None:
    """The package's tests in an environment that has torch, pytest, tlaot and the wheel, and no TileLang."""
    absent = "import importlib.util as u, sys; sys.exit(any(map(u.find_spec, ('tilelang', 'tvm'))))"
    _run([python, "-c", absent], work)
    # The tests without the sources beside them: what is imported is the wheel's.
    tests = work / "judged"
    tests.mkdir(exist_ok=True)
    link = tests / "tests"
    if not link.exists():
        link.symlink_to(_project(work) / "tests")
    command = [python, "-m", "pytest", "-q", "-p", "sample_items", "-p", "no:cacheprovider", "tests"]
    _run(command, tests, check=False, **_test_environ(work, each))


def _test_environ(work: Path, each: int) -> dict[str, str]:
    return {
        "EACH": str(each),
        "PYTHONPATH": os.pathsep.join([str(work), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def _project(work: Path) -> Path:
    return work / f"{NAME}-{VERSION}"


def _run(command: Sequence[str], folder: Path, check: bool = True, **environ: str) -> None:
    print("$", " ".join(command), flush=True)
    subprocess.run(command, cwd=folder, check=check, env={**os.environ, **environ})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("prepare", "record", "build", "judge"))
    parser.add_argument("work", type=Path, help="a folder for all of it, outside of this repository")
    parser.add_argument("--each", type=int, default=4, help="cases of each test function (4)")
    parser.add_argument("--no-launch", metavar="TARGET", help="record without a GPU: cuda:sm_90a")
    parser.add_argument("--python", default=sys.executable, help="the clean environment's, of judge")
    given = parser.parse_args()
    work = given.work.resolve()
    steps: dict[str, Callable[[], None]] = {
        "prepare": lambda: prepare(work),
        "record": lambda: record(work, given.each, given.no_launch),
        "build": lambda: build(work),
        "judge": lambda: judge(work, given.each, given.python),
    }
    steps[given.step]()


if __name__ == "__main__":
    main()
