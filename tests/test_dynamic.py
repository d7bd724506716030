"""Dynamic kernels from the spec to a call: real ones, through apache-tvm, whose times differ by how they are made."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from build_settings import Settings
from conftest import has_distribution

from tlaot.cli import main
from tlaot.cli.diff import compare
from tlaot.errors import DispatchError, SpecError, TlaotError, TuningError
from tlaot.manifest import BUCKETS_VERSION, Manifest, Variant, dumps, read_manifest
from tlaot.runtime.load import Kernels, open_manifest
from tlaot.tune.locks.lock_file import dump_lock, parse_lock, read_lock
from tlaot.tune.locks.merge import merge_locks
from tlaot.tune.pipeline import build_package

np = pytest.importorskip("numpy")

pytestmark = pytest.mark.skipif(not has_distribution("apache-tvm"), reason="needs apache-tvm")

KERNELS = '''
def double(M, N, per_row=0, fixed=0, only=1, plus=0):
    """Y = 2 X, and nothing else of use: `per_row` steps for each row, or `fixed` ones in all; `only` rows in blocks of so many."""
    from tvm.script import tirx as T

    @T.prim_func
    def main(x: T.handle, y: T.handle):
        T.func_attr({"tirx.noalias": True})
        X = T.match_buffer(x, (M, N), "float32")
        Y = T.match_buffer(y, (M, N), "float32")
        spent = T.alloc_buffer((1,), "float32", scope="local")
        spent[0] = T.float32(0)
        for i in range(fixed + per_row * M):
            spent[0] = spent[0] * T.float32(0.5) + X[0, i % N]
        for i in range(M // only * only):
            for j in range(N):
                Y[i, j] = X[i, j] * T.float32(2) + spent[0] * T.float32(0)
    return main


def total(M, N):
    """The sum of each column: of no rows, too, there is one to compute."""
    from tvm.script import tirx as T

    @T.prim_func
    def main(x: T.handle, y: T.handle):
        X = T.match_buffer(x, (M, N), "float32")
        Y = T.match_buffer(y, (N,), "float32")
        for j in range(N):
            Y[j] = T.float32(0)
            for i in range(M):
                Y[j] = Y[j] + X[i, j]
    return main


def fixed_rows(M, N):
    return double(8, N)


def reference(x):
    return x * 2


def sums(x):
    return x.astype("float64").sum(0).astype("float32")


def configs(M, N):
    yield {"per_row": 50} if M < 100 else {"fixed": 5000}
    yield {"fixed": 400000, "plus": M // 512}


def inputs(M, N):
    import numpy
    return [numpy.full((M, N), M, "float32")]
'''

PROFILE = (
    "profile = { warmup = 1, rep = 5, timeout = 20, compile-timeout = 60, decide-budget = 0.1, quiet-timeout = 0 }"
)
GOOD = f"""
name = "double"
frontend = "tvm"
factory = "dynpkg.kernels:double"
shapes = [{{ N = 64 }}]
dynamic = {{ M = [1, 32, 1024] }}
probes = 2
configs = [{{ per_row = 50 }}, {{ fixed = 5000 }}, {{ fixed = 400000 }}]
reference = "dynpkg.kernels:reference"
out-idx = [-1]
{PROFILE}
"""
STATIC = GOOD.replace("dynamic = { M = [1, 32, 1024] }\nprobes = 2", "").replace("{ N = 64 }", "{ N = 64, M = 32 }")
FEW, MANY = {"per_row": 50}, {"fixed": 5000}


@dataclass
class Project:
    folder: Path
    lines: list[str]

    def write(self, *kernels: str, head: str = "") -> None:
        text = "".join(f"\n[[kernel]]\n{textwrap.dedent(kernel)}" for kernel in kernels)
        head = f'[tlaot]\npackage = "dynpkg"\ntargets = ["llvm"]\n{head}'
        (self.folder / "tltune.toml").write_text(head + text, encoding="utf-8")

    def build(self, **settings: Any) -> Path:
        self.lines.clear()
        output = self.folder / "out" / "_tlaot"
        build_package(
            self.folder / "tltune.toml",
            self.folder,
            output,
            Settings(**{"lock": "update", **settings}),
            self.lines.append,
        )
        return output

    @property
    def manifest(self) -> Manifest:
        return read_manifest(self.folder / "out" / "_tlaot" / "manifest.json")

    @property
    def kernels(self) -> Kernels:
        return open_manifest(self.manifest, self.folder / "out" / "_tlaot")

    @property
    def said(self) -> str:
        return "\n".join(self.lines)

    def measured(self) -> Counter[str]:
        """How often something was measured, by the sizes."""
        lines = (self.folder / "build" / "tlaot" / "store" / "measurements.jsonl").read_text().splitlines()
        found = (re.search(r"M=(\d+)", json.loads(line)["candidate"]) for line in lines)
        return Counter(match[1] for match in found if match)


def make_project(folder: Path) -> Project:
    package = folder / "dynpkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "kernels.py").write_text(KERNELS)
    return Project(folder, [])


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "project")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A dynamic kernel beside a static one of the same name, with a lock; not to be changed."""
    project = make_project(tmp_path_factory.mktemp("built") / "project")
    project.write(GOOD, STATIC)
    project.build()
    return project


