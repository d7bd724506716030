"""Behaviours 62-71: results in memory and on disk."""

from __future__ import annotations

import functools
import json
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import tlaot
from tlaot import cli
from tlaot.autotuner import cache, clear_cache, list_cache
from tlaot.autotuner.keys import identify
from tlaot.errors import LoadError, PackageError

np = pytest.importorskip("numpy")

TILES = [{"tile": 1}, {"tile": 2}]


def run_scale(lab: Any, configs: Any = TILES, **options: Any) -> Any:
    return lab.tuner(functools.partial(lab.scale, 16), configs, **options).run()


def forget() -> None:
    """What another process starts with."""
    cache._MEMORY.clear()


def test_062_two_levels(lab: Any, tunings: Any, place: Path) -> None:
    first = run_scale(lab)
    (entry,) = list_cache()
    assert entry.path == place / "cache" / f"tlaot-{tlaot.__version__}" / entry.key[:2] / entry.key
    assert run_scale(lab).latency == first.latency
    forget()
    again = run_scale(lab)
    assert len(tunings) == 1
    assert (again.latency, again.config) == (first.latency, first.config)
    assert np.array_equal(np.asarray(again.kernel(np.ones(16, "float32"))), np.full(16, 2, "float32"))
    assert cache._MEMORY.limit < 10_000  # theirs grows for ever


SOURCE = """
FACTOR = {factor}
def helper(n):
    {comment}
    return FACTOR * n
def factory(N, tile=1):
    return scale(N, helper(1.0), tile)
"""


def test_063_064_the_key_has_all_that_can_change_the_result(lab: Any, tunings: Any) -> None:
    """Also what the function reaches: the original gives out yesterday's kernel after a global of a helper changed."""

    def tune(
        factor: float = 2.0, comment: str = "pass", configs: Any = TILES, verbose: bool = False, **options: Any
    ) -> str:
        namespace: dict[str, Any] = {"scale": lab.scale, "__name__": "author"}
        exec(SOURCE.format(factor=factor, comment=comment), namespace)
        factory = functools.partial(namespace["factory"], 16)
        tuner = lab.tuner(factory, configs, **options)
        tuner.set_compile_args(out_idx=[-1], target=lab.target, verbose=verbose)
        result = tuner.run()
        assert float(np.asarray(result.kernel(np.ones(16, "float32")))[0]) == factor
        return result.kernel.name

    tune()
    for same in (
        {"comment": "# another comment"},
        {"comment": "pass\n\n"},
        {"verbose": True},
        {"timeout": 77},
        {"configs": [dict(reversed(list(config.items()))) for config in TILES]},
    ):
        tune(**same)  # type: ignore[arg-type]
        assert len(tunings) == 1, same
    count = 1
    for other in (
        {"factor": 5.0},
        {"configs": [{"tile": 1}]},
        {"configs": TILES[::-1]},
        {"rep": 0.3},
        {"warmup": 0.3},
        {"rtol": 0.5},
        {"seed": 3},
        {"ref_prog": lambda a: a * 2},
    ):
        tune(**other)  # type: ignore[arg-type]
        count += 1
        assert len(tunings) == count, other


