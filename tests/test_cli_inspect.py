"""``tlaot inspect``: the table, its JSON, its filters, and code extracted from it."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import re
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import locks
import pytest
from fixtures_audit import binary_of, make_cubin
from fixtures_runtime import tensor, variant, with_files, write_package

from tlaot.cli import main
from tlaot.manifest import Kernel, Manifest, digest_of, dumps
from tlaot.tune.locks.lock_file import dump_lock

H200 = {"device": "NVIDIA H200", "sm_count": 132}
TILELANG = {"name": "tilelang", "version": "0.1.15", "device-compiler": "nvcc 13.0"}
FLOOR = {"cuda": "12.0", "glibc": "2.5", "toolkit": "13.0"}
PTX = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n"


def matrices(m: int, dtype: str = "float16") -> list[Any]:
    return [
        tensor("A", m, 64, dtype=dtype),
        tensor("B", 64, m, dtype=dtype),
        tensor("C", m, m, dtype=dtype, written=True),
    ]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with all that a table can show: stand-ins, PTX, a shared binary, doubts, two signatures of one name."""

    def of(m: int, target: str, seed: int, dtype: str = "float16", **rest: Any) -> tuple[Any, bytes]:
        one = variant("matmul", matrices(m, dtype), [2], {"M": m}, target, frontend=TILELANG, floor=FLOOR, **rest)
        return one, b"\x7fELF" + bytes([seed]) * 2000

    doubts = {"trusted": False, "notes": ["another process had 40 % of the GPU"], "checked": True}
    measured = [
        of(1024, "cuda:sm_90a", 1, tuned=H200, properties={"checked": True}),
        of(4096, "cuda:sm_90a", 2, tuned=H200, properties=doubts),
        of(1024, "cuda:sm_100a", 3, tuned={"as": "cuda:sm_90a"}),
    ]
    unmeasured = {"latency": None, "spread": None, "ref_latency": None, "default_latency": None}
    measured[2] = dataclasses.replace(measured[2][0], latency=unmeasured), measured[2][1]
    cpu = variant("matmul", matrices(64, "float32"), [2], {"M": 64}, "llvm:x86-64-v3", properties={"checked": False})
    cpu = dataclasses.replace(
        cpu, frontend={"name": "tvm", "version": "0.27.0"}, config={}, tuned={"device": "AMD EPYC"}
    )
    rows = [(variant("scan", [tensor("X", "n")], [], {}, "llvm:x86-64-v3"), b"\x7fELF")]
    write_package(tmp_path, "pk_table", {"matmul": [*measured, (cpu, b"\x7fELF cpu")], "scan": rows})
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "pk_table"


GOLDEN = """\
pk_table ({folder}/_tlaot/manifest.json)
5 variants of 2 kernels for cuda:sm_100a, cuda:sm_90a, llvm:x86-64-v3: 5.9 KiB installed; packaged by tlaot 0.1.0

matmul(A: float16[*, 64], B: float16[64, *]) -> C: float16[*, *]
target        shape   time  vs first  vs reference    size  config   note
cuda:sm_90a   M=1024  1 ms     3.00x         2.00x  2.0 KiB  block=1
cuda:sm_90a   M=4096  1 ms     3.00x         2.00x  2.0 KiB  block=1  times not to be trusted: another process had 40 % of the GPU
cuda:sm_100a  M=1024     -                          2.0 KiB  block=1  not measured

matmul(A: float32[64, 64], B: float32[64, 64]) -> C: float32[64, 64]
target          shape  time  vs first  vs reference  size  config               note
llvm:x86-64-v3  M=64   1 ms     3.00x         2.00x   8 B  (the factory's own)  results NOT checked (check = false)

scan(X: float32[n])
target          time  vs first  vs reference  size  config
llvm:x86-64-v3  1 ms     3.00x         2.00x   4 B  block=1

target          variants  tuned on                              needs                              made by
cuda:sm_100a           1  stand-in: the configs of cuda:sm_90a  a driver for CUDA 12.0, glibc 2.5  tilelang 0.1.15, nvcc 13.0
cuda:sm_90a            2  NVIDIA H200 (132 SMs)                 a driver for CUDA 12.0, glibc 2.5  tilelang 0.1.15, nvcc 13.0
llvm:x86-64-v3         1
llvm:x86-64-v3         1  AMD EPYC                                                                 tvm 0.27.0
"""


