"""Tuning results: what they hold, how they are saved, what is refused before the dynamic linker sees it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import stat
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from build_settings import Settings
from fixtures_runtime import compile_kernel, scalar, tensor

import tlaot
from tlaot.autotuner.args import CompileArgs, TensorSupplyType
from tlaot.autotuner.kernel import open_packed
from tlaot.autotuner.result import AutotuneResult, restore_result, result_from_winner, save_packed
from tlaot.autotuner.tuner import _tell_doubts
from tlaot.errors import CallError, DispatchError, LoadError, PackageError
from tlaot.manifest import Param, digest_of
from tlaot.target import parse_target
from tlaot.tune.compiling.compile import Built
from tlaot.tune.shipping.package import Winner, pack_winner, read_packed, write_folders, write_package
from tlaot.tune.specs.plan import Workload
from tlaot.tune.specs.spec import KernelSpec

np = pytest.importorskip("numpy")

PARAMS = [tensor("A", 4), tensor("B", 4), tensor("C", 4, written=True)]
TUNED: dict[str, float | None] = {"latency": 1.5, "ref_latency": 3.0, "default_latency": 2.0, "spread": 0.1}
UNTUNED: dict[str, float | None] = {"latency": None, "ref_latency": None, "default_latency": None, "spread": None}

MakeWinner = Callable[..., Winner]


class Stage(Enum):
    TWO = "two"


@pytest.fixture
def winner(tmp_path: Path) -> MakeWinner:
    """Makes a winner as a tuning gives it, of a kernel that adds ``label`` and its inputs."""

    def make(
        label: int = 0,
        params: list[Param] = PARAMS,
        out_idx: tuple[int, ...] = (2,),
        target: str = "llvm:x86-64",
        sources: bool = False,
        config: dict[str, Any] | None = None,
        latency: dict[str, float | None] = TUNED,
        level: int = 4,
        shape: dict[str, Any] | None = None,
    ) -> Winner:
        folder = tmp_path / "scratch" / f"{label}"
        folder.mkdir(parents=True, exist_ok=True)
        binary = compile_kernel(len(params), sum(1 << i for i in out_idx), label=label, level=level)
        (folder / "executable.so").write_bytes(binary)
        if sources:
            (folder / "device_kernel.cu").write_text("__global__ void add();\n")
            (folder / "host_kernel.c").write_text("int main(void);\n")
        parsed = parse_target(target)
        kernel = KernelSpec("add", "tvm", "m:add", (parsed,), ({},), ({},), "test")
        built = Built(folder, digest_of(binary), tuple(params), out_idx, {"name": "tvm", "version": "0"}, {})
        config = {"block": 2, "order": [1, 2]} if config is None else config
        return Winner(
            Workload(kernel, parsed, {"N": 4} if shape is None else shape, (config,)),
            config,
            built,
            latency,
            {"device": "a CPU"},
        )

    return make


def arrays() -> tuple[Any, Any]:
    return np.full(4, 2, "f4"), np.full(4, 3, "f4")


def beside(path: Path) -> set[str]:
    return {entry.name for entry in path.parent.iterdir()}


def factory() -> None:
    """Stands for the author's factory."""


# The result and its kernel


def test_what_a_result_holds(winner: MakeWinner) -> None:
    result = result_from_winner(winner(sources=True), factory)
    kernel = result.kernel
    assert (result.latency, result.ref_latency) == (1.5, 3.0)
    assert result.config == {"block": 2, "order": [1, 2]}
    assert result.func is factory
    assert result.libcode == kernel.get_kernel_source() == kernel.kernel_source == "__global__ void add();\n"
    assert kernel.get_host_source() == kernel.host_source == "int main(void);\n"
    assert kernel.get_tuner_result() == {"latency": 1.5, "config": result.config, "ref_latency": 3.0}
    assert kernel.params == PARAMS
    assert kernel.out_idx == [2]
    assert str(kernel.target) == "llvm:x86-64"
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.latency = 1.0  # type: ignore[misc]


