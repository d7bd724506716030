"""What both tuning benchmarks share: tasks in processes of their own, tables, interleaved re-timing, load."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

Config = dict[str, Any]


@dataclass(frozen=True)
class Times:
    """The re-timed times of one workload.

    Attributes:
        medians: ms of every config that compiles, by the config as text.
        error: Relative standard error of such a median, the middle one of all configs'.
    """

    medians: Mapping[str, float] = field(default_factory=dict)
    error: float = float("nan")

    @property
    def best(self) -> float:
        return min(self.medians.values(), default=float("nan"))

    def of(self, config: Mapping[str, Any] | None) -> float | None:
        return None if config is None else self.medians.get(text_of(config))

    def regret(self, config: Mapping[str, Any] | None) -> float | None:
        """The time of a config over that of the best; None where it has none."""
        time = self.of(config)
        return None if time is None else time / self.best

    @property
    def precision(self) -> str:
        """How well they are known, and a warning where that is not well enough to speak of regrets."""
        text = f"re-timed to +-{self.error:.2%}"
        return text + (", TOO NOISY for regrets to mean anything" if self.error > _NOISY else "")


# Words of a tuner that does not trust its own measurement, and of one that noticed what could disturb it.
_DISTRUST = re.compile(r"trust|something else used", re.IGNORECASE)
_NOTICED = re.compile(r"other process|another process|kept .* busy|for that to end|quota", re.IGNORECASE)


# A standard error above which two configs within some percent of each other cannot be told apart.
_NOISY = 0.01


class TaskFailed(Exception):
    """A task's process ended without a result; the text is the end of what it printed."""


def text_of(config: Mapping[str, Any]) -> str:
    """A config or shape as text that is equal where the dicts are."""
    return json.dumps(dict(config), sort_keys=True)


def brief(values: Mapping[str, Any]) -> str:
    """A config or shape for a table."""
    return " ".join(str(value) for value in values.values())


