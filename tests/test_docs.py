"""The documents: what is made of the code is current, links lead somewhere, and commands are those that there are, or are run."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, clean_environ, has_distribution
from docs_blocks import Block, blocks_of, commands_of, pages

import tlaot
import tlaot.cli
from tlaot.cli import STATUSES, make_parser
from tlaot.cli.parser import Parser, failing_of, subcommands
from tlaot.tune.specs.keys import TABLES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# A backend of builds, a group of entry points: names that are no attributes.
NOT_OF_THE_LIBRARY = {"build_hooks", "kernels"}

DOCS = ROOT / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="the tests run without the repository around them")
PAGES = [path.relative_to(ROOT).as_posix() for path in (pages(ROOT) if DOCS.is_dir() else [])]


def test_pages_that_are_made_of_the_code_are_current() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, DOCS / "generate.py", "--check"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_a_page_that_is_not_current_is_named(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copytree(ROOT / "build_hooks", tmp_path / "build_hooks")
    page = tmp_path / "docs" / "reference" / "spec.md"
    page.write_text(page.read_text().replace("`rtol`", "`rtl`"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, tmp_path / "docs" / "generate.py"]
    done = subprocess.run([*command, "--check"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "docs/reference/spec.md: is not current: python docs/generate.py\n")
    assert subprocess.run(command, env=env, capture_output=True).returncode == 0
    assert page.read_text() == (DOCS / "reference" / "spec.md").read_text()


def anchors_of(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *(f"docs/reference/{p.name}" for p in sorted(DOCS.glob("reference/*.md")))])
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", path.read_text(encoding="utf-8"))
    for link, anchor in links:
        if re.match(r"https?://", link):
            continue
        target = (path.parent / link).resolve() if link else path
        assert target.exists(), f"{page}: {link}"
        assert not anchor or anchor in anchors_of(target), f"{page}: {link}#{anchor}"


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\]\(([\w/.-]+\.md)\)", index))
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"README.md"}
    assert there - listed == set()


class Refused(Exception):
    pass


class Checking(Parser):
    """The parser, which raises in place of ending the program."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise Refused(message)


def strict_parser() -> argparse.ArgumentParser:
    parser = make_parser()

    def change(one: argparse.ArgumentParser) -> None:
        one.__class__ = Checking
        for _, child in subcommands(one):
            change(child)

    change(parser)
    return parser


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_those_that_there_are(page: str) -> None:
    """With the very arguments that the parser takes; of a command that only has a name, the name."""
    parser = strict_parser()
    names = dict(subcommands(parser))
    for line, words in commands_of((ROOT / page).read_text(encoding="utf-8")):
        assert words[1] in names or words[1] in ("COMMAND", "--help", "--version"), f"{page}:{line}: {words}"
        left = [word for word in words[1:] if word not in ("...", "[...]")]
        deeper = dict(subcommands(names[words[1]])) if words[1] in names else {}
        if len(left) == 1 or (len(left) == 2 and left[1] in deeper) or "|" in " ".join(left) or left[0] == "COMMAND":
            continue  # it is spoken of
        if "--help" in left:
            continue
        try:
            parser.parse_args(left)
        except Refused as error:
            # Spoken of with some of its options: those must be there all the same.
            assert "are required" in str(error), f"{page}:{line}: {' '.join(words)}: {error}"


@pytest.mark.parametrize("page", PAGES)
def test_shell_blocks_are_shell(page: str) -> None:
    for block in blocks_of((ROOT / page).read_text(encoding="utf-8")):
        if block.language == "sh":
            done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
            assert done.returncode == 0, f"{page}:{block.line}: {done.stderr}"
            assert block.kind in ("run", "network", "gpu"), f"{page}:{block.line}: neither run nor marked"
        if block.language == "python":
            compile(block.text, f"{page}:{block.line}", "exec")


# What a spec's fragment may have beside its own tables, of pyproject.toml.
OTHERS = {"build-system", "project", "tool", "requires", "build-backend", "dependencies", "requires-python"}


def fragments_of(text: str) -> Iterator[str]:
    """TOML of a page, without the lines that only stand for others: fenced, indented, and in code spans."""
    for block in blocks_of(text):
        if block.language == "toml":
            yield block.text
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for found in re.findall(r"(?:^(?: {4,}.*)?\n)+", prose, re.MULTILINE):
        for block in re.split(r"\n\s*\n(?! *[\w\[#])", found):
            if re.search(r"^ +\[\[?(tlaot|kernel|target|tool|build-system)\b", block, re.MULTILINE):
                yield re.sub(r"^\s*\.\.\.\s*$", "", textwrap.dedent(block.strip("\n")), flags=re.MULTILINE)
    yield from re.findall(r"`([a-z][a-z-]* = [^`]+)`", prose)


