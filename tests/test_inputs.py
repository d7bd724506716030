"""Inputs that a caller gives: the context, and the way of its tensors to another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tlaot.errors import SpecError
from tlaot.tune.measuring.arrays import NumpyArrays, TorchArrays
from tlaot.tune.measuring.transport import carried, read_tensors, write_tensors

np = pytest.importorskip("numpy")


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


# The context


def test_the_innermost_context_of_the_thread_counts() -> None:
    from tlaot.autotuner.inputs import captured, get_autotune_inputs, set_autotune_inputs

    elsewhere: list[Any] = []
    assert captured() is None
    with set_autotune_inputs(1, 2.5):
        assert captured() == (1, 2.5)
        with set_autotune_inputs([3, 4]):
            assert captured() == get_autotune_inputs() == (3, 4)
            thread = threading.Thread(target=lambda: elsewhere.append(captured()))
            thread.start()
            thread.join()
        assert captured() == (1, 2.5)
        with pytest.raises(KeyError), set_autotune_inputs((5,)):
            raise KeyError
        assert captured() == (1, 2.5)
    assert captured() is None and elsewhere == [None]


def test_one_tensor_is_not_taken_for_a_list() -> None:
    from tlaot.autotuner.inputs import captured, set_autotune_inputs

    array = np.zeros((3, 2))
    with set_autotune_inputs(array):
        (only,) = captured() or ()
        assert only is array


# The transport


def strides_of(array: Any) -> list[int]:
    """Those strides that mean something: a size of 1 has none, and an empty array has none at all."""
    strides = array.strides if isinstance(array, np.ndarray) else array.stride()
    shape = tuple(array.shape)
    return [] if 0 in shape else [stride for size, stride in zip(shape, strides, strict=True) if size > 1]


def layouts(base: Any) -> list[Any]:
    return [base, base.T, base[1:, ::2], base[:, 3], base[2, 1:], base[0, 0], base[:0], base[:, None]]


@pytest.mark.parametrize(
    "dtype",
    ["float16", "float32", "float64", "int8", "uint16", "int64", "bool", "complex64", "bfloat16", "float8_e4m3fn"],
)
def test_numpy_arrays_arrive_as_they_were(tmp_path: Path, dtype: str) -> None:
    if not hasattr(np, dtype) and dtype != "bool":
        dtype = getattr(pytest.importorskip("ml_dtypes"), dtype)
    base = np.random.default_rng(0).integers(0, 2, (5, 8)).astype(dtype)
    given = [view for view in layouts(base) if isinstance(view, np.ndarray)]
    given += [
        base[::-1],
        base[:, ::-2],
        np.broadcast_to(base[0], (4, 8)),
        np.asfortranarray(base),
        np.array(base[1, 1]),
    ]
    description = json.loads(json.dumps(write_tensors(given, tmp_path)))
    for before, after in zip(given, read_tensors(description, "cpu"), strict=True):
        assert isinstance(after, np.ndarray) and after.dtype == before.dtype
        assert after.shape == before.shape and after.strides == before.strides
        assert after.tobytes() == before.tobytes()


TORCH_DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "complex64",
                "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2")  # fmt: skip


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_torch_tensors_arrive_as_they_were(tmp_path: Path, torch: Any, dtype: str) -> None:
    if not hasattr(torch, dtype):
        pytest.skip("this torch does not have the type")
    size = getattr(torch, dtype).itemsize
    raw = torch.randint(0, 2, (5, 8 * size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    base = raw.view(getattr(torch, dtype))
    given = [*layouts(base), base[0].expand(4, 8)]
    description = json.loads(json.dumps(write_tensors(given, tmp_path)))
    arrays = TorchArrays("cpu")
    for before, after in zip(given, read_tensors(description, "cpu"), strict=True):
        assert isinstance(after, torch.Tensor) and after.dtype == before.dtype
        assert after.shape == before.shape and after.stride() == before.stride()
        assert arrays.same_bits(before, after)


def test_numbers_and_odd_values(tmp_path: Path, torch: Any) -> None:
    given = [
        True,
        -3,
        2.5,
        float("inf"),
        np.float32(0.5),
        np.int64(7),
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(3, dtype=torch.complex64).conj(),
    ]
    found = read_tensors(json.loads(json.dumps(write_tensors(given, tmp_path))), "cpu")
    assert found[:6] == [True, -3, 2.5, float("inf"), 0.5, 7] and found[0] is True
    assert found[6].tolist() == [1, 1] and not found[6].requires_grad
    assert found[7].tolist() == [1, 1, 1]
    assert read_tensors(write_tensors([1, 2.0], tmp_path), "cpu") == [1, 2.0]
    for wrong in (
        "text",
        None,
        [1],
        np.array([object()]),
        np.zeros(2, ">f4"),
        torch.ones(3).to_sparse(),
        torch.ones(2, device="meta"),
    ):
        with pytest.raises(SpecError, match="input 1"):
            write_tensors([1, wrong], tmp_path)


def test_anything_with_dlpack_arrives_as_a_tensor(tmp_path: Path) -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    (found,) = read_tensors(write_tensors([tvm_ffi.from_dlpack(np.arange(6.0))], tmp_path), "cpu")
    assert found.tolist() == [0, 1, 2, 3, 4, 5]


def test_writing_to_what_arrived_does_not_change_what_the_next_child_reads(tmp_path: Path) -> None:
    description = write_tensors([np.zeros(4)], tmp_path)
    (first,) = read_tensors(description, "cpu")
    first[:] = 9
    assert read_tensors(description, "cpu")[0].tolist() == [0, 0, 0, 0]


def test_the_folder_is_private_and_goes_away() -> None:
    with carried([np.zeros(4), 1]) as description:
        folder = Path(description["file"]).parent
        assert folder.stat().st_mode & 0o077 == 0
        if os.access("/dev/shm", os.W_OK):
            assert folder.parent == Path("/dev/shm")
    assert not folder.exists()


def test_a_large_tensor_is_in_memory_once(tmp_path: Path) -> None:
    """The child maps the file: what it reads is the page cache's, not a copy of its own."""
    description = write_tensors([np.ones(64 << 20, np.uint8)], tmp_path)
    script = (
        "import json, sys, resource\n"
        "from tlaot.tune.measuring.transport import read_tensors\n"
        "import numpy\n"
        "def private():\n"
        "    lines = open('/proc/self/smaps_rollup').read().splitlines()\n"
        "    return sum(int(l.split()[1]) for l in lines if l.startswith('Anonymous:'))\n"
        "before = private()\n"
        "(array,) = read_tensors(json.loads(sys.argv[1]), 'cpu')\n"
        "assert int(array.sum()) == 64 << 20\n"
        "print(private() - before)\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(description)], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 16 << 10  # KiB


# Copies of inputs


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_copy_has_the_strides_of_the_original_and_shares_nothing(name: str) -> None:
    if name == "torch":
        torch = pytest.importorskip("torch")
        base, arrays = torch.arange(40.0).reshape(5, 8), TorchArrays("cpu")
        given = [*layouts(base), base[0].expand(4, 8)]
    else:
        base, arrays = np.arange(40.0).reshape(5, 8), NumpyArrays()
        given = [view for view in layouts(base) if isinstance(view, np.ndarray)]
        given += [base[::-1], np.broadcast_to(base[0], (4, 8)), np.asfortranarray(base)]
    for view in given:
        copy = arrays.clone(view)
        assert strides_of(copy) == strides_of(view) and arrays.same_bits(copy, view)
        if 0 in tuple(view.shape) or 0 in strides_of(view):
            continue
        copy[...] = -1
        assert (base >= 0).all()
        arrays.copy_into(copy, view)
        assert arrays.same_bits(copy, view)
    assert arrays.clone(3) == 3


def test_tensors_of_other_libraries_are_adopted(torch: Any) -> None:
    arrays = TorchArrays("cpu")
    assert arrays.adopt(np.arange(3)).tolist() == [0, 1, 2]
    assert arrays.adopt(np.float32(0.5)) == 0.5 and arrays.adopt(2) == 2
    ml_dtypes = pytest.importorskip("ml_dtypes")
    short = arrays.adopt(np.arange(3).astype(ml_dtypes.bfloat16))
    assert short.dtype == torch.bfloat16 and short.tolist() == [0, 1, 2]
    assert NumpyArrays().adopt(torch.arange(3)).tolist() == [0, 1, 2]
