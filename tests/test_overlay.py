"""Overlays: what ``tlaot retune`` writes, when the loader honours it, and that nothing in a file stops a program."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fixtures_runtime import compile_kernel, compile_source, scalar, tensor, variant, write_package

import tlaot
from tlaot.cli import main
from tlaot.manifest import Param, Variant
from tlaot.runtime import overlay as overlay_module
from tlaot.runtime.device import cpu_name
from tlaot.runtime.dispatch import Argument
from tlaot.runtime.places import overlay_path

np = pytest.importorskip("numpy")

V1, V2 = "llvm:x86-64", "llvm:x86-64-v2"
SLOW = 400_000  # steps of a loop: half a millisecond or more


def params(*shape: int | str, dtype: str = "float32") -> list[Param]:
    return [tensor("A", *shape, dtype=dtype), tensor("B", *shape, dtype=dtype), tensor("C", *shape, written=True)]


def build(
    target: str, label: int = 0, spin: int = 0, shape: Sequence[int | str] = (4, 8), **workload: Any
) -> tuple[Variant, bytes]:
    """A kernel that gives a + b + label, on any processor that has level 2."""
    one = variant("add", params(*shape), [2], workload or {"N": 8}, target)
    return one, compile_kernel(3, 0b100, level=2, label=label, spin=spin)


Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Writes an importable package; the user's configuration folder is below ``tmp_path``."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TLAOT_OVERLAY", "TLAOT_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(overlay_module, "_said", set())

    def write(name: str, *built: tuple[Variant, bytes], kernel: str = "add") -> Path:
        write_package(tmp_path / "site", name, {kernel: built})
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        return tmp_path / "config" / "tlaot" / "overlays" / f"{name}.json"

    return write


def call(kernel: Any, *shape: int) -> float:
    a, b = np.full(shape or (4, 8), 2, "f4"), np.full(shape or (4, 8), 3, "f4")
    return float(kernel(a, b).flat[0])


def choice(target: str, *inputs: str, shape: Any = None, workload: Any = None) -> dict[str, Any]:
    return {
        "kernel": "add",
        "workload": workload or {"N": 8},
        "arguments": list(inputs) or ["float32[4, 8]"] * 2,
        "target": target,
        "shape": shape or {"N": 8},
        "times": [],
    }


def save(path: Path, package: str, *choices: Any, device: str | None = None, kernels: str | None = None) -> None:
    """An overlay as retune would have made it of the package as it is."""
    if kernels is None:
        kernels = overlay_module.digest_homes(tlaot.load(package)._homes)
    section = {"kernels": kernels, "tlaot": "0", "choices": list(choices)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": 1, "package": package, "devices": {device or cpu_name(): section}}))


def test_a_call_runs_what_the_overlay_chooses(make: Make) -> None:
    """Whether outputs are passed or not, in copies and pickles; another call is left alone; repr names the file."""
    path = make("ov_used", build(V1, 1), build(V2, 2), build(V1, 3, shape=(5, 8), N=9), build(V2, 4, shape=(5, 8), N=9))
    assert call(tlaot.load("ov_used").add) == 7
    save(path, "ov_used", choice(V1))
    kernels = tlaot.load("ov_used")
    assert f"overlay {path}" in repr(kernels)
    for made in (kernels, copy.deepcopy(kernels), pickle.loads(pickle.dumps(kernels))):
        assert call(made.add) == 6
        assert call(made.add, 5, 8) == 9, "nothing was said of this workload"
    a, c = np.zeros((4, 8), "f4"), np.empty((4, 8), "f4")
    kernels.add(a, a, c)
    assert c[0, 0] == 1
    assert kernels.add.resolve(a, a).target == V1
    assert call(pickle.loads(pickle.dumps(kernels.add))) == 6


def test_a_symbolic_variant_for_one_size(make: Make) -> None:
    """A size that retune was asked for takes one variant, all others dispatch's."""
    path = make("ov_sym", build(V1, 1, shape=("n", 8), K=8), build(V2, 2, shape=("n", 8), K=8))
    save(path, "ov_sym", choice(V1, "float32[300, 8]", "float32[300, 8]", shape={"K": 8}, workload={"K": 8}))
    kernel = tlaot.load("ov_sym").add
    assert (call(kernel, 300, 8), call(kernel, 301, 8)) == (6, 7)


