"""Builds with a lock: what is taken from it, tuned, refused and written; for CUDA really compiled, on machines with no GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from build_settings import Settings
from conftest import has_distribution, has_nvcc
from locks import H200, timing

from tlaot.elf import device_image
from tlaot.errors import BuildError, SpecError, TuningError
from tlaot.image import read_image
from tlaot.manifest import Variant, place_of, read_manifest
from tlaot.tune import machine, site
from tlaot.tune.compiling.compile import Workshop
from tlaot.tune.groups import all_groups, plan_group
from tlaot.tune.locks.lock import Entry, Lock, Tried
from tlaot.tune.locks.lock_file import read_lock, replace_lock, update_lock
from tlaot.tune.pipeline import Selection, build_package, tune_project
from tlaot.tune.site import open_site
from tlaot.tune.specs.spec_file import read_spec
from tlaot.tune.survey import survey

# What a build says when it begins to tune.
TUNES = r"\d+ candidates? of \d+ workload"

needs_tvm = pytest.mark.skipif(
    not has_distribution("apache-tvm") or has_distribution("tilelang"),
    reason="needs apache-tvm, and no TileLang, which brings another",
)
needs_tilelang = pytest.mark.skipif(
    not has_distribution("tilelang") or not has_nvcc(), reason="needs tilelang and nvcc"
)

TVM = '''
import importlib

def scale(N, tile=1, factor=2.0):
    """B = factor * A."""
    from tvm.script import tirx as T
    hidden = importlib.import_module("tinypkg.hidden").ONE  # what the lock does not follow

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
        for i in T.serial(N // tile):
            for j in T.serial(tile):
                B[i * tile + j] = A[i * tile + j] * T.float32(factor * hidden)
    return main

def reference(a):
    return a * 2.0

def shapes():
    return [{"N": 64}, {"N": 128}]
'''
TILELANG = """
import tilelang.language as T

def scale(N, threads=128, factor=2.0):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, threads), threads=threads) as bx:
            for i in T.Parallel(threads):
                B[bx * threads + i] = A[bx * threads + i] * T.float32(factor)
    return main

def reference(a):
    return a * 2.0

def shapes():
    return [{"N": 1024}]
