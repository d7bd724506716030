"""Every number has a test, or a line that says why not."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_number_is_covered() -> None:
    names = [
        name
        for file in HERE.glob("test_?_*.py")
        for name in re.findall(r"^def test_((?:\d{3}_)+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    tested = {int(number) for name in names for number in name.split("_") if number}
    excused = {
        int(n) for n in re.findall(r"^\| (\d+) \|", (HERE / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert not tested & excused
    assert tested | excused == set(range(1, 78))
