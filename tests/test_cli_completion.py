"""``tlaot completion``: the scripts in the real shells, where they are installed, know what the parser knows."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tlaot.cli import main, make_parser
from tlaot.cli.completion import _KNOWN, SHELLS, _levels, write_completion
from tlaot.cli.parser import subcommands
from tlaot.tune.specs.spec import EXECUTORS

COMMANDS = [name for name, _ in subcommands(make_parser())]

# What is typed, with the cursor at its end, and some of what must and must not be offered.
CASES: list[tuple[list[str], set[str], set[str]]] = [
    ([""], set(COMMANDS), {"list", "--json", "bash"}),
    (["in"], {"inspect"}, {"diff"}),
    (["--"], {"--version", "--help"}, {"--json", "inspect"}),
    (["inspect", "--"], {"--json", "--extract", "--kernel", "--output"}, {"--version", "--max-slowdown"}),
    (["inspect", "x.whl", "--ex"], {"--extract"}, {"--json"}),
    (["inspect", "--extract", ""], {"cubin", "ptx", "source"}, {"one.whl", "--json"}),
    (["inspect", "--json", "--extract", "c"], {"cubin"}, {"ptx"}),
    (["cache", ""], {"list", "clear", "path"}, {"inspect", "diff"}),
    (["cache", "clear", "--"], {"--older-than", "--kernel"}, {"--json"}),
    (["completion", ""], {"bash", "zsh", "fish"}, {"inspect"}),
    (["diff", "on"], {"one.whl"}, {"two.txt", "inspect"}),
    (["diff", "one.whl", ""], {"one.whl", "two.txt"}, {"inspect"}),
    (["inspect", "--output", "t"], {"two.txt"}, {"one.whl"}),
    (["tune", "--kernel", ""], {"gemm", "scale"}, {"not_one", "hidden", "one.whl"}),
    (["inspect", "x.whl", "--kernel", "ge"], {"gemm"}, {"scale"}),
    (["lock", "remove", "--target", ""], {"cuda:sm_90a", "llvm:x86-64-v3"}, {"cuda:sm_80", "one.whl"}),
    (["tune", "--target", "cuda:sm_90a", "--kernel", "s"], {"scale"}, {"gemm"}),
    (["cache", "clear", "--kernel", "g"], {"gemm"}, {"scale"}),
    (["tune", "--executor", ""], {"local", "ray"}, {"one.whl"}),
    (["tune", "--de"], {"--devices"}, {"--executor"}),
    (["report", "--"], {"--output", "--title", "--spec"}, {"--json"}),
    (["report", "on"], {"one.whl"}, {"two.txt"}),
    (["capture", "--"], {"--cover", "--min-count", "--no-launch", "--dry-run", "--from"}, {"--kernel"}),
    (["capture", "--no-launch", ""], {"cuda:sm_90a"}, {"one.whl"}),
]

SPEC = """\
[tlaot]
targets = ["llvm:x86-64-v3", "cuda:sm_90a"]   # not "cuda:sm_80"
[[kernel]]
name = "gemm"
shapes = { name = "not_one", M = 64 }
# name = "hidden"
[[kernel]]
  name="scale" # twice
[[kernel]]
name = "scale"
"""


# What these take nobody can foretell: a number, a name that is no file's and stands in no tltune.toml, a function.
FREE = {
    "--package", "--min-count", "--cover", "--shape", "--jobs", "--devices", "--min-glibc", "--max-slowdown",
    "--title", "--device", "--inputs", "--seconds", "--older-than",
}  # fmt: skip


def test_every_value_that_can_be_foretold_is_completed() -> None:
    """Of every option of every command; and what is known beside the parser is what there is."""
    free = set()
    for level in _levels(make_parser(), ""):
        assert {"-h", "--help"} <= set(level.options)
        for option, taken in level.values.items():
            if not taken:
                free.add(option)
    assert free <= FREE, "these complete nothing"
    assert _KNOWN["--executor"] == tuple(EXECUTORS)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("one.whl", "two.txt", "it's $(touch pwned)"):
        (tmp_path / name).touch()
    (tmp_path / "tltune.toml").write_text(SPEC)
    for shell in SHELLS:
        (tmp_path / f"_tlaot.{shell}").write_text(write_completion(make_parser(), shell))
    return tmp_path


def ask_bash(words: list[str], place: Path) -> set[str]:
    script = f"""
    source {place}/_tlaot.bash
    COMP_WORDS=(tlaot "$@"); COMP_CWORD=$#
    _tlaot
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return run(["bash", "--norc", "-uc", script, "bash", *words], place)


