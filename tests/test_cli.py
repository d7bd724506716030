"""The command line: what all commands share."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures_runtime import tensor, variant, write_package

import tlaot.cli
from tlaot.cli import main, make_parser
from tlaot.cli.parser import subcommands

PARAMS = [tensor("X", "m", 8), tensor("Y", "m", 8, written=True)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two variants of one kernel, whose binaries no one loads."""
    built = [(variant("k", PARAMS, [1], {"N": n}, "cuda:sm_90a"), b"\x7fELF" + bytes(n)) for n in (8, 9)]
    write_package(tmp_path, "pk_cli", {"k": built}, "raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "pk_cli"


@pytest.mark.parametrize("command", ["inspect", "check", "seal", "diff"])
@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("pk_cli_that_is_not_there", "is not installed"),
        ("pytest", "has no packaged kernels"),
        ("missing.whl", "is not a readable wheel"),
        ("dist/nothing", "is neither a file nor the import name of a package"),
        ("not-a-name", "import name of a package"),
    ],
)
def test_what_cannot_be_opened(command: str, what: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, and one message that says what to do."""
    assert main([command, what, what][: 3 if command == "diff" else 2]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_what_may_not_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").mkdir(mode=0)
    try:
        assert main(["inspect", str(tmp_path / "x")]) == 2
    finally:
        (tmp_path / "x").chmod(0o755)
    assert capsys.readouterr().err.startswith("tlaot: ")


def test_a_disk_that_is_full(folder: Path) -> None:
    """One line on standard error, exit status 2."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder.parent), *filter(None, sys.path)])}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tlaot.cli", "inspect", "pk_cli"],
            env=env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr == "tlaot: standard output: No space left on device\n"


