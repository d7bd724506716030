"""Dynamic kernels in TileLang: tuned and run on the CPU; for a GPU compiled from a lock, on machines that have none."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from build_settings import Settings
from conftest import has_distribution, has_nvcc
from locks import H200, timing

from tlaot.elf import device_image
from tlaot.image import read_image
from tlaot.manifest import Variant, read_manifest
from tlaot.runtime.load import open_manifest
from tlaot.tune.groups import all_groups, plan_group
from tlaot.tune.locks.lock import Entry, Lock, Sized, Tried
from tlaot.tune.locks.lock_file import replace_lock
from tlaot.tune.pipeline import build_package
from tlaot.tune.site import open_site
from tlaot.tune.specs.spec_file import read_spec

np = pytest.importorskip("numpy")

pytestmark = pytest.mark.skipif(not has_distribution("tilelang"), reason="needs tilelang")

KERNELS = """
import tilelang.language as T


def double(M, N, rows=1, threads=128):
    @T.prim_func
    def double(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(M, rows), threads=threads) as bx:
            for i, j in T.Parallel(rows, N):
                if bx * rows + i < M:
                    Y[bx * rows + i, j] = X[bx * rows + i, j] * 2.0

    return double


def reference(x):
    return x * 2
"""

SPEC = """
[tlaot]
package = "tilepkg"
targets = {targets}
[[kernel]]
name = "double"
frontend = "tilelang"
factory = "tilepkg.kernels:double"
shapes = {{ N = 256 }}
dynamic = {{ M = [1, 64, 1024] }}
probes = 1
configs = [{{ rows = 1 }}, {{ rows = 4 }}, {{ rows = 16 }}]
reference = "tilepkg.kernels:reference"
out-idx = [-1]
profile = {{ warmup = 1, rep = 5, timeout = 20, compile-timeout = 120, decide-budget = 0.1, quiet-timeout = 0 }}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    package = tmp_path / "project" / "tilepkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "kernels.py").write_text(textwrap.dedent(KERNELS))
    return package.parent


def build(project: Path, targets: list[str], **settings: Any) -> Path:
    (project / "tltune.toml").write_text(SPEC.format(targets=targets))
    output = project / "out" / "_tlaot"
    build_package(project / "tltune.toml", project, output, Settings(**settings), lambda line: None)
    return output


def test_a_kernel_for_the_cpu_takes_any_size(project: Path) -> None:
    output = build(project, ["c"])
    double = open_manifest(read_manifest(output / "manifest.json"), output).double
    assert {bucket.sizes["M"][0] for v in double.variants for bucket in v.buckets} >= {1}
    for rows in (0, 1, 3, 64, 333, 1024):
        x = np.arange(rows * 256, dtype="float32").reshape(rows, 256)
        assert (np.asarray(double(x)) == 2 * x).all()


@pytest.mark.skipif(not has_nvcc(), reason="needs nvcc")
def test_variants_for_a_gpu_come_from_the_lock(project: Path) -> None:
    """Evidence of four sizes, made up: two variants for one architecture and two for its stand-in, each with its cubin."""
    targets = ["cuda:sm_80", "cuda:sm_90a"]
    (project / "tltune.toml").write_text(
        SPEC.format(targets=targets) + '[target."cuda:sm_80"]\ntuned-as = "cuda:sm_90a"\n'
    )
    replace_lock(project / "tltune.lock", Lock().with_entries([made_up(project)]))
    output = project / "out" / "_tlaot"
    build_package(project / "tltune.toml", project, output, Settings(lock="frozen"), lambda line: None)
    variants = read_manifest(output / "manifest.json").kernels["double"].variants
    assert served(variants, "cuda:sm_90a") == served(variants, "cuda:sm_80") == [(1, 65, 1), (66, 1024, 16)]
    for variant in variants:
        image = device_image((output / variant.path / "executable.so").read_bytes(), variant.path)
        assert image is not None and read_image(image, variant.path).is_for(variant.target.partition(":")[2])
        assert variant.params[0].shape == ("M", 256)
        measured = variant.target == "cuda:sm_90a"
        assert all((bucket.regret is not None) is measured for bucket in variant.buckets)


def served(variants: tuple[Variant, ...], target: str) -> list[tuple[int, int | None, int]]:
    """First and last size of each range, and the config's rows."""
    mine = [variant for variant in variants if variant.target == target]
    return sorted((*bucket.sizes["M"], variant.config["rows"]) for variant in mine for bucket in variant.buckets)


def made_up(project: Path) -> Entry:
    """An entry that holds: one row a block is the fastest up to 65 rows, sixteen from there; four are never."""
    spec = read_spec(project / "tltune.toml")
    with open_site(spec, project, Settings(), lambda line: None) as site:
        group = next(group for group in all_groups(spec) if str(group.target) == "cuda:sm_90a")
        work = plan_group(group, site)
    (workload,) = work.workloads.values()
    where = workload.kernel.where
    sizes = tuple(
        Sized({"M": m}, winner, {index: timing(ms) for index, ms in enumerate(times)})
        for m, winner, times in (
            (1, 0, (0.002, 0.003, 0.004)),
            (64, 0, (0.002, 0.003, 0.004)),
            (65, 0, (0.002, 0.004, 0.004)),
            (66, 2, (0.006, 0.005, 0.004)),
            (1024, 2, (0.03, 0.02, 0.01)),
        )
    )
    last = sizes[-1]
    tried = tuple(
        Tried(config, timing=last.times[index], binary=f"{index:016x}") for index, config in enumerate(workload.configs)
    )
    entry = Entry(
        kernel="double",
        target="cuda:sm_90a",
        shape=workload.shape,
        spec=work.specs[where],
        sources=work.sources[where],
        tools=work.tools,
        ships=workload.configs[2],
        winner=workload.configs[2],
        device=H200,
        candidates=tried,
    )
    return replace(entry, sizes=sizes)