"""
KERNEL = """
name = "scale"
frontend = "FRONTEND"
factory = "tinypkg.kernels:scale"
shapes = "tinypkg.kernels:shapes"
space = { SPACE }
reference = "tinypkg.kernels:reference"
out-idx = [-1]
profile = { warmup = 1, rep = 5, timeout = 20, compile-timeout = 120, decide-budget = 0.2, quiet-timeout = 0 }
"""
CUDA = '"cuda:sm_80", "cuda:sm_90a", "cuda:sm_100a"'


@dataclass
class Project:
    folder: Path
    lines: list[str]

    @property
    def lock_path(self) -> Path:
        return self.folder / "tltune.lock"

    @property
    def said(self) -> str:
        return "\n".join(self.lines)

    @property
    def tuned(self) -> bool:
        """Whether the last build measured anything."""
        return re.search(TUNES, self.said) is not None

    def edit(self, old: str, new: str, file: str = "tltune.toml") -> None:
        path = self.folder / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def build(self, lock: str = "auto", **settings: Any) -> Path:
        self.lines.clear()
        output = self.folder / "out" / "_tlaot"
        made = Settings(lock=lock, **settings)
        build_package(self.folder / "tltune.toml", self.folder, output, made, self.lines.append)
        return output

    def tune(self, selection: Selection = Selection(), **settings: Any) -> int:  # noqa: B008
        self.lines.clear()
        made = Settings(lock="update", **settings)
        return tune_project(self.folder / "tltune.toml", self.folder, made, selection, self.lines.append)

    def read_lock(self) -> Lock:
        return read_lock(self.lock_path)

    def invent(self, times: Mapping[str, float], **fields: Any) -> None:
        """A lock with these times of the configs, by config as text; made up, since evidence is data."""
        spec = read_spec(self.folder / "tltune.toml")
        entries = []
        with open_site(spec, self.folder, Settings(lock="ignore"), self.lines.append) as found:
            for group in all_groups(spec):
                if group.stand_in is not None:
                    continue
                work = plan_group(group, found)
                for workload in work.workloads.values():
                    tried = [
                        Tried(dict(config), timing=timing(times[str(config)]), binary=f"{index:016x}")
                        for index, config in enumerate(workload.configs)
                        if str(config) in times
                    ]
                    best = min(tried, key=lambda one: one.timing.latency if one.timing else 0).config
                    made = {
                        "kernel": workload.kernel.name,
                        "target": str(workload.target),
                        "shape": dict(workload.shape),
                        "spec": work.specs[workload.kernel.where],
                        "sources": work.sources[workload.kernel.where],
                        "tools": work.tools,
                        "ships": best,
                        "winner": best,
                        "device": H200 if workload.target.is_cuda else {"name": "a processor", "cpus": 64},
                        "reference": timing(4.0),
                        "candidates": tuple(tried),
                    }
                    entries.append(Entry(**{**made, **fields}))
        replace_lock(self.lock_path, Lock().with_entries(entries))


def make_project(folder: Path, frontend: str, head: str = "", extra: str = "") -> Project:
    package = folder / "tinypkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '1'\n")
    (package / "hidden.py").write_text("ONE = 1.0\n")
    (package / "kernels.py").write_text(TVM if frontend == "tvm" else TILELANG)
    space = "tile = [1, 2]" if frontend == "tvm" else "threads = [64, 128]"
    targets = '"llvm"' if frontend == "tvm" else CUDA
    kernel = KERNEL.replace("FRONTEND", frontend).replace("SPACE", space)
    text = f'[tlaot]\npackage = "tinypkg"\ntargets = [{targets}]\n{head}\n[[kernel]]\n{kernel}\n{extra}\n'
    (folder / "tltune.toml").write_text(textwrap.dedent(text))
    return Project(folder, [])


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "project", "tvm")


def variants(output: Path) -> dict[tuple[str, str], Variant]:
    found = read_manifest(output / "manifest.json").kernels["scale"].variants
    return {(variant.target, str(dict(variant.shape))): variant for variant in found}


def tree(output: Path) -> dict[str, bytes]:
    return {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()}


def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with compilers and frontends, and neither GPU nor torch; whoever measures fails."""

    def measurer(self: Workshop, device: str) -> Any:
        assert device == "cpu", "a GPU is to be measured on"
        return honest(self, device)

    def inspected(*arguments: Any) -> machine.Machine:
        found = machine.inspect_machine(*arguments)
        return replace(found, gpus=(), distributions={k: v for k, v in found.distributions.items() if k != "torch"})

    honest = Workshop.measurer
    monkeypatch.setattr(Workshop, "measurer", measurer)
    monkeypatch.setattr(site, "inspect_machine", inspected)


FAST = {"{'tile': 1}": 2.0, "{'tile': 2}": 1.0}