class Bench:
    """One run of a benchmark: where its tasks work, what it has found, and what it prints.

    Args:
        script: The file that holds the tasks, see :func:`serve_task`.
        json_file: Takes all results, rewritten whenever there are new ones; None for none.
        folder: Takes a folder for each task with its output and log.
    """

    def __init__(self, script: Path, json_file: Path | None, folder: Path) -> None:
        self._script, self._json_file, self._folder = script, json_file, folder
        self._tasks = 0
        self._start = time.monotonic()
        self.results: dict[str, Any] = {}

    def run(self, task: str, timeout: float = 600, **arguments: Any) -> Any:
        """Run a task in a process of its own and return what it returns.

        Raises:
            TaskFailed: It raised, crashed, or took longer than ``timeout`` seconds.
        """
        self._tasks += 1
        folder = self._folder / f"{self._tasks:02}-{task}"
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier run
        folder.mkdir(parents=True)
        (folder / "arguments.json").write_text(json.dumps(arguments))
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            # Neither system draws bars or prints a line a kernel.
            "TQDM_DISABLE": "1",
            "TILELANG_PRINT_ON_COMPILATION": "0",
        }
        with (folder / "output.txt").open("wb") as output:
            child = subprocess.Popen(
                [sys.executable, str(self._script), "--task", task],
                cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                child.wait(timeout)
            except subprocess.TimeoutExpired:
                pass
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
        try:
            return json.loads((folder / "result.json").read_text())
        except (OSError, ValueError):
            tail = (folder / "output.txt").read_text(errors="replace")[-1500:]
            raise TaskFailed(f"{task} ended with {child.returncode} after {self.elapsed():.0f} s:\n{tail}") from None

    def keep(self, name: str, value: Any) -> None:
        """Keep a result, in memory and in the JSON file."""
        self.results[name] = value
        if self._json_file is not None:
            self._json_file.parent.mkdir(parents=True, exist_ok=True)
            self._json_file.write_text(json.dumps(self.results, indent=1))

    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def say(self, text: str = "") -> None:
        print(text, flush=True)

    def note(self, text: str) -> None:
        """A line of progress."""
        self.say(f"[{self.elapsed():5.0f} s] {text}")

    def table(self, title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Print a Markdown table."""
        self.say(f"\n### {title}\n")
        self.say("| " + " | ".join(head) + " |")
        self.say("|" + "---|" * len(head))
        for row in rows:
            self.say("| " + " | ".join(_cell(value) for value in row) + " |")
        self.say()


def serve_task(tasks: Mapping[str, Callable[..., Any]]) -> bool:
    """In a process that :meth:`Bench.run` started: run the task and write what it returns. Whether this is such a process."""
    if len(sys.argv) != 3 or sys.argv[1] != "--task":
        return False
    arguments = json.loads(Path("arguments.json").read_text())
    try:
        result = tasks[sys.argv[2]](**arguments)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    Path("new.json").write_text(json.dumps(result))
    os.replace("new.json", "result.json")
    return True


def time_interleaved(
    calls: Mapping[str, Callable[[], float]], rounds: int, seed: int, warm_rounds: int = 2
) -> dict[str, list[float]]:
    """Call each timer once a round, in an order shuffled anew each round; the samples in ms of all but the first rounds."""
    order, shuffle = list(calls), random.Random(seed)
    samples: dict[str, list[float]] = {name: [] for name in order}
    for number in range(warm_rounds + rounds):
        shuffle.shuffle(order)
        for name in order:
            sample = calls[name]()
            if number >= warm_rounds:
                samples[name].append(sample)
    return samples


def summarize(samples: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Median and its relative standard error, from the interquartile range, by name."""
    summary = {}
    for name, values in samples.items():
        median = statistics.median(values)
        low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (median, median, median)
        # Of a normal distribution, whose interquartile range is 1.349 standard deviations.
        error = 1.253 * (high - low) / 1.349 / len(values) ** 0.5
        summary[name] = {"median": median, "error": error / median}
    return summary


def times_of(summary: Mapping[str, Mapping[str, float]]) -> Times:
    """What :func:`summarize` found, for tables."""
    error = statistics.median(one["error"] for one in summary.values()) if summary else float("nan")
    return Times({name: one["median"] for name, one in summary.items()}, error)


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collect what a tuner says of its own measurement, in ``autotuner.log`` and in warnings: first that it is not to be trusted."""
    said: list[str] = []
    log = Path("autotuner.log")
    start = log.stat().st_size if log.exists() else 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
    lines = [str(warning.message) for warning in caught]
    if log.exists():
        lines += log.read_bytes()[start:].decode(errors="replace").splitlines()
    said += dict.fromkeys(line.strip() for words in (_DISTRUST, _NOTICED) for line in lines if words.search(line))


def distrusts(said: Sequence[str]) -> bool:
    """Whether a tuner says that its measurement cannot be trusted."""
    return any(_DISTRUST.search(line) for line in said)


def print_systems(bench: Bench, title: str, times: Times, runs: Sequence[dict[str, Any]], base: str) -> None:
    """Print the tunings of one workload by several systems, and a line a system; adds ``retimed`` and ``regret`` to each.

    Args:
        bench: The run.
        title: Of the table.
        times: Of every config.
        runs: ``run``, ``system``, ``wall``, ``config`` and ``latency`` of each.
        base: The system whose wall time the others' are divided by.
    """
    walls = [run["wall"] for run in runs if run["system"] == base]
    base_wall = statistics.median(walls) if walls else float("nan")
    rows = []
    for run in runs:
        run["retimed"], run["regret"] = times.of(run["config"]), times.regret(run["config"])
        own, retimed = microseconds(run["latency"]), microseconds(run["retimed"])
        ratio = run["wall"] / base_wall
        rows.append([run["run"], run["system"], run["wall"], ratio, brief(run["config"]), own, retimed, run["regret"]])
    head = ["run", "system", "wall s", f"x {base}", "winner", "its own us", "re-timed us", "regret"]
    bench.table(f"{title}; the best is {microseconds(times.best)} us, {times.precision}", head, rows)
    for system in dict.fromkeys(run["system"] for run in runs):
        mine = [run for run in runs if run["system"] == system]
        wall = statistics.median(run["wall"] for run in mine)
        known = [run["regret"] for run in mine if run["regret"] is not None] or [float("nan")]
        bench.say(
            f"{system}: median wall {wall:.2f} s, {wall / base_wall:.3f} x {base}; regret of {len(mine)} runs at most "
            f"{max(known):.4f}; slowest over fastest winner {max(known) / min(known):.4f}"
        )


def judge_load(bench: Bench, title: str, times: Times, quiet: Config, runs: Mapping[str, Any], within: float) -> None:
    """Print, for tunings under load, whether the winner is the quiet one's equal, or what the tuner said of its measurement.

    Args:
        title: Of the table.
        times: Of every config, taken in quiet.
        quiet: The winner in quiet.
        runs: By load: the tuning's result, or what failed as text.
        within: How much slower a winner may be to count as equal, 0.01 for 1 %.
    """
    rows: list[list[Any]] = []
    for load, found in runs.items():
        if isinstance(found, str):
            rows.append([load, None, None, None, f"failed: {found.splitlines()[0]}", ""])
            continue
        mine, theirs = times.of(found["config"]), times.of(quiet)
        over = None if mine is None or theirs is None else mine / theirs
        same = over is not None and over <= 1 + within
        verdict = f"within {within:.0%}" if same else "NOT the quiet winner's equal"
        said = found["said"]
        if distrusts(said):
            verdict += "; says that it cannot be trusted"
        elif not same:
            verdict += ", and does not say that it cannot be trusted"
        rows.append([load, found["wall"], brief(found["config"]), over, verdict, said[0][:160] if said else ""])
    head = ["load", "wall s", "winner", "re-timed x quiet winner", "verdict", "what the tuner says"]
    bench.table(f"{title}; {times.precision}", head, rows)


@contextmanager
def busy_cpus() -> Iterator[None]:
    """A process that spins on every processor that this one may use."""
    # Each ends with its parent, however that ends.
    code = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(10**6): pass"
    with spinning([[sys.executable, "-c", code]] * len(os.sched_getaffinity(0))):
        time.sleep(1)
        yield


@contextmanager
def spinning(commands: Sequence[Sequence[str]], **options: Any) -> Iterator[None]:
    """Processes that run as long as the body does.

    Raises:
        TaskFailed: One of them ended before the body did.
    """
    children: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            children.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, **options))
        yield
        if any(child.poll() is not None for child in children):
            raise TaskFailed("a process that makes load ended before the tuning did")
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


def microseconds(ms: float | None) -> str:
    return "-" if ms is None else f"{ms * 1e3:.2f}"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 0.1 else f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
    return str(value).replace("|", "/")