def test_a_kernel_is_called_as_a_jit_kernel(winner: MakeWinner) -> None:
    """Inputs only: the output is returned; everything: it is written in place; several outputs come as a list."""
    kernel = result_from_winner(winner(), None).kernel
    assert (kernel(*arrays()) == 5).all()
    c = np.zeros(4, "f4")
    assert kernel(*arrays(), c) is c
    assert (c == 5).all()
    with pytest.raises((CallError, DispatchError)):
        kernel(np.zeros(4, "f4"))
    with pytest.raises((CallError, DispatchError, ValueError)):
        kernel(np.zeros(5, "f4"), np.zeros(5, "f4"))
    several = [tensor("A", 4), tensor("B", 4, written=True), tensor("C", 4, written=True)]
    outputs = result_from_winner(winner(7, several, (1, 2)), None).kernel(np.ones(4, "f4"))
    assert isinstance(outputs, list)
    assert [list(out) for out in outputs] == [[8] * 4] * 2
    in_place = result_from_winner(winner(1, out_idx=()), None).kernel
    assert in_place.out_idx == []


def test_a_kernel_without_sources_says_so(winner: MakeWinner) -> None:
    result = result_from_winner(winner(), None)
    assert result.libcode is None
    for get in (result.kernel.get_kernel_source, result.kernel.get_host_source):
        with pytest.raises(PackageError, match="LLVM"):
            get()


def test_what_was_only_compiled_is_not_tuned(winner: MakeWinner) -> None:
    result = result_from_winner(winner(latency=UNTUNED), factory)
    assert (result.latency, result.config, result.ref_latency) == (None, None, None)
    assert result.kernel.config is None
    with pytest.raises(ValueError, match="not available"):
        result.kernel.get_tuner_result()


def test_a_result_measured_on_a_busy_machine_says_so_wherever_it_goes(winner: MakeWinner, tmp_path: Path) -> None:
    doubtful = dataclasses.replace(winner(), doubts=("measured while the device was busy",))
    result_from_winner(doubtful, None).save_to_disk(tmp_path / "r")
    loaded = AutotuneResult.load_from_disk(tmp_path / "r")
    assert loaded is not None
    assert loaded.kernel.packed.variant.properties["trusted"] is False
    request: Any = SimpleNamespace(factory=SimpleNamespace(name="add"))
    with pytest.warns(
        UserWarning, match="add: the cached result is not to be trusted: measured while .* busy; .*clear"
    ):
        _tell_doubts(request, loaded)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _tell_doubts(request, result_from_winner(winner(), None))


def test_a_wrong_shape_is_answered_with_the_factory_and_not_with_a_build(winner: MakeWinner) -> None:
    kernel = result_from_winner(winner(), None).kernel
    five = np.zeros(5, "f4")
    with pytest.raises(DispatchError, match=r"this tuned kernel does not fit .*\[5\]") as caught:
        kernel(five, five)
    assert caught.value.remedy.startswith("Tune for that shape: call the factory with it")
    with pytest.raises(DispatchError) as caught:
        kernel(np.zeros(4, "f8"), np.zeros(4, "f8"))
    assert "tltune.toml" not in str(caught.value) and "has dtype float64, expected float32" in str(caught.value)


def test_results_do_not_share_state(winner: MakeWinner, tmp_path: Path) -> None:
    """Two loads of one folder, and a kernel's config, are nobody else's."""
    result_from_winner(winner(), None).save_to_disk(tmp_path / "r")
    one, two = AutotuneResult.load_from_disk(tmp_path / "r"), AutotuneResult.load_from_disk(tmp_path / "r")
    assert one is not None and two is not None
    assert one.kernel is not two.kernel
    assert one.config is not None
    one.config["order"].append(3)
    one.kernel.config["order"].append(4)  # type: ignore[index]
    assert two.config == {"block": 2, "order": [1, 2]} == two.kernel.config == one.kernel.config


