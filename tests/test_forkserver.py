"""Children of a fork server: what one does, or what happens to it, reaches neither the server nor the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tlaot.tune.children import forkserver
from tlaot.tune.children.child import Child, Failed, stop_all
from tlaot.tune.children.forkserver import close_servers, find_server
from tlaot.tune.compiling.compile import Workshop
from tlaot.tune.compiling.toolchain import HostCompiler, Toolchain

TOOLCHAIN = Toolchain(HostCompiler(("cc",), (), ("strip",), "1"))

SOURCE = """
import os, random, subprocess, sys, tempfile, threading, time

def preload(arguments):
    what = arguments[0]
    print("importing", what, flush=True)
    if what == "raise":
        raise ImportError("no such compiler")
    if what == "segfault":
        import ctypes
        ctypes.string_at(0)
    if what == "slow":
        time.sleep(60)
    if what == "numpy":
        import numpy.random
    if what == "short":
        sys.modules["__main__"]._IDLE_LIMIT = 0.2
    os.environ["PRELOADED"] = what

def make(arguments):
    if "PRELOADED" not in os.environ:
        def fail(request, announce):
            announce("elaborate")
            preload(["raise"])
        return fail
    return Answer(arguments).answer

class Answer:
    def __init__(self, arguments):
        self.arguments = arguments

    def answer(self, request, announce):
        announce("work")
        return getattr(self, request["what"])(request)

    def echo(self, request):
        return {
            "pid": os.getpid(), "server": os.getppid(), "session": os.getsid(0), "arguments": self.arguments,
            "cwd": os.getcwd(), "threads": len(os.listdir(f"/proc/{os.getppid()}/task")), "argv": sys.argv[1:],
            "path": sys.path, "open": sorted(map(int, os.listdir("/proc/self/fd"))),
        }

    def environment(self, request):
        seen = os.environ.get("SEEN"), os.getcwd()
        os.environ["SEEN"] = "changed"
        os.chdir("/")
        sys.path.insert(0, "/changed")
        return {"seen": seen}

    def random(self, request):
        numbers = [random.random(), tempfile.mktemp()]
        if "numpy" in sys.modules:
            numbers.append(float(sys.modules["numpy"].random.random()))
        return {"numbers": numbers}

    def segfault(self, request):
        import ctypes
        ctypes.string_at(0)

    def exit(self, request):
        print("last words", flush=True)
        os._exit(3)

    def start(self, request):
        first = subprocess.Popen(["sleep", "600"])
        second = subprocess.Popen(["sleep", "600"], start_new_session=True)
        return {"pids": [first.pid, second.pid]}

    def hang(self, request):
        while True:
            time.sleep(1)

    def sleep(self, request):
        time.sleep(request["seconds"])
        return {}

    def chatter(self, request):
        for line in range(200):
            print(f"{request['name']} {line}")
        return {}

    def kill_server(self, request):
        os.kill(os.getppid(), 9)
        time.sleep(60)

    def multiply(self, request):
        import numpy
        a = numpy.ones((1500, 1500), "float32")
        return {"largest": float((a @ a).max()), "threads": len(os.listdir("/proc/self/task"))}

    def umask(self, request):
        mask = os.umask(0)
        return {"umask": mask}
"""

Make = Callable[..., Child]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes children of the module above; their servers and they end with the test."""
    (tmp_path / "forked.py").write_text(SOURCE)
    search_path = [str(tmp_path), *filter(None, sys.path)]
    made = []

    def make_child(what: str = "plain", *arguments: str) -> Child:
        server = find_server("forked", [what], search_path, os.environ)
        child = Child("forked", arguments, search_path, tmp_path / "log", os.environ, server)
        made.append(child)
        return child

    yield make_child
    for child in made:
        child.kill()
    close_servers()


def ask(child: Child, what: str = "echo", timeout: float = 30, **more: Any) -> dict[str, Any]:
    answer = child.request({"what": what, **more}, timeout)
    assert not isinstance(answer, Failed), answer
    return answer


def gone(pid: int, within: float = 2) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True  # dead; whoever adopted it has not looked yet
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False


def test_children_of_a_kind_come_from_one_server(make: Make, tmp_path: Path) -> None:
    first, second = ask(make("plain", "a", "b")), ask(make("plain", "c"))
    assert first["server"] == second["server"] != os.getpid()
    assert first["pid"] != second["pid"] and first["session"] == first["pid"]
    assert (first["arguments"], second["arguments"]) == (["a", "b"], ["c"])
    assert first["argv"][:2] == ["a", "b"] and len(first["argv"]) == 4
    assert first["path"][0] == str(tmp_path)
    assert first["threads"] == 1
    assert len(first["open"]) <= 6, "a child has its three streams, two pipes, and the folder it lists"
    assert ask(make("other"))["server"] != first["server"]
    assert (tmp_path / "log").read_text().splitlines().count("importing plain") == 1


