"""``--json``: one JSON text on standard output and nothing else, of the shape that the documents tell."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import locks
import pytest
from conftest import ROOT
from fixtures_runtime import tensor, variant, write_package
from test_cache import KEYS, open_cache, write_entry
from test_split import make_wheel

from tlaot.audit.seal import Sealed
from tlaot.cli import main, make_parser
from tlaot.cli.parser import subcommands
from tlaot.tune.locks.lock_file import dump_lock

PAGE = ROOT / "docs" / "reference" / "json.md"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="the tests run without the repository around them")
# Which need a device, or TileLang; their tests read their JSON.
NOT_RUN = {"tlaot retune", "tlaot capture"}
SPEC = """\
[tlaot]
package = "pk_json"
targets = ["cuda:sm_90a"]
[[kernel]]
name = "add"
frontend = "tilelang"
factory = "pk_json.kernels:add"
shapes = { N = 64 }
check = false
"""


def told() -> dict[str, set[str]]:
    """By command, the names that its row in the page has."""
    rows = re.findall(r"^\| (`tlaot .*?) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        command: set(re.findall(r"`([\w ]+)`", text))
        for commands, text in rows
        for command in re.findall(r"`(tlaot [a-z ]+)`", commands)
    }


def with_json(parser: argparse.ArgumentParser, path: str = "tlaot") -> Iterator[str]:
    if any("--json" in action.option_strings for action in parser._actions):
        yield path
    for name, child in subcommands(parser):
        yield from with_json(child, f"{path} {name}")


def test_the_page_has_all_commands_with_json() -> None:
    assert set(told()) == set(with_json(make_parser()))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a package, a lock, a wheel for two architectures and a cache with one result."""
    built = [
        (variant("k", [tensor("X", n, written=True)], [0], {"N": n}, "llvm:x86-64"), b"\x7fELF" + bytes(n))
        for n in (8, 9)
    ]
    write_package(tmp_path, "pk_json", {"k": built})
    (tmp_path / "pk_json" / "kernels.py").write_text("from tilelang import jit\n\n\n@jit\ndef add(N): ...\n")
    (tmp_path / "tltune.toml").write_text(SPEC)
    (tmp_path / "tltune.lock").write_text(dump_lock(locks.lock(locks.entry(64), locks.entry(128))))
    make_wheel(tmp_path, "llvm:x86-64", "cuda:sm_90a", "cuda:sm_80")
    monkeypatch.setenv("TLAOT_CACHE_DIR", str(tmp_path / "cache"))
    write_entry(open_cache(tmp_path / "cache"), KEYS[0], "gemm")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")  # no colours in JSON, whatever is asked for
    return tmp_path


CASES = {
    "tlaot init": (["init"], 0),
    "tlaot inspect": (["inspect", "pk_json/_tlaot"], 0),
    "tlaot check": (["check", "pk_json", "--no-load"], 1),
    "tlaot diff": (["diff", "pk_json", "pk_json"], 0),
    "tlaot doctor": (["doctor", "--quick"], 1),
    "tlaot lock show": (["lock", "show"], 0),
    "tlaot lock check": (["lock", "check"], 1),
    "tlaot lock remove": (["lock", "remove", "--shape", "N=64"], 0),
    "tlaot split": (["split", "my_kernels-1.2+local-py3-none-manylinux_2_17_x86_64.whl", "-o", "out"], 0),
    "tlaot cache list": (["cache", "list"], 0),
    "tlaot seal": (["seal", "my_kernels-1.2+local-py3-none-manylinux_2_17_x86_64.whl", "--no-load"], 0),
    "tlaot tune": (["tune"], 0),
}


@pytest.mark.parametrize("command", CASES)
def test_it_is_json_alone_with_the_names_that_are_told(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tune_project(path: Path, root: Path, settings: Any, selection: Any, log: Any) -> int:
        log("tlaot: a line of progress")
        return 2

    monkeypatch.setattr("tlaot.tune.pipeline.tune_project", tune_project)
    # Its own tests have sound packages, which a compiler makes.
    sealed = [Sealed("pk_json/_tlaot/manifest.json", ("k: other bytes",), ("manifest.json",))]
    monkeypatch.setattr("tlaot.cli.seal.seal", lambda what, load: sealed)
    words, status = CASES[command]
    assert main([*words, "--json"]) == status
    shown = capsys.readouterr()
    assert "\033" not in shown.out
    body = json.loads(shown.out)
    first = body[0] if isinstance(body, list) else body
    names = told()[command]
    if command == "tlaot lock show":  # as the lock has it
        assert {"kernel", "target", "shape", "candidates", "edited"} <= set(first)
    else:
        assert set(first) <= names
    if command == "tlaot init":
        assert set(body["kernels"][0]) | set(body["left"][0] if body["left"] else ()) <= names
    if command == "tlaot check":
        assert set(first["findings"][0]) <= names
    if command == "tlaot diff":
        assert set(body["workloads"][0]) <= names
    if command == "tlaot doctor":
        assert set(body["items"][0]) | set(body["targets"][0]) <= names
    if command == "tlaot tune":
        assert "a line of progress" in shown.err and len(body) == 2


def test_every_command_with_json_is_run() -> None:
    assert set(CASES) | NOT_RUN == set(told())


def test_an_error_leaves_standard_output_empty(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "pk_that_is_not_there", "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "is not installed" in shown.err