def test_064_the_key_has_the_machine(lab: Any, tunings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tlaot.autotuner import keys as keys_module

    run_scale(lab)
    request = tunings.requests[0]
    identity = keys_module.machine_identity(request)
    assert set(identity) >= {"device", "distributions", "cc", "nvcc"}
    keys = {identify(request).result}
    for name in ("device", "distributions", "cc", "nvcc"):
        monkeypatch.setattr(keys_module, "machine_identity", lambda request, name=name: {**identity, name: "another"})
        keys.add(identify(request).result)
    assert len(keys) == 5


def test_064_configs_of_any_objects(lab: Any, tunings: Any) -> None:
    """Theirs must be JSON. The config comes back as it was written, from the disk too."""

    def typed(N: int, dtype: Any = None, order: Any = ()) -> Any:
        assert np.dtype(dtype) == np.float32 and order == (1, 0)
        return scale(N)

    scale = lab.scale
    config = {"dtype": np.float32, "order": (1, 0)}
    for _ in range(2):
        forget()
        assert lab.autotune(typed, [config])(16).config == config
    assert len(tunings) == 1


def test_065_066_068_what_is_saved(lab: Any, tmp_path: Path) -> None:
    """Appears whole, by str or Path; nothing beside it; nothing pickled in it; and once only."""
    result = run_scale(lab)
    for path in (tmp_path / "saved", str(tmp_path / "as text")):
        result.save_to_disk(path)
        result.save_to_disk(path)
    assert {entry.name for entry in tmp_path.iterdir()} - {"cache", "tmp", "autotuner.log"} == {"saved", "as text"}
    names = sorted(entry.name for entry in (tmp_path / "saved").iterdir())
    assert "executable.so" in names and not [name for name in names if name.endswith((".pkl", ".pickle"))]
    assert json.loads((tmp_path / "saved" / "best_config.json").read_text())["config"] == result.config
    with pytest.raises(PackageError, match="other things in it"):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.tex").write_text("")
        result.save_to_disk(tmp_path / "mine")
    if os.geteuid() != 0:
        os.chmod(tmp_path / "mine", stat.S_IRUSR | stat.S_IXUSR)
        with pytest.raises(OSError):  # theirs swallows every exception
            result.save_to_disk(tmp_path / "mine" / "x")


def test_067_loading_checks_everything(lab: Any, tmp_path: Path) -> None:
    """Theirs: SIGBUS of a truncated library, out_idx lost, any target taken."""
    load = tlaot.AutotuneResult.load_from_disk
    assert load(tmp_path / "nothing") is None
    result = run_scale(lab)
    result.save_to_disk(tmp_path / "saved")
    ones = np.ones(16, "float32")
    for arguments in (None, tlaot.CompileArgs(), tlaot.CompileArgs(target=lab.target), tlaot.CompileArgs(out_idx=[-1])):
        loaded = load(str(tmp_path / "saved"), arguments)
        assert (loaded.latency, loaded.config) == (result.latency, result.config)
        assert np.array_equal(np.asarray(loaded.kernel(ones)), ones * 2)
    for arguments in (tlaot.CompileArgs(target="cuda:sm_90a"), tlaot.CompileArgs(out_idx=[0])):
        with pytest.raises(LoadError):
            load(tmp_path / "saved", arguments)
    for name in [entry.name for entry in (tmp_path / "saved").iterdir()]:
        result.save_to_disk(tmp_path / "broken")
        file = tmp_path / "broken" / name
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
        with pytest.raises(PackageError, match="broken"):
            load(tmp_path / "broken")
        file.unlink()
        with pytest.raises(PackageError, match="broken"):
            load(tmp_path / "broken")


def test_067_a_broken_entry_is_reported_and_made_again(lab: Any, tunings: Any) -> None:
    run_scale(lab)
    (entry,) = list_cache()
    library = entry.path / "executable.so"
    library.write_bytes(library.read_bytes()[:1000])
    forget()
    with pytest.warns(UserWarning, match="is broken and is made again"):
        run_scale(lab)
    assert len(tunings) == 2
    forget()
    run_scale(lab)
    assert len(tunings) == 2


@pytest.mark.parametrize("name", ["TLAOT_DISABLE_CACHE", "TLAOT_AUTO_TUNING_DISABLE_CACHE", "TILELANG_DISABLE_CACHE"])
def test_069_the_cache_can_be_switched_off(
    lab: Any, tunings: Any, monkeypatch: pytest.MonkeyPatch, place: Path, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    for _ in range(2):
        run_scale(lab)
    assert len(tunings) == 2
    assert not list_cache() and not (place / "cache").exists()


def test_070_listed_and_cleared_by_function_and_command(lab: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run_scale(lab)
    lab.tuner(functools.partial(lab.increment, 16), TILES).set_compile_args(target=lab.target).run()
    assert [entry.kernel for entry in list_cache()] == ["scale", "increment"]
    assert all(entry.latency and entry.size > 1000 and not entry.broken for entry in list_cache())
    assert cli.main(["cache", "list"]) == 0
    text = capsys.readouterr().out
    assert "scale" in text and "increment" in text
    assert clear_cache(kernel="scale") == 1
    assert [entry.kernel for entry in list_cache()] == ["increment"]
    assert clear_cache(older_than=3600) == 0
    assert cli.main(["cache", "clear"]) == 0
    assert list_cache() == []


def test_070_processes_that_ask_for_the_same_wait_for_one_tuning(lab: Any, place: Path) -> None:
    """Each rank of a job tunes in the original."""
    program = textwrap.dedent(
        f"""
        import sys, time
        sys.path[:0] = {sys.path!r}
        import functools, tlaot
        from tlaot.autotuner import session, tuner
        from behaviours.conftest import Lab, Inline
        from tlaot.tune.compiling import compile as compiling
        compiling.Workshop.measurer = lambda self, device: Inline("tlaot.tune.measuring.measurer", [device])
        compiling.Workshop.worker = lambda self, frontend, target: Inline("tlaot.tune.compiling.worker", [frontend])
        lab, tune = Lab(), session.tune
        def counting(*args):
            open("tuned", "a").write("x")
            time.sleep(1)
            return tune(*args)
        tuner.tune = counting
        print(lab.tuner(functools.partial(lab.scale, 16), {TILES!r}).run().latency)
        """
    )
    children = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=place)
        for _ in range(2)
    ]
    answers = [child.communicate(timeout=240)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert (place / "tuned").read_text() == "x"
    assert answers[0] == answers[1]


def test_071_a_noisy_choice_can_be_taken_back(lab: Any, tunings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By kernel or age; or for one run."""
    run_scale(lab)
    clear_cache(kernel="scale")
    run_scale(lab)
    assert len(tunings) == 2
    monkeypatch.setenv("TLAOT_AUTO_TUNING_DISABLE_CACHE", "1")
    run_scale(lab)
    assert len(tunings) == 3
    assert (list_cache()[0].date) > 0