@pytest.fixture
def copy(built: Project, tmp_path: Path) -> Project:
    shutil.copytree(built.folder, tmp_path / "copy")
    return Project(tmp_path / "copy", list(built.lines))


def dynamic_of(manifest: Manifest, kernel: str = "double") -> list[Variant]:
    return [variant for variant in manifest.kernels[kernel].variants if variant.buckets]


def ranges_of(variants: list[Variant]) -> list[tuple[int, int | None, Mapping[str, Any]]]:
    found = [(*bucket.sizes["M"], variant.config) for variant in variants for bucket in variant.buckets]
    return sorted(found, key=lambda one: one[0])


def rows(count: int) -> Any:
    return np.arange(count * 64, dtype="float32").reshape(count, 64)


def test_variants_share_the_sizes(built: Project) -> None:
    """Two of three configs ship: the one that is fast for few rows, and the one that is for many; all sizes are served."""
    variants = dynamic_of(built.manifest)
    ranges = ranges_of(variants)
    shipped = [dict(config) for *_, config in ranges]
    # Where both take as long, on a busy machine, it may change more than once.
    assert (shipped[0], shipped[-1]) == (FEW, MANY) and len(variants) == 2, built.said
    assert ranges[0][0] == 1 and ranges[-1][1] == 1024
    assert all(one[1] is not None and other[0] == one[1] + 1 for one, other in itertools.pairwise(ranges))
    for variant in variants:
        assert variant.shape == {"M": "M", "N": 64}
        assert variant.params[0].shape == ("M", 64)
        for bucket in variant.buckets:
            first, at_last = bucket.ms
            assert first is not None and at_last is not None and first > 0
            assert bucket.regret is not None and bucket.regret >= 1 and bucket.bound is not None
        assert variant.latency["latency"] == variant.buckets[-1].ms[1] and variant.latency["ref_latency"]
        assert variant.properties["dynamic"] == {"M": [1, 32, 1024]}
    assert json.loads((built.folder / "out" / "_tlaot" / "manifest.json").read_text())["format"] == BUCKETS_VERSION
    assert f"M from 1 to 1024: 2 variants for {len(ranges)} ranges" in built.said


def test_calls_of_any_size_run_what_serves_it(built: Project) -> None:
    double = built.kernels.double
    for count in (1, 2, 31, 32, 33, 500, 1023, 1024):
        x = rows(count)
        assert (np.asarray(double(x)) == 2 * x).all()
        out = np.empty_like(x)
        double(x, out)
        assert (out == 2 * x).all()
    assert double.resolve(rows(1)).config == FEW and double.resolve(rows(1024)).config == MANY
    assert double.resolve(rows(32)).shape == {"M": 32, "N": 64}, "what is made for a size goes before a range"
    assert np.asarray(double(rows(0))).shape == (0, 64)


