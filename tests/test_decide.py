"""Screening and deciding with real measuring children: who wins, and what a kernel that goes wrong costs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")

from measuring import AUTHORS, PROFILE, Scene, latency

from tlaot.tune.children.child import Child, Failed
from tlaot.tune.children.forkserver import ForkServer
from tlaot.tune.measuring import device_lock, quiet
from tlaot.tune.measuring.measure import Measured, screen


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ForkServer]]:
    """A folder, and what forks measuring children that import from it."""
    folder = tmp_path_factory.mktemp("decide")
    (folder / "authors.py").write_text(AUTHORS)
    environ = {**os.environ, "MISBEHAVE": str(folder)}
    server = ForkServer("tlaot.tune.measuring.measurer", ["cpu"], [str(folder), *filter(None, sys.path)], environ)
    try:
        yield folder, server
    finally:
        server.close()


@pytest.fixture
def scene(place: tuple[Path, ForkServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(device_lock, "lock_folder", lambda: tmp_path)  # other tests that run here measure, too
    folder, server = place
    child = Child("tlaot.tune.measuring.measurer", ["cpu"], [], tmp_path / "log", {}, server)
    first = len(list(folder.glob("built-*")))
    try:
        yield Scene(folder, child, first)
    finally:
        child.kill()


def test_the_fastest_wins_and_is_timed_in_rounds(scene: Scene) -> None:
    for spin in (700, 500, 600, 650, 9000):
        scene.add(spin)
    results = scene.screen()
    assert scene.referenced() == 1  # once for the workload
    times = [latency(results[n]) for n in range(5)]
    assert all(took >= least for took, least in zip(times, [0.7, 0.5, 0.6, 0.65, 9.0], strict=True))
    decision = scene.decide(results)
    assert decision.winner_index == 1
    again = {index for index, _ in scene.log.again}
    assert {1, 2} <= again and 4 not in again
    assert decision.results[4] == results[4]
    winner = decision.results[1]
    assert isinstance(winner, Measured) and winner.timing.samples >= 4 and winner.timing.backend == "wall"
    assert decision.reference is not None and decision.reference.latency > 0
    assert scene.referenced() > 1  # it was timed


def test_screening_is_short(scene: Scene) -> None:
    for _ in range(4):
        scene.add(100)
    first, *rest = scene.workload.candidates()
    screen(scene.child, scene.workload, first, scene.built[0])
    took = []
    for candidate in rest:
        start = time.perf_counter()
        latency(screen(scene.child, scene.workload, candidate, scene.built[candidate.index]))
        took.append(time.perf_counter() - start)
    assert min(took) < 0.1  # the rest is for others who run here


def test_a_candidate_that_cannot_win_is_cut(scene: Scene) -> None:
    scene.add(20000)
    candidate = scene.workload.candidates()[0]
    cut = screen(scene.child, scene.workload, candidate, scene.built[0], stop_above=1.0)
    assert isinstance(cut, Measured) and cut.timing.samples == 1 and cut.timing.latency >= 20


def test_of_equal_ones_the_preferred_wins(scene: Scene) -> None:
    for _ in range(3):
        scene.add(500)
    scene.kernel = replace(scene.kernel, profile=replace(PROFILE, decide_budget=1.0))
    results = scene.screen()
    # The machine is shared; where it could tell them apart, it was not quiet.
    chosen = [scene.decide(results, [2, 1]).winner_index for _ in range(3)]
    assert 2 in chosen


@pytest.mark.parametrize(
    ("mode", "stage", "reason"),
    [
        ("s", "check", "SIGSEGV"),
        ("a", "check", "SIGABRT"),
        ("k", "check", "SIGKILL"),
        ("x", "check", "exit code 3"),
        ("h", "check", "timed out after 4 s"),
        ("w", "check", "differ from the reference"),
        ("m", "check", "MemoryError: no memory is left"),
        ("e", "check", "it would not"),
    ],
)
def test_one_that_goes_wrong_when_it_is_checked_costs_itself_only(
    scene: Scene, mode: str, stage: str, reason: str
) -> None:
    scene.add(300)
    bad = scene.add(100, mode)
    scene.add(900)
    if mode == "h":
        scene.kernel = replace(scene.kernel, profile=replace(PROFILE, timeout=4.0))
    results = scene.screen()
    failure = results[bad]
    assert isinstance(failure, Failed) and failure.stage == stage and reason in failure.reason
    assert latency(results[0]) < latency(results[2])
    assert scene.decide(results).winner_index == 0


@pytest.mark.parametrize("mode", ["s", "k", "h", "m", "e"])
def test_one_that_goes_wrong_in_a_round_costs_itself_only(scene: Scene, mode: str) -> None:
    bad, good = scene.add(300), scene.add(320)
    scene.add(5000)
    if mode == "h":
        scene.kernel = replace(scene.kernel, profile=replace(PROFILE, timeout=4.0))
    results = scene.screen()
    scene.misbehave(bad, mode)
    decision = scene.decide(results)
    failure = decision.results[bad]
    assert isinstance(failure, Failed) and failure.stage == "time"
    assert [(index, failed.stage) for index, failed in scene.log.failed] == [(bad, "time")]
    assert decision.winner_index == good
    assert latency(decision.results[good]) >= 0.32


def test_where_all_finalists_fail_the_next_one_wins(scene: Scene) -> None:
    for spin in (300, 310, 3000):
        scene.add(spin)
    results = scene.screen()
    scene.misbehave(0, "s")
    scene.misbehave(1, "a")
    decision = scene.decide(results)
    assert decision.winner_index == 2
    assert latency(decision.results[2]) >= 3.0
    assert sorted(index for index, _ in scene.log.failed) == [0, 1]


def test_where_none_is_left_there_is_no_winner(scene: Scene) -> None:
    scene.add(300)
    results = scene.screen()
    scene.misbehave(0, "e")
    decision = scene.decide(results)
    assert decision.winner_index is None and isinstance(decision.results[0], Failed)
    assert decision.reference is None


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_winner_gives_the_same_bits_twice_unless_it_need_not(scene: Scene, deterministic: bool) -> None:
    shaky, steady = scene.add(200, "n"), scene.add(400)
    scene.kernel = replace(scene.kernel, deterministic=deterministic)
    decision = scene.decide(scene.screen())
    assert decision.winner_index == (steady if deterministic else shaky)
    failure = decision.results[shaky]
    if deterministic:
        assert isinstance(failure, Failed) and failure.reason.startswith("WrongResult: not deterministic")
    else:
        assert isinstance(failure, Measured)


def test_a_reference_that_fails_fails_every_candidate_alike(scene: Scene) -> None:
    scene.add(100)
    scene.add(100)
    scene.kernel = replace(scene.kernel, reference="authors:no_such_function")
    failures = list(scene.screen().values())
    assert all(isinstance(f, Failed) and f.stage == "prepare" for f in failures)
    assert {f.reason for f in failures if isinstance(f, Failed)} == {failures[0].reason}  # type: ignore[union-attr]


def test_a_reference_that_hangs_is_not_waited_for_by_every_candidate(scene: Scene) -> None:
    for _ in range(6):
        scene.add(100)
    scene.kernel = replace(scene.kernel, reference="authors:hang", profile=replace(PROFILE, timeout=2.0))
    timeouts = []
    ask = scene.child.request
    scene.child.request = lambda request, timeout: timeouts.append(request["op"]) or ask(request, timeout)  # type: ignore[method-assign,func-returns-value]
    failures = list(scene.screen().values())
    assert all(isinstance(f, Failed) and f.stage == "prepare" and "timed out" in f.reason for f in failures)
    assert timeouts.count("prepare") == 2 and "measure" not in timeouts


def test_without_a_budget_screening_decides(scene: Scene) -> None:
    for spin in (5000, 500):
        scene.add(spin)
    scene.kernel = replace(scene.kernel, profile=replace(PROFILE, decide_budget=0.0))
    results = scene.screen()
    decision = scene.decide(results)
    assert decision.winner_index == 1 and decision.results == results and not scene.log.again


class Busy:
    """A watch that says what it is told to."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)

    def foreign(self) -> str | None:
        return self.answers.pop(0)

    since = foreign


@pytest.mark.parametrize(
    ("answers", "trusted", "note"),
    [
        ([None, None], True, None),
        (["others work", None], False, "measured while others work; times cannot be trusted"),
        ([None, "others worked"], False, "measured while others worked; times cannot be trusted"),
    ],
)
def test_load_is_told(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, answers: list[str | None], trusted: bool, note: str | None
) -> None:
    from tlaot.tune.measuring import decide as deciding

    make: Callable[..., Any] = lambda *rest: Busy(*answers)  # noqa: E731
    monkeypatch.setattr(deciding, "CpuWatch", make)
    monkeypatch.setattr(quiet, "_waited", {})
    scene.add(300)
    decision = scene.decide(scene.screen())
    told = [text for text in decision.notes if "trusted" in text]
    assert told == ([] if note is None else [note])
    # One candidate's rounds may have differed, where others really run.
    assert decision.trusted is trusted or (trusted and any("between rounds" in text for text in decision.notes))
