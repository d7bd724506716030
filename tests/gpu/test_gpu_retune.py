"""``tlaot retune`` on a real GPU, with kernels of the TVM frontend, made as in test_gpu_tvm.py."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

from conftest import has_distribution  # noqa: E402
from tvm_cases import compile_case  # noqa: E402

import tlaot  # noqa: E402
from tlaot.cli import main  # noqa: E402
from tlaot.tune.shipping.package import read_packed, write_folders  # noqa: E402


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two variants of softmax and of symbolic_rows for this device, the same binary under two targets."""
    folder = os.environ.get("TLAOT_TEST_TVM_KERNELS")
    if not folder and not (has_distribution("apache-tvm") and shutil.which("nvcc")):
        pytest.skip("needs apache-tvm and nvcc, or TLAOT_TEST_TVM_KERNELS: a folder that tests/tvm_cases.py has filled")
    major, minor = torch.cuda.get_device_capability()
    packed = []
    for name in ("softmax", "symbolic_rows"):
        saved = Path(folder or tmp_path / "saved") / name
        if not folder:
            compile_case(name, f"cuda:sm_{major}{minor}").save_to_disk(saved)
        one = read_packed(saved)
        for target in (f"cuda:sm_{major}{minor}", f"cuda:sm_{major}0"):
            path = f"{name}/{target.replace(':', '-')}/any"
            made = dataclasses.replace(one.variant, target=target, path=path)
            packed.append(dataclasses.replace(one, kernel=name, variant=made))
    unique = {one.variant.path: one for one in packed}
    if len(unique) == 2:  # minor version 0: the family's suffix makes the second target
        for one in list(unique.values()):
            target = f"{one.variant.target}a"
            made = dataclasses.replace(one.variant, target=target, path=f"{one.kernel}/{target.replace(':', '-')}/any")
            unique[made.path] = dataclasses.replace(one, variant=made)
    root = tmp_path / "site" / "gpu_retune"
    root.mkdir(parents=True)
    (root / "__init__.py").write_text("")
    write_folders(root / "_tlaot", "gpu_retune", "0", list(unique.values()))
    monkeypatch.syspath_prepend(str(root.parent))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TLAOT_OVERLAY", raising=False)
    return tmp_path / "config" / "tlaot" / "overlays" / "gpu_retune.json"


def test_retune_on_this_gpu(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal variants tie, and dispatch's own stays; a size that was not packaged is taken down; calls are right afterwards."""
    common = ["retune", "gpu_retune", "--device", "cuda:0", "--busy", "--seconds", "0.5"]
    assert main([*common, "--kernel", "softmax", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    times = [variant["latency"] for variant in row["variants"]]
    assert len(times) == 2
    assert max(times) < 3 * min(times)
    rows = tlaot.load("gpu_retune").symbolic_rows
    (size,) = {s for p in rows.variants[0].params for s in p.shape or () if isinstance(s, str)}
    assert main([*common, "--kernel", "symbolic_rows", "--shape", f"{size}=300"]) == 0
    devices: dict[str, Any] = json.loads(package.read_text())["devices"]
    (choices,) = (section["choices"] for name, section in devices.items() if name == torch.cuda.get_device_name())
    assert [choice["kernel"] for choice in choices] == ["softmax", "symbolic_rows"]
    kernels = tlaot.load("gpu_retune")
    assert str(package) in repr(kernels)
    a = torch.randn(300, 100, device="cuda")
    torch.testing.assert_close(kernels.symbolic_rows(a), a * 2 + torch.arange(300, device="cuda")[:, None])
