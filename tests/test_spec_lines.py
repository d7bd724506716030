"""The line of a file that an error is about."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_spec import DYNAMIC_MISTAKES, HEAD, KERNEL, WRONG

from tlaot.errors import SpecError
from tlaot.tune.specs.spec_file import read_spec
from tlaot.tune.specs.spec_lines import find_place


def marked(text: str, where: str, what: str) -> str | None:
    """The marked part of the line."""
    place = find_place(text, where, what)
    if place is None:
        return None
    assert text.split("\n")[place.line - 1] == place.text
    return place.text[place.column - 1 : place.column - 1 + place.length]


def fails(tmp_path: Path, text: str) -> SpecError:
    path = tmp_path / "tltune.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    return caught.value


@pytest.mark.parametrize(
    "text",
    [text for text, *_ in WRONG] + [f"{HEAD}{KERNEL}{lines}\n" for lines, _ in DYNAMIC_MISTAKES],
    ids=[what for _, what, _ in WRONG] + [lines[:40] for lines, _ in DYNAMIC_MISTAKES],
)
def test_every_mistake_in_a_spec_has_a_line(tmp_path: Path, text: str) -> None:
    """Of the table at least; where a key is missing, its heading."""
    error = fails(tmp_path, text)
    place = find_place(text, error.where, error.what)
    if place is None:
        # What the whole file lacks has no line.
        assert error.where == "tltune.toml" or "lacks the key 'package'" in error.what
        return
    assert place.text and place.length > 0
    if "not valid TOML" not in error.what:
        assert place.text.strip()


@pytest.mark.parametrize(
    ("lines", "mark", "line"),
    [
        ("colour = 3\n", "colour", 12),
        ("profile = { warm = 1 }\n", "warm", 12),
        ('profile = { rep = 5, backend = "cupit" }\n', "cupit", 12),
        ("max_mismatched-ratio = 2\n", "2", 12),
        ("supply = { ranges = { A = [1] } }\n", "[1]", 12),
        ("[kernel.supply.ranges]\nA = [1] # one\n", "[1]", 13),
        ("# check = 2\n\ncheck = 1\n", "1", 14),
        ('inputs = """a\nb"""\n', "inputs", 12),
        ("configs = [\n  3,\n]\n", "configs", 12),
        ("configs = [{ a = 1 }]\nspace = { a = 1 }\n", "[[kernel]]", 6),
        ('targets = ["llvm", "rocm:x"]\n', "rocm:x", 12),
        ("flops = '2*M**N'\n", "2*M**N", 12),
        ("x = = 3\n", "=", 12),
    ],
)
def test_what_is_marked(tmp_path: Path, lines: str, mark: str, line: int) -> None:
    """An unknown key; else the value, or the part of it that the message quotes; of several lines the key; else the table."""
    text = HEAD + KERNEL + lines
    error = fails(tmp_path, text)
    place = find_place(text, error.where, error.what)
    assert place is not None
    assert (marked(text, error.where, error.what), place.line) == (mark, line)


def test_the_second_kernel_and_a_shape_in_a_list() -> None:
    second = KERNEL.replace('"add"', '"sub"').replace("{ N = 1024 }", "{ N = 64 }, { N = [1, 2], M = 2026-01-01 }")
    text = HEAD + KERNEL + second
    where = "tltune.toml [[kernel]] #2 (sub) shapes M"
    assert marked(text, where, "is not a number, got datetime.date(2026, 1, 1)") == "2026-01-01"
    assert marked(text, "tltune.toml [[kernel]] #2 (sub) reference pkg.kernels:reference", "x") == "reference"
    assert marked(text, "tltune.toml [[kernel]] #3 (no)", "x") is None


def test_other_tables_and_errors_of_a_workload() -> None:
    text = HEAD + KERNEL + '[target."cuda:sm_90a"] # theirs\ntuned-as = "cuda:sm_80"\n'
    assert marked(text, 'tltune.toml [target."cuda:sm_90a"] tuned-as', "is wrong") == '"cuda:sm_80"'
    assert marked(text, 'tltune.toml [target."cuda:sm_90a"]', "is wrong") == '[target."cuda:sm_90a"]'
    assert marked(text, "tltune.toml [tlaot] package", "is wrong") == '"pkg"'
    assert marked(text, "add [llvm:x86-64-v3] (N=1024)", "no candidate is left") == '"add"'
    assert marked(text, "sub [llvm:x86-64-v3] (N=1024)", "no candidate is left") is None
    assert marked("[tool.tlaot]\nspce = 1\n", "pyproject.toml [tool.tlaot]", "unknown key 'spce'") == "spce"
    assert marked(text, "build/tlaot", "is full") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "[",
        "a",
        "a.",
        'a = "',
        "a = [",
        "a = {",
        "a = '''x",
        '"',
        "[[kernel]",
        "a = [[[1,",
        "a = {b = ",
        "\\",
        "a = ",
    ],
)
def test_what_is_no_toml_ends_the_search(text: str) -> None:
    """Nothing is raised, and nothing runs for ever."""
    assert find_place(text, "tltune.toml [tlaot] package", "is wrong") is None
    whole = "[tlaot]\npackage = 3\n" + text
    assert marked(whole, "tltune.toml [tlaot] package", "is wrong") == "3"


def test_quotes_escapes_and_windows_line_ends() -> None:
    text = '[tlaot]\r\n"package" = "a\\"b" # \'\r\ntargets = [ # "x"\r\n "llvm", \'\'\'rocm\'\'\' ]\r\n'
    assert marked(text.replace("\r", ""), "tltune.toml [tlaot] package", "is wrong") == '"a\\"b"'
    place = find_place(text, "tltune.toml [tlaot] targets", "unknown target kind 'rocm'")
    assert place is not None and (place.line, place.text) == (4, " \"llvm\", '''rocm''' ]")
