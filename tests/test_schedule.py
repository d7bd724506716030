"""The tuning loop: what overlaps, what is restored, what an error leaves behind. Compiling and measuring are played."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tlaot.errors import SpecError
from tlaot.manifest import digest_of
from tlaot.target import parse_target
from tlaot.tune.children.child import Failed, Lost
from tlaot.tune.compiling.compile import Built
from tlaot.tune.locks.record import candidate_keys
from tlaot.tune.measuring import tasks
from tlaot.tune.measuring.measure import Decision, Measured
from tlaot.tune.measuring.timing import Timing
from tlaot.tune.searching.schedule import Stand, Tuned, tune_workloads
from tlaot.tune.searching.search import make_search
from tlaot.tune.searching.store import Store
from tlaot.tune.specs.plan import Candidate, Workload
from tlaot.tune.specs.spec import Budget, KernelSpec
from tlaot.tune.telling.journal import Journal
from tlaot.tune.telling.progress import Progress

TARGET = parse_target("cuda:sm_90a")
CONFIGS = tuple({"t": index} for index in range(12))
NOTHING = Store(None, lambda c: candidate_keys(c, "s", {}, "d"), print)
SHAPES = ({"N": 8}, {"N": 64}, {"N": 512})


@dataclass
class Play:
    """A pool and children that do as told, and remember what happened when."""

    folder: Path
    compile: Callable[[Candidate], str | Failed] = lambda c: f"{c.workload.path} {c.index}"
    measure: Callable[[Candidate], float | Failed] = lambda c: 1.0 + c.index
    seconds: float = 0.002
    jobs: int = 4
    compiled: list[str] = field(default_factory=list)
    screened: list[str] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    mistake: str = ""
    decided: list[str] = field(default_factory=list)
    compiling: int = 0
    most_compiling: int = 0
    overlapped: bool = False
    killed: int = 0
    apart: bool = False
    lose: Callable[[Candidate], bool] = lambda c: False
    limits: list[float | None] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.threads = ThreadPoolExecutor(self.jobs)

    def close(self) -> None:
        self.threads.shutdown()

    def submit(self, candidate: Candidate) -> Future[Built | Failed]:
        return self.threads.submit(self._compile, candidate)

    def _compile(self, candidate: Candidate) -> Built | Failed:
        with self.lock:
            self.compiling += 1
            self.most_compiling = max(self.most_compiling, self.compiling)
            self.compiled.append(candidate.label)
        time.sleep(self.seconds * random.random() * 2)
        made = self.compile(candidate)
        with self.lock:
            self.compiling -= 1
        if isinstance(made, Failed):
            return made
        folder = self.folder / "scratch" / candidate.workload.path / str(candidate.index)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "executable.so").write_bytes(made.encode())
        return Built(folder, digest_of(made.encode()), (), (1,), {"name": "tvm"}, {})

    def wake(self) -> None:
        time.sleep(self.seconds * 5)

    def prepare(self, workload: Workload, built: Built) -> None:
        with self.lock:
            self.prepared.append(workload.path)
        if self.mistake:
            raise SpecError("k reference", self.mistake, "Mend it.")

    def screen(self, candidate: Candidate, built: Built, stop_above: float | None) -> Timing | Failed:
        self.overlapped |= self.compiling > 0
        with self.lock:
            self.screened.append(candidate.label)
            self.limits.append(stop_above)
        time.sleep(self.seconds * random.random())
        if self.lose(candidate):
            raise Lost(Failed("check", "crashed with SIGKILL"))
        found = self.measure(candidate)
        return found if isinstance(found, Failed) else Timing(found, 0.01, 9, "cudagraph")

    def decide(self, workload: Workload, results: Mapping[int, Measured | Failed]) -> Decision:
        assert self.compiling == 0 or self.apart, "it is decided while candidates compile"
        with self.lock:
            self.decided.append(workload.path)
        times = {index: result.timing.latency for index, result in results.items() if isinstance(result, Measured)}
        time.sleep(self.seconds * random.random())
        best = min(times.values(), default=0.0)
        equals = tuple(index for index, took in sorted(times.items()) if took <= best * 1.005)
        return Decision(dict(results), equals[0] if equals else None, None, True, (), equals)


class PlayedDevice:
    """One of several devices of a play."""

    def __init__(self, play: Play, name: str) -> None:
        self.play, self.name, self.gone, self.apart = play, name, False, play.apart
        self.thread = ThreadPoolExecutor(1)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        assert function in (tasks.wake, tasks.prepare, tasks.screen, tasks.decide)
        return self.thread.submit(getattr(self.play, function.__name__), *arguments)

    def kill(self) -> None:
        self.play.killed += 1


@pytest.fixture
def tune(tmp_path: Path) -> Callable[..., tuple[dict[str, Tuned], Play]]:
    def run(
        search: str = "exhaustive",
        overlap: bool = True,
        devices: int = 1,
        configs: Any = CONFIGS,
        budget: Budget = Budget(),  # noqa: B008 - frozen
        wrap: Callable[[PlayedDevice], Any] = lambda device: device,
        **play: Any,
    ) -> tuple[dict[str, Tuned], Play]:
        stage = Play(tmp_path, **{key: value for key, value in play.items() if key != "stand"})
        kernel = KernelSpec(
            "k", "tvm", "m:f", (TARGET,), SHAPES, tuple(configs), "tltune.toml", search=search, budget=budget
        )
        workloads = [Workload(kernel, TARGET, shape, tuple(configs)) for shape in SHAPES]
        store = Store(tmp_path / "store", lambda c: candidate_keys(c, "s", {}, "d"), print)
        journal = Journal(tmp_path / "autotuner.log", lambda text: None)
        stand = Stand(
            pool=stage,
            devices=[wrap(PlayedDevice(stage, f"played:{number}")) for number in range(devices)],
            journal=journal,
            progress=Progress(lambda text: None, None),
            overlap=overlap,
            **{"store": store, **play.get("stand", {})},
        )
        found: dict[str, Tuned] = {}
        try:
            plans = [(workloads, make_search(kernel, workloads))]
            tune_workloads(plans, stand, lambda t: found.__setitem__(t.workload.path, t))
        except BaseException as error:
            error.stage = stage  # type: ignore[attr-defined]
            raise
        finally:
            stage.threads.shutdown()
            for device in stand.devices:
                device.thread.shutdown()  # type: ignore[attr-defined]
        return found, stage

    return run


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("devices", [1, 3])
def test_every_candidate_is_compiled_and_screened_once(tune: Any, overlap: bool, devices: int) -> None:
    found, play = tune(overlap=overlap, devices=devices)
    assert len(play.compiled) == len(set(play.compiled)) == len(SHAPES) * len(CONFIGS)
    assert sorted(play.screened) == sorted(play.compiled)
    assert [tuned.decision.winner_index for tuned in found.values()] == [0, 0, 0]
    assert all(isinstance(outcome, Measured) for tuned in found.values() for outcome in tuned.outcomes)
    assert all(o.candidate.index == i for tuned in found.values() for i, o in enumerate(tuned.outcomes))
    assert play.overlapped == overlap and play.most_compiling > 1


def test_one_device_stays_with_a_workload_as_long_as_it_can(tune: Any) -> None:
    _, play = tune(overlap=False)
    shapes = [label.split("#")[0] for label in play.screened]
    assert sum(a != b for a, b in itertools.pairwise(shapes)) <= len(SHAPES) + 1


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_of_equals_what_earlier_shapes_chose_wins_on_any_number_of_devices(tune: Any, devices: int) -> None:
    """Whichever was decided first, and however long it took."""

    def measure(candidate: Candidate) -> float:
        size = candidate.workload.shape["N"]
        good = {8: (7, 4), 64: (2, 4, 9), 512: (2, 9, 10)}[size]
        return 1.0 if candidate.index in good else 2.0

    for apart in (False, True):
        found, play = tune(measure=measure, devices=devices, apart=apart, stand={"store": NOTHING})
        assert [tuned.decision.winner_index for tuned in found.values()] == [4, 4, 2]
        assert list(found) == [f"k/cuda-sm_90a/N{shape['N']}" for shape in SHAPES], "they are told in the spec's order"
        assert sorted(play.decided) == sorted(found)


def test_failures_at_every_stage_are_outcomes(tune: Any) -> None:
    found, play = tune(
        compile=lambda c: Failed("lower", "no") if c.index % 3 == 0 else f"{c.workload.path} {c.index}",
        measure=lambda c: Failed("check", "wrong") if c.index % 3 == 1 else 1.0 + c.index,
    )
    for tuned in found.values():
        kinds = [o.stage if isinstance(o, Failed) else "measured" for o in tuned.outcomes]
        assert kinds == ["lower", "check", "measured"] * 4
        assert tuned.decision.winner_index == 2
    assert len(play.screened) == len(SHAPES) * 8


def test_nothing_left_is_a_decision_without_a_winner(tune: Any) -> None:
    found, _ = tune(measure=lambda c: Failed("check", "wrong"))
    assert all(tuned.decision.winner_index is None for tuned in found.values())


def test_equal_binaries_are_screened_once_and_share_what_became_of_them(tune: Any) -> None:
    found, play = tune(
        compile=lambda c: f"{c.workload.path} {c.index // 4}",
        measure=lambda c: Failed("check", "wrong") if c.index // 4 == 1 else 1.0,
    )
    assert len(play.screened) == len(SHAPES) * 3
    for tuned in found.values():
        kinds = [isinstance(outcome, Measured) for outcome in tuned.outcomes]
        assert kinds == [True] * 4 + [False] * 4 + [True] * 4
        assert [o.candidate.index for o in tuned.outcomes if isinstance(o, Measured)] == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_second_tuning_repeats_nothing_and_a_new_config_costs_one(tune: Any) -> None:
    first, _ = tune()
    again, play = tune()
    assert play.compiled == play.screened == [] and len(play.decided) == len(SHAPES)
    assert [t.decision.winner_index for t in again.values()] == [t.decision.winner_index for t in first.values()]
    more, play = tune(configs=(*CONFIGS, {"t": 99}))
    assert len(play.compiled) == len(play.screened) == len(SHAPES)
    assert all(len(tuned.outcomes) == 13 for tuned in more.values())


def test_what_is_known_takes_nothing_from_a_budget_and_may_win(tune: Any) -> None:
    first, play = tune(budget=Budget(trials=20), measure=lambda c: 1.0 + abs(c.index - 7))
    assert len(play.screened) == 20
    more, play = tune(configs=(*CONFIGS, {"t": 99}), budget=Budget(trials=20), measure=lambda c: 1.0 + abs(c.index - 7))
    assert (
        len(play.compiled) == len(SHAPES) * (len(CONFIGS) + 1) - 20
    )  # all that is left, which the budget has room for
    for path, tuned in first.items():
        known = {i for i, outcome in enumerate(tuned.outcomes) if isinstance(outcome, Measured)}
        assert known <= {i for i, outcome in enumerate(more[path].outcomes) if isinstance(outcome, Measured)}


@pytest.mark.parametrize("seed", range(5))
def test_a_tuning_that_was_stopped_goes_on_where_it_was(tune: Any, seed: int) -> None:
    chance = random.Random(seed)
    stop_at, count = chance.randrange(1, 36), 0

    def stop(candidate: Candidate) -> float:
        nonlocal count
        count += 1
        if count == stop_at:
            raise KeyboardInterrupt
        return 1.0 + candidate.index

    with pytest.raises(KeyboardInterrupt) as stopped:
        tune(measure=stop)
    before = stopped.value.stage  # type: ignore[attr-defined]
    assert before.killed == 1
    found, play = tune()
    # The one that was under way when it stopped is the only one to be screened twice.
    assert len(play.screened) == len(SHAPES) * len(CONFIGS) - (stop_at - 1)
    assert [tuned.decision.winner_index for tuned in found.values()] == [0, 0, 0]


@pytest.mark.parametrize("stage", ["compile", "measure"])
def test_what_fails_because_its_tuning_was_stopped_is_no_finding(tune: Any, stage: str) -> None:
    """A pool that is closed, and a device that is killed, give up what they were at, in words that a candidate's own failure may have."""
    stopped = threading.Event()

    def give_up(candidate: Candidate) -> Any:
        if candidate.workload.shape == SHAPES[0] and candidate.index == 0:
            return candidate.label if stage == "compile" else 1.0
        stopped.wait(10)
        return Failed("link", "ld failed: no such file")

    class Stopping:
        """Devices that are told to stop."""

        def __init__(self, device: PlayedDevice) -> None:
            self.device = device

        def __getattr__(self, name: str) -> Any:
            return getattr(self.device, name)

        def kill(self) -> None:
            stopped.set()
            self.device.kill()

    count = itertools.count(1)

    def interrupt(candidate: Candidate, built: Built) -> None:
        # Eight are compiled ahead: the twelfth is after four devices have taken one each.
        if next(count) == (1 if stage == "compile" else 12):
            raise KeyboardInterrupt

    play = {"compile": give_up} if stage == "compile" else {"measure": give_up}
    with pytest.raises(KeyboardInterrupt):
        tune(wrap=Stopping, devices=4, stand={"on_built": interrupt}, **play)
    found, again = tune()
    assert [tuned.decision.winner_index for tuned in found.values()] == [0, 0, 0]
    assert not [o for tuned in found.values() for o in tuned.outcomes if isinstance(o, Failed)]
    assert len(again.decided) == len(SHAPES)


