"""Which devices an executor measures on, and what one of this host does with what is submitted."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

import pytest
from build_settings import Settings

from tlaot.errors import SpecError
from tlaot.target import parse_target
from tlaot.tune.children.child import Child, Failed, serve
from tlaot.tune.executors.choice import open_executor
from tlaot.tune.executors.local import LocalDevice, fitting_gpus
from tlaot.tune.machine import Gpu, Machine
from tlaot.tune.site import executor_of
from tlaot.tune.specs.spec import Spec
from tlaot.tune.specs.spec_head import read_head

HOPPER = parse_target("cuda:sm_90a")


def gpu(index: int, name: str, capability: tuple[int, int] = (9, 0), sm_count: int = 132) -> Gpu:
    return Gpu(index, name, capability, sm_count, 13000)


MACHINE = Machine(
    "cpu",
    4,
    (gpu(0, "A100", (8, 0), 108), gpu(1, "H200"), gpu(2, "H200"), gpu(3, "H100"), gpu(4, "H200", sm_count=66)),
    {},
)


def indexes(gpus: Any) -> list[int]:
    return [gpu.index for gpu in gpus]


def test_every_gpu_of_the_first_model_measures_and_others_are_told_of() -> None:
    said: list[str] = []
    assert indexes(fitting_gpus(HOPPER, MACHINE, None, said.append)) == [1, 2]
    assert said == [
        "tlaot: cuda:sm_90a: measuring on H200 only; times of other models are not compared: cuda:3 (H100), cuda:4 (H200)"
    ]


@pytest.mark.parametrize(
    ("wanted", "chosen", "warned"),
    [
        ((2,), [2], None),
        ((3,), [3], None),
        ((2, 9), [2], "[9]"),
        ((0, 2), [2], "[0]"),  # the target does not run on it
        ((9,), [1], "[9]"),
    ],
)
def test_invalid_ids_are_told_of_and_ignored(wanted: tuple[int, ...], chosen: list[int], warned: str | None) -> None:
    said: list[str] = []
    assert indexes(fitting_gpus(HOPPER, MACHINE, wanted, said.append)) == chosen
    told = [f"Ignoring invalid benchmark device ids {warned}. Visible CUDA device ordinals are [0, 1, 2, 3, 4]."]
    assert said == (told if warned else [])


def test_the_machine_of_a_tuning_has_the_wanted_devices_only() -> None:
    said: list[str] = []
    executor = open_executor("local", (3, 8), said.append, lambda archive: "")
    machine = executor.survey(MACHINE)
    assert machine.gpu_for(HOPPER) == gpu(3, "H100") and machine.gpu_for(parse_target("cuda:sm_80")) is None
    assert said == ["Ignoring invalid benchmark device ids [8]. Visible CUDA device ordinals are [0, 1, 2, 3, 4]."]
    assert open_executor("local", None, said.append, lambda archive: "").survey(MACHINE) is MACHINE
    nothing = Machine("cpu", 4, (), {})
    assert open_executor("local", (3,), said.append, lambda archive: "").survey(nothing) == nothing
    assert executor.jobs(machine) == 4


def test_the_spec_names_an_executor() -> None:
    assert read_head({"package": "p"}, "tltune.toml").executor == "local"
    assert read_head({"package": "p", "executor": "local"}, "tltune.toml").executor == "local"
    with pytest.raises(SpecError, match=r"\[tlaot\] executor: unknown executor 'locel', did you mean 'local'\?"):
        read_head({"package": "p", "executor": "locel"}, "tltune.toml")


class Log:
    def say(self, text: str) -> None: ...
    def write(self, text: str) -> None: ...
    def measured(self, candidate: Any, outcome: Any) -> None: ...
    def timed_again(self, candidate: Any, timing: Any) -> None: ...


@pytest.fixture
def device(tmp_path: Path) -> Iterator[LocalDevice]:
    child = Child(f"{Path(__file__).stem}", [], [str(Path(__file__).parent), *sys.path], tmp_path / "log", os.environ)
    made = LocalDevice("cpu", child, Log())
    yield made
    made.close()


def ask(child: Child, log: Log, what: str) -> Any:
    answer = child.request({"what": what}, 60)
    return answer, child.lost


def test_a_function_is_called_with_the_devices_own_child(device: LocalDevice) -> None:
    assert device.submit(ask, "echo").result() == ({"what": "echo"}, False)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSEGV"])
def test_who_was_killed_from_outside_is_lost_and_who_crashed_is_not(device: LocalDevice, name: str) -> None:
    answer, lost = device.submit(ask, name).result()
    assert isinstance(answer, Failed) and name in answer.reason
    assert lost == (name != "SIGSEGV")


def test_killing_a_device_ends_what_it_does_and_nothing_is_lost(device: LocalDevice) -> None:
    future = device.submit(ask, "hang")
    device.submit(ask, "echo")
    with pytest.raises(FutureTimeout):
        future.result(timeout=2)
    device.close()
    answer, lost = future.result(timeout=20)
    assert isinstance(answer, Failed) and not lost


def test_a_child_that_is_ended_from_another_thread_is_found_gone(tmp_path: Path) -> None:
    """Whatever its reader is at; and it answers again."""
    child = Child(f"{Path(__file__).stem}", [], [str(Path(__file__).parent), *sys.path], tmp_path / "log", os.environ)
    chance = random.Random(7)
    with ThreadPoolExecutor(1) as thread:
        for _ in range(12):
            assert child.request({"what": "echo"}, 60) == {"what": "echo"}
            asked = thread.submit(child.request, {"what": "hang"}, 60)
            time.sleep(chance.random() * 0.01)
            child.end()
            answer = asked.result(timeout=20)
            assert isinstance(answer, Failed) and child.lost, answer
    child.kill()


if __name__ == "__main__":

    def answer(request: Any, announce: Any) -> Any:
        what = request["what"]
        if what == "hang":
            signal.pause()
        if what.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, what))
        return request

    serve(answer, sys.argv[1:])


def test_what_the_spec_says_is_for_who_tunes_and_not_for_every_build() -> None:
    spec = Spec(Path("tltune.toml"), "p", (), {}, (), executor="ray")
    chosen = [executor_of(spec, Settings(lock=lock)) for lock in ("update", "auto", "frozen", "ignore")]
    assert chosen == ["ray", "local", "local", "local"]
    assert executor_of(spec, Settings(lock="update", executor="local")) == "local"
    assert executor_of(spec, Settings(executor="ray")) == "ray"