@needs_tvm
def test_the_lock_is_what_ships(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.invent(FAST)
    before = project.lock_path.read_bytes()
    monkeypatch.setattr("tlaot.tune.settle.tune_workloads", lambda *_: pytest.fail("something is tuned"))
    for mode in ("auto", "frozen"):
        found = variants(project.build(mode))
        assert {v.config["tile"] for v in found.values()} == {2}
        variant = found["llvm:x86-64-v3", "{'N': 64}"]
        assert variant.latency == {"latency": 1.0, "spread": 0.01, "default_latency": 2.0, "ref_latency": 4.0}
        assert variant.tuned == {"device": "a processor"}
        assert "2 workloads from tltune.lock, measured on a processor" in project.said
    assert project.lock_path.read_bytes() == before
    assert not list((project.folder / "build" / "tlaot").rglob("records/**/*.json"))


@needs_tvm
def test_two_builds_from_one_lock_are_the_same_bytes(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.invent(FAST, trusted=False, notes=("busy",))
    other = make_project(tmp_path / "another" / "place with spaces", "tvm")
    other.lock_path.write_bytes(project.lock_path.read_bytes().replace(b"\n", b"\r\n"))
    first = tree(project.build("frozen"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    monkeypatch.setattr(machine, "cpu_name", lambda: "another processor")
    assert tree(other.build("frozen", jobs=1)) == first
    assert tree(other.build("update")) == first, "an update of a lock that holds changes nothing"


@needs_tvm
def test_update_writes_what_a_build_found_and_a_build_from_that_is_the_same(project: Project, tmp_path: Path) -> None:
    first = tree(project.build())
    assert project.tuned and not project.lock_path.exists(), "auto never writes the lock"
    assert tree(project.build("update")) == first
    assert not project.tuned, "the records of the build serve"
    written = project.read_lock()
    assert all(set(entry.code) == {"source"} and len(entry.candidates) == 2 for entry in written.entries.values())
    text = project.lock_path.read_bytes()
    project.build("update")
    assert project.lock_path.read_bytes() == text
    other = make_project(tmp_path / "other", "tvm")
    other.lock_path.write_bytes(text)
    assert tree(other.build("frozen")) == first


@needs_tvm
def test_a_comment_another_module_and_the_search_leave_a_lock_valid(project: Project) -> None:
    project.invent(FAST)
    project.edit("def reference", "# a comment\n\n\ndef reference", "tinypkg/kernels.py")
    project.edit("'1'", "'2'", "tinypkg/__init__.py")
    (project.folder / "tinypkg" / "new.py").write_text("x = 1\n")
    project.edit("rep = 5", "rep = 7")
    project.edit("space = { tile = [1, 2] }", 'space = { tile = [2, 1] }\nsearch = "exhaustive"')
    project.build("frozen")


STALE = [
    ("out-idx = [-1]", "out-idx = [-1]\nrtol = 0.5", "tltune.toml", "rtol was not given, is 0.5"),
    ("a * 2.0", "a + a", "tinypkg/kernels.py", "tinypkg.kernels changed"),
    ("tile = [1, 2]", "tile = [1, 2, 4]", "tltune.toml", '1 config is new ({"tile": 4})'),
]


@needs_tvm
def test_a_stale_lock(project: Project) -> None:
    project.invent(FAST)
    before = project.lock_path.read_bytes()
    for old, new, file, why in STALE:
        project.edit(old, new, file)
        with pytest.raises(BuildError) as caught:
            project.build("frozen")
        error = caught.value
        assert f"  scale [llvm:x86-64-v3] (N=64): {why}" in error.what and "(N=128)" in error.what
        assert "TLAOT_LOCK=frozen" in error.what and "tlaot tune --target llvm:x86-64-v3" in error.remedy
        project.edit(new, old, file)
    project.edit(*STALE[0][:3])
    project.build()  # this machine has the device
    assert project.tuned and STALE[0][3] in project.said
    assert project.lock_path.read_bytes() == before
    project.build("update")
    assert not project.tuned, "what the build before has found"
    project.build("frozen")


@needs_tvm
def test_ignore_builds_as_if_there_were_none(project: Project) -> None:
    project.lock_path.write_text("<<<<<<< not even read\n")
    with pytest.raises(SpecError, match="conflict markers"):
        project.build()
    project.build("ignore")
    assert project.tuned
    assert project.lock_path.read_text() == "<<<<<<< not even read\n"


@needs_tvm
def test_an_edited_lock_is_refused_and_measured_again_on_request(project: Project) -> None:
    project.invent(FAST)
    text = project.lock_path.read_text()
    project.lock_path.write_text(text.replace('"winner": {"tile": 2}', '"winner": {"tile": 1}', 1))
    for mode in ("auto", "frozen"):
        with pytest.raises(SpecError, match=r"(?s)was edited by hand.*scale \[llvm:x86-64-v3\] \(N=64\)") as caught:
            project.build(mode)
        assert "TLAOT_LOCK=update" in caught.value.remedy
    project.build("update")
    assert "2 candidates of 1 workload" in project.said and "was edited by hand" in project.said
    assert project.read_lock().entries.keys() and not project.read_lock().edited
    project.build("frozen")


@needs_tvm
def test_update_removes_what_the_spec_does_not_have_any_more(project: Project) -> None:
    project.invent(FAST)
    (entry, _) = project.read_lock().ordered()
    elsewhere = [replace(entry, target="cuda:sm_90a"), replace(entry, kernel="gone"), replace(entry, shape={"N": 7})]
    update_lock(project.lock_path, lambda found: found.with_entries(elsewhere))
    kept = project.read_lock()
    assert len(kept.entries) == 5
    project.tune(Selection(shape={"N": 64}))
    assert project.read_lock() == kept.with_entries([project.read_lock().entries[entry.key]]), (
        "a part says nothing of the rest"
    )
    project.build("update")
    assert {(e.kernel, e.target, e.shape["N"]) for e in project.read_lock().entries.values()} == {
        ("scale", "llvm:x86-64-v3", 64),
        ("scale", "llvm:x86-64-v3", 128),
    }
    assert "removed 3 workloads" in project.said


@needs_tvm
def test_other_code_than_was_measured_is_an_error(project: Project) -> None:
    """A module that a factory imports by name is not followed; what it changes is seen in the generated code."""
    project.build("update")
    written = project.lock_path.read_bytes()
    (project.folder / "tinypkg" / "hidden.py").write_text("ONE = 1.0000001\n")
    for mode in ("auto", "frozen"):
        with pytest.raises(BuildError, match="generate other code than was measured") as caught:
            project.build(mode)
        assert "tlaot tune --force" in caught.value.remedy and "(N=64)" in caught.value.where
    project.build("update")
    assert "other code is generated now" in project.said and project.tuned
    assert project.lock_path.read_bytes() != written
    project.build("frozen")
    # By another frontend other code is no surprise.
    entries = project.read_lock().entries.values()
    old = [replace(e, tools={**e.tools, "apache-tvm": "0.1"}, code={"source": "0" * 64}) for e in entries]
    replace_lock(project.lock_path, Lock().with_entries(old))
    project.build("frozen")
    assert "tltune.lock was made with other tools: apache-tvm 0.1, here " in project.said


@needs_tvm
def test_fewer_binaries_within_a_slowdown_from_the_lock_alone(project: Project) -> None:
    project.invent({"{'tile': 1}": 1.04, "{'tile': 2}": 1.0})
    entries = project.read_lock().entries.values()
    by_shape = {64: ("a", "b"), 128: ("a", "c")}  # the binaries of tile=1 are the same one
    changed = [
        replace(e, candidates=tuple(replace(t, binary=by_shape[e.shape["N"]][i]) for i, t in enumerate(e.candidates)))
        for e in entries
    ]
    replace_lock(project.lock_path, Lock().with_entries(changed))
    assert {v.config["tile"] for v in variants(project.build("frozen")).values()} == {2}
    project.edit("out-idx", "max-slowdown = 1.1\nout-idx")
    found = variants(project.build("frozen"))
    assert {v.config["tile"] for v in found.values()} == {1}
    assert {v.latency["latency"] for v in found.values()} == {1.04}, "the time of what ships"
    project.build("update")
    assert {(e.winner["tile"], e.ships["tile"]) for e in project.read_lock().entries.values()} == {(2, 1)}
    project.build("frozen")


@needs_tvm
def test_tune_measures_what_is_asked_for_and_no_more(project: Project) -> None:
    assert project.tune(Selection(kernels=("scale",), shape={"N": 128})) == 1
    assert "2 candidates of 1 workload" in project.said
    assert [entry.shape for entry in project.read_lock().entries.values()] == [{"N": 128}]
    assert project.tune() == 2
    assert "2 candidates of 1 workload" in project.said, "the other one only"
    assert project.tune() == 2 and not project.tuned
    assert project.tune(tune="force") == 2 and "4 candidates of 2 workloads" in project.said
    with pytest.raises(SpecError, match="did you mean 'scale'"):
        project.tune(Selection(kernels=("scael",)))
    with pytest.raises(SpecError, match=r"no workload has \{'N': 7\}"):
        project.tune(Selection(shape={"N": 7}))


@needs_tvm
def test_a_lock_that_cannot_be_written_is_found_out_before_anything_is_tuned(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno
    import tempfile

    honest = tempfile.TemporaryFile

    def refuse(*arguments: Any, **named: Any) -> Any:
        if named.get("dir") == project.folder:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return honest(*arguments, **named)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(BuildError, match=r"cannot be written \(Read-only file system\)"):
        project.build("update")
    assert not project.tuned
    project.build()


@needs_tvm
def test_two_that_tune_at_once_and_one_that_is_killed(project: Project) -> None:
    code = (
        "import sys; from pathlib import Path; from types import SimpleNamespace as S\n"
        "from tlaot.tune.pipeline import Selection, tune_project\n"
        "p = Path(sys.argv[1])\n"
        "settings = S(tune='on', lock='update', targets=None, jobs=1, keep=False, executor=None, devices=None)\n"
        "tune_project(p / 'tltune.toml', p, settings, Selection(), lambda line: print(line, flush=True))\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, str(project.folder)]
        return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    killed = start()
    assert killed.stdout is not None
    for line in killed.stdout:
        if "ms with" in line:  # one workload is decided, the lock is not written yet, or is about to be
            killed.kill()
            break
    killed.wait()
    tuners = [start(), start()]
    said = [tuner.communicate(timeout=300)[0] for tuner in tuners]
    assert [tuner.returncode for tuner in tuners] == [0, 0], said
    assert len(project.read_lock().entries) == 2
    assert sum(re.search(TUNES, text) is not None for text in said) <= 1, (
        "the second one found what the first had written"
    )
    project.build("frozen")


# CUDA, compiled by TileLang and nvcc, with no GPU.


PTX = """
[target."cuda:sm_100a"]
tuned-as = "cuda:sm_90a"
"""


@needs_tilelang
def test_one_lock_gives_every_architecture_with_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_device(monkeypatch)
    times = {"{'threads': 64}": 2.0, "{'threads': 128}": 1.0}
    project = make_project(tmp_path / "project", "tilelang", "ptx = true", PTX)
    with pytest.raises(
        BuildError, match=r"there is no GPU to tune cuda:sm_80 on \(found: none\), and there is no tltune.lock"
    ):
        project.build()
    with pytest.raises(
        BuildError, match=r"TLAOT_LOCK=frozen forbids tuning, and there is no tltune\.lock\nPut it beside"
    ):
        project.build("frozen")
    project.invent(times)
    assert len(project.read_lock().entries) == 2
    output = project.build("frozen")
    found = {target: variant for (target, _), variant in variants(output).items()}
    assert set(found) == {"cuda:sm_80", "cuda:sm_90a", "cuda:sm_100a", "cuda:compute_80"}
    for target, variant in found.items():
        assert variant.config == {"threads": 128}
        image = device_image((output / place_of(variant, "executable.so")).read_bytes(), target)
        assert image is not None
        assert read_image(image, target).is_for(target.removeprefix("cuda:"))
    tuned = {target: dict(variant.tuned) for target, variant in found.items()}
    measured = {"device": "NVIDIA H200", "sm_count": 132}
    assert tuned == {
        "cuda:sm_80": measured,
        "cuda:sm_90a": measured,
        "cuda:sm_100a": {**measured, "as": "cuda:sm_90a"},
        "cuda:compute_80": {**measured, "as": "cuda:sm_80"},
    }
    assert found["cuda:sm_90a"].latency["latency"] == 1.0
    assert found["cuda:sm_100a"].latency["latency"] is None, "the times are another target's"
    assert "cuda:sm_100a: 1 workload with the winners of cuda:sm_90a" in project.said

    # An update on this machine, which can measure nothing, records what is compiled.
    first = tree(output)
    assert tree(project.build("update")) == first
    entries = {entry.target: entry for entry in project.read_lock().entries.values()}
    assert set(entries["cuda:sm_90a"].code) == {"source", "cubin"} and set(entries["cuda:compute_80"].code) == {
        "source",
        "ptx",
    }
    assert entries["cuda:sm_100a"].tuned_as == "cuda:sm_90a" and not entries["cuda:sm_100a"].candidates

    # Elsewhere the same bytes; and the digests are looked at, a stand-in's too.
    other = make_project(tmp_path / "elsewhere" / "project", "tilelang", "ptx = true", PTX)
    other.lock_path.write_bytes(project.lock_path.read_bytes())
    assert tree(other.build("frozen")) == first
    for target in ("cuda:sm_90a", "cuda:sm_100a"):
        forged = replace(entries[target], code={**entries[target].code, "cubin": "0" * 64})
        update_lock(other.lock_path, lambda lock, forged=forged: lock.with_entries([forged]))  # type: ignore[misc]
        with pytest.raises(BuildError, match=r"other code than was measured \(cubin ") as caught:
            other.build()
        assert target in caught.value.where
        update_lock(other.lock_path, lambda lock, target=target: lock.with_entries([entries[target]]))  # type: ignore[misc]

    # What the lock promises is not left out quietly, however optional the target.
    other.edit("ptx = true", 'ptx = true\nwhen-available = ["cuda:sm_80", "cuda:sm_90a", "cuda:sm_100a"]')
    other.edit("a * 2.0", "a + a", "tinypkg/kernels.py")
    with pytest.raises(BuildError, match=r"(?s)no GPU to tune cuda:sm_80.*tinypkg\.kernels changed"):
        other.build()
    other.lock_path.unlink()
    with pytest.raises(BuildError, match="none of the declared targets"):
        other.build()
    assert other.said.count("skipped cuda:") == 4
    json.loads((output / "manifest.json").read_text())


STAGED = """
import tilelang.language as T

def scale(N, block):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block), threads=128) as bx:
            S = T.alloc_shared((block,), "float32")
            T.copy(A[bx * block], S)
            T.copy(S, B[bx * block])
    return main

def reference(a):
    return a

def shapes():
    return [{"N": 98304}]
"""


@needs_tilelang
def test_a_winner_that_a_stand_in_cannot_run_gives_place_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_device(monkeypatch)
    project = make_project(tmp_path / "project", "tilelang", extra='[target."cuda:sm_80"]\ntuned-as = "cuda:sm_90a"')
    project.edit(CUDA, '"cuda:sm_80", "cuda:sm_90a"')
    project.edit("threads = [64, 128]", "block = [1024, 512, 49152]")
    (project.folder / "tinypkg" / "kernels.py").write_text(STAGED)
    project.invent({"{'block': 1024}": 2.0, "{'block': 512}": 3.0, "{'block': 49152}": 1.0})
    found = {target: variant.config["block"] for (target, _), variant in variants(project.build("update")).items()}
    assert found == {"cuda:sm_90a": 49152, "cuda:sm_80": 1024}
    assert "needs 192.0 KiB of shared memory per block, cuda:sm_80 has 163 KiB; the next fastest" in project.said
    assert {entry.target: entry.ships["block"] for entry in project.read_lock().entries.values()} == found
    (measured,) = [entry for entry in project.read_lock().entries.values() if entry.tuned_as is None]
    alone = replace(
        measured, candidates=tuple(tried for tried in measured.candidates if tried.config["block"] == 49152)
    )
    project.edit("block = [1024, 512, 49152]", "block = [49152]")
    update_lock(project.lock_path, lambda lock: lock.with_entries([alone]))
    with pytest.raises(BuildError, match="none of the configs that ran on cuda:sm_90a builds for it") as caught:
        project.build("frozen")
    assert "remove tuned-as" in caught.value.remedy


@needs_tvm
def test_what_is_not_measured_needs_no_device_and_leaves_nothing_in_the_lock(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its one config ships, and the package says that nobody looked at it; a second config is refused, for nobody chooses."""
    project.edit("space = { tile = [1, 2] }", "measure = false\ncheck = false\nconfigs = [{ tile = 2 }]")
    project.edit("profile = {", "# profile = {")
    monkeypatch.setattr("tlaot.tune.settle.tune_workloads", lambda *_: pytest.fail("something is tuned"))
    for mode in ("auto", "frozen", "update"):
        found = variants(project.build(mode))
        assert {(v.config["tile"], v.latency["latency"], v.properties["measured"]) for v in found.values()} == {
            (2, None, False)
        }
        assert "2 workloads compiled as declared, NOT measured or compared (measure = false)" in project.said
        assert not project.lock_path.exists()
    assert not survey(read_spec(project.folder / "tltune.toml"), project.folder, Lock())
    project.edit("[{ tile = 2 }]", "[{ tile = 2 }, { tile = 4 }]")
    with pytest.raises(SpecError, match="has 2 configs, and nobody measures which is the fastest"):
        project.build()


@needs_tvm
def test_all_that_is_not_measured_and_does_not_compile_is_said_at_once(project: Project) -> None:
    project.edit("space = { tile = [1, 2] }", 'measure = false\ncheck = false\nconfigs = [{ tile = "x" }]')
    project.edit("profile = {", "# profile = {")
    with pytest.raises(
        TuningError, match=r"(?s)2 workloads with measure = false cannot be compiled:\n.*N=64.*\n.*N=\d+"
    ):
        project.build()


@pytest.mark.parametrize("line", ["check = true", "check = false\nsearch = 'guided'"])
def test_what_is_not_measured_says_nothing_of_measuring(tmp_path: Path, line: str) -> None:
    project = make_project(tmp_path / "project", "tvm")
    project.edit("space = {", f"measure = false\n{line}\nspace = {{")
    with pytest.raises(SpecError, match=r"measure: (what is not measured is not compared|search says how to measure)"):
        read_spec(project.folder / "tltune.toml")
