"""The CPU thread pool of executable.so files, each test in a process of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm_ffi")
pytest.importorskip("numpy")

from native.programs import build, host_program, lowered, run, scalar, tensor

LOOPS = """
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <sys/syscall.h>
#include <signal.h>
static _Atomic int calls;
/* data: [i] = num_task of task i's loop, for 64 items */
static int fill(int task, TVMParallelGroupEnv *env, void *data) {
  __atomic_fetch_add((int *)data + 63, 1, __ATOMIC_RELAXED);
  for (int i = task; i < 63; i += env->num_task) ((int *)data)[i] = env->num_task;
  return 0;
}
static int thread_ids(int task, TVMParallelGroupEnv *env, void *data) {
  usleep(20000);
  sigset_t set;
  pthread_sigmask(SIG_SETMASK, 0, &set);
  ((int *)data)[3 * task] = (int)syscall(SYS_gettid);
  ((int *)data)[3 * task + 1] = sigismember(&set, SIGINT);
  char name[16];
  prctl(PR_GET_NAME, name, 0, 0, 0);
  ((int *)data)[3 * task + 2] = strncmp(name, "tlaot-", 6) == 0;
  return 0;
}
static int fail(int task, TVMParallelGroupEnv *env, void *data) {
  if (task != env->num_task - 1) return 0;
  TVMFFIErrorSetRaisedFromCStr("IndexError", "from a task");
  return -1;
}
static int fail_silently(int task, TVMParallelGroupEnv *env, void *data) { return -1; }
static int nested(int task, TVMParallelGroupEnv *env, void *data) {
  return task == 0 ? TVMBackendParallelLaunch(fill, data, 0) : 0;
}
static int with_barrier(int task, TVMParallelGroupEnv *env, void *data) {
  int *cells = data;
  for (int round = 1; round <= 50; round++) {
    __atomic_store_n(&cells[task], round, __ATOMIC_RELEASE);
    if (TVMBackendParallelBarrier(task, env)) return -1;
    for (int i = 0; i < env->num_task; i++)
      if (__atomic_load_n(&cells[i], __ATOMIC_ACQUIRE) < round) cells[62] = -1;
    if (TVMBackendParallelBarrier(task, env)) return -1;
  }
  return 0;
}
static int barrier_after_failure(int task, TVMParallelGroupEnv *env, void *data) {
  if (task == 0) { TVMFFIErrorSetRaisedFromCStr("IndexError", "early"); return -1; }
  return TVMBackendParallelBarrier(task, env);
}
static int slow(int task, TVMParallelGroupEnv *env, void *data) { usleep(200000); return fill(task, env, data); }
static int (*const loops[])(int, TVMParallelGroupEnv *, void *) = {
  fill, thread_ids, fail, fail_silently, nested, with_barrier, barrier_after_failure, slow};
"""
FILL, THREAD_IDS, FAIL, FAIL_SILENTLY, NESTED, BARRIER, BARRIER_FAILURE, SLOW = range(8)


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two files, each running loop number `which` with `tasks` tasks over an array of 64 int32."""
    before = "  if (TVMBackendParallelLaunch(loops[NUMBER(1)], DATA(0), (int)NUMBER(2))) return -1;"
    host = host_program([], before=before).replace("TVM_DLL int32_t", LOOPS + "TVM_DLL int32_t", 1)
    host = "#define _GNU_SOURCE\n" + host
    params = [tensor("A", 64, dtype="int32", written=True), scalar("which", "int32"), scalar("tasks", "int32")]
    folder = tmp_path_factory.mktemp("loops")
    program = lowered(host, params)
    return build(program, folder / "one", "one"), build(program, folder / "two", "two")


POOL_PREAMBLE = f"""
one, two = open_call(sys.argv[1]), open_call(sys.argv[2])
FILL, THREAD_IDS, FAIL, FAIL_SILENTLY, NESTED, BARRIER, BARRIER_FAILURE, SLOW = {list(range(8))}
def cells(): return np.zeros(64, np.int32)
def call(f, which, tasks=0, out=None):
    out = cells() if out is None else out
    f(t(out), which, tasks)
    return out
def pool_threads(expected=0):
    # Ids of the pool's threads by name; each names itself once it runs, which may take a while.
    end = time.time() + 30
    while True:
        ids = [int(i) for i in os.listdir("/proc/self/task")]
        names = {{i: open(f"/proc/self/task/{{i}}/comm").read().strip() for i in ids}}
        found = {{n: i for i, n in names.items() if n.startswith("tlaot-")}}
        if len(found) >= expected or time.time() > end: return found
        time.sleep(0.01)
"""


def pool(script: str, loops: tuple[Path, Path], threads: str | None = "4", expected: int = 1) -> list[Any]:
    environ = {} if threads is None else {"TLAOT_NUM_THREADS": threads}
    return [json.loads(line) for line in run(POOL_PREAMBLE + script, *loops, expected, environ=environ).splitlines()]


