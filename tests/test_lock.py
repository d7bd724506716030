"""tltune.lock: what is written, what is read, what every damage says, what is stale, how locks are merged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from locks import CONFIGS, H200, entry, lock, timing, tried

from tlaot.errors import BuildError, SpecError
from tlaot.manifest import digest_of
from tlaot.target import parse_target
from tlaot.tune.children.child import Failed
from tlaot.tune.compiling.compile import Built
from tlaot.tune.locks.fit import describe_tools, same_device_tools, same_frontend, spec_fields, why_stale
from tlaot.tune.locks.lock import Entry, Lock, Tried, latency_of
from tlaot.tune.locks.lock_file import dump_lock, parse_lock, parse_sides, read_lock, replace_lock, update_lock
from tlaot.tune.locks.merge import merge_locks
from tlaot.tune.locks.record import Circumstances, make_entry
from tlaot.tune.locks.sources import digest_modules, digest_text
from tlaot.tune.machine import Gpu, Machine
from tlaot.tune.measuring.measure import Decision, Measured
from tlaot.tune.measuring.nvml import driver_version
from tlaot.tune.specs.plan import Workload
from tlaot.tune.specs.spec import Budget, KernelSpec, Profile

DERIVED = Entry(
    "add",
    "cuda:sm_100a",
    {"N": 64},
    {},
    {},
    {"tlaot": "0.1.0"},
    CONFIGS[1],
    {"cubin": "e" * 64},
    tuned_as="cuda:sm_90a",
)
SKIPPED = entry(128, candidates=(*tried()[:2], Tried(CONFIGS[2], skipped="the budget of 2 trials was spent")))


def write(path: Path, content: Lock) -> str:
    replace_lock(path, content)
    return path.read_text(encoding="utf-8")


def test_a_lock_says_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "tltune.lock"
    made = lock(entry(64), SKIPPED, entry(8, kernel="mul", reference=None, trusted=False, notes=("busy",)), DERIVED)
    text = write(path, made)
    assert read_lock(path) == made
    assert dump_lock(read_lock(path)) == text
    assert read_lock(tmp_path / "none.lock") == Lock()


def test_the_layout_is_for_people_and_merges() -> None:
    text = dump_lock(lock(entry(1024), entry(64), entry(64, target="cuda:sm_80"), DERIVED))
    assert text.endswith("}\n") and "\r" not in text
    lines = text.splitlines()
    shapes = [line.strip() for line in lines if '"shape"' in line or '"target"' in line]
    assert shapes == [
        '"target": "cuda:sm_100a",', '"shape": {"N": 64},',
        '"target": "cuda:sm_80",', '"shape": {"N": 64},',
        '"target": "cuda:sm_90a",', '"shape": {"N": 64},',
        '"target": "cuda:sm_90a",', '"shape": {"N": 1024},',
    ]  # fmt: skip
    assert sum('"config"' in line for line in lines) == 3 * 3, "one candidate a line"
    assert (
        '    {"config": {"block": 256}, "failed": {"reason": "1 of 64 elements differ from the reference", "stage": "check"}}'
        in lines
    )
    assert dump_lock(lock(DERIVED, entry(64, target="cuda:sm_80"), entry(64), entry(1024))) == text, "a stable order"


def test_text_of_every_language_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "tltune.lock"
    made = lock(entry(64, shape={"größe": "眼鏡 🧪", "q": 'a"b\\c\u2028'}, notes=("vu de près",)))
    text = write(path, made)
    assert "größe" in text and "🧪" in text
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert read_lock(path) == made
    assert not update_lock(path, lambda found: found), "a lock that says the same is left as it is"
    update_lock(path, lambda found: found.with_entries([entry(128)]))
    assert b"\r" not in path.read_bytes()


def edit(text: str, old: str, new: str, count: int = 1) -> str:
    assert old in text, old
    return text.replace(old, new, count)


def test_what_was_edited_is_known_and_stays_known() -> None:
    text = dump_lock(lock(entry(64), entry(128)))
    edited = parse_lock(edit(text, '"latency": 0.125', '"latency": 0.12'), "tltune.lock")
    assert edited.edited == {entry(64).key}
    again = parse_lock(dump_lock(edited.with_entries([entry(256)])), "tltune.lock")
    assert again.edited == {entry(64).key}, "another entry that is written launders nothing"
    assert not again.with_entries([entry(64)]).edited
    assert not parse_lock(text.replace('"N": 64}', '"N":   64.0e0}').replace("64.0e0", "64"), "tltune.lock").edited


ONE = dump_lock(lock(entry(64)))
DAMAGES: list[tuple[str, str, str]] = [
    ("{", "is not valid JSON", "line 1"),
    (edit(ONE, '"target": "cuda:sm_90a",', '"target": "cuda:sm_90a"'), "is not valid JSON", "line 7"),
    ("[]", "it has no version", ""),
    (edit(ONE, '"version": 1', '"version": "1"'), "it has no version", ""),
    (edit(ONE, '"version": 1', '"version": true'), "it has no version", ""),
    (edit(ONE, '"version": 1', '"version": 7'), "was written by a newer tlaot: version 7, this one reads up to 1", ""),
    (edit(ONE, '"version": 1', '"version": 1, "entires": []'), "unknown key 'entires', did you mean 'entries'", ""),
    ('{"version": 1}', "has no list of entries", ""),
    (edit(ONE, "{\n   ", '{\n   "kernel": "sub",\n   '), "has 'kernel' twice in one table", ""),
    (edit(ONE, "0.125", "NaN"), "has NaN, which is no number of JSON", ""),
    (edit(ONE, "0.125", "-Infinity"), "has -Infinity, which is no number of JSON", ""),
    (edit(ONE, "0.125", "1e999"), "is not a number of zero or more, got inf", "candidates #1 latency"),
    (edit(ONE, "0.125", "0"), "is not a time above zero", "candidates #1 latency"),
    (edit(ONE, "0.125", "-1"), "is not a number of zero or more", "add [cuda:sm_90a] (N=64) candidates #1 latency"),
    (edit(ONE, "0.125", '"fast"'), "is not a number of zero or more, got 'fast'", "candidates #1 latency"),
    (edit(ONE, '"samples": 100', '"samples": 0'), "is not a whole number above zero", "samples"),
    (edit(ONE, '"winner"', '"wimmer"'), "unknown field 'wimmer', did you mean 'winner'?", "add [cuda:sm_90a] (N=64)"),
    (edit(ONE, '   "trusted": true,\n', ""), "lacks trusted", "add [cuda:sm_90a] (N=64)"),
    (edit(ONE, '"trusted": true', '"trusted": 1'), "is not true or false, got 1", "trusted"),
    (edit(ONE, '"target": "cuda:sm_90a"', '"target": "cuda:hopper"'), "names an architecture", "target"),
    (edit(ONE, '"winner": {"block": 128}', '"winner": {"block": 32}'), "{'block': 32} is none of the candidates", "winner"),
    (edit(ONE, '"winner": {"block": 128}', '"winner": {"block": 256}'), "{'block': 256} has no time", "winner"),
    (edit(ONE, '"ships": {"block": 128}', '"ships": []'), "is not a table, got []", "ships"),
    (edit(ONE, '"config": {"block": 64}', '"config": {"block": 128}'), "is listed twice", "add [cuda:sm_90a] (N=64)"),
    (edit(ONE, '"stage": "check"', '"stgae": "check"'), "unknown field 'stgae', did you mean 'stage'?", "candidates #2 failed"),
    (edit(ONE, '"notes": []', '"notes": [1]'), "is not a string, got 1", "notes #0"),
    (ONE.replace("\n ]", ",\n 3\n ]"), "an entry is not a table, got 3", ""),
    ("[" * 100_000, "is nested too deeply", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "what", "place"), DAMAGES, ids=[f"{what[:40]}-{place}" for _, what, place in DAMAGES])
def test_damage_is_named_with_its_place(text: str, what: str, place: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_lock(text, "tltune.lock")
    assert caught.value.where.startswith("tltune.lock") and place in caught.value.where
    assert what in caught.value.what and caught.value.remedy


def test_an_entry_that_is_there_twice() -> None:
    body = json.loads(ONE)
    body["entries"] *= 2
    with pytest.raises(SpecError, match=r"add \[cuda:sm_90a\] \(N=64\): is listed twice") as caught:
        parse_lock(json.dumps(body), "tltune.lock")
    assert "tlaot lock merge A B" in caught.value.remedy


def conflict(ours: Lock, theirs: Lock, tmp_path: Path, style: str = "merge") -> str:
    """What git leaves of two changes of one lock."""
    for name, content in (("base", lock(entry(8))), ("ours", ours), ("theirs", theirs)):
        (tmp_path / name).write_text(dump_lock(content))
    command = ["git", "merge-file", "-p", *(["--diff3"] if style == "diff3" else []), "ours", "base", "theirs"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout


@pytest.mark.parametrize("style", ["merge", "diff3"])
def test_conflict_markers_are_named_and_the_two_sides_can_be_had(tmp_path: Path, style: str) -> None:
    ours, theirs = lock(entry(8), entry(64)), lock(entry(8), entry(128), entry(256))
    text = conflict(ours, theirs, tmp_path, style)
    assert "<<<<<<<" in text
    with pytest.raises(SpecError, match=r"tltune\.lock line \d+: has the conflict markers") as caught:
        parse_lock(text, "tltune.lock")
    assert "tlaot lock merge" in caught.value.remedy
    sides = parse_sides(text, "tltune.lock")
    assert [name for name, _ in sides] == ["ours", "theirs"]
    assert merge_locks(sides).lock == lock(entry(8), entry(64), entry(128), entry(256))
    # A merge that git takes for clean, and is not.
    union = conflict(ours, theirs, tmp_path).replace("=======\n", "")
    union = "".join(line for line in union.splitlines(True) if not line.startswith(("<<<<<<<", ">>>>>>>")))
    with pytest.raises(SpecError):
        parse_lock(union, "tltune.lock")


def test_a_merge_of_lines_inside_an_entry_is_known() -> None:
    other = entry(64, winner=CONFIGS[0], ships=CONFIGS[0], candidates=tried((0.1, 0.2, None)))
    mixed = edit(ONE, '"latency": 0.25', '"latency": 0.1')
    assert parse_lock(mixed, "tltune.lock").edited
    assert not parse_lock(dump_lock(lock(other)), "tltune.lock").edited


def test_a_lock_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """A process that is killed between writing and renaming leaves the old lock; what it left is gone after the next."""
    path = tmp_path / "tltune.lock"
    before = write(path, lock(entry(64)))
    code = (
        "import os, sys; from pathlib import Path; from locks import entry\n"
        "from tlaot.tune.locks.lock_file import update_lock\n"
        "os.replace = lambda *_: os.kill(os.getpid(), 9)\n"
        "update_lock(Path(sys.argv[1]), lambda lock: lock.with_entries([entry(128)]))\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, "-c", code, str(path)], env=environ)
    assert done.returncode == -9
    assert path.read_text() == before
    assert len(list(tmp_path.iterdir())) == 2
    update_lock(path, lambda found: found.with_entries([entry(256)]))
    assert [child.name for child in tmp_path.iterdir()] == ["tltune.lock"]
    assert set(read_lock(path).entries) == {entry(64).key, entry(256).key}


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tltune.lock"
    code = (
        "import sys; from pathlib import Path; from locks import entry\n"
        "from tlaot.tune.locks.lock_file import update_lock\n"
        "for n in range(8):\n"
        "    update_lock(Path(sys.argv[1]), lambda lock: lock.with_entries([entry(n, kernel=sys.argv[2])]))\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), name], env=environ) for name in ("a", "b", "c")]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(read_lock(path).entries) == 24


def test_a_link_is_followed(tmp_path: Path) -> None:
    real, link = tmp_path / "locks" / "real.lock", tmp_path / "tltune.lock"
    real.parent.mkdir()
    replace_lock(real, lock(entry(64)))
    link.symlink_to(real)
    update_lock(link, lambda found: found.with_entries([entry(128)]))
    assert link.is_symlink() and len(read_lock(real).entries) == 2


def test_a_lock_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="cannot be written") as caught:
        update_lock(tmp_path / "nowhere" / "tltune.lock", lambda found: found, must_write=True)
    assert "TLAOT_LOCK=auto" in caught.value.remedy
    (tmp_path / "tltune.lock").mkdir()
    with pytest.raises(SpecError, match="cannot be read"):
        read_lock(tmp_path / "tltune.lock")
    with pytest.raises((BuildError, SpecError)):
        update_lock(tmp_path / "tltune.lock", lambda found: found.with_entries([entry(64)]))


def test_no_time_that_is_no_number_is_ever_written(tmp_path: Path) -> None:
    path = tmp_path / "tltune.lock"
    bad = entry(64, candidates=(Tried(CONFIGS[1], timing=timing(float("nan"))),))
    with pytest.raises(ValueError, match="not JSON compliant"):
        replace_lock(path, lock(bad))
    assert not path.exists()


def test_a_large_lock_is_read_in_no_time(tmp_path: Path) -> None:
    """1000 workloads of 20 candidates."""
    configs = tuple({"block": n, "stages": n % 4} for n in range(20))
    candidates = tried(tuple(0.1 + n / 1000 for n in range(20)), configs)
    made = lock(*(entry(n, winner=configs[0], ships=configs[0], candidates=candidates) for n in range(1000)))
    text = write(tmp_path / "tltune.lock", made)
    start = time.perf_counter()
    assert parse_lock(text, "tltune.lock") == made
    # Some 0.5 s; quadratic work would take minutes.
    assert time.perf_counter() - start < 30


def test_times_that_ship_come_from_the_entry_alone() -> None:
    assert latency_of(entry(64)) == {
        "latency": 0.125, "spread": 0.01, "default_latency": 0.25, "ref_latency": 0.5,
    }  # fmt: skip
    slower = entry(64, ships=CONFIGS[0], reference=None)
    assert latency_of(slower) == {
        "latency": 0.25, "spread": 0.01, "default_latency": 0.25, "ref_latency": None,
    }  # fmt: skip
    failed = entry(64, candidates=(Tried(CONFIGS[0], failed=("check", "wrong")), *entry(64).candidates[1:]))
    assert latency_of(failed)["default_latency"] is None


def test_what_a_device_is() -> None:
    gpu = Gpu(0, "NVIDIA H200", (9, 0), 132, 12080, "570.86.15")
    found = Machine("AMD EPYC", 64, (gpu,), {})
    assert found.device_facts(parse_target("cuda:sm_90a")) == {
        "name": "NVIDIA H200", "sm_count": 132, "capability": "9.0", "cuda": "12.8", "driver": "570.86.15",
    }  # fmt: skip
    assert found.device_facts(parse_target("cuda:sm_80")) == {}, "a device that does not run its code"
    assert found.device_facts(parse_target("llvm")) == {"name": "AMD EPYC", "cpus": 64}
    assert driver_version("libno-such-library.so.1") is None


def test_what_failed_names_no_folder_of_the_machine(tmp_path: Path) -> None:
    workload = Workload(KERNEL, KERNEL.targets[0], {"N": 64}, CONFIGS[:2])
    candidate = workload.candidates()[0]
    measured = Measured(candidate, Built(tmp_path, digest_of(b""), (), (), {}, {}), timing(0.123456789))
    failed = Failed("check", f"raised ValueError:\n  no ({tmp_path}/pkg/reference.py:3) " + "x" * 400)
    decision = Decision({}, 0, None, True, ())
    made = make_entry(workload, [measured, failed], decision, Circumstances({}, {}, {}, {}, (tmp_path,)))
    stage, reason = made.candidates[1].failed or ("", "")
    assert (
        stage == "check" and reason.startswith("raised ValueError: no (pkg/reference.py:3) xxx") and len(reason) == 300
    )
    assert made.candidates[0].timing == replace(timing(0.123457), low=0.122222)


# What is stale.

KERNEL = KernelSpec(
    name="add",
    frontend="tilelang",
    factory="pkg.kernels:add",
    targets=(parse_target("cuda:sm_90a"),),
    shapes=({"N": 64},),
    configs=CONFIGS,
    where="tltune.toml [[kernel]] #1 (add)",
    reference="pkg.kernels:reference",
)
FIELDS = spec_fields(KERNEL, {})
SOURCES = {"pkg.kernels": "0123456789ab"}


def test_what_evidence_depends_on_and_what_not() -> None:
    assert entry(64).spec == FIELDS
    same = replace(
        KERNEL,
        where="tltune.toml [[kernel]] #7 (add)",
        targets=(),
        shapes=(),
        configs=(),
        search="guided",
        budget=Budget(trials=3),
        profile=Profile(rep=500, timeout=5),
        ptx=True,
        max_slowdown=1.1,
    )
    assert spec_fields(same, {}) == FIELDS
    for change in (
        {"factory": "pkg.kernels:other"},
        {"rtol": 1e-3},
        {"check": False},
        {"pass_configs": {"tl.disable_tma_lower": True}},
        {"out_idx": (-1,)},
        {"supply": {"seed": 1}},
        {"deterministic": False},
        {"profile": Profile(backend="cupti")},
    ):
        assert spec_fields(replace(KERNEL, **change), {}) != FIELDS, change
    assert spec_fields(KERNEL, {"sm_count": 78}) != FIELDS


def test_what_makes_an_entry_stale_is_named() -> None:
    found = entry(64)
    assert why_stale(found, FIELDS, SOURCES, CONFIGS) is None
    assert why_stale(found, FIELDS, SOURCES, CONFIGS[::-1]) is None, "the order of the configs says nothing"
    assert why_stale(found, FIELDS, SOURCES, None) is None
    tolerance = spec_fields(replace(KERNEL, rtol=0.001), {})
    assert why_stale(found, tolerance, SOURCES, CONFIGS) == "rtol was not given, is 0.001"
    assert (
        why_stale(found, FIELDS, {"pkg.kernels": "ffff", "pkg.tiles": "0"}, CONFIGS) == "pkg.kernels, pkg.tiles changed"
    )
    new = (*CONFIGS, {"block": 512})
    assert why_stale(found, FIELDS, SOURCES, new) == '1 config is new ({"block": 512})'
    gone = why_stale(found, FIELDS, SOURCES, CONFIGS[:1])
    assert gone is not None and gone.startswith("2 configs are gone (")


def test_other_tools_are_told_from_each_other() -> None:
    old = {"tlaot": "0.1.0", "tilelang": "0.1.15", "cc": "gcc 12", "cuda": "13.0"}
    assert describe_tools(old, old) == ""
    assert describe_tools(old, {**old, "tilelang": "0.1.16", "nvrtc": "13.0"}) == (
        "nvrtc none, here 13.0, tilelang 0.1.15, here 0.1.16"
    )
    assert same_frontend(old, {**old, "cc": "gcc 13", "cuda": "12.9"}) and not same_frontend(
        old, {**old, "tlaot": "0.2"}
    )
    assert not same_device_tools(old, {**old, "cc": "gcc 13"}), "nvcc reads the headers of its host compiler"
    nvrtc = {**old, "nvrtc": "13.0"}
    assert same_device_tools(nvrtc, {**nvrtc, "cc": "gcc 13"}) and not same_device_tools(nvrtc, old)
    assert not same_device_tools({**nvrtc, "nvrtc": "13.0.48"}, {**nvrtc, "nvrtc": "13.0.88"})


TEXT = '''
import math  # a comment

def f(x):
    """A docstring,

    of two lines."""
    return (x +
            1)  # why
'''


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("  # a comment", ""),
        lambda text: text.replace("# why", "# because"),
        lambda text: text.replace("\n\ndef", "\n\n\n# moved\n\n\ndef"),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: "#!/usr/bin/env python3\n# -*- coding: utf-8 -*-\n" + text,
        lambda text: text.rstrip("\n"),
        lambda text: text + "\n\n\t\n   # the end",
        lambda text: text.replace("import math", "import math   "),
        lambda text: text.replace("    return", "  # at another depth\n    return"),
        lambda text: text.replace("(x +\n", "(x +  # first\n\n"),
    ],
)
def test_what_a_module_s_digest_takes_no_notice_of(change: Callable[[str], str]) -> None:
    changed = change(TEXT)
    assert changed != TEXT
    assert digest_text(changed.encode()) == digest_text(TEXT.encode())


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("1)", "2)"),
        lambda text: text.replace("docstring,\n\n", "docstring,\n"),
        lambda text: text.replace("docstring", "docstring # not a comment"),
        lambda text: text.replace("f(x)", "f(x, y=0)"),
        lambda text: text + "f(1)\n",
        lambda text: text.replace("    return", "    if x:\n        return"),
    ],
)
def test_what_a_module_s_digest_takes_notice_of(change: Callable[[str], str]) -> None:
    changed = change(TEXT)
    assert changed != TEXT
    assert digest_text(changed.encode()) != digest_text(TEXT.encode())


def test_digests_are_the_same_under_every_python() -> None:
    """Recorded under 3.11; f-strings are other tokens from 3.12 on."""
    nested = 'x = f"""{\n  1 + 1\n}""" + f"{x!r:>{9}}"  # c\n'
    assert [digest_text(TEXT.encode()), digest_text(nested.encode())] == ["2403d68f8a55", "b8446072d8e1"]
    assert digest_text(b"print 'Python 2'\n\xff") == digest_text(b"print 'Python 2'\r\n\xff")
    assert digest_text(b"# -*- coding: latin-1 -*-\nx = '\xe9'\n") == digest_text("x = 'é'\n".encode())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "pkg/__init__.py": "__version__ = '1'\nfrom . import unrelated\n",
        "pkg/kernels.py": "import math\nfrom . import tiles\nfrom .deep.shapes import sizes\nfrom pkg import names\n"
        "def add():\n    import pkg.late\n    from . import missing\n",
        "pkg/tiles.py": "from pkg.kernels import add\n",
        "pkg/names.py": "",
        "pkg/late.py": "import pkg.deep.more as m\n",
        "pkg/unrelated.py": "from . import further\n",
        "pkg/further.py": "",
        "pkg/deep/__init__.py": "",
        "pkg/deep/shapes.py": "from .. import __version__\n",
        "pkg/deep/more.py": "from ...... import nothing\n",
        "single.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_modules_are_followed_as_they_are_imported(tree: Path) -> None:
    found = digest_modules(tree, ["pkg.kernels", "single", "numpy.linalg"])
    # pkg's __init__ counts, and what it imports: a name is taken from it. That of pkg.deep does not.
    assert list(found) == [
        "pkg", "pkg.deep.more", "pkg.deep.shapes", "pkg.further", "pkg.kernels", "pkg.late", "pkg.names", "pkg.tiles",
        "pkg.unrelated", "single",
    ]  # fmt: skip
    assert digest_modules(tree, ["numpy.linalg", "single", "pkg.kernels"]) == found
    (tree / "pkg/deep/__init__.py").write_text("VERSION = 2\n")
    (tree / "pkg/new.py").write_text("x = 1\n")
    assert digest_modules(tree, ["pkg.kernels", "single"]) == found, "another module's change"
    (tree / "pkg/deep/more.py").write_text("x = 2\n")
    changed = digest_modules(tree, ["pkg.kernels", "single"])
    assert [name for name in found if found[name] != changed[name]] == ["pkg.deep.more"]
    alone = digest_modules(tree, ["pkg.tiles"])
    assert "single" not in alone and "pkg.kernels" in alone, "imports in a circle"


# Merging.


def test_locks_of_two_machines_become_one() -> None:
    h200, a100 = lock(entry(64), entry(128)), lock(entry(64, target="cuda:sm_80", device={"name": "NVIDIA A100"}))
    merged = merge_locks([("h200.lock", h200), ("a100.lock", a100)])
    assert merged.lock == lock(*h200.entries.values(), *a100.entries.values())
    assert merged.notes == ()
    assert merge_locks([("a", h200), ("b", h200)]).lock == h200


def test_of_two_entries_the_one_that_fits_is_taken_then_the_one_that_is_trusted() -> None:
    old = entry(64, sources={"pkg.kernels": "old"})
    busy = entry(64, trusted=False, notes=("busy",))
    merged = merge_locks(
        [("a", lock(old)), ("b", lock(busy))], fits=lambda e: why_stale(e, FIELDS, SOURCES, None) is None
    )
    assert merged.lock == lock(busy), "trusted, and of other sources"
    assert merged.notes == ("add [cuda:sm_90a] (N=64): taken from b, not from a",)
    assert merge_locks([("a", lock(busy)), ("b", lock(entry(64)))]).lock == lock(entry(64))


def test_nothing_decides_between_two_devices_but_the_person() -> None:
    here, there = lock(entry(64)), lock(entry(64, device={**H200, "name": "NVIDIA H100 80GB HBM3"}))
    with pytest.raises(BuildError, match=r"NVIDIA H200.*NVIDIA H100") as caught:
        merge_locks([("h200.lock", here), ("h100.lock", there)])
    assert caught.value.remedy == "Say which: --prefer h200.lock, --prefer h100.lock."
    assert merge_locks([("h200.lock", here), ("h100.lock", there)], prefer="h100.lock").lock == there
    again = lock(entry(64, candidates=tried((0.25, 0.126, None))))
    with pytest.raises(BuildError, match=r"both on .*: candidates"):
        merge_locks([("a", here), ("b", again)])


def test_with_a_base_the_side_that_changed_something_is_taken() -> None:
    old, new = entry(64, sources={"pkg.kernels": "old"}), entry(64)
    base = lock(old, entry(128), entry(256))
    ours = lock(new, entry(128))  # measured again, and removed one
    theirs = lock(old, entry(128), entry(256), entry(512))  # one more
    assert merge_locks([("a", ours), ("b", theirs)], base=base).lock == lock(new, entry(128), entry(512))
    assert merge_locks([("a", theirs), ("b", ours)], base=base).lock == lock(new, entry(128), entry(512))


def test_what_was_edited_is_not_merged() -> None:
    edited = parse_lock(edit(ONE, '"latency": 0.125', '"latency": 0.1'), "a")
    with pytest.raises(BuildError, match="was edited by hand"):
        merge_locks([("a", edited), ("b", lock(entry(128)))])


# The command.


SPEC = """
[tlaot]
package = "pkg"