def unknown_keys(body: dict[str, Any]) -> list[str]:
    """Keys that no table of a spec has; where a fragment is of no table, any will do."""
    known = {heading.strip("[]").partition(".")[0]: {key.name for key in keys} for heading, keys in TABLES}
    anywhere = set().union(*known.values()) | OTHERS | {"tlaot", "kernel", "target"}
    wrong = [key for key in body if key.replace("_", "-") not in anywhere]
    tables = [("tlaot", body.get("tlaot", {})), *(("kernel", one) for one in body.get("kernel", []))]
    tables += [("target", one) for one in body.get("target", {}).values()]
    for name, table in tables:
        wrong += [f"{name}.{key}" for key in table if key.replace("_", "-") not in known[name]]
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_keys_of_specs_are_those_that_there_are(page: str) -> None:
    for fragment in fragments_of((ROOT / page).read_text(encoding="utf-8")):
        try:
            body = tomllib.loads(fragment)
        except tomllib.TOMLDecodeError as error:
            if "\n" in fragment.strip():
                raise AssertionError(f"{page}: {error}:\n{fragment}") from None
            continue  # an assignment of another language, or one with letters for a value
        assert not unknown_keys(body), f"{page}:\n{fragment}"


@pytest.mark.parametrize("page", PAGES)
def test_names_of_the_library_are_those_that_there_are(page: str) -> None:
    """``tlaot.load``, ``tlaot.torch.register`` and the like, in code of any kind."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for dotted in dict.fromkeys(re.findall(r"(?<![\w./@:-])@?tlaot\.([A-Za-z_][\w.]*\w)(?=[(\[`, )])", text)):
        names = dotted.split(".")
        if dotted in NOT_OF_THE_LIBRARY or names[-1] in ("toml", "lock", "h"):
            continue
        if names[0] == "torch":  # which needs torch
            names, source = names[1:], (ROOT / "tlaot" / "torch" / "__init__.py").read_text(encoding="utf-8")
            assert not names or f'"{names[0]}"' in source, f"{page}: tlaot.{dotted}"
            continue
        found: Any = tlaot
        for name in names:
            assert hasattr(found, name), f"{page}: tlaot.{dotted}"
            found = getattr(found, name)


def test_exit_statuses_are_told() -> None:
    """docs/commands.md has the table; each command that can end with 1 says when, and no other does."""
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    told = {int(code): meaning for code, meaning in re.findall(r"^\| (\d+) \| (.*?) \|$", text, re.MULTILINE)}
    assert told == STATUSES
    folder = Path(tlaot.cli.__file__).parent
    for name, parser in subcommands(make_parser()):
        source = (folder / f"{name}.py").read_text(encoding="utf-8")
        says = bool(failing_of(parser)) or any(failing_of(child) for _, child in subcommands(parser))
        assert says == bool(re.search(r"return 1\b", source)), name


class Workplace:
    """A fresh folder in which the blocks of one page are done, in their order."""

    def __init__(self, folder: Path, tlaot_wheel: Path | None) -> None:
        self.folder = folder
        programs = folder / ".programs"
        programs.mkdir()
        for name, words in {"tlaot": "-m tlaot", "pip": "-m pip", "python": "", "python3": ""}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            (programs / name).chmod(0o755)
        self.environ = {**clean_environ(), "PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(folder / ".tmp")}
        (folder / ".tmp").mkdir()
        if tlaot_wheel is not None:
            self.environ["PIP_FIND_LINKS"] = str(tlaot_wheel.parent)
        if not has_distribution("tlaot"):
            self.environ["PYTHONPATH"] = str(ROOT)  # the source tree is tested
        self.output = ""

    def do(self, block: Block, page: str) -> None:
        place = f"{page}:{block.line}"
        if block.kind == "file":
            path = self.folder / block.words[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            text = block.text
            if path.name == "tltune.toml":  # nothing is waited for, since the machine is at work on other tests
                quick = "profile = { warmup = 2, rep = 10, decide-budget = 0.1, quiet-timeout = 0 }"
                text = text.replace("\nout-idx", f"\n{quick}\nout-idx")
            path.write_text(text, encoding="utf-8")
        elif block.kind == "run":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.text],
                cwd=self.folder, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            self.output = done.stdout
            fails = next((word for word in block.words if word.startswith("fails")), None)
            status = 0 if fails is None else int(fails.partition(" ")[2] or 1)
            assert done.returncode == status, f"{place}:\n{block.text}\n{self.output}"
        elif block.kind == "expect":
            for line in filter(None, block.text.splitlines()):
                assert line.strip() in self.output, f"{place}: {line!r} is not in\n{self.output}"


@pytest.fixture
def workplace(request: pytest.FixtureRequest) -> Iterator[Workplace]:
    folder = Path(tempfile.mkdtemp(prefix="tlaot-docs-"))
    try:
        wheel = request.getfixturevalue("tlaot_wheel") if request.param else None
        yield Workplace(folder, wheel)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


RUN = [page for page in PAGES if any(block.kind == "run" for block in blocks_of((ROOT / page).read_text("utf-8")))]


@pytest.mark.slow
@pytest.mark.skipif(not has_distribution("apache-tvm"), reason="needs apache-tvm")
@pytest.mark.parametrize("workplace", [True], indirect=True, ids=[""])
@pytest.mark.parametrize("page", RUN)
def test_what_a_page_says_works(page: str, workplace: Workplace) -> None:
    """On the CPU, in a fresh folder, with the tlaot that is installed; the wheel it installs where nothing else is."""
    has = {"clean": True, "report": find_spec("vl_convert") is not None, "tilelang": find_spec("tilelang") is not None}
    for block in blocks_of((ROOT / page).read_text(encoding="utf-8")):
        if all(has.get(word, True) for word in block.words) or block.kind == "file":
            workplace.do(block, page)
