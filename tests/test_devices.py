"""The device table, and the answers that a worker gives for the target's device."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tlaot.errors import SpecError
from tlaot.target import parse_target, read_target
from tlaot.tune.compiling.devices import DEVICES, device_for


@pytest.mark.parametrize(
    ("target", "name", "sms", "shared"),
    [
        ("cuda:sm_80", "A100", 108, 166912),
        ("cuda:sm_90a", "H100", 132, 232448),
        ("cuda:sm_100a", "B200", 148, 232448),
        ("cuda:sm_120a", "RTX PRO 6000", 188, 101376),
    ],
)
def test_table(target: str, name: str, sms: int, shared: int) -> None:
    device = device_for(parse_target(target))
    assert name in device.name
    assert (device.sm_count, device.shared_memory) == (sms, shared)
    assert device.arch == target.removeprefix("cuda:")


@pytest.mark.parametrize(
    ("target", "overrides", "shared"),
    [
        # RTX cards and L4 have 99 KiB for a block, whatever the device has that the config was tuned on.
        ("cuda:compute_80", {}, 101376),
        ("cuda:compute_80", {"shared_memory": 166912}, 101376),
        ("cuda:compute_80", {"shared_memory": 65536}, 65536),
        ("cuda:compute_90", {}, 101376),
        ("cuda:compute_90a", {}, 232448),
        ("cuda:compute_100f", {}, 232448),
        ("cuda:compute_120", {}, 101376),
        ("cuda:compute_110f", {"name": "Thor", "sm_count": 20, "shared_memory": 232448}, 232448),
    ],
)
def test_ptx_is_for_the_smallest_of_its_readers(target: str, overrides: dict[str, Any], shared: int) -> None:
    device = device_for(read_target(target), overrides)
    assert device.shared_memory == shared
    assert device.arch == target.replace("cuda:compute", "sm")
    assert (device.registers, device.max_threads) == (65536, 1024)


def test_table_is_consistent() -> None:
    for capability, device in DEVICES.items():
        assert device.capability == capability
        assert device.shared_memory <= device.shared_memory_per_sm
        assert device.max_threads_per_sm % device.warp_size == 0


def test_overrides() -> None:
    device = device_for(parse_target("cuda:sm_90a"), {"sm_count": 78, "name": "NVIDIA H20"})
    assert (device.sm_count, device.name, device.shared_memory) == (78, "NVIDIA H20", 232448)


@pytest.mark.parametrize(
    ("target", "overrides", "text"),
    [
        ("cuda:sm_90a", {"sm_cuont": 78}, "unknown key 'sm-cuont', did you mean 'sm-count'?"),
        ("cuda:sm_90a", {"colour": 78}, "unknown key 'colour'\nKnown keys: name, sm-count"),
        ("cuda:sm_90a", {"capability": 9}, "unknown key 'capability'"),
        ("cuda:sm_90a", {"sm_count": "78"}, "sm-count is not a positive integer, got '78'"),
        ("cuda:sm_90a", {"sm_count": True}, "sm-count is not a positive integer, got True"),
        ("cuda:sm_90a", {"sm_count": 0}, "sm-count is not a positive integer, got 0"),
        (
            "cuda:sm_110a",
            {},
            "no device of compute capability 11.0 is known\nDescribe it: give name, sm-count, shared-memory",
        ),
    ],
)
def test_bad_overrides(target: str, overrides: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError) as caught:
        device_for(parse_target(target), overrides)
    assert text in str(caught.value)
    assert str(caught.value).startswith(f'[target."{target}"]: ')


def test_a_described_device_needs_no_table() -> None:
    device = device_for(parse_target("cuda:sm_110a"), {"name": "Thor", "sm_count": 20, "shared_memory": 232448})
    assert (device.arch, device.capability, device.sm_count) == ("sm_110a", (11, 0), 20)


# An author's module that asks when it is imported, as persistent kernels do.
_AUTHOR = """
import torch
SMS = torch.cuda.get_device_properties(0).multi_processor_count
IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
"""

_WORKER = """
import json, sys
from tlaot.target import parse_target
from tlaot.tune.compiling.devices import device_for, impersonate
EARLY
asked = impersonate(device_for(parse_target("cuda:sm_90a"), {"sm_count": 78}))
if "EARLY" == "":
    assert "torch" not in sys.modules
import author
answers = {"SMS": author.SMS, "IS_HOPPER": author.IS_HOPPER, "asked": dict(asked)}
import torch
answers["count"] = [torch.cuda.device_count(), torch.cuda.current_device(), torch.cuda.get_device_name()]
try:
    torch.cuda.get_device_properties("cuda").uuid
except AttributeError as error:
    answers["unknown"] = str(error)
MORE
print(json.dumps(answers))
"""

_TILELANG = """
from tilelang.carver.arch import driver
from tilelang.backend.target import determine_target
answers["driver"] = [driver.get_num_sms(), driver.get_shared_memory_per_block(), driver.get_registers_per_block()]
answers["smem"] = driver.get_max_dynamic_shared_size_bytes()
from tilelang.contrib import nvcc
from tvm.target import Target
answers["version"] = [nvcc.get_target_compute_version(), nvcc.get_target_compute_version(Target({"kind": "cuda", "arch": "sm_80"}))]
with Target({"kind": "cuda", "arch": "sm_100a"}):
    answers["version"].append(nvcc.get_target_compute_version())
answers["targets"] = [str(determine_target(t, return_object=True).attrs["arch"]) for t in ("auto", "cuda")]
"""


def _run_worker(folder: Path, early: str, more: str) -> dict[str, Any]:
    (folder / "author.py").write_text(_AUTHOR)
    code = _WORKER.replace("MORE", more).replace("EARLY", early)
    here = str(Path(__file__).resolve().parent.parent)
    paths = [str(folder), *(p for p in sys.path if p), here]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("early", ["", "import torch"])
def test_torch_answers_for_the_target(early: str, tmp_path: Path) -> None:
    answers = _run_worker(tmp_path, early, "")
    assert (answers["SMS"], answers["IS_HOPPER"]) == (78, True)
    assert answers["asked"] == {"sm_count": 78, "capability": "9.0"}
    assert answers["count"] == [1, 0, "NVIDIA H100 80GB HBM3"]
    assert "does not know its 'uuid'" in answers["unknown"]


@pytest.mark.skipif(importlib.util.find_spec("tilelang") is None, reason="tilelang is not installed")
@pytest.mark.parametrize("early", ["", "import tilelang"])
def test_tilelang_answers_for_the_target(early: str, tmp_path: Path) -> None:
    answers = _run_worker(tmp_path, early, _TILELANG)
    assert answers["driver"] == [78, 49152, 65536]
    assert answers["smem"] == 233472
    assert answers["targets"] == ["sm_90a", "sm_90a"]
    assert answers["version"] == ["9.0", "8.0", "10.0"]