[[kernel]]
name = "add"
frontend = "tilelang"
factory = "pkg.kernels:add"
targets = ["cuda:sm_90a", "cuda:sm_100a"]
shapes = [{ N = 64 }, { N = 128 }]
configs = [{ block = 64 }, { block = 128 }, { block = 256 }]
reference = "pkg.kernels:reference"

[target."cuda:sm_100a"]
tuned-as = "cuda:sm_90a"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "kernels.py").write_text("def add(N, block): ...\ndef reference(a): ...\n")
    (tmp_path / "tltune.toml").write_text(textwrap.dedent(SPEC))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def present(n: int, project: Path, **fields: object) -> Entry:
    return entry(n, sources=digest_modules(project, ["pkg.kernels"]), **fields)


def run(*words: str) -> int:
    from tlaot.cli import main

    return main(list(words))


def test_check_says_what_is_stale_and_why(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", "check") == 1
    assert capsys.readouterr().out.count("missing") == 2
    replace_lock(project / "tltune.lock", lock(present(64, project), present(128, project), DERIVED))
    assert run("lock", "check") == 1  # the stand-in's entry is of no sources
    assert "cuda:sm_100a" in capsys.readouterr().out
    update_lock(project / "tltune.lock", lambda found: found.without([DERIVED.key]))
    assert run("lock", "check") == 0
    assert "holds for 2 workloads" in capsys.readouterr().out
    (project / "tltune.toml").write_text(
        textwrap.dedent(SPEC).replace("N = 128", "N = 256").replace("= 256 }]\nref", "= 512 }]\nref")
    )
    assert run("lock", "check", "--json") == 1
    found = {row["workload"]: (row["state"], row["reason"]) for row in json.loads(capsys.readouterr().out)}
    state, reason = found["add [cuda:sm_90a] (N=64)"]
    assert state == "stale" and "1 config is new" in reason and "1 config is gone" in reason
    assert found["add [cuda:sm_90a] (N=256)"][0] == "missing"
    assert found["add [cuda:sm_90a] (N=128)"][0] == "orphan"


def test_show_and_remove(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = project / "tltune.lock"
    assert run("lock", "show") == 2
    replace_lock(path, lock(entry(64), entry(128, trusted=False), DERIVED))
    assert run("lock", "show", "--kernel", "add") == 0
    out = capsys.readouterr().out
    assert "0.125" in out and "NVIDIA H200, 132 SMs; times not to be trusted" in out and "tuned as cuda:sm_90a" in out
    assert run("lock", "show", "--json", "--shape", "N=128") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["shape"] == {"N": 128} and row["edited"] is False
    assert run("lock", "show", "--json", "--target", "cuda", "--shape", "N=128", "--shape", "N=64") == 0
    assert len(json.loads(capsys.readouterr().out)) == 3  # all of the kind, either size
    assert run("lock", "show", "--kernel", "ad") == 2
    assert "--kernel: there is no 'ad', did you mean 'add'?\nThere is: add." in capsys.readouterr().err
    assert run("lock", "remove") == 2 and run("lock", "remove", "--kernel", "sub") == 2
    assert run("lock", "remove", "--target", "cuda:sm_90a", "--shape", "N=64") == 0
    assert set(read_lock(path).entries) == {entry(128).key, DERIVED.key}


def test_merge_mends_a_conflict_in_place(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = project / "tltune.lock"
    stale, good = entry(64), present(64, project)
    path.write_text(conflict(lock(entry(8), stale), lock(entry(8), good, present(128, project)), project))
    assert run("lock", "show") == 2
    assert "tlaot lock merge tltune.lock" in capsys.readouterr().err
    assert run("lock", "merge", "tltune.lock") == 0
    assert "add [cuda:sm_90a] (N=64): taken from theirs, not from ours" in capsys.readouterr().out
    assert read_lock(path) == lock(entry(8), good, present(128, project))


def test_merge_drives_git(project: Path) -> None:
    """As git's merge driver: what each branch tuned is in the result, and what one removed is not."""

    def git(*words: str) -> None:
        names = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *names, *words], cwd=project, check=True, capture_output=True, env=environ)

    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "GIT_CONFIG_GLOBAL": os.devnull}
    path = project / "tltune.lock"
    git("init", "-q", "-b", "main")
    git("config", "merge.tltune.driver", f"{sys.executable} -m tlaot.cli lock merge --base %O %A %B -o %A")
    (project / ".gitattributes").write_text("tltune.lock merge=tltune\n")
    replace_lock(path, lock(entry(8), entry(16)))
    git("add", "-A")
    git("commit", "-qm", "base")
    git("checkout", "-qb", "other")
    replace_lock(path, lock(entry(8), entry(128)))
    git("commit", "-qam", "theirs")
    git("checkout", "-q", "main")
    replace_lock(path, lock(entry(8), entry(16), entry(64)))
    git("commit", "-qam", "ours")
    git("merge", "-q", "other")
    assert read_lock(path) == lock(entry(8), entry(64), entry(128))


