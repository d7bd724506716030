"""One process at a time: exclusion across processes and threads, and that nothing is ever stuck."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tlaot.tune.measuring import device_lock
from tlaot.tune.measuring.device_lock import exclusive

ROOT = Path(__file__).resolve().parents[1]

HOLDER = """
import sys, time
from pathlib import Path
from tlaot.tune.measuring.device_lock import exclusive
with exclusive(sys.argv[1], print, Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(float(sys.argv[3]))
"""

COUNTER = """
import sys, time
from pathlib import Path
from tlaot.tune.measuring.device_lock import exclusive
folder = Path(sys.argv[1])
for n in range(30):
    with exclusive("cpu", lambda text: None, folder):
        assert not (folder / "busy").exists()
        (folder / "busy").write_text("")
        (folder / "count").write_text(str(int((folder / "count").read_text()) + 1))
        (folder / "busy").unlink()
"""


@pytest.fixture(autouse=True)
def unsaid(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(device_lock, "_said", set())
    yield


def start(script: str, *arguments: str | Path) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], stdout=subprocess.PIPE, text=True, env=environ
    )


def hold(folder: Path, seconds: float, device: str = "cpu") -> subprocess.Popen[str]:
    process = start(HOLDER, device, folder, str(seconds))
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_process_waits_and_says_so_once(tmp_path: Path) -> None:
    said: list[str] = []
    holder = hold(tmp_path, 600)

    def say_and_let_go(text: str) -> None:
        said.append(text)
        assert holder.poll() is None
        holder.terminate()

    with exclusive("cpu", say_and_let_go, tmp_path) as exclusion:
        assert holder.wait() == -signal.SIGTERM
        assert exclusion.note is None
    assert said == ["tlaot: another process measures on the CPU; waiting"]
    holder = hold(tmp_path, 600)
    release = threading.Timer(0.3, holder.terminate)  # nothing is said that could be waited for
    release.start()
    with exclusive("cpu", say_and_let_go, tmp_path):
        assert holder.wait() == -signal.SIGTERM
    release.join()
    assert len(said) == 1


def test_a_gpu_is_another_device(tmp_path: Path) -> None:
    holder = hold(tmp_path, 30, "GPU-1234")
    try:
        with exclusive("cpu", pytest.fail, tmp_path), exclusive("GPU-5678", pytest.fail, tmp_path):
            pass
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ["tlaot-GPU-1234.lock", "tlaot-GPU-5678.lock", "tlaot-cpu.lock"]
    finally:
        holder.kill()
        holder.wait()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    holder = hold(tmp_path, 60)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with exclusive("cpu", pytest.fail, tmp_path) as exclusion:
        assert exclusion.note is None


def test_a_stopped_holder_is_not_waited_for_without_end(tmp_path: Path) -> None:
    holder = hold(tmp_path, 60)
    holder.send_signal(signal.SIGSTOP)
    try:
        with exclusive("cpu", lambda text: None, tmp_path, longest_wait=0.3) as exclusion:
            assert exclusion.note == "another process has held cpu for 0.3 s; measured beside it"
    finally:
        holder.kill()
        holder.wait()


def test_a_process_that_was_forked_meanwhile_does_not_keep_it(tmp_path: Path) -> None:
    read, write = os.pipe()
    with exclusive("cpu", pytest.fail, tmp_path):
        pid = os.fork()
        if pid == 0:
            os.close(write)
            os.read(read, 1)  # lives until the test ends
            os._exit(0)
    try:
        # It lets go when it runs for the first time.
        with exclusive("cpu", lambda text: None, tmp_path, longest_wait=10.0) as exclusion:
            assert exclusion.note is None
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(pid, 0)


def test_threads_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with exclusive("cpu", lambda text: None, tmp_path):
                inside += 1
                most = max(most, inside)
                time.sleep(0.0005)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == 1 and inside == 0


def test_many_processes_take_turns(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    processes = [start(COUNTER, tmp_path) for _ in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "90"


def test_the_file_is_for_all_users_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with exclusive("cpu", pytest.fail, tmp_path):
            pass
    finally:
        os.umask(before)
    path = tmp_path / "tlaot-cpu.lock"
    assert path.stat().st_mode & 0o777 == 0o666
    path.chmod(0o444)  # as of another user
    with exclusive("cpu", pytest.fail, tmp_path) as exclusion:
        assert exclusion.note is None
    assert path.stat().st_size == 0 and path.stat().st_mode & 0o777 == 0o444


@pytest.mark.parametrize("trap", ["symlink", "fifo", "folder", "missing"])
def test_where_there_can_be_no_file_it_goes_on_and_notes_it(tmp_path: Path, trap: str) -> None:
    folder, path = tmp_path, tmp_path / "tlaot-cpu.lock"
    precious = tmp_path / "precious"
    precious.write_text("kept")
    if trap == "symlink":
        path.symlink_to(precious)
    elif trap == "fifo":
        os.mkfifo(path)  # which opening would wait for
    elif trap == "folder":
        path.mkdir()
    else:
        folder = tmp_path / "no" / "such" / "folder"
    ran = False
    with exclusive("cpu", pytest.fail, folder) as exclusion:
        ran = True
        assert exclusion.note is not None and exclusion.note.startswith("no lock on cpu: ")
    assert ran and precious.read_text() == "kept"


def test_what_fails_inside_is_raised_and_the_lock_is_free_again(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), exclusive("cpu", pytest.fail, tmp_path):
        raise ZeroDivisionError
    with exclusive("cpu", pytest.fail, tmp_path, longest_wait=0.0) as exclusion:
        assert exclusion.note is None