def test_what_on_built_raises_ends_the_tuning_at_once(tune: Any) -> None:
    def refuse(candidate: Candidate, built: Built) -> None:
        raise SpecError("inputs", "must be given", "")

    with pytest.raises(SpecError, match="must be given") as raised:
        tune(stand={"on_built": refuse}, seconds=0.02)
    play = raised.value.stage  # type: ignore[attr-defined]
    assert play.killed == 1 and play.screened == [] and len(play.compiled) < len(SHAPES) * len(CONFIGS)


def test_a_mistake_in_the_reference_shows_while_candidates_compile(tune: Any) -> None:
    with pytest.raises(SpecError, match="raised IndexError") as raised:
        tune(overlap=False, mistake="raised IndexError", seconds=0.02)
    play = raised.value.stage  # type: ignore[attr-defined]
    assert play.killed == 1 and play.screened == [] and len(play.compiled) < len(SHAPES) * len(CONFIGS)
    # One trial a kernel entry: what a workload's reference gives is kept, and there may be many.
    assert play.prepared == [play.prepared[0]]
    _, play = tune(overlap=True)
    assert play.prepared == [], "what is screened while others compile has its inputs then"


def test_of_equal_binaries_the_first_config_wins_whichever_compiles_first(tune: Any) -> None:
    def same(candidate: Candidate) -> str:
        time.sleep(0.1 * (2 - candidate.index))
        return candidate.workload.path

    found, play = tune(configs=CONFIGS[:3], compile=same)
    assert len(play.screened) == len(SHAPES), "they are measured once"
    for tuned in found.values():
        assert tuned.decision.winner_index == 0
        winner = tuned.outcomes[0]
        assert isinstance(winner, Measured) and winner.candidate.index == 0