def test_the_table(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "pk_table"]) == 0
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines()] == [
        line.split() for line in GOLDEN.format(folder=package).splitlines()
    ]
    for block in shown.split("\n\n")[1:]:
        columns = [line for line in block.splitlines() if line[:6] in ("target", "cuda:s", "llvm:x")]
        assert len({line.index("ms") for line in columns[1:] if " ms" in line}) <= 1, "numbers are flush right"


def test_a_wheel_a_folder_and_a_package_are_shown_alike(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for what in ("pk_table", str(package), str(pack(package))):
        assert main(["inspect", what]) == 0
        shown.append(capsys.readouterr().out.splitlines()[1:])
    assert shown[0] == shown[1]
    assert re.search(r", 1\.\d KiB in the wheel; packaged", shown[2][0]), shown[2][0]
    assert shown[2][1:] == shown[1][1:]


def pack(folder: Path) -> Path:
    path = folder.parent / f"{folder.name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for file in sorted(p for p in folder.rglob("*") if p.is_file()):
            out.write(file, file.relative_to(folder.parent))
    return path


def test_json_is_one_object_a_variant(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its keys are what scripts read: they stay."""
    assert main(["inspect", "--json", "pk_table"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 5
    assert rows[0] == {
        "package": "pk_table",
        "kernel": "matmul",
        "target": "cuda:sm_90a",
        "shape": {"M": 1024},
        "config": {"block": 1},
        "latency": {"latency": 1.0, "ref_latency": 2.0, "default_latency": 3.0, "spread": 0.1},
        "signature": "(A: float16[1024, 64], B: float16[64, 1024]) -> C: float16[1024, 1024]",
        "frontend": TILELANG,
        "properties": {"checked": True},
        "tuned": H200,
        "floor": FLOOR,
        "bytes": 2004,
        "path": "matmul/cuda-sm_90a/M1024",
        "stored": {},
    }


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["--kernel", "scan"], [("scan", "llvm:x86-64-v3")]),
        (["--target", "cuda:sm_90a"], [("matmul", "cuda:sm_90a")] * 2),
        (["--target", "cuda", "--shape", "M=1024"], [("matmul", "cuda:sm_90a"), ("matmul", "cuda:sm_100a")]),
        (["--target", "sm_100a"], [("matmul", "cuda:sm_100a")]),
        (["--shape", "M=64", "--shape", "M=4096"], [("matmul", "cuda:sm_90a"), ("matmul", "llvm:x86-64-v3")]),
    ],
)
def test_filters(
    package: Path, capsys: pytest.CaptureFixture[str], filters: list[str], expected: list[tuple[str, str]]
) -> None:
    assert main(["inspect", "pk_table", "--json", *filters]) == 0
    assert [(row["kernel"], row["target"]) for row in json.loads(capsys.readouterr().out)] == expected
    assert main(["inspect", "pk_table", *filters]) == 0
    assert f"{len(expected)} variant" in capsys.readouterr().out.splitlines()[1]


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        (["--kernel", "matmull"], "--kernel: there is no 'matmull', did you mean 'matmul'?\nThere is: matmul; scan."),
        (["--target", "cuda:sm_90"], "there is no 'cuda:sm_90', did you mean 'cuda:sm_90a'?"),
        (["--kernel", "scan", "--target", "cuda"], "there is no 'cuda'\nThere is: llvm:x86-64-v3."),
        (["--shape", "M=7"], "--shape: there is no 'M=7'"),
        (["--shape", "M='64'"], "--shape: there is no"),
        (["-o", "x"], "--output: is where --extract writes"),
    ],
)
def test_a_filter_that_lets_nothing_through(
    package: Path, capsys: pytest.CaptureFixture[str], filters: list[str], says: str
) -> None:
    assert main(["inspect", "pk_table", *filters]) == 2
    assert says in capsys.readouterr().err


def test_shapes_of_text_and_flags_are_chosen_as_they_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes: list[dict[str, Any]] = [
        {"dtype": "float16", "causal": True, "M": 64},
        {"dtype": "float16", "M": "64", "axes": [0, 1], "eps": 1e-6, "mask": None},
    ]
    made = [(dataclasses.replace(variant("k", [], [], shape), path=f"k/{i}"), b"") for i, shape in enumerate(shapes)]
    write_package(tmp_path, "pk", {"k": made})
    one = (
        "causal=true",
        'M="64"',
        "M=64, causal=true",
        "axes=[0, 1]",
        "axes=[0, 1],M=64",
        "eps=1e-06",
        "mask=null,axes=[0, 1]",
    )
    for text, count in {"dtype=float16": 2, "M=64": 2, **dict.fromkeys(one, 1)}.items():
        assert main(["inspect", str(tmp_path / "pk"), "--json", "--shape", text]) == 0
        assert len(json.loads(capsys.readouterr().out)) == count, text


def run_on_a_terminal(words: list[str], columns: int, **environ: str) -> str:
    """What the command writes to a terminal of so many columns."""
    master, slave = pty.openpty()
    env = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", **environ}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    for name in ("NO_COLOR",):
        if name not in environ:
            env.pop(name, None)
    command = subprocess.Popen([sys.executable, "-m", "tlaot.cli", *words], env=env, stdout=slave)
    os.close(slave)
    text = b""
    try:
        while piece := os.read(master, 65536):
            text += piece
    except OSError:  # EIO: the other end is closed
        pass
    assert command.wait() == 0
    os.close(master)
    return text.decode()


def test_a_terminal_has_lines_that_fit_and_bold_headings(package: Path) -> None:
    """Nothing is lost where cells are broken; no colour where NO_COLOR says so."""
    shown = run_on_a_terminal(["inspect", str(package)], 90)
    assert "\033[1mmatmul(" in shown
    plain = run_on_a_terminal(["inspect", str(package)], 90, NO_COLOR="1")
    assert "\033" not in plain
    tables = [
        line for line in plain.splitlines() if not line.startswith(("pk_table", "matmul(", "scan(", "5 variants"))
    ]
    assert max(map(len, tables)) <= 90
    words = " ".join(plain.split())
    for word in ("another", "process", "40", "%", "GPU", "stand-in:", "cuda:sm_100a", "block=1"):
        assert word in words
    assert all(line == line.rstrip() for line in plain.replace("\r", "").splitlines())


def extractable(tmp_path: Path) -> Path:
    """A wheel's folder whose binaries have a cubin, PTX, and nothing; one has its binary in another variant."""
    cubin = make_cubin("sm_90a")
    built = {
        "cuda:sm_90a": binary_of("k", "cuda:sm_90a", 8, cubin),
        "cuda:compute_80": binary_of("k", "cuda:compute_80", 8, PTX),
        "llvm:x86-64-v3": binary_of("k", "llvm:x86-64-v3", 8),
    }
    root = tmp_path / "pk_code" / "_tlaot"
    variants = []
    for target, binary in built.items():
        one = variant("k", [tensor("X", 8)], [], {"N": 8}, target)
        files = {"executable.so": binary, **({"device_kernel.cu": b"// cuda"} if "sm_90a" in target else {})}
        (root / one.path).mkdir(parents=True)
        for name, data in files.items():
            (root / one.path / name).write_bytes(data)
        variants.append(with_files(one, {name: digest_of(data) for name, data in files.items()}))
    twin = dataclasses.replace(
        variants[0],
        shape={"N": 9},
        path="k/cuda-sm_90a/N9",
        stored={n: f"{variants[0].path}/{n}" for n in variants[0].files},
    )
    manifest = Manifest("pk_code", {"k": Kernel("k", (*variants, twin))}, "0.1.0")
    (root / "manifest.json").write_text(dumps(manifest))
    return tmp_path / "pk_code"


def test_extracted_code_is_what_is_in_the_binary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = extractable(tmp_path)
    for what in (str(folder), str(pack(folder))):
        out = tmp_path / "out" / Path(what).suffix
        assert main(["inspect", what, "--extract", "cubin", "-o", str(out)]) == 0
        assert {p.name: p.read_bytes() for p in out.iterdir()} == dict.fromkeys(
            ("k.cuda-sm_90a.N8.cubin", "k.cuda-sm_90a.N9.cubin"), make_cubin("sm_90a")
        )
        shown = capsys.readouterr()
        assert len(shown.out.splitlines()) == 2
        assert shown.err == "1 variant without a cubin: k [cuda:compute_80] (N=8)\n"
    assert main(["inspect", str(folder), "--extract", "ptx", "-o", str(tmp_path / "ptx")]) == 0
    assert (tmp_path / "ptx" / "k.cuda-compute_80.N8.ptx").read_bytes() == PTX
    assert main(["inspect", str(folder), "--extract", "source", "--shape", "N=9", "-o", str(tmp_path / "src")]) == 0
    assert (tmp_path / "src" / "k.cuda-sm_90a.N9.device_kernel.cu").read_bytes() == b"// cuda"


def test_extracting_overwrites_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, words = extractable(tmp_path), ["--extract", "ptx", "-o", str(tmp_path / "out")]
    assert main(["inspect", str(folder), *words]) == 0
    assert main(["inspect", str(folder), *words]) == 0, "the same content may be there"
    (tmp_path / "out" / "k.cuda-compute_80.N8.ptx").write_text("mine")
    assert main(["inspect", str(folder), *words]) == 2
    assert "is there, with other content" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["inspect", str(folder), "--extract", "ptx", "-o", str(tmp_path / "file" / "x")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--extract", "source", "--target", "llvm"], "no variant that was chosen has sources\nSources ship where"),
        (["--extract", "ptx", "--target", "cuda:sm_90a"], "has PTX\nWrite ptx = true"),
        (["--extract", "cubin", "--target", "llvm"], "has a cubin\nOnly CUDA targets have device code."),
        (["--extract", "cubin", "--target", "compute_80"], "has a cubin\nIt has PTX: --extract ptx."),
    ],
)
def test_code_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main(["inspect", str(extractable(tmp_path)), *words, "-o", str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_damaged_binary_is_not_extracted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = extractable(tmp_path)
    path = folder / "_tlaot" / "k" / "cuda-sm_90a" / "N8" / "executable.so"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert main(["inspect", str(folder), "--extract", "cubin", "-o", str(tmp_path / "out")]) == 2
    assert "is not the file that was packaged" in capsys.readouterr().err


def test_a_shared_binary_is_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = extractable(tmp_path)
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "installed, 1 with a binary that another one has; packaged" in shown
    assert textwrap.dedent(shown).count("shared binary") == 1


def test_a_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tltune.lock"
    shared = locks.entry(256, ships={"block": 64})
    doubtful = locks.entry(128, trusted=False, notes=("busy",), checked=False)
    derived = locks.entry(64, target="cuda:sm_100a", tuned_as="cuda:sm_90a", candidates=(), winner={}, device={})
    path.write_text(dump_lock(locks.lock(locks.entry(64), doubtful, derived, shared)))
    assert main(["inspect", str(path)]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        line.split()
        for line in """\
4 entries of 1 kernel for cuda:sm_100a, cuda:sm_90a

add
target        shape      time  vs first  vs reference  config     note
cuda:sm_100a  N=64          -                          block=128  not measured
cuda:sm_90a   N=64   0.125 ms     2.00x         4.00x  block=128
cuda:sm_90a   N=128  0.125 ms     2.00x         4.00x  block=128  times not to be trusted: busy; results NOT checked (check = false)
cuda:sm_90a   N=256   0.25 ms     1.00x         2.00x  block=64   in place of the fastest, block=128 (max-slowdown)

target        variants  tuned on                              made by
cuda:sm_100a         1  stand-in: the configs of cuda:sm_90a  cc gcc 12.2.0, cuda 13.0, nvrtc 13.0, tilelang 0.1.15
cuda:sm_90a          3  NVIDIA H200 (132 SMs)                 cc gcc 12.2.0, cuda 13.0, nvrtc 13.0, tilelang 0.1.15
""".splitlines()
    ]
    assert main(["inspect", str(path), "--json", "--shape", "N=128"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["bytes"], row["path"], row["config"], row["tuned"]) == (None, None, {"block": 128}, H200)
    assert main(["inspect", str(path), "--extract", "cubin"]) == 2
    assert "a lock has no code" in capsys.readouterr().err


def test_doubts_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Below the table, where several rows have one or it is long: a narrow column of it would hide the rest."""
    busy = [f"measured while other processes kept {n} of 2 CPUs busy; times cannot be trusted" for n in (1.9, 2.0)]
    doubts = {"trusted": False, "notes": busy}
    rows = [
        (variant("k", [tensor("X", n)], [], {"N": n}, "llvm:x86-64-v3", properties=doubts), b"\x7fELF") for n in (8, 9)
    ]
    write_package(tmp_path, "pk_doubts", {"k": rows})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["inspect", "pk_doubts"]) == 0
    out = capsys.readouterr().out
    assert out.count("doubtful [1]") == 2
    assert (
        "\n[1] times not to be trusted: measured while other processes kept 1.9 of 2 CPUs busy; "
        "measured while other processes kept 2.0 of 2 CPUs busy\n" in out
    )