def test_a_result_needs_no_folder_once_it_is_loaded(winner: MakeWinner, tmp_path: Path) -> None:
    """The build's scratch and the saved folder may go; the kernel still runs, exports and saves."""
    made = winner(3, sources=True)
    result = result_from_winner(made, None, tmp_path / "cache" / "entry")
    shutil.rmtree(made.built.folder)
    shutil.rmtree(tmp_path / "cache")
    assert (result.kernel(*arrays()) == 8).all()
    result.save_to_disk(tmp_path / "again")
    result.kernel.export_library(tmp_path / "lib.so")
    result.kernel.export_sources(tmp_path / "k.cu", str(tmp_path / "h.c"))
    assert (tmp_path / "k.cu").read_text() == result.libcode
    import tvm_ffi

    c = np.zeros(4, "f4")
    tvm_ffi.load_module(str(tmp_path / "lib.so"))["tlaot_call"](*arrays(), c)
    assert (c == 8).all()


def test_nothing_is_left_in_the_temporary_folder(
    winner: MakeWinner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = winner()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    assert result_from_winner(made, None).kernel is not None
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_config_of_any_values(winner: MakeWinner, tmp_path: Path) -> None:
    """At hand it is the author's own; on disk what JSON lacks is text, the same in every process."""
    config = {
        "dtype": np.float16,
        "tile": (64, np.int64(32)),
        "stage": Stage.TWO,
        "epilogue": factory,
        "scale": np.float32(0.5),
    }
    result = result_from_winner(winner(config=config), None)
    assert result.config == config
    result.save_to_disk(tmp_path / "r")
    loaded = AutotuneResult.load_from_disk(tmp_path / "r")
    assert loaded is not None
    assert loaded.config == {
        "dtype": "numpy.float16",
        "tile": [64, 32],
        "stage": "two",
        "epilogue": f"{factory.__module__}.factory",
        "scale": 0.5,
    }


def test_timing_a_kernel(winner: MakeWinner) -> None:
    kernel = result_from_winner(winner(), None).kernel
    for inputs in (None, arrays(), (*arrays(), np.zeros(4, "f4"))):
        assert 0 < kernel.do_bench(warmup=1, rep=5, input_tensors=inputs) < 10
    with pytest.raises((CallError, DispatchError)):
        kernel.do_bench(input_tensors=[np.zeros(4, "f4")])
    for params in ([tensor("A", "n"), tensor("B", 4)], [scalar("s"), tensor("B", 4)]):
        free = result_from_winner(winner(1, params, (1,)), None).kernel
        with pytest.raises(CallError, match="Pass input_tensors"):
            free.do_bench()


def test_a_profiler_checks_and_times(winner: MakeWinner) -> None:
    kernel = result_from_winner(winner(), None).kernel
    profiler = kernel.get_profiler(TensorSupplyType.Normal)
    profiler.assert_allclose(lambda a, b: a + b)
    profiler.assert_allclose(lambda a, b: [a + b], input_tensors=arrays())
    with pytest.raises(AssertionError, match="output C"):
        profiler.assert_allclose(lambda a, b: a + b + 1)
    with pytest.raises(AssertionError, match="the reference returned 2"):
        profiler.assert_allclose(lambda a, b: [a, b])
    assert profiler.run_once().shape == (4,)
    assert 0 < profiler.do_bench(lambda a, b: a + b, warmup=1, rep=5) < 10
    in_place = result_from_winner(
        winner(1, out_idx=(), params=[tensor("A", 4), tensor("B", 4, written=True)]), None
    ).kernel
    in_place.get_profiler().assert_allclose(lambda a, b: b)
    free = result_from_winner(winner(2, [tensor("A", "n"), tensor("B", "n", written=True)], (1,)), None).kernel
    assert free.get_profiler().do_bench(warmup=1, rep=5, dynamic_symbolic_constraints={"n": 100}) > 0


def test_a_loaded_result_gets_its_own_objects_back(winner: MakeWinner, tmp_path: Path) -> None:
    """As for one that a cache holds: config with dtypes, factory, and a kernel that nobody else has."""
    configs = [{"dtype": np.float32, "tile": (1, 2)}, {"dtype": np.float16, "tile": (1, 2)}]
    result_from_winner(winner(config=configs[1]), None, tmp_path / "r")
    loaded = AutotuneResult.load_from_disk(tmp_path / "r")
    assert loaded is not None
    restored = restore_result(loaded, factory, iter(configs))
    assert restored.config == configs[1] == restored.kernel.config == restored.kernel.get_tuner_result()["config"]
    assert restored.func is factory
    assert restored.kernel is not loaded.kernel
    assert (restored.kernel(*arrays()) == loaded.kernel(*arrays())).all()
    assert loaded.config == {"dtype": "numpy.float16", "tile": [1, 2]}
    assert restore_result(loaded, factory, []).config == loaded.config


# Saving


@pytest.mark.parametrize("kind", [str, Path])
def test_save_and_load(winner: MakeWinner, tmp_path: Path, kind: type) -> None:
    path = tmp_path / "new" / "place" / "r"
    result = result_from_winner(winner(sources=True), factory)
    result.save_to_disk(kind(path))
    assert beside(path) == {"r"}
    assert {file.name for file in path.iterdir()} == {
        "best_config.json", "device_kernel.cu", "executable.so", "host_kernel.c", "latency.json", "out_idx.json",
        "params.json", "variant.json",
    }  # fmt: skip
    assert stat.S_IMODE(path.stat().st_mode) & 0o055 == 0o055, "another user cannot read it"
    loaded = AutotuneResult.load_from_disk(kind(path), CompileArgs())
    assert loaded is not None
    assert (loaded.latency, loaded.config, loaded.ref_latency, loaded.libcode) == (
        result.latency, result.config, result.ref_latency, result.libcode,
    )  # fmt: skip
    assert loaded.func is None
    assert (loaded.kernel(*arrays()) == 5).all()


def test_a_relative_path_and_a_link(winner: MakeWinner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = result_from_winner(winner(), None)
    result.save_to_disk("r")
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store" / "target")
    result.save_to_disk("link")
    assert (tmp_path / "link").is_symlink()
    for path in ("r", "link"):
        loaded = AutotuneResult.load_from_disk(path)
        assert loaded is not None
        assert (loaded.kernel(*arrays()) == 5).all()


def test_a_saved_result_is_the_same_bytes_again(winner: MakeWinner, tmp_path: Path) -> None:
    result_from_winner(winner(sources=True), None).save_to_disk(tmp_path / "a")
    loaded = AutotuneResult.load_from_disk(tmp_path / "a")
    assert loaded is not None
    loaded.save_to_disk(tmp_path / "b")
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_a_complete_result_is_kept(winner: MakeWinner, tmp_path: Path) -> None:
    """Silently if it is this one, with a warning if it is another."""
    path = tmp_path / "r"
    first, second = result_from_winner(winner(1), None), result_from_winner(winner(2), None)
    first.save_to_disk(path)
    before = path.stat()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first.save_to_disk(path)
    with pytest.warns(UserWarning, match="another result"):
        second.save_to_disk(path)
    assert path.stat().st_ino == before.st_ino
    loaded = AutotuneResult.load_from_disk(path)
    assert loaded is not None
    assert (loaded.kernel(*arrays()) == 6).all()
    assert result_from_winner(winner(2), None, path).kernel(*arrays())[0] == 6


@pytest.mark.parametrize("damage", ["empty", "no entry", "no library", "truncated", "entry"])
def test_a_broken_result_is_replaced(winner: MakeWinner, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "r"
    result = result_from_winner(winner(1), None)
    if damage == "empty":
        path.mkdir()
    else:
        result.save_to_disk(path)
        if damage == "no entry":
            (path / "variant.json").unlink()
        elif damage == "no library":
            (path / "executable.so").unlink()
        elif damage == "truncated":
            os.truncate(path / "executable.so", 5000)
        else:
            (path / "variant.json").write_text("{")
    result_from_winner(winner(2), None).save_to_disk(path)
    assert beside(path) == {"r", "scratch"}
    loaded = AutotuneResult.load_from_disk(path)
    assert loaded is not None
    assert (loaded.kernel(*arrays()) == 7).all()


def test_nobody_loses_files(winner: MakeWinner, tmp_path: Path) -> None:
    """A folder with other things and a file are refused and left alone."""
    result = result_from_winner(winner(), None)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    with pytest.raises(PackageError, match=r"thesis\.tex"):
        result.save_to_disk(tmp_path / "home")
    with pytest.raises(PackageError, match="is a file"):
        result.save_to_disk(tmp_path / "file")
    assert (tmp_path / "home" / "thesis.tex").read_text() == "x"
    assert beside(tmp_path / "home") == {"home", "file", "scratch"}


def test_errors_of_saving_are_raised_and_leave_nothing(
    winner: MakeWinner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = result_from_winner(winner(), None)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        result.save_to_disk(tmp_path / "r")
    assert beside(tmp_path / "r") == {"scratch"}


def test_many_save_at_once(winner: MakeWinner, tmp_path: Path) -> None:
    """Threads race on a broken folder: one wins, every reader sees a whole result or none."""
    path = tmp_path / "r"
    packed = [pack_winner(winner(label), keep=False) for label in range(6)]
    path.mkdir()
    (path / "variant.json").write_text("broken")
    wrote: list[int] = []
    errors: list[BaseException] = []

    def save(label: int) -> None:
        try:
            if save_packed(packed[label], path):
                wrote.append(label)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(label,)) for label in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(wrote) == 1
    assert read_packed(path).variant == packed[wrote[0]].variant
    assert beside(path) == {"r", "scratch"}


# Loading


def test_no_folder_is_no_result(tmp_path: Path) -> None:
    assert AutotuneResult.load_from_disk(tmp_path / "none") is None
    assert AutotuneResult.load_from_disk(str(tmp_path / "none"), CompileArgs(target="llvm")) is None


@pytest.fixture
def saved(winner: MakeWinner, tmp_path: Path) -> Path:
    result_from_winner(winner(sources=True), None).save_to_disk(tmp_path / "r")
    return tmp_path / "r"


FILES = [
    "best_config.json",
    "device_kernel.cu",
    "executable.so",
    "latency.json",
    "out_idx.json",
    "params.json",
    "variant.json",
]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "flipped", "longer", "folder"])
def test_a_damaged_file_is_an_error_that_names_it(saved: Path, name: str, damage: str) -> None:
    file = saved / name
    data = file.read_bytes()
    file.unlink()
    changed = {
        "empty": b"",
        "truncated": data[: len(data) // 2],
        "flipped": data[:40] + bytes([data[40] ^ 4]) + data[41:] if len(data) > 40 else bytes([data[0] ^ 4]) + data[1:],
        "longer": data + b"x",
    }
    if damage in changed:
        file.write_bytes(changed[damage])
    elif damage == "folder":
        file.mkdir()
    with pytest.raises(PackageError, match=name.replace(".", r"\.")) as caught:
        AutotuneResult.load_from_disk(saved)
    assert str(file) == caught.value.where
    assert "tune again" in caught.value.remedy


def test_what_is_no_folder_of_ours(tmp_path: Path) -> None:
    """A file, an empty folder, one of TileLang."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "best_config.json").write_text("{}")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "empty", "theirs", "dangling"):
        with pytest.raises(PackageError, match=r"variant\.json"):
            AutotuneResult.load_from_disk(tmp_path / name)


@pytest.mark.parametrize("name", ["../scratch/0/executable.so", "", ".", "..", "a/b", "/etc/hostname"])
def test_an_entry_lists_no_file_outside_its_folder(saved: Path, name: str) -> None:
    from tlaot.manifest import _seal

    body = json.loads((saved / "variant.json").read_text())
    del body["digest"]
    body["files"][name] = {"sha256": "0" * 64, "size": 0}
    (saved / "variant.json").write_text(_seal(body))
    with pytest.raises(PackageError):
        AutotuneResult.load_from_disk(saved)


ACCEPTED: list[Any] = [
    None,
    "auto",
    "llvm",
    "llvm:x86-64-v2",
    "llvm:x86-64-v3",
    parse_target("llvm:x86-64-v2"),
    {"kind": "llvm"},
]
REFUSED: list[Any] = [
    "c",
    "cuda",
    "cuda:sm_90a",
    "llvm:x86-64",
    {"kind": "cuda", "arch": "sm_90"},
    {"kind": "llvm", "mcpu": "x86-64"},
]


@pytest.mark.parametrize("target", ACCEPTED + REFUSED, ids=str)
def test_the_target_must_be_what_was_asked_for(winner: MakeWinner, tmp_path: Path, target: Any) -> None:
    result_from_winner(winner(target="llvm:x86-64-v2"), None).save_to_disk(tmp_path / "r")
    args = CompileArgs(target=target)
    if target in ACCEPTED:
        assert AutotuneResult.load_from_disk(tmp_path / "r", args) is not None
        return
    with pytest.raises(LoadError, match="is for llvm:x86-64-v2"):
        AutotuneResult.load_from_disk(tmp_path / "r", args)


def test_cuda_targets_follow_the_rule_of_architectures(winner: MakeWinner, tmp_path: Path) -> None:
    """sm_90a code serves who asks for sm_90; code of another architecture is refused before it fails at the launch."""
    result_from_winner(winner(target="cuda:sm_90a"), None).save_to_disk(tmp_path / "r")
    tvm_target = SimpleNamespace(kind=SimpleNamespace(name="cuda"), attrs={"arch": "sm_90"})
    for target in ("cuda", "cuda:sm_90a", {"kind": "cuda", "arch": "sm_90"}, tvm_target):
        assert AutotuneResult.load_from_disk(tmp_path / "r", CompileArgs(target=target)) is not None
    for target in ("cuda:sm_80", "cuda:sm_100a", "llvm"):
        with pytest.raises(LoadError, match="is for cuda:sm_90a"):
            AutotuneResult.load_from_disk(tmp_path / "r", CompileArgs(target=target))
    loaded = AutotuneResult.load_from_disk(tmp_path / "r")
    assert loaded is not None
    with pytest.raises(DispatchError, match="cuda:sm_90a"):
        loaded.kernel(*arrays())


def test_out_idx_is_saved_and_compared(saved: Path) -> None:
    for out_idx in (None, -1, 2, [-1], (2,)):
        loaded = AutotuneResult.load_from_disk(saved, CompileArgs(out_idx=out_idx))
        assert loaded is not None
        assert loaded.kernel.out_idx == [2]
    with pytest.raises(LoadError, match=r"outputs \[2\]"):
        AutotuneResult.load_from_disk(saved, CompileArgs(out_idx=[0]))


def test_a_processor_without_the_level_is_refused_at_the_call(winner: MakeWinner, tmp_path: Path) -> None:
    result = result_from_winner(winner(target="llvm:x86-64-v4", level=2), None, tmp_path / "r")
    with pytest.raises(DispatchError, match="x86-64-v4"):
        result.kernel(*arrays())


def test_another_content_in_the_same_folder_is_another_kernel(winner: MakeWinner, tmp_path: Path) -> None:
    """The dynamic linker goes by the path and would give the first library for ever."""
    path = tmp_path / "r"
    kernels = []
    for label in (1, 2, 3, 1, 2):
        shutil.rmtree(path, ignore_errors=True)
        result_from_winner(winner(label), None).save_to_disk(path)
        loaded = AutotuneResult.load_from_disk(path)
        assert loaded is not None
        kernels.append((label, loaded.kernel))
    for label, kernel in kernels:
        assert (kernel(*arrays()) == 5 + label).all()


def test_a_library_overwritten_in_place_is_refused(winner: MakeWinner, tmp_path: Path) -> None:
    """Its pages are mapped: there is no telling what would run."""
    path = tmp_path / "r"
    result_from_winner(winner(1), None, path)
    other = pack_winner(winner(2), keep=True)
    # As "cp" does: the same file, other bytes. The old code in this process is dead, and is not called any more.
    for name, data in other.contents.items():
        (path / name).write_bytes(data)
    with pytest.raises(LoadError, match="in place"):
        AutotuneResult.load_from_disk(path)
    with pytest.raises(LoadError, match="in place"):
        open_packed(other, path)


# Packages and other processes


def test_a_variant_of_a_package_is_a_result(winner: MakeWinner, tmp_path: Path) -> None:
    write_package(tmp_path / "pk" / "_tlaot", "pk", "0", [winner()], keep=False)
    folder = tmp_path / "pk" / "_tlaot" / "add" / "llvm-x86-64" / "N4"
    loaded = AutotuneResult.load_from_disk(folder)
    assert loaded is not None
    assert (loaded.kernel(*arrays()) == 5).all()
    assert loaded.config == {"block": 2, "order": [1, 2]}


def test_a_variant_that_shares_its_binary_is_loaded_from_a_package(winner: MakeWinner, tmp_path: Path) -> None:
    """From the folder that holds it; saved again, the result has a folder of its own that needs no other."""
    twins = [winner(sources=True), winner(sources=True, shape={"N": 5})]
    files = write_package(tmp_path / "_tlaot", "pk", "0", twins, keep=True)
    (second,) = [path for path in (tmp_path / "_tlaot").glob("add/*/N5")]
    assert sum(file.name == "executable.so" for file in files) == 1
    assert not (second / "executable.so").exists()
    result = AutotuneResult.load_from_disk(second)
    assert result is not None and result.libcode == "__global__ void add();\n"
    assert (result.kernel(*arrays()) == 5).all()
    result.save_to_disk(tmp_path / "own")
    shutil.rmtree(tmp_path / "_tlaot")
    again = AutotuneResult.load_from_disk(tmp_path / "own")
    assert again is not None and (again.kernel(*arrays()) == 5).all()
    assert again.kernel.packed == result.kernel.packed


def test_saved_results_are_packed(winner: MakeWinner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result_from_winner(winner(), None).save_to_disk(tmp_path / "one")
    result_from_winner(winner(9, shape={"N": 5}, params=[tensor(n, 5) for n in "ABC"]), None).save_to_disk(
        tmp_path / "two"
    )
    root = tmp_path / "site"
    (root / "pk_saved").mkdir(parents=True)
    (root / "pk_saved" / "__init__.py").write_text("")
    packed = [read_packed(tmp_path / name) for name in ("one", "two")]
    files = write_folders(root / "pk_saved" / "_tlaot", "pk_saved", "0", packed)
    assert Path("add/llvm-x86-64/N4/variant.json") in files
    monkeypatch.syspath_prepend(str(root))
    kernels = tlaot.load("pk_saved")
    assert (kernels.add(*arrays()) == 5).all()
    assert (kernels.add(np.ones(5, "f4"), np.ones(5, "f4")) == 11).all()
    for bad, why in ((packed[0], "two variants"), (outside(packed[0]), "outside the package")):
        with pytest.raises(PackageError, match=why):
            write_folders(root / "pk_saved" / "_tlaot", "pk_saved", "0", [packed[0], bad])
    assert len(tlaot.load("pk_saved").add.variants) == 2, "a failure damaged what was there"


def outside(packed: Any) -> Any:
    return dataclasses.replace(packed, variant=dataclasses.replace(packed.variant, path="../../evil"))


READER = """
import sys
import numpy as np
from tlaot.autotuner.args import CompileArgs
from tlaot.autotuner.result import AutotuneResult
result = AutotuneResult.load_from_disk(sys.argv[1], CompileArgs())
assert result.config == {"block": 2, "order": [1, 2]} and result.latency == 1.5
print(result.kernel(np.full(4, 2, "f4"), np.full(4, 3, "f4")).tolist())
assert not {"tvm", "tilelang"} & set(sys.modules), "a frontend was imported"
"""


def test_another_process_reads_it(saved: Path, tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(READER), str(saved)], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[5.0, 5.0, 5.0, 5.0]\n"


PROJECT = """
def scale(N, tile=1):
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
        for i in T.serial(N):
            B[i] = A[i] * T.float32(2)
    return main

def fill(N, tile=1):
    import tilelang.language as T

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=1) as bx:
            for i in T.serial(N):
                B[i] = A[i] * 2.0
    return main

def reference(a):
    return a * 2.0
"""


@pytest.mark.parametrize(
    ("frontend", "distribution", "target", "function"),
    [("tvm", "apache-tvm", "llvm", "scale"), ("tilelang", "tilelang", "c", "fill")],
)
def test_what_a_real_build_packs_is_a_result(
    tmp_path: Path, frontend: str, distribution: str, target: str, function: str
) -> None:
    """From a spec through the whole pipeline to a package's folder, a result, a saved one, and a package again."""
    from importlib import metadata

    from tlaot.tune.pipeline import build_package

    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        pytest.skip(f"needs {distribution}")
    (tmp_path / "kernels.py").write_text(PROJECT)
    (tmp_path / "tltune.toml").write_text(
        f"""[tlaot]
package = "pk"
targets = ["{target}"]
[[kernel]]
name = "scale"
frontend = "{frontend}"
factory = "kernels:{function}"
shapes = [{{ N = 64 }}]
space = {{ tile = [1, 2] }}
reference = "kernels:reference"
out-idx = [-1]
profile = {{ warmup = 1, rep = 5, timeout = 30, compile-timeout = 60, decide-budget = 0.2, quiet-timeout = 0 }}
"""
    )
    settings = Settings(jobs=1, keep=True)
    output = tmp_path / "out" / "_tlaot"
    build_package(tmp_path / "tltune.toml", tmp_path, output, settings, lambda line: None)
    (folder,) = {path.parent for path in output.rglob("variant.json")}
    loaded = AutotuneResult.load_from_disk(folder, CompileArgs(target=target, out_idx=-1))
    assert loaded is not None
    a = np.arange(64, dtype="f4")
    assert (loaded.kernel(a) == 2 * a).all()
    assert loaded.latency is not None and loaded.latency > 0
    assert loaded.config in ({"tile": 1}, {"tile": 2})
    assert (loaded.libcode is None) == (target == "llvm")
    loaded.kernel.get_profiler().assert_allclose(lambda x: x * 2)
    loaded.save_to_disk(tmp_path / "saved")
    again = tmp_path / "again" / "_tlaot"
    manifest = json.loads((output / "manifest.json").read_text())
    files = write_folders(again, "pk", manifest["writer"], [read_packed(tmp_path / "saved")])
    assert sorted(files) == sorted(path.relative_to(output) for path in output.rglob("*") if path.is_file())
    for file in files:
        assert (again / file).read_bytes() == (output / file).read_bytes(), file
