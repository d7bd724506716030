"""``tlaot capture``, with a stand-in for TileLang: what is recorded in which processes, and what becomes of it in tltune.toml."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from standin_tilelang import write_standin

from tlaot.capturing.recording import Called, Launch, Recording, read_recording
from tlaot.capturing.watch import child_environment
from tlaot.capturing.words import hints_of
from tlaot.capturing.workloads import Workload, choose, dynamic_sizes
from tlaot.cli import main
from tlaot.errors import SpecError
from tlaot.tune.specs.spec_file import read_spec

Run = Callable[..., Recording]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with kernels, whose programs find the stand-in."""
    write_standin(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def record(project: Path) -> Run:
    """Runs a program, and reads what was recorded of it."""

    def run(program: str, status: int = 0, said: list[str] | None = None, device: str = "") -> Recording:
        folder = project / "recording"
        folder.mkdir(exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", HEAD + textwrap.dedent(program)],
            env=child_environment(folder, os.environ, device),
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, done.stderr
        if said is not None:
            said += [done.stdout, done.stderr]
        return read_recording([folder])

    return run


HEAD = "from pkg.array import Array\nfrom pkg.kernels import *\n"


def seen(recording: Recording) -> dict[str, int]:
    """Launches by call."""
    return {f"{one.factory.name if one.factory else '?'} {one.label}": one.times for one in recording.called}


def test_calls_and_launches_are_counted_by_key(record: Run) -> None:
    """Positions and keywords are one key, defaults are filled in; what is launched counts for the call that its kernel came of."""
    found = record("""
        assert scale(64) is scale(64)
        one = scale(64)
        for _ in range(3):
            one(Array(64, 256))
        scale(M=64, N=256)(Array(64, 256))
        scale(8, causal=True)(Array(8, 256))
        for n in (1, 5, 5):
            rows(128)(Array(n, 128), Array(n, 128))
    """)
    assert seen(found) == {
        "scale { M = 64, N = 256, factor = 2.0, causal = false }": 4,
        "rows { hidden = 128, block_M = 64 }": 3,
        "scale { M = 8, N = 256, factor = 2.0, causal = true }": 1,
    }
    rows = next(one for one in found.called if one.factory and one.factory.name == "rows")
    assert [(one.times, one.arguments[0]["shape"]) for one in rows.launches if one.arguments] == [
        (2, [5, 128]),
        (1, [1, 128]),
    ]
    assert rows.calls == 3 and rows.defaults == ("block_M",)
    assert [param["shape"] for param in rows.params] == [["num_tokens", 128]] * 2
    assert not found.troubles and not found.lost


def test_results_and_errors_are_what_they_were(record: Run) -> None:
    """A launch's result, its error, and that of a factory."""
    said: list[str] = []
    found = record(
        """
        from tilelang.jit import JITImpl, JITKernel
        print(scale(4)(Array(4, 256)), type(scale(4)) is JITKernel, type(scale) is JITImpl)
        for call in (lambda: scale(4)(Array(5, 256)), lambda: odd(13), lambda: scale()):
            try:
                call()
            except Exception as error:
                print(type(error).__name__, error)
        """,
        said=said,
    )
    assert said[0].splitlines() == [
        "4 True True",
        "ValueError expected 4, got 5",
        "ValueError 13 is not a size",
        "TypeError scale() missing 1 required positional argument: 'M'",
    ]
    by_name = {one.label: one for one in found.called}
    assert by_name["{ M = 4, N = 256, factor = 2.0, causal = false }"].times == 1
    assert [launch.failed for launch in by_name["{ M = 4, N = 256, factor = 2.0, causal = false }"].launches] == [0, 1]
    assert by_name["{ M = 13, hook = { none = true } }"].failures == ("ValueError: 13 is not a size",)


def test_a_tuned_call_is_one_call_with_its_config(record: Run) -> None:
    """The candidates of TileLang's autotuner are none; what is left to the tuner is told from what the caller says."""
    found = record("tuned(32)(Array(32, 32))")
    assert seen(found) == {"tuned { M = 32, block_N = 128 }": 1}
    assert found.called[0].tuned == ("block_N",)


def test_compile_and_par_compile(record: Run) -> None:
    found = record("""
        one = scale.compile(M=4)
        two, three = scale.par_compile([{"M": 8}, (16, 32)])
        one(Array(4, 256)), two(Array(8, 256)), three(Array(16, 32))
    """)
    assert sorted(one.arguments["M"] for one in found.called if one.times == 1) == [4, 8, 16]


def test_every_process_is_recorded_and_a_killed_one_keeps_what_it_did(record: Run) -> None:
    """Started, forked, forked within that, and killed in the middle of its work."""
    found = record("""
        import os, signal, subprocess, sys
        run = scale(2)
        run(Array(2, 256))
        subprocess.run([sys.executable, "-c", "from pkg.kernels import scale; from pkg.array import Array; scale(3)(Array(3, 256))"])
        child = os.fork()
        if not child:
            run(Array(2, 256)), scale(4)(Array(4, 256))
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        import multiprocessing
        multiprocessing.get_context("fork").Process(target=run, args=(Array(2, 256),)).run
        process = multiprocessing.get_context("fork").Process(target=run, args=(Array(2, 256),))
        process.start(), process.join()
    """)
    assert {one.arguments["M"]: one.times for one in found.called} == {2: 3, 3: 1, 4: 1}
    assert len(found.processes) == 4


def test_threads_lose_no_launch(record: Run) -> None:
    found = record("""
        import threading
        run, array = scale(2), Array(2, 256)
        def work():
            for _ in range(5000):
                run(array)
        threads = [threading.Thread(target=work) for _ in range(4)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
    """)
    assert found.times == 20000


def test_a_program_s_own_sitecustomize_still_runs(project: Path, record: Run) -> None:
    (project / "sitecustomize.py").write_text("import builtins\nbuiltins.own_start = 'ran'\n")
    said: list[str] = []
    record("print(own_start); scale(2)(Array(2, 256))", said=said)
    assert said[0] == "ran\n"


def test_a_fork_beside_a_thread_that_records(record: Run) -> None:
    """The child can record, whatever locks the other threads held."""
    found = record("""
        import os, threading
        stop = threading.Event()
        def work():
            size = 1
            while not stop.is_set():
                size += 1
                scale(size)(Array(size, 256))
        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(20):
            child = os.fork()
            if not child:
                scale(1)(Array(1, 256))
                os._exit(0)
            os.waitpid(child, 0)
        stop.set(), thread.join()
    """)
    assert seen(found)["scale { M = 1, N = 256, factor = 2.0, causal = false }"] == 20


def test_what_a_killed_process_left_is_read(project: Path, record: Run) -> None:
    """A file without a line, and one with half a line; another version's is refused."""
    record("scale(2)(Array(2, 256))")
    (path,) = (project / "recording").glob("*.jsonl")
    path.write_bytes(path.read_bytes() + b'{"call":9,"fac')
    (project / "recording" / "host-1-x.jsonl").touch()
    assert read_recording([project / "recording"]).times == 1
    (project / "recording" / "host-2-x.jsonl").write_text('{"format": 99}\n')
    with pytest.raises(SpecError, match="is not of this version of tlaot"):
        read_recording([project / "recording"])
    (project / "recording" / "host-2-x.jsonl").write_text('{"format": 1, "process": {}}\n{"call": 0}\n')
    with pytest.raises(SpecError, match="is damaged"):
        read_recording([project / "recording"])


def test_kernels_of_no_factory_are_told(record: Run) -> None:
    found = record("""
        from tilelang.jit import JITKernel, PrimFunc
        JITKernel(PrimFunc("plain", [(4,)]), [])(Array(4))
        scale(2)(Array(2, 256))
    """)
    assert [(one.kernel, one.times) for one in found.called if one.factory is None] == [("plain", 1)]
    assert found.times == 1


def test_what_cannot_be_written_costs_the_program_nothing(project: Path, record: Run) -> None:
    """The folder goes while the program runs."""
    said: list[str] = []
    record(
        """
        import os, shutil
        scale(2)(Array(2, 256))
        shutil.rmtree(os.environ["TLAOT_CAPTURE"])
        child = os.fork()
        if not child:
            print(scale(3)(Array(3, 256)), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        os.mkdir(os.environ["TLAOT_CAPTURE"])
        """,
        said=said,
    )
    assert said[0] == "3\n" and "this process is not recorded" in said[1]


PROGRAM = HEAD + textwrap.dedent("""
    print("a program's own words")
    for size, times in ((64, 90), (32, 9), (16, 1)):
        for _ in range(times):
            scale(size)(Array(size, 256))
    for n in (1, 2, 3, 3, 17, 100, 100, 4000):
        rows(128)(Array(n, 128), Array(n, 128))
    for size in range(20, 32):
        tuned(size)(Array(size, size))
    odd(4, hook=lambda: 1)(Array(4))
""")


@pytest.mark.parametrize("outputs", [(), (0,)])
def test_scalars_need_inputs(outputs: tuple[int, ...]) -> None:
    """Which the table says, unless the spec has some; outputs that callers leave out do not count."""
    tensors = [{"name": name, "dtype": "float32", "shape": [4]} for name in ("out", "x")]
    params = (*tensors, {"name": "f", "dtype": "float32"})
    tensor = {"dtype": "float32", "shape": [4]}
    arguments = ({"scalar": "float"},) if outputs else (tensor, {"scalar": "float"})
    called = Called(None, {}, params=params, outputs=outputs, launches=(Launch((tensor, *arguments), 3),))
    (hint,) = hints_of("k", [called], [], [], has_inputs=False)
    assert hint.startswith("k: its kernel takes the scalar f,") and 'inputs = "module:function"' in hint
    assert list(hints_of("k", [called], [], [], has_inputs=True)) == []


SPEC = """\
# A comment that stays.
[tlaot]
package = "pkg"
targets = ["cuda:sm_90a"]   # and this

[[kernel]]
name = "scale"
frontend = "tilelang"
factory = "pkg.kernels:scale"
shapes = [
    { M = 64 },             # the usual one
]
check = false

[[kernel]]
name = "rows"
frontend = "tilelang"
factory = "pkg.kernels:rows"
shapes = { hidden = [] }  # FILL IN: the values that you call it with; lists are multiplied out
check = false
"""


@pytest.fixture
def recorded(project: Path, capfd: pytest.CaptureFixture[str]) -> Path:
    """A project with a spec, and a program that was recorded; its folder is the recording's."""
    (project / "tltune.toml").write_text(SPEC)
    (project / "work.py").write_text(PROGRAM)
    assert main(["capture", "--dry-run", "--json", "--", sys.executable, "work.py"]) == 0
    json.loads(capfd.readouterr().out)  # what the program prints is not in it
    return project / "build" / "tlaot" / "capture"


def test_workloads_go_into_the_spec(recorded: Path, project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Most used first; all else of the file stays; a draft's gap is filled; a kernel that it lacks gets an entry; again, nothing changes."""
    assert (project / "tltune.toml").read_text() == SPEC, "--dry-run writes nothing"
    capfd.readouterr()
    assert main(["capture", "--from", str(recorded)]) == 0
    said = capfd.readouterr().out
    text = (project / "tltune.toml").read_text()
    assert text.startswith(
        SPEC.replace("usual one\n", "usual one\n    { M = 32 },\n    { M = 16 },\n").replace(
            "shapes = { hidden = [] }  # FILL IN: the values that you call it with; lists are multiplied out",
            "shapes = [{ hidden = 128 }]\ndynamic = { num_tokens = [1, 3, 17, 100, 4000] }",
        )
    )
    assert 'factory = "pkg.kernels:tuned"' in text and "configs = [" in text, "as tlaot init drafts it"
    assert "tltune.toml: 15 workloads added" in said and "in the spec" in said
    assert "M has 12 values from 20 to 31" in said
    line = next(line for line in said.splitlines() if line.startswith("odd"))
    assert "left out: hook: " in line
    filled = text.replace('# reference = "pkg.reference:tuned"', "check = false\n#")
    (project / "tltune.toml").write_text(filled)
    spec = read_spec(project / "tltune.toml")
    assert [len(kernel.shapes) for kernel in spec.kernels] == [3, 1, 12]
    capfd.readouterr()
    assert main(["capture", "--from", str(recorded)]) == 0
    assert (project / "tltune.toml").read_text() == filled
    assert "tltune.toml: nothing to change" in capfd.readouterr().out


def test_min_count_and_cover(recorded: Path, project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert main(["capture", "--from", str(recorded), "--cover", "0.99", "--min-count", "2", "--dry-run", "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    scale = {row["workload"]: (row["state"], row["why"]) for row in shown["workloads"] if row["kernel"] == "scale"}
    assert scale == {
        "M = 64": ("in the spec", ""),
        "M = 32": ("new", ""),
        "M = 16": ("left out", "the others cover 99.00% of the launches"),
    }
    tuned = [row for row in shown["workloads"] if row["kernel"] == "tuned"]
    assert {row["why"] for row in tuned} == {"fewer than 2 launches"}
    assert not any(one["factory"].endswith("tuned") for one in shown["additions"])


def test_dry_run_prints_a_diff(recorded: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert main(["capture", "--from", str(recorded), "--dry-run"]) == 0
    said = capfd.readouterr().out
    assert "+    { M = 32 }," in said and "-shapes = { hidden = [] }" in said and "--- tltune.toml (now)" in said


def test_a_first_spec(project: Path, recorded: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where there is none, one is drafted with what was launched."""
    (project / "tltune.toml").unlink()
    assert main(["capture", "--from", str(recorded)]) == 0
    text = (project / "tltune.toml").read_text()
    assert 'package = "pkg"' in text and "    { M = 64 },\n    { M = 32 },\n    { M = 16 },\n" in text
    assert "dynamic = { num_tokens = [1, 3, 17, 100, 4000] }" in text
    assert "= []" not in text
    before = text
    assert main(["capture", "--from", str(recorded)]) == 0
    assert (project / "tltune.toml").read_text() == before


def test_dynamic_ends_are_widened(project: Path, recorded: Path) -> None:
    """Declared sizes stay; what was seen beyond them is added."""
    path = project / "tltune.toml"
    path.write_text(
        SPEC.replace(
            "shapes = { hidden = [] }  # FILL IN: the values that you call it with; lists are multiplied out",
            "shapes = { hidden = 128 }\ndynamic = { num_tokens = [2, 64, 1024] }  # of a server",
        )
    )
    assert main(["capture", "--from", str(recorded)]) == 0
    assert "dynamic = { num_tokens = [1, 2, 64, 1024, 4000] }  # of a server\n" in path.read_text()


def test_static_calls_that_a_dynamic_entry_serves(
    project: Path, record: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    """matmul(M, N, K) is called with sizes under the JIT, and packaged with an open one."""
    record("for m in (3, 40, 500): scale(m)(Array(m, 256))")
    path = project / "tltune.toml"
    path.write_text(
        SPEC.replace("shapes = [\n    { M = 64 },             # the usual one\n]", "dynamic = { M = [1, 512] }")
    )
    assert main(["capture", "--from", "recording", "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert {row["state"] for row in shown["workloads"]} == {"in the spec"} and not shown["changed"]


def test_a_static_and_a_dynamic_entry_of_one_factory(project: Path, record: Run) -> None:
    """A filled static entry does not become dynamic: the kernel gets a second entry, like the first but for its shapes."""
    record("rows(128)(Array(7, 128), Array(7, 128)); rows(128)(Array(9, 128), Array(9, 128))")
    path = project / "tltune.toml"
    path.write_text(
        SPEC.replace(
            "{ hidden = [] }  # FILL IN: the values that you call it with; lists are multiplied out", "{ hidden = 64 }"
        )
    )
    assert main(["capture", "--from", "recording"]) == 0
    entries = [kernel for kernel in read_spec(path).kernels if kernel.name == "rows"]
    assert [dict(entry.dynamic) for entry in entries] == [{}, {"num_tokens": (7, 9)}]
    assert entries[1].shapes == ({"hidden": 128},) and not entries[1].check


def test_a_size_that_some_launches_do_not_tell(project: Path, record: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is launched for no rows: one entry all the same; where no launch tells it, the author is asked."""
    record("rows(128)(Array(7, 128), Array(7, 128)); rows(64)(Array(0, 64), Array(0, 64)); rows(32)()")
    (project / "tltune.toml").write_text(SPEC)
    assert main(["capture", "--from", "recording"]) == 0
    text = (project / "tltune.toml").read_text()
    assert text.count("pkg.kernels:rows") == 1 and "dynamic = { num_tokens = [1, 7] }" in text
    assert "    { hidden = 32 },\n    { hidden = 64 },\n    { hidden = 128 },\n" in text
    said = capfd.readouterr().out
    assert "rows: num_tokens was 7 in every launch" in said and "no launch told it" not in said


def test_what_looks_tuned_and_callers_decide(project: Path, record: Run) -> None:
    """A name like a tunable's, of which nobody knows values to try: a workload's, as it was called."""
    record("persistent(64, 132)(Array(64))")
    assert main(["capture", "--from", "recording"]) == 0
    text = (project / "tltune.toml").read_text()
    assert "shapes = [{ hidden = 64, num_persistent_blocks = 132 }]\n" in text and "space" not in text


def test_objects_are_spelled_and_shown_by_their_fields(
    project: Path, record: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    record("for depth in (2, 3): odd(4, hook=Options(depth))(Array(4))")
    (project / "tltune.toml").write_text(SPEC)
    assert main(["capture", "--from", "recording"]) == 0
    made = '{ make = "pkg.kernels:Options", with = { depth = 3, tile = { tuple = [1, 2] } } }'
    assert f"    {{ M = 4, hook = {made} }},\n" in (project / "tltune.toml").read_text()
    said = capfd.readouterr().out
    assert re.search(r"^odd +hook.depth = 3 +1 +50.0%  new$", said, re.MULTILINE)
    assert "  odd, in all: M = 4, hook.tile = (1, 2)\n" in said


def test_shapes_of_a_function_are_left_to_it(project: Path, recorded: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = project / "tltune.toml"
    path.write_text(
        SPEC.replace("shapes = [\n    { M = 64 },             # the usual one\n]", 'shapes = "pkg.sizes:scale"')
    )
    capfd.readouterr()
    assert main(["capture", "--from", str(recorded)]) == 0
    assert "pkg.sizes:scale lists the shapes: add it there" in capfd.readouterr().out
    assert 'shapes = "pkg.sizes:scale"\n' in path.read_text()


def test_a_command_that_fails(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its status is passed on, nothing is written, the recording is kept."""
    (project / "tltune.toml").write_text(SPEC)
    program = HEAD + "scale(2)(Array(2, 256)); raise SystemExit(7)"
    assert main(["capture", "--", sys.executable, "-c", program]) == 7
    said = capfd.readouterr()
    assert (
        "the command ended with 7; nothing is written" in said.err
        and "tlaot capture --from build/tlaot/capture" in said.err
    )
    assert (project / "tltune.toml").read_text() == SPEC
    assert main(["capture", "--from", "build/tlaot/capture"]) == 0
    assert "{ M = 2 }" in (project / "tltune.toml").read_text()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print()", "no process of the command imported TileLang"),
        ("import tilelang", "1 process imported TileLang, and called none of its functions"),
        (HEAD + "scale(2)", "factories were called, and no kernel of theirs was launched"),
        (
            HEAD + "try: odd(13)\nexcept ValueError: pass",
            "no kernel was launched; pkg.kernels:odd: ValueError: 13 is not a size",
        ),
    ],
)
def test_nothing_was_launched(project: Path, program: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "--", sys.executable, "-c", program]) == 2
    assert said in capfd.readouterr().err


def test_a_command_line_that_says_nothing(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["capture"]) == 2
    assert "is given no command" in capfd.readouterr().err
    assert main(["capture", "--", "no-such-program"]) == 2
    assert "no-such-program: cannot be run" in capfd.readouterr().err
    assert main(["capture", "--from", "nowhere"]) == 2
    assert "there is no such folder" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        main(["capture", "--cover", "99", "--", "true"])
    assert "write 0.99 for 99 %" in capfd.readouterr().err


def test_an_entry_that_cannot_be_edited_is_told(project: Path, record: Run, capfd: pytest.CaptureFixture[str]) -> None:
    record("scale(2)(Array(2, 256))")
    text = (
        '[tlaot]\npackage = "pkg"\ntargets = ["cuda:sm_90a"]\n'
        'kernel = [{ name = "scale", frontend = "tilelang", factory = "pkg.kernels:scale", shapes = { M = 1 } }]\n'
    )
    text = (
        text.replace("[tlaot]", "").replace('package = "pkg"\ntargets = ["cuda:sm_90a"]\n', "")
        + '[tlaot]\npackage = "pkg"\ntargets = ["cuda:sm_90a"]\n'
    )
    (project / "tltune.toml").write_text(text)
    assert main(["capture", "--from", "recording"]) == 0
    said = capfd.readouterr().out
    assert "is written in a way that tlaot capture does not edit Write shapes = [{ M = 2 }]" in said
    assert (project / "tltune.toml").read_text() == text


def test_the_fewest_that_cover_a_share() -> None:
    workloads = [Workload({"M": i}, times) for i, times in enumerate((60, 30, 9, 1, 0))]
    chosen, left = choose(workloads, 1, 0.9)
    assert [one.shape["M"] for one in chosen] == [0, 1] and set(left) == {2, 3, 4}
    assert left[4] == "never launched"
    assert len(choose(workloads, 1, 1.0)[0]) == 4


def test_representative_sizes() -> None:
    """The ends, and of each power of four the size that was launched most."""
    assert dynamic_sizes({"M": Counter({1: 5, 2: 9, 3: 1, 17: 1, 20: 3, 500: 1})}) == {"M": (1, 2, 20, 500)}
    assert dynamic_sizes({"M": Counter({300: 4})}) == {"M": (1, 300)}
    assert dynamic_sizes({"M": Counter({1: 4})}) == {"M": (1, 2)}
    many: Any = {name: Counter({4**i: 1 for i in range(10)}) for name in "MN"}
    sizes = dynamic_sizes(many)
    assert all(own[0] == 1 and own[-1] == 4**9 for own in sizes.values()) and len(sizes["M"]) * len(sizes["N"]) <= 64
