"""Progress: a bar on a terminal, lines in a pipe, and nothing that could end a build."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tlaot.tune.telling.journal import Journal
from tlaot.tune.telling.progress import Progress

needs_tqdm = pytest.mark.skipif(find_spec("tqdm") is None, reason="tqdm is not installed")


class Terminal:
    """A pseudo-terminal; what is written to it is read as it comes."""

    def __init__(self, columns: int = 100, encoding: str = "utf-8") -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, columns)) if sys.version_info >= (3, 11) else _set_size(slave, columns)
        self.stream = open(slave, "w", encoding=encoding)  # noqa: SIM115
        self._read = b""
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        try:
            while chunk := os.read(self._master, 4096):
                self._read += chunk
        except OSError:
            pass  # the other side is closed

    def text(self) -> str:
        if not self.stream.closed:
            self.stream.close()
        self._thread.join(timeout=5)
        return self._read.decode("utf-8", "replace")


def _set_size(descriptor: int, columns: int) -> None:
    import fcntl
    import struct

    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def clock() -> Iterator[list[float]]:
    yield [100.0]


def wait_for(condition: object, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_pipe_gets_one_line_a_workload_and_nothing_else_while_lines_come(said: list[str]) -> None:
    pipe = io.StringIO()
    with Progress(said.append, pipe, 3, label="llvm:x86-64-v3", silence=5) as progress:
        for _ in range(3):
            progress.compiled()
            progress.measured()
        progress.say("tlaot: k [llvm:x86-64-v3] (M=1): 1.2 ms")
    assert said == ["tlaot: k [llvm:x86-64-v3] (M=1): 1.2 ms"]
    assert pipe.getvalue() == ""


def test_a_long_silence_is_broken_with_how_far_it_is(said: list[str], clock: list[float]) -> None:
    with Progress(said.append, io.StringIO(), 512, "cuda:sm_90a", 30, lambda: clock[0]) as progress:
        for _ in range(180):
            clock[0] += 0.1
            progress.compiled()
            progress.measured()
        for _ in range(30):
            progress.compiled()
        time.sleep(1.5)
        assert said == []  # 18 s by this clock
        clock[0] += 12.5
        wait_for(lambda: said)
        line = said[0]
        assert re.fullmatch(
            r"tlaot: cuda:sm_90a: 210 of 512 candidates compiled, 180 measured, about \d+ s left", line
        ), line
        time.sleep(1.5)
        assert len(said) == 1  # not again before 30 s more have gone by
        progress.say("a line")
        clock[0] += 29
        time.sleep(1.5)
        assert said[1:] == ["a line"]
        clock[0] += 2
        wait_for(lambda: len(said) == 3)


def test_the_time_left_is_by_the_slower_of_compiling_and_measuring(clock: list[float]) -> None:
    with Progress(lambda text: None, None, 100, "t", 1000, lambda: clock[0]) as progress:
        assert progress.describe() == "tlaot: t: 0 of 100 candidates compiled, 0 measured"
        clock[0] += 20
        for _ in range(40):
            progress.compiled()  # 0.5 s each
        assert progress.describe().endswith("40 of 100 candidates compiled, 0 measured, about 30 s left")
        for _ in range(10):
            progress.measured()  # 2 s each
        assert progress.describe().endswith("10 measured, about 3 min left")
        progress.skipped(80)
        assert progress.describe().endswith("40 of 20 candidates compiled, 10 measured, about 20 s left")
        clock[0] += 15
        assert progress.describe().endswith("about 5 s left")
        for _ in range(10):
            progress.measured()
        assert progress.describe().endswith("20 measured")


@needs_tqdm
def test_a_terminal_has_a_bar_below_the_lines(said: list[str]) -> None:
    terminal = Terminal()
    with Progress(lambda text: print(text, file=terminal.stream), terminal.stream, 8, label="cuda:sm_90a") as progress:
        for index in range(8):
            progress.compiled()
            progress.measured()
            time.sleep(0.15)
            if index == 4:
                progress.say("tlaot: first")
        progress.say("tlaot: second")
    text = terminal.text()
    assert re.search(r"tlaot: cuda:sm_90a: \|.+\| [1-8]/8 measured, [1-8] compiled, about \d s left", text), text
    # A line begins where the bar was cleared, and is not torn apart.
    assert re.search(r"\r *\r?tlaot: first\r\n", text), repr(text)
    assert re.search(r"\r *\r?tlaot: second\r\n", text), repr(text)
    assert text.rstrip(" ").endswith("\r")  # nothing of the bar is left


@needs_tqdm
@pytest.mark.parametrize(("columns", "encoding"), [(0, "utf-8"), (1, "utf-8"), (7, "utf-8"), (80, "ascii")])
def test_odd_terminals(columns: int, encoding: str) -> None:
    terminal = Terminal(columns, encoding)
    with Progress(lambda text: print(text, file=terminal.stream), terminal.stream, 3, label="k\u00e9rnel") as progress:
        for _ in range(3):
            progress.compiled()
            progress.measured()
            time.sleep(0.12)
        progress.say("tlaot: \u00b5s")
        progress.say("tlaot: after")
    assert "tlaot: after" in terminal.text()


@needs_tqdm
def test_a_terminal_that_goes_away_ends_nothing() -> None:
    terminal = Terminal()
    progress = Progress(lambda text: print(text, file=terminal.stream), terminal.stream, 100, label="t")
    progress.compiled()
    terminal.text()  # closes it
    for _ in range(100):
        progress.measured()
    progress.say("nobody reads this")
    time.sleep(1.2)  # the thread looks, too
    progress.close()
    progress.close()
    progress.measured()


def test_a_line_that_cannot_be_said_ends_nothing() -> None:
    def say(text: str) -> None:
        raise BrokenPipeError

    with Progress(say, None, 5, silence=0.05) as progress:
        progress.say("x")
        time.sleep(0.3)
        progress.compiled()
        assert progress._thread.is_alive()


def test_many_threads_count_right() -> None:
    with Progress(lambda text: None, io.StringIO(), 4000) as progress:

        def work() -> None:
            for _ in range(500):
                progress.compiled()
                progress.measured()

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert progress.describe() == "tlaot: 4000 of 4000 candidates compiled, 4000 measured"


@pytest.mark.parametrize("columns", [0, 100])
def test_without_tqdm_a_terminal_has_a_line_below_the_lines(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    terminal = Terminal(columns, "ascii")
    with Progress(None, terminal.stream, 8, label="k\u00e9rnel") as progress:
        for index in range(8):
            progress.compiled()
            progress.measured()
            time.sleep(0.15)
            if index == 4:
                progress.say("tlaot: another process measures; waiting")
        progress.say("tlaot: done")
    text = terminal.text()
    written = re.findall(r"\r(tlaot: k\?rnel: \d of 8 candidates compiled, \d measured)", text)
    assert 2 <= len(written) <= 6, repr(text)  # twice a second at most, and after each line
    assert "\rtlaot: another process measures; waiting\r\n" in text, repr(text)
    assert "\rtlaot: done\r\n" in text, repr(text)
    assert text.rstrip(" ").endswith("\r") and not text.rsplit("\r", 2)[1].strip()  # nothing of the line is left


def test_without_tqdm_a_line_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    terminal = Terminal(20)
    with Progress(None, terminal.stream, 8, label="llvm:x86-64-v3") as progress:
        progress.compiled()
    assert {len(part) for part in terminal.text().split("\r")} <= {0, 19}


def test_a_journal_that_is_quiet_shows_lines_with_a_bar_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    journal = Journal(tmp_path / "log", None)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", io.StringIO())
        with journal.show(1, "t"):
            journal.say("tlaot: waiting")
        assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    with journal.show(1, "t"):
        journal.say("tlaot: waiting up to 30 s")
    journal.say("tlaot: nobody is shown this")
    assert "\rtlaot: waiting up to 30 s\r\n" in (shown := terminal.text()) and "nobody" not in shown
    assert [line[9:] for line in journal.path.read_text().splitlines()] == [
        "tlaot: waiting",
        "tlaot: waiting up to 30 s",
        "tlaot: nobody is shown this",
    ]


def test_a_log_is_appended_to_and_its_oldest_half_goes_when_it_is_large(tmp_path: Path) -> None:
    path = tmp_path / "autotuner.log"
    for number in (1, 2):
        Journal(path, None, f"build {number}").write(f"line of {number}")
    lines = path.read_text().splitlines()
    assert [re.sub(r"[-\d:]{8,10}", "*", line) for line in lines] == [
        "* * build 1",
        "* line of 1",
        "* * build 2",
        "* line of 2",
    ]
    path.write_text("old line\n" * (1 << 20) + "last line\n")
    Journal(path, None).write("new line")
    assert path.stat().st_size > 9 << 20, "up to 10 MiB nothing goes"
    path.write_text("old line\n" * (2 << 20) + "last line\n")
    Journal(path, None, "build 3")
    assert 4 << 20 < path.stat().st_size < 6 << 20
    lines = path.read_text().splitlines()
    assert lines[0] == "(what was here is cut off)" and set(lines[1:-2]) == {"old line"}
    assert lines[-2] == "last line" and lines[-1].endswith("build 3")


@needs_tqdm
def test_a_process_with_a_bar_starts_no_other_and_ends(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from tlaot.tune.telling.progress import Progress\n"
        "progress = Progress(print, sys.stderr, 4)\n"
        "assert progress._bar is not None\n"
        "progress.measured()\n"
        "path = f'/proc/self/task/{os.getpid()}/children'\n"
        "print('children:', open(path).read() if os.path.exists(path) else '')\n"
    )
    terminal = Terminal()
    result = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=terminal.stream, text=True, timeout=60
    )
    assert result.returncode == 0, terminal.text()
    assert result.stdout.strip() == "children:"


def test_what_each_node_has_done_is_said_with_the_line() -> None:
    said: list[str] = []
    now = [0.0]
    with Progress(said.append, None, 4, "llvm", silence=0.05, clock=lambda: now[0], details=lambda: ["a: 1", "b: 2"]):
        now[0] = 1.0
        deadline = time.monotonic() + 10
        while len(said) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert said[:3] == ["tlaot: llvm: 0 of 4 candidates compiled, 0 measured", "tlaot: llvm: a: 1", "tlaot: llvm: b: 2"]