def test_a_size_outside_of_the_range_says_what_to_add(built: Project) -> None:
    with pytest.raises(DispatchError) as caught:
        built.kernels.double(rows(2000))
    text = str(caught.value)
    assert "M = 2000 is not in what it serves: M " in text
    assert "M = 2000 is outside of 1 to 1024, what {M='M', N=64} was measured for" in text
    assert "dynamic = { M = [1, 32, 1024, 2000] }" in text and 'outside = "clamp"' in text
    with pytest.raises(DispatchError, match=r"argument 0 \(X\) has shape \(5, 65\), expected \(5, 64\)"):
        built.kernels.double(np.zeros((5, 65), "float32"))


def test_all_of_them_are_loaded_ahead(built: Project) -> None:
    loaded = built.kernels.preload("cpu")
    assert len(loaded.binaries) == 3
    assert sum(shape["M"] == "M" for one in loaded.binaries for shape in one.shapes) == 2


def test_each_config_is_compiled_once_and_measured_at_each_declared_size(built: Project) -> None:
    folders = list((built.folder / "build" / "tlaot" / "store" / "built").glob("*/*"))
    assert len(folders) == 3 + 3
    measured = built.measured()
    assert [measured[size] for size in ("1", "1024")] == [3, 3] and measured["32"] == 6


def test_the_lock_holds_what_was_found_at_every_size(built: Project) -> None:
    path = built.folder / "tltune.lock"
    lock = read_lock(path)
    (entry,) = (entry for entry in lock.entries.values() if entry.sizes)
    assert dump_lock(lock) == path.read_text() and not lock.edited
    assert entry.shape == {"M": "M", "N": 64} and entry.spec["dynamic"] == {"M": [1, 32, 1024]}
    sizes = [sized.sizes["M"] for sized in entry.sizes]
    assert sizes == sorted(sizes) and {1, 32, 1024} <= set(sizes)
    for sized in entry.sizes:
        assert sized.winner in sized.times
        assert sized.sizes["M"] not in (1, 32, 1024) or len(sized.times) == 3
    assert [part.config for part in entry.parts] == [FEW, MANY]
    assert entry.ships == MANY and entry.code == entry.parts[1].code and entry.parts[0].code != entry.code
    assert len(path.read_text().splitlines()) < 80, "a size has a line"


def test_a_build_from_the_lock_gives_the_same_bytes(copy: Project) -> None:
    before = {
        path.relative_to(copy.folder): path.read_bytes() for path in (copy.folder / "out").rglob("*") if path.is_file()
    }
    shutil.rmtree(copy.folder / "build")
    copy.build(lock="frozen")
    assert "2 workloads from tltune.lock" in copy.said
    for file, data in before.items():
        assert (copy.folder / file).read_bytes() == data, file
    assert {
        path.relative_to(copy.folder) for path in (copy.folder / "out").rglob("*") if path.is_file()
    } == before.keys()


def test_a_lock_that_was_changed_is_known(copy: Project, capsys: pytest.CaptureFixture[str]) -> None:
    path = copy.folder / "tltune.lock"
    text = path.read_text()
    mistakes = [
        (r'"winner": \d\}', '"winner": 7}', "names the config #7 of 3"),
        (r'"at": \{"M": 1024\}', '"at": {"M": 0}', "at M is not a whole number of 1 or more, got 0"),
        (r'"times": \{"0"', '"times": {"first"', "times is not the position of a config, got 'first'"),
    ]
    for pattern, new, what in mistakes:
        changed, count = re.subn(pattern, new, text, count=1)
        assert count == 1
        with pytest.raises(SpecError) as caught:
            parse_lock(changed, "tltune.lock")
        assert what in str(caught.value).replace(":", "")
    path.write_text(text.replace('"at": {"M": 1024}', '"at": {"M": 1023}'))
    with pytest.raises(SpecError, match="was edited by hand"):
        copy.build(lock="auto")