def test_an_exact_workload_may_take_a_symbolic_variant(make: Make) -> None:
    path = make("ov_mix", build(V1, 1, shape=(4, 8), M=4, K=8), build(V1, 2, shape=("m", 8), K=8))
    assert call(tlaot.load("ov_mix").add) == 6
    save(path, "ov_mix", choice(V1, shape={"K": 8}, workload={"M": 4, "K": 8}))
    assert call(tlaot.load("ov_mix").add) == 7


def test_an_overlay_never_hides_what_dispatch_refuses(make: Make) -> None:
    """Two workloads that take the same tensors stay ambiguous, and a choice that does not fit the call is none."""
    path = make("ov_amb", build(V1, 1, N=8, flag=0), build(V1, 2, N=8, flag=1))
    save(path, "ov_amb", choice(V1, shape={"N": 8, "flag": 1}, workload={"N": 8, "flag": 0}))
    kernel = tlaot.load("ov_amb").add
    with pytest.raises(tlaot.CallError, match="differ in flag"):
        call(kernel)
    a = np.zeros((4, 8), "f4")
    assert kernel(a, a, flag=0)[0, 0] == 1, "the caller names the other workload"
    path = make("ov_unfit", build(V1, 1), build(V2, 2, shape=(5, 8), N=9))
    save(path, "ov_unfit", choice(V2, shape={"N": 9}), choice("cuda:sm_90a", shape={"N": 8}))
    assert call(tlaot.load("ov_unfit").add) == 6


def test_another_device_or_other_kernels(make: Make) -> None:
    """A section of another device model is nothing; one of other kernels is said once."""
    path = make("ov_other", build(V1, 1), build(V2, 2))
    save(path, "ov_other", choice(V1), device="Another CPU")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call(tlaot.load("ov_other").add) == 7
    save(path, "ov_other", choice(V1), kernels="0" * 64)
    with pytest.warns(RuntimeWarning, match=rf"{path}: was made for other kernels"):
        assert call(tlaot.load("ov_other").add) == 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call(tlaot.load("ov_other").add) == 7, "it was said twice"