@pytest.mark.parametrize(
    ("what", "reason"), [("segfault", "crashed with SIGSEGV"), ("exit", "the process ended (exit code 3): last words")]
)
def test_a_death_costs_one_answer_and_not_the_server(make: Make, what: str, reason: str) -> None:
    child = make()
    before = ask(child)
    failed = child.request({"what": what}, 30)
    assert isinstance(failed, Failed) and (failed.stage, failed.reason) == ("work", reason)
    after = ask(child)
    assert after["server"] == before["server"] and after["pid"] != before["pid"]
    assert gone(before["pid"])


def test_a_hang_is_killed_with_all_it_started(make: Make) -> None:
    child = make()
    before, started = ask(child), ask(child, "start")["pids"]
    start = time.monotonic()
    failed = child.request({"what": "hang"}, 0.5)
    assert isinstance(failed, Failed) and failed.reason == "timed out after 0.5 s and was killed"
    after = ask(child)
    assert time.monotonic() - start < 30, "it hangs for 60 s"
    assert after["server"] == before["server"]
    assert all(gone(pid) for pid in (before["pid"], *started))


def test_what_a_crashed_child_started_is_killed(make: Make) -> None:
    child = make()
    same_session = ask(child, "start")["pids"][0]
    assert isinstance(child.request({"what": "segfault"}, 30), Failed)
    assert gone(same_session)


def test_another_server_takes_over_from_a_killed_one(make: Make) -> None:
    child, other = make(), make()
    before = ask(child)
    ask(other)
    os.kill(before["server"], signal.SIGKILL)
    assert gone(before["server"]) and gone(before["pid"])
    after = ask(make())
    assert after["server"] != before["server"]
    failed = other.request({"what": "echo"}, 30)
    assert isinstance(failed, Failed) and "SIGKILL" in failed.reason
    assert ask(other)["server"] == after["server"]


def test_a_child_that_kills_its_server_costs_its_own_answer(make: Make) -> None:
    child = make()
    before = ask(child)
    failed = child.request({"what": "kill_server"}, 30)
    assert isinstance(failed, Failed) and failed.stage == "work" and "SIGKILL" in failed.reason
    assert ask(child)["server"] != before["server"]


def test_what_cannot_be_imported_is_each_child_s_failure(make: Make, tmp_path: Path) -> None:
    for child in (make("raise"), make("raise")):
        for _ in range(2):
            failed = child.request({"what": "echo"}, 30)
            assert isinstance(failed, Failed)
            assert (failed.stage, failed.reason) == ("elaborate", "ImportError: no such compiler")
    assert "no such compiler" in (tmp_path / "log").read_text()


def test_an_import_that_crashes_says_so(make: Make) -> None:
    failed = make("segfault").request({"what": "echo"}, 30)
    assert isinstance(failed, Failed) and failed.stage == "start"
    assert "forked segfault: importing crashed with SIGSEGV: importing segfault" in failed.reason


def test_one_request_s_changes_reach_neither_the_next_nor_another_child(make: Make) -> None:
    child = make()
    assert ask(child, "environment") == ask(child, "environment") == ask(make(), "environment")
    assert ask(make(), "environment") == {"seen": [None, os.getcwd()]}


def test_a_child_has_its_parent_s_folder_and_mask(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ask(make())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    mask = os.umask(0o027)
    try:
        child = make()
        assert ask(child)["cwd"] == str(tmp_path / "elsewhere")
        assert ask(child, "umask") == {"umask": 0o027}
    finally:
        os.umask(mask)


def test_children_draw_different_random_numbers(make: Make) -> None:
    pytest.importorskip("numpy")
    first, second = (ask(make("numpy"), "random")["numbers"] for _ in range(2))
    assert len(first) == 3 and all(a != b for a, b in zip(first, second, strict=True))


def test_the_threads_of_an_imported_blas_are_there_in_a_child(make: Make) -> None:
    pytest.importorskip("numpy")
    ask(make("numpy"))
    answers = [ask(make("numpy"), "multiply", 60) for _ in range(2)]
    assert [answer["largest"] for answer in answers] == [1500.0, 1500.0]


def test_measuring_children_are_forked_too(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    workshop = Workshop(tmp_path, tuple(filter(None, sys.path)), os.environ, tmp_path / "log", 1, TOOLCHAIN, {})
    children = [workshop.measurer("cpu") for _ in range(2)]
    try:
        assert len({child.request({"op": "wake"}, 60)["pid"] for child in children}) == 2
    finally:
        for child in children:
            child.kill()
        close_servers()


def test_what_children_print_is_not_mixed(make: Make, tmp_path: Path) -> None:
    children = {name: make() for name in "abcd"}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda item: ask(item[1], "chatter", name=item[0]), children.items()))
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if line.partition(" ")[0] in children]
    assert len(lines) == 800
    for at in range(0, 800, 200):
        name = lines[at].partition(" ")[0]
        assert lines[at : at + 200] == [f"{name} {number}" for number in range(200)]