@pytest.mark.parametrize("prefer", ["ours", "theirs"])
def test_what_the_driver_cannot_decide_is_left_between_markers(
    project: Path, prefer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both branches tuned the same workload, in a lock's first entry and in its last one; a third was removed by one of them."""
    old, path = tuple(entry(n) for n in (8, 16, 64, 128)), project / "tltune.lock"
    mine = lock(entry(8, reference=None), entry(16), entry(64, ships=CONFIGS[0]), entry(128, reference=None))
    hers = lock(entry(8, ships=CONFIGS[0]), entry(16, reference=None), entry(128, ships=CONFIGS[0]))
    for name, one in (("base", lock(*old)), ("a", mine), ("b", hers)):
        replace_lock(project / name, one)
    replace_lock(path, mine)
    arguments = ["lock", "merge", "--base", str(project / "base"), str(path), str(project / "b"), "-o", str(path)]
    assert run(*arguments) == 1
    said = capsys.readouterr()
    assert "add [cuda:sm_90a] (N=64): tuned again in ours, removed in theirs: kept" in said.out
    assert "(N=8): ours and theirs differ" in said.err and "(N=128): ours and theirs differ" in said.err
    assert "tlaot lock merge tltune.lock --prefer ours" in said.err
    assert path.read_text().count("<<<<<<< ours") == 2
    assert run("lock", "show") == 2 and "conflict markers" in capsys.readouterr().err
    assert run("lock", "merge", str(path), "--prefer", prefer) == 0
    chosen = mine if prefer == "ours" else hers
    expected = {e.key: e for e in (entry(16, reference=None), entry(64, ships=CONFIGS[0]))}
    expected |= {e.key: chosen.entries[e.key] for e in (entry(8), entry(128))}
    assert read_lock(path) == lock(*expected.values())
    assert run(*arguments[:4], str(project / "a"), str(project / "b"), "--prefer", prefer, "-o", str(path)) == 0
    assert read_lock(path) == lock(*expected.values())