def test_early_stop_knows_the_best_of_the_same_workload(tune: Any) -> None:
    _, play = tune(stand={"early_stop_factor": 2.0}, overlap=False, measure=lambda c: 3.0)
    assert set(play.limits) == {None, 6.0}
    _, play = tune(configs=tuple({"u": index} for index in range(3)))
    assert set(play.limits) == {None}


@pytest.mark.parametrize("overlap", [True, False])
def test_a_search_that_waits_for_results_gets_them(tune: Any, overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found, play = tune(search="guided", overlap=overlap)
    tried = len(play.screened)
    outcomes = [outcome for tuned in found.values() for outcome in tuned.outcomes]
    assert tried == sum(isinstance(outcome, Measured) for outcome in outcomes)
    assert len(outcomes) == len(SHAPES) * len(CONFIGS)


def test_a_candidate_that_is_lost_is_given_out_again(tune: Any) -> None:
    """It is no failure of its own; what is lost each time is given up, and the store does not keep that."""
    often: Counter[str] = Counter()

    def lose(candidate: Candidate) -> bool:
        often[candidate.label] += 1
        return (candidate.index == 3 and often[candidate.label] < 3) or candidate.index == 5

    found, play = tune(lose=lose, devices=2)
    assert Counter(play.screened) == often
    for tuned in found.values():
        assert isinstance(tuned.outcomes[3], Measured)
        assert tuned.outcomes[5] == Failed("check", "crashed with SIGKILL")
    assert {count for label, count in often.items() if "#5" in label or "#3" in label} == {3}
    _, play = tune()
    assert len(play.screened) == len(SHAPES), "what was lost each time is tried by the next tuning"
