"""Decide which candidate of a workload is the best: time those near the best in turns, when nothing else runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ...spelling import CANNOT_BE_TRUSTED
from ..children.child import ATTEMPTS, Child, Failed
from ..specs.plan import Candidate, Workload, canonical
from .asking import (
    Awake,
    Measured,
    ask,
    candidate_request,
    measuring_processes,
    prepare,
    read_timing,
    wake,
    workload_request,
)
from .contest import TIE, Contest, choose_finalists
from .device_lock import exclusive
from .nvml import open_nvml
from .quiet import CpuWatch, GpuWatch, Watch, wait_until_quiet
from .timing import Timing

__all__ = ["MORE_TIME", "Decision", "Log", "decide", "undecided"]

# The end of a note, with the key of tltune.toml; who is not building has another name for it.
MORE_TIME = "more time may tell: decide-budget"

# ms of sampling that one request asks for, about: a hang is noticed within the candidate's timeout, and a death costs no more samples.
_BLOCK_MS = 200.0
_MOST_ROUNDS_A_BLOCK = 16
# Where a round takes longer than the budget, there are nevertheless enough for a comparison, up to this many times the budget.
_FEWEST_ROUNDS = 3
# A budget for fewer calls than this of each candidate is spent on those near the best.
_CALLS_A_CANDIDATE = 12
_OVERDRAFT = 3.0
# Of candidates that are as good as the best so many are run twice more, so that any of them may be packaged.
_MOST_EQUALS = 8


@dataclass(frozen=True)
class Decision:
    """What deciding a workload came to.

    Attributes:
        results: As they were given, with the finalists' timings from the rounds, and failures of those that failed in them.
        winner_index: Which one is packaged; None where none is left.
        reference: The reference's time; None where there is none.
        trusted: Whether the times can be trusted: False where others used the device.
        notes: What is to be told with the result.
        equals: Those that are as good as the best, the winner where nothing else tells them apart first; each may be packaged.
    """

    results: dict[int, Measured | Failed]
    winner_index: int | None
    reference: Timing | None
    trusted: bool
    notes: tuple[str, ...]
    equals: tuple[int, ...] = ()

    def with_files_of(self, tried: Mapping[int, Measured | Failed]) -> Decision:
        """With the files and the candidates that were given to whoever decided: where that was elsewhere it had its own."""
        results = {
            index: replace(mine, timing=result.timing)
            if isinstance(result, Measured) and isinstance(mine := tried[index], Measured)
            else result
            for index, result in self.results.items()
        }
        return replace(self, results=results)

    def prefer(self, configs: Sequence[Mapping[str, Any]], config_of: Callable[[int], Collection[str]]) -> Decision:
        """With that one of the equals as the winner whose config comes first among some; nothing is measured for it.

        Args:
            configs: Those that other shapes of the kernel chose, the first before the second.
            config_of: The canonical configs that a candidate has, or shares its binary with.
        """
        places = {canonical(dict(config)): place for place, config in reversed(list(enumerate(configs)))}

        def place(index: int) -> int:
            return min((places.get(config, len(places)) for config in config_of(index)), default=len(places))

        return replace(self, winner_index=min(self.equals, key=place, default=self.winner_index))


class Log(Protocol):
    """What deciding tells; :class:`~tlaot.tune.telling.journal.Journal` is one."""

    def say(self, text: str) -> None: ...
    def write(self, text: str) -> None: ...
    def measured(self, candidate: Candidate, outcome: Timing | Failed) -> None: ...
    def timed_again(self, candidate: Candidate, timing: Timing) -> None: ...


def decide(
    workload: Workload,
    results: Mapping[int, Measured | Failed],
    child: Child,
    *,
    preferred: Sequence[Mapping[str, Any]] = (),
    journal: Log,
) -> Decision:
    """Say which candidate of a workload is the best.

    Those near the best of screening are timed again in turns until they separate or ``Profile.decide_budget`` seconds are spent. The
    winner must give the same bits twice, unless the spec says that it need not, and so must all that are as good: the next one takes
    the place of one that fails.

    Args:
        workload: The workload.
        results: What screening said of each candidate, by its index; all that are ``Measured`` have passed the check.
        child: A measuring child.
        preferred: Configs that other shapes of the kernel chose: they win where nothing else tells candidates apart.
        journal: Told of each finalist's time, of failures, and of what is waited for.
    """
    outcome = dict(results)
    count = sum(isinstance(result, Measured) for result in outcome.values())
    if count == 0:
        return Decision(outcome, None, None, True, ())
    awake = wake(child)
    if isinstance(awake, Failed):
        return undecided(outcome, awake)
    final = _Final(workload, outcome, child, journal, awake.pid)
    surroundings = _Surroundings(workload, child, awake, journal, final.processes)
    # One that is left alone wins in any case.
    if not workload.target.is_cuda:
        surroundings.await_quiet(
            count > 1
        )  # without the lock: what others wait for with it may be what they are waited for
    with exclusive(awake.device, journal.say) as exclusion:
        if workload.target.is_cuda:
            surroundings.await_quiet(count > 1)  # with it: others that measure are no load that ends by waiting
        equals = final.decide()
        surroundings.look_back()
        reference = _time_reference(workload, outcome, child)
    notes = tuple(dict.fromkeys([*filter(None, [exclusion.note]), *surroundings.notes, *final.notes]))
    trusted = final.steady and surroundings.quiet and not exclusion.shared
    decision = Decision(outcome, equals[0] if equals else None, reference, trusted, notes, tuple(equals))
    return decision.prefer(preferred, lambda index: [canonical(dict(workload.configs[index]))])


def undecided(results: Mapping[int, Measured | Failed], why: Failed) -> Decision:
    """What screening said, where nothing can be timed again."""
    fastest = _fastest(results)
    note = f"the finalists could not be timed again: {why.stage}: {why.reason}"
    return Decision(dict(results), fastest, None, False, (note,), () if fastest is None else (fastest,))


class _Surroundings:
    """What others do on the machine while a workload is decided.

    Attributes:
        quiet: Whether they left the device alone.
        notes: What they did.
    """

    def __init__(
        self, workload: Workload, child: Child, awake: Awake, journal: Log, processes: Callable[[], Collection[int]]
    ) -> None:
        self._timeout = workload.kernel.profile.quiet_timeout
        self._device = awake.device
        self._say = journal.say
        self._cpu = CpuWatch(processes)
        self._watch: Watch = self._cpu
        if workload.target.is_cuda:
            nvml = open_nvml(awake.device)
            self._watch = GpuWatch(processes, lambda: _probe(child), nvml)
        self.quiet = True
        self.notes: list[str] = []

    def await_quiet(self, patient: bool) -> None:
        what = wait_until_quiet(self._watch, self._device, self._timeout if patient else 0.0, self._say)
        if what is not None:
            self._distrust(what)

    def look_back(self) -> None:
        what = self._watch.since()
        if what is not None and self.quiet:
            self._distrust(what)
        if self._watch is not self._cpu and (load := self._cpu.since()) is not None:
            self.notes.append(f"{load} meanwhile; a GPU's own clock does not show that")

    def _distrust(self, what: str) -> None:
        self.quiet = False
        self.notes.append(f"measured while {what}{CANNOT_BE_TRUSTED}")


def _probe(child: Child) -> list[float]:
    answer = ask(child, {"op": "probe"}, 30.0)
    return [] if isinstance(answer, Failed) else [float(took) for took in answer["times"]]


class _Final:
    """Deciding one workload.

    Attributes:
        notes: What is to be told with the result.
        steady: Whether the rounds agreed with each other.
    """

    def __init__(
        self,
        workload: Workload,
        results: dict[int, Measured | Failed],
        child: Child,
        journal: Log,
        pid: int,
    ) -> None:
        self._workload = workload
        self._results = results
        self._child = child
        self._journal = journal
        self._processes = {os.getpid(), pid}
        self._losses = 0
        self.notes: list[str] = []
        self.steady = True

    def processes(self) -> Collection[int]:
        """This process and the children that measured; where a GPU has the clock those that measure on others, too."""
        return self._processes | measuring_processes() if self._workload.target.is_cuda else self._processes

    def decide(self) -> list[int]:
        """The best and its equals, none where nothing is left; the results hold the rounds' timings and failures afterwards."""
        while measured := self._measured():
            bursts = not self._workload.target.is_cuda
            affordable = self._workload.kernel.profile.decide_budget * 1e3 / _CALLS_A_CANDIDATE
            finalists = choose_finalists({index: m.timing for index, m in measured.items()}, bursts, affordable)
            contest = Contest(finalists, bursts=bursts)
            self._play(contest)
            if not contest.alive:
                continue  # all of them failed; the next ones take their places
            self._take_timings(contest, finalists)
            equals = self._verified(contest)
            if equals:
                self._remark(contest, equals[0])
                return equals
        return []

    def _take_timings(self, contest: Contest, finalists: Sequence[int]) -> None:
        best = contest.equals()[0]
        for index in finalists:
            result = self._results[index]
            if isinstance(result, Measured) and contest.visited(index):
                timing = contest.timing(index, self._backend, best)
                self._results[index] = replace(result, timing=timing)
                self._journal.timed_again(result.candidate, timing)

    def _verified(self, contest: Contest) -> list[int]:
        """Equals that give the same bits twice; none where the next ones must take their places."""
        passed: set[int] = set()
        while contest.alive:
            equals = contest.equals()[:_MOST_EQUALS]
            index = next((index for index in equals if index not in passed), None)
            if index is None:
                return equals
            refused = self._refuse(index)
            if refused is None:
                passed.add(index)
            else:
                self._fail(index, refused)
                contest.drop(index)
        return []

    def _measured(self) -> dict[int, Measured]:
        return {index: r for index, r in sorted(self._results.items()) if isinstance(r, Measured)}

    def _play(self, contest: Contest) -> None:
        """Time finalists in rounds until they separate or the budget is spent."""
        budget = self._workload.kernel.profile.decide_budget
        spent, rounds, count, failures = 0.0, 0, 1, 0
        warm, self._backend = False, ""
        while contest.alive and not contest.settled:
            if spent >= budget and (rounds >= _FEWEST_ROUNDS or spent >= _OVERDRAFT * budget):
                return
            orders = [contest.order() for _ in range(count)]
            answer = self._sample(contest.alive, orders, warm)
            if isinstance(answer, Failed):
                if self._was_lost():
                    warm = False
                    continue
                culprit = _culprit(answer)
                if culprit in contest.alive:
                    self._fail(culprit, replace(answer, stage=answer.stage.partition(" ")[0]))
                    contest.drop(culprit)
                    continue
                failures += 1
                if failures > 1:
                    self._distrust(f"the finalists could not be timed to the end: {answer.stage}: {answer.reason}")
                    return
                continue
            for index, samples in answer["visits"]:
                contest.add(index, samples)
            warm, self._backend = True, answer["backend"]
            spent, rounds = spent + answer["seconds"], rounds + count
            a_round = max(answer["seconds"] / count * 1e3, 0.1)
            count = int(min(_MOST_ROUNDS_A_BLOCK, max(1, rounds // 2, 1), max(1, _BLOCK_MS / a_round)))
            contest.drop_slower()

    def _sample(self, alive: Sequence[int], orders: Sequence[Sequence[int]], warm: bool) -> dict[str, Any] | Failed:
        finalists = [result for index in sorted(alive) if isinstance(result := self._results[index], Measured)]
        profile = self._workload.kernel.profile
        request = workload_request(self._workload, finalists[0].built)
        # A child that died has made nothing yet.
        awake = wake(self._child)
        if isinstance(awake, Failed):
            return awake
        self._processes.add(awake.pid)
        unprepared = prepare(self._child, request, profile.timeout)
        if unprepared is not None:
            return unprepared
        asked = {
            **request,
            "op": "rounds",
            "candidates": [{"index": r.candidate.index, **candidate_request(r.built)} for r in finalists],
            "rounds": [list(order) for order in orders],
            "warmup": 0.0 if warm else profile.warmup,
        }
        expected = sum(r.timing.latency for r in finalists) * len(orders) * 25 / 1e3
        return ask(self._child, asked, profile.timeout + expected)

    def _was_lost(self) -> bool:
        """Whether the child was killed from outside, which no candidate answers for: what it was asked is asked again."""
        if not self._child.lost or self._losses >= ATTEMPTS - 1:
            return False
        self._losses += 1
        return True

    def _refuse(self, winner: int) -> Failed | None:
        """Run the winner twice more and compare bit by bit: a race is often right once."""
        kernel, result = self._workload.kernel, self._results[winner]
        assert isinstance(result, Measured)
        if not (kernel.check and kernel.deterministic):
            return None
        request = {
            **workload_request(self._workload, result.built),
            "op": "check",
            "candidate": candidate_request(result.built),
            "deterministic": True,
        }
        awake = wake(self._child)
        if isinstance(awake, Failed):
            self._distrust(f"the winner could not be run again: {awake.stage}: {awake.reason}")
            return None
        answer = ask(self._child, request, kernel.profile.timeout)
        if isinstance(answer, Failed) and self._was_lost():
            return self._refuse(winner)
        return answer if isinstance(answer, Failed) else None

    def _distrust(self, note: str) -> None:
        self.notes.append(note)
        self.steady = False

    def _fail(self, index: int, failure: Failed) -> None:
        result = self._results[index]
        assert isinstance(result, Measured)
        self._results[index] = failure
        self._journal.measured(result.candidate, failure)

    def _remark(self, contest: Contest, winner: int) -> None:
        shaken = contest.unsteadiness(winner)
        if shaken:
            self._distrust(f"the winner's time changed by {shaken:.0%} from round to round: the device was not steady")
        left = contest.uncertainty
        if left > 2 * TIE:
            much = f"by up to {left:.1%}" if left < 0.5 else "by far"
            self.notes.append(f"another candidate may be faster {much}; {MORE_TIME}")


def _fastest(results: Mapping[int, Measured | Failed]) -> int | None:
    measured = [r for r in results.values() if isinstance(r, Measured)]
    return min(measured, key=lambda r: (r.timing.latency, r.candidate.index)).candidate.index if measured else None


def _culprit(failure: Failed) -> int:
    """The candidate at whose visit a child failed; -1 where it was at none."""
    _, _, number = failure.stage.partition(" #")
    return int(number) if number.isdigit() else -1


def _time_reference(workload: Workload, results: Mapping[int, Measured | Failed], child: Child) -> Timing | None:
    winner = next((result for result in results.values() if isinstance(result, Measured)), None)
    if winner is None or workload.kernel.reference is None:
        return None
    request = {**workload_request(workload, winner.built), "op": "reference"}
    timing = read_timing(ask(child, request, workload.kernel.profile.timeout))
    return None if isinstance(timing, Failed) else timing