def test_many_threads_fork_at_the_same_time(make: Make) -> None:
    children = [make() for _ in range(12)]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, children))
    assert len({answer["server"] for answer in answers}) == 1
    assert len({answer["pid"] for answer in answers}) == 12


def test_children_outlive_the_thread_that_asked_first(make: Make) -> None:
    child = make()
    thread = threading.Thread(target=lambda: ask(child))
    thread.start()
    thread.join()
    time.sleep(0.2)
    pid = ask(child)["pid"]
    assert ask(child)["pid"] == pid


@pytest.mark.parametrize("what", ["plain", "slow"], ids=["at work", "while it imports"])
def test_stopping_does_not_wait(make: Make, what: str) -> None:
    child = make(what)
    failed: list[Any] = []
    thread = threading.Thread(target=lambda: failed.append(child.request({"what": "hang"}, 60)))
    thread.start()
    time.sleep(1)
    start = time.monotonic()
    stop_all([child])
    thread.join()
    assert time.monotonic() - start < 30, "the request has 60 s"
    assert isinstance(failed[0], Failed) and "stopped" in failed[0].reason
    refused = child.request({"what": "echo"}, 30)
    assert isinstance(refused, Failed) and "stopped" in refused.reason


def test_a_server_that_is_not_used_ends(make: Make) -> None:
    child = make("short")
    server = ask(child)["server"]
    time.sleep(0.5)
    assert not gone(server, 0.1), "it has a child"
    child.kill()
    assert gone(server)
    assert ask(child)["server"] != server


def test_few_servers_are_kept(make: Make) -> None:
    held = make("kind held")
    servers = [ask(held)["server"]]
    for number in range(6):
        child = make(f"kind {number}")
        servers.append(ask(child)["server"])
        child.kill()
    assert len(forkserver._servers) <= forkserver._MOST_SERVERS + 1
    assert not gone(servers[0], 0.1), "it has a child"
    assert all(gone(pid) for pid in servers[1:3])
    assert not gone(servers[-1], 0.1)


PARENT = """
import os, signal, sys, threading, time
from pathlib import Path
from tlaot.tune.children.child import Child, Failed
from tlaot.tune.children.forkserver import find_server

def make():
    server = find_server("forked", ["plain"], sys.path, os.environ)
    return Child("forked", [], sys.path, Path({log!r}), os.environ, server)
"""

HANGING = (
    PARENT
    + """
child = make()
echo, started = child.request({{"what": "echo"}}, 30), child.request({{"what": "start"}}, 30)
print(echo["server"], echo["pid"], *started["pids"], flush=True)
child.request({{"what": "hang"}}, 600)
"""
)

FORKING = (
    PARENT
    + """
child = make()
before = child.request({{"what": "echo"}}, 30)
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    mine = make().request({{"what": "echo"}}, 30)
    assert mine["server"] != before["server"]
    print("forked", mine["server"], flush=True)
    sys.exit(0)  # with what atexit does
assert os.waitpid(pid, 0)[1] == 0
assert child.request({{"what": "echo"}}, 30)["pid"] == before["pid"]
assert make().request({{"what": "echo"}}, 30)["server"] == before["server"]
print("server", before["server"])
"""
)


def start(program: str, tmp_path: Path) -> subprocess.Popen[str]:
    (tmp_path / "forked.py").write_text(SOURCE)
    return subprocess.Popen(
        [sys.executable, "-c", program.format(log=str(tmp_path / "log"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
    )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_a_killed_parent(tmp_path: Path, how: signal.Signals) -> None:
    with start(HANGING, tmp_path) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 4
        time.sleep(0.2)
        process.send_signal(how)
    assert all(gone(pid) for pid in pids)


def test_nothing_outlives_a_parent_that_is_killed_while_it_imports(tmp_path: Path) -> None:
    slow = PARENT.replace('"plain"', '"slow"') + "make().request({{'what': 'echo'}}, 30)\n"
    with start(slow, tmp_path) as process:
        deadline = time.monotonic() + 10
        while not (found := children_of(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        process.kill()
    assert found and all(gone(pid) for pid in found)


def test_a_process_that_forks_keeps_its_server_and_its_fork_gets_another(tmp_path: Path) -> None:
    with start(FORKING, tmp_path) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    words = output.split()
    assert words[0::2] == ["forked", "server"]
    assert all(gone(int(pid)) for pid in words[1::2])


def children_of(pid: int) -> list[int]:
    return [
        int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()
    ]