def test_one_pool_serves_all_files_and_starts_late(loops: tuple[Path, Path]) -> None:
    said = pool(
        """
say(sorted(pool_threads()))
first = call(one, FILL)
say(sorted(pool_threads(3)))
threads = {threading.get_native_id(), *pool_threads().values()}
seen = set()
for _ in range(20):
    for f in (one, two):
        for thread, blocked, named in call(f, THREAD_IDS)[:12].reshape(4, 3).tolist():
            seen.add(thread)
            assert blocked == named == (thread != threading.get_native_id())   # signals blocked, and a name
assert seen == threads, (seen, threads)        # both files use the same threads, and all of them
say(sorted(pool_threads()))
say([first[0].item(), first[62].item(), first[63].item()])
say([call(one, FILL, n)[[0, 62, 63]].tolist() for n in (1, 2, 7, 40)])
""",
        loops,
    )
    names = ["tlaot-1", "tlaot-2", "tlaot-3"]
    assert said[:3] == [[], names, names]
    assert said[3] == [4, 4, 4]
    assert said[4] == [[1, 1, 1], [2, 2, 2], [7, 7, 7], [40, 40, 40]]


def test_number_of_threads(loops: tuple[Path, Path]) -> None:
    script = "say(attempt(call, one, FILL)); say(len(pool_threads(int(sys.argv[3]) - 1)) + 1)"
    assert pool(script, loops, "1", 1) == [None, 1]
    assert pool(script, loops, "9", 9) == [None, 9]
    available = len(os.sched_getaffinity(0))
    assert pool(script, loops, None)[1] in range(1, available + 1)
    pinned = "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n" + script
    assert pool(pinned, loops, "")[1] == 1
    wrong = ["0", "-1", "two", "4x", " 4", "99999999999999999999", "1025"]
    said = pool(
        f"""
for wrong in {wrong!r}:
    os.environ["TLAOT_NUM_THREADS"] = wrong
    say(attempt(call, one, FILL))
assert pool_threads() == {{}}
os.environ["TLAOT_NUM_THREADS"] = "3"     # put right, it works
say(attempt(call, one, FILL))
say(len(pool_threads(2)))
""",
        loops,
    )
    message = "TLAOT_NUM_THREADS: expected a number from 1 to 1024, got"
    assert said == [*(["ValueError", f"{message} '{text}'"] for text in wrong), None, 2]


def test_errors_of_tasks_reach_the_caller(loops: tuple[Path, Path]) -> None:
    said = pool(
        """
for _ in range(3):
    say(attempt(call, one, FAIL))
    say(attempt(call, one, FAIL_SILENTLY))
    say(attempt(call, one, BARRIER_FAILURE))
    say(attempt(call, one, FILL))
""",
        loops,
    )
    assert said == 3 * [
        ["IndexError", "from a task"],
        ["RuntimeError", "a parallel task failed without saying why"],
        ["IndexError", "early"],
        None,
    ]


def test_nested_loops_barriers_and_many_threads(loops: tuple[Path, Path]) -> None:
    pool(
        """
assert call(one, NESTED)[0] == 1
assert call(one, BARRIER)[62] == 0 and call(one, BARRIER)[0] == 50
assert attempt(call, one, BARRIER, 9)[1].startswith("a parallel loop with a barrier asks for more tasks")
wrong = []
def work(f):
    for i in range(300):
        out = call(f, FILL)
        if not (out[:63] == out[0]).all() or out[63] != out[0] or out[0] not in (1, 4): wrong.append(out)
threads = [threading.Thread(target=work, args=[f]) for f in (one, two, one)]
[x.start() for x in threads]; [x.join() for x in threads]
assert not wrong, wrong[0]
assert len(pool_threads(3)) == 3
""",
        loops,
    )


def test_fork_with_idle_and_with_busy_pool(loops: tuple[Path, Path]) -> None:
    said = pool(
        """
def in_child():
    pid = os.fork()
    if pid == 0:
        try:
            ok = pool_threads() == {} and call(one, FILL)[0] == 4 and call(two, FILL)[63] == 4 and len(pool_threads(3)) == 3
            os._exit(0 if ok else 1)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
say(in_child())                      # before the first launch
call(one, FILL)
say(in_child())                      # idle pool
busy = threading.Thread(target=call, args=[one, SLOW])
busy.start(); time.sleep(0.05)
say(in_child())                      # another thread is in a launch
busy.join()
assert call(one, FILL)[0] == 4       # the parent's pool still works
""",
        loops,
    )
    assert said == [0, 0, 0]


def test_an_idle_pool_uses_no_cpu(loops: tuple[Path, Path]) -> None:
    said = pool(
        """
call(one, FILL)
time.sleep(0.1)
before = time.process_time()
time.sleep(0.5)
say(time.process_time() - before)
""",
        loops,
    )
    assert said[0] < 0.1, "a thread that spins takes 0.5 s"


def test_fewer_threads_where_the_system_refuses_them(loops: tuple[Path, Path]) -> None:
    said = pool(
        """
import resource
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 24 * 2**20, -1))    # room for two stacks of 8 MiB, not for 63
out = call(one, FILL)
say([out[0].item(), out[63].item(), len(pool_threads(out[0] - 1)) + 1])
""",
        loops,
        "64",
    )
    assert said[0][0] == said[0][1] == said[0][2] < 64