def ask_zsh(words: list[str], place: Path) -> set[str]:
    # Outside of a completion the builtins refuse; these stand for them, and filter by what is typed as zsh does afterwards.
    script = f"""
    PREFIX="${{@[-1]}}"
    offer() {{ local each; for each; do [[ "$each" == "$PREFIX"* ]] && print -r -- "$each"; done; return 0 }}
    compadd() {{ [[ "$1" == -- ]] && shift; offer "$@" }}
    named() {{ local each; for each; do each="${{each//\\\\:/\\0}}"; offer "${{each%%:*}}"; done; return 0 }}
    _describe() {{ [[ "$1" == -o ]] && shift; named "${{(@P)2}}" }}
    _files() {{ local -a found; found=(*(N)); offer "${{found[@]}}" }}
    words=(tlaot "$@"); CURRENT=$#words
    source {place}/_tlaot.zsh
    _tlaot
    """
    return run(["zsh", "-fc", script, "zsh", *words], place)


def ask_fish(words: list[str], place: Path) -> set[str]:
    typed = " ".join(["tlaot", *words])
    script = f"source {place}/_tlaot.fish; complete --do-complete '{typed}'"
    return {line.partition("\t")[0] for line in run(["fish", "--no-config", "-c", script], place)}


def run(command: list[str], place: Path) -> set[str]:
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(place), "TERM": "dumb", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True)
    assert done.stderr == "", done.stderr
    assert done.returncode == 0
    return set(filter(None, done.stdout.splitlines()))


ASK = {"bash": ask_bash, "zsh": ask_zsh, "fish": ask_fish}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("words", "offered", "hidden"), CASES, ids=[" ".join(case[0]) or "(nothing)" for case in CASES]
)
def test_in_the_shell(shell: str, words: list[str], offered: set[str], hidden: set[str], place: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    found = ASK[shell](words, place)
    assert offered <= found
    assert not hidden & found
    assert not (place / "pwned").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_in_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name, parser in subcommands(make_parser()):
        assert name in script
        for action in parser._actions:
            for option in action.option_strings:
                assert (option if shell != "fish" else option.lstrip("-")) in script, (name, option)


def test_a_kernel_may_be_called_as_a_command_is(place: Path) -> None:
    """Words after a command are arguments, whatever they are."""
    assert "--extract" in ask_bash(["inspect", "diff", "--"], place)
    assert "--older-than" in ask_bash(["cache", "clear", "cache", "--"], place)


def test_typed_in_an_interactive_bash(place: Path) -> None:
    """With the keys as they are pressed: bash itself breaks words at colons, and puts in what it is given."""
    shell = interactive_bash(place)
    for keys, line in [
        (b"tlaot tu\t--ker\tge\t", "tlaot tune --kernel gemm "),
        (b"tlaot tune --target cu\t", "tlaot tune --target cuda:sm_90a "),
        (b"tlaot tune --target cuda:sm\t--fo\t", "tlaot tune --target cuda:sm_90a --force "),
        (b"tlaot lock remove --target=ll\t", "tlaot lock remove --target=llvm:x86-64-v3 "),
        (b"tlaot tune --target cuda:sm_90a --kernel=s\t", "tlaot tune --target cuda:sm_90a --kernel=scale "),
    ]:
        assert shell(keys) == line


def interactive_bash(place: Path) -> Callable[[bytes], str]:
    """Types keys into a bash on a terminal; gives the line that stands there then."""
    (place / "bashrc").write_text("PS1='> '\nsource _tlaot.bash\n")
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(place), "TERM": "dumb", "LC_ALL": "C.UTF-8"}

    def read_until(master: int, pattern: str) -> str:
        shown, end = "", time.monotonic() + 20
        while (found := re.search(pattern, shown)) is None:
            assert time.monotonic() < end, shown
            if select.select([master], [], [], 0.2)[0]:
                shown += os.read(master, 4096).decode()
        return found[0]

    def type_keys(keys: bytes) -> str:
        master, slave = pty.openpty()
        command = ["bash", "--rcfile", "bashrc", "-i"]
        shell = subprocess.Popen(
            command, cwd=place, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        try:
            read_until(master, "> ")
            # Ctrl-A and Ctrl-E go to the line's ends: it becomes what printf is given.
            os.write(master, keys + b"\x01printf '<%s>' \"\x05\"\r")
            return read_until(master, "<tlaot[^>]*>")[1:-1]
        finally:
            shell.kill()
            shell.wait()
            os.close(master)

    return type_keys


def test_help_with_quotes_does_not_break_out(place: Path) -> None:
    import argparse

    parser = argparse.ArgumentParser(prog="tlaot")
    parser.add_argument("--x", help='it\'s "$(touch pwned)" `touch pwned` \\', choices=["a'b", "$(touch pwned)"])
    for shell in SHELLS:
        if shutil.which(shell):
            (place / f"_tlaot.{shell}").write_text(write_completion(parser, shell))
            ASK[shell](["--"], place)
            ASK[shell](["--x", ""], place)
            assert not (place / "pwned").exists(), shell
