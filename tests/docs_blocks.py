"""Fenced blocks of the documents, with what an HTML comment before them says is to be done with them.

<!-- file: PATH -->         the block is a file's content
<!-- run -->                it is run by a shell; "run: NAME, NAME" needs what the test knows by these names
<!-- expect -->             the output of what was run before has these lines in it
<!-- output -->             shown only
<!-- network --> <!-- gpu -->   not run; its commands are held against the parser
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_KINDS = ("file", "run", "expect", "output", "network", "gpu")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        line: Of its opening fence, from 1.
        language: After the fence: ``"sh"``.
        kind: What the comment says; "" where there is none.
        words: What it says after a colon.
        text: The content.
    """

    line: int
    language: str
    kind: str
    words: tuple[str, ...]
    text: str


def blocks_of(text: str) -> Iterator[Block]:
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        fence = re.fullmatch(r"```(\w*)", lines[number])
        if fence is None:
            number += 1
            continue
        end = lines.index("```", number + 1)
        comment = re.fullmatch(r"<!-- (\w+)(?:: (.*))? -->", lines[number - 1]) if number else None
        kind, words = (comment[1], tuple((comment[2] or "").split(", "))) if comment else ("", ())
        assert kind in ("", *_KINDS), f"line {number}: {kind}"
        yield Block(number + 1, fence[1], kind, tuple(filter(None, words)), "\n".join(lines[number + 1 : end]) + "\n")
        number = end + 1


def commands_of(text: str) -> Iterator[tuple[int, list[str]]]:
    """Commands ``tlaot ...`` of a document, by line: in fenced and in indented blocks, and in code spans with a command's name first."""
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("```"):
            fenced = not fenced
            continue
        code = line.strip() if fenced or line.startswith("    ") else ""
        spans = [code] if code else re.findall(r"`(tlaot [^`]+)`", line)
        for span in spans:
            found = re.match(r"(?:\$ |run: )?(?:[A-Z_]+=\S* )*(tlaot [a-z].*)", span)
            if found is None or re.match(r"tlaot: ", span):
                continue
            for part in re.split(r" && | \|\| | \| |; ", found[1]):
                # What follows two blanks is said of the command; what is in capitals or braces stands for something.
                part = re.split(r"\s{2,}|\s#|\s->|\s>", part)[0]
                if part.startswith("tlaot "):
                    yield number, shlex.split(part)


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]