def test_locks_of_two_branches_are_merged_by_workload(built: Project) -> None:
    lock = read_lock(built.folder / "tltune.lock")
    static, dynamic = ([e for e in lock.entries.values() if bool(e.sizes) is kind] for kind in (False, True))
    halves = [("a", lock.without([e.key for e in static])), ("b", lock.without([e.key for e in dynamic]))]
    assert merge_locks(halves).lock == lock


def test_other_sizes_make_the_lock_stale_and_cost_only_themselves(
    copy: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    before = copy.measured()
    copy.write(GOOD.replace("32, 1024", "32, 1024, 1500"), STATIC)
    assert main(["lock", "check", "--spec", str(copy.folder / "tltune.toml")]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert 'dynamic was {"M": [1, 32, 1024]}, is {"M": [1, 32, 1024, 1500]}' in shown
    copy.build()
    after = copy.measured()
    assert after["1500"] == 3 and {size: after[size] for size in before} == dict(before)
    assert all(int(size) > 1024 for size in after.keys() - before.keys())
    assert ranges_of(dynamic_of(copy.manifest))[-1][1] == 1500
    x = rows(1500)
    assert (np.asarray(copy.kernels.double(x)) == 2 * x).all()


def test_what_ships_follows_max_slowdown_without_measuring(copy: Project) -> None:
    before = copy.measured()
    copy.write(GOOD + "max-slowdown = 1000\n", STATIC)
    copy.build()
    (variant,) = dynamic_of(copy.manifest)
    (bucket,) = variant.buckets
    assert bucket.sizes == {"M": (1, 1024)} and bucket.regret is not None and bucket.regret > 1.5
    assert copy.measured() == before


def test_what_is_shown(built: Project, capsys: pytest.CaptureFixture[str]) -> None:
    folder, lock = str(built.folder / "out" / "_tlaot"), str(built.folder / "tltune.lock")
    assert main(["inspect", folder]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"kernel +target +shape +sizes +config +time at first +at last +regret +bound", shown)
    assert re.search(r"double +llvm:x86-64-v3 +M='M', N=64 +M 1 to \d+ +per_row=50 +\S+ ms +\S+ ms +1\.\d+x +\d", shown)
    assert main(["inspect", folder, "--json"]) == 0
    buckets = [row.get("buckets") for row in json.loads(capsys.readouterr().out)]
    assert sum(bool(found) for found in buckets) == 2
    assert main(["inspect", lock]) == 0
    assert main(["lock", "show", lock]) == 0
    assert "fixed=5000 and 1 more" in capsys.readouterr().out
    assert main(["check", folder, "--lock", lock]) == 0, capsys.readouterr().out


def test_a_difference_in_the_sizes_that_are_served_is_shown(
    built: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def narrow(variant: Variant) -> Variant:
        buckets = tuple(
            dataclasses.replace(b, sizes={"M": (b.sizes["M"][0], min(b.sizes["M"][1] or 0, 600))})
            for b in variant.buckets
        )
        return dataclasses.replace(variant, buckets=buckets)

    manifest = built.manifest
    kernel = manifest.kernels["double"]
    changed = dataclasses.replace(kernel, variants=tuple(map(narrow, kernel.variants)))
    (tmp_path / "manifest.json").write_text(dumps(dataclasses.replace(manifest, kernels={"double": changed})))
    old = str(built.folder / "out" / "_tlaot")
    assert not compare(old, old).narrowed and not compare(str(tmp_path), old).narrowed
    assert main(["diff", old, str(tmp_path)]) == 1
    assert "double [llvm:x86-64-v3] (M='M', N=64): M was 1 to 1024, is 1 to 600" in capsys.readouterr().out


def test_a_pin_holds_whatever_serves_a_size(
    built: Project, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    import tlaot

    monkeypatch.setenv("TLAOT_PIN", "double=fixed:5000,M:M")
    kernels = tlaot.load("dynpkg", path=str(built.folder / "out"))
    assert kernels.double.resolve(rows(2)).config == MANY
    x = rows(2)
    assert (np.asarray(kernels.double(x)) == 2 * x).all()


def test_a_retuned_size_may_run_another_ones_variant(
    copy: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import tlaot

    monkeypatch.setenv("TLAOT_PATH", str(copy.folder / "out"))
    monkeypatch.setenv("TLAOT_OVERLAY", str(tmp_path / "overlay.json"))
    assert main(["retune", "dynpkg", "--shape", "M=3", "--device", "cpu", "--busy", "--seconds", "0.1"]) == 0
    (section,) = json.loads((tmp_path / "overlay.json").read_text())["devices"].values()
    (choice,) = section["choices"]
    assert {json.dumps(time["config"]) for time in choice["times"]} == {json.dumps(FEW), json.dumps(MANY)}
    assert choice["config"] == FEW
    choice["config"] = MANY
    body = json.loads((tmp_path / "overlay.json").read_text())
    for known in body["devices"].values():
        known["choices"] = [choice]
    (tmp_path / "overlay.json").write_text(json.dumps(body))
    kernels = tlaot.load("dynpkg")
    assert kernels.double.resolve(rows(3)).config == MANY and kernels.double.resolve(rows(1)).config == FEW
    x = rows(3)
    assert (np.asarray(kernels.double(x)) == 2 * x).all()


def test_a_config_that_is_wrong_at_some_size_serves_none(project: Project) -> None:
    """It leaves a tail undone, and all declared sizes are multiples of its block."""
    project.write(GOOD.replace("{ fixed = 400000 }", "{ only = 16 }").replace("[1, 32,", "[16, 32,"))
    project.build()
    shipped = [dict(config) for *_, config in ranges_of(dynamic_of(project.manifest))]
    assert all(config in (FEW, MANY) for config in shipped) and shipped[-1] == MANY
    assert re.search(r"config #2 is left out at every size, since it fails at M=\d+: check: .*NaN", project.said)
    project.write(
        GOOD.replace("configs = [{ per_row = 50 }, { fixed = 5000 }, { fixed = 400000 }]", "configs = [{ only = 16 }]")
    )
    with pytest.raises(TuningError, match=r"none of 1 candidate can be packaged:\n  1 x check: .*NaN"):
        project.build()


def test_other_sizes_may_be_served_like_the_nearest(project: Project) -> None:
    """One above the largest is measured, and checked; and the least there is."""
    project.write(GOOD.replace("[1, 32, 1024]", "[32, 600]") + 'outside = "clamp"\n')
    project.build()
    sizes = {
        sized.sizes["M"]
        for entry in read_lock(project.folder / "tltune.lock").entries.values()
        for sized in entry.sizes
    }
    assert {1, 32, 600, 901} <= sizes
    ranges = ranges_of(dynamic_of(project.manifest))
    assert ranges[0][0] == 1 and ranges[-1][1] is None
    for count in (0, 1, 32, 5000):
        x = rows(count)
        assert (np.asarray(project.kernels.double(x)) == 2 * x).all()


def test_of_no_rows_there_may_be_something_to_compute(project: Project) -> None:
    text = GOOD.replace(":double", ":total").replace(":reference", ":sums")
    project.write(re.sub(r"configs = .*\n", "", text.replace("probes = 2", "probes = 0")))
    project.build()
    total = project.kernels.double
    x = np.ones((7, 64), "float32")
    assert (np.asarray(total(x)) == 7).all()
    with pytest.raises(DispatchError, match=r"M = 0 is outside of 1 to 1024"):
        total(x[:0])


def test_configs_of_all_sizes_are_tried_at_each_and_inputs_get_the_size(project: Project) -> None:
    text = re.sub(r"configs = .*\n", 'configs = "dynpkg.kernels:configs"\n', GOOD).replace("probes = 2", "probes = 0")
    project.write(text + 'inputs = "dynpkg.kernels:inputs"\n')
    project.build()
    (entry,) = read_lock(project.folder / "tltune.lock").entries.values()
    assert [dict(tried.config) for tried in entry.candidates] == [
        FEW, {"fixed": 400000, "plus": 0}, MANY, {"fixed": 400000, "plus": 2},
    ]  # fmt: skip
    assert len(entry.sizes[0].times) == 4


def test_several_dimensions(project: Project) -> None:
    project.write(
        GOOD.replace("shapes = [{ N = 64 }]\n", "").replace("M = [1, 32, 1024]", "M = [1, 1024], N = [8, 64]")
    )
    project.build()
    variants = dynamic_of(project.manifest)
    assert all(variant.shape == {"M": "M", "N": "N"} for variant in variants)
    for m, n in ((1, 8), (1, 64), (2, 9), (1024, 64), (77, 33)):
        x = np.ones((m, n), "float32")
        assert (np.asarray(project.kernels.double(x)) == 2).all()
    assert project.kernels.double.resolve(np.ones((1000, 60), "float32")).config == MANY
    with pytest.raises(
        DispatchError, match=r"N = 65 is outside of 8 to 64.*dynamic = \{ M = \[1, 1024\], N = \[8, 64, 65\] \}"
    ):
        project.kernels.double(np.ones((2, 65), "float32"))


def test_a_target_that_is_not_tuned_takes_the_ranges(project: Project) -> None:
    head = '\n[target."llvm:x86-64-v2"]\ntuned-as = "llvm:x86-64-v3"\n'
    project.write(
        GOOD.replace("probes = 2", "probes = 0") + 'targets = ["llvm:x86-64-v2", "llvm:x86-64-v3"]\n', head=head
    )
    output = project.build()
    by_target: dict[str, list[Variant]] = {}
    for variant in dynamic_of(project.manifest):
        by_target.setdefault(variant.target, []).append(variant)
    own, taken = by_target["llvm:x86-64-v3"], by_target["llvm:x86-64-v2"]
    assert ranges_of(own) == ranges_of(taken)
    assert all(bucket.ms == (None, None) and bucket.regret is None for v in taken for bucket in v.buckets)
    assert all(variant.tuned["as"] == "llvm:x86-64-v3" for variant in taken)
    entry = read_lock(project.folder / "tltune.lock").entries["double", "llvm:x86-64-v2", '{"M":"M","N":64}']
    assert entry.tuned_as and sorted(str(part.config) for part in entry.parts) == [str(MANY), str(FEW)]
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    shutil.rmtree(project.folder / "build")
    project.build(lock="frozen")
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before


REFUSALS: list[tuple[Callable[[str], str], type[TlaotError], str]] = [
    (
        lambda text: text.replace(":double", ":fixed_rows").replace("configs", "# configs"),
        SpecError,
        r"dynamic: M is the size of no tensor of the kernel; sizes that it leaves open: none",
    ),
    (
        lambda text: text.replace("M = [1", "rows = [1"),
        TuningError,
        r"unused shape key 'rows': the factory takes \(M, N, per_row",
    ),
    (
        lambda text: text.replace("{ fixed = 5000 }", "{ M = 4 }"),
        TuningError,
        r"shape and config both set M",
    ),
]


@pytest.mark.parametrize(("change", "error", "what"), REFUSALS, ids=["no size", "no argument", "in a config"])
def test_a_dimension_that_cannot_be_open(
    project: Project, change: Callable[[str], str], error: type[TlaotError], what: str
) -> None:
    project.write(change(GOOD).replace("{ per_row = 50 }, ", "").replace(", { fixed = 400000 }", ""))
    with pytest.raises(error, match=what):
        project.build()


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("TLAOT_PATH", "TLAOT_PIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TLAOT_OVERLAY", "off")
    yield
