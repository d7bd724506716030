"""A dynamic GEMM in TileLang on a real GPU: tuned over its sizes, then called with sizes that nobody measured."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from build_settings import Settings

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

from conftest import ROOT, has_distribution, has_nvcc  # noqa: E402

if not (has_distribution("tilelang") and has_nvcc()):
    pytest.skip("needs tilelang and nvcc", allow_module_level=True)

from tlaot.errors import DispatchError  # noqa: E402
from tlaot.manifest import read_manifest  # noqa: E402
from tlaot.runtime.load import open_manifest  # noqa: E402
from tlaot.tune.pipeline import build_package  # noqa: E402

SPEC = """
[tlaot]
package = "tuned"
targets = ["{target}"]
[[kernel]]
name = "matmul"
frontend = "tilelang"
factory = "sample_pkg.cuda:matmul"
shapes = [{{ N = 1024, K = 512 }}]
dynamic = {{ M = [1, 64, 1024, 4096] }}
configs = [
    {{ block_M = 64, block_N = 64, block_K = 64, num_stages = 3, threads = 128 }},
    {{ block_M = 128, block_N = 128, block_K = 64, num_stages = 3, threads = 128 }},
    {{ block_M = 128, block_N = 256, block_K = 64, num_stages = 3, threads = 256 }},
]
reference = "sample_pkg.reference:matmul"
out-idx = [-1]
"""


@pytest.fixture(scope="module")
def matmul(tmp_path_factory: pytest.TempPathFactory) -> Any:
    project = tmp_path_factory.mktemp("project")
    major, minor = torch.cuda.get_device_capability()
    (project / "tltune.toml").write_text(SPEC.format(target=f"cuda:sm_{major}{minor}{'a' if major >= 9 else ''}"))
    settings = Settings(jobs=None, lock="ignore")
    output = project / "out" / "_tlaot"
    build_package(project / "tltune.toml", Path(ROOT), output, settings, print)
    return open_manifest(read_manifest(output / "manifest.json"), output).matmul


def tensors(rows: int) -> tuple[Any, Any]:
    torch.manual_seed(rows)
    a = torch.empty(rows, 512, dtype=torch.float16, device="cuda").uniform_(-1, 1)
    return a, torch.empty(512, 1024, dtype=torch.float16, device="cuda").uniform_(-1, 1)


def test_ranges_cover_what_was_declared_with_both_ends_measured(matmul: Any) -> None:
    buckets = sorted((b for v in matmul.variants for b in v.buckets), key=lambda b: b.sizes["M"][0])
    assert buckets[0].sizes["M"][0] == 1 and buckets[-1].sizes["M"][1] == 4096
    for one, other in zip(buckets, buckets[1:], strict=False):  # noqa: RUF007
        assert other.sizes["M"][0] == one.sizes["M"][1] + 1
    assert all(ms is not None and ms > 0 for bucket in buckets for ms in bucket.ms)


def test_any_number_of_rows_is_right(matmul: Any) -> None:
    """At the edges of tiles and ranges, and at sizes that nobody measured, twice each: decided, and then looked up in C."""
    draw = random.Random(0)
    edges = [size for v in matmul.variants for b in v.buckets for size in b.sizes["M"]]
    for rows in [*edges, 63, 64, 65, 127, 128, 129, *(draw.randint(1, 4096) for _ in range(30))]:
        a, b = tensors(rows)
        for _ in range(2):
            torch.testing.assert_close(matmul(a, b), a @ b, rtol=1e-2, atol=2e-1)
    assert matmul(*tensors(0)).shape == (0, 1024)


def test_a_size_outside_is_refused_and_the_context_lives(matmul: Any) -> None:
    with pytest.raises(DispatchError, match=r"M = 5000 is outside of 1 to 4096"):
        matmul(*tensors(5000))
    a, b = tensors(100)
    torch.testing.assert_close(matmul(a, b), a @ b, rtol=1e-2, atol=2e-1)


def test_a_graph_holds_what_served_its_size(matmul: Any) -> None:
    a, b = tensors(300)
    out = matmul(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        matmul(a, b, out)
    out.zero_()
    matmul(*tensors(3000))
    graph.replay()
    torch.testing.assert_close(out, a @ b, rtol=1e-2, atol=2e-1)
