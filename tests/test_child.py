"""Killable children: answers, deaths, time-outs, orphans."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tlaot.tune.children.child import Child, Failed, one_line

SOURCE = """
import os, signal, subprocess, sys, time
from tlaot.tune.children.child import serve

def answer(request, announce):
    what = request["what"]
    announce("work")
    if what == "echo":
        return {"pid": os.getpid(), "path": sys.path}
    if what == "print":
        print("chatter that is not protocol")
        os.write(1, b'{"answer": "forged"}\\n')
        return {"pid": os.getpid()}
    if what == "raise":
        raise ValueError("no such luck\\nsecond line")
    if what == "exit":
        sys.exit("asked to leave")
    if what == "hard-exit":
        os._exit(7)
    if what == "segfault":
        import ctypes
        ctypes.string_at(0)
    if what == "trace":  # as TVM prints one
        print("chatter of an author")
        print("!!!!!!! Segfault encountered !!!!!!!")
        for number in range(request["frames"]):
            print(f'  File "<unknown>", line 0, in tvm::frame{number}')
        print('  File "<unknown>", line 0, in 0xffffffffffffffff\\n', flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "hang":
        grandchild = subprocess.Popen(["sleep", "600"])
        print("grandchild", grandchild.pid, flush=True)
        while True:
            time.sleep(1)
    if what == "fork":
        os.fork()
        return {"pid": os.getpid()}
    if what == "garbage":
        os.write(int(sys.argv[-1]), b"not json\\n")
        time.sleep(60)
    if what == "environment":
        seen = os.environ.get("PATH")
        os.environ.clear()
        os.chdir("/")
        return {"path": seen, "cwd": os.getcwd()}
    if what == "surrogate":
        raise ValueError("\\ud800 is no text")
    if what == "numbers":
        return {"value": object()}
    if what == "spin":
        while True:
            pass

serve(answer, sys.argv)
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    (tmp_path / "serving.py").write_text(SOURCE)
    made = Child("serving", [], [str(tmp_path), *filter(None, sys.path)], tmp_path / "log", dict(os.environ))
    yield made
    made.kill()


def pid_of(child: Child) -> int:
    answer = child.request({"what": "echo"}, 30)
    assert not isinstance(answer, Failed)
    return int(answer["pid"])


def test_one_process_answers_many_requests(child: Child) -> None:
    assert pid_of(child) == pid_of(child)


def test_what_an_author_prints_is_not_protocol(child: Child, tmp_path: Path) -> None:
    answer = child.request({"what": "print"}, 30)
    assert isinstance(answer, dict) and "pid" in answer
    assert "chatter" in (tmp_path / "log").read_text()


def test_an_exception_is_a_failure_of_its_stage_and_the_child_lives(child: Child) -> None:
    pid = pid_of(child)
    answer = child.request({"what": "raise"}, 30)
    assert isinstance(answer, Failed)
    assert (answer.stage, answer.reason.splitlines()) == ("work", [answer.reason])
    assert "no such luck" in answer.reason and "second line" in answer.detail
    assert pid_of(child) == pid


def test_one_answer_a_request_whatever_the_function_forks_or_writes(child: Child) -> None:
    pid = pid_of(child)
    for _ in range(3):
        assert child.request({"what": "fork"}, 30) == {"pid": pid}
        assert pid_of(child) == pid
    answer = child.request({"what": "garbage"}, 30)
    assert isinstance(answer, Failed) and "something else than an answer" in answer.reason
    assert pid_of(child) != pid


def test_one_request_s_changes_do_not_reach_the_next(child: Child) -> None:
    first = child.request({"what": "environment"}, 30)
    assert isinstance(first, dict) and first["path"]
    assert child.request({"what": "environment"}, 30) == first


def test_text_and_values_that_cannot_travel_are_failures(child: Child) -> None:
    pid = pid_of(child)
    for what, reason in (("surrogate", "is no text"), ("numbers", "not JSON serializable")):
        answer = child.request({"what": what}, 30)
        assert isinstance(answer, Failed) and reason in answer.reason
    assert pid_of(child) == pid


def test_a_child_outlives_the_thread_that_asked_first(child: Child) -> None:
    import threading

    thread = threading.Thread(target=lambda: child.request({"what": "echo"}, 30))
    thread.start()
    thread.join()
    time.sleep(0.2)
    assert pid_of(child)


def test_last_words_are_the_child_s_own(tmp_path: Path, child: Child) -> None:
    pid_of(child)
    with (tmp_path / "log").open("a") as log:
        log.write("somebody else's line\n")
    answer = child.request({"what": "hard-exit"}, 30)
    assert isinstance(answer, Failed) and answer.reason == "the process ended (exit code 7)"


@pytest.mark.parametrize(
    ("what", "reason"), [("segfault", "SIGSEGV"), ("hard-exit", "exit code 7"), ("exit", "asked to leave")]
)
def test_a_death_costs_one_answer(child: Child, what: str, reason: str) -> None:
    answer = child.request({"what": what}, 30)
    assert isinstance(answer, Failed) and reason in answer.reason and answer.stage == "work"
    assert pid_of(child)


@pytest.mark.parametrize(("frames", "words"), [(5, ": chatter of an author"), (500, "")])
def test_frames_of_a_crash_are_for_the_log(child: Child, tmp_path: Path, frames: int, words: str) -> None:
    answer = child.request({"what": "trace", "frames": frames}, 30)
    assert isinstance(answer, Failed) and answer.reason == f"crashed with SIGSEGV{words}"
    assert "in 0xffffffffffffffff" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("what", ["hang", "spin"])
def test_a_hang_is_killed_with_all_it_started(child: Child, tmp_path: Path, what: str) -> None:
    pid = pid_of(child)
    start = time.monotonic()
    answer = child.request({"what": what}, 1)
    assert time.monotonic() - start < 10
    assert isinstance(answer, Failed) and "timed out after 1 s" in answer.reason
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    if what == "hang":
        grandchild = int((tmp_path / "log").read_text().split("grandchild")[1].split()[0])
        assert _gone(grandchild)
    assert pid_of(child) != pid


def test_no_orphan_outlives_a_killed_build(tmp_path: Path) -> None:
    (tmp_path / "serving.py").write_text(SOURCE)
    parent = (
        "import os, sys, pathlib\n"
        "from tlaot.tune.children.child import Child\n"
        f"child = Child('serving', [], [{str(tmp_path)!r}, *filter(None, sys.path)], pathlib.Path({str(tmp_path / 'log')!r}), dict(os.environ))\n"
        "print(child.request({'what': 'echo'}, 30)['pid'], flush=True)\n"
        "child.request({'what': 'spin'}, 600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    time.sleep(0.3)
    process.kill()
    process.wait()
    assert _gone(pid)


def test_one_line() -> None:
    assert one_line(ValueError("a message that says it\nmore")) == "ValueError: a message that says it"
    assert one_line(KeyError()) == "KeyError"


def test_one_line_of_tvm_s_schedule_error() -> None:
    """The primitive stands in its first line, why in its last, and the whole module between them."""

    class ScheduleError(Exception):
        pass

    text = (
        "ScheduleError: An error occurred in the schedule primitive 'split'.\n\nThe IR with diagnostic is:\n"
        + "x\n" * 99
    )
    error = ScheduleError(text + "Error message: ScheduleError: The product of factors is too small.\n")
    assert one_line(error) == "ScheduleError: split: The product of factors is too small."
    assert one_line(ScheduleError(text)).startswith("ScheduleError: ScheduleError: An error occurred")


def _gone(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True  # dead; whoever adopted it has not looked yet
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def test_an_interrupted_start_of_a_thread_does_not_hold_up_the_end() -> None:
    """Ctrl-C while the thread that starts programs is being started: it runs, and its starter does not know."""
    program = """
import sys, threading
start = threading.Thread.start

def interrupted(thread):
    start(thread)
    raise KeyboardInterrupt

from tlaot.tune.children.processes import spawn
threading.Thread.start = interrupted
try:
    spawn([sys.executable, "-c", ""])
except KeyboardInterrupt:
    threading.Thread.start = start
    sys.exit(spawn([sys.executable, "-c", "raise SystemExit(3)"]).wait())
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 3
