"""``tlaot completion``: the scripts in the real shells, where they are installed, know what the parser knows."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tlaot.cli import main, make_parser
from tlaot.cli.completion import SHELLS, write_completion
from tlaot.cli.parser import subcommands

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
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("one.whl", "two.txt", "it's $(touch pwned)"):
        (tmp_path / name).touch()
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
    offer() {{ local each; for each; do each="${{each//\\\\:/\\0}}"; each="${{each%%:*}}"; [[ "$each" == "$PREFIX"* ]] && print -r -- "$each"; done; return 0 }}
    compadd() {{ [[ "$1" == -- ]] && shift; offer "$@" }}
    _describe() {{ [[ "$1" == -o ]] && shift; offer "${{(@P)2}}" }}
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
