"""Behaviour 77: the article's examples, with the import changed.

On the CPU with TileLang's ``c`` target, where a GEMM has its tiles in local memory; with ``-m gpu`` as they are in the article.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tlaot
from tlaot import AutoTuner, AutotuneResult, CompileArgs, TensorSupplyType, autotune, set_autotune_inputs

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tilelang") is None or importlib.util.find_spec("torch") is None,
    reason="needs TileLang and torch",
)


def tensors(article: Any) -> tuple[Any, Any, Any]:
    import torch

    torch.manual_seed(0)
    shape, dtype = (article.size, article.size), getattr(torch, article.dtype)
    a, b = (torch.randn(shape, device=article.device).to(dtype) for _ in range(2))
    return a, b, torch.empty(shape, dtype=dtype, device=article.device)


def check(article: Any, kernel: Any) -> None:
    import torch

    a, b, c = tensors(article)
    wanted = (a.float() @ b.float()).to(a.dtype)
    kernel(a, b, c)
    torch.testing.assert_close(c, wanted, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(kernel(a, b), wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.usefixtures("processes")
def test_077_example_1_decorator_with_configs_of_the_sizes(article: Any) -> None:
    M = N = K = article.size
    matmul = autotune(configs=article.configs, **article.timing)(article.matmul)
    A, B, C = tensors(article)
    with set_autotune_inputs(A, B, C):
        kernel = matmul(M, N, K)
    assert kernel.config in article.configs(M, N, K)
    check(article, kernel)


def test_077_example_2_programmatic_with_a_reference_that_judges(article: Any) -> None:
    import torch

    def kernel_factory(M: int, N: int, K: int) -> Any:
        def kernel(block_M: Any = None) -> Any:
            return gemm(M, N, K, block_M=block_M)

        return kernel

    def ref_prog(A: Any, B: Any, C: Any) -> bool:
        return torch.allclose(C.float(), A.float() @ B.float(), rtol=1e-2, atol=1e-1)

    gemm, size = article.gemm, article.size
    tuner = AutoTuner.from_kernel(kernel_factory(size, size, size), configs=[article.small, article.large])
    tuner.set_profile_args(**article.timing, supply_type=TensorSupplyType.Auto, ref_prog=ref_prog)
    tuner.set_compile_args(
        target=article.target, execution_backend="auto", out_idx=[-1], pass_configs=article.pass_configs
    )
    artifact = tuner.run()
    assert artifact.config in (article.small, article.large)
    assert artifact.latency > 0
    check(article, artifact.kernel)


def test_077_example_3_supply_prog_and_supply_type(article: Any) -> None:
    import torch

    def supply_prog(signature: Any) -> Any:
        return [torch.ones(param.shape, dtype=param.torch_dtype(), device=device) for param in signature]

    def of_ones(A: Any, B: Any) -> Any:
        assert bool((A == 1).all())
        return A @ B

    device, size = article.device, article.size
    for options in (
        {"supply_prog": supply_prog, "ref_prog": of_ones},
        {"supply_type": TensorSupplyType.Normal, "ref_prog": torch.matmul},
    ):
        matmul = autotune(configs=[article.small], **article.timing, **options)(article.matmul)
        check(article, matmul(size, size, size))


def test_077_example_4_a_generator_of_configs(article: Any) -> None:
    def configs(M: int, N: int, K: int) -> Any:
        for config in (article.small, article.large):
            if min(M, N, K) >= article.size and config != article.large:
                continue
            yield dict(config)

    size = article.size
    assert autotune(configs=configs, **article.timing)(article.matmul)(size, size, size).config == article.large


def test_077_example_5_par_compile_and_timing_by_hand(article: Any) -> None:
    sizes = dict.fromkeys("MNK", article.size)
    kernels = tlaot.par_compile(article.matmul, [{**sizes, **article.small}, {**sizes, **article.large}], num_workers=4)
    best = min(kernels, key=lambda kernel: kernel.get_profiler().do_bench(warmup=1, rep=5))
    check(article, best)


def test_077_example_6_saved_and_loaded_in_another_process(article: Any, tmp_path: Path) -> None:
    size = article.size
    tuned = autotune(configs=[article.large], **article.timing)(article.matmul)
    artifact = tuned.tune(size, size, size)
    artifact.save_to_disk(tmp_path / "saved")
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
import torch
from tlaot import AutotuneResult, CompileArgs
loaded = AutotuneResult.load_from_disk(Path("saved"), CompileArgs())
a, b = (torch.ones({size}, {size}, dtype=torch.{article.dtype}, device="{article.device}") for _ in range(2))
assert (loaded.kernel(a, b) == {size}).all()
assert loaded.config == {article.large!r}, loaded.config
assert "tilelang" not in sys.modules and "tvm" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, timeout=240)
    check(article, AutotuneResult.load_from_disk(tmp_path / "saved", CompileArgs()).kernel)