DAMAGE = {
    "empty": "",
    "cut": '{"version": 1, "pack',
    "list": "[]",
    "binary": b"\xff\xfe\x00",
    "deep": "[" * 100_000,
    "newer": '{"version": 2, "package": "ov_torn", "devices": {}}',
    "foreign": '{"version": 1, "package": "else", "devices": {}}',
    "devices": '{"version": 1, "package": "ov_torn", "devices": []}',
    "section": {"devices": 7},
    "choices": {"kernels": "K", "choices": 7},
    "choice": {"kernels": "K", "choices": [{"kernel": "add"}]},
    "types": {"kernels": "K", "choices": [{**choice(V1), "kernel": ["add"]}]},
    "arguments": {"kernels": "K", "choices": [{**choice(V1), "arguments": [[1]]}]},
    "workload": {"kernels": "K", "choices": [{**choice(V1), "workload": 7}]},
    "text": "text",
}


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("strict", [False, True])
def test_a_damaged_overlay_is_said_once_and_ignored(
    make: Make, what: str, strict: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is in it; where warnings are errors, too."""
    path = make("ov_torn", build(V1, 1), build(V2, 2))
    content: Any = DAMAGE[what]
    if isinstance(content, dict):
        kernels = overlay_module.digest_homes(tlaot.load("ov_torn")._homes)
        section = {**content, **({"kernels": kernels} if content.get("kernels") == "K" else {})}
        content = json.dumps({"version": 1, "package": "ov_torn", "devices": {cpu_name(): section}})
    path.parent.mkdir(parents=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with warnings.catch_warnings(record=True) as seen:
        # Of this category: what another test left to be collected warns whenever it is.
        warnings.simplefilter("error" if strict else "always", RuntimeWarning)
        assert call(tlaot.load("ov_torn").add) == 7
        assert call(tlaot.load("ov_torn").add) == 7
    said = capsys.readouterr().err.splitlines() if strict else [str(one.message) for one in seen]
    assert len(said) == 1
    assert str(path) in said[0]


def test_what_is_no_file(make: Make) -> None:
    """A folder, a pipe, a device, a link to nowhere, a folder that nobody may read: none keeps a program waiting."""
    path = make("ov_nofile", build(V1, 1))
    path.parent.mkdir(parents=True)
    for place in (path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero")):
        place()
        overlay_module._said.clear()
        with pytest.warns(RuntimeWarning, match="cannot be used"):
            assert call(tlaot.load("ov_nofile").add) == 6
        path.rmdir() if path.is_dir() else path.unlink()
    path.symlink_to("nowhere")
    assert tlaot.load("ov_nofile")._overlay is None


def test_inspect_shows_an_overlay(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    path = make("ov_shown", build(V1, 1), build(V2, 2))
    assert main(["inspect", "ov_shown"]) == 0
    assert "overlay for" not in capsys.readouterr().out
    save(path, "ov_shown", choice(V1), device="NVIDIA H200")
    assert main(["inspect", "ov_shown"]) == 0
    assert f"\noverlay for NVIDIA H200: 1 choice ({path})\n" in capsys.readouterr().out
    save(path, "ov_shown", choice(V1), choice(V2), device="NVIDIA H200", kernels="x")
    assert main(["inspect", "ov_shown"]) == 0
    assert "overlay for NVIDIA H200: 2 choices, of other kernels than these: not used" in capsys.readouterr().out


def test_where_an_overlay_is(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable's file, or its folder's; off; the configuration folder; none without a home."""
    assert overlay_path("a.b", {"HOME": "/home/u"}) == Path("/home/u/.config/tlaot/overlays/a.b.json")
    assert overlay_path("p", {"HOME": "/home/u", "XDG_CONFIG_HOME": "/c"}) == Path("/c/tlaot/overlays/p.json")
    assert overlay_path("p", {"HOME": "/home/u", "XDG_CONFIG_HOME": "c"}) == Path(
        "/home/u/.config/tlaot/overlays/p.json"
    )
    assert overlay_path("p", {"HOME": "/home/u", "TLAOT_OVERLAY": ""}) == Path("/home/u/.config/tlaot/overlays/p.json")
    assert overlay_path("p", {"TLAOT_OVERLAY": "off"}) is None
    assert overlay_path("p", {"TLAOT_OVERLAY": "/x/y.json"}) == Path("/x/y.json")
    assert overlay_path("p", {"TLAOT_OVERLAY": str(tmp_path)}) == tmp_path / "p.json"
    path = make("ov_where", build(V1, 1), build(V2, 2))
    save(path, "ov_where", choice(V1))
    monkeypatch.setenv("TLAOT_OVERLAY", "off")
    assert call(tlaot.load("ov_where").add) == 7
    monkeypatch.setenv("TLAOT_OVERLAY", str(path))
    assert call(tlaot.load("ov_where").add) == 6
    monkeypatch.setenv("TLAOT_OVERLAY", str(tmp_path / "mistyped.json"))
    with pytest.warns(RuntimeWarning, match=r"TLAOT_OVERLAY names .*mistyped\.json, which is not there"):
        assert call(tlaot.load("ov_where").add) == 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call(tlaot.load("ov_where").add) == 7, "it was said twice"
        monkeypatch.setenv("TLAOT_OVERLAY", str(tmp_path))
        (tmp_path / "another.json").write_text("{}")
        assert call(tlaot.load("ov_where").add) == 7, "a folder need not have one for each package"
    monkeypatch.setenv("TLAOT_OVERLAY", str(path))
    make("ov_stranger", build(V1, 1))
    (tmp_path / "another.json").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call(tlaot.load("ov_stranger").add) == 6, "one file for a process of several packages"


def test_a_folder_without_overlays_is_said_once(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has some is a folder of overlays, and is followed where it has the package's."""
    path = make("ov_folder", build(V1, 1), build(V2, 2))
    folder = tmp_path / "overlays"
    folder.mkdir()
    monkeypatch.setenv("TLAOT_OVERLAY", str(folder))
    with pytest.warns(RuntimeWarning, match="TLAOT_OVERLAY names the folder .*overlays, which has no overlay") as told:
        assert call(tlaot.load("ov_folder").add) == 7
        assert call(tlaot.load("ov_folder").add) == 7
    assert len(told) == 1
    save(path, "ov_folder", choice(V1))
    path.rename(folder / path.name)
    assert call(tlaot.load("ov_folder").add) == 6


# tlaot retune


def retune(*arguments: str) -> int:
    """The command, on a machine that may be busy: tests depend on no quiet."""
    return main(["retune", *arguments, "--device", "cpu", "--busy", "--seconds", "0.2"])


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others that use the processor are not waited for."""
    from tlaot.tune.retuning import retune as module

    real = module.Profile
    monkeypatch.setattr(module, "Profile", lambda **given: real(**{**given, "quiet_timeout": 0.0}))


@pytest.mark.usefixtures("at_once")
def test_retune_finds_the_fastest_and_calls_run_it(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """The higher level is a hundred times slower here; the other workload has one variant alone."""
    slow, fast = build(V2, spin=SLOW), build(V1)
    path = make("rt_fast", slow, fast, build(V1, shape=(5, 8), N=9))
    assert tlaot.load("rt_fast").add.resolve(*[np.zeros((4, 8), "f4")] * 2).target == V2
    assert retune("rt_fast") == 0
    out = capsys.readouterr()
    assert f"written to {path}" in out.err
    rows = out.out.splitlines()
    assert rows[1].split()[-2:] == ["dispatch's", "own"]
    assert rows[2].split()[-1] == "taken"
    assert "add (N=9): not timed: one variant alone runs it here" in out.out
    kernels = tlaot.load("rt_fast")
    assert kernels.add.resolve(*[np.zeros((4, 8), "f4")] * 2).target == V1
    assert call(kernels.add) == 5
    saved = json.loads(path.read_text())["devices"][cpu_name()]["choices"]
    assert [one["target"] for one in saved] == [V1]
    latencies = {one["target"]: one["latency"] for one in saved[0]["times"]}
    assert latencies[V1] < latencies[V2]


@pytest.mark.usefixtures("at_once")
def test_retune_maps_a_new_shape(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """A size of a symbolic variant that was not packaged; what is there for other workloads and devices stays."""
    path = make(
        "rt_new",
        build(V2, spin=SLOW, shape=("n", 8), K=8),
        build(V1, shape=("n", 8), K=8),
        build(V1, 3, shape=(4, 8), M=4),
    )
    save(path, "rt_new", choice(V1, workload={"M": 4}, shape={"M": 4}))
    body = json.loads(path.read_text())
    body["devices"]["Another"] = {"kernels": "x", "choices": []}
    path.write_text(json.dumps(body))
    assert retune("rt_new", "--shape", "n=300", "--kernel", "add") == 0
    kernel = tlaot.load("rt_new").add
    assert kernel.resolve(*[np.zeros((300, 8), "f4")] * 2).target == V1
    assert kernel.resolve(*[np.zeros((301, 8), "f4")] * 2).target == V2
    devices = json.loads(path.read_text())["devices"]
    assert devices["Another"] == {"kernels": "x", "choices": []}
    assert len(devices[cpu_name()]["choices"]) == 2
    capsys.readouterr()
    for arguments, why in (
        (("--shape", "m=1"), "Sizes and scalars that are open: n"),
        (("--shape", "n=3,K=9"), "no variant for this device takes"),
        (("--kernel", "sub"), "the package has no kernel 'sub'"),
        (("--shape", "n=0"), "expected a whole number above 0 for the size n, got 0"),
        (("--shape", "n=-3"), "expected a whole number above 0 for the size n, got -3"),
        (("--shape", "n=1.5"), "expected a whole number above 0 for the size n, got 1.5"),
        (("--shape", "n=many"), "expected a whole number above 0 for the size n, got 'many'"),
        (("--shape", f"n={10**15}"), "A would have 8000000000000000 elements"),
    ):
        assert retune("rt_new", *arguments) == 2
        assert why in capsys.readouterr().err
    assert retune("rt_new") == 0
    assert "the size n is open: give it with --shape n=..." in capsys.readouterr().out


@pytest.mark.usefixtures("at_once")
def test_retune_takes_no_variant_that_differs(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """What gives something else than the variant that was checked at build time is no choice, however fast."""
    path = make("rt_wrong", build(V2, spin=SLOW), build(V1, label=1))
    assert retune("rt_wrong") == 0
    assert "failed" in capsys.readouterr().out
    (saved,) = json.loads(path.read_text())["devices"][cpu_name()]["choices"]
    assert saved["target"] == V2
    assert "differ from the reference" in saved["times"][1]["failed"]


@pytest.mark.usefixtures("at_once")
def test_retune_invents_no_indices(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Integers that may index something are the user's to give; so are scalars."""
    one, binary = build(V1)
    ints = [tensor("A", 4, 8), tensor("I", 4, 8, dtype="int32"), tensor("C", 4, 8, written=True)]
    two = variant("add", ints, [2], {"N": 8}, V2)
    make("rt_index", (dataclasses.replace(one, params=tuple(ints)), binary), (two, binary))
    assert retune("rt_index", "--json") == 0
    assert "the input I holds int32" in json.loads(capsys.readouterr().out)[0]["skipped"]
    with_scalar = [tensor("A", 4, 8), scalar("s"), tensor("C", 4, 8, written=True)]
    built = [(variant("add", with_scalar, [2], {"N": 8}, t), compile_kernel(3, 0b100, level=2)) for t in (V1, V2)]
    make("rt_scalar", *built)
    assert retune("rt_scalar") == 0
    assert "the scalar s has no value: give it with --shape s=..." in capsys.readouterr().out
    assert retune("rt_scalar", "--shape", "s=2.5") == 0
    assert "taken" in capsys.readouterr().out
    (tmp_path / "site" / "rt_inputs.py").write_text(
        "import numpy\ndef make(N): return numpy.ones((4, N), 'f4'), numpy.zeros((4, N), 'i4')\n"
    )
    os.environ["XDG_CONFIG_HOME"], old = str(tmp_path / "other"), os.environ["XDG_CONFIG_HOME"]
    try:
        assert retune("rt_index", "--inputs", "rt_inputs:make") == 0
    finally:
        os.environ["XDG_CONFIG_HOME"] = old
    assert "not timed" not in capsys.readouterr().out


@pytest.mark.usefixtures("at_once")
def test_retune_writes_nothing_when_told_so(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--dry-run; -o names the file; without a place for it it says so before it measures."""
    path = make("rt_dry", build(V2), build(V1))
    assert retune("rt_dry", "--dry-run") == 0
    assert not path.exists()
    assert retune("rt_dry", "-o", str(tmp_path / "new" / "o.json")) == 0
    assert (tmp_path / "new" / "o.json").is_file()
    assert not path.exists()
    monkeypatch.setenv("TLAOT_OVERLAY", "off")
    assert retune("rt_dry") == 2
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TLAOT_OVERLAY", str(tmp_path / "file" / "below.json"))
    assert retune("rt_dry") == 2


@pytest.mark.usefixtures("at_once")
def test_retune_replaces_a_damaged_overlay_and_keeps_a_link(make: Make, tmp_path: Path) -> None:
    path = make("rt_torn", build(V2), build(V1))
    path.parent.mkdir(parents=True)
    (tmp_path / "dotfiles.json").write_text("{")
    path.symlink_to(tmp_path / "dotfiles.json")
    assert retune("rt_torn") == 0
    assert path.is_symlink()
    assert json.loads((tmp_path / "dotfiles.json").read_text())["package"] == "rt_torn"
    assert tlaot.load("rt_torn")._overlay is not None
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "a temporary file is left"


@pytest.mark.usefixtures("at_once")
def test_times_that_are_not_trusted_are_not_used(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless the user says so: what others did on the device may have made the difference. What was known before stays."""
    from tlaot.tune.retuning import retune as module

    path = make("rt_busy", build(V2, spin=SLOW), build(V1))
    real = module.decide
    monkeypatch.setattr(
        module, "decide", lambda *a, **k: dataclasses.replace(real(*a, **k), trusted=False, notes=("others",))
    )
    arguments = ["retune", "rt_busy", "--device", "cpu", "--seconds", "0.2"]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert "these times are not used; leave the device alone, or say --busy" in said.out
    assert "written" not in said.err
    assert not path.exists()
    assert main([*arguments, "--busy"]) == 0
    before = path.read_bytes()
    assert json.loads(before)["devices"][cpu_name()]["choices"][0]["target"] == V1
    assert main(arguments) == 0
    assert path.read_bytes() == before


@pytest.mark.usefixtures("at_once")
def test_what_more_time_is_called(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The option of this command, not the key of a file that its user need not have."""
    from tlaot.tune.measuring import decide as deciding
    from tlaot.tune.retuning import retune as module

    make("rt_more", build(V2), build(V1))
    real = module.decide
    note = f"another candidate may be faster by far; {deciding.MORE_TIME}"
    monkeypatch.setattr(module, "decide", lambda *a, **k: dataclasses.replace(real(*a, **k), notes=(note,)))
    assert retune("rt_more", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "another candidate may be faster by far; more time may tell: --seconds" in out
    assert "decide-budget" not in out


@pytest.mark.usefixtures("at_once")
def test_a_variant_that_crashes_costs_nothing_else(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """A rival that ends its process is no choice; where the variant that runs now does, the status says so."""
    one, _ = build(V1)
    crashing = compile_source("crash.c")
    path = make("rt_crash", build(V2), (one, crashing))
    assert retune("rt_crash") == 0
    assert "crashed with SIGABRT" in path.read_text()
    two, _ = build(V2)
    make("rt_dead", (two, crashing), build(V1))
    assert retune("rt_dead") == 1
    assert "SIGABRT" in capsys.readouterr().out
    assert not path.with_name("rt_dead.json").exists()


def test_reading_an_overlay_imports_nothing_that_tunes(make: Make, tmp_path: Path) -> None:
    path = make("ov_import", build(V1, 1), build(V2, 2))
    save(path, "ov_import", choice(V1))
    code = (
        "import sys, numpy as np, tlaot; a = np.zeros((4, 8), 'f4'); k = tlaot.load('ov_import').add; "
        "assert k(a, a)[0, 0] == 1; assert not [name for name in sys.modules if name.startswith('tlaot.tune')]"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=120)


TVM_KERNELS = """
def rows(N, repeat):
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(a: T.handle, b: T.handle):
        m = T.int32()
        A = T.match_buffer(a, (m, N), "float32")
        B = T.match_buffer(b, (m, N), "float32")
        for r in T.serial(repeat):
            for i, j in T.grid(m, N):
                with T.sblock("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] * T.float32(2) + T.Cast("float32", vi)

    return main

def inputs(N):
    import numpy
    return [numpy.ones((8, N), "float32")]

def reference(a):
    import numpy
    return a * 2 + numpy.arange(len(a), dtype="float32")[:, None]
"""
TVM_SPEC = """
[tlaot]
package = "rt_tvm"

""" + "".join(
    f"""
[[kernel]]
name = "rows"
frontend = "tvm"
factory = "rt_tvm.kernels:rows"
targets = ["{target}"]
shapes = [{{ N = 256 }}]
configs = [{{ repeat = {repeat} }}]
inputs = "rt_tvm.kernels:inputs"
reference = "rt_tvm.kernels:reference"
out-idx = [-1]
profile = {{ warmup = 1, rep = 5, decide-budget = 0.1, quiet-timeout = 0 }}
"""
    for target, repeat in (("llvm:x86-64-v2", 1), ("llvm:x86-64-v3", 300))
)


@pytest.mark.usefixtures("at_once")
def test_kernels_that_tvm_made(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two levels of one symbolic workload, of which the higher does its work three hundred times: a size takes the lower one."""
    pytest.importorskip("tvm", reason="the kernels are lowered by apache-tvm")
    from tlaot.tune.pipeline import build_package

    @dataclasses.dataclass(frozen=True)
    class Settings:
        tune: str = "on"
        targets: Any = None
        jobs: int = 2
        keep: bool = False
        lock: str = "auto"
        executor: str | None = None
        devices: tuple[int, ...] | None = None

    make("rt_other", build(V1))  # puts the folder on sys.path
    package = tmp_path / "site" / "rt_tvm"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "kernels.py").write_text(TVM_KERNELS)
    (tmp_path / "site" / "tltune.toml").write_text(TVM_SPEC)
    build_package(tmp_path / "site" / "tltune.toml", tmp_path / "site", package / "_tlaot", Settings(), print)
    kernel = tlaot.load("rt_tvm").rows
    a = np.ones((300, 256), "f4")
    if len({v.target for v in kernel.weigh([Argument("float32", a.shape)], (1, 0), {})[2]}) < 2:
        pytest.skip("this processor runs one of the levels alone")
    size = next(s for s in kernel.variants[0].params[0].shape or () if isinstance(s, str))
    assert kernel.resolve(a).target == "llvm:x86-64-v3"
    assert retune("rt_tvm", "--shape", f"{size}=300,N=256") == 0
    kernel = tlaot.load("rt_tvm").rows
    assert kernel.resolve(a).target == "llvm:x86-64-v2"
    assert kernel.resolve(a[:299]).target == "llvm:x86-64-v3"
    np.testing.assert_array_equal(kernel(a), 2 + np.arange(300, dtype="f4")[:, None] + np.zeros_like(a))
    loaded = {path.parts[-3] for path in kernel._modules}
    assert loaded == {"llvm-x86-64-v2"}, "another binary has run"


def test_what_competes_on_a_gpu(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code that the device runs; not what it does not run, nor PTX beside machine code; each workload once."""
    from tlaot.runtime import device
    from tlaot.tune.retuning.retune import Contest, Options, Skipped, plan_contests

    targets = ("cuda:sm_80", "cuda:sm_86", "cuda:sm_90a", "cuda:compute_80", V1)
    make(
        "rt_gpu", *(build(t, **shape) for t in targets for shape in ({"N": 8},)), build("cuda:sm_80", shape=(5, 8), N=9)
    )
    monkeypatch.setattr(device, "cuda_device", lambda ordinal: device.CudaDevice("NVIDIA A10", (8, 6), 72))
    plans = plan_contests(tlaot.load("rt_gpu"), (2, 0), Options())
    contest = next(plan for plan in plans if isinstance(plan, Contest))
    assert [v.target for v, _ in contest.variants] == ["cuda:sm_86", "cuda:sm_80"]
    assert contest.place.device == "NVIDIA A10"
    (skipped,) = (plan for plan in plans if isinstance(plan, Skipped))
    assert skipped.workload == {"N": 9}


def test_a_retuned_device_is_not_told_to_retune(
    make: Make, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """The note about the number of multiprocessors, once there are times of this very device."""
    from tlaot.runtime import device, notes
    from tlaot.runtime.device import cuda_place

    path = make("ov_note", build(V1))
    monkeypatch.setattr(device, "cuda_device", lambda ordinal: device.CudaDevice("NVIDIA H20", (9, 0), 78))
    monkeypatch.setattr(notes, "_said", {})
    one = dataclasses.replace(build("cuda:sm_90a")[0], tuned={"device": "NVIDIA H200", "sm_count": 132})
    for name, covered in (("NVIDIA H200", False), ("NVIDIA H20", True)):
        save(path, "ov_note", choice("cuda:sm_90a"), device=name)
        overlay = tlaot.load("ov_note")._overlay
        assert overlay is not None
        assert overlay.covers(cuda_place(0)) == covered
        notes.say_once("ov_note.add", one, 0, retuned=covered)
        assert [str(w.message).partition("Run: ")[2] for w in recwarn.list] == (
            [] if covered else ["tlaot retune ov_note"]
        )
        recwarn.clear()
        notes._said.clear()


@pytest.mark.usefixtures("at_once")
def test_retune_of_kernels_that_work_in_place(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """Without outputs that a caller may leave out: what is written is compared and restored."""
    working = [tensor("A", 4, 8), tensor("B", 4, 8, written=True)]

    def in_place(target: str, spin: int) -> tuple[Variant, bytes]:
        return variant("add", working, [], {"N": 8}, target), compile_kernel(2, 0b10, level=2, spin=spin)

    path = make("rt_place", in_place(V2, SLOW), in_place(V1, 0))
    assert retune("rt_place") == 0
    assert "taken" in capsys.readouterr().out
    assert json.loads(path.read_text())["devices"][cpu_name()]["choices"][0]["target"] == V1


@pytest.mark.usefixtures("at_once")
def test_retune_skips_what_gives_nan(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """Random inputs that a kernel makes NaN of say nothing of what its users pass."""
    path = make("rt_nan", *((build(t)[0], compile_source("nan.c")) for t in (V1, V2)))
    assert retune("rt_nan") == 1
    assert "gives NaN in C for these inputs" in capsys.readouterr().out
    assert not path.exists()