def test_a_wheel_without_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An ordinary wheel."""
    path = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("x/__init__.py", "")
    assert main(["inspect", str(path)]) == 2
    assert "has no packaged kernels" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["tlaot", "tlaot.cli"])
def test_runs_as_a_module_and_imports_nothing_heavy(folder: Path, module: str) -> None:
    """``python -m tlaot`` is ``tlaot``: it loads neither the FFI, nor a framework, nor the package that it looks at."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder.parent), *filter(None, sys.path)])}
    code = (
        "import sys; from tlaot.cli import main; assert main(['inspect', 'pk_cli']) == 0;"
        "assert not {'tvm_ffi', 'numpy', 'torch', 'pk_cli', 'tlaot.tune'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
    started = [sys.executable, "-m", module]
    done = subprocess.run([*started, "--help"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: tlaot ")
    assert "inspect" in done.stdout
    assert "check" in done.stdout
    assert subprocess.run([*started, "inspect", "no.such"], env=env, capture_output=True, timeout=60).returncode == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    import tlaot

    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"tlaot {tlaot.__version__}\n"


def test_without_a_command_it_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: tlaot") and "examples:" in shown
    for name, _ in subcommands(make_parser()):
        assert f"    {name}" in shown


def test_help_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 80 columns: of every command and of those below it, examples and all."""
    monkeypatch.setenv("COLUMNS", "80")

    def look(parser: argparse.ArgumentParser) -> None:
        long = [line for line in parser.format_help().splitlines() if len(line) > 80]
        assert not long, f"{parser.prog}: {long}"
        for _, child in subcommands(parser):
            look(child)

    look(make_parser())


def test_whoever_shows_a_table_has_json() -> None:
    """A command that prints a table prints JSON on demand."""
    folder = Path(tlaot.cli.__file__).parent
    for name, parser in subcommands(make_parser()):
        if "show_table(" in (folder / f"{name}.py").read_text(encoding="utf-8"):
            options = [
                one for part in (parser, *dict(subcommands(parser)).values()) for one in part._option_string_actions
            ]
            assert "--json" in options, name


def leaves(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    children = list(subcommands(parser))
    for name, child in children:
        yield from leaves(child, (*path, name))
    if not children:
        yield path


# What cannot be done, of each command.
NOT_DONE = {
    ("init",): ["missing"],
    ("capture",): [],
    ("doctor",): ["--no-such-option"],
    ("lock", "show"): ["missing.lock"],
    ("lock", "check"): ["--spec", "missing.toml"],
    ("lock", "merge"): ["missing.lock"],
    ("lock", "remove"): ["missing.lock", "--kernel", "k"],
    ("tune",): ["--spec", "missing.toml"],
    ("check",): ["missing.whl"],
    ("diff",): ["missing.whl", "missing.whl"],
    ("inspect",): ["missing.whl"],
    ("report",): ["missing.lock"],
    ("seal",): ["missing.whl"],
    ("split",): ["missing.whl", "-o", "wheels"],
    ("retune",): ["missing_package"],
    ("include",): ["--no-such-option"],
    ("cache", "list"): ["--no-such-option"],
    ("cache", "clear"): ["--older-than", "long"],
    ("cache", "path"): ["--no-such-option"],
    ("clean",): ["missing"],
    ("completion",): ["tcsh"],
}


def test_what_is_not_done_of_every_command() -> None:
    assert set(NOT_DONE) == set(leaves(make_parser()))


@pytest.mark.parametrize("command", NOT_DONE)
def test_what_is_not_done_ends_with_2(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says on standard error what is wrong, and below that what to do."""
    monkeypatch.chdir(tmp_path)
    try:
        status: object = main([*command, *NOT_DONE[command]])
    except SystemExit as ended:
        status = ended.code
    shown = capsys.readouterr()
    assert (status, shown.out) == (2, "")
    assert shown.err.startswith("tlaot") and len(shown.err.splitlines()) >= 2, shown.err


@pytest.mark.parametrize("name", [name for name, _ in subcommands(make_parser())])
def test_each_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"  tlaot {name}" in shown.partition("\nexamples:\n")[2], shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["inspct", "x"], "tlaot: there is no command 'inspct', did you mean 'inspect'?"),
        (["frobnicate"], "tlaot: there is no command 'frobnicate'"),
        (["cache", "lst"], "tlaot cache: there is no command 'lst', did you mean 'list'?"),
        (["inspect", "--jsn", "x"], "tlaot inspect: unknown argument --jsn, did you mean '--json'?"),
        (["inspect", "--js", "x"], "tlaot inspect: unknown argument --js, did you mean '--json'?"),
        (["inspect", "x", "y"], "tlaot inspect: unknown argument y"),
        (
            ["diff", "a", "b", "--max-slow=2"],
            "tlaot diff: unknown argument --max-slow=2, did you mean '--max-slowdown'?",
        ),
        (["--versio"], "tlaot: unknown argument --versio, did you mean '--version'?"),
        (
            ["inspect", "x", "--extract", "cubn"],
            "tlaot inspect: --extract: there is no choice 'cubn', did you mean 'cubin'?",
        ),
        (["completion", "bsh"], "tlaot completion: shell: there is no choice 'bsh', did you mean 'bash'?"),
        (["diff", "a"], "tlaot diff: the following arguments are required: NEW"),
        (["diff", "a", "b", "--max-slowdown", "0.9"], "expected a number of at least 1, got '0.9': write 1.05 for 5 %"),
        (["diff", "a", "b", "--max-slowdown", "nan"], "expected a number of at least 1"),
    ],
)
def test_what_is_misspelt_is_told_with_the_nearest_name(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, what is wrong, and a remedy on a line of its own; no usage of ten lines."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    what, remedy = shown.err.splitlines()
    assert says in what
    assert remedy.endswith("--help says what there is.")


def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    """``tlaot inspect ... | head -1``: nothing on standard error, also where the output is still in the buffer."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder.parent), *filter(None, sys.path)])}
    for words in (["inspect", "pk_cli"], ["completion", "zsh"]):
        command = subprocess.Popen(
            [sys.executable, "-m", "tlaot.cli", *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert command.stdout is not None and command.stderr is not None
        command.stdout.close()
        assert command.stderr.read() == b""
        assert command.wait() == 0
